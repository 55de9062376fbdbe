/* fleet.c - the thread of a fleet, which joins, calls and leaves; and its queue. */
#include "nccl/collnet/fleet.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/os/thread.h"
#include "nccl/collnet/fleet_probe.h"

enum { POLL_MS = 2, PROBE_MS = 100 };

static struct weft_env *env(void)
{
    return &net_process()->env;
}

/* ---- the thread: joining and leaving ---- */

static void release(struct fleet *fleet)
{
    pthread_mutex_lock(&fleet->lock);
    const bool is_last = --fleet->holders == 0;
    pthread_mutex_unlock(&fleet->lock);
    if (!is_last) return;
    pthread_cond_destroy(&fleet->changed);
    pthread_mutex_destroy(&fleet->lock);
    weft_free_bytes(env(), fleet);
}

/* The first error stays. Queued calls end with it. The caller holds the lock. */
static void fail(struct fleet *fleet, enum weft_status status, const char *text)
{
    if (fleet->state != FLEET_FAILED) {
        fleet->state = FLEET_FAILED;
        fleet->status = status;
        snprintf(fleet->text, sizeof fleet->text, "%s", text);
    }
    if (fleet->current) fleet->current->status = fleet->status;
    fleet->current = NULL;
    while (!weft_list_empty(&fleet->queue)) {
        struct fleet_call *call = weft_list_first(&fleet->queue, struct fleet_call, link);
        weft_list_remove(&call->link);
        call->status = fleet->status;
    }
}

/* false: the communicator has ended before. */
static bool wait_for_coordinator(struct fleet *fleet)
{
    bool is_listening = false, ends = false;
    while (!is_listening && !ends) {
        is_listening = fleet_is_listening(fleet->coordinator);
        pthread_mutex_lock(&fleet->lock);
        fleet->is_listening = is_listening;
        ends = fleet->ends;
        pthread_mutex_unlock(&fleet->lock);
        if (!is_listening && !ends) poll(NULL, 0, PROBE_MS);
    }
    return !ends;
}

static void join(struct fleet *fleet)
{
    struct weft_options options;
    struct weft_session *session = NULL;
    weft_options_init(&options);
    options.coordinator = fleet->coordinator;
    options.rank = (int)fleet->rank;
    options.deadline_ms = net_process()->deadline_ns / WEFT_MS(1);
    if (options.deadline_ms == 0) options.deadline_ms = 1;
    if (net_process()->secret[0]) options.secret = net_process()->secret;
    enum weft_status status = weft_init(&options, &session);
    char text[NET_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", weft_error_text(NULL));
    if (status == WEFT_OK && weft_ranks(session) != fleet->ranks) {
        snprintf(text, sizeof text, "its job has %u workers, and the communicator %u nodes",
                 weft_ranks(session), fleet->ranks);
        status = WEFT_ERR_MISMATCH;
    } else if (status == WEFT_OK && weft_shards(session) == 0) {
        snprintf(text, sizeof text, "its job has no shards");
        status = WEFT_ERR_UNSUPPORTED;
    }
    pthread_mutex_lock(&fleet->lock);
    fleet->session = session;
    if (status < 0) fail(fleet, status, text);
    else fleet->state = FLEET_READY;
    pthread_mutex_unlock(&fleet->lock);
}

static void report_traffic(struct fleet *fleet)
{
    struct weft_stats stats = {.size = sizeof stats};
    if (fleet->call_count == 0 || weft_stats_get(fleet->session, &stats) < 0) return;
    weft_log(env(), WEFT_LOG_INFO, "nccl",
             "CollNet: rank %u of %u: %llu sums of %llu bytes through the shards at %.200s: %llu bytes sent, "
             "%llu received",
             fleet->rank, fleet->ranks, (unsigned long long)fleet->call_count,
             (unsigned long long)fleet->bytes, fleet->coordinator, (unsigned long long)stats.sent_bytes,
             (unsigned long long)stats.received_bytes);
}

/* ---- the thread: calls ---- */

static enum weft_status declare(struct fleet *fleet, struct fleet_place place, uint32_t tensor)
{
    struct weft_tensor_options options;
    char name[80];
    weft_tensor_options_init(&options);
    snprintf(name, sizeof name, "nccl/%s/%zu/%u", weft_dtype_name(place.dtype), place.count, tensor);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = place.count;
    options.dtype = place.dtype;
    options.mode = WEFT_MODE_SERVER;
    options.codec = "dense";
    options.optimizer = "sum";
    return weft_declare(fleet->session, &options, &fleet->tensors[place.size][tensor]);
}

/* Doubles the tensors of a size: many sizes have one call only. */
static enum weft_status declare_more(struct fleet *fleet, struct fleet_place place)
{
    uint32_t end = place.tensor == 0 ? 1 : 2 * place.tensor;
    if (end > FLEET_TENSORS_PER_SIZE) end = FLEET_TENSORS_PER_SIZE;
    for (uint32_t i = place.tensor; i < end; i++) WEFT_TRY(declare(fleet, place, i));
    return WEFT_OK;
}

/* Opens a step in which the tensor is free. Waits for the other ranks where they do the same. */
static enum weft_status prepare(struct fleet *fleet, struct fleet_place place)
{
    const bool is_declared = fleet->tensors[place.size][place.tensor] != NULL;
    if (fleet->has_step && is_declared && !fleet->is_used[place.size][place.tensor]) return WEFT_OK;
    if (fleet->has_step) WEFT_TRY(weft_step_end(fleet->session));
    fleet->has_step = false;
    if (!is_declared) WEFT_TRY(declare_more(fleet, place));
    const struct weft_step step = {weft_step_next(fleet->session), 0.0f, 1.0f};
    WEFT_TRY(weft_step_begin(fleet->session, &step));
    memset(fleet->is_used, 0, sizeof fleet->is_used);
    fleet->has_step = true;
    return WEFT_OK;
}

/* The caller holds the lock. */
static enum weft_status start(struct fleet *fleet, struct fleet_call *call)
{
    struct weft_tensor *tensor = fleet->tensors[call->place.size][call->place.tensor];
    const enum weft_status status = weft_push_pull(tensor, call->in, call->out, &call->request);
    if (status < 0) return status;
    fleet->is_used[call->place.size][call->place.tensor] = true;
    fleet->call_count++;
    fleet->bytes += call->place.count * weft_dtype_bytes(call->place.dtype);
    call->is_started = true;
    fleet->current = NULL;
    return WEFT_OK;
}

/* Takes calls from the queue until the communicator has ended, or an error. The caller holds the lock. */
static void serve(struct fleet *fleet)
{
    while (fleet->state == FLEET_READY && !fleet->ends) {
        if (weft_list_empty(&fleet->queue)) {
            pthread_cond_wait(&fleet->changed, &fleet->lock);
            continue;
        }
        fleet->current = weft_list_first(&fleet->queue, struct fleet_call, link);
        weft_list_remove(&fleet->current->link);
        const struct fleet_place place = fleet->current->place;
        pthread_mutex_unlock(&fleet->lock);
        enum weft_status status = prepare(fleet, place);
        pthread_mutex_lock(&fleet->lock);
        if (status >= 0 && fleet->current) status = start(fleet, fleet->current);
        if (status < 0) fail(fleet, status, weft_error_text(fleet->session));
    }
}

static void *run(void *argument)
{
    struct fleet *fleet = argument;
    if (wait_for_coordinator(fleet)) join(fleet);
    pthread_mutex_lock(&fleet->lock);
    serve(fleet);
    /* the session serves weft_test until the communicator ends */
    while (!fleet->ends) pthread_cond_wait(&fleet->changed, &fleet->lock);
    struct weft_session *session = fleet->session;
    pthread_mutex_unlock(&fleet->lock);
    if (session) {
        report_traffic(fleet);
        if (weft_finalize(session) < 0)
            weft_log(env(), WEFT_LOG_WARN, "nccl", "CollNet: rank %u leaves the fleet: %s", fleet->rank,
                     weft_error_text(NULL));
    }
    release(fleet);
    return NULL;
}

/* ---- the communicator ---- */

struct fleet *fleet_join(const char *coordinator, uint32_t rank, uint32_t ranks)
{
    struct fleet *fleet = weft_alloc_zero(env(), sizeof *fleet);
    pthread_t thread;
    if (!fleet) return NULL;
    pthread_mutex_init(&fleet->lock, NULL);
    pthread_cond_init(&fleet->changed, NULL);
    weft_list_init(&fleet->free_calls);
    weft_list_init(&fleet->queue);
    for (int i = 0; i < FLEET_CALLS; i++) weft_list_append(&fleet->free_calls, &fleet->calls[i].link);
    snprintf(fleet->coordinator, sizeof fleet->coordinator, "%s", coordinator);
    fleet->rank = rank;
    fleet->ranks = ranks;
    fleet->holders = 2;
    if (weft_thread_start(&thread, "weft-nccl-fleet", run, fleet) == 0) {
        pthread_detach(thread);
        return fleet;
    }
    fleet->holders = 1;
    release(fleet);
    return NULL;
}

static enum fleet_state state_of(struct fleet *fleet)
{
    pthread_mutex_lock(&fleet->lock);
    const enum fleet_state state = fleet->state;
    pthread_mutex_unlock(&fleet->lock);
    return state;
}

static bool is_listening(struct fleet *fleet)
{
    pthread_mutex_lock(&fleet->lock);
    const bool now = fleet->is_listening;
    pthread_mutex_unlock(&fleet->lock);
    return now;
}

enum weft_status fleet_wait(struct fleet *fleet, uint64_t limit_ns, struct weft_error *error)
{
    char text[NET_TEXT_BYTES];
    while (state_of(fleet) == FLEET_JOINS) {
        if (weft_now_ns(env()) >= limit_ns)
            return weft_error_set(error, WEFT_ERR_DEADLINE,
                                  is_listening(fleet)
                                      ? "not all workers and shards of the job have joined in time"
                                      : "no process listens there; start weftd before the NCCL job");
        poll(NULL, 0, POLL_MS);
    }
    if (state_of(fleet) == FLEET_READY) return WEFT_OK;
    fleet_error_text(fleet, text, sizeof text);
    return weft_error_set(error, fleet->status, "%s", text);
}

struct fleet_call *fleet_post(struct fleet *fleet, const void *in, void *out, struct fleet_place place)
{
    pthread_mutex_lock(&fleet->lock);
    struct fleet_call *call = weft_list_first(&fleet->free_calls, struct fleet_call, link);
    weft_list_remove(&call->link);
    memset(&call->request, 0, sizeof call->request);
    call->in = in;
    call->out = out;
    call->place = place;
    call->is_started = false;
    call->status = fleet->state == FLEET_READY ? WEFT_IN_PROGRESS : fleet->status;
    if (call->status == WEFT_IN_PROGRESS) weft_list_append(&fleet->queue, &call->link);
    pthread_cond_signal(&fleet->changed);
    pthread_mutex_unlock(&fleet->lock);
    return call;
}

enum weft_status fleet_call_test(struct fleet *fleet, struct fleet_call *call)
{
    /* the thread keeps the lock for a call of libweft that does not block */
    pthread_mutex_lock(&fleet->lock);
    enum weft_status status = call->status;
    if (call->is_started) {
        status = weft_test(&call->request);
        if (status < 0) fail(fleet, status, weft_error_text(fleet->session));
    }
    pthread_mutex_unlock(&fleet->lock);
    return status;
}

void fleet_call_release(struct fleet *fleet, struct fleet_call *call)
{
    pthread_mutex_lock(&fleet->lock);
    weft_list_append(&fleet->free_calls, &call->link);
    pthread_mutex_unlock(&fleet->lock);
}

void fleet_error_text(struct fleet *fleet, char *out, size_t bytes)
{
    pthread_mutex_lock(&fleet->lock);
    snprintf(out, bytes, "%s", fleet->text);
    pthread_mutex_unlock(&fleet->lock);
}

void fleet_abort(struct fleet *fleet)
{
    static const char reason[] = "NCCL ended a communicator with sums open";
    pthread_mutex_lock(&fleet->lock);
    const bool has_session = fleet->state == FLEET_READY;
    fail(fleet, WEFT_ERR_CANCELLED, reason);
    if (has_session) (void)weft_abort(fleet->session, reason);
    pthread_mutex_unlock(&fleet->lock);
}

void fleet_leave(struct fleet *fleet, uint64_t limit_ns)
{
    if (!fleet) return;
    pthread_mutex_lock(&fleet->lock);
    fleet->ends = true;
    pthread_cond_signal(&fleet->changed);
    pthread_mutex_unlock(&fleet->lock);
    for (bool is_alone = false; !is_alone && weft_now_ns(env()) < limit_ns;) {
        pthread_mutex_lock(&fleet->lock);
        is_alone = fleet->holders == 1;
        pthread_mutex_unlock(&fleet->lock);
        if (!is_alone) poll(NULL, 0, POLL_MS);
    }
    release(fleet);
}
