/* onehost_method_stats.c - ordinary memory goes through stages or is copied by system calls: whichever took
 * less time here.
 *
 * A stage carries each byte over twice more and from one core's cache to the other's; a system call looks
 * pages up, and the copying core keeps what it has copied. Which is faster depends on the processor, the
 * kernel, the kind of operation and its size: 1 MiB summed by two ranks took 52 us through stages and 114 by
 * system calls on one machine, 129 and 59 on another. So rank 0 measures: it tries both in turn, goes on with
 * the faster, and now and then looks whether the other has become faster. The others need not know: an
 * operation goes through stages only if all ranks say that they have one, and rank 0 says so when it wants it
 * (onehost/engine.c).
 *
 * The time is from when all ranks have called until the operation is over: whoever comes late says nothing
 * about the way. */
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
    /* what was measured in another group of the same ranks serves this one */
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

/* What is faster counts at once; what is slower may have been held up, so it counts little by little. */
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
