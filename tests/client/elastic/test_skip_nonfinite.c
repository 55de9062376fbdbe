/* test_skip_nonfinite.c - a step with a gradient that is not finite is skipped on all ranks: a run with such
 * steps has the bits of the run without them. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/client/crowd.h"
#include "weft/weft.h"

enum { TENSORS = 3, SIDE = 40, ELEMS = SIDE * SIDE, STEPS = 6 };

/* The three tensors, and which one gets the value on which ranks in attempts 3 and 4. */
struct plan {
    const char *codec, *optimizer;
    uint32_t hit;
    uint32_t ranks; /* bit by rank */
    float value;
};

static const struct plan plans[] = {
    {"powersgd:rank=2", "adam", 0, 1, INFINITY},
    {"powersgd:rank=2", "sgd:momentum=0.9", 2, 2, NAN},
    {"topk:ratio=0.05,min_count=0", "adam", 2, 1, NAN},
    {"int8", "sgd:momentum=0.9", 0, 3, -INFINITY},
    {"int4", "adam", 2, 1, NAN},
    {"f16", "adam", 0, 2, NAN},
    {"bf16", "sgd:momentum=0.9", 2, 1, INFINITY},
    {"e4m3", "adam", 2, 1, NAN},
    {"e5m2", "adam", 0, 1, NAN},
    {"sign", "adam", 2, 2, INFINITY},
    {"randomk:ratio=0.1", "adam", 1, 1, NAN},
    {"dense", "adam", 0, 1, NAN},
    {"dense", "sgd:momentum=0.9", 2, 3, INFINITY},
    {"dense", "none", 1, 2, INFINITY},
    {"int8", "none", 2, 2, NAN},
};

struct model {
    struct weft_tensor *tensors[TENSORS];
    float grad[TENSORS][ELEMS], out[TENSORS][ELEMS];
    uint8_t residual[TENSORS][ELEMS * 4 + 4096];
};

static float pseudo(uint32_t rank, uint32_t tensor, uint32_t step, uint32_t i)
{
    const uint32_t x = (rank * 1000003u + tensor * 7919u + step * 104729u + i * 2654435761u) >> 7;
    return (float)(x % 2001) / 1000.0f - 1.0f;
}

static bool declare(struct crowd *crowd, struct weft_session *session, const struct plan *plan,
                    const char *run, struct model *model)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct weft_tensor_options options;
        char name[32];
        snprintf(name, sizeof name, "%s%u", run, t);
        weft_tensor_options_init(&options);
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = options.dims[1] = SIDE;
        options.codec = plan->codec;
        options.optimizer = plan->optimizer;
        options.skip_nonfinite = t == plan->hit; /* the others are updated and restored */
        if (!CROWD_OK(crowd, session, weft_declare(session, &options, &model->tensors[t]))) return false;
        for (uint32_t i = 0; i < ELEMS; i++) model->out[t][i] = (float)i / 1000;
        if (strcmp(plan->optimizer, "none") != 0 &&
            !CROWD_OK(crowd, session, weft_tensor_init(model->tensors[t], model->out[t])))
            return false;
    }
    return true;
}

/* One step of data set `data`; hit: with a value that is not finite. */
static enum weft_status step(struct crowd *crowd, struct weft_session *session, const struct plan *plan,
                             struct model *model, uint32_t data, bool hit)
{
    const uint32_t rank = weft_rank(session);
    struct weft_request requests[TENSORS];
    memset(requests, 0, sizeof requests);
    const struct weft_step begun = {
        .step = weft_step_next(session), .lr = 0.1f, .weight = data % 2 ? 1.0f : 0.5f + (float)rank};
    if (!CROWD_OK(crowd, session, weft_step_begin(session, &begun))) return WEFT_ERR_INTERNAL;
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint32_t i = 0; i < ELEMS; i++) model->grad[t][i] = pseudo(rank, t, data, i);
        if (hit && t == plan->hit && plan->ranks >> rank & 1) model->grad[t][ELEMS - 7] = plan->value;
        CROWD_OK(crowd, session,
                 weft_push_pull(model->tensors[t], model->grad[t], model->out[t], &requests[t]));
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        /* before step_end a trainer has its weights */
        const enum weft_status status = weft_wait(&requests[t], 0);
        CROWD_CHECK(crowd, session, status == (hit && t == plan->hit ? WEFT_ERR_SKIPPED : WEFT_OK));
    }
    return weft_step_end(session);
}

static void save(struct crowd *crowd, struct weft_session *session, struct model *model)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        const uint64_t bytes = weft_residual_bytes(model->tensors[t]);
        if (!CROWD_CHECK(crowd, session, bytes <= sizeof model->residual[t])) continue;
        memset(model->residual[t], 0, sizeof model->residual[t]);
        CROWD_OK(crowd, session, weft_residual_save(model->tensors[t], model->residual[t], bytes));
    }
}

static void run(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static struct model models[CROWD_MAX][2];
    const struct plan *plan = crowd->user;
    struct model *plain = &models[rank][0], *hurt = &models[rank][1];
    const bool trains = strcmp(plan->optimizer, "none") != 0;
    static float before[CROWD_MAX][TENSORS][ELEMS];
    /* The reference runs first. Both optimisers count from step 1: two sessions, one after another. */
    struct model *model = crowd->found ? hurt : plain;
    if (!declare(crowd, session, plan, "t", model)) return;
    for (uint32_t data = 1; data <= STEPS; data++) {
        for (uint32_t again = 0; crowd->found && data == 3 && again < 2; again++) { /* two in a row */
            char words[64];
            const uint64_t next = weft_step_next(session);
            memcpy(before[rank], model->out, sizeof model->out);
            snprintf(words, sizeof words, "tensor 't%u' is not finite (NaN or infinity) on rank %u",
                     plan->hit, plan->ranks & 1 ? 0 : 1);
            CROWD_REFUSED(crowd, session, step(crowd, session, plan, model, 90 + again, true),
                          WEFT_ERR_SKIPPED, words);
            CROWD_CHECK(crowd, session, weft_step_next(session) == next);
            if (trains) CROWD_CHECK(crowd, session, memcmp(before[rank], model->out, sizeof model->out) == 0);
        }
        if (!CROWD_OK(crowd, session, step(crowd, session, plan, model, data, false))) return;
    }
    save(crowd, session, model);
    if (!crowd->found) return;
    CROWD_CHECK(crowd, session, memcmp(plain->out, hurt->out, sizeof plain->out) == 0);
    CROWD_CHECK(crowd, session, memcmp(plain->residual, hurt->residual, sizeof plain->residual) == 0);
}

static void both(const struct plan *plan, uint32_t workers, uint32_t workers_min)
{
    for (uint32_t hurt = 0; hurt < 2; hurt++) {
        struct crowd crowd = {.workers_min = workers_min, .user = (void *)(uintptr_t)plan};
        crowd.found = hurt;
        crowd_run(&crowd, workers, run);
        if (crowd.failures)
            fprintf(stderr, "%s with %s, %u workers\n", plan->codec, plan->optimizer, workers);
        assert_int_equal(crowd.failures, 0);
    }
}

static void test_bits(void **state)
{
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) both(&plans[i], 2 + i % 2, 0);
}

static void test_elastic(void **state)
{
    both(&plans[0], 3, 2);
    both(&plans[12], 2, 1);
}

/* Finite on every rank, but the sum overflows: no rank is the cause. In place, as a mean without an optimiser
 * may be. */
static void overflow(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensor;
    struct weft_request request = {{0}};
    float grad[8];
    weft_tensor_options_init(&options);
    options.name = "sum";
    options.dim_count = 1;
    options.dims[0] = 8;
    options.skip_nonfinite = true;
    if (!CROWD_OK(crowd, session, weft_declare(session, &options, &tensor))) return;
    for (uint32_t try = 0; try < 3; try++) {
        for (uint32_t i = 0; i < 8; i++) grad[i] = try == 0 ? 3e38f : 1.0f;
        if (try == 1 && rank == 1) grad[3] = NAN;
        CROWD_OK(crowd, session,
                 weft_step_begin(session,
                                 &(struct weft_step){.step = weft_step_next(session), .lr = 1, .weight = 1}));
        CROWD_OK(crowd, session, weft_push_pull(tensor, grad, grad, &request));
        if (try == 0)
            CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_SKIPPED,
                          "the mean gradient of tensor 'sum'");
        else if (try == 1)
            CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_SKIPPED,
                          "tensor 'sum' is not finite (NaN or infinity) on rank 1");
        else CROWD_OK(crowd, session, weft_step_end(session));
        const enum weft_status waited = weft_wait(&request, 0);
        CROWD_CHECK(crowd, session, waited == (try == 2 ? WEFT_OK : WEFT_ERR_SKIPPED));
    }
    CROWD_CHECK(crowd, session, grad[0] == 1.0f && weft_step_next(session) == 2);
}

static void test_overflow(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, overflow);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_elastic),
                                       cmocka_unit_test(test_overflow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
