/* quantise.c - the specification of block quantisation: power-of-two scales, integer codes, stochastic rounding.
 *
 * A block is 256 elements (the last one of a tensor may be shorter). Its scale is 2^(E - 127), E one byte; a code is
 * x / scale rounded to an integer of at most `limit` (127 or 7). Dividing by a power of two is exact, so the only error
 * is the rounding itself, and sums of codes under one shared exponent are exact. */
#include <math.h>

#include "kernels/blocks.h"
#include "kernels/philox.h"
#include "kernels/scalar/scalar.h"

/* The smallest E whose scale brings max to at most limit: limit = 2^n - 1 >= max / scale. max = m * 2^e with m in [1, 2),
 * so max / 2^(e-n+1) lies in [2^(n-1), 2^n): one more when that is above the limit. */
uint8_t weft_block_exponent(uint32_t max_bits, unsigned limit)
{
    const int exponent = (int)(max_bits >> 23);
    int n = 0;
    if (max_bits == 0) return 0;
    while ((1u << n) <= limit)
        n++;
    const float mantissa = float_from_bits((max_bits & 0x7fffffu) | 0x3f800000u) * (float)(1u << (n - 1));
    const int e = (exponent == 0 ? 1 : exponent) - n + 1 + (exponent != 0 && mantissa > (float)limit);
    return (uint8_t)(e < 1 ? 1 : e);
}

/* The largest numbers are 1.75 * 2^8 and 1.75 * 2^15. */
uint8_t weft_fp8_exponent(uint32_t max_bits, enum weft_fp8 format)
{
    const int exponent = (int)(max_bits >> 23), top = format == WEFT_E4M3 ? 8 : 15;
    if (max_bits == 0) return 0;
    const int e = (exponent == 0 ? 1 : exponent) - top + (exponent != 0 && (max_bits & 0x7fffffu) > 0x600000u);
    return (uint8_t)(e < 1 ? 1 : e);
}

uint32_t weft_scalar_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                          unsigned limit, uint8_t *exponents_out)
{
    uint32_t max_bits = 0;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const size_t length = block_length(at, count);
        const uint32_t bits = weft_scalar_scale_add_f32(out + at, a + at, factor, b + at, length);
        *exponents_out++ = bits < FLOAT_INF ? weft_block_exponent(bits, limit) : 255;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}

/* Which of the four words, and which byte of it, belongs to element i of a block; the counter is i % 16. */
static inline uint32_t block_noise(const struct weft_noise *noise, uint64_t block, size_t i)
{
    const uint64_t number = block * 16 + i % 16;
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)noise->step, (uint32_t)(noise->step >> 32)};
    uint32_t words[4];
    philox(counter, noise->key, words);
    return words[i / 64] >> (i / 16 % 4 * 8) & 0xffu;
}

void weft_scalar_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count, unsigned limit,
                              const struct weft_noise *noise)
{
    const float most = (float)limit;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const uint64_t block = at / WEFT_BLOCK;
        const float scale = block_scale(exponents[block]), inverse = block_inverse(exponents[block]);
        for (size_t i = 0; i < block_length(at, count); i++) {
            const float in_units = x[at + i] * inverse;
            float code = noise ? floorf(in_units + ((float)block_noise(noise, noise->first_block + block, i) + 0.5f) * 0x1p-8f)
                               : rintf(in_units);
            code = code > most ? most : code < -most ? -most : code;
            codes_out[at + i] = (int8_t)code;
            x[at + i] = canonical(x[at + i] - code * scale);
        }
    }
}

void weft_scalar_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sums[i] = (int16_t)(sums[i] + codes[i]);
}

void weft_scalar_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sums[i] += codes[i];
}

void weft_scalar_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor, size_t count)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const float scale = block_scale(*exponents++);
        for (size_t i = 0; i < block_length(at, count); i++)
            out[at + i] = canonical((float)sums[at + i] * scale * factor);
    }
}

void weft_scalar_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor, size_t count)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const float scale = block_scale(*exponents++);
        for (size_t i = 0; i < block_length(at, count); i++)
            out[at + i] = canonical((float)sums[at + i] * scale * factor);
    }
}
