/* sendrecv.c - sends and recvs between two ranks of a group that uses the one-host path.
 *
 *   sender's ring, one per receiver                      receiver
 *     slot n % SLOTS: count, type, and the bytes    ──►  the n-th recv from this sender takes slot n
 *                     or BY_MESSAGE                      and stores acked_seq in its own table
 *     [from, to): by message, the ring was full
 *
 * A send completes when its bytes are in the ring: up to 16 KiB (32 KiB if oversubscribed), or up to
 * EAGER_BYTES_MAX from unmapped memory. A longer send goes by message; its slot carries the call. One
 * sequence number orders both, so a differing recv is found for every length. A full ring spills to messages
 * until all of it was received. A recv polls the slot of its number: within the call, then at each step of
 * the loop. Memory: a table per group, a ring per receiver, and a buffer for payloads above the slot, of 8
 * KiB, 64 KiB or 512 KiB. It is freed with the group after the peers have read it. Each word has one writer
 * and carries the salt (onehost.h). */
#include "collective/core/interpreter.h"
#include "collective/core/record/op_record.h"
#include "collective/core/record/straggler_time.h"
#include "collective/onehost/onehost.h"

#include <string.h>

enum { SLOTS = 16, INLINE_BYTES = 40, POLLS = 100 /* a few microseconds */ };
/* of payload buffers */
enum {
    BUFFER_SMALL_BYTES = 2 * ONEHOST_SMALL_SLOT_BYTES,
    BUFFER_MIDDLE_BYTES = 64 << 10,
    BUFFER_LARGE_BYTES = 512 << 10,
    BUFFER_HOT_BYTES = 64 << 10
};
enum { LARGE_BUFFERS_MAX = 8 }; /* per group: 4 MiB */
/* Limits for two copies instead of one. The single copy is cheap from mapped memory and a system call from
 * unmapped memory. */
enum {
    EAGER_BYTES_MAX = BUFFER_LARGE_BYTES / 2,
    EAGER_MAPPED_BYTES_MAX = 16 << 10,
    EAGER_MAPPED_OVERSUBSCRIBED_BYTES_MAX = 32 << 10
};
enum delivery { NOT_ARRIVED = 0, EAGER, BY_MESSAGE };

struct channel_slot {
    _Alignas(64) _Atomic uint64_t seq; /* salt + seq + 1, stored last */
    uint64_t count;
    uint32_t at; /* offset in the buffer, if the bytes do not fit into inline_data */
    uint8_t dtype, delivery;
    uint8_t inline_data[INLINE_BYTES];
};
_Static_assert(sizeof(struct channel_slot) == 64, "a slot is one line");

struct channel_ring {
    _Alignas(64) _Atomic uint64_t from, to; /* salt + seq, each: sends without a slot. `to` is stored last */
    /* salt + offset + 1; changes only after all sends were received */
    _Atomic uint64_t buffer_at;
    struct channel_slot slots[SLOTS];
};

/* The words of a rank for one peer; its table has (ranks,) of them. */
struct channel_entry {
    _Atomic uint64_t ring_at;   /* salt + offset + 1 */
    _Atomic uint64_t acked_seq; /* salt + seq of the next send that it will receive */
};

struct onehost_channel {
    struct weft_list link;  /* sendrecv->waiting, while it has recvs */
    struct weft_list recvs; /* struct weft_coll.onehost.link */
    uint32_t rank;
    /* sends to that rank */
    struct channel_ring *ring; /* own; NULL: none yet */
    uint8_t *buffer;           /* own; NULL: none yet */
    size_t buffer_bytes;
    uint64_t send_seq;       /* seq of the next send */
    uint64_t peer_acked_seq; /* acked_seq of the peer at the last look */
    /* bytes of the buffer freed again; bytes used; both since its allocation */
    uint64_t buffer_tail, buffer_head;
    uint64_t buffer_ends[SLOTS]; /* buffer_head after each send */
    bool is_spilling;            /* the ring was full, and the peer has not received all yet */
    /* recvs from that rank */
    const struct channel_ring *in;      /* in the peer's mapping; NULL: not found yet */
    uint64_t recv_seq;                  /* seq of the next recv */
    struct weft_record last_records[2]; /* of the last recv and send that completed at once */
    uint64_t dropped_messages;          /* messages whose recv was cancelled */
};

struct onehost_sendrecv {
    struct onehost *onehost;
    struct channel_entry *table; /* own */
    struct weft_list waiting;    /* struct onehost_channel.link */
    struct weft_pollable pollable;
    uint64_t salt;
    uint32_t ranks;
    uint32_t large_buffers;
    struct weft_moved moved;
    struct onehost_channel *of[]; /* (ranks,); NULL: no send or recv with that rank yet */
};

bool onehost_sendrecv_is_possible(const struct weft_group *group)
{
    return group->onehost && group->onehost->state != ONEHOST_DISABLED;
}

/* ---- memory ---- */
static int progress(struct weft_pollable *pollable, int budget);
static enum weft_status arm(struct weft_pollable *pollable);

static struct onehost_sendrecv *sendrecv_create(struct onehost *onehost)
{
    uint32_t ranks = onehost->group->ranks;
    weft_loop_guard_thread(onehost->group->loop);
    struct onehost_sendrecv *sendrecv =
        weft_alloc_zero(weft_env_system(), sizeof *sendrecv + ranks * sizeof sendrecv->of[0]);
    void *table;
    uint64_t at;
    if (!sendrecv || onehost_block_alloc(ranks * sizeof *sendrecv->table, &table, &at) < 0) {
        weft_free_bytes(weft_env_system(), sendrecv);
        return NULL;
    }
    sendrecv->onehost = onehost;
    sendrecv->salt = onehost->salt;
    sendrecv->ranks = ranks;
    sendrecv->table = table;
    for (uint32_t rank = 0; rank < ranks; rank++)
        atomic_store_explicit(&sendrecv->table[rank].acked_seq, onehost->salt, memory_order_relaxed);
    weft_list_init(&sendrecv->waiting);
    weft_list_init(&sendrecv->pollable.link);
    sendrecv->pollable.fd = WEFT_POLLABLE_NO_FD;
    sendrecv->pollable.progress = progress;
    sendrecv->pollable.arm = arm;
    (void)weft_loop_add(onehost->group->loop, &sendrecv->pollable); /* cannot fail without a descriptor */
    atomic_store_explicit(&onehost->segment->sendrecv_at, onehost->salt + at + 1, memory_order_release);
    return sendrecv;
}

static struct onehost_channel *channel_of(struct onehost *onehost, uint32_t rank)
{
    if (!onehost->sendrecv && !(onehost->sendrecv = sendrecv_create(onehost))) return NULL;
    struct onehost_channel *channel = onehost->sendrecv->of[rank];
    if (channel || !(channel = weft_alloc_zero(weft_env_system(), sizeof *channel))) return channel;
    channel->rank = rank;
    weft_list_init(&channel->link);
    weft_list_init(&channel->recvs);
    return onehost->sendrecv->of[rank] = channel;
}

static bool ring_create(struct onehost *onehost, struct onehost_channel *channel)
{
    void *ring;
    uint64_t at;
    if (channel->ring) return true;
    weft_loop_guard_thread(onehost->group->loop);
    if (onehost_block_alloc(sizeof *channel->ring, &ring, &at) < 0) return false;
    channel->ring = ring;
    atomic_store_explicit(&channel->ring->from, onehost->salt, memory_order_relaxed);
    atomic_store_explicit(&channel->ring->to, onehost->salt, memory_order_relaxed);
    atomic_store_explicit(&onehost->sendrecv->table[channel->rank].ring_at, onehost->salt + at + 1,
                          memory_order_release);
    return true;
}

bool onehost_sendrecv_reserve(struct onehost *onehost, uint32_t rank, bool sends)
{
    struct onehost_channel *channel = channel_of(onehost, rank);
    return channel && (!sends || ring_create(onehost, channel));
}

/* ---- words of the peer ---- */

/* (bytes,) of the peer's memory at the offset in `word`; NULL: not published, or outside. */
static void *locate(const struct onehost_peer *peer, const _Atomic uint64_t *word, size_t bytes, size_t align)
{
    uint64_t at = atomic_load_explicit(word, memory_order_acquire) - peer->salt - 1;
    return onehost_peer_memory_contains(peer->memory, at, bytes) && at % align == 0
               ? peer->memory->mapping.base + at
               : NULL;
}

/* The peer's entry for rank `own`. */
static const struct channel_entry *entry_of(const struct onehost_peer *peer, uint32_t ranks, uint32_t own)
{
    const struct channel_entry *table =
        locate(peer, &peer->segment->sendrecv_at, ranks * sizeof *table, _Alignof(struct channel_entry));
    return table ? &table[own] : NULL;
}

/* How many of this rank's sends the peer has received. A value out of range belongs to a freed group. */
static uint64_t acked_by(const struct onehost_channel *channel, const struct onehost_peer *peer,
                         uint32_t ranks, uint32_t own)
{
    const struct channel_entry *entry = entry_of(peer, ranks, own);
    uint64_t acked_seq =
        entry ? atomic_load_explicit(&entry->acked_seq, memory_order_acquire) - peer->salt : 0;
    return acked_seq > channel->peer_acked_seq && acked_seq <= channel->send_seq ? acked_seq
                                                                                 : channel->peer_acked_seq;
}

static void update_acked(const struct onehost *onehost, struct onehost_channel *channel)
{
    uint64_t acked_seq =
        acked_by(channel, &onehost->peers[channel->rank], onehost->group->ranks, onehost->group->rank);
    if (acked_seq == channel->peer_acked_seq) return;
    channel->peer_acked_seq = acked_seq;
    channel->buffer_tail = channel->buffer_ends[(acked_seq - 1) % SLOTS];
}

/* ---- send ---- */

static uint8_t *buffer_alloc(size_t bytes, uint64_t *at_out)
{
    void *buffer;
    if (bytes == BUFFER_SMALL_BYTES) return onehost_block_alloc(bytes, &buffer, at_out) < 0 ? NULL : buffer;
    if (weft_memory_alloc(weft_env_system(), bytes, &buffer, NULL) < 0) return NULL;
    if (weft_memory_locate(buffer, bytes, at_out)) return buffer;
    weft_memory_free(weft_env_system(), buffer);
    return NULL;
}

static void buffer_free(uint8_t *buffer, size_t bytes)
{
    if (bytes == BUFFER_SMALL_BYTES) onehost_block_free(buffer);
    else weft_memory_free(weft_env_system(), buffer);
}

/* Buffer size for sends of this length: several fit, so that a sender need not wait for the receiver. */
static size_t buffer_bytes_wanted(const struct onehost_sendrecv *sendrecv, size_t bytes)
{
    if (bytes <= ONEHOST_SMALL_SLOT_BYTES) return BUFFER_SMALL_BYTES;
    return bytes <= BUFFER_MIDDLE_BYTES / 8 || sendrecv->large_buffers == LARGE_BUFFERS_MAX
               ? BUFFER_MIDDLE_BYTES
               : BUFFER_LARGE_BYTES;
}

/* Grows the buffer to the wanted size if there is memory and the old one is empty. */
static void buffer_ensure(struct onehost *onehost, struct onehost_channel *channel, size_t bytes)
{
    const size_t wanted = buffer_bytes_wanted(onehost->sendrecv, bytes);
    uint64_t at;
    if (channel->buffer_bytes >= wanted) return;
    update_acked(onehost, channel);
    if (channel->buffer && channel->peer_acked_seq != channel->send_seq) return;
    weft_loop_guard_thread(onehost->group->loop);
    uint8_t *buffer = buffer_alloc(wanted, &at);
    if (!buffer) return;
    if (channel->buffer) buffer_free(channel->buffer, channel->buffer_bytes);
    if (wanted == BUFFER_LARGE_BYTES) onehost->sendrecv->large_buffers++;
    channel->buffer = buffer;
    channel->buffer_bytes = wanted;
    channel->buffer_head = channel->buffer_tail = 0;
    atomic_store_explicit(&channel->ring->buffer_at, onehost->salt + at + 1, memory_order_release);
}

/* If the peer keeps up, the first part of the buffer suffices and stays in the cache. */
static bool leaves_hot_part(const struct onehost_channel *channel, size_t bytes)
{
    return channel->buffer_bytes > BUFFER_HOT_BYTES &&
           channel->buffer_head % channel->buffer_bytes + bytes > BUFFER_HOT_BYTES;
}

/* Contiguous: the rest of the buffer after the head can be too short. */
static uint64_t buffer_offset_of(const struct onehost_channel *channel, size_t bytes)
{
    const uint64_t left = channel->buffer_bytes - channel->buffer_head % channel->buffer_bytes,
                   again = channel->buffer_head + left;
    const bool restarts =
        leaves_hot_part(channel, bytes) && again + bytes - channel->buffer_tail <= channel->buffer_bytes;
    return bytes > left || restarts ? again : channel->buffer_head;
}

static bool buffer_has_space(const struct onehost_channel *channel, size_t bytes)
{
    return buffer_offset_of(channel, bytes) + bytes - channel->buffer_tail <= channel->buffer_bytes;
}

/* A free slot for the next send, and space in the buffer if it needs that. */
static bool has_slot(const struct onehost *onehost, struct onehost_channel *channel, size_t buffer_bytes)
{
    for (int look = 0; look < 2; look++) {
        if (channel->is_spilling && channel->peer_acked_seq == channel->send_seq)
            channel->is_spilling = false;
        if (!channel->is_spilling && channel->send_seq - channel->peer_acked_seq < SLOTS &&
            (buffer_bytes == 0 || buffer_has_space(channel, buffer_bytes)))
            return true;
        if (look == 0) update_acked(onehost, channel);
    }
    return false;
}

static bool is_eager(const struct onehost *onehost, const struct weft_coll_args *args, size_t bytes)
{
    uint64_t at;
    if (bytes <=
        (onehost->is_oversubscribed ? EAGER_MAPPED_OVERSUBSCRIBED_BYTES_MAX : EAGER_MAPPED_BYTES_MAX))
        return true;
    return bytes <= EAGER_BYTES_MAX && !weft_memory_locate(args->in, bytes, &at);
}

static bool can_carry(struct onehost *onehost, struct onehost_channel *channel,
                      const struct weft_coll_args *args, size_t bytes)
{
    if (bytes <= INLINE_BYTES) return has_slot(onehost, channel, 0);
    if (!is_eager(onehost, args, bytes)) return false;
    buffer_ensure(onehost, channel, bytes);
    /* by message: the buffer is for sends that run ahead of the receiver */
    if (2 * bytes > channel->buffer_bytes) return false;
    if (leaves_hot_part(channel, bytes)) update_acked(onehost, channel);
    return has_slot(onehost, channel, bytes);
}

/* Caller has checked has_slot. */
static void slot_post(struct onehost *onehost, struct onehost_channel *channel,
                      const struct weft_coll_args *args, enum delivery delivery, size_t bytes)
{
    uint64_t seq = channel->send_seq++;
    struct channel_slot *slot = &channel->ring->slots[seq % SLOTS];
    if (delivery == EAGER && bytes > INLINE_BYTES) {
        uint64_t begin = buffer_offset_of(channel, bytes);
        /* the buffer is empty */
        if (channel->peer_acked_seq == seq) channel->buffer_tail = begin;
        slot->at = (uint32_t)(begin % channel->buffer_bytes);
        memcpy(channel->buffer + slot->at, args->in, bytes);
        channel->buffer_head = begin + bytes;
    }
    if (delivery == EAGER) onehost->sendrecv->moved.out_bytes += bytes;
    channel->buffer_ends[seq % SLOTS] = channel->buffer_head;
    slot->count = args->count;
    slot->dtype = (uint8_t)args->dtype;
    slot->delivery = (uint8_t)delivery;
    /* compiles to one move */
    if (delivery == EAGER && bytes == sizeof(uint64_t)) memcpy(slot->inline_data, args->in, sizeof(uint64_t));
    else if (delivery == EAGER && bytes > 0 && bytes <= INLINE_BYTES)
        memcpy(slot->inline_data, args->in, bytes);
    onehost_publish_processor(onehost);
    atomic_store_explicit(&slot->seq, onehost->salt + seq + 1, memory_order_release);
}

static void wake(const struct onehost *onehost, uint32_t rank)
{
    atomic_thread_fence(memory_order_seq_cst); /* before the load of `sleeping` (segment.c) */
    if (atomic_load_explicit(&onehost->peers[rank].segment->sleeping, memory_order_seq_cst))
        onehost_wake(onehost, rank);
}

/* No slot: the send is counted in [from, to). */
static void spill(const struct onehost *onehost, struct onehost_channel *channel)
{
    uint64_t seq = channel->send_seq++;
    if (!channel->is_spilling)
        atomic_store_explicit(&channel->ring->from, onehost->salt + seq, memory_order_release);
    channel->is_spilling = true;
    atomic_store_explicit(&channel->ring->to, onehost->salt + seq + 1, memory_order_release);
}

static size_t bytes_of(const struct weft_coll_args *args)
{
    return args->count * weft_dtype_bytes(args->dtype);
}

/* ---- recv ---- */
static const struct channel_slot *slot_of(const struct onehost_channel *channel)
{
    return &channel->in->slots[channel->recv_seq % SLOTS];
}

/* How the send after the next `before` ones arrives. */
static enum delivery delivery_behind(const struct onehost *onehost, struct onehost_channel *channel,
                                     uint64_t before)
{
    const struct onehost_peer *peer = &onehost->peers[channel->rank];
    if (before < channel->dropped_messages) return BY_MESSAGE;
    if (!channel->in) {
        const struct channel_entry *entry = entry_of(peer, onehost->group->ranks, onehost->group->rank);
        channel->in =
            entry ? locate(peer, &entry->ring_at, sizeof *channel->in, _Alignof(struct channel_ring)) : NULL;
        if (!channel->in) return NOT_ARRIVED;
    }
    const uint64_t seq = channel->recv_seq + (before - channel->dropped_messages);
    const struct channel_slot *slot = &channel->in->slots[seq % SLOTS];
    if (atomic_load_explicit(&slot->seq, memory_order_acquire) == peer->salt + seq + 1)
        return slot->delivery == EAGER ? EAGER : BY_MESSAGE;
    uint64_t to = atomic_load_explicit(&channel->in->to, memory_order_acquire) - peer->salt;
    if (to <= seq || to >= UINT64_MAX / 2) return NOT_ARRIVED;
    uint64_t from = atomic_load_explicit(&channel->in->from, memory_order_relaxed) - peer->salt;
    return from <= seq ? BY_MESSAGE : NOT_ARRIVED;
}

static enum delivery delivery_next(const struct onehost *onehost, struct onehost_channel *channel)
{
    return delivery_behind(onehost, channel, 0);
}

static void publish_acked(const struct onehost *onehost, struct onehost_channel *channel)
{
    if (channel->dropped_messages > 0) {
        channel->dropped_messages--;
        return;
    }
    channel->recv_seq++;
    atomic_store_explicit(&onehost->sendrecv->table[channel->rank].acked_seq,
                          onehost->salt + channel->recv_seq, memory_order_release);
}

/* Copies the bytes out. false: they are outside the peer's memory. */
static bool copy_out(const struct onehost *onehost, struct onehost_channel *channel,
                     const struct weft_coll_args *args)
{
    const struct onehost_peer *peer = &onehost->peers[channel->rank];
    const struct channel_slot *slot = slot_of(channel);
    const uint8_t *from = slot->inline_data;
    size_t bytes = bytes_of(args);
    const bool in_buffer = bytes > INLINE_BYTES;
    if (in_buffer) {
        /* read before the slot's seq */
        const uint64_t buffer_at = atomic_load_explicit(&channel->in->buffer_at, memory_order_relaxed) -
                                   peer->salt - 1,
                       at = slot->at;
        if (buffer_at > peer->memory->mapping.bytes ||
            !onehost_peer_memory_contains(peer->memory, buffer_at + at, bytes))
            return false;
        from = peer->memory->mapping.base + buffer_at + at;
    }
    if (bytes == sizeof(uint64_t)) memcpy(args->out, from, sizeof(uint64_t));
    else if (bytes > 0) memcpy(args->out, from, bytes);
    if (in_buffer) weft_claim_lines(from, bytes);
    onehost->sendrecv->moved.in_bytes += bytes;
    publish_acked(onehost, channel);
    return true;
}

static bool slot_matches(const struct channel_slot *slot, const struct weft_coll_args *args)
{
    return slot->count == args->count && slot->dtype == (uint8_t)args->dtype;
}

/* ---- waiting recvs ---- */
static struct weft_coll *first_running_recv(const struct onehost_channel *channel)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &channel->recvs) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, onehost.link);
        if (coll->phase == COLL_RUNNING) return coll;
    }
    return NULL;
}

/* A cancelled recv takes no send. */
static uint64_t count_running_recvs(const struct onehost_channel *channel)
{
    struct weft_list *node, *spare;
    uint64_t count = 0;
    weft_list_foreach (node, spare, &channel->recvs)
        count += weft_container_of(node, struct weft_coll, onehost.link)->phase == COLL_RUNNING;
    return count;
}

static void finish(struct weft_coll *coll)
{
    struct weft_group *group = coll->group;
    coll->steps.plan_ended = true;
    group->sending.outstanding++; /* keeps the group while the callback runs */
    coll_finish(coll, 0);
    group_transport_op_done(group);
}

static void fail_mismatch(struct weft_coll *coll, const struct onehost_channel *channel)
{
    struct coll_header theirs = coll->header;
    theirs.rank = channel->rank;
    theirs.count = slot_of(channel)->count;
    theirs.dtype = slot_of(channel)->dtype;
    const char *what = coll_header_difference(&theirs, &coll->header);
    coll_report_mismatch(coll, &coll->header, channel->rank, &theirs, what ? what : "the count");
}

static void fail_outside_memory(const struct weft_coll *coll, uint32_t rank)
{
    char name[128];
    group_describe(coll->group, rank, name, sizeof name);
    group_end(coll->group, WEFT_ERR_MALFORMED, true, "a recv: what %s sends lies outside its memory", name);
}

static void fall_back_to_message(const struct onehost *onehost, struct onehost_channel *channel,
                                 struct weft_coll *coll)
{
    weft_list_remove(&coll->onehost.link);
    onehost_set_phase(coll, ONEHOST_BY_MESSAGES);
    coll->path.expects_message = true;
    straggler_wait_end(coll);
    coll->straggler_time.asked = UINT64_MAX; /* its sender has started: the message is on its way */
    publish_acked(onehost, channel);
    coll_mark_ready(coll);
}

/* Fails the group if the sender is dead or has left, and has sent nothing more. */
static void check_sender(struct onehost *onehost, struct onehost_channel *channel)
{
    struct weft_group *group = onehost->group;
    const bool left = peer_state_of(group, channel->rank).has_left,
               lost = group->departures.lost && group->departures.lost_rank == channel->rank;
    if (!lost && !left) return;
    if (delivery_next(onehost, channel) != NOT_ARRIVED) return;
    char name[128];
    group_describe(group, channel->rank, name, sizeof name);
    if (left) {
        group->departures.ended_by_leave = true;
        group_end(group, WEFT_ERR_PEER_LOST, true, "%s left the group before a recv", name);
        return;
    }
    group_end(group, group->departures.lost_status, true, "lost %s during a recv: %s", name,
              weft_reason_text(group->departures.lost_status));
}

/* true: something has happened, and the group may be freed. */
static bool poll_channel(struct onehost *onehost, struct onehost_channel *channel, struct weft_coll *coll)
{
    enum delivery delivery = delivery_next(onehost, channel);
    if (delivery == NOT_ARRIVED) {
        check_sender(onehost, channel);
        return coll->phase != COLL_RUNNING;
    }
    bool announced = channel->dropped_messages == 0 &&
                     atomic_load_explicit(&slot_of(channel)->seq, memory_order_relaxed) ==
                         onehost->peers[channel->rank].salt + channel->recv_seq + 1;
    if (announced && !slot_matches(slot_of(channel), &coll->args)) fail_mismatch(coll, channel);
    else if (delivery == BY_MESSAGE) fall_back_to_message(onehost, channel, coll);
    else if (copy_out(onehost, channel, &coll->args)) finish(coll);
    else fail_outside_memory(coll, channel->rank);
    return true;
}

static int progress(struct weft_pollable *pollable, int budget)
{
    struct onehost_sendrecv *sendrecv = weft_container_of(pollable, struct onehost_sendrecv, pollable);
    struct onehost *onehost = sendrecv->onehost;
    struct weft_list *node, *spare;
    bool is_oversubscribed = onehost->is_oversubscribed;
    if (weft_list_empty(&sendrecv->waiting)) return 0;
    onehost_sleep_end(onehost);
    weft_list_foreach (node, spare, &sendrecv->waiting) {
        struct onehost_channel *channel = weft_container_of(node, struct onehost_channel, link);
        struct weft_coll *coll = first_running_recv(channel);
        if (coll && poll_channel(onehost, channel, coll)) return 1;
        if (weft_list_empty(&channel->recvs)) weft_list_remove(&channel->link);
        else is_oversubscribed = is_oversubscribed || onehost_peer_shares_core(onehost, channel->rank);
    }
    pollable->quick = !weft_list_empty(&sendrecv->waiting);
    if (pollable->quick)
        weft_loop_set_wait_core(onehost->group->loop,
                                is_oversubscribed ? WEFT_WAIT_SAME_CORE : WEFT_WAIT_UNKNOWN);
    return 0;
}

static enum weft_status arm(struct weft_pollable *pollable)
{
    struct onehost_sendrecv *sendrecv = weft_container_of(pollable, struct onehost_sendrecv, pollable);
    struct weft_list *node, *spare;
    if (weft_list_empty(&sendrecv->waiting)) return WEFT_OK;
    onehost_sleep(sendrecv->onehost);
    weft_list_foreach (node, spare, &sendrecv->waiting) {
        struct onehost_channel *channel = weft_container_of(node, struct onehost_channel, link);
        if (first_running_recv(channel) && delivery_next(sendrecv->onehost, channel) != NOT_ARRIVED)
            return WEFT_ERR_AGAIN;
    }
    return WEFT_OK;
}

/* ---- entry points ---- */
static void start_send(struct onehost *onehost, struct weft_coll *coll)
{
    struct onehost_channel *channel = onehost->sendrecv->of[coll->args.root];
    size_t bytes = bytes_of(&coll->args);
    onehost_set_phase(coll, ONEHOST_BY_MESSAGES);
    if (can_carry(onehost, channel, &coll->args, bytes)) {
        slot_post(onehost, channel, &coll->args, EAGER, bytes);
        coll->steps.plan_ended = true; /* complete, but `done` runs from the loop */
    } else {
        if (has_slot(onehost, channel, 0)) slot_post(onehost, channel, &coll->args, BY_MESSAGE, bytes);
        else spill(onehost, channel);
        coll->path.expects_message = true;
    }
    wake(onehost, channel->rank);
    coll_mark_ready(coll);
}

static void start_recv(struct onehost *onehost, struct weft_coll *coll)
{
    struct onehost_channel *channel = onehost->sendrecv->of[coll->args.root];
    onehost_set_phase(coll, ONEHOST_RECV_POSTED);
    weft_list_append(&channel->recvs, &coll->onehost.link);
    if (weft_list_empty(&channel->link)) weft_list_append(&onehost->sendrecv->waiting, &channel->link);
    onehost->sendrecv->pollable.quick = true;
}

void onehost_sendrecv_launch(struct weft_coll *coll)
{
    struct onehost *onehost = coll->group->onehost;
    if (onehost->state == ONEHOST_VOTING) onehost_set_phase(coll, ONEHOST_VOTE_PENDING);
    else if (coll->args.kind == WEFT_COLL_SEND) start_send(onehost, coll);
    else start_recv(onehost, coll);
}

void onehost_recv_drop_message(const struct weft_coll *coll)
{
    struct onehost *onehost = coll->group->onehost;
    if (onehost && coll->args.kind == WEFT_COLL_RECV)
        onehost->sendrecv->of[coll->args.root]->dropped_messages++;
}

bool onehost_send_has_arrived(const struct weft_group *group, const struct weft_coll_args *args)
{
    struct onehost *onehost = group->onehost;
    bool may = args->kind == WEFT_COLL_RECV && onehost && onehost->state == ONEHOST_ENABLED &&
               !group->progress.is_closing && group->failure.fail_status == WEFT_OK &&
               !group->departures.lost;
    if (!may || group->departures.left_count == 0 || args->root >= group->ranks ||
        args->root == group->rank || !onehost_sendrecv_reserve(onehost, args->root, false))
        return false;
    struct onehost_channel *channel = onehost->sendrecv->of[args->root];
    return delivery_behind(onehost, channel, count_running_recvs(channel)) != NOT_ARRIVED;
}

bool onehost_recv_is_matched(const struct weft_coll *coll)
{
    const struct onehost *onehost = coll->group->onehost;
    struct onehost_channel *channel = onehost->sendrecv->of[coll->args.root];
    struct weft_list *node, *spare;
    uint64_t before = 0;
    weft_list_foreach (node, spare, &channel->recvs) {
        const struct weft_coll *other = weft_container_of(node, struct weft_coll, onehost.link);
        if (other == coll) break;
        before += other->phase == COLL_RUNNING;
    }
    return delivery_behind(onehost, channel, before) != NOT_ARRIVED;
}

static bool can_try_fastpath(const struct weft_group *group, const struct weft_coll_args *args)
{
    const struct onehost *onehost = group->onehost;
    return onehost && onehost->state == ONEHOST_ENABLED && group->failure.fail_status == WEFT_OK &&
           !group->progress.is_closing && !group->departures.lost && group->departures.left_count == 0 &&
           !group->modes.timing_only && args->root < group->ranks && args->root != group->rank &&
           args->count <= EAGER_BYTES_MAX && (args->kind == WEFT_COLL_SEND ? args->in : args->out);
}

/* Flight recorder and event of a transfer that completed at once. Constant fields are written only if they
 * change, because a partial write followed by a word read stalls (fastpath.c). */
static void record(struct onehost *onehost, struct onehost_channel *channel,
                   const struct weft_coll_args *args, size_t bytes)
{
    struct weft_group *group = onehost->group;
    bool sends = args->kind == WEFT_COLL_SEND;
    uint64_t now_ns = args->posted_ns;
    struct weft_record *record = &channel->last_records[sends];
    if (record->status != WEFT_OK || record->ranks != group->ranks || record->dtype != (uint8_t)args->dtype) {
        *record = coll_record_of(group, WEFT_COLL_SEQUENCE_PAIR, now_ns, true);
        record->kind = (uint8_t)args->kind, record->dtype = (uint8_t)args->dtype,
        record->plan = WEFT_PLAN_DIRECT, record->root = channel->rank;
        record->phase = "done", record->status = WEFT_OK;
    }
    record->count = args->count;
    record->posted_ns = record->started_ns = record->ended_ns = now_ns;
    weft_recorder_add(group->observers.recorder, record);
    coll_event(group, args->kind, WEFT_EVENT_BOTH, WEFT_COLL_SEQUENCE_PAIR, bytes, WEFT_OK, now_ns);
}

/* Can the call complete at once? *channel_out: allocated. */
static bool prepare(struct weft_group *group, const struct weft_coll_args *args,
                    struct onehost_channel **channel_out)
{
    size_t elem_bytes = weft_dtype_bytes(args->dtype);
    if (!can_try_fastpath(group, args) || elem_bytes == 0 || args->count * elem_bytes > EAGER_BYTES_MAX)
        return false;
    const struct onehost_sendrecv *sendrecv = group->onehost->sendrecv;
    bool sends = args->kind == WEFT_COLL_SEND,
         exists = sendrecv && sendrecv->of[args->root] && (!sends || sendrecv->of[args->root]->ring);
    if (!exists && !onehost_sendrecv_reserve(group->onehost, args->root, sends)) return false;
    *channel_out = group->onehost->sendrecv->of[args->root];
    return true;
}

static bool send_now(struct onehost *onehost, struct onehost_channel *channel,
                     const struct weft_coll_args *args)
{
    size_t bytes = bytes_of(args);
    if (!can_carry(onehost, channel, args, bytes)) return false;
    slot_post(onehost, channel, args, EAGER, bytes);
    record(onehost, channel, args, bytes);
    wake(onehost, channel->rank);
    return true;
}

static bool recv_now(struct onehost *onehost, struct onehost_channel *channel,
                     const struct weft_coll_args *args)
{
    if (!weft_list_empty(&channel->recvs) || delivery_next(onehost, channel) != EAGER ||
        !slot_matches(slot_of(channel), args) || !copy_out(onehost, channel, args))
        return false;
    record(onehost, channel, args, bytes_of(args));
    return true;
}

enum weft_status onehost_sendrecv_try_fastpath(struct weft_group *group, const struct weft_coll_args *args,
                                               weft_coll_done_fn done, void *context,
                                               struct weft_coll **coll_out)
{
    struct onehost_channel *channel;
    struct weft_coll_args call = *args;
    struct weft_error error;
    if (!prepare(group, args, &channel)) return WEFT_ERR_AGAIN;
    if (!call.posted_ns) call.posted_ns = weft_now_ns(group->env);
    if (args->kind == WEFT_COLL_SEND)
        return send_now(group->onehost, channel, &call) ? WEFT_OK : WEFT_ERR_AGAIN;
    if (recv_now(group->onehost, channel, &call)) return WEFT_OK;
    weft_loop_guard_thread(group->loop);
    return weft_coll_post(group, &call, done, context, coll_out, &error) == WEFT_IN_PROGRESS
               ? WEFT_IN_PROGRESS
               : WEFT_ERR_AGAIN;
}

enum weft_status weft_coll_try_recv(struct weft_group *group, const struct weft_coll_args *args,
                                    bool should_poll)
{
    struct onehost_channel *channel;
    WEFT_ASSERT(args->kind == WEFT_COLL_RECV);
    if (!prepare(group, args, &channel)) return WEFT_ERR_AGAIN;
    struct onehost *onehost = group->onehost;
    /* the peer needs this core to arrive */
    if (onehost->is_oversubscribed || onehost_peer_shares_core(onehost, args->root)) should_poll = false;
    for (uint32_t polls = 0; should_poll && polls < POLLS && delivery_next(onehost, channel) == NOT_ARRIVED;
         polls++)
        weft_cpu_relax(false);
    return recv_now(onehost, channel, args) ? WEFT_OK : WEFT_IN_PROGRESS;
}

/* ---- end ---- */
bool onehost_sends_are_read_by_peers(const struct onehost_sendrecv *sendrecv,
                                     const struct onehost_peer *peers, uint32_t own)
{
    for (uint32_t rank = 0; sendrecv && rank < sendrecv->ranks; rank++) {
        const struct onehost_channel *channel = sendrecv->of[rank];
        const struct onehost_peer *peer = &peers[rank];
        if (!channel || !channel->ring || !peer->segment || !peer->memory ||
            !onehost_peer_reads_segment(peer, ONEHOST_SEQ_ENDED))
            continue;
        if (acked_by(channel, peer, sendrecv->ranks, own) < channel->send_seq) return true;
    }
    return false;
}

struct coll_sendrecv_counts onehost_sendrecv_counts(const struct onehost_sendrecv *sendrecv, uint32_t rank)
{
    const struct onehost_channel *channel = sendrecv ? sendrecv->of[rank] : NULL;
    return channel ? (struct coll_sendrecv_counts){channel->send_seq, channel->recv_seq}
                   : (struct coll_sendrecv_counts){0, 0};
}

bool onehost_has_unreceived_sends(const struct onehost *onehost)
{
    const struct onehost_sendrecv *sendrecv = onehost->sendrecv;
    for (uint32_t rank = 0; sendrecv && rank < sendrecv->ranks; rank++) {
        const struct onehost_channel *channel = sendrecv->of[rank];
        const struct onehost_peer *peer = &onehost->peers[rank];
        if (channel && channel->ring && peer->segment &&
            acked_by(channel, peer, sendrecv->ranks, onehost->group->rank) < channel->send_seq)
            return true;
    }
    return false;
}

void onehost_sendrecv_add_moved(const struct onehost_sendrecv *sendrecv, struct weft_moved *moved)
{
    if (!sendrecv) return;
    moved->out_bytes += sendrecv->moved.out_bytes;
    moved->in_bytes += sendrecv->moved.in_bytes;
}

void onehost_sendrecv_detach(struct onehost_sendrecv *sendrecv)
{
    if (!sendrecv) return;
    weft_loop_remove(sendrecv->onehost->group->loop, &sendrecv->pollable);
    sendrecv->onehost = NULL;
    for (uint32_t rank = 0; rank < sendrecv->ranks; rank++)
        while (sendrecv->of[rank] && !weft_list_empty(&sendrecv->of[rank]->recvs))
            weft_list_remove(sendrecv->of[rank]->recvs.next);
}

void onehost_sendrecv_free(struct onehost_sendrecv *sendrecv)
{
    if (!sendrecv) return;
    for (uint32_t rank = 0; rank < sendrecv->ranks; rank++) {
        struct onehost_channel *channel = sendrecv->of[rank];
        if (!channel) continue;
        onehost_block_free(channel->ring);
        if (channel->buffer) buffer_free(channel->buffer, channel->buffer_bytes);
        weft_free_bytes(weft_env_system(), channel);
    }
    onehost_block_free(sendrecv->table);
    weft_free_bytes(weft_env_system(), sendrecv);
}
