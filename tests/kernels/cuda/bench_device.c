/* bench_device.c - the cases and the rounds. See bench_device.h.
 *
 * Inputs are larger than a GPU's caches at the usual count; every round runs copy and kernel once each,
 * after one round that warms up. */
#include "tests/kernels/cuda/bench_device.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_memory.h"
#include "tests/kernels/sample.h"
#include "tools/bench/lib/samples.h"

enum { ARRAYS = 5, ROUNDS_MAX = 1000, PATTERN = 1 << 20, SIDE_MAX = 4096, RANK_MAX = 8 };

struct buffers {
    float *arrays[ARRAYS]; /* (count,) on the device; 0..3 normal, 4 takes results */
    uint8_t *exponents;
    uint32_t *max_bits, *indices;
    float *p, *q;       /* (RANK_MAX, SIDE_MAX) each */
    void *workspace;    /* of a select, or of the products and the orthogonalisation, or of LAMB */
    size_t count, side; /* side: of the largest square matrix within count and SIDE_MAX */
    size_t rank;        /* of the case that runs */
    uint64_t step;
    double copy_bytes; /* of device_copy_queue, for its own turn */
    bool failed;
};

struct bench_case {
    const char *name;
    double bytes_per_element;
    enum weft_status (*run)(struct buffers *b);
    size_t rank; /* of a case on the square matrix; 0: on all elements */
};

static enum weft_status run_sum(struct buffers *b)
{
    return weft_cuda_sum_f32(b->arrays[4], b->arrays[0], b->arrays[1], b->count, NULL);
}

static enum weft_status run_tree4(struct buffers *b)
{
    return weft_cuda_sum_tree_f32(&b->arrays[4], 1, (const float *const *)b->arrays, 4, 1, b->count, NULL);
}

static enum weft_status run_scale(struct buffers *b)
{
    return weft_cuda_scale_f32(b->arrays[4], b->arrays[0], 0.5f, b->count, NULL);
}

static enum weft_status run_add_residual(struct buffers *b)
{
    return weft_cuda_scale_add_f32(b->arrays[4], b->arrays[0], 0.5f, b->arrays[1], b->count, b->max_bits,
                                   NULL);
}

static enum weft_status run_largest(struct buffers *b)
{
    return weft_cuda_max_abs_bits_f32(b->max_bits, b->arrays[0], b->count, NULL);
}

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
    return weft_cuda_scale_add_blocks_f32(b->arrays[4], b->arrays[0], 1.0f, b->arrays[1], b->count, 127,
                                          b->exponents, b->max_bits, NULL);
}

static enum weft_status run_quantise(struct buffers *b)
{
    const struct weft_noise noise = {{1, 2}, b->step++, 0};
    return weft_cuda_quantise_f32((int8_t *)b->arrays[4], b->arrays[3], b->exponents, b->count, 127, &noise,
                                  NULL);
}

static enum weft_status run_fused(struct buffers *b)
{
    const struct weft_noise noise = {{1, 2}, b->step++, 0};
    return weft_cuda_scale_add_quantise_f32((int8_t *)b->arrays[4], b->exponents, b->arrays[1], b->arrays[0],
                                            1.0f, b->arrays[1], b->count, 127, &noise, b->max_bits, NULL);
}

static enum weft_status run_fused_e4m3(struct buffers *b)
{
    return weft_cuda_scale_add_quantise_fp8_f32((uint8_t *)b->arrays[4], b->exponents, b->arrays[1],
                                                b->arrays[0], 1.0f, b->arrays[1], b->count, WEFT_E4M3,
                                                b->max_bits, NULL);
}

static enum weft_status run_fused_sign(struct buffers *b)
{
    return weft_cuda_scale_add_quantise_sign_f32((uint8_t *)b->arrays[4], b->arrays[4] + b->count / 16,
                                                 b->arrays[1], b->arrays[0], 1.0f, b->arrays[1], b->count,
                                                 b->max_bits, NULL);
}

static enum weft_status run_dequantise(struct buffers *b)
{
    return weft_cuda_dequantise_i16_f32(b->arrays[4], (const int16_t *)b->arrays[0], b->exponents, 0.5f,
                                        b->count, NULL);
}

static enum weft_status run_from_e4m3_blocks(struct buffers *b)
{
    return weft_cuda_dequantise_fp8_f32(b->arrays[4], (const uint8_t *)b->arrays[0], b->exponents, b->count,
                                        WEFT_E4M3, NULL);
}

/* Array 1 is the residual: what was not sent is there for the next round. */
static enum weft_status run_select(struct buffers *b)
{
    const size_t k = (b->count + 99) / 100;
    return weft_cuda_scale_add_select_top_f32(b->indices, b->arrays[4], b->arrays[1],
                                              b->arrays[b->step++ % 2 ? 0 : 2], 1.0f, b->arrays[1], b->count,
                                              k, b->max_bits, b->workspace, NULL);
}

static enum weft_status run_select_alone(struct buffers *b)
{
    return weft_cuda_select_top(b->indices, b->arrays[0], b->count, (b->count + 99) / 100, b->workspace,
                                NULL);
}

static enum weft_status run_random_k(struct buffers *b)
{
    const struct weft_noise noise = {{1, 2}, b->step++, 0};
    const size_t k = (b->count + 99) / 100;
    const enum weft_status status = weft_cuda_sample_strata(b->indices, b->count, k, &noise, NULL);
    return status == WEFT_OK ? weft_cuda_take_f32(b->arrays[4], b->arrays[3], b->indices, k, NULL) : status;
}

/* A worker's whole step on its own: residual added and P, basis, Q, the new residual, the decoded mean. */
static enum weft_status run_powersgd(struct buffers *b)
{
    const size_t n = b->side, r = b->rank;
    float *residual = b->arrays[1];
    enum weft_status status = weft_cuda_scale_add_matmul_f32(residual, b->arrays[0], 1.0f, residual, b->p, n,
                                                             b->q, n, n, r, b->max_bits, NULL);
    if (status == WEFT_OK) status = weft_cuda_orthogonalise(b->p, n, r, NULL, NULL, b->workspace, NULL);
    if (status == WEFT_OK) status = weft_cuda_matmul_t_f32(b->q, residual, b->p, n, n, r, b->workspace, NULL);
    if (status == WEFT_OK) status = weft_cuda_outer_sub_f32(residual, b->p, b->q, n, n, r, NULL);
    return status == WEFT_OK ? weft_cuda_outer_f32(b->arrays[4], b->p, b->q, n, n, r, NULL) : status;
}

static enum weft_status run_matmul(struct buffers *b)
{
    return weft_cuda_scale_add_matmul_f32(b->arrays[1], b->arrays[0], 1.0f, b->arrays[1], b->p, b->side, b->q,
                                          b->side, b->side, b->rank, b->max_bits, NULL);
}

static enum weft_status run_matmul_t(struct buffers *b)
{
    return weft_cuda_matmul_t_f32(b->q, b->arrays[1], b->p, b->side, b->side, b->rank, b->workspace, NULL);
}

static enum weft_status run_outer_sub(struct buffers *b)
{
    return weft_cuda_outer_sub_f32(b->arrays[1], b->p, b->q, b->side, b->side, b->rank, NULL);
}

/* Bytes: P read for the dots, read and written by the combination. Its time is what counts. */
static enum weft_status run_orthogonalise(struct buffers *b)
{
    return weft_cuda_orthogonalise(b->p, b->side, b->rank, NULL, NULL, b->workspace, NULL);
}

static enum weft_status run_sgd(struct buffers *b)
{
    const struct weft_sgd sgd = {.lr = 1e-6f, .momentum = 0.9f};
    return weft_cuda_sgd_f32(b->arrays[0], b->arrays[1], b->arrays[2], 1.0f, &sgd, b->count, NULL);
}

static enum weft_status run_adam(struct buffers *b)
{
    const struct weft_adam adam = {
        .lr = 1e-6f, .step_size = 1e-6f, .root_scale = 1.0f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    return weft_cuda_adam_f32(b->arrays[0], b->arrays[1], b->arrays[4], b->arrays[2], 1.0f, &adam, b->count,
                              NULL);
}

static enum weft_status run_lamb(struct buffers *b)
{
    const struct weft_lamb lamb = {.first_scale = 1.0f,
                                   .root_scale = 1.0f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.999f,
                                   .eps = 1e-6f,
                                   .weight_decay = 0.01f};
    return weft_cuda_lamb_f32(b->arrays[0], b->arrays[1], b->arrays[4], b->arrays[2], 1.0f, &lamb, 1e-6f,
                              b->count, b->workspace, NULL);
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
    {"top-k 1 % with residual", 16, run_select},
    {"top-k 1 %, select alone", 8, run_select_alone},
    {"random-k 1 %", 0.16, run_random_k},
    {"powersgd rank 1", 28, run_powersgd, 1},
    {"powersgd rank 4", 28, run_powersgd, 4},
    {"powersgd rank 8", 28, run_powersgd, 8},
    {"  add residual, P = M Q, rank 4", 12, run_matmul, 4},
    {"  Q = M^T P, rank 4", 4, run_matmul_t, 4},
    {"  residual - P^T Q, rank 4", 8, run_outer_sub, 4},
    {"  orthogonalise, rank 4", 48.0 / 4096, run_orthogonalise, 4},
    {"sgd momentum", 20, run_sgd},
    {"adam", 28, run_adam},
    {"lamb", 44, run_lamb},
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

static void measure(const struct kernelbench_options *options, const struct bench_case *c, struct buffers *b,
                    struct kernelbench_row *row)
{
    static double rates[ROUNDS_MAX], copies[ROUNDS_MAX], times[ROUNDS_MAX], scratch[ROUNDS_MAX];
    const uint32_t rounds = options->rounds < ROUNDS_MAX ? options->rounds : ROUNDS_MAX;
    struct turn kernel = {b, c}, copy = {b, NULL};
    const size_t count = c->rank > 0 ? b->side * b->side : b->count;
    const double moved = c->bytes_per_element * (double)count, most = 2.0 * (double)b->count * sizeof(float);
    b->rank = c->rank;
    b->copy_bytes = (moved < most ? moved : most) / 2;
    for (uint32_t round = 0; round <= rounds; round++) { /* round 0 warms up and is overwritten */
        const uint32_t at = round == 0 ? 0 : round - 1;
        copies[at] = 2 * b->copy_bytes / device_seconds(queue_turn, &copy);
        times[at] = device_seconds(queue_turn, &kernel);
        rates[at] = moved / times[at];
    }
    const struct bench_ratio ratio = bench_compare(copies, rates, rounds, scratch);
    *row = (struct kernelbench_row){
        .name = c->name,
        .count = count,
        .bytes_per_element = c->bytes_per_element,
        .time_s = bench_summarise(times, rounds).p50,
        .gbps = bench_summarise(rates, rounds).p50 * 1e-9,
        .copy_gbps = bench_summarise(copies, rounds).p50 * 1e-9,
        .ratio = ratio.median,
        .ratio_low = ratio.low,
        .ratio_high = ratio.high,
    };
}

/* A million normal numbers, repeated: for the buckets of a select and for a block the same as one long
 * row. */
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
            device_put(b->arrays[i] + at, pattern,
                       (b->count - at < PATTERN ? b->count - at : PATTERN) * sizeof(float));
    }
    free(pattern);
    const size_t select = weft_cuda_select_workspace(b->count), lamb = weft_cuda_lamb_workspace(b->count);
    size_t workspace =
        weft_cuda_matmul_t_workspace(SIDE_MAX, SIDE_MAX, RANK_MAX) + weft_cuda_orthogonalise_workspace();
    workspace = workspace < select ? select : workspace;
    while (b->side < SIDE_MAX && (b->side + 1) * (b->side + 1) <= b->count) b->side++;
    b->workspace = device_alloc(workspace < lamb ? lamb : workspace);
    b->indices = device_alloc((b->count / 100 + 2) * sizeof *b->indices);
    b->p = device_alloc(RANK_MAX * SIDE_MAX * sizeof *b->p);
    b->q = device_alloc(RANK_MAX * SIDE_MAX * sizeof *b->q);
    if (!fine || !b->workspace || !b->indices || !b->p || !b->q) return false;
    device_copy_queue(b->q, b->arrays[3],
                      RANK_MAX * SIDE_MAX * sizeof *b->q < b->count * sizeof(float)
                          ? RANK_MAX * SIDE_MAX * sizeof *b->q
                          : b->count * sizeof(float));
    device_copy_queue(b->p, b->q, RANK_MAX * SIDE_MAX * sizeof *b->p);
    b->exponents = device_alloc(b->count / WEFT_BLOCK + 1);
    b->max_bits = device_alloc(sizeof *b->max_bits);
    if (!fine || !b->exponents || !b->max_bits) return false;
    device_set(b->exponents, 122, b->count / WEFT_BLOCK + 1);
    device_set(b->max_bits, 0, sizeof *b->max_bits);
    return true;
}

bool bench_device(const struct kernelbench_options *options,
                  void (*row)(void *context, const struct kernelbench_row *row), void *context)
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
    void *const others[] = {b.exponents, b.max_bits, b.indices, b.p, b.q, b.workspace};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i]) device_free(others[i]);
    return fine;
}
