/* test_wait_core.c - polls and yields of an idle loop by weft_loop_set_wait_core. sched_yield is defined
 * here: it counts polls between two calls, and can take as long as if another thread had run. */
#include <sched.h>
#include <time.h>

#include "base/base.h"
#include "tests/lib/check.h"

enum { YIELD_NS = 20000, FEW = 4, MANY = 16, YIELDS = 3 };

int __wrap_sched_yield(void);

static struct {
    struct weft_loop *loop;
    struct weft_pollable pollable;
    unsigned polls[YIELDS + 1], yields; /* polls before each yield */
    bool moves;                         /* after the yield no peer it waits for is on this core */
    bool done;
} seen;

int __wrap_sched_yield(void)
{
    const struct timespec pause = {.tv_nsec = YIELD_NS};
    if (seen.yields < YIELDS) seen.yields++;
    return nanosleep(&pause, NULL);
}

static int poll_once(struct weft_pollable *pollable, int budget)
{
    if (seen.yields == 1 && seen.moves) weft_loop_set_wait_core(seen.loop, WEFT_WAIT_OTHER_CORE);
    seen.polls[seen.yields]++;
    seen.done = seen.yields == YIELDS;
    return 0;
}

static void begin(void)
{
    assert_int_equal(weft_loop_create(weft_env_system(), NULL, &seen.loop), WEFT_OK);
    seen.pollable = (struct weft_pollable){.fd = WEFT_POLLABLE_NO_FD, .progress = poll_once, .quick = true};
    weft_list_init(&seen.pollable.link);
    assert_int_equal(weft_loop_add(seen.loop, &seen.pollable), WEFT_OK);
}

static void end(void)
{
    weft_loop_remove(seen.loop, &seen.pollable);
    weft_loop_free(seen.loop);
}

static void waits(enum weft_wait_core where, bool moves)
{
    weft_loop_set_wait_core(seen.loop, where);
    seen.yields = 0;
    memset(seen.polls, 0, sizeof seen.polls);
    seen.moves = moves;
    seen.done = false;
    assert_int_equal(weft_loop_wait(seen.loop, &seen.done, weft_now_ns(weft_env_system()) + WEFT_SECONDS(60)),
                     WEFT_OK);
}

static void who_is_elsewhere_is_polled_first(void **state)
{
    begin();
    waits(WEFT_WAIT_UNKNOWN, false); /* unknown so far */
    assert_in_range(seen.polls[0], MANY, UINT32_MAX);
    waits(WEFT_WAIT_UNKNOWN, false); /* the last yields were long: other threads want this core */
    assert_in_range(seen.polls[0], 1, FEW);
    for (int i = 0; i < 2; i++) {
        waits(WEFT_WAIT_OTHER_CORE, false);
        assert_in_range(seen.polls[0], MANY, UINT32_MAX);
        /* not for long, so another thread that wants the core gets it */
        assert_in_range(seen.polls[1], 1, FEW);
        waits(WEFT_WAIT_SAME_CORE, false);
        assert_in_range(seen.polls[0], 1, FEW);
    }
    end();
}

static void who_was_here_has_come_and_the_others_are_elsewhere(void **state)
{
    begin();
    waits(WEFT_WAIT_SAME_CORE, true);
    assert_in_range(seen.polls[0], 1, FEW);
    assert_in_range(seen.polls[1], MANY, UINT32_MAX);
    assert_in_range(seen.polls[2], 1, FEW);
    end();
}

/* Two operations: one waits for peers on this core, one for peers elsewhere. Both call in each step. */
static struct {
    struct weft_pollable pollable;
    bool armed;
} other;

static int poll_other(struct weft_pollable *pollable, int budget)
{
    weft_loop_set_wait_core(seen.loop, WEFT_WAIT_OTHER_CORE);
    return 0;
}

static int poll_here(struct weft_pollable *pollable, int budget)
{
    weft_loop_set_wait_core(seen.loop, WEFT_WAIT_SAME_CORE);
    return 0;
}

static enum weft_status arm_other(struct weft_pollable *pollable)
{
    seen.done = other.armed = true;
    return WEFT_ERR_AGAIN;
}

static void some_are_here_and_some_elsewhere(void **state)
{
    for (int first = 0; first < 2; first++) {
        begin();
        seen.pollable.progress = first ? poll_here : poll_other;
        seen.yields = 0;
        seen.done = other.armed = false;
        other.pollable = (struct weft_pollable){.fd = WEFT_POLLABLE_NO_FD,
                                                .progress = first ? poll_other : poll_here,
                                                .arm = arm_other,
                                                .quick = true};
        weft_list_init(&other.pollable.link);
        assert_int_equal(weft_loop_add(seen.loop, &other.pollable), WEFT_OK);
        (void)weft_loop_wait(seen.loop, &seen.done, weft_now_ns(weft_env_system()) + WEFT_SECONDS(2));
        assert_true(other.armed); /* it would have slept */
        assert_int_equal(seen.yields, YIELDS); /* and yielded before */
        weft_loop_remove(seen.loop, &other.pollable);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_elsewhere_is_polled_first),
        cmocka_unit_test(who_was_here_has_come_and_the_others_are_elsewhere),
        cmocka_unit_test(some_are_here_and_some_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
