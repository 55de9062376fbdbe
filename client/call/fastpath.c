/* fastpath.c - small calls on the caller's thread, inside the call.
 *
 *     call ──► try-acquire the loop ──► one-host fast path, polled for a few us
 *                                         ├─► done: the request completes inside the call
 *                                         └─► not done: an open operation (fall back to the queue)
 *
 * Conditions: the loop is free, no command is queued, and no earlier operation of the group waits
 * (collective/onehost/fastpath.c).
 * 1. A caller in a loop of calls owns the loop nearly always. So every CALLS_PER_LOOP_STEP calls it steps the
 *    loop, which handles messages of the group. If requests are open, every CALLS_PER_QUEUED_CALL-th call
 *    goes to the engine: its waiter steps the loop.
 * 2. A recv whose send has not arrived is deferred: its start is not posted. The wait tries it once more. A
 *    thread that steps the loop, or starts another recv, first posts the deferred one.
 * 3. After a call that fell back, the next CALLS_AFTER_FALL_BACK calls go to the engine at once, unless
 *    the caller waited for it at once. In a group without shared memory, one of CALLS_WITHOUT_SHM calls
 *    tries. */
#include "client/call/fastpath.h"

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/engine/engine.h"
#include "client/engine/event_fd.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"

enum {
    CALLS_AFTER_FALL_BACK = 16,
    CALLS_PER_LOOP_STEP = 256,
    CALLS_PER_QUEUED_CALL = 8,
    CALLS_WITHOUT_SHM = 256
};
enum { SENDRECV_ID = 1 }; /* a send or recv has no prepared_id: the group checks each one */
/* longest time from call to wait of a caller that computes nothing in between */
#define WAIT_AT_ONCE_NS WEFT_MS(1) / 5

static bool can_complete_inline(const struct client_request *request)
{
    bool plain = coll_is_public(request->args.kind) && !request->args.counts && !request->args.unequal &&
                 !request->completed && !request->average.weighted && !request->device.stage &&
                 !request->device.host_call;
    return plain && request->args.count <= CLIENT_INLINE_ELEMS_MAX && request->args.plan == WEFT_PLAN_AUTO;
}

/* Makes the request an open operation of the group, as client_call_start does. */
static void fall_back_to_queue(struct client_request *request)
{
    struct weft_session *session = request->session;
    request->op.ready = true;
    request->op.session = session;
    request->op.post = client_call_post;
    request->op.done = client_call_done;
    client_request_open(request);
    (void)client_request_begin(request); /* the engine has not failed */
    atomic_store_explicit(&session->calls->fastpath.queued_calls_left, CALLS_AFTER_FALL_BACK,
                          memory_order_relaxed);
    atomic_store_explicit(&session->calls->fastpath.fallen_back, request, memory_order_relaxed);
}

/* ---- the deferred recv: all functions own the loop ---- */
static struct client_request *deferred_of(const struct weft_session *session)
{
    return atomic_load_explicit(&session->calls->fastpath.deferred, memory_order_relaxed);
}

bool client_fastpath_post_deferred(struct weft_session *session)
{
    struct client_request *request = deferred_of(session);
    if (!request) return false;
    atomic_store_explicit(&session->calls->fastpath.deferred, NULL, memory_order_relaxed);
    weft_loop_guard_thread(session->loop);
    uint64_t now_ns = weft_now_ns(session->env);
    if (request->started_ns > now_ns) request->started_ns = now_ns; /* it was an approximate timestamp */
    client_call_start(&request->command);
    return true;
}

static int deferred_progress(struct weft_pollable *pollable, int budget)
{
    return client_fastpath_post_deferred(
        weft_container_of(pollable, struct client_calls, fastpath.pollable)->session);
}

static enum weft_status deferred_arm(struct weft_pollable *pollable)
{
    return deferred_of(weft_container_of(pollable, struct client_calls, fastpath.pollable)->session)
               ? WEFT_ERR_AGAIN
               : WEFT_OK;
}

void client_fastpath_init(struct weft_session *session)
{
    session->calls->fastpath.pollable =
        (struct weft_pollable){.fd = WEFT_POLLABLE_NO_FD, .progress = deferred_progress, .arm = deferred_arm};
    weft_list_init(&session->calls->fastpath.pollable.link);
    /* a timestamp needs two reads of the clock; this is the first */
    weft_timestamp_read_clock(&session->calls->fastpath.timestamp, session->env);
    /* it cannot fail without a descriptor */
    (void)weft_loop_add(session->loop, &session->calls->fastpath.pollable);
}

static void defer_recv(struct client_request *request, uint64_t started_ns)
{
    struct weft_session *session = request->session;
    request->started_ns = started_ns;
    client_request_open(request);
    request->is_deferred = true;
    session->calls->fastpath.deferred_open++;
    atomic_store_explicit(&session->calls->fastpath.deferred, request, memory_order_relaxed);
}

/* ---- the call ---- */
static enum weft_status complete_inline(struct client_request *request)
{
    struct weft_session *session = request->session;
    client_engine_count_request(session->engine);
    client_request_range_end(request);
    request->status = WEFT_OK;
    atomic_store_explicit(&request->state, CLIENT_REQUEST_DONE, memory_order_release);
    client_event_signal(session);
    return WEFT_OK;
}

static uint64_t begin_exposed(const struct weft_session *session)
{
    return client_step_is_unfinished(&session->step) ? weft_now_ns(session->env) : 0;
}

static void end_exposed(struct weft_session *session, uint64_t began_ns)
{
    if (began_ns) atomic_fetch_add(&session->step.exposed_ns, weft_now_ns(session->env) - began_ns);
}

/* The caller owns the loop. */
static enum weft_status try_sendrecv_once(struct client_request *request, struct weft_group *group,
                                          struct weft_coll_args *args)
{
    struct weft_session *session = request->session;
    uint64_t began_ns = begin_exposed(session);
    args->posted_ns = weft_timestamp_ns(&session->calls->fastpath.timestamp, session->env);
    enum weft_status status = args->kind == WEFT_COLL_RECV
                                  ? weft_coll_try_recv(group, args, false)
                                  : weft_coll_try_fastpath(group, args, client_engine_group_op_done,
                                                           &request->op, &request->op.coll);
    if (status == WEFT_ERR_AGAIN) return status;
    atomic_store_explicit(&session->calls->last_plan, WEFT_PLAN_DIRECT, memory_order_relaxed);
    end_exposed(session, began_ns);
    return status == WEFT_OK ? complete_inline(request) : status;
}

/* The caller owns the loop. */
static enum weft_status try_sendrecv(struct client_request *request, struct weft_group *group,
                                     struct weft_coll_args *args)
{
    /* A deferred recv of the same pair goes first, also if it must wait for space in the group. */
    bool delivered = request->args.kind == WEFT_COLL_RECV && client_fastpath_post_deferred(request->session);
    if (delivered && !weft_list_empty(client_engine_group_queue(&request->op))) return WEFT_ERR_AGAIN;
    enum weft_status status = try_sendrecv_once(request, group, args);
    if (status == WEFT_IN_PROGRESS) defer_recv(request, args->posted_ns);
    return status;
}

/* Calls of the request's group that skip the fast path. */
static _Atomic uint32_t *calls_without_shm_of(const struct client_request *request)
{
    return request->op.comm ? &request->op.comm->calls_without_shm
                            : &request->session->calls->fastpath.calls_without_shm;
}

static bool count_down(_Atomic uint32_t *calls)
{
    uint32_t left = atomic_load_explicit(calls, memory_order_relaxed);
    if (left > 0) atomic_store_explicit(calls, left - 1, memory_order_relaxed);
    return left > 0;
}

/* Completes a call that was done inline, and counts exposed time. */
static enum weft_status finish_try(struct client_request *request, enum weft_status status, uint64_t began_ns)
{
    struct weft_session *session = request->session;
    if (status == WEFT_ERR_AGAIN) return status;
    atomic_store_explicit(&session->calls->last_plan, WEFT_PLAN_ONE_HOST, memory_order_relaxed);
    end_exposed(session, began_ns);
    return status == WEFT_OK ? complete_inline(request) : status;
}

static void prepare(const struct client_request *request, const struct weft_group *group)
{
    bool plain = !request->op.comm && !request->args.label && !request->args.reproducible &&
                 !request->args.deadline_ns && request->device.memory == WEFT_MEMORY_HOST &&
                 request->average.factor == 1;
    if (!plain) return;
    uint64_t prepared_id = coll_is_sendrecv(request->args.kind)
                         ? SENDRECV_ID
                         : weft_coll_prepared_id(group, (enum weft_coll_kind)request->args.kind);
    request->session->calls->fastpath.prepared[request->args.kind] =
        (struct client_prepared_call){.prepared_id = prepared_id,
                                      .count = request->args.count,
                                      .dtype = (enum weft_dtype)request->args.dtype,
                                      .op = (enum weft_op)request->args.reduction,
                                      .root = request->args.root};
}

/* The caller owns the loop. */
static enum weft_status try_inline(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = session->engine;
    struct weft_group *group = client_request_group(request);
    if (engine->failed || !group || !weft_list_empty(client_engine_group_queue(&request->op)))
        return WEFT_ERR_AGAIN;
    if (!weft_group_shares_memory(group)) {
        atomic_store_explicit(calls_without_shm_of(request), CALLS_WITHOUT_SHM - 1, memory_order_relaxed);
        return WEFT_ERR_AGAIN;
    }
    struct weft_coll_args args;
    client_call_args(request, &args);
    if (coll_is_sendrecv(request->args.kind)) {
        enum weft_status passed = try_sendrecv(request, group, &args);
        if (passed != WEFT_ERR_AGAIN) prepare(request, group);
        return passed;
    }
    uint64_t began_ns = begin_exposed(session);
    enum weft_status status = finish_try(
        request,
        weft_coll_try_fastpath(group, &args, client_engine_group_op_done, &request->op, &request->op.coll),
        began_ns);
    if (status == WEFT_OK) prepare(request, group);
    if (status == WEFT_IN_PROGRESS) fall_back_to_queue(request);
    return status;
}

/* The caller owns the loop. false: this call goes to the engine. */
static bool step_loop_sometimes(struct weft_session *session)
{
    bool open = atomic_load_explicit(&session->open_requests, memory_order_relaxed) >
                session->calls->fastpath.deferred_open;
    if (++session->calls->fastpath.calls_since_step < (open ? CALLS_PER_QUEUED_CALL : CALLS_PER_LOOP_STEP))
        return true;
    session->calls->fastpath.calls_since_step = 0;
    if (open) return false;
    (void)weft_loop_step(session->loop);
    return true;
}

/* If the caller waited at once for its last open call, the engine thread is not woken: it would take the
 * core of the waiter. If the caller does not wait this time, its next open call wakes the engine thread. */
static enum weft_loop_pending loop_state_after_open(struct weft_session *session)
{
    bool waits_at_once = atomic_load_explicit(&session->calls->fastpath.waits_at_once, memory_order_relaxed);
    atomic_store_explicit(&session->calls->fastpath.waits_at_once, false, memory_order_relaxed);
    return waits_at_once && !client_event_is_enabled(session) ? WEFT_LOOP_PENDING_AWAITED
                                                              : WEFT_LOOP_PENDING_NEW;
}

static enum weft_loop_pending loop_state_after(struct weft_session *session, enum weft_status status,
                                               bool had_deferred)
{
    /* the posted recv belongs to another call */
    if (had_deferred && !deferred_of(session)) return WEFT_LOOP_PENDING_NEW;
    return status == WEFT_IN_PROGRESS ? loop_state_after_open(session) : WEFT_LOOP_PENDING_NONE;
}

bool client_call_try_inline(struct client_request *request)
{
    struct weft_session *session = request->session;
    if (!can_complete_inline(request)) return false;
    if (count_down(calls_without_shm_of(request)) || count_down(&session->calls->fastpath.queued_calls_left))
        return false;
    request->op.session = session; /* client_engine_group_queue reads it */
    if (!weft_loop_try_acquire(session->loop)) return false;
    client_request_range_begin(request);
    bool had_deferred = deferred_of(session) != NULL;
    enum weft_status status = step_loop_sometimes(session) ? try_inline(request) : WEFT_ERR_AGAIN;
    weft_loop_release_pending(session->loop, loop_state_after(session, status, had_deferred));
    return status != WEFT_ERR_AGAIN;
}

/* ---- prepared calls: a call equal to the last one of its kind needs no checks ----
 * The group still checks for NULL buffers, and the first call after a change of its ranks
 * (weft_coll_try_prepared). */
static bool matches_prepared(const struct weft_session *session, const struct client_simple_call *call)
{
    const struct client_prepared_call *last = &session->calls->fastpath.prepared[call->kind];
    return last->prepared_id != 0 && call->count == last->count && call->dtype == last->dtype &&
           call->op == last->op && call->root == last->root &&
           session->calls->plans[call->kind] == WEFT_PLAN_AUTO;
}

static bool can_repeat(const struct client_request *request)
{
    return request && request->magic == CLIENT_REQUEST_MAGIC && !request->persistent &&
           atomic_load_explicit(&request->state, memory_order_acquire) == CLIENT_REQUEST_DONE;
}

static void fill_request(struct client_request *request, const struct client_simple_call *call)
{
    const struct client_call whole = client_call_from_simple(call);
    client_request_clear(request->session, request);
    client_call_fill_request(request, &whole);
    request->op.session = request->session;
}

/* The caller owns the loop. */
static enum weft_status try_sendrecv_prepared(struct client_request *request, struct weft_group *group,
                                              const struct client_simple_call *call)
{
    struct weft_coll_args args = {.kind = call->kind,
                                  .in = call->in,
                                  .out = call->out,
                                  .count = call->count,
                                  .dtype = call->dtype,
                                  .op = call->op,
                                  .root = call->root};
    enum weft_status status = try_sendrecv_once(request, group, &args);
    if (status != WEFT_IN_PROGRESS) return status;
    fill_request(request, call);
    defer_recv(request, args.posted_ns);
    return status;
}

/* The caller owns the loop. */
static enum weft_status try_prepared(struct client_request *request, const struct client_simple_call *call)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = session->engine;
    struct weft_group *group = engine->group;
    if (engine->failed || !group || !weft_list_empty(&engine->group_queue)) return WEFT_ERR_AGAIN;
    if (coll_is_sendrecv(call->kind)) return try_sendrecv_prepared(request, group, call);
    uint64_t began_ns = begin_exposed(session),
             prepared_id = session->calls->fastpath.prepared[call->kind].prepared_id;
    enum weft_status status =
        weft_coll_try_prepared(group, call->kind, prepared_id, call->in, call->out,
                               client_engine_group_op_done, &request->op, &request->op.coll);
    if (finish_try(request, status, began_ns) != WEFT_IN_PROGRESS) return status;
    struct weft_coll *coll = request->op.coll; /* fill_request clears the request */
    fill_request(request, call);
    request->op.coll = coll;
    fall_back_to_queue(request);
    return status;
}

bool client_call_try_prepared(struct weft_session *session, const struct client_simple_call *call,
                              struct weft_request *user_request)
{
    struct client_request *request = client_request_of(user_request);
    if (!matches_prepared(session, call) || !can_repeat(request) || client_call_group_is_open(session) ||
        session->calls->staging.cuts_long_calls || client_usable(session) < 0)
        return false;
    if (weft_nvtx_is_on()) return false; /* a range needs the whole request */
    if (atomic_load_explicit(&session->calls->fastpath.queued_calls_left, memory_order_relaxed) > 0)
        return false;
    bool had_deferred = deferred_of(session) != NULL; /* a send does not wait for it */
    if ((had_deferred && call->kind != WEFT_COLL_SEND) || !weft_loop_try_acquire(session->loop)) return false;
    request->session = request->op.session = session;
    request->op.comm = NULL; /* client_engine_group_queue reads these fields */
    request->tensor = NULL;
    enum weft_status status = step_loop_sometimes(session) ? try_prepared(request, call) : WEFT_ERR_AGAIN;
    weft_loop_release_pending(session->loop, loop_state_after(session, status, had_deferred));
    return status != WEFT_ERR_AGAIN;
}

/* Returns whether the wait began soon after the call, and remembers it. */
static bool note_wait_at_once(struct weft_session *session, const struct client_request *request,
                              uint64_t now_ns)
{
    bool soon = now_ns < request->started_ns + WAIT_AT_ONCE_NS;
    if (soon) atomic_store_explicit(&session->calls->fastpath.waits_at_once, true, memory_order_relaxed);
    return soon;
}

/* The request is the deferred recv: tries it once more, then posts it. */
static void wait_for_deferred(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = session->engine;
    if (!weft_loop_try_acquire(engine->loop)) return; /* the thread that owns the loop posts it */
    bool delivered = false;
    if (deferred_of(session) == request) {
        struct weft_coll_args args;
        (void)note_wait_at_once(session, request,
                                weft_timestamp_ns(&session->calls->fastpath.timestamp, session->env));
        struct weft_group *group = client_request_group(request);
        client_call_args(request, &args);
        args.posted_ns = request->started_ns;
        bool may = !engine->failed && group && weft_list_empty(client_engine_group_queue(&request->op));
        if (may && weft_coll_try_recv(group, &args, true) == WEFT_OK) {
            atomic_store_explicit(&session->calls->fastpath.deferred, NULL, memory_order_relaxed);
            client_request_complete(request, WEFT_OK, NULL);
        } else {
            delivered = client_fastpath_post_deferred(session);
        }
    }
    weft_loop_release_pending(engine->loop, delivered ? WEFT_LOOP_PENDING_AWAITED : WEFT_LOOP_PENDING_NONE);
}

void client_fastpath_wait_begins(struct client_request *request)
{
    struct weft_session *session = request->session;
    if (deferred_of(session) == request) {
        wait_for_deferred(request);
        return;
    }
    if (atomic_load_explicit(&session->calls->fastpath.fallen_back, memory_order_relaxed) != request) return;
    atomic_store_explicit(&session->calls->fastpath.fallen_back, NULL, memory_order_relaxed);
    if (note_wait_at_once(session, request, weft_now_ns(session->env)))
        atomic_store_explicit(&session->calls->fastpath.queued_calls_left, 0, memory_order_relaxed);
}

void client_fastpath_completed(struct client_request *request)
{
    if (request->is_deferred) request->session->calls->fastpath.deferred_open--;
    request->is_deferred = false;
}
