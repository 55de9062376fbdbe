/* look_period.h - when a parked runner looks whether somebody still drives (base/loop.c), and how it is parked until then.
 *
 * First soon, then half as often. Each look takes some 15 us from a caller on the same core, and from the rank that waits for him. So it looks
 * seldom
 *   - while callers drive, each for long or one after the other (BATON_CALM): who leaves something open behind wakes it. One who drives on and on
 *     is left alone in the end (BATON_LONG);
 *   - after a whole period of calls that borrow (a few may have been late: a look itself makes another rank wait), when any letter wakes it besides (BATON_SLOW), unless something is open that these calls do not
 *     go on with;
 *   - after a period of many short calls that were waited for at once. Whoever ends such a series with a call that he does not wait for has it go
 *     on that much later, once. */
#ifndef WEFT_BASE_LOOK_PERIOD_H
#define WEFT_BASE_LOOK_PERIOD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/baton.h"

#define LOOK_NS_MIN 100000u
#define LOOK_NS_MAX 500000u
#define LOOK_NS_SLOW 4000000u
#define LOOK_STAYS 8u                /* such periods that one driver stays until it is left alone */
#define LOOK_OFTEN_NS 8000u          /* calls that borrow come one in so much, on the mean */
#define LOOK_DRIVEN_OF 8u            /* of so many one may have been late, and was driven by the thread that waited for it */
#define LOOK_OFTEN_DRIVEN_NS 20000u  /* those that are waited for: a take each, and one more where they tried to borrow */

struct look_period {
    uint64_t ns;
    unsigned how;   /* BATON_TIMED, _SLOW, _CALM or _LONG */
    unsigned stays; /* calm periods in a row that one driver has stayed for */
};

static inline struct look_period look_period_first(void)
{
    return (struct look_period){.ns = LOOK_NS_MIN, .how = BATON_TIMED};
}

static inline struct look_period look_period_calm(unsigned stays)
{
    return (struct look_period){.ns = LOOK_NS_SLOW, .how = stays < LOOK_STAYS ? BATON_CALM : BATON_LONG, .stays = stays};
}

/* One driver was there for all of it. */
static inline struct look_period look_period_stayed(struct look_period now)
{
    return look_period_calm(now.how == BATON_CALM ? now.stays + 1 : 0);
}

/* `came`: times that others took the baton in this period, `borrowed` of them to step nothing. awaited: something is open. */
static inline struct look_period look_period_next(struct look_period now, unsigned came, unsigned borrowed, bool awaited)
{
    unsigned driven = came > borrowed ? came - borrowed : 0;
    bool all_borrowed = driven <= 1 + borrowed / LOOK_DRIVEN_OF; /* one may be between its two counts */
    if (all_borrowed && !awaited && (uint64_t)borrowed * LOOK_OFTEN_NS >= now.ns) return (struct look_period){.ns = LOOK_NS_SLOW, .how = BATON_SLOW};
    if (now.ns >= LOOK_NS_MAX && (uint64_t)driven * LOOK_OFTEN_DRIVEN_NS >= now.ns) return (struct look_period){.ns = LOOK_NS_SLOW, .how = BATON_TIMED};
    if (driven > 0 && (now.how == BATON_CALM || now.ns == LOOK_NS_MAX)) return look_period_calm(0);
    if (now.ns > LOOK_NS_MAX) return look_period_first();
    uint64_t ns = 2 * now.ns < LOOK_NS_MAX ? 2 * now.ns : LOOK_NS_MAX;
    return (struct look_period){.ns = ns, .how = BATON_TIMED};
}

#endif
