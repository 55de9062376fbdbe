/* test_call_group.c - tensors of one shape and codec that are pushed in a group of calls share an
 * operation and keep their bits. Several sessions in one process; each tensor is declared twice and pushed
 * once in a group, once alone. The ranks may push in different orders, with and without groups: the results
 * equal those of client.push_order=called. */
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

#include "client/engine/engine.h"
#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "collective/core/group.h"
#include "tests/client/crowd.h"

enum { TENSORS = 9, STEPS = 6, RANKS = 3, ELEMS_MAX = 2400 };

static const struct {
    const char *codec, *optimizer;
    uint64_t rows, cols;
    int leader; /* number of its leader; its own number: it leads; -1: never shares */
} plans[TENSORS] = {
    {"powersgd:rank=2", "none", 40, 60, 0},         {"powersgd:rank=2", "sgd:momentum=0.9", 40, 60, 0},
    {"dense", "none", 40, 60, -1},                  {"powersgd:rank=2", "none", 60, 40, 3},
    {"powersgd:rank=2", "adam", 40, 60, 0},         {"topk:ratio=0.05,min_count=0", "none", 40, 60, -1},
    {"powersgd:rank=3", "none", 40, 60, 6},         {"powersgd:rank=2", "none", 60, 40, 3},
    {"powersgd:rank=2,iterations=2", "none", 40, 60, 8},
};

static float pseudo(uint32_t rank, uint32_t tensor, uint32_t step, uint32_t i)
{
    const uint32_t x = (rank * 1000003u + tensor * 7919u + step * 104729u + i * 2654435761u) >> 7;
    return (float)(x % 2001) / 1000.0f - 1.0f;
}

/* A job, and what it returned. */
struct run {
    const char *push_order; /* client.push_order */
    bool shuffled;          /* each rank pushes in an order of its own */
    bool splits;            /* the ranks' groups have different tensors */
    float results[RANKS][STEPS][TENSORS][ELEMS_MAX];
};

struct both {
    struct weft_tensor *tensor[2]; /* in a group, alone */
    struct weft_request request[2];
    float *grad, *out[2];
    uint32_t elems;
};

static bool declare(struct crowd *crowd, struct weft_session *session, uint32_t t, struct both *both)
{
    both->elems = (uint32_t)(plans[t].rows * plans[t].cols);
    both->grad = weft_alloc(session, both->elems * 4);
    for (int way = 0; way < 2; way++) {
        struct weft_tensor_options options;
        char name[32];
        snprintf(name, sizeof name, "t%u.%d", t, way);
        weft_tensor_options_init(&options);
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = plans[t].rows;
        options.dims[1] = plans[t].cols;
        options.codec = plans[t].codec;
        options.optimizer = plans[t].optimizer;
        options.mode = WEFT_MODE_ALL_REDUCE;
        options.alone = way == 1;
        if (!CROWD_OK(crowd, session, weft_declare(session, &options, &both->tensor[way]))) return false;
        both->out[way] = weft_alloc(session, both->elems * 4);
        for (uint32_t i = 0; i < both->elems; i++) both->out[way][i] = (float)i / 1000;
        if (strcmp(plans[t].optimizer, "none") != 0)
            CROWD_OK(crowd, session, weft_tensor_init(both->tensor[way], both->out[way]));
    }
    return true;
}

/* The tensor at place k of the rank's pushes. */
static uint32_t pushed_at(const struct run *run, uint32_t rank, uint32_t step, uint32_t k)
{
    static const uint32_t strides[] = {1, 2, 4, 5, 7, 8}; /* without a common divisor with TENSORS */
    return run->shuffled ? (k * strides[(rank + step) % 6] + rank * 4 + step) % TENSORS : k;
}

static void push(struct crowd *crowd, struct weft_session *session, struct both *all, int way, uint32_t step)
{
    const struct run *run = crowd->user;
    for (uint32_t k = 0; k < TENSORS; k++) {
        const uint32_t t = pushed_at(run, weft_rank(session), step, k);
        if (run->splits && way == 0 && k == 2 + weft_rank(session)) {
            CROWD_OK(crowd, session, weft_group_end(session));
            CROWD_OK(crowd, session, weft_group_start(session));
        }
        if (t == 4 && step == 3) continue; /* not in this step */
        CROWD_OK(crowd, session,
                 weft_push_pull(all[t].tensor[way], all[t].grad, all[t].out[way], &all[t].request[way]));
    }
}

static void check_leaders(struct crowd *crowd, struct weft_session *session, const struct both *all)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        CROWD_CHECK(crowd, session,
                    all[t].tensor[0]->op.carrier.leader ==
                        (plans[t].leader < 0 ? NULL : all[plans[t].leader].tensor[0]));
        CROWD_CHECK(crowd, session, all[t].tensor[1]->op.carrier.leader == NULL);
    }
}

static void train(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct run *run = crowd->user;
    struct both all[TENSORS];
    memset(all, 0, sizeof all);
    for (uint32_t t = 0; t < TENSORS; t++)
        if (!declare(crowd, session, t, &all[t])) return;
    for (uint32_t step = 1; step <= STEPS; step++) {
        const struct weft_step begun = {
            .step = step, .lr = 0.1f, .weight = step % 2 ? 1.0f : 0.5f + (float)rank};
        if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return;
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint32_t i = 0; i < all[t].elems; i++) all[t].grad[i] = pseudo(rank, t, step, i);
        CROWD_OK(crowd, session, weft_group_start(session));
        push(crowd, session, all, 0, step);
        if (step == 1 && !run->splits) {
            CROWD_REFUSED(crowd, session, weft_wait(&all[1].request[0], 0), WEFT_ERR_STATE, "weft_group_end");
            CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_STATE, "weft_group_end");
        }
        /* no tensor is in an agreement before all are pushed */
        CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
        CROWD_OK(crowd, session, weft_group_end(session));
        weft_loop_release(session->loop);
        push(crowd, session, all, 1, step);
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
        for (uint32_t t = 0; t < TENSORS; t++) {
            if (!CROWD_CHECK(crowd, session, memcmp(all[t].out[0], all[t].out[1], all[t].elems * 4) == 0))
                fprintf(stderr, "rank %u step %u tensor %u (%s)\n", rank, step, t, plans[t].codec);
            memcpy(run->results[rank][step - 1][t], all[t].out[0], all[t].elems * 4);
        }
        if (!run->shuffled && !run->splits) check_leaders(crowd, session, all);
    }
}

static struct run *run_of(const char *push_order, bool shuffled, bool splits, uint32_t workers)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run) abort();
    *run = (struct run){.push_order = push_order, .shuffled = shuffled, .splits = splits};
    struct crowd crowd = {.user = run};
    setenv("WEFT_CLIENT_PUSH_ORDER", push_order, 1);
    crowd_run(&crowd, workers, train);
    unsetenv("WEFT_CLIENT_PUSH_ORDER");
    assert_int_equal(crowd.failures, 0);
    return run;
}

static void test_bits(void **state)
{
    for (uint32_t workers = 1; workers <= RANKS; workers++) {
        struct run *called = run_of("called", false, false, workers);
        for (int way = workers == 1 ? 2 : 0; way < 3; way++) {
            struct run *agreed = run_of("agreed", way != 2, way == 1, workers);
            assert_memory_equal(called->results, agreed->results, sizeof called->results);
            free(agreed);
        }
        free(called);
    }
}

/* Pushed in different orders in a group of calls, tensors share operations. */
enum { SMALL = 40, SMALL_ELEMS = 24 * 30 };

static void push_small(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float grads[2][2][SMALL][SMALL_ELEMS];
    struct weft_tensor *tensors[2][SMALL];
    struct weft_request requests[2][SMALL] = {{{{0}}}};
    for (uint32_t t = 0; t < 2 * SMALL; t++) { /* the second half: alone */
        struct weft_tensor_options options;
        char name[16];
        snprintf(name, sizeof name, "s%u", t);
        weft_tensor_options_init(&options);
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = 24;
        options.dims[1] = 30;
        options.codec = "powersgd:rank=1";
        /* the scale of a sum is not that of a mean */
        options.optimizer = t % SMALL < 3 ? "sum" : "none";
        options.alone = t >= SMALL;
        struct weft_tensor **tensor = &tensors[t / SMALL][t % SMALL];
        if (!CROWD_OK(crowd, session, weft_declare(session, &options, tensor))) return;
        for (uint32_t i = 0; i < SMALL_ELEMS; i++)
            grads[rank][t / SMALL][t % SMALL][i] = pseudo(rank, t % SMALL, 1, i);
    }
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 1, .weight = 1}));
    for (int way = 0; way < 2; way++) {
        CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
        const uint64_t before = session->engine->group->ops.sequence;
        CROWD_OK(crowd, session, weft_group_start(session));
        for (uint32_t k = 0; k < SMALL; k++) {
            const uint32_t t = rank == 0 ? k : SMALL - 1 - k;
            float *grad = grads[rank][way][t];
            CROWD_OK(crowd, session, weft_push_pull(tensors[way][t], grad, grad, &requests[way][t]));
        }
        CROWD_OK(crowd, session, weft_group_end(session));
        weft_loop_release(session->loop);
        for (uint32_t t = 0; t < SMALL; t++) CROWD_OK(crowd, session, weft_wait(&requests[way][t], 0));
        CROWD_OK(crowd, session, weft_loop_acquire(session->loop, WEFT_NEVER));
        const uint64_t operations = session->engine->group->ops.sequence - before;
        weft_loop_release(session->loop);
        /* two rounds each. Together: batches of the sums, of 32 means and of the other means, the tensor of
         * the first agreement, a few agreements */
        CROWD_CHECK(crowd, session, way == 1 ? operations >= 2 * SMALL : operations <= SMALL);
    }
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_CHECK(crowd, session, memcmp(grads[rank][0], grads[rank][1], sizeof grads[rank][0]) == 0);
}

static void test_small(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, push_small);
    assert_int_equal(crowd.failures, 0);
}

/* More than fit into one operation: the next tensor leads again. */
static void many(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    enum { MANY = WEFT_CODEC_BATCH_MAX + 3, ELEMS = 24 * 30 };
    struct weft_tensor *tensors[MANY] = {NULL};
    struct weft_request requests[MANY];
    float *grad = weft_alloc(session, MANY * ELEMS * 4);
    memset(requests, 0, sizeof requests);
    for (uint32_t t = 0; t < MANY; t++) {
        struct weft_tensor_options options;
        char name[32];
        snprintf(name, sizeof name, "m%u", t);
        weft_tensor_options_init(&options);
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = 24;
        options.dims[1] = 30;
        options.codec = "powersgd:rank=1";
        options.mode = WEFT_MODE_ALL_REDUCE;
        if (!CROWD_OK(crowd, session, weft_declare(session, &options, &tensors[t]))) return;
        for (uint32_t i = 0; i < ELEMS; i++) grad[t * ELEMS + i] = pseudo(rank, t, 1, i);
    }
    if (!CROWD_OK(crowd, session,
                  weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0.1f, .weight = 1})))
        return;
    CROWD_OK(crowd, session, weft_group_start(session));
    for (uint32_t t = 0; t < MANY; t++)
        CROWD_OK(crowd, session,
                 weft_push_pull(tensors[t], grad + t * ELEMS, grad + t * ELEMS, &requests[t]));
    CROWD_OK(crowd, session, weft_group_end(session));
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_CHECK(crowd, session, tensors[WEFT_CODEC_BATCH_MAX - 1]->op.carrier.leader == tensors[0]);
    CROWD_CHECK(crowd, session, tensors[MANY - 1]->op.carrier.leader == tensors[WEFT_CODEC_BATCH_MAX]);
}

/* The job ends while the group is open, and while its operations run: all requests complete. */
static void leaves(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct both kept[2][TENSORS]; /* requests stay until weft_finalize */
    struct both *all = kept[rank];
    for (uint32_t t = 0; t < TENSORS; t++)
        if (!declare(crowd, session, t, &all[t])) return;
    if (!CROWD_OK(crowd, session,
                  weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0.1f, .weight = 1})))
        return;
    pthread_barrier_wait(&crowd->meet); /* both ranks have declared */
    weft_group_start(session);
    for (uint32_t t = 0; t < TENSORS; t++)
        weft_push_pull(all[t].tensor[0], all[t].grad, all[t].out[0], &all[t].request[0]);
    if (rank == 0) weft_abort(session, "the test ends it");
    if (rank == 1) weft_group_end(session);
    weft_step_end(session); /* refused, or the abort; both are in order */
}

static void test_many(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, many);
    assert_int_equal(crowd.failures, 0);
}

static void test_ends_in_a_group(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, leaves);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_small),
                                       cmocka_unit_test(test_many), cmocka_unit_test(test_ends_in_a_group)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
