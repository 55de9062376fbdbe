/* timestamp.c - see timestamp.h: reads the clock and calibrates the cycle counter. */
#include "base/os/timestamp.h"

#define STAMP_NS 50000u          /* a clock reading is extrapolated for at most this time */
#define LOOK_TICKS 1024u         /* a clock reading takes less; bounds its error */
#define PACE_NS 1000000u         /* shortest interval for calibration */
#define PACE_NS_MOST (1u << 30)  /* longest one; a new interval then starts, since clocks are adjusted */

/* Is the env's clock the machine's? Other clocks do not advance between two readings. */
static bool runs_by_itself(const struct weft_env *env)
{
    return env->now_ns == weft_env_system()->now_ns && !env->virtual_time;
}

static void begin(struct weft_timestamp *stamp)
{
    stamp->first_ticks = stamp->ticks;
    stamp->first_ns = stamp->ns;
}

/* Is the rate plausible? If not, there is no counter, or it was reset or stopped. */
static bool counts(uint64_t ns, uint64_t ticks)
{
    return ns <= PACE_NS_MOST && ticks / 64 < ns && ns / 256 < ticks;
}

static void learn_pace(struct weft_timestamp *stamp)
{
    uint64_t ns = stamp->ns - stamp->first_ns, ticks = stamp->ticks - stamp->first_ticks;
    bool known = counts(ns, ticks);
    stamp->ns_per_tick = known ? (ns << 32) / ticks : 0;
    stamp->limit = known ? ((uint64_t)STAMP_NS << 32) / stamp->ns_per_tick : 0;
    if (!known || ns > PACE_NS_MOST / 2) begin(stamp);
}

uint64_t weft_timestamp_read_clock(struct weft_timestamp *stamp, struct weft_env *env)
{
    uint64_t before = weft_timestamp_ticks(), now_ns = weft_now_ns(env);
    if (!runs_by_itself(env)) return now_ns;
    stamp->limit = 0;
    /* another thread used the CPU between the two readings */
    if (weft_timestamp_ticks() - before > LOOK_TICKS) return now_ns;
    stamp->ticks = before;
    stamp->ns = now_ns;
    if (stamp->first_ns == 0) begin(stamp);
    else if (weft_elapsed_ns(stamp->first_ns, now_ns) >= PACE_NS) learn_pace(stamp);
    return now_ns;
}
