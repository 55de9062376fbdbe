/* oversubscribed.c - where ranks take turns on the processors, whoever has one works on the slices of those
 * who have none.
 *
 *     core 0   A: announces n | B: announces n; all have: own slice, A's | B: n is over; announces n + 1 | A: n is over, announces n + 1; all have ...
 *
 * Else an operation takes two turns of each rank on a core: one to announce, and, once all have, one to work
 * on its slice. So each slice is taken by a word of its owner's segment, by whoever comes first: each rank
 * its own, then those of ranks that need this core, then the others'. Who comes later finds nothing to do,
 * and the operation over when all slices are through.
 *
 * Who is through tells so in the owner's segment: of the ranks that write `taken` and `through` there the one
 * that has taken the slice alone does, until the next operation, which begins when all have announced it, so
 * when all have left this one. What is stored where is the same whoever does it: a slice has its owner's
 * bounds, and a sum its order.
 *
 * Who has taken a slice is inside the buffers as with its own (segment.c), and is the one that the others
 * wait for. */
#include "collective/onehost/onehost.h"

/* Bytes of a vector. A longer one pays for the second turn, and a slice is better in the cache of the core
 * that had it before. Measured by four ranks of two processors (docs/performance.md). */
#define STEALING_BYTES_MAX (2u << 20)

/* The same on all ranks, once all have come: every buffer is in memory that all map, and whose slice it is
 * does not matter. */
bool onehost_stealing_is_enabled(const struct onehost *onehost, const struct weft_coll *coll)
{
    const uint8_t all = ONEHOST_DIRECT | ONEHOST_ALLOWS_STEALING;
    return onehost->is_oversubscribed && (coll->onehost.all_flags & all) == all &&
           onehost_vector_elems(coll) * coll->elem_bytes <= STEALING_BYTES_MAX;
}

static bool claim(struct onehost *onehost, uint32_t rank, uint64_t seq)
{
    const struct onehost_peer *peer = &onehost->peers[rank];
    uint64_t claimed_seq = atomic_load_explicit(&peer->segment->claimed_seq, memory_order_relaxed),
             now = peer->salt + seq + 1;
    if (claimed_seq == now || !atomic_compare_exchange_strong(&peer->segment->claimed_seq, &claimed_seq, now))
        return false;
    atomic_store_explicit(&peer->segment->claimed_by, onehost->group->rank, memory_order_release);
    return true;
}

static bool claim_slice_of(struct onehost *onehost, struct weft_coll *coll, uint32_t rank)
{
    if (!claim(onehost, rank, coll->onehost.seq)) return false;
    coll->onehost.slice_owner = rank;
    coll->onehost.remaining = onehost_slice_of(coll, rank);
    return true;
}

bool onehost_claim_next_slice(struct onehost *onehost, struct weft_coll *coll)
{
    uint32_t ranks = onehost->group->ranks, own = onehost->group->rank;
    if (claim_slice_of(onehost, coll, own)) return true;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t rank = 0; rank < ranks; rank++)
            if (rank != own && onehost_peer_shares_core(onehost, rank) == (pass == 0) &&
                claim_slice_of(onehost, coll, rank))
                return true;
    return false;
}

uint32_t onehost_slice_claimed_by(const struct onehost *onehost, uint32_t rank)
{
    uint32_t claimed_by =
        atomic_load_explicit(&onehost->peers[rank].segment->claimed_by, memory_order_acquire);
    return claimed_by < onehost->group->ranks ? claimed_by : rank;
}
