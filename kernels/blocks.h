/* blocks.h - blocks of WEFT_BLOCK elements under one exponent byte E, scale 2^(E - 127). Private to the
 * module. */
#ifndef WEFT_KERNELS_BLOCKS_H
#define WEFT_KERNELS_BLOCKS_H

#include <math.h>
#include <stddef.h>

#include "kernels/float_bits.h"
#include "kernels/parameters.h"
#include "kernels/philox.h"

/* The last block of a tensor may be shorter. */
KERNEL_INLINE size_t block_length(size_t at, size_t count)
{
    return count - at < WEFT_BLOCK ? count - at : WEFT_BLOCK;
}

KERNEL_INLINE float block_scale(uint8_t exponent)
{
    return float_from_bits(exponent == 0 ? 0x00400000u : (uint32_t)exponent << 23);
}

/* 2^(127 - E); E is at most 254. */
KERNEL_INLINE float block_inverse(uint8_t exponent)
{
    return float_from_bits(exponent == 254 ? 0x00400000u : (uint32_t)(254 - exponent) << 23);
}

/* The smallest E whose scale brings max to at most limit: limit = 2^n - 1 >= max / scale. max = m * 2^e with
 * m in [1, 2), so max / 2^(e-n+1) lies in [2^(n-1), 2^n): one more when that is above the limit. */
KERNEL_INLINE uint8_t block_exponent(uint32_t max_bits, unsigned limit)
{
    const int exponent = (int)(max_bits >> 23);
    int n = 0;
    if (max_bits == 0) return 0;
    while ((1u << n) <= limit) n++;
    const float mantissa = float_from_bits((max_bits & 0x7fffffu) | 0x3f800000u) * (float)(1u << (n - 1));
    const int e = (exponent == 0 ? 1 : exponent) - n + 1 + (exponent != 0 && mantissa > (float)limit);
    return (uint8_t)(e < 1 ? 1 : e);
}

/* The largest numbers are 1.75 * 2^8 and 1.75 * 2^15. */
KERNEL_INLINE uint8_t fp8_exponent(uint32_t max_bits, enum weft_fp8 format)
{
    const int exponent = (int)(max_bits >> 23), top = format == WEFT_E4M3 ? 8 : 15;
    if (max_bits == 0) return 0;
    const int e =
        (exponent == 0 ? 1 : exponent) - top + (exponent != 0 && (max_bits & 0x7fffffu) > 0x600000u);
    return (uint8_t)(e < 1 ? 1 : e);
}

/* Which of the four words, and which byte of it, belongs to element i of a block; the counter is i % 16. */
KERNEL_INLINE uint32_t block_noise(const struct weft_noise *noise, uint64_t block, size_t i)
{
    const uint64_t number = block * 16 + i % 16;
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)noise->step,
                                 (uint32_t)(noise->step >> 32)};
    uint32_t words[4];
    philox(counter, noise->key, words);
    return words[i / 64] >> (i / 16 % 4 * 8) & 0xffu;
}

/* A code is x / scale (in_units) as a whole number within +-most: to nearest even, or down after adding what
 * was drawn. */
KERNEL_INLINE float nearest_code(float in_units, float most)
{
    const float code = rintf(in_units);
    return code > most ? most : code < -most ? -most : code;
}

KERNEL_INLINE float noisy_code(float in_units, uint32_t byte, float most)
{
    const float code = floorf(in_units + ((float)byte + 0.5f) * 0x1p-8f);
    return code > most ? most : code < -most ? -most : code;
}

#endif
