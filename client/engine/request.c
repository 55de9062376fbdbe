/* request.c - life of a request, weft_wait and weft_test. See request.h for the states.
 *
 * In a failed session a request completes when the transport has released its buffers. If that takes
 * longer than CLIENT_BUFFER_RELEASE_NS, the engine is halted and every request completes: after that the
 * program may free its memory. */
#include "client/engine/request.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/engine/engine.h"
#include "client/engine/event_fd.h"
#include "client/engine/group.h"
#include "client/engine/query.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define SETTLE_NS WEFT_MS(100)

/* ---- the NVTX range ---- */

void client_request_range_open(struct client_request *request)
{
    struct weft_nvtx_range range = {.name = weft_coll_kind_name((enum weft_coll_kind)request->args.kind),
                                    .is_static = true,
                                    .bytes = request->args.count * weft_dtype_bytes(request->args.dtype)};
    if (request->tensor) request->session->engine->ops.tensor->range(request->tensor, &range);
    request->range = weft_nvtx_begin(&range);
}

/* ---- starting: caller's thread ---- */

enum weft_status client_request_check_idle(struct weft_session *session, const struct client_request *request,
                                           const char *call)
{
    uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);
    if (state == CLIENT_REQUEST_OPEN)
        return client_error(session, WEFT_ERR_BUSY, "%s: the request is still in use; wait for it first",
                            call);
    if (state == CLIENT_REQUEST_GATHERED)
        return client_error(session, WEFT_ERR_BUSY,
                            "%s: the request is still in use: its call starts with weft_group_end", call);
    return WEFT_OK;
}

enum weft_status client_request_claim(struct weft_session *session, const char *call,
                                      struct weft_request *user_request, struct client_request **out)
{
    if (!user_request)
        return client_error(session, WEFT_ERR_INVALID,
                            "%s: request is NULL; pass a zeroed struct weft_request", call);
    struct client_request *request = client_request_of(user_request);
    if (request->magic != 0 && request->magic != CLIENT_REQUEST_MAGIC)
        return client_error(session, WEFT_ERR_INVALID, "%s: the request was not zeroed before its first use",
                            call);
    if (request->magic == CLIENT_REQUEST_MAGIC) WEFT_TRY(client_request_check_idle(session, request, call));
    client_request_clear(session, request);
    *out = request;
    return WEFT_OK;
}

void client_request_clear(struct weft_session *session, struct client_request *request)
{
    memset(request, 0, sizeof *request);
    request->magic = CLIENT_REQUEST_MAGIC;
    request->session = session;
}

void client_request_open(struct client_request *request)
{
    struct weft_session *session = request->session;
    if (!request->started_ns) request->started_ns = weft_now_ns(session->env);
    client_request_range_begin(request);
    weft_list_init(&request->link);
    atomic_fetch_add(&session->open_requests, 1);
    if (request->op.comm) atomic_fetch_add(&request->op.comm->open, 1);
    atomic_store_explicit(&request->state, CLIENT_REQUEST_OPEN, memory_order_relaxed);
}

void client_request_send(struct client_request *request, void (*start)(struct weft_command *command))
{
    request->command.fn = start;
    client_event_post(request->session, &request->command);
}

void client_request_post(struct client_request *request, void (*start)(struct weft_command *command))
{
    client_request_open(request);
    client_request_send(request, start);
}

/* ---- engine thread ---- */

bool client_request_begin(struct client_request *request)
{
    struct client_engine *engine = request->session->engine;
    weft_list_append(&engine->open_requests, &request->link);
    if (request->tensor) engine->ops.tensor->begin(request->tensor);
    if (!engine->failed) return true;
    client_request_complete(request, engine->failed, engine->failed_text);
    return false;
}

void client_request_queue(struct client_request *request,
                          enum weft_status (*post)(struct client_group_op *, struct weft_error *),
                          void (*done)(struct client_group_op *, enum weft_status, const char *))
{
    if (!client_request_begin(request)) return;
    request->op.ready = true;
    request->op.post = post;
    request->op.done = done;
    client_engine_queue_group_op(request->session, &request->op);
}

void client_request_complete(struct client_request *request, enum weft_status status, const char *text)
{
    struct weft_session *session = request->session;
    struct weft_error error = {0};
    const struct client_engine *engine = session->engine;
    if (request->tensor && request->device.stage && status == WEFT_OK &&
        (status = engine->ops.call->copy_out(request, &error)) < 0) {
        text = error.text;
        client_fail(session, status, true,
                    "rank %u: tensor '%.100s': its result could not be copied to the device: %.200s",
                    session->rank, engine->ops.tensor->name(request->tensor), error.text);
    }
    WEFT_ASSERT(atomic_load_explicit(&request->state, memory_order_relaxed) == CLIENT_REQUEST_OPEN);
    weft_list_remove(&request->link);
    request->status = status;
    request->text_serial = status < 0 ? client_text_put(session, text ? text : weft_reason_text(status)) : 0;
    struct weft_tensor *tensor = request->tensor;
    const uint32_t serial =
        tensor ? engine->ops.tensor->result(tensor, status, request->text_serial) : 0;
    if (tensor) engine->ops.tensor->release(tensor);
    if (request->device.stage || request->is_deferred || request->device.host_call)
        engine->ops.call->completed(request);
    client_engine_count_request(session->engine);
    client_operation_times_add(&session->engine->report.operations, session->env,
                               tensor ? CLIENT_OPERATION_PUSH_PULL : request->args.kind, request->started_ns);
    if (request->completed) request->completed(request->context, status);
    client_request_range_end(request);
    /* before DONE: the program may free the group after it */
    if (request->op.comm) atomic_fetch_sub(&request->op.comm->open, 1);
    /* the memory is the caller's again */
    atomic_store_explicit(&request->state, CLIENT_REQUEST_DONE, memory_order_release);
    atomic_fetch_sub(&session->open_requests, 1);
    if (tensor) engine->ops.tensor->delivered(tensor, serial);
    client_event_signal(session);
    weft_loop_notify(session->loop);
}

/* Names a rank of the request's group. */
static void name_member(const struct client_request *request, uint32_t rank, char *out, size_t out_bytes)
{
    client_rank_name(request->session, request->op.comm ? request->op.comm->members[rank] : rank, out,
                     out_bytes);
}

void client_request_describe(const struct client_request *request, char *out, size_t out_bytes)
{
    char name[128] = "the other ranks";
    uint32_t rank;
    const struct client_engine *engine = request->session->engine;
    const struct weft_coll *operation = request->tensor ? NULL : engine->ops.call->operation(request);
    if (request->device.stage && engine->ops.call->is_filling(request)) {
        snprintf(out, out_bytes, "%s (%llu elements of %s) waits for the work before it on its device stream",
                 request->tensor ? engine->ops.tensor->name(request->tensor)
                                 : weft_coll_kind_name((enum weft_coll_kind)request->args.kind),
                 (unsigned long long)request->args.count, weft_dtype_name(request->args.dtype));
    } else if (request->tensor) {
        engine->ops.tensor->describe(request->tensor, out, out_bytes);
    } else if (operation && coll_is_sendrecv(request->args.kind)) {
        name_member(request, request->args.root, name, sizeof name);
        snprintf(out, out_bytes, "%s (%llu elements of %s) waits for %s",
                 weft_coll_kind_name((enum weft_coll_kind)request->args.kind),
                 (unsigned long long)request->args.count, weft_dtype_name(request->args.dtype), name);
    } else if (operation) {
        if (weft_coll_waits_for(operation, &rank)) name_member(request, rank, name, sizeof name);
        snprintf(out, out_bytes, "%s %llu (%llu elements of %s) waits for %s",
                 weft_coll_kind_name((enum weft_coll_kind)request->args.kind),
                 (unsigned long long)weft_coll_sequence(operation), (unsigned long long)request->args.count,
                 weft_dtype_name(request->args.dtype), name);
    } else {
        snprintf(out, out_bytes, "%s (%llu elements of %s) waits for an earlier operation of this rank",
                 weft_coll_kind_name((enum weft_coll_kind)request->args.kind),
                 (unsigned long long)request->args.count, weft_dtype_name(request->args.dtype));
    }
}

/* ---- waiting: caller's thread ---- */

struct request_condition {
    struct client_request *request;
    bool or_failed;
};

static bool request_condition(void *context)
{
    struct request_condition *condition = context;
    if (atomic_load_explicit(&condition->request->state, memory_order_acquire) != CLIENT_REQUEST_OPEN)
        return true;
    return condition->or_failed && client_failed(condition->request->session) < 0;
}

/* The final status of a completed request; its sentence becomes the session's error. */
static enum weft_status request_result(struct client_request *request)
{
    if (request->status < 0 && client_session_is_live(request->session)) {
        struct weft_session *session = request->session;
        char text[480];
        client_text_get(session, request->text_serial, request->status, text, sizeof text);
        client_error(session, request->status, "%s", text);
    }
    return request->status;
}

static void describe_on_engine(struct weft_command *command)
{
    struct client_engine_query *query = weft_container_of(command, struct client_engine_query, command);
    struct client_engine *engine = query->session->engine;
    struct weft_list *node, *spare;
    engine->queries.describe.text[0] = 0;
    weft_list_foreach(node, spare, &engine->open_requests) {
        struct client_request *request = weft_container_of(node, struct client_request, link);
        if (request != engine->queries.describe.request) continue; /* it may have completed meanwhile */
        client_request_describe(request, engine->queries.describe.text, sizeof engine->queries.describe.text);
    }
    client_engine_query_answered(query);
}

/* A process that was stopped sees its deadline before the messages that arrived meanwhile, so the request or
 * the session may end during the query. */
void client_request_describe_open(struct weft_session *session, const struct client_request *request,
                                  char *text, size_t text_bytes)
{
    struct client_engine *engine = session->engine;
    snprintf(text, text_bytes, "the operation is still running");
    /* taken: another thread describes its request */
    bool mine = pthread_mutex_trylock(&engine->queries.describe.lock) == 0;
    if (mine && atomic_load(&engine->queries.describe.query.state) != 1) {
        /* 1: the engine has not answered an earlier query */
        engine->queries.describe.request = request;
        engine->queries.describe.query.command.fn = describe_on_engine;
        if (client_engine_query_run(session, &engine->queries.describe.query) == WEFT_OK &&
            engine->queries.describe.text[0])
            snprintf(text, text_bytes, "%s", engine->queries.describe.text);
    }
    if (mine) pthread_mutex_unlock(&engine->queries.describe.lock);
}

/* A process that was stopped reads its deadline before the messages of the coordinator that arrived
 * meanwhile, of which the last one may end the job. Short beside the timeout. */
static uint64_t settle_ns(uint64_t timeout_ns)
{
    return timeout_ns < WEFT_SECONDS(1) ? 0 : timeout_ns / 64 < SETTLE_NS ? timeout_ns / 64 : SETTLE_NS;
}

static enum weft_status wait_request(struct client_request *request, uint64_t timeout_ns)
{
    struct weft_session *session = request->session;
    struct request_condition condition = {.request = request, .or_failed = true};
    struct weft_tensor *tensor = request->tensor; /* not freed while the request is open */
    if (tensor) session->engine->ops.tensor->wait_begins(tensor);
    enum weft_status status = client_wait_within(session, request_condition, &condition, timeout_ns);
    if (status == WEFT_ERR_DEADLINE) {
        char text[480];
        if (tensor && !request_condition(&condition)) session->engine->ops.tensor->wait_ends(tensor);
        client_request_describe_open(session, request, text, sizeof text);
        if (client_wait_within(session, request_condition, &condition, settle_ns(timeout_ns)) ==
            WEFT_ERR_DEADLINE)
            return client_error(
                session, WEFT_ERR_DEADLINE,
                "%.380s and has not ended within %.3f s; it still runs: wait again or finalize", text,
                (double)timeout_ns / 1e9);
    }
    condition.or_failed = false;
    status = client_wait_within(session, request_condition, &condition, CLIENT_BUFFER_RELEASE_NS);
    if (status == WEFT_OK || client_engine_halt(session)) return request_result(request);
    return client_error(session, client_failed(session),
                        "%.400s (keep the request and its buffers until weft_finalize)",
                        session->failure.text);
}

/* Common start of weft_wait and weft_test. WEFT_IN_PROGRESS: the request is open. */
static enum weft_status check_request(struct weft_request *user_request, const char *call)
{
    if (!user_request) return client_null_argument(call, "request");
    struct client_request *request = client_request_of(user_request);
    if (request->magic == 0) return WEFT_OK; /* never started */
    if (request->magic != CLIENT_REQUEST_MAGIC) return client_invalid_request(call);
    uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);
    if (state == CLIENT_REQUEST_IDLE) return WEFT_OK; /* its start was refused */
    if (state == CLIENT_REQUEST_DONE) return request_result(request);
    if (state == CLIENT_REQUEST_GATHERED)
        return client_error(
            request->session, WEFT_ERR_STATE,
            "the request belongs to a group of calls that is still open; call weft_group_end first");
    if (request->session->live.pid != weft_process_id()) return client_usable(request->session);
    if (request->tensor &&
        request->session->engine->ops.tensor->is_gathered(request->session, request->tensor))
        return client_error(
            request->session, WEFT_ERR_STATE,
            "the tensor belongs to a group of calls that is still open; call weft_group_end first");
    return WEFT_IN_PROGRESS;
}

static __attribute__((noinline)) enum weft_status wait_open(struct weft_request *user_request,
                                                            uint64_t timeout_ms)
{
    enum weft_status status = check_request(user_request, "wait");
    if (status != WEFT_IN_PROGRESS) return status;
    struct client_request *request = client_request_of(user_request);
    request->session->engine->ops.call->wait_begins(request);
    uint64_t timeout_ns = timeout_ms > WEFT_NEVER / WEFT_MS(1) ? WEFT_NEVER : WEFT_MS(timeout_ms);
    if (timeout_ms > 0) return wait_request(request, timeout_ns);
    struct client_engine *engine = request->session->engine;
    atomic_fetch_add(&engine->waiting_threads, 1);
    status = wait_request(request, request->session->settings.deadline_ns + CLIENT_WAIT_SLACK_NS);
    atomic_fetch_sub(&engine->waiting_threads, 1);
    return status;
}

static bool no_open_requests(void *context)
{
    struct weft_session *session = context;
    return atomic_load(&session->open_requests) == 0;
}

void client_requests_wait_all(struct weft_session *session)
{
    if (no_open_requests(session)) return;
    if (client_wait_for(session, no_open_requests, session,
                        client_deadline(session, CLIENT_BUFFER_RELEASE_NS)) < 0)
        client_engine_halt(session);
}

/* A program that gets an error may return from the frame that holds its other requests, so they must
 * complete first. */
enum weft_status client_request_wait_failed(struct weft_session *session, enum weft_status status)
{
    if (!client_session_is_live(session) || session->live.pid != weft_process_id()) return status;
    if (client_failed(session) < 0) client_requests_wait_all(session);
    /* they complete too */
    else if (client_is_leaving_epoch(session))
        client_wait_for(session, no_open_requests, session,
                        client_deadline(session, CLIENT_BUFFER_RELEASE_NS));
    return status;
}

/* Fast path: most requests have completed inside their call. */
enum weft_status weft_wait(struct weft_request *user_request, uint64_t timeout_ms)
{
    struct client_request *request = client_request_of(user_request);
    if (!request) return client_null_argument("wait", "request");
    bool ended = request->magic == CLIENT_REQUEST_MAGIC &&
                 atomic_load_explicit(&request->state, memory_order_acquire) == CLIENT_REQUEST_DONE &&
                 request->status == WEFT_OK;
    if (ended || request->magic == 0) return WEFT_OK;
    if (request->magic != CLIENT_REQUEST_MAGIC) return client_invalid_request("wait");
    enum weft_status status = wait_open(user_request, timeout_ms);
    return status < 0 ? client_request_wait_failed(request->session, status) : status;
}

/* A thread that computes between its tests keeps the engine thread from the processor, so it steps itself. */
enum weft_status weft_test(struct weft_request *user_request)
{
    const enum weft_status status = check_request(user_request, "test");
    if (status != WEFT_IN_PROGRESS) return status;
    struct weft_session *session = client_request_of(user_request)->session;
    return weft_loop_try_step(session->loop) ? check_request(user_request, "test") : status;
}

static bool has_ended(void *context) { return check_request(context, "wait") != WEFT_IN_PROGRESS; }

/* The request and its buffers may lie in the caller's frame, so it must complete: the session fails. */
static void fail_internal_wait(struct weft_session *session, struct weft_request *request, const char *what,
                               enum weft_status status, const char *text)
{
    client_fail(session, status, true, "%s: %.300s", what, text);
    while (client_wait_for(session, has_ended, request, client_deadline(session, CLIENT_BUFFER_RELEASE_NS)) <
               0 &&
           !client_engine_halt(session)) {
    }
}

enum weft_status client_request_wait_internal(struct weft_session *session, struct weft_request *request,
                                              const char *what)
{
    enum weft_status status = weft_wait(request, 0);
    if (status < 0) {
        char text[480];
        snprintf(text, sizeof text, "%s", session->failure.error.text);
        /* also if the wait could not halt the engine of a failed session */
        if (!has_ended(request)) fail_internal_wait(session, request, what, status, text);
        client_error(session, status, "%s: %.400s", what, text);
    }
    return status;
}
