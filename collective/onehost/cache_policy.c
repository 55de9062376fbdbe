/* cache_policy.c - decides which results of a call are written with non-temporal stores: the bytes of all
 * buffers of all ranks, not the length of the vector, against the limits of tuning/nt_store_limit.c. */
#include "collective/onehost/onehost.h"

#include <unistd.h>

/* processors: cores that the ranks have together. */
void onehost_cache_policy_init(struct onehost *onehost, uint32_t processors)
{
    const long own = sysconf(_SC_LEVEL2_CACHE_SIZE); /* 0 or -1: unknown */
    onehost->caches.last_cache_bytes = plan_onehost_last_cache_bytes(weft_last_level_cache_bytes());
    onehost->caches.core_cache_bytes =
        own > 0 ? (uint64_t)own * (processors < onehost->group->ranks ? processors : onehost->group->ranks)
                : 0;
}

/* Buffers of all ranks together. */
static uint64_t buffer_bytes(const struct weft_coll *coll)
{
    uint64_t vector = onehost_vector_elems(coll) * coll->data.elem_bytes, ranks = coll->group->ranks;
    switch (coll->args.kind) {
    case WEFT_COLL_ALL_REDUCE: return 2 * ranks * vector;
    case WEFT_COLL_BROADCAST: return ranks * vector;
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER: return 2 * ranks * vector; /* `vector` is one piece */
    case WEFT_COLL_ALL_TO_ALL: return 2 * ranks * ranks * vector;
    default: return (ranks + 1) * vector; /* one vector per rank, and one in pieces or at the root */
    }
}

bool onehost_sum_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll)
{
    return buffer_bytes(coll) >=
           plan_onehost_nt_sum_bytes(onehost->caches.last_cache_bytes, onehost->caches.core_cache_bytes);
}
bool onehost_copy_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll)
{
    return buffer_bytes(coll) >=
           plan_onehost_nt_copy_bytes(onehost->caches.last_cache_bytes, onehost->caches.core_cache_bytes);
}
bool onehost_stage_uses_nt_stores(const struct onehost *onehost, const struct weft_coll *coll)
{
    return buffer_bytes(coll) >=
           plan_onehost_nt_stage_bytes(onehost->caches.last_cache_bytes, onehost->caches.core_cache_bytes);
}
