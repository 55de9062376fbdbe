/* check_large.c - arrays of more than 2^31 bytes: elements, blocks, rows and indices beyond what 32 bits
 * count. Inputs repeat a pattern whose length is a prime, so that no wrapped address finds the right
 * bytes; results are compared with the scalar kernels at the end and around 2^31 and 2^32 bytes. Only
 * where the device has the memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_check.h"
#include "tests/kernels/vectors.h"

enum { PERIOD = 1000003, WINDOW = 4096, ROW = 1 << 14 };
static const size_t COUNT = ((size_t)1 << 30) + 5, NEED = (size_t)24 << 30;
static const size_t places[] = {0, (size_t)1 << 29, (size_t)1 << 30};

static const struct weft_kernels *scalar;
static float *pattern, *device_a, *device_b, *device_out;

#define MUST(call)                                                                           \
    do {                                                                                     \
        const enum weft_status status_ = (call);                                             \
        if (status_ != WEFT_OK) fail_msg("%s answers %s", #call, weft_status_name(status_)); \
    } while (0)

/* Element i of an array that was filled from `shift` on. */
static float value(size_t i, size_t shift)
{
    return pattern[(i + shift) % PERIOD];
}

static void fill(float *device, size_t shift)
{
    for (size_t at = 0; at < COUNT;) {
        const size_t from = (at + shift) % PERIOD, left = COUNT - at,
                     count = PERIOD - from < left ? PERIOD - from : left;
        device_put(device + at, pattern + from, count * sizeof *pattern);
        at += count;
    }
}

/* The window around place w: begins with a block, ends within the array. */
static size_t window(size_t w, size_t *count_out)
{
    const size_t first = places[w] < WINDOW / 2 ? 0 : places[w] - WINDOW / 2;
    *count_out = COUNT - first < WINDOW ? COUNT - first : WINDOW;
    return first;
}

static void elements_and_blocks(void **state)
{
    static float a[WINDOW], b[WINDOW], expected[WINDOW], got[WINDOW];
    static int8_t codes[WINDOW], got_codes[WINDOW];
    const struct weft_noise noise = {{1, 2}, 3, 0};
    int8_t *device_codes = check_device_malloc(COUNT);
    uint8_t *device_exponents = check_device_malloc(COUNT / WEFT_BLOCK + 1),
            exponents[WINDOW / WEFT_BLOCK + 1];
    fill(device_a, 0);
    fill(device_b, 777);
    MUST(weft_cuda_sum_f32(device_out, device_a, device_b, COUNT, NULL));
    for (size_t w = 0; w < sizeof places / sizeof places[0]; w++) {
        size_t count, first = window(w, &count);
        device_get(got, device_out + first, count * sizeof *got);
        for (size_t i = 0; i < count; i++) a[i] = value(first + i, 0), b[i] = value(first + i, 777);
        scalar->sum_f32(expected, a, b, count);
        assert_memory_equal(got, expected, count * sizeof *got);
    }
    MUST(weft_cuda_scale_add_quantise_f32(device_codes, device_exponents, device_out, device_a, 0.5f,
                                          device_b, COUNT, 127, &noise, NULL, NULL));
    for (size_t w = 0; w < sizeof places / sizeof places[0]; w++) {
        size_t count, first = window(w, &count);
        const struct weft_noise there = {{1, 2}, 3, first / WEFT_BLOCK};
        device_get(got, device_out + first, count * sizeof *got);
        device_get(got_codes, device_codes + first, count);
        for (size_t i = 0; i < count; i++) a[i] = value(first + i, 0), b[i] = value(first + i, 777);
        scalar->scale_add_f32(expected, a, 0.5f, b, count);
        for (size_t at = 0; at < count; at += WEFT_BLOCK) {
            const size_t length = count - at < WEFT_BLOCK ? count - at : WEFT_BLOCK;
            exponents[at / WEFT_BLOCK] =
                weft_block_exponent(scalar->max_abs_bits_f32(expected + at, length), 127);
        }
        scalar->quantise_f32(codes, expected, exponents, count, 127, &there);
        assert_memory_equal(got, expected, count * sizeof *got);
        assert_memory_equal(got_codes, codes, count);
    }
    device_free(device_codes);
    device_free(device_exponents);
}

/* The largest lie at the very end, and on both sides of 2^31 and 2^32 bytes; ties go to the smaller index. */
static void select_of_many(void **state)
{
    enum { K = 6 };
    const size_t at[K] = {
        5, ((size_t)1 << 29) - 1, (size_t)1 << 29, ((size_t)1 << 30) - 1, (size_t)1 << 30, COUNT - 1};
    uint32_t *device_indices = check_device_malloc(K * sizeof *device_indices), indices[K];
    void *workspace = check_device_malloc(weft_cuda_select_workspace(COUNT));
    const float big = 1e30f;
    fill(device_a, 0);
    for (size_t i = 0; i < K; i++) device_put(device_a + at[i], &big, sizeof big);
    MUST(weft_cuda_select_top(device_indices, device_a, COUNT, K, workspace, NULL));
    device_get(indices, device_indices, sizeof indices);
    for (size_t i = 0; i < K; i++) assert_int_equal(indices[i], (uint32_t)at[i]);
    device_free(device_indices);
    device_free(workspace);
}

/* A step's products of a matrix of 4 GiB: the last rows, the last band. */
static void products_of_many(void **state)
{
    const size_t rows = COUNT / ROW, rank = 2, band = (rows - 1) / WEFT_MATMUL_T_BAND * WEFT_MATMUL_T_BAND,
                 last = rows - 4;
    static float a[4 * ROW], q[2 * ROW], expected[8], got[4 * ROW];
    float *device_p = check_device_malloc(rank * rows * sizeof *device_p),
          *device_q = check_device_malloc(sizeof q);
    float *p = check_malloc(rank * rows * sizeof *p);
    void *workspace = check_device_malloc(weft_cuda_matmul_t_workspace(rows, ROW, rank));
    fill(device_a, 0);
    memcpy(q, pattern, sizeof q);
    device_put(device_q, q, sizeof q);
    MUST(weft_cuda_matmul_f32(device_p, rows, device_a, device_q, rows, ROW, rank, NULL));
    device_get(p, device_p, rank * rows * sizeof *p);
    for (size_t i = 0; i < 4 * ROW; i++) a[i] = value(last * ROW + i, 0);
    scalar->matmul_f32(expected, 4, a, q, 4, ROW, rank);
    for (size_t r = 0; r < rank; r++)
        assert_memory_equal(p + r * rows + last, expected + r * 4, 4 * sizeof *p);
    /* P of zeros but for the last band: Q is that band's alone, and the end of M is reached. */
    memset(p, 0, rank * rows * sizeof *p);
    for (size_t r = 0; r < rank; r++) p[r * rows + last] = (float)(r + 1);
    device_put(device_p, p, rank * rows * sizeof *p);
    MUST(weft_cuda_matmul_t_f32(device_q, device_a, device_p, rows, ROW, rank, workspace, NULL));
    device_get(q, device_q, sizeof q);
    assert_true(last >= band);
    for (size_t r = 0; r < rank; r++)
        for (size_t j = 0; j < ROW; j++) assert_true(q[r * ROW + j] == (float)(r + 1) * a[j]);
    MUST(weft_cuda_outer_f32(device_out, device_p, device_q, rows, ROW, rank, NULL));
    device_get(got, device_out + last * ROW, sizeof got);
    for (size_t j = 0; j < ROW; j++) assert_true(got[j] == q[j] + 2.0f * q[ROW + j] && got[ROW + j] == 0.0f);
    device_free(device_p);
    device_free(device_q);
    device_free(workspace);
    free(p);
}

int check_large(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_and_blocks),
        cmocka_unit_test(select_of_many),
        cmocka_unit_test(products_of_many),
    };
    struct sample sample = {sample_seed(91)};
    if (device_memory_free() < NEED) {
        printf("    skipped: it takes 24 GiB of the device's memory\n");
        return 0;
    }
    scalar = weft_kernels_by_name("scalar");
    pattern = check_malloc(PERIOD * sizeof *pattern);
    sample_fill(&sample, SAMPLE_NORMAL, pattern, PERIOD);
    float **const arrays[] = {&device_a, &device_b, &device_out};
    for (size_t i = 0; i < 3; i++) *arrays[i] = check_device_malloc(COUNT * sizeof(float));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < 3; i++) device_free(*arrays[i]);
    free(pattern);
    return failed;
}
