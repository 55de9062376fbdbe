/* products.cu - the low-rank products of PowerSGD, in the orders of kernels.h.
 *
 *   P = M Q      the sixteen lanes of a horizontal sum are half a warp: it walks two rows, eight ranks at a
 *                time, with eight loads of each row in flight. With the residual fused M is made, written and
 *                multiplied in one walk.
 *   Q = M^T P    a thread has a column and a band of rows, a second kernel adds the bands in order.
 *   P^T Q        a thread has four columns of a few rows; Q's part stays in registers.
 *
 * Bytes an element of M: 12 + 4 + 8 (residual) + 4 (decoded) = 28 a step. More than eight ranks go in
 * several walks. */
#include "kernels/cuda/device.h"

namespace
{

constexpr unsigned LANES = 16, RANKS = 8, ROWS = 2, AHEAD = 8, BAND_AHEAD = 16;
constexpr size_t RANK_MAX = 64;

/* Of half a warp: 8+8, 4+4, 2+2, 1+1; right in its lane 0. */
__device__ inline float fold_lanes(float mine)
{
    for (unsigned half = LANES / 2; half > 0; half /= 2) mine += __shfl_down_sync(ALL, mine, half, LANES);
    return canonical(mine);
}

/* N ranks from `first_rank` on. FUSED: m = a*factor + b is made and written here. Rows beyond the last are
 * walked like the last, so that all lanes meet in the folds, but nothing is written for them. */
template <bool FUSED, int N>
__global__ void __launch_bounds__(THREADS)
    matmul_kernel(float *p, size_t p_stride, float *m, const float *a, float factor, const float *b,
                  const float *q, size_t rows, size_t cols, uint32_t *max_bits)
{
    const size_t row = thread_number() / LANES * ROWS;
    const unsigned lane = threadIdx.x % LANES;
    float sum[ROWS][N] = {};
    uint32_t max = 0;
    size_t at[ROWS]; /* where the rows begin */
    bool real[ROWS];
    for (unsigned i = 0; i < ROWS; i++) {
        real[i] = row + i < rows;
        at[i] = (real[i] ? row + i : rows - 1) * cols;
    }
    for (size_t j = lane; j < cols; j += LANES * AHEAD) {
        float x[ROWS][AHEAD];
        for (unsigned i = 0; i < ROWS; i++)
            for (unsigned t = 0; t < AHEAD; t++) {
                const size_t column = j + t * LANES;
                if (FUSED)
                    x[i][t] =
                        column < cols ? canonical(a[at[i] + column] * factor + b[at[i] + column]) : 0.0f;
                else x[i][t] = column < cols ? m[at[i] + column] : 0.0f;
            }
        for (unsigned t = 0; t < AHEAD; t++) {
            const size_t column = j + t * LANES;
            if (column >= cols) break;
            if (FUSED)
                for (unsigned i = 0; i < ROWS; i++)
                    if (real[i]) { /* another may have written over b of a row that is not this one's */
                        max = larger(max, magnitude(x[i][t]));
                        m[at[i] + column] = x[i][t];
                    }
            for (int r = 0; r < N; r++) {
                const float factor_r = q[(size_t)r * cols + column];
                for (unsigned i = 0; i < ROWS; i++) sum[i][r] += x[i][t] * factor_r;
            }
        }
    }
    for (unsigned i = 0; i < ROWS; i++)
        for (int r = 0; r < N; r++) {
            const float total = fold_lanes(sum[i][r]);
            if (lane == 0 && real[i]) p[(size_t)r * p_stride + row + i] = total;
        }
    if (FUSED && max_bits) raise(max_bits, max);
}

template <bool FUSED>
enum weft_status matmul_ranks(size_t ranks, float *p, size_t p_stride, float *m, const float *a, float factor,
                              const float *b, const float *q, size_t rows, size_t cols, uint32_t *max_bits,
                              weft_cuda_stream stream)
{
    const size_t blocks = pieces(pieces(rows, ROWS), THREADS / LANES);
#define RANKS_CASE(n)                                                                                    \
    case n:                                                                                              \
        return launch(stream, blocks, THREADS, matmul_kernel<FUSED, n>, p, p_stride, m, a, factor, b, q, \
                      rows, cols, max_bits)
    switch (ranks) {
        RANKS_CASE(1);
        RANKS_CASE(2);
        RANKS_CASE(3);
        RANKS_CASE(4);
        RANKS_CASE(5);
        RANKS_CASE(6);
        RANKS_CASE(7);
    default:
        return launch(stream, blocks, THREADS, matmul_kernel<FUSED, 8>, p, p_stride, m, a, factor, b, q, rows,
                      cols, max_bits);
    }
#undef RANKS_CASE
}

/* What is left of Q after `done` ranks, in walks over M as it stands. */
enum weft_status matmul_rest(size_t done, float *p, size_t p_stride, const float *m, const float *q,
                             size_t rows, size_t cols, size_t rank, weft_cuda_stream stream)
{
    enum weft_status status = WEFT_OK;
    for (size_t r = done; r < rank && status == WEFT_OK; r += RANKS)
        status =
            matmul_ranks<false>(at_most(rank - r, RANKS), p + r * p_stride, p_stride, const_cast<float *>(m),
                                nullptr, 1.0f, nullptr, q + r * cols, rows, cols, nullptr, stream);
    return status;
}

/* ---- Q = M^T P ---- */

/* Sums of one band for N ranks: columns by threads, bands by blocks; sums (bands, rank, cols) is scratch, or
 * q itself. */
template <int N>
__global__ void __launch_bounds__(THREADS)
    band_kernel(float *sums, const float *m, const float *p, size_t rows, size_t cols, size_t rank,
                size_t first_rank, size_t column_blocks)
{
    __shared__ float factors[N][WEFT_MATMUL_T_BAND];
    const size_t band = blockIdx.x / column_blocks, j = blockIdx.x % column_blocks * THREADS + threadIdx.x;
    const size_t first = band * WEFT_MATMUL_T_BAND, left = rows - first;
    const unsigned count = (unsigned)(left < WEFT_MATMUL_T_BAND ? left : WEFT_MATMUL_T_BAND);
    for (unsigned t = threadIdx.x; t < N * WEFT_MATMUL_T_BAND; t += THREADS) {
        const unsigned r = t / WEFT_MATMUL_T_BAND, i = t % WEFT_MATMUL_T_BAND;
        factors[r][i] = i < count ? p[(first_rank + r) * rows + first + i] : 0.0f;
    }
    __syncthreads();
    if (j >= cols) return;
    const float *column = m + first * cols + j;
    float sum[N] = {};
    unsigned i = 0;
    for (; i + BAND_AHEAD <= count; i += BAND_AHEAD) {
        float x[BAND_AHEAD];
        for (unsigned t = 0; t < BAND_AHEAD; t++) x[t] = column[(size_t)(i + t) * cols];
        for (unsigned t = 0; t < BAND_AHEAD; t++)
            for (int r = 0; r < N; r++) sum[r] += x[t] * factors[r][i + t];
    }
    for (; i < count; i++)
        for (int r = 0; r < N; r++) sum[r] += column[(size_t)i * cols] * factors[r][i];
    for (int r = 0; r < N; r++) sums[(band * rank + first_rank + (size_t)r) * cols + j] = sum[r];
}

__global__ void __launch_bounds__(THREADS)
    add_bands_kernel(float *q, const float *sums, size_t elems, size_t bands)
{
    const size_t at = thread_number();
    if (at >= elems) return;
    float sum = 0.0f;
    for (size_t band = 0; band < bands; band++) sum += sums[band * elems + at];
    q[at] = canonical(sum);
}

/* ---- P^T Q ---- */

enum { OUTER_ROWS = 8 };

/* Four columns (or one) of OUTER_ROWS rows a thread. NMAX ranks of Q in registers; 0: any number, from
 * memory. */
template <bool SUBTRACT, int NMAX, int W>
__global__ void __launch_bounds__(THREADS)
    outer_kernel(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank,
                 size_t column_blocks)
{
    const size_t j = (blockIdx.x % column_blocks * THREADS + threadIdx.x) * W,
                 first = blockIdx.x / column_blocks * OUTER_ROWS;
    if (j >= cols) return;
    pack<float, W> mine[NMAX > 0 ? NMAX : 1];
    if (NMAX > 0)
        for (int r = 0; r < NMAX; r++) mine[r] = load<W>(q + (size_t)r * cols + j);
    for (size_t i = first; i < first + OUTER_ROWS && i < rows; i++) {
        pack<float, W> sum = {}, before = {};
        if (SUBTRACT) before = load<W>(out + i * cols + j);
        for (size_t r = 0; r < (NMAX > 0 ? (size_t)NMAX : rank); r++) {
            const float factor = p[r * rows + i];
            const pack<float, W> from = NMAX > 0 ? mine[r] : load<W>(q + r * cols + j);
            for (int c = 0; c < W; c++)
                sum.v[c] = r == 0 ? factor * from.v[c] : sum.v[c] + factor * from.v[c];
        }
        for (int c = 0; c < W; c++) sum.v[c] = canonical(SUBTRACT ? before.v[c] - sum.v[c] : sum.v[c]);
        store<W>(out + i * cols + j, sum);
    }
}

template <bool SUBTRACT, int W>
enum weft_status outer_ranks(float *out, const float *p, const float *q, size_t rows, size_t cols,
                             size_t rank, weft_cuda_stream stream)
{
    const size_t column_blocks = pieces(pieces(cols, W), THREADS),
                 blocks = column_blocks * pieces(rows, OUTER_ROWS);
#define RANKS_CASE(n)                                                                                     \
    case n:                                                                                               \
        return launch(stream, blocks, THREADS, outer_kernel<SUBTRACT, n, W>, out, p, q, rows, cols, rank, \
                      column_blocks)
    switch (rank) {
        RANKS_CASE(1);
        RANKS_CASE(2);
        RANKS_CASE(3);
        RANKS_CASE(4);
        RANKS_CASE(5);
        RANKS_CASE(6);
        RANKS_CASE(7);
        RANKS_CASE(8);
    default:
        return launch(stream, blocks, THREADS, outer_kernel<SUBTRACT, 0, W>, out, p, q, rows, cols, rank,
                      column_blocks);
    }
#undef RANKS_CASE
}

template <bool SUBTRACT>
enum weft_status outer(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank,
                       weft_cuda_stream stream)
{
    return cols % 4 == 0 && aligned(out, q) ? outer_ranks<SUBTRACT, 4>(out, p, q, rows, cols, rank, stream)
                                            : outer_ranks<SUBTRACT, 1>(out, p, q, rows, cols, rank, stream);
}

bool wrong(size_t rows, size_t cols, size_t rank)
{
    return rank < 1 || rank > RANK_MAX || rows < 1 || cols < 1;
}

} // namespace

enum weft_status weft_cuda_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows,
                                      size_t cols, size_t rank, weft_cuda_stream stream)
{
    return wrong(rows, cols, rank) ? WEFT_ERR_INVALID
                                   : matmul_rest(0, p, p_stride, m, q, rows, cols, rank, stream);
}

enum weft_status weft_cuda_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b,
                                                float *p, size_t p_stride, const float *q, size_t rows,
                                                size_t cols, size_t rank, uint32_t *max_bits,
                                                weft_cuda_stream stream)
{
    if (wrong(rows, cols, rank)) return WEFT_ERR_INVALID;
    const enum weft_status status = matmul_ranks<true>(at_most(rank, RANKS), p, p_stride, m, a, factor, b, q,
                                                       rows, cols, max_bits, stream);
    return status == WEFT_OK ? matmul_rest(RANKS, p, p_stride, m, q, rows, cols, rank, stream) : status;
}

size_t weft_cuda_matmul_t_workspace(size_t rows, size_t cols, size_t rank)
{
    return pieces(rows, WEFT_MATMUL_T_BAND) * rank * cols * sizeof(float);
}

enum weft_status weft_cuda_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols,
                                        size_t rank, void *workspace, weft_cuda_stream stream)
{
    const size_t bands = pieces(rows, WEFT_MATMUL_T_BAND), column_blocks = pieces(cols, THREADS),
                 blocks = bands * column_blocks;
    float *sums = (float *)workspace;
    enum weft_status status = WEFT_OK;
    if (wrong(rows, cols, rank)) return WEFT_ERR_INVALID;
    for (size_t r = 0; r < rank && status == WEFT_OK; r += RANKS) {
#define RANKS_CASE(n)                                                                                        \
    case n:                                                                                                  \
        status =                                                                                             \
            launch(stream, blocks, THREADS, band_kernel<n>, sums, m, p, rows, cols, rank, r, column_blocks); \
        break
        switch (rank - r) {
            RANKS_CASE(1);
            RANKS_CASE(2);
            RANKS_CASE(3);
            RANKS_CASE(4);
            RANKS_CASE(5);
            RANKS_CASE(6);
            RANKS_CASE(7);
        default:
            status = launch(stream, blocks, THREADS, band_kernel<8>, sums, m, p, rows, cols, rank, r,
                            column_blocks);
        }
#undef RANKS_CASE
    }
    if (status != WEFT_OK) return status;
    return launch(stream, pieces(rank * cols, THREADS), THREADS, add_bands_kernel, q, (const float *)sums,
                  rank * cols, bands);
}

enum weft_status weft_cuda_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols,
                                     size_t rank, weft_cuda_stream stream)
{
    return wrong(rows, cols, rank) ? WEFT_ERR_INVALID : outer<false>(out, p, q, rows, cols, rank, stream);
}

enum weft_status weft_cuda_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols,
                                         size_t rank, weft_cuda_stream stream)
{
    return wrong(rows, cols, rank) ? WEFT_ERR_INVALID : outer<true>(m, p, q, rows, cols, rank, stream);
}
