/* oversubscribed.c - work stealing: if ranks are oversubscribed, a running rank works on the slices of ranks
 * that are not scheduled.
 *
 *   core 0  A: publish n | B: publish n; own slice, slice of A | B: n complete, publish n + 1 | ...
 *
 * Without it an operation needs two time slices of each rank: one to publish, one to work on its slice. Each
 * slice is claimed by a compare-and-swap on claimed_seq in its owner's segment: the own slice first, then
 * those of ranks on this core, then the others. The claimer alone writes done_seq there until the next
 * operation, which starts after all ranks have left this one. The result does not depend on the claimer: a
 * slice has its owner's bounds, and a sum its order. */
#include "collective/onehost/onehost.h"

/* Bytes of a vector. A longer one pays for the second time slice, and its slice is better in the cache of its
 * own core. */
#define STEALING_BYTES_MAX (2u << 20)

/* The same on all ranks after all have arrived: all buffers are mapped, and any rank can work on any
 * slice. */
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
