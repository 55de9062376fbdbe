/* brief.c - small collectives on the caller's own thread, within the call: for callers that wait at once, as nearly all do.
 *
 * A letter to the engine, and the wait that finds it done, cost several times what the ranks of a host need to meet in memory
 * (collective/host_brief.c). So the caller borrows the loop where it is free, no letter is in it and nothing of the group waits
 * before this call, and tries itself. A call that has not ended when the patience of a few microseconds is over has become an
 * ordinary operation, and its request one that is open.
 *
 * Who calls again and again holds the loop nearly all the time, and its runner looks seldom then. So every so many calls the loop is
 * stepped for once: news of the group must not wait for ever. Where requests are open (of another group, or they would be in the way),
 * whose callbacks are not for a call that starts something, such a call goes to the engine instead, and that much sooner: who waits
 * for it steps the loop, and perhaps nobody else does.
 *
 * A recv is called before its send has come, as a rule, and waited for soon. So one whose send has not come stays in the caller's *pocket*,
 * a letter that is not posted: the wait for it looks once more, and whoever steps the loop, or starts another recv, delivers it
 * before anything else. Then it is an ordinary operation.
 *
 * The patience is for nothing where the caller goes on computing instead of waiting. So after a call that was late the next ones go
 * to the engine at once, unless somebody has waited for it right away. So do, all but one in CALLS_APART, those of a group whose ranks have no
 * memory in common. */
#include "client/batch.h"
#include "client/call.h"
#include "client/comm.h"
#include "client/session.h"

enum { CALLS_OF_REST = 16, CALLS_PER_STEP = 256, CALLS_PER_LETTER = 8, CALLS_APART = 256 };
enum { PAIR_SHAPE = 1 }; /* the group looks at a send or recv each time */
#define AT_ONCE_NS WEFT_MS(1) / 5 /* from the call to the wait of one who computes nothing between */

static bool may_be_brief(const struct client_request *request)
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
    bool plain = !request->counts && !request->unequal && !request->completed && !request->weighted && !request->stage;
    return plain && request->count <= CLIENT_BRIEF_ELEMS && request->plan == WEFT_PLAN_AUTO;
}

static bool is_pair(unsigned kind) { return kind == WEFT_COLL_SEND || kind == WEFT_COLL_RECV; }

/* It is an operation of the group now: what the letter would have done. */
static void open_late(struct client_request *request)
{
    struct weft_session *session = request->session;
    request->op.ready = true;
    request->op.session = session;
    request->op.post = client_call_post;
    request->op.done = client_call_done;
    client_request_open(request);
    (void)client_request_opened(request); /* the engine has not failed */
    atomic_store_explicit(&session->brief.rest, CALLS_OF_REST, memory_order_relaxed);
    atomic_store_explicit(&session->brief.late, request, memory_order_relaxed);
}

/* ---- the pocket: all of it holding the loop ---- */
static struct client_request *pocket_of(const struct weft_session *session) { return atomic_load_explicit(&session->brief.pocket, memory_order_relaxed); }

bool client_brief_deliver(struct weft_session *session)
{
    struct client_request *request = pocket_of(session);
    if (!request) return false;
    atomic_store_explicit(&session->brief.pocket, NULL, memory_order_relaxed);
    weft_loop_guard(session->engine.loop);
    uint64_t now_ns = weft_now_ns(session->env);
    if (request->started_ns > now_ns) request->started_ns = now_ns; /* it was a stamp; from now on its time is measured */
    client_call_start(&request->mail);
    return true;
}

static int deliver_step(struct weft_pollable *pollable, int budget)
{
    return client_brief_deliver(weft_container_of(pollable, struct weft_session, brief.pollable));
}

static enum weft_status deliver_arm(struct weft_pollable *pollable)
{
    return pocket_of(weft_container_of(pollable, struct weft_session, brief.pollable)) ? WEFT_ERR_AGAIN : WEFT_OK;
}

void client_brief_open(struct weft_session *session)
{
    session->brief.pollable = (struct weft_pollable){.fd = WEFT_POLLABLE_WOKEN, .progress = deliver_step, .arm = deliver_arm};
    weft_list_init(&session->brief.pollable.link);
    weft_stamp_look(&session->brief.stamp, session->env); /* the first one: the pace is known with the second */
    (void)weft_loop_add(session->engine.loop, &session->brief.pollable); /* without a descriptor it cannot fail */
}

static void pocket(struct client_request *request, uint64_t started_ns)
{
    struct weft_session *session = request->session;
    request->started_ns = started_ns;
    client_request_open(request);
    request->early = true;
    session->brief.early++;
    atomic_store_explicit(&session->brief.pocket, request, memory_order_relaxed);
}

/* ---- the call ---- */
static enum weft_status over(struct client_request *request)
{
    request->session->engine.requests_done++;
    request->status = WEFT_OK;
    atomic_store_explicit(&request->state, CLIENT_REQUEST_DONE, memory_order_release);
    client_event_signal(request->session);
    return WEFT_OK;
}

static uint64_t began(const struct weft_session *session) { return session->step.open ? weft_now_ns(session->env) : 0; }

static void exposed(struct weft_session *session, uint64_t began_ns)
{
    if (session->step.open) atomic_fetch_add(&session->step.exposed_ns, weft_now_ns(session->env) - began_ns);
}

/* Holding the loop. */
static enum weft_status pair_now(struct client_request *request, struct weft_group *group, struct weft_coll_args *args)
{
    struct weft_session *session = request->session;
    uint64_t began_ns = began(session);
    args->posted_ns = weft_stamp_ns(&session->brief.stamp, session->env);
    enum weft_status status = args->kind == WEFT_COLL_RECV ? weft_coll_recv_now(group, args, false)
                                                           : weft_coll_brief(group, args, client_engine_group_op_done, &request->op, &request->op.coll);
    if (status == WEFT_ERR_AGAIN) return status;
    atomic_store_explicit(&session->plan_taken, WEFT_PLAN_DIRECT, memory_order_relaxed);
    exposed(session, began_ns);
    return status == WEFT_OK ? over(request) : status;
}

/* Holding the loop. */
static enum weft_status try_pair(struct client_request *request, struct weft_group *group, struct weft_coll_args *args)
{
    /* One of the same pair comes first, also where it has to wait for a place in the group. */
    bool delivered = request->kind == WEFT_COLL_RECV && client_brief_deliver(request->session);
    if (delivered && !weft_list_empty(client_engine_group_queue(&request->op))) return WEFT_ERR_AGAIN;
    enum weft_status status = pair_now(request, group, args);
    if (status == WEFT_IN_PROGRESS) pocket(request, args->posted_ns);
    return status;
}

/* Calls of its group that need not try. */
static _Atomic uint32_t *apart_of(const struct client_request *request)
{
    return request->op.comm ? &request->op.comm->brief_apart : &request->session->brief.apart;
}

static bool takes_one_off(_Atomic uint32_t *calls)
{
    uint32_t left = atomic_load_explicit(calls, memory_order_relaxed);
    if (left > 0) atomic_store_explicit(calls, left - 1, memory_order_relaxed);
    return left > 0;
}

/* What came of it. */
static enum weft_status tried(struct client_request *request, enum weft_status status, uint64_t began_ns)
{
    struct weft_session *session = request->session;
    if (status == WEFT_ERR_AGAIN) return status;
    atomic_store_explicit(&session->plan_taken, WEFT_PLAN_ONE_HOST, memory_order_relaxed);
    exposed(session, began_ns);
    return status == WEFT_OK ? over(request) : status;
}

static void remember(const struct client_request *request, const struct weft_group *group)
{
    bool plain = !request->op.comm && !request->label && !request->reproducible && !request->deadline_ns && request->memory == WEFT_MEMORY_HOST && request->factor == 1;
    if (!plain) return;
    uint64_t shape = is_pair(request->kind) ? PAIR_SHAPE : weft_coll_shape(group, (enum weft_coll_kind)request->kind);
    request->session->brief.again[request->kind] = (struct client_again){.shape = shape, .count = request->count,
        .dtype = (enum weft_dtype)request->dtype, .op = (enum weft_op)request->reduction, .root = request->root};
}

/* Holding the loop. */
static enum weft_status try(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = &session->engine;
    struct weft_group *group = client_call_group(request);
    if (engine->failed || !group || !weft_list_empty(client_engine_group_queue(&request->op))) return WEFT_ERR_AGAIN;
    if (!weft_group_shares_memory(group)) {
        atomic_store_explicit(apart_of(request), CALLS_APART - 1, memory_order_relaxed);
        return WEFT_ERR_AGAIN;
    }
    struct weft_coll_args args;
    client_call_args(request, &args);
    if (is_pair(request->kind)) {
        enum weft_status passed = try_pair(request, group, &args);
        if (passed != WEFT_ERR_AGAIN) remember(request, group);
        return passed;
    }
    uint64_t began_ns = began(session);
    enum weft_status status = tried(request, weft_coll_brief(group, &args, client_engine_group_op_done, &request->op, &request->op.coll), began_ns);
    if (status == WEFT_OK) remember(request, group);
    if (status == WEFT_IN_PROGRESS) open_late(request);
    return status;
}

/* Holding the loop. false: this call is for the engine. */
static bool step_seldom(struct weft_session *session)
{
    bool open = atomic_load_explicit(&session->open_requests, memory_order_relaxed) > session->brief.early;
    if (++session->brief.since_step < (open ? CALLS_PER_LETTER : CALLS_PER_STEP)) return true;
    session->brief.since_step = 0;
    if (open) return false;
    (void)weft_loop_step(session->engine.loop);
    return true;
}

/* Who waited at once for the last call that stayed open will for this one: no need to wake a runner for it, which would take the core, and hold up the
 * rank that waits for this one. Should nobody wait after all, the next one wakes it. */
static enum weft_loop_left left_open(struct weft_session *session)
{
    bool at_once = atomic_load_explicit(&session->brief.at_once, memory_order_relaxed);
    atomic_store_explicit(&session->brief.at_once, false, memory_order_relaxed);
    return at_once && !client_event_wanted(session) ? WEFT_LOOP_AWAITED : WEFT_LOOP_OPENED;
}

static enum weft_loop_left left_behind(struct weft_session *session, enum weft_status status, bool held_one)
{
    if (held_one && !pocket_of(session)) return WEFT_LOOP_OPENED; /* another's */
    return status == WEFT_IN_PROGRESS ? left_open(session) : WEFT_LOOP_AS_FOUND;
}

bool client_call_brief(struct client_request *request)
{
    struct weft_session *session = request->session;
    if (!may_be_brief(request)) return false;
    if (takes_one_off(apart_of(request)) || takes_one_off(&session->brief.rest)) return false;
    request->op.session = session; /* by which its queue is found */
    if (!weft_loop_borrow(session->engine.loop)) return false;
    bool held_one = pocket_of(session) != NULL;
    enum weft_status status = step_seldom(session) ? try(request) : WEFT_ERR_AGAIN;
    weft_loop_give_back(session->engine.loop, left_behind(session, status, held_one));
    return status != WEFT_ERR_AGAIN;
}

/* ---- a call like the last one of its kind: what was found to be right is not looked at again ----
 * But for what the group itself looks at (weft_coll_brief_again): buffers that are NULL, and all of the first call after its ranks have changed. */
static bool like_the_last(const struct weft_session *session, const struct client_plain *call)
{
    const struct client_again *last = &session->brief.again[call->kind];
    return last->shape != 0 && call->count == last->count && call->dtype == last->dtype && call->op == last->op && call->root == last->root &&
           session->plans[call->kind] == WEFT_PLAN_AUTO;
}

static bool at_rest(const struct client_request *request)
{
    return request && request->magic == CLIENT_REQUEST_MAGIC && !request->persistent &&
           atomic_load_explicit(&request->state, memory_order_acquire) == CLIENT_REQUEST_DONE;
}

static void fill(struct client_request *request, const struct client_plain *call)
{
    const struct client_call whole = client_call_of(call);
    client_request_clear(request->session, request);
    client_call_fill(request, &whole);
    request->op.session = request->session;
}

/* Holding the loop. */
static enum weft_status try_pair_again(struct client_request *request, struct weft_group *group, const struct client_plain *call)
{
    struct weft_coll_args args = {.kind = call->kind, .in = call->in, .out = call->out, .count = call->count, .dtype = call->dtype, .op = call->op, .root = call->root};
    enum weft_status status = pair_now(request, group, &args);
    if (status != WEFT_IN_PROGRESS) return status;
    fill(request, call);
    pocket(request, args.posted_ns);
    return status;
}

/* Holding the loop. */
static enum weft_status try_again(struct client_request *request, const struct client_plain *call)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = &session->engine;
    struct weft_group *group = engine->group;
    if (engine->failed || !group || !weft_list_empty(&engine->group_queue)) return WEFT_ERR_AGAIN;
    if (is_pair(call->kind)) return try_pair_again(request, group, call);
    uint64_t began_ns = began(session), shape = session->brief.again[call->kind].shape;
    enum weft_status status = weft_coll_brief_again(group, call->kind, shape, call->in, call->out, client_engine_group_op_done, &request->op, &request->op.coll);
    if (tried(request, status, began_ns) != WEFT_IN_PROGRESS) return status;
    struct weft_coll *coll = request->op.coll; /* all that is known of it so far */
    fill(request, call);
    request->op.coll = coll;
    open_late(request);
    return status;
}

bool client_call_again(struct weft_session *session, const struct client_plain *call, struct weft_request *user_request)
{
    struct client_request *request = client_request_of(user_request);
    if (!like_the_last(session, call) || !at_rest(request) || client_batch_open(session) || session->staging.cut || client_usable(session) < 0) return false;
    if (atomic_load_explicit(&session->brief.rest, memory_order_relaxed) > 0) return false;
    bool held_one = pocket_of(session) != NULL; /* which a send does not wait for */
    if ((held_one && call->kind != WEFT_COLL_SEND) || !weft_loop_borrow(session->engine.loop)) return false;
    request->session = request->op.session = session;
    request->op.comm = NULL; /* by these its queue is found */
    request->tensor = NULL;
    enum weft_status status = step_seldom(session) ? try_again(request, call) : WEFT_ERR_AGAIN;
    weft_loop_give_back(session->engine.loop, left_behind(session, status, held_one));
    return status != WEFT_ERR_AGAIN;
}

/* It was called just before. */
static bool at_once(struct weft_session *session, const struct client_request *request, uint64_t now_ns)
{
    bool soon = now_ns < request->started_ns + AT_ONCE_NS;
    if (soon) atomic_store_explicit(&session->brief.at_once, true, memory_order_relaxed);
    return soon;
}

/* It is in the pocket: look once more, then deliver it. */
static void wait_for_pocket(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = &session->engine;
    if (!weft_loop_borrow(engine->loop)) return; /* who steps the loop delivers it */
    bool delivered = false;
    if (pocket_of(session) == request) {
        struct weft_coll_args args;
        (void)at_once(session, request, weft_stamp_ns(&session->brief.stamp, session->env));
        struct weft_group *group = client_call_group(request);
        client_call_args(request, &args);
        args.posted_ns = request->started_ns;
        bool may = !engine->failed && group && weft_list_empty(client_engine_group_queue(&request->op));
        if (may && weft_coll_recv_now(group, &args, true) == WEFT_OK) {
            atomic_store_explicit(&session->brief.pocket, NULL, memory_order_relaxed);
            client_request_complete(request, WEFT_OK, NULL);
        } else {
            delivered = client_brief_deliver(session);
        }
    }
    weft_loop_give_back(engine->loop, delivered ? WEFT_LOOP_AWAITED : WEFT_LOOP_AS_FOUND);
}

void client_brief_waited(struct client_request *request)
{
    struct weft_session *session = request->session;
    if (pocket_of(session) == request) {
        wait_for_pocket(request);
        return;
    }
    if (atomic_load_explicit(&session->brief.late, memory_order_relaxed) != request) return;
    atomic_store_explicit(&session->brief.late, NULL, memory_order_relaxed);
    if (at_once(session, request, weft_now_ns(session->env))) atomic_store_explicit(&session->brief.rest, 0, memory_order_relaxed);
}
