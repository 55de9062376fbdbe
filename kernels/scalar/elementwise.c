/* elementwise.c - the specification of sum, scale, error-feedback add, finiteness and the optimiser step.
 *
 * Plain loops, one rounding per written operation, each NaN stored canonical (float_bits.h). The compiler
 * may vectorise them (no operation here depends on another element), it may not reassociate or contract. */
#include "kernels/float_bits.h"
#include "kernels/templates/optimizer_element.h"
#include "kernels/scalar/scalar.h"

void weft_scalar_sum_f32(float *out, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = canonical(a[i] + b[i]);
}

/* T over sources [0, n): split at the largest power of two below n. */
static float tree(const float *const *sources, size_t n, size_t i)
{
    size_t half = 1;
    if (n == 1) return sources[0][i];
    while (half * 2 < n)
        half *= 2;
    return tree(sources, half, i) + tree(sources + half, n - half, i);
}

void weft_scalar_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                              size_t source_count, float factor, size_t count)
{
    if (source_count == 2 && out_count == 1 && factor == 1) {
        /* two ranks and a few elements, mostly: the recursion takes longer than the sums */
        weft_scalar_sum_f32(outs[0], sources[0], sources[1], count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const float sum = canonical(tree(sources, source_count, i) * factor);
        for (size_t o = 0; o < out_count; o++)
            outs[o][i] = sum;
    }
}

void weft_scalar_sum_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (int64_t)((uint64_t)a[i] + (uint64_t)b[i]);
}

void weft_scalar_scale_f32(float *out, const float *in, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = canonical(in[i] * factor);
}

uint32_t weft_scalar_scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count)
{
    uint32_t max_bits = 0;
    for (size_t i = 0; i < count; i++) {
        float sum = canonical(a[i] * factor + b[i]);
        uint32_t bits = float_bits(sum) & FLOAT_ABS;
        out[i] = sum;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}

/* Without the sign, the bit patterns of floats order like their values, NaN above Inf. */
uint32_t weft_scalar_max_abs_bits_f32(const float *in, size_t count)
{
    uint32_t max_bits = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = float_bits(in[i]) & FLOAT_ABS;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}

uint32_t weft_scalar_sum_tree_max_f32(float *const *outs, size_t out_count, const float *const *sources,
                                      size_t source_count, float factor, size_t count, bool stream)
{
    (void)stream;
    weft_scalar_sum_tree_f32(outs, out_count, sources, source_count, factor, count);
    return weft_scalar_max_abs_bits_f32(outs[0], count);
}

/* Without a branch on the data: every index is written, the good ones are kept. */
size_t weft_scalar_indices_above_f32(uint32_t *indices_out, const float *in, size_t count,
                                     uint32_t floor_bits)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        indices_out[found] = (uint32_t)i;
        found += (float_bits(in[i]) & FLOAT_ABS) >= floor_bits;
    }
    return found;
}

size_t weft_scalar_scale_add_above_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                       uint32_t floor_bits, uint32_t first, uint32_t *indices_out,
                                       float *values_out, uint32_t *max_bits)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        const float sum = canonical(a[i] * factor + b[i]);
        const uint32_t bits = float_bits(sum) & FLOAT_ABS;
        out[i] = sum;
        *max_bits = bits > *max_bits ? bits : *max_bits;
        indices_out[found] = first + (uint32_t)i;
        values_out[found] = sum;
        found += bits >= floor_bits;
    }
    return found;
}

bool weft_scalar_finite_f32(const float *in, size_t count)
{
    return weft_scalar_max_abs_bits_f32(in, count) < FLOAT_INF;
}

void weft_scalar_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                         const struct weft_sgd *sgd, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float v = sgd->momentum != 0.0f ? velocity[i] : 0.0f;
        weights[i] = sgd_element(weights[i], &v, grad[i] * grad_scale, sgd);
        if (sgd->momentum != 0.0f) velocity[i] = v;
    }
}
