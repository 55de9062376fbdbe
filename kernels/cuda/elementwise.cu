/* elementwise.cu - sums, scale, error-feedback add and magnitudes: one pack of elements a thread, one
 * rounding an operation. */
#include "kernels/cuda/device.h"

namespace
{

struct sum_op {
    float *out;
    const float *a, *b;
    template <int N> __device__ void run(size_t i) const
    {
        const pack<float, N> x = load<N>(a + i), y = load<N>(b + i);
        pack<float, N> sum;
        for (int j = 0; j < N; j++) sum.v[j] = canonical(x.v[j] + y.v[j]);
        store<N>(out + i, sum);
    }
};

struct sum_i64_op {
    int64_t *out;
    const int64_t *a, *b;
    template <int N> __device__ void run(size_t i) const
    {
        const pack<int64_t, N> x = load<N>(a + i), y = load<N>(b + i);
        pack<int64_t, N> sum;
        for (int j = 0; j < N; j++) sum.v[j] = (int64_t)((uint64_t)x.v[j] + (uint64_t)y.v[j]);
        store<N>(out + i, sum);
    }
};

struct scale_op {
    float *out;
    const float *in;
    float factor;
    template <int N> __device__ void run(size_t i) const
    {
        pack<float, N> x = load<N>(in + i);
        for (int j = 0; j < N; j++) x.v[j] = canonical(x.v[j] * factor);
        store<N>(out + i, x);
    }
};

constexpr size_t OPERANDS_MAX = 8;

/* T over n sources, split at the largest power of two below n. */
template <int n> struct tree {
    static constexpr int half = n > 4 ? 4 : n > 2 ? 2 : 1;
    __device__ static float of(const float *values)
    {
        return tree<half>::of(values) + tree<n - half>::of(values + half);
    }
};
template <> struct tree<1> {
    __device__ static float of(const float *values) { return values[0]; }
};

template <int SOURCES> struct tree_op {
    const float *sources[OPERANDS_MAX];
    float *outs[OPERANDS_MAX];
    size_t out_count;
    float factor;
    template <int N> __device__ void run(size_t i) const
    {
        pack<float, N> from[SOURCES], sum;
        for (int s = 0; s < SOURCES; s++) from[s] = load<N>(sources[s] + i);
        for (int j = 0; j < N; j++) {
            float values[SOURCES];
            for (int s = 0; s < SOURCES; s++) values[s] = from[s].v[j];
            sum.v[j] = canonical(tree<SOURCES>::of(values) * factor);
        }
        for (size_t o = 0; o < out_count; o++) store<N>(outs[o] + i, sum);
    }
};

template <int SOURCES>
enum weft_status sum_tree(float *const *outs, size_t out_count, const float *const *sources, float factor,
                          size_t count, weft_cuda_stream stream)
{
    tree_op<SOURCES> op = {};
    bool wide = true;
    for (int s = 0; s < SOURCES; s++) {
        op.sources[s] = sources[s];
        wide = wide && aligned(sources[s]);
    }
    for (size_t o = 0; o < out_count; o++) {
        op.outs[o] = outs[o];
        wide = wide && aligned(outs[o]);
    }
    op.out_count = out_count;
    op.factor = factor;
    return each<4>(stream, op, count, wide);
}

/* out = a*factor + b and its largest magnitude; or the largest magnitude of `a` alone. */
struct scale_add_op {
    float *out;
    const float *a, *b;
    float factor;
    template <int N> __device__ uint32_t run(size_t i) const
    {
        const pack<float, N> x = load<N>(a + i), y = load<N>(b + i);
        pack<float, N> sum;
        uint32_t max = 0;
        for (int j = 0; j < N; j++) {
            sum.v[j] = canonical(x.v[j] * factor + y.v[j]);
            max = larger(max, magnitude(sum.v[j]));
        }
        store<N>(out + i, sum);
        return max;
    }
};

struct largest_op {
    const float *in;
    template <int N> __device__ uint32_t run(size_t i) const
    {
        const pack<float, N> x = load<N>(in + i);
        uint32_t max = 0;
        for (int j = 0; j < N; j++) max = larger(max, magnitude(x.v[j]));
        return max;
    }
};

template <int N, typename Op>
__global__ void __launch_bounds__(THREADS)
    raising_kernel(Op op, size_t packs, size_t count, uint32_t *max_bits)
{
    uint32_t max = 0;
    for (size_t p = thread_number(); p < packs; p += thread_total())
        max = larger(max, op.template run<N>(p * N));
    for (size_t i = packs * N + thread_number(); i < count; i += thread_total())
        max = larger(max, op.template run<1>(i));
    if (max_bits) raise(max_bits, max);
}

template <typename Op>
enum weft_status raising(weft_cuda_stream stream, const Op &op, size_t count, bool wide, uint32_t *max_bits)
{
    const size_t packs = wide ? count / 4 : 0,
                 blocks = at_most(pieces(wide ? pieces(count, 4) : count, THREADS), BLOCKS_MAX);
    return launch(stream, blocks, THREADS, raising_kernel<4, Op>, op, packs, count, max_bits);
}

} // namespace

enum weft_status weft_cuda_sum_f32(float *out, const float *a, const float *b, size_t count,
                                   weft_cuda_stream stream)
{
    return each<4>(stream, sum_op{out, a, b}, count, aligned(out, a, b));
}

enum weft_status weft_cuda_sum_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count,
                                   weft_cuda_stream stream)
{
    return each<2>(stream, sum_i64_op{out, a, b}, count, aligned(out, a, b));
}

enum weft_status weft_cuda_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                                        size_t source_count, float factor, size_t count,
                                        weft_cuda_stream stream)
{
    if (out_count < 1 || out_count > OPERANDS_MAX) return WEFT_ERR_INVALID;
    switch (source_count) {
    case 1: return sum_tree<1>(outs, out_count, sources, factor, count, stream);
    case 2: return sum_tree<2>(outs, out_count, sources, factor, count, stream);
    case 3: return sum_tree<3>(outs, out_count, sources, factor, count, stream);
    case 4: return sum_tree<4>(outs, out_count, sources, factor, count, stream);
    case 5: return sum_tree<5>(outs, out_count, sources, factor, count, stream);
    case 6: return sum_tree<6>(outs, out_count, sources, factor, count, stream);
    case 7: return sum_tree<7>(outs, out_count, sources, factor, count, stream);
    case 8: return sum_tree<8>(outs, out_count, sources, factor, count, stream);
    default: return WEFT_ERR_INVALID;
    }
}

enum weft_status weft_cuda_scale_f32(float *out, const float *in, float factor, size_t count,
                                     weft_cuda_stream stream)
{
    return each<4>(stream, scale_op{out, in, factor}, count, aligned(out, in));
}

enum weft_status weft_cuda_scale_add_f32(float *out, const float *a, float factor, const float *b,
                                         size_t count, uint32_t *max_bits, weft_cuda_stream stream)
{
    return raising(stream, scale_add_op{out, a, b, factor}, count, aligned(out, a, b), max_bits);
}

enum weft_status weft_cuda_max_abs_bits_f32(uint32_t *max_bits, const float *in, size_t count,
                                            weft_cuda_stream stream)
{
    return raising(stream, largest_op{in}, count, aligned(in), max_bits);
}
