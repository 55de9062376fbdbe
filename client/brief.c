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
 * A recv has no patience: as a rule it is called before what it waits for, and the wait for it comes soon. It is an ordinary operation of its
 * group from the call on, whose slot the loop looks at, but no letter brought it there.
 *
 * The patience is for nothing where the caller goes on computing instead of waiting. So after a call that was late the next ones go
 * to the engine at once, unless somebody has waited for it right away. */
#include "client/call.h"
#include "client/comm.h"
#include "client/session.h"

enum { CALLS_OF_REST = 16, CALLS_PER_STEP = 256, CALLS_PER_LETTER = 8 };
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
    if (request->kind == WEFT_COLL_RECV) { /* as a rule called before what it waits for */
        request->early = true;
        session->brief.early++;
        return;
    }
    atomic_store_explicit(&session->brief.rest, CALLS_OF_REST, memory_order_relaxed);
    atomic_store_explicit(&session->brief.late, request, memory_order_relaxed);
}

/* Holding the loop. */
static enum weft_status try(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_engine *engine = &session->engine;
    struct weft_group *group = client_call_group(request);
    if (engine->failed || !group || !weft_list_empty(client_engine_group_queue(&request->op))) return WEFT_ERR_AGAIN;
    struct weft_coll_args args;
    client_call_args(request, &args);
    bool pair = request->kind == WEFT_COLL_SEND || request->kind == WEFT_COLL_RECV;
    uint64_t began_ns = pair || session->step.open ? weft_now_ns(session->env) : 0;
    if (pair) args.posted_ns = request->started_ns = began_ns;
    enum weft_status status = weft_coll_brief(group, &args, client_engine_group_op_done, &request->op, &request->op.coll);
    if (status == WEFT_ERR_AGAIN) return status;
    atomic_store_explicit(&session->plan_taken, pair ? WEFT_PLAN_DIRECT : WEFT_PLAN_ONE_HOST, memory_order_relaxed);
    if (session->step.open) atomic_fetch_add(&session->step.exposed_ns, weft_now_ns(session->env) - began_ns);
    if (status == WEFT_IN_PROGRESS) {
        open_late(request);
    } else {
        engine->requests_done++;
        request->status = WEFT_OK;
        atomic_store_explicit(&request->state, CLIENT_REQUEST_DONE, memory_order_release);
    }
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

bool client_call_brief(struct client_request *request)
{
    struct weft_session *session = request->session;
    if (!may_be_brief(request)) return false;
    uint32_t rest = atomic_load_explicit(&session->brief.rest, memory_order_relaxed);
    if (rest > 0) {
        atomic_store_explicit(&session->brief.rest, rest - 1, memory_order_relaxed);
        return false;
    }
    request->op.session = session; /* by which its queue is found */
    if (!weft_loop_borrow(session->engine.loop)) return false;
    enum weft_status status = step_seldom(session) ? try(request) : WEFT_ERR_AGAIN;
    weft_loop_give_back(session->engine.loop, status == WEFT_IN_PROGRESS);
    return status != WEFT_ERR_AGAIN;
}

void client_brief_waited(const struct client_request *request)
{
    struct weft_session *session = request->session;
    if (atomic_load_explicit(&session->brief.late, memory_order_relaxed) != request) return;
    atomic_store_explicit(&session->brief.late, NULL, memory_order_relaxed);
    if (weft_now_ns(session->env) - request->started_ns < AT_ONCE_NS) atomic_store_explicit(&session->brief.rest, 0, memory_order_relaxed);
}
