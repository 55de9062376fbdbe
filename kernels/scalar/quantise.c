/* quantise.c - the specification of block quantisation: power-of-two scales, integer codes, stochastic
 * rounding.
 *
 * A block is 256 elements (the last one of a tensor may be shorter). Its scale is 2^(E - 127), E one byte;
 * a code is x / scale rounded to an integer of at most `limit` (127 or 7). Dividing by a power of two is
 * exact, so the only error is the rounding itself, and sums of codes under one shared exponent are exact. */
#include "kernels/blocks.h"
#include "kernels/scalar/scalar.h"

uint8_t weft_block_exponent(uint32_t max_bits, unsigned limit)
{
    return block_exponent(max_bits, limit);
}

uint8_t weft_fp8_exponent(uint32_t max_bits, enum weft_fp8 format)
{
    return fp8_exponent(max_bits, format);
}

uint32_t weft_scalar_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                          size_t count, unsigned limit, uint8_t *exponents_out)
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

void weft_scalar_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                              unsigned limit, const struct weft_noise *noise)
{
    const float most = (float)limit;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const uint64_t block = at / WEFT_BLOCK;
        const float scale = block_scale(exponents[block]), inverse = block_inverse(exponents[block]);
        for (size_t i = 0; i < block_length(at, count); i++) {
            const float value = x[at + i];
            const float code =
                noise ? noisy_code(value * inverse, block_noise(noise, noise->first_block + block, i), most)
                      : nearest_code(value * inverse, most);
            codes_out[at + i] = (int8_t)code;
            x[at + i] = canonical(value - code * scale);
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

void weft_scalar_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor,
                                    size_t count)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const float scale = block_scale(*exponents++);
        for (size_t i = 0; i < block_length(at, count); i++)
            out[at + i] = canonical((float)sums[at + i] * scale * factor);
    }
}

void weft_scalar_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor,
                                    size_t count)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const float scale = block_scale(*exponents++);
        for (size_t i = 0; i < block_length(at, count); i++)
            out[at + i] = canonical((float)sums[at + i] * scale * factor);
    }
}
