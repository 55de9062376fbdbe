/* cast.c - casts between f32 and the 16-bit floats, sixteen at a time.
 *
 * f16 by VCVTPS2PH / VCVTPH2PS as in avx2/cast.c. bf16 by integer arithmetic, and where the processor has
 * VCVTNE2PS2BF16 by that: it rounds as the specification does but takes denormals for zeros, so vectors
 * with one in them go the long way. */
#include "kernels/avx512/avx512.h"

enum { WIDTH = 16, ROUND = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

static inline __m256i f16_of(__m512 x)
{
    return _mm512_cvtps_ph(x, ROUND);
}

/* The upper halves of sixteen floats, rounded. */
static inline __m256i bf16_of(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quieted = _mm512_or_si512(bits, _mm512_set1_epi32((int)FLOAT_QUIET));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quieted), 16));
}

static __attribute__((target("avx512bf16"))) inline __m512i bf16_of_two(__m512 low, __m512 high)
{
    enum { DENORMAL = 0x20 };
    if (__builtin_expect(
            (_mm512_fpclass_ps_mask(low, DENORMAL) | _mm512_fpclass_ps_mask(high, DENORMAL)) != 0, 0))
        return _mm512_inserti64x4(_mm512_castsi256_si512(bf16_of(low)), bf16_of(high), 1);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* A bf16 signalling NaN becomes quiet, as it does in every other cast. */
static inline __m512 f32_of_bf16(__m256i halves)
{
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
    const __m512 x = _mm512_castsi512_ps(bits);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, is_nan, bits, _mm512_set1_epi32((int)FLOAT_QUIET)));
}

static inline __m512 f32_of_f16(__m256i halves)
{
    return _mm512_cvtph_ps(halves);
}

static inline __attribute__((always_inline)) void narrow(uint16_t *out, const float *in, size_t count,
                                                         __m256i (*cast)(__m512))
{
    size_t i = 0;
    const size_t head = stream_from(out, sizeof *out, count);
    if (head < count) {
        for (; i < head; i += WIDTH) {
            const __mmask16 lanes = first16(head - i);
            _mm256_mask_storeu_epi16(out + i, lanes, cast(_mm512_maskz_loadu_ps(lanes, in + i)));
        }
        for (i = head; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
            prefetch_ahead(in + i);
            prefetch_ahead(in + i + WIDTH);
            const __m256i low = cast(_mm512_loadu_ps(in + i)), high = cast(_mm512_loadu_ps(in + i + WIDTH));
            _mm512_stream_si512((void *)(out + i), _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
        }
        _mm_sfence();
    }
    for (; i + WIDTH <= count; i += WIDTH)
        _mm256_storeu_si256((void *)(out + i), cast(_mm512_loadu_ps(in + i)));
    if (i < count) {
        const __mmask16 lanes = first16(count - i);
        _mm256_mask_storeu_epi16(out + i, lanes, cast(_mm512_maskz_loadu_ps(lanes, in + i)));
    }
}

static inline __attribute__((always_inline)) void widen(float *out, const uint16_t *in, size_t count,
                                                        __m512 (*cast)(__m256i))
{
    size_t i = 0;
    const size_t head = stream_from(out, sizeof *out, count);
    if (head < count) {
        if (head > 0) {
            const __mmask16 lanes = first16(head);
            _mm512_mask_storeu_ps(out, lanes, cast(_mm256_maskz_loadu_epi16(lanes, in)));
        }
        for (i = head; i + WIDTH <= count; i += WIDTH)
            _mm512_stream_ps(out + i, cast(_mm256_loadu_si256((const void *)(in + i))));
        _mm_sfence();
    }
    for (; i + WIDTH <= count; i += WIDTH)
        _mm512_storeu_ps(out + i, cast(_mm256_loadu_si256((const void *)(in + i))));
    if (i < count) {
        const __mmask16 lanes = first16(count - i);
        _mm512_mask_storeu_ps(out + i, lanes, cast(_mm256_maskz_loadu_epi16(lanes, in + i)));
    }
}

void weft_avx512_cast_f32_f16(uint16_t *out, const float *in, size_t count)
{
    narrow(out, in, count, f16_of);
}
void weft_avx512_cast_f16_f32(float *out, const uint16_t *in, size_t count)
{
    widen(out, in, count, f32_of_f16);
}
void weft_avx512_cast_f32_bf16(uint16_t *out, const float *in, size_t count)
{
    narrow(out, in, count, bf16_of);
}
void weft_avx512_cast_bf16_f32(float *out, const uint16_t *in, size_t count)
{
    widen(out, in, count, f32_of_bf16);
}

__attribute__((target("avx512bf16"))) void weft_avx512bf16_cast_f32_bf16(uint16_t *out, const float *in,
                                                                         size_t count)
{
    const size_t head = stream_from(out, sizeof *out, count);
    size_t i = head < count ? head : 0;
    if (head < count) {
        weft_avx512_cast_f32_bf16(out, in, head);
        for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
            prefetch_ahead(in + i);
            prefetch_ahead(in + i + WIDTH);
            _mm512_stream_si512((void *)(out + i),
                                bf16_of_two(_mm512_loadu_ps(in + i), _mm512_loadu_ps(in + i + WIDTH)));
        }
        _mm_sfence();
    }
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH)
        _mm512_storeu_si512((void *)(out + i),
                            bf16_of_two(_mm512_loadu_ps(in + i), _mm512_loadu_ps(in + i + WIDTH)));
    weft_avx512_cast_f32_bf16(out + i, in + i, count - i);
}
