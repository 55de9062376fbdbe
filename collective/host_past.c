/* host_past.c - which results of the one-host plan are written past the caches.
 *
 * A store brings its line into the cache first, and pushes another out. Where all buffers of all ranks together do not stay in the last cache anyway, that is
 * a pass over memory for nothing. A sum has several sources for each store, and gains as soon as they are a quarter of the last cache; a copy has one,
 * which its other readers or the next operation find there, and gains only from half as much again as the whole of it on. What goes through
 * stages is in the cache once more. Measured with readers of the results behind the operations,
 * 2 to 8 ranks on two processors with 32 MiB (docs/performance.md): what decides is not the vector's length, but that of all buffers.
 * Nor are stores past the caches worth it as long as the own caches of the processors that work hold a quarter of that or more.
 *
 * But a last cache that is shown larger is shared with other machines, or not all its parts are near: with 480 MiB of it, copies past the cache are slower
 * up to 32 MiB of two ranks and faster from 64 on. */
#include "collective/host.h"

#include <unistd.h>

/* processors: of those that the ranks have together. */
void host_past_know(struct host *host, uint32_t processors)
{
    const long own = sysconf(_SC_LEVEL2_CACHE_SIZE); /* 0 or -1: not known */
    host->last_bytes = plan_one_host_last_bytes(weft_last_cache_bytes());
    host->own_bytes = own > 0 ? (uint64_t)own * (processors < host->group->ranks ? processors : host->group->ranks) : 0;
}

/* Of all ranks. */
static uint64_t buffer_bytes(const struct weft_coll *coll)
{
    uint64_t vector = host_vector_elems(coll) * coll->elem_bytes, ranks = coll->group->ranks;
    switch (coll->args.kind) {
    case WEFT_COLL_ALL_REDUCE: return 2 * ranks * vector;
    case WEFT_COLL_BROADCAST: return ranks * vector;
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER: return 2 * ranks * vector; /* of these it is a piece */
    case WEFT_COLL_ALL_TO_ALL: return 2 * ranks * ranks * vector;
    default: return (ranks + 1) * vector; /* a vector at each rank, and one in pieces or at the root */
    }
}

/* At least that what own caches hold is not found there any more: many processors have more of those than a part of the last cache holds. */
static bool beyond(const struct host *host, const struct weft_coll *coll, uint64_t bytes)
{
    uint64_t all = buffer_bytes(coll);
    return all >= bytes && all >= PLAN_ONE_HOST_PAST_OWN * host->own_bytes;
}

bool host_sums_past(const struct host *host, const struct weft_coll *coll) { return buffer_bytes(coll) >= plan_one_host_sums_past(host->last_bytes, host->own_bytes); }
bool host_copies_past(const struct host *host, const struct weft_coll *coll) { return beyond(host, coll, host->last_bytes / 2 * 3); }
bool host_stages_past(const struct host *host, const struct weft_coll *coll) { return beyond(host, coll, 2 * host->last_bytes); }
