/* test_select.c - exact top-k against a sort, on the inputs that break radix selects: everything equal, in one
 * coarse bucket, differing in the last bit, +-0, denormals, NaN and Inf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

enum { COUNT_MAX = 70000 };
static float x[COUNT_MAX];
static uint32_t scratch[COUNT_MAX], got[COUNT_MAX], order[COUNT_MAX];

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
    if (k < COUNT_MAX) assert_int_equal(got[k], UINT32_MAX); /* nothing beyond k */
}

static void fill(const char *what, struct sample *sample, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t word = sample_u64(sample);
        if (strcmp(what, "normal") == 0) x[i] = sample_normal(sample);
        if (strcmp(what, "wild") == 0) x[i] = sample_wild(sample);
        if (strcmp(what, "equal") == 0) x[i] = word & 1 ? 2.5f : -2.5f;
        if (strcmp(what, "zero") == 0) x[i] = word & 1 ? 0.0f : -0.0f;
        if (strcmp(what, "two values") == 0) x[i] = word % 3 ? 1.0f : -7.0f;
        if (strcmp(what, "denormal") == 0) x[i] = sample_from_bits((uint32_t)word & 0x807fffff);
        if (strcmp(what, "last bits") == 0) x[i] = sample_from_bits(0x3f800000 + (uint32_t)(word % 5));
        if (strcmp(what, "middle bits") == 0) x[i] = sample_from_bits(0x3f800000 + ((uint32_t)(word % 1000) << 9));
        if (strcmp(what, "rising") == 0) x[i] = (float)i;
        if (strcmp(what, "falling") == 0) x[i] = -(float)(count - i);
        if (strcmp(what, "mostly zero") == 0) x[i] = word % 100 ? 0.0f : sample_normal(sample);
        if (strcmp(what, "one infinite") == 0) x[i] = i == count / 2 ? -INFINITY : sample_normal(sample);
    }
}

static void test_equals_sort(void **state)
{
    static const char *const inputs[] = {"normal", "wild", "equal", "zero", "two values", "denormal", "last bits",
                                         "middle bits", "rising", "falling", "mostly zero", "one infinite"};
    static const size_t counts[] = {1, 2, 31, 32, 33, 63, 64, 65, 1000, 4097};
    struct sample sample = {sample_seed(21)};
    for (size_t w = 0; w < sizeof inputs / sizeof inputs[0]; w++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            const size_t count = counts[c];
            const size_t ks[] = {1, count / 100 + 1, count / 2 + 1, count > 1 ? count - 1 : 1, count};
            fill(inputs[w], &sample, count);
            for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++)
                if (ks[i] <= count) check(count, ks[i], inputs[w]);
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

/* Whatever the threshold, as long as k elements reach it: selecting among those is selecting among all. */
static void test_among(void **state)
{
    static const char *const inputs[] = {"normal", "equal", "last bits", "two values", "denormal", "wild"};
    static uint32_t whole[COUNT_MAX], candidates[COUNT_MAX];
    static float values[COUNT_MAX];
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
