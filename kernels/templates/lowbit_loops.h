/* lowbit_loops.h - 8-bit floats (fp8_loops.h) and signs, as loops every compiler turns into vectors. The
 * scalar and the AVX2 variant compile this text, each with its own instruction set, defining NARROW(name)
 * first. Private to the module.
 *
 * A sign block keeps the mean magnitude; its sum is taken in f64 in the 16-lane order of kernels.h. */
#include <math.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels/templates/fp8_loops.h"

void NARROW(dequantise_fp8_f32)(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count,
                                enum weft_fp8 format)
{
    const struct lowbit_format e4m3 = lowbit_format(WEFT_E4M3), e5m2 = lowbit_format(WEFT_E5M2);
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const float scale = block_scale(*exponents++);
        const size_t length = block_length(at, count);
        if (format == WEFT_E4M3)
            for (size_t i = 0; i < length; i++)
                out[at + i] = lowbit_value(codes[at + i], e4m3.shift, e4m3.bias) * scale;
        else
            for (size_t i = 0; i < length; i++)
                out[at + i] = lowbit_value(codes[at + i], e5m2.shift, e5m2.bias) * scale;
    }
}

/* ---- signs: eight elements, one byte; compilers do not find the instruction for it by themselves ---- */

static inline uint8_t lowbit_signs8(const float *x)
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

static inline void lowbit_spread8(float *out, uint8_t byte, uint32_t scale)
{
#ifdef __AVX2__
    const __m256i places = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256i signs = _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(byte), places),
                                           _mm256_set1_epi32((int)FLOAT_SIGN));
    _mm256_storeu_ps(out, _mm256_castsi256_ps(_mm256_or_si256(signs, _mm256_set1_epi32((int)scale))));
#else
    for (uint32_t j = 0; j < 8; j++)
        out[j] = float_from_bits(scale | (uint32_t)(byte >> j) << 31);
#endif
}

static inline float lowbit_mean_magnitude(const float *x, size_t length)
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
        const float scale = lowbit_mean_magnitude(x + at, length);
        uint8_t *bits = bits_out + at / 8;
        *scales_out++ = scale;
        size_t whole = 0;
        for (; whole + 8 <= length; whole += 8)
            bits[whole / 8] = lowbit_signs8(x + at + whole);
        if (whole < length) {
            float last[8] = {0};
            memcpy(last, x + at + whole, (length - whole) * sizeof *last);
            bits[whole / 8] = lowbit_signs8(last);
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
            lowbit_spread8(out + at + i, from[i / 8], scale);
        for (; i < length; i++)
            out[at + i] = float_from_bits(scale | (uint32_t)(from[i / 8] >> i % 8) << 31);
    }
}
