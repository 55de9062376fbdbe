/* quantise.cu - block quantisation, 8-bit floats and signs: a warp holds a block of 256 in its registers
 * (quantise_block.h). */
#include "kernels/cuda/quantise_block.h"

namespace
{

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
    code_block(codes_out, mine, exponents[block], most, rounding(noise, noisy, block), s);
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
            code_block((int8_t *)codes_out, x, exponent, (float)limit, rounding(noise, noisy, block), s);
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
