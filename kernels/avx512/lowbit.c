/* lowbit.c - 8-bit floats and signs with AVX-512. Blocks become 8-bit floats by fp8_loops.h; the other
 * three have shapes no compiler finds: a block of signs is sixteen vectors, which stay in registers
 * between the mean and the residual; an 8-bit float is a number whose lower sixteen bits as f32 are zero,
 * so that its magnitude is looked up among 128 words in four registers; and what leaves the caches anyway
 * is written past them (stream_from). */
#include "kernels/avx512/avx512.h"

#define NARROW(name) weft_avx512_##name
#include "kernels/templates/fp8_loops.h"

enum { WIDTH = 16, VECTORS = WEFT_BLOCK / WIDTH, CODES = 32 };

/* ---- 8-bit floats back to f32 ---- */

/* The upper halves of the f32 of the magnitudes 0 .. 127. */
struct values {
    __m512i words[4];
};

static struct values values_of(enum weft_fp8 format)
{
    const struct lowbit_format f = lowbit_format(format);
    uint16_t words[128];
    struct values values;
    for (unsigned code = 0; code < 128; code++)
        words[code] = (uint16_t)(float_bits(lowbit_value((uint8_t)code, f.shift, f.bias)) >> 16);
    for (size_t i = 0; i < 4; i++)
        values.words[i] = _mm512_loadu_si512((const void *)(words + i * CODES));
    return values;
}

/* The upper halves of the f32 of 32 codes. The lookups read six bits of an index; bit 6 chooses between
 * them. */
static inline __m512i halves32(const struct values *values, __m256i codes)
{
    const __m512i index = _mm512_cvtepu8_epi16(codes);
    const __m512i low = _mm512_permutex2var_epi16(values->words[0], index, values->words[1]);
    const __m512i high = _mm512_permutex2var_epi16(values->words[2], index, values->words[3]);
    const __m512i magnitude =
        _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x40)), high);
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(index, 8), _mm512_set1_epi16((short)0x8000));
    return _mm512_or_si512(magnitude, sign);
}

static inline __m512 scaled16(__m256i halves, __m512 scale)
{
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16)), scale);
}

static inline __attribute__((always_inline)) void fp8_block(float *out, const uint8_t *codes, size_t length,
                                                            __m512 scale, const struct values *values,
                                                            bool stream)
{
    size_t i = 0;
    for (; i + CODES <= length; i += CODES) {
        const __m512i halves = halves32(values, _mm256_loadu_si256((const void *)(codes + i)));
        const __m512 low = scaled16(_mm512_castsi512_si256(halves), scale);
        const __m512 high = scaled16(_mm512_extracti64x4_epi64(halves, 1), scale);
        if (stream) {
            _mm512_stream_ps(out + i, low);
            _mm512_stream_ps(out + i + WIDTH, high);
        } else {
            _mm512_storeu_ps(out + i, low);
            _mm512_storeu_ps(out + i + WIDTH, high);
        }
    }
    if (i == length) return;
    const size_t rest = length - i;
    const __m512i halves =
        halves32(values, _mm256_maskz_loadu_epi8((__mmask32)((1u << rest) - 1u), codes + i));
    _mm512_mask_storeu_ps(out + i, first16(rest), scaled16(_mm512_castsi512_si256(halves), scale));
    if (rest > WIDTH)
        _mm512_mask_storeu_ps(out + i + WIDTH, first16(rest - WIDTH),
                              scaled16(_mm512_extracti64x4_epi64(halves, 1), scale));
}

void weft_avx512_dequantise_fp8_f32(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count,
                                    enum weft_fp8 format)
{
    const struct values values = values_of(format);
    const bool stream = stream_from(out, sizeof *out, count) == 0;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const __m512 scale = _mm512_set1_ps(block_scale(*exponents++));
        if (stream) fp8_block(out + at, codes + at, block_length(at, count), scale, &values, true);
        else fp8_block(out + at, codes + at, block_length(at, count), scale, &values, false);
    }
    if (stream) _mm_sfence();
}

/* ---- signs ---- */

/* Lanes fold 8, 4, 2, 1 as everywhere. */
static inline float mean_of(__m512d low, __m512d high, size_t length)
{
    const __m512d eight = _mm512_add_pd(low, high);
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return (float)(_mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two))) / (double)length);
}

static inline void add_magnitudes(__m512d sums[2], __m512 x)
{
    const __m512 magnitude = _mm512_castsi512_ps(magnitude16(x));
    sums[0] = _mm512_add_pd(sums[0], _mm512_cvtps_pd(_mm512_castps512_ps256(magnitude)));
    sums[1] = _mm512_add_pd(sums[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(magnitude, 1)));
}

/* x - (+-scale), the sign that of the comparison: -0 counts as not below zero. */
static inline __m512 subtract_sign(__m512 x, __mmask16 below, __m512 scale)
{
    return _mm512_mask_add_ps(_mm512_sub_ps(x, scale), below, x, scale);
}

static inline void sign_block(uint8_t *bits_out, float *scale_out, float *x)
{
    __m512 values[VECTORS];
    __m512d sums[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (size_t v = 0; v < VECTORS; v++) {
        prefetch_ahead(x + v * WIDTH);
        values[v] = _mm512_loadu_ps(x + v * WIDTH);
        add_magnitudes(sums, values[v]);
    }
    *scale_out = mean_of(sums[0], sums[1], WEFT_BLOCK);
    const __m512 scale = _mm512_set1_ps(*scale_out);
    for (size_t v = 0; v < VECTORS; v++) {
        const __mmask16 below = _mm512_cmp_ps_mask(values[v], _mm512_setzero_ps(), _CMP_LT_OQ);
        memcpy(bits_out + v * 2, &below, sizeof below);
        _mm512_storeu_ps(x + v * WIDTH, subtract_sign(values[v], below, scale));
    }
}

/* The last, short block: lanes behind the end add +0 to sums that are not negative, which changes no bit. */
static void sign_rest(uint8_t *bits_out, float *scale_out, float *x, size_t length)
{
    __m512d sums[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (size_t i = 0; i < length; i += WIDTH)
        add_magnitudes(sums, _mm512_maskz_loadu_ps(first16(length - i), x + i));
    *scale_out = mean_of(sums[0], sums[1], length);
    const __m512 scale = _mm512_set1_ps(*scale_out);
    for (size_t i = 0; i < length; i += WIDTH) {
        const __mmask16 lanes = first16(length - i);
        const __m512 value = _mm512_maskz_loadu_ps(lanes, x + i);
        const __mmask16 below = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_LT_OQ);
        memcpy(bits_out + i / 8, &below, length - i > 8 ? 2 : 1);
        _mm512_mask_storeu_ps(x + i, lanes, subtract_sign(value, below, scale));
    }
}

void weft_avx512_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *x, size_t count)
{
    size_t at = 0;
    for (; at + WEFT_BLOCK <= count; at += WEFT_BLOCK)
        sign_block(bits_out + at / 8, scales_out++, x + at);
    if (at < count) sign_rest(bits_out + at / 8, scales_out, x + at, count - at);
}

static inline __m512 signed16(__mmask16 below, __m512i plus, __m512i minus)
{
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(plus, below, minus));
}

void weft_avx512_dequantise_sign_f32(float *out, const uint8_t *bits, const float *scales, size_t count)
{
    const bool stream = stream_from(out, sizeof *out, count) == 0;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const __m512i plus = _mm512_set1_epi32((int)float_bits(*scales++));
        const __m512i minus = _mm512_or_si512(plus, _mm512_set1_epi32((int)FLOAT_SIGN));
        const size_t end = at + block_length(at, count);
        for (size_t i = at; i < end; i += WIDTH) {
            __mmask16 below = 0;
            memcpy(&below, bits + i / 8, end - i > 8 ? 2 : 1);
            if (end - i < WIDTH)
                _mm512_mask_storeu_ps(out + i, first16(end - i), signed16(below, plus, minus));
            else if (stream) _mm512_stream_ps(out + i, signed16(below, plus, minus));
            else _mm512_storeu_ps(out + i, signed16(below, plus, minus));
        }
    }
    if (stream) _mm_sfence();
}
