/* coded_steps.c - a worker for tests/system: push_pulls with codecs, whose bits it prints.
 *
 *     coded_steps STOP_FILE [STEPS [clip]]
 *
 * Four tensors in server mode with an optimizer: int8 in several chunks, sign, top-k with a residual at the
 * shard, PowerSGD. With clip: dense ones, clipped by the norm of each step. Gradients are a function of rank,
 * step and element. Prints "step N" and "bits N HASH" every 5 steps: the hash is of all weights after all
 * steps so far, equal in each run with the same ranks.
 * Ends after STEPS (0: no limit), or a step after rank 0 sees the file. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <weft/weft.h>

#include "stop_file.h"

enum { ROWS = 300, COLS = 400, COUNT = ROWS * COLS, TENSORS = 4, STEPS_MAX = 3000 };

static float grad[COUNT], weights[TENSORS][COUNT];
static bool clips;

static const struct {
    const char *name, *codec, *optimizer;
} coded[TENSORS] = {{"codes", "int8", "sgd:momentum=0.5"},
                    {"signs", "sign", "sgd"},
                    {"largest", "topk:ratio=0.01,global=1", "adam"},
                    {"factors", "powersgd:rank=2", "sgd:momentum=0.9"}},
  clipped[TENSORS] = {{"velocity", "dense", "sgd:momentum=0.5"},
                      {"plain", "dense", "sgd"},
                      {"moments", "dense", "adam"},
                      {"decayed", "dense", "adamw"}};

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

static struct weft_tensor *declare(struct weft_session *session, int t)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = clips ? clipped[t].name : coded[t].name;
    options.dim_count = 2;
    options.dims[0] = ROWS;
    options.dims[1] = COLS;
    options.mode = WEFT_MODE_SERVER;
    options.codec = clips ? clipped[t].codec : coded[t].codec;
    options.optimizer = clips ? clipped[t].optimizer : coded[t].optimizer;
    options.chunk_bytes = 64 << 10;
    return weft_declare(session, &options, &tensor) < 0 ? NULL : tensor;
}

static enum weft_status run_step(struct weft_session *session, struct weft_tensor *const *tensors,
                                 uint64_t number)
{
    for (uint32_t i = 0; i < COUNT; i++)
        grad[i] = (float)(mix(number << 32 ^ (uint64_t)weft_rank(session) << 24 ^ i) >> 40) / 0x1p24f - 0.5f;
    enum weft_status status = weft_step_begin_with(
        session, WEFT_STEP(.step = number, .lr = 0.01f, .weight = 1, .clip_norm = clips ? 2.0f : 0));
    struct weft_request requests[TENSORS] = {{{0}}};
    for (int t = 0; t < TENSORS && status >= 0; t++)
        status = weft_push_pull(tensors[t], grad, weights[t], &requests[t]);
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
    enum weft_status status = WEFT_OK;
    clips = argc > 3;
    for (int t = 0; t < TENSORS; t++)
        if (!(tensors[t] = declare(session, t)) || weft_tensor_init(tensors[t], weights[t]) < 0)
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
