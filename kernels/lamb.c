/* lamb.c - one step of LAMB over a whole tensor: two norms decide how far it goes.
 *
 * The norms are sums over blocks of WEFT_LAMB_BLOCK elements, each in the 16-lane order, the blocks by the
 * tree T: the same bits on a CPU and a GPU, and whatever way they are cut between threads. */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/templates/optimizer_element.h"

/* T as a binary counter (tree_reduce.c), of pairs of doubles. */
struct square_sums {
    double sums[64][2];
    uint64_t spans[64];
    unsigned depth;
};

static void merge_last_two(struct square_sums *total)
{
    double *left = total->sums[total->depth - 2], *right = total->sums[total->depth - 1];
    left[0] += right[0];
    left[1] += right[1];
    total->spans[total->depth - 2] += total->spans[total->depth - 1];
    total->depth--;
}

static void add(struct square_sums *total, const double squares[2])
{
    total->sums[total->depth][0] = squares[0];
    total->sums[total->depth][1] = squares[1];
    total->spans[total->depth++] = 1;
    while (total->depth >= 2 && total->spans[total->depth - 1] == total->spans[total->depth - 2])
        merge_last_two(total);
}

void weft_lamb_step(const struct weft_lamb *lamb, float lr, float *weights, float *first, float *second,
                    const float *grad, float grad_scale, size_t count)
{
    const struct weft_kernels *kernels = weft_kernels();
    struct square_sums total;
    total.depth = 0;
    if (count == 0) return;
    for (size_t at = 0; at < count; at += WEFT_LAMB_BLOCK) {
        const size_t length = count - at < WEFT_LAMB_BLOCK ? count - at : WEFT_LAMB_BLOCK;
        double squares[2];
        kernels->lamb_moments_f32(first + at, second + at, weights + at, grad + at, grad_scale, lamb, length,
                                  squares);
        add(&total, squares);
    }
    while (total.depth >= 2) merge_last_two(&total);
    kernels->lamb_apply_f32(weights, first, second, lamb, lamb_rate(lr, total.sums[0][0], total.sums[0][1]),
                            count);
}
