/* segment_scalar.h - encode_segments (kernels/device_segment.h) of one segment by the scalar kernels, on host
 * memory: the specification for the fake kernels and the checks of the CUDA ones. */
#ifndef WEFT_TESTS_SEGMENT_SCALAR_H
#define WEFT_TESTS_SEGMENT_SCALAR_H

#include <stdlib.h>
#include <string.h>

#include "kernels/device_segment.h"
#include "kernels/kernels.h"

static inline void segment_raise(const struct weft_segment *g, uint32_t bits)
{
    if (g->max_bits && bits > *g->max_bits) *g->max_bits = bits;
}

static inline void segment_cast_scalar(const struct weft_segment *g)
{
    const struct weft_kernels *scalar = weft_kernels_by_name("scalar");
    float *scaled = malloc((g->count + 1) * sizeof *scaled);
    if (!scaled) abort();
    scalar->scale_f32(scaled, g->a, g->factor, g->count);
    scalar->scale_f32(scaled, scaled, g->factor2, g->count);
    if (g->kind == WEFT_SEGMENT_F16) scalar->cast_f32_f16(g->codes, scaled, g->count);
    else scalar->cast_f32_bf16(g->codes, scaled, g->count);
    free(scaled);
}

static inline void segment_integer_scalar(const struct weft_segment *g)
{
    const struct weft_kernels *scalar = weft_kernels_by_name("scalar");
    if (g->kind == WEFT_SEGMENT_INT8) {
        scalar->quantise_f32(g->codes, g->x, g->exponents, g->count, 127, &g->noise);
        return;
    }
    int8_t *codes = malloc(g->count + 1);
    uint8_t *out = g->codes;
    if (!codes) abort();
    scalar->quantise_f32(codes, g->x, g->exponents, g->count, 7, &g->noise);
    codes[g->count] = 0;
    for (uint32_t i = 0; i < g->count; i += 2)
        out[i / 2] = (uint8_t)((codes[i] & 15) | (codes[i + 1] & 15) << 4);
    free(codes);
}

/* A block with a value that is not finite has exponent 255 and codes 0; x keeps the sum. */
static inline void segment_fp8_scalar(const struct weft_segment *g)
{
    const struct weft_kernels *scalar = weft_kernels_by_name("scalar");
    const enum weft_fp8 format = g->kind == WEFT_SEGMENT_E4M3 ? WEFT_E4M3 : WEFT_E5M2;
    uint8_t *codes = g->codes, *exponents = g->scales;
    for (uint32_t i = 0; i < g->count; i += WEFT_BLOCK) {
        const uint32_t count = g->count - i < WEFT_BLOCK ? g->count - i : WEFT_BLOCK;
        const uint32_t bits = scalar->scale_add_f32(g->x + i, g->a + i, g->factor, g->b + i, count);
        uint8_t *exponent = &exponents[i / WEFT_BLOCK];
        segment_raise(g, bits);
        *exponent = bits >= 0x7f800000u ? 255 : weft_fp8_exponent(bits, format);
        if (bits >= 0x7f800000u) memset(codes + i, 0, count);
        else scalar->quantise_fp8_f32(codes + i, g->x + i, exponent, count, format);
    }
}

static inline void segment_encode_scalar(const struct weft_segment *g)
{
    const struct weft_kernels *scalar = weft_kernels_by_name("scalar");
    uint32_t bits;
    switch ((enum weft_segment_kind)g->kind) {
    case WEFT_SEGMENT_NONE: return;
    case WEFT_SEGMENT_MAX: segment_raise(g, scalar->max_abs_bits_f32(g->a, g->count)); return;
    case WEFT_SEGMENT_F16:
    case WEFT_SEGMENT_BF16:
        segment_raise(g, scalar->max_abs_bits_f32(g->a, g->count));
        segment_cast_scalar(g);
        return;
    case WEFT_SEGMENT_BLOCKS:
        segment_raise(
            g, scalar->scale_add_blocks_f32(g->x, g->a, g->factor, g->b, g->count, g->limit, g->scales));
        return;
    case WEFT_SEGMENT_INT8:
    case WEFT_SEGMENT_INT4: segment_integer_scalar(g); return;
    case WEFT_SEGMENT_SIGN:
        bits = scalar->scale_add_f32(g->x, g->a, g->factor, g->b, g->count);
        segment_raise(g, bits);
        if (bits < 0x7f800000u) scalar->quantise_sign_f32(g->codes, g->scales, g->x, g->count);
        return;
    case WEFT_SEGMENT_E4M3:
    case WEFT_SEGMENT_E5M2: segment_fp8_scalar(g); return;
    }
}

#endif
