/* call/fastpath.c - small collectives on the caller's own thread, within the call: for callers that wait at
 * once, as nearly all do.
 *
 * A letter to the engine, and the wait that finds it done, cost several times what the ranks of a host need
 * to meet in memory (collective/onehost/fastpath.c). So the caller borrows the loop where it is free, no
 * letter is in it and nothing of the group waits before this call, and tries itself. A call that has not
 * ended when the patience of a few microseconds is over has become an ordinary operation, and its request one
 * that is open.
 *
 * Who calls again and again holds the loop nearly all the time, and its runner looks seldom then. So every so
 * many calls the loop is stepped for once: news of the group must not wait for ever. Where requests are open
 * (of another group, or they would be in the way), whose callbacks are not for a call that starts something,
 * such a call goes to the engine instead, and that much sooner: who waits for it steps the loop, and perhaps
 * nobody else does.
 *
 * A recv is called before its send has come, as a rule, and waited for soon. So one whose send has not come
 * stays in the caller's *pocket*, a letter that is not posted: the wait for it looks once more, and whoever
 * steps the loop, or starts another recv, delivers it before anything else. Then it is an ordinary operation.
 *
 * The patience is for nothing where the caller goes on computing instead of waiting. So after a call that
 * was late the next ones go to the engine at once, unless somebody has waited for it right away. So do,
 * all but one in CALLS_WITHOUT_SHM, those of a group whose ranks have no memory in common. */
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
enum { SENDRECV_SHAPE = 1 }; /* the group looks at a send or recv each time */
#define WAIT_AT_ONCE_NS WEFT_MS(1) / 5 /* from the call to the wait of one who computes nothing between */

static bool can_complete_inline(const struct client_request *request)
{
    switch ((enum weft_coll_kind)request->kind) {
    case WEFT_COLL_ALL_REDUCE:
    case WEFT_COLL_REDUCE_SCATTER:
    case WEFT_COLL_ALL_GATHER:
    case WEFT_COLL_BROADCAST:
    case WEFT_COLL_BARRIER:
    case WEFT_COLL_REDUCE:
    case WEFT_COLL_GATHER:
    case WEFT_COLL_SCATTER:
    case WEFT_COLL_ALL_TO_ALL:
    case WEFT_COLL_SEND:
    case WEFT_COLL_RECV: break;
    default: return false;
    }
    bool plain =
        !request->counts && !request->unequal && !request->completed && !request->weighted && !request->stage;
    return plain && request->count <= CLIENT_INLINE_ELEMS_MAX && request->plan == WEFT_PLAN_AUTO;
}

static bool is_sendrecv(unsigned kind) { return kind == WEFT_COLL_SEND || kind == WEFT_COLL_RECV; }

/* It is an operation of the group now: what the letter would have done. */
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

/* ---- the pocket: all of it holding the loop ---- */
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
    /* it was a stamp; from now on its time is measured */
    if (request->started_ns > now_ns) request->started_ns = now_ns;
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
    /* the first one: the pace is known with the second */
    weft_timestamp_read_clock(&session->calls->fastpath.timestamp, session->env);
    /* without a descriptor it cannot fail */
    (void)weft_loop_add(session->loop, &session->calls->fastpath.pollable);
}

static void defer_recv(struct client_request *request, uint64_t started_ns)
{
    struct weft_session *session = request->session;
    request->started_ns = started_ns;
    client_request_open(request);
    request->deferred_open = true;
    session->calls->fastpath.deferred_open++;
    atomic_store_explicit(&session->calls->fastpath.deferred, request, memory_order_relaxed);
}

/* ---- the call ---- */
static enum weft_status complete_inline(struct client_request *request)
{
    request->session->engine->requests_done++;
    request->status = WEFT_OK;
    atomic_store_explicit(&request->state, CLIENT_REQUEST_DONE, memory_order_release);
    client_event_signal(request->session);
    return WEFT_OK;
}

static uint64_t begin_exposed(const struct weft_session *session)
{
    return session->step.open ? weft_now_ns(session->env) : 0;
}

static void end_exposed(struct weft_session *session, uint64_t began_ns)
{
    if (session->step.open) atomic_fetch_add(&session->step.exposed_ns, weft_now_ns(session->env) - began_ns);
}

/* Holding the loop. */
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

/* Holding the loop. */
static enum weft_status try_sendrecv(struct client_request *request, struct weft_group *group,
                                     struct weft_coll_args *args)
{
    /* One of the same pair comes first, also where it has to wait for a place in the group. */
    bool delivered = request->kind == WEFT_COLL_RECV && client_fastpath_post_deferred(request->session);
    if (delivered && !weft_list_empty(client_engine_group_queue(&request->op))) return WEFT_ERR_AGAIN;
    enum weft_status status = try_sendrecv_once(request, group, args);
    if (status == WEFT_IN_PROGRESS) defer_recv(request, args->posted_ns);
    return status;
}

/* Calls of its group that need not try. */
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

/* What came of it. */
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
    bool plain = !request->op.comm && !request->label && !request->reproducible && !request->deadline_ns &&
                 request->memory == WEFT_MEMORY_HOST && request->factor == 1;
    if (!plain) return;
    uint64_t shape = is_sendrecv(request->kind)
                         ? SENDRECV_SHAPE
                         : weft_coll_prepared_id(group, (enum weft_coll_kind)request->kind);
    request->session->calls->fastpath.prepared[request->kind] =
        (struct client_prepared_call){.shape = shape,
                                      .count = request->count,
                                      .dtype = (enum weft_dtype)request->dtype,
                                      .op = (enum weft_op)request->reduction,
                                      .root = request->root};
}

/* Holding the loop. */
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
    if (is_sendrecv(request->kind)) {
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

/* Holding the loop. false: this call is for the engine. */
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

/* Who waited at once for the last call that stayed open will for this one: no need to wake a runner for
 * it, which would take the core, and hold up the rank that waits for this one. Should nobody wait after
 * all, the next one wakes it. */
static enum weft_loop_pending loop_state_after_open(struct weft_session *session)
{
    bool at_once = atomic_load_explicit(&session->calls->fastpath.at_once, memory_order_relaxed);
    atomic_store_explicit(&session->calls->fastpath.at_once, false, memory_order_relaxed);
    return at_once && !client_event_is_enabled(session) ? WEFT_LOOP_PENDING_AWAITED : WEFT_LOOP_PENDING_NEW;
}

static enum weft_loop_pending loop_state_after(struct weft_session *session, enum weft_status status,
                                               bool had_deferred)
{
    if (had_deferred && !deferred_of(session)) return WEFT_LOOP_PENDING_NEW; /* another's */
    return status == WEFT_IN_PROGRESS ? loop_state_after_open(session) : WEFT_LOOP_PENDING_NONE;
}

bool client_call_try_inline(struct client_request *request)
{
    struct weft_session *session = request->session;
    if (!can_complete_inline(request)) return false;
    if (count_down(calls_without_shm_of(request)) || count_down(&session->calls->fastpath.queued_calls_left))
        return false;
    request->op.session = session; /* by which its queue is found */
    if (!weft_loop_try_acquire(session->loop)) return false;
    bool had_deferred = deferred_of(session) != NULL;
    enum weft_status status = step_loop_sometimes(session) ? try_inline(request) : WEFT_ERR_AGAIN;
    weft_loop_release_pending(session->loop, loop_state_after(session, status, had_deferred));
    return status != WEFT_ERR_AGAIN;
}

/* ---- a call like the last one of its kind: what was found to be right is not looked at again ----
 * But for what the group itself looks at (weft_coll_try_prepared): buffers that are NULL, and all of the
 * first call after its ranks have changed. */
static bool matches_prepared(const struct weft_session *session, const struct client_simple_call *call)
{
    const struct client_prepared_call *last = &session->calls->fastpath.prepared[call->kind];
    return last->shape != 0 && call->count == last->count && call->dtype == last->dtype &&
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

/* Holding the loop. */
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

/* Holding the loop. */
static enum weft_status try_prepared(struct client_request *request, const struct client_simple_call *call)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = session->engine;
    struct weft_group *group = engine->group;
    if (engine->failed || !group || !weft_list_empty(&engine->group_queue)) return WEFT_ERR_AGAIN;
    if (is_sendrecv(call->kind)) return try_sendrecv_prepared(request, group, call);
    uint64_t began_ns = begin_exposed(session), shape = session->calls->fastpath.prepared[call->kind].shape;
    enum weft_status status =
        weft_coll_try_prepared(group, call->kind, shape, call->in, call->out, client_engine_group_op_done,
                               &request->op, &request->op.coll);
    if (finish_try(request, status, began_ns) != WEFT_IN_PROGRESS) return status;
    struct weft_coll *coll = request->op.coll; /* all that is known of it so far */
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
    if (atomic_load_explicit(&session->calls->fastpath.queued_calls_left, memory_order_relaxed) > 0)
        return false;
    bool had_deferred = deferred_of(session) != NULL; /* which a send does not wait for */
    if ((had_deferred && call->kind != WEFT_COLL_SEND) || !weft_loop_try_acquire(session->loop)) return false;
    request->session = request->op.session = session;
    request->op.comm = NULL; /* by these its queue is found */
    request->tensor = NULL;
    enum weft_status status = step_loop_sometimes(session) ? try_prepared(request, call) : WEFT_ERR_AGAIN;
    weft_loop_release_pending(session->loop, loop_state_after(session, status, had_deferred));
    return status != WEFT_ERR_AGAIN;
}

/* It was called just before. */
static bool at_once(struct weft_session *session, const struct client_request *request, uint64_t now_ns)
{
    bool soon = now_ns < request->started_ns + WAIT_AT_ONCE_NS;
    if (soon) atomic_store_explicit(&session->calls->fastpath.at_once, true, memory_order_relaxed);
    return soon;
}

/* It is in the pocket: look once more, then deliver it. */
static void wait_for_deferred(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = session->engine;
    if (!weft_loop_try_acquire(engine->loop)) return; /* who steps the loop delivers it */
    bool delivered = false;
    if (deferred_of(session) == request) {
        struct weft_coll_args args;
        (void)at_once(session, request, weft_timestamp_ns(&session->calls->fastpath.timestamp, session->env));
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
    if (at_once(session, request, weft_now_ns(session->env)))
        atomic_store_explicit(&session->calls->fastpath.queued_calls_left, 0, memory_order_relaxed);
}

void client_fastpath_completed(struct client_request *request)
{
    if (request->deferred_open) request->session->calls->fastpath.deferred_open--;
    request->deferred_open = false;
}
