/* reduce.c - element arithmetic of the plans, by type and reduction.
 *
 * A *partial* is an intermediate sum: f32 for floats narrower than f32, else the element type. Narrower
 * floats are widened to f32, combined, and rounded to nearest even when they are written as elements. A
 * finished sum is scaled before the rounding: AVG multiplies floats by 1/ranks and divides integers with
 * truncation toward zero; SCALED_SUM multiplies by 1/total. `out` may equal an input. A narrow input may lie
 * at the end of the wide output. */
#include "collective/core/reduce.h"

#include <string.h>

#define TILE 2048u

bool reduce_is_widened(enum weft_dtype dtype)
{
    return dtype == WEFT_F16 || dtype == WEFT_BF16 || dtype == WEFT_F8_E4M3 || dtype == WEFT_F8_E5M2;
}

size_t reduce_partial_bytes(enum weft_dtype dtype)
{
    return reduce_is_widened(dtype) ? sizeof(float) : weft_dtype_bytes(dtype);
}

bool reduce_supports(enum weft_dtype dtype, enum weft_op op)
{
    bool floats = reduce_is_widened(dtype) || dtype == WEFT_F32 || dtype == WEFT_F64;
    switch (op) {
    case WEFT_SUM:
    case WEFT_AVG:
    case WEFT_PROD:
    case WEFT_MIN:
    case WEFT_MAX: return true;
    case WEFT_AND:
    case WEFT_OR:
    case WEFT_XOR: return !floats;
    case WEFT_SCALED_SUM: return floats;
    }
    return false;
}

void reduce_widen(enum weft_dtype dtype, float *out, const void *in, size_t count)
{
    if (dtype == WEFT_F16) weft_kernels()->cast_f16_f32(out, in, count);
    else if (dtype == WEFT_BF16) weft_kernels()->cast_bf16_f32(out, in, count);
    else weft_cast_fp8_f32(dtype, out, in, count);
}

void reduce_load(const struct reduce_spec *sum, float *out, const void *in, size_t count)
{
    reduce_widen(sum->dtype, out, in, count);
    if (sum->prescale != 1) weft_kernels()->scale_f32(out, out, sum->prescale, count);
}

static void narrow(enum weft_dtype dtype, void *out, const float *in, size_t count)
{
    if (dtype == WEFT_F16) weft_kernels()->cast_f32_f16(out, in, count);
    else if (dtype == WEFT_BF16) weft_kernels()->cast_f32_bf16(out, in, count);
    else weft_cast_f32_fp8(dtype, out, in, count);
}

static void combine(enum weft_dtype dtype, enum weft_op op, void *out, const void *left, const void *right,
                    size_t count)
{
    bool adds = op == WEFT_SUM || op == WEFT_AVG || op == WEFT_SCALED_SUM;
    if (dtype == WEFT_F32 && adds) weft_kernels()->sum_f32(out, left, right, count);
    else weft_kernels()->combine(dtype, op, out, left, right, count);
}

#define DIVIDE(type)                                                                                      \
    do {                                                                                                  \
        for (size_t i = 0; i < count; i++) ((type *)out)[i] = (type)(((const type *)in)[i] / (type)ranks); \
    } while (0)
/* If the type cannot represent the number of ranks, a division in the type would be wrong: divide in 64
 * bits. */
#define DIVIDE_SHORT(type)                                                                                  \
    do {                                                                                                    \
        for (size_t i = 0; i < count; i++)                                                                  \
            ((type *)out)[i] = (type)((int64_t)((const type *)in)[i] / ranks);                              \
    } while (0)

static void divide(const struct reduce_spec *sum, enum weft_dtype dtype, void *out, const void *in,
                   size_t count)
{
    const int64_t ranks = sum->ranks;
    switch (dtype) {
    case WEFT_F32: weft_kernels()->scale_f32(out, in, reduce_scale_factor(sum), count); break;
    case WEFT_F64:
        for (size_t i = 0; i < count; i++) ((double *)out)[i] = ((const double *)in)[i] * (1.0 / sum->total);
        break;
    case WEFT_I8: DIVIDE_SHORT(int8_t); break;
    case WEFT_U8: DIVIDE_SHORT(uint8_t); break;
    case WEFT_I32: DIVIDE_SHORT(int32_t); break;
    case WEFT_U32: DIVIDE_SHORT(uint32_t); break;
    case WEFT_U64: DIVIDE(uint64_t); break;
    default: DIVIDE(int64_t); break;
    }
}

/* Type of the partials. */
static enum weft_dtype partial_type(enum weft_dtype dtype)
{
    return reduce_is_widened(dtype) ? WEFT_F32 : dtype;
}

void reduce_pair(const struct reduce_spec *sum, struct reduce_dst out, struct reduce_src left,
                 struct reduce_src right, size_t count)
{
    size_t element = weft_dtype_bytes(sum->dtype), partial = reduce_partial_bytes(sum->dtype);
    if (!reduce_is_widened(sum->dtype)) {
        combine(sum->dtype, sum->op, out.data, left.data, right.data, count);
        if (out.last && sum->total != 0) divide(sum, sum->dtype, out.data, out.data, count);
        return;
    }
    float a[TILE], b[TILE];
    for (size_t done = 0; done < count; done += TILE) {
        size_t n = count - done < TILE ? count - done : TILE;
        const void *x = (const uint8_t *)left.data + done * (left.wide ? partial : element);
        const void *y = (const uint8_t *)right.data + done * (right.wide ? partial : element);
        void *z = (uint8_t *)out.data + done * (out.wide ? partial : element);
        if (!left.wide) reduce_load(sum, a, x, n), x = a;
        if (!right.wide) reduce_load(sum, b, y, n), y = b;
        float *total = out.wide ? z : a;
        combine(WEFT_F32, sum->op, total, x, y, n);
        if (out.last && sum->total != 0) weft_kernels()->scale_f32(total, total, reduce_scale_factor(sum), n);
        if (!out.wide) narrow(sum->dtype, z, total, n);
    }
}

void reduce_copy(const struct reduce_spec *sum, struct reduce_dst out, struct reduce_src in, size_t count)
{
    size_t element = weft_dtype_bytes(sum->dtype);
    bool scales = out.last && sum->total != 0;
    if (out.wide == in.wide || !reduce_is_widened(sum->dtype)) {
        size_t bytes = in.wide ? reduce_partial_bytes(sum->dtype) : element;
        if (scales) divide(sum, in.wide ? partial_type(sum->dtype) : sum->dtype, out.data, in.data, count);
        else if (out.data != in.data && count) memmove(out.data, in.data, count * bytes);
        return;
    }
    float tile[TILE];
    for (size_t done = 0; done < count; done += TILE) {
        size_t n = count - done < TILE ? count - done : TILE;
        if (in.wide) {
            const float *from = (const float *)in.data + done;
            if (scales) weft_kernels()->scale_f32(tile, from, reduce_scale_factor(sum), n), from = tile;
            narrow(sum->dtype, (uint8_t *)out.data + done * element, from, n);
        } else {
            reduce_load(sum, tile, (const uint8_t *)in.data + done * element, n);
            memcpy((float *)out.data + done, tile, n * sizeof *tile);
        }
    }
}

void reduce_scale(enum weft_dtype dtype, double factor, void *out, const void *in, size_t count)
{
    float tile[TILE];
    size_t element = weft_dtype_bytes(dtype);
    if (factor == 0) /* the contribution is zero even for infinities and NaN */
        memset(out, 0, count * element);
    else if (dtype == WEFT_F64)
        for (size_t i = 0; i < count; i++) ((double *)out)[i] = ((const double *)in)[i] * factor;
    else if (dtype == WEFT_F32)
        weft_kernels()->scale_f32(out, in, (float)factor, count);
    else
        for (size_t done = 0; done < count; done += TILE) {
            size_t n = count - done < TILE ? count - done : TILE;
            reduce_widen(dtype, tile, (const uint8_t *)in + done * element, n);
            weft_kernels()->scale_f32(tile, tile, (float)factor, n);
            narrow(dtype, (uint8_t *)out + done * element, tile, n);
        }
}
