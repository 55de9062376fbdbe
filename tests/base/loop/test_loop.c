/* test_loop.c - timers, mailbox, pollables, sleeping and ownership of base/loop/loop.h. */
#include <fcntl.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/loop/park_policy.h"
#include "tests/lib/check.h"

static struct weft_loop *new_loop(uint32_t spin_us)
{
    struct weft_loop_options options;
    struct weft_loop *loop;
    weft_loop_options_init(&options);
    options.spin_us = spin_us;
    assert_int_equal(weft_loop_create(weft_env_system(), &options, &loop), WEFT_OK);
    return loop;
}

static uint64_t soon(uint64_t ns)
{
    return weft_now_ns(weft_env_system()) + ns;
}

/* --- timers, with the test's own clock --- */

struct manual_env {
    struct weft_env env;
    uint64_t now_ns;
};

static uint64_t manual_now(struct weft_env *env)
{
    return ((struct manual_env *)env)->now_ns;
}

static struct weft_loop *new_virtual_loop(struct manual_env *manual)
{
    struct weft_loop_options options;
    struct weft_loop *loop;
    manual->env = *weft_env_system();
    manual->env.now_ns = manual_now;
    manual->now_ns = 0;
    weft_loop_options_init(&options);
    options.virtual_time = true;
    assert_int_equal(weft_loop_create(&manual->env, &options, &loop), WEFT_OK);
    return loop;
}

/* --- timers that are due now, without a clock reading --- */

struct counting_env {
    struct weft_env env;
    int reads;
};

static uint64_t counted_now(struct weft_env *env)
{
    ((struct counting_env *)env)->reads++;
    return weft_now_ns(weft_env_system());
}

struct chain_of_timers {
    struct weft_loop *loop;
    struct counting_env clock;
    struct weft_command command;
    struct weft_timer now, later;
    int reads; /* clock readings between the command and the timer */
    bool over;
};

static void now_ran(struct weft_timer *timer)
{
    struct chain_of_timers *chain = weft_container_of(timer, struct chain_of_timers, now);
    chain->reads = chain->clock.reads - chain->reads;
    assert_int_equal(weft_timer_start_later(chain->loop, &chain->later, soon(WEFT_MS(20))), WEFT_OK);
}

static void later_ran(struct weft_timer *timer)
{
    weft_container_of(timer, struct chain_of_timers, later)->over = true;
}

static void command_starts_timer(struct weft_command *command)
{
    struct chain_of_timers *chain = weft_container_of(command, struct chain_of_timers, command);
    chain->reads = chain->clock.reads;
    assert_int_equal(weft_timer_start_now(chain->loop, &chain->now), WEFT_OK);
}

static void a_timer_for_now_needs_no_clock(void **state)
{
    struct chain_of_timers chain = {.command.fn = command_starts_timer};
    chain.clock.env = *weft_env_system();
    chain.clock.env.now_ns = counted_now;
    assert_int_equal(weft_loop_create(&chain.clock.env, NULL, &chain.loop), WEFT_OK);
    weft_timer_init(&chain.now, now_ran);
    weft_timer_init(&chain.later, later_ran);
    weft_loop_post(chain.loop, &chain.command);
    /* a regular clock reading finds the later one */
    assert_int_equal(weft_loop_wait(chain.loop, &chain.over, WEFT_NEVER), WEFT_OK);
    assert_int_equal(chain.reads, 0);
    weft_loop_free(chain.loop);
}

static bool early_ran;
static void early_is_first(struct weft_timer *timer) { early_ran = true; }
static void now_is_second(struct weft_timer *timer) { assert_true(early_ran); }

/* A timer that is due runs before one that is started as due, however often that happens. */
static void a_timer_for_now_waits_for_those_before(void **state)
{
    struct manual_env manual;
    struct weft_loop *loop = new_virtual_loop(&manual);
    static struct weft_timer early, now;
    manual.now_ns = 10;
    weft_loop_step(loop);
    weft_timer_init(&now, now_is_second);
    weft_timer_init(&early, early_is_first);
    early_ran = false;
    assert_int_equal(weft_timer_start_now(loop, &now), WEFT_OK);
    assert_int_equal(weft_timer_start(loop, &early, 5), WEFT_OK);
    manual.now_ns = 20;
    assert_int_equal(weft_loop_step(loop), 2);
    assert_true(early_ran);
    weft_loop_free(loop);
}

#define TIMERS 500
static struct { struct weft_timer timer; int calls; } timers[TIMERS];
static int fired[TIMERS * 4], fired_count;

static void note(struct weft_timer *timer)
{
    int index = (int)(weft_container_of(timer, __typeof__(timers[0]), timer) - timers);
    timers[index].calls++;
    fired[fired_count++] = index;
}

static void timers_run_in_order(void **state)
{
    struct manual_env manual;
    struct weft_loop *loop = new_virtual_loop(&manual);
    unsigned seed = 7;
    fired_count = 0;
    for (int i = 0; i < TIMERS; i++) {
        timers[i].calls = 0;
        weft_timer_init(&timers[i].timer, note);
        assert_false(weft_timer_is_running(&timers[i].timer));
        assert_int_equal(weft_timer_start(loop, &timers[i].timer, (uint64_t)rand_r(&seed) % 50), WEFT_OK);
    }
    for (int i = 0; i < TIMERS; i += 3) weft_timer_stop(loop, &timers[i].timer);
    for (int i = 0; i < TIMERS; i += 7) /* a restart counts as a new start among equals */
        assert_int_equal(weft_timer_start(loop, &timers[i].timer, 25), WEFT_OK);
    while (weft_loop_next_timer_ns(loop) != WEFT_NEVER) {
        manual.now_ns = weft_loop_next_timer_ns(loop);
        assert_true(weft_loop_step(loop) > 0);
    }
    for (int i = 1; i < fired_count; i++) {
        struct weft_timer *a = &timers[fired[i - 1]].timer, *b = &timers[fired[i]].timer;
        assert_true(a->deadline_ns <= b->deadline_ns);
        if (a->deadline_ns != b->deadline_ns) continue;
        bool a_again = fired[i - 1] % 7 == 0, b_again = fired[i] % 7 == 0;
        assert_true(a_again < b_again || (a_again == b_again && fired[i - 1] < fired[i]));
    }
    for (int i = 0; i < TIMERS; i++) {
        assert_int_equal(timers[i].calls, i % 3 != 0 || i % 7 == 0);
        assert_false(weft_timer_is_running(&timers[i].timer));
    }
    weft_loop_free(loop);
}

static struct weft_loop *chain_loop;
static struct weft_timer chain[3];
static int chain_calls[3];

static void chain_fn(struct weft_timer *timer)
{
    int index = (int)(timer - chain);
    chain_calls[index]++;
    if (index == 0) {
        weft_timer_stop(chain_loop, &chain[1]);                 /* due as well: must not run */
        assert_int_equal(weft_timer_start(chain_loop, timer, 0), WEFT_OK); /* always due */
    }
}

static void timers_change_inside_callbacks(void **state)
{
    struct manual_env manual;
    struct weft_loop *loop = new_virtual_loop(&manual);
    chain_loop = loop;
    memset(chain_calls, 0, sizeof chain_calls);
    for (int i = 0; i < 3; i++) {
        weft_timer_init(&chain[i], chain_fn);
        assert_int_equal(weft_timer_start(loop, &chain[i], (uint64_t)i), WEFT_OK);
    }
    manual.now_ns = 10;
    assert_true(weft_loop_step(loop) > 0); /* ends although timer 0 is always due */
    assert_true(chain_calls[0] >= 1 && chain_calls[0] <= 3);
    assert_int_equal(chain_calls[1], 0);
    weft_timer_stop(loop, &chain[0]);
    weft_loop_step(loop);
    assert_int_equal(chain_calls[2], 1);
    assert_int_equal(weft_timer_start(loop, &chain[1], 11), WEFT_OK);
    assert_int_equal(weft_loop_step(loop), 0);
    weft_loop_free(loop);
    assert_false(weft_timer_is_running(&chain[1])); /* dropped, not called */
    assert_int_equal(chain_calls[1], 0);
}

/* --- mailbox --- */

#define SENDERS 4
#define COMMANDS 25000

struct numbered_command {
    struct weft_command command;
    int sender, number;
};

static struct {
    struct weft_loop *loop;
    struct numbered_command *commands[SENDERS];
    int next[SENDERS], total;
    bool done, ordered;
} mailbox_test;

static void receive(struct weft_command *command)
{
    struct numbered_command *numbered = weft_container_of(command, struct numbered_command, command);
    if (numbered->number != mailbox_test.next[numbered->sender]++) mailbox_test.ordered = false;
    if (++mailbox_test.total == SENDERS * COMMANDS) mailbox_test.done = true;
}

static void *post_commands(void *argument)
{
    int sender = (int)(intptr_t)argument;
    for (int i = 0; i < COMMANDS; i++)
        weft_loop_post(mailbox_test.loop, &mailbox_test.commands[sender][i].command);
    return NULL;
}

static void commands_arrive_once_and_in_order(void **state)
{
    pthread_t threads[SENDERS];
    memset(&mailbox_test, 0, sizeof mailbox_test);
    mailbox_test.ordered = true;
    mailbox_test.loop = new_loop(0); /* sleeps at every chance: race between post and sleep */
    for (int sender = 0; sender < SENDERS; sender++) {
        mailbox_test.commands[sender] = calloc(COMMANDS, sizeof(struct numbered_command));
        assert_non_null(mailbox_test.commands[sender]);
        for (int i = 0; i < COMMANDS; i++)
            mailbox_test.commands[sender][i] = (struct numbered_command){{receive, NULL}, sender, i};
    }
    for (intptr_t i = 0; i < SENDERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_commands, (void *)i), 0);
    assert_int_equal(weft_loop_wait(mailbox_test.loop, &mailbox_test.done, soon(WEFT_SECONDS(60))), WEFT_OK);
    for (int i = 0; i < SENDERS; i++) pthread_join(threads[i], NULL);
    assert_true(mailbox_test.ordered);
    assert_int_equal(mailbox_test.total, SENDERS * COMMANDS);
    weft_loop_free(mailbox_test.loop);
    for (int i = 0; i < SENDERS; i++) free(mailbox_test.commands[i]);
}

/* Two loops on two threads post one command back and forth. Each post finds the other side asleep or about to
 * sleep, so a lost wake-up reaches the deadline. */
static struct {
    struct weft_loop *loops[2];
    struct weft_command command;
    int throws;
    bool done[2];
} rally;

static void catch_and_throw(struct weft_command *command)
{
    int side = ++rally.throws % 2;
    if (rally.throws >= 2000) {
        rally.done[1 - side] = true;
        if (rally.throws >= 2001) return;
    }
    weft_loop_post(rally.loops[side], command);
}

static void *play(void *argument)
{
    enum weft_status status = weft_loop_wait(rally.loops[1], &rally.done[1], soon(WEFT_SECONDS(60)));
    return (void *)(intptr_t)status;
}

static void no_wake_up_is_lost(void **state)
{
    pthread_t thread;
    void *result;
    memset(&rally, 0, sizeof rally);
    rally.command.fn = catch_and_throw;
    for (int i = 0; i < 2; i++) rally.loops[i] = new_loop(0);
    assert_int_equal(pthread_create(&thread, NULL, play, NULL), 0);
    weft_loop_post(rally.loops[0], &rally.command);
    assert_int_equal(weft_loop_wait(rally.loops[0], &rally.done[0], soon(WEFT_SECONDS(60))), WEFT_OK);
    pthread_join(thread, &result);
    assert_int_equal((intptr_t)result, WEFT_OK);
    for (int i = 0; i < 2; i++) weft_loop_free(rally.loops[i]);
}

/* Linked with --wrap=write: counts every write of the loop. */
static _Atomic int writes;
ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    writes++;
    return __real_write(fd, data, bytes);
}

static void count_command(struct weft_command *command)
{
    mailbox_test.total++;
}

static void a_post_to_a_busy_owner_makes_no_system_call(void **state)
{
    struct weft_loop *loop = new_loop(0);
    struct weft_command command[100];
    mailbox_test.total = 0;
    writes = 0;
    for (int i = 0; i < 100; i++) {
        command[i] = (struct weft_command){count_command, NULL};
        weft_loop_post(loop, &command[i]);
        if (i % 10 == 0) weft_loop_step(loop);
    }
    weft_loop_step(loop);
    assert_int_equal(mailbox_test.total, 100);
    assert_int_equal(writes, 0);
    weft_loop_free(loop);
}

/* --- waiting --- */

static uint64_t cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void wait_ends_at_its_deadline_and_uses_no_cpu(void **state)
{
    struct weft_loop *loop = new_loop(20);
    bool never = false;
    uint64_t until = soon(WEFT_MS(300)), cpu = cpu_ns();
    assert_int_equal(weft_loop_wait(loop, &never, until), WEFT_ERR_DEADLINE);
    assert_true(weft_now_ns(weft_env_system()) >= until);
    /* A loop that polls all the time would use hundreds of milliseconds. */
    assert_true(cpu_ns() - cpu < WEFT_MS(100));
    assert_int_equal(weft_loop_wait(loop, &never, 0), WEFT_ERR_DEADLINE);
    never = true;
    assert_int_equal(weft_loop_wait(loop, &never, 0), WEFT_OK);
    weft_loop_free(loop);
}

static bool timer_done;
static void set_done(struct weft_timer *timer)
{
    timer_done = true;
}

static void wait_wakes_for_a_timer(void **state)
{
    struct weft_loop *loop = new_loop(0);
    struct weft_timer timer;
    timer_done = false;
    weft_timer_init(&timer, set_done);
    uint64_t deadline = soon(WEFT_MS(20));
    assert_int_equal(weft_timer_start(loop, &timer, deadline), WEFT_OK);
    assert_int_equal(weft_loop_wait(loop, &timer_done, WEFT_NEVER), WEFT_OK);
    assert_true(weft_now_ns(weft_env_system()) >= deadline);
    weft_loop_free(loop);
}

/* --- pollables --- */

struct probe {
    struct weft_pollable pollable;
    struct weft_loop *loop;
    struct probe *removes; /* removed by this one during a step */
    int polls, arms, pending, refuse;
    bool done;
};

static int probe_progress(struct weft_pollable *pollable, int budget)
{
    struct probe *probe = weft_container_of(pollable, struct probe, pollable);
    uint64_t ignored;
    probe->polls++;
    if (probe->removes) {
        weft_loop_remove(probe->loop, &probe->removes->pollable);
        probe->removes = NULL;
    }
    if (pollable->fd >= 0 && read(pollable->fd, &ignored, sizeof ignored) == (ssize_t)sizeof ignored)
        probe->done = true;
    if (probe->pending == 0) return 0;
    int work = probe->pending < budget ? probe->pending : budget;
    probe->pending -= work;
    if (probe->pending == 0) probe->done = true;
    return work;
}

static enum weft_status probe_arm(struct weft_pollable *pollable)
{
    struct probe *probe = weft_container_of(pollable, struct probe, pollable);
    probe->arms++;
    if (probe->refuse > 0) { /* work arrived between the last poll and arm: no descriptor will report it */
        if (--probe->refuse == 0) probe->pending = 1;
        return WEFT_ERR_AGAIN;
    }
    return WEFT_OK;
}

static struct probe new_probe(struct weft_loop *loop)
{
    struct probe probe = {.loop = loop};
    probe.pollable.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    probe.pollable.progress = probe_progress;
    probe.pollable.arm = probe_arm;
    assert_true(probe.pollable.fd >= 0);
    return probe;
}

static void *write_later(void *argument)
{
    struct probe *probe = argument;
    uint64_t one = 1;
    assert_int_equal(write(probe->pollable.fd, &one, sizeof one), sizeof one);
    return NULL;
}

static void pollables_are_armed_before_sleep(void **state)
{
    struct weft_loop *loop = new_loop(0);
    struct probe probe = new_probe(loop);
    assert_int_equal(weft_loop_add(loop, &probe.pollable), WEFT_OK);
    assert_int_equal(weft_loop_add(loop, &(struct weft_pollable){.fd = probe.pollable.fd}), WEFT_ERR_EXISTS);

    /* AGAIN from arm: the loop polls again instead of sleeping until the deadline. */
    probe.refuse = 3;
    assert_int_equal(weft_loop_wait(loop, &probe.done, soon(WEFT_SECONDS(60))), WEFT_OK);
    assert_int_equal(probe.arms, 3);

    /* OK from arm: it sleeps until the descriptor is readable. */
    pthread_t thread;
    probe.done = false;
    assert_int_equal(pthread_create(&thread, NULL, write_later, &probe), 0);
    assert_int_equal(weft_loop_wait(loop, &probe.done, soon(WEFT_SECONDS(60))), WEFT_OK);
    pthread_join(thread, NULL);

    /* More work than one step's budget. */
    probe.pending = 1000;
    int work = weft_loop_step(loop);
    assert_true(work > 0 && work < 1000);
    weft_loop_remove(loop, &probe.pollable);
    int polls = probe.polls;
    weft_loop_step(loop);
    assert_int_equal(probe.polls, polls);
    close(probe.pollable.fd);
    weft_loop_free(loop);
}

/* --- a core that another thread wants --- */

struct striding_env { /* each clock reading is later by this much */
    struct weft_env env;
    uint64_t now_ns, stride_ns;
};

static uint64_t striding_now(struct weft_env *env)
{
    struct striding_env *clock = (struct striding_env *)env;
    return clock->now_ns += clock->stride_ns;
}

/* Polls of one idle run, from its start until the loop would sleep. */
static int polls_until_armed(struct probe *probe)
{
    probe->polls = 0;
    probe->done = false;
    probe->refuse = 1;
    assert_int_equal(weft_loop_wait(probe->loop, &probe->done, WEFT_NEVER), WEFT_OK);
    return probe->polls;
}

static void after_a_long_yield_it_yields_first(void **state)
{
    struct striding_env clock = {.env = *weft_env_system(), .stride_ns = 100};
    struct weft_loop_options options;
    struct weft_loop *loop;
    clock.env.now_ns = striding_now;
    weft_loop_options_init(&options);
    options.spin_us = 40;
    options.yields = 20;
    assert_int_equal(weft_loop_create(&clock.env, &options, &loop), WEFT_OK);
    struct probe probe = new_probe(loop);
    assert_int_equal(weft_loop_add(loop, &probe.pollable), WEFT_OK);
    /* short yields: it polls for spin_us each time */
    for (int i = 0; i < 3; i++) assert_true(polls_until_armed(&probe) > 300);
    clock.stride_ns = 2000;
    assert_true(polls_until_armed(&probe) > 300); /* unknown so far */
    assert_true(polls_until_armed(&probe) < 60);
    clock.stride_ns = 100;
    assert_true(polls_until_armed(&probe) < 60);
    assert_true(polls_until_armed(&probe) > 300); /* the core is not shared any more */
    weft_loop_remove(loop, &probe.pollable);
    close(probe.pollable.fd);
    weft_loop_free(loop);
}

/* Between the last read of the mailbox and sleep, without a race: arm is called there. */
static struct {
    struct weft_pollable pollable;
    struct weft_command command;
    struct weft_loop *loop;
    bool posts, got_command;
} window;

static int window_progress(struct weft_pollable *pollable, int budget)
{
    return 0;
}

static enum weft_status window_arm(struct weft_pollable *pollable)
{
    if (window.posts) weft_loop_post(window.loop, &window.command);
    else weft_loop_stop(window.loop);
    return WEFT_OK;
}

static void window_command(struct weft_command *command)
{
    window.got_command = true;
}

static void work_before_sleep_is_seen(void **state)
{
    memset(&window, 0, sizeof window);
    window.loop = new_loop(0);
    window.pollable =
        (struct weft_pollable){.fd = eventfd(0, EFD_CLOEXEC), .progress = window_progress, .arm = window_arm};
    window.command.fn = window_command;
    assert_int_equal(weft_loop_add(window.loop, &window.pollable), WEFT_OK);
    struct weft_timer timer; /* ends the sleep of a loop that lost the command */
    timer_done = false;
    weft_timer_init(&timer, set_done);
    assert_int_equal(weft_timer_start(window.loop, &timer, soon(WEFT_SECONDS(20))), WEFT_OK);
    window.posts = true;
    assert_int_equal(weft_loop_wait(window.loop, &window.got_command, WEFT_NEVER), WEFT_OK);
    assert_false(timer_done);
    weft_timer_stop(window.loop, &timer);
    window.posts = false;
    weft_loop_run(window.loop); /* returns: stopped in between */
    close(window.pollable.fd);
    weft_loop_free(window.loop);
}

static void pollables_leave_inside_progress(void **state)
{
    struct weft_loop *loop = new_loop(0);
    struct probe probes[3];
    for (int i = 0; i < 3; i++) {
        probes[i] = new_probe(loop);
        assert_int_equal(weft_loop_add(loop, &probes[i].pollable), WEFT_OK);
    }
    probes[0].removes = &probes[1]; /* the next one in the step */
    weft_loop_step(loop);
    assert_int_equal(probes[1].polls, 0);
    assert_int_equal(probes[2].polls, 1);
    probes[2].removes = &probes[2]; /* itself */
    weft_loop_step(loop);
    weft_loop_step(loop);
    assert_int_equal(probes[0].polls, 3);
    assert_int_equal(probes[2].polls, 2);
    weft_loop_free(loop);
    for (int i = 0; i < 3; i++) close(probes[i].pollable.fd);
}

static void a_pollable_without_descriptor_is_polled(void **state)
{
    struct weft_loop *loop = new_loop(0);
    struct probe probe = {.loop = loop, .pollable = {.fd = -1, .progress = probe_progress}};
    assert_int_equal(weft_loop_add(loop, &probe.pollable), WEFT_OK);
    bool never = false;
    assert_int_equal(weft_loop_wait(loop, &never, soon(WEFT_MS(30))), WEFT_ERR_DEADLINE);
    assert_true(probe.polls >= 2);
    weft_loop_remove(loop, &probe.pollable);
    weft_loop_free(loop);
}

/* --- the engine thread and ownership --- */

static void *engine(void *argument)
{
    weft_loop_run(argument);
    return NULL;
}

static void run_ends_by_stop(void **state)
{
    for (int round = 0; round < 50; round++) {
        struct weft_loop *loop = new_loop(round % 2 ? 20 : 0);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, engine, loop), 0);
        weft_loop_stop(loop); /* before, while or after it starts to sleep */
        pthread_join(thread, NULL);
        weft_loop_free(loop);
    }
}

#define TAKERS 3
#define ROUNDS 400
static struct {
    struct weft_loop *loop;
    int guarded;  /* not atomic: only the owner may access it */
    int inside;   /* not atomic either */
} shared;

struct knock {
    struct weft_command command;
    bool done;
};

static void knock_fn(struct weft_command *command)
{
    struct knock *knock = weft_container_of(command, struct knock, command);
    assert_int_equal(shared.inside++, 0);
    shared.guarded++;
    shared.inside--;
    knock->done = true;
}

static void *acquire_and_step(void *argument)
{
    unsigned seed = (unsigned)(intptr_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        struct knock knock = {{knock_fn, NULL}, false};
        weft_loop_post(shared.loop, &knock.command);
        if (rand_r(&seed) % 3 == 0) sched_yield();
        assert_int_equal(weft_loop_acquire(shared.loop, WEFT_NEVER), WEFT_OK);
        assert_int_equal(shared.inside++, 0);
        shared.guarded++;
        shared.inside--;
        /* The previous owner may have run the command; otherwise this thread does. */
        assert_int_equal(weft_loop_wait(shared.loop, &knock.done, soon(WEFT_SECONDS(60))), WEFT_OK);
        weft_loop_release(shared.loop);
    }
    return NULL;
}

static void threads_alternate_as_owner(void **state)
{
    pthread_t engine_thread, threads[TAKERS];
    shared.loop = new_loop(0);
    shared.guarded = shared.inside = 0;
    assert_int_equal(pthread_create(&engine_thread, NULL, engine, shared.loop), 0);
    for (intptr_t i = 0; i < TAKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, acquire_and_step, (void *)(i + 1)), 0);
    for (int i = 0; i < TAKERS; i++) pthread_join(threads[i], NULL);
    weft_loop_stop(shared.loop);
    pthread_join(engine_thread, NULL);
    assert_int_equal(shared.guarded, TAKERS * ROUNDS * 2);
    weft_loop_free(shared.loop);
}

/* Try-acquires by several threads, concurrent with claims and an engine thread. */
static atomic_int commands_counted;
static void *try_acquire_and_release(void *argument)
{
    int got = 0;
    for (int i = 0; i < ROUNDS * 20; i++) {
        if (!weft_loop_try_acquire(shared.loop)) continue;
        assert_int_equal(shared.inside++, 0);
        got++;
        weft_cpu_relax(i % 3 == 0);
        shared.inside--;
        weft_loop_release_pending(shared.loop, i % 2 ? WEFT_LOOP_PENDING_NEW : WEFT_LOOP_PENDING_NONE);
    }
    return (void *)(intptr_t)got;
}

static void count_one(struct weft_command *command) { atomic_fetch_add(&commands_counted, 1); }

static void waiting_threads_acquire_the_loop(void **state)
{
    pthread_t engine_thread, threads[TAKERS], acquirer;
    void *got;
    shared.loop = new_loop(0);
    shared.guarded = shared.inside = 0;
    assert_false(weft_loop_try_acquire(shared.loop)); /* no engine thread would continue the work */
    assert_int_equal(pthread_create(&engine_thread, NULL, engine, shared.loop), 0);
    for (intptr_t i = 0; i < TAKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, acquire_and_step, (void *)(i + 1)), 0);
    assert_int_equal(pthread_create(&acquirer, NULL, try_acquire_and_release, NULL), 0);
    pthread_join(acquirer, &got);
    for (int i = 0; i < TAKERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(shared.guarded, TAKERS * ROUNDS * 2);

    while (!weft_loop_try_acquire(shared.loop)) sched_yield();
    assert_false(weft_loop_try_acquire(shared.loop)); /* not twice */
    struct weft_command command = {.fn = count_one};
    weft_loop_post(shared.loop, &command);
    assert_int_equal(atomic_load(&commands_counted), 0);
    /* wakes the engine thread for the command */
    weft_loop_release_pending(shared.loop, WEFT_LOOP_PENDING_NONE);
    while (atomic_load(&commands_counted) == 0) sched_yield();
    weft_loop_stop(shared.loop);
    pthread_join(engine_thread, NULL);
    assert_false(weft_loop_try_acquire(shared.loop));
    weft_loop_free(shared.loop);
}

/* Threads that poll step the loop between owners of all kinds. */
struct polled {
    struct weft_command command;
    atomic_bool done;
};

static void polled_fn(struct weft_command *command)
{
    assert_int_equal(shared.inside++, 0);
    shared.inside--;
    atomic_store(&weft_container_of(command, struct polled, command)->done, true);
}

static void *poll_and_step(void *argument)
{
    const int before = fegetround();
    for (int i = 0; i < ROUNDS; i++) {
        struct polled polled = {.command.fn = polled_fn};
        if (i % 2) weft_loop_post_lazy(shared.loop, &polled.command);
        else weft_loop_post(shared.loop, &polled.command);
        while (!atomic_load(&polled.done)) (void)weft_loop_try_step(shared.loop);
    }
    while (!weft_loop_try_step(shared.loop)) sched_yield(); /* the engine thread releases an idle loop */
    assert_int_equal(fegetround(), before);
    return NULL;
}

static void polling_threads_step(void **state)
{
    pthread_t engine_thread, threads[TAKERS + 1];
    shared.loop = new_loop(0);
    shared.guarded = shared.inside = 0;
    assert_false(weft_loop_try_step(shared.loop)); /* no engine thread would continue the work */
    assert_int_equal(pthread_create(&engine_thread, NULL, engine, shared.loop), 0);
    assert_int_equal(pthread_create(&threads[TAKERS], NULL, acquire_and_step, (void *)1), 0);
    for (int i = 0; i < TAKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, poll_and_step, NULL), 0);
    for (int i = 0; i <= TAKERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(weft_loop_acquire(shared.loop, WEFT_NEVER), WEFT_OK);
    assert_false(weft_loop_try_step(shared.loop)); /* an owner does not step twice */
    weft_loop_release(shared.loop);
    weft_loop_stop(shared.loop);
    pthread_join(engine_thread, NULL);
    assert_false(weft_loop_try_step(shared.loop));
    weft_loop_free(shared.loop);
}

/* A thread that is cancelled and has another rounding mode: neither has an effect between guard and release.
 */
struct acquiring {
    bool steps;                 /* a step calls the guard */
    int inside, after;          /* fegetround() */
    atomic_bool went_on, outlived;
};

static void *try_acquire_cancelled(void *argument)
{
    struct acquiring *acquiring = argument;
    int upward = fesetround(FE_UPWARD), default_state;
    while (upward != 0 || !weft_loop_try_acquire(shared.loop)) sched_yield();
    pthread_cancel(pthread_self());
    if (acquiring->steps) (void)weft_loop_step(shared.loop);
    else weft_loop_guard_thread(shared.loop);
    acquiring->inside = fegetround();
    pthread_testcancel();
    atomic_store(&acquiring->went_on, true);
    weft_loop_guard_thread(shared.loop); /* a second call has no effect */
    weft_loop_release_pending(shared.loop, WEFT_LOOP_PENDING_NEW);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &default_state);
    acquiring->after = fegetround();
    pthread_setcancelstate(default_state, NULL);
    pthread_testcancel();
    atomic_store(&acquiring->outlived, true);
    return NULL;
}

static void a_cancelled_try_acquire_releases(void **state)
{
    pthread_t engine_thread, acquirer;
    void *result;
    shared.loop = new_loop(0);
    /* no effect without a try-acquire: cancellation and rounding mode stay */
    weft_loop_guard_thread(shared.loop);
    assert_int_equal(pthread_create(&engine_thread, NULL, engine, shared.loop), 0);
    for (int steps = 0; steps < 2; steps++) {
        struct acquiring acquiring = {.steps = steps};
        assert_int_equal(pthread_create(&acquirer, NULL, try_acquire_cancelled, &acquiring), 0);
        pthread_join(acquirer, &result);
        assert_ptr_equal(result, PTHREAD_CANCELED);
        assert_true(atomic_load(&acquiring.went_on));
        assert_false(atomic_load(&acquiring.outlived));
        assert_int_equal(acquiring.inside, FE_TONEAREST);
        assert_int_equal(acquiring.after, FE_UPWARD);
        while (!weft_loop_try_acquire(shared.loop)) sched_yield(); /* the cancelled thread has released it */
        weft_loop_release_pending(shared.loop, WEFT_LOOP_PENDING_NONE);
    }
    weft_loop_stop(shared.loop);
    pthread_join(engine_thread, NULL);
    weft_loop_free(shared.loop);
}

/* After many try-acquires the park period is long: a command without a waiting thread is still run. */
static void a_command_after_many_acquires(void **state)
{
    pthread_t engine_thread;
    shared.loop = new_loop(0);
    atomic_store(&commands_counted, 0);
    assert_int_equal(pthread_create(&engine_thread, NULL, engine, shared.loop), 0);
    for (int round = 0; round < 5; round++) {
        for (int got = 0; got < ROUNDS * 20;) {
            if (!weft_loop_try_acquire(shared.loop)) continue;
            got++;
            weft_loop_release_pending(shared.loop, WEFT_LOOP_PENDING_NONE);
        }
        struct weft_command command = {.fn = count_one};
        weft_loop_post_lazy(shared.loop, &command);
        while (atomic_load(&commands_counted) <= round) sched_yield();
    }
    weft_loop_stop(shared.loop);
    pthread_join(engine_thread, NULL);
    weft_loop_free(shared.loop);
}

struct listened {
    struct weft_pollable pollable;
    atomic_int arms;
};

static int listened_progress(struct weft_pollable *pollable, int budget) { return 0; }

static enum weft_status listened_arm(struct weft_pollable *pollable)
{
    atomic_fetch_add(&weft_container_of(pollable, struct listened, pollable)->arms, 1);
    return WEFT_OK;
}

/* After a try-acquire with a poll, an engine thread in epoll is armed again. */
static void a_try_acquire_that_stepped_arms(void **state)
{
    pthread_t engine_thread;
    struct listened listened = {
        .pollable = {.fd = eventfd(0, EFD_CLOEXEC), .progress = listened_progress, .arm = listened_arm}};
    shared.loop = new_loop(0);
    assert_int_equal(weft_loop_add(shared.loop, &listened.pollable), WEFT_OK);
    assert_int_equal(pthread_create(&engine_thread, NULL, engine, shared.loop), 0);
    while (atomic_load(&listened.arms) == 0) sched_yield();
    bool again = false;
    for (int i = 0; i < 1000 && !again; i++) {
        usleep(1000); /* probably in epoll by now */
        while (!weft_loop_try_acquire(shared.loop)) sched_yield();
        int before = atomic_load(&listened.arms);
        weft_loop_step(shared.loop);
        weft_loop_release_pending(shared.loop, WEFT_LOOP_PENDING_NONE);
        again = atomic_load(&listened.arms) > before;
    }
    assert_true(again);
    weft_loop_stop(shared.loop);
    pthread_join(engine_thread, NULL);
    weft_loop_remove(shared.loop, &listened.pollable);
    weft_loop_free(shared.loop);
    close(listened.pollable.fd);
}

static void *take_with_deadline(void *argument)
{
    enum weft_status status = weft_loop_acquire(argument, soon(WEFT_MS(10)));
    return (void *)(intptr_t)status;
}

static void take_ends_at_its_deadline(void **state)
{
    struct weft_loop *loop = new_loop(0);
    pthread_t thread;
    void *status;
    assert_int_equal(weft_loop_acquire(loop, WEFT_NEVER), WEFT_OK);
    assert_int_equal(pthread_create(&thread, NULL, take_with_deadline, loop), 0);
    pthread_join(thread, &status);
    assert_int_equal((intptr_t)status, WEFT_ERR_DEADLINE);
    weft_loop_release(loop);
    weft_loop_free(loop);
}

/* ---- order of a waiting thread ---- */

struct errand {
    struct weft_pollable pollable;
    struct weft_command command;
    struct weft_timer timer;
    struct weft_loop *loop;
    bool by_poll, done;
    int polls, polls_before;
};

static void errand_now(struct errand *errand)
{
    assert_int_equal(weft_timer_start(errand->loop, &errand->timer, weft_now_ns(weft_env_system())), WEFT_OK);
}

static void errand_read(struct weft_command *command)
{
    struct errand *errand = weft_container_of(command, struct errand, command);
    if (!errand->by_poll) errand_now(errand);
}

static int errand_polled(struct weft_pollable *pollable, int budget)
{
    struct errand *errand = weft_container_of(pollable, struct errand, pollable);
    if (++errand->polls > 1 || !errand->by_poll) return 0;
    errand_now(errand);
    return 1;
}

static void errand_done(struct weft_timer *timer)
{
    struct errand *errand = weft_container_of(timer, struct errand, timer);
    errand->polls_before = errand->polls;
    errand->done = true;
}

/* A timer that a command or a poll starts as due runs before the next poll. */
static void due_timers_run_before_the_next_poll(void **state)
{
    for (int by_poll = 0; by_poll < 2; by_poll++) {
        struct errand errand = {.pollable = {.fd = -1, .progress = errand_polled},
                                .command.fn = errand_read,
                                .loop = new_loop(5),
                                .by_poll = by_poll};
        weft_timer_init(&errand.timer, errand_done);
        assert_int_equal(weft_loop_add(errand.loop, &errand.pollable), WEFT_OK);
        weft_loop_post(errand.loop, &errand.command);
        assert_int_equal(weft_loop_wait(errand.loop, &errand.done, soon(WEFT_SECONDS(60))), WEFT_OK);
        assert_int_equal(errand.polls_before, by_poll);
        weft_loop_remove(errand.loop, &errand.pollable);
        weft_loop_free(errand.loop);
    }
}

/* ---- park policy ---- */

static void park_periods_grow(void **state)
{
    uint64_t ns = PARK_NS_SHORT_MIN, sum_ns = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(park_mode_of(ns), PARK_SHORT);
        assert_in_range(ns, PARK_NS_SHORT_MIN, PARK_NS_SHORT_MAX);
        sum_ns += ns;
        ns = park_period_next(ns);
    }
    assert_in_range(sum_ns, 1, PARK_NS_LONG); /* a few calls do not make it long */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(park_mode_of(ns), PARK_LONG);
        assert_int_equal(ns, PARK_NS_LONG);
        ns = park_period_next(ns);
    }
    assert_int_equal(park_mode_of(park_period_next_held(PARK_NS_SHORT_MIN)), PARK_LONG);
    assert_int_equal(park_mode_of(park_period_next_held(ns)), PARK_UNTIL_RELEASED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_run_in_order),
        cmocka_unit_test(a_timer_for_now_needs_no_clock),
        cmocka_unit_test(a_timer_for_now_waits_for_those_before),
        cmocka_unit_test(timers_change_inside_callbacks),
        cmocka_unit_test(commands_arrive_once_and_in_order),
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(a_post_to_a_busy_owner_makes_no_system_call),
        cmocka_unit_test(wait_ends_at_its_deadline_and_uses_no_cpu),
        cmocka_unit_test(wait_wakes_for_a_timer),
        cmocka_unit_test(pollables_are_armed_before_sleep),
        cmocka_unit_test(after_a_long_yield_it_yields_first),
        cmocka_unit_test(work_before_sleep_is_seen),
        cmocka_unit_test(pollables_leave_inside_progress),
        cmocka_unit_test(a_pollable_without_descriptor_is_polled),
        cmocka_unit_test(run_ends_by_stop),
        cmocka_unit_test(threads_alternate_as_owner),
        cmocka_unit_test(waiting_threads_acquire_the_loop),
        cmocka_unit_test(polling_threads_step),
        cmocka_unit_test(a_cancelled_try_acquire_releases),
        cmocka_unit_test(a_command_after_many_acquires),
        cmocka_unit_test(a_try_acquire_that_stepped_arms),
        cmocka_unit_test(take_ends_at_its_deadline),
        cmocka_unit_test(due_timers_run_before_the_next_poll),
        cmocka_unit_test(park_periods_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
