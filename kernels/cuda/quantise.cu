/* quantise.cu - block quantisation, 8-bit floats and signs: a warp holds a block of 256 in its registers.
 *
 * Lane l has elements l, l + 32, ... l + 224: every load and store of the warp is one piece of memory, at
 * any start. The random bytes fall in place by themselves: element i draws from counter i % 16, which is l %
 * 16 for all eight, so a lane needs one Philox call for its block. So do the sixteen lanes of a horizontal
 * sum: lane j of them adds what warp lanes j and j + 16 hold, in turn. */
#include "kernels/blocks.h"
#include "kernels/cuda/device.h"
#include "kernels/templates/lowbit_element.h"

namespace
{

constexpr int EACH = WEFT_BLOCK / WARP; /* elements of a lane */
constexpr unsigned WARPS = THREADS / WARP;

__device__ inline size_t warp_number()
{
    return thread_number() / WARP;
}

/* The elements of one block that belong to this lane. */
struct slice {
    size_t at;       /* of the lane's first */
    unsigned length; /* of the block */
    __device__ slice(size_t block, size_t count)
        : at(block * WEFT_BLOCK + lane_number()), length((unsigned)block_length(block * WEFT_BLOCK, count))
    {
    }
    __device__ bool has(int t) const { return lane_number() + WARP * (unsigned)t < length; }
    __device__ size_t of(int t) const { return at + WARP * (size_t)t; }
};

/* Beyond the block's end the value is 0, which raises no maximum and adds nothing to a sum of magnitudes. */
__device__ inline void read_block(float *x, const float *from, const slice &s)
{
    for (int t = 0; t < EACH; t++) x[t] = s.has(t) ? from[s.of(t)] : 0.0f;
}

__device__ inline void write_block(float *to, const float *x, const slice &s)
{
    for (int t = 0; t < EACH; t++)
        if (s.has(t)) to[s.of(t)] = x[t];
}

/* x = a*factor + b; returns the lane's largest magnitude. */
__device__ inline uint32_t sum_block(float *x, const float *a, float factor, const float *b, const slice &s)
{
    float y[EACH];
    uint32_t max = 0;
    read_block(x, a, s);
    read_block(y, b, s);
    for (int t = 0; t < EACH; t++) {
        x[t] = canonical(x[t] * factor + y[t]);
        if (s.has(t)) max = larger(max, magnitude(x[t]));
    }
    return max;
}

struct random {
    uint32_t words[4];
    bool any;
    __device__ random(const struct weft_noise &noise, bool noisy, size_t block) : words(), any(noisy)
    {
        const uint64_t number = (noise.first_block + block) * 16 + lane_number() % 16;
        const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), (uint32_t)noise.step,
                                     (uint32_t)(noise.step >> 32)};
        if (noisy) philox(counter, noise.key, words);
    }
    /* of the lane's element t: number 32 t + lane of the block, see block_noise() */
    __device__ uint32_t byte(int t) const
    {
        return words[t / 2] >> (((unsigned)(2 * t) + lane_number() / 16) % 4 * 8) & 0xffu;
    }
};

__device__ inline void code_block(int8_t *codes_out, float *x, uint8_t exponent, float most,
                                  const random &random, const slice &s)
{
    const float scale = block_scale(exponent), inverse = block_inverse(exponent);
    for (int t = 0; t < EACH; t++) {
        const float code = random.any ? noisy_code(x[t] * inverse, random.byte(t), most)
                                      : nearest_code(x[t] * inverse, most);
        if (s.has(t)) codes_out[s.of(t)] = (int8_t)code;
        x[t] = canonical(x[t] - code * scale);
    }
}

template <enum weft_fp8 FORMAT>
__device__ inline void code_block_fp8(uint8_t *codes_out, float *x, uint8_t exponent, const slice &s)
{
    const struct lowbit_format f = lowbit_format(FORMAT);
    const float scale = block_scale(exponent), inverse = block_inverse(exponent);
    for (int t = 0; t < EACH; t++) {
        const uint8_t code = lowbit_code(x[t] * inverse, f.shift, f.lowest, f.steps, f.top);
        if (s.has(t)) codes_out[s.of(t)] = code;
        x[t] = x[t] - lowbit_value(code, f.shift, f.bias) * scale;
    }
}

/* Mean magnitude: sixteen f64 lanes, then 8+8, 4+4, 2+2, 1+1. The same value in every lane of the warp. */
__device__ inline float mean_magnitude(const float *x, unsigned length)
{
    double sum = 0;
    for (int t = 0; t < EACH; t++) {
        const float first = fabsf(x[t]), second = __shfl_down_sync(ALL, first, 16);
        sum += (double)first;
        sum += (double)second;
    }
    for (unsigned half = 8; half > 0; half /= 2) sum += __shfl_down_sync(ALL, sum, half);
    return __shfl_sync(ALL, (float)(sum / (double)length), 0);
}

/* Thirty-two signs are a word, lowest bit first; a block may end within a byte, whose unused bits are 0. */
__device__ inline void sign_block(uint8_t *bits_out, float *x, float scale, size_t block, const slice &s)
{
    uint8_t *to = bits_out + block * (WEFT_BLOCK / 8);
    for (int t = 0; t < EACH; t++) {
        const uint32_t word = __ballot_sync(ALL, x[t] < 0.0f);
        const unsigned byte = (unsigned)t * 4 + lane_number();
        if (lane_number() < 4 && byte * 8 < s.length) to[byte] = (uint8_t)(word >> (lane_number() * 8));
        x[t] -= x[t] < 0.0f ? -scale : scale;
    }
}

/* ---- kernels: a warp a block ---- */

__global__ void __launch_bounds__(THREADS)
    sum_blocks_kernel(float *out, const float *a, float factor, const float *b, size_t count, unsigned limit,
                      uint8_t *exponents_out, uint32_t *max_bits)
{
    uint32_t max = 0;
    float x[EACH];
    const size_t block = warp_number();
    if (block * WEFT_BLOCK < count) {
        const slice s(block, count);
        const uint32_t bits = warp_max(sum_block(x, a, factor, b, s));
        write_block(out, x, s);
        if (lane_number() == 0) exponents_out[block] = bits < FLOAT_INF ? block_exponent(bits, limit) : 255;
        max = bits;
    }
    if (max_bits) raise(max_bits, max);
}

__global__ void __launch_bounds__(THREADS)
    quantise_kernel(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count, float most,
                    struct weft_noise noise, bool noisy)
{
    const size_t block = warp_number();
    if (block * WEFT_BLOCK >= count) return;
    const slice s(block, count);
    float mine[EACH];
    read_block(mine, x, s);
    code_block(codes_out, mine, exponents[block], most, random(noise, noisy, block), s);
    write_block(x, mine, s);
}

template <enum weft_fp8 FORMAT>
__global__ void __launch_bounds__(THREADS)
    quantise_fp8_kernel(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count)
{
    const size_t block = warp_number();
    if (block * WEFT_BLOCK >= count) return;
    const slice s(block, count);
    float mine[EACH];
    read_block(mine, x, s);
    code_block_fp8<FORMAT>(codes_out, mine, exponents[block], s);
    write_block(x, mine, s);
}

__global__ void __launch_bounds__(THREADS)
    quantise_sign_kernel(uint8_t *bits_out, float *scales_out, float *x, size_t count)
{
    const size_t block = warp_number();
    if (block * WEFT_BLOCK >= count) return;
    const slice s(block, count);
    float mine[EACH];
    read_block(mine, x, s);
    const float scale = mean_magnitude(mine, s.length);
    if (lane_number() == 0) scales_out[block] = scale;
    sign_block(bits_out, mine, scale, block, s);
    write_block(x, mine, s);
}

/* The fused ways. FORMAT 0: integers up to `most`. */
template <int FORMAT>
__global__ void __launch_bounds__(THREADS)
    fused_kernel(uint8_t *codes_out, uint8_t *exponents_out, float *out, const float *a, float factor,
                 const float *b, size_t count, unsigned limit, struct weft_noise noise, bool noisy,
                 uint32_t *max_bits)
{
    uint32_t max = 0;
    float x[EACH];
    const size_t block = warp_number();
    if (block * WEFT_BLOCK < count) {
        const slice s(block, count);
        const uint32_t bits = warp_max(sum_block(x, a, factor, b, s));
        max = bits;
        if (bits >= FLOAT_INF) { /* the same in all lanes */
            if (lane_number() == 0) exponents_out[block] = 255;
            for (int t = 0; t < EACH; t++)
                if (s.has(t)) codes_out[s.of(t)] = 0;
        } else if constexpr (FORMAT == 0) {
            const uint8_t exponent = block_exponent(bits, limit);
            if (lane_number() == 0) exponents_out[block] = exponent;
            code_block((int8_t *)codes_out, x, exponent, (float)limit, random(noise, noisy, block), s);
        } else {
            const uint8_t exponent = fp8_exponent(bits, (enum weft_fp8)FORMAT);
            if (lane_number() == 0) exponents_out[block] = exponent;
            code_block_fp8<(enum weft_fp8)FORMAT>(codes_out, x, exponent, s);
        }
        write_block(out, x, s);
    }
    if (max_bits) raise(max_bits, max);
}

__global__ void __launch_bounds__(THREADS)
    fused_sign_kernel(uint8_t *bits_out, float *scales_out, float *out, const float *a, float factor,
                      const float *b, size_t count, uint32_t *max_bits)
{
    uint32_t max = 0;
    float x[EACH];
    const size_t block = warp_number();
    if (block * WEFT_BLOCK < count) {
        const slice s(block, count);
        const uint32_t bits = warp_max(sum_block(x, a, factor, b, s));
        const float scale = mean_magnitude(x, s.length);
        float residual[EACH];
        for (int t = 0; t < EACH; t++) residual[t] = x[t];
        max = bits;
        if (lane_number() == 0) scales_out[block] = scale;
        sign_block(bits_out, residual, scale, block, s);
        write_block(out, bits < FLOAT_INF ? residual : x, s);
    }
    if (max_bits) raise(max_bits, max);
}

/* ---- sums of codes, and back ---- */

template <typename Sum> struct add_codes_op {
    Sum *sums;
    const int8_t *codes;
    template <int N> __device__ void run(size_t i) const
    {
        pack<Sum, N> sum = load<N>(sums + i);
        const pack<int8_t, N> code = load<N>(codes + i);
        for (int j = 0; j < N; j++) sum.v[j] = (Sum)(sum.v[j] + code.v[j]);
        store<N>(sums + i, sum);
    }
};

/* N divides a block, so a pack lies within one. */
template <typename Sum> struct dequantise_op {
    float *out;
    const Sum *sums;
    const uint8_t *exponents;
    float factor;
    template <int N> __device__ void run(size_t i) const
    {
        const float scale = block_scale(exponents[i / WEFT_BLOCK]);
        const pack<Sum, N> sum = load<N>(sums + i);
        pack<float, N> value;
        for (int j = 0; j < N; j++) value.v[j] = canonical((float)sum.v[j] * scale * factor);
        store<N>(out + i, value);
    }
};

template <enum weft_fp8 FORMAT> struct dequantise_fp8_op {
    float *out;
    const uint8_t *codes, *exponents;
    template <int N> __device__ void run(size_t i) const
    {
        const struct lowbit_format f = lowbit_format(FORMAT);
        const float scale = block_scale(exponents[i / WEFT_BLOCK]);
        const pack<uint8_t, N> code = load<N>(codes + i);
        pack<float, N> value;
        for (int j = 0; j < N; j++) value.v[j] = lowbit_value(code.v[j], f.shift, f.bias) * scale;
        store<N>(out + i, value);
    }
};

struct dequantise_sign_op {
    float *out;
    const uint8_t *bits;
    const float *scales;
    template <int N> __device__ void run(size_t i) const
    {
        const uint32_t scale = float_bits(scales[i / WEFT_BLOCK]);
        pack<float, N> value;
        for (int j = 0; j < N; j++)
            value.v[j] = float_from_bits(scale | (uint32_t)(bits[i / 8] >> (i + (size_t)j) % 8) << 31);
        store<N>(out + i, value);
    }
};

/* Run over bytes; the last one may hold a single code. */
struct pack_i4_op {
    uint8_t *out;
    const int8_t *codes;
    size_t code_count;
    template <int N> __device__ void run(size_t i) const
    {
        pack<uint8_t, N> bytes;
        if (N > 1 && 2 * (i + N) <= code_count) {
            const pack<int8_t, 2 *N> code = load<2 * N>(codes + 2 * i);
            for (int j = 0; j < N; j++)
                bytes.v[j] = (uint8_t)((code.v[2 * j] & 0xf) | (code.v[2 * j + 1] & 0xf) << 4);
        } else {
            for (int j = 0; j < N; j++) {
                const size_t first = 2 * (i + (size_t)j);
                const int high = first + 1 < code_count ? codes[first + 1] : 0;
                bytes.v[j] = (uint8_t)((codes[first] & 0xf) | (high & 0xf) << 4);
            }
        }
        if constexpr (N > 1) store<N>(out + i, bytes);
        else out[i] = bytes.v[0];
    }
};

/* Run over codes, N of them even. */
struct unpack_i4_op {
    int8_t *codes_out;
    const uint8_t *in;
    template <int N> __device__ void run(size_t i) const
    {
        pack<int8_t, N> code;
        for (int j = 0; j < N; j++) {
            const int half = in[(i + (size_t)j) / 2] >> ((i + (size_t)j) % 2 * 4) & 0xf;
            code.v[j] = (int8_t)(half - (half >= 8 ? 16 : 0));
        }
        store<N>(codes_out + i, code);
    }
};

inline size_t warp_blocks(size_t count)
{
    return pieces(pieces(count, WEFT_BLOCK), WARPS);
}
inline bool is_invalid_limit(unsigned limit)
{
    return limit < 1 || limit > 127 || (limit & (limit + 1)) != 0;
}

} // namespace

enum weft_status weft_cuda_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                                size_t count, unsigned limit, uint8_t *exponents_out,
                                                uint32_t *max_bits, weft_cuda_stream stream)
{
    if (is_invalid_limit(limit)) return WEFT_ERR_INVALID;
    return launch(stream, warp_blocks(count), THREADS, sum_blocks_kernel, out, a, factor,
                  b, count, limit, exponents_out, max_bits);
}

enum weft_status weft_cuda_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                                        unsigned limit, const struct weft_noise *noise,
                                        weft_cuda_stream stream)
{
    const struct weft_noise none = {};
    if (is_invalid_limit(limit)) return WEFT_ERR_INVALID;
    return launch(stream, warp_blocks(count), THREADS, quantise_kernel, codes_out, x, exponents, count,
                  (float)limit, noise ? *noise : none, noise != nullptr);
}

enum weft_status weft_cuda_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count,
                                      weft_cuda_stream stream)
{
    return each<8>(stream, add_codes_op<int16_t>{sums, codes}, count, aligned(sums, codes));
}

enum weft_status weft_cuda_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count,
                                      weft_cuda_stream stream)
{
    return each<8>(stream, add_codes_op<int32_t>{sums, codes}, count, aligned(sums, codes));
}

enum weft_status weft_cuda_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents,
                                              float factor, size_t count, weft_cuda_stream stream)
{
    return each<8>(stream, dequantise_op<int16_t>{out, sums, exponents, factor}, count, aligned(out, sums));
}

enum weft_status weft_cuda_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents,
                                              float factor, size_t count, weft_cuda_stream stream)
{
    return each<8>(stream, dequantise_op<int32_t>{out, sums, exponents, factor}, count, aligned(out, sums));
}

enum weft_status weft_cuda_pack_i4(uint8_t *out, const int8_t *codes, size_t count, weft_cuda_stream stream)
{
    return each<8>(stream, pack_i4_op{out, codes, count}, pieces(count, 2), aligned(out, codes));
}

enum weft_status weft_cuda_unpack_i4(int8_t *codes_out, const uint8_t *in, size_t count,
                                     weft_cuda_stream stream)
{
    return each<8>(stream, unpack_i4_op{codes_out, in}, count, aligned(codes_out));
}

enum weft_status weft_cuda_quantise_fp8_f32(uint8_t *codes_out, float *x, const uint8_t *exponents,
                                            size_t count, enum weft_fp8 format, weft_cuda_stream stream)
{
    return launch(stream, warp_blocks(count), THREADS,
                  format == WEFT_E4M3 ? quantise_fp8_kernel<WEFT_E4M3> : quantise_fp8_kernel<WEFT_E5M2>,
                  codes_out, x, exponents, count);
}

enum weft_status weft_cuda_dequantise_fp8_f32(float *out, const uint8_t *codes, const uint8_t *exponents,
                                              size_t count, enum weft_fp8 format, weft_cuda_stream stream)
{
    return format == WEFT_E4M3 ? each<8>(stream, dequantise_fp8_op<WEFT_E4M3>{out, codes, exponents}, count,
                                         aligned(out, codes))
                               : each<8>(stream, dequantise_fp8_op<WEFT_E5M2>{out, codes, exponents}, count,
                                         aligned(out, codes));
}

enum weft_status weft_cuda_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *x, size_t count,
                                             weft_cuda_stream stream)
{
    return launch(stream, warp_blocks(count), THREADS, quantise_sign_kernel, bits_out, scales_out, x, count);
}

enum weft_status weft_cuda_dequantise_sign_f32(float *out, const uint8_t *bits, const float *scales,
                                               size_t count, weft_cuda_stream stream)
{
    return each<8>(stream, dequantise_sign_op{out, bits, scales}, count, aligned(out));
}

enum weft_status weft_cuda_scale_add_quantise_f32(int8_t *codes_out, uint8_t *exponents_out, float *out,
                                                  const float *a, float factor, const float *b, size_t count,
                                                  unsigned limit, const struct weft_noise *noise,
                                                  uint32_t *max_bits, weft_cuda_stream stream)
{
    const struct weft_noise none = {};
    if (is_invalid_limit(limit)) return WEFT_ERR_INVALID;
    return launch(stream, warp_blocks(count), THREADS, fused_kernel<0>,
                  (uint8_t *)codes_out, exponents_out, out, a, factor, b, count, limit, noise ? *noise : none,
                  noise != nullptr, max_bits);
}

enum weft_status weft_cuda_scale_add_quantise_fp8_f32(uint8_t *codes_out, uint8_t *exponents_out, float *out,
                                                      const float *a, float factor, const float *b,
                                                      size_t count, enum weft_fp8 format, uint32_t *max_bits,
                                                      weft_cuda_stream stream)
{
    const struct weft_noise none = {};
    return launch(stream, warp_blocks(count), THREADS,
                  format == WEFT_E4M3 ? fused_kernel<WEFT_E4M3> : fused_kernel<WEFT_E5M2>, codes_out,
                  exponents_out, out, a, factor, b, count, 0u, none, false, max_bits);
}

enum weft_status weft_cuda_scale_add_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *out,
                                                       const float *a, float factor, const float *b,
                                                       size_t count, uint32_t *max_bits,
                                                       weft_cuda_stream stream)
{
    return launch(stream, warp_blocks(count), THREADS, fused_sign_kernel, bits_out,
                  scales_out, out, a, factor, b, count, max_bits);
}
