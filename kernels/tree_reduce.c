/* tree_reduce.c - the canonical tree T, evaluated while contributions arrive in rank order.
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

void weft_tree_reduce_init(struct weft_tree_reduce *reduce, size_t count)
{
    weft_tree_reduce_init_op(reduce, count, WEFT_F32, WEFT_SUM);
}

void weft_tree_reduce_init_op(struct weft_tree_reduce *reduce, size_t count, enum weft_dtype dtype,
                              enum weft_op op)
{
    reduce->count = count;
    reduce->dtype = dtype;
    reduce->op = op;
    reduce->added = 0;
    reduce->depth = 0;
    reduce->finds_max = false;
    reduce->max_bits = 0;
}

/* Elements from..from+count of a partial; of the tree's type. */
static void *elements(const struct weft_tree_reduce *reduce, uint32_t partial, size_t from)
{
    return (uint8_t *)reduce->partials[partial] + from * weft_dtype_bytes(reduce->dtype);
}

static void add_finding_max(struct weft_tree_reduce *reduce, float *left, const float *right, size_t count)
{
    const float *const sources[2] = {left, right};
    const uint32_t bits = weft_kernels()->sum_tree_max_f32(&left, 1, sources, 2, 1.0f, count, false);
    if (bits > reduce->max_bits) reduce->max_bits = bits;
}

static void add_to(struct weft_tree_reduce *reduce, void *left, const void *right, size_t count)
{
    const bool is_sum = reduce->dtype == WEFT_F32 && reduce->op == WEFT_SUM;
    if (is_sum && reduce->finds_max) add_finding_max(reduce, left, right, count);
    else if (is_sum) weft_kernels()->sum_f32(left, left, right, count);
    else weft_kernels()->combine(reduce->dtype, reduce->op, left, left, right, count);
}

bool weft_tree_reduce_needs_merge(const struct weft_tree_reduce *reduce)
{
    return reduce->depth > 0 && reduce->spans[reduce->depth - 1] == 1;
}

/* Equal neighbouring spans merge, from the right: the new one has span 1. */
void weft_tree_reduce_merge(struct weft_tree_reduce *reduce, const void *piece, size_t from, size_t count)
{
    uint32_t span = 1;
    for (uint32_t left = reduce->depth; left > 0 && reduce->spans[left - 1] == span; left--, span *= 2) {
        void *sum = elements(reduce, left - 1, from);
        add_to(reduce, sum, piece, count);
        piece = sum;
    }
}

uint32_t weft_tree_reduce_push(struct weft_tree_reduce *reduce, float *buffer, float *freed_out[32])
{
    uint32_t freed_count = 0;
    reduce->partials[reduce->depth] = buffer;
    reduce->spans[reduce->depth++] = 1;
    reduce->added++;
    while (reduce->depth >= 2 && reduce->spans[reduce->depth - 1] == reduce->spans[reduce->depth - 2]) {
        freed_out[freed_count++] = reduce->partials[--reduce->depth];
        reduce->spans[reduce->depth - 1] *= 2;
    }
    return freed_count;
}

uint32_t weft_tree_reduce_add(struct weft_tree_reduce *reduce, float *buffer, float *freed_out[32])
{
    weft_tree_reduce_merge(reduce, buffer, 0, reduce->count);
    return weft_tree_reduce_push(reduce, buffer, freed_out);
}

float *weft_tree_reduce_merge_rest(struct weft_tree_reduce *reduce, size_t from, size_t count)
{
    for (uint32_t right = reduce->depth; right-- > 1;)
        add_to(reduce, elements(reduce, right - 1, from), elements(reduce, right, from), count);
    return reduce->depth > 0 ? reduce->partials[0] : NULL;
}

float *weft_tree_reduce_close(struct weft_tree_reduce *reduce, float *freed_out[32],
                              uint32_t *freed_count_out)
{
    float *total = reduce->depth > 0 ? reduce->partials[0] : NULL;
    *freed_count_out = 0;
    while (reduce->depth > 1) freed_out[(*freed_count_out)++] = reduce->partials[--reduce->depth];
    reduce->depth = 0;
    reduce->added = 0;
    return total;
}

float *weft_tree_reduce_finish(struct weft_tree_reduce *reduce, float *freed_out[32],
                               uint32_t *freed_count_out)
{
    weft_tree_reduce_merge_rest(reduce, 0, reduce->count);
    return weft_tree_reduce_close(reduce, freed_out, freed_count_out);
}

uint32_t weft_tree_reduce_buffer_count(uint32_t ranks)
{
    /* After r ranks popcount(r) partials live; the most for r < ranks is floor(log2(ranks)). */
    uint32_t log2_floor = 0;
    while (ranks > 1) {
        ranks /= 2;
        log2_floor++;
    }
    return log2_floor + 1;
}
