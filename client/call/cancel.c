/* cancel.c - weft_cancel: ends a request that no other rank can know yet.
 *
 *     gathered, before weft_group_end   removed from the group of calls, on the caller's thread
 *     recv without a matched send       the engine removes it from the queue or group (weft_coll_cancel_recv)
 *     every other request               WEFT_ERR_BUSY: another rank may have begun the operation
 *
 * A collective that waits in this rank's queue is not cancelled: on another rank it may be posted, and
 * then the ranks would disagree about the next operation. */
#include "client/call/call_group.h"
#include "client/call/calls.h"
#include "client/call/fastpath.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/query.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define CANCELLED_TEXT "cancelled by weft_cancel"

static bool is_open(const struct client_request *request)
{
    return atomic_load_explicit(&request->state, memory_order_acquire) == CLIENT_REQUEST_OPEN;
}

/* ---- engine thread ---- */

static void cancel_recv(struct client_request *request)
{
    (void)client_fastpath_post_deferred(request->session); /* the recv may be the deferred one */
    if (!is_open(request) || request->session->engine->failed) return;
    request->cancelled = true;
    if (!request->op.coll) {
        struct weft_list *queue = client_engine_group_queue(&request->op);
        weft_list_remove(&request->op.link);
        client_request_complete(request, WEFT_ERR_CANCELLED, CANCELLED_TEXT);
        client_engine_pump(queue); /* operations behind it */
    } else if (!weft_coll_cancel_recv(request->op.coll)) {
        request->cancelled = false;
    }
}

static void cancel_on_engine(struct weft_command *command)
{
    struct client_engine_query *query = weft_container_of(command, struct client_engine_query, command);
    struct client_request *request = atomic_exchange(&query->session->calls->cancel.request, NULL);
    if (request) cancel_recv(request);
    client_engine_query_answered(query);
}

/* ---- caller's thread ---- */

static bool has_ended(void *context)
{
    return !is_open(context);
}

/* Runs cancel_recv on the engine; afterwards the request has completed, or goes on. */
static enum weft_status ask_engine(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_calls *calls = session->calls;
    atomic_store(&calls->cancel.request, request);
    calls->cancel.query.command.fn = cancel_on_engine;
    if (client_engine_query_run(session, &calls->cancel.query) == WEFT_OK) return WEFT_OK;
    if (atomic_exchange(&calls->cancel.request, NULL)) /* the command then finds no request */
        return client_error(session, WEFT_ERR_BUSY,
                            "cancel: the engine is in a long computation; call again");
    return client_engine_query_run(
        session, &calls->cancel.query); /* the engine was running the command: this query runs after it */
}

static enum weft_status cancel_open(struct client_request *request)
{
    struct weft_session *session = request->session;
    const bool can_cancel =
        request->args.kind == WEFT_COLL_RECV && !request->tensor && !request->device.stage;
    if (can_cancel) {
        WEFT_TRY(ask_engine(request));
        if (request->cancelled)
            (void)client_wait_for(session, has_ended, request,
                                  client_deadline(session, CLIENT_BUFFER_RELEASE_NS));
    }
    if (is_open(request))
        return client_error(
            session, WEFT_ERR_BUSY,
            "cancel: the operation is under way, on this rank or another; wait for the request");
    if (request->status == WEFT_ERR_CANCELLED) return WEFT_OK;
    return client_error(session, WEFT_ERR_STATE,
                        "cancel: the request has already ended; weft_test returns its status");
}

enum weft_status weft_cancel(struct weft_request *user_request)
{
    if (!user_request) return client_null_argument("cancel", "request");
    struct client_request *request = client_request_of(user_request);
    if (request->magic != CLIENT_REQUEST_MAGIC) return client_invalid_request("cancel");
    struct weft_session *session = request->session;
    const uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);
    WEFT_TRY(client_usable(session));
    if (state == CLIENT_REQUEST_OPEN) return cancel_open(request);
    if (state != CLIENT_REQUEST_GATHERED)
        return client_error(session, WEFT_ERR_STATE,
                            "cancel: the request is not open: it was not started, or has ended");
    client_call_group_remove(request, WEFT_ERR_CANCELLED, CANCELLED_TEXT);
    return WEFT_OK;
}
