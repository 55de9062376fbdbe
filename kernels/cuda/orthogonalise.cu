/* orthogonalise.cu - orthogonalise.c on device memory, step by step the same: see there for why.
 *
 *     scale       a block a vector: its largest magnitude, then the power of two
 *     dots        a block a pair of vectors: all threads make the products, which are exact in f64, half a warp adds them in
 *                 its sixteen lanes; the last block to end factorises: pivots, noise, coefficients, a thread
 *                 a candidate
 *     combine     a thread a row of P
 *     dots, combine once more, which do nothing where no correction is due; dropped vectors become zero
 *
 * All r by r matrices live in the scratch. The last block to finish computes; the result does not depend
 * on which it is. */
#include <float.h>

#include "kernels/cuda/matrix_table.h"

namespace
{

constexpr unsigned RANK_MAX = 64, LANES = 16, SCALE_THREADS = 1024, DOT_THREADS = 128, COMBINE_THREADS = 64;
/* of a pair's products at a time; of a thread */
constexpr unsigned PART = 1024, PRODUCTS = PART / DOT_THREADS;
constexpr double CORRECT_BELOW = 1.0 / 65536;

struct orthogonal_state {
    double dots[RANK_MAX][RANK_MAX]; /* by vector; the lower half */
    double matrix[RANK_MAX][RANK_MAX], lower[RANK_MAX][RANK_MAX], coefficients[RANK_MAX][RANK_MAX];
    double inverse_norms[RANK_MAX], left[RANK_MAX];
    double least;
    uint32_t at[RANK_MAX], from[RANK_MAX], pivots[RANK_MAX];
    uint32_t good[RANK_MAX]; /* not zero, and finite */
    uint32_t count, done;    /* done: the second pass has nothing to do */
    uint32_t ended;          /* blocks of dots */
};

__device__ inline orthogonal_state *state_of(const matrix_table &table)
{
    return (orthogonal_state *)table.of[blockIdx.y].scratch;
}

/* 2^-ilogb of a finite magnitude above zero, exact. */
__device__ inline double unit_factor(uint32_t bits)
{
    int exponent = (int)(bits >> 23) - 127;
    if (bits >> 23 == 0) {
        exponent = -150;
        for (uint32_t rest = bits; rest != 0; rest >>= 1) exponent++;
    }
    return __longlong_as_double((long long)(1023 - exponent) << 52);
}

__global__ void __launch_bounds__(SCALE_THREADS) scale_kernel(const matrix_table table, size_t rows)
{
    float *const p = table.of[blockIdx.y].p;
    orthogonal_state *const state = state_of(table);
    __shared__ uint32_t max_bits;
    float *vector = p + blockIdx.x * rows;
    uint32_t max = 0;
    if (threadIdx.x == 0) max_bits = 0;
    if (threadIdx.x == 0 && blockIdx.x == 0) state->done = state->ended = 0;
    __syncthreads();
    for (size_t i = threadIdx.x; i < rows; i += blockDim.x) max = larger(max, magnitude(vector[i]));
    raise(&max_bits, max);
    __syncthreads();
    const bool good = max_bits > 0 && max_bits < FLOAT_INF;
    if (threadIdx.x == 0) state->good[blockIdx.x] = good;
    if (!good) return;
    const double factor = unit_factor(max_bits);
    for (size_t i = threadIdx.x; i < rows; i += blockDim.x) vector[i] = (float)((double)vector[i] * factor);
}

__device__ inline double either_half(const double (*matrix)[RANK_MAX], uint32_t a, uint32_t b)
{
    return a >= b ? matrix[a][b] : matrix[b][a];
}

/* gram() and factorise() of orthogonalise.c, by one block; thread a has candidate a, or coefficient a, or
 * a place in the order. */
__device__ void factorise(unsigned rank, double noise, bool first_pass, orthogonal_state *s)
{
    const unsigned a = threadIdx.x;
    __shared__ uint32_t count, best;
    if (a == 0) {
        count = 0;
        if (first_pass) {
            for (uint32_t r = 0; r < rank; r++)
                if (s->good[r]) s->at[count++] = r;
            s->least = 1.0;
        } else {
            count = s->count;
            for (uint32_t k = 0; k < count; k++) s->at[k] = s->pivots[k];
        }
    }
    __syncthreads();
    const uint32_t candidates = count;
    if (a < candidates) {
        s->inverse_norms[a] = 1.0 / sqrt(s->dots[s->at[a]][s->at[a]]);
        s->from[a] = a;
        s->left[a] = 1.0;
    }
    __syncthreads();
    if (a < candidates) {
        s->matrix[a][a] = 1.0;
        for (uint32_t b = 0; b < a; b++)
            s->matrix[a][b] =
                either_half(s->dots, s->at[a], s->at[b]) * s->inverse_norms[a] * s->inverse_norms[b];
    }
    uint32_t k = 0;
    for (; k < candidates; k++) {
        __syncthreads();
        if (a == 0) {
            best = k;
            for (uint32_t c = k + 1; c < candidates && noise >= 0; c++)
                if (s->left[s->from[c]] > s->left[s->from[best]]) best = c;
            const uint32_t chosen = s->from[best];
            if (!(noise >= 0 && !(s->left[chosen] > noise * noise))) {
                for (uint32_t c = best; c > k; c--) s->from[c] = s->from[c - 1];
                s->from[k] = chosen;
                if (s->left[chosen] < s->least) s->least = s->left[chosen];
            } else {
                best = RANK_MAX; /* no more */
            }
        }
        __syncthreads();
        if (best == RANK_MAX) break;
        const uint32_t pivot = s->from[k];
        const double norm = sqrt(s->left[pivot]);
        if (a < k) {
            double sum = 0;
            for (uint32_t b = a; b < k; b++) sum += s->lower[pivot][b] * s->coefficients[b][a];
            s->coefficients[k][a] = -sum / norm;
        }
        if (a == k) {
            s->coefficients[k][k] = s->inverse_norms[pivot] / norm;
            s->pivots[k] = s->at[pivot];
        }
        if (a > k && a < candidates) {
            const uint32_t other = s->from[a];
            double sum = either_half(s->matrix, other, pivot);
            for (uint32_t b = 0; b < k; b++) sum -= s->lower[other][b] * s->lower[pivot][b];
            s->lower[other][k] = sum / norm;
            s->left[other] -= s->lower[other][k] * s->lower[other][k];
        }
    }
    __syncthreads();
    if (a != 0) return;
    s->count = k;
    s->ended = 0;
    if (first_pass) s->done = !(s->least < CORRECT_BELOW); /* no correction is due */
}

/* A thread's part of the next products. */
struct factors {
    float a[PRODUCTS], b[PRODUCTS];
    __device__ void read(const float *from_a, const float *from_b, size_t begin, size_t rows)
    {
        for (unsigned t = 0; t < PRODUCTS; t++) {
            const size_t i = begin + t * DOT_THREADS + threadIdx.x;
            a[t] = i < rows ? from_a[i] : 0.0f;
            b[t] = i < rows ? from_b[i] : 0.0f;
        }
    }
};

/* Block n has pair n of the lower half: row a, column b <= a. */
__global__ void __launch_bounds__(DOT_THREADS)
    dots_kernel(const matrix_table table, size_t rows, unsigned rank, double noise, bool first_pass)
{
    const float *const p = table.of[blockIdx.y].p;
    orthogonal_state *const state = state_of(table);
    __shared__ double products[PART];
    __shared__ bool last;
    unsigned a = 0;
    while ((a + 1) * (a + 2) / 2 <= blockIdx.x) a++;
    const unsigned b = blockIdx.x - a * (a + 1) / 2;
    if (state->done) return;
    factors next;
    double sum = 0;
    next.read(p + a * rows, p + b * rows, 0, rows);
    for (size_t begin = 0; begin < rows; begin += PART) {
        for (unsigned t = 0; t < PRODUCTS; t++)
            products[t * DOT_THREADS + threadIdx.x] = (double)next.a[t] * (double)next.b[t];
        __syncthreads();
        next.read(p + a * rows, p + b * rows, begin + PART, rows);
        const unsigned count = rows - begin < PART ? (unsigned)(rows - begin) : PART;
        if (threadIdx.x < LANES)
            for (unsigned i = threadIdx.x; i < count; i += LANES) sum += products[i];
        __syncthreads();
    }
    if (threadIdx.x < WARP)
        for (unsigned half = LANES / 2; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half, LANES);
    if (threadIdx.x == 0) {
        state->dots[a][b] = sum;
        __threadfence();
        last = atomicAdd(&state->ended, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    factorise(rank, noise, first_pass, state);
}

/* Row i of the vectors at the pivots becomes that of the basis. All are read before any is written. */
__device__ inline void combine(float *p, size_t rows, size_t i, const orthogonal_state *s)
{
    double parts[RANK_MAX];
    const uint32_t count = s->count;
#pragma unroll 8
    for (uint32_t k = 0; k < count; k++) parts[k] = (double)p[s->pivots[k] * rows + i];
    for (uint32_t k = 0; k < count; k++) {
        double sum = 0;
        for (uint32_t m = 0; m <= k; m++) sum += s->coefficients[k][m] * parts[m];
        p[s->pivots[k] * rows + i] = (float)sum;
    }
}

__global__ void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(const matrix_table table, size_t rows)
{
    const size_t i = thread_number();
    if (i < rows) combine(table.of[blockIdx.y].p, rows, i, state_of(table));
}

/* The second pass, where it is due, and what was dropped becomes zero. */
__global__ void __launch_bounds__(COMBINE_THREADS)
    finish_kernel(const matrix_table table, size_t rows, unsigned rank, uint8_t *dropped, uint32_t *kept_out)
{
    float *const p = table.of[blockIdx.y].p;
    const orthogonal_state *const s = state_of(table);
    __shared__ bool kept[RANK_MAX];
    const size_t i = thread_number();
    kept[threadIdx.x] = false;
    __syncthreads();
    if (threadIdx.x < s->count) kept[s->pivots[threadIdx.x]] = true;
    __syncthreads();
    if (i < rows && !s->done) combine(p, rows, i, s);
    for (unsigned r = 0; r < rank && i < rows; r++)
        if (!kept[r]) p[r * rows + i] = 0.0f;
    if (blockIdx.x != 0) return;
    if (dropped && threadIdx.x < rank) dropped[threadIdx.x] = !kept[threadIdx.x];
    if (kept_out && threadIdx.x == 0) *kept_out = s->count;
}

/* dropped and kept_out are of a single matrix. */
enum weft_status orthogonalise(const matrix_table &table, size_t rows, size_t rank, uint8_t *dropped,
                               uint32_t *kept_out, weft_cuda_stream stream)
{
    const double noise = 32.0 * sqrt((double)rows) * (double)FLT_EPSILON;
    const unsigned pairs = (unsigned)(rank * (rank + 1) / 2);
    const size_t blocks = pieces(rows, COMBINE_THREADS), count = table.count;
    if (rank < 1 || rank > RANK_MAX || rows < 1) return WEFT_ERR_INVALID;
    static_assert(COMBINE_THREADS == RANK_MAX && DOT_THREADS >= RANK_MAX, "a thread a vector");
    enum weft_status status = launch_many(stream, rank, count, SCALE_THREADS, scale_kernel, table, rows);
    if (status == WEFT_OK)
        status = launch_many(stream, pairs, count, DOT_THREADS, dots_kernel, table, rows, (unsigned)rank, noise,
                             true);
    if (status == WEFT_OK)
        status = launch_many(stream, blocks, count, COMBINE_THREADS, combine_kernel, table, rows);
    if (status == WEFT_OK)
        status = launch_many(stream, pairs, count, DOT_THREADS, dots_kernel, table, rows, (unsigned)rank, -1.0,
                             false);
    if (status != WEFT_OK) return status;
    return launch_many(stream, blocks, count, COMBINE_THREADS, finish_kernel, table, rows, (unsigned)rank,
                       dropped, kept_out);
}

} // namespace

size_t weft_cuda_orthogonalise_workspace(void)
{
    return sizeof(orthogonal_state);
}

enum weft_status weft_cuda_orthogonalise(float *p, size_t rows, size_t rank, uint8_t *dropped,
                                         uint32_t *kept_out, void *workspace, weft_cuda_stream stream)
{
    const matrix_table table = one_matrix({nullptr, nullptr, nullptr, p, nullptr, nullptr, workspace, 1.0f});
    return orthogonalise(table, rows, rank, dropped, kept_out, stream);
}

enum weft_status weft_cuda_orthogonalise_many(const struct weft_matrix *matrices, size_t count, size_t rows,
                                              size_t rank, weft_cuda_stream stream)
{
    matrix_table table;
    if (!fill_table(&table, matrices, count)) return WEFT_ERR_INVALID;
    return orthogonalise(table, rows, rank, nullptr, nullptr, stream);
}
