/* loop.c - event loop: step, sleep, mailbox; and the system calls of loop_owner.h.
 *
 *     other threads                          the owner
 *     weft_loop_post: push command  ----->   step: pollables, due timers, all commands
 *                     sleeping?  --eventfd-> idle: spin, yield, arm, set in_epoll, read the mailbox, epoll
 *
 * No wake-up is lost between reading the mailbox and epoll:
 *   1. The owner writes in_epoll, then reads the mailbox. A sender writes the mailbox, then reads in_epoll.
 *   2. All four accesses are sequentially consistent, so at least one side sees the other's write.
 *   3. So the owner does not sleep, or the sender makes the eventfd readable. epoll is level-triggered.
 * Only the owner reads the eventfd: a thread that finds the loop owned consumes no wake-up. */
#include "base/os/system_limit.h"
#include "base/os/descriptor.h"
#include "base/loop/futex.h"
#include "base/loop/loop.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/loop/loop_owner.h"
#include "base/loop/compute.h"
#include "base/os/float_env.h"
#include "base/loop/park_policy.h"
#include "base/loop/mailbox.h"
#include "base/loop/timer_heap.h"
#include "base/weft_assert.h"

#define POLL_BUDGET 64           /* units of work per pollable and step; bounds a step */
#define UNSLEEPABLE_POLL_NS WEFT_MS(1) /* poll period of a pollable without descriptor while idle */
#define STEPS_PER_LOOK 32u       /* idle steps of a waiting thread between clock readings */
/* the same when oversubscribed: the next thread on this core waits for the step */
#define YIELDS_PER_LOOK 8u
/* a shorter yield has run no other thread */
#define YIELD_SHARED_NS 1500u
#define SHARED_YIELDS 8u         /* short yields after which this core counts as not shared */
#define BROKEN_POLL_NS WEFT_MS(5) /* longest sleep of a thread whose descriptors are closed */
/* a waiting thread polls this long for an owned loop before it sleeps */
#define SETTLE_NS 5000u

/* How a waiting thread waits. */
struct loop_waiting {
    enum weft_wait_core wait_core;
    bool wait_core_set; /* weft_loop_set_wait_core was called in this step */
    enum weft_wait_core step_wait_core; /* value set in this step; valid if wait_core_set */
    uint32_t shared_yields;                 /* short yields until this core counts as not shared; 0: it
                                             * does */
};
/* Sleeping and waking. */
struct loop_descriptors {
    int epoll_fd, event_fd; /* -1 with virtual_time */
    bool have_pwait2;       /* false: no epoll_pwait2 (before Linux 5.11) */
    struct descriptor_id event_id, epoll_id;
    atomic_bool is_broken;           /* the program closed or replaced a descriptor: sleeps are polls */
    atomic_bool is_eventfd_readable; /* epoll has reported the eventfd; it has not been read since */
    atomic_uint wake_count;          /* futex: wake-ups while is_broken */
};

struct weft_loop {
    struct weft_env *env;
    struct weft_loop_options options;
    struct timer_heap timers;
    struct weft_list pollables;
    struct weft_list *next_pollable; /* next pollable of the step; a removal advances it */
    size_t unsleepable;              /* pollables with fd -1 */
    bool stepping;
    struct loop_waiting waiting;
    bool timer_started;               /* a timer was started since the last run_timers: it may be due */
    bool timers_due;                 /* a timer was started that is due: no clock reading is needed */
    uint32_t steps;                  /* steps of waiting threads since the last clock reading */
    uint64_t clock_ns;              /* last clock reading */

    struct loop_descriptors descriptors;

    struct mailbox mailbox;
    struct loop_owner owner;
    struct compute compute;
    bool (*pending_check)(void *context); /* weft_loop_set_pending_check; NULL: assume pending work */
    void *pending_context;
    uint64_t engine_wake_ns; /* when the engine thread's epoll times out; written before its release */
    _Atomic(const void *) engine_thread; /* its id while it is in weft_loop_run; else NULL */
    struct thread_guard {
        struct float_env floats;
        int cancel_state;
        bool has_stepped;        /* the pollables armed for an engine thread in epoll may be invalid */
        bool is_try_acquired, is_active;  /* owned by weft_loop_try_acquire; the guard is on */
    } guard;              /* state of the present owner */
};

/* An address that is unique to this thread while it lives. Cheaper than a thread id. */
static const void *thread_mark(void)
{
    static _Thread_local char mark;
    return &mark;
}

bool weft_loop_is_owner(const struct weft_loop *loop)
{
    return atomic_load_explicit(&loop->owner.thread, memory_order_relaxed) == thread_mark();
}

/* Without an engine thread one thread may use a free loop without acquiring it. */
static void assert_holder(struct weft_loop *loop)
{
    WEFT_ASSERT(weft_loop_is_owner(loop) ||
                (atomic_load_explicit(&loop->owner.thread, memory_order_relaxed) == NULL &&
                 atomic_load_explicit(&loop->owner.engine_running, memory_order_relaxed) == 0));
}

void weft_loop_options_init(struct weft_loop_options *options)
{
    *options = (struct weft_loop_options){.size = sizeof *options, .spin_us = 5, .yields = 100};
}

static enum weft_status open_descriptors(struct weft_loop *loop)
{
    loop->descriptors.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->descriptors.epoll_fd < 0) goto err;
    loop->descriptors.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->descriptors.event_fd < 0) goto err_close_epoll;
    struct epoll_event interest = {.events = EPOLLIN, .data.fd = loop->descriptors.event_fd};
    if (epoll_ctl(loop->descriptors.epoll_fd, EPOLL_CTL_ADD, loop->descriptors.event_fd, &interest) != 0)
        goto err_close_event;
    loop->descriptors.event_id = descriptor_id_of(loop->descriptors.event_fd);
    loop->descriptors.epoll_id = descriptor_id_of(loop->descriptors.epoll_fd);
    return WEFT_OK;

err_close_event:
    close(loop->descriptors.event_fd);
err_close_epoll:
    close(loop->descriptors.epoll_fd);
err:;
    int reason = errno;
    weft_log(loop->env, WEFT_LOG_ERROR, "base", "cannot make the descriptors of a loop: %s; raise ulimit -n",
             strerror(reason));
    return weft_limit_status("the loop of a thread", reason);
}

static bool has_commands(struct loop_owner *owner)
{
    return !mailbox_empty(&weft_container_of(owner, struct weft_loop, owner)->mailbox);
}

static void wake(struct loop_owner *owner)
{
    struct weft_loop *loop = weft_container_of(owner, struct weft_loop, owner);
    uint64_t one = 1;
    if (loop->descriptors.event_fd < 0) return;
    if (atomic_load(&loop->descriptors.is_broken)) {
        atomic_fetch_add(&loop->descriptors.wake_count, 1);
        futex_wake_all(&loop->descriptors.wake_count);
        return;
    }
    /* EAGAIN would mean 2^64 - 1 unread wake-ups: readable as well. */
    int cancel_state; /* a cancelled thread would wake no thread */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    while (write(loop->descriptors.event_fd, &one, sizeof one) < 0 && errno == EINTR) {}
    pthread_setcancelstate(cancel_state, NULL);
}

enum weft_status weft_loop_create(struct weft_env *env, const struct weft_loop_options *options,
                                  struct weft_loop **loop_out)
{
    struct weft_loop_options defaults;
    weft_loop_options_init(&defaults);
    if (!options) options = &defaults;
    if (options->size != sizeof *options) return WEFT_ERR_INVALID;

    struct weft_loop *loop = weft_alloc_zero(env, sizeof *loop);
    if (!loop) return WEFT_ERR_NO_MEMORY;
    loop->env = env;
    loop->options = *options;
    if (env->virtual_time) loop->options.virtual_time = true;
    loop->descriptors.have_pwait2 = true;
    loop->descriptors.epoll_fd = loop->descriptors.event_fd = -1;
    weft_list_init(&loop->pollables);
    loop->next_pollable = &loop->pollables;

    enum weft_status status = timer_heap_init(&loop->timers, env);
    if (status < 0) goto err_free_loop;
    loop->owner.has_commands = has_commands;
    loop->owner.wake = wake;
    if (!loop->options.virtual_time) {
        status = open_descriptors(loop);
        if (status < 0) goto err_free_timers;
    }
    compute_init(&loop->compute, loop, loop->options.virtual_time);
    *loop_out = loop;
    return WEFT_OK;

err_free_timers:
    timer_heap_fini(&loop->timers, env);
err_free_loop:
    weft_free_bytes(env, loop);
    return status;
}

void weft_loop_free(struct weft_loop *loop)
{
    if (!loop) return;
    WEFT_ASSERT(atomic_load(&loop->owner.thread) == NULL && !loop->stepping);
    struct weft_list *node, *spare;
    compute_fini(&loop->compute);
    weft_list_foreach(node, spare, &loop->pollables) weft_list_remove(node);
    timer_heap_fini(&loop->timers, loop->env);
    if (!atomic_load(
            &loop->descriptors.is_broken)) { /* otherwise the numbers may belong to the program now */
        if (loop->descriptors.epoll_fd >= 0) close(loop->descriptors.epoll_fd);
        if (loop->descriptors.event_fd >= 0) close(loop->descriptors.event_fd);
    }
    weft_free_bytes(loop->env, loop);
}

void weft_loop_set_wait_core(struct weft_loop *loop, enum weft_wait_core wait_core)
{
    assert_holder(loop);
    if (!loop->stepping) loop->waiting.wait_core = wait_core;
    else if (!loop->waiting.wait_core_set || wait_core == WEFT_WAIT_SAME_CORE)
        loop->waiting.step_wait_core = wait_core;
    loop->waiting.wait_core_set = loop->stepping;
}

struct weft_env *weft_loop_env(struct weft_loop *loop)
{
    return loop->env;
}

/* --- timers --- */

void weft_timer_init(struct weft_timer *timer, void (*fn)(struct weft_timer *))
{
    *timer = (struct weft_timer){.fn = fn, .heap_index = SIZE_MAX};
}

enum weft_status weft_timer_start_later(struct weft_loop *loop, struct weft_timer *timer,
                                        uint64_t deadline_ns)
{
    assert_holder(loop);
    weft_timer_stop(loop, timer);
    timer->deadline_ns = deadline_ns;
    return timer_heap_insert(&loop->timers, loop->env, timer);
}

enum weft_status weft_timer_start(struct weft_loop *loop, struct weft_timer *timer, uint64_t deadline_ns)
{
    loop->timer_started = true;
    return weft_timer_start_later(loop, timer, deadline_ns);
}

enum weft_status weft_timer_start_now(struct weft_loop *loop, struct weft_timer *timer)
{
    loop->timers_due = true;
    /* after timers that were due at the last clock reading */
    return weft_timer_start_later(loop, timer, loop->clock_ns);
}

void weft_timer_stop(struct weft_loop *loop, struct weft_timer *timer)
{
    assert_holder(loop);
    if (timer->heap_index != SIZE_MAX) timer_heap_remove(&loop->timers, timer);
}

uint64_t weft_loop_next_timer_ns(struct weft_loop *loop)
{
    assert_holder(loop);
    return loop->timers.count > 0 ? loop->timers.entries[0].deadline_ns : WEFT_NEVER;
}

/* read_clock false: runs only timers known to be due. A timer that restarts itself as due must not run
 * forever, so at most as many calls are made as timers were running at the start. */
static int run_timers(struct weft_loop *loop, bool read_clock)
{
    read_clock = read_clock || loop->timer_started;
    loop->timers_due = false;
    if (read_clock) {
        loop->timer_started = false;
        loop->clock_ns = weft_now_ns(loop->env);
    }
    const uint64_t now_ns = loop->clock_ns;
    size_t budget = loop->timers.count;
    int work = 0;
    while (budget-- > 0 && loop->timers.count > 0 && loop->timers.entries[0].deadline_ns <= now_ns) {
        struct weft_timer *timer = loop->timers.entries[0].timer;
        timer_heap_remove(&loop->timers, timer);
        timer->fn(timer);
        work++;
    }
    return work;
}

/* --- pollables --- */

enum weft_status weft_loop_add(struct weft_loop *loop, struct weft_pollable *pollable)
{
    assert_holder(loop);
    if (pollable->fd >= 0 && loop->descriptors.epoll_fd >= 0) {
        struct epoll_event interest = {.events = EPOLLIN, .data.fd = pollable->fd};
        if (epoll_ctl(loop->descriptors.epoll_fd, EPOLL_CTL_ADD, pollable->fd, &interest) != 0) {
            int reason = errno;
            weft_log(loop->env, WEFT_LOG_ERROR, "base", "descriptor %d cannot be slept on: %s", pollable->fd,
                     strerror(reason));
            if (reason == EEXIST) return WEFT_ERR_EXISTS;
            return reason == ENOMEM || reason == ENOSPC ? WEFT_ERR_NO_MEMORY : WEFT_ERR_IO;
        }
    }
    if (pollable->fd == -1) loop->unsleepable++;
    weft_list_append(&loop->pollables, &pollable->link);
    return WEFT_OK;
}

void weft_loop_remove(struct weft_loop *loop, struct weft_pollable *pollable)
{
    assert_holder(loop);
    /* EBADF: its owner has closed it, which removed it. */
    if (pollable->fd >= 0 && loop->descriptors.epoll_fd >= 0)
        epoll_ctl(loop->descriptors.epoll_fd, EPOLL_CTL_DEL, pollable->fd, NULL);
    if (pollable->fd == -1) loop->unsleepable--;
    if (loop->next_pollable == &pollable->link) loop->next_pollable = pollable->link.next;
    weft_list_remove(&pollable->link);
}

static int run_pollables(struct weft_loop *loop)
{
    int work = 0;
    loop->next_pollable = loop->pollables.next;
    while (loop->next_pollable != &loop->pollables) {
        struct weft_pollable *pollable = weft_container_of(loop->next_pollable, struct weft_pollable, link);
        loop->next_pollable = pollable->link.next;
        work += pollable->progress(pollable, POLL_BUDGET);
    }
    return work;
}

/* Polls cheap pollables until one has done work; -1: there is none. Stops there, because that call may have
 * changed the list. */
static int run_quick_pollables(struct weft_loop *loop)
{
    struct weft_list *node, *spare;
    int work = -1;
    weft_list_foreach(node, spare, &loop->pollables) {
        struct weft_pollable *pollable = weft_container_of(node, struct weft_pollable, link);
        if (!pollable->quick) continue;
        work = pollable->progress(pollable, POLL_BUDGET);
        if (work > 0) return work;
    }
    return work;
}

/* true: every pollable's descriptor becomes readable for every later event. */
static bool arm_pollables(struct weft_loop *loop)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &loop->pollables) {
        struct weft_pollable *pollable = weft_container_of(node, struct weft_pollable, link);
        if (pollable->arm && pollable->arm(pollable) != WEFT_OK) return false;
    }
    return true;
}

/* --- mailbox --- */

void weft_loop_post(struct weft_loop *loop, struct weft_command *command)
{
    mailbox_push(&loop->mailbox, command);
    loop_owner_command_posted(&loop->owner, &(struct loop_owner_call){0}, false);
}

void weft_loop_post_lazy(struct weft_loop *loop, struct weft_command *command)
{
    mailbox_push(&loop->mailbox, command);
    loop_owner_command_posted(&loop->owner, &(struct loop_owner_call){0}, true);
}

void weft_loop_notify(struct weft_loop *loop)
{
    loop_owner_condition_changed(&loop->owner, &(struct loop_owner_call){0});
}

/* --- long computations --- */

void weft_loop_compute(struct weft_loop *loop, struct weft_task *task, uint64_t elements)
{
    assert_holder(loop);
    compute_start(&loop->compute, task, elements);
}

void weft_loop_compute_cancel(struct weft_loop *loop, struct weft_task *task)
{
    compute_cancel(&loop->compute, task);
}

void weft_loop_compute_cancel_all(struct weft_loop *loop)
{
    compute_cancel_all(&loop->compute);
}

/* --- stepping and sleeping --- */

static void step_begin(struct weft_loop *loop)
{
    WEFT_ASSERT(!loop->stepping);
    loop->stepping = true;
    loop->waiting.wait_core_set = false;
}

static void step_end(struct weft_loop *loop)
{
    loop->stepping = false;
    if (loop->waiting.wait_core_set) loop->waiting.wait_core = loop->waiting.step_wait_core;
}

static int step(struct weft_loop *loop, bool read_clock)
{
    assert_holder(loop);
    weft_loop_guard_thread(loop);
    loop->guard.has_stepped = true;
    step_begin(loop);
    int work = run_pollables(loop);
    if (read_clock || loop->timer_started || loop->timers_due) work += run_timers(loop, read_clock);
    work += mailbox_run(&loop->mailbox);
    step_end(loop);
    return work;
}

int weft_loop_step(struct weft_loop *loop) { return step(loop, true); }

/* Runs commands, which may make the condition true, and the timers they started as due. Without commands
 * polls the cheap pollables. -1: neither exists, so a full step is needed. */
static int step_quick(struct weft_loop *loop)
{
    step_begin(loop);
    int work = mailbox_run(&loop->mailbox);
    if (work == 0) work = run_quick_pollables(loop);
    else if (loop->timer_started || loop->timers_due) work += run_timers(loop, false);
    step_end(loop);
    return work;
}

int weft_loop_run_commands(struct weft_loop *loop)
{
    assert_holder(loop);
    step_begin(loop);
    int count = mailbox_run(&loop->mailbox);
    step_end(loop);
    return count;
}

static void mark_broken(struct weft_loop *loop)
{
    if (!atomic_exchange(&loop->descriptors.is_broken, true))
        weft_log(loop->env, WEFT_LOG_ERROR, "base",
                 "a thread cannot sleep until an event any more and polls: %s", WEFT_DESCRIPTORS_LOST);
}

bool weft_loop_descriptors_lost(struct weft_loop *loop)
{
    if (loop->descriptors.event_fd < 0) return false; /* virtual time */
    if (descriptor_is_same(loop->descriptors.event_fd, loop->descriptors.event_id) &&
        descriptor_is_same(loop->descriptors.epoll_fd, loop->descriptors.epoll_id))
        return false;
    mark_broken(loop);
    return true;
}

/* A wake-up just before the futex call is lost, so the sleep is short. */
static void sleep_without_epoll(struct weft_loop *loop, uint64_t timeout_ns)
{
    futex_wait(&loop->descriptors.wake_count, atomic_load(&loop->descriptors.wake_count),
               timeout_ns < BROKEN_POLL_NS ? timeout_ns : BROKEN_POLL_NS);
}

/* Call after an epoll without event. count: its result. */
static void check_descriptors(struct weft_loop *loop, int count)
{
    const bool failed = count < 0 && errno != EINTR && errno != ENOSYS;
    if (!weft_loop_descriptors_lost(loop) && failed) mark_broken(loop);
}

static void sleep_in_epoll(struct weft_loop *loop, uint64_t timeout_ns)
{
    struct epoll_event events[8];
    int count = -1;
    if (atomic_load_explicit(&loop->descriptors.is_broken, memory_order_relaxed)) {
        sleep_without_epoll(loop, timeout_ns);
        return;
    }
    if (timeout_ns > DESCRIPTOR_LOOK_NS) timeout_ns = DESCRIPTOR_LOOK_NS;
    if (loop->descriptors.have_pwait2) {
        struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
        count = epoll_pwait2(loop->descriptors.epoll_fd, events, 8, &timeout, NULL);
        if (count < 0 && errno == ENOSYS) loop->descriptors.have_pwait2 = false;
    }
    if (!loop->descriptors.have_pwait2) { /* milliseconds, rounded up: an early wake-up would spin */
        uint64_t timeout_ms = timeout_ns / 1000000u + 1;
        count = epoll_wait(loop->descriptors.epoll_fd, events, 8, (int)timeout_ms);
    }
    for (int i = 0; i < count; i++)
        if (events[i].data.fd == loop->descriptors.event_fd)
            atomic_store(&loop->descriptors.is_eventfd_readable, true);
    if (count <= 0) check_descriptors(loop, count);
}

/* Owner, after its sleep: resets the eventfd. Reads only after epoll has reported it: the number may now be a
 * descriptor of the program, whose read would block. */
static void eventfd_drain(struct weft_loop *loop)
{
    uint64_t wakes;
    if (!atomic_exchange(&loop->descriptors.is_eventfd_readable, false)) return;
    if (read(loop->descriptors.event_fd, &wakes, sizeof wakes) < 0) return;
}

/* Arms the pollables. Returns whether the thread may sleep, and for how long. */
static bool may_sleep(struct weft_loop *loop, uint64_t until_ns, uint64_t *timeout_ns_out)
{
    if (!arm_pollables(loop)) return false;
    uint64_t wake_ns = weft_loop_next_timer_ns(loop);
    if (until_ns < wake_ns) wake_ns = until_ns;
    uint64_t timeout_ns = WEFT_NEVER;
    if (wake_ns != WEFT_NEVER) {
        uint64_t now_ns = weft_now_ns(loop->env);
        if (wake_ns <= now_ns) return false;
        timeout_ns = wake_ns - now_ns;
    }
    if (loop->unsleepable > 0 && timeout_ns > UNSLEEPABLE_POLL_NS) timeout_ns = UNSLEEPABLE_POLL_NS;
    *timeout_ns_out = timeout_ns;
    return true;
}

/* A run of steps without work. */
struct spin {
    bool idle;
    uint32_t yields;
    uint64_t since_ns;
};

/* A long yield has run another thread that wants this core, perhaps the peer waited for. Later idle runs then
 * yield before they spin. */
static void yield(struct weft_loop *loop)
{
    if (loop->waiting.wait_core == WEFT_WAIT_SAME_CORE) { /* no clock needed */
        sched_yield();
        return;
    }
    uint64_t since_ns = weft_now_ns(loop->env);
    sched_yield();
    if (weft_now_ns(loop->env) - since_ns >= YIELD_SHARED_NS) loop->waiting.shared_yields = SHARED_YIELDS;
    else if (loop->waiting.shared_yields > 0) loop->waiting.shared_yields--;
}

/* Accounts for a step's work. true: idle for long enough to sleep. now_ns 0: no clock reading. */
static bool spin_account(struct weft_loop *loop, struct spin *spin, int work, uint64_t now_ns)
{
    if (work > 0) {
        spin->idle = false;
        return false;
    }
    if (loop->options.spin_us == 0) return true;
    if (!spin->idle) {
        spin->idle = true;
        spin->yields = 0;
        spin->since_ns = now_ns;
        return false;
    }
    bool yields_first = loop->waiting.wait_core == WEFT_WAIT_SAME_CORE || loop->waiting.shared_yields > 0;
    if (spin->yields == 0 && !yields_first) {
        if (now_ns == 0) return false;
        if (spin->since_ns == 0) spin->since_ns = now_ns;
        if (weft_elapsed_ns(spin->since_ns, now_ns) < (uint64_t)loop->options.spin_us * 1000) return false;
    }
    if (spin->yields >= loop->options.yields) return true;
    spin->yields++;
    yield(loop);
    return false;
}

/* --- stepping by a waiting thread --- */

/* End of a wait. A timeout starts at the first clock reading, since most waits end before it. */
struct wait_limit {
    uint64_t until_ns; /* 0: not known yet */
    uint64_t timeout_ns;
};

static uint64_t wait_limit_ns(struct wait_limit *wait_limit, uint64_t now_ns)
{
    if (wait_limit->until_ns == 0) wait_limit->until_ns = weft_deadline_ns(now_ns, wait_limit->timeout_ns);
    return wait_limit->until_ns;
}

/* One step of a waiting thread. A clock reading costs as much as polling everything. It is skipped unless a
 * timer was started, the last full step did work, the thread yields or sleeps, or STEPS_PER_LOOK steps have
 * passed. */
static int drive_step(struct weft_loop *loop, const struct spin *spin, bool *read_clock, uint64_t *now_ns_out)
{
    bool yielded = spin->yields > 0 &&
                   (loop->waiting.wait_core != WEFT_WAIT_SAME_CORE || spin->yields % YIELDS_PER_LOOK == 0);
    *read_clock = *read_clock || loop->timer_started || yielded || ++loop->steps >= STEPS_PER_LOOK;
    int work = *read_clock || loop->steps % 4 == 0 ? -1 : step_quick(loop);
    bool whole = work < 0;
    if (whole) work = step(loop, *read_clock);
    *now_ns_out = *read_clock ? loop->clock_ns : 0;
    if (*read_clock) loop->steps = 0;
    *read_clock = whole && work > 0;
    return work;
}

/* Steps until the condition is true or the limit is reached. is_waiter: also returns if a thread claims the
 * loop or it is stopped. */
static void drive(struct weft_loop *loop, bool (*condition)(void *), void *context,
                  struct wait_limit *wait_limit, bool is_waiter)
{
    struct spin spin = {0};
    struct loop_owner_call call = {0};
    uint64_t timeout_ns, now_ns;
    bool read_clock = loop->options.spin_us == 0;
    if (!mailbox_empty(&loop->mailbox) && (!is_waiter || loop_owner_can_step(&loop->owner, &call))) {
        (void)step_quick(loop); /* sends of these commands precede the first poll */
        if (condition(context)) return;
    }
    while (!is_waiter || loop_owner_can_step(&loop->owner, &call)) {
        int work = drive_step(loop, &spin, &read_clock, &now_ns);
        if (condition(context) || (is_waiter && atomic_load(&loop->owner.claims) > 0)) return;
        if (now_ns != 0 && now_ns >= wait_limit_ns(wait_limit, now_ns)) return;
        if (!spin_account(loop, &spin, work, now_ns)) continue;
        read_clock = true;
        if (!may_sleep(loop, wait_limit_ns(wait_limit, weft_now_ns(loop->env)), &timeout_ns)) continue;
        if (loop_owner_sleep_begin(&loop->owner, &call, is_waiter) && !condition(context))
            sleep_in_epoll(loop, timeout_ns);
        loop_owner_sleep_end(&loop->owner, &call);
        eventfd_drain(loop);
    }
}

static bool is_true(void *context)
{
    return *(const bool *)context;
}

enum weft_status weft_loop_wait(struct weft_loop *loop, const bool *done, uint64_t until_ns)
{
    struct loop_owner_call call = {.thread = thread_mark()};
    WEFT_ASSERT(!loop->options.virtual_time);
    /* a free loop: acquire it, so that a post wakes this thread */
    bool acquired_here = !weft_loop_is_owner(loop);
    if (acquired_here) WEFT_ASSERT(loop_owner_try_acquire(&loop->owner, &call, true));
    struct wait_limit wait_limit = {.until_ns = until_ns ? until_ns : 1};
    if (!*done) drive(loop, is_true, (void *)done, &wait_limit, false);
    if (acquired_here) loop_owner_release(&loop->owner, &call, false, false);
    return *done ? WEFT_OK : WEFT_ERR_DEADLINE;
}

/* Does the engine thread have to be woken at the release? For due timers; and in epoll if the pollables
 * cannot be armed or a timer is earlier than its timeout. */
static bool has_urgent_work(struct weft_loop *loop)
{
    uint64_t next_ns = weft_loop_next_timer_ns(loop);
    if (loop->timer_started) loop->clock_ns = weft_now_ns(loop->env);
    if (next_ns <= loop->clock_ns) return true; /* timers that became due later are found by the next owner */
    if (!(atomic_load(&loop->owner.in_epoll) & IN_EPOLL_ENGINE)) return false;
    weft_loop_guard_thread(loop);
    return next_ns < loop->engine_wake_ns || !arm_pollables(loop);
}

/* Is work open for which no thread may wait? */
static bool has_pending(const struct weft_loop *loop)
{
    return !loop->pending_check || loop->pending_check(loop->pending_context);
}

/* Arithmetic must not depend on the thread's rounding mode, and a cancelled thread must not keep the loop. */
static void thread_guard_begin(struct thread_guard *guard)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &guard->cancel_state);
    float_env_begin(&guard->floats);
}

static void thread_guard_end(const struct thread_guard *guard)
{
    float_env_end(&guard->floats);
    pthread_setcancelstate(guard->cancel_state, NULL);
}

/* Another thread owns the loop, or none may: waits for a change. */
static void wait_for_events(struct weft_loop *loop, struct loop_owner_call *call, bool (*condition)(void *),
                            void *context, struct wait_limit *wait_limit)
{
    uint64_t now_ns = weft_now_ns(loop->env), poll_until_ns = now_ns + SETTLE_NS,
             until_ns = wait_limit_ns(wait_limit, now_ns);
    bool is_free = !loop_owner_wait_begin(&loop->owner, call);
    while (!is_free && !condition(context)) {
        is_free = atomic_load(&loop->owner.thread) == NULL && atomic_load(&loop->owner.engine_running) &&
               atomic_load(&loop->owner.claims) == 0 && !atomic_load(&loop->owner.stop_requested);
        now_ns = weft_now_ns(loop->env);
        if (is_free || now_ns >= poll_until_ns) break;
    }
    if (!is_free && now_ns < until_ns && !condition(context))
        futex_wait(&loop->owner.events, call->seen, until_ns == WEFT_NEVER ? WEFT_NEVER : until_ns - now_ns);
    loop_owner_wait_end(&loop->owner, call);
}

static enum weft_status wait_until(struct weft_loop *loop, bool (*condition)(void *context), void *context,
                                   struct wait_limit *wait_limit)
{
    struct loop_owner_call call = {.thread = thread_mark()};
    if (loop->env->virtual_time)
        return loop->env->virtual_time->wait(loop->env, condition, context,
                                             wait_limit_ns(wait_limit, weft_now_ns(loop->env)));
    WEFT_ASSERT(!loop->options.virtual_time && !weft_loop_is_owner(loop));
    while (!condition(context)) {
        if (wait_limit->until_ns != 0 && wait_limit->until_ns != WEFT_NEVER &&
            weft_now_ns(loop->env) >= wait_limit->until_ns)
            return WEFT_ERR_DEADLINE;
        if (loop_owner_try_acquire(&loop->owner, &call, false)) {
            struct thread_guard guard;
            thread_guard_begin(&guard);
            drive(loop, condition, context, wait_limit, true);
            bool urgent = has_urgent_work(loop);
            thread_guard_end(&guard);
            loop_owner_release(&loop->owner, &call, urgent, has_pending(loop));
        } else {
            wait_for_events(loop, &call, condition, context, wait_limit);
        }
    }
    return WEFT_OK;
}

enum weft_status weft_loop_wait_for(struct weft_loop *loop, bool (*condition)(void *context), void *context,
                                    uint64_t until_ns)
{
    return wait_until(loop, condition, context, &(struct wait_limit){.until_ns = until_ns ? until_ns : 1});
}

enum weft_status weft_loop_wait_within(struct weft_loop *loop, bool (*condition)(void *context),
                                       void *context, uint64_t timeout_ns)
{
    return wait_until(loop, condition, context, &(struct wait_limit){.timeout_ns = timeout_ns});
}

/* --- engine thread --- */

bool weft_loop_is_engine_thread(const struct weft_loop *loop)
{
    /* only this thread writes its own id */
    return atomic_load_explicit(&loop->engine_thread, memory_order_relaxed) == thread_mark();
}

/* Another thread owns the loop: parks until this thread may try to acquire. */
static void park(struct weft_loop *loop, struct loop_owner_call *call)
{
    uint64_t period_ns = PARK_NS_SHORT_MIN;
    while (!atomic_load(&loop->owner.stop_requested)) {
        const unsigned mode = park_mode_of(period_ns);
        bool sleeps = loop_owner_park_begin(&loop->owner, call, mode);
        /* the release may have been too early to see LONG */
        bool is_late = mode == PARK_LONG && atomic_load(&loop->owner.thread) == NULL && has_pending(loop);
        if (is_late) period_ns = PARK_NS_SHORT_MIN;
        if (sleeps) futex_wait(&loop->owner.park_mode, mode, period_ns);
        bool woken = loop_owner_park_end(&loop->owner, call);
        if (mode == PARK_UNTIL_RELEASED) return;
        int review = loop_owner_park_review(&loop->owner, call);
        if (review == REVIEW_RUN) return;
        if (woken) period_ns = PARK_NS_SHORT_MIN;
        else if (review == REVIEW_OWNER_UNCHANGED) period_ns = park_period_next_held(period_ns);
        else period_ns = park_period_next(period_ns);
    }
}

/* Owner: steps until idle (then sleeps in epoll and returns true), until a thread waits for the loop, or
 * until the stop. Returns without owning the loop. */
static bool run_as_owner(struct weft_loop *loop, struct loop_owner_call *call)
{
    struct spin spin = {0};
    uint64_t timeout_ns;
    while (!atomic_load(&loop->owner.stop_requested)) {
        int work = weft_loop_step(loop);
        if (loop_owner_is_contended(&loop->owner, call)) break;
        if (!spin_account(loop, &spin, work, weft_now_ns(loop->env)) ||
            !may_sleep(loop, WEFT_NEVER, &timeout_ns))
            continue;
        loop->engine_wake_ns = timeout_ns == WEFT_NEVER ? WEFT_NEVER : weft_now_ns(loop->env) + timeout_ns;
        if (loop_owner_engine_sleep_begin(&loop->owner, call)) sleep_in_epoll(loop, timeout_ns);
        loop_owner_engine_sleep_end(&loop->owner, call);
        return true;
    }
    loop_owner_engine_yield(&loop->owner, call);
    return false;
}

void weft_loop_run(struct weft_loop *loop)
{
    struct loop_owner_call call = {.thread = thread_mark()};
    WEFT_ASSERT(!loop->options.virtual_time && !weft_loop_is_owner(loop));
    fesetenv(FE_DFL_ENV); /* as waiting threads: the creating thread may have changed its own */
    atomic_store_explicit(&loop->engine_thread, thread_mark(), memory_order_relaxed);
    atomic_store(&loop->owner.engine_running, 1);
    bool slept = false;
    while (!atomic_load(&loop->owner.stop_requested)) {
        bool is_free = loop_owner_engine_try_acquire(&loop->owner, &call);
        if (is_free) {
            if (slept) eventfd_drain(loop);
            is_free = slept = run_as_owner(loop, &call);
        }
        /* The thread it released for needs time to wake: acquiring again would keep it out. */
        if (!is_free) park(loop, &call);
    }
    (void)weft_loop_acquire(loop, WEFT_NEVER); /* cannot fail without a deadline */
    loop_owner_engine_end(&loop->owner, &call);
    /* another thread may get the same id */
    atomic_store_explicit(&loop->engine_thread, NULL, memory_order_relaxed);
    weft_loop_release(loop);
}

void weft_loop_stop(struct weft_loop *loop)
{
    atomic_store(&loop->owner.stop_requested, 1);
    loop_owner_stop_requested(&loop->owner, &(struct loop_owner_call){0});
}

bool weft_loop_is_stopped(struct weft_loop *loop) { return atomic_load(&loop->owner.stop_requested); }

/* --- acquire and release --- */

enum weft_status weft_loop_acquire(struct weft_loop *loop, uint64_t until_ns)
{
    struct loop_owner_call call = {.thread = thread_mark()};
    WEFT_ASSERT(!weft_loop_is_owner(loop));
    loop_owner_claim_begin(&loop->owner, &call);
    bool taken;
    while (!(taken = loop_owner_try_acquire(&loop->owner, &call, true))) {
        uint64_t now_ns = until_ns == WEFT_NEVER ? 0 : weft_now_ns(loop->env);
        if (now_ns >= until_ns) break;
        if (loop_owner_claim_wait_begin(&loop->owner, &call))
            futex_wait(&loop->owner.events, call.seen,
                       until_ns == WEFT_NEVER ? WEFT_NEVER : until_ns - now_ns);
        loop_owner_wait_end(&loop->owner, &call);
    }
    loop_owner_claim_end(&loop->owner, &call, taken);
    return taken ? WEFT_OK : WEFT_ERR_DEADLINE;
}

void weft_loop_release(struct weft_loop *loop)
{
    WEFT_ASSERT(weft_loop_is_owner(loop) && !loop->stepping);
    loop_owner_release(&loop->owner, &(struct loop_owner_call){0}, has_urgent_work(loop), has_pending(loop));
}

/* --- try-acquire: short work without a step --- */

void weft_loop_set_pending_check(struct weft_loop *loop, bool (*fn)(void *context), void *context)
{
    loop->pending_check = fn;
    loop->pending_context = context;
}

static bool try_acquire(struct weft_loop *loop)
{
    struct loop_owner_call call = {.thread = thread_mark()};
    if (atomic_load(&loop->owner.stop_requested)) return false;
    if (!loop_owner_try_acquire(&loop->owner, &call, false)) return false;
    loop->guard.is_try_acquired = true;
    loop->guard.has_stepped = loop->guard.is_active = false;
    return true;
}

bool weft_loop_try_acquire(struct weft_loop *loop)
{
    return mailbox_empty(&loop->mailbox) && try_acquire(loop);
}

bool weft_loop_try_step(struct weft_loop *loop)
{
    if (loop->options.virtual_time || loop->env->virtual_time || weft_loop_is_owner(loop) ||
        !try_acquire(loop))
        return false;
    (void)weft_loop_step(loop);
    weft_loop_release_pending(loop, WEFT_LOOP_PENDING_AWAITED);
    return true;
}

/* Both cost as much as the rest of a try-acquire, and few calls need them. */
void weft_loop_guard_thread(struct weft_loop *loop)
{
    if (!loop->guard.is_try_acquired || loop->guard.is_active) return;
    loop->guard.is_active = true;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &loop->guard.cancel_state);
    float_env_begin(&loop->guard.floats);
}

void weft_loop_release_pending(struct weft_loop *loop, enum weft_loop_pending pending)
{
    WEFT_ASSERT(weft_loop_is_owner(loop) && !loop->stepping);
    bool urgent = (pending != WEFT_LOOP_PENDING_NONE || loop->guard.has_stepped) && has_urgent_work(loop),
         is_active = loop->guard.is_active;
    int cancel_state = loop->guard.cancel_state;
    if (is_active) float_env_end(&loop->guard.floats);
    loop->guard.is_try_acquired = false;
    loop_owner_release(&loop->owner, &(struct loop_owner_call){0}, urgent,
                       pending == WEFT_LOOP_PENDING_NEW);
    if (is_active) pthread_setcancelstate(cancel_state, NULL);
}

void weft_cpu_relax(bool yields)
{
    if (yields) sched_yield();
#ifdef __x86_64__
    else __builtin_ia32_pause();
#endif
}
