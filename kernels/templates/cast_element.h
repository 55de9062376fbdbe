/* cast_element.h - the specification of the conversions between f32 and the two 16-bit floats.
 *
 *   f16   1 sign, 5 exponent (bias 15), 10 mantissa bits: IEEE binary16
 *   bf16  the upper 16 bits of an f32
 *
 * Narrowing rounds to nearest, ties to even, straight from the 24-bit significand (no double rounding),
 * keeps denormals, and overflows to Inf. NaN becomes quiet and keeps its sign and as much of its payload
 * as fits: what VCVTPS2PH and VCVTPH2PS do, so that the vector variants are the same bits. Private to the
 * module. */
#ifndef WEFT_KERNELS_TEMPLATES_CAST_ELEMENT_H
#define WEFT_KERNELS_TEMPLATES_CAST_ELEMENT_H

#include "kernels/float_bits.h"

KERNEL_INLINE uint16_t f16_from_f32(float value)
{
    const uint32_t bits = float_bits(value);
    const uint16_t sign = (uint16_t)((bits & FLOAT_SIGN) >> 16);
    const uint32_t magnitude = bits & FLOAT_ABS;

    if (magnitude > FLOAT_INF) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to Inf */
    if (magnitude >= 0x38800000u) {                                  /* 2^-14: normal as f16 */
        uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
    }
    if (magnitude < 0x33000000u) return sign; /* below 2^-25: zero, also at the tie's lower side */

    /* Denormal as f16: in units of 2^-24, significand >> shift, the lost bits decide the rounding. */
    const uint32_t shift = 126u - (magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = significand >> shift;
    const uint32_t lost = significand & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    const uint32_t up = lost > half || (lost == half && (kept & 1u));
    return (uint16_t)(sign | (kept + up));
}

KERNEL_INLINE float f32_from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;

    if (exponent == 0x1f)
        return float_from_bits(sign | FLOAT_INF | (mantissa << 13) | (mantissa ? FLOAT_QUIET : 0));
    if (exponent != 0) return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    /* Zero or denormal: mantissa * 2^-24 is exact. */
    return float_from_bits(sign | float_bits((float)mantissa * 0x1p-24f));
}

KERNEL_INLINE uint16_t bf16_from_f32(float value)
{
    const uint32_t bits = float_bits(value);
    if ((bits & FLOAT_ABS) > FLOAT_INF) return (uint16_t)((bits | FLOAT_QUIET) >> 16);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

KERNEL_INLINE float f32_from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    return float_from_bits((bits & FLOAT_ABS) > FLOAT_INF ? bits | FLOAT_QUIET : bits);
}

#endif
