/* cast.c - casts between f32 and the 16-bit floats: F16C's instructions, and integer arithmetic for bf16.
 *
 * VCVTPS2PH with the rounding written into the instruction keeps denormals and quiets NaN with sign and
 * payload, as in the scalar specification; MXCSR's rounding mode does not matter to it. */
#include "kernels/avx2/avx2.h"
#include "kernels/scalar/scalar.h"

enum { WIDTH = 8 };

void weft_avx2_cast_f32_f16(uint16_t *out, const float *in, size_t count)
{
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const __m128i halves =
            _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(out + i), halves);
    }
    weft_scalar_cast_f32_f16(out + i, in + i, count - i);
}

void weft_avx2_cast_f16_f32(float *out, const uint16_t *in, size_t count)
{
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(in + i))));
    weft_scalar_cast_f16_f32(out + i, in + i, count - i);
}

/* The upper halves of eight floats, rounded, as eight 32-bit numbers. */
static inline __m256i round_to_bf16(__m256i bits)
{
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quieted = _mm256_or_si256(bits, _mm256_set1_epi32((int)FLOAT_QUIET));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32((int)FLOAT_ABS));
    const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)FLOAT_INF));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quieted, is_nan), 16);
}

void weft_avx2_cast_f32_bf16(uint16_t *out, const float *in, size_t count)
{
    size_t i = 0;
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
        const __m256i low = round_to_bf16(_mm256_loadu_si256((const __m256i *)(const void *)(in + i)));
        const __m256i high =
            round_to_bf16(_mm256_loadu_si256((const __m256i *)(const void *)(in + i + WIDTH)));
        /* packus works within 128-bit lanes: put the quarters back into order */
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), packed);
    }
    weft_scalar_cast_f32_bf16(out + i, in + i, count - i);
}

void weft_avx2_cast_bf16_f32(float *out, const uint16_t *in, size_t count)
{
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(in + i));
        const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
        const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32((int)FLOAT_ABS));
        const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)FLOAT_INF));
        const __m256i quiet = _mm256_and_si256(is_nan, _mm256_set1_epi32((int)FLOAT_QUIET));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_or_si256(bits, quiet));
    }
    weft_scalar_cast_bf16_f32(out + i, in + i, count - i);
}
