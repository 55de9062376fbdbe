/* kernelbench.h - speed of each kernel relative to the speed of memory.
 *
 * A case is one kernel on `count` elements with the bytes it moves per element. It is timed in turn with a
 * copy of the same number of bytes (the faster of memcpy and a copy by non-temporal stores), round after
 * round. The result is the median of the ratios of the rounds: slow spells of the machine affect both. Times
 * are processor times of the thread. Requires only the modules kernels and compress and the C library. */
#ifndef WEFT_TOOLS_BENCH_KERNELS_KERNELBENCH_H
#define WEFT_TOOLS_BENCH_KERNELS_KERNELBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct kernelbench_options {
    size_t count;     /* elements; a case on a matrix may use slightly fewer */
    uint32_t rounds;  /* measured rounds, after one of warm-up */
    const char *only; /* text in the name of a case; NULL: all cases */
    const struct weft_kernels *kernels;
};

struct kernelbench_row {
    const char *name;
    size_t count;
    double bytes_per_element;            /* read plus written */
    double time_s;                       /* median */
    double gbps, copy_gbps;              /* medians, 1e9 bytes */
    double ratio, ratio_low, ratio_high; /* of gbps / copy_gbps over the rounds: median, quartiles */
};

/* Calls `row` for each case in order. False: no memory for the buffers (about 9 arrays of `count` f32). */
bool kernelbench_run(const struct kernelbench_options *options,
                     void (*row)(void *context, const struct kernelbench_row *row), void *context);

/* Fills `out` as a gradient appears to a selection: nearly normal, every element different. */
void kernelbench_fill_normal(float *out, size_t count, uint64_t seed);

/* Copies `bytes` (a multiple of 64; both addresses at cache lines) with non-temporal stores; memcpy if the
 * processor has none. */
void kernelbench_stream_copy(void *to, const void *from, size_t bytes);

#endif
