/* cache_policy.c - decides which results are written with non-temporal stores.
 *
 * A normal store loads its line into the cache and evicts another. If the buffers of all ranks together do
 * not fit into the last-level cache, that is a useless pass over memory. A sum reads several sources per
 * store and gains from a quarter of the last-level cache on (tuning/nt_store_limit.c). A copy reads one
 * source, and later readers find its result in the cache: it gains from 1.5 times the cache on. Staged copies
 * gain from twice the cache on. The total of all buffers decides, not the length of the vector. Below four
 * times the private caches of the cores in use, normal stores are kept. The size of the last-level cache is
 * capped: a larger one is shared with other machines or is not uniformly near. */
#include "collective/onehost/onehost.h"

#include <unistd.h>

/* processors: cores that the ranks have together. */
void onehost_cache_policy_init(struct onehost *onehost, uint32_t processors)
{
    const long own = sysconf(_SC_LEVEL2_CACHE_SIZE); /* 0 or -1: unknown */
    onehost->last_cache_bytes = plan_onehost_last_cache_bytes(weft_last_level_cache_bytes());
    onehost->core_cache_bytes =
        own > 0 ? (uint64_t)own * (processors < onehost->group->ranks ? processors : onehost->group->ranks)
                : 0;
}

/* Buffers of all ranks together. */
static uint64_t buffer_bytes(const struct weft_coll *coll)
{
    uint64_t vector = onehost_vector_elems(coll) * coll->elem_bytes, ranks = coll->group->ranks;
    switch (coll->args.kind) {
    case WEFT_COLL_ALL_REDUCE: return 2 * ranks * vector;
    case WEFT_COLL_BROADCAST: return ranks * vector;
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER: return 2 * ranks * vector; /* `vector` is one piece */
    case WEFT_COLL_ALL_TO_ALL: return 2 * ranks * ranks * vector;
    default: return (ranks + 1) * vector; /* one vector per rank, and one in pieces or at the root */
    }
}

/* The private caches of many cores can hold more than the last-level limit. */
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
