/* kernelbench.c - the cases and the timing; see kernelbench.h. */
#include "tools/bench/kernels/kernelbench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench/kernels/codec_case.h"
#include "tools/bench/lib/samples.h"

enum { ARRAYS = 9, ROUNDS_MAX = 1000 };

struct buffers {
    float *arrays[ARRAYS]; /* (count,) from page boundaries; [0..7] random normal, [8] scratch */
    uint8_t *exponents;    /* one per block */
    size_t count;
    struct codec_case *codec; /* of the current case; NULL: no codec */
    uint32_t step;            /* of the codec: each step has another gradient */
};

struct bench_case {
    const char *name;
    double bytes_per_element;
    void (*run)(const struct weft_kernels *kernels, struct buffers *b);
    const char *codec; /* spec of a codec; NULL: none */
    bool square;       /* the codec works on a matrix of side * side elements */
};

static void run_sum(const struct weft_kernels *k, struct buffers *b)
{
    k->sum_f32(b->arrays[0], b->arrays[0], b->arrays[1], b->count);
}

static void run_sum_apart(const struct weft_kernels *k, struct buffers *b)
{
    k->sum_f32(b->arrays[8], b->arrays[0], b->arrays[1], b->count);
}

static void run_tree(const struct weft_kernels *k, struct buffers *b, size_t sources)
{
    float *const outs[1] = {b->arrays[0]};
    k->sum_tree_f32(outs, 1, (const float *const *)b->arrays, sources, 1, b->count);
}

static void run_tree4(const struct weft_kernels *k, struct buffers *b)
{
    run_tree(k, b, 4);
}
static void run_tree8(const struct weft_kernels *k, struct buffers *b)
{
    run_tree(k, b, 8);
}

static void run_scale(const struct weft_kernels *k, struct buffers *b)
{
    k->scale_f32(b->arrays[8], b->arrays[0], 0.5f, b->count);
}

static void run_to_f16(const struct weft_kernels *k, struct buffers *b)
{
    k->cast_f32_f16((uint16_t *)b->arrays[8], b->arrays[0], b->count);
}

static void run_from_f16(const struct weft_kernels *k, struct buffers *b)
{
    k->cast_f16_f32(b->arrays[8], (const uint16_t *)b->arrays[0], b->count);
}

static void run_to_bf16(const struct weft_kernels *k, struct buffers *b)
{
    k->cast_f32_bf16((uint16_t *)b->arrays[8], b->arrays[0], b->count);
}

static void run_from_bf16(const struct weft_kernels *k, struct buffers *b)
{
    k->cast_bf16_f32(b->arrays[8], (const uint16_t *)b->arrays[0], b->count);
}

static void run_sgd_rule(const struct weft_kernels *k, struct buffers *b, struct weft_sgd sgd)
{
    sgd.lr = 1e-6f;
    k->sgd_f32(b->arrays[0], sgd.momentum != 0.0f ? b->arrays[1] : NULL, b->arrays[2], 1.0f, &sgd, b->count);
}

static void run_sgd(const struct weft_kernels *k, struct buffers *b)
{
    run_sgd_rule(k, b, (struct weft_sgd){0});
}

static void run_sgd_momentum(const struct weft_kernels *k, struct buffers *b)
{
    run_sgd_rule(k, b, (struct weft_sgd){.momentum = 0.9f});
}

static void run_sgd_nesterov(const struct weft_kernels *k, struct buffers *b)
{
    run_sgd_rule(k, b, (struct weft_sgd){.momentum = 0.9f, .weight_decay = 1e-4f, .nesterov = true});
}

/* Makes array 3 positive: second moments are squares, and the root of a negative number takes another
 * time. */
static float *squares(struct buffers *b)
{
    if (b->step++ == 0)
        for (size_t i = 0; i < b->count; i++) b->arrays[3][i] = b->arrays[3][i] * b->arrays[3][i] + 1.0f;
    return b->arrays[3];
}

static void run_adam_rule(const struct weft_kernels *k, struct buffers *b, float weight_decay, bool decoupled)
{
    const struct weft_adam adam = {.lr = 1e-6f,
                                   .step_size = 1e-6f,
                                   .root_scale = 1,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.999f,
                                   .eps = 1e-8f,
                                   .weight_decay = weight_decay,
                                   .decoupled = decoupled};
    k->adam_f32(b->arrays[0], b->arrays[1], squares(b), b->arrays[2], 1.0f, &adam, b->count);
}

static void run_adam(const struct weft_kernels *k, struct buffers *b)
{
    run_adam_rule(k, b, 0, false);
}
static void run_adam_decay(const struct weft_kernels *k, struct buffers *b)
{
    run_adam_rule(k, b, 0.01f, false);
}
static void run_adamw(const struct weft_kernels *k, struct buffers *b)
{
    run_adam_rule(k, b, 0.01f, true);
}

static void run_adagrad(const struct weft_kernels *k, struct buffers *b)
{
    k->adagrad_f32(b->arrays[0], squares(b), b->arrays[2], 1.0f, 1e-6f, 1e-10f, 0, b->count);
}

static void run_ftrl(const struct weft_kernels *k, struct buffers *b)
{
    const struct weft_ftrl ftrl = {.alpha = 0.1f, .beta = 1, .l1 = 0.1f, .l2 = 0.1f};
    k->ftrl_f32(b->arrays[0], b->arrays[1], squares(b), b->arrays[2], 1.0f, &ftrl, b->count);
}

/* Both passes; the norms between them take a few operations per block. */
static void run_lamb(const struct weft_kernels *k, struct buffers *b)
{
    const struct weft_lamb lamb = {.first_scale = 1,
                                   .root_scale = 1,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.999f,
                                   .eps = 1e-6f,
                                   .weight_decay = 0.01f};
    float *second = squares(b);
    double sums[2];
    k->lamb_moments_f32(b->arrays[1], second, b->arrays[0], b->arrays[2], 1.0f, &lamb, b->count, sums);
    k->lamb_apply_f32(b->arrays[0], b->arrays[1], second, &lamb, 1e-6f, b->count);
}

static void run_max_abs(const struct weft_kernels *k, struct buffers *b)
{
    b->arrays[8][0] = (float)k->max_abs_bits_f32(b->arrays[0], b->count);
}

static void run_quantise(const struct weft_kernels *k, struct buffers *b)
{
    const struct weft_noise noise = {{1, 2}, b->step++, 0};
    /* any second operand: the exponents are made once, for the quantised values */
    const float *zero = b->arrays[6];
    if (b->step == 1)
        k->scale_add_blocks_f32(b->arrays[0], b->arrays[0], 1.0f, zero, b->count, 127, b->exponents);
    k->quantise_f32((int8_t *)b->arrays[8], b->arrays[0], b->exponents, b->count, 127, &noise);
}

static void run_block_exponents(const struct weft_kernels *k, struct buffers *b)
{
    k->scale_add_blocks_f32(b->arrays[1], b->arrays[0], 1.0f, b->arrays[1], b->count, 127, b->exponents);
}

static void run_dequantise(const struct weft_kernels *k, struct buffers *b)
{
    memset(b->exponents, 100, b->count / WEFT_BLOCK + 1);
    k->dequantise_i16_f32(b->arrays[8], (const int16_t *)b->arrays[0], b->exponents, 0.5f, b->count);
}

/* With one scale for all elements; the work does not depend on it. */
static void run_fp8(const struct weft_kernels *k, struct buffers *b)
{
    memset(b->exponents, 120, b->count / WEFT_BLOCK + 1);
    k->quantise_fp8_f32((uint8_t *)b->arrays[8], b->arrays[0], b->exponents, b->count, WEFT_E4M3);
}

static void run_from_fp8(const struct weft_kernels *k, struct buffers *b)
{
    memset(b->exponents, 120, b->count / WEFT_BLOCK + 1);
    k->dequantise_fp8_f32(b->arrays[8], (const uint8_t *)b->arrays[0], b->exponents, b->count, WEFT_E4M3);
}

/* The means follow the bits. */
static void run_sign(const struct weft_kernels *k, struct buffers *b)
{
    k->quantise_sign_f32((uint8_t *)b->arrays[8], b->arrays[8] + b->count / 16, b->arrays[0], b->count);
}

static void run_from_sign(const struct weft_kernels *k, struct buffers *b)
{
    k->dequantise_sign_f32(b->arrays[8], (const uint8_t *)b->arrays[0], b->arrays[1], b->count);
}

static void run_scale_add(const struct weft_kernels *k, struct buffers *b)
{
    b->arrays[8][0] = (float)k->scale_add_f32(b->arrays[1], b->arrays[0], 1.0f, b->arrays[1], b->count);
}

static void run_codec(const struct weft_kernels *k, struct buffers *b)
{
    (void)k;
    codec_case_step(b->codec, b->arrays[b->step % 7], b->arrays[8]);
    b->step++;
}

static const struct bench_case cases[] = {
    {"sum f32 in place", 12, run_sum, NULL, false},
    {"sum f32 apart", 12, run_sum_apart, NULL, false},
    {"sum of 4 f32", 20, run_tree4, NULL, false},
    {"sum of 8 f32", 36, run_tree8, NULL, false},
    {"scale f32", 8, run_scale, NULL, false},
    {"cast f32 to f16", 6, run_to_f16, NULL, false},
    {"cast f16 to f32", 6, run_from_f16, NULL, false},
    {"cast f32 to bf16", 6, run_to_bf16, NULL, false},
    {"cast bf16 to f32", 6, run_from_bf16, NULL, false},
    {"sgd", 12, run_sgd, NULL, false},
    {"sgd momentum", 20, run_sgd_momentum, NULL, false},
    {"sgd nesterov, decay", 20, run_sgd_nesterov, NULL, false},
    {"adam", 28, run_adam, NULL, false},
    {"adam, decay", 28, run_adam_decay, NULL, false},
    {"adamw", 28, run_adamw, NULL, false},
    {"adagrad", 20, run_adagrad, NULL, false},
    {"ftrl", 28, run_ftrl, NULL, false},
    {"lamb", 40, run_lamb, NULL, false},
    {"largest magnitude", 4, run_max_abs, NULL, false},
    {"add residual", 12, run_scale_add, NULL, false},
    {"block exponents", 12, run_block_exponents, NULL, false},
    {"quantise i8, residual", 9, run_quantise, NULL, false},
    {"dequantise i16", 6, run_dequantise, NULL, false},
    {"quantise e4m3, residual", 9, run_fp8, NULL, false},
    {"dequantise e4m3", 5, run_from_fp8, NULL, false},
    {"signs, residual", 8.140625, run_sign, NULL, false},
    {"signs to f32", 4.140625, run_from_sign, NULL, false},
    {"top-k 1 % with residual", 16, run_codec, "topk:ratio=0.01", false},
    {"powersgd rank 4", 20, run_codec, "powersgd:rank=4", true},
};

/* Processor time of the thread. No case sleeps, so on an idle machine it equals wall time; on a busy one it
 * excludes other processes. */
static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Bytes read plus written per second by the faster copy of the same traffic. */
static double copy_rate(struct buffers *b, size_t bytes_moved)
{
    size_t half = bytes_moved / 2 / 64 * 64, most = b->count * sizeof(float) / 64 * 64;
    if (half > most) half = most;
    double begin = now_s();
    memcpy(b->arrays[8], b->arrays[7], half);
    const double plain = now_s() - begin;
    begin = now_s();
    kernelbench_stream_copy(b->arrays[8], b->arrays[7], half);
    const double streamed = now_s() - begin;
    return 2.0 * (double)half / (plain < streamed ? plain : streamed);
}

static void measure(const struct kernelbench_options *options, const struct bench_case *c, struct buffers *b,
                    struct kernelbench_row *row)
{
    double rates[ROUNDS_MAX], copies[ROUNDS_MAX], times[ROUNDS_MAX], scratch[ROUNDS_MAX];
    const uint32_t rounds = options->rounds < ROUNDS_MAX ? options->rounds : ROUNDS_MAX;
    const size_t count = b->codec ? codec_case_elems(b->codec) : b->count;
    for (uint32_t round = 0; round <= rounds; round++) { /* round 0 is the warm-up and is overwritten */
        const uint32_t at = round == 0 ? 0 : round - 1;
        copies[at] = copy_rate(b, (size_t)(c->bytes_per_element * (double)count));
        const double begin = now_s();
        c->run(options->kernels, b);
        times[at] = now_s() - begin;
        rates[at] = c->bytes_per_element * (double)count / times[at];
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

/* A sum of uniform numbers approximates a normal distribution. */
void kernelbench_fill_normal(float *out, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int32_t sum =
            (int32_t)(seed >> 48) + (int32_t)(seed >> 32 & 0xffff) + (int32_t)(seed >> 16 & 0xffff) - 98302;
        out[i] = (float)sum * 0x1p-16f;
    }
}

bool kernelbench_run(const struct kernelbench_options *options,
                     void (*row)(void *context, const struct kernelbench_row *row), void *context)
{
    struct buffers b = {.count = options->count};
    const size_t bytes = (options->count * sizeof(float) + 4095) / 4096 * 4096;
    b.exponents = calloc(options->count / WEFT_BLOCK + 1, 1);
    bool fine = b.exponents != NULL;
    for (size_t i = 0; i < ARRAYS && fine; i++) {
        b.arrays[i] = aligned_alloc(4096, bytes);
        fine = b.arrays[i] != NULL;
        if (fine) kernelbench_fill_normal(b.arrays[i], options->count, i + 1);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && fine; i++) {
        b.step = 0;
        if (options->only && !strstr(cases[i].name, options->only)) continue;
        struct kernelbench_row result;
        b.codec = cases[i].codec ? codec_case_open(cases[i].codec, cases[i].square, b.count) : NULL;
        fine = !cases[i].codec || b.codec;
        if (fine) measure(options, &cases[i], &b, &result);
        if (b.codec) codec_case_close(b.codec);
        if (fine) row(context, &result);
    }
    for (size_t i = 0; i < ARRAYS; i++) free(b.arrays[i]);
    free(b.exponents);
    return fine;
}
