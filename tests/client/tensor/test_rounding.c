/* test_rounding.c - the caller's rounding mode and flushing of denormals change no bit: weights equal those
 * of the default environment, if all ranks set another one before weft_init, or one rank between two calls.
 * Every call restores the caller's environment. */
#include "tests/lib/check.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/crowd.h"
#include "tests/client/matrix_options.h"

enum { ROWS = 20, COLS = 30, ELEMS = ROWS * COLS, STEPS = 4, RANKS = 2 };

static const struct {
    const char *codec, *optimizer;
} tensors[] = {
    {"dense", "sgd:momentum=0.9,weight_decay=1e-4"},
    {"dense", "adam"},
    {"dense", "adamw:weight_decay=0.013"},
    {"dense", "lamb"},
    {"dense", "ftrl:l1=0.001,l2=0.1"},
    {"powersgd:rank=2", "sgd:momentum=0.9"},
    {"topk:ratio=0.07,min_count=0,momentum=0.9", "sgd"},
    {"int8:min_count=0", "adagrad"},
    {"bf16", "sgd:momentum=0.7"},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

enum { FLUSH = 0x8040, EXCEPTIONS = 0x3f }; /* FTZ and DAZ of MXCSR; its exception flags */

static struct environment {
    int rounding;
    bool flushes;
    int rank; /* rank that sets it in its thread; -1: the whole process, from the start */
} environment;

static float weights[RANKS][TENSORS][ELEMS], grads[RANKS][TENSORS][ELEMS], factors[RANKS][2];

static void set(const struct environment *wanted)
{
    fesetround(wanted->rounding);
#ifdef __x86_64__
    if (wanted->flushes) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | FLUSH);
#endif
}

static unsigned control(void)
{
#ifdef __x86_64__
    return __builtin_ia32_stmxcsr() & ~(unsigned)EXCEPTIONS;
#else
    return (unsigned)fegetround();
#endif
}

/* Some are small: their products are denormal. */
static float number(uint32_t seed)
{
    union { uint32_t bits; float value; } made = {seed * 2654435761u};
    made.bits = (made.bits & 0x807fffffu) | (seed % 5 == 0 ? 2u : 120u + seed % 7) << 23;
    return made.value;
}

static void train(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct weft_tensor *made[TENSORS];
    char name[16];
    if (environment.rank == (int)rank) set(&environment);
    const unsigned before = control();
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct weft_tensor_options options;
        matrix_options(&options, name, t, ROWS, COLS, tensors[t].codec);
        options.optimizer = tensors[t].optimizer;
        CROWD_OK(crowd, session, weft_declare(session, &options, &made[t]));
        for (uint32_t i = 0; i < ELEMS; i++) weights[rank][t][i] = number(i + 7 * t);
        CROWD_OK(crowd, session, weft_tensor_init(made[t], weights[rank][t]));
    }
    for (uint32_t step = 1; step <= STEPS; step++) {
        struct weft_request requests[TENSORS] = {{{0}}};
        CROWD_OK(crowd, session,
                 weft_step_begin(session, &(struct weft_step){
                                              .step = step, .lr = 0.0317f, .weight = 1.3f + (float)rank}));
        for (uint32_t t = 0; t < TENSORS; t++) {
            for (uint32_t i = 0; i < ELEMS; i++)
                grads[rank][t][i] = number(i * 31 + t * 7 + step * 1009 + rank * 17);
            CROWD_OK(crowd, session, weft_push_pull(made[t], grads[rank][t], weights[rank][t], &requests[t]));
        }
        for (uint32_t t = 0; t < TENSORS; t++) CROWD_OK(crowd, session, weft_wait(&requests[t], 0));
        CROWD_OK(crowd, session, weft_step_end(session));
    }
    struct weft_request request = {{0}};
    factors[rank][0] = number(rank + 3);
    factors[rank][1] = number(rank + 4);
    CROWD_OK(
        crowd, session,
        weft_all_reduce_scaled(session, &factors[rank][0], &factors[rank][0], 1, WEFT_F32, 0.1, &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_OK(crowd, session,
             weft_all_reduce_weighted(session, &factors[rank][1], &factors[rank][1], 1, WEFT_F32, 0.3 + rank,
                                      &request));
    CROWD_OK(crowd, session, weft_wait(&request, 0));
    CROWD_CHECK(crowd, session, control() == before);
}

static void test_no_bit_differs(void **state)
{
    static float expected[TENSORS][ELEMS];
    static const int roundings[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    struct crowd first = {0};
    float expected_factors[2];
    (void)state;
    environment = (struct environment){FE_TONEAREST, false, -1};
    crowd_run(&first, RANKS, train);
    assert_int_equal(first.failures, 0);
    memcpy(expected, weights[0], sizeof expected);
    memcpy(expected_factors, factors[0], sizeof expected_factors);
    for (uint32_t k = 0; k < 2 * sizeof roundings / sizeof roundings[0]; k++) {
        for (int rank = -1; rank < RANKS; rank++) {
            struct crowd crowd = {0};
            fenv_t own;
            fegetenv(&own);
            environment = (struct environment){roundings[k / 2], k % 2, rank};
            if (rank < 0) set(&environment);
            crowd_run(&crowd, RANKS, train);
            fesetenv(&own);
            assert_int_equal(crowd.failures, 0);
            for (uint32_t r = 0; r < RANKS; r++) {
                for (uint32_t t = 0; t < TENSORS; t++)
                    if (memcmp(weights[r][t], expected[t], sizeof expected[t]) != 0)
                        fail_msg("rounding %#x, flushes %d, set by %d: rank %u, tensor %u (%s, %s) differs",
                                 (unsigned)environment.rounding, environment.flushes, rank, r, t,
                                 tensors[t].codec, tensors[t].optimizer);
                assert_memory_equal(factors[r], expected_factors, sizeof expected_factors);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_bit_differs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
