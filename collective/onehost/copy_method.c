/* copy_method.c - chooses CMA or staged for unmapped buffers by measurement.
 *
 * Staged copies each byte twice more, between caches of two cores. CMA pays a system call and page look-ups.
 * Which is faster depends on processor, kernel, kind and size. Rank 0 measures: it tries both in turn,
 * continues with the faster one and probes the other at growing intervals. Other ranks follow: an operation
 * is staged only if all ranks offer a stage, and rank 0 offers one only when it wants it (engine.c). The time
 * counts from the last arrival to completion, so a late rank does not distort it. */
#include "collective/onehost/onehost.h"

enum { TRIES = 3, PROBE_AFTER = 8, BACKOFF_MAX = 3, SIZE_BITS_MIN = 12, PICOSECONDS = 1000 };

struct onehost_method_stats *onehost_method_stats_of(struct onehost *onehost, enum weft_coll_kind kind,
                                                     bool in_place, uint64_t bytes)
{
    unsigned bits = bytes >> SIZE_BITS_MIN ? 63 - (unsigned)__builtin_clzll(bytes) - SIZE_BITS_MIN : 0,
             size = bits / 2;
    unsigned of_kind = kind == WEFT_COLL_REDUCE ? 0 : kind == WEFT_COLL_ALL_TO_ALL ? WEFT_COLL_BARRIER : kind;
    _Static_assert(WEFT_COLL_ALL_REDUCE > 0 && WEFT_COLL_BROADCAST < WEFT_COLL_BARRIER &&
                       WEFT_COLL_BARRIER < ONEHOST_METHOD_KINDS,
                   "a row each");
    /* shared by all groups of the same ranks */
    struct peer_table *peer_table = onehost->group->peer_table;
    if (!peer_table->method_table)
        peer_table->method_table = weft_alloc_zero(onehost->group->env, sizeof *peer_table->method_table);
    if (!peer_table->method_table) return NULL;
    return &peer_table->method_table
                ->of[of_kind][in_place][size < ONEHOST_METHOD_SIZES ? size : ONEHOST_METHOD_SIZES - 1];
}

bool onehost_method_uses_cma(struct onehost_method_stats *method_stats)
{
    for (unsigned tries = 0; tries < TRIES; tries++)
        for (int uses_cma = 0; uses_cma < 2; uses_cma++)
            if (method_stats->tries[uses_cma] == tries) return uses_cma;
    bool copies = method_stats->cost[true] < method_stats->cost[false];
    return method_stats->since_probe >= PROBE_AFTER << method_stats->backoff ? !copies : copies;
}

/* A faster sample counts fully; a slower one can be a disturbance and counts by an eighth. */
void onehost_method_record(struct onehost_method_stats *method_stats, bool uses_cma, uint64_t ns,
                           uint64_t bytes)
{
    uint64_t cost = ns * PICOSECONDS / (bytes ? bytes : 1), before = method_stats->cost[uses_cma];
    bool known = method_stats->tries[0] >= TRIES && method_stats->tries[1] >= TRIES,
         faster = uses_cma == (method_stats->cost[true] < method_stats->cost[false]);
    if (known && !faster && method_stats->backoff < BACKOFF_MAX) method_stats->backoff++;
    method_stats->since_probe = known && faster ? method_stats->since_probe + 1 : 0;
    if (cost > UINT32_MAX / 2) cost = UINT32_MAX / 2;
    if (method_stats->tries[uses_cma] > 0 && cost > before)
        cost = before + ((cost < 2 * before ? cost : 2 * before) - before) / 8;
    method_stats->cost[uses_cma] = (uint32_t)cost;
    if (method_stats->tries[uses_cma] < TRIES) method_stats->tries[uses_cma]++;
}
