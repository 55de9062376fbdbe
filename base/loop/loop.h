/* loop.h - one engine's heart: pollables, timers and a mailbox, stepped by one thread at a time.
 *
 * A loop has at most one *holder*: weft_loop_step, timers and pollables are for the thread that holds it
 * (asserted). The engine's own thread, the *runner*, holds it inside weft_loop_run while there is something
 * to do. A thread that waits for something the engine does (weft_loop_wait_for) takes the loop over and
 * drives the engine itself, without waking the runner: it pays no hand-over. Several may wait at once: one
 * drives, the others sleep, and when the driver leaves, another waiter or the runner goes on (loop_owner.h).
 * So callbacks run on the runner or on a waiting thread, but never on two threads at a time, and with the
 * default floating-point environment on either. While no runner exists (before the engine starts, in a test)
 * any one thread may use a free loop like a plain object. weft_loop_post, _notify and _stop are for any
 * thread.
 *
 * The loop knows pollables and timers only. Real time: a step polls all pollables, then due timers, then
 * mail (a thread that waits reads the mail first); when nothing happened it spins a few microseconds,
 * yields a bounded number of times, arms the pollables and sleeps in epoll until a descriptor, a post or
 * the next timer. Virtual time (the simulator): the caller steps the loop until it answers 0 and then
 * moves its clock to weft_loop_next_timer_ns(). */
#ifndef WEFT_BASE_LOOP_LOOP_H
#define WEFT_BASE_LOOP_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/list.h"
#include "weft/status.h"

struct weft_loop;

struct weft_timer {
    void (*fn)(struct weft_timer *timer); /* may restart the timer; runs on the owner's thread */
    uint64_t deadline_ns;                 /* on the env's clock */
    size_t heap_index;                    /* SIZE_MAX: not running */
};

#define WEFT_POLLABLE_NO_FD (-2)

struct weft_pollable {
    int fd; /* readable when there may be work; -1: none, a sleeping loop wakes every millisecond to poll it;
               WEFT_POLLABLE_NO_FD: whoever makes work for it makes another pollable of this loop readable */
    /* Do up to `budget` pieces of work, never block; returns how many were done. */
    int (*progress)(struct weft_pollable *pollable, int budget);
    /* Before sleeping: WEFT_OK when `fd` will become readable for anything that happens from now on,
     * WEFT_ERR_AGAIN when there is work already (poll again; any other error counts as this one, and
     * progress reports it). NULL: a plain level-triggered fd. */
    enum weft_status (*arm)(struct weft_pollable *pollable);
    struct weft_list link;
    bool quick; /* by its owner, at any time: to poll it takes a load or two, and somebody waits for what
                 * it will find. A thread that drives the loop looks at such ones between its steps, too */
};

/* One letter to another thread's loop; memory belongs to the sender until fn has run. */
struct weft_command {
    void (*fn)(struct weft_command *command); /* runs on the owner's thread, once per post */
    struct weft_command *next;
};

struct weft_loop_options {
    size_t size;            /* sizeof(struct weft_loop_options) */
    uint32_t spin_us;       /* polling before the first yield; default 5, 0: sleep at once */
    uint32_t yields;        /* polls with a sched_yield before each, before sleep; default 100 */
    bool virtual_time;      /* no descriptors: weft_loop_wait is not allowed; default false, and always
                             * true in an env whose time is */
};
void weft_loop_options_init(struct weft_loop_options *options);

enum weft_status weft_loop_create(struct weft_env *env, const struct weft_loop_options *options,
                                  struct weft_loop **loop_out);
void weft_loop_free(struct weft_loop *loop); /* NULL is fine; timers and pollables are dropped, not called */

/* Holder: where are those that this loop waits for? WEFT_WAIT_SAME_CORE: they need its core (more ranks
 * than cores share a host), so polls are separated by sched_yield from the first on, instead of after
 * spin_us. WEFT_WAIT_OTHER_CORE: on another core, and nobody whom they wait for needs this one: spin_us
 * are polled first even where others want the core. WEFT_WAIT_UNKNOWN, the default: as the last yields
 * have shown. Of what several say in one step HERE counts before ANYWHERE, and that before ELSEWHERE. */
enum weft_wait_core { WEFT_WAIT_UNKNOWN, WEFT_WAIT_SAME_CORE, WEFT_WAIT_OTHER_CORE };
void weft_loop_set_wait_core(struct weft_loop *loop, enum weft_wait_core wait_core);

struct weft_env *weft_loop_env(struct weft_loop *loop);

void weft_timer_init(struct weft_timer *timer, void (*fn)(struct weft_timer *));
/* (Re)start: runs once when the clock reaches deadline_ns. WEFT_ERR_NO_MEMORY leaves it stopped. */
enum weft_status weft_timer_start(struct weft_loop *loop, struct weft_timer *timer, uint64_t deadline_ns);
/* The same for now: it is due, which takes no look at the clock, neither here nor to find it so. */
enum weft_status weft_timer_start_now(struct weft_loop *loop, struct weft_timer *timer);
/* The same for a time that is known to be a while away, a millisecond or more: it is left to the looks at
 * the clock that there are anyway. */
enum weft_status weft_timer_start_later(struct weft_loop *loop, struct weft_timer *timer,
                                        uint64_t deadline_ns);
void weft_timer_stop(struct weft_loop *loop, struct weft_timer *timer); /* fine when not running */
static inline bool weft_timer_is_running(const struct weft_timer *timer)
{
    return timer->heap_index != SIZE_MAX;
}

enum weft_status weft_loop_add(struct weft_loop *loop, struct weft_pollable *pollable);
void weft_loop_remove(struct weft_loop *loop, struct weft_pollable *pollable);

/* Any thread. Letters run in the order posted by one thread. A post makes a system call only when
 * nobody steps the loop. Posting to a loop that is being freed is the caller's bug. */
void weft_loop_post(struct weft_loop *loop, struct weft_command *command);
/* As weft_loop_post, by a thread that is likely to wait for the letter's effect at once. While waiting
 * threads drive the loop now and then, this makes no system call; if then nobody waits, the runner finds
 * the letter within 1 ms, or 4 ms after a series of waits that came one in 20 us or more often
 * (base/park_policy.h). */
void weft_loop_post_lazy(struct weft_loop *loop, struct weft_command *command);

/* One round, never blocks: pollables, due timers, mail. Returns pieces of work done. Not from inside
 * a callback of the same loop (asserted). */
int weft_loop_step(struct weft_loop *loop);

/* Holder: only the letters that have come, as a step would run them. For an owner who steps no more and
 * must know of everything that was posted. Returns how many ran. */
int weft_loop_run_commands(struct weft_loop *loop);

/* Step until `*done` is true or the clock passes until_ns (at least one step); sleeps when idle. `done` is
 * set by a callback on this thread (a letter, a timer, a pollable). For the holder, or on a loop that has
 * no runner. Returns WEFT_OK, or WEFT_ERR_DEADLINE. Not with virtual_time. */
enum weft_status weft_loop_wait(struct weft_loop *loop, const bool *done, uint64_t until_ns);

/* Any thread that does not hold the loop: return when fact(context) holds (WEFT_OK), or when the clock
 * passes until_ns (WEFT_ERR_DEADLINE). Drives the loop meanwhile when it has a runner and nobody else
 * does, else sleeps. `fact` is cheap, has no side effects, and is called on this thread; whoever makes it
 * true calls weft_loop_notify afterwards. Cancellation of the thread (pthread_cancel) is held off while it
 * drives. With virtual_time only where the env can wait. */
enum weft_status weft_loop_wait_for(struct weft_loop *loop, bool (*condition)(void *context), void *context,
                                    uint64_t until_ns);
/* The same with a timeout, counted from the first look at the clock, a few steps after the call: for waits
 * that mostly end before. */
enum weft_status weft_loop_wait_within(struct weft_loop *loop, bool (*condition)(void *context), void *context,
                                       uint64_t timeout_ns);
/* Any thread: has the program closed or replaced the descriptors that wake this loop? Two system calls.
 * Sleepers then poll, and a line is logged. */
bool weft_loop_descriptors_lost(struct weft_loop *loop);
#define WEFT_DESCRIPTORS_LOST \
    "the program closed or replaced descriptors that weft opened; it must keep those that it did not open"
/* Any thread: facts have changed. A system call only when somebody sleeps. */
void weft_loop_notify(struct weft_loop *loop);

/* Be the loop's runner until weft_loop_stop (any thread; also before the run began). From the stop on
 * nobody steps. */
void weft_loop_run(struct weft_loop *loop);
void weft_loop_stop(struct weft_loop *loop);
bool weft_loop_is_stopped(struct weft_loop *loop); /* any thread */
/* Does the calling thread hold the loop? Any thread. */
bool weft_loop_is_owner(const struct weft_loop *loop);
/* Is the calling thread the runner? Any thread. */
bool weft_loop_is_engine_thread(const struct weft_loop *loop);

/* The baton by hand. take: wait until this thread holds the loop, at most until until_ns (then
 * WEFT_ERR_DEADLINE and nothing is held). Runner and drivers give way after their current step; another
 * taker keeps it until its give. give: only by the thread that took it. */
enum weft_status weft_loop_acquire(struct weft_loop *loop, uint64_t until_ns);
void weft_loop_release(struct weft_loop *loop);

/* Any thread that does not hold the loop: hold it if it has a runner, nobody holds or claims it, and no
 * letter is in it; never waits. For work of a microsecond or so that needs no step. */
bool weft_loop_try_acquire(struct weft_loop *loop);
enum weft_loop_pending {
    WEFT_LOOP_PENDING_NONE, /* nobody need be told */
    WEFT_LOOP_PENDING_AWAITED,  /* a timer was started, a pollable has something to wait for, or something
                                 * is open; and a thread will wait for it soon: should it not, a runner
                                 * that looks seldom finds it at its next look */
    WEFT_LOOP_PENDING_NEW,   /* the same, and nobody is known to wait for it */
};
void weft_loop_release_pending(struct weft_loop *loop, enum weft_loop_pending pending);
/* The holder, before it calls what may be a cancellation point (most system calls) or computes with
 * floats: from here on until the give its thread is not cancelled, and its floating-point environment is
 * the default one. A step does so by itself. Nothing for who has not borrowed. */
void weft_loop_guard_thread(struct weft_loop *loop);
/* Before the runner is there: fn(context), from any thread, says whether something is open that the loop
 * has to go on with by itself. While nothing is, and threads borrow it often, a runner that has found it
 * taken looks again every 4 ms only (base/park_policy.h). */
void weft_loop_set_pending_check(struct weft_loop *loop, bool (*fn)(void *context), void *context);
/* Any thread, between two looks of its own at memory that another process writes. yields: whoever else is
 * ready may have the core. */
void weft_cpu_relax(bool yields);

/* ---- long computations ----
 * No step of a loop may be long: arithmetic on more than WEFT_LOOP_SLICE elements is cut into slices by
 * its owner, or, where it cannot be cut, is a task for the loop's compute thread (one per loop, started
 * with the first long task, so tasks of one loop run one after the other). */
#define WEFT_LOOP_SLICE 65536u /* elements: about 100 us of memory traffic */

struct weft_task {
    void (*run)(struct weft_task *task);  /* on the compute thread: touches nothing but what is the task's
                                           * until done */
    void (*done)(struct weft_task *task); /* on the loop, from a letter; may start, cancel or free the task */
    struct weft_list link;
};
static inline void weft_task_init(struct weft_task *task) { weft_list_init(&task->link); }
/* Holder: run, then done. `elements`: how long it is; up to WEFT_LOOP_SLICE run() is called here and now,
 * as it is with virtual_time and when no thread is to be had. Memory of the task belongs to the caller and
 * stays until done. */
void weft_loop_compute(struct weft_loop *loop, struct weft_task *task, uint64_t elements);
/* Holder, or when nobody steps any more: neither run nor done will happen after the return; waits for a
 * run that has begun. Fine for a task that was never started. _all: for every task of the loop. */
void weft_loop_compute_cancel(struct weft_loop *loop, struct weft_task *task);
void weft_loop_compute_cancel_all(struct weft_loop *loop);
/* Is the calling thread one that runs tasks, of any loop? */
bool weft_loop_is_compute_thread(void);

/* The earliest running timer, or WEFT_NEVER. */
uint64_t weft_loop_next_timer_ns(struct weft_loop *loop);

#endif
