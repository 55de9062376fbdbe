/* timestamp.h - when something happened, for records of it: as the env's clock says to within a microsecond,
 * for less than half of what a look at the clock takes. Never for waiting: a stamp may lie a little before an
 * earlier one.
 *
 * The processor's counter of ticks, counted on from a look at the clock that is no older than STAMP_NS;
 * how fast it counts was seen between two looks at least a millisecond apart. So a counter that stops,
 * jumps or changes its pace puts a stamp wrong by no more than that age, and on processors without one, as
 * in an env whose time is its own, each stamp is a look at the clock. */
#ifndef WEFT_BASE_OS_TIMESTAMP_H
#define WEFT_BASE_OS_TIMESTAMP_H

#include <stdint.h>

#include "base/env.h"

/* Zeroed at first; its owner's alone. */
struct weft_timestamp {
    uint64_t ticks, ns; /* the counter and the clock at the last look */
    uint64_t limit;     /* so many ticks it is good for; 0: not known how fast they come */
    uint64_t ns_per_tick; /* times 2^32 */
    uint64_t first_ticks, first_ns; /* of the look by which the pace is known */
};

/* at the clock; early, so that the pace is known soon */
uint64_t weft_timestamp_read_clock(struct weft_timestamp *stamp, struct weft_env *env);

static inline uint64_t weft_timestamp_ticks(void)
{
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

static inline uint64_t weft_timestamp_ns(struct weft_timestamp *stamp, struct weft_env *env)
{
    uint64_t ticks = weft_timestamp_ticks() - stamp->ticks;
    return ticks < stamp->limit ? stamp->ns + (ticks * stamp->ns_per_tick >> 32)
                                : weft_timestamp_read_clock(stamp, env);
}

#endif
