/* choose_said.c - how long a contribution is that a rank of the one-host plan still says with its announcement (host_said.c), and with it where the
 * model of that plan (choose_host.c) goes from one to the other: both ask here, so that neither can change without the other.
 *
 * What is said costs one copy more and the one round of words less by which others tell that they are through. Where each rank has a processor,
 * a round is under a microsecond, and pays for some KiB. Where ranks take turns, a round is several turns of the processor, and pays for
 * as much as these copy meanwhile. Where all ranks need all that is said, the copies of one of them grow with the number of ranks, so it is
 * what all say together that is bounded there. Two ranks with a processor each say more, as nobody else reads it. Measured by two and by four ranks of two processors (docs/performance.md). Pure. */
#include "collective/plan.h"

enum { KIB = 1024 };

/* Each byte has one reader, who makes its line his own (weft_take_lines). */
static uint64_t worth_saying_to_one(enum weft_coll_kind kind)
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

static uint64_t worth_saying(enum weft_coll_kind kind, uint32_t ranks, bool crowded)
{
    if (ranks == 2 && !crowded) return worth_saying_to_one(kind);
    switch (kind) {
    case WEFT_COLL_BROADCAST: return (crowded ? 128 : 16) * KIB;
    case WEFT_COLL_SCATTER: return crowded ? PLAN_ONE_HOST_SAID : 16 * KIB;
    case WEFT_COLL_REDUCE: return (crowded ? 512 : 32) * KIB / ranks; /* the root reads all */
    case WEFT_COLL_GATHER: return (crowded ? 1024 * KIB : 32 * KIB) / ranks;
    case WEFT_COLL_ALL_TO_ALL: return (crowded ? 128 : 4) * KIB;
    case WEFT_COLL_REDUCE_SCATTER: return crowded ? PLAN_ONE_HOST_SAID : 8 * KIB;
    case WEFT_COLL_ALL_GATHER: return (crowded ? 512 * KIB : 8 * KIB) / ranks; /* everybody reads all */
    default: return crowded ? 128 * KIB / ranks : 16 * KIB / (ranks > 2 ? ranks - 1 : 1); /* what one hears; what all hear */
    }
}

static uint64_t bounded(uint64_t most) { return most < PLAN_ONE_HOST_SHORT ? PLAN_ONE_HOST_SHORT : most > PLAN_ONE_HOST_SAID ? PLAN_ONE_HOST_SAID : most; }

uint64_t plan_one_host_said(enum weft_coll_kind kind, uint32_t ranks, bool crowded) { return bounded(worth_saying(kind, ranks, crowded)); }

/* Buffers that all map are worked on within the call as well (host_brief_mapped.c), and each slice once, by who has a processor: less is worth a copy. */
uint64_t plan_one_host_said_mapped(enum weft_coll_kind kind, uint32_t ranks, bool crowded)
{
    uint64_t said = plan_one_host_said(kind, ranks, crowded), worth = said;
    switch (kind) {
    case WEFT_COLL_ALL_REDUCE: worth = (crowded ? 1 : 2) * KIB; break; /* by each of all others it would be read */
    case WEFT_COLL_ALL_GATHER: worth = 4 * KIB; break;
    case WEFT_COLL_REDUCE_SCATTER: worth = (crowded ? 8 : 4) * KIB; break;
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_REDUCE: worth = (crowded ? 32 : 8) * KIB; break; /* who only gives goes ahead of the others */
    default: break;
    }
    return worth < said ? worth : said;
}
