/* timestamp.h - approximate time of an event, for records. Deviates from the env's clock by at most a
 * microsecond and costs less than half of a clock reading. Not for waiting: a timestamp may be slightly
 * earlier than a previous one.
 *
 * Extrapolates a clock reading that is at most STAMP_NS old by the CPU's cycle counter. The counter's rate is
 * calibrated between two readings at least a millisecond apart. A counter that stops, jumps or changes its
 * rate causes an error of at most STAMP_NS. Without a counter, and in an env with its own clock, each
 * timestamp is a clock reading. */
#ifndef WEFT_BASE_OS_TIMESTAMP_H
#define WEFT_BASE_OS_TIMESTAMP_H

#include <stdint.h>

#include "base/env.h"

/* Zeroed at first. One thread. */
struct weft_timestamp {
    uint64_t ticks, ns; /* counter and clock at the last reading */
    uint64_t limit;     /* ticks for which it may be extrapolated; 0: rate unknown */
    uint64_t ns_per_tick; /* times 2^32 */
    uint64_t first_ticks, first_ns; /* start of the calibration interval */
};

/* reads the clock; call it early, so that the rate is known soon */
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
