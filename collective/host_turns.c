/* host_turns.c - where ranks take turns on the processors, whoever has one works on the slices of those who have none.
 *
 *     core 0   A: announces n | B: announces n; all have: own slice, A's | B: n is over; announces n + 1 | A: n is over, announces n + 1; all have ...
 *
 * Else an operation takes two turns of each rank on a core: one to announce, and, once all have, one to work on its slice. So each slice is
 * taken by a word of its owner's segment, by whoever comes first: each rank its own, then those of ranks that need this core, then the others'.
 * Who comes later finds nothing to do, and the operation over when all slices are through.
 *
 * Who is through tells so in the owner's segment: of the ranks that write `taken` and `through` there the one that has taken the slice alone
 * does, until the next operation, which begins when all have announced it, so when all have left this one. What is stored where is the same whoever
 * does it: a slice has its owner's bounds, and a sum its order.
 *
 * Who has taken a slice is inside the buffers as with its own (host_line.c), and is the one that the others wait for. */
#include "collective/host.h"

/* Bytes of a vector. A longer one pays for the second turn, and a slice is better in the cache of the core that had it before. Measured by four
 * ranks of two processors (docs/performance.md). */
#define TURNS_BYTES (2u << 20)

/* The same on all ranks, once all have come: every buffer is in memory that all map, and whose slice it is does not matter. */
bool host_turns_taken(const struct host *host, const struct weft_coll *coll)
{
    const uint8_t all = HOST_MAPPED | HOST_LENDS;
    return host->crowded && (coll->host.flags_of_all & all) == all && host_vector_elems(coll) * coll->elem_bytes <= TURNS_BYTES;
}

static bool take(struct host *host, uint32_t rank, uint64_t number)
{
    const struct host_peer *peer = &host->peers[rank];
    uint64_t taken = atomic_load_explicit(&peer->segment->taken, memory_order_relaxed), now = peer->salt + number + 1;
    if (taken == now || !atomic_compare_exchange_strong(&peer->segment->taken, &taken, now)) return false;
    atomic_store_explicit(&peer->segment->taker, host->group->rank, memory_order_release);
    return true;
}

static bool take_of(struct host *host, struct weft_coll *coll, uint32_t rank)
{
    if (!take(host, rank, coll->host.number)) return false;
    coll->host.slice_of = rank;
    coll->host.rest = host_slice_of(coll, rank);
    return true;
}

bool host_turns_next(struct host *host, struct weft_coll *coll)
{
    uint32_t ranks = host->group->ranks, own = host->group->rank;
    if (take_of(host, coll, own)) return true;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t rank = 0; rank < ranks; rank++)
            if (rank != own && host_needs_this_core(host, rank) == (pass == 0) && take_of(host, coll, rank)) return true;
    return false;
}

uint32_t host_turns_taker(const struct host *host, uint32_t rank)
{
    uint32_t taker = atomic_load_explicit(&host->peers[rank].segment->taker, memory_order_acquire);
    return taker < host->group->ranks ? taker : rank;
}
