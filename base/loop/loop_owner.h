/* loop_owner.h - who steps a loop: its own thread (the runner), or a thread that waits for something (a
 * driver). Internal to base; loop.c adds the system calls, tests/base/loop/test_loop_owner.c enumerates every
 * interleaving.
 *
 *      holder == NULL                            holder == a waiting thread
 *        runner in epoll ("rests"),                runner parked on a futex, or still in epoll, or
 *        or parked and about to look               falling from one into the other
 *             |  ^                                       |
 *        take |  | rest / give way         take (one     |  give: wake the next waiter, or nobody,
 *             v  |                         exchange)     v  or the runner
 *      holder == the runner
 *
 * Taking costs one compare-and-exchange and giving one store, because a resting runner does not hold the
 * baton and nobody wakes it to take it. What that leaves open is closed so:
 *   - The runner, woken in epoll by a message that a driver will handle, finds the baton taken and parks.
 *     Parked it looks again after a short while (TIMED): whoever gives the baton back then need not wake it,
 *     and a letter posted by a thread that is going to wait at once (lazy) need not wake it either. While
 *     drivers come and go it keeps looking, in the end seldom (CALM): then a giver that leaves something open
 *     wakes it, and only such a one. When one of them stays for many such periods it parks for LONG, and then
 *     every giver wakes it; when nobody has come it takes over and is an ordinary runner again. While all who
 *     come only borrow it, and that often, and nothing is open that it would have to go on with, it looks
 *     again much later (SLOW): then nobody leaves anything to it but a letter, or what a borrower has opened,
 *     and either wakes it, lazy or not.
 *   - A giver that finds the runner still in epoll arms the pollables for it first (loop.c).
 *   - A giver that leaves letters, or timers that are due, wakes the runner.
 *   - A waiter that cannot have the baton sleeps on `events`; every give, every completion of anything
 *     (loop_owner_condition_changed) moves that word. The runner gives way to waiters after each step.
 *   - weft_loop_acquire is a *claim*: drivers step aside for it too.
 *   - A stopped runner ends while it holds the baton (it claims it): no driver is inside a step then, and
 *     none begins another.
 *
 * Why nothing is lost: each side first writes its own word and then reads the other's (letter / asleep and
 * parked; fact / asleep and waiters; holder / waiters and parked), all sequentially consistent, so at least
 * one of the two sees the other.
 *
 * The steps. Each function does one atomic access per OWNER_STEP. In the library that word is empty and the
 * functions are ordinary ones; the test defines it as "stop here and come back", and so explores the very
 * code that runs. What must survive a step lives in struct loop_owner_call. */
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

enum { IN_EPOLL_ENGINE = 1, IN_EPOLL_WAITER = 2 };              /* bits of `asleep` */
/* values of `parked` */
enum { PARK_NONE = 0, PARK_SHORT = 1, PARK_UNTIL_RELEASED = 2, PARK_LONG = 3, PARK_MEDIUM = 4 };

struct loop_owner {
    _Atomic(const void *) thread; /* mark of the thread that may step; NULL: nobody does */
    atomic_uint engine_running;          /* the runner exists */
    atomic_uint stop_requested;             /* the runner shall end; nobody starts another step */
    atomic_uint claims;           /* threads that want the baton before anybody else */
    atomic_uint waiters;          /* threads that sleep on `events`, or are about to */
    atomic_uint events;           /* futex: a fact may have become true, the baton may be free */
    atomic_uint in_epoll;           /* who is in epoll, or about to be */
    atomic_uint park_mode;           /* futex: how the runner is parked */
    atomic_uint acquires;            /* by drivers, counted so that the runner sees whether they keep coming */
    bool (*has_commands)(struct loop_owner *owner);
    void (*wake)(struct loop_owner *owner); /* make the eventfd readable: epoll ends */
};

/* One thread's passage through one of the functions. */
struct loop_owner_call {
    const void *resume_at;    /* the test's: where to go on */
    const void *thread;  /* of the thread */
    unsigned seen;
    bool flag;
};

/* Wake the runner wherever it is. Not a function: its steps belong to the caller's turn. */
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

/* Move `events` for those who sleep on it. */
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

/* ---- anybody ---- */

/* After a letter was put into the mailbox. lazy: the poster is going to wait for its effect. */
static inline int loop_owner_command_posted(struct loop_owner *owner, struct loop_owner_call *call, bool lazy)
{
    unsigned park_mode;
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    if (atomic_load(&owner->thread) != NULL) {
        /* A holder that is awake looks at the mail before it sleeps and after it gave. */
        OWNER_STEP(call);
        call->flag = atomic_load(&owner->in_epoll) & IN_EPOLL_WAITER;
        OWNER_STEP(call);
        if (call->flag) owner->wake(owner);
        OWNER_END(call, 0);
    }
    OWNER_STEP(call);
    park_mode = atomic_load(&owner->park_mode);
    call->flag = lazy && (park_mode == PARK_SHORT || park_mode == PARK_MEDIUM);
    if (!call->flag) OWNER_WAKE_ENGINE(owner, call);
    OWNER_END(call, 0);
}

/* After a fact was made true that some waiter may sleep for. */
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

/* `stop` was set. */
static inline int loop_owner_stop_requested(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_WAKE_ENGINE(owner, call);
    OWNER_END(call, 0);
}

/* ---- waiting threads ---- */

/* 1: this thread drives now. `urgent`: it has claimed the baton. */
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
    /* only who holds the baton writes it, and the giving store publishes it */
    atomic_store_explicit(&owner->acquires, atomic_load_explicit(&owner->acquires, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    OWNER_END(call, 1);
}

/* What goes on without the giver and would wait for a runner that looks seldom. OPENED: it was not there
 * when that one began to. */
enum loop_owner_pending { PENDING_NONE = 0, PENDING_WORK, PENDING_NEW_WORK };

/* urgent: timers are due, or the runner is in epoll and could not be armed for. */
static inline int loop_owner_release(struct loop_owner *owner, struct loop_owner_call *call, bool urgent,
                                     enum loop_owner_pending pending)
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
        call->flag = call->seen == PARK_UNTIL_RELEASED ||
                     (call->seen == PARK_MEDIUM && pending != PENDING_NONE) ||
                     (call->seen == PARK_LONG && pending == PENDING_NEW_WORK);
    }
    if (call->flag) OWNER_WAKE_ENGINE(owner, call);
    OWNER_END(call, 0);
}

/* Somebody else has the baton. 1: sleep while `events` is turn->seen (unless the fact is true); either way
 * loop_owner_wait_end follows. */
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

/* Before weft_loop_acquire tries: whoever drives steps aside. */
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

/* As loop_owner_wait_begin, for a thread with a claim of its own: only a holder is in its way. */
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

/* The claim is over: it was met, or given up, and then those who stepped aside must look again. */
static inline int loop_owner_claim_end(struct loop_owner *owner, struct loop_owner_call *call, bool acquired)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_fetch_sub(&owner->claims, 1);
    if (!acquired) OWNER_WAKE_WAITERS(owner, call);
    OWNER_END(call, 0);
}

/* A driver looks before each step. 1: it may step. The runner takes `stop` back last: whoever then reads 0
 * there reads 0 in `running`, too. */
static inline int loop_owner_can_step(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    if (atomic_load(&owner->stop_requested)) OWNER_END(call, 0);
    OWNER_STEP(call);
    OWNER_END(call, atomic_load(&owner->engine_running) != 0);
}

/* The driver found nothing to do and has armed the pollables. 1: it may sleep in epoll unless the fact is
 * true; either way loop_owner_sleep_end follows. steps_aside: it leaves when the baton is claimed. */
static inline int loop_owner_sleep_begin(struct loop_owner *owner, struct loop_owner_call *call, bool yields_to_claims)
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

/* ---- the runner ---- */

/* 1: it holds the baton. */
static inline int loop_owner_engine_try_acquire(struct loop_owner *owner, struct loop_owner_call *call)
{
    const void *none = NULL;
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    none = NULL;
    OWNER_END(call, atomic_compare_exchange_strong(&owner->thread, &none, call->thread));
}

/* 1: somebody wants the baton. */
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

/* Nothing to do, pollables armed: let go. 1: sleep in epoll; either way loop_owner_engine_sleep_end
 * follows. */
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

/* The runner ends, holding the baton by a claim; it gives it back afterwards. */
static inline int loop_owner_engine_end(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    atomic_store(&owner->engine_running, 0);
    OWNER_STEP(call);
    atomic_store(&owner->stop_requested, 0);
    OWNER_END(call, 0);
}

/* The baton is somebody else's. 1: sleep while `parked` is `how` (all but LONG: for a period); either way
 * loop_owner_park_end follows. */
static inline int loop_owner_park_begin(struct loop_owner *owner, struct loop_owner_call *call, unsigned mode)
{
    OWNER_BEGIN(call);
    /* What woke it in epoll may have been the driver's only call. */
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

/* 1: somebody has called it. */
static inline int loop_owner_park_end(struct loop_owner *owner, struct loop_owner_call *call)
{
    OWNER_BEGIN(call);
    OWNER_STEP(call);
    OWNER_END(call, atomic_exchange(&owner->park_mode, PARK_NONE) == PARK_NONE);
}

enum loop_owner_park_review { REVIEW_RUN = 0, REVIEW_PARK_AGAIN, REVIEW_OWNER_UNCHANGED };

/* A timed park is over: turn->seen is `takes` as it was when the last one was. What now? */
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
