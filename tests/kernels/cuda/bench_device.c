/* bench_device.c - the cases and the rounds. See bench_device.h.
 *
 * Inputs are larger than a GPU's caches at the usual count; every round runs copy and kernel once each, after one round
 * that warms up. */
#include "tests/kernels/cuda/bench_device.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_memory.h"
#include "tests/kernels/sample.h"
#include "tools/benchlib/samples.h"

enum { ARRAYS = 5, ROUNDS_MAX = 1000, PATTERN = 1 << 20 };

struct buffers {
    float *arrays[ARRAYS]; /* (count,) on the device; 0..3 normal, 4 takes results */
    uint8_t *exponents;
    uint32_t *max_bits;
    size_t count;
    uint64_t step;
    double copy_bytes; /* of device_copy_queue, for its own turn */
    bool failed;
};

struct bench_case {
    const char *name;
    double bytes_per_element;
    enum weft_status (*run)(struct buffers *b);
};

static enum weft_status run_sum(struct buffers *b) { return weft_cuda_sum_f32(b->arrays[4], b->arrays[0], b->arrays[1], b->count, NULL); }

static enum weft_status run_tree4(struct buffers *b)
{
    return weft_cuda_sum_tree_f32(&b->arrays[4], 1, (const float *const *)b->arrays, 4, b->count, NULL);
}

static enum weft_status run_scale(struct buffers *b) { return weft_cuda_scale_f32(b->arrays[4], b->arrays[0], 0.5f, b->count, NULL); }

static enum weft_status run_add_residual(struct buffers *b)
{
    return weft_cuda_scale_add_f32(b->arrays[4], b->arrays[0], 0.5f, b->arrays[1], b->count, b->max_bits, NULL);
}

static enum weft_status run_largest(struct buffers *b) { return weft_cuda_max_abs_bits_f32(b->max_bits, b->arrays[0], b->count, NULL); }

static enum weft_status run_to_f16(struct buffers *b)
{
    return weft_cuda_cast_f32_f16((uint16_t *)b->arrays[4], b->arrays[0], b->count, NULL);
}

static enum weft_status run_from_f16(struct buffers *b)
{
    return weft_cuda_cast_f16_f32(b->arrays[4], (const uint16_t *)b->arrays[0], b->count, NULL);
}

static enum weft_status run_to_bf16(struct buffers *b)
{
    return weft_cuda_cast_f32_bf16((uint16_t *)b->arrays[4], b->arrays[0], b->count, NULL);
}

static enum weft_status run_from_bf16(struct buffers *b)
{
    return weft_cuda_cast_bf16_f32(b->arrays[4], (const uint16_t *)b->arrays[0], b->count, NULL);
}

static enum weft_status run_to_e4m3(struct buffers *b)
{
    return weft_cuda_cast_f32_fp8((uint8_t *)b->arrays[4], b->arrays[0], b->count, WEFT_E4M3, NULL);
}

static enum weft_status run_from_e5m2(struct buffers *b)
{
    return weft_cuda_cast_fp8_f32(b->arrays[4], (const uint8_t *)b->arrays[0], b->count, WEFT_E5M2, NULL);
}

static enum weft_status run_exponents(struct buffers *b)
{
    return weft_cuda_scale_add_blocks_f32(b->arrays[4], b->arrays[0], 1.0f, b->arrays[1], b->count, 127, b->exponents, b->max_bits, NULL);
}

static enum weft_status run_quantise(struct buffers *b)
{
    const struct weft_noise noise = {{1, 2}, b->step++, 0};
    return weft_cuda_quantise_f32((int8_t *)b->arrays[4], b->arrays[3], b->exponents, b->count, 127, &noise, NULL);
}

static enum weft_status run_fused(struct buffers *b)
{
    const struct weft_noise noise = {{1, 2}, b->step++, 0};
    return weft_cuda_scale_add_quantise_f32((int8_t *)b->arrays[4], b->exponents, b->arrays[1], b->arrays[0], 1.0f, b->arrays[1], b->count,
                                            127, &noise, b->max_bits, NULL);
}

static enum weft_status run_fused_e4m3(struct buffers *b)
{
    return weft_cuda_scale_add_quantise_fp8_f32((uint8_t *)b->arrays[4], b->exponents, b->arrays[1], b->arrays[0], 1.0f, b->arrays[1],
                                                b->count, WEFT_E4M3, b->max_bits, NULL);
}

static enum weft_status run_fused_sign(struct buffers *b)
{
    return weft_cuda_scale_add_quantise_sign_f32((uint8_t *)b->arrays[4], b->arrays[4] + b->count / 16, b->arrays[1], b->arrays[0], 1.0f,
                                                 b->arrays[1], b->count, b->max_bits, NULL);
}

static enum weft_status run_dequantise(struct buffers *b)
{
    return weft_cuda_dequantise_i16_f32(b->arrays[4], (const int16_t *)b->arrays[0], b->exponents, 0.5f, b->count, NULL);
}

static enum weft_status run_from_e4m3_blocks(struct buffers *b)
{
    return weft_cuda_dequantise_fp8_f32(b->arrays[4], (const uint8_t *)b->arrays[0], b->exponents, b->count, WEFT_E4M3, NULL);
}

static const struct bench_case cases[] = {
    {"sum f32", 12, run_sum},
    {"sum of 4 f32", 20, run_tree4},
    {"scale f32", 8, run_scale},
    {"add residual", 12, run_add_residual},
    {"largest magnitude", 4, run_largest},
    {"cast f32 to f16", 6, run_to_f16},
    {"cast f16 to f32", 6, run_from_f16},
    {"cast f32 to bf16", 6, run_to_bf16},
    {"cast bf16 to f32", 6, run_from_bf16},
    {"cast f32 to e4m3", 5, run_to_e4m3},
    {"cast e5m2 to f32", 5, run_from_e5m2},
    {"block exponents", 12, run_exponents},
    {"quantise i8, residual", 9, run_quantise},
    {"add residual, quantise i8", 13, run_fused},
    {"add residual, quantise e4m3", 13, run_fused_e4m3},
    {"add residual, signs", 12.140625, run_fused_sign},
    {"dequantise i16", 6, run_dequantise},
    {"dequantise e4m3", 5, run_from_e4m3_blocks},
};

struct turn {
    struct buffers *buffers;
    const struct bench_case *run; /* NULL: the copy */
};

static void queue_turn(void *context)
{
    const struct turn *turn = context;
    struct buffers *b = turn->buffers;
    if (turn->run) b->failed = turn->run->run(b) != WEFT_OK || b->failed;
    else device_copy_queue(b->arrays[4], b->arrays[2], (size_t)b->copy_bytes);
}

static void measure(const struct kernelbench_options *options, const struct bench_case *c, struct buffers *b, struct kernelbench_row *row)
{
    static double rates[ROUNDS_MAX], copies[ROUNDS_MAX], times[ROUNDS_MAX], scratch[ROUNDS_MAX];
    const uint32_t rounds = options->rounds < ROUNDS_MAX ? options->rounds : ROUNDS_MAX;
    struct turn kernel = {b, c}, copy = {b, NULL};
    const double moved = c->bytes_per_element * (double)b->count, most = 2.0 * (double)b->count * sizeof(float);
    b->copy_bytes = (moved < most ? moved : most) / 2;
    for (uint32_t round = 0; round <= rounds; round++) { /* round 0 warms up and is overwritten */
        const uint32_t at = round == 0 ? 0 : round - 1;
        copies[at] = 2 * b->copy_bytes / device_seconds(queue_turn, &copy);
        times[at] = device_seconds(queue_turn, &kernel);
        rates[at] = moved / times[at];
    }
    const struct bench_ratio ratio = bench_compare(copies, rates, rounds, scratch);
    *row = (struct kernelbench_row){
        .name = c->name, .count = b->count, .bytes_per_element = c->bytes_per_element,
        .time_s = bench_summarise(times, rounds).p50,
        .gbps = bench_summarise(rates, rounds).p50 * 1e-9, .copy_gbps = bench_summarise(copies, rounds).p50 * 1e-9,
        .ratio = ratio.median, .ratio_low = ratio.low, .ratio_high = ratio.high,
    };
}

/* A million normal numbers, over and over: more than a select's buckets or a block can tell from one long row. */
static bool open_buffers(struct buffers *b)
{
    float *pattern = malloc(PATTERN * sizeof *pattern);
    bool fine = pattern != NULL;
    for (size_t i = 0; i < ARRAYS && fine; i++) {
        struct sample sample = {i + 1};
        b->arrays[i] = device_alloc(b->count * sizeof(float) + 64);
        fine = b->arrays[i] != NULL;
        if (fine) sample_fill(&sample, SAMPLE_NORMAL, pattern, PATTERN);
        for (size_t at = 0; at < b->count && fine; at += PATTERN)
            device_put(b->arrays[i] + at, pattern, (b->count - at < PATTERN ? b->count - at : PATTERN) * sizeof(float));
    }
    free(pattern);
    b->exponents = device_alloc(b->count / WEFT_BLOCK + 1);
    b->max_bits = device_alloc(sizeof *b->max_bits);
    if (!fine || !b->exponents || !b->max_bits) return false;
    device_set(b->exponents, 122, b->count / WEFT_BLOCK + 1);
    device_set(b->max_bits, 0, sizeof *b->max_bits);
    return true;
}

bool bench_device(const struct kernelbench_options *options, void (*row)(void *context, const struct kernelbench_row *row), void *context)
{
    struct buffers b = {.count = options->count};
    bool fine = open_buffers(&b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && fine; i++) {
        struct kernelbench_row result;
        if (options->only && !strstr(cases[i].name, options->only)) continue;
        measure(options, &cases[i], &b, &result);
        fine = !b.failed;
        if (fine) row(context, &result);
    }
    for (size_t i = 0; i < ARRAYS; i++)
        if (b.arrays[i]) device_free(b.arrays[i]);
    if (b.exponents) device_free(b.exponents);
    if (b.max_bits) device_free(b.max_bits);
    return fine;
}
