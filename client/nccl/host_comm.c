/* host_comm.c - see host_comm.h. */
#include "client/nccl/host_comm.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define WATCH_NS WEFT_MS(5)
#define CLOSE_NS WEFT_SECONDS(1)
#define INIT_POLL_NS WEFT_MS(1)
#define CTAS_MAX 4 /* thread blocks on the device; the trainer's kernels need the rest */

/* ---- answers ---- */

static enum weft_status status_of(struct host_comm *host, int answer, const char *call,
                                  struct weft_error *error)
{
    if (answer == NCCL_API_OK) return WEFT_OK;
    const char *last = host->api->last_error(NULL);
    return (enum weft_status)weft_error_set(
        error, answer == NCCL_API_REMOTE ? WEFT_ERR_PEER_LOST : WEFT_ERR_STATE,
        "NCCL: %s answered %s (%d)%s%.200s", call, host->api->error_string(answer), answer,
        last && last[0] ? ": " : "", last ? last : "");
}

static int async_error(struct host_comm *host)
{
    int state = NCCL_API_OK;
    const int answer = host->api->comm_async_error(host->comm, &state);
    return answer != NCCL_API_OK ? answer : state;
}

enum weft_status host_comm_answered(struct host_comm *host, int answer, const char *call,
                                    struct weft_error *error)
{
    struct weft_session *session = host->session;
    const uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    while (answer == NCCL_API_IN_PROGRESS) {
        const enum weft_status failed = client_failed(session);
        if (failed < 0) return (enum weft_status)weft_error_set(error, failed, "%s", session->failure.text);
        if (weft_now_ns(session->env) > until_ns)
            return (enum weft_status)weft_error_set(
                error, WEFT_ERR_DEADLINE, "NCCL: %s waits for the other ranks of this host for %llu ms", call,
                (unsigned long long)(session->settings.deadline_ns / WEFT_MS(1)));
        sched_yield();
        answer = async_error(host);
    }
    return status_of(host, answer, call, error);
}

/* ---- calls that run ---- */

static void call_free(struct host_comm *host, struct client_host_call *call)
{
    host->ops->event_free(call->ready);
    host->ops->event_free(call->begun);
    host->ops->event_free(call->done);
    weft_free_bytes(host->session->env, call);
}

enum weft_status host_call_alloc(struct host_comm *host, struct client_host_call **out,
                                 struct weft_error *error)
{
    struct client_host_call *call = NULL;
    pthread_mutex_lock(&host->lock);
    if (!weft_list_empty(&host->idle)) {
        call = weft_list_first(&host->idle, struct client_host_call, link);
        weft_list_remove(&call->link);
    }
    pthread_mutex_unlock(&host->lock);
    enum weft_status status = WEFT_OK;
    if (!call) {
        call = weft_alloc_zero(host->session->env, sizeof *call);
        if (!call)
            return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY,
                                                    "no memory for a call by NCCL");
        weft_list_init(&call->link);
        status = host->ops->event_create(&call->ready, error);
        if (status == WEFT_OK) status = host->ops->event_create(&call->begun, error);
        if (status == WEFT_OK) status = host->ops->event_create(&call->done, error);
        if (status < 0) {
            call_free(host, call);
            return status;
        }
        weft_list_append(&host->calls, &call->owned);
    }
    *out = call;
    return WEFT_OK;
}

void host_call_run(struct host_comm *host, struct client_host_call *call)
{
    pthread_mutex_lock(&host->lock);
    weft_list_remove(&call->link); /* of a persistent request that the watch still follows */
    weft_list_append(&host->running, &call->link);
    call->begun_ns = 0;
    call->is_begun = call->is_queued = call->is_completed = false;
    call->is_running = call->is_held = true;
    pthread_cond_signal(&host->wake);
    pthread_mutex_unlock(&host->lock);
}

/* With the lock held. */
static void recycle(struct host_comm *host, struct client_host_call *call)
{
    if (!call->is_running && !call->is_held) weft_list_append(&host->idle, &call->link);
}

void host_call_release(struct host_comm *host, struct client_host_call *call)
{
    pthread_mutex_lock(&host->lock);
    call->is_held = false;
    recycle(host, call);
    pthread_mutex_unlock(&host->lock);
}

/* ---- the watch thread ---- */

/* Removes the calls that have ended. Returns true if the oldest one is overdue. With the lock held. */
static bool follow(struct host_comm *host)
{
    const uint64_t now_ns = weft_now_ns(host->session->env);
    while (!weft_list_empty(&host->running)) {
        struct client_host_call *call = weft_list_first(&host->running, struct client_host_call, link);
        if (!call->is_queued || host->ops->passed(call->done, NULL) == WEFT_IN_PROGRESS) {
            if (call->begun_ns == 0 && call->is_begun &&
                host->ops->passed(call->begun, NULL) != WEFT_IN_PROGRESS)
                call->begun_ns = now_ns;
            return call->begun_ns != 0 &&
                   weft_elapsed_ns(call->begun_ns, now_ns) > 2 * host->session->settings.deadline_ns;
        }
        weft_list_remove(&call->link);
        call->is_running = false;
        recycle(host, call);
    }
    return false;
}

/* Ends the communicator at once: its kernels leave the device. */
static void abort_comm(struct host_comm *host)
{
    pthread_mutex_lock(&host->issue);
    if (host->comm) host->api->comm_abort(host->comm);
    host->comm = NULL;
    pthread_mutex_unlock(&host->issue);
}

/* NCCL's own error, while no thread issues calls. */
static int error_between_calls(struct host_comm *host)
{
    if (pthread_mutex_trylock(&host->issue) != 0) return NCCL_API_OK;
    const int answer = host->comm ? async_error(host) : NCCL_API_OK;
    pthread_mutex_unlock(&host->issue);
    return answer == NCCL_API_IN_PROGRESS ? NCCL_API_OK : answer;
}

static void wait_a_moment(struct host_comm *host)
{
    const uint64_t until_ns = weft_now_ns(host->session->env) + WATCH_NS;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / WEFT_SECONDS(1)),
                                   .tv_nsec = (long)(until_ns % WEFT_SECONDS(1))};
    if (weft_list_empty(&host->running)) pthread_cond_wait(&host->wake, &host->lock);
    else pthread_cond_timedwait(&host->wake, &host->lock, &until);
}

static void *watch_main(void *context)
{
    struct host_comm *host = context;
    struct weft_session *session = host->session;
    struct weft_error error = {0};
    int before;
    (void)host->ops->enter(host->device, &before, NULL);
    pthread_mutex_lock(&host->lock);
    while (!host->stops) {
        const bool is_overdue = follow(host), is_running = !weft_list_empty(&host->running);
        pthread_mutex_unlock(&host->lock);
        const int answer = is_running ? error_between_calls(host) : NCCL_API_OK;
        if (answer != NCCL_API_OK) {
            const enum weft_status status = status_of(host, answer, "an all_reduce", &error);
            client_fail(session, status, true, "rank %u: %s", session->rank, error.text);
        } else if (is_overdue) {
            client_fail(
                session, WEFT_ERR_DEADLINE, true,
                "rank %u: NCCL among the %u ranks of this host has not ended an all_reduce within twice "
                "the deadline of %llu ms: a rank of the host has not called it, or its GPU is stuck",
                session->rank, host->ranks, (unsigned long long)(session->settings.deadline_ns / WEFT_MS(1)));
        }
        const bool ends = is_running && client_failed(session) < 0;
        if (ends) abort_comm(host);
        pthread_mutex_lock(&host->lock);
        if (ends) break;
        if (!host->stops) wait_a_moment(host);
    }
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

/* ---- life ---- */

static void make_locks(struct host_comm *host)
{
    pthread_condattr_t monotonic;
    pthread_mutex_init(&host->issue, NULL);
    pthread_mutex_init(&host->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&host->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void host_comm_free(struct host_comm *host)
{
    int before;
    const bool entered = host->ops->enter(host->device, &before, NULL) == WEFT_OK;
    while (!weft_list_empty(&host->calls)) {
        struct client_host_call *call = weft_list_first(&host->calls, struct client_host_call, owned);
        weft_list_remove(&call->owned);
        call_free(host, call);
    }
    host->ops->stream_free(host->stream);
    if (entered) host->ops->leave(before);
    pthread_cond_destroy(&host->wake);
    pthread_mutex_destroy(&host->lock);
    pthread_mutex_destroy(&host->issue);
}

struct init_wait {
    struct host_comm *host;
    int answer;
};

static bool init_has_ended(void *context)
{
    struct init_wait *wait = context;
    wait->answer = async_error(wait->host);
    return wait->answer != NCCL_API_IN_PROGRESS || client_failed(wait->host->session) < 0;
}

/* The engine may be stepped meanwhile: the other ranks may need it. */
static enum weft_status wait_for_init(struct host_comm *host, int answer, struct weft_error *error)
{
    struct weft_session *session = host->session;
    struct init_wait wait = {host, answer};
    const uint64_t until_ns = client_deadline(session, session->settings.deadline_ns);
    while (wait.answer == NCCL_API_IN_PROGRESS && weft_now_ns(session->env) < until_ns &&
           client_failed(session) == WEFT_OK)
        (void)client_wait_for(session, init_has_ended, &wait, client_deadline(session, INIT_POLL_NS));
    if (client_failed(session) < 0)
        return (enum weft_status)weft_error_set(error, client_failed(session), "%s", session->failure.text);
    if (wait.answer == NCCL_API_IN_PROGRESS)
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_DEADLINE, "NCCL: the %u ranks of this host have not connected within %llu ms",
            host->ranks, (unsigned long long)(session->settings.deadline_ns / WEFT_MS(1)));
    return status_of(host, wait.answer, "ncclCommInitRankConfig", error);
}

static enum weft_status make_comm(struct host_comm *host, const struct nccl_api_id *id,
                                  struct weft_error *error)
{
    struct nccl_api_config config = {.size = sizeof config,
                                     .magic = NCCL_API_MAGIC,
                                     .version = NCCL_API_VERSION_MIN,
                                     .blocking = 0,
                                     .cga_cluster_size = NCCL_API_UNDEFINED,
                                     .min_ctas = NCCL_API_UNDEFINED,
                                     .max_ctas = CTAS_MAX};
    WEFT_TRY(host->ops->stream_create(&host->stream, error));
    const int answer = host->api->comm_init(&host->comm, (int)host->ranks, *id, (int)host->rank, &config);
    if (!host->comm) return status_of(host, answer, "ncclCommInitRankConfig", error);
    return wait_for_init(host, answer, error);
}

enum weft_status host_comm_open(struct host_comm *host, const struct nccl_api_id *id,
                                struct weft_error *error)
{
    int before;
    weft_list_init(&host->running);
    weft_list_init(&host->idle);
    weft_list_init(&host->calls);
    make_locks(host);
    enum weft_status status = host->ops->enter(host->device, &before, error);
    if (status == WEFT_OK) {
        status = make_comm(host, id, error);
        host->ops->leave(before);
    }
    if (status == WEFT_OK && weft_thread_start(&host->watch, "weft nccl", watch_main, host) != 0)
        status = (enum weft_status)weft_error_set(error, WEFT_ERR_LIMIT, "no thread for NCCL can be started");
    host->has_watch = status == WEFT_OK;
    if (status == WEFT_OK) return WEFT_OK;
    abort_comm(host);
    host_comm_free(host);
    return status;
}

static bool has_ended_all(void *context)
{
    struct host_comm *host = context;
    pthread_mutex_lock(&host->lock);
    const bool is_empty = weft_list_empty(&host->running);
    pthread_mutex_unlock(&host->lock);
    return is_empty || client_failed(host->session) < 0;
}

/* Finalises in order, in bounded time. false: it must be aborted. */
static bool finalize(struct host_comm *host)
{
    struct weft_session *session = host->session;
    const uint64_t until_ns = client_deadline(session, CLOSE_NS);
    int answer = host->api->comm_finalize(host->comm);
    while (answer == NCCL_API_IN_PROGRESS && weft_now_ns(session->env) < until_ns) {
        sched_yield();
        answer = async_error(host);
    }
    if (answer != NCCL_API_OK) return false;
    host->api->comm_destroy(host->comm);
    host->comm = NULL;
    return true;
}

void host_comm_close(struct host_comm *host)
{
    struct weft_session *session = host->session;
    const uint64_t until_ns = client_deadline(session, CLOSE_NS);
    while (!has_ended_all(host) && weft_now_ns(session->env) < until_ns) sched_yield();
    pthread_mutex_lock(&host->lock);
    host->stops = true;
    const bool is_idle = weft_list_empty(&host->running);
    pthread_cond_signal(&host->wake);
    pthread_mutex_unlock(&host->lock);
    pthread_join(host->watch, NULL);
    if (!is_idle || client_failed(session) < 0 || !host->comm || !finalize(host)) abort_comm(host);
}

enum weft_status host_comm_begin(struct host_comm *host, struct weft_error *error)
{
    pthread_mutex_lock(&host->issue);
    if (host->comm) return WEFT_OK;
    pthread_mutex_unlock(&host->issue);
    const enum weft_status failed = client_failed(host->session);
    return (enum weft_status)weft_error_set(error, failed < 0 ? failed : WEFT_ERR_STATE,
                                            "the NCCL communicator of this host was aborted");
}

void host_comm_end(struct host_comm *host)
{
    pthread_mutex_unlock(&host->issue);
}
