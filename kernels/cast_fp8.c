/* cast_fp8.c - 8-bit floats as elements: to f32 and back without a block's scale (formats: narrow_loops.h).
 *
 * To nearest even, denormals kept. What rounds above the largest number becomes Inf in e5m2 and NaN in e4m3, which has no
 * Inf: an overflow of a sum stays visible. NaN becomes the positive canonical NaN, 0x7f and 0x7e. The 256 values of a
 * format are a table made on the stack: one pass over it costs less than the branches it saves. */
#include <math.h>

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

struct format {
    unsigned shift;         /* mantissa bits that an f32 has more */
    uint32_t lowest;        /* bits of the smallest normal number as f32 */
    float steps, bias;      /* denormals in 1; 2^(difference of the biases) */
    uint32_t over;          /* code of what is too large */
    uint32_t nan;           /* code of NaN */
    uint32_t special;       /* the first code that is no number */
};
static const struct format formats[] = {
    {20, (127 - 6) << 23, 0x1p9f, 0x1p120f, 0x7f, 0x7f, 0x7f},
    {21, (127 - 14) << 23, 0x1p16f, 0x1p112f, 0x7c, 0x7e, 0x7c},
};

static const struct format *format_of(enum weft_dtype dtype) { return &formats[dtype == WEFT_F8_E4M3 ? 0 : 1]; }

static float value_of(const struct format *format, uint8_t code)
{
    uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    if (magnitude >= format->special)
        return float_from_bits(magnitude == format->over && format->over != format->nan ? sign | FLOAT_INF : FLOAT_NAN);
    return float_from_bits(float_bits(float_from_bits(magnitude << format->shift) * format->bias) | sign);
}

static uint8_t code_of(const struct format *format, float x)
{
    const uint32_t bits = float_bits(x), magnitude = bits & FLOAT_ABS, sign = bits >> 31 << 7;
    if (magnitude > FLOAT_INF) return (uint8_t)format->nan;
    const uint32_t rounded = (magnitude + ((1u << (format->shift - 1)) - 1u) + ((magnitude >> format->shift) & 1u)) >> format->shift;
    /* Adding 2^23 leaves the nearest whole number, ties to even, in the low bits. */
    const uint32_t tiny = float_bits(float_from_bits(magnitude < format->lowest ? magnitude : 0) * format->steps + 0x1p23f) & 0xffu;
    uint32_t code = magnitude < format->lowest ? tiny : rounded - (format->lowest >> format->shift) + (1u << (23 - format->shift));
    if (code >= format->special) code = format->over;
    return (uint8_t)(code == format->nan ? code : code | sign);
}

void weft_cast_fp8_f32(enum weft_dtype dtype, float *out, const uint8_t *in, size_t count)
{
    float values[256];
    const struct format *format = format_of(dtype);
    if (count < 256) {
        for (size_t i = 0; i < count; i++) out[i] = value_of(format, in[i]);
        return;
    }
    for (unsigned code = 0; code < 256; code++) values[code] = value_of(format, (uint8_t)code);
    for (size_t i = 0; i < count; i++) out[i] = values[in[i]];
}

void weft_cast_f32_fp8(enum weft_dtype dtype, uint8_t *out, const float *in, size_t count)
{
    const struct format *format = format_of(dtype);
    for (size_t i = 0; i < count; i++) out[i] = code_of(format, in[i]);
}
