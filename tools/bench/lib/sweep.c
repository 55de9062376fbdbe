/* sweep.c - see sweep.h. */
#include "tools/bench/lib/sweep.h"

static uint64_t round_to_unit(uint64_t bytes, uint64_t unit)
{
    return bytes / unit ? bytes / unit * unit : unit;
}

uint64_t bench_sweep_next(const struct bench_sweep *sweep, uint64_t bytes)
{
    if (bytes == 0) return round_to_unit(sweep->first, sweep->unit);
    uint64_t next = bytes;
    /* rounding may give the same size again: continue from the unrounded one */
    for (uint64_t at = bytes; next <= bytes;) {
        at = sweep->factor > 1 ? (uint64_t)((double)at * sweep->factor + 0.5)
                               : at + (sweep->step ? sweep->step : sweep->unit);
        if (at <= bytes) at = bytes + sweep->unit;
        if (at > sweep->last) return 0;
        next = round_to_unit(at, sweep->unit);
    }
    return next <= sweep->last ? next : 0;
}
