/* host_way.c - ordinary memory goes through stages or is copied by system calls: whichever took less time here.
 *
 * A stage carries each byte over twice more and from one core's cache to the other's; a system call looks pages up, and the copying core keeps
 * what it has copied. Which is faster depends on the processor, the kernel, the kind of operation and its size: 1 MiB summed by two ranks took 52 us
 * through stages and 114 by system calls on one machine, 129 and 59 on another. So rank 0 measures: it tries both in turn, goes on with the
 * faster, and now and then looks whether the other has become faster. The others need not know: an operation goes
 * through stages only if all ranks say that they have one, and rank 0 says so when it wants it (host_run.c).
 *
 * The time is from when all ranks have called until the operation is over: whoever comes late says nothing about the way. */
#include "collective/host.h"

enum { TRIES = 3, LOOK_AFTER = 8, DOUBLED = 3, LEAST_BITS = 12, PICOSECONDS = 1000 };

struct host_way *host_way_of(struct host *host, enum weft_coll_kind kind, bool in_place, uint64_t bytes)
{
    unsigned bits = bytes >> LEAST_BITS ? 63 - (unsigned)__builtin_clzll(bytes) - LEAST_BITS : 0, size = bits / 2;
    unsigned of_kind = kind == WEFT_COLL_REDUCE ? 0 : kind == WEFT_COLL_ALL_TO_ALL ? WEFT_COLL_BARRIER : kind;
    _Static_assert(WEFT_COLL_ALL_REDUCE > 0 && WEFT_COLL_BROADCAST < WEFT_COLL_BARRIER && WEFT_COLL_BARRIER < HOST_WAY_KINDS, "a row each");
    struct roster *roster = host->group->roster; /* what was measured in another group of the same ranks serves this one */
    if (!roster->ways) roster->ways = weft_alloc_zero(host->group->env, sizeof *roster->ways);
    if (!roster->ways) return NULL;
    return &roster->ways->of[of_kind][in_place][size < HOST_WAY_SIZES ? size : HOST_WAY_SIZES - 1];
}

bool host_way_copies(struct host_way *way)
{
    for (unsigned tries = 0; tries < TRIES; tries++)
        for (int copied = 0; copied < 2; copied++)
            if (way->tries[copied] == tries) return copied;
    bool copies = way->cost[true] < way->cost[false];
    return way->since >= LOOK_AFTER << way->looks ? !copies : copies;
}

/* What is faster counts at once; what is slower may have been held up, so it counts little by little. */
void host_way_took(struct host_way *way, bool copied, uint64_t ns, uint64_t bytes)
{
    uint64_t cost = ns * PICOSECONDS / (bytes ? bytes : 1), before = way->cost[copied];
    bool known = way->tries[0] >= TRIES && way->tries[1] >= TRIES, faster = copied == (way->cost[true] < way->cost[false]);
    if (known && !faster && way->looks < DOUBLED) way->looks++;
    way->since = known && faster ? way->since + 1 : 0;
    if (cost > UINT32_MAX / 2) cost = UINT32_MAX / 2;
    if (way->tries[copied] > 0 && cost > before) cost = before + ((cost < 2 * before ? cost : 2 * before) - before) / 8;
    way->cost[copied] = (uint32_t)cost;
    if (way->tries[copied] < TRIES) way->tries[copied]++;
}
