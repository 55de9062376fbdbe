/* loop.c - the engine's loop: step, sleep, mailbox, baton.
 *
 *     other threads                          the holder
 *     weft_loop_post: push letter   ----->   step: pollables, due timers, take all letters
 *                     sleeping?  --eventfd-> idle: spin, arm, sleeping = true, look again, epoll
 *
 * Nothing is lost between "look again" and epoll: the holder writes `sleeping` and then reads the
 * mailbox; a poster writes the mailbox and then reads `sleeping`. All four accesses are sequentially
 * consistent, so at least one of the two sees the other's write (with anything weaker both could
 * read the old value, because a store may pass a later load of another address). Hence either the
 * holder does not sleep or the poster makes the eventfd readable, and epoll is level-triggered.
 * The same holds for the stop flag and for the number of threads that wait for the baton.
 *
 * The baton: `holder` says who may touch the loop, changed under `mutex`. A taker counts itself in
 * `takers` and wakes the loop; the running engine thread sees the count between two steps, gives the
 * loop away and parks until no taker is left. */
#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/mailbox.h"
#include "base/timer_heap.h"
#include "base/weft_assert.h"

#define POLL_BUDGET 64           /* pieces of work per pollable and step: bounds a step */
#define UNSLEEPABLE_POLL_NS WEFT_MS(1) /* how often a pollable without descriptor is polled while idle */

struct weft_loop {
    struct weft_env *env;
    struct weft_loop_options options;
    struct timer_heap timers;
    struct weft_list pollables;
    struct weft_list *next_pollable; /* where the current round goes on; moved by a removal */
    size_t unsleepable;              /* pollables without descriptor */
    bool stepping;

    int epoll_fd, event_fd; /* -1 with virtual_time */
    bool have_pwait2;       /* epoll_pwait2 (Linux 5.11) answers */

    struct mailbox mail;
    atomic_bool sleeping; /* the holder is, or is about to be, in epoll */
    atomic_bool stop;
    atomic_uint takers; /* threads inside weft_loop_take */

    pthread_mutex_t mutex; /* guards changes of holder and takers */
    pthread_cond_t changed;
    _Atomic(const void *) holder; /* thread_mark() of the holding thread, or NULL */
};

/* An address that is this thread's own while it lives: cheaper than a thread id. */
static const void *thread_mark(void)
{
    static _Thread_local char mark;
    return &mark;
}

static void assert_holder(struct weft_loop *loop)
{
    const void *holder = atomic_load_explicit(&loop->holder, memory_order_relaxed);
    WEFT_ASSERT(holder == NULL || holder == thread_mark());
}

void weft_loop_options_init(struct weft_loop_options *options)
{
    *options = (struct weft_loop_options){.size = sizeof *options, .spin_us = 20};
}

static enum weft_status open_descriptors(struct weft_loop *loop)
{
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0) goto err;
    loop->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->event_fd < 0) goto err_close_epoll;
    struct epoll_event interest = {.events = EPOLLIN, .data.fd = loop->event_fd};
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->event_fd, &interest) != 0) goto err_close_event;
    return WEFT_OK;

err_close_event:
    close(loop->event_fd);
err_close_epoll:
    close(loop->epoll_fd);
err:;
    int reason = errno;
    weft_log(loop->env, WEFT_LOG_ERROR, "base", "cannot make the descriptors of a loop: %s; raise ulimit -n",
             strerror(reason));
    return reason == ENOMEM ? WEFT_ERR_NO_MEMORY : WEFT_ERR_LIMIT;
}

static enum weft_status init_baton(struct weft_loop *loop)
{
    pthread_condattr_t attributes;
    if (pthread_mutex_init(&loop->mutex, NULL) != 0) return WEFT_ERR_NO_MEMORY;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(&loop->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (rc == 0) return WEFT_OK;
    pthread_mutex_destroy(&loop->mutex);
    return WEFT_ERR_NO_MEMORY;
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
    loop->have_pwait2 = true;
    loop->epoll_fd = loop->event_fd = -1;
    weft_list_init(&loop->pollables);
    loop->next_pollable = &loop->pollables;

    enum weft_status status = timer_heap_init(&loop->timers, env);
    if (status < 0) goto err_free_loop;
    status = init_baton(loop);
    if (status < 0) goto err_free_timers;
    if (!options->virtual_time) {
        status = open_descriptors(loop);
        if (status < 0) goto err_free_baton;
    }
    *loop_out = loop;
    return WEFT_OK;

err_free_baton:
    pthread_cond_destroy(&loop->changed);
    pthread_mutex_destroy(&loop->mutex);
err_free_timers:
    timer_heap_fini(&loop->timers, env);
err_free_loop:
    weft_free_bytes(env, loop);
    return status;
}

void weft_loop_free(struct weft_loop *loop)
{
    if (!loop) return;
    WEFT_ASSERT(atomic_load(&loop->holder) == NULL && !loop->stepping);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &loop->pollables) weft_list_remove(node);
    timer_heap_fini(&loop->timers, loop->env);
    if (loop->epoll_fd >= 0) close(loop->epoll_fd);
    if (loop->event_fd >= 0) close(loop->event_fd);
    pthread_cond_destroy(&loop->changed);
    pthread_mutex_destroy(&loop->mutex);
    weft_free_bytes(loop->env, loop);
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

enum weft_status weft_timer_start(struct weft_loop *loop, struct weft_timer *timer, uint64_t deadline_ns)
{
    assert_holder(loop);
    weft_timer_stop(loop, timer);
    timer->deadline_ns = deadline_ns;
    return timer_heap_insert(&loop->timers, loop->env, timer);
}

void weft_timer_stop(struct weft_loop *loop, struct weft_timer *timer)
{
    assert_holder(loop);
    if (timer->heap_index != SIZE_MAX) timer_heap_remove(&loop->timers, timer);
}

bool weft_timer_running(const struct weft_timer *timer)
{
    return timer->heap_index != SIZE_MAX;
}

uint64_t weft_loop_next_timer_ns(struct weft_loop *loop)
{
    assert_holder(loop);
    return loop->timers.count > 0 ? loop->timers.entries[0].deadline_ns : WEFT_NEVER;
}

/* A timer that restarts itself for now must not keep the round from ending: as many calls as timers
 * were running when it began. */
static int run_timers(struct weft_loop *loop)
{
    if (loop->timers.count == 0) return 0;
    uint64_t now_ns = weft_now_ns(loop->env);
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
    if (pollable->fd >= 0 && loop->epoll_fd >= 0) {
        struct epoll_event interest = {.events = EPOLLIN, .data.fd = pollable->fd};
        if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, pollable->fd, &interest) != 0) {
            int reason = errno;
            weft_log(loop->env, WEFT_LOG_ERROR, "base", "descriptor %d cannot be slept on: %s", pollable->fd,
                     strerror(reason));
            if (reason == EEXIST) return WEFT_ERR_EXISTS;
            return reason == ENOMEM || reason == ENOSPC ? WEFT_ERR_NO_MEMORY : WEFT_ERR_IO;
        }
    }
    if (pollable->fd < 0) loop->unsleepable++;
    weft_list_append(&loop->pollables, &pollable->link);
    return WEFT_OK;
}

void weft_loop_remove(struct weft_loop *loop, struct weft_pollable *pollable)
{
    assert_holder(loop);
    /* EBADF when the owner closed it already: closing took it out. */
    if (pollable->fd >= 0 && loop->epoll_fd >= 0) epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, pollable->fd, NULL);
    if (pollable->fd < 0) loop->unsleepable--;
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

/* True when every pollable promises a readable descriptor for whatever happens from now on. */
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

/* After a write that the holder must see: wake it if it sleeps, with one system call per sleep. */
static void wake(struct weft_loop *loop)
{
    if (loop->event_fd < 0) return;
    if (!atomic_load_explicit(&loop->sleeping, memory_order_seq_cst)) return;
    if (!atomic_exchange_explicit(&loop->sleeping, false, memory_order_seq_cst)) return;
    uint64_t one = 1;
    /* EAGAIN would mean 2^64 - 1 unread wakes: readable all the same. */
    while (write(loop->event_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

void weft_loop_post(struct weft_loop *loop, struct weft_mail *mail)
{
    mailbox_push(&loop->mail, mail);
    wake(loop);
}

/* --- stepping and sleeping --- */

int weft_loop_step(struct weft_loop *loop)
{
    assert_holder(loop);
    WEFT_ASSERT(!loop->stepping);
    loop->stepping = true;
    int work = run_pollables(loop);
    work += run_timers(loop);
    work += mailbox_run(&loop->mail);
    loop->stepping = false;
    return work;
}

static void sleep_in_epoll(struct weft_loop *loop, uint64_t timeout_ns)
{
    struct epoll_event events[8];
    int count = -1;
    if (loop->have_pwait2) {
        struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
        count = epoll_pwait2(loop->epoll_fd, events, 8, timeout_ns == WEFT_NEVER ? NULL : &timeout, NULL);
        if (count < 0 && errno == ENOSYS) loop->have_pwait2 = false;
    }
    if (!loop->have_pwait2) { /* milliseconds, rounded up: waking early would spin */
        uint64_t timeout_ms = timeout_ns / 1000000u + 1;
        count = epoll_wait(loop->epoll_fd, events, 8, timeout_ms > 1000000 ? 1000000 : (int)timeout_ms);
    }
    for (int i = 0; i < count; i++) {
        uint64_t wakes;
        if (events[i].data.fd == loop->event_fd && read(loop->event_fd, &wakes, sizeof wakes) < 0) {
            /* EAGAIN: another wake was read together with an earlier one */
        }
    }
}

/* Nothing to do: sleep until a descriptor, a post, a timer or until_ns. Returns at once when that
 * has happened already. The thread in weft_loop_run also heeds takers and the stop flag; for others
 * these end no wait (they may cut one sleep short). */
static void idle(struct weft_loop *loop, uint64_t until_ns, bool is_runner)
{
    if (!arm_pollables(loop)) return;
    uint64_t wake_ns = weft_loop_next_timer_ns(loop);
    if (until_ns < wake_ns) wake_ns = until_ns;
    uint64_t timeout_ns = WEFT_NEVER;
    if (wake_ns != WEFT_NEVER) {
        uint64_t now_ns = weft_now_ns(loop->env);
        if (wake_ns <= now_ns) return;
        timeout_ns = wake_ns - now_ns;
    }
    if (loop->unsleepable > 0 && timeout_ns > UNSLEEPABLE_POLL_NS) timeout_ns = UNSLEEPABLE_POLL_NS;

    atomic_store_explicit(&loop->sleeping, true, memory_order_seq_cst);
    bool wanted = is_runner && (atomic_load_explicit(&loop->stop, memory_order_seq_cst) ||
                                atomic_load_explicit(&loop->takers, memory_order_seq_cst) > 0);
    if (!wanted && mailbox_empty(&loop->mail)) sleep_in_epoll(loop, timeout_ns);
    atomic_store_explicit(&loop->sleeping, false, memory_order_relaxed);
}

/* Spinning: when the last piece of work was done, as far as this run of steps knows. */
struct spin {
    bool idle;
    uint64_t since_ns;
};

/* Account for a step's work; true when the loop has been idle long enough to sleep. */
static bool spun_enough(struct weft_loop *loop, struct spin *spin, int work)
{
    if (work > 0) {
        spin->idle = false;
        return false;
    }
    if (loop->options.spin_us == 0) return true;
    uint64_t now_ns = weft_now_ns(loop->env);
    if (!spin->idle) {
        spin->idle = true;
        spin->since_ns = now_ns;
        return false;
    }
    return now_ns - spin->since_ns >= (uint64_t)loop->options.spin_us * 1000;
}

enum weft_status weft_loop_wait(struct weft_loop *loop, const bool *done, uint64_t until_ns)
{
    WEFT_ASSERT(!loop->options.virtual_time);
    struct spin spin = {0};
    while (!*done) {
        int work = weft_loop_step(loop);
        if (*done) break;
        if (until_ns != WEFT_NEVER && weft_now_ns(loop->env) >= until_ns) return WEFT_ERR_DEADLINE;
        if (spun_enough(loop, &spin, work)) idle(loop, until_ns, false);
    }
    return WEFT_OK;
}

/* --- the baton --- */

/* With the mutex held: hand over to whoever waits, come back when nobody does. */
static void park(struct weft_loop *loop)
{
    atomic_store_explicit(&loop->holder, NULL, memory_order_relaxed);
    pthread_cond_broadcast(&loop->changed);
    while (atomic_load(&loop->takers) > 0 || atomic_load(&loop->holder) != NULL)
        pthread_cond_wait(&loop->changed, &loop->mutex);
    atomic_store_explicit(&loop->holder, thread_mark(), memory_order_relaxed);
}

void weft_loop_run(struct weft_loop *loop)
{
    struct spin spin = {0};
    WEFT_ASSERT(!loop->options.virtual_time);
    pthread_mutex_lock(&loop->mutex);
    WEFT_ASSERT(atomic_load(&loop->holder) != thread_mark());
    park(loop); /* also waits for a taker that came first */
    pthread_mutex_unlock(&loop->mutex);

    while (!atomic_load(&loop->stop)) {
        int work = weft_loop_step(loop);
        if (atomic_load(&loop->takers) > 0) {
            pthread_mutex_lock(&loop->mutex);
            park(loop);
            pthread_mutex_unlock(&loop->mutex);
            spin.idle = false;
        } else if (spun_enough(loop, &spin, work)) {
            idle(loop, WEFT_NEVER, true);
        }
    }
    atomic_store(&loop->stop, false);

    pthread_mutex_lock(&loop->mutex);
    atomic_store_explicit(&loop->holder, NULL, memory_order_relaxed);
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->mutex);
}

void weft_loop_stop(struct weft_loop *loop)
{
    atomic_store_explicit(&loop->stop, true, memory_order_seq_cst);
    wake(loop);
}

/* until_ns on the env's clock as the condition's clock has it (CLOCK_MONOTONIC, as the system env). */
static struct timespec absolute_time(struct weft_env *env, uint64_t until_ns)
{
    uint64_t now_ns = weft_now_ns(env), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    uint64_t at_ns = weft_now_ns(weft_env_system()) + left_ns;
    return (struct timespec){(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)};
}

enum weft_status weft_loop_take(struct weft_loop *loop, uint64_t until_ns)
{
    enum weft_status status = WEFT_OK;
    atomic_fetch_add_explicit(&loop->takers, 1, memory_order_seq_cst);
    wake(loop);

    pthread_mutex_lock(&loop->mutex);
    WEFT_ASSERT(atomic_load(&loop->holder) != thread_mark());
    while (atomic_load(&loop->holder) != NULL && status == WEFT_OK) {
        int rc;
        if (until_ns == WEFT_NEVER) {
            rc = pthread_cond_wait(&loop->changed, &loop->mutex);
        } else {
            struct timespec until = absolute_time(loop->env, until_ns);
            rc = pthread_cond_timedwait(&loop->changed, &loop->mutex, &until);
        }
        if (rc == ETIMEDOUT && atomic_load(&loop->holder) != NULL) status = WEFT_ERR_DEADLINE;
    }
    if (status == WEFT_OK) atomic_store_explicit(&loop->holder, thread_mark(), memory_order_relaxed);
    atomic_fetch_sub(&loop->takers, 1);
    pthread_cond_broadcast(&loop->changed); /* the engine's thread may have waited for this taker only */
    pthread_mutex_unlock(&loop->mutex);
    return status;
}

void weft_loop_give(struct weft_loop *loop)
{
    pthread_mutex_lock(&loop->mutex);
    WEFT_ASSERT(atomic_load(&loop->holder) == thread_mark() && !loop->stepping);
    atomic_store_explicit(&loop->holder, NULL, memory_order_relaxed);
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->mutex);
}
