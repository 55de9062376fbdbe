/* test_wire_version.c - jobs with members of wire version 1: what they do not support is refused at the call
 * with a sentence that names them, changes nothing, and everything else works. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/fleet.h"
#include "weft/weft.h"

enum { RANKS = 2, ELEMS = 48 };
#define VARIABLE "WEFT_JOB_WIRE_VERSION"

#define MUST(call)                                                        \
    do {                                                                  \
        if ((call) < 0) {                                                 \
            fprintf(stderr, "%s: %s\n", #call, weft_error_text(session)); \
            return 1;                                                     \
        }                                                                 \
    } while (0)

/* The call fails with WEFT_ERR_VERSION, and its sentence has both parts. */
static int refused(struct weft_session *session, enum weft_status status, const char *feature,
                   const char *cause)
{
    const char *text = weft_error_text(session);
    if (status == WEFT_ERR_VERSION && strstr(text, feature) && strstr(text, cause)) return 0;
    fprintf(stderr, "%s: got %s: %s\n", feature, weft_status_name(status), text);
    return 1;
}

static void tensor_options(struct weft_tensor_options *options)
{
    weft_tensor_options_init(options);
    options->name = "w";
    options->dim_count = 1;
    options->dims[0] = ELEMS;
    options->mode = WEFT_MODE_SERVER;
    options->codec = "dense";
    options->optimizer = "sgd";
}

static int refuse_declarations(struct weft_session *session, const char *cause)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor;
    tensor_options(&options), options.consistency = "ssp:2";
    if (refused(session, weft_declare(session, &options, &tensor), "consistency ssp or asp", cause)) return 1;
    tensor_options(&options), options.pull_dtype = WEFT_BF16;
    if (refused(session, weft_declare(session, &options, &tensor), "pull_dtype", cause)) return 1;
    tensor_options(&options), options.dtype = WEFT_F16;
    return refused(session, weft_declare(session, &options, &tensor), "a 16-bit dtype in server mode", cause);
}

/* Step `step` with these options: a push is refused. Then the step ends without one. */
static int refuse_step(struct weft_session *session, struct weft_tensor *tensor,
                       const struct weft_step_options *step, const char *feature, const char *cause)
{
    static float grad[ELEMS], out[ELEMS];
    struct weft_request request = {{0}};
    MUST(weft_step_begin_with(session, step));
    if (refused(session, weft_push_pull(tensor, grad, out, &request), feature, cause)) return 1;
    MUST(weft_step_end(session));
    return 0;
}

static int exchange(struct weft_session *session, struct weft_tensor *tensor, uint32_t rank, uint64_t number)
{
    float grad[ELEMS], out[ELEMS];
    struct weft_request request = {{0}};
    for (uint32_t i = 0; i < ELEMS; i++) grad[i] = (float)(2 * rank); /* mean 1 */
    MUST(weft_step_begin_with(session, WEFT_STEP(.step = number, .lr = 1, .weight = 1)));
    MUST(weft_push_pull(tensor, grad, out, &request));
    MUST(weft_wait(&request, 0));
    MUST(weft_step_end(session));
    for (uint32_t i = 0; i < ELEMS; i++)
        if (out[i] != -1) return 1;
    return 0;
}

static int run(struct fleet *fleet, uint32_t rank, const char *cause)
{
    static float weights[ELEMS];
    const float decay = 0.5f, lr = 1;
    struct weft_session *session;
    struct weft_tensor_options options;
    struct weft_tensor *tensor;
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    if (refuse_declarations(session, cause)) return 1;
    tensor_options(&options);
    MUST(weft_declare(session, &options, &tensor));
    MUST(weft_tensor_init(tensor, weights));
    if (exchange(session, tensor, rank, 1)) return 1;
    if (refuse_step(session, tensor, WEFT_STEP(.step = 2, .lr = 1, .weight = 1, .clip_norm = 1), "clip_norm",
                    cause))
        return 1;
    if (refuse_step(session, tensor,
                    WEFT_STEP(.step = 3, .lr = 1, .weight = 1, .group_count = 1, .group_lr = &lr,
                              .group_weight_decay = &decay),
                    "group_weight_decay", cause))
        return 1;
    MUST(weft_finalize(session));
    return 0;
}

/* The shards are of version 1, the workers of version 2. */
static int new_worker(struct fleet *fleet, uint32_t rank)
{
    unsetenv(VARIABLE);
    return run(fleet, rank, "this job has version 1, because shard");
}

static int old_worker(struct fleet *fleet, uint32_t rank)
{
    return run(fleet, rank, "job.wire_version=1 limits this process");
}

static void test_new_workers_and_old_shards(void **state)
{
    struct fleet_result result;
    setenv(VARIABLE, "1", 1);
    assert_true(fleet_run(RANKS, 2, new_worker, &result, NULL));
}

static void test_old_workers_and_old_shards(void **state)
{
    struct fleet_result result;
    setenv(VARIABLE, "1", 1);
    assert_true(fleet_run(RANKS, 1, old_worker, &result, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_new_workers_and_old_shards),
                                       cmocka_unit_test(test_old_workers_and_old_shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
