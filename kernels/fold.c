/* fold.c - the tree of sums T, evaluated while contributions arrive in rank order.
 *
 * T(a,b) splits at the largest power of two below b-a. Fed left to right this is a binary counter: equal
 * neighbouring spans merge at once, so spans are falling powers of two, like the ones in the binary form
 * of the number of ranks added:
 *
 *     ranks added   partials (span)            rank 2 arrives:  [0,2) | [2,3)
 *         1         1                          rank 3 arrives:  [2,3)+[3,4) -> [0,2)+[2,4) -> [0,4)
 *         2         2                          finish after 7:  [4,6)+[6,7) -> [0,4)+[4,7)
 *         7         4 2 1
 *
 * Whatever is left merges from the right, which is exactly T's shape for a count that is no power of two.
 * Invariant: the sum of spans equals `added`; spans strictly fall from left to right between calls. */
#include "kernels/kernels.h"

void weft_fold_init(struct weft_fold *fold, size_t count)
{
    weft_fold_init_op(fold, count, WEFT_F32, WEFT_SUM);
}

void weft_fold_init_op(struct weft_fold *fold, size_t count, enum weft_dtype dtype, enum weft_op op)
{
    fold->count = count;
    fold->dtype = dtype;
    fold->op = op;
    fold->added = 0;
    fold->depth = 0;
}

/* The two youngest partials become one, in the left one's buffer; returns the right one's. */
static float *merge_last_two(struct weft_fold *fold)
{
    const uint32_t right = fold->depth - 1, left = fold->depth - 2;
    float *freed = fold->partials[right];
    if (fold->dtype == WEFT_F32 && fold->op == WEFT_SUM)
        weft_kernels()->sum_f32(fold->partials[left], fold->partials[left], freed, fold->count);
    else
        weft_kernels()->combine(fold->dtype, fold->op, fold->partials[left], fold->partials[left], freed, fold->count);
    fold->spans[left] += fold->spans[right];
    fold->depth--;
    return freed;
}

uint32_t weft_fold_add(struct weft_fold *fold, float *buffer, float *freed_out[32])
{
    uint32_t freed_count = 0;
    fold->partials[fold->depth] = buffer;
    fold->spans[fold->depth] = 1;
    fold->depth++;
    fold->added++;
    while (fold->depth >= 2 && fold->spans[fold->depth - 1] == fold->spans[fold->depth - 2])
        freed_out[freed_count++] = merge_last_two(fold);
    return freed_count;
}

float *weft_fold_finish(struct weft_fold *fold, float *freed_out[32], uint32_t *freed_count_out)
{
    uint32_t freed_count = 0;
    while (fold->depth >= 2)
        freed_out[freed_count++] = merge_last_two(fold);
    *freed_count_out = freed_count;
    if (fold->depth == 0) return NULL;
    fold->depth = 0;
    fold->added = 0;
    return fold->partials[0];
}

uint32_t weft_fold_slots(uint32_t ranks)
{
    /* After r ranks popcount(r) partials live; the most for r < ranks is floor(log2(ranks)). */
    uint32_t log2_floor = 0;
    while (ranks > 1) {
        ranks /= 2;
        log2_floor++;
    }
    return log2_floor + 1;
}
