/* compare_torch.h - two codecs beside what PyTorch offers for the same work, in turn, in one run. */
#ifndef WEFT_TOOLS_BENCH_KERNELS_COMPARE_TORCH_H
#define WEFT_TOOLS_BENCH_KERNELS_COMPARE_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct torch_row {
    const char *name, *peer; /* "top-k 1 % with residual", "torch.topk" */
    size_t count;
    double ours_s, theirs_s; /* medians */
    double ratio, ratio_low,
        ratio_high; /* of the rounds' theirs / ours: how many times faster; median, quartiles */
    double goal;
};

/* Calls `about` once with the peer's versions, then `row` for each comparison, `rounds` rounds each after
 * one that warms up. `count`: elements. False: it could not be done, and why is in reason_out. One thread on
 * both sides; blocks until done. */
bool compare_torch(size_t count, uint32_t rounds, void (*about)(void *context, const char *text),
                  void (*row)(void *context, const struct torch_row *row), void *context, char *reason_out,
                  size_t reason_bytes);

#endif
