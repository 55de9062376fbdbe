/* fp8_loops.h - blocks to 8-bit floats (lowbit_element.h) as a loop every compiler turns into vectors.
 * Each variant compiles this text with its own instruction set, defining NARROW(name) first. Private to
 * the module. */
#include "kernels/blocks.h"
#include "kernels/kernels.h"
#include "kernels/templates/lowbit_element.h"

/* lowbit_value(lowbit_code(x)) without a detour over f32 denormals, which some processors take a hundred
 * cycles for: a block with one large element consists of them. */
static inline __attribute__((always_inline)) float lowbit_rounded(float x, struct lowbit_format format)
{
    const uint32_t bits = float_bits(x), magnitude = bits & FLOAT_ABS;
    const uint32_t largest = format.top + (format.lowest >> format.shift) - (1u << (23 - format.shift));
    uint32_t rounded =
        (magnitude + ((1u << (format.shift - 1)) - 1u) + ((magnitude >> format.shift) & 1u)) >> format.shift;
    rounded = (rounded > largest ? largest : rounded) << format.shift;
    const float tiny =
        ((float_from_bits(magnitude) * format.steps + 0x1p23f) - 0x1p23f) * (1.0f / format.steps);
    return float_from_bits((magnitude < format.lowest ? float_bits(tiny) : rounded) | (bits & FLOAT_SIGN));
}

static inline __attribute__((always_inline)) void lowbit_block(uint8_t *codes_out, float *x, uint8_t exponent,
                                                               size_t length, struct lowbit_format format)
{
    const float scale = block_scale(exponent), inverse = block_inverse(exponent);
    for (size_t i = 0; i < length; i++) {
        const float in_units = x[i] * inverse;
        codes_out[i] = lowbit_code(in_units, format.shift, format.lowest, format.steps, format.top);
        x[i] = x[i] - lowbit_rounded(in_units, format) * scale;
    }
}

void NARROW(quantise_fp8_f32)(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                              enum weft_fp8 format)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        if (format == WEFT_E4M3)
            lowbit_block(codes_out + at, x + at, *exponents++, block_length(at, count),
                         lowbit_format(WEFT_E4M3));
        else
            lowbit_block(codes_out + at, x + at, *exponents++, block_length(at, count),
                         lowbit_format(WEFT_E5M2));
    }
}
