/* elementwise.c - scale, error-feedback add, magnitudes and the optimiser step, sixteen elements at a time.
 *
 * Each operation is the scalar one on sixteen lanes, the tail under a mask. -ffp-contract=off keeps
 * multiplication and addition two roundings although the instruction set has a fused one. */
#include "kernels/avx512/avx512.h"

enum { WIDTH = 16 };

static inline void scale16(float *out, const float *in, __m512 factors, __mmask16 lanes)
{
    _mm512_mask_storeu_ps(out, lanes, canonical16(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, in), factors)));
}

void weft_avx512_scale_f32(float *out, const float *in, float factor, size_t count)
{
    const __m512 factors = _mm512_set1_ps(factor);
    size_t i = 0;
    const size_t head = out == in ? count : stream_from(out, sizeof *out, count);
    if (head < count) {
        if (head > 0) scale16(out, in, factors, first16(head));
        for (i = head; i + WIDTH <= count; i += WIDTH)
            _mm512_stream_ps(out + i, canonical16(_mm512_mul_ps(_mm512_loadu_ps(in + i), factors)));
        _mm_sfence();
    }
    for (; i < count; i += WIDTH)
        scale16(out + i, in + i, factors, first16(count - i));
}

uint32_t weft_avx512_scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count)
{
    const __m512 factors = _mm512_set1_ps(factor);
    __m512i max = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(a + i), factors);
        const __m512 sum = canonical16(_mm512_add_ps(scaled, _mm512_loadu_ps(b + i)));
        _mm512_storeu_ps(out + i, sum);
        max = _mm512_max_epu32(max, magnitude16(sum));
    }
    if (i < count) {
        const __mmask16 lanes = first16(count - i);
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, a + i), factors);
        const __m512 sum = canonical16(_mm512_add_ps(scaled, _mm512_maskz_loadu_ps(lanes, b + i)));
        _mm512_mask_storeu_ps(out + i, lanes, sum);
        max = _mm512_mask_max_epu32(max, lanes, max, magnitude16(sum));
    }
    return _mm512_reduce_max_epu32(max);
}

uint32_t weft_avx512_max_abs_bits_f32(const float *in, size_t count)
{
    __m512i max = _mm512_setzero_si512(), other = max;
    size_t i = 0;
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
        prefetch_ahead(in + i);
        prefetch_ahead(in + i + WIDTH);
        max = _mm512_max_epu32(max, magnitude16(_mm512_loadu_ps(in + i)));
        other = _mm512_max_epu32(other, magnitude16(_mm512_loadu_ps(in + i + WIDTH)));
    }
    for (; i < count; i += WIDTH)
        max = _mm512_max_epu32(max, magnitude16(_mm512_maskz_loadu_ps(first16(count - i), in + i)));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(max, other));
}

/* Few elements are above in a top-k: 64 are passed over with one branch; a group that has some is packed
 * in a register and stored (packing straight into memory is slow on some processors). The store is cut to
 * what was found: entries of indices_out past `count` must stay untouched. */
size_t weft_avx512_indices_above_f32(uint32_t *indices_out, const float *in, size_t count,
                                     uint32_t floor_bits)
{
    const __m512i floor = _mm512_set1_epi32((int)floor_bits);
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t found = 0, i = 0;
    while (i < count) {
        __mmask16 above[4];
        const size_t here = i;
        if (i + 4 * WIDTH <= count) {
            for (size_t v = 0; v < 4; v++)
                above[v] = _mm512_cmpge_epu32_mask(magnitude16(_mm512_loadu_ps(in + i + v * WIDTH)), floor);
            i += 4 * WIDTH;
        } else {
            const __mmask16 lanes = first16(count - i);
            above[0] =
                _mm512_mask_cmpge_epu32_mask(lanes, magnitude16(_mm512_maskz_loadu_ps(lanes, in + i)), floor);
            above[1] = above[2] = above[3] = 0;
            i += WIDTH;
        }
        if ((above[0] | above[1] | above[2] | above[3]) == 0) continue;
        for (size_t v = 0; v < 4; v++) {
            const __m512i indices = _mm512_add_epi32(numbers, _mm512_set1_epi32((int)(here + v * WIDTH)));
            const unsigned n = (unsigned)__builtin_popcount(above[v]);
            if (n == 0) continue;
            _mm512_mask_storeu_epi32(indices_out + found, first16(n),
                                     _mm512_maskz_compress_epi32(above[v], indices));
            found += n;
        }
    }
    return found;
}

/* One vector of it; returns which lanes are above, and the sum. */
static inline __attribute__((always_inline)) __mmask16 scale_add_vector(float *out, const float *a,
                                                                        __m512 factors, const float *b,
                                                                        __m512i floor, __m512i *max,
                                                                        __mmask16 lanes, bool stream,
                                                                        __m512 *sum)
{
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, a), factors);
    *sum = canonical16(_mm512_add_ps(scaled, _mm512_maskz_loadu_ps(lanes, b)));
    const __m512i bits = magnitude16(*sum);
    if (stream) _mm512_stream_ps(out, *sum);
    else _mm512_mask_storeu_ps(out, lanes, *sum);
    *max = _mm512_mask_max_epu32(*max, lanes, *max, bits);
    return _mm512_mask_cmpge_epu32_mask(lanes, bits, floor);
}

/* Where the two lists grow, and the numbers of the next sixteen elements. */
struct above16 {
    uint32_t *indices_out;
    float *values_out;
    size_t found;
    __m512i indices, max;
};

/* With error feedback many elements wait just below the threshold, so nearly every third vector has one
 * above it and no branch on that is predicted: each vector is packed and stored whole, and what is not
 * wanted is written over. It fits: at element i at most i were found. */
static inline __attribute__((always_inline)) void above_whole(struct above16 *list, float *out,
                                                              const float *a, __m512 factors, const float *b,
                                                              __m512i floor, size_t count, bool stream)
{
    for (size_t i = 0; i + WIDTH <= count; i += WIDTH) {
        __m512 sum;
        const __mmask16 above =
            scale_add_vector(out + i, a + i, factors, b + i, floor, &list->max, ALL16, stream, &sum);
        _mm512_storeu_si512(list->indices_out + list->found,
                            _mm512_maskz_compress_epi32(above, list->indices));
        _mm512_storeu_ps(list->values_out + list->found, _mm512_maskz_compress_ps(above, sum));
        list->found += (size_t)__builtin_popcount(above);
        list->indices = _mm512_add_epi32(list->indices, _mm512_set1_epi32(WIDTH));
    }
}

static inline void above_part(struct above16 *list, float *out, const float *a, __m512 factors,
                              const float *b, __m512i floor, size_t count)
{
    __m512 sum;
    const __mmask16 above =
        scale_add_vector(out, a, factors, b, floor, &list->max, first16(count), false, &sum);
    const size_t n = (size_t)__builtin_popcount(above);
    _mm512_mask_storeu_epi32(list->indices_out + list->found, first16(n),
                             _mm512_maskz_compress_epi32(above, list->indices));
    _mm512_mask_storeu_ps(list->values_out + list->found, first16(n), _mm512_maskz_compress_ps(above, sum));
    list->found += n;
    list->indices = _mm512_add_epi32(list->indices, _mm512_set1_epi32((int)count));
}

size_t weft_avx512_scale_add_above_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                       uint32_t floor_bits, uint32_t first, uint32_t *indices_out,
                                       float *values_out, uint32_t *max_bits)
{
    const __m512 factors = _mm512_set1_ps(factor);
    const __m512i floor = _mm512_set1_epi32((int)floor_bits);
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    struct above16 list = {indices_out, values_out, 0,
                           _mm512_add_epi32(_mm512_set1_epi32((int)first), numbers), _mm512_setzero_si512()};
    const size_t head = out == a || out == b ? count : stream_from(out, sizeof *out, count);
    size_t i = 0;
    if (head < count) {
        if (head > 0) above_part(&list, out, a, factors, b, floor, head);
        above_whole(&list, out + head, a + head, factors, b + head, floor, count - head, true);
        i = head + (count - head) / WIDTH * WIDTH;
        _mm_sfence();
    } else {
        above_whole(&list, out, a, factors, b, floor, count, false);
        i = count / WIDTH * WIDTH;
    }
    if (i < count) above_part(&list, out + i, a + i, factors, b + i, floor, count - i);
    const uint32_t vectors = _mm512_reduce_max_epu32(list.max);
    *max_bits = vectors > *max_bits ? vectors : *max_bits;
    return list.found;
}

bool weft_avx512_finite_f32(const float *in, size_t count)
{
    return weft_avx512_max_abs_bits_f32(in, count) < FLOAT_INF;
}

struct sgd16 {
    __m512 scale, lr, momentum, decay;
    bool decays, remembers, nesterov;
};

/* The branches on the hyper-parameters are the same for every element; they stay in the loop, where they are
 * predicted, so that the order of operations is written once. */
static inline __attribute__((always_inline)) void sgd_vector(float *weights, float *velocity,
                                                             const float *grad, const struct sgd16 *s,
                                                             __mmask16 lanes)
{
    const __m512 w = _mm512_maskz_loadu_ps(lanes, weights);
    __m512 g = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, grad), s->scale);
    if (s->decays) g = _mm512_add_ps(g, _mm512_mul_ps(s->decay, w));
    if (s->remembers) {
        const __m512 before = _mm512_maskz_loadu_ps(lanes, velocity);
        const __m512 v = canonical16(_mm512_add_ps(_mm512_mul_ps(s->momentum, before), g));
        _mm512_mask_storeu_ps(velocity, lanes, v);
        g = s->nesterov ? _mm512_add_ps(g, _mm512_mul_ps(s->momentum, v)) : v;
    }
    _mm512_mask_storeu_ps(weights, lanes, canonical16(_mm512_sub_ps(w, _mm512_mul_ps(s->lr, g))));
}

void weft_avx512_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                         const struct weft_sgd *sgd, size_t count)
{
    const struct sgd16 s = {
        _mm512_set1_ps(grad_scale), _mm512_set1_ps(sgd->lr), _mm512_set1_ps(sgd->momentum),
        _mm512_set1_ps(sgd->weight_decay), sgd->weight_decay != 0.0f, sgd->momentum != 0.0f, sgd->nesterov,
    };
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        sgd_vector(weights + i, s.remembers ? velocity + i : NULL, grad + i, &s, ALL16);
    if (i < count)
        sgd_vector(weights + i, s.remembers ? velocity + i : NULL, grad + i, &s, first16(count - i));
}
