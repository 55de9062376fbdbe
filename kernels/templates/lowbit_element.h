/* lowbit_element.h - the specification of the 8-bit floats, one element at a time. Private to the module.
 *
 *   e4m3   1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448; no Inf, S.1111.111 is NaN
 *   e5m2   1 sign, 5 exponent (bias 15), 2 mantissa bits; largest 57344; Inf and NaN as IEEE
 *
 * (OCP 8-bit Floating Point Specification 1.0, section 5.) Encoding rounds to nearest even, keeps denormals,
 * never makes an Inf or a NaN: the scale of a block, a power of two, brings its largest magnitude to at most
 * the largest number. Decoding puts exponent and mantissa where an f32 has them and multiplies by the
 * difference of the biases: exact, denormals too. */
#ifndef WEFT_KERNELS_TEMPLATES_LOWBIT_ELEMENT_H
#define WEFT_KERNELS_TEMPLATES_LOWBIT_ELEMENT_H

#include "kernels/float_bits.h"
#include "kernels/parameters.h"

/* `shift`: mantissa bits that an f32 has more; `lowest`: bits of the smallest normal number as f32; `steps`:
 * denormals in 1; `top`: code of the largest number. Both ways are worked out and one chosen, so that no
 * lane branches. */
KERNEL_INLINE uint8_t lowbit_code(float x, unsigned shift, uint32_t lowest, float steps, uint32_t top)
{
    const uint32_t bits = float_bits(x), magnitude = bits & FLOAT_ABS;
    const uint32_t rounded = (magnitude + ((1u << (shift - 1)) - 1u) + ((magnitude >> shift) & 1u)) >> shift;
    /* Adding 2^23 leaves the nearest whole number, ties to even, in the low bits. */
    const uint32_t tiny = float_bits(float_from_bits(magnitude) * steps + 0x1p23f) & 0xffu;
    uint32_t code = magnitude < lowest ? tiny : rounded - (lowest >> shift) + (1u << (23 - shift));
    code = code > top ? top : code;
    return (uint8_t)(code | (bits >> 31) << 7);
}

KERNEL_INLINE float lowbit_value(uint8_t code, unsigned shift, float bias)
{
    const float magnitude = float_from_bits((uint32_t)(code & 0x7fu) << shift) * bias;
    return float_from_bits(float_bits(magnitude) | (uint32_t)(code & 0x80u) << 24);
}

struct lowbit_format {
    unsigned shift;
    uint32_t lowest, top;
    float steps, bias;
};

KERNEL_INLINE struct lowbit_format lowbit_format(enum weft_fp8 format)
{
    const struct lowbit_format e4m3 = {20, (127 - 6) << 23, 0x7e, 0x1p9f, 0x1p120f};
    const struct lowbit_format e5m2 = {21, (127 - 14) << 23, 0x7b, 0x1p16f, 0x1p112f};
    return format == WEFT_E4M3 ? e4m3 : e5m2;
}

#endif
