/* fp8_element.h - one 8-bit float as an element, to f32 and back without a block's scale: see cast_fp8.c,
 * shared by C and CUDA. Private to the module. */
#ifndef WEFT_KERNELS_TEMPLATES_FP8_ELEMENT_H
#define WEFT_KERNELS_TEMPLATES_FP8_ELEMENT_H

#include "kernels/float_bits.h"
#include "kernels/parameters.h"

struct fp8_format {
    unsigned shift;    /* mantissa bits that an f32 has more */
    uint32_t lowest;   /* bits of the smallest normal number as f32 */
    float steps, bias; /* denormals in 1; 2^(difference of the biases) */
    uint32_t over;     /* code of what is too large */
    uint32_t nan;      /* code of NaN */
    uint32_t special;  /* the first code that is no number */
};

KERNEL_INLINE struct fp8_format fp8_format(enum weft_fp8 format)
{
    const struct fp8_format e4m3 = {20, (127 - 6) << 23, 0x1p9f, 0x1p120f, 0x7f, 0x7f, 0x7f};
    const struct fp8_format e5m2 = {21, (127 - 14) << 23, 0x1p16f, 0x1p112f, 0x7c, 0x7e, 0x7c};
    return format == WEFT_E4M3 ? e4m3 : e5m2;
}

KERNEL_INLINE float fp8_value(const struct fp8_format *format, uint8_t code)
{
    uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    if (magnitude >= format->special)
        return float_from_bits(magnitude == format->over && format->over != format->nan ? sign | FLOAT_INF
                                                                                        : FLOAT_NAN);
    return float_from_bits(float_bits(float_from_bits(magnitude << format->shift) * format->bias) | sign);
}

KERNEL_INLINE uint8_t fp8_code(const struct fp8_format *format, float x)
{
    const uint32_t bits = float_bits(x), magnitude = bits & FLOAT_ABS, sign = bits >> 31 << 7;
    if (magnitude > FLOAT_INF) return (uint8_t)format->nan;
    const uint32_t rounded =
        (magnitude + ((1u << (format->shift - 1)) - 1u) + ((magnitude >> format->shift) & 1u)) >>
        format->shift;
    /* Adding 2^23 leaves the nearest whole number, ties to even, in the low bits. */
    const uint32_t tiny =
        float_bits(float_from_bits(magnitude < format->lowest ? magnitude : 0) * format->steps + 0x1p23f) &
        0xffu;
    uint32_t code = magnitude < format->lowest
                        ? tiny
                        : rounded - (format->lowest >> format->shift) + (1u << (23 - format->shift));
    if (code >= format->special) code = format->over;
    return (uint8_t)(code == format->nan ? code : code | sign);
}

#endif
