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
    seen.polls[seen.yields]++;
    seen.done = seen.yields == YIELDS;
    return 0;
}

static void add(struct weft_pollable *pollable, int (*progress)(struct weft_pollable *, int))
{
    *pollable = (struct weft_pollable){.fd = WEFT_POLLABLE_NO_FD, .progress = progress, .quick = true};
    weft_list_init(&pollable->link);
    assert_int_equal(weft_loop_add(seen.loop, pollable), WEFT_OK);
}

static void begin(void)
{
    assert_int_equal(weft_loop_create(weft_env_system(), NULL, &seen.loop), WEFT_OK);
    add(&seen.pollable, poll_once);
}

static void end(void)
{
    weft_loop_remove(seen.loop, &seen.pollable);
    weft_loop_free(seen.loop);
}

static void run_wait(void)
{
    seen.yields = 0;
    memset(seen.polls, 0, sizeof seen.polls);
    seen.done = false;
    assert_int_equal(weft_loop_wait(seen.loop, &seen.done, weft_now_ns(weft_env_system()) + WEFT_SECONDS(60)),
                     WEFT_OK);
}

static void yields_precede_polls_on_a_shared_core(void **state)
{
    begin();
    weft_loop_set_wait_core(seen.loop, WEFT_WAIT_SAME_CORE);
    run_wait();
    assert_in_range(seen.polls[0], 1, FEW);
    weft_loop_set_wait_core(seen.loop, WEFT_WAIT_UNKNOWN);
    run_wait();
    assert_in_range(seen.polls[0], MANY, UINT32_MAX);
    /* not for long, so another thread that wants the core gets it */
    assert_in_range(seen.polls[1], 1, FEW);
    run_wait(); /* the last yields were long: other threads want this core */
    assert_in_range(seen.polls[0], 1, FEW);
    end();
}

/* Two operations: one waits for peers on this core, the other does not. Both call in each step. */
static int poll_other(struct weft_pollable *pollable, int budget)
{
    weft_loop_set_wait_core(seen.loop, WEFT_WAIT_UNKNOWN);
    return 0;
}

static int poll_here(struct weft_pollable *pollable, int budget)
{
    weft_loop_set_wait_core(seen.loop, WEFT_WAIT_SAME_CORE);
    return 0;
}

static void the_same_core_precedes(void **state)
{
    for (int first = 0; first < 2; first++) {
        struct weft_pollable operations[2];
        begin();
        add(&operations[0], first ? poll_here : poll_other);
        add(&operations[1], first ? poll_other : poll_here);
        run_wait();
        assert_in_range(seen.polls[0], 1, FEW);
        for (int i = 0; i < 2; i++) weft_loop_remove(seen.loop, &operations[i]);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yields_precede_polls_on_a_shared_core),
        cmocka_unit_test(the_same_core_precedes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
