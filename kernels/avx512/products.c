/* products.c - dot and the low-rank products with AVX-512; avx2/products.c explains the shapes.
 *
 * The 16 lanes of the specification are one register (f32) or two (f64), which is one chain of additions
 * per rank: a row of M is walked by up to eight ranks, or two rows by up to four, so that enough chains
 * are in flight. Tails go under a mask: masked lanes add +0 * +0 to a lane that started at +0 and so is
 * never -0, no bit changes. */
#include "kernels/avx512/avx512.h"

enum {
    WIDTH = 16,
    RANK_BLOCK = 4,
    ROW_PAIR = 4,
    ROW_BLOCK = 4,
    PANEL_ELEMS = 8192,
    BAND_ELEMS = 8192,
    FUSED_RANKS = 8
};

static inline double fold_lanes_f64(__m512d low, __m512d high)
{
    const __m512d eight = _mm512_add_pd(low, high);
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    const double sum = _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
    return sum == sum ? sum : (double)float_from_bits(FLOAT_NAN);
}

static inline void add_products_f64(__m512d sum[2], __m512 x, __m512 y)
{
    const __m512d low =
        _mm512_mul_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_castps512_ps256(y)));
    const __m512d high = _mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)),
                                       _mm512_cvtps_pd(_mm512_extractf32x8_ps(y, 1)));
    sum[0] = _mm512_add_pd(sum[0], low);
    sum[1] = _mm512_add_pd(sum[1], high);
}

double weft_avx512_dot_f32(const float *a, const float *b, size_t count)
{
    __m512d sum[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    size_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        add_products_f64(sum, _mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i));
    if (i < count) {
        const __mmask16 lanes = first16(count - i);
        add_products_f64(sum, _mm512_maskz_loadu_ps(lanes, a + i), _mm512_maskz_loadu_ps(lanes, b + i));
    }
    return fold_lanes_f64(sum[0], sum[1]);
}

static inline float fold_lanes_f32(__m512 sixteen)
{
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sixteen), _mm512_extractf32x8_ps(sixteen, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return canonical(_mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1))));
}

/* Sixteen columns of `rows` rows of M times `ranks` rows of Q, added up. */
static inline __attribute__((always_inline)) void columns_times(__m512 sum[ROW_PAIR][RANK_BLOCK],
                                                                const float *m, const float *q, size_t cols,
                                                                size_t rows, size_t ranks, __mmask16 lanes)
{
    __m512 factors[RANK_BLOCK];
    for (size_t r = 0; r < ranks; r++)
        factors[r] = _mm512_maskz_loadu_ps(lanes, q + r * cols);
    for (size_t i = 0; i < rows; i++) {
        const __m512 row = _mm512_maskz_loadu_ps(lanes, m + i * cols);
        for (size_t r = 0; r < ranks; r++)
            sum[i][r] = _mm512_add_ps(sum[i][r], _mm512_mul_ps(row, factors[r]));
    }
}

/* `rows` rows of M times `ranks` rows of Q (both constants where inlined). */
static inline __attribute__((always_inline)) void rows_times(float *p, size_t p_stride, const float *m,
                                                             const float *q, size_t cols, size_t rows,
                                                             size_t ranks)
{
    __m512 sum[ROW_PAIR][RANK_BLOCK];
    for (size_t i = 0; i < rows; i++)
        for (size_t r = 0; r < ranks; r++)
            sum[i][r] = _mm512_setzero_ps();
    size_t j = 0;
    for (; j + WIDTH <= cols; j += WIDTH)
        columns_times(sum, m + j, q + j, cols, rows, ranks, ALL16);
    if (j < cols) columns_times(sum, m + j, q + j, cols, rows, ranks, first16(cols - j));
    for (size_t i = 0; i < rows; i++)
        for (size_t r = 0; r < ranks; r++)
            p[r * p_stride + i] = fold_lanes_f32(sum[i][r]);
}

static inline __attribute__((always_inline)) void band_times(float *p, size_t p_stride, const float *m,
                                                             const float *q, size_t cols, size_t rows,
                                                             size_t rank)
{
    for (size_t r = 0; r < rank; r += RANK_BLOCK) {
        float *to = p + r * p_stride;
        const float *from = q + r * cols;
        switch (rank - r) {
        case 1: rows_times(to, p_stride, m, from, cols, rows, 1); break;
        case 2: rows_times(to, p_stride, m, from, cols, rows, 2); break;
        case 3: rows_times(to, p_stride, m, from, cols, rows, 3); break;
        default: rows_times(to, p_stride, m, from, cols, rows, RANK_BLOCK); break;
        }
    }
}

void weft_avx512_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows,
                            size_t cols, size_t rank)
{
    size_t i = 0;
    for (; i + ROW_PAIR <= rows; i += ROW_PAIR)
        band_times(p + i, p_stride, m + i * cols, q, cols, ROW_PAIR, rank);
    for (; i < rows; i++)
        band_times(p + i, p_stride, m + i * cols, q, cols, 1, rank);
}

/* In bands of rows that stay in the first-level cache between being written and being multiplied. */
static uint32_t in_bands(float *m, const float *a, float factor, const float *b, float *p,
                         size_t p_stride, const float *q, size_t rows, size_t cols, size_t rank)
{
    const size_t band = cols < BAND_ELEMS ? BAND_ELEMS / cols : 1;
    uint32_t max_bits = 0;
    for (size_t row = 0; row < rows; row += band) {
        const size_t count = rows - row < band ? rows - row : band, at = row * cols;
        const uint32_t bits = weft_avx512_scale_add_f32(m + at, a + at, factor, b + at, count * cols);
        max_bits = bits > max_bits ? bits : max_bits;
        weft_avx512_matmul_f32(p + row, p_stride, m + at, q, count, cols, rank);
    }
    return max_bits;
}

/* One row of M at a time: made, written past the caches, and multiplied while in registers. One row is
 * enough: the chain of additions of a single rank is shorter than the time memory takes for sixteen
 * elements. `ranks` is a constant where inlined. */
static inline __attribute__((always_inline)) __m512i fused(float *m, const float *a, __m512 factor,
                                                           const float *b, float *p, size_t p_stride,
                                                           const float *q, size_t rows, size_t cols,
                                                           size_t ranks)
{
    __m512i max = _mm512_setzero_si512();
    for (size_t i = 0; i < rows; i++, a += cols, b += cols, m += cols) {
        __m512 sum[FUSED_RANKS];
        for (size_t r = 0; r < ranks; r++)
            sum[r] = _mm512_setzero_ps();
        for (size_t j = 0; j < cols; j += WIDTH) {
            const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(a + j), factor);
            const __m512 row = canonical16(_mm512_add_ps(scaled, _mm512_loadu_ps(b + j)));
            max = _mm512_max_epu32(max, magnitude16(row));
            _mm512_stream_ps(m + j, row);
            for (size_t r = 0; r < ranks; r++)
                sum[r] = _mm512_add_ps(sum[r], _mm512_mul_ps(row, _mm512_loadu_ps(q + r * cols + j)));
        }
        for (size_t r = 0; r < ranks; r++)
            p[r * p_stride + i] = fold_lanes_f32(sum[r]);
    }
    _mm_sfence();
    return max;
}

/* Fused only where M is written past the caches anyway: a small M is better left in them for matmul_t. */
uint32_t weft_avx512_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b, float *p,
                                          size_t p_stride, const float *q, size_t rows, size_t cols,
                                          size_t rank)
{
    const __m512 f = _mm512_set1_ps(factor);
    if (rank > FUSED_RANKS || m == b || cols % WIDTH != 0 || stream_from(m, sizeof *m, rows * cols) != 0)
        return in_bands(m, a, factor, b, p, p_stride, q, rows, cols, rank);
    switch (rank) {
    case 1: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 1));
    case 2: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 2));
    case 3: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 3));
    case 4: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 4));
    case 5: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 5));
    case 6: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 6));
    case 7: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 7));
    default: return _mm512_reduce_max_epu32(fused(m, a, f, b, p, p_stride, q, rows, cols, 8));
    }
}

/* Sixteen columns of `rows` rows of M, times `ranks` rows of P, onto the sums: M is read once for all of
 * them. The rows behind these are fetched meanwhile: a panel's piece of a row is too short for the
 * processor to see that it goes on. */
static inline __attribute__((always_inline)) void add_row_columns(float *sums, const float *m,
                                                                  __m512 factors[RANK_BLOCK][ROW_BLOCK],
                                                                  size_t cols, size_t width, size_t rows,
                                                                  size_t ranks, __mmask16 lanes)
{
    __m512 sum[RANK_BLOCK];
    for (size_t r = 0; r < ranks; r++)
        sum[r] = _mm512_maskz_loadu_ps(lanes, sums + r * width);
    for (size_t i = 0; i < rows; i++) {
        const __m512 row = _mm512_maskz_loadu_ps(lanes, m + i * cols);
        prefetch(m + i * cols, rows * cols * sizeof *m);
        for (size_t r = 0; r < ranks; r++)
            sum[r] = _mm512_add_ps(sum[r], _mm512_mul_ps(row, factors[r][i]));
    }
    for (size_t r = 0; r < ranks; r++)
        _mm512_mask_storeu_ps(sums + r * width, lanes, sum[r]);
}

/* `rows` rows of M and `ranks` rows of P, both constants where inlined. */
static inline __attribute__((always_inline)) void add_ranks(float *sums, const float *m, const float *p,
                                                            size_t p_stride, size_t cols, size_t width,
                                                            size_t rows, size_t ranks)
{
    __m512 factors[RANK_BLOCK][ROW_BLOCK];
    for (size_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < rows; i++)
            factors[r][i] = _mm512_set1_ps(p[r * p_stride + i]);
    size_t j = 0;
    for (; j + WIDTH <= width; j += WIDTH)
        add_row_columns(sums + j, m + j, factors, cols, width, rows, ranks, ALL16);
    if (j < width) add_row_columns(sums + j, m + j, factors, cols, width, rows, ranks, first16(width - j));
}

static inline __attribute__((always_inline)) void add_rows(float *sums, const float *m, const float *p,
                                                           size_t p_stride, size_t cols, size_t width,
                                                           size_t rows, size_t rank)
{
    for (size_t r = 0; r < rank; r += RANK_BLOCK) {
        float *to = sums + r * width;
        const float *from = p + r * p_stride;
        switch (rank - r) {
        case 1: add_ranks(to, m, from, p_stride, cols, width, rows, 1); break;
        case 2: add_ranks(to, m, from, p_stride, cols, width, rows, 2); break;
        case 3: add_ranks(to, m, from, p_stride, cols, width, rows, 3); break;
        default: add_ranks(to, m, from, p_stride, cols, width, rows, RANK_BLOCK); break;
        }
    }
}

/* Columns are cut into panels, so that a panel of every rank of Q stays in the first-level cache while
 * rows go by. For 64 ranks and fewer rank * width is at most PANEL_ELEMS. */
static inline size_t panel_width(size_t rank)
{
    const size_t width = PANEL_ELEMS / rank / WIDTH * WIDTH;
    return width > 4 * WIDTH ? width : 4 * WIDTH;
}

#include "kernels/templates/matmul_t_loops.h"

void weft_avx512_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols, size_t rank)
{
    matmul_t_in_bands(q, m, p, rows, cols, rank, panel_width(rank));
}

enum outer_kind { OUTER_WRITE, OUTER_STREAM, OUTER_SUBTRACT };

/* 16 * `vectors` elements of row i of P^T Q, written or subtracted from what is there; lanes: of the last
 * vector. */
static inline __attribute__((always_inline)) void outer_vectors(float *out, const float *p, const float *q,
                                                                size_t rows, size_t cols, size_t rank,
                                                                size_t vectors, __mmask16 lanes,
                                                                enum outer_kind kind)
{
    __m512 sum[4];
    for (size_t v = 0; v < vectors; v++)
        sum[v] = _mm512_mul_ps(_mm512_set1_ps(p[0]), _mm512_maskz_loadu_ps(lanes, q + v * WIDTH));
    for (size_t r = 1; r < rank; r++) {
        const __m512 factor = _mm512_set1_ps(p[r * rows]);
        for (size_t v = 0; v < vectors; v++)
            sum[v] = _mm512_add_ps(
                sum[v], _mm512_mul_ps(factor, _mm512_maskz_loadu_ps(lanes, q + r * cols + v * WIDTH)));
    }
    for (size_t v = 0; v < vectors; v++) {
        if (kind == OUTER_SUBTRACT)
            sum[v] = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, out + v * WIDTH), sum[v]);
        if (kind == OUTER_STREAM) _mm512_stream_ps(out + v * WIDTH, canonical16(sum[v]));
        else _mm512_mask_storeu_ps(out + v * WIDTH, lanes, canonical16(sum[v]));
    }
}

static inline __attribute__((always_inline)) void outer(float *out, const float *p, const float *q,
                                                        size_t rows, size_t cols, size_t rank,
                                                        enum outer_kind kind)
{
    const size_t panel = panel_width(rank);
    for (size_t begin = 0; begin < cols; begin += panel) {
        const size_t end = cols - begin < panel ? cols : begin + panel;
        for (size_t i = 0; i < rows; i++) {
            float *row = out + i * cols;
            size_t j = begin;
            for (; j + 4 * WIDTH <= end; j += 4 * WIDTH)
                outer_vectors(row + j, p + i, q + j, rows, cols, rank, 4, ALL16, kind);
            for (; j < end; j += WIDTH)
                outer_vectors(row + j, p + i, q + j, rows, cols, rank, 1, first16(end - j), kind);
        }
    }
}

/* Streaming wants every row to begin at a cache line and to be a whole number of them. */
void weft_avx512_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank)
{
    const bool stream = cols % WIDTH == 0 && stream_from(out, sizeof *out, rows * cols) == 0;
    if (stream) outer(out, p, q, rows, cols, rank, OUTER_STREAM);
    else outer(out, p, q, rows, cols, rank, OUTER_WRITE);
    if (stream) _mm_sfence();
}

void weft_avx512_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols,
                               size_t rank)
{
    outer(m, p, q, rows, cols, rank, OUTER_SUBTRACT);
}

/* ---- the residual formed, the gradient added, the product taken: everything while in registers ---- */

struct lazy_rows {
    float *m;
    const float *before, *a, *lazy_p, *lazy_q, *q;
    __m512 factor;
    size_t rows, cols;
};

/* Sixteen columns of `rows` rows, rows * ranks <= FUSED_RANKS. Later columns are fetched
 * meanwhile: so many operations on each line leave the processor too few loads in flight to keep memory
 * busy. */
static inline __attribute__((always_inline)) void lazy_columns(const struct lazy_rows *o, size_t j,
                                                               __m512 *sum, const __m512 *lazy_p,
                                                               __m512i *max, size_t rows, size_t ranks,
                                                               __mmask16 lanes, bool stream)
{
    __m512 row[ROW_PAIR];
#pragma GCC unroll 4
    for (size_t i = 0; i < rows; i++) {
        const size_t at = i * o->cols + j;
        __m512 lazy = _mm512_mul_ps(lazy_p[i * ranks], _mm512_maskz_loadu_ps(lanes, o->lazy_q + j));
#pragma GCC unroll 8
        for (size_t r = 1; r < ranks; r++)
            lazy =
                _mm512_add_ps(lazy, _mm512_mul_ps(lazy_p[i * ranks + r],
                                                  _mm512_maskz_loadu_ps(lanes, o->lazy_q + r * o->cols + j)));
        prefetch_ahead(o->before + at);
        prefetch_ahead(o->a + at);
        const __m512 residual =
            canonical16(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, o->before + at), lazy));
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, o->a + at), o->factor);
        /* Inf * 0 behind the end */
        row[i] = _mm512_maskz_mov_ps(lanes, canonical16(_mm512_add_ps(scaled, residual)));
        *max = _mm512_mask_max_epu32(*max, lanes, *max, magnitude16(row[i]));
        if (stream) _mm512_stream_ps(o->m + at, row[i]);
        else _mm512_mask_storeu_ps(o->m + at, lanes, row[i]);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < ranks; r++) {
        const __m512 factors = _mm512_maskz_loadu_ps(lanes, o->q + r * o->cols + j);
#pragma GCC unroll 4
        for (size_t i = 0; i < rows; i++)
            sum[i * ranks + r] = _mm512_add_ps(sum[i * ranks + r], _mm512_mul_ps(row[i], factors));
    }
}

/* `rows` rows from row `first` on; rows, ranks and stream are constants where inlined. */
static inline __attribute__((always_inline)) __m512i lazy_block(const struct lazy_rows *all, float *p,
                                                                size_t first, __m512i max, size_t rows,
                                                                size_t ranks, bool stream)
{
    const size_t from = first * all->cols;
    const struct lazy_rows o = {all->m + from,       all->before + from, all->a + from,
                                all->lazy_p + first, all->lazy_q,        all->q,
                                all->factor,         all->rows,          all->cols};
    __m512 sum[FUSED_RANKS], lazy_p[FUSED_RANKS];
    size_t j = 0;
#pragma GCC unroll 4
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (size_t r = 0; r < ranks; r++) {
            sum[i * ranks + r] = _mm512_setzero_ps();
            lazy_p[i * ranks + r] = _mm512_set1_ps(o.lazy_p[r * o.rows + i]);
        }
    for (; j + WIDTH <= o.cols; j += WIDTH)
        lazy_columns(&o, j, sum, lazy_p, &max, rows, ranks, ALL16, stream);
    if (!stream && j < o.cols)
        lazy_columns(&o, j, sum, lazy_p, &max, rows, ranks, first16(o.cols - j), false);
#pragma GCC unroll 4
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (size_t r = 0; r < ranks; r++)
            p[r * o.rows + first + i] = fold_lanes_f32(sum[i * ranks + r]);
    return max;
}

/* As many rows together as have registers for their sums and factors. */
static inline __attribute__((always_inline)) uint32_t lazy_in_registers(const struct lazy_rows *o, float *p,
                                                                        size_t ranks, bool stream)
{
    const size_t together = FUSED_RANKS / ranks < ROW_PAIR ? FUSED_RANKS / ranks : ROW_PAIR;
    __m512i max = _mm512_setzero_si512();
    size_t i = 0;
    if (stream) {
        for (; i + together <= o->rows; i += together)
            max = lazy_block(o, p, i, max, together, ranks, true);
        _mm_sfence();
    } else {
        for (; i + together <= o->rows; i += together)
            max = lazy_block(o, p, i, max, together, ranks, false);
    }
    for (; i < o->rows; i++)
        max = lazy_block(o, p, i, max, 1, ranks, false);
    return _mm512_reduce_max_epu32(max);
}

#define LAZY(name) weft_avx512_##name
#include "kernels/templates/lazy_residual_loops.h"

uint32_t weft_avx512_lazy_residual_add_matmul_f32(float *m, const struct weft_lazy_residual *lazy,
                                                  const float *a, float factor, float *p, const float *q,
                                                  size_t rows, size_t cols, size_t rank)
{
    const bool stream = cols % WIDTH == 0 && stream_from(m, sizeof *m, rows * cols) == 0;
    const struct lazy_rows o = {m, lazy->m, a, lazy->p, lazy->q, q, _mm512_set1_ps(factor), rows, cols};
    switch (rank) {
    case 1: return lazy_in_registers(&o, p, 1, stream);
    case 2: return lazy_in_registers(&o, p, 2, stream);
    case 3: return lazy_in_registers(&o, p, 3, stream);
    case 4: return lazy_in_registers(&o, p, 4, stream);
    case 5: return lazy_in_registers(&o, p, 5, stream);
    case 6: return lazy_in_registers(&o, p, 6, stream);
    case 7: return lazy_in_registers(&o, p, 7, stream);
    case 8: return lazy_in_registers(&o, p, 8, stream);
    default: return lazy_in_bands(m, lazy, a, factor, p, q, rows, cols, rank);
    }
}
