/* narrow_loops.h - the specification of the 8-bit floats and of signs, as loops every compiler turns into vectors. Each
 * variant compiles this text with its own instruction set, defining NARROW(name) first. Private to the kernels room.
 *
 *   e4m3   1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448; no Inf, S.1111.111 is NaN
 *   e5m2   1 sign, 5 exponent (bias 15), 2 mantissa bits; largest 57344; Inf and NaN as IEEE
 *
 * (OCP 8-bit Floating Point Specification 1.0, section 5.) Encoding rounds to nearest even, keeps denormals, never makes an
 * Inf or a NaN: the scale of a block, a power of two, brings its largest magnitude to at most the largest number. Decoding
 * puts exponent and mantissa where an f32 has them and multiplies by the difference of the biases: exact, denormals too.
 *
 * A sign block keeps the mean magnitude; its sum is taken in f64 in the 16-lane order of kernels.h. */
#include <math.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels/blocks.h"

/* `shift`: mantissa bits that an f32 has more; `lowest`: bits of the smallest normal number as f32; `steps`: denormals in 1;
 * `top`: code of the largest number. Both ways are worked out and one chosen, so that no lane branches. */
static inline uint8_t narrow_code(float x, unsigned shift, uint32_t lowest, float steps, uint32_t top)
{
    const uint32_t bits = float_bits(x), magnitude = bits & FLOAT_ABS;
    const uint32_t rounded = (magnitude + ((1u << (shift - 1)) - 1u) + ((magnitude >> shift) & 1u)) >> shift;
    /* Adding 2^23 leaves the nearest whole number, ties to even, in the low bits. */
    const uint32_t tiny = float_bits(float_from_bits(magnitude) * steps + 0x1p23f) & 0xffu;
    uint32_t code = magnitude < lowest ? tiny : rounded - (lowest >> shift) + (1u << (23 - shift));
    code = code > top ? top : code;
    return (uint8_t)(code | (bits >> 31) << 7);
}

static inline float narrow_value(uint8_t code, unsigned shift, float bias)
{
    const float magnitude = float_from_bits((uint32_t)(code & 0x7fu) << shift) * bias;
    return float_from_bits(float_bits(magnitude) | (uint32_t)(code & 0x80u) << 24);
}

struct narrow_format {
    unsigned shift;
    uint32_t lowest, top;
    float steps, bias;
};
static const struct narrow_format narrow_e4m3 = {20, (127 - 6) << 23, 0x7e, 0x1p9f, 0x1p120f};
static const struct narrow_format narrow_e5m2 = {21, (127 - 14) << 23, 0x7b, 0x1p16f, 0x1p112f};

static inline __attribute__((always_inline)) void narrow_block(uint8_t *codes_out, float *x, uint8_t exponent, size_t length,
                                                               struct narrow_format format)
{
    const float scale = block_scale(exponent), inverse = block_inverse(exponent);
    for (size_t i = 0; i < length; i++) {
        const uint8_t code = narrow_code(x[i] * inverse, format.shift, format.lowest, format.steps, format.top);
        codes_out[i] = code;
        x[i] = x[i] - narrow_value(code, format.shift, format.bias) * scale;
    }
}

void NARROW(quantise_fp8_f32)(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count, enum weft_fp8 format)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        if (format == WEFT_E4M3) narrow_block(codes_out + at, x + at, *exponents++, block_length(at, count), narrow_e4m3);
        else narrow_block(codes_out + at, x + at, *exponents++, block_length(at, count), narrow_e5m2);
    }
}

void NARROW(dequantise_fp8_f32)(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count, enum weft_fp8 format)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const float scale = block_scale(*exponents++);
        const size_t length = block_length(at, count);
        if (format == WEFT_E4M3)
            for (size_t i = 0; i < length; i++)
                out[at + i] = narrow_value(codes[at + i], narrow_e4m3.shift, narrow_e4m3.bias) * scale;
        else
            for (size_t i = 0; i < length; i++)
                out[at + i] = narrow_value(codes[at + i], narrow_e5m2.shift, narrow_e5m2.bias) * scale;
    }
}

/* ---- signs: eight elements, one byte; compilers do not find the instruction for it by themselves ---- */

static inline uint8_t narrow_signs8(const float *x)
{
#ifdef __AVX2__
    return (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_setzero_ps(), _CMP_LT_OQ));
#else
    unsigned byte = 0;
    for (size_t j = 0; j < 8; j++)
        byte |= (unsigned)(x[j] < 0.0f) << j;
    return (uint8_t)byte;
#endif
}

static inline void narrow_spread8(float *out, uint8_t byte, uint32_t scale)
{
#ifdef __AVX2__
    const __m256i places = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256i signs = _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(byte), places), _mm256_set1_epi32((int)FLOAT_SIGN));
    _mm256_storeu_ps(out, _mm256_castsi256_ps(_mm256_or_si256(signs, _mm256_set1_epi32((int)scale))));
#else
    for (uint32_t j = 0; j < 8; j++)
        out[j] = float_from_bits(scale | (uint32_t)(byte >> j) << 31);
#endif
}

static inline float narrow_mean_magnitude(const float *x, size_t length)
{
    double lanes[16] = {0};
    size_t i = 0;
    for (; i + 16 <= length; i += 16)
        for (size_t lane = 0; lane < 16; lane++)
            lanes[lane] += (double)fabsf(x[i + lane]);
    for (size_t lane = 0; i < length; i++, lane++)
        lanes[lane] += (double)fabsf(x[i]);
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return (float)(lanes[0] / (double)length);
}

void NARROW(quantise_sign_f32)(uint8_t *bits_out, float *scales_out, float *x, size_t count)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const size_t length = block_length(at, count);
        const float scale = narrow_mean_magnitude(x + at, length);
        uint8_t *bits = bits_out + at / 8;
        *scales_out++ = scale;
        size_t whole = 0;
        for (; whole + 8 <= length; whole += 8)
            bits[whole / 8] = narrow_signs8(x + at + whole);
        if (whole < length) {
            float last[8] = {0};
            memcpy(last, x + at + whole, (length - whole) * sizeof *last);
            bits[whole / 8] = narrow_signs8(last);
        }
        for (size_t i = 0; i < length; i++)
            x[at + i] -= x[at + i] < 0.0f ? -scale : scale;
    }
}

void NARROW(dequantise_sign_f32)(float *out, const uint8_t *bits, const float *scales, size_t count)
{
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const size_t length = block_length(at, count);
        const uint32_t scale = float_bits(*scales++);
        const uint8_t *from = bits + at / 8;
        size_t i = 0;
        for (; i + 8 <= length; i += 8)
            narrow_spread8(out + at + i, from[i / 8], scale);
        for (; i < length; i++)
            out[at + i] = float_from_bits(scale | (uint32_t)(from[i / 8] >> i % 8) << 31);
    }
}
