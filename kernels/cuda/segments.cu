/* segments.cu - one launch that encodes many small tensors. A thread block has 8 quantisation blocks of one
 * segment, a warp each, so that it raises one maximum. The table is an argument of the kernel: no copy of it
 * is queued, and it may change after the call. */
#include "kernels/cuda/narrow_float.h"
#include "kernels/cuda/quantise_block.h"
#include "kernels/device_segment.h"

namespace
{

struct segment_table {
    struct weft_segment segments[WEFT_SEGMENTS_MAX];
    uint32_t first[WEFT_SEGMENTS_MAX + 1]; /* thread block of each segment; last: of all */
};
static_assert(sizeof(segment_table) <= 4096, "the argument of a kernel");

__device__ inline unsigned segment_of(const segment_table &table, uint32_t block)
{
    unsigned low = 0;
    for (unsigned step = WEFT_SEGMENTS_MAX / 2; step > 0; step /= 2)
        if (table.first[low + step] <= block) low += step;
    return low;
}

__device__ inline uint32_t block_max(const float *x, const slice &s)
{
    uint32_t max = 0;
    for (int t = 0; t < EACH; t++)
        if (s.has(t)) max = larger(max, magnitude(x[t]));
    return max;
}

/* Returns the largest magnitude of the gradient. */
__device__ inline uint32_t cast_block(const struct weft_segment &g, const slice &s)
{
    float x[EACH];
    read_block(x, g.a, s);
    const uint32_t max = block_max(x, s);
    uint16_t *codes = (uint16_t *)g.codes;
    for (int t = 0; t < EACH && g.kind != WEFT_SEGMENT_MAX; t++) {
        const float scaled = canonical(canonical(x[t] * g.factor) * g.factor2);
        if (s.has(t)) codes[s.of(t)] = g.kind == WEFT_SEGMENT_F16 ? to_f16()(scaled) : to_bf16()(scaled);
    }
    return max;
}

/* Two codes in a byte: neighbours are in neighbouring lanes. */
__device__ inline void code_block_i4(uint8_t *codes_out, float *x, uint8_t exponent, const rounding &drawn,
                                     size_t block, const slice &s)
{
    const float scale = block_scale(exponent), inverse = block_inverse(exponent);
    for (int t = 0; t < EACH; t++) {
        const float code = drawn.any ? noisy_code(x[t] * inverse, drawn.byte(t), 7.0f)
                                      : nearest_code(x[t] * inverse, 7.0f);
        const int own = s.has(t) ? (int)code & 0xf : 0, next = __shfl_down_sync(ALL, own, 1);
        if (lane_number() % 2 == 0 && s.has(t))
            codes_out[block * (WEFT_BLOCK / 2) + (unsigned)t * (WARP / 2) + lane_number() / 2] =
                (uint8_t)(own | next << 4);
        x[t] = canonical(x[t] - code * scale);
    }
}

__device__ inline void integer_block(const struct weft_segment &g, size_t block, const slice &s)
{
    float x[EACH];
    read_block(x, g.x, s);
    const rounding noise(g.noise, true, block);
    if (g.kind == WEFT_SEGMENT_INT4)
        code_block_i4((uint8_t *)g.codes, x, g.exponents[block], noise, block, s);
    else code_block((int8_t *)g.codes, x, g.exponents[block], 127.0f, noise, s);
    write_block(g.x, x, s);
}

template <enum weft_fp8 FORMAT>
__device__ inline void fp8_block(const struct weft_segment &g, float *x, uint32_t bits, size_t block,
                                 const slice &s)
{
    const uint8_t exponent = bits < FLOAT_INF ? fp8_exponent(bits, FORMAT) : 255;
    if (lane_number() == 0) ((uint8_t *)g.scales)[block] = exponent;
    if (bits < FLOAT_INF) {
        code_block_fp8<FORMAT>((uint8_t *)g.codes, x, exponent, s);
        return;
    }
    for (int t = 0; t < EACH; t++)
        if (s.has(t)) ((uint8_t *)g.codes)[s.of(t)] = 0;
}

__device__ inline void sign_of_block(const struct weft_segment &g, float *x, uint32_t bits, size_t block,
                                     const slice &s)
{
    float residual[EACH];
    const float scale = mean_magnitude(x, s.length);
    for (int t = 0; t < EACH; t++) residual[t] = x[t];
    if (lane_number() == 0) ((float *)g.scales)[block] = scale;
    sign_block((uint8_t *)g.codes, residual, scale, block, s);
    for (int t = 0; t < EACH && bits < FLOAT_INF; t++) x[t] = residual[t];
}

/* x = a*factor + b, and the codes where the scales are this worker's own. Returns the largest magnitude. */
__device__ inline uint32_t sum_and_code_block(const struct weft_segment &g, size_t block, const slice &s)
{
    float x[EACH];
    const uint32_t bits = warp_max(sum_block(x, g.a, g.factor, g.b, s));
    switch (g.kind) {
    case WEFT_SEGMENT_BLOCKS:
        if (lane_number() == 0)
            ((uint8_t *)g.scales)[block] = bits < FLOAT_INF ? block_exponent(bits, g.limit) : 255;
        break;
    case WEFT_SEGMENT_SIGN: sign_of_block(g, x, bits, block, s); break;
    case WEFT_SEGMENT_E4M3: fp8_block<WEFT_E4M3>(g, x, bits, block, s); break;
    default: fp8_block<WEFT_E5M2>(g, x, bits, block, s); break;
    }
    write_block(g.x, x, s);
    return bits;
}

__global__ void __launch_bounds__(THREADS) segments_kernel(const segment_table table)
{
    const unsigned number = segment_of(table, blockIdx.x);
    const struct weft_segment &g = table.segments[number];
    const size_t block = (size_t)(blockIdx.x - table.first[number]) * (THREADS / WARP) + threadIdx.x / WARP;
    uint32_t max = 0;
    if (block * WEFT_BLOCK < g.count) { /* the same in all lanes */
        const slice s(block, g.count);
        if (g.kind <= WEFT_SEGMENT_BF16) max = cast_block(g, s);
        else if (g.kind == WEFT_SEGMENT_INT8 || g.kind == WEFT_SEGMENT_INT4) integer_block(g, block, s);
        else max = sum_and_code_block(g, block, s);
    }
    if (g.max_bits) raise(g.max_bits, max); /* the same in all threads */
}

} // namespace

enum weft_status weft_cuda_encode_segments(const struct weft_segment *segments, size_t count,
                                           weft_cuda_stream stream)
{
    segment_table table = {};
    uint32_t blocks = 0;
    if (count > WEFT_SEGMENTS_MAX) return WEFT_ERR_INVALID;
    for (size_t i = 0; i < count; i++) {
        const struct weft_segment *g = &segments[i];
        if (g->kind > WEFT_SEGMENT_E5M2 || g->count > WEFT_SEGMENT_ELEMS_MAX) return WEFT_ERR_INVALID;
        table.segments[i] = *g;
        table.first[i] = blocks;
        if (g->kind != WEFT_SEGMENT_NONE) blocks += (uint32_t)pieces(g->count, THREADS / WARP * WEFT_BLOCK);
    }
    for (size_t i = count; i <= WEFT_SEGMENTS_MAX; i++) table.first[i] = blocks;
    return launch(stream, blocks, THREADS, segments_kernel, table);
}
