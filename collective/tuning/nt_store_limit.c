/* nt_store_limit.c - buffer totals from which sums and copies of the one-host path use non-temporal stores.
 *
 * A normal store loads its line into the cache and evicts another. If the buffers of all ranks together do
 * not fit into the last-level cache, that is a useless pass over memory. A sum reads several sources per
 * store and gains from a quarter of the last-level cache on. A copy reads one source, and later readers find
 * its result in the cache: it gains from 1.5 times the cache on, a staged copy from twice the cache on. Below
 * four times the private caches of the working cores, normal stores are kept.
 *
 * onehost/cache_policy.c and the cost model (cost_onehost.c) both use these, so they always agree. Pure. */
#include "collective/plan/algorithm.h"

enum { LAST_CACHE_MIN = 32 << 20, LAST_CACHE_MAX = 128 << 20 };
enum { CORE_CACHES = 4 }; /* multiple of the private caches above which all accesses miss them */

uint64_t plan_onehost_last_cache_bytes(uint64_t last_cache_bytes)
{
    return last_cache_bytes < LAST_CACHE_MIN   ? LAST_CACHE_MIN
           : last_cache_bytes > LAST_CACHE_MAX ? LAST_CACHE_MAX
                                               : last_cache_bytes;
}

static uint64_t at_least_core_caches(uint64_t limit, uint64_t core_cache_bytes)
{
    return limit > CORE_CACHES * core_cache_bytes ? limit : CORE_CACHES * core_cache_bytes;
}

uint64_t plan_onehost_nt_sum_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes)
{
    return at_least_core_caches(plan_onehost_last_cache_bytes(last_cache_bytes) / 4, core_cache_bytes);
}

uint64_t plan_onehost_nt_copy_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes)
{
    return at_least_core_caches(plan_onehost_last_cache_bytes(last_cache_bytes) / 2 * 3, core_cache_bytes);
}

uint64_t plan_onehost_nt_stage_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes)
{
    return at_least_core_caches(2 * plan_onehost_last_cache_bytes(last_cache_bytes), core_cache_bytes);
}
