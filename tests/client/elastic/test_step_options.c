/* test_step_options.c - options of a step in all-reduce mode: parameter groups, loss scale, clipping, skip.
 * The oracle is a formula, or the same run without the option. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/client/crowd.h"
#include "tests/client/matrix_options.h"
#include "tests/client/mode_pair.h"
#include "weft/weft.h"

enum { TENSORS = 3, SIDE = 24, ELEMS = SIDE * SIDE, STEPS = 5 };

struct model {
    struct weft_tensor *tensors[TENSORS];
    float grad[TENSORS][ELEMS], out[TENSORS][ELEMS];
};
static struct model models[CROWD_MAX][2];

static bool declare(struct crowd *crowd, struct weft_session *session, const char *codec,
                    const char *const optimizers[TENSORS], struct model *model)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct weft_tensor_options options;
        char name[16];
        matrix_options(&options, name, t, SIDE, SIDE, codec);
        options.optimizer = optimizers[t];
        options.skip_nonfinite = t == 1;
        options.group = t;
        if (!CROWD_OK(crowd, session, weft_declare(session, &options, &model->tensors[t]))) return false;
        for (uint32_t i = 0; i < ELEMS; i++) model->out[t][i] = mode_pseudo(7, t, i);
        if (strcmp(optimizers[t], "none") != 0 &&
            !CROWD_OK(crowd, session, weft_tensor_init(model->tensors[t], model->out[t])))
            return false;
    }
    return true;
}

/* Pushes all tensors and waits; the gradients are those of data set `data`, times `scale`. */
static void push(struct crowd *crowd, struct weft_session *session, struct model *model, uint32_t data,
                 float scale, enum weft_status wanted)
{
    struct weft_request requests[TENSORS];
    memset(requests, 0, sizeof requests);
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint32_t i = 0; i < ELEMS; i++)
            model->grad[t][i] = mode_pseudo(weft_rank(session), data * TENSORS + t, i) * scale;
        CROWD_OK(crowd, session,
                 weft_push_pull(model->tensors[t], model->grad[t], model->out[t], &requests[t]));
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        const enum weft_status waited = weft_wait(&requests[t], 0);
        CROWD_CHECK(crowd, session, waited == wanted);
    }
}

/* The mean over two ranks of the gradient of a data set, as the library rounds it. */
static float mean(uint32_t data, uint32_t t, uint32_t i)
{
    return (mode_pseudo(0, data * TENSORS + t, i) + mode_pseudo(1, data * TENSORS + t, i)) * 0.5f;
}

/* ---- loss scale: the bits of the run without it ---- */

static const struct plan {
    const char *codec, *optimizer;
} plans[] = {{"dense", "adam"}, {"dense", "none"},
             {"int8", "adam"},  {"topk:ratio=0.1,min_count=0", "sgd:momentum=0.9"},
             {"bf16", "none"},  {"powersgd:rank=2", "sgd:momentum=0.9"}};

static void run_scaled(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct plan *plan = crowd->user;
    struct model *model = &models[rank][crowd->found];
    const char *const optimizers[TENSORS] = {plan->optimizer, plan->optimizer, plan->optimizer};
    if (!declare(crowd, session, plan->codec, optimizers, model)) return;
    for (uint32_t data = 1; data <= STEPS; data++) {
        /* the scale changes, as that of a gradient scaler; sample weights differ in some steps */
        const float scale = crowd->found ? ldexpf(1, 6 + (int)(data % 3)) : 1,
                    weight = data % 2 ? 1 : 0.5f + (float)rank;
        CROWD_OK(crowd, session,
                 weft_step_begin_with(session, WEFT_STEP(.step = data, .lr = 0.1f, .weight = weight,
                                                         .loss_scale = crowd->found ? scale : 0)));
        push(crowd, session, model, data, scale, WEFT_OK);
        CROWD_OK(crowd, session, weft_step_end(session));
    }
    if (crowd->found)
        CROWD_CHECK(crowd, session, memcmp(models[rank][0].out, model->out, sizeof model->out) == 0);
}

static void test_a_loss_scale_leaves_the_bits(void **state)
{
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        struct crowd crowd = {.user = (void *)(uintptr_t)&plans[i]};
        for (uint32_t scaled = 0; scaled < 2; scaled++) {
            crowd.found = scaled;
            crowd_run(&crowd, 2, run_scaled);
        }
        if (crowd.failures) fprintf(stderr, "%s with %s\n", plans[i].codec, plans[i].optimizer);
        assert_int_equal(crowd.failures, 0);
    }
}

/* A residual has no scale: what topk has not sent enters the next, dense, contribution unscaled. */
static void carried(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor_options options;
    struct weft_tensor *tensors[2];
    static uint8_t residuals[CROWD_MAX][ELEMS * 8];
    static float grads[CROWD_MAX][ELEMS], outs[CROWD_MAX][2][ELEMS];
    char name[16];
    for (uint32_t t = 0; t < 2; t++) {
        matrix_options(&options, name, t, SIDE, SIDE, t == 0 ? "topk:ratio=0.1,min_count=0" : "dense");
        if (!CROWD_OK(crowd, session, weft_declare(session, &options, &tensors[t]))) return;
    }
    for (uint32_t i = 0; i < ELEMS; i++) grads[rank][i] = mode_pseudo(rank, 1, i);
    for (uint64_t step = 1; step <= 2; step++) {
        struct weft_request request = {{0}};
        const float scale = step == 2 ? 1024 : 1;
        CROWD_OK(crowd, session,
                 weft_step_begin_with(session,
                                      WEFT_STEP(.step = step, .lr = 1, .weight = 1, .loss_scale = scale)));
        if (step == 2) memset(grads[rank], 0, sizeof grads[rank]);
        CROWD_OK(crowd, session,
                 weft_push_pull(tensors[step - 1], grads[rank], outs[rank][step - 1], &request));
        CROWD_OK(crowd, session, weft_wait(&request, 0));
        CROWD_OK(crowd, session, weft_step_end(session));
        if (step == 2) break;
        /* the residual enters a dense tensor of the same shape */
        const uint64_t bytes = weft_residual_bytes(tensors[0]);
        if (!CROWD_CHECK(crowd, session, bytes <= sizeof residuals[rank])) return;
        CROWD_OK(crowd, session, weft_residual_save(tensors[0], residuals[rank], bytes));
        CROWD_OK(crowd, session, weft_residual_load(tensors[1], residuals[rank], bytes));
    }
    for (uint32_t i = 0; i < ELEMS; i++) {
        const float whole = (mode_pseudo(0, 1, i) + mode_pseudo(1, 1, i)) * 0.5f;
        if (!CROWD_CHECK(crowd, session, fabsf(outs[rank][0][i] + outs[rank][1][i] - whole) < 1e-6f)) return;
    }
}

static void test_a_residual_has_no_scale(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, carried);
    assert_int_equal(crowd.failures, 0);
}

/* ---- groups: each tensor has the rate and the decay of its group ---- */

static void grouped(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const char *const optimizers[TENSORS] = {"sgd", "sgd:weight_decay=0.5", "adamw"};
    struct model *model = &models[rank][0];
    static float weights[CROWD_MAX][TENSORS][ELEMS];
    if (!declare(crowd, session, "dense", optimizers, model)) return;
    memcpy(weights[rank], model->out, sizeof model->out);
    for (uint32_t data = 1; data <= STEPS; data++) {
        const float lr[TENSORS] = {0.1f / (float)data, 0.03f, 0}, decay[TENSORS] = {0, 0.25f, 0.1f};
        const bool own = data == STEPS; /* the last step keeps the decay of the optimiser's text */
        CROWD_OK(crowd, session,
                 weft_step_begin_with(session,
                                      WEFT_STEP(.step = data, .lr = 77, .weight = 1, .group_count = 3,
                                                .group_lr = lr, .group_weight_decay = own ? NULL : decay)));
        push(crowd, session, model, data, 1, WEFT_OK);
        CROWD_OK(crowd, session, weft_step_end(session));
        for (uint32_t i = 0; i < ELEMS; i++) {
            float *w0 = &weights[rank][0][i], *w1 = &weights[rank][1][i];
            *w0 -= lr[0] * mean(data, 0, i);
            *w1 -= lr[1] * (mean(data, 1, i) + (own ? 0.5f : decay[1]) * *w1);
            if (!CROWD_CHECK(crowd, session, fabsf(*w0 - model->out[0][i]) < 1e-6f) ||
                !CROWD_CHECK(crowd, session, fabsf(*w1 - model->out[1][i]) < 1e-6f))
                return;
        }
        /* a rate of 0 */
        CROWD_CHECK(crowd, session, memcmp(weights[rank][2], model->out[2], sizeof model->out[2]) == 0);
    }
    CROWD_OK(crowd, session, weft_step_begin(session, &(struct weft_step){STEPS + 1, 0.5f, 1}));
    push(crowd, session, model, STEPS + 1, 1, WEFT_OK);
    CROWD_OK(crowd, session, weft_step_end(session));
    CROWD_CHECK(crowd, session, /* without groups all tensors have lr */
                fabsf(weights[rank][0][3] - 0.5f * mean(STEPS + 1, 0, 3) - model->out[0][3]) < 1e-6f);
}

static void test_tensors_have_the_rates_of_their_groups(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, grouped);
    assert_int_equal(crowd.failures, 0);
}

/* ---- clipping ---- */

static void clipped(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    /* no optimiser: neither counted nor clipped */
    static const char *const optimizers[TENSORS] = {"sgd", "sgd", "none"};
    struct model *model = &models[rank][0];
    static float weights[CROWD_MAX][TENSORS][ELEMS];
    if (!declare(crowd, session, "dense", optimizers, model)) return;
    for (uint32_t data = 1; data <= 3; data++) {
        double squares = 0, norm = -1;
        for (uint32_t t = 0; t < 2; t++)
            for (uint32_t i = 0; i < ELEMS; i++) squares += pow((double)mean(data, t, i), 2);
        const double wanted = sqrt(squares);
        const float clip = data == 1 ? 0.25f : data == 2 ? (float)(2 * wanted) : INFINITY;
        memcpy(weights[rank], model->out, sizeof model->out);
        CROWD_OK(
            crowd, session,
            weft_step_begin_with(session, WEFT_STEP(.step = data, .lr = 0.1f, .weight = 1, .loss_scale = 8,
                                                    .clip_norm = clip, .norm_out = &norm)));
        push(crowd, session, model, data, 8, WEFT_OK);
        /* the update waits for the end of the step */
        CROWD_CHECK(crowd, session, memcmp(weights[rank], model->out, sizeof model->out[0]) == 0);
        CROWD_CHECK(crowd, session, norm == -1);
        CROWD_OK(crowd, session, weft_step_end(session));
        CROWD_CHECK(crowd, session, fabs(norm - wanted) < 1e-5 * wanted);
        const float factor = data == 1 ? (float)(0.25 / (wanted + 1e-6)) : 1;
        for (uint32_t t = 0; t < 2; t++)
            for (uint32_t i = 0; i < ELEMS; i++) {
                const float now = weights[rank][t][i] - 0.1f * (mean(data, t, i) * factor);
                if (!CROWD_CHECK(crowd, session, fabsf(now - model->out[t][i]) < 1e-6f)) return;
            }
        CROWD_CHECK(crowd, session, model->out[2][5] == mean(data, 2, 5));
    }
}

static void test_gradients_are_clipped_by_their_global_norm(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, clipped);
    assert_int_equal(crowd.failures, 0);
}

/* A skipped step with a clip has changed nothing, and a codec's mean is clipped as a dense one is. */
static void clipped_codec(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static const char *const optimizers[TENSORS] = {"sgd", "sgd", "sgd"};
    struct model *model = &models[rank][0];
    static float weights[CROWD_MAX][TENSORS][ELEMS];
    if (!declare(crowd, session, "bf16", optimizers, model)) return;
    for (uint32_t data = 1; data <= 2; data++) {
        memcpy(weights[rank], model->out, sizeof model->out);
        double norm, moved = 0;
        CROWD_OK(crowd, session,
                 weft_step_begin_with(session, WEFT_STEP(.step = 1, .lr = 1, .weight = 1, .clip_norm = 0.5f,
                                                         .norm_out = &norm)));
        push(crowd, session, model, data, data == 1 && rank == 1 ? INFINITY : 1,
             data == 1 ? WEFT_ERR_SKIPPED : WEFT_OK);
        const enum weft_status status = weft_step_end(session);
        CROWD_CHECK(crowd, session, status == (data == 1 ? WEFT_ERR_SKIPPED : WEFT_OK));
        if (data == 1) CROWD_CHECK(crowd, session, memcmp(weights[rank], model->out, sizeof model->out) == 0);
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint32_t i = 0; i < ELEMS; i++)
                moved += pow((double)(weights[rank][t][i] - model->out[t][i]), 2);
        if (data == 2) CROWD_CHECK(crowd, session, fabs(sqrt(moved) - 0.5) < 1e-4 && norm > 1);
    }
}

static void test_a_codec_is_clipped_and_a_skip_changes_nothing(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, clipped_codec);
    assert_int_equal(crowd.failures, 0);
}

/* ---- skip: one rank has no usable gradient ---- */

static void skipped(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const struct plan *plan = crowd->user;
    const char *const optimizers[TENSORS] = {plan->optimizer, plan->optimizer, plan->optimizer};
    struct model *model = &models[rank][crowd->found];
    static float before[CROWD_MAX][TENSORS][ELEMS];
    if (!declare(crowd, session, plan->codec, optimizers, model)) return;
    for (uint32_t data = 1; data <= STEPS; data++) {
        const uint32_t tries = crowd->found && data == 3 ? 2 : 1;
        for (uint32_t try = tries; try > 0; try--) {
            const bool skips = try == 2;
            memcpy(before[rank], model->out, sizeof model->out);
            CROWD_OK(crowd, session,
                     weft_step_begin_with(session, WEFT_STEP(.step = data, .lr = 0.1f, .weight = 1,
                                                             .skip = skips && rank == 1)));
            if (skips && rank == 1)
                for (uint32_t t = 0; t < TENSORS; t++)
                    CROWD_OK(crowd, session, weft_push_none(model->tensors[t]));
            else push(crowd, session, model, data, 1, skips ? WEFT_ERR_SKIPPED : WEFT_OK);
            if (!skips) {
                CROWD_OK(crowd, session, weft_step_end(session));
                continue;
            }
            CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_SKIPPED, "rank 1");
            CROWD_CHECK(crowd, session, strstr(weft_error_text(session), "has no usable gradient"));
            CROWD_CHECK(crowd, session, weft_step_next(session) == data);
            if (strcmp(plan->optimizer, "none") != 0)
                CROWD_CHECK(crowd, session, memcmp(before[rank], model->out, sizeof model->out) == 0);
        }
    }
    if (crowd->found)
        CROWD_CHECK(crowd, session, memcmp(models[rank][0].out, model->out, sizeof model->out) == 0);
}

static void test_a_rank_skips_the_step_of_all(void **state)
{
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        struct crowd crowd = {.user = (void *)(uintptr_t)&plans[i], .workers_min = i == 3 ? 2 : 0};
        for (uint32_t skips = 0; skips < 2; skips++) {
            crowd.found = skips;
            crowd_run(&crowd, 3, skipped);
        }
        if (crowd.failures) fprintf(stderr, "%s with %s\n", plans[i].codec, plans[i].optimizer);
        assert_int_equal(crowd.failures, 0);
    }
}

/* ---- refusals ---- */

static void refused(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    const float lr[3] = {1, 1, NAN}, decay[3] = {0, -1, 0};
    struct weft_tensor_options options;
    struct weft_tensor *tensor, *ftrl, *half;
    struct weft_request request = {{0}};
    float grad[8] = {0}, out[8] = {0};
    char name[16];
    double norm;
#define BEGIN(...) \
    weft_step_begin_with(session, \
                         WEFT_STEP(.step = weft_step_next(session), .lr = 1, .weight = 1, __VA_ARGS__))
    CROWD_REFUSED(crowd, session, BEGIN(.skip = true), WEFT_ERR_UNSUPPORTED, "skip reaches the other ranks");
    matrix_options(&options, name, 0, 2, 4, "dense");
    options.optimizer = "sgd";
    options.group = 1;
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    CROWD_OK(crowd, session, weft_tensor_init(tensor, out));
    matrix_options(&options, name, 1, 2, 4, "dense");
    options.optimizer = "ftrl";
    CROWD_OK(crowd, session, weft_declare(session, &options, &ftrl));
    CROWD_OK(crowd, session, weft_tensor_init(ftrl, out));
    matrix_options(&options, name, 2, 2, 4, "dense");
    options.dtype = WEFT_F16;
    CROWD_OK(crowd, session, weft_declare(session, &options, &half));
    const float scales[] = {3, -2, NAN, INFINITY, ldexpf(1, 61), ldexpf(1, -61)};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        CROWD_REFUSED(crowd, session, BEGIN(.loss_scale = scales[i]), WEFT_ERR_INVALID, "power of two");
    CROWD_REFUSED(crowd, session, BEGIN(.clip_norm = -1), WEFT_ERR_INVALID, "clip_norm is -1");
    CROWD_REFUSED(crowd, session, BEGIN(.clip_norm = NAN, .norm_out = &norm), WEFT_ERR_INVALID, "clip_norm");
    CROWD_REFUSED(crowd, session, BEGIN(.group_count = 2), WEFT_ERR_INVALID, "group_lr is NULL");
    CROWD_REFUSED(crowd, session, BEGIN(.group_count = 3, .group_lr = lr), WEFT_ERR_INVALID,
                  "group_lr[2] is nan");
    CROWD_REFUSED(crowd, session, BEGIN(.group_count = 2, .group_lr = lr, .group_weight_decay = decay),
                  WEFT_ERR_INVALID, "group_weight_decay[1] is -1");
    CROWD_OK(crowd, session, BEGIN(.group_count = 1, .group_lr = lr));
    CROWD_REFUSED(crowd, session, weft_push_pull(tensor, grad, out, &request), WEFT_ERR_INVALID,
                  "tensor 't0', which is in parameter group 1; the step's group_count is 1");
    CROWD_OK(crowd, session, weft_step_end(session));
    const float both[2] = {0.5f, 0.5f};
    CROWD_OK(crowd, session,
             BEGIN(.group_count = 2, .group_lr = lr, .group_weight_decay = both, .loss_scale = 2));
    CROWD_REFUSED(crowd, session, weft_push_pull(ftrl, grad, out, &request), WEFT_ERR_UNSUPPORTED,
                  "ftrl has no weight decay");
    CROWD_REFUSED(crowd, session, weft_push_pull(half, grad, out, &request), WEFT_ERR_UNSUPPORTED,
                  "loss_scale other than 1 needs f32");
    CROWD_OK(crowd, session, weft_step_end(session));
    /* With an optimizer `out` holds the weights. */
    CROWD_OK(crowd, session, BEGIN(.group_count = 2, .group_lr = both));
    CROWD_REFUSED(crowd, session, weft_push_pull(tensor, out, out, &request), WEFT_ERR_INVALID,
                  "grad and out are one buffer");
    CROWD_OK(crowd, session, weft_step_end(session));
    /* Ranks that differ: the session ends. */
    const float other[2] = {1, rank == 1 ? 2 : 1};
    CROWD_OK(crowd, session, BEGIN(.group_count = 2, .group_lr = other));
    CROWD_REFUSED(crowd, session, weft_step_end(session), WEFT_ERR_MISMATCH,
                  "different loss_scale, clip_norm, group_lr");
#undef BEGIN
}

static void test_mistakes_are_refused(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, refused);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_loss_scale_leaves_the_bits),
        cmocka_unit_test(test_a_residual_has_no_scale),
        cmocka_unit_test(test_tensors_have_the_rates_of_their_groups),
        cmocka_unit_test(test_gradients_are_clipped_by_their_global_norm),
        cmocka_unit_test(test_a_codec_is_clipped_and_a_skip_changes_nothing),
        cmocka_unit_test(test_a_rank_skips_the_step_of_all),
        cmocka_unit_test(test_mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
