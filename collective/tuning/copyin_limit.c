/* copyin_limit.c - the longest contribution that a rank copies in (onehost/copyin.c). The cost model
 * (cost_onehost.c) asks here too, so both always agree. Pure.
 *
 * Copy-in costs one more copy and saves one synchronization, or several system calls if buffers are not
 * mapped. Ranks that are oversubscribed save several time slices. With a core per rank, all ranks copy at
 * once: the limit bounds the bytes that one rank reads. Of two ranks each byte has one reader, which claims
 * its line (weft_claim_lines). */
#include "collective/plan/algorithm.h"

enum {
    KIB = 1024,
    READ_BYTES = 16 * KIB,                   /* by one of more than two ranks, a core each */
    PERSONALIZED_BYTES = 32 * KIB,           /* of up to two ranks: it applies to direct buffers too */
    DIRECT_BYTES = 4 * KIB,                  /* with a core per rank, if buffers are direct */
    DIRECT_SHARED_BYTES = 2 * KIB,           /* and each peer would read the copy */
    DIRECT_EARLY_BYTES = 8 * KIB,            /* and a rank that only contributes completes early */
    OVERSUBSCRIBED_DIRECT_BYTES = 128 * KIB, /* direct buffers cost a time slice of each rank */
};

static uint64_t at_least_one_slot(uint64_t bytes)
{
    return bytes > PLAN_ONEHOST_COPYIN_SMALL_BYTES ? bytes : PLAN_ONEHOST_COPYIN_SMALL_BYTES;
}

/* Ranks do not prefer direct buffers for these (onehost_buffers_locate). */
static bool is_personalized(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_GATHER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
}

uint64_t plan_onehost_copyin_limit(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed)
{
    if (is_oversubscribed || (ranks <= 2 && !is_personalized(kind))) return PLAN_ONEHOST_COPYIN_BYTES_MAX;
    bool is_from_root = kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_SCATTER;
    if (ranks <= 2) return (is_from_root ? 2 : 1) * PERSONALIZED_BYTES; /* one rank copies, or both */
    return at_least_one_slot(READ_BYTES / (is_from_root ? 1 : ranks - 1));
}

static uint64_t smaller(uint64_t x, uint64_t y)
{
    return x < y ? x : y;
}

/* With a core per rank direct buffers complete inside the call as well (fastpath_direct.c). */
uint64_t plan_onehost_copyin_limit_direct(enum weft_coll_kind kind, uint32_t ranks, bool is_oversubscribed)
{
    uint64_t limit = plan_onehost_copyin_limit(kind, ranks, is_oversubscribed);
    bool all_read_all = kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_ALL_GATHER;
    if (is_personalized(kind)) return limit;
    if (is_oversubscribed) return at_least_one_slot(OVERSUBSCRIBED_DIRECT_BYTES / (all_read_all ? ranks : 1));
    if (kind == WEFT_COLL_ALL_REDUCE) return DIRECT_SHARED_BYTES;
    if (kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_REDUCE) return smaller(limit, DIRECT_EARLY_BYTES);
    return DIRECT_BYTES;
}
