/* park_policy.h - when a parked runner looks whether somebody still drives (base/loop/loop.c), and how it is
 * parked until then.
 *
 * First soon, then half as often. Each look takes some 15 us from a caller on the same core, and from the
 * rank that waits for him. So it looks seldom
 *   - while callers drive, each for long or one after the other (PARK_MEDIUM): who leaves something open
 *     behind wakes it. One who drives on and on is left alone in the end (PARK_UNTIL_RELEASED);
 *   - after a whole period of calls that borrow (a few may have been late: a look itself makes another rank
 *     wait), when any letter wakes it besides (PARK_LONG), unless something is open that these calls do not
 *     go on with;
 *   - after a period of many short calls that were waited for at once. Whoever ends such a series with a
 *     call that he does not wait for has it go on that much later, once. */
#ifndef WEFT_BASE_LOOP_PARK_POLICY_H
#define WEFT_BASE_LOOP_PARK_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop_owner.h"

#define PARK_NS_MIN 100000u
#define PARK_NS_MAX 500000u
#define PARK_NS_LONG 4000000u
/* such periods that one driver stays until it is left alone */
#define PARK_HELD_PERIODS_MAX 8u
#define TRY_ACQUIRE_INTERVAL_NS 8000u          /* calls that borrow come one in so much, on the mean */
/* of so many one may have been late, and was driven by the thread that waited for it */
#define TRY_ACQUIRES_PER_WAIT 8u
/* those that are waited for: a take each, and one more where they tried to borrow */
#define WAIT_INTERVAL_NS 20000u

struct park_policy {
    uint64_t ns;
    unsigned mode;   /* PARK_SHORT, _SLOW, _CALM or _LONG */
    unsigned held_periods; /* calm periods in a row that one driver has stayed for */
};

static inline struct park_policy park_policy_initial(void)
{
    return (struct park_policy){.ns = PARK_NS_MIN, .mode = PARK_SHORT};
}

static inline struct park_policy park_policy_medium(unsigned held_periods)
{
    return (struct park_policy){.ns = PARK_NS_LONG,
                                .mode = held_periods < PARK_HELD_PERIODS_MAX ? PARK_MEDIUM : PARK_UNTIL_RELEASED,
                                .held_periods = held_periods};
}

/* One driver was there for all of it. */
static inline struct park_policy park_policy_owner_unchanged(struct park_policy now)
{
    return park_policy_medium(now.mode == PARK_MEDIUM ? now.held_periods + 1 : 0);
}

/* `came`: times that others took the baton in this period, `borrowed` of them to step nothing. awaited:
 * something is open. */
static inline struct park_policy park_policy_next(struct park_policy now, unsigned acquires, unsigned try_acquires,
                                                  bool has_pending)
{
    unsigned waits = acquires > try_acquires ? acquires - try_acquires : 0;
    /* one may be between its two counts */
    bool only_try_acquires = waits <= 1 + try_acquires / TRY_ACQUIRES_PER_WAIT;
    if (only_try_acquires && !has_pending && (uint64_t)try_acquires * TRY_ACQUIRE_INTERVAL_NS >= now.ns)
        return (struct park_policy){.ns = PARK_NS_LONG, .mode = PARK_LONG};
    if (now.ns >= PARK_NS_MAX && (uint64_t)waits * WAIT_INTERVAL_NS >= now.ns)
        return (struct park_policy){.ns = PARK_NS_LONG, .mode = PARK_SHORT};
    if (waits > 0 && (now.mode == PARK_MEDIUM || now.ns == PARK_NS_MAX)) return park_policy_medium(0);
    if (now.ns > PARK_NS_MAX) return park_policy_initial();
    uint64_t ns = 2 * now.ns < PARK_NS_MAX ? 2 * now.ns : PARK_NS_MAX;
    return (struct park_policy){.ns = ns, .mode = PARK_SHORT};
}

#endif
