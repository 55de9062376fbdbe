/* optimizer.cu - the update rules on device memory: optimizer_element.h, a pack of elements a thread; LAMB
 * in three kernels.
 *
 * LAMB's two norms are sums over the whole tensor: sixteen f64 lanes within a block of WEFT_LAMB_BLOCK
 * elements (half a warp a block), the blocks by the tree T, as kernels/lamb.c does it. The rate is worked
 * out where the norms are, on the device. */
#include "kernels/cuda/device.h"
#include "kernels/templates/optimizer_element.h"

namespace
{

struct sgd_op {
    float *weights, *velocity;
    const float *grad;
    float grad_scale;
    struct weft_sgd rule;
    template <int N> __device__ void run(size_t i) const
    {
        pack<float, N> w = load<N>(weights + i), v = {};
        const pack<float, N> g = load<N>(grad + i);
        if (rule.momentum != 0.0f) v = load<N>(velocity + i);
        for (int j = 0; j < N; j++) w.v[j] = sgd_element(w.v[j], &v.v[j], g.v[j] * grad_scale, &rule);
        store<N>(weights + i, w);
        if (rule.momentum != 0.0f) store<N>(velocity + i, v);
    }
};

struct adam_op {
    float *weights, *first, *second;
    const float *grad;
    float grad_scale;
    struct weft_adam rule;
    template <int N> __device__ void run(size_t i) const
    {
        pack<float, N> w = load<N>(weights + i), m = load<N>(first + i), v = load<N>(second + i);
        const pack<float, N> g = load<N>(grad + i);
        for (int j = 0; j < N; j++)
            w.v[j] = adam_element(w.v[j], &m.v[j], &v.v[j], g.v[j] * grad_scale, &rule, adam_decay_of(&rule));
        store<N>(weights + i, w);
        store<N>(first + i, m);
        store<N>(second + i, v);
    }
};

struct adagrad_op {
    float *weights, *sums;
    const float *grad;
    float grad_scale, lr, eps, weight_decay;
    template <int N> __device__ void run(size_t i) const
    {
        pack<float, N> w = load<N>(weights + i), s = load<N>(sums + i);
        const pack<float, N> g = load<N>(grad + i);
        for (int j = 0; j < N; j++)
            w.v[j] = adagrad_element(w.v[j], &s.v[j], g.v[j] * grad_scale, lr, eps, weight_decay,
                                     weight_decay != 0.0f);
        store<N>(weights + i, w);
        store<N>(sums + i, s);
    }
};

struct ftrl_op {
    float *weights, *z, *n;
    const float *grad;
    float grad_scale;
    struct weft_ftrl rule;
    template <int N> __device__ void run(size_t i) const
    {
        pack<float, N> w = load<N>(weights + i), z_next = load<N>(z + i), squares = load<N>(n + i);
        const pack<float, N> g = load<N>(grad + i);
        for (int j = 0; j < N; j++)
            w.v[j] = ftrl_element(w.v[j], &z_next.v[j], &squares.v[j], g.v[j] * grad_scale, &rule);
        store<N>(weights + i, w);
        store<N>(z + i, z_next);
        store<N>(n + i, squares);
    }
};

/* ---- LAMB ---- */

constexpr unsigned LANES = 16, FOLD_THREADS = 1024;

__device__ inline double fold_lanes(double mine)
{
    for (unsigned half = LANES / 2; half > 0; half /= 2) mine += __shfl_down_sync(ALL, mine, half, LANES);
    return mine;
}

__global__ void __launch_bounds__(THREADS)
    lamb_moments_kernel(float *first, float *second, const float *weights, const float *grad,
                        float grad_scale, struct weft_lamb rule, size_t count, size_t blocks, double *squares)
{
    const size_t block = thread_number() / LANES, begin = block * WEFT_LAMB_BLOCK;
    const size_t end =
        block + 1 < blocks ? begin + WEFT_LAMB_BLOCK : count; /* blocks past the last have none */
    double of_weights = 0, of_directions = 0;
    for (size_t i = begin + threadIdx.x % LANES; i < end; i += LANES) {
        float m = first[i], v = second[i];
        const float w = weights[i];
        lamb_moments_element(&m, &v, grad[i] * grad_scale, &rule);
        first[i] = m;
        second[i] = v;
        const float d = lamb_direction(w, m, v, &rule, rule.weight_decay != 0.0f);
        of_weights += (double)w * (double)w;
        of_directions += (double)d * (double)d;
    }
    of_weights = fold_lanes(of_weights);
    of_directions = fold_lanes(of_directions);
    if (threadIdx.x % LANES != 0 || block >= blocks) return;
    squares[2 * block] = of_weights;
    squares[2 * block + 1] = of_directions;
}

/* T over the blocks, in place: at distance 1, 2, 4 ... the left takes the right. Then the rate. One block. */
__global__ void __launch_bounds__(FOLD_THREADS)
    lamb_rate_kernel(double *squares, size_t blocks, float lr, float *rate_out)
{
    for (size_t step = 1; step < blocks; step *= 2) {
        for (size_t at = threadIdx.x * 2 * step; at + step < blocks; at += blockDim.x * 2 * step) {
            squares[2 * at] += squares[2 * (at + step)];
            squares[2 * at + 1] += squares[2 * (at + step) + 1];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) *rate_out = lamb_rate(lr, squares[0], squares[1]);
}

struct lamb_apply_op {
    float *weights;
    const float *first, *second, *rate;
    struct weft_lamb rule;
    template <int N> __device__ void run(size_t i) const
    {
        pack<float, N> w = load<N>(weights + i);
        const pack<float, N> m = load<N>(first + i), v = load<N>(second + i);
        const float r = *rate;
        for (int j = 0; j < N; j++)
            w.v[j] = canonical(w.v[j] -
                               r * lamb_direction(w.v[j], m.v[j], v.v[j], &rule, rule.weight_decay != 0.0f));
        store<N>(weights + i, w);
    }
};

} // namespace

enum weft_status weft_cuda_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                                   const struct weft_sgd *sgd, size_t count, weft_cuda_stream stream)
{
    return each<4>(stream, sgd_op{weights, velocity, grad, grad_scale, *sgd}, count,
                   aligned(weights, velocity, grad));
}

enum weft_status weft_cuda_adam_f32(float *weights, float *first, float *second, const float *grad,
                                    float grad_scale, const struct weft_adam *adam, size_t count,
                                    weft_cuda_stream stream)
{
    return each<4>(stream, adam_op{weights, first, second, grad, grad_scale, *adam}, count,
                   aligned(weights, first, second, grad));
}

enum weft_status weft_cuda_adagrad_f32(float *weights, float *sums, const float *grad, float grad_scale,
                                       float lr, float eps, float weight_decay, size_t count,
                                       weft_cuda_stream stream)
{
    return each<4>(stream, adagrad_op{weights, sums, grad, grad_scale, lr, eps, weight_decay}, count,
                   aligned(weights, sums, grad));
}

enum weft_status weft_cuda_ftrl_f32(float *weights, float *z, float *n, const float *grad, float grad_scale,
                                    const struct weft_ftrl *ftrl, size_t count, weft_cuda_stream stream)
{
    return each<4>(stream, ftrl_op{weights, z, n, grad, grad_scale, *ftrl}, count,
                   aligned(weights, z, n, grad));
}

size_t weft_cuda_lamb_workspace(size_t count)
{
    return (1 + 2 * pieces(count, WEFT_LAMB_BLOCK)) * sizeof(double);
}

enum weft_status weft_cuda_lamb_f32(float *weights, float *first, float *second, const float *grad,
                                    float grad_scale, const struct weft_lamb *lamb, float lr, size_t count,
                                    void *workspace, weft_cuda_stream stream)
{
    const size_t blocks = pieces(count, WEFT_LAMB_BLOCK);
    float *rate = (float *)workspace;
    double *squares = (double *)workspace + 1;
    if (count == 0) return WEFT_OK;
    enum weft_status status =
        launch(stream, pieces(blocks, THREADS / LANES), THREADS, lamb_moments_kernel, first, second,
               (const float *)weights, grad, grad_scale, *lamb, count, blocks, squares);
    if (status == WEFT_OK)
        status = launch(stream, 1, FOLD_THREADS, lamb_rate_kernel, squares, blocks, lr, rate);
    if (status != WEFT_OK) return status;
    return each<4>(stream, lamb_apply_op{weights, first, second, rate, *lamb}, count,
                   aligned(weights, first, second));
}
