/* baton.h - who steps a loop: its own thread (the runner), or a thread that waits for something (a driver).
 * Internal to base; loop.c adds the system calls, tests/base/test_baton.c enumerates every interleaving.
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
 *     drivers come and go it keeps looking, in the end seldom (CALM): then a giver that leaves something open wakes it, and only
 *     such a one. When one of them stays for many such periods it parks for LONG, and then every giver wakes it; when nobody has come
 *     it takes over and is an ordinary runner again.
 *     While all who come only borrow it, and that often, and nothing is open that it would have to go on with, it looks again much
 *     later (SLOW): then nobody leaves anything to it but a letter, or what a borrower has opened, and either wakes it, lazy or not.
 *   - A giver that finds the runner still in epoll arms the pollables for it first (loop.c).
 *   - A giver that leaves letters, or timers that are due, wakes the runner.
 *   - A waiter that cannot have the baton sleeps on `events`; every give, every completion of anything
 *     (baton_notified) moves that word. The runner gives way to waiters after each step.
 *   - weft_loop_take is a *claim*: drivers step aside for it too.
 *   - A stopped runner ends while it holds the baton (it claims it): no driver is inside a step then, and none
 *     begins another.
 *
 * Why nothing is lost: each side first writes its own word and then reads the other's (letter / asleep and
 * parked; fact / asleep and waiters; holder / waiters and parked), all sequentially consistent, so at least
 * one of the two sees the other.
 *
 * The steps. Each function does one atomic access per BATON_STEP. In the library that word is empty and the
 * functions are ordinary ones; the test defines it as "stop here and come back", and so explores the very
 * code that runs. What must survive a step lives in struct baton_turn. */
#ifndef WEFT_BASE_BATON_H
#define WEFT_BASE_BATON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#ifndef BATON_STEP
#include "base/futex.h"
#define BATON_BEGIN(turn) (void)(turn)
#define BATON_STEP(turn) ((void)0)
#define BATON_END(turn, result) return (result)
#define BATON_WAKE(baton, word) futex_wake_all(word)
#endif

enum { BATON_RUNNER = 1, BATON_DRIVER = 2 };              /* bits of `asleep` */
enum { BATON_AWAKE = 0, BATON_TIMED = 1, BATON_LONG = 2, BATON_SLOW = 3, BATON_CALM = 4 }; /* values of `parked` */

struct baton {
    _Atomic(const void *) holder; /* mark of the thread that may step; NULL: nobody does */
    atomic_uint running;          /* the runner exists */
    atomic_uint stop;             /* the runner shall end; nobody starts another step */
    atomic_uint claims;           /* threads that want the baton before anybody else */
    atomic_uint waiters;          /* threads that sleep on `events`, or are about to */
    atomic_uint events;           /* futex: a fact may have become true, the baton may be free */
    atomic_uint asleep;           /* who is in epoll, or about to be */
    atomic_uint parked;           /* futex: how the runner is parked */
    atomic_uint takes;            /* by drivers, counted so that the runner sees whether they keep coming */
    bool (*has_mail)(struct baton *baton);
    void (*kick)(struct baton *baton); /* make the eventfd readable: epoll ends */
};

/* One thread's passage through one of the functions. */
struct baton_turn {
    const void *at;    /* the test's: where to go on */
    const void *mark;  /* of the thread */
    unsigned seen;
    bool flag;
};

/* Wake the runner wherever it is. Not a function: its steps belong to the caller's turn. */
#define BATON_CALL_RUNNER(baton, turn)                                                              \
    do {                                                                                            \
        BATON_STEP(turn);                                                                           \
        if (atomic_load(&(baton)->asleep) & BATON_RUNNER) {                                         \
            BATON_STEP(turn);                                                                       \
            (baton)->kick(baton);                                                                   \
        } else {                                                                                    \
            BATON_STEP(turn);                                                                       \
            if (atomic_exchange(&(baton)->parked, BATON_AWAKE) != BATON_AWAKE) {                    \
                BATON_STEP(turn);                                                                   \
                BATON_WAKE(baton, &(baton)->parked);                                                \
            }                                                                                       \
        }                                                                                           \
    } while (0)

/* Move `events` for those who sleep on it. */
#define BATON_RING(baton, turn)                                                                     \
    do {                                                                                            \
        BATON_STEP(turn);                                                                           \
        if (atomic_load(&(baton)->waiters) > 0) {                                                   \
            BATON_STEP(turn);                                                                       \
            atomic_fetch_add(&(baton)->events, 1);                                                  \
            BATON_STEP(turn);                                                                       \
            BATON_WAKE(baton, &(baton)->events);                                                    \
        }                                                                                           \
    } while (0)

/* ---- anybody ---- */

/* After a letter was put into the mailbox. lazy: the poster is going to wait for its effect. */
static inline int baton_posted(struct baton *baton, struct baton_turn *turn, bool lazy)
{
    unsigned parked;
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    if (atomic_load(&baton->holder) != NULL) {
        /* A holder that is awake looks at the mail before it sleeps and after it gave. */
        BATON_STEP(turn);
        turn->flag = atomic_load(&baton->asleep) & BATON_DRIVER;
        BATON_STEP(turn);
        if (turn->flag) baton->kick(baton);
        BATON_END(turn, 0);
    }
    BATON_STEP(turn);
    parked = atomic_load(&baton->parked);
    turn->flag = lazy && (parked == BATON_TIMED || parked == BATON_CALM);
    if (!turn->flag) BATON_CALL_RUNNER(baton, turn);
    BATON_END(turn, 0);
}

/* After a fact was made true that some waiter may sleep for. */
static inline int baton_notified(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_RING(baton, turn);
    BATON_STEP(turn);
    turn->flag = atomic_load(&baton->asleep) & BATON_DRIVER;
    BATON_STEP(turn);
    if (turn->flag) baton->kick(baton);
    BATON_END(turn, 0);
}

/* `stop` was set. */
static inline int baton_stopped(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_CALL_RUNNER(baton, turn);
    BATON_END(turn, 0);
}

/* ---- waiting threads ---- */

/* 1: this thread drives now. `urgent`: it has claimed the baton. */
static inline int baton_take(struct baton *baton, struct baton_turn *turn, bool urgent)
{
    const void *nobody = NULL;
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    if (!urgent && atomic_load(&baton->claims) > 0) BATON_END(turn, 0);
    BATON_STEP(turn);
    if (!urgent && !atomic_load(&baton->running)) BATON_END(turn, 0);
    BATON_STEP(turn);
    nobody = NULL;
    if (!atomic_compare_exchange_strong(&baton->holder, &nobody, turn->mark)) BATON_END(turn, 0);
    BATON_STEP(turn);
    /* only who holds the baton writes it, and the giving store publishes it */
    atomic_store_explicit(&baton->takes, atomic_load_explicit(&baton->takes, memory_order_relaxed) + 1, memory_order_relaxed);
    BATON_END(turn, 1);
}

/* What goes on without the giver and would wait for a runner that looks seldom. OPENED: it was not there when that one began to. */
enum baton_left { BATON_NOTHING = 0, BATON_OPEN, BATON_OPENED };

/* urgent: timers are due, or the runner is in epoll and could not be armed for. */
static inline int baton_give(struct baton *baton, struct baton_turn *turn, bool urgent, enum baton_left left)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_store(&baton->holder, NULL);
    BATON_RING(baton, turn);
    BATON_STEP(turn);
    turn->flag = urgent || baton->has_mail(baton);
    if (!turn->flag) {
        BATON_STEP(turn);
        turn->seen = atomic_load(&baton->parked);
        turn->flag = turn->seen == BATON_LONG || (turn->seen == BATON_CALM && left != BATON_NOTHING) || (turn->seen == BATON_SLOW && left == BATON_OPENED);
    }
    if (turn->flag) BATON_CALL_RUNNER(baton, turn);
    BATON_END(turn, 0);
}

/* Somebody else has the baton. 1: sleep while `events` is turn->seen (unless the fact is true); either way
 * baton_waited follows. */
static inline int baton_wait(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    turn->seen = atomic_load(&baton->events);
    BATON_STEP(turn);
    atomic_fetch_add(&baton->waiters, 1);
    BATON_STEP(turn);
    if (atomic_load(&baton->holder) != NULL) BATON_END(turn, 1);
    BATON_STEP(turn);
    if (atomic_load(&baton->claims) > 0) BATON_END(turn, 1);
    BATON_STEP(turn);
    if (!atomic_load(&baton->running)) BATON_END(turn, 1);
    BATON_STEP(turn);
    BATON_END(turn, atomic_load(&baton->stop) != 0);
}

static inline int baton_waited(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_fetch_sub(&baton->waiters, 1);
    BATON_END(turn, 0);
}

/* Before weft_loop_take tries: whoever drives steps aside. */
static inline int baton_claim(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_fetch_add(&baton->claims, 1);
    BATON_STEP(turn);
    turn->flag = atomic_load(&baton->asleep) & BATON_DRIVER;
    BATON_STEP(turn);
    if (turn->flag) baton->kick(baton);
    BATON_END(turn, 0);
}

/* As baton_wait, for a thread with a claim of its own: only a holder is in its way. */
static inline int baton_wait_claimed(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    turn->seen = atomic_load(&baton->events);
    BATON_STEP(turn);
    atomic_fetch_add(&baton->waiters, 1);
    BATON_STEP(turn);
    BATON_END(turn, atomic_load(&baton->holder) != NULL);
}

/* The claim is over: it was met, or given up, and then those who stepped aside must look again. */
static inline int baton_unclaim(struct baton *baton, struct baton_turn *turn, bool met)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_fetch_sub(&baton->claims, 1);
    if (!met) BATON_RING(baton, turn);
    BATON_END(turn, 0);
}

/* A driver looks before each step. 1: it may step. The runner takes `stop` back last: whoever then reads 0 there reads
 * 0 in `running`, too. */
static inline int baton_may_step(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    if (atomic_load(&baton->stop)) BATON_END(turn, 0);
    BATON_STEP(turn);
    BATON_END(turn, atomic_load(&baton->running) != 0);
}

/* The driver found nothing to do and has armed the pollables. 1: it may sleep in epoll unless the fact is true;
 * either way baton_dozed follows. steps_aside: it leaves when the baton is claimed. */
static inline int baton_doze(struct baton *baton, struct baton_turn *turn, bool steps_aside)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_fetch_or(&baton->asleep, BATON_DRIVER);
    BATON_STEP(turn);
    if (baton->has_mail(baton)) BATON_END(turn, 0);
    BATON_STEP(turn);
    BATON_END(turn, !steps_aside || atomic_load(&baton->claims) == 0);
}

static inline int baton_dozed(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_fetch_and(&baton->asleep, ~(unsigned)BATON_DRIVER);
    BATON_END(turn, 0);
}

/* ---- the runner ---- */

/* 1: it holds the baton. */
static inline int baton_run(struct baton *baton, struct baton_turn *turn)
{
    const void *nobody = NULL;
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    nobody = NULL;
    BATON_END(turn, atomic_compare_exchange_strong(&baton->holder, &nobody, turn->mark));
}

/* 1: somebody wants the baton. */
static inline int baton_wanted(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    if (atomic_load(&baton->waiters) > 0) BATON_END(turn, 1);
    BATON_STEP(turn);
    BATON_END(turn, atomic_load(&baton->claims) > 0);
}

static inline int baton_give_way(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_store(&baton->holder, NULL);
    BATON_RING(baton, turn);
    BATON_END(turn, 0);
}

/* Nothing to do, pollables armed: let go. 1: sleep in epoll; either way baton_risen follows. */
static inline int baton_rest(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_fetch_or(&baton->asleep, BATON_RUNNER);
    BATON_STEP(turn);
    atomic_store(&baton->holder, NULL);
    BATON_STEP(turn);
    if (baton->has_mail(baton)) BATON_END(turn, 0);
    BATON_STEP(turn);
    if (atomic_load(&baton->waiters) > 0) BATON_END(turn, 0);
    BATON_STEP(turn);
    if (atomic_load(&baton->claims) > 0) BATON_END(turn, 0);
    BATON_STEP(turn);
    BATON_END(turn, atomic_load(&baton->stop) == 0);
}

static inline int baton_risen(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_fetch_and(&baton->asleep, ~(unsigned)BATON_RUNNER);
    BATON_END(turn, 0);
}

/* The runner ends, holding the baton by a claim; it gives it back afterwards. */
static inline int baton_ended(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    atomic_store(&baton->running, 0);
    BATON_STEP(turn);
    atomic_store(&baton->stop, 0);
    BATON_END(turn, 0);
}

/* The baton is somebody else's. 1: sleep while `parked` is `how` (all but LONG: for a period); either way baton_unparked
 * follows. */
static inline int baton_park(struct baton *baton, struct baton_turn *turn, unsigned how)
{
    BATON_BEGIN(turn);
    /* What woke it in epoll may have been the driver's only call. */
    BATON_STEP(turn);
    turn->flag = atomic_load(&baton->asleep) & BATON_DRIVER;
    BATON_STEP(turn);
    if (turn->flag) baton->kick(baton);
    BATON_STEP(turn);
    atomic_store(&baton->parked, how);
    BATON_STEP(turn);
    if (atomic_load(&baton->stop)) BATON_END(turn, 0);
    BATON_STEP(turn);
    if (atomic_load(&baton->holder) != NULL) BATON_END(turn, 1);
    if (how == BATON_LONG) BATON_END(turn, 0);
    BATON_STEP(turn);
    BATON_END(turn, !baton->has_mail(baton));
}

/* 1: somebody has called it. */
static inline int baton_unparked(struct baton *baton, struct baton_turn *turn)
{
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    BATON_END(turn, atomic_exchange(&baton->parked, BATON_AWAKE) == BATON_AWAKE);
}

enum baton_look { BATON_LOOK_RUN = 0, BATON_LOOK_AGAIN, BATON_LOOK_LONG };

/* A timed park is over: turn->seen is `takes` as it was when the last one was. What now? */
static inline int baton_look(struct baton *baton, struct baton_turn *turn)
{
    unsigned before;
    BATON_BEGIN(turn);
    BATON_STEP(turn);
    turn->flag = atomic_load(&baton->holder) == NULL;
    BATON_STEP(turn);
    if (turn->flag && baton->has_mail(baton)) BATON_END(turn, BATON_LOOK_RUN);
    BATON_STEP(turn);
    before = turn->seen;
    turn->seen = atomic_load(&baton->takes);
    if (turn->seen != before) BATON_END(turn, BATON_LOOK_AGAIN);
    BATON_END(turn, turn->flag ? BATON_LOOK_RUN : BATON_LOOK_LONG);
}

#endif
