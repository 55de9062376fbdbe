/* test_silence.c - a peer that must send periodically: the limit, and pauses of this process. */
#include "base/net/silence.h"
#include "tests/lib/check.h"

#define S(n) WEFT_SECONDS(n)

static void limit(void **state)
{
    struct weft_silence silence;
    weft_silence_start(&silence, S(10), S(2), S(100));
    for (uint64_t t = 102; t <= 110; t += 2) assert_int_equal(weft_silence_check(&silence, S(t)), 0);
    assert_int_equal(weft_silence_check(&silence, S(112)), S(12));
    weft_silence_received(&silence, S(112));
    assert_int_equal(weft_silence_check(&silence, S(114)), 0);
}

/* Checks are due every 2 s. The check after a pause does not count the pause, but later silence counts. */
static void pause_of_this_process(void **state)
{
    struct weft_silence silence;
    weft_silence_start(&silence, S(10), S(2), S(100));
    assert_int_equal(weft_silence_check(&silence, S(102)), 0);
    assert_int_equal(weft_silence_check(&silence, S(160)), 0); /* 58 s, of which 56 s are the pause */
    for (uint64_t t = 162; t <= 166; t += 2) assert_int_equal(weft_silence_check(&silence, S(t)), 0);
    assert_int_equal(weft_silence_check(&silence, S(168)), S(12));
}

static void no_limit(void **state)
{
    struct weft_silence silence;
    weft_silence_start(&silence, 0, S(2), S(100));
    for (uint64_t t = 102; t <= 200; t += 2) assert_int_equal(weft_silence_check(&silence, S(t)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(limit), cmocka_unit_test(pause_of_this_process),
                                       cmocka_unit_test(no_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
