/* timestamp.c - see timestamp.h: the look at the clock, now and then. */
#include "base/os/timestamp.h"

#define STAMP_NS 50000u          /* a look is good for so long */
#define LOOK_TICKS 1024u         /* a look takes less, and is off by no more */
#define PACE_NS 1000000u         /* between two looks that tell the pace, at least */
#define PACE_NS_MOST (1u << 30)  /* and at most: a newer one then, as clocks are adjusted */

/* Is its clock the machine's, which goes on between two looks? */
static bool runs_by_itself(const struct weft_env *env)
{
    return env->now_ns == weft_env_system()->now_ns && !env->virtual_time;
}

static void begin(struct weft_timestamp *stamp)
{
    stamp->first_ticks = stamp->ticks;
    stamp->first_ns = stamp->ns;
}

/* Looks between which some ticks passed that make no pace, not even of a strange machine: there is no
 * counter, or it was set anew or stood still. */
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
    /* somebody else had the processor between the two */
    if (weft_timestamp_ticks() - before > LOOK_TICKS) return now_ns;
    stamp->ticks = before;
    stamp->ns = now_ns;
    if (stamp->first_ns == 0) begin(stamp);
    else if (weft_elapsed_ns(stamp->first_ns, now_ns) >= PACE_NS) learn_pace(stamp);
    return now_ns;
}
