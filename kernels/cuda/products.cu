/* products.cu - the low-rank products of PowerSGD, in the orders of kernels.h.
 *
 *   P = M Q      a block has four rows and walks them in tiles of 1024 columns: all its threads read a tile by whole packs
 *                into shared memory, the next one is on its way while half warps, one a row and a few ranks,
 *                add what lies in it: their lanes are the sixteen of a horizontal sum. With the residual
 *                fused M is formed and written as each tile is loaded.
 *   Q = M^T P    a thread has a column and a band of rows, the last band first, which P = M Q wrote last; a second kernel adds
 *                the bands in order.
 *   P^T Q        a thread has four columns of a few rows; Q's part stays in registers.
 *
 * Each kernel works on a table of matrices of one shape (matrix_table.h): blockIdx.y is the matrix.
 *
 * Bytes an element of M: 12 + 4 + 8 (residual) + 4 (decoded) = 28 a step. More than eight ranks go in
 * several walks. */
#include "kernels/cuda/matrix_table.h"

namespace
{

constexpr unsigned LANES = 16, RANKS = 8, BAND_AHEAD = 16, BAND_THREADS = 64;
/* Of a tile: rows are apart by half the banks, so that the two of a warp do not meet in one. */
constexpr unsigned TILE_ROWS = 4, TILE_COLS = 1024, TILE_STRIDE = TILE_COLS + 16;
constexpr unsigned GROUPS = THREADS / (LANES * TILE_ROWS); /* of ranks: each has every GROUPS-th */
constexpr unsigned AHEAD = 8;                              /* elements of a chain that are read at once */
constexpr size_t RANK_MAX = 64;

/* Of half a warp: 8+8, 4+4, 2+2, 1+1; right in its lane 0. */
__device__ inline float fold_lanes(float mine)
{
    for (unsigned half = LANES / 2; half > 0; half /= 2) mine += __shfl_down_sync(ALL, mine, half, LANES);
    return canonical(mine);
}

/* A thread's part of a tile, on its way: TILE_COLS / THREADS elements of each row, in packs of W. */
template <bool FUSED, int W> struct coming {
    static constexpr unsigned PACKS = TILE_COLS / THREADS / W;
    pack<float, W> a[TILE_ROWS][PACKS], b[FUSED ? TILE_ROWS : 1][FUSED ? PACKS : 1];
    __device__ static size_t column(size_t begin, unsigned k)
    {
        return begin + (k * THREADS + threadIdx.x) * W;
    }
    __device__ void read(const float *from_a, const float *from_b, size_t begin, size_t cols,
                         unsigned real_rows)
    {
        for (unsigned i = 0; i < TILE_ROWS; i++)
            for (unsigned k = 0; k < PACKS; k++) {
                if (i >= real_rows || column(begin, k) >= cols) continue;
                a[i][k] = load<W>(from_a + i * cols + column(begin, k));
                if constexpr (FUSED) b[i][k] = load<W>(from_b + i * cols + column(begin, k));
            }
    }
    /* Into the tile; FUSED: m = a*factor + b, whose largest magnitude is returned. m may be b, which has
     * been read. */
    __device__ uint32_t put(float (*tile)[TILE_STRIDE], float *m, float factor, size_t begin, size_t cols,
                            unsigned real_rows) const
    {
        uint32_t max = 0;
        for (unsigned i = 0; i < TILE_ROWS; i++)
            for (unsigned k = 0; k < PACKS; k++) {
                if (i >= real_rows || column(begin, k) >= cols) continue;
                pack<float, W> x = a[i][k];
                if constexpr (FUSED) {
                    for (int j = 0; j < W; j++) {
                        x.v[j] = canonical(x.v[j] * factor + b[i][k].v[j]);
                        max = larger(max, magnitude(x.v[j]));
                    }
                    store<W>(m + i * cols + column(begin, k), x);
                }
                store<W>(&tile[i][column(0, k)], x);
            }
        return max;
    }
};

/* N ranks. FUSED: m = a*factor + b is made and written here; otherwise a is M. */
template <bool FUSED, int N, int W>
__global__ void __launch_bounds__(THREADS)
    matmul_kernel(const matrix_table table, size_t p_stride, size_t rows, size_t cols, size_t first_rank)
{
    const struct weft_matrix &matrix = table.of[blockIdx.y];
    float *const p = matrix.p + first_rank * p_stride, *const m = matrix.m;
    const float *const a = FUSED ? matrix.a : matrix.m, *const b = FUSED ? matrix.b : nullptr,
                       *const q = matrix.q + first_rank * cols;
    const float factor = matrix.factor;
    uint32_t *const max_bits = matrix.max_bits;
    alignas(16) __shared__ float tile[TILE_ROWS][TILE_STRIDE];
    constexpr unsigned CHAINS = (N + GROUPS - 1) / GROUPS;
    const size_t first = (size_t)blockIdx.x * TILE_ROWS, at = first * cols;
    const unsigned real_rows = rows - first < TILE_ROWS ? (unsigned)(rows - first) : TILE_ROWS;
    const unsigned lane = threadIdx.x % LANES, row = threadIdx.x / LANES % TILE_ROWS,
                   group = threadIdx.x / (LANES * TILE_ROWS);
    coming<FUSED, W> next;
    float sum[CHAINS] = {};
    uint32_t max = 0;
    next.read(a + at, b + at, 0, cols, real_rows);
    for (size_t begin = 0; begin < cols; begin += TILE_COLS) {
        const unsigned width = cols - begin < TILE_COLS ? (unsigned)(cols - begin) : TILE_COLS;
        max = larger(max, next.put(tile, m + at, factor, begin, cols, real_rows));
        __syncthreads();
        next.read(a + at, b + at, begin + TILE_COLS, cols, real_rows);
        if ((N % GROUPS == 0 || group < N) && row < real_rows) {
            const float *x = tile[row], *factors = q + group * cols + begin;
            unsigned j = lane;
            for (; j + (AHEAD - 1) * LANES < width; j += AHEAD * LANES)
                for (unsigned c = 0; c < CHAINS && (N % GROUPS == 0 || c * GROUPS + group < N); c++) {
                    float f[AHEAD];
                    for (unsigned t = 0; t < AHEAD; t++) f[t] = factors[c * GROUPS * cols + j + t * LANES];
                    for (unsigned t = 0; t < AHEAD; t++) sum[c] += x[j + t * LANES] * f[t];
                }
            for (; j < width; j += LANES)
                for (unsigned c = 0; c < CHAINS && (N % GROUPS == 0 || c * GROUPS + group < N); c++)
                    sum[c] += x[j] * factors[c * GROUPS * cols + j];
        }
        __syncthreads();
    }
    for (unsigned c = 0; c < CHAINS; c++) {
        const unsigned r = c * GROUPS + group;
        const float total = fold_lanes(sum[c]);
        if (lane == 0 && row < real_rows && r < N) p[(size_t)r * p_stride + first + row] = total;
    }
    if (FUSED && max_bits) raise(max_bits, max);
}

template <bool FUSED, int W>
enum weft_status matmul_ranks(size_t ranks, const matrix_table &table, size_t p_stride, size_t rows,
                              size_t cols, size_t first_rank, weft_cuda_stream stream)
{
    const size_t blocks = pieces(rows, TILE_ROWS);
#define RANKS_CASE(n)                                                                                     \
    case n:                                                                                               \
        return launch_many(stream, blocks, table.count, THREADS, matmul_kernel<FUSED, n, W>, table, p_stride, \
                           rows, cols, first_rank)
    switch (ranks) {
        RANKS_CASE(1);
        RANKS_CASE(2);
        RANKS_CASE(3);
        RANKS_CASE(4);
        RANKS_CASE(5);
        RANKS_CASE(6);
        RANKS_CASE(7);
    default:
        return launch_many(stream, blocks, table.count, THREADS, matmul_kernel<FUSED, 8, W>, table, p_stride,
                           rows, cols, first_rank);
    }
#undef RANKS_CASE
}

/* What is left of Q after `done` ranks, in walks over M as it stands. */
enum weft_status matmul_rest(size_t done, const matrix_table &table, size_t p_stride, size_t rows,
                             size_t cols, size_t rank, weft_cuda_stream stream)
{
    bool wide = cols % 4 == 0;
    enum weft_status status = WEFT_OK;
    for (size_t i = 0; i < table.count; i++) wide = wide && aligned(table.of[i].m);
    for (size_t r = done; r < rank && status == WEFT_OK; r += RANKS)
        status = (wide ? matmul_ranks<false, 4> : matmul_ranks<false, 1>)(at_most(rank - r, RANKS), table,
                                                                          p_stride, rows, cols, r, stream);
    return status;
}

enum weft_status matmul_fused(const matrix_table &table, size_t p_stride, size_t rows, size_t cols,
                              size_t rank, weft_cuda_stream stream)
{
    bool wide = cols % 4 == 0;
    for (size_t i = 0; i < table.count; i++)
        wide = wide && aligned(table.of[i].m, table.of[i].a, table.of[i].b);
    const enum weft_status status = (wide ? matmul_ranks<true, 4> : matmul_ranks<true, 1>)(
        at_most(rank, RANKS), table, p_stride, rows, cols, 0, stream);
    return status == WEFT_OK ? matmul_rest(RANKS, table, p_stride, rows, cols, rank, stream) : status;
}

/* ---- Q = M^T P ---- */

/* Sums of one band for N ranks: columns by threads, bands by blocks; sums (bands, rank, cols) is scratch, or
 * q itself. */
template <int N>
__global__ void __launch_bounds__(BAND_THREADS)
    band_kernel(const matrix_table table, size_t rows, size_t cols, size_t rank,
                size_t first_rank, size_t column_blocks)
{
    const float *const m = table.of[blockIdx.y].m, *const p = table.of[blockIdx.y].p;
    float *const sums = (float *)table.of[blockIdx.y].scratch;
    alignas(16) __shared__ float factors[N][WEFT_MATMUL_T_BAND];
    const size_t band = gridDim.x / column_blocks - 1 - blockIdx.x / column_blocks;
    const size_t j = blockIdx.x % column_blocks * BAND_THREADS + threadIdx.x;
    const size_t first = band * WEFT_MATMUL_T_BAND, left = rows - first;
    const unsigned count = (unsigned)(left < WEFT_MATMUL_T_BAND ? left : WEFT_MATMUL_T_BAND);
    const bool real = j < cols;
    const float *column = m + first * cols + (real ? j : 0);
    float next[BAND_AHEAD] = {}, sum[N] = {};
    if (BAND_AHEAD <= count)
        for (unsigned t = 0; t < BAND_AHEAD; t++) next[t] = column[(size_t)t * cols];
    for (unsigned t = threadIdx.x; t < N * WEFT_MATMUL_T_BAND; t += BAND_THREADS) {
        const unsigned r = t / WEFT_MATMUL_T_BAND, i = t % WEFT_MATMUL_T_BAND;
        factors[r][i] = i < count ? p[(first_rank + r) * rows + first + i] : 0.0f;
    }
    __syncthreads();
    if (!real) return;
    unsigned i = 0;
    for (; i + BAND_AHEAD <= count; i += BAND_AHEAD) {
        float x[BAND_AHEAD];
        for (unsigned t = 0; t < BAND_AHEAD; t++) x[t] = next[t];
        if (i + 2 * BAND_AHEAD <= count)
            for (unsigned t = 0; t < BAND_AHEAD; t++) next[t] = column[(size_t)(i + BAND_AHEAD + t) * cols];
        for (unsigned t = 0; t < BAND_AHEAD; t++)
            for (int r = 0; r < N; r++) sum[r] += x[t] * factors[r][i + t];
    }
    for (; i < count; i++)
        for (int r = 0; r < N; r++) sum[r] += column[(size_t)i * cols] * factors[r][i];
    for (int r = 0; r < N; r++) sums[(band * rank + first_rank + (size_t)r) * cols + j] = sum[r];
}

__global__ void __launch_bounds__(THREADS)
    add_bands_kernel(const matrix_table table, size_t elems, size_t bands)
{
    float *const q = table.of[blockIdx.y].q;
    const float *const sums = (const float *)table.of[blockIdx.y].scratch;
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
    outer_kernel(const matrix_table table, size_t rows, size_t cols, size_t rank, size_t column_blocks)
{
    float *const out = table.of[blockIdx.y].m;
    const float *const p = table.of[blockIdx.y].p, *const q = table.of[blockIdx.y].q;
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
enum weft_status outer_ranks(const matrix_table &table, size_t rows, size_t cols, size_t rank,
                             weft_cuda_stream stream)
{
    const size_t column_blocks = pieces(pieces(cols, W), THREADS),
                 blocks = column_blocks * pieces(rows, OUTER_ROWS);
#define RANKS_CASE(n)                                                                                     \
    case n:                                                                                               \
        return launch_many(stream, blocks, table.count, THREADS, outer_kernel<SUBTRACT, n, W>, table, rows, \
                           cols, rank, column_blocks)
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
        return launch_many(stream, blocks, table.count, THREADS, outer_kernel<SUBTRACT, 0, W>, table, rows,
                           cols, rank, column_blocks);
    }
#undef RANKS_CASE
}

template <bool SUBTRACT>
enum weft_status outer(const matrix_table &table, size_t rows, size_t cols, size_t rank,
                       weft_cuda_stream stream)
{
    bool wide = cols % 4 == 0;
    for (size_t i = 0; i < table.count; i++) wide = wide && aligned(table.of[i].m, table.of[i].q);
    return wide ? outer_ranks<SUBTRACT, 4>(table, rows, cols, rank, stream)
                : outer_ranks<SUBTRACT, 1>(table, rows, cols, rank, stream);
}

enum weft_status matmul_t(const matrix_table &table, size_t rows, size_t cols, size_t rank,
                          weft_cuda_stream stream)
{
    const size_t bands = pieces(rows, WEFT_MATMUL_T_BAND), column_blocks = pieces(cols, BAND_THREADS),
                 blocks = bands * column_blocks;
    enum weft_status status = WEFT_OK;
    for (size_t r = 0; r < rank && status == WEFT_OK; r += RANKS) {
#define RANKS_CASE(n)                                                                                       \
    case n:                                                                                                 \
        status = launch_many(stream, blocks, table.count, BAND_THREADS, band_kernel<n>, table, rows, cols, rank, \
                             r, column_blocks);                                                             \
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
            status = launch_many(stream, blocks, table.count, BAND_THREADS, band_kernel<8>, table, rows, cols,
                                 rank, r, column_blocks);
        }
#undef RANKS_CASE
    }
    if (status != WEFT_OK) return status;
    return launch_many(stream, pieces(rank * cols, THREADS), table.count, THREADS, add_bands_kernel, table,
                       rank * cols, bands);
}

bool has_invalid_shape(size_t rows, size_t cols, size_t rank)
{
    return rank < 1 || rank > RANK_MAX || rows < 1 || cols < 1;
}

} // namespace

enum weft_status weft_cuda_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows,
                                      size_t cols, size_t rank, weft_cuda_stream stream)
{
    const matrix_table table = one_matrix({(float *)m, nullptr, nullptr, p, (float *)q, nullptr, nullptr, 1.0f});
    return has_invalid_shape(rows, cols, rank) ? WEFT_ERR_INVALID
                                               : matmul_rest(0, table, p_stride, rows, cols, rank, stream);
}

enum weft_status weft_cuda_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b,
                                                float *p, size_t p_stride, const float *q, size_t rows,
                                                size_t cols, size_t rank, uint32_t *max_bits,
                                                weft_cuda_stream stream)
{
    const matrix_table table = one_matrix({m, a, b, p, (float *)q, max_bits, nullptr, factor});
    return has_invalid_shape(rows, cols, rank) ? WEFT_ERR_INVALID
                                               : matmul_fused(table, p_stride, rows, cols, rank, stream);
}

enum weft_status weft_cuda_matmul_many_f32(const struct weft_matrix *matrices, size_t count, bool adds,
                                           size_t rows, size_t cols, size_t rank, weft_cuda_stream stream)
{
    matrix_table table;
    if (has_invalid_shape(rows, cols, rank) || !fill_table(&table, matrices, count)) return WEFT_ERR_INVALID;
    return adds ? matmul_fused(table, rows, rows, cols, rank, stream)
                : matmul_rest(0, table, rows, rows, cols, rank, stream);
}

size_t weft_cuda_matmul_t_workspace(size_t rows, size_t cols, size_t rank)
{
    return pieces(rows, WEFT_MATMUL_T_BAND) * rank * cols * sizeof(float);
}

enum weft_status weft_cuda_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols,
                                        size_t rank, void *workspace, weft_cuda_stream stream)
{
    const matrix_table table = one_matrix({(float *)m, nullptr, nullptr, (float *)p, q, nullptr, workspace, 1.0f});
    return has_invalid_shape(rows, cols, rank) ? WEFT_ERR_INVALID
                                               : matmul_t(table, rows, cols, rank, stream);
}

enum weft_status weft_cuda_matmul_t_many_f32(const struct weft_matrix *matrices, size_t count, size_t rows,
                                             size_t cols, size_t rank,
                                             weft_cuda_stream stream)
{
    matrix_table table;
    if (has_invalid_shape(rows, cols, rank) || !fill_table(&table, matrices, count)) return WEFT_ERR_INVALID;
    return matmul_t(table, rows, cols, rank, stream);
}

enum weft_status weft_cuda_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols,
                                     size_t rank, weft_cuda_stream stream)
{
    const matrix_table table = one_matrix({out, nullptr, nullptr, (float *)p, (float *)q, nullptr, nullptr, 1.0f});
    return has_invalid_shape(rows, cols, rank) ? WEFT_ERR_INVALID
                                               : outer<false>(table, rows, cols, rank, stream);
}

enum weft_status weft_cuda_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols,
                                         size_t rank, weft_cuda_stream stream)
{
    const matrix_table table = one_matrix({m, nullptr, nullptr, (float *)p, (float *)q, nullptr, nullptr, 1.0f});
    return has_invalid_shape(rows, cols, rank) ? WEFT_ERR_INVALID
                                               : outer<true>(table, rows, cols, rank, stream);
}

enum weft_status weft_cuda_outer_many_f32(const struct weft_matrix *matrices, size_t count, bool subtracts,
                                          size_t rows, size_t cols, size_t rank, weft_cuda_stream stream)
{
    matrix_table table;
    if (has_invalid_shape(rows, cols, rank) || !fill_table(&table, matrices, count)) return WEFT_ERR_INVALID;
    return subtracts ? outer<true>(table, rows, cols, rank, stream)
                     : outer<false>(table, rows, cols, rank, stream);
}
