/* test_select.c - exact top-k against a sort, on the inputs that break radix selects: everything equal, in
 * one coarse bucket, differing in the last bit, +-0, denormals, NaN and Inf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/vectors.h"

enum { SELECT_MAX = 70000 };
static float x[SELECT_MAX];
static uint32_t scratch[SELECT_MAX], got[SELECT_MAX], order[SELECT_MAX];

static int larger_first(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const uint32_t left = sample_bits(x[i]) & 0x7fffffff, right = sample_bits(x[j]) & 0x7fffffff;
    if (left != right) return left > right ? -1 : 1;
    return i < j ? -1 : 1;
}

static int rising(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    return i < j ? -1 : i > j;
}

static void check(size_t count, size_t k, const char *what)
{
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    qsort(order, count, sizeof *order, larger_first);
    qsort(order, k, sizeof *order, rising);
    memset(got, 0xff, sizeof got);
    weft_select_top(got, x, count, k, scratch);
    if (memcmp(got, order, k * sizeof *got) != 0) {
        fprintf(stderr, "select differs from sort: %s, count %zu, k %zu\n", what, count, k);
        fail();
    }
    if (k < SELECT_MAX) assert_int_equal(got[k], UINT32_MAX); /* nothing beyond k */
}

static void fill(const char *what, struct sample *sample, size_t count)
{
    vector_select_fill(what, sample, x, count);
}

static void test_equals_sort(void **state)
{
    struct sample sample = {sample_seed(21)};
    for (size_t w = 0; w < VECTOR_SELECTS; w++)
        for (size_t c = 0; c < VECTOR_SELECT_COUNTS; c++) {
            fill(vector_selects[w], &sample, vector_select_counts[c]);
            for (size_t i = 0; i < VECTOR_KS; i++)
                check(vector_select_counts[c], vector_select_k(vector_select_counts[c], i),
                      vector_selects[w]);
        }
}

static void test_large(void **state)
{
    struct sample sample = {sample_seed(22)};
    static const size_t counts[] = {65535, 65536, 65537};
    for (size_t c = 0; c < 3; c++) {
        fill(c == 1 ? "last bits" : "normal", &sample, counts[c]);
        check(counts[c], counts[c] / 100, "large");
    }
}

/* More elements than f32 counts exactly, many of them equal: by what a selection is, since a sort would
 * take too long. */
static void test_beyond_24_bits(void **state)
{
    enum { MANY = (1 << 24) + 3, K = MANY / 100 };
    float *many = malloc(MANY * sizeof *many);
    uint32_t *top = malloc(K * sizeof *top), *workspace = malloc(MANY * sizeof *workspace), kth = UINT32_MAX;
    assert_true(many && top && workspace);
    for (uint32_t i = 0; i < MANY; i++) /* 2^16 magnitudes of either sign, 256 of each */
        many[i] = sample_from_bits((i * 2654435761u & 0x80000000u) |
                                   (0x3f000000u + ((i * 2246822519u >> 16) << 7)));
    weft_select_top(top, many, MANY, K, workspace);
    for (size_t i = 0; i < K; i++) {
        const uint32_t bits = sample_bits(many[top[i]]) & 0x7fffffff;
        assert_true(top[i] < MANY && (i == 0 || top[i] > top[i - 1]));
        kth = bits < kth ? bits : kth;
    }
    size_t at = 0;
    bool spent = false; /* the smallest that are taken: from the front, then no more */
    for (uint32_t i = 0; i < MANY; i++) {
        const uint32_t bits = sample_bits(many[i]) & 0x7fffffff;
        const bool taken = at < K && top[at] == i;
        at += taken;
        if (bits == kth) spent |= !taken;
        if (taken ? bits < kth || (bits == kth && spent) : bits > kth) fail_msg("element %u", i);
    }
    assert_int_equal(at, K);
    free(many);
    free(top);
    free(workspace);
}

/* Whatever the threshold, as long as k elements reach it: selecting among those is selecting among all. */
static void test_among(void **state)
{
    static const char *const inputs[] = {"normal", "equal", "last bits", "two values", "denormal", "wild"};
    static uint32_t whole[SELECT_MAX], candidates[SELECT_MAX];
    static float values[SELECT_MAX];
    struct sample sample = {sample_seed(23)};
    for (size_t w = 0; w < sizeof inputs / sizeof inputs[0]; w++) {
        const size_t count = 5003, k = 77;
        fill(inputs[w], &sample, count);
        weft_select_top(whole, x, count, k, scratch);
        uint32_t kth = UINT32_MAX;
        for (size_t i = 0; i < k; i++) {
            const uint32_t bits = sample_bits(x[whole[i]]) & 0x7fffffff;
            kth = bits < kth ? bits : kth;
        }
        const uint32_t floors[] = {0, kth / 2, kth > 3 ? kth - 3 : 0, kth};
        for (size_t f = 0; f < sizeof floors / sizeof floors[0]; f++) {
            size_t found = 0;
            for (size_t i = 0; i < count; i++) {
                if ((sample_bits(x[i]) & 0x7fffffff) < floors[f]) continue;
                candidates[found] = (uint32_t)i;
                values[found++] = x[i];
            }
            assert_int_equal(weft_select_among(got, values, found, k), kth);
            for (size_t i = 0; i < k; i++)
                assert_int_equal(candidates[got[i]], whole[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_sort),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_among),
        cmocka_unit_test(test_beyond_24_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
