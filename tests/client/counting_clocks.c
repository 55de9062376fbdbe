/* counting_clocks.c - a worker for tests/system: push_pulls of whole numbers with consistency ssp or asp.
 *
 *     counting_clocks STOP_FILE CONSISTENCY
 *
 * Each push subtracts UNIT(i) from element i. A result contains all own pushes, and no more than all ranks
 * can have made. Every 20 steps the ranks agree whether rank 0 has seen the file; at the end a pull has
 * each push of each rank once. Prints "step N" every 20 steps, at the end "steps N wrong W longest MS ms",
 * and exits with 1 if a number is wrong. */
#include <stdio.h>

#include <weft/weft.h>

#include "now_ms.h"
#include "stop_file.h"

enum { COUNT = 100000, STEPS_MAX = 1000000, STEPS_TOGETHER = 20 };
#define UNIT(i) ((float)(1 + (i) % 3))

static float grad[COUNT], weights[COUNT];

static struct weft_tensor *declare(struct weft_session *session, const char *consistency)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    weft_tensor_options_init(&options);
    options.name = "weights";
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.mode = WEFT_MODE_SERVER;
    options.optimizer = "sgd";
    options.consistency = consistency;
    options.chunk_bytes = 64 << 10;
    return weft_declare(session, &options, &tensor) < 0 ? NULL : tensor;
}

static enum weft_status run_step(struct weft_session *session, struct weft_tensor *tensor, uint64_t number)
{
    struct weft_request request = {{0}};
    struct weft_step step = {number, 1.0f, 1.0f};
    enum weft_status status = weft_step_begin(session, &step);
    if (status >= 0) status = weft_push_pull(tensor, grad, weights, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    return status < 0 ? status : weft_step_end(session);
}

/* The weights have `least` to `most` pushes. */
static uint32_t count_wrong(uint64_t least, uint64_t most)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        const float pushes = -weights[i] / UNIT(i);
        wrong += pushes != (float)(uint64_t)pushes || pushes < (float)least || pushes > (float)most;
    }
    return wrong;
}

int main(int argc, char **argv)
{
    struct weft_session *session;
    if (argc != 3 || weft_init(NULL, &session) < 0) return fprintf(stderr, "%s\n", weft_error_text(NULL)), 2;
    const uint32_t ranks = weft_ranks(session);
    struct weft_tensor *tensor = declare(session, argv[2]);
    if (!tensor || weft_tensor_init(tensor, weights) < 0)
        return fprintf(stderr, "%s\n", weft_error_text(session)), 2;
    for (uint32_t i = 0; i < COUNT; i++) grad[i] = UNIT(i) * (float)ranks; /* the shard scales by 1 / ranks */
    uint64_t step = 0, longest_ms = 0;
    uint32_t wrong = 0;
    float stop = 0;
    enum weft_status status = WEFT_OK;
    while (step < STEPS_MAX && stop == 0 && status >= 0) {
        const uint64_t began_ms = now_ms(), together = step / STEPS_TOGETHER * STEPS_TOGETHER;
        status = run_step(session, tensor, ++step);
        if (status < 0) break;
        const uint64_t took_ms = now_ms() - began_ms;
        if (took_ms > longest_ms) longest_ms = took_ms;
        wrong += count_wrong(step + (ranks - 1) * together, step + (ranks - 1) * (together + STEPS_TOGETHER));
        if (step % STEPS_TOGETHER > 0) continue;
        printf("step %llu\n", (unsigned long long)step), fflush(stdout);
        status = all_stop(session, argv[1], &stop);
    }
    struct weft_request pull = {{0}};
    if (status >= 0) status = weft_pull(tensor, weights, &pull);
    if (status >= 0) status = weft_wait(&pull, 0);
    if (status >= 0) wrong += count_wrong(step * ranks, step * ranks);
    if (status < 0) printf("failed: %s: %s\n", weft_status_name(status), weft_error_text(session));
    printf("steps %llu wrong %u longest %llu ms\n", (unsigned long long)step, wrong,
           (unsigned long long)longest_ms);
    if (weft_finalize(session) < 0) return 1;
    return status < 0 || wrong > 0;
}
