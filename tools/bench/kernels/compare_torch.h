/* compare_torch.h - two codecs in turn with the same work in PyTorch. */
#ifndef WEFT_TOOLS_BENCH_KERNELS_COMPARE_TORCH_H
#define WEFT_TOOLS_BENCH_KERNELS_COMPARE_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct torch_row {
    const char *name, *peer; /* "top-k 1 % with residual", "torch.topk" */
    size_t count;
    double ours_s, theirs_s;             /* medians */
    double ratio, ratio_low, ratio_high; /* of theirs / ours over the rounds: median, then the quartiles */
    double goal;
};

/* Calls `about` once with the versions of the peer, then `row` for each comparison: `rounds` rounds after one
 * of warm-up. `count`: elements. One thread on both sides; blocks until done. False: the comparison failed,
 * and reason_out has the reason. */
bool compare_torch(size_t count, uint32_t rounds, void (*about)(void *context, const char *text),
                   void (*row)(void *context, const struct torch_row *row), void *context, char *reason_out,
                   size_t reason_bytes);

#endif
