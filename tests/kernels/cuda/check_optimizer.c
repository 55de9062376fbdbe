/* check_optimizer.c - the CUDA update rules against the scalar ones, bit for bit, on every vector. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_check.h"
#include "tests/kernels/vectors.h"

enum { WEIGHTS, FIRST, SECOND, GRAD, ARRAYS };
enum { LAMB_COUNT = 5 * WEFT_LAMB_BLOCK + 77, ROOM_MAX = LAMB_COUNT + 2 * GUARD };
static const struct weft_kernels *scalar;
static float *slow[ARRAYS], *fast, *device[ARRAYS];
static void *device_workspace;

static void same(size_t count, const char *rule)
{
    for (int i = WEIGHTS; i <= SECOND; i++) {
        device_get(fast, device[i], count * sizeof *fast);
        if (memcmp(fast, slow[i], count * sizeof *fast) != 0)
            fail_msg("cuda %s differs from scalar in array %d", rule, i);
    }
}

static void fill(struct sample *sample, enum sample_kind kind, size_t count)
{
    for (int i = 0; i < ARRAYS; i++) {
        sample_fill(sample, kind, slow[i], count);
        device_put(device[i], slow[i], count * sizeof(float));
    }
}

#define MUST(call)                                                                           \
    do {                                                                                     \
        const enum weft_status status_ = (call);                                             \
        if (status_ != WEFT_OK) fail_msg("%s answers %s", #call, weft_status_name(status_)); \
    } while (0)
#define D(i) (device[i] + at)
#define S(i) (slow[i] + at)

static void check_rules(size_t count, size_t shift, enum sample_kind kind, struct sample *sample)
{
    const size_t at = GUARD + shift;
    fill(sample, kind, ARRAY_ELEMS);
    for (size_t i = 0; i < VECTOR_SGDS; i++) {
        const bool velocity = vector_sgds[i].momentum != 0.0f;
        MUST(weft_cuda_sgd_f32(D(WEIGHTS), velocity ? D(FIRST) : NULL, D(GRAD), 0.25f, &vector_sgds[i], count,
                               NULL));
        scalar->sgd_f32(S(WEIGHTS), velocity ? S(FIRST) : NULL, S(GRAD), 0.25f, &vector_sgds[i], count);
        same(ARRAY_ELEMS, "sgd");
    }
    for (size_t i = 0; i < VECTOR_ADAMS; i++) {
        MUST(weft_cuda_adam_f32(D(WEIGHTS), D(FIRST), D(SECOND), D(GRAD), 0.25f, &vector_adams[i], count,
                                NULL));
        scalar->adam_f32(S(WEIGHTS), S(FIRST), S(SECOND), S(GRAD), 0.25f, &vector_adams[i], count);
        same(ARRAY_ELEMS, "adam");
    }
    MUST(weft_cuda_adagrad_f32(D(WEIGHTS), D(SECOND), D(GRAD), 0.25f, 0.1f, 1e-10f, 0.01f, count, NULL));
    scalar->adagrad_f32(S(WEIGHTS), S(SECOND), S(GRAD), 0.25f, 0.1f, 1e-10f, 0.01f, count);
    same(ARRAY_ELEMS, "adagrad");
    MUST(weft_cuda_ftrl_f32(D(WEIGHTS), D(FIRST), D(SECOND), D(GRAD), 0.25f, &vector_ftrl, count, NULL));
    scalar->ftrl_f32(S(WEIGHTS), S(FIRST), S(SECOND), S(GRAD), 0.25f, &vector_ftrl, count);
    same(ARRAY_ELEMS, "ftrl");
}

static void test_rules(void **state)
{
    struct sample sample = {sample_seed(81)};
    for (size_t c = 0; c < VECTOR_COUNTS; c++)
        for (size_t shift = 0; shift <= SHIFT_MAX; shift++)
            if (check_this())
                check_rules(vector_counts[c], shift, (enum sample_kind)((c + shift) % SAMPLE_KINDS), &sample);
}

/* Around the lanes, one block of the norms and several. */
static void test_lamb(void **state)
{
    static const size_t counts[] = {0,
                                    1,
                                    15,
                                    16,
                                    17,
                                    1000,
                                    WEFT_LAMB_BLOCK - 1,
                                    WEFT_LAMB_BLOCK,
                                    WEFT_LAMB_BLOCK + 1,
                                    3 * WEFT_LAMB_BLOCK,
                                    LAMB_COUNT};
    struct sample sample = {sample_seed(82)};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (int kind = 0; kind < SAMPLE_KINDS; kind++) {
            const size_t at = GUARD + c % 3;
            if (!check_this()) continue;
            fill(&sample, (enum sample_kind)kind, ROOM_MAX);
            for (size_t i = 0; i < VECTOR_LAMBS; i++) {
                MUST(weft_cuda_lamb_f32(D(WEIGHTS), D(FIRST), D(SECOND), D(GRAD), 0.25f, &vector_lambs[i],
                                        0.1f, counts[c], device_workspace, NULL));
                weft_lamb_step(&vector_lambs[i], 0.1f, S(WEIGHTS), S(FIRST), S(SECOND), S(GRAD), 0.25f,
                               counts[c]);
                same(ROOM_MAX, "lamb");
            }
        }
}

int check_optimizer(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_lamb)};
    scalar = weft_kernels_by_name("scalar");
    for (int i = 0; i < ARRAYS && !slow[i]; i++) {
        slow[i] = check_malloc(ROOM_MAX * sizeof(float));
        device[i] = check_device_malloc(ROOM_MAX * sizeof(float));
    }
    fast = check_malloc(ROOM_MAX * sizeof(float));
    device_workspace = check_device_malloc(weft_cuda_lamb_workspace(ROOM_MAX));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
