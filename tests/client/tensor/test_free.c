/* test_free.c - weft_tensor_free: frees tensors of all modes; their names are declared again, and the other
 * tensors continue. */
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "tests/client/crowd.h"
#include "tests/client/fleet.h"
#include "tests/client/mode_pair.h"

enum { RANKS = 2, ELEMS = 3000, CYCLES = 6 };

static const struct {
    const char *codec, *optimizer;
} kinds[] = {{"dense", "none"},
             {"dense", "sgd:momentum=0.9"},
             {"topk:ratio=0.1,min_count=0", "sgd"},
             {"auto", "sgd"},
             {"bf16", "none"}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static int declare(struct weft_session *session, const char *name, uint64_t elems, int kind,
                   enum weft_mode mode, struct weft_tensor **out)
{
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = elems;
    options.codec = kinds[kind].codec;
    options.optimizer = kinds[kind].optimizer;
    options.mode = mode;
    MUST(session, weft_declare(session, &options, out));
    return 0;
}

/* One step of SGD without momentum, weights 1, gradients 1, lr 0.5: 0.5. Without an optimiser: the mean,
 * 1. */
static int step_once(struct weft_session *session, struct weft_tensor *tensor, float *weights, uint64_t elems,
                     float expected)
{
    static _Thread_local float grad[ELEMS];
    struct weft_request request = {{0}};
    for (uint64_t i = 0; i < elems; i++) grad[i] = 1;
    MUST(session, weft_step_begin(session, &(struct weft_step){
                                               .step = weft_step_next(session), .lr = 0.5f, .weight = 1}));
    MUST(session, weft_push_pull(tensor, grad, weights, &request));
    MUST(session, weft_wait(&request, 0));
    MUST(session, weft_step_end(session));
    if (weights[0] == expected) return 0;
    fprintf(stderr, "weight %g, expected %g\n", (double)weights[0], (double)expected);
    return 1;
}

/* The same name with another codec, length and mode in each cycle, beside a tensor that stays. */
static int cycles(struct fleet *fleet, uint32_t rank)
{
    static float weights[ELEMS], kept_weights[ELEMS];
    struct weft_session *session;
    struct weft_tensor *kept, *tensor;
    if (fleet_join(fleet, rank, 20000, &session)) return 1;
    const enum weft_mode modes[] = {WEFT_MODE_ALL_REDUCE,
                                    fleet->shards > 0 ? WEFT_MODE_SERVER : WEFT_MODE_ALL_REDUCE};
    if (declare(session, "kept", ELEMS, 1, modes[1], &kept)) return 1;
    for (int i = 0; i < ELEMS; i++) kept_weights[i] = 1;
    MUST(session, weft_tensor_init(kept, kept_weights));
    float kept_expected = 1, momentum = 0;
    for (int cycle = 0; cycle < CYCLES * KINDS; cycle++) {
        const int kind = cycle % KINDS;
        const uint64_t elems = (uint64_t)(ELEMS - 7 * cycle);
        if (declare(session, "again", elems, kind, modes[cycle / KINDS % 2], &tensor)) return 1;
        for (uint64_t i = 0; i < elems; i++) weights[i] = 1;
        if (kinds[kind].optimizer[0] == 's') MUST(session, weft_tensor_init(tensor, weights));
        const bool exact = kind != 2 && kind != 3; /* top-k sends a part, and auto may choose it */
        if (exact && step_once(session, tensor, weights, elems, kind == 1 ? 0.5f : 1)) return 1;
        if (!exact && step_once(session, tensor, weights, elems, weights[0] == 1 ? 0.5f : 1)) return 1;
        MUST(session, weft_tensor_free(tensor));
        momentum = 0.9f * momentum + 1;
        kept_expected -= 0.5f * momentum;
        if (step_once(session, kept, kept_weights, ELEMS, kept_expected)) return 1;
    }
    MUST(session, weft_tensor_free(kept));
    MUST(session, weft_step_begin(session, &(struct weft_step){
                                               .step = weft_step_next(session), .lr = 0.5f, .weight = 1}));
    MUST(session, weft_step_end(session)); /* of no tensor */
    return weft_finalize(session) == WEFT_OK ? 0 : 1;
}

static void run_cycles(uint32_t shards)
{
    struct fleet_result result;
    assert_true(fleet_run(RANKS, shards, cycles, &result, NULL));
}

static void test_all_reduce(void **state)
{
    (void)state;
    run_cycles(0);
}
static void test_shards(void **state)
{
    (void)state;
    run_cycles(2);
}

/* ---- refused calls ---- */

static struct weft_tensor *plain(struct crowd *crowd, struct weft_session *session, const char *name)
{
    struct weft_tensor *tensor = NULL;
    CROWD_CHECK(crowd, session, declare(session, name, 8, 0, WEFT_MODE_ALL_REDUCE, &tensor) == 0);
    return tensor;
}

/* Nothing changes: the tensors work afterwards. */
static void refusals(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *a = plain(crowd, session, "a"), *b = plain(crowd, session, "b");
    float values[8] = {0};
    CROWD_REFUSED(crowd, session, weft_tensor_free(rank == 0 ? a : b), WEFT_ERR_MISMATCH,
                  "nothing was freed");
    atomic_store(&a->delivery.busy, true); /* as while a request of it is open */
    CROWD_REFUSED(crowd, session, weft_tensor_free(a), WEFT_ERR_BUSY, "still open");
    atomic_store(&a->delivery.busy, false);
    CROWD_OK(crowd, session, weft_group_start(session));
    CROWD_REFUSED(crowd, session, weft_tensor_free(a), WEFT_ERR_STATE, "weft_group_end");
    CROWD_OK(crowd, session, weft_group_end(session));
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    CROWD_REFUSED(crowd, session, weft_tensor_free(a), WEFT_ERR_STATE, "inside step 1");
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_CHECK(crowd, session,
                step_once(session, a, values, 8, 1) == 0 && step_once(session, b, values, 8, 1) == 0);
    CROWD_OK(crowd, session, weft_tensor_free(a));
    CROWD_CHECK(crowd, session, step_once(session, b, values, 8, 1) == 0);
}

/* A rank calls something else: both ranks get the error. */
static void one_does_not(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *a = plain(crowd, session, "a");
    struct weft_request request = {{0}};
    enum weft_status status;
    if (rank == 0) status = weft_tensor_free(a);
    else status = (status = weft_barrier(session, &request)) < 0 ? status : weft_wait(&request, 0);
    CROWD_CHECK(crowd, session,
                status == WEFT_ERR_MISMATCH && strstr(weft_error_text(session), "tensor_free"));
}

/* A rank that rests keeps its tensors, so the others cannot free them. */
static void elastic(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *a = plain(crowd, session, "a"), *b = plain(crowd, session, "b");
    float values[8] = {0};
    CROWD_REFUSED(crowd, session, weft_tensor_free(rank == 0 ? a : b), WEFT_ERR_MISMATCH,
                  "nothing was freed");
    CROWD_OK(crowd, session, weft_tensor_free(a));
    a = plain(crowd, session, "a");
    CROWD_CHECK(crowd, session,
                step_once(session, a, values, 8, 1) == 0 && step_once(session, b, values, 8, 1) == 0);
    if (rank == 0) {
        enum weft_status status;
        while ((status = weft_shrink(session)) == WEFT_OK) usleep(1000);
        CROWD_CHECK(crowd, session, status == WEFT_ERR_SHRUNK);
        CROWD_REFUSED(crowd, session, weft_tensor_free(a), WEFT_ERR_STATE, "a rank rests in weft_join");
    }
    CROWD_OK(crowd, session, weft_join(session, 0, NULL));
    CROWD_OK(crowd, session, weft_tensor_free(a));
    CROWD_CHECK(crowd, session, step_once(session, b, values, 8, 1) == 0);
}

static void run(crowd_fn fn, uint32_t workers_min)
{
    struct crowd crowd = {.workers_min = workers_min};
    crowd_run(&crowd, RANKS, fn);
    assert_int_equal(crowd.failures, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    run(refusals, 0);
}
static void test_one_does_not(void **state)
{
    (void)state;
    run(one_does_not, 0);
}
static void test_elastic(void **state)
{
    (void)state;
    run(elastic, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_reduce), cmocka_unit_test(test_shards),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_one_does_not),
                                       cmocka_unit_test(test_elastic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
