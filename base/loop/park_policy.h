/* park_policy.h - how a parked engine thread sleeps, and for how long, before it reviews the owner (loop.c).
 *
 * A review interrupts a caller on the same core, and delays the peer that waits for it. The period therefore
 * grows from PARK_NS_MIN to PARK_NS_MAX, and to PARK_NS_LONG in these cases:
 *   - Waiting threads keep acquiring: MEDIUM. A release with pending work wakes the engine thread. After
 *     PARK_HELD_PERIODS_MAX periods of one owner: UNTIL_RELEASED.
 *   - A period of try-acquires only, frequent, and no work pending: LONG. Commands and new work wake the
 *     engine thread.
 *   - A period of frequent waits: SHORT with PARK_NS_LONG. A last call without a wait continues that much
 *     later, once. */
#ifndef WEFT_BASE_LOOP_PARK_POLICY_H
#define WEFT_BASE_LOOP_PARK_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop_owner.h"

#define PARK_NS_MIN 100000u
#define PARK_NS_MAX 500000u
#define PARK_NS_LONG 4000000u
/* MEDIUM periods of one owner before UNTIL_RELEASED */
#define PARK_HELD_PERIODS_MAX 8u
#define TRY_ACQUIRE_INTERVAL_NS 8000u          /* try-acquires are frequent: mean interval of at most this */
/* one wait per so many try-acquires still counts as try-acquires only */
#define TRY_ACQUIRES_PER_WAIT 8u
/* waits are frequent: mean interval of at most this */
#define WAIT_INTERVAL_NS 20000u

struct park_policy {
    uint64_t ns;
    unsigned mode;   /* PARK_SHORT, _MEDIUM, _LONG or _UNTIL_RELEASED */
    unsigned held_periods; /* MEDIUM periods in a row with one owner */
};

static inline struct park_policy park_policy_initial(void)
{
    return (struct park_policy){.ns = PARK_NS_MIN, .mode = PARK_SHORT};
}

static inline struct park_policy park_policy_medium(unsigned held_periods)
{
    return (struct park_policy){.ns = PARK_NS_LONG,
                                .mode =
                                    held_periods < PARK_HELD_PERIODS_MAX ? PARK_MEDIUM : PARK_UNTIL_RELEASED,
                                .held_periods = held_periods};
}

/* One owner for the whole period. */
static inline struct park_policy park_policy_owner_unchanged(struct park_policy now)
{
    return park_policy_medium(now.mode == PARK_MEDIUM ? now.held_periods + 1 : 0);
}

/* acquires: by other threads in this period; try_acquires: those without a step; has_pending: work is open.
 */
static inline struct park_policy park_policy_next(struct park_policy now, unsigned acquires,
                                                  unsigned try_acquires, bool has_pending)
{
    unsigned waits = acquires > try_acquires ? acquires - try_acquires : 0;
    /* + 1: a thread may be between its two counts */
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
