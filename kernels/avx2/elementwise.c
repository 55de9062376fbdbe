/* elementwise.c - sum, scale, error-feedback add, magnitudes and the optimiser step, eight elements at a
 * time.
 *
 * Each operation is the scalar one on eight lanes; what is left below a vector goes to the scalar kernel
 * itself. -ffp-contract=off and the absence of -mfma keep multiplication and addition two roundings. */
#include <string.h>

#include "kernels/avx2/avx2.h"
#include "kernels/scalar/scalar.h"
#include "kernels/stream_head.h"

enum { WIDTH = 8 };

void weft_avx2_sum_f32(float *out, const float *a, const float *b, size_t count)
{
    size_t i = 0;
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
        const __m256 first = _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
        const __m256 second = _mm256_add_ps(_mm256_loadu_ps(a + i + WIDTH), _mm256_loadu_ps(b + i + WIDTH));
        _mm256_storeu_ps(out + i, canonical8(first));
        _mm256_storeu_ps(out + i + WIDTH, canonical8(second));
    }
    weft_scalar_sum_f32(out + i, a + i, b + i, count - i);
}

static inline __attribute__((always_inline)) __m256 tree8(const float *const *from, size_t n, size_t i)
{
    if (n == 1) return _mm256_loadu_ps(from[0] + i);
    const __m256 left = _mm256_add_ps(_mm256_loadu_ps(from[0] + i), _mm256_loadu_ps(from[1] + i));
    if (n == 2) return left;
    const __m256 third = _mm256_loadu_ps(from[2] + i);
    return _mm256_add_ps(left, n == 3 ? third : _mm256_add_ps(third, _mm256_loadu_ps(from[3] + i)));
}

/* `n` sources: a constant where inlined, so the tree is straight-line code; returns how many elements were
 * done. max: the largest magnitudes of the result; NULL where the caller does not need them. */
static inline __attribute__((always_inline)) size_t sum_tree(float *const *outs, size_t out_count,
                                                             const float *const *sources, size_t n,
                                                             __m256 factor, size_t i, size_t count,
                                                             bool stream, __m256i *max)
{
    __m256i most = _mm256_setzero_si256();
    for (; i + WIDTH <= count; i += WIDTH) {
        __m256 sum = tree8(sources, n < 4 ? n : 4, i);
        if (n > 4) sum = _mm256_add_ps(sum, tree8(sources + 4, n - 4, i));
        sum = canonical8(_mm256_mul_ps(sum, factor));
        for (size_t o = 0; o < out_count; o++) {
            if (stream) _mm256_stream_ps(outs[o] + i, sum);
            else _mm256_storeu_ps(outs[o] + i, sum);
        }
        if (max) most = _mm256_max_epu32(most, magnitude8(sum));
    }
    if (max) *max = most;
    return i;
}

static inline __attribute__((always_inline)) size_t sum_any(float *const *outs, size_t out_count,
                                                            const float *const *sources, size_t source_count,
                                                            float by, size_t first, size_t count, bool stream,
                                                            __m256i *max)
{
    const __m256 factor = _mm256_set1_ps(by);
    switch (source_count) {
    case 1: return sum_tree(outs, out_count, sources, 1, factor, first, count, stream, max);
    case 2: return sum_tree(outs, out_count, sources, 2, factor, first, count, stream, max);
    case 3: return sum_tree(outs, out_count, sources, 3, factor, first, count, stream, max);
    case 4: return sum_tree(outs, out_count, sources, 4, factor, first, count, stream, max);
    case 5: return sum_tree(outs, out_count, sources, 5, factor, first, count, stream, max);
    case 6: return sum_tree(outs, out_count, sources, 6, factor, first, count, stream, max);
    case 7: return sum_tree(outs, out_count, sources, 7, factor, first, count, stream, max);
    default: return sum_tree(outs, out_count, sources, 8, factor, first, count, stream, max);
    }
}

/* Elements [first, last), fewer than a vector: the end, or the elements before a line begins. */
static void sum_few(float *const *outs, size_t out_count, const float *const *sources, size_t source_count,
                    float factor, size_t first, size_t last)
{
    const float *rest[8];
    float tail[WIDTH], *const only[1] = {tail};
    if (first == last) return;
    for (size_t s = 0; s < source_count; s++)
        rest[s] = sources[s] + first;
    weft_scalar_sum_tree_f32(only, 1, rest, source_count, factor, last - first);
    for (size_t o = 0; o < out_count; o++)
        memcpy(outs[o] + first, tail, (last - first) * sizeof *tail);
}

static inline __attribute__((always_inline)) void sum_all(float *const *outs, size_t out_count,
                                                          const float *const *sources, size_t source_count,
                                                          float factor, size_t count, bool stream,
                                                          __m256i *max)
{
    const size_t head = stream ? stream_head(outs, out_count, count, WIDTH * sizeof(float)) : count;
    if (head == count) {
        const size_t done = sum_any(outs, out_count, sources, source_count, factor, 0, count, false, max);
        sum_few(outs, out_count, sources, source_count, factor, done, count);
        return;
    }
    sum_few(outs, out_count, sources, source_count, factor, 0, head);
    const size_t done = sum_any(outs, out_count, sources, source_count, factor, head, count, true, max);
    sum_few(outs, out_count, sources, source_count, factor, done, count);
    _mm_sfence();
}

void weft_avx2_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                            size_t source_count, float factor, size_t count)
{
    sum_all(outs, out_count, sources, source_count, factor, count, false, NULL);
}

void weft_avx2_sum_tree_stream_f32(float *const *outs, size_t out_count, const float *const *sources,
                                   size_t source_count, float factor, size_t count)
{
    sum_all(outs, out_count, sources, source_count, factor, count, true, NULL);
}

static uint32_t largest8(__m256i max)
{
    uint32_t lanes[WIDTH], most = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, max);
    for (size_t lane = 0; lane < WIDTH; lane++) most = lanes[lane] > most ? lanes[lane] : most;
    return most;
}

/* The scalar ends, at most two vectors of them, are read again. */
uint32_t weft_avx2_sum_tree_max_f32(float *const *outs, size_t out_count, const float *const *sources,
                                    size_t source_count, float factor, size_t count, bool stream)
{
    __m256i max;
    sum_all(outs, out_count, sources, source_count, factor, count, stream, &max);
    const size_t ends = count < 2 * WIDTH ? count : WIDTH;
    const uint32_t first = weft_scalar_max_abs_bits_f32(outs[0], ends),
                   last = weft_scalar_max_abs_bits_f32(outs[0] + count - ends, ends), most = largest8(max);
    const uint32_t of_ends = first > last ? first : last;
    return most > of_ends ? most : of_ends;
}

void weft_avx2_scale_f32(float *out, const float *in, float factor, size_t count)
{
    const __m256 factors = _mm256_set1_ps(factor);
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        _mm256_storeu_ps(out + i, canonical8(_mm256_mul_ps(_mm256_loadu_ps(in + i), factors)));
    weft_scalar_scale_f32(out + i, in + i, factor, count - i);
}

uint32_t weft_avx2_scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count)
{
    const __m256 factors = _mm256_set1_ps(factor);
    __m256i max = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(a + i), factors);
        const __m256 sum = canonical8(_mm256_add_ps(scaled, _mm256_loadu_ps(b + i)));
        _mm256_storeu_ps(out + i, sum);
        max = _mm256_max_epu32(max, magnitude8(sum));
    }
    const uint32_t vectors = max_of8(max),
                   rest = weft_scalar_scale_add_f32(out + i, a + i, factor, b + i, count - i);
    return vectors > rest ? vectors : rest;
}

uint32_t weft_avx2_max_abs_bits_f32(const float *in, size_t count)
{
    __m256i max = _mm256_setzero_si256(), other = max;
    size_t i = 0;
    for (; i + 2 * WIDTH <= count; i += 2 * WIDTH) {
        max = _mm256_max_epu32(max, magnitude8(_mm256_loadu_ps(in + i)));
        other = _mm256_max_epu32(other, magnitude8(_mm256_loadu_ps(in + i + WIDTH)));
    }
    const uint32_t vectors = max_of8(_mm256_max_epu32(max, other)),
                   rest = weft_scalar_max_abs_bits_f32(in + i, count - i);
    return vectors > rest ? vectors : rest;
}

/* Bit j: |in[j]| is at least the floor. Both are below 2^31, so signed comparison serves; `below` is floor
 * - 1. */
static inline uint32_t mask_above8(const float *in, __m256i below)
{
    const __m256i above = _mm256_cmpgt_epi32(magnitude8(_mm256_loadu_ps(in)), below);
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(above));
}

/* Few elements are above in a top-k: 32 are passed over with one branch, the others are picked bit by bit. */
size_t weft_avx2_indices_above_f32(uint32_t *indices_out, const float *in, size_t count, uint32_t floor_bits)
{
    const __m256i below = _mm256_set1_epi32((int)floor_bits - 1);
    size_t found = 0, i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH) {
        uint32_t mask = mask_above8(in + i, below) | mask_above8(in + i + WIDTH, below) << 8
            | mask_above8(in + i + 2 * WIDTH, below) << 16 | mask_above8(in + i + 3 * WIDTH, below) << 24;
        for (; mask != 0; mask &= mask - 1)
            indices_out[found++] = (uint32_t)i + (uint32_t)__builtin_ctz(mask);
    }
    for (; i < count; i++) {
        indices_out[found] = (uint32_t)i;
        found += (float_bits(in[i]) & FLOAT_ABS) >= floor_bits;
    }
    return found;
}

static inline uint32_t bits_above8(__m256 x, __m256i below)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitude8(x), below)));
}

size_t weft_avx2_scale_add_above_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                     uint32_t floor_bits, uint32_t first, uint32_t *indices_out,
                                     float *values_out, uint32_t *max_bits)
{
    const __m256 factors = _mm256_set1_ps(factor);
    const __m256i below = _mm256_set1_epi32((int)floor_bits - 1);
    __m256i max = _mm256_setzero_si256();
    size_t found = 0, i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH) {
        uint32_t mask = 0;
        for (size_t v = 0; v < 4; v++) {
            const size_t at = i + v * WIDTH;
            const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(a + at), factors);
            const __m256 sum = canonical8(_mm256_add_ps(scaled, _mm256_loadu_ps(b + at)));
            _mm256_storeu_ps(out + at, sum);
            max = _mm256_max_epu32(max, magnitude8(sum));
            mask |= bits_above8(sum, below) << (v * WIDTH);
        }
        for (; mask != 0; mask &= mask - 1, found++) {
            const size_t at = i + (size_t)__builtin_ctz(mask);
            indices_out[found] = first + (uint32_t)at;
            values_out[found] = out[at];
        }
    }
    const uint32_t vectors = max_of8(max);
    *max_bits = vectors > *max_bits ? vectors : *max_bits;
    return found + weft_scalar_scale_add_above_f32(out + i, a + i, factor, b + i, count - i, floor_bits,
                                                   first + (uint32_t)i, indices_out + found,
                                                   values_out + found, max_bits);
}

bool weft_avx2_finite_f32(const float *in, size_t count)
{
    return weft_avx2_max_abs_bits_f32(in, count) < FLOAT_INF;
}

/* The branches on the hyper-parameters are the same for every element; they stay in the loop, where they are
 * predicted, so that the order of operations is written once. */
void weft_avx2_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                       const struct weft_sgd *sgd, size_t count)
{
    const __m256 scale = _mm256_set1_ps(grad_scale), lr = _mm256_set1_ps(sgd->lr);
    const __m256 momentum = _mm256_set1_ps(sgd->momentum), decay = _mm256_set1_ps(sgd->weight_decay);
    const bool decays = sgd->weight_decay != 0.0f, remembers = sgd->momentum != 0.0f;
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const __m256 w = _mm256_loadu_ps(weights + i);
        __m256 g = _mm256_mul_ps(_mm256_loadu_ps(grad + i), scale);
        if (decays) g = _mm256_add_ps(g, _mm256_mul_ps(decay, w));
        if (remembers) {
            const __m256 v =
                canonical8(_mm256_add_ps(_mm256_mul_ps(momentum, _mm256_loadu_ps(velocity + i)), g));
            _mm256_storeu_ps(velocity + i, v);
            g = sgd->nesterov ? _mm256_add_ps(g, _mm256_mul_ps(momentum, v)) : v;
        }
        _mm256_storeu_ps(weights + i, canonical8(_mm256_sub_ps(w, _mm256_mul_ps(lr, g))));
    }
    weft_scalar_sgd_f32(weights + i, velocity ? velocity + i : NULL, grad + i, grad_scale, sgd, count - i);
}
