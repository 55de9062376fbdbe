/* copyin_limit.c - the longest contribution that a rank copies in (onehost/copyin.c). The cost model
 * (cost_onehost.c) asks here too, so both always agree. Pure.
 *
 * Copy-in costs one more copy and saves one synchronization. With a core per rank a synchronization pays for
 * some KiB. If ranks are oversubscribed, it takes several time slices and pays for more. If all ranks read
 * all contributions, the copies grow with the number of ranks, so the limit bounds their total. Two ranks
 * with a core each have one reader per byte and copy in more. */
#include "collective/plan/algorithm.h"

enum { KIB = 1024 };

/* Each byte has one reader, which claims its line (weft_claim_lines). */
static uint64_t limit_of_two_ranks(enum weft_coll_kind kind)
{
    switch (kind) {
    case WEFT_COLL_SCATTER: return 64 * KIB;
    case WEFT_COLL_GATHER:
    case WEFT_COLL_ALL_TO_ALL: return 32 * KIB;
    case WEFT_COLL_ALL_REDUCE:
    case WEFT_COLL_ALL_GATHER: return 64 * KIB;
    default: return 128 * KIB;
    }
}

static uint64_t limit_of(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed)
{
    if (ranks == 2 && !is_oversubscribed) return limit_of_two_ranks(kind);
    switch (kind) {
    case WEFT_COLL_BROADCAST: return (is_oversubscribed ? 128 : 16) * KIB;
    case WEFT_COLL_SCATTER: return is_oversubscribed ? PLAN_ONEHOST_COPYIN_BYTES_MAX : 16 * KIB;
    case WEFT_COLL_REDUCE: return (is_oversubscribed ? 512 : 32) * KIB / ranks; /* the root reads all */
    case WEFT_COLL_GATHER: return (is_oversubscribed ? 1024 * KIB : 32 * KIB) / ranks;
    case WEFT_COLL_ALL_TO_ALL: return (is_oversubscribed ? 128 : 4) * KIB;
    case WEFT_COLL_REDUCE_SCATTER: return is_oversubscribed ? PLAN_ONEHOST_COPYIN_BYTES_MAX : 8 * KIB;
    /* all ranks read all */
    case WEFT_COLL_ALL_GATHER: return (is_oversubscribed ? 512 * KIB : 8 * KIB) / ranks;
    /* bounds what one rank reads; bounds what all ranks read */
    default: return is_oversubscribed ? 128 * KIB / ranks : 16 * KIB / (ranks > 2 ? ranks - 1 : 1);
    }
}

static uint64_t bounded(uint64_t most)
{
    return most < PLAN_ONEHOST_COPYIN_SMALL_BYTES ? PLAN_ONEHOST_COPYIN_SMALL_BYTES
           : most > PLAN_ONEHOST_COPYIN_BYTES_MAX ? PLAN_ONEHOST_COPYIN_BYTES_MAX
                                                  : most;
}

uint64_t plan_onehost_copyin_limit(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed)
{
    return bounded(limit_of(kind, ranks, is_oversubscribed));
}

/* With a core per rank mapped buffers complete inside the call as well (fastpath_direct.c), so fewer bytes
 * are worth a copy. If ranks are oversubscribed, copy-in saves a time slice of each rank. */
uint64_t plan_onehost_copyin_limit_direct(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed)
{
    uint64_t limit = plan_onehost_copyin_limit(kind, ranks, is_oversubscribed), direct_limit = limit;
    if (is_oversubscribed) return limit;
    switch (kind) {
    case WEFT_COLL_ALL_REDUCE: direct_limit = 2 * KIB; break; /* each peer would read it */
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_REDUCE_SCATTER: direct_limit = 4 * KIB; break;
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_REDUCE: direct_limit = 8 * KIB; break; /* a rank that only contributes completes early */
    default: break;
    }
    return direct_limit < limit ? direct_limit : limit;
}
