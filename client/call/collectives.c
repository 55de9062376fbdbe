/* collectives.c - collectives, sends and recvs on plain buffers. The caller's thread checks them; the
 * engine posts them in call order. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/call/call_group.h"
#include "client/call/calls.h"
#include "client/call/device_staging.h"
#include "client/call/fastpath.h"
#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/topology.h"

/* ---- engine thread ---- */

void client_call_failed(struct client_group_op *op, enum weft_status status, const char *text)
{
    char sentence[480];
    if (op->comm) {
        snprintf(sentence, sizeof sentence, "group %u (%s): %.380s", op->comm->id, op->comm->name,
                 text ? text : weft_reason_text(status));
        text = sentence;
    }
    client_engine_group_op_failed(op, status, text); /* the ranks disagree about the next operation: the
                                                      * session ends */
}

void client_call_done(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    struct weft_session *session = request->session;
    struct client_engine *engine = session->engine;
    /* its last piece calls this function again */
    if (request->device.stage && !client_stage_ended(request, status, text)) return;
    if (engine->failed) {
        client_request_complete(request, engine->failed, engine->failed_text);
    } else if (request->cancelled) {
        client_request_complete(request, WEFT_ERR_CANCELLED, text);
    } else if (status < 0) {
        client_call_failed(op, status, text);
    } else {
        client_request_complete(request, WEFT_OK, NULL);
    }
}

struct weft_group *client_request_group(const struct client_request *request)
{
    return request->op.comm ? request->op.comm->group : request->session->engine->group;
}

void client_call_args(const struct client_request *request, struct weft_coll_args *args)
{
    *args = (struct weft_coll_args){
        .kind = (enum weft_coll_kind)request->args.kind,
        .in = request->args.in,
        .out = request->args.out,
        .count = request->args.count,
        .counts = request->args.counts,
        .counts_out = request->args.counts_out,
        .unequal = request->args.unequal,
        .dtype = (enum weft_dtype)request->args.dtype,
        .op = (enum weft_op)request->args.reduction,
        .label = (enum weft_coll_label)request->args.label,
        .factor = request->average.factor,
        .root = request->args.root,
        .plan = (enum weft_plan_id)request->args.plan,
        .reproducible = request->args.reproducible,
        .deadline_ns = request->args.deadline_ns,
        .posted_ns = request->is_next ? request->started_ns : 0,
    };
    if (request->average.weighted) client_weighted_average_args(request, args);
}

enum weft_status client_call_post(struct client_group_op *op, struct weft_error *error)
{
    struct client_request *request = weft_container_of(op, struct client_request, op);
    if (request->device.stage) return client_stage_post(request, error);
    struct weft_coll_args args;
    client_call_args(request, &args);
    enum weft_status status = weft_coll_post(client_request_group(request), &args,
                                             client_engine_group_op_done, op, &op->coll, error);
    request->is_next = false; /* not if it is posted again */
    if (status == WEFT_IN_PROGRESS)
        atomic_store_explicit(&request->session->calls->last_plan, (int)weft_coll_plan(op->coll),
                              memory_order_relaxed);
    return status;
}

void client_call_start(struct weft_command *command)
{
    struct client_request *request = weft_container_of(command, struct client_request, command);
    /* it was called before this recv */
    if (request->args.kind == WEFT_COLL_RECV) (void)client_fastpath_post_deferred(request->session);
    if (!client_request_begin(request)) return;
    if (request->device.stage) client_stage_opened(request);
    request->op.ready = true;
    request->op.session = request->session;
    request->is_next = weft_list_empty(client_engine_group_queue(&request->op));
    request->op.post = client_call_post;
    request->op.done = client_call_done;
    if (request->average.weighted) {
        client_weighted_average_start(request);
        return;
    }
    client_engine_queue_group_op(request->session, &request->op);
}

/* ---- caller's thread ---- */

static uint32_t rank_in(const struct weft_session *session, const struct weft_comm *comm)
{
    return comm ? comm->rank : session->rank;
}
static uint32_t ranks_in(const struct weft_session *session, const struct weft_comm *comm)
{
    return comm ? comm->ranks : session->ranks;
}

/* The counts and their sums in bytes fit into memory. */
static bool counts_fit(const uint64_t *counts, uint32_t ranks)
{
    for (uint32_t r = 0; counts && r < ranks; r++)
        if (counts[r] > SIZE_MAX / 8 / ranks) return false;
    return true;
}

/* Elements that the call reads and writes on this rank. false: they do not fit into memory. */
static bool extents_of(const struct client_call *call, uint32_t rank, uint32_t ranks,
                       struct client_extents *extents)
{
    if (!counts_fit(call->counts, ranks) || !counts_fit(call->counts_out, ranks)) return false;
    const struct weft_coll_caller caller = {.rank = rank, .ranks = ranks};
    const struct weft_coll_args args = {.kind = call->kind,
                                        .count = call->count,
                                        .counts = call->counts,
                                        .counts_out = call->counts_out,
                                        .root = call->root};
    const struct coll_elem_counts elems = coll_elem_counts_of(&caller, &args);
    const bool reads_out = rank == call->root && coll_kind_info_of(call->kind)->root_reads_out;
    *extents =
        reads_out ? (struct client_extents){elems.out, 0} : (struct client_extents){elems.in, elems.out};
    return true;
}

static enum weft_status check_weight(struct weft_session *session, const struct client_call *call,
                                     const char *name)
{
    if (!coll_is_reduction(call->kind) || call->op != WEFT_AVG)
        return client_error(session, WEFT_ERR_INVALID,
                            "%s: a weight is for WEFT_AVG of all_reduce, reduce and reduce_scatter", name);
    bool floats = call->dtype == WEFT_F32 || call->dtype == WEFT_F64 || call->dtype == WEFT_F16 ||
                  call->dtype == WEFT_BF16 || call->dtype == WEFT_F8_E4M3 || call->dtype == WEFT_F8_E5M2;
    if (!floats)
        return client_error(session, WEFT_ERR_UNSUPPORTED, "%s: an average of %s has no weights; floats have",
                            name, weft_dtype_name(call->dtype));
    if (!isfinite(call->factor) || call->factor < 0)
        return client_error(session, WEFT_ERR_INVALID,
                            "%s: weight is %g; it must be zero or positive, as a number of samples is", name,
                            call->factor);
    return WEFT_OK;
}

/* The plan set for this operation, or the automatic choice. Equal on all ranks. */
static enum weft_plan_id plan_for(const struct weft_session *session, const struct client_call *call)
{
    enum weft_plan_id plan = session->calls->plans[call->kind];
    return (call->counts || call->unequal) && !weft_plan_supports_unequal(plan, call->kind) ? WEFT_PLAN_AUTO
                                                                                            : plan;
}

enum weft_status client_call_check(struct weft_session *session, const struct client_call *call)
{
    const struct client_hosts *hosts =
        call->comm ? call->comm->hosts : atomic_load(&session->membership.hosts);
    const struct weft_coll_caller place = {rank_in(session, call->comm), ranks_in(session, call->comm),
                                           hosts ? &hosts->plan : NULL};
    const struct weft_coll_args args = {
        .kind = call->kind,
        .in = call->in,
        .out = call->out,
        .count = call->count,
        .counts = call->counts,
        .counts_out = call->counts_out,
        .unequal = call->unequal,
        .dtype = call->dtype,
        .op = call->op,
        .factor = call->factor,
        .root = call->root,
        .reproducible = call->reproducible,
        .plan = call->reproducible ? WEFT_PLAN_AUTO : plan_for(session, call),
    };
    struct weft_error error;
    error.status = WEFT_OK, error.text[0] = 0; /* the other fields are written with them */
    const enum weft_status status = weft_coll_check(&place, &args, &error);
    if (status < 0) return client_error(session, status, "%s", error.text);
    return call->weighted ? check_weight(session, call, weft_coll_kind_name(call->kind)) : WEFT_OK;
}

enum weft_status client_call_prepare(struct weft_session *session, const struct client_call *call,
                                     struct weft_request *user_request, struct client_request **request_out)
{
    WEFT_TRY(client_usable(session));
    WEFT_TRY(client_comm_valid(session, call->comm));
    WEFT_TRY(client_call_check(session, call));
    WEFT_TRY(client_request_claim(session, weft_coll_kind_name(call->kind), user_request, request_out));
    client_call_fill_request(*request_out, call);
    return WEFT_OK;
}

void client_call_fill_request(struct client_request *request, const struct client_call *call)
{
    request->op.comm = call->comm;
    request->args.in = call->in;
    request->args.out = call->out;
    request->args.count = call->count;
    request->args.counts = call->counts;
    request->args.counts_out = call->counts_out;
    request->args.unequal = call->unequal;
    request->average.factor = call->factor;
    request->average.weighted = call->weighted;
    request->args.kind = (uint8_t)call->kind;
    request->args.dtype = (uint8_t)call->dtype;
    request->args.reduction = (uint8_t)call->op;
    request->args.label = (uint8_t)call->label;
    request->args.root = call->root;
    request->args.plan = call->reproducible ? WEFT_PLAN_AUTO : (uint8_t)plan_for(request->session, call);
    request->args.reproducible = call->reproducible;
    request->args.deadline_ns = call->deadline_ns;
    request->completed = call->completed;
    request->context = call->context;
    request->device.memory = (uint8_t)call->memory;
    request->device.stream = call->stream;
    request->device.on_stream = call->on_stream;
}

/* Queues the first copies of a call on device memory, in the order of the caller's stream. */
static enum weft_status start_staging(struct client_request *request)
{
    const struct weft_session *session = request->session;
    if (!weft_memory_is_device(request->device.memory) && !session->calls->staging.cuts_long_calls &&
        !request->args.counts && !request->args.counts_out) {
        /* fast path: most calls */
        request->device.stage = NULL;
        return WEFT_OK;
    }
    const struct client_call call = {.kind = (enum weft_coll_kind)request->args.kind,
                                     .root = request->args.root,
                                     .count = request->args.count,
                                     .counts = request->args.counts,
                                     .counts_out = request->args.counts_out};
    struct client_extents extents;
    bool fits =
        extents_of(&call, rank_in(session, request->op.comm), ranks_in(session, request->op.comm), &extents);
    /* the counts of a persistent call have changed */
    return fits ? client_stage_start(request, extents) : WEFT_ERR_INVALID;
}

enum weft_status client_call_submit(struct client_request *request)
{
    const struct client_call_nccl_ops *nccl = request->session->calls->nccl_ops;
    if (nccl && request->device.host_call) nccl->restore(request);
    if (nccl && nccl->accepts(request)) return nccl->submit(request);
    return client_call_submit_directly(request);
}

enum weft_status client_call_submit_directly(struct client_request *request)
{
    WEFT_TRY(start_staging(request));
    if (client_call_group_is_open(request->session)) client_call_group_add(request);
    else if (!client_call_try_inline(request)) client_request_post(request, client_call_start);
    return WEFT_IN_PROGRESS;
}

static enum weft_status run(struct weft_session *session, const struct client_call *call,
                            struct weft_request *user_request)
{
    struct client_request *request;
    if (!session) return client_null_argument(weft_coll_kind_name(call->kind), "session");
    WEFT_TRY(client_call_prepare(session, call, user_request, &request));
    return client_call_submit(request);
}

enum weft_status client_call_start_internal(struct weft_session *session, enum weft_coll_label label,
                                            const struct client_simple_call *plain,
                                            struct weft_request *user_request)
{
    struct client_call call = client_call_from_simple(plain);
    call.label = label;
    return run(session, &call, user_request);
}

enum weft_status client_call_run_internal(struct weft_session *session, enum weft_coll_label label,
                                          const struct client_simple_call *plain, const char *what)
{
    struct weft_request request = {{0}};
    WEFT_TRY(client_call_start_internal(session, label, plain, &request));
    return client_request_wait_internal(session, &request, what);
}

static __attribute__((noinline)) enum weft_status run_unprepared(struct weft_session *session,
                                                            const struct client_simple_call *plain,
                                                            struct weft_request *user_request)
{
    const struct client_call call = client_call_from_simple(plain);
    return run(session, &call, user_request);
}

static enum weft_status run_simple(struct weft_session *session, const struct client_simple_call *plain,
                                   struct weft_request *user_request)
{
    return session && client_call_try_prepared(session, plain, user_request)
               ? WEFT_IN_PROGRESS
               : run_unprepared(session, plain, user_request);
}

/* ---- one count for all ranks ---- */
enum weft_status weft_all_reduce(struct weft_session *session, const void *in, void *out, uint64_t count,
                                 enum weft_dtype dtype, enum weft_op op, struct weft_request *request)
{
    const struct client_simple_call call = {
        .kind = WEFT_COLL_ALL_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype, .op = op};
    return run_simple(session, &call, request);
}

enum weft_status client_all_reduce_tensor(struct weft_session *session, float *buffer, uint64_t count,
                                          struct weft_request *request)
{
    struct client_call call = {.kind = WEFT_COLL_ALL_REDUCE, .in = buffer, .out = buffer, .count = count,
                        .dtype = WEFT_F32, .op = WEFT_SUM, .factor = 1, .reproducible = true};
    return run(session, &call, request);
}

enum weft_status weft_all_reduce_scaled(struct weft_session *session, const void *in, void *out,
                                        uint64_t count, enum weft_dtype dtype, double factor,
                                        struct weft_request *request)
{
    WEFT_DEFAULT_FLOATS;
    struct client_call call = {.kind = WEFT_COLL_ALL_REDUCE,
                               .in = in,
                               .out = out,
                               .count = count,
                               .dtype = dtype,
                               .op = WEFT_SCALED_SUM,
                               .factor = factor};
    return run(session, &call, request);
}

enum weft_status weft_all_reduce_weighted(struct weft_session *session, const void *in, void *out,
                                          uint64_t count, enum weft_dtype dtype, double weight,
                                          struct weft_request *request)
{
    WEFT_DEFAULT_FLOATS;
    struct client_call call = {.kind = WEFT_COLL_ALL_REDUCE,
                               .in = in,
                               .out = out,
                               .count = count,
                               .dtype = dtype,
                               .op = WEFT_AVG,
                               .factor = weight,
                               .weighted = true};
    return run(session, &call, request);
}

enum weft_status weft_reduce_scatter(struct weft_session *session, const void *in, void *out, uint64_t count,
                                     enum weft_dtype dtype, enum weft_op op, struct weft_request *request)
{
    const struct client_simple_call call = {
        .kind = WEFT_COLL_REDUCE_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype, .op = op};
    return run_simple(session, &call, request);
}

enum weft_status weft_all_gather(struct weft_session *session, const void *in, void *out, uint64_t count,
                                 enum weft_dtype dtype, struct weft_request *request)
{
    const struct client_simple_call call = {
        .kind = WEFT_COLL_ALL_GATHER, .in = in, .out = out, .count = count, .dtype = dtype, .op = WEFT_SUM};
    return run_simple(session, &call, request);
}

enum weft_status weft_broadcast(struct weft_session *session, void *buffer, uint64_t count,
                                enum weft_dtype dtype, uint32_t root, struct weft_request *request)
{
    const struct client_simple_call call = client_simple_broadcast(buffer, count, dtype, root);
    return run_simple(session, &call, request);
}

enum weft_status weft_reduce(struct weft_session *session, const void *in, void *out, uint64_t count,
                             enum weft_dtype dtype, enum weft_op op, uint32_t root,
                             struct weft_request *request)
{
    const struct client_simple_call call = {.kind = WEFT_COLL_REDUCE,
                                            .in = in,
                                            .out = out,
                                            .count = count,
                                            .dtype = dtype,
                                            .op = op,
                                            .root = root};
    return run_simple(session, &call, request);
}

enum weft_status weft_gather(struct weft_session *session, const void *in, void *out, uint64_t count,
                             enum weft_dtype dtype, uint32_t root, struct weft_request *request)
{
    const struct client_simple_call call = {.kind = WEFT_COLL_GATHER,
                                            .in = in,
                                            .out = out,
                                            .count = count,
                                            .dtype = dtype,
                                            .op = WEFT_SUM,
                                            .root = root};
    return run_simple(session, &call, request);
}

enum weft_status weft_scatter(struct weft_session *session, const void *in, void *out, uint64_t count,
                              enum weft_dtype dtype, uint32_t root, struct weft_request *request)
{
    const struct client_simple_call call = {.kind = WEFT_COLL_SCATTER,
                                            .in = in,
                                            .out = out,
                                            .count = count,
                                            .dtype = dtype,
                                            .op = WEFT_SUM,
                                            .root = root};
    return run_simple(session, &call, request);
}

enum weft_status weft_all_to_all(struct weft_session *session, const void *in, void *out, uint64_t count,
                                 enum weft_dtype dtype, struct weft_request *request)
{
    const struct client_simple_call call = {
        .kind = WEFT_COLL_ALL_TO_ALL, .in = in, .out = out, .count = count, .dtype = dtype, .op = WEFT_SUM};
    return run_simple(session, &call, request);
}

enum weft_status weft_barrier(struct weft_session *session, struct weft_request *request)
{
    const struct client_simple_call call = {.kind = WEFT_COLL_BARRIER, .dtype = WEFT_F32, .op = WEFT_SUM};
    return run_simple(session, &call, request);
}

/* ---- a count for each rank ---- */
static enum weft_status run_pieces(struct weft_session *session, const struct client_call *call, bool needed,
                                   struct weft_request *request)
{
    if (session && needed && (!call->counts || (call->kind == WEFT_COLL_ALL_TO_ALL && !call->counts_out)))
        return client_error(session, WEFT_ERR_INVALID, "%s: counts is NULL", weft_coll_kind_name(call->kind));
    return run(session, call, request);
}

enum weft_status weft_reduce_scatter_v(struct weft_session *session, const void *in, void *out,
                                       const uint64_t *counts, enum weft_dtype dtype, enum weft_op op,
                                       struct weft_request *request)
{
    struct client_call call = {.kind = WEFT_COLL_REDUCE_SCATTER,
                               .in = in,
                               .out = out,
                               .counts = counts,
                               .dtype = dtype,
                               .op = op,
                               .factor = 1};
    return run_pieces(session, &call, true, request);
}

enum weft_status weft_all_gather_v(struct weft_session *session, const void *in, void *out,
                                   const uint64_t *counts, enum weft_dtype dtype,
                                   struct weft_request *request)
{
    struct client_call call = {
        .kind = WEFT_COLL_ALL_GATHER, .in = in, .out = out, .counts = counts, .dtype = dtype, .op = WEFT_SUM};
    return run_pieces(session, &call, true, request);
}

enum weft_status weft_gather_v(struct weft_session *session, const void *in, void *out, uint64_t count,
                               const uint64_t *counts, enum weft_dtype dtype, uint32_t root,
                               struct weft_request *request)
{
    bool at_root = session && weft_rank(session) == root;
    struct client_call call = {.kind = WEFT_COLL_GATHER,
                               .in = in,
                               .out = out,
                               .count = count,
                               .counts = at_root ? counts : NULL,
                               .unequal = true,
                               .dtype = dtype,
                               .op = WEFT_SUM,
                               .root = root};
    return run_pieces(session, &call, at_root, request);
}

enum weft_status weft_scatter_v(struct weft_session *session, const void *in, void *out, uint64_t count,
                                const uint64_t *counts, enum weft_dtype dtype, uint32_t root,
                                struct weft_request *request)
{
    bool at_root = session && weft_rank(session) == root;
    struct client_call call = {.kind = WEFT_COLL_SCATTER,
                               .in = in,
                               .out = out,
                               .count = count,
                               .counts = at_root ? counts : NULL,
                               .unequal = true,
                               .dtype = dtype,
                               .op = WEFT_SUM,
                               .root = root};
    return run_pieces(session, &call, at_root, request);
}

enum weft_status weft_all_to_all_v(struct weft_session *session, const void *in, const uint64_t *counts_in,
                                   void *out, const uint64_t *counts_out, enum weft_dtype dtype,
                                   struct weft_request *request)
{
    struct client_call call = {.kind = WEFT_COLL_ALL_TO_ALL,
                               .in = in,
                               .out = out,
                               .counts = counts_in,
                               .counts_out = counts_out,
                               .dtype = dtype,
                               .op = WEFT_SUM};
    return run_pieces(session, &call, true, request);
}

/* ---- send and recv ---- */
enum weft_status weft_send(struct weft_session *session, const void *buffer, uint64_t count,
                           enum weft_dtype dtype, uint32_t to, struct weft_request *request)
{
    const struct client_simple_call call = {
        .kind = WEFT_COLL_SEND, .in = buffer, .count = count, .dtype = dtype, .op = WEFT_SUM, .root = to};
    return run_simple(session, &call, request);
}

enum weft_status weft_recv(struct weft_session *session, void *buffer, uint64_t count, enum weft_dtype dtype,
                           uint32_t from, struct weft_request *request)
{
    const struct client_simple_call call = {
        .kind = WEFT_COLL_RECV, .out = buffer, .count = count, .dtype = dtype, .op = WEFT_SUM, .root = from};
    return run_simple(session, &call, request);
}

/* ---- plans ---- */
enum weft_status weft_set_plan(struct weft_session *session, const char *plan)
{
    WEFT_DEFAULT_FLOATS;
    struct weft_error error = {0};
    if (!session) return client_null_argument("set_plan", "session");
    WEFT_TRY(client_usable(session));
    if (!plan)
        return client_error(session, WEFT_ERR_INVALID,
                            "set_plan: plan is NULL; give auto, or the name of a plan");
    enum weft_status status = weft_plans_parse(plan, session->calls->plans, &error);
    return status < 0 ? client_error(session, status, "set_plan: %.400s", error.text) : WEFT_OK;
}

const char *weft_plan_taken(const struct weft_session *session)
{
    return session ? weft_plan_name((enum weft_plan_id)atomic_load_explicit(&session->calls->last_plan,
                                                                            memory_order_relaxed))
                   : "auto";
}
