/* test_timestamp.c - a timestamp lies between two clock readings, except for a microsecond, whatever the
 * counter does. It is a clock reading if the clock is not the machine's. */
#include "base/base.h"
#include "tests/lib/check.h"

#define OFF_NS 1000u

/* If another thread runs in between, the two readings are further apart. */
static void check(struct weft_timestamp *stamp)
{
    struct weft_env *env = weft_env_system();
    uint64_t before_ns = weft_now_ns(env), ns = weft_timestamp_ns(stamp, env), after_ns = weft_now_ns(env);
    if (ns + OFF_NS < before_ns || ns > after_ns + OFF_NS)
        fail_msg("a stamp of %llu between %llu and %llu", (unsigned long long)ns,
                 (unsigned long long)before_ns, (unsigned long long)after_ns);
}

static void wait_ns(uint64_t ns)
{
    uint64_t until_ns = weft_now_ns(weft_env_system()) + ns;
    while (weft_now_ns(weft_env_system()) < until_ns) {}
}

static void stamps_agree_with_the_clock(void **state)
{
    struct weft_timestamp stamp = {0};
    unsigned counted = 0;
    for (int i = 0; i < 200000; i++) {
        uint64_t looked_ns = stamp.ns;
        check(&stamp);
        counted += stamp.ns == looked_ns;
    }
#ifdef __x86_64__
    assert_true(counted > 0); /* most are not clock readings */
#else
    assert_int_equal(counted, 0);
#endif
    for (int i = 0; i < 20; i++) {
        wait_ns(i % 2 ? 40000 : 70000); /* about as long as a reading is extrapolated */
        check(&stamp);
    }
}

static void learned(struct weft_timestamp *stamp)
{
    for (int i = 0; i < 3 || (stamp->limit == 0 && i < 100); i++) {
        wait_ns(WEFT_MS(1));
        check(stamp);
    }
}

static void a_counter_that_jumps_or_stops_does_no_harm(void **state)
{
    for (int fault = 0; fault < 6; fault++) {
        struct weft_timestamp stamp = {0};
        learned(&stamp);
        wait_ns(WEFT_MS(1));
        switch (fault) {
        case 0: stamp.ticks += 1ull << 40; break;                              /* counter set back */
        case 1: stamp.ticks -= 1ull << 40; break;                              /* counter set forward */
        /* set back during calibration */
        case 2: stamp.first_ticks += 1ull << 40, stamp.limit = 0; break;
        /* far forward: not a plausible rate */
        case 3: stamp.first_ticks -= 1ull << 62, stamp.limit = 0; break;
        case 4: stamp.first_ticks = weft_timestamp_ticks(), stamp.limit = 0; break; /* stopped */
        default: stamp.first_ns -= 1ull << 40, stamp.limit = 0; break;         /* calibrated long ago */
        }
        for (int i = 0; i < 1000; i++) check(&stamp);
    }
}

static uint64_t own_now_ns(struct weft_env *env) { return *(uint64_t *)env->context += 7; }

static void a_clock_of_its_own_is_asked_each_time(void **state)
{
    uint64_t ns = 1;
    struct weft_env env = *weft_env_system();
    struct weft_timestamp stamp = {0};
    env.context = &ns;
    env.now_ns = own_now_ns;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(weft_timestamp_ns(&stamp, &env), 8 + 7 * i);
        if (i % 10 == 0) ns = 1 + 7 * (uint64_t)(i + 1), wait_ns(100000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stamps_agree_with_the_clock),
                                       cmocka_unit_test(a_counter_that_jumps_or_stops_does_no_harm),
                                       cmocka_unit_test(a_clock_of_its_own_is_asked_each_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
