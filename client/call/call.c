/* call.c - weft_call_start and persistent requests: any operation of weft.h, described in a struct. */
#include "client/call/call.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/call/calls.h"
#include "client/call/input_backup.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/sized.h"

#define SAME(name) _Static_assert((int)WEFT_CALL_##name == (int)WEFT_COLL_##name, "one numbering")
SAME(ALL_REDUCE);
SAME(REDUCE_SCATTER);
SAME(ALL_GATHER);
SAME(BROADCAST);
SAME(BARRIER);
SAME(REDUCE);
SAME(GATHER);
SAME(SCATTER);
SAME(ALL_TO_ALL); SAME(SEND); SAME(RECV);

static bool is_public(enum weft_call_kind kind)
{
    return kind >= WEFT_CALL_ALL_REDUCE && kind <= WEFT_CALL_RECV && (int)kind != WEFT_COLL_ALL_GATHER_BYTES;
}

/* Returns the caller's struct, or `copy` filled from it if its size is that of another release. NULL:
 * refused. */
static const struct weft_call *full_size(struct weft_session *session, const struct weft_call *call,
                                         struct weft_call *copy)
{
    if (call && call->size == sizeof *call) return call;
    struct weft_error error = {0};
    *copy = (struct weft_call){0};
    enum weft_status status = client_sized_copy_in(copy, sizeof *copy, call,
                                                   client_sized_end(struct weft_call, kind), "call", &error);
    if (status < 0) client_error(session, status, "%s; WEFT_CALL(...) sets size", error.text);
    return status < 0 ? NULL : copy;
}

static enum weft_status check_on_stream(struct weft_session *session, const struct weft_call *call,
                                        const char *name)
{
    if (!weft_memory_is_device(call->memory) || call->kind == WEFT_CALL_BARRIER)
        return client_error(session, WEFT_ERR_INVALID,
                            "%s: on_stream is for operations on device memory; set memory to its kind",
                            name);
    if (call->weighted)
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s: on_stream has no weighted average; wait for the request instead", name);
    return WEFT_OK;
}

static enum weft_status check(struct weft_session *session, const struct weft_call *call)
{
    if (!is_public(call->kind))
        return client_error(
            session, WEFT_ERR_INVALID,
            "call: kind %d is not a valid weft_call_kind (WEFT_CALL_ALL_REDUCE .. WEFT_CALL_RECV)",
            (int)call->kind);
    const char *name = weft_coll_kind_name((enum weft_coll_kind)call->kind);
    if (call->comm && call->comm->session != session)
        return client_error(session, WEFT_ERR_INVALID, "%s: the group belongs to another session", name);
    if (call->deadline_ms > session->settings.deadline_ns / WEFT_MS(1))
        return client_error(session, WEFT_ERR_INVALID,
                            "%s: deadline_ms %llu is longer than the session's, %llu", name,
                            (unsigned long long)call->deadline_ms,
                            (unsigned long long)(session->settings.deadline_ns / WEFT_MS(1)));
    if (!weft_memory_is_kind((int)call->memory))
        return client_error(
            session, WEFT_ERR_INVALID,
            "%s: memory %d is not a valid weft_memory_kind (WEFT_MEMORY_HOST .. WEFT_MEMORY_DEVICE)", name,
            (int)call->memory);
    if (call->preserve_input && weft_memory_is_device(call->memory))
        return client_error(session, WEFT_ERR_UNSUPPORTED,
                            "%s: preserve_input is for host memory; keep a copy on the device", name);
    if (call->on_stream) WEFT_TRY(check_on_stream(session, call, name));
    if (call->preserve_input && call->kind != WEFT_CALL_ALL_REDUCE)
        return client_error(session, WEFT_ERR_UNSUPPORTED, "%s: preserve_input is for all_reduce", name);
    return WEFT_OK;
}

static enum weft_status make_request(struct weft_session *session, const struct weft_call *call,
                                     struct weft_request *user_request, struct client_request **request_out)
{
    WEFT_TRY(check(session, call));
    uint32_t rank = call->comm ? call->comm->rank : session->rank;
    bool rooted = call->kind == WEFT_CALL_GATHER || call->kind == WEFT_CALL_SCATTER;
    struct client_call described = {
        .kind = (enum weft_coll_kind)call->kind,
        .comm = call->comm,
        .in = call->in,
        .out = call->out,
        .count = call->count,
        .counts = rooted && rank != call->root ? NULL : call->counts,
        .counts_out = call->counts_out,
        .dtype = call->kind == WEFT_CALL_BARRIER ? WEFT_F32 : call->dtype,
        .op = call->op ? call->op : WEFT_SUM,
        .factor = call->weighted                ? call->weight
                  : call->op == WEFT_SCALED_SUM ? call->factor
                                                : 1,
        .weighted = call->weighted,
        .root = call->root,
        .reproducible = call->reproducible,
        .unequal = call->unequal,
        .deadline_ns = WEFT_MS(call->deadline_ms),
        .completed = call->completed,
        .context = call->context,
        .memory = call->memory,
        .stream = call->stream,
        .on_stream = call->on_stream,
    };
    if (call->kind == WEFT_CALL_BROADCAST) described.in = call->out;
    WEFT_TRY(client_call_prepare(session, &described, user_request, request_out));
    /* otherwise no step is run again */
    (*request_out)->args.preserves_input =
        call->preserve_input && call->in == call->out && session->membership.is_elastic;
    return WEFT_OK;
}

/* Backs up in-place input, which a step that is run again reads once more. */
static enum weft_status back_up_input(struct weft_session *session, const struct client_request *request)
{
    if (!request->args.preserves_input) return WEFT_OK;
    return client_backup_copy(session, request->args.out,
                              request->args.count * weft_dtype_bytes((enum weft_dtype)request->args.dtype));
}

/* Starts the request; with on_stream and a driver that cannot do it, waits for the result. */
static enum weft_status submit(struct weft_request *user_request)
{
    struct client_request *request = client_request_of(user_request);
    request->device.must_block = false;
    if (request->device.on_stream && client_call_group_is_open(request->session))
        return client_error(
            request->session, WEFT_ERR_UNSUPPORTED,
            "call: on_stream is for calls outside a group of calls; call weft_group_end first");
    const enum weft_status status = client_call_submit(request);
    if (status < 0 || !request->device.must_block) return status;
    const enum weft_status ended = weft_wait(user_request, 0);
    return ended < 0 ? ended : status;
}

enum weft_status weft_call_start(struct weft_session *session, const struct weft_call *call,
                                 struct weft_request *user_request)
{
    WEFT_DEFAULT_FLOATS;
    struct client_request *request;
    struct weft_call copy;
    if (!session) return client_null_argument("call_start", "session");
    WEFT_TRY(client_usable(session));
    if (!(call = full_size(session, call, &copy))) return session->failure.error.status;
    if (call->preserve_input && !session->step.open)
        return client_error(session, WEFT_ERR_STATE, "call: preserve_input is for calls in a step");
    WEFT_TRY(make_request(session, call, user_request, &request));
    WEFT_TRY(back_up_input(session, request));
    return submit(user_request);
}

enum weft_status weft_call_init(struct weft_session *session, const struct weft_call *call,
                                struct weft_request *user_request)
{
    WEFT_DEFAULT_FLOATS;
    struct client_request *request;
    struct weft_call copy;
    if (!session) return client_null_argument("call_init", "session");
    WEFT_TRY(client_usable(session));
    if (!(call = full_size(session, call, &copy))) return session->failure.error.status;
    WEFT_TRY(make_request(session, call, user_request, &request));
    request->persistent = true;
    return WEFT_OK;
}

/* The arguments of a persistent request, for client_call_check. */
static struct client_call call_of(const struct client_request *request)
{
    return (struct client_call){
        .kind = (enum weft_coll_kind)request->args.kind,
        .comm = request->op.comm,
        .in = request->args.in,
        .out = request->args.out,
        .count = request->args.count,
        .counts = request->args.counts,
        .counts_out = request->args.counts_out,
        .dtype = (enum weft_dtype)request->args.dtype,
        .op = (enum weft_op)request->args.reduction,
        .factor = request->average.factor,
        .weighted = request->average.weighted,
        .root = request->args.root,
        .reproducible = request->args.reproducible,
        .unequal = request->args.unequal,
    };
}

enum weft_status weft_start(struct weft_request *user_request)
{
    if (!user_request) return client_null_argument("start", "request");
    struct client_request *request = client_request_of(user_request);
    if (request->magic != CLIENT_REQUEST_MAGIC) return client_invalid_request("start");
    struct weft_session *session = request->session;
    WEFT_TRY(client_usable(session));
    if (!request->persistent)
        return client_error(session, WEFT_ERR_STATE,
                            "start: the request is not persistent; make it so by weft_call_init");
    WEFT_TRY(client_request_check_idle(session, request, "start"));
    WEFT_TRY(client_comm_valid(session, request->op.comm));
    if (request->args.counts ||
        request->args.counts_out) { /* the caller may have changed its tables of counts */
        const struct client_call call = call_of(request);
        WEFT_TRY(client_call_check(session, &call));
    }
    if (request->args.preserves_input && !session->step.open)
        return client_error(session, WEFT_ERR_STATE,
                            "start: the request has preserve_input, which is for calls in a step");
    WEFT_TRY(back_up_input(session, request));
    request->status = WEFT_OK;
    request->text_serial = 0;
    request->started_ns = 0;
    request->cancelled = false;
    request->op.coll = NULL;
    request->bucket = NULL;
    request->device.stage = NULL;
    return submit(user_request);
}

enum weft_status weft_start_all(struct weft_request *requests, size_t count)
{
    if (count == 0) return WEFT_OK;
    if (!requests) return client_null_argument("start_all", "request");
    struct client_request *first = client_request_of(&requests[0]);
    if (first->magic != CLIENT_REQUEST_MAGIC) return client_invalid_request("start_all");
    enum weft_status status = weft_group_start(first->session);
    for (size_t i = 0; i < count && status >= 0; i++) status = weft_start(&requests[i]);
    enum weft_status ended = weft_group_end(first->session);
    return status < 0 ? status : ended;
}

enum weft_status weft_request_free(struct weft_request *user_request)
{
    if (!user_request) return WEFT_OK;
    struct client_request *request = client_request_of(user_request);
    if (request->magic == 0) return WEFT_OK;
    if (request->magic != CLIENT_REQUEST_MAGIC) return client_invalid_request("request_free");
    uint32_t state = atomic_load_explicit(&request->state, memory_order_acquire);
    bool busy = state == CLIENT_REQUEST_OPEN || state == CLIENT_REQUEST_GATHERED;
    if (busy)
        return client_session_is_live(request->session)
                   ? client_request_check_idle(request->session, request, "request_free")
                   : WEFT_ERR_BUSY;
    memset(user_request, 0, sizeof *user_request);
    return WEFT_OK;
}
