/* sweep.h - sizes as people write them (8, 64K, 25M, 1G) and the sequence from the first to the last. */
#ifndef WEFT_TOOLS_BENCH_LIB_SWEEP_H
#define WEFT_TOOLS_BENCH_LIB_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes with an optional suffix K, M, G (powers of 1024; a following "B" or "iB" is read over). False: no
 * such number, or it does not fit 2^48. */
bool bench_size_parse(const char *text, uint64_t *bytes_out);
/* The reverse, shortest exact form: "64K", "1000", "1M". `out` of 24 bytes is enough. */
void bench_size_format(uint64_t bytes, char *out, size_t out_bytes);

struct bench_sweep {
    uint64_t first, last; /* bytes, first <= last */
    double factor;        /* > 1: geometric; otherwise `step` is added */
    uint64_t step;
    uint64_t unit;        /* sizes are rounded down to a multiple of it, at least one */
};

/* The size after `bytes` (0: the first); 0 when the sweep is over. Sizes rise strictly. */
uint64_t bench_sweep_next(const struct bench_sweep *sweep, uint64_t bytes);

#endif
