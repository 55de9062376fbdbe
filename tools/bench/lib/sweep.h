/* sweep.h - the sequence of sizes of a benchmark, from the first to the last. */
#ifndef WEFT_TOOLS_BENCH_LIB_SWEEP_H
#define WEFT_TOOLS_BENCH_LIB_SWEEP_H

#include <stdint.h>

struct bench_sweep {
    uint64_t first, last; /* bytes, first <= last */
    double factor;        /* > 1: geometric; otherwise `step` is added */
    uint64_t step;
    uint64_t unit; /* sizes are rounded down to a multiple of it, at least one */
};

/* The size after `bytes` (0: the first); 0 after the last. Sizes rise strictly. */
uint64_t bench_sweep_next(const struct bench_sweep *sweep, uint64_t bytes);

#endif
