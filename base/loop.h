/* loop.h - one engine's heart: pollables, timers and a mailbox, stepped by one thread at a time.
 *
 * A loop has one *holder* at a time: weft_loop_step, _wait, _run, timers and pollables are for the
 * thread that holds it (asserted). The engine's own thread holds it inside weft_loop_run; a caller
 * that waits for a request may take it over (the baton: weft_loop_take / weft_loop_give) and drive
 * the engine itself, meanwhile the engine's thread parks. While nobody holds it (before the engine
 * starts, in a test) any one thread may use it like a plain object. weft_loop_post and _stop are for
 * any thread.
 *
 * The loop knows pollables and timers only. Real time: a step polls all pollables, then due timers,
 * then mail; when nothing happened it spins a few microseconds, arms the pollables and sleeps in
 * epoll until a descriptor, a post or the next timer. Virtual time (the simulator): the caller steps
 * the loop until it answers 0 and then moves its clock to weft_loop_next_timer_ns(). */
#ifndef WEFT_BASE_LOOP_H
#define WEFT_BASE_LOOP_H

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

struct weft_pollable {
    int fd; /* readable when there may be work; -1: none, a sleeping loop wakes every millisecond to poll it */
    /* Do up to `budget` pieces of work, never block; returns how many were done. */
    int (*progress)(struct weft_pollable *pollable, int budget);
    /* Before sleeping: WEFT_OK when `fd` will become readable for anything that happens from now on,
     * WEFT_ERR_AGAIN when there is work already (poll again; any other error counts as this one, and
     * progress reports it). NULL: a plain level-triggered fd. */
    enum weft_status (*arm)(struct weft_pollable *pollable);
    struct weft_list link;
};

/* One letter to another thread's loop; memory belongs to the sender until fn has run. */
struct weft_mail {
    void (*fn)(struct weft_mail *mail); /* runs on the owner's thread, once per post */
    struct weft_mail *next;
};

struct weft_loop_options {
    size_t size;            /* sizeof(struct weft_loop_options) */
    uint32_t spin_us;       /* polling before sleep; default 20, 0: sleep at once */
    bool virtual_time;      /* no descriptors: weft_loop_wait is not allowed; default false */
};
void weft_loop_options_init(struct weft_loop_options *options);

enum weft_status weft_loop_create(struct weft_env *env, const struct weft_loop_options *options,
                                  struct weft_loop **loop_out);
void weft_loop_free(struct weft_loop *loop); /* NULL is fine; timers and pollables are dropped, not called */

struct weft_env *weft_loop_env(struct weft_loop *loop);

void weft_timer_init(struct weft_timer *timer, void (*fn)(struct weft_timer *));
/* (Re)start: runs once when the clock reaches deadline_ns. WEFT_ERR_NO_MEMORY leaves it stopped. */
enum weft_status weft_timer_start(struct weft_loop *loop, struct weft_timer *timer, uint64_t deadline_ns);
void weft_timer_stop(struct weft_loop *loop, struct weft_timer *timer); /* fine when not running */
bool weft_timer_running(const struct weft_timer *timer);

enum weft_status weft_loop_add(struct weft_loop *loop, struct weft_pollable *pollable);
void weft_loop_remove(struct weft_loop *loop, struct weft_pollable *pollable);

/* Any thread. Letters run in the order posted by one thread. A post makes a system call only when
 * the owner sleeps. Posting to a loop that is being freed is the caller's bug. */
void weft_loop_post(struct weft_loop *loop, struct weft_mail *mail);

/* One round, never blocks: pollables, due timers, mail. Returns pieces of work done. Not from inside
 * a callback of the same loop (asserted). */
int weft_loop_step(struct weft_loop *loop);

/* Step until `*done` is true or the clock passes until_ns (at least one step); sleeps when idle.
 * `done` is set by a callback on this thread (a letter, a timer, a pollable). Returns WEFT_OK, or
 * WEFT_ERR_DEADLINE. Not with virtual_time. */
enum weft_status weft_loop_wait(struct weft_loop *loop, const bool *done, uint64_t until_ns);

/* Hold the loop and run it until weft_loop_stop (any thread; also before the run began). */
void weft_loop_run(struct weft_loop *loop);
void weft_loop_stop(struct weft_loop *loop);

/* The baton. take: wait until this thread holds the loop, at most until until_ns (then
 * WEFT_ERR_DEADLINE and nothing is held). The thread in weft_loop_run gives way after its current
 * step; another taker keeps it until its give. give: only by the thread that took it. */
enum weft_status weft_loop_take(struct weft_loop *loop, uint64_t until_ns);
void weft_loop_give(struct weft_loop *loop);

/* The earliest running timer, or WEFT_NEVER. */
uint64_t weft_loop_next_timer_ns(struct weft_loop *loop);

#endif
