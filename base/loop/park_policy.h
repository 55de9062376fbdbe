/* park_policy.h - how a parked engine thread sleeps, and for how long, before it reviews the owner (loop.c).
 *
 *     SHORT 0.1, 0.2, 0.4, 0.5 ms ------------------> LONG 4 ms ---- one owner ----> UNTIL_RELEASED
 *       ^      one owner for a whole period: at once    |
 *       +------------- woken by another thread ---------+
 *
 * A review interrupts a caller on the same core, and delays the peer that waits for it: hence LONG. A release
 * with pending work wakes LONG, but not SHORT. Where callers leave work open at every release, a wake-up of
 * the engine thread at each costs more than the reviews of SHORT periods. UNTIL_RELEASED lets a process sleep
 * that waits for long. */
#ifndef WEFT_BASE_LOOP_PARK_POLICY_H
#define WEFT_BASE_LOOP_PARK_POLICY_H

#include <stdint.h>

#include "base/env.h"
#include "base/loop/loop_owner.h"

#define PARK_NS_SHORT_MIN 100000u
#define PARK_NS_SHORT_MAX 500000u
#define PARK_NS_LONG 4000000u

/* The period after one of `ns` in which other threads acquired the loop. */
static inline uint64_t park_period_next(uint64_t ns)
{
    if (ns >= PARK_NS_SHORT_MAX) return PARK_NS_LONG;
    return 2 * ns < PARK_NS_SHORT_MAX ? 2 * ns : PARK_NS_SHORT_MAX;
}

/* The same if one thread owned it. */
static inline uint64_t park_period_next_held(uint64_t ns)
{
    return ns == PARK_NS_LONG ? WEFT_NEVER : PARK_NS_LONG;
}

static inline unsigned park_mode_of(uint64_t ns)
{
    return ns == WEFT_NEVER ? PARK_UNTIL_RELEASED : ns == PARK_NS_LONG ? PARK_LONG : PARK_SHORT;
}

#endif
