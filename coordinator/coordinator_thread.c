/* coordinator_thread.c - a coordinator on a net thread of its own, in `weft run` or the library of rank 0.
 *
 *     start -> the job runs -> wait: until the job has ended and its members have disconnected -> stop
 *
 * While the job runs, nothing here wakes the processor. The wait starts a timer on the net thread, which
 * reads the coordinator's state, reports the members that are left, and wakes the waiting thread at the end.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "coordinator/coordinator_state.h"

#define POLL_NS WEFT_MS(20)
#define DRAIN_NS WEFT_SECONDS(2) /* from the end of the job, for members that do not close */

struct weft_coordinator_thread {
    struct weft_env *env;
    struct weft_net *net;
    struct weft_coordinator_server *server;
    pthread_mutex_t lock;
    pthread_cond_t drained;
    bool is_drained, ended_in_order; /* guarded by lock */
    struct weft_command wait_command;
    /* net thread: */
    bool has_ended, is_waited_for;
    uint64_t ended_ns, wait_ns, report_ns;
};

static void on_ended(void *context, enum weft_status status, const char *text)
{
    (void)text; /* each member gets the reason */
    struct weft_coordinator_thread *thread = context;
    thread->has_ended = true;
    thread->ended_ns = weft_now_ns(thread->env);
    pthread_mutex_lock(&thread->lock);
    thread->ended_in_order = status == WEFT_OK;
    pthread_mutex_unlock(&thread->lock);
}

static void mark_drained(struct weft_coordinator_thread *thread)
{
    pthread_mutex_lock(&thread->lock);
    thread->is_drained = true;
    pthread_cond_broadcast(&thread->drained);
    pthread_mutex_unlock(&thread->lock);
}

static void report(struct weft_coordinator_thread *thread, uint64_t now_ns)
{
    char text[480];
    thread->report_ns = weft_deadline_ns(now_ns, WEFT_WAIT_REASON_PERIOD_NS);
    weft_coordinator_server_describe_active(thread->server, text, sizeof text);
    if (text[0])
        weft_log(thread->env, WEFT_LOG_WARN, "coordinator",
                 "the coordinator has waited %.1f s for the end of the job: %s",
                 (double)weft_elapsed_ns(thread->wait_ns, now_ns) / 1e9, text);
}

static void check_drained(void *context)
{
    struct weft_coordinator_thread *thread = context;
    const uint64_t now_ns = weft_now_ns(thread->env);
    if (thread->has_ended) {
        if (weft_coordinator_server_connections(thread->server) == 0 ||
            weft_elapsed_ns(thread->ended_ns, now_ns) > DRAIN_NS)
            mark_drained(thread);
    } else if (now_ns >= thread->report_ns) {
        report(thread, now_ns);
    }
}

static void on_wait(struct weft_command *command)
{
    struct weft_coordinator_thread *thread =
        weft_container_of(command, struct weft_coordinator_thread, wait_command);
    if (thread->is_waited_for) return;
    thread->is_waited_for = true;
    thread->wait_ns = weft_now_ns(thread->env);
    thread->report_ns = weft_deadline_ns(thread->wait_ns, WEFT_WAIT_REASON_PERIOD_NS);
    if (weft_net_timer_periodic(thread->net, POLL_NS, check_drained, thread) < 0)
        mark_drained(thread); /* without a timer the wait would last until its limit */
}

static enum weft_status start(struct weft_coordinator_thread *thread, const char *host, uint16_t port,
                              const struct weft_coordinator_options *options, uint16_t *port_out,
                              struct weft_error *error)
{
    struct weft_coordinator_options inner = *options;
    inner.ended = on_ended;
    inner.context = thread;
    WEFT_TRY(weft_net_create(thread->env, &thread->net));
    WEFT_TRY(weft_coordinator_server_start(thread->env, thread->net, host, port, &inner, port_out,
                                           &thread->server, error));
    return weft_net_start(thread->net);
}

enum weft_status weft_coordinator_thread_start(struct weft_env *env, const char *host, uint16_t port,
                                               const struct weft_coordinator_options *options,
                                               uint16_t *port_out, struct weft_coordinator_thread **out,
                                               struct weft_error *error)
{
    pthread_condattr_t monotonic;
    struct weft_coordinator_thread *thread = weft_alloc_zero(env, sizeof *thread);
    if (!thread) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a coordinator");
    thread->env = env;
    thread->wait_command.fn = on_wait;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&thread->drained, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const enum weft_status status = start(thread, host, port, options, port_out, error);
    if (status == WEFT_OK) {
        *out = thread;
        return WEFT_OK;
    }
    weft_coordinator_thread_stop(thread);
    return weft_error_set(error, status, "cannot start a coordinator: %s", weft_reason_text(status));
}

bool weft_coordinator_thread_ended_in_order(struct weft_coordinator_thread *thread)
{
    pthread_mutex_lock(&thread->lock);
    const bool in_order = thread->ended_in_order;
    pthread_mutex_unlock(&thread->lock);
    return in_order;
}

void weft_coordinator_thread_wait(struct weft_coordinator_thread *thread, uint64_t timeout_ns)
{
    const uint64_t until_ns = weft_deadline_ns(weft_now_ns(thread->env), timeout_ns);
    const struct timespec until = {.tv_sec = (time_t)(until_ns / WEFT_SECONDS(1)),
                                   .tv_nsec = (long)(until_ns % WEFT_SECONDS(1))};
    weft_net_post(thread->net, &thread->wait_command);
    pthread_mutex_lock(&thread->lock);
    while (!thread->is_drained && pthread_cond_timedwait(&thread->drained, &thread->lock, &until) == 0) {}
    pthread_mutex_unlock(&thread->lock);
}

void weft_coordinator_thread_pause(struct weft_coordinator_thread *thread, uint64_t timeout_ns)
{
    weft_net_pause(thread->net, timeout_ns);
}

void weft_coordinator_thread_resume(struct weft_coordinator_thread *thread)
{
    weft_net_resume(thread->net);
}

void weft_coordinator_thread_stop(struct weft_coordinator_thread *thread)
{
    if (!thread) return;
    weft_net_free(thread->net);
    weft_coordinator_server_free(thread->server);
    pthread_cond_destroy(&thread->drained);
    pthread_mutex_destroy(&thread->lock);
    weft_free_bytes(thread->env, thread);
}
