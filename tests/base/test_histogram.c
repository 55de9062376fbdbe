/* test_histogram.c - durations and sizes land in their bucket, and the sum and the count are those of all. */
#include <stdlib.h>

#include "base/base.h"
#include "tests/lib/check.h"

static void bounds_ascend_and_have_their_text(void **state)
{
    for (uint32_t i = 0; i < WEFT_HISTOGRAM_BOUNDS; i++) {
        const struct weft_histogram_bound *bound = &weft_histogram_bounds[i];
        assert_true(i == 0 || bound->value > weft_histogram_bounds[i - 1].value);
        assert_int_equal((uint64_t)(strtod(bound->text, NULL) * 1e9 + 0.5), bound->value);
    }
}

static void a_bound_belongs_to_its_bucket(void **state)
{
    struct weft_histogram histogram = {.sum = 0};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < WEFT_HISTOGRAM_BOUNDS; i++) {
        weft_histogram_add(&histogram, weft_histogram_bounds[i].value);
        assert_int_equal(histogram.counts[i], 1 + (i > 0));
        weft_histogram_add(&histogram, weft_histogram_bounds[i].value + 1);
        assert_int_equal(histogram.counts[i + 1], 1);
        sum += 2 * weft_histogram_bounds[i].value + 1;
    }
    weft_histogram_add(&histogram, 0);
    assert_int_equal(histogram.counts[0], 2);
    assert_int_equal(histogram.sum, sum);
    assert_int_equal(weft_histogram_count(&histogram), 2 * WEFT_HISTOGRAM_BOUNDS + 1);
}

static void sizes_have_bounds_of_their_own(void **state)
{
    struct weft_histogram histogram = {.sum = 0};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < WEFT_HISTOGRAM_BOUNDS; i++) {
        const struct weft_histogram_bound *bound = &weft_histogram_byte_bounds[i];
        assert_true(i == 0 || bound->value > weft_histogram_byte_bounds[i - 1].value);
        assert_int_equal(strtoull(bound->text, NULL, 10), bound->value);
        weft_histogram_add_bytes(&histogram, bound->value);
        assert_int_equal(histogram.counts[i], 1 + (i > 0));
        weft_histogram_add_bytes(&histogram, bound->value + 1);
        assert_int_equal(histogram.counts[i + 1], 1);
        sum += 2 * bound->value + 1;
    }
    assert_int_equal(histogram.sum, sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_ascend_and_have_their_text),
        cmocka_unit_test(a_bound_belongs_to_its_bucket),
        cmocka_unit_test(sizes_have_bounds_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
