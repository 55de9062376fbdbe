/* host_line.c - the segments: announcements, sleeping and waking, and who is inside whose buffers.
 *
 * Two pairs of steps, each with a full fence between its halves on both sides, so that one of the two sees the other:
 *
 *   who stores          who sleeps                 who works in buffers     whose buffer it is
 *   its word            sleeping = 1               inside = 1               closed = number + 1
 *   sleeping? wake      is the word there? stay    closed? go away          inside? wait for it
 *
 * So a system call happens only when somebody sleeps; and when an owner sees nobody inside, nobody gets in any more,
 * without a message: a rank that computes, sleeps or is stopped elsewhere delays nothing. One that is stopped inside may
 * go on storing when it wakes: its peers' operations end when it leaves or its process has ended. */
#include "collective/host.h"

#include <sched.h>
#include <string.h>

void host_wake(const struct host *host, uint32_t rank)
{
    weft_loop_guard(host->group->loop); /* system calls */
    weft_peer_wake(host->group->roster->peers[rank]);
}

static void wake_sleepers(struct host *host)
{
    struct weft_group *group = host->group;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (rank == group->rank) continue;
        if (atomic_load_explicit(&host->peers[rank].segment->sleeping, memory_order_seq_cst)) host_wake(host, rank);
    }
}

/* What the announcement and the word about the call have in common. */
static inline void describe_call(struct host_post *post, const struct host_call *call, uint64_t sequence)
{
    post->sequence = sequence;
    post->count = call->count;
    post->kind = (uint8_t)call->kind;
    post->dtype = call->dtype;
    post->op = call->op;
    post->root = call->root;
}

static inline struct host_call call_of(const struct weft_coll *coll)
{
    const struct coll_header *header = &coll->header;
    return (struct host_call){(enum weft_coll_kind)header->kind, header->count, header->root, header->dtype, header->op};
}

/* Whom to yield to: a rank that runs on another core comes by itself, and one that shares this core cannot come before it has it. */
void host_tell_processor(struct host *host)
{
    int processor = sched_getcpu();
    if (processor < 0 || (uint32_t)processor == host->processor) return;
    host->processor = (uint32_t)processor;
    atomic_store_explicit(&host->segment->processor, host->processor, memory_order_relaxed);
}

bool host_needs_this_core(const struct host *host, uint32_t rank)
{
    return atomic_load_explicit(&host->peers[rank].segment->processor, memory_order_relaxed) == host->processor;
}

static inline void publish(struct host *host, struct host_post *post, uint64_t number)
{
    host_tell_processor(host);
    atomic_store_explicit(&post->turn, host->salt + number + 1, memory_order_release);
}

void host_announced(struct host *host)
{
    atomic_thread_fence(memory_order_seq_cst); /* before the looks who sleeps */
    wake_sleepers(host);
}

/* Of pieces the own one is left out: this rank takes it from where it was. */
static void copy_for_others(const struct host *host, enum weft_coll_kind kind, uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t before = bytes, after = bytes;
    if (host_says_pieces(kind)) {
        size_t piece = bytes / host->group->ranks;
        before = host->group->rank * piece;
        after = before + piece;
    }
    memcpy(to, from, before);
    memcpy(to + after, from + after, bytes - after);
}

static size_t hall_place(struct host *host, size_t bytes, uint64_t number)
{
    const uint32_t first = host_hall_slot(host, bytes);
    WEFT_ASSERT(first < HOST_HALL_SLOTS); /* looked for before (host_may_announce), or all have called what was before this one */
    for (uint32_t i = 0; i < host_hall_slots(bytes); i++) host->slots[first + i] = number + 1;
    return (size_t)first * HOST_SLOT_BYTES;
}

void host_announce_short(struct host *host, const struct host_call *call, const void *from, size_t bytes, uint64_t number, uint64_t sequence)
{
    struct host_post *post = host_post_of(host->segment, number);
    if (host_needs_room(bytes)) {
        const struct host_room *room = &host->rooms[host_room_of(bytes)];
        size_t at = room == &host->rooms[HOST_HALL] ? hall_place(host, bytes, number) : host_room_place(host, number);
        WEFT_ASSERT(room->memory);
        copy_for_others(host, call->kind, room->memory + at, from, bytes);
        post->in = room->at + at;
    }
    /* From here on stores to one line only, and no instruction that waits for them: the others poll this line, and what is stored
     * in one go moves to them once. */
    describe_call(post, call, sequence);
    post->flags = 0;
    if (bytes == sizeof(uint64_t)) memcpy(post->word, from, sizeof(uint64_t)); /* inline */
    else if (bytes > 0 && bytes <= HOST_WORD_BYTES) memcpy(post->word, from, bytes);
    publish(host, post, number);
}

/* Of this operation nothing is done. Its number shows in the words by 32 bits only, and they may be older than that, or never written.
 * Nobody looks at them for an operation before this one: that is over here, so all were through with it. */
static void begin_rounds(struct host *host, uint64_t number)
{
    for (int action = 0; action < HOST_ACTIONS; action++)
        atomic_store_explicit(&host->segment->done[action], host->salt + (number + 1) * HOST_ROUNDS_MAX, memory_order_relaxed);
}

void host_announce_buffers(struct host *host, const struct weft_coll *coll, uint64_t number)
{
    struct host_call call = call_of(coll);
    struct host_post *post = host_post_of(host->segment, number);
    describe_call(post, &call, coll->sequence);
    post->flags = coll->host.flags;
    post->in = coll->host.in_offset;
    post->out = coll->host.out_offset;
    if (coll->host.flags & HOST_STAGED) {
        memcpy(post->word, &coll->host.stage_word, sizeof coll->host.stage_word);
        begin_rounds(host, number);
    } else if (coll->host.flags & HOST_UNEQUAL) {
        uint64_t said = host_say_lengths(host, coll, number);
        memcpy(post->word, &said, sizeof said);
    }
    publish(host, post, number);
}

void host_announce(struct host *host, const struct weft_coll *coll, uint64_t number)
{
    const struct weft_coll_args *args = &coll->args;
    struct host_call call = call_of(coll);
    const void *from = args->kind == WEFT_COLL_BROADCAST ? args->out : args->in;
    if (coll->host.is_short) host_announce_short(host, &call, from, host_short_bytes(coll->group, args), number, coll->sequence);
    else host_announce_buffers(host, coll, number);
    host_announced(host);
}

const uint8_t *host_contribution(const struct host *host, uint32_t rank, uint64_t number, size_t bytes)
{
    const struct host_peer *peer = &host->peers[rank];
    const struct host_post *post = host_post_of(peer->segment, number);
    if (!host_needs_room(bytes)) return post->word;
    uint64_t at = post->in;
    return host_place_holds(peer->place, at, bytes) ? peer->place->mapping.base + at : NULL;
}

/* Without memory for it nobody is told: a call that differs is then found by who is late. */
static bool calls_make(struct host *host)
{
    void *piece;
    uint64_t at;
    if (host->calls) return true;
    if (host_piece_take(sizeof *host->calls, &piece, &at) < 0) return false;
    host->calls = piece;
    atomic_store_explicit(&host->segment->calls_at, host->salt + at + 1, memory_order_seq_cst);
    return true;
}

void host_tell(struct host *host, const struct weft_coll *coll)
{
    if (!calls_make(host)) return;
    struct host_post *post = &host->calls->posts[coll->sequence % HOST_CALLS];
    atomic_store_explicit(&post->turn, host->salt - 1, memory_order_relaxed); /* not what stood here before */
    atomic_thread_fence(memory_order_release);
    struct host_call call = call_of(coll);
    describe_call(post, &call, coll->sequence);
    post->in = coll->header.cuts;
    post->out = coll->header.chunk;
    post->flags = coll->header.plan;
    atomic_store_explicit(&post->turn, host->salt + coll->sequence + 1, memory_order_seq_cst);
    if (host->state == HOST_ON) wake_sleepers(host); /* before the vote nobody waits here */
}

const struct host_post *host_called_otherwise(const struct host *host, uint32_t rank, uint64_t sequence)
{
    const struct host_peer *peer = &host->peers[rank];
    uint64_t at = atomic_load_explicit(&peer->segment->calls_at, memory_order_seq_cst) - peer->salt - 1;
    if (!host_place_holds(peer->place, at, sizeof(struct host_calls)) || at % _Alignof(struct host_calls) != 0) return NULL;
    const struct host_post *post = &((const struct host_calls *)(peer->place->mapping.base + at))->posts[sequence % HOST_CALLS];
    return atomic_load_explicit(&post->turn, memory_order_seq_cst) == peer->salt + sequence + 1 ? post : NULL;
}

void host_say_through(struct host *host, uint32_t rank, uint64_t number)
{
    const struct host_peer *peer = &host->peers[rank];
    atomic_store_explicit(&peer->segment->through, peer->salt + number + 1, memory_order_seq_cst);
    wake_sleepers(host);
}

bool host_is_through(const struct host *host, uint32_t rank, uint64_t number)
{
    const struct host_peer *peer = &host->peers[rank];
    return atomic_load_explicit(&peer->segment->through, memory_order_acquire) == peer->salt + number + 1;
}

void host_say_done(struct host *host, uint64_t number, enum host_action action, uint64_t rounds)
{
    atomic_store_explicit(&host->segment->done[action], host->salt + (number + 1) * HOST_ROUNDS_MAX + rounds, memory_order_seq_cst);
    wake_sleepers(host);
}

bool host_has_done(const struct host *host, uint32_t rank, uint64_t number, enum host_action action, uint64_t rounds)
{
    const struct host_peer *peer = &host->peers[rank];
    uint64_t done = atomic_load_explicit(&peer->segment->done[action], memory_order_acquire) - peer->salt - (number + 1) * HOST_ROUNDS_MAX;
    return done >= rounds && done < HOST_ROUNDS_MAX;
}

void host_say_over(struct host *host, uint64_t operations)
{
    atomic_store_explicit(&host->segment->over, host->salt + operations, memory_order_release);
}

/* ---- inside buffers ---- */

bool host_enter(struct host *host, uint64_t number)
{
    atomic_store_explicit(&host->segment->inside, 1, memory_order_seq_cst);
    for (uint32_t rank = 0; rank < host->group->ranks; rank++) {
        if (atomic_load_explicit(&host->peers[rank].segment->closed, memory_order_seq_cst) <= number) continue;
        host_leave(host);
        return false;
    }
    return true;
}

void host_leave(struct host *host) { atomic_store_explicit(&host->segment->inside, 0, memory_order_release); }

void host_close(struct host *host, uint64_t below)
{
    if (atomic_load_explicit(&host->segment->closed, memory_order_relaxed) < below)
        atomic_store_explicit(&host->segment->closed, below, memory_order_seq_cst);
}

bool host_anybody_inside(const struct host *host)
{
    const struct weft_group *group = host->group;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (rank == group->rank || atomic_load_explicit(&host->peers[rank].segment->inside, memory_order_seq_cst) != 1) continue;
        if (!weft_peer_harmless(group->roster->peers[rank])) return true;
    }
    return false;
}

/* ---- sleeping ---- */

void host_sleep(struct host *host)
{
    host->sleeping = true;
    atomic_store_explicit(&host->segment->sleeping, 1, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst); /* before the looks whether the word is there */
}

void host_awake(struct host *host)
{
    if (!host->sleeping) return;
    host->sleeping = false;
    atomic_store_explicit(&host->segment->sleeping, 0, memory_order_relaxed);
}
