/* test_residual.c - checkpoints of residuals: a saved job continues bit for bit; on another number of ranks
 * the mean of the residuals is kept; another codec takes the residual over; damaged bytes change nothing. */
#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/session/session.h"
#include "client/tensor/tensor.h"
#include "tests/client/crowd.h"
#include "tests/client/matrix_options.h"

enum { ROWS = 40, COLS = 60, ELEMS = ROWS * COLS, STEPS = 4, SAVED_MAX = 1 << 17 };

static const char *const codecs[] = {"dense",
                                     "topk:ratio=0.05,min_count=0,momentum=0.9",
                                     "powersgd:rank=2",
                                     "int8:min_count=0",
                                     "randomk:ratio=0.1,min_count=0",
                                     "sign:min_count=0"};
enum { TENSORS = sizeof codecs / sizeof codecs[0] };

static struct saved {
    uint64_t bytes;
    uint8_t data[SAVED_MAX];
} saved[CROWD_MAX][TENSORS];
static float wanted[TENSORS][ELEMS], got[TENSORS][ELEMS];

static struct weft_tensor *declare(struct crowd *crowd, struct weft_session *session, uint32_t t,
                                   const char *codec)
{
    char name[16];
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    matrix_options(&options, name, t, ROWS, COLS, codec);
    options.mode = WEFT_MODE_ALL_REDUCE;
    CROWD_OK(crowd, session, weft_declare(session, &options, &tensor));
    return tensor;
}

static bool backwards; /* every other step in the opposite order, and tensors declared in it */

/* Steps `from` .. `from + STEPS - 1` of the training; the session counts its own from `first`. */
static void train(struct crowd *crowd, struct weft_session *session, struct weft_tensor **tensors,
                  uint32_t rank, uint32_t from, uint32_t first, float outs[TENSORS][ELEMS])
{
    static float grads[CROWD_MAX][TENSORS][ELEMS], results[CROWD_MAX][TENSORS][ELEMS];
    for (uint32_t s = 0; s < STEPS; s++) {
        struct weft_request requests[TENSORS] = {{{0}}};
        const struct weft_step begun = {.step = first + s, .lr = 0.1f, .weight = 1.0f};
        CROWD_OK(crowd, session, weft_step_begin(session, &begun));
        for (uint32_t place = 0; place < TENSORS; place++) {
            const uint32_t t = backwards && s % 2 == 0 ? TENSORS - 1 - place : place;
            for (uint32_t i = 0; i < ELEMS; i++)
                grads[rank][t][i] =
                    (float)((rank * 1000003u + t * 7919u + (from + s) * 104729u + i * 2654435761u) >> 7) *
                        0x1p-24f -
                    1.0f;
            CROWD_OK(crowd, session,
                     weft_push_pull(tensors[t], grads[rank][t], results[rank][t], &requests[t]));
        }
        for (uint32_t t = 0; t < TENSORS; t++) CROWD_OK(crowd, session, weft_wait(&requests[t], 0));
        CROWD_OK(crowd, session, weft_step_end(session));
    }
    if (rank == 0 && outs) memcpy(outs, results[0], sizeof results[0]);
}

static void declare_all(struct crowd *crowd, struct weft_session *session, struct weft_tensor **tensors)
{
    for (uint32_t place = 0; place < TENSORS; place++) {
        const uint32_t t = backwards ? TENSORS - 1 - place : place;
        tensors[t] = declare(crowd, session, t, codecs[t]);
    }
}

static void first_job(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensors[TENSORS];
    declare_all(crowd, session, tensors);
    train(crowd, session, tensors, rank, 0, 1, NULL);
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct saved *to = &saved[rank][t];
        to->bytes = weft_residual_bytes(tensors[t]);
        CROWD_CHECK(crowd, session, to->bytes > 0 && to->bytes <= SAVED_MAX);
        CROWD_OK(crowd, session, weft_residual_save(tensors[t], to->data, to->bytes));
        CROWD_REFUSED(crowd, session, weft_residual_save(tensors[t], to->data, to->bytes + 1),
                      WEFT_ERR_INVALID, "weft_residual_bytes");
    }
    train(crowd, session, tensors, rank, STEPS, STEPS + 1, wanted);
}

static void second_job(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensors[TENSORS];
    declare_all(crowd, session, tensors);
    for (uint32_t t = 0; t < TENSORS; t++)
        CROWD_OK(crowd, session, weft_residual_load(tensors[t], saved[rank][t].data, saved[rank][t].bytes));
    train(crowd, session, tensors, rank, STEPS, 1, got);
}

static void test_goes_on(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, first_job);
    assert_int_equal(crowd.failures, 0);
    crowd_run(&crowd, 2, second_job);
    assert_int_equal(crowd.failures, 0);
    assert_memory_equal(got, wanted, sizeof wanted);
}

/* The residual belongs to the tensor's name: with another order of declarations and pushes the bits are
 * equal. */
static void test_another_order(void **state)
{
    struct crowd crowd = {0};
    memset(got, 0, sizeof got);
    backwards = true;
    crowd_run(&crowd, 2, second_job);
    backwards = false;
    assert_int_equal(crowd.failures, 0);
    assert_memory_equal(got, wanted, sizeof wanted);
}

/* Gradients half-way between two codes: each rank and each tensor rounds by its own seed. With equal seeds no
 * mean of two ranks would be between two codes. */
static void rounding(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    static float grads[2][ELEMS], outs[2][2][ELEMS];
    struct weft_tensor *tensors[2];
    struct weft_request requests[2] = {{{0}}};
    uint32_t between = 0, other = 0;
    for (uint32_t t = 0; t < 2; t++) tensors[t] = declare(crowd, session, t, "int8:min_count=0");
    /* at most 100.5: a code is 1 */
    for (uint32_t i = 0; i < ELEMS; i++) grads[rank][i] = (float)(i % 200) - 100.5f;
    CROWD_OK(crowd, session,
             weft_step_begin(session, &(struct weft_step){.step = 1, .lr = 0.1f, .weight = 1.0f}));
    for (uint32_t t = 0; t < 2; t++)
        CROWD_OK(crowd, session, weft_push_pull(tensors[t], grads[rank], outs[rank][t], &requests[t]));
    for (uint32_t t = 0; t < 2; t++) CROWD_OK(crowd, session, weft_wait(&requests[t], 0));
    CROWD_OK(crowd, session, weft_step_end(session));
    for (uint32_t i = 0; i < ELEMS; i++) {
        between += outs[rank][0][i] != floorf(outs[rank][0][i]);
        other += outs[rank][0][i] != outs[rank][1][i];
    }
    CROWD_CHECK(crowd, session, between > ELEMS * 4 / 10 && between < ELEMS * 6 / 10);
    /* 5/8 of independent elements */
    CROWD_CHECK(crowd, session, other > ELEMS * 5 / 10 && other < ELEMS * 7 / 10 + ELEMS / 20);
}

static void test_rounding(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 2, rounding);
    assert_int_equal(crowd.failures, 0);
}

static double *total_residual_of(const struct weft_tensor *tensor)
{
    float *residual = calloc(ELEMS, sizeof *residual);
    double *total = calloc(ELEMS, sizeof *total);
    if (tensor->codec) weft_codec_residual_copy(tensor->codec, residual);
    for (uint32_t i = 0; i < ELEMS; i++)
        total[i] = (double)residual[i] + (tensor->arrays.carry ? (double)tensor->arrays.carry[i] : 0);
    free(residual);
    return total;
}

/* On three ranks: the residual of each of the two weighs 1.5 times as much, so that a third of it equals the
 * half before. The codecs are another job's: tensor t has the codec of t + 1, the last one is "auto". */
static void third_job(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *same[TENSORS], *other[TENSORS];
    declare_all(crowd, session, same);
    for (uint32_t t = 0; t < TENSORS; t++)
        other[t] =
            declare(crowd, session, TENSORS + t, t + 1 < TENSORS ? codecs[t + 1] : "auto:int8:min_count=0");
    for (uint32_t t = 0; t < TENSORS && rank < 2; t++) {
        CROWD_OK(crowd, session, weft_residual_load(same[t], saved[rank][t].data, saved[rank][t].bytes));
        CROWD_OK(crowd, session, weft_residual_load(other[t], saved[rank][t].data, saved[rank][t].bytes));
        double *mine = total_residual_of(same[t]), *theirs = total_residual_of(other[t]), most = 0;
        float before;
        for (uint32_t i = 0; i < ELEMS; i++) most = fmax(most, fabs(mine[i] - theirs[i]));
        CROWD_CHECK(crowd, session, most == 0);
        /* int8 has only its residual: the last elements of the saved bytes before the hash */
        memcpy(&before, saved[rank][t].data + saved[rank][t].bytes - 8 - 4, 4);
        if (t == 3) CROWD_CHECK(crowd, session, before != 0 && mine[ELEMS - 1] == (double)(before * 1.5f));
        free(mine);
        free(theirs);
    }
    train(crowd, session, same, rank, STEPS, 1, NULL);
    /* A residual that entered a step is zero; saved and loaded, the rest is equal. */
    for (uint32_t t = 0; t < TENSORS && rank == 0; t++) {
        struct saved *again = calloc(1, sizeof *again);
        again->bytes = weft_residual_bytes(other[t]);
        CROWD_OK(crowd, session, weft_residual_save(other[t], again->data, again->bytes));
        double *before = total_residual_of(other[t]);
        CROWD_OK(crowd, session, weft_residual_load(other[t], again->data, again->bytes));
        double *after = total_residual_of(other[t]);
        CROWD_CHECK(crowd, session, memcmp(before, after, ELEMS * sizeof *before) == 0);
        free(before);
        free(after);
        free(again);
    }
}

static void test_other_ranks_and_codecs(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, 3, third_job);
    assert_int_equal(crowd.failures, 0);
}

/* Every single bit and every length: the hash covers all of it. */
static void every_damage(struct crowd *crowd, struct weft_session *session, struct weft_tensor *tensor,
                         uint8_t *bytes, size_t count)
{
    for (size_t bit = 0; bit < 8 * count; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CROWD_REFUSED(crowd, session, weft_residual_load(tensor, bytes, count), WEFT_ERR_MALFORMED,
                      "nothing was changed");
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t shorter = 0; shorter < count; shorter++)
        CROWD_REFUSED(crowd, session, weft_residual_load(tensor, bytes, shorter), WEFT_ERR_MALFORMED,
                      "nothing was changed");
}

/* Version 1 has no hash. Its bytes are read, and their values are validated. */
static void unhashed(struct crowd *crowd, struct weft_session *session, struct weft_tensor *tensor,
                     uint8_t *bytes, size_t count)
{
    bytes[8] = 1;
    CROWD_OK(crowd, session, weft_residual_load(tensor, bytes, count));
    CROWD_REFUSED(crowd, session, weft_residual_load(tensor, bytes, count + 8), WEFT_ERR_MALFORMED,
                  "nothing was changed");
    if (!tensor->codec) return;
    memset(bytes + count - 4, 0xff, 4); /* NaN */
    CROWD_REFUSED(crowd, session, weft_residual_load(tensor, bytes, count), WEFT_ERR_MALFORMED, "damaged");
}

static void refusals(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *tensors[TENSORS];
    const struct weft_step begun = {.step = 1, .lr = 0.1f, .weight = 1.0f};
    declare_all(crowd, session, tensors);
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct saved *good = &saved[0][t];
        uint8_t *bad = malloc(good->bytes + 4);
        CROWD_OK(crowd, session, weft_residual_load(tensors[t], good->data, good->bytes));
        double *before = total_residual_of(tensors[t]);
        memcpy(bad, good->data, good->bytes);
        CROWD_REFUSED(crowd, session, weft_residual_load(tensors[t], bad, 7), WEFT_ERR_MALFORMED,
                      "fewer bytes");
        CROWD_REFUSED(crowd, session, weft_residual_load(tensors[t], bad, good->bytes - 1),
                      WEFT_ERR_MALFORMED, "nothing was changed");
        CROWD_REFUSED(crowd, session, weft_residual_load(tensors[t], bad, good->bytes + 4),
                      WEFT_ERR_MALFORMED, "nothing was changed");
        every_damage(crowd, session, tensors[t], bad, good->bytes);
        unhashed(crowd, session, tensors[t], bad, good->bytes - 8);
        double *after = total_residual_of(tensors[t]);
        CROWD_CHECK(crowd, session, memcmp(before, after, ELEMS * sizeof *before) == 0);
        free(before);
        free(after);
        free(bad);
    }
    CROWD_REFUSED(crowd, session, weft_residual_load(tensors[0], NULL, 100), WEFT_ERR_INVALID, "NULL");
    CROWD_OK(crowd, session, weft_step_begin(session, &begun));
    CROWD_REFUSED(crowd, session, weft_residual_save(tensors[0], saved[0][0].data, saved[0][0].bytes),
                  WEFT_ERR_STATE, "inside step 1");
    CROWD_OK(crowd, session, weft_step_end(session));
    (void)rank;
}

static void test_refusals(void **state)
{
    struct crowd crowd = {0};
    assert_int_equal(weft_residual_bytes(NULL), 0);
    assert_int_equal(weft_residual_load(NULL, saved, 1), WEFT_ERR_INVALID);
    crowd_run(&crowd, 1, refusals);
    assert_int_equal(crowd.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goes_on),
                                       cmocka_unit_test(test_another_order),
                                       cmocka_unit_test(test_rounding),
                                       cmocka_unit_test(test_other_ranks_and_codecs),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
