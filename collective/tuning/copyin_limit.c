/* copyin_limit.c - how long a contribution is that a rank of the one-host plan still says with its
 * announcement (copyin.c), and with it where the model of that plan (cost_onehost.c) goes from one to the
 * other: both ask here, so that neither can change without the other.
 *
 * What is said costs one copy more and the one round of words less by which others tell that they are
 * through. Where each rank has a processor, a round is under a microsecond, and pays for some KiB. Where
 * ranks take turns, a round is several turns of the processor, and pays for as much as these copy
 * meanwhile. Where all ranks need all that is said, the copies of one of them grow with the number of
 * ranks, so it is what all say together that is bounded there. Two ranks with a processor each say more,
 * as nobody else reads it. Measured by two and by four ranks of two processors (docs/performance.md).
 * Pure. */
#include "collective/plan/algorithm.h"

enum { KIB = 1024 };

/* Each byte has one reader, who makes its line his own (weft_claim_lines). */
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
    /* everybody reads all */
    case WEFT_COLL_ALL_GATHER: return (is_oversubscribed ? 512 * KIB : 8 * KIB) / ranks;
    /* what one hears; what all hear */
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

/* Buffers that all map are worked on within the call as well (fastpath_direct.c), and each slice once, by
 * who has a processor: less is worth a copy. */
uint64_t plan_onehost_copyin_limit_direct(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed)
{
    uint64_t limit = plan_onehost_copyin_limit(kind, ranks, is_oversubscribed), direct_limit = limit;
    switch (kind) {
    /* by each of all others it would be read */
    case WEFT_COLL_ALL_REDUCE: direct_limit = (is_oversubscribed ? 1 : 2) * KIB; break;
    case WEFT_COLL_ALL_GATHER: direct_limit = 4 * KIB; break;
    case WEFT_COLL_REDUCE_SCATTER: direct_limit = (is_oversubscribed ? 8 : 4) * KIB; break;
    case WEFT_COLL_BROADCAST:
    /* who only gives goes ahead of the others */
    case WEFT_COLL_REDUCE: direct_limit = (is_oversubscribed ? 32 : 8) * KIB; break;
    default: break;
    }
    return direct_limit < limit ? direct_limit : limit;
}
