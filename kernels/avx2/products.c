/* products.c - dot and the low-rank products with AVX2: each reads M once, at close to memory speed.
 *
 *   dot, matmul   the 16 lanes of the specification are two registers (f32) or four (f64); up to four ranks
 *                 of Q
 *                 share one walk over a row of M
 *   matmul_t      four rows of M at a time: every element of Q is loaded and stored once per four additions,
 *                 and
 *                 they happen in row order
 *   outer         four registers of output at a time, ranks in order
 *
 * A tail below 16 elements is loaded under a mask. The masked lanes add +0 * +0 to a lane that started at
 * +0 and so is never -0: no bit changes. */
#include "kernels/avx2/avx2.h"

enum { WIDTH = 8, LANES = 16, RANK_BLOCK = 4, ROW_BLOCK = 4, BAND_ELEMS = 8192, PANEL_ELEMS = 8192 };

/* All ones in the first `count` of eight 32-bit lanes. */
static inline __m256i first_lanes(size_t count)
{
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count < WIDTH ? (int)count : WIDTH), numbers);
}

static inline double fold_lanes_f64(const __m256d lanes[4])
{
    /* 8 + 8 */
    const __m256d low = _mm256_add_pd(lanes[0], lanes[2]), high = _mm256_add_pd(lanes[1], lanes[3]);
    /* 4 + 4 */
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    const double sum = _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
    return sum == sum ? sum : (double)float_from_bits(FLOAT_NAN);
}

static inline __m256d widen_low(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}

static inline __m256d widen_high(__m256 x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}

static inline void add_products_f64(__m256d lanes[2], __m256 a, __m256 b)
{
    lanes[0] = _mm256_add_pd(lanes[0], _mm256_mul_pd(widen_low(a), widen_low(b)));
    lanes[1] = _mm256_add_pd(lanes[1], _mm256_mul_pd(widen_high(a), widen_high(b)));
}

double weft_avx2_dot_f32(const float *a, const float *b, size_t count)
{
    __m256d lanes[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        add_products_f64(lanes, _mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
        add_products_f64(lanes + 2, _mm256_loadu_ps(a + i + WIDTH), _mm256_loadu_ps(b + i + WIDTH));
    }
    if (i < count) {
        const size_t left = count - i;
        const __m256i first = first_lanes(left), second = first_lanes(left > WIDTH ? left - WIDTH : 0);
        add_products_f64(lanes, _mm256_maskload_ps(a + i, first), _mm256_maskload_ps(b + i, first));
        if (left > WIDTH)
            add_products_f64(lanes + 2, _mm256_maskload_ps(a + i + WIDTH, second),
                             _mm256_maskload_ps(b + i + WIDTH, second));
    }
    return fold_lanes_f64(lanes);
}

static inline float fold_lanes_f32(__m256 low, __m256 high)
{
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return canonical(_mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1))));
}

/* One row of M times `ranks` (a constant where inlined) rows of Q. */
static inline __attribute__((always_inline)) void row_times(float *p, size_t p_stride, const float *row,
                                                            const float *q, size_t cols, size_t ranks)
{
    __m256 low[RANK_BLOCK], high[RANK_BLOCK];
    for (size_t r = 0; r < ranks; r++)
        low[r] = high[r] = _mm256_setzero_ps();
    size_t j = 0;
    for (; j + LANES <= cols; j += LANES) {
        const __m256 m_low = _mm256_loadu_ps(row + j), m_high = _mm256_loadu_ps(row + j + WIDTH);
        for (size_t r = 0; r < ranks; r++) {
            const float *from = q + r * cols + j;
            low[r] = _mm256_add_ps(low[r], _mm256_mul_ps(m_low, _mm256_loadu_ps(from)));
            high[r] = _mm256_add_ps(high[r], _mm256_mul_ps(m_high, _mm256_loadu_ps(from + WIDTH)));
        }
    }
    if (j < cols) {
        const size_t left = cols - j, above = left > WIDTH ? left - WIDTH : 0,
                     second_at = above ? j + WIDTH : j;
        const __m256i first = first_lanes(left), second = first_lanes(above);
        const __m256 m_low = _mm256_maskload_ps(row + j, first),
                     m_high = _mm256_maskload_ps(row + second_at, second);
        for (size_t r = 0; r < ranks; r++) {
            const float *from = q + r * cols;
            low[r] = _mm256_add_ps(low[r], _mm256_mul_ps(m_low, _mm256_maskload_ps(from + j, first)));
            high[r] =
                _mm256_add_ps(high[r], _mm256_mul_ps(m_high, _mm256_maskload_ps(from + second_at, second)));
        }
    }
    for (size_t r = 0; r < ranks; r++)
        p[r * p_stride] = fold_lanes_f32(low[r], high[r]);
}

void weft_avx2_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows, size_t cols,
                          size_t rank)
{
    for (size_t i = 0; i < rows; i++) {
        const float *row = m + i * cols;
        for (size_t r = 0; r < rank; r += RANK_BLOCK) {
            float *to = p + r * p_stride + i;
            const float *from = q + r * cols;
            switch (rank - r) {
            case 1: row_times(to, p_stride, row, from, cols, 1); break;
            case 2: row_times(to, p_stride, row, from, cols, 2); break;
            case 3: row_times(to, p_stride, row, from, cols, 3); break;
            default: row_times(to, p_stride, row, from, cols, RANK_BLOCK); break;
            }
        }
    }
}

/* In bands of rows that stay in the first-level cache between being written and being multiplied. */
uint32_t weft_avx2_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b, float *p,
                                        size_t p_stride, const float *q, size_t rows, size_t cols,
                                        size_t rank)
{
    const size_t band = cols < BAND_ELEMS ? BAND_ELEMS / cols : 1;
    uint32_t max_bits = 0;
    for (size_t row = 0; row < rows; row += band) {
        const size_t count = rows - row < band ? rows - row : band, at = row * cols;
        const uint32_t bits = weft_avx2_scale_add_f32(m + at, a + at, factor, b + at, count * cols);
        max_bits = bits > max_bits ? bits : max_bits;
        weft_avx2_matmul_f32(p + row, p_stride, m + at, q, count, cols, rank);
    }
    return max_bits;
}

/* q (width,) += sum over `row_count` rows of m(i, :) * p(i), in row order. */
static inline __attribute__((always_inline)) void add_rank(float *q, const float *m, const float *p,
                                                           size_t cols, size_t width, size_t row_count)
{
    __m256 factors[ROW_BLOCK];
    for (size_t i = 0; i < row_count; i++)
        factors[i] = _mm256_set1_ps(p[i]);
    size_t j = 0;
    for (; j + WIDTH <= width; j += WIDTH) {
        __m256 sum = _mm256_loadu_ps(q + j);
        for (size_t i = 0; i < row_count; i++)
            sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_loadu_ps(m + i * cols + j), factors[i]));
        _mm256_storeu_ps(q + j, sum);
    }
    for (; j < width; j++)
        for (size_t i = 0; i < row_count; i++)
            q[j] += m[i * cols + j] * p[i];
}

static inline __attribute__((always_inline)) void add_rows(float *sums, const float *m, const float *p,
                                                           size_t p_stride, size_t cols, size_t width,
                                                           size_t row_count, size_t rank)
{
    for (size_t r = 0; r < rank; r++)
        add_rank(sums + r * width, m, p + r * p_stride, cols, width, row_count);
}

#include "kernels/templates/matmul_t_loops.h"

void weft_avx2_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols, size_t rank)
{
    matmul_t_in_bands(q, m, p, rows, cols, rank, PANEL_ELEMS / rank / WIDTH * WIDTH);
}

/* `vectors` (a constant where inlined) registers of row i of P^T Q, written or subtracted from what is
 * there. */
static inline __attribute__((always_inline)) void outer_vectors(float *out, const float *p, const float *q,
                                                                size_t rows, size_t cols, size_t rank,
                                                                size_t vectors, bool subtract)
{
    __m256 sum[4];
    for (size_t v = 0; v < vectors; v++)
        sum[v] = _mm256_mul_ps(_mm256_set1_ps(p[0]), _mm256_loadu_ps(q + v * WIDTH));
    for (size_t r = 1; r < rank; r++) {
        const __m256 factor = _mm256_set1_ps(p[r * rows]);
        for (size_t v = 0; v < vectors; v++)
            sum[v] = _mm256_add_ps(sum[v], _mm256_mul_ps(factor, _mm256_loadu_ps(q + r * cols + v * WIDTH)));
    }
    for (size_t v = 0; v < vectors; v++) {
        if (subtract) sum[v] = _mm256_sub_ps(_mm256_loadu_ps(out + v * WIDTH), sum[v]);
        _mm256_storeu_ps(out + v * WIDTH, canonical8(sum[v]));
    }
}

static inline __attribute__((always_inline)) void outer(float *out, const float *p, const float *q,
                                                        size_t rows, size_t cols, size_t rank, bool subtract)
{
    for (size_t i = 0; i < rows; i++) {
        float *row = out + i * cols;
        size_t j = 0;
        for (; j + 4 * WIDTH <= cols; j += 4 * WIDTH)
            outer_vectors(row + j, p + i, q + j, rows, cols, rank, 4, subtract);
        for (; j + WIDTH <= cols; j += WIDTH)
            outer_vectors(row + j, p + i, q + j, rows, cols, rank, 1, subtract);
        for (; j < cols; j++) {
            float sum = p[i] * q[j];
            for (size_t r = 1; r < rank; r++)
                sum += p[r * rows + i] * q[r * cols + j];
            row[j] = canonical(subtract ? row[j] - sum : sum);
        }
    }
}

void weft_avx2_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank)
{
    outer(out, p, q, rows, cols, rank, false);
}

void weft_avx2_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols, size_t rank)
{
    outer(m, p, q, rows, cols, rank, true);
}

#define LAZY(name) weft_avx2_##name
#include "kernels/templates/lazy_residual_loops.h"

uint32_t weft_avx2_lazy_residual_add_matmul_f32(float *m, const struct weft_lazy_residual *lazy,
                                                const float *a, float factor, float *p, const float *q,
                                                size_t rows, size_t cols, size_t rank)
{
    return lazy_in_bands(m, lazy, a, factor, p, q, rows, cols, rank);
}
