/* nt_store_limit.c - buffer total from which sums use non-temporal stores. onehost/cache_policy.c and the
 * cost model (cost_onehost.c) both ask here, so they always agree. Pure. */
#include "collective/plan/algorithm.h"

enum { LAST_CACHE_MIN = 32 << 20, LAST_CACHE_MAX = 128 << 20 };

uint64_t plan_onehost_last_cache_bytes(uint64_t last_cache_bytes)
{
    return last_cache_bytes < LAST_CACHE_MIN   ? LAST_CACHE_MIN
           : last_cache_bytes > LAST_CACHE_MAX ? LAST_CACHE_MAX
                                               : last_cache_bytes;
}

uint64_t plan_onehost_nt_sum_bytes(uint64_t last_cache_bytes, uint64_t core_cache_bytes)
{
    uint64_t last_limit = plan_onehost_last_cache_bytes(last_cache_bytes) / 4,
             core_limit = PLAN_ONEHOST_NT_CORE_CACHE_FACTOR * core_cache_bytes;
    return last_limit > core_limit ? last_limit : core_limit;
}
