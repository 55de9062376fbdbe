/* loop.h - event loop of one engine: pollables, timers and a mailbox. One thread at a time owns and steps it.
 *
 *     owner == NULL            the engine thread sleeps in epoll, or is parked
 *     owner == engine thread   weft_loop_run, while there is something to do
 *     owner == waiting thread  weft_loop_wait_for: steps the loop itself until its condition is true
 *
 * A waiting thread acquires a free loop without waking the engine thread, which saves a thread switch. Of
 * several waiting threads one steps the loop and the others sleep (loop_owner.h). Callbacks run on the owner,
 * with the default floating-point environment. Without an engine thread (before the start, in tests) any one
 * thread may use a free loop. A step calls pollables, due timers and commands. An idle owner spins for
 * spin_us, yields `yields` times, arms the pollables and sleeps in epoll. In virtual time the caller steps
 * until 0 and then advances its clock to the next timer. */
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
    void (*fn)(struct weft_timer *timer); /* may restart the timer; runs on the owner */
    uint64_t deadline_ns;                 /* on the env's clock */
    size_t heap_index;                    /* index in the loop's heap; SIZE_MAX: not running */
};

#define WEFT_POLLABLE_NO_FD (-2)

struct weft_pollable {
    int fd; /* readable if there may be work; -1: none, a sleeping loop polls it every millisecond;
             * WEFT_POLLABLE_NO_FD: producers of its work make another pollable of this loop readable */
    /* Does up to `budget` units of work. Does not block. Returns the units done. */
    int (*progress)(struct weft_pollable *pollable, int budget);
    /* Called before the owner sleeps. WEFT_OK: `fd` becomes readable for every later event. WEFT_ERR_AGAIN:
     * there is work now. Other errors have the effect of WEFT_ERR_AGAIN; progress reports them. NULL: fd is
     * level-triggered. */
    enum weft_status (*arm)(struct weft_pollable *pollable);
    struct weft_list link;
    bool quick; /* written by its owner at any time: a poll reads one or two words, and a thread waits for
                 * its result. The owner then polls it between steps too */
};

/* A function to run on another thread's loop. The sender owns the memory and must not reuse it until fn has
 * run. */
struct weft_command {
    void (*fn)(struct weft_command *command); /* runs on the owner, once per post */
    struct weft_command *next;
};

struct weft_loop_options {
    size_t size;            /* sizeof(struct weft_loop_options) */
    uint32_t spin_us;       /* polling before the first yield; default 5; 0: sleep at once */
    uint32_t yields;        /* polls after the spin, a sched_yield before each; default 100 */
    bool virtual_time;      /* no descriptors, and weft_loop_wait is not allowed; default false; true if
                             * the env has virtual time */
};
void weft_loop_options_init(struct weft_loop_options *options);

enum weft_status weft_loop_create(struct weft_env *env, const struct weft_loop_options *options,
                                  struct weft_loop **loop_out);
void weft_loop_free(struct weft_loop *loop); /* NULL has no effect; does not call timers and pollables */

/* Owner: sets where the peers run that this loop waits for. WEFT_WAIT_SAME_CORE: on this core (oversubscribed
 * host), so every poll is preceded by a sched_yield. WEFT_WAIT_UNKNOWN, the default: the duration of the last
 * yields decides. If several callers set it in one step, SAME_CORE precedes UNKNOWN. */
enum weft_wait_core { WEFT_WAIT_UNKNOWN, WEFT_WAIT_SAME_CORE };
void weft_loop_set_wait_core(struct weft_loop *loop, enum weft_wait_core wait_core);

struct weft_env *weft_loop_env(struct weft_loop *loop);

void weft_timer_init(struct weft_timer *timer, void (*fn)(struct weft_timer *));
/* Starts or restarts: runs once when the clock reaches deadline_ns. WEFT_ERR_NO_MEMORY: the timer is stopped.
 */
enum weft_status weft_timer_start(struct weft_loop *loop, struct weft_timer *timer, uint64_t deadline_ns);
/* Starts a timer that is due now. Reads no clock, neither here nor in the next step. */
enum weft_status weft_timer_start_now(struct weft_loop *loop, struct weft_timer *timer);
/* Starts a timer that is at least a millisecond away. The owner reads no extra clock for it. */
enum weft_status weft_timer_start_later(struct weft_loop *loop, struct weft_timer *timer,
                                        uint64_t deadline_ns);
void weft_timer_stop(struct weft_loop *loop, struct weft_timer *timer); /* no effect if not running */
static inline bool weft_timer_is_running(const struct weft_timer *timer)
{
    return timer->heap_index != SIZE_MAX;
}

enum weft_status weft_loop_add(struct weft_loop *loop, struct weft_pollable *pollable);
void weft_loop_remove(struct weft_loop *loop, struct weft_pollable *pollable);

/* Any thread. Commands of one thread run in the order of their posts. Makes a system call only if a thread
 * must be woken. Must not be called while the loop is being freed. */
void weft_loop_post(struct weft_loop *loop, struct weft_command *command);
/* As weft_loop_post, for a caller that will probably wait for the effect at once. While the engine thread is
 * parked SHORT or LONG it is not woken. If no thread waits, it runs the command at the end of its park period
 * (park_policy.h). */
void weft_loop_post_lazy(struct weft_loop *loop, struct weft_command *command);

/* One step: pollables, due timers, commands. Does not block. Returns the units of work done. Must not be
 * called from a callback of the same loop (asserted). */
int weft_loop_step(struct weft_loop *loop);

/* Owner: runs the posted commands and nothing else. For an owner that steps no more. Returns how many ran. */
int weft_loop_run_commands(struct weft_loop *loop);

/* Steps until `*done` is true or the clock passes until_ns, at least once. Sleeps when idle. `done` is set by
 * a callback on this thread. For the owner, or on a loop without engine thread. Returns WEFT_OK or
 * WEFT_ERR_DEADLINE. Not with virtual_time. */
enum weft_status weft_loop_wait(struct weft_loop *loop, const bool *done, uint64_t until_ns);

/* Any thread but the owner. Returns WEFT_OK when condition(context) is true, WEFT_ERR_DEADLINE when the clock
 * passes until_ns. Steps the loop if it is free and has an engine thread, otherwise sleeps. `condition` must
 * be cheap and without side effects; it is called on this thread. Code that makes it true must call
 * weft_loop_notify afterwards. While this thread steps, pthread_cancel is deferred. With virtual_time only if
 * the env can wait. */
enum weft_status weft_loop_wait_for(struct weft_loop *loop, bool (*condition)(void *context), void *context,
                                    uint64_t until_ns);
/* The same with a timeout from the first clock reading, a few steps after the call. Saves that reading if the
 * wait ends earlier. */
enum weft_status weft_loop_wait_within(struct weft_loop *loop, bool (*condition)(void *context),
                                       void *context, uint64_t timeout_ns);
/* Any thread: has the program closed or replaced the descriptors that wake this loop? Two system calls. If
 * so, this logs a line, and sleeps become short polls. */
bool weft_loop_descriptors_lost(struct weft_loop *loop);
#define WEFT_DESCRIPTORS_LOST \
    "the program closed or replaced descriptors that weft opened; it must keep those that it did not open"
/* Any thread: a condition has changed. Makes a system call only if a thread sleeps. */
void weft_loop_notify(struct weft_loop *loop);

/* The calling thread is the engine thread until weft_loop_stop, which any thread may call, also earlier.
 * After the stop no thread begins a step. */
void weft_loop_run(struct weft_loop *loop);
void weft_loop_stop(struct weft_loop *loop);
bool weft_loop_is_stopped(struct weft_loop *loop); /* any thread */
/* Any thread: is the calling thread the owner? */
bool weft_loop_is_owner(const struct weft_loop *loop);
/* Any thread: is the calling thread the engine thread? */
bool weft_loop_is_engine_thread(const struct weft_loop *loop);

/* acquire: waits until this thread owns the loop, at most until until_ns (WEFT_ERR_DEADLINE: not owned).
 * Engine thread and waiting threads release the loop after their current step; a thread that called acquire
 * keeps it until its release. release: by the thread that acquired. */
enum weft_status weft_loop_acquire(struct weft_loop *loop, uint64_t until_ns);
void weft_loop_release(struct weft_loop *loop);

/* Any thread but the owner. Becomes the owner if the loop has an engine thread, no owner, no claim and no
 * command. Does not wait. For work of about a microsecond that needs no step. */
bool weft_loop_try_acquire(struct weft_loop *loop);
enum weft_loop_pending {
    WEFT_LOOP_PENDING_NONE,    /* the caller started nothing */
    WEFT_LOOP_PENDING_AWAITED, /* the caller started a timer, gave a pollable something to wait for, or
                                * left an operation open, and a thread will wait for it soon; otherwise the
                                * engine thread finds it at the end of its park period */
    WEFT_LOOP_PENDING_NEW,     /* the same without a thread that waits: wakes the engine thread */
};
void weft_loop_release_pending(struct weft_loop *loop, enum weft_loop_pending pending);
/* Any thread. One step if the loop is free and has an engine thread, else nothing: for a caller that polls
 * for an effect between computations of its own. Does not wait. The engine thread continues the work at the
 * end of its park period if the caller polls no more. Returns whether it stepped. */
bool weft_loop_try_step(struct weft_loop *loop);
/* Owner by weft_loop_try_acquire: call before a possible cancellation point or floating-point arithmetic.
 * Until the release, cancellation is deferred and the floating-point environment is the default. A step calls
 * it. No effect for other owners. */
void weft_loop_guard_thread(struct weft_loop *loop);
/* Call before weft_loop_run. fn(context) returns whether an operation is open that the loop must complete by
 * itself; it may run on any thread. While it returns true, a release by a waiting thread wakes an
 * engine thread that is parked LONG. Without a check work is assumed to be open. */
void weft_loop_set_pending_check(struct weft_loop *loop, bool (*fn)(void *context), void *context);
/* Any thread: pause between two polls of shared memory. yields: sched_yield instead of a pause instruction.
 */
void weft_cpu_relax(bool yields);

/* ---- long computations ---- A step must be short. An owner of arithmetic on more than WEFT_LOOP_SLICE
 * elements cuts it into slices. If it cannot be cut, it is a task for the loop's compute thread. There is one
 * such thread per loop, started with the first long task, so the tasks of a loop run one at a time. */
#define WEFT_LOOP_SLICE 65536u /* elements */

struct weft_task {
    void (*run)(struct weft_task *task);  /* on the compute thread; must use only the task's own data */
    void (*done)(struct weft_task *task); /* on the loop, as a command; may start, cancel or free the task */
    struct weft_list link;
};
static inline void weft_task_init(struct weft_task *task) { weft_list_init(&task->link); }
/* Owner: runs `run`, then `done`. Up to WEFT_LOOP_SLICE elements, with virtual_time, or without a thread, run
 * is called inside this call. The caller owns the task's memory, which must stay valid until done. */
void weft_loop_compute(struct weft_loop *loop, struct weft_task *task, uint64_t elements);
/* Owner, or after the last step: neither run nor done is called after the return. Waits for a run in
 * progress. No effect on a task that was not started. _all: every task of the loop. */
void weft_loop_compute_cancel(struct weft_loop *loop, struct weft_task *task);
void weft_loop_compute_cancel_all(struct weft_loop *loop);
/* Does the calling thread run tasks, of any loop? */
bool weft_loop_is_compute_thread(void);

/* The earliest running timer, or WEFT_NEVER. */
uint64_t weft_loop_next_timer_ns(struct weft_loop *loop);

#endif
