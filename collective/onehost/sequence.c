/* sequence.c - run-ahead: a rank that needs no peer completes at once and verifies the peers' calls later.
 *
 *   seq   ... | verified_seq ................ next_seq - 1 | next_seq
 *             | complete here; some peers' descriptors     | can be published when seq - ONEHOST_DESCRIPTORS
 *             | are not seen yet                           | is retired by all peers
 *
 * The root of a broadcast or scatter completes early; so do the other ranks of a reduce or gather. An
 * operation is verified when all ranks have called the same. Invariants:
 *
 * 1. A rank that waited for all peers verifies the operation at its end. A rank that waited for the root only
 * has seen all that it depends on.
 * 2. A rank that completes early has at most ONEHOST_RUN_AHEAD_MAX unverified operations. Only fast-path
 * operations begin before all peers have called the ones before.
 * 3. retired_seq counts verified operations only. So a descriptor stays until all peers have read it.
 * 4. To verify, a rank reads each peer's retired_seq; if a counter lags, it compares that peer's descriptor.
 * The counter is sufficient: of calls that differ, the first rank to retire has compared the descriptors of
 * all ranks that complete early.
 * 5. No deadlock: the rank with the lowest next_seq depends only on descriptors that are already published.
 * 6. A published descriptor bounds the retired_seq of its writer, so few calls read the counters. A rank that
 * completes early leaves one descriptor free, so that a receiver may publish its next one.
 * 7. A descriptor wakes a sleeping rank; a counter does not. Exception: an operation cancelled before it was
 * published has no descriptor. Its retired_seq is all that peers see of it, so it wakes them, and no rank
 * runs ahead of it. */
#include "collective/onehost/onehost.h"

enum {
    POLL_TIMEOUT_NS = 5000, /* as for descriptors (fastpath.c) */
    POLL_TIMEOUT_OVERSUBSCRIBED_NS = 50000,
    POLLS_PER_CLOCK_READ = 16,
};

static void advance(uint64_t *word, uint64_t to)
{
    if (*word < to) *word = to;
}

static void set_verified(struct onehost *onehost, uint64_t below)
{
    if (onehost->run_ahead.verified_seq >= below) return;
    onehost->run_ahead.verified_seq = below;
    onehost_publish_retired(onehost, below);
}

void onehost_all_arrived(struct onehost *onehost, uint64_t seq)
{
    advance(&onehost->run_ahead.peers_read_seq, seq);
    if (seq >= ONEHOST_RUN_AHEAD_MAX)
        advance(&onehost->run_ahead.peers_retired_seq, seq - (ONEHOST_RUN_AHEAD_MAX - 1));
}

void onehost_root_arrived(struct onehost *onehost, uint64_t seq)
{
    /* as the root has seen it */
    if (seq >= ONEHOST_DESCRIPTORS)
        advance(&onehost->run_ahead.peers_retired_seq, seq + 2 - ONEHOST_DESCRIPTORS);
}

void onehost_retire(struct onehost *onehost, uint64_t seq)
{
    if (onehost->run_ahead.verified_seq == seq) set_verified(onehost, seq + 1);
}

/* Reads the peers' retired_seq. Operations `below` are complete here. A value out of range belongs to a freed
 * segment: its rank has ended the group. */
static void read_retired_seqs(struct onehost *onehost, uint64_t below)
{
    uint64_t least = below;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++) {
        const struct onehost_peer *peer = &onehost->peers[rank];
        if (rank == onehost->group->rank) continue;
        uint64_t retired_seq =
            atomic_load_explicit(&peer->segment->retired_seq, memory_order_acquire) - peer->salt;
        if (retired_seq < least) least = retired_seq;
    }
    advance(&onehost->run_ahead.peers_retired_seq, least);
    advance(&onehost->run_ahead.peers_read_seq, least);
    set_verified(onehost, least);
}

static bool descriptors_match(const struct onehost_descriptor *a, const struct onehost_descriptor *b)
{
    return a->sequence == b->sequence && a->count == b->count && a->kind == b->kind && a->dtype == b->dtype &&
           a->op == b->op && a->root == b->root && !((a->flags ^ b->flags) & ONEHOST_UNEQUAL);
}

/* All peers have called `seq` as this rank did, or have retired it. Else awaited_rank has not, or differs. */
static bool peers_have_called(struct onehost *onehost, uint64_t seq)
{
    const struct onehost_descriptor *own = onehost_descriptor_of(onehost->segment, seq);
    onehost->run_ahead.waiting_seq = seq;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++) {
        const struct onehost_peer *peer = &onehost->peers[rank];
        if (rank == onehost->group->rank || !onehost_peer_reads_segment(peer, seq + 1)) continue;
        if (onehost_peer_has_arrived(onehost, rank, seq) &&
            descriptors_match(own, onehost_descriptor_of(peer->segment, seq)))
            continue;
        onehost->awaited_rank = rank;
        return false;
    }
    return true;
}

/* Else `seq` was cancelled before. Descriptors of unverified operations are not overwritten. */
static bool is_published(const struct onehost *onehost, uint64_t seq)
{
    return onehost_peer_has_arrived(onehost, onehost->group->rank, seq);
}

/* All peers have retired the operations below. Else awaited_rank has not. */
static bool peers_have_retired(struct onehost *onehost, uint64_t below)
{
    onehost->run_ahead.waiting_seq = below;
    for (uint32_t rank = 0; rank < onehost->group->ranks; rank++) {
        if (rank == onehost->group->rank || !onehost_peer_reads_segment(&onehost->peers[rank], below))
            continue;
        onehost->awaited_rank = rank;
        return false;
    }
    advance(&onehost->run_ahead.peers_retired_seq, below);
    advance(&onehost->run_ahead.peers_read_seq, below);
    return true;
}

bool onehost_verify(struct onehost *onehost, uint64_t below)
{
    while (onehost->run_ahead.verified_seq < below) {
        bool called = is_published(onehost, onehost->run_ahead.verified_seq);
        if (called && !peers_have_called(onehost, onehost->run_ahead.verified_seq)) return false;
        set_verified(onehost, onehost->run_ahead.verified_seq + 1);
        if (!called) onehost_wake_peers(onehost);
    }
    return true;
}

bool onehost_verify_all_before(struct onehost *onehost, uint64_t seq)
{
    if (!onehost_verify(onehost, seq)) return false;
    if (seq == 0 || onehost->run_ahead.peers_read_seq + 1 >= seq) return true;
    if (!is_published(onehost, seq - 1)) return peers_have_retired(onehost, seq - 1);
    if (!peers_have_called(onehost, seq - 1)) return false; /* other receivers of a broadcast */
    onehost_all_arrived(onehost, seq - 1);
    return true;
}

bool onehost_waits_for_retired_seq(const struct onehost *onehost)
{
    return !is_published(onehost, onehost->run_ahead.waiting_seq);
}

uint32_t onehost_large_slot_find(const struct onehost *onehost, size_t copyin_bytes)
{
    const uint32_t needed = onehost_large_slots_needed(copyin_bytes);
    uint32_t free = 0;
    for (uint32_t slot = 0; slot < ONEHOST_LARGE_SLOTS; slot++) {
        free = onehost->large_slot_seqs[slot] <= onehost->run_ahead.peers_read_seq ? free + 1 : 0;
        if (free == needed) return slot + 1 - needed;
    }
    return ONEHOST_LARGE_SLOTS;
}

static uint32_t small_slot_offset(const struct onehost *onehost, uint64_t seq)
{
    return (uint32_t)seq - onehost->small_slots_first_seq;
}

static uint32_t small_slot_of(const struct onehost *onehost, uint64_t seq)
{
    return small_slot_offset(onehost, seq) % ONEHOST_SMALL_SLOTS;
}

/* At most one contribution is still being read. */
static bool peers_keep_up(const struct onehost *onehost, uint64_t seq)
{
    return onehost->run_ahead.peers_read_seq + 1 >= seq;
}

/* After 2^31 operations without a small slot, small_slots_first_seq is ambiguous: slots then count as used
 * until the peers keep up. */
bool onehost_small_slot_is_free(const struct onehost *onehost, uint64_t seq)
{
    const bool is_before_first = (int32_t)small_slot_offset(onehost, onehost->run_ahead.peers_read_seq) < 0,
               hits_limit = is_before_first && small_slot_offset(onehost, seq) >= onehost->small_slots_limit;
    return peers_keep_up(onehost, seq) ||
           (seq < onehost->run_ahead.peers_read_seq + ONEHOST_SMALL_SLOTS && !hits_limit);
}

/* If the peers keep up, slots 0 and 1 alternate, so that they stay in the cache. */
size_t onehost_small_slot_take(struct onehost *onehost, uint64_t seq)
{
    WEFT_ASSERT(onehost_small_slot_is_free(onehost, seq));
    const uint32_t last = seq > 0 ? small_slot_of(onehost, seq - 1) : 0;
    const bool all_read = onehost->run_ahead.peers_read_seq >= seq;
    if (all_read || (peers_keep_up(onehost, seq) && last > 0)) {
        onehost->small_slots_first_seq = (uint32_t)seq;
        onehost->small_slots_limit = (uint8_t)(all_read ? ONEHOST_SMALL_SLOTS : last);
    }
    return (size_t)small_slot_of(onehost, seq) * ONEHOST_SMALL_SLOT_BYTES;
}

/* All peers have read the slot. */
static bool slot_is_free(const struct onehost *onehost, size_t bytes)
{
    if (!onehost_needs_slot(bytes)) return true;
    return onehost_slot_class_of(bytes) == ONEHOST_LARGE
               ? onehost_large_slot_find(onehost, bytes) < ONEHOST_LARGE_SLOTS
               : onehost_small_slot_is_free(onehost, onehost->next_seq);
}

static bool can_reserve(struct onehost *onehost, bool completes_early, size_t bytes)
{
    const uint64_t seq = onehost->next_seq, last = seq + completes_early;
    /* one counter of each peer verifies many operations */
    if (onehost_should_verify(onehost)) read_retired_seqs(onehost, seq);
    if (onehost_should_verify(onehost) || onehost->run_ahead.verified_seq < onehost->run_ahead.cancelled_seq)
        (void)onehost_verify(onehost, seq);
    if (!slot_is_free(onehost, bytes)) (void)onehost_verify_all_before(onehost, seq);
    if (last >= onehost->run_ahead.peers_retired_seq + ONEHOST_DESCRIPTORS || !slot_is_free(onehost, bytes))
        read_retired_seqs(onehost, seq);
    return onehost->run_ahead.verified_seq >= onehost->run_ahead.cancelled_seq &&
           seq - onehost->run_ahead.verified_seq < ONEHOST_RUN_AHEAD_MAX &&
           last < onehost->run_ahead.peers_retired_seq + ONEHOST_DESCRIPTORS && slot_is_free(onehost, bytes);
}

bool onehost_reserve_sequence(struct onehost *onehost, bool completes_early, size_t bytes)
{
    if (can_reserve(onehost, completes_early, bytes)) return true;
    struct weft_env *env = onehost->group->env;
    uint64_t until_ns =
        weft_now_ns(env) + (onehost->is_oversubscribed ? POLL_TIMEOUT_OVERSUBSCRIBED_NS : POLL_TIMEOUT_NS);
    for (uint32_t polls = 1; !can_reserve(onehost, completes_early, bytes); polls++) {
        if ((onehost->is_oversubscribed || polls % POLLS_PER_CLOCK_READ == 0) && weft_now_ns(env) > until_ns)
            return false;
        weft_cpu_relax(onehost->is_oversubscribed);
    }
    return true;
}
