/* check_select.c - the CUDA select, random-k and scatter against the CPU's, on what breaks radix selects, at
 * lengths around every boundary and starts misaligned by one element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_check.h"
#include "tests/kernels/vectors.h"

enum { SELECT_MAX = 70000, SHIFT_ROOM = 4 };
static float *a, *b, *sum, *values, *got_values, *got_sum;
static uint32_t *indices, *got_indices, *scratch;
static float *device_a, *device_b, *device_out, *device_values;
static uint32_t *device_indices, *device_max;
static void *device_workspace;

static void open_arrays(void)
{
    const size_t bytes = (SELECT_MAX + SHIFT_ROOM) * sizeof(float);
    float **const host[] = {&a, &b, &sum, &values, &got_values, &got_sum},
                  **const device[] = {&device_a, &device_b, &device_out, &device_values};
    if (a) return;
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++) *host[i] = check_malloc(bytes);
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) *device[i] = check_device_malloc(bytes);
    indices = check_malloc(bytes);
    got_indices = check_malloc(bytes);
    scratch = check_malloc(bytes);
    device_indices = check_device_malloc(bytes);
    device_max = check_device_malloc(sizeof *device_max);
    device_workspace = check_device_malloc(weft_cuda_select_workspace(SELECT_MAX));
}

#define MUST(call)                                                                           \
    do {                                                                                     \
        const enum weft_status status_ = (call);                                             \
        if (status_ != WEFT_OK) fail_msg("%s answers %s", #call, weft_status_name(status_)); \
    } while (0)

/* x alone; then as gradient, residual and their sum, whose largest are moved out. Workspace starts as noise.
 * */
static void check(size_t count, size_t k, size_t shift, const char *what)
{
    uint32_t max;
    device_put(device_a + shift, a, count * sizeof *a);
    device_put(device_b + shift, b, count * sizeof *b);
    device_set(device_indices, 0xff, (k + 1) * sizeof *device_indices);
    device_set(device_workspace, 0xa5, weft_cuda_select_workspace(count));
    weft_select_top(indices, a, count, k, scratch);
    MUST(weft_cuda_select_top(device_indices, device_a + shift, count, k, device_workspace, NULL));
    device_get(got_indices, device_indices, (k + 1) * sizeof *got_indices);
    if (memcmp(got_indices, indices, k * sizeof *indices) != 0)
        fail_msg("cuda select differs: %s, count %zu, k %zu, start %zu", what, count, k, shift);
    assert_int_equal(got_indices[k], UINT32_MAX); /* nothing beyond k */

    const uint32_t expected = weft_kernels()->scale_add_f32(sum, a, 0.5f, b, count);
    weft_select_top(indices, sum, count, k, scratch);
    for (size_t i = 0; i < k; i++) {
        values[i] = sum[indices[i]];
        sum[indices[i]] = 0.0f;
    }
    device_set(device_max, 0, sizeof *device_max);
    device_set(device_workspace, 0x5a, weft_cuda_select_workspace(count));
    MUST(weft_cuda_scale_add_select_top_f32(device_indices, device_values, device_out + shift,
                                            device_a + shift, 0.5f, device_b + shift, count, k, device_max,
                                            device_workspace, NULL));
    device_get(got_indices, device_indices, k * sizeof *got_indices);
    device_get(got_values, device_values, k * sizeof *got_values);
    device_get(got_sum, device_out + shift, count * sizeof *got_sum);
    device_get(&max, device_max, sizeof max);
    if (memcmp(got_indices, indices, k * sizeof *indices) != 0 ||
        memcmp(got_values, values, k * sizeof *values) != 0 || memcmp(got_sum, sum, count * sizeof *sum) != 0)
        fail_msg("cuda select with residual differs: %s, count %zu, k %zu, start %zu", what, count, k, shift);
    assert_int_equal(max, expected);
}

static void test_equals_scalar(void **state)
{
    struct sample sample = {sample_seed(61)};
    for (size_t w = 0; w < VECTOR_SELECTS; w++)
        for (size_t c = 0; c < VECTOR_SELECT_COUNTS; c++) {
            const size_t count = vector_select_counts[c];
            if (!check_this()) continue;
            vector_select_fill(vector_selects[w], &sample, a, count);
            vector_select_fill(vector_selects[w], &sample, b, count);
            if (w % 2 == 0) memset(b, 0, count * sizeof *b); /* so that the sum is as hard as a */
            check(count, vector_select_k(count, (w + c) % VECTOR_KS), (w + c) % SHIFT_ROOM,
                  vector_selects[w]);
        }
}

/* Beyond one group of strips and one block, with a rest below a pack. */
static void test_large(void **state)
{
    static const size_t counts[] = {65535, 65536, 65537};
    struct sample sample = {sample_seed(62)};
    for (size_t w = 0; w < VECTOR_SELECTS; w++) {
        const size_t count = counts[w % 3];
        if (!check_this()) continue;
        vector_select_fill(vector_selects[w], &sample, a, count);
        memset(b, 0, count * sizeof *b);
        check(count, count / 100, w % 2, vector_selects[w]);
    }
}

static void test_refuses(void **state)
{
    assert_int_equal(weft_cuda_select_top(device_indices, device_a, 10, 0, device_workspace, NULL),
                     WEFT_ERR_INVALID);
    assert_int_equal(weft_cuda_select_top(device_indices, device_a, 10, 11, device_workspace, NULL),
                     WEFT_ERR_INVALID);
    assert_int_equal(weft_cuda_sample_strata(device_indices, 10, 11, &(struct weft_noise){0}, NULL),
                     WEFT_ERR_INVALID);
}

static void test_random_k(void **state)
{
    static const size_t counts[] = {1, 7, 100, 1000, 65537};
    struct sample sample = {sample_seed(63)};
    for (size_t c = 0; c < 5; c++)
        for (size_t part = 0; part < 3; part++) {
            const size_t count = counts[c], k = part == 0 ? 1 : part == 1 ? count / 10 + 1 : count;
            const struct weft_noise noise = {{(uint32_t)sample_u64(&sample), 3}, sample_u64(&sample), 9};
            sample_fill(&sample, SAMPLE_WILD, a, count);
            weft_sample_strata(indices, count, k, &noise);
            MUST(weft_cuda_sample_strata(device_indices, count, k, &noise, NULL));
            device_get(got_indices, device_indices, k * sizeof *got_indices);
            assert_memory_equal(got_indices, indices, k * sizeof *indices);
            device_put(device_a + 1, a, count * sizeof *a);
            MUST(weft_cuda_take_f32(device_values, device_a + 1, device_indices, k, NULL));
            MUST(weft_cuda_scatter_f32(device_out + 1, count, device_indices, device_values, 0.25f, k, NULL));
            memset(sum, 0, count * sizeof *sum);
            for (size_t j = 0; j < k; j++) {
                weft_kernels()->scale_f32(&sum[indices[j]], &a[indices[j]], 0.25f, 1);
                a[indices[j]] = 0.0f;
            }
            device_get(got_sum, device_out + 1, count * sizeof *got_sum);
            assert_memory_equal(got_sum, sum, count * sizeof *sum);
            device_get(got_sum, device_a + 1, count * sizeof *got_sum);
            assert_memory_equal(got_sum, a, count * sizeof *a);
        }
}

int check_select(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_scalar),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_random_k),
    };
    open_arrays();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
