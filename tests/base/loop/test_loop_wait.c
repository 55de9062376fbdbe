/* test_loop_wait.c - threads that wait and step the loop: weft_loop_wait_for and related functions. Usage:
 * test_base_loop_wait [rounds of the random test, default 100000] */
#include <fenv.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/lib/check.h"

#define PATIENCE WEFT_SECONDS(120) /* watchdog: a lost wake-up ends here */

static unsigned long rounds = 100000;

static uint64_t soon(uint64_t ns)
{
    return weft_now_ns(weft_env_system()) + ns;
}

static void *run(void *argument)
{
    weft_loop_run(argument);
    return NULL;
}

struct engine {
    struct weft_loop *loop;
    pthread_t engine_thread;
};

static void engine_start(struct engine *engine)
{
    assert_int_equal(weft_loop_create(weft_env_system(), NULL, &engine->loop), WEFT_OK);
    assert_int_equal(pthread_create(&engine->engine_thread, NULL, run, engine->loop), 0);
}

static void engine_stop(struct engine *engine)
{
    weft_loop_stop(engine->loop);
    pthread_join(engine->engine_thread, NULL);
    weft_loop_free(engine->loop);
}

/* ---- a command whose effect one thread waits for ---- */

struct errand {
    struct weft_command command;
    struct weft_loop *loop;
    pthread_t handled_by;
    int rounding;
    double third;
    unsigned again;      /* times that it is posted again first */
    int *guarded;        /* not atomic: only owners access it */
    _Atomic bool done;
};

static void handle(struct weft_command *command)
{
    struct errand *errand = weft_container_of(command, struct errand, command);
    if (errand->guarded) ++*errand->guarded;
    if (errand->again > 0) {
        errand->again--;
        weft_loop_post(errand->loop, command);
        return;
    }
    errand->handled_by = pthread_self();
    errand->rounding = fegetround();
    volatile double three = 3;
    errand->third = 1 / three; /* inexact */
    struct weft_loop *loop = errand->loop; /* when it is done its memory is the waiting thread's */
    atomic_store_explicit(&errand->done, true, memory_order_release);
    weft_loop_notify(loop);
}

static bool is_done(void *context)
{
    struct errand *errand = context;
    return atomic_load_explicit(&errand->done, memory_order_acquire);
}

static bool never(void *context)
{
    return false;
}

/* Posts commands and waits for each. Returns how many this thread ran itself. The first post wakes the engine
 * thread; once it has parked, the waiting threads run everything. */
static unsigned run_errands(struct engine *engine)
{
    unsigned own = 0;
    for (int i = 0; i < 2000; i++) {
        struct errand errand = {.command.fn = handle, .loop = engine->loop};
        weft_loop_post_lazy(engine->loop, &errand.command);
        assert_int_equal(weft_loop_wait_for(engine->loop, is_done, &errand, soon(PATIENCE)), WEFT_OK);
        own += pthread_equal(errand.handled_by, pthread_self()) != 0;
    }
    return own;
}

static void a_waiter_steps(void **state)
{
    struct engine engine;
    engine_start(&engine);
    assert_true(run_errands(&engine) > 0);
    engine_stop(&engine);
}

static void the_work_is_done_without_a_waiter(void **state)
{
    struct engine engine;
    engine_start(&engine);
    for (int i = 0; i < 50; i++) {
        struct errand waited, left = {.command.fn = handle, .loop = engine.loop};
        for (int calls = i % 10 == 9 ? 10000 : 1; calls > 0; calls--) {
            /* after many the park period is long */
            waited = (struct errand){.command.fn = handle, .loop = engine.loop};
            weft_loop_post_lazy(engine.loop, &waited.command);
            assert_int_equal(weft_loop_wait_for(engine.loop, is_done, &waited, soon(PATIENCE)), WEFT_OK);
        }
        weft_loop_post_lazy(engine.loop, &left.command); /* the engine thread is probably parked now */
        uint64_t until_ns = soon(PATIENCE);
        while (!is_done(&left) && weft_now_ns(weft_env_system()) < until_ns) sched_yield();
        assert_true(is_done(&left));
        assert_true(pthread_equal(left.handled_by, engine.engine_thread));
    }
    engine_stop(&engine);
}

/* A MEDIUM park depends on releases that report pending work. */
struct owner {
    pthread_t waiter;
    unsigned asked;
};
static bool asked_by_the_waiter(void *context)
{
    struct owner *owner = context;
    if (pthread_equal(pthread_self(), owner->waiter)) owner->asked++;
    return false;
}

static void a_leaving_waiter_checks_pending_work(void **state)
{
    struct engine engine;
    struct owner owner = {.waiter = pthread_self()};
    assert_int_equal(weft_loop_create(weft_env_system(), NULL, &engine.loop), WEFT_OK);
    weft_loop_set_pending_check(engine.loop, asked_by_the_waiter, &owner);
    assert_int_equal(pthread_create(&engine.engine_thread, NULL, run, engine.loop), 0);
    unsigned own = run_errands(&engine);
    assert_in_range(owner.asked, own, UINT_MAX);
    unsigned before = owner.asked;
    assert_int_equal(weft_loop_acquire(engine.loop, soon(PATIENCE)), WEFT_OK);
    weft_loop_release(engine.loop);
    assert_int_equal(owner.asked, before + 1);
    engine_stop(&engine);
}

static void a_wait_ends_at_its_deadline(void **state)
{
    struct engine engine;
    engine_start(&engine);
    for (int i = 0; i < 3; i++) {
        uint64_t until_ns = soon(WEFT_MS(20));
        assert_int_equal(weft_loop_wait_for(engine.loop, never, NULL, until_ns), WEFT_ERR_DEADLINE);
        assert_true(weft_now_ns(weft_env_system()) >= until_ns);
    }
    engine_stop(&engine);
}

/* A timeout starts at the first clock reading, so it is never shorter than requested. A true condition ends
 * the wait. */
static void a_wait_with_a_timeout_ends(void **state)
{
    struct engine engine;
    engine_start(&engine);
    for (int i = 0; i < 3; i++) {
        uint64_t until_ns = soon(WEFT_MS(20));
        assert_int_equal(weft_loop_wait_within(engine.loop, never, NULL, WEFT_MS(20)), WEFT_ERR_DEADLINE);
        assert_true(weft_now_ns(weft_env_system()) >= until_ns);
        assert_int_equal(weft_loop_wait_within(engine.loop, never, NULL, 0), WEFT_ERR_DEADLINE);
        struct errand errand = {.command.fn = handle, .loop = engine.loop};
        weft_loop_post_lazy(engine.loop, &errand.command);
        assert_int_equal(weft_loop_wait_within(engine.loop, is_done, &errand, WEFT_NEVER), WEFT_OK);
    }
    engine_stop(&engine);
}

/* Floating-point flags of the engine's arithmetic are not visible to the caller, whose own flags stay. */
static void the_callers_flags_are_its_own(void **state)
{
    struct engine engine;
    engine_start(&engine);
    for (int i = 0; i < 500; i++) {
        struct errand errand = {.command.fn = handle, .loop = engine.loop};
        assert_int_equal(feclearexcept(FE_ALL_EXCEPT), 0);
        assert_int_equal(feraiseexcept(FE_OVERFLOW | FE_INEXACT), 0);
        assert_int_equal(feclearexcept(FE_INEXACT), 0);
        weft_loop_post_lazy(engine.loop, &errand.command);
        assert_int_equal(weft_loop_wait_for(engine.loop, is_done, &errand, soon(PATIENCE)), WEFT_OK);
        assert_int_equal(fetestexcept(FE_ALL_EXCEPT), FE_OVERFLOW);
    }
    assert_int_equal(feclearexcept(FE_ALL_EXCEPT), 0);
    engine_stop(&engine);
}

static void without_an_engine_a_waiter_does_not_step(void **state)
{
    struct weft_loop *loop;
    assert_int_equal(weft_loop_create(weft_env_system(), NULL, &loop), WEFT_OK);
    struct errand errand = {.command.fn = handle, .loop = loop};
    weft_loop_post(loop, &errand.command);
    assert_int_equal(weft_loop_wait_for(loop, is_done, &errand, soon(WEFT_MS(20))), WEFT_ERR_DEADLINE);
    assert_true(weft_loop_step(loop) > 0);
    assert_int_equal(weft_loop_wait_for(loop, is_done, &errand, 0), WEFT_OK);
    weft_loop_free(loop);
}

/* The caller's rounding mode does not affect the engine's arithmetic and is restored. */
static void the_callers_rounding_is_its_own(void **state)
{
    struct engine engine;
    engine_start(&engine);
    assert_int_equal(fesetround(FE_UPWARD), 0);
    unsigned own = 0;
    for (int i = 0; i < 500; i++) {
        struct errand errand = {.command.fn = handle, .loop = engine.loop};
        weft_loop_post_lazy(engine.loop, &errand.command);
        assert_int_equal(weft_loop_wait_for(engine.loop, is_done, &errand, soon(PATIENCE)), WEFT_OK);
        assert_int_equal(errand.rounding, FE_TONEAREST);
        assert_int_equal(fegetround(), FE_UPWARD);
        own += pthread_equal(errand.handled_by, pthread_self()) != 0;
    }
    assert_int_equal(fesetround(FE_TONEAREST), 0);
    assert_true(own > 0);
    engine_stop(&engine);
}

/* A cancelled thread leaves its wait without owning the loop. */
static void *wait_long(void *argument)
{
    struct errand *errand = argument;
    (void)weft_loop_wait_for(errand->loop, is_done, errand, soon(PATIENCE));
    pthread_testcancel();
    return NULL;
}

static void a_cancelled_waiter_releases_the_loop(void **state)
{
    struct engine engine;
    engine_start(&engine);
    pthread_t thread;
    struct errand errand = {.command.fn = handle, .loop = engine.loop};
    assert_int_equal(pthread_create(&thread, NULL, wait_long, &errand), 0);
    for (int i = 0; i < 100; i++) sched_yield();
    pthread_cancel(thread);
    weft_loop_post(engine.loop, &errand.command);
    pthread_join(thread, NULL);
    struct errand after = {.command.fn = handle, .loop = engine.loop};
    weft_loop_post(engine.loop, &after.command);
    assert_int_equal(weft_loop_wait_for(engine.loop, is_done, &after, soon(PATIENCE)), WEFT_OK);
    engine_stop(&engine);
}

/* ---- many threads, at random ---- */

#define WAITERS 3
static struct {
    struct engine engine;
    int guarded;
    _Atomic unsigned long left;
    _Atomic unsigned long expired;
    _Atomic uint64_t facts[WAITERS]; /* made true by the other thread */
    _Atomic uint64_t wanted[WAITERS];
    _Atomic bool over;
} crowd;

struct number {
    int waiter;
    uint64_t at_least;
};

static bool number_reached(void *context)
{
    struct number *number = context;
    return atomic_load(&crowd.facts[number->waiter]) >= number->at_least;
}

/* Neither the engine thread nor a waiting thread: like the net thread of a session. */
static void *make_facts(void *argument)
{
    while (!atomic_load(&crowd.over)) {
        bool idle = true;
        for (int i = 0; i < WAITERS; i++) {
            uint64_t wanted = atomic_load(&crowd.wanted[i]);
            if (atomic_load(&crowd.facts[i]) >= wanted) continue;
            atomic_store(&crowd.facts[i], wanted);
            weft_loop_notify(crowd.engine.loop);
            idle = false;
        }
        if (idle) sched_yield();
    }
    return NULL;
}

static void wait_for_errand(unsigned *seed)
{
    struct errand errand = {.command.fn = handle,
                            .loop = crowd.engine.loop,
                            .again = (unsigned)rand_r(seed) % 4,
                            .guarded = &crowd.guarded};
    if (rand_r(seed) % 2) weft_loop_post_lazy(crowd.engine.loop, &errand.command);
    else weft_loop_post(crowd.engine.loop, &errand.command);
    if (rand_r(seed) % 16 == 0) { /* a deadline that may be short; the command continues, so wait again */
        uint64_t until_ns = soon((uint64_t)rand_r(seed) % 30000);
        if (weft_loop_wait_for(crowd.engine.loop, is_done, &errand, until_ns) < 0)
            atomic_fetch_add(&crowd.expired, 1);
    }
    /* long enough for the engine thread to become the owner */
    if (rand_r(seed) % 64 == 0) usleep((unsigned)rand_r(seed) % 2000);
    assert_int_equal(weft_loop_wait_for(crowd.engine.loop, is_done, &errand, soon(PATIENCE)), WEFT_OK);
}

static void wait_for_fact(int waiter)
{
    struct number number = {waiter, atomic_load(&crowd.facts[waiter]) + 1};
    atomic_store(&crowd.wanted[waiter], number.at_least);
    assert_int_equal(weft_loop_wait_for(crowd.engine.loop, number_reached, &number, soon(PATIENCE)), WEFT_OK);
}

static void *wait_and_wait(void *argument)
{
    int waiter = (int)(intptr_t)argument;
    unsigned seed = (unsigned)waiter + 1;
    while (atomic_fetch_sub(&crowd.left, 1) - 1 < rounds) { /* unsigned: ends below zero */
        unsigned what = (unsigned)rand_r(&seed) % 32;
        if (what == 0) {
            wait_for_fact(waiter);
        } else if (what == 1) {
            assert_int_equal(weft_loop_acquire(crowd.engine.loop, soon(PATIENCE)), WEFT_OK);
            crowd.guarded++;
            weft_loop_release(crowd.engine.loop);
        } else {
            wait_for_errand(&seed);
        }
    }
    return NULL;
}

static void random_waits_all_end(void **state)
{
    pthread_t threads[WAITERS], facts;
    memset(&crowd, 0, sizeof crowd);
    crowd.left = rounds;
    engine_start(&crowd.engine);
    assert_int_equal(pthread_create(&facts, NULL, make_facts, NULL), 0);
    for (intptr_t i = 0; i < WAITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_and_wait, (void *)i), 0);
    for (int i = 0; i < WAITERS; i++) pthread_join(threads[i], NULL);
    atomic_store(&crowd.over, true);
    pthread_join(facts, NULL);
    engine_stop(&crowd.engine);
    assert_true(crowd.guarded > 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiter_steps),
        cmocka_unit_test(the_work_is_done_without_a_waiter),
        cmocka_unit_test(a_leaving_waiter_checks_pending_work),
        cmocka_unit_test(a_wait_ends_at_its_deadline),
        cmocka_unit_test(without_an_engine_a_waiter_does_not_step),
        cmocka_unit_test(the_callers_rounding_is_its_own),
        cmocka_unit_test(a_wait_with_a_timeout_ends),
        cmocka_unit_test(the_callers_flags_are_its_own),
        cmocka_unit_test(a_cancelled_waiter_releases_the_loop),
        cmocka_unit_test(random_waits_all_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
