/* test_step_end.c - weft_step_end compares the tensors that all ranks pushed, and their weights every
 * client.hash_every steps, in every mode. A difference ends the session with the names of rank and tensor. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { ROWS = 16, ELEMS = 640, RANKS = 3, TENSORS = 3, STEPS = 6, BAD_STEP = 3 };
enum fault { NO_FAULT, LEFT_OUT, LEFT_OUT_BY_ALL, OTHER_WEIGHTS };

/* set before the processes are forked */
static const char *codec, *optimizer;
static enum weft_mode mode;
static enum fault fault;
static uint32_t guilty, hit;

static bool is_pushed(uint32_t rank, uint32_t t, uint32_t step)
{
    if (step != BAD_STEP || t != hit) return true;
    return !(fault == LEFT_OUT_BY_ALL || (fault == LEFT_OUT && rank == guilty));
}

static enum weft_status step_once(struct weft_session *session, struct weft_tensor **tensors,
                                  float (*weights)[ELEMS], uint32_t step)
{
    static float grads[TENSORS][ELEMS];
    static struct weft_request requests[TENSORS];
    const uint32_t rank = weft_rank(session);
    enum weft_status status =
        weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.1f, .weight = 1});
    for (uint32_t t = 0; t < TENSORS && status >= 0; t++) {
        for (uint32_t i = 0; i < ELEMS; i++) grads[t][i] = mode_pseudo(rank, step * TENSORS + t, i);
        if (is_pushed(rank, t, step)) status = weft_push_pull(tensors[t], grads[t], weights[t], &requests[t]);
    }
    if (fault == OTHER_WEIGHTS && rank == guilty && step == BAD_STEP && status >= 0) {
        status = weft_wait(&requests[hit], 0);
        weights[hit][ELEMS / 2] += 1e-6f;
    }
    return status < 0 ? status : weft_step_end(session);
}

/* Words that the error of every rank contains. */
static bool names_it(const char *text)
{
    char tensor[16], rank[16];
    snprintf(tensor, sizeof tensor, "'t%u'", hit);
    snprintf(rank, sizeof rank, "rank %u", guilty);
    return strstr(text, tensor) && strstr(text, rank);
}

static int train(struct fleet *fleet, uint32_t rank)
{
    static float weights[TENSORS][ELEMS];
    struct weft_session *session;
    struct weft_tensor *tensors[TENSORS];
    enum weft_status status = WEFT_OK;
    uint32_t step = 0;
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    for (int t = -1; t < TENSORS; t++) { /* the first one is freed, so that ids differ from positions */
        struct weft_tensor_options options;
        struct weft_tensor *freed;
        char name[16];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "t%d", t);
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = ROWS;
        options.dims[1] = ELEMS / ROWS;
        options.codec = codec;
        options.optimizer = optimizer;
        options.mode = mode;
        MUST(session, weft_declare(session, &options, t < 0 ? &freed : &tensors[t]));
        if (t < 0) MUST(session, weft_tensor_free(freed));
        if (t < 0) continue;
        for (uint32_t i = 0; i < ELEMS; i++) weights[t][i] = mode_pseudo(7, (uint32_t)t, i);
        MUST(session, weft_tensor_init(tensors[t], weights[t]));
    }
    while (status >= 0 && step < STEPS) status = step_once(session, tensors, weights, ++step);
    const enum weft_status wanted = fault == LEFT_OUT        ? WEFT_ERR_MISMATCH
                                    : fault == OTHER_WEIGHTS ? WEFT_ERR_DIVERGED
                                                             : WEFT_OK;
    const uint32_t wanted_step = wanted == WEFT_OK ? STEPS : fault == LEFT_OUT ? BAD_STEP : 4;
    /* a rank may receive the abort in the step before */
    const bool at_once = step == wanted_step || (fault == LEFT_OUT && step + 1 == wanted_step);
    const bool right =
        status == wanted && at_once && (wanted == WEFT_OK || names_it(weft_error_text(session)));
    if (!right)
        fprintf(stderr, "rank %u, %s, step %u: status %d: %s\n", rank, codec, step, status,
                weft_error_text(session));
    weft_finalize(session);
    return right ? 0 : 1;
}

static void run(enum fault which, const char *with_codec, const char *with_optimizer, uint32_t shards,
                uint32_t guilty_rank, uint32_t tensor)
{
    struct fleet_result result;
    void *shared;
    fault = which;
    codec = with_codec;
    optimizer = with_optimizer;
    mode = shards ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE;
    guilty = guilty_rank;
    hit = tensor;
    assert_true(fleet_run(RANKS, shards, train, &result, &shared));
}

static const char *const codecs[] = {
    "dense", "bf16", "int8:min_count=0", "powersgd:rank=2", "topk:ratio=0.1,min_count=0", "auto"};

static void test_left_out(void **state)
{
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
        for (uint32_t shards = 0; shards < 3; shards++)
            run(LEFT_OUT, codecs[c], "sgd:momentum=0.9", shards, (uint32_t)c % RANKS, TENSORS - 1);
}

/* A tensor in the middle, and without an optimiser. */
static void test_left_out_in_the_middle(void **state)
{
    for (uint32_t t = 0; t < TENSORS; t++) run(LEFT_OUT, "dense", "none", t % 2, 1, t);
}

static void test_left_out_by_all(void **state)
{
    for (uint32_t shards = 0; shards < 2; shards++) run(LEFT_OUT_BY_ALL, "dense", "adam", shards, 0, 1);
}

static void test_weights(void **state)
{
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
        for (uint32_t shards = 0; shards < 2; shards++) {
            if (shards > 0 && c == 0) continue; /* the next result of a shard restores them */
            run(OTHER_WEIGHTS, codecs[c], "sgd:momentum=0.9", shards, (uint32_t)c % RANKS,
                (uint32_t)c % TENSORS);
        }
}

static void test_equal(void **state)
{
    for (uint32_t shards = 0; shards < 2; shards++) run(NO_FAULT, "auto", "adam", shards, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_out),        cmocka_unit_test(test_left_out_in_the_middle),
        cmocka_unit_test(test_left_out_by_all), cmocka_unit_test(test_weights),
        cmocka_unit_test(test_equal),
    };
    setenv("WEFT_CLIENT_HASH_EVERY", "4", 1);
    setenv("WEFT_SERVER_HASH_EVERY", "0", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
