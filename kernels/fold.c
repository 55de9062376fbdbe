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

/* Elements from..from+count of a partial; they are of the fold's type. */
static void *elements(const struct weft_fold *fold, uint32_t partial, size_t from)
{
    return (uint8_t *)fold->partials[partial] + from * weft_dtype_bytes(fold->dtype);
}

static void add_to(const struct weft_fold *fold, void *left, const void *right, size_t count)
{
    if (fold->dtype == WEFT_F32 && fold->op == WEFT_SUM) weft_kernels()->sum_f32(left, left, right, count);
    else weft_kernels()->combine(fold->dtype, fold->op, left, left, right, count);
}

bool weft_fold_merges(const struct weft_fold *fold)
{
    return fold->depth > 0 && fold->spans[fold->depth - 1] == 1;
}

/* Equal neighbouring spans merge, from the right: the new one has span 1. */
void weft_fold_merge(const struct weft_fold *fold, const void *piece, size_t from, size_t count)
{
    uint32_t span = 1;
    for (uint32_t left = fold->depth; left > 0 && fold->spans[left - 1] == span; left--, span *= 2) {
        void *sum = elements(fold, left - 1, from);
        add_to(fold, sum, piece, count);
        piece = sum;
    }
}

uint32_t weft_fold_added(struct weft_fold *fold, float *buffer, float *freed_out[32])
{
    uint32_t freed_count = 0;
    fold->partials[fold->depth] = buffer;
    fold->spans[fold->depth++] = 1;
    fold->added++;
    while (fold->depth >= 2 && fold->spans[fold->depth - 1] == fold->spans[fold->depth - 2]) {
        freed_out[freed_count++] = fold->partials[--fold->depth];
        fold->spans[fold->depth - 1] *= 2;
    }
    return freed_count;
}

uint32_t weft_fold_add(struct weft_fold *fold, float *buffer, float *freed_out[32])
{
    weft_fold_merge(fold, buffer, 0, fold->count);
    return weft_fold_added(fold, buffer, freed_out);
}

float *weft_fold_total(const struct weft_fold *fold, size_t from, size_t count)
{
    for (uint32_t right = fold->depth; right-- > 1;)
        add_to(fold, elements(fold, right - 1, from), elements(fold, right, from), count);
    return fold->depth > 0 ? fold->partials[0] : NULL;
}

float *weft_fold_close(struct weft_fold *fold, float *freed_out[32], uint32_t *freed_count_out)
{
    float *total = fold->depth > 0 ? fold->partials[0] : NULL;
    *freed_count_out = 0;
    while (fold->depth > 1) freed_out[(*freed_count_out)++] = fold->partials[--fold->depth];
    fold->depth = 0;
    fold->added = 0;
    return total;
}

float *weft_fold_finish(struct weft_fold *fold, float *freed_out[32], uint32_t *freed_count_out)
{
    weft_fold_total(fold, 0, fold->count);
    return weft_fold_close(fold, freed_out, freed_count_out);
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
