/* counting.c - a worker for tests/system: push_pulls of whole numbers, which it checks at each step.
 *
 *     counting STOP_FILE [ELEMENTS | elastic]
 *
 * Three tensors in server mode: a mean, weights, and weights with momentum. The first two are whole numbers
 * below 2^24, so a lost, doubled or repeated contribution changes the result. A lost velocity changes the
 * third by more than its tolerance. elastic: the first two, of values that do not depend on the number of
 * ranks, and the loop of docs/elastic.md. The ranks end together, a step after rank 0 sees the file. Prints
 * "step N" every 20 steps, at the end "steps N wrong W longest MS ms", and exits with 1 if a number is
 * wrong. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "now_ms.h"
#include "stop_file.h"

enum { COUNT_MAX = 200000, STEPS_MAX = 4000 };

static float mean[COUNT_MAX], grad[COUNT_MAX], weights[COUNT_MAX], model[COUNT_MAX], moved[COUNT_MAX];
static double moved_model[COUNT_MAX], velocity[COUNT_MAX];
static uint32_t count = COUNT_MAX;

static struct weft_tensor *declare(struct weft_session *session, const char *name, const char *optimizer)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = count;
    options.mode = WEFT_MODE_SERVER;
    options.codec = "dense";
    options.optimizer = optimizer;
    return weft_declare(session, &options, &tensor) < 0 ? NULL : tensor;
}

/* The mean over the ranks is base(step, i) + ranks - 1. */
static float base(uint64_t step, uint32_t i)
{
    return (float)(2 * ((step + i) % 2));
}

/* Up to three tensors at once, as a backward pass pushes them. */
static enum weft_status exchange(struct weft_tensor *const *tensors, uint32_t tensor_count)
{
    float *const out[] = {mean, weights, moved};
    struct weft_request requests[3] = {{{0}}};
    enum weft_status status = WEFT_OK;
    uint32_t begun = 0;
    while (begun < tensor_count && status >= 0) {
        status = weft_push_pull(tensors[begun], grad, out[begun], &requests[begun]);
        begun += status >= 0;
    }
    for (uint32_t i = 0; i < begun; i++) {
        const enum weft_status waited = weft_wait(&requests[i], 0);
        if (status >= 0) status = waited;
    }
    return status;
}

static enum weft_status run_step(struct weft_session *session, struct weft_tensor *const *tensors,
                                 uint64_t number)
{
    struct weft_step step = {number, 1.0f, 1.0f};
    for (uint32_t i = 0; i < count; i++) grad[i] = base(number, i) + 2.0f * (float)weft_rank(session);
    enum weft_status status = weft_step_begin(session, &step);
    if (status >= 0) status = exchange(tensors, 3);
    return status < 0 ? status : weft_step_end(session);
}

static uint32_t count_wrong(uint64_t step, uint32_t ranks)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < count; i++) {
        const float expected = base(step, i) + (float)(ranks - 1);
        const double off = (double)moved[i] - (moved_model[i] -= velocity[i] = velocity[i] / 2 + expected);
        model[i] -= expected;
        wrong += mean[i] != expected;
        wrong += weights[i] != model[i];
        wrong += off > 0.25 || off < -0.25;
    }
    return wrong;
}

/* ---- elastic ---- */

/* Pushes `mean` and `weights`, whose results do not depend on the number of ranks, and `stop`, which is 0
 * until rank 0 has seen the file. */
static enum weft_status run_elastic_step(struct weft_session *session, struct weft_tensor *const *tensors,
                                         const char *path, float *stop)
{
    struct weft_request request = {{0}};
    const struct weft_step step = {weft_step_next(session), 1.0f, 1.0f};
    const float own = 1 + 2.0f * (float)weft_rank(session) - (float)(weft_ranks(session) - 1);
    float flag = weft_rank(session) == 0 && access(path, F_OK) == 0;
    enum weft_status status = weft_step_begin(session, &step);
    if (status < 0) return status;
    for (uint32_t i = 0; i < count; i++) grad[i] = base(step.step, i) + own;
    status = exchange(tensors, 2);
    if (status >= 0) status = weft_push_pull(tensors[2], &flag, stop, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    return status < 0 && status != WEFT_ERR_PEER_LOST ? status : weft_step_end(session);
}

/* Half of the values alternate from step to step, so the weights are those of the steps before. */
static uint32_t count_wrong_elastic(uint64_t step)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t odd = (step + (i % 2 == 0)) / 2; /* steps with base 2 */
        wrong += mean[i] != base(step, i) + 1;
        wrong += weights[i] != -(float)(step + 2 * odd);
    }
    return wrong;
}

static struct weft_tensor *declare_stop(struct weft_session *session)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = "stop";
    options.dim_count = 1;
    options.dims[0] = 1;
    options.mode = WEFT_MODE_SERVER;
    options.optimizer = "none";
    return weft_declare(session, &options, &tensor) < 0 ? NULL : tensor;
}

static int run_elastic(struct weft_session *session, const char *path)
{
    struct weft_tensor *const tensors[] = {declare(session, "mean", "none"),
                                           declare(session, "weights", "sgd"), declare_stop(session)};
    uint64_t step = 0;
    uint32_t wrong = 0;
    float stop = 0;
    bool is_shared = false;
    enum weft_status status = tensors[0] && tensors[1] && tensors[2] ? WEFT_OK : WEFT_ERR_STATE;
    while (status == WEFT_OK && weft_step_next(session) <= STEPS_MAX && stop == 0) {
        enum weft_status done = is_shared ? WEFT_OK : weft_tensor_share(tensors[1], model, 0);
        if (done == WEFT_OK || done == WEFT_ERR_PEER_LOST)
            done = run_elastic_step(session, tensors, path, &stop);
        if (done == WEFT_OK) {
            is_shared = true;
            step = weft_step_next(session) - 1;
            wrong += count_wrong_elastic(step);
            if (step % 20 == 0) printf("step %llu\n", (unsigned long long)step), fflush(stdout);
        } else {
            stop = 0; /* of a discarded step */
            is_shared &= done != WEFT_ERR_GREW;
            if (done != WEFT_ERR_SHRUNK && done != WEFT_ERR_GREW) status = done;
            else printf("%u ranks\n", weft_ranks(session)), fflush(stdout);
        }
    }
    if (status < 0) printf("failed: %s: %s\n", weft_status_name(status), weft_error_text(session));
    printf("steps %llu wrong %u longest 0 ms\n", (unsigned long long)step, wrong);
    return weft_finalize(session) < 0 || status < 0 || wrong > 0;
}

int main(int argc, char **argv)
{
    struct weft_session *session;
    if (argc < 2 || weft_init(NULL, &session) < 0) return fprintf(stderr, "%s\n", weft_error_text(NULL)), 2;
    if (argc > 2 && strcmp(argv[2], "elastic") == 0) return run_elastic(session, argv[1]);
    if (argc > 2) count = (uint32_t)strtoul(argv[2], NULL, 10);
    if (count == 0 || count > COUNT_MAX) return fprintf(stderr, "elements: 1 to %d\n", COUNT_MAX), 2;
    struct weft_tensor *const tensors[] = {declare(session, "mean", "none"),
                                           declare(session, "weights", "sgd"),
                                           declare(session, "moved", "sgd:momentum=0.5")};
    if (!tensors[0] || !tensors[1] || !tensors[2] || weft_tensor_init(tensors[1], weights) < 0 ||
        weft_tensor_init(tensors[2], moved) < 0)
        return fprintf(stderr, "%s\n", weft_error_text(session)), 2;
    uint64_t step = 0, longest_ms = 0;
    uint32_t wrong = 0;
    float stop = 0;
    enum weft_status status = WEFT_OK;
    while (step < STEPS_MAX && stop == 0) {
        const uint64_t began_ms = now_ms();
        status = run_step(session, tensors, ++step);
        if (status < 0) break;
        const uint64_t took_ms = now_ms() - began_ms;
        if (took_ms > longest_ms) longest_ms = took_ms;
        wrong += count_wrong(step, weft_ranks(session));
        if (step % 20 == 0) printf("step %llu\n", (unsigned long long)step), fflush(stdout);
        status = all_stop(session, argv[1], &stop);
        if (status < 0) break;
    }
    if (status < 0) printf("failed: %s: %s\n", weft_status_name(status), weft_error_text(session));
    printf("steps %llu wrong %u longest %llu ms\n", (unsigned long long)step, wrong,
           (unsigned long long)longest_ms);
    if (weft_finalize(session) < 0) return 1;
    return status < 0 || wrong > 0;
}
