/* test_call_group.c - tensors of one shape and codec that are pushed in a group of calls share an
 * operation and keep their bits. Several sessions in one process; each tensor is declared twice and pushed
 * once in a group, once alone. */
#include "tests/lib/check.h"

#include <string.h>

#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "tests/client/crowd.h"

enum { TENSORS = 9, STEPS = 6 };

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
        if (!CROWD_OK(crowd, session, weft_declare(session, &options, &both->tensor[way]))) return false;
        both->out[way] = weft_alloc(session, both->elems * 4);
        for (uint32_t i = 0; i < both->elems; i++) both->out[way][i] = (float)i / 1000;
        if (strcmp(plans[t].optimizer, "none") != 0)
            CROWD_OK(crowd, session, weft_tensor_init(both->tensor[way], both->out[way]));
    }
    return true;
}

static void push(struct crowd *crowd, struct weft_session *session, struct both *all, int way, uint32_t step)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (t == 4 && step == 3) continue; /* not in this step */
        CROWD_OK(crowd, session,
                 weft_push_pull(all[t].tensor[way], all[t].grad, all[t].out[way], &all[t].request[way]));
    }
}

static void train(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
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
        if (step == 1) {
            CROWD_REFUSED(crowd, session, weft_wait(&all[1].request[0], 0), WEFT_ERR_STATE, "weft_group_end");
            CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_STATE, "weft_group_end");
        }
        CROWD_OK(crowd, session, weft_group_end(session));
        push(crowd, session, all, 1, step);
        if (!CROWD_OK(crowd, session, weft_step_end(session))) return;
        for (uint32_t t = 0; t < TENSORS; t++) {
            const struct weft_tensor *leader = all[t].tensor[0]->op.carrier.leader;
            if (!CROWD_CHECK(crowd, session, memcmp(all[t].out[0], all[t].out[1], all[t].elems * 4) == 0))
                fprintf(stderr, "rank %u step %u tensor %u (%s)\n", rank, step, t, plans[t].codec);
            CROWD_CHECK(crowd, session,
                        leader == (plans[t].leader < 0 ? NULL : all[plans[t].leader].tensor[0]));
            CROWD_CHECK(crowd, session, all[t].tensor[1]->op.carrier.leader == NULL);
        }
    }
}

static void test_bits(void **state)
{
    for (uint32_t workers = 1; workers <= 3; workers++) {
        struct crowd crowd = {0};
        crowd_run(&crowd, workers, train);
        assert_int_equal(crowd.failures, 0);
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_many),
                                       cmocka_unit_test(test_ends_in_a_group)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
