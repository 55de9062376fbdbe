/* coded_steps.c - a worker for tests/system: push_pulls with codecs, whose bits it prints.
 *
 *     coded_steps STOP_FILE [STEPS [clip]]
 *
 * Tensors in server mode with an optimizer: int8 in several chunks, sign, top-k with a residual at the shard,
 * PowerSGD, random-k, gradients of bf16, results of f16. With clip: dense ones, clipped by the norm of each
 * step. Gradients are a function of rank, step and element. Prints "step N" and "bits N HASH" every 5 steps:
 * the hash is of all weights after all steps so far, equal in each run with the same ranks. Ends after STEPS
 * (0: no limit), or a step after rank 0 sees the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "stop_file.h"

enum { ROWS = 300, COLS = 400, COUNT = ROWS * COLS, STEPS_MAX = 3000 };

static const struct spec {
    const char *name, *codec, *optimizer;
    enum weft_dtype dtype, pull_dtype; /* 0: f32; as dtype */
} coded[] = {
    {.name = "codes", .codec = "int8", .optimizer = "sgd:momentum=0.5"},
    {.name = "signs", .codec = "sign", .optimizer = "sgd"},
    {.name = "largest", .codec = "topk:ratio=0.01,global=1", .optimizer = "adam"},
    {.name = "factors", .codec = "powersgd:rank=2", .optimizer = "sgd:momentum=0.9"},
    {.name = "drawn", .codec = "randomk:ratio=0.05", .optimizer = "sgd"},
    {.name = "short", .codec = "dense", .optimizer = "adam", .dtype = WEFT_BF16},
    {.name = "rounded", .codec = "dense", .optimizer = "sgd:momentum=0.9", .pull_dtype = WEFT_F16},
};
enum { TENSORS = sizeof coded / sizeof coded[0] };
static const struct spec clipped[TENSORS] = {
    {.name = "velocity", .codec = "dense", .optimizer = "sgd:momentum=0.5"},
    {.name = "plain", .codec = "dense", .optimizer = "sgd"},
    {.name = "moments", .codec = "dense", .optimizer = "adam"},
    {.name = "decayed", .codec = "dense", .optimizer = "adamw"},
    {.name = "second", .codec = "dense", .optimizer = "sgd"},
    {.name = "third", .codec = "dense", .optimizer = "adam"},
    {.name = "fourth", .codec = "dense", .optimizer = "sgd:momentum=0.9"},
};
static const struct spec *specs = coded;
static float clip_norm; /* 0: none */

static float grad[COUNT], weights[TENSORS][COUNT]; /* weights of bf16 are in the first half of theirs */
static uint16_t grad16[COUNT];

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

static struct weft_tensor *declare(struct weft_session *session, const struct spec *spec)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = spec->name;
    options.dim_count = 2;
    options.dims[0] = ROWS;
    options.dims[1] = COLS;
    options.mode = WEFT_MODE_SERVER;
    options.codec = spec->codec;
    options.optimizer = spec->optimizer;
    if (spec->dtype) options.dtype = spec->dtype;
    options.pull_dtype = spec->pull_dtype;
    options.chunk_bytes = 64 << 10;
    return weft_declare(session, &options, &tensor) < 0 ? NULL : tensor;
}

static void make_gradient(uint64_t seed)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits;
        grad[i] = (float)(mix(seed ^ i) >> 40) / 0x1p24f - 0.5f;
        memcpy(&bits, &grad[i], sizeof bits);
        grad16[i] = (uint16_t)(bits >> 16);
    }
}

static enum weft_status run_step(struct weft_session *session, struct weft_tensor *const *tensors,
                                 uint64_t number)
{
    make_gradient(number << 32 ^ (uint64_t)weft_rank(session) << 24);
    enum weft_status status = weft_step_begin_with(
        session, WEFT_STEP(.step = number, .lr = 0.01f, .weight = 1, .clip_norm = clip_norm));
    struct weft_request requests[TENSORS] = {{{0}}};
    for (int t = 0; t < TENSORS && status >= 0; t++)
        status = weft_push_pull(tensors[t], specs[t].dtype == WEFT_BF16 ? (const void *)grad16 : grad,
                                weights[t], &requests[t]);
    for (int t = 0; t < TENSORS && status >= 0; t++) status = weft_wait(&requests[t], 0);
    return status < 0 ? status : weft_step_end(session);
}

static uint64_t hash_weights(uint64_t hash)
{
    for (int t = 0; t < TENSORS; t++)
        for (uint32_t i = 0; i < COUNT; i++) {
            union {
                float value;
                uint32_t bits;
            } word = {.value = weights[t][i]};
            hash = (hash ^ word.bits) * 0x100000001b3ull;
        }
    return hash;
}

int main(int argc, char **argv)
{
    struct weft_session *session;
    if (argc < 2 || weft_init(NULL, &session) < 0) return fprintf(stderr, "%s\n", weft_error_text(NULL)), 2;
    const uint64_t limit = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, steps = limit ? limit : STEPS_MAX;
    struct weft_tensor *tensors[TENSORS];
    if (argc > 3) {
        specs = clipped;
        clip_norm = 2.0f;
    }
    for (int t = 0; t < TENSORS; t++) tensors[t] = declare(session, &specs[t]);
    enum weft_status status = WEFT_OK;
    for (int t = 0; t < TENSORS; t++)
        if (!tensors[t] || weft_tensor_init(tensors[t], weights[t]) < 0)
            return fprintf(stderr, "%s\n", weft_error_text(session)), 2;
    uint64_t hash = 0xcbf29ce484222325ull, step = 0;
    float stop = 0;
    while (step < steps && stop == 0 && status >= 0) {
        status = run_step(session, tensors, ++step);
        if (status < 0) break;
        hash = hash_weights(hash);
        if (step % 5 == 0)
            printf("bits %llu %016llx\nstep %llu\n", (unsigned long long)step, (unsigned long long)hash,
                   (unsigned long long)step),
                fflush(stdout);
        status = all_stop(session, argv[1], &stop);
    }
    if (status < 0) printf("failed: %s: %s\n", weft_status_name(status), weft_error_text(session));
    printf("steps %llu\n", (unsigned long long)step);
    if (weft_finalize(session) < 0) return 1;
    return status < 0;
}
