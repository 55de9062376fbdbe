/* kernelbench.h - how close each kernel comes to the speed of memory.
 *
 * A case is one kernel on `count` elements with the bytes it must move per element. It is timed in turn
 * with a copy that moves the same number of bytes (the faster of memcpy and a copy by streaming stores),
 * round after round, and the answer is the median of the rounds' ratios: slow spells of the machine hit
 * both. Times are the thread's own (CPU time): nothing here waits. Needs only the kernels and compress
 * rooms and the C library. */
#ifndef WEFT_TOOLS_BENCH_KERNELS_KERNELBENCH_H
#define WEFT_TOOLS_BENCH_KERNELS_KERNELBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct kernelbench_options {
    size_t count;    /* elements; a case may use a matrix of nearly as many */
    uint32_t rounds; /* measured; one more is run to warm up */
    const char *only; /* part of a case's name; NULL: all */
    const struct weft_kernels *kernels;
};

struct kernelbench_row {
    const char *name;
    size_t count;
    double bytes_per_element; /* read plus written */
    double time_s;            /* median */
    double gbps, copy_gbps;   /* medians, 1e9 bytes */
    double ratio, ratio_low, ratio_high; /* of the rounds' gbps / copy_gbps: median, quartiles */
};

/* Calls `row` for each case in order. False: no memory for the buffers (about 9 arrays of `count` f32). */
bool kernelbench_run(const struct kernelbench_options *options,
                     void (*row)(void *context, const struct kernelbench_row *row), void *context);

/* What a gradient looks like to a select: nearly normal, every element different. */
void kernelbench_fill_normal(float *out, size_t count, uint64_t seed);

/* Copies `bytes` (a multiple of 64; both at cache lines) with streaming stores; memcpy where the processor
 * has none. */
void kernelbench_stream_copy(void *to, const void *from, size_t bytes);

#endif
