/* collectives.c - all_reduce and its relatives on plain buffers. Checked here, posted by the engine in call order. */
#include <string.h>

#include "client/session.h"

static void on_done(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    struct weft_session *session = request->session;
    struct client_engine *engine = &session->engine;
    if (engine->failed) {
        client_request_complete(request, engine->failed, engine->failed_text);
    } else if (status < 0) {
        client_engine_group_op_failed(op, status, text); /* the ranks are out of step: this session is over */
    } else {
        client_request_complete(request, WEFT_OK, NULL);
    }
}

static enum weft_status post(struct client_group_op *op, struct weft_error *error)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    struct weft_coll_args args = {
        .kind = (enum weft_coll_kind)request->kind,
        .in = request->in,
        .out = request->out,
        .count = request->count,
        .dtype = (enum weft_dtype)request->dtype,
        .op = (enum weft_op)request->reduction,
        .root = request->root,
        .plan = (enum weft_plan_id)request->plan,
    };
    return weft_coll_post(request->session->engine.group, &args, client_engine_group_op_done, op, &op->coll, error);
}

static void start(struct weft_mail *mail)
{
    struct client_request *request = weft_container_of(mail, struct client_request, mail);
    if (!client_request_opened(request)) return;
    request->op.ready = true;
    request->op.post = post;
    request->op.done = on_done;
    client_engine_queue_group_op(request->session, &request->op);
}

struct call {
    const char *name;
    enum weft_coll_kind kind;
    const void *in;
    void *out;
    uint64_t count;
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t root;
    enum weft_plan_id plan;
};

static enum weft_status check(struct weft_session *session, const struct call *call)
{
    size_t elem_bytes = weft_dtype_bytes(call->dtype);
    bool barrier = call->kind == WEFT_COLL_BARRIER;
    bool reduces = call->kind == WEFT_COLL_ALL_REDUCE || call->kind == WEFT_COLL_REDUCE_SCATTER;
    if (!barrier && elem_bytes == 0)
        return client_error(session, WEFT_ERR_INVALID, "%s: dtype %d is none of WEFT_F32 ...", call->name, (int)call->dtype);
    if (!barrier && call->count > SIZE_MAX / elem_bytes / session->ranks)
        return client_error(session, WEFT_ERR_INVALID, "%s: %llu elements do not fit into memory", call->name,
                            (unsigned long long)call->count);
    if (!barrier && call->count > 0 && (!call->in || !call->out))
        return client_error(session, WEFT_ERR_INVALID, "%s: a buffer is NULL", call->name);
    if (reduces && call->op != WEFT_SUM && call->op != WEFT_AVG)
        return client_error(session, WEFT_ERR_INVALID, "%s: op %d is neither WEFT_SUM nor WEFT_AVG", call->name, (int)call->op);
    if (call->root >= session->ranks)
        return client_error(session, WEFT_ERR_INVALID, "%s: root %u is beyond the %u ranks", call->name, call->root, session->ranks);
    return WEFT_OK;
}

static enum weft_status run(struct weft_session *session, const struct call *call, struct weft_request *user_request)
{
    struct client_request *request;
    if (!session) return WEFT_ERR_INVALID;
    WEFT_TRY(client_usable(session));
    WEFT_TRY(check(session, call));
    WEFT_TRY(client_request_take(session, user_request, &request));
    request->in = call->in;
    request->out = call->out;
    request->count = call->count;
    request->kind = (uint8_t)call->kind;
    request->dtype = (uint8_t)call->dtype;
    request->reduction = (uint8_t)call->op;
    request->root = call->root;
    request->plan = (uint8_t)call->plan;
    client_request_post(request, start);
    return WEFT_IN_PROGRESS;
}

/* The chosen plan where it can do the operation, else the automatic choice. The same on all ranks. */
static enum weft_plan_id plan_for(const struct weft_session *session, enum weft_coll_kind kind)
{
    if (!session || session->plan == WEFT_PLAN_AUTO || !weft_plan_supports(session->plan, kind)) return WEFT_PLAN_AUTO;
    return session->plan;
}

enum weft_status weft_all_reduce(struct weft_session *session, const void *in, void *out, uint64_t count, enum weft_dtype dtype,
                                 enum weft_op op, struct weft_request *request)
{
    struct call call = {.name = "all_reduce", .kind = WEFT_COLL_ALL_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype,
                        .op = op, .plan = plan_for(session, WEFT_COLL_ALL_REDUCE)};
    return run(session, &call, request);
}

enum weft_status weft_reduce_scatter(struct weft_session *session, const void *in, void *out, uint64_t count,
                                     enum weft_dtype dtype, enum weft_op op, struct weft_request *request)
{
    struct call call = {.name = "reduce_scatter", .kind = WEFT_COLL_REDUCE_SCATTER, .in = in, .out = out, .count = count,
                        .dtype = dtype, .op = op, .plan = plan_for(session, WEFT_COLL_REDUCE_SCATTER)};
    return run(session, &call, request);
}

enum weft_status weft_all_gather(struct weft_session *session, const void *in, void *out, uint64_t count, enum weft_dtype dtype,
                                 struct weft_request *request)
{
    struct call call = {.name = "all_gather", .kind = WEFT_COLL_ALL_GATHER, .in = in, .out = out, .count = count, .dtype = dtype,
                        .op = WEFT_SUM, .plan = plan_for(session, WEFT_COLL_ALL_GATHER)};
    return run(session, &call, request);
}

enum weft_status weft_broadcast(struct weft_session *session, void *buffer, uint64_t count, enum weft_dtype dtype, uint32_t root,
                                struct weft_request *request)
{
    struct call call = {.name = "broadcast", .kind = WEFT_COLL_BROADCAST, .in = buffer, .out = buffer, .count = count,
                        .dtype = dtype, .op = WEFT_SUM, .root = root};
    return run(session, &call, request);
}

enum weft_status weft_barrier(struct weft_session *session, struct weft_request *request)
{
    struct call call = {.name = "barrier", .kind = WEFT_COLL_BARRIER, .dtype = WEFT_F32, .op = WEFT_SUM};
    return run(session, &call, request);
}

enum weft_status weft_set_plan(struct weft_session *session, const char *plan)
{
    if (!session) return WEFT_ERR_INVALID;
    WEFT_TRY(client_usable(session));
    enum weft_plan_id id = plan ? weft_plan_parse(plan) : WEFT_PLAN_AUTO;
    if (!plan || (id == WEFT_PLAN_AUTO && strcmp(plan, "auto") != 0))
        return client_error(session, WEFT_ERR_INVALID, "plan '%.60s' is unknown; there are auto, direct and ring", plan ? plan : "(NULL)");
    session->plan = id;
    return WEFT_OK;
}
