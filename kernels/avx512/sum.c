/* sum.c - sums of two and of up to eight sources in one pass over memory.
 *
 * sum_tree keeps the tree's inner nodes in registers: p sources are loaded once and the result is stored
 * once, where folding two at a time would load and store every partial. */
#include "kernels/avx512/avx512.h"
#include "kernels/stream_head.h"

enum { WIDTH = 16 };

static inline __m512 sum16(const float *a, const float *b, __mmask16 lanes)
{
    return canonical16(_mm512_add_ps(_mm512_maskz_loadu_ps(lanes, a), _mm512_maskz_loadu_ps(lanes, b)));
}

void weft_avx512_sum_f32(float *out, const float *a, const float *b, size_t count)
{
    size_t i = 0;
    const size_t head = out == a || out == b ? count : stream_from(out, sizeof *out, count);
    if (head < count) {
        if (head > 0) _mm512_mask_storeu_ps(out, first16(head), sum16(a, b, first16(head)));
        for (i = head; i + WIDTH <= count; i += WIDTH)
            _mm512_stream_ps(out + i,
                             canonical16(_mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i))));
        _mm_sfence();
    }
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
        const __m512 first = _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i));
        const __m512 second = _mm512_add_ps(_mm512_loadu_ps(a + i + WIDTH), _mm512_loadu_ps(b + i + WIDTH));
        _mm512_storeu_ps(out + i, canonical16(first));
        _mm512_storeu_ps(out + i + WIDTH, canonical16(second));
    }
    for (; i < count; i += WIDTH) {
        const __mmask16 lanes = first16(count - i);
        _mm512_mask_storeu_ps(out + i, lanes, sum16(a + i, b + i, lanes));
    }
}

/* T over sources [first, first + n): n is a constant where this is inlined, so the tree is straight-line
 * code. */
static inline __attribute__((always_inline)) __m512 upto4(const float *const *from, size_t n, size_t i,
                                                          __mmask16 lanes)
{
    const __m512 first = _mm512_maskz_loadu_ps(lanes, from[0] + i);
    if (n == 1) return first;
    const __m512 left = _mm512_add_ps(first, _mm512_maskz_loadu_ps(lanes, from[1] + i));
    if (n == 2) return left;
    const __m512 third = _mm512_maskz_loadu_ps(lanes, from[2] + i);
    return _mm512_add_ps(left,
                         n == 3 ? third : _mm512_add_ps(third, _mm512_maskz_loadu_ps(lanes, from[3] + i)));
}

static inline __attribute__((always_inline)) void sum_vector(float *const *outs, size_t out_count,
                                                             const float *const *from, size_t n,
                                                             __m512 factor, size_t i, __mmask16 lanes,
                                                             bool stream, __m512i *max)
{
    __m512 sum = upto4(from, n < 4 ? n : 4, i, lanes);
    if (n > 4) sum = _mm512_add_ps(sum, upto4(from + 4, n - 4, i, lanes));
    sum = canonical16(_mm512_mul_ps(sum, factor));
    for (size_t o = 0; o < out_count; o++) {
        if (stream) _mm512_stream_ps(outs[o] + i, sum);
        else _mm512_mask_storeu_ps(outs[o] + i, lanes, sum);
    }
    if (max) *max = _mm512_mask_max_epu32(*max, lanes, *max, magnitude16(sum));
}

/* `head` elements first, so that the vectors after them may be streamed. */
static inline __attribute__((always_inline)) void sum_n(float *const *outs, size_t out_count,
                                                        const float *const *sources, size_t n, __m512 factor,
                                                        size_t count, size_t head, bool stream, __m512i *max)
{
    size_t i = head;
    __m512i most = _mm512_setzero_si512(), *const of = max ? &most : NULL;
    if (head > 0) sum_vector(outs, out_count, sources, n, factor, 0, first16(head), false, of);
    for (; i + WIDTH <= count; i += WIDTH) {
        for (size_t s = 0; s < n && n > 2; s++)
            prefetch_ahead(sources[s] + i);
        sum_vector(outs, out_count, sources, n, factor, i, ALL16, stream, of);
    }
    if (i < count) sum_vector(outs, out_count, sources, n, factor, i, first16(count - i), false, of);
    if (max) *max = most;
}

static inline __attribute__((always_inline)) void sum_any(float *const *outs, size_t out_count,
                                                          const float *const *sources, size_t source_count,
                                                          float by, size_t count, size_t head, bool stream,
                                                          __m512i *max)
{
    const __m512 factor = _mm512_set1_ps(by);
    switch (source_count) {
    case 1: sum_n(outs, out_count, sources, 1, factor, count, head, stream, max); break;
    case 2: sum_n(outs, out_count, sources, 2, factor, count, head, stream, max); break;
    case 3: sum_n(outs, out_count, sources, 3, factor, count, head, stream, max); break;
    case 4: sum_n(outs, out_count, sources, 4, factor, count, head, stream, max); break;
    case 5: sum_n(outs, out_count, sources, 5, factor, count, head, stream, max); break;
    case 6: sum_n(outs, out_count, sources, 6, factor, count, head, stream, max); break;
    case 7: sum_n(outs, out_count, sources, 7, factor, count, head, stream, max); break;
    default: sum_n(outs, out_count, sources, 8, factor, count, head, stream, max); break;
    }
}

static inline __attribute__((always_inline)) void sum_all(float *const *outs, size_t out_count,
                                                          const float *const *sources, size_t source_count,
                                                          float factor, size_t count, bool stream,
                                                          __m512i *max)
{
    const size_t head = stream ? stream_head(outs, out_count, count, AVX512_LINE) : count;
    if (head == count) {
        sum_any(outs, out_count, sources, source_count, factor, count, 0, false, max);
        return;
    }
    sum_any(outs, out_count, sources, source_count, factor, count, head, true, max);
    _mm_sfence();
}

void weft_avx512_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                              size_t source_count, float factor, size_t count)
{
    sum_all(outs, out_count, sources, source_count, factor, count, false, NULL);
}

void weft_avx512_sum_tree_stream_f32(float *const *outs, size_t out_count, const float *const *sources,
                                     size_t source_count, float factor, size_t count)
{
    sum_all(outs, out_count, sources, source_count, factor, count, true, NULL);
}

uint32_t weft_avx512_sum_tree_max_f32(float *const *outs, size_t out_count, const float *const *sources,
                                      size_t source_count, float factor, size_t count, bool stream)
{
    __m512i max;
    sum_all(outs, out_count, sources, source_count, factor, count, stream, &max);
    return _mm512_reduce_max_epu32(max);
}
