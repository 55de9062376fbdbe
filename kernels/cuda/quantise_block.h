/* quantise_block.h - one block of 256 elements in the registers of a warp. Private to kernels/cuda.
 *
 * Lane l has elements l, l + 32, ... l + 224: every load and store of the warp is one piece of memory, at
 * any start. The random bytes fall in place by themselves: element i draws from counter i % 16, which is l %
 * 16 for all eight, so a lane needs one Philox call for its block. So do the sixteen lanes of a horizontal
 * sum: lane j of them adds what warp lanes j and j + 16 hold, in turn. */
#ifndef WEFT_CUDA_QUANTISE_BLOCK_H
#define WEFT_CUDA_QUANTISE_BLOCK_H

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

struct rounding {
    uint32_t words[4];
    bool any;
    __device__ rounding(const struct weft_noise &noise, bool noisy, size_t block) : words(), any(noisy)
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
                                  const rounding &drawn, const slice &s)
{
    const float scale = block_scale(exponent), inverse = block_inverse(exponent);
    for (int t = 0; t < EACH; t++) {
        const float code = drawn.any ? noisy_code(x[t] * inverse, drawn.byte(t), most)
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

} // namespace

#endif
