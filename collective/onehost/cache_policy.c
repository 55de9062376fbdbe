/* cache_policy.c - which results of the one-host plan are written past the caches.
 *
 * A store brings its line into the cache first, and pushes another out. Where all buffers of all ranks
 * together do not stay in the last cache anyway, that is a pass over memory for nothing. A sum has several
 * sources for each store, and gains as soon as they are a quarter of the last cache; a copy has one, which
 * its other readers or the next operation find there, and gains only from half as much again as the whole of
 * it on. What goes through stages is in the cache once more. Measured with readers of the results behind the
 * operations, 2 to 8 ranks on two processors with 32 MiB (docs/performance.md): what decides is not the
 * vector's length, but that of all buffers. Nor are stores past the caches worth it as long as the own caches
 * of the processors that work hold a quarter of that or more.
 *
 * But a last cache that is shown larger is shared with other machines, or not all its parts are near: with
 * 480 MiB of it, copies past the cache are slower up to 32 MiB of two ranks and faster from 64 on. */
#include "collective/onehost/onehost.h"

#include <unistd.h>

/* processors: of those that the ranks have together. */
void onehost_cache_policy_init(struct onehost *onehost, uint32_t processors)
{
    const long own = sysconf(_SC_LEVEL2_CACHE_SIZE); /* 0 or -1: not known */
    onehost->last_cache_bytes = plan_onehost_last_cache_bytes(weft_last_level_cache_bytes());
    onehost->core_cache_bytes =
        own > 0 ? (uint64_t)own * (processors < onehost->group->ranks ? processors : onehost->group->ranks)
                : 0;
}

/* Of all ranks. */
static uint64_t buffer_bytes(const struct weft_coll *coll)
{
    uint64_t vector = onehost_vector_elems(coll) * coll->elem_bytes, ranks = coll->group->ranks;
    switch (coll->args.kind) {
    case WEFT_COLL_ALL_REDUCE: return 2 * ranks * vector;
    case WEFT_COLL_BROADCAST: return ranks * vector;
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER: return 2 * ranks * vector; /* of these it is a piece */
    case WEFT_COLL_ALL_TO_ALL: return 2 * ranks * ranks * vector;
    default: return (ranks + 1) * vector; /* a vector at each rank, and one in pieces or at the root */
    }
}

/* At least that what own caches hold is not found there any more: many processors have more of those than
 * a part of the last cache holds. */
static bool exceeds_caches(const struct onehost *onehost, const struct weft_coll *coll, uint64_t bytes)
{
    uint64_t all = buffer_bytes(coll);
    return all >= bytes && all >= PLAN_ONEHOST_NT_CORE_CACHE_FACTOR * onehost->core_cache_bytes;
}

bool onehost_sum_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll)
{
    return buffer_bytes(coll) >=
           plan_onehost_nt_sum_bytes(onehost->last_cache_bytes, onehost->core_cache_bytes);
}
bool onehost_copy_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll)
{
    return exceeds_caches(onehost, coll, onehost->last_cache_bytes / 2 * 3);
}
bool onehost_stage_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll)
{
    return exceeds_caches(onehost, coll, 2 * onehost->last_cache_bytes);
}
