/* orthogonalise.cu - orthogonalise.c on device memory, step by step the same: see there for why.
 *
 *     scale       a block a vector: its largest magnitude, then the power of two
 *     dots        half a warp a pair of vectors, sixteen f64 lanes
 *     factorise   one block, a thread a candidate: pivots, noise, coefficients
 *     combine     a thread a row of P
 *     dots, factorise, combine once more, which do nothing where no correction is due
 *     finish      dropped vectors become zero
 *
 * All r by r matrices live in the scratch. */
#include <float.h>

#include "kernels/cuda/device.h"

namespace
{

constexpr unsigned RANK_MAX = 64, LANES = 16, SCALE_THREADS = 1024;
constexpr double CORRECT_BELOW = 1.0 / 65536;

struct orthogonal_state {
    double dots[RANK_MAX][RANK_MAX]; /* by vector; the lower half */
    double matrix[RANK_MAX][RANK_MAX], lower[RANK_MAX][RANK_MAX], coefficients[RANK_MAX][RANK_MAX];
    double inverse_norms[RANK_MAX], left[RANK_MAX];
    double least;
    uint32_t at[RANK_MAX], from[RANK_MAX], pivots[RANK_MAX];
    uint32_t good[RANK_MAX]; /* not zero, and finite */
    uint32_t count, done;    /* done: the second pass has nothing to do */
};

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

__global__ void __launch_bounds__(SCALE_THREADS) scale_kernel(float *p, size_t rows, orthogonal_state *state)
{
    __shared__ uint32_t max_bits;
    float *vector = p + blockIdx.x * rows;
    uint32_t max = 0;
    if (threadIdx.x == 0) max_bits = 0;
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

/* Pair number n of the lower half: row a, column b <= a. Pairs past the last do the last one's work and keep
 * it to themselves, so that all lanes meet in the folds. */
__global__ void __launch_bounds__(THREADS)
    dots_kernel(const float *p, size_t rows, unsigned rank, orthogonal_state *state)
{
    const unsigned pairs = rank * (rank + 1) / 2, number = (unsigned)(thread_number() / LANES);
    const unsigned mine = number < pairs ? number : pairs - 1, lane = threadIdx.x % LANES;
    unsigned a = 0;
    while ((a + 1) * (a + 2) / 2 <= mine) a++;
    const unsigned b = mine - a * (a + 1) / 2;
    if (state->done) return;
    double sum = 0;
    for (size_t i = lane; i < rows; i += LANES) sum += (double)p[a * rows + i] * (double)p[b * rows + i];
    for (unsigned half = LANES / 2; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half, LANES);
    if (lane == 0 && number < pairs) state->dots[a][b] = sum;
}

__device__ inline double either_half(const double (*matrix)[RANK_MAX], uint32_t a, uint32_t b)
{
    return a >= b ? matrix[a][b] : matrix[b][a];
}

/* gram() and factorise() of orthogonalise.c; thread a has candidate a, or coefficient a, or a place in the
 * order. */
__global__ void __launch_bounds__(RANK_MAX)
    factorise_kernel(unsigned rank, double noise, bool first_pass, orthogonal_state *s)
{
    const unsigned a = threadIdx.x;
    __shared__ uint32_t count, best;
    if (s->done) return;
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
    if (a == 0) s->count = k;
}

__global__ void __launch_bounds__(THREADS) combine_kernel(float *p, size_t rows, const orthogonal_state *s)
{
    const size_t i = thread_number();
    double parts[RANK_MAX];
    if (i >= rows || s->done) return;
    for (uint32_t k = 0; k < s->count; k++) {
        float *to = p + s->pivots[k] * rows + i;
        double sum = 0;
        parts[k] = (double)*to;
        for (uint32_t m = 0; m <= k; m++) sum += s->coefficients[k][m] * parts[m];
        *to = (float)sum;
    }
}

/* Between the passes: is a correction due? */
__global__ void decide_kernel(orthogonal_state *s)
{
    s->done = !(s->least < CORRECT_BELOW);
}

__global__ void __launch_bounds__(THREADS)
    drop_kernel(float *p, size_t rows, const orthogonal_state *s, uint8_t *dropped, uint32_t *kept_out)
{
    bool kept = false;
    for (uint32_t k = 0; k < s->count; k++) kept = kept || s->pivots[k] == blockIdx.x;
    for (size_t i = threadIdx.x; i < rows && !kept; i += blockDim.x) p[blockIdx.x * rows + i] = 0.0f;
    if (threadIdx.x != 0) return;
    if (dropped) dropped[blockIdx.x] = !kept;
    if (kept_out && blockIdx.x == 0) *kept_out = s->count;
}

} // namespace

size_t weft_cuda_orthogonalise_workspace(void)
{
    return sizeof(orthogonal_state);
}

enum weft_status weft_cuda_orthogonalise(float *p, size_t rows, size_t rank, uint8_t *dropped,
                                         uint32_t *kept_out, void *workspace, weft_cuda_stream stream)
{
    orthogonal_state *state = (orthogonal_state *)workspace;
    const double noise = 32.0 * sqrt((double)rows) * (double)FLT_EPSILON;
    const unsigned pairs = (unsigned)(rank * (rank + 1) / 2);
    if (rank < 1 || rank > RANK_MAX || rows < 1) return WEFT_ERR_INVALID;
    enum weft_status status = status_of(cudaMemsetAsync(&state->done, 0, sizeof state->done, stream));
    if (status == WEFT_OK) status = launch(stream, rank, SCALE_THREADS, scale_kernel, p, rows, state);
    for (int pass = 0; pass < 2; pass++) {
        if (status == WEFT_OK)
            status = launch(stream, pieces(pairs, THREADS / LANES), THREADS, dots_kernel, (const float *)p,
                            rows, (unsigned)rank, state);
        if (status == WEFT_OK)
            status = launch(stream, 1, RANK_MAX, factorise_kernel, (unsigned)rank, pass == 0 ? noise : -1.0,
                            pass == 0, state);
        if (status == WEFT_OK)
            status = launch(stream, pieces(rows, THREADS), THREADS, combine_kernel, p, rows,
                            (const orthogonal_state *)state);
        if (status == WEFT_OK && pass == 0) status = launch(stream, 1, 1, decide_kernel, state);
    }
    if (status != WEFT_OK) return status;
    return launch(stream, rank, THREADS, drop_kernel, p, rows, (const orthogonal_state *)state, dropped,
                  kept_out);
}
