/* segment.c - reads and writes of segments: descriptors, counters, sleep and wake, access to buffers.
 *
 * Two pairs of steps. Each side has a full fence between its two halves, so at least one side sees the other:
 *
 *    publisher               sleeper                     rank in peers' buffers     owner of a buffer
 *    store the descriptor    sleeping = 1                accesses_buffers = 1       closed_seq = seq + 1
 *    sleeping? wake it       descriptor stored? stay up  closed_seq > seq? leave    accesses_buffers? wait
 *
 * So a wake-up costs a system call only if a peer sleeps. After an owner has seen no peer in its buffers,
 * none can enter again. A rank that is stopped inside can store when it continues: operations of its peers
 * end when it leaves or dies. */
#include "collective/onehost/onehost.h"

#include <sched.h>
#include <string.h>

void onehost_wake(const struct onehost *onehost, uint32_t rank)
{
    weft_loop_guard_thread(onehost->group->loop); /* a system call */
    weft_peer_wake(onehost->group->peer_table->peers[rank]);
}

static void wake_sleepers(struct onehost *onehost)
{
    struct weft_group *group = onehost->group;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (rank == group->rank) continue;
        if (atomic_load_explicit(&onehost->peers[rank].segment->sleeping, memory_order_seq_cst))
            onehost_wake(onehost, rank);
    }
}

/* Fields that a descriptor and a message call share. */
static inline void descriptor_fill(struct onehost_descriptor *descriptor, const struct onehost_call *call,
                                   uint64_t sequence)
{
    descriptor->sequence = sequence;
    descriptor->count = call->count;
    descriptor->kind = (uint8_t)call->kind;
    descriptor->dtype = call->dtype;
    descriptor->op = call->op;
    descriptor->root = call->root;
}

static inline struct onehost_call call_of(const struct weft_coll *coll)
{
    const struct coll_header *header = &coll->header;
    return (struct onehost_call){(enum weft_coll_kind)header->kind, header->count, header->root,
                                 header->dtype, header->op};
}

/* A peer on another core arrives without help; a peer on this core needs this rank to yield. */
void onehost_publish_processor(struct onehost *onehost)
{
    int processor = sched_getcpu();
    if (processor < 0 || (uint32_t)processor == onehost->scheduling.processor) return;
    onehost->scheduling.processor = (uint32_t)processor;
    atomic_store_explicit(&onehost->segment->processor, onehost->scheduling.processor, memory_order_relaxed);
}

bool onehost_peer_shares_core(const struct onehost *onehost, uint32_t rank)
{
    return atomic_load_explicit(&onehost->peers[rank].segment->processor, memory_order_relaxed) ==
           onehost->scheduling.processor;
}

static inline void descriptor_publish(struct onehost *onehost, struct onehost_descriptor *descriptor,
                                      uint64_t seq)
{
    onehost_publish_processor(onehost);
    atomic_store_explicit(&descriptor->seq, onehost->salt + seq + 1, memory_order_release);
}

void onehost_wake_peers(struct onehost *onehost)
{
    atomic_thread_fence(memory_order_seq_cst); /* before the loads of `sleeping` */
    wake_sleepers(onehost);
}

/* The own piece is left out: this rank reads it from its input. */
static void copy_in_for_peers(const struct onehost *onehost, enum weft_coll_kind kind, uint8_t *to,
                              const uint8_t *from, size_t bytes)
{
    size_t before = bytes, after = bytes;
    if (onehost_copyin_has_pieces(kind)) {
        size_t piece = bytes / onehost->group->ranks;
        before = onehost->group->rank * piece;
        after = before + piece;
    }
    memcpy(to, from, before);
    memcpy(to + after, from + after, bytes - after);
}

static size_t large_slot_take(struct onehost *onehost, size_t bytes, uint64_t seq)
{
    const uint32_t first = onehost_large_slot_find(onehost, bytes);
    /* onehost_can_publish has found it, or all peers have read all before */
    WEFT_ASSERT(first < ONEHOST_LARGE_SLOTS);
    for (uint32_t i = 0; i < onehost_large_slots_needed(bytes); i++)
        onehost->large_slot_seqs[first + i] = seq + 1;
    return (size_t)first * ONEHOST_LARGE_SLOT_BYTES;
}

void onehost_publish_copyin(struct onehost *onehost, const struct onehost_call *call, const void *from,
                            size_t bytes, uint64_t seq, uint64_t sequence)
{
    struct onehost_descriptor *descriptor = onehost_descriptor_of(onehost->segment, seq);
    if (onehost_needs_slot(bytes)) {
        const struct onehost_copyin_slots *copyin_slots =
            &onehost->copyin_slots[onehost_slot_class_of(bytes)];
        size_t at = copyin_slots == &onehost->copyin_slots[ONEHOST_LARGE]
                        ? large_slot_take(onehost, bytes, seq)
                        : onehost_small_slot_take(onehost, seq);
        WEFT_ASSERT(copyin_slots->memory);
        copy_in_for_peers(onehost, call->kind, copyin_slots->memory + at, from, bytes);
        descriptor->in = copyin_slots->at + at;
    }
    /* From here on: stores to one line, and no instruction that waits for them. Peers poll this line; it
     * moves to them once. */
    descriptor_fill(descriptor, call, sequence);
    descriptor->flags = 0;
    /* compiles to one move */
    if (bytes == sizeof(uint64_t)) memcpy(descriptor->inline_data, from, sizeof(uint64_t));
    else if (bytes > 0 && bytes <= ONEHOST_INLINE_BYTES) memcpy(descriptor->inline_data, from, bytes);
    descriptor_publish(onehost, descriptor, seq);
}

/* Resets the round counters. They carry 32 bits of the seq and may be older, or never written. No peer reads
 * them for an earlier operation: that one is complete here, so all peers were done with it. */
static void rounds_reset(struct onehost *onehost, uint64_t seq)
{
    for (int action = 0; action < ONEHOST_STAGE_ACTIONS; action++)
        atomic_store_explicit(&onehost->segment->done[action], onehost->salt + (seq + 1) * ONEHOST_ROUNDS_MAX,
                              memory_order_relaxed);
}

void onehost_publish_buffers(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq)
{
    struct onehost_call call = call_of(coll);
    struct onehost_descriptor *descriptor = onehost_descriptor_of(onehost->segment, seq);
    descriptor_fill(descriptor, &call, coll->sequence);
    descriptor->flags = coll->onehost.flags;
    descriptor->in = coll->onehost.in_offset;
    descriptor->out = coll->onehost.out_offset;
    if (coll->onehost.flags & ONEHOST_STAGED) {
        memcpy(descriptor->inline_data, &coll->onehost.stage_info, sizeof coll->onehost.stage_info);
        rounds_reset(onehost, seq);
    } else if (coll->onehost.flags & ONEHOST_UNEQUAL) {
        uint64_t lengths = onehost_publish_lengths(onehost, coll, seq);
        memcpy(descriptor->inline_data, &lengths, sizeof lengths);
    }
    descriptor_publish(onehost, descriptor, seq);
}

void onehost_publish(struct onehost *onehost, const struct weft_coll *coll, uint64_t seq)
{
    const struct weft_coll_args *args = &coll->args;
    struct onehost_call call = call_of(coll);
    const void *from = args->kind == WEFT_COLL_BROADCAST ? args->out : args->in;
    if (coll->onehost.is_copyin)
        onehost_publish_copyin(onehost, &call, from, onehost_copyin_bytes(coll->group, args), seq,
                               coll->sequence);
    else onehost_publish_buffers(onehost, coll, seq);
    onehost_wake_peers(onehost);
}

const uint8_t *onehost_copyin_of(const struct onehost *onehost, uint32_t rank, uint64_t seq, size_t bytes)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    const struct onehost_descriptor *descriptor = onehost_descriptor_of(peer->segment, seq);
    if (!onehost_needs_slot(bytes)) return descriptor->inline_data;
    uint64_t at = descriptor->in;
    return onehost_peer_memory_contains(peer->memory, at, bytes) ? peer->memory->mapping.base + at : NULL;
}

/* Without memory a different call is found only by the deadline. */
static bool message_calls_create(struct onehost *onehost)
{
    void *piece;
    uint64_t at;
    if (onehost->message_calls) return true;
    if (onehost_block_alloc(sizeof *onehost->message_calls, &piece, &at) < 0) return false;
    onehost->message_calls = piece;
    atomic_store_explicit(&onehost->segment->message_calls_at, onehost->salt + at + 1, memory_order_seq_cst);
    return true;
}

void onehost_publish_message_call(struct onehost *onehost, const struct weft_coll *coll)
{
    if (!message_calls_create(onehost)) return;
    struct onehost_descriptor *descriptor =
        &onehost->message_calls->descriptors[coll->sequence % ONEHOST_MESSAGE_CALLS];
    /* invalid until all fields are stored */
    atomic_store_explicit(&descriptor->seq, onehost->salt - 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    struct onehost_call call = call_of(coll);
    descriptor_fill(descriptor, &call, coll->sequence);
    descriptor->in = coll->header.cuts;
    descriptor->out = coll->header.chunk;
    descriptor->flags = coll->header.plan;
    atomic_store_explicit(&descriptor->seq, onehost->salt + coll->sequence + 1, memory_order_seq_cst);
    /* before the vote no peer waits in memory */
    if (onehost->state == ONEHOST_ENABLED) wake_sleepers(onehost);
}

const struct onehost_descriptor *onehost_message_call_of(const struct onehost *onehost, uint32_t rank,
                                                         uint64_t sequence)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    uint64_t at =
        atomic_load_explicit(&peer->segment->message_calls_at, memory_order_seq_cst) - peer->salt - 1;
    if (!onehost_peer_memory_contains(peer->memory, at, sizeof(struct onehost_message_calls)) ||
        at % _Alignof(struct onehost_message_calls) != 0)
        return NULL;
    const struct onehost_descriptor *descriptor =
        &((const struct onehost_message_calls *)(peer->memory->mapping.base + at))
             ->descriptors[sequence % ONEHOST_MESSAGE_CALLS];
    return atomic_load_explicit(&descriptor->seq, memory_order_seq_cst) == peer->salt + sequence + 1
               ? descriptor
               : NULL;
}

void onehost_publish_slice_done(struct onehost *onehost, uint64_t seq)
{
    atomic_store_explicit(&onehost->segment->done_seq, onehost->salt + seq + 1, memory_order_seq_cst);
    wake_sleepers(onehost);
}

bool onehost_slice_is_done(const struct onehost *onehost, uint32_t rank, uint64_t seq)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    return atomic_load_explicit(&peer->segment->done_seq, memory_order_acquire) == peer->salt + seq + 1;
}

/* In the descriptor of the operation, whose inline bytes a direct operation with equal pieces does not use:
 * four times the seq of the descriptor plus the value, so that an older word is UNKNOWN. */
void onehost_publish_finite(struct onehost *onehost, uint64_t seq, enum weft_coll_finite finite)
{
    struct onehost_descriptor *descriptor = onehost_descriptor_of(onehost->segment, seq);
    const uint64_t word = (onehost->salt + seq + 1) * 4 + finite;
    if (descriptor->flags & (ONEHOST_STAGED | ONEHOST_UNEQUAL)) return;
    memcpy(descriptor->inline_data, &word, sizeof word);
}

enum weft_coll_finite onehost_finite_of(const struct onehost *onehost, uint32_t rank, uint64_t seq)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    const struct onehost_descriptor *descriptor = onehost_descriptor_of(peer->segment, seq);
    uint64_t word;
    memcpy(&word, descriptor->inline_data, sizeof word);
    word -= (peer->salt + seq + 1) * 4;
    return word <= WEFT_COLL_NOT_FINITE ? (enum weft_coll_finite)word : WEFT_COLL_FINITE_UNKNOWN;
}

void onehost_publish_rounds(struct onehost *onehost, uint64_t seq, enum onehost_stage_action action,
                            uint64_t rounds)
{
    atomic_store_explicit(&onehost->segment->done[action],
                          onehost->salt + (seq + 1) * ONEHOST_ROUNDS_MAX + rounds, memory_order_seq_cst);
    wake_sleepers(onehost);
}

bool onehost_has_done_rounds(const struct onehost *onehost, uint32_t rank, uint64_t seq,
                             enum onehost_stage_action action, uint64_t rounds)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    uint64_t done = atomic_load_explicit(&peer->segment->done[action], memory_order_acquire) - peer->salt -
                    (seq + 1) * ONEHOST_ROUNDS_MAX;
    return done >= rounds && done < ONEHOST_ROUNDS_MAX;
}

void onehost_publish_retired(struct onehost *onehost, uint64_t operations)
{
    atomic_store_explicit(&onehost->segment->retired_seq, onehost->salt + operations, memory_order_release);
}

/* ---- access to buffers ---- */

bool onehost_buffers_enter(struct onehost *onehost, uint64_t seq)
{
    atomic_store_explicit(&onehost->segment->accesses_buffers, 1, memory_order_seq_cst);
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++) {
        if (atomic_load_explicit(&onehost->peers[rank].segment->closed_seq, memory_order_seq_cst) <= seq)
            continue;
        onehost_buffers_leave(onehost);
        return false;
    }
    return true;
}

void onehost_buffers_leave(struct onehost *onehost)
{
    atomic_store_explicit(&onehost->segment->accesses_buffers, 0, memory_order_release);
}

void onehost_buffers_close(struct onehost *onehost, uint64_t below)
{
    if (atomic_load_explicit(&onehost->segment->closed_seq, memory_order_relaxed) < below)
        atomic_store_explicit(&onehost->segment->closed_seq, below, memory_order_seq_cst);
}

bool onehost_buffers_have_peer(const struct onehost *onehost)
{
    const struct weft_group *group = onehost->group;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (rank == group->rank ||
            atomic_load_explicit(&onehost->peers[rank].segment->accesses_buffers, memory_order_seq_cst) != 1)
            continue;
        if (!weft_peer_is_detached(group->peer_table->peers[rank])) return true;
    }
    return false;
}

/* ---- sleep ---- */

void onehost_sleep(struct onehost *onehost)
{
    onehost->scheduling.sleeping = true;
    atomic_store_explicit(&onehost->segment->sleeping, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* before the loads of what is waited for */
}

void onehost_sleep_end(struct onehost *onehost)
{
    if (!onehost->scheduling.sleeping) return;
    onehost->scheduling.sleeping = false;
    atomic_store_explicit(&onehost->segment->sleeping, 0, memory_order_relaxed);
}
