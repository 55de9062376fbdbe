/* test_interval.c - the texts of an interval of snapshots. */
#include "tests/snapshot/snapshot_fixture.h"

#include "tests/lib/check.h"

static void test_texts(void **state)
{
    static const struct {
        const char *text;
        uint64_t steps, ns;
    } good[] = {{"1 step", 1, 0},
                {"100 steps", 100, 0},
                {"20steps", 20, 0},
                {"60s", 0, WEFT_SECONDS(60)},
                {"5min", 0, WEFT_SECONDS(300)},
                {"20 ms", 0, WEFT_MS(20)}};
    static const char *const bad[] = {
        "", "0s", "0 steps", "5", "-5s", "s", "5 s s", "99999999999999999999s", "5000000000000h"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct weft_snapshot_interval interval;
        assert_int_equal(weft_snapshot_interval_parse(good[i].text, &interval, NULL), WEFT_OK);
        assert_int_equal(interval.steps, good[i].steps);
        assert_int_equal(interval.ns, good[i].ns);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct weft_snapshot_interval interval;
        assert_int_equal(weft_snapshot_interval_parse(bad[i], &interval, NULL), WEFT_ERR_INVALID);
        assert_true(interval.steps == 0 && interval.ns == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
