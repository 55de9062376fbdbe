/* loop_owner.h - ownership of a loop: state machine of the engine thread and of waiting threads.
 *
 *      thread == NULL                            thread == a waiting thread
 *        engine thread in epoll,                   engine thread parked on a futex, or in epoll,
 *        or parked until its period ends           or between both
 *             |  ^                                       |
 *     acquire |  | release                acquire (one   |  release: wake one of: sleeping waiters,
 *             v  |                        exchange)      v  the engine thread, no thread
 *      thread == the engine thread
 *
 * An acquire costs one compare-and-exchange, a release one store: a sleeping engine thread owns nothing, so
 * no acquire needs to wake it. Internal to base. loop.c adds the system calls;
 * tests/base/loop/test_loop_owner.c enumerates every interleaving.
 *
 * 1. An engine thread that epoll wakes while another thread owns the loop parks (park_policy.h). SHORT and
 *    LONG end after a period, UNTIL_RELEASED at a release.
 * 2. A release wakes a parked engine thread if commands or due timers are left. It also wakes it in mode
 *    UNTIL_RELEASED always, and in LONG if work is pending.
 * 3. A release while the engine thread is in epoll arms the pollables first (loop.c).
 * 4. A thread that cannot acquire sleeps on `events`. Every release and every changed condition increments
 *    it. The engine thread releases after a step if a thread waits.
 * 5. weft_loop_acquire is a claim: waiting threads release for it too.
 * 6. The engine thread ends as the owner by a claim, so no other thread is inside a step.
 *
 * No wake-up is lost. Each side writes its own word, then reads the other's: command / in_epoll and
 * park_mode; condition / in_epoll and waiters; thread / waiters and park_mode. All accesses are sequentially
 * consistent, so at least one side sees the other's write.
 *
 * Each function makes one atomic access per OWNER_STEP. In the library OWNER_STEP is empty. The test defines
 * it as "return here and continue later", so it explores the code of the library. Data that must survive a
 * step is in struct loop_owner_call. */
#ifndef WEFT_BASE_LOOP_LOOP_OWNER_H
#define WEFT_BASE_LOOP_LOOP_OWNER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#ifndef OWNER_STEP
#include "base/loop/futex.h"
#define OWNER_BEGIN(call) (void)(call)
#define OWNER_STEP(call) ((void)0)
#define OWNER_END(call, result) return (result)
#define OWNER_WAKE(owner, word) futex_wake_all(word)
#endif

enum { IN_EPOLL_ENGINE = 1, IN_EPOLL_WAITER = 2 };              /* bits of `in_epoll` */
/* values of `park_mode` */
enum { PARK_NONE = 0, PARK_SHORT, PARK_LONG, PARK_UNTIL_RELEASED };

struct loop_owner {
    _Atomic(const void *) thread; /* id of the thread that may step; NULL: free */
    atomic_uint engine_running;   /* the engine thread is in weft_loop_run */
    atomic_uint stop_requested;   /* the engine thread must end; no thread begins a step */
    atomic_uint claims;           /* threads that called weft_loop_acquire and do not own the loop yet */
    atomic_uint waiters;          /* threads that sleep on `events`, or are about to */
    atomic_uint events;           /* futex: incremented when a condition may have changed or the loop was
                                   * released */
    atomic_uint in_epoll;         /* threads in epoll, or about to be */
    atomic_uint park_mode;        /* futex: how the engine thread is parked */
    atomic_uint acquires;         /* acquires by waiting threads; shows the engine thread whether they
                                   * continue */
    bool (*has_commands)(struct loop_owner *owner);
    void (*wake)(struct loop_owner *owner); /* makes the eventfd readable, which ends epoll */
};

/* State of one thread inside one of the functions below. */
struct loop_owner_call {
    const void *resume_at; /* test only: where to continue */
    const void *thread;    /* id of the calling thread */
    unsigned seen;
    bool flag;
};

/* Wakes the engine thread, in epoll or parked. A macro, since its steps are steps of the caller. */
#define OWNER_WAKE_ENGINE(owner, call)                                                              \
    do {                                                                                            \
        OWNER_STEP(call);                                                                           \
        if (atomic_load(&(owner)->in_epoll) & IN_EPOLL_ENGINE) {                                         \
            OWNER_STEP(call);                                                                       \
            (owner)->wake(owner);                                                                   \
        } else {                                                                                    \
            OWNER_STEP(call);                                                                       \
            if (atomic_exchange(&(owner)->park_mode, PARK_NONE) != PARK_NONE) {                    \
                OWNER_STEP(call);                                                                   \
                OWNER_WAKE(owner, &(owner)->park_mode);                                                \
            }                                                                                       \
        }                                                                                           \
    } while (0)

/* Increments `events` and wakes the threads that sleep on it. */
#define OWNER_WAKE_WAITERS(owner, call)                                                                     \
    do {                                                                                            \
        OWNER_STEP(call);                                                                           \
        if (atomic_load(&(owner)->waiters) > 0) {                                                   \
            OWNER_STEP(call);                                                                       \
            atomic_fetch_add(&(owner)->events, 1);                                                  \
            OWNER_STEP(call);                                                                       \
            OWNER_WAKE(owner, &(owner)->events);                                                    \
        }                                                                                           \
    } while (0)

/* ---- any thread ---- */

/* Call after a command was pushed to the mailbox. lazy: the caller will wait for its effect. */
static inline int loop_owner_command_posted(struct loop_owner *owner, struct loop_owner_call *call, bool lazy)
{
    unsigned park_mode;
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    if (atomic_load(&owner->thread) != NULL) {
        /* An owner that is awake reads the mailbox before it sleeps and after it releases. */
        OWNER_STEP(call);
        call->flag = atomic_load(&owner->in_epoll) & IN_EPOLL_WAITER;
        OWNER_STEP(call);
        if (call->flag) owner->wake(owner);
        OWNER_END(call, 0);
    }
    OWNER_STEP(call);
    park_mode = atomic_load(&owner->park_mode);
    call->flag = lazy && (park_mode == PARK_SHORT || park_mode == PARK_LONG);
    if (!call->flag) OWNER_WAKE_ENGINE(owner, call);
    OWNER_END(call, 0);
}

/* Call after a condition was made true that a waiting thread may sleep for. */
static inline int loop_owner_condition_changed(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_WAKE_WAITERS(owner, call);
    OWNER_STEP(call);
    call->flag = atomic_load(&owner->in_epoll) & IN_EPOLL_WAITER;
    OWNER_STEP(call);
    if (call->flag) owner->wake(owner);
    OWNER_END(call, 0);
}

/* Call after `stop_requested` was set. */
static inline int loop_owner_stop_requested(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_WAKE_ENGINE(owner, call);
    OWNER_END(call, 0);
}

/* ---- waiting threads ---- */

/* 1: this thread is the owner. urgent: it has a claim. */
static inline int loop_owner_try_acquire(struct loop_owner *owner, struct loop_owner_call *call, bool urgent)
{
    const void *none = NULL;
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    if (!urgent && atomic_load(&owner->claims) > 0) OWNER_END(call, 0);
    OWNER_STEP(call);
    if (!urgent && !atomic_load(&owner->engine_running)) OWNER_END(call, 0);
    OWNER_STEP(call);
    none = NULL;
    if (!atomic_compare_exchange_strong(&owner->thread, &none, call->thread)) OWNER_END(call, 0);
    OWNER_STEP(call);
    /* only the owner writes it; the releasing store publishes it */
    atomic_store_explicit(&owner->acquires, atomic_load_explicit(&owner->acquires, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    OWNER_END(call, 1);
}

/* urgent: timers are due, or the engine thread is in epoll and the pollables could not be armed. has_pending:
 * work remains for which no thread may wait. */
static inline int loop_owner_release(struct loop_owner *owner, struct loop_owner_call *call, bool urgent,
                                     bool has_pending)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_store(&owner->thread, NULL);
    OWNER_WAKE_WAITERS(owner, call);
    OWNER_STEP(call);
    call->flag = urgent || owner->has_commands(owner);
    if (!call->flag) {
        OWNER_STEP(call);
        call->seen = atomic_load(&owner->park_mode);
        call->flag = call->seen == PARK_UNTIL_RELEASED || (call->seen == PARK_LONG && has_pending);
    }
    if (call->flag) OWNER_WAKE_ENGINE(owner, call);
    OWNER_END(call, 0);
}

/* Another thread owns the loop. 1: sleep while `events` is call->seen, unless the condition is true.
 * loop_owner_wait_end must follow. */
static inline int loop_owner_wait_begin(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    call->seen = atomic_load(&owner->events);
    OWNER_STEP(call);
    atomic_fetch_add(&owner->waiters, 1);
    OWNER_STEP(call);
    if (atomic_load(&owner->thread) != NULL) OWNER_END(call, 1);
    OWNER_STEP(call);
    if (atomic_load(&owner->claims) > 0) OWNER_END(call, 1);
    OWNER_STEP(call);
    if (!atomic_load(&owner->engine_running)) OWNER_END(call, 1);
    OWNER_STEP(call);
    OWNER_END(call, atomic_load(&owner->stop_requested) != 0);
}

static inline int loop_owner_wait_end(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_sub(&owner->waiters, 1);
    OWNER_END(call, 0);
}

/* Before weft_loop_acquire tries to acquire: other waiting threads release. */
static inline int loop_owner_claim_begin(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_add(&owner->claims, 1);
    OWNER_STEP(call);
    call->flag = atomic_load(&owner->in_epoll) & IN_EPOLL_WAITER;
    OWNER_STEP(call);
    if (call->flag) owner->wake(owner);
    OWNER_END(call, 0);
}

/* As loop_owner_wait_begin for a thread with a claim: waits only for the owner. */
static inline int loop_owner_claim_wait_begin(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    call->seen = atomic_load(&owner->events);
    OWNER_STEP(call);
    atomic_fetch_add(&owner->waiters, 1);
    OWNER_STEP(call);
    OWNER_END(call, atomic_load(&owner->thread) != NULL);
}

/* Ends a claim. If it was not met, the threads that released for it are woken. */
static inline int loop_owner_claim_end(struct loop_owner *owner, struct loop_owner_call *call, bool acquired)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_sub(&owner->claims, 1);
    if (!acquired) OWNER_WAKE_WAITERS(owner, call);
    OWNER_END(call, 0);
}

/* Called before each step of a waiting thread. 1: it may step. The engine thread clears engine_running before
 * stop_requested, so a thread that reads 0 in stop_requested reads 0 in engine_running. */
static inline int loop_owner_can_step(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    if (atomic_load(&owner->stop_requested)) OWNER_END(call, 0);
    OWNER_STEP(call);
    OWNER_END(call, atomic_load(&owner->engine_running) != 0);
}

/* The waiting thread is idle and has armed the pollables. 1: it may sleep in epoll, unless the condition is
 * true. loop_owner_sleep_end must follow. yields_to_claims: it releases for a claim. */
static inline int loop_owner_sleep_begin(struct loop_owner *owner, struct loop_owner_call *call,
                                         bool yields_to_claims)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_or(&owner->in_epoll, IN_EPOLL_WAITER);
    OWNER_STEP(call);
    if (owner->has_commands(owner)) OWNER_END(call, 0);
    OWNER_STEP(call);
    OWNER_END(call, !yields_to_claims || atomic_load(&owner->claims) == 0);
}

static inline int loop_owner_sleep_end(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_and(&owner->in_epoll, ~(unsigned)IN_EPOLL_WAITER);
    OWNER_END(call, 0);
}

/* ---- engine thread ---- */

/* 1: it is the owner. */
static inline int loop_owner_engine_try_acquire(struct loop_owner *owner, struct loop_owner_call *call)
{
    const void *none = NULL;
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    none = NULL;
    OWNER_END(call, atomic_compare_exchange_strong(&owner->thread, &none, call->thread));
}

/* 1: a thread waits for the loop. */
static inline int loop_owner_is_contended(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    if (atomic_load(&owner->waiters) > 0) OWNER_END(call, 1);
    OWNER_STEP(call);
    OWNER_END(call, atomic_load(&owner->claims) > 0);
}

static inline int loop_owner_engine_yield(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_store(&owner->thread, NULL);
    OWNER_WAKE_WAITERS(owner, call);
    OWNER_END(call, 0);
}

/* Idle, pollables armed: releases. 1: sleep in epoll. loop_owner_engine_sleep_end must follow. */
static inline int loop_owner_engine_sleep_begin(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_or(&owner->in_epoll, IN_EPOLL_ENGINE);
    OWNER_STEP(call);
    atomic_store(&owner->thread, NULL);
    OWNER_STEP(call);
    if (owner->has_commands(owner)) OWNER_END(call, 0);
    OWNER_STEP(call);
    if (atomic_load(&owner->waiters) > 0) OWNER_END(call, 0);
    OWNER_STEP(call);
    if (atomic_load(&owner->claims) > 0) OWNER_END(call, 0);
    OWNER_STEP(call);
    OWNER_END(call, atomic_load(&owner->stop_requested) == 0);
}

static inline int loop_owner_engine_sleep_end(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_and(&owner->in_epoll, ~(unsigned)IN_EPOLL_ENGINE);
    OWNER_END(call, 0);
}

/* The engine thread ends while it owns the loop by a claim. It releases afterwards. */
static inline int loop_owner_engine_end(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_store(&owner->engine_running, 0);
    OWNER_STEP(call);
    atomic_store(&owner->stop_requested, 0);
    OWNER_END(call, 0);
}

/* Another thread owns the loop. 1: sleep while `park_mode` is `mode`; UNTIL_RELEASED without a time limit.
 * loop_owner_park_end must follow. */
static inline int loop_owner_park_begin(struct loop_owner *owner, struct loop_owner_call *call, unsigned mode)
{
    OWNER_BEGIN(call);
    /* The event that ended its epoll may be one that the waiting thread sleeps for. */
    OWNER_STEP(call);
    call->flag = atomic_load(&owner->in_epoll) & IN_EPOLL_WAITER;
    OWNER_STEP(call);
    if (call->flag) owner->wake(owner);
    OWNER_STEP(call);
    atomic_store(&owner->park_mode, mode);
    OWNER_STEP(call);
    if (atomic_load(&owner->stop_requested)) OWNER_END(call, 0);
    OWNER_STEP(call);
    if (atomic_load(&owner->thread) != NULL) OWNER_END(call, 1);
    if (mode == PARK_UNTIL_RELEASED) OWNER_END(call, 0);
    OWNER_STEP(call);
    OWNER_END(call, !owner->has_commands(owner));
}

/* 1: another thread has woken it. */
static inline int loop_owner_park_end(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    OWNER_END(call, atomic_exchange(&owner->park_mode, PARK_NONE) == PARK_NONE);
}

enum loop_owner_park_review { REVIEW_RUN = 0, REVIEW_PARK_AGAIN, REVIEW_OWNER_UNCHANGED };

/* Called after a park with a period. call->seen: `acquires` at the previous review. */
static inline int loop_owner_park_review(struct loop_owner *owner, struct loop_owner_call *call)
{
    unsigned last_seen;
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    call->flag = atomic_load(&owner->thread) == NULL;
    OWNER_STEP(call);
    if (call->flag && owner->has_commands(owner)) OWNER_END(call, REVIEW_RUN);
    OWNER_STEP(call);
    last_seen = call->seen;
    call->seen = atomic_load(&owner->acquires);
    if (call->seen != last_seen) OWNER_END(call, REVIEW_PARK_AGAIN);
    OWNER_END(call, call->flag ? REVIEW_RUN : REVIEW_OWNER_UNCHANGED);
}

#endif
