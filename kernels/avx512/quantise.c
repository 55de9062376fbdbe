/* quantise.c - block quantisation with AVX-512: a block of 256 is sixteen vectors, and sixteen Philox
 * counters at once give exactly the 256 bytes that a block draws: lane = counter, then byte by byte of
 * word by word. */
#include "kernels/avx512/avx512.h"
#include "kernels/blocks.h"
#include "kernels/philox.h"
#include "kernels/scalar/scalar.h"

enum { WIDTH = 16 };

uint32_t weft_avx512_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                          size_t count, unsigned limit, uint8_t *exponents_out)
{
    uint32_t max_bits = 0;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const size_t length = block_length(at, count);
        const uint32_t bits = weft_avx512_scale_add_f32(out + at, a + at, factor, b + at, length);
        *exponents_out++ = bits < FLOAT_INF ? weft_block_exponent(bits, limit) : 255;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}

/* High halves of the sixteen products, and the low ones. */
static inline __m512i multiply(__m512i x, __m512i factor, __m512i *low)
{
    const __m512i even = _mm512_mul_epu32(x, factor),
                  odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), factor);
    *low = _mm512_mullo_epi32(x, factor);
    return _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
}

/* philox() of philox.h for counters number .. number + 15, which do not cross 2^32. */
static inline void philox16(uint64_t number, const struct weft_noise *noise, __m512i words[4])
{
    const __m512i m0 = _mm512_set1_epi32((int)PHILOX_M0), m1 = _mm512_set1_epi32((int)PHILOX_M1);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32((int)(uint32_t)number), lanes);
    __m512i c1 = _mm512_set1_epi32((int)(uint32_t)(number >> 32));
    __m512i c2 = _mm512_set1_epi32((int)(uint32_t)noise->step),
            c3 = _mm512_set1_epi32((int)(uint32_t)(noise->step >> 32));
    uint32_t k0 = noise->key[0], k1 = noise->key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        __m512i low0, low1;
        const __m512i high0 = multiply(c0, m0, &low0), high1 = multiply(c2, m1, &low1);
        c0 = _mm512_ternarylogic_epi32(high1, c1, _mm512_set1_epi32((int)k0), 0x96);
        c1 = low1;
        c2 = _mm512_ternarylogic_epi32(high0, c3, _mm512_set1_epi32((int)k1), 0x96);
        c3 = low0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Sixteen elements: codes out, residual in place. `bias` is what is added before rounding down; unused for
 * nearest. */
static inline __attribute__((always_inline)) void quantise16(int8_t *codes_out, float *x, __m512 scale,
                                                             __m512 inverse, __m512 most, __m512 bias,
                                                             bool nearest)
{
    prefetch_ahead(x);
    const __m512 value = _mm512_loadu_ps(x), in_units = _mm512_mul_ps(value, inverse);
    __m512 code = nearest ? _mm512_roundscale_ps(in_units, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                          : _mm512_roundscale_ps(_mm512_add_ps(in_units, bias),
                                                 _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    code = _mm512_max_ps(_mm512_min_ps(code, most), _mm512_sub_ps(_mm512_setzero_ps(), most));
    _mm_storeu_si128((void *)codes_out, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(code)));
    _mm512_storeu_ps(x, canonical16(_mm512_sub_ps(value, _mm512_mul_ps(code, scale))));
}

static inline __m512 noise16(__m512i word, int byte)
{
    const __m512i bits =
        _mm512_and_si512(_mm512_srl_epi32(word, _mm_cvtsi32_si128(8 * byte)), _mm512_set1_epi32(0xff));
    return _mm512_mul_ps(_mm512_add_ps(_mm512_cvtepi32_ps(bits), _mm512_set1_ps(0.5f)),
                         _mm512_set1_ps(0x1p-8f));
}

/* Whole blocks here; what is left of a short last one, and of NaN (which no caller sends), by the
 * specification. */
void weft_avx512_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                              unsigned limit, const struct weft_noise *noise)
{
    const __m512 most = _mm512_set1_ps((float)limit);
    size_t at = 0;
    for (; at + WEFT_BLOCK <= count; at += WEFT_BLOCK) {
        const uint8_t e = exponents[at / WEFT_BLOCK];
        const __m512 scale = _mm512_set1_ps(block_scale(e));
        const __m512 inverse = _mm512_set1_ps(block_inverse(e));
        __m512i words[4];
        if (!noise) {
            for (size_t i = 0; i < WEFT_BLOCK; i += WIDTH)
                quantise16(codes_out + at + i, x + at + i, scale, inverse, most, most, true);
            continue;
        }
        philox16((noise->first_block + at / WEFT_BLOCK) * 16, noise, words);
        for (size_t i = 0; i < WEFT_BLOCK; i += WIDTH)
            quantise16(codes_out + at + i, x + at + i, scale, inverse, most,
                       noise16(words[i / 64], (int)(i / 16 % 4)), false);
    }
    if (at == count) return;
    struct weft_noise rest = noise ? *noise : (struct weft_noise){0};
    rest.first_block += at / WEFT_BLOCK;
    weft_scalar_quantise_f32(codes_out + at, x + at, exponents + at / WEFT_BLOCK, count - at, limit,
                             noise ? &rest : NULL);
}

void weft_avx512_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count)
{
    size_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)(codes + i)));
        _mm512_storeu_si512((void *)(sums + i),
                            _mm512_add_epi16(_mm512_loadu_si512((const void *)(sums + i)), wide));
    }
    weft_scalar_add_i8_i16(sums + i, codes + i, count - i);
}

void weft_avx512_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count)
{
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(codes + i)));
        _mm512_storeu_si512((void *)(sums + i),
                            _mm512_add_epi32(_mm512_loadu_si512((const void *)(sums + i)), wide));
    }
    weft_scalar_add_i8_i32(sums + i, codes + i, count - i);
}

static inline __attribute__((always_inline)) __m512 dequantise16(const void *sums, bool wide, __m512 scale,
                                                                 __m512 factors, __mmask16 lanes)
{
    const __m512i whole = wide ? _mm512_maskz_loadu_epi32(lanes, sums)
                               : _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(lanes, sums));
    return canonical16(_mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale), factors));
}

static inline __attribute__((always_inline)) void dequantise(float *out, const void *sums, bool wide,
                                                             const uint8_t *exponents, float factor,
                                                             size_t count)
{
    const __m512 factors = _mm512_set1_ps(factor);
    const uint8_t *from = sums;
    const size_t width = wide ? sizeof(int32_t) : sizeof(int16_t);
    const bool stream = stream_from(out, sizeof *out, count) == 0;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const uint8_t e = *exponents++;
        const __m512 scale = _mm512_set1_ps(block_scale(e));
        const size_t end = count - at < WEFT_BLOCK ? count : at + WEFT_BLOCK;
        size_t i = at;
        for (; i + WIDTH <= end; i += WIDTH) {
            const __m512 value = dequantise16(from + i * width, wide, scale, factors, ALL16);
            if (stream) _mm512_stream_ps(out + i, value);
            else _mm512_storeu_ps(out + i, value);
        }
        if (i < end) {
            const __mmask16 lanes = first16(end - i);
            _mm512_mask_storeu_ps(out + i, lanes,
                                  dequantise16(from + i * width, wide, scale, factors, lanes));
        }
    }
    if (stream) _mm_sfence();
}

void weft_avx512_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor,
                                    size_t count)
{
    dequantise(out, sums, false, exponents, factor, count);
}

void weft_avx512_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor,
                                    size_t count)
{
    dequantise(out, sums, true, exponents, factor, count);
}
