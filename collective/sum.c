/* sum.c - element arithmetic of the plans, by type.
 *
 * 16-bit floats are widened to f32, summed there and rounded to nearest even when written. AVG is one
 * multiplication by 1/ranks in f32 before that rounding; for i64 a division that truncates toward zero.
 * `out` may equal an input; every range is contiguous. */
#include "collective/internal.h"

#include <string.h>

#define TILE 2048u

static void widen(enum weft_dtype dtype, float *out, const uint16_t *in, size_t count)
{
    if (dtype == WEFT_F16) weft_kernels()->cast_f16_f32(out, in, count);
    else weft_kernels()->cast_bf16_f32(out, in, count);
}

static void narrow(enum weft_dtype dtype, uint16_t *out, const float *in, size_t count)
{
    if (dtype == WEFT_F16) weft_kernels()->cast_f32_f16(out, in, count);
    else weft_kernels()->cast_f32_bf16(out, in, count);
}

static void sum_received_16(enum weft_dtype dtype, uint16_t *out, const uint16_t *received, const uint16_t *own, float factor,
                            size_t count)
{
    float a[TILE], b[TILE];
    for (size_t done = 0; done < count; done += TILE) {
        size_t n = count - done < TILE ? count - done : TILE;
        widen(dtype, a, received + done, n);
        widen(dtype, b, own + done, n);
        weft_kernels()->sum_f32(a, a, b, n);
        if (factor != 1.0f) weft_kernels()->scale_f32(a, a, factor, n);
        narrow(dtype, out + done, a, n);
    }
}

void sum_received(enum weft_dtype dtype, enum weft_op op, uint32_t ranks, void *out, const void *received, const void *own, size_t count)
{
    switch (dtype) {
    case WEFT_F32:
        weft_kernels()->sum_f32(out, received, own, count);
        sum_finish(dtype, op, ranks, out, out, count);
        break;
    case WEFT_I64:
        weft_kernels()->sum_i64(out, received, own, count);
        sum_finish(dtype, op, ranks, out, out, count);
        break;
    case WEFT_F16:
    case WEFT_BF16:
        sum_received_16(dtype, out, received, own, op == WEFT_AVG ? 1.0f / (float)ranks : 1.0f, count);
        break;
    }
}

static void finish_16(enum weft_dtype dtype, uint16_t *out, const uint16_t *in, float factor, size_t count)
{
    float tile[TILE];
    for (size_t done = 0; done < count; done += TILE) {
        size_t n = count - done < TILE ? count - done : TILE;
        widen(dtype, tile, in + done, n);
        weft_kernels()->scale_f32(tile, tile, factor, n);
        narrow(dtype, out + done, tile, n);
    }
}

void sum_finish(enum weft_dtype dtype, enum weft_op op, uint32_t ranks, void *out, const void *in, size_t count)
{
    if (op != WEFT_AVG || ranks == 1) {
        if (out != in && count) memmove(out, in, count * weft_dtype_bytes(dtype));
        return;
    }
    float factor = 1.0f / (float)ranks;
    switch (dtype) {
    case WEFT_F32: weft_kernels()->scale_f32(out, in, factor, count); break;
    case WEFT_F16:
    case WEFT_BF16: finish_16(dtype, out, in, factor, count); break;
    case WEFT_I64:
        for (size_t i = 0; i < count; i++) ((int64_t *)out)[i] = ((const int64_t *)in)[i] / (int64_t)ranks;
        break;
    }
}
