/* quantise.c - block quantisation with AVX2: as avx512/quantise.c, in halves. Eight Philox counters at a
 * time; sixteen give the 256 bytes that a block draws: lane = counter, then byte by byte of word by word. */
#include "kernels/avx2/avx2.h"
#include "kernels/blocks.h"
#include "kernels/scalar/scalar.h"

enum { WIDTH = 8 };

uint32_t weft_avx2_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                        size_t count, unsigned limit, uint8_t *exponents_out)
{
    uint32_t max_bits = 0;
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const size_t length = block_length(at, count);
        const uint32_t bits = weft_avx2_scale_add_f32(out + at, a + at, factor, b + at, length);
        *exponents_out++ = bits < FLOAT_INF ? block_exponent(bits, limit) : 255;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    return max_bits;
}

/* High halves of the eight products, and the low ones. */
static inline __m256i multiply(__m256i x, __m256i factor, __m256i *low)
{
    const __m256i even = _mm256_mul_epu32(x, factor),
                  odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* philox() of philox.h for counters number .. number + 7, which do not cross 2^32. */
static inline void philox8(uint64_t number, const struct weft_noise *noise, __m256i words[4])
{
    const __m256i m0 = _mm256_set1_epi32((int)PHILOX_M0), m1 = _mm256_set1_epi32((int)PHILOX_M1);
    __m256i c0 =
        _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)number), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i c1 = _mm256_set1_epi32((int)(uint32_t)(number >> 32));
    __m256i c2 = _mm256_set1_epi32((int)(uint32_t)noise->step),
            c3 = _mm256_set1_epi32((int)(uint32_t)(noise->step >> 32));
    uint32_t k0 = noise->key[0], k1 = noise->key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        __m256i low0, low1;
        const __m256i high0 = multiply(c0, m0, &low0), high1 = multiply(c2, m1, &low1);
        c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32((int)k0));
        c1 = low1;
        c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32((int)k1));
        c3 = low0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

struct block_numbers {
    __m256 scale, inverse, most, least;
};

/* Eight elements: their codes as 32-bit integers, the residual in place. `bias` is what is added before
 * rounding down; unused for nearest. */
static inline __attribute__((always_inline)) __m256i quantise8(float *x, const struct block_numbers *block,
                                                               __m256 bias, bool nearest)
{
    const __m256 value = _mm256_loadu_ps(x), in_units = _mm256_mul_ps(value, block->inverse);
    __m256 code =
        nearest ? _mm256_round_ps(in_units, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                : _mm256_round_ps(_mm256_add_ps(in_units, bias), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    code = _mm256_max_ps(_mm256_min_ps(code, block->most), block->least);
    _mm256_storeu_ps(x, canonical8(_mm256_sub_ps(value, _mm256_mul_ps(code, block->scale))));
    return _mm256_cvttps_epi32(code);
}

static inline __m256 noise8(__m256i word, int byte)
{
    const __m256i bits =
        _mm256_and_si256(_mm256_srl_epi32(word, _mm_cvtsi32_si128(8 * byte)), _mm256_set1_epi32(0xff));
    return _mm256_mul_ps(_mm256_add_ps(_mm256_cvtepi32_ps(bits), _mm256_set1_ps(0.5f)),
                         _mm256_set1_ps(0x1p-8f));
}

/* Thirty-two codes, of at most 127: packing them keeps them, but interleaves halves, which the permutation
 * undoes. */
static inline void store_codes(int8_t *to, const __m256i codes[4])
{
    const __m256i low = _mm256_packs_epi32(codes[0], codes[1]), high = _mm256_packs_epi32(codes[2], codes[3]);
    const __m256i bytes = _mm256_packs_epi16(low, high), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((void *)to, _mm256_permutevar8x32_epi32(bytes, order));
}

/* Whole blocks here; what is left of a short last one by the specification. */
void weft_avx2_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                            unsigned limit, const struct weft_noise *noise)
{
    size_t at = 0;
    for (; at + WEFT_BLOCK <= count; at += WEFT_BLOCK) {
        const uint8_t e = exponents[at / WEFT_BLOCK];
        const struct block_numbers block = {_mm256_set1_ps(block_scale(e)), _mm256_set1_ps(block_inverse(e)),
                                            _mm256_set1_ps((float)limit), _mm256_set1_ps(-(float)limit)};
        __m256i first[4], second[4]; /* counters 0..7 and 8..15 of the block */
        if (noise) {
            philox8((noise->first_block + at / WEFT_BLOCK) * 16, noise, first);
            philox8((noise->first_block + at / WEFT_BLOCK) * 16 + WIDTH, noise, second);
        }
        for (size_t i = 0; i < WEFT_BLOCK; i += 4 * WIDTH) {
            __m256i codes[4];
            float *from = x + at + i;
            for (size_t v = 0; v < 4; v++) {
                const int byte = (int)((i + v * WIDTH) / 16 % 4);
                if (noise)
                    codes[v] = quantise8(from + v * WIDTH, &block,
                                         noise8(v % 2 == 0 ? first[i / 64] : second[i / 64], byte), false);
                else codes[v] = quantise8(from + v * WIDTH, &block, block.most, true);
            }
            store_codes(codes_out + at + i, codes);
        }
    }
    if (at == count) return;
    struct weft_noise rest = noise ? *noise : (struct weft_noise){0};
    rest.first_block += at / WEFT_BLOCK;
    weft_scalar_quantise_f32(codes_out + at, x + at, exponents + at / WEFT_BLOCK, count - at, limit,
                             noise ? &rest : NULL);
}

void weft_avx2_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count)
{
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(codes + i)));
        _mm256_storeu_si256((void *)(sums + i),
                            _mm256_add_epi16(_mm256_loadu_si256((const void *)(sums + i)), wide));
    }
    weft_scalar_add_i8_i16(sums + i, codes + i, count - i);
}

void weft_avx2_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count)
{
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(codes + i)));
        _mm256_storeu_si256((void *)(sums + i),
                            _mm256_add_epi32(_mm256_loadu_si256((const void *)(sums + i)), wide));
    }
    weft_scalar_add_i8_i32(sums + i, codes + i, count - i);
}

static inline __attribute__((always_inline)) void dequantise(float *out, const void *sums, bool wide,
                                                             const uint8_t *exponents, float factor,
                                                             size_t count)
{
    const __m256 factors = _mm256_set1_ps(factor);
    for (size_t at = 0; at < count; at += WEFT_BLOCK) {
        const float scale = block_scale(*exponents++);
        const __m256 scales = _mm256_set1_ps(scale);
        const size_t end = at + block_length(at, count);
        const int16_t *narrow_sums = sums;
        const int32_t *wide_sums = sums;
        size_t i = at;
        for (; i + WIDTH <= end; i += WIDTH) {
            const __m256i whole =
                wide ? _mm256_loadu_si256((const void *)(wide_sums + i))
                     : _mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)(narrow_sums + i)));
            _mm256_storeu_ps(out + i, canonical8(_mm256_mul_ps(
                                          _mm256_mul_ps(_mm256_cvtepi32_ps(whole), scales), factors)));
        }
        for (; i < end; i++)
            out[i] = canonical((float)(wide ? wide_sums[i] : narrow_sums[i]) * scale * factor);
    }
}

void weft_avx2_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor,
                                  size_t count)
{
    dequantise(out, sums, false, exponents, factor, count);
}

void weft_avx2_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor,
                                  size_t count)
{
    dequantise(out, sums, true, exponents, factor, count);
}
