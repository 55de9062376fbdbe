/* host_first.c - see host_first.h. */
#include "client/nccl/host_first.h"

#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"

#define NCCL_BYTES_MIN (256u << 10) /* below, the launches of two phases cost more than the bytes saved */

/* ---- choice ---- */

struct question {
    uint64_t count;
    enum weft_dtype dtype;
    enum weft_op op;
    bool reproducible, weighted, in_group, has_plan;
};

static int nccl_dtype(enum weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_I8: return NCCL_API_INT8;
    case WEFT_U8: return NCCL_API_UINT8;
    case WEFT_I32: return NCCL_API_INT32;
    case WEFT_U32: return NCCL_API_UINT32;
    case WEFT_I64: return NCCL_API_INT64;
    case WEFT_U64: return NCCL_API_UINT64;
    case WEFT_F16: return NCCL_API_FLOAT16;
    case WEFT_F32: return NCCL_API_FLOAT32;
    case WEFT_F64: return NCCL_API_FLOAT64;
    case WEFT_BF16: return NCCL_API_BFLOAT16;
    default: return -1;
    }
}

static bool is_float(enum weft_dtype dtype)
{
    return dtype == WEFT_F16 || dtype == WEFT_F32 || dtype == WEFT_F64 || dtype == WEFT_BF16;
}

/* NULL: by NCCL; else why not. Depends on values that are equal on all ranks. */
static const char *why_not(const struct client_nccl *nccl, const struct question *call)
{
    if (!nccl->is_used) return nccl->reason;
    if (nccl_dtype(call->dtype) < 0) return "NCCL does not sum this dtype";
    if (call->weighted || (call->op != WEFT_SUM && call->op != WEFT_AVG)) return "only sums and averages";
    if (call->op == WEFT_AVG && !is_float(call->dtype)) return "an average of integers is rounded once";
    if (call->has_plan) return "a plan is set for all_reduce";
    if (call->in_group) return "the call is in a group of calls";
    if (call->count < nccl->host.ranks) return "there are fewer elements than ranks on a host";
    if (!nccl->is_forced && call->count * weft_dtype_bytes(call->dtype) < NCCL_BYTES_MIN)
        return "it is shorter than 256 KiB";
    if (!call->reproducible) return NULL;
    if (call->dtype != WEFT_F32) return "reproducible sums on the device are of f32";
    if (!nccl->has_subtrees) return "the hosts' ranks are no subtrees of the tree of sums";
    if (!nccl->kernels) return nccl->kernels_reason;
    return NULL;
}

static bool accepts(const struct client_request *request)
{
    const struct client_calls *calls = request->session->calls;
    if (request->device.memory != WEFT_MEMORY_CUDA) return false;
    const struct question question = {.count = request->args.count,
                                      .dtype = (enum weft_dtype)request->args.dtype,
                                      .op = (enum weft_op)request->args.reduction,
                                      .reproducible = request->args.reproducible,
                                      .weighted = request->average.weighted,
                                      .in_group = calls->call_group.depth > 0,
                                      .has_plan = calls->plans[WEFT_COLL_ALL_REDUCE] != WEFT_PLAN_AUTO};
    return request->args.kind == WEFT_COLL_ALL_REDUCE && !request->op.comm &&
           !why_not(calls->nccl, &question);
}

static void explain(const struct weft_session *session, uint64_t count, enum weft_dtype dtype, char *out,
                    size_t out_bytes)
{
    const struct client_nccl *nccl = session->calls->nccl;
    const struct question question = {.count = count,
                                      .dtype = dtype,
                                      .op = WEFT_SUM,
                                      .has_plan =
                                          session->calls->plans[WEFT_COLL_ALL_REDUCE] != WEFT_PLAN_AUTO};
    const char *reason = why_not(nccl, &question);
    if (reason) snprintf(out, out_bytes, "; CUDA memory: not by NCCL inside hosts, as %s", reason);
    else
        snprintf(out, out_bytes,
                 "; CUDA memory: NCCL %d.%d.%d inside each of %u hosts, and each of %u ranks reduces %llu "
                 "elements "
                 "over the hosts",
                 nccl->host.api->version / 10000, nccl->host.api->version / 100 % 100,
                 nccl->host.api->version % 100, nccl->hosts, nccl->host.ranks,
                 (unsigned long long)(count / nccl->host.ranks));
}

/* ---- the phases: the caller's thread ---- */

/* The last slice has the remainder of count / ranks too. */
struct slices {
    uint64_t each, rest;
};

static struct slices slices_of(const struct client_nccl *nccl, uint64_t count)
{
    return (struct slices){count / nccl->host.ranks, count % nccl->host.ranks};
}

static uint64_t slice_count(const struct client_nccl *nccl, struct slices slices, uint32_t rank)
{
    return slices.each + (rank + 1 == nccl->host.ranks ? slices.rest : 0);
}

static void *at(const void *memory, uint64_t elems, size_t elem_bytes)
{
    return (uint8_t *)(uintptr_t)memory + elems * elem_bytes;
}

/* Within ncclGroupStart and ncclGroupEnd: the first error. */
#define NCCL_TRY(host, call, name) WEFT_TRY(host_comm_answered(host, call, name, error))

static enum weft_status reduce_in_host(struct client_nccl *nccl, const struct client_host_call *call,
                                       struct weft_error *error)
{
    struct host_comm *host = &nccl->host;
    const struct nccl_api *api = host->api;
    const struct slices slices = slices_of(nccl, call->args.count);
    const enum weft_dtype dtype = (enum weft_dtype)call->args.dtype;
    const size_t elem_bytes = weft_dtype_bytes(dtype);
    const int type = nccl_dtype(dtype), op = call->args.reduction == WEFT_AVG ? NCCL_API_AVG : NCCL_API_SUM;
    NCCL_TRY(host, api->group_start(), "ncclGroupStart");
    NCCL_TRY(host,
             api->reduce_scatter(call->args.in, at(call->args.out, host->rank * slices.each, elem_bytes),
                                 slices.each, type, op, host->comm, host->stream),
             "ncclReduceScatter");
    const uint64_t end = host->ranks * slices.each;
    if (slices.rest > 0)
        NCCL_TRY(host,
                 api->reduce(at(call->args.in, end, elem_bytes), at(call->args.out, end, elem_bytes),
                             slices.rest, type, op, (int)host->ranks - 1, host->comm, host->stream),
                 "ncclReduce");
    NCCL_TRY(host, api->group_end(), "ncclGroupEnd");
    return WEFT_OK;
}

static uint64_t piece_of(uint64_t count, uint64_t from)
{
    return from >= count ? 0 : count - from < NCCL_SCRATCH_ELEMS ? count - from : NCCL_SCRATCH_ELEMS;
}

/* Sends a piece of each slice to its rank, and receives this rank's piece of all ranks in the scratch. */
static enum weft_status exchange_in_host(struct client_nccl *nccl, const struct client_host_call *call,
                                         uint64_t from, struct weft_error *error)
{
    struct host_comm *host = &nccl->host;
    const struct nccl_api *api = host->api;
    const struct slices slices = slices_of(nccl, call->args.count);
    const uint64_t mine = piece_of(slice_count(nccl, slices, host->rank), from);
    NCCL_TRY(host, api->group_start(), "ncclGroupStart");
    for (uint32_t peer = 0; peer < host->ranks; peer++) {
        const uint64_t theirs = piece_of(slice_count(nccl, slices, peer), from);
        if (theirs > 0)
            NCCL_TRY(host,
                     api->send(at(call->args.in, peer * slices.each + from, sizeof(float)), theirs,
                               NCCL_API_FLOAT32, (int)peer, host->comm, host->stream),
                     "ncclSend");
        if (mine > 0)
            NCCL_TRY(host,
                     api->recv(nccl->scratch + (size_t)peer * NCCL_SCRATCH_ELEMS, mine, NCCL_API_FLOAT32,
                               (int)peer, host->comm, host->stream),
                     "ncclRecv");
    }
    NCCL_TRY(host, api->group_end(), "ncclGroupEnd");
    return WEFT_OK;
}

/* The same slice, by the tree T: NCCL moves bytes only. */
static enum weft_status sum_in_host(struct client_nccl *nccl, const struct client_host_call *call,
                                    struct weft_error *error)
{
    struct host_comm *host = &nccl->host;
    const struct slices slices = slices_of(nccl, call->args.count);
    const uint64_t mine = slice_count(nccl, slices, host->rank), longest = slices.each + slices.rest;
    const float *sources[NCCL_SUM_SOURCES_MAX];
    for (uint32_t peer = 0; peer < host->ranks; peer++)
        sources[peer] = nccl->scratch + (size_t)peer * NCCL_SCRATCH_ELEMS;
    for (uint64_t from = 0; from < longest; from += NCCL_SCRATCH_ELEMS) {
        WEFT_TRY(exchange_in_host(nccl, call, from, error));
        const uint64_t count = piece_of(mine, from);
        if (count == 0) continue;
        float *out = at(call->args.out, host->rank * slices.each + from, sizeof *out);
        const enum weft_status status =
            nccl->kernels->sum_tree_f32(&out, 1, sources, host->ranks, 1, count, host->stream);
        if (status < 0)
            return (enum weft_status)weft_error_set(error, status, "the kernel sum_tree_f32 did not start");
    }
    return WEFT_OK;
}

static enum weft_status gather_in_host(struct client_nccl *nccl, const struct client_host_call *call,
                                       struct weft_error *error)
{
    struct host_comm *host = &nccl->host;
    const struct nccl_api *api = host->api;
    const struct slices slices = slices_of(nccl, call->args.count);
    const enum weft_dtype dtype = (enum weft_dtype)call->args.dtype;
    const size_t elem_bytes = weft_dtype_bytes(dtype);
    NCCL_TRY(host, api->group_start(), "ncclGroupStart");
    NCCL_TRY(host,
             api->all_gather(at(call->args.out, host->rank * slices.each, elem_bytes), call->args.out,
                             slices.each, nccl_dtype(dtype), host->comm, host->stream),
             "ncclAllGather");
    if (slices.rest > 0) {
        void *rest = at(call->args.out, host->ranks * slices.each, elem_bytes);
        NCCL_TRY(host,
                 api->broadcast(rest, rest, slices.rest, nccl_dtype(dtype), (int)host->ranks - 1, host->comm,
                                host->stream),
                 "ncclBroadcast");
    }
    NCCL_TRY(host, api->group_end(), "ncclGroupEnd");
    return WEFT_OK;
}

/* First phase, behind the work on the caller's stream. */
static enum weft_status queue_reduce(struct client_nccl *nccl, struct client_host_call *call,
                                     struct weft_error *error)
{
    struct host_comm *host = &nccl->host;
    WEFT_TRY(host->ops->wait(host->stream, call->ready, error));
    WEFT_TRY(host->ops->record(call->begun, host->stream, error));
    pthread_mutex_lock(&host->lock);
    call->is_begun = true;
    pthread_mutex_unlock(&host->lock);
    WEFT_TRY(host_comm_begin(host, error));
    const enum weft_status status =
        call->args.reproducible ? sum_in_host(nccl, call, error) : reduce_in_host(nccl, call, error);
    host_comm_end(host);
    return status;
}

/* Second phase: the request becomes an all_reduce of the slice on NCCL's stream. On one host it is a barrier
 * of this rank alone, which completes at once. */
static enum weft_status start_across(struct client_nccl *nccl, const struct client_host_call *call,
                                     struct client_request *request)
{
    const struct slices slices = slices_of(nccl, call->args.count);
    request->op.comm = nccl->across;
    request->args.in = request->args.out = at(call->args.out, nccl->host.rank * slices.each,
                                              weft_dtype_bytes((enum weft_dtype)request->args.dtype));
    request->args.count = slice_count(nccl, slices, nccl->host.rank);
    request->device.stream = nccl->host.stream;
    request->device.on_stream = true;
    if (request->args.reproducible)
        request->args.reduction = WEFT_SUM; /* an average is scaled after the sum */
    if (nccl->hosts == 1) {
        request->args.kind = WEFT_COLL_BARRIER;
        request->args.in = request->args.out = NULL;
        request->args.count = 0;
        request->device.memory = WEFT_MEMORY_HOST;
        request->device.on_stream = request->args.reproducible = false;
        request->args.dtype = WEFT_F32;
        request->args.reduction = WEFT_SUM;
    }
    WEFT_TRY(client_call_submit_directly(request));
    return request->device.must_block ? weft_wait((struct weft_request *)(void *)request, 0) : WEFT_OK;
}

/* Third phase, and the order of the caller's stream. */
static enum weft_status queue_gather(struct client_nccl *nccl, struct client_host_call *call,
                                     struct weft_error *error)
{
    struct host_comm *host = &nccl->host;
    const struct slices slices = slices_of(nccl, call->args.count);
    if (call->args.reproducible && call->args.reduction == WEFT_AVG) {
        float *slice = at(call->args.out, host->rank * slices.each, sizeof *slice);
        const float factor = 1.0f / (float)host->session->ranks;
        WEFT_TRY(nccl->kernels->scale_f32(slice, slice, factor, slice_count(nccl, slices, host->rank),
                                          host->stream));
    }
    WEFT_TRY(host_comm_begin(host, error));
    const enum weft_status status = gather_in_host(nccl, call, error);
    host_comm_end(host);
    WEFT_TRY(status);
    WEFT_TRY(host->ops->record(call->done, host->stream, error));
    pthread_mutex_lock(&host->lock);
    call->is_queued = true;
    const bool follows = call->on_stream || call->is_completed;
    pthread_mutex_unlock(&host->lock);
    return follows ? host->ops->wait(call->stream, call->done, error) : WEFT_OK;
}

/* ---- requests ---- */

static enum weft_status check_address(const struct client_nccl *nccl, struct weft_session *session,
                                      const char *which, const void *address)
{
    struct weft_error error = {0};
    enum weft_memory_kind kind;
    int device;
    const enum weft_status status = nccl->host.ops->find(address, &kind, &device, &error);
    if (status < 0) return client_error(session, status, "all_reduce: %.380s", error.text);
    if (kind == WEFT_MEMORY_CUDA && device == nccl->host.device) return WEFT_OK;
    if (kind != WEFT_MEMORY_CUDA)
        return client_error(session, WEFT_ERR_INVALID,
                            "all_reduce: `%s` at %p is declared as CUDA memory and is host memory", which,
                            address);
    return client_error(session, WEFT_ERR_INVALID,
                        "all_reduce: `%s` is on device %d, and weft_nccl_open was called for device %d",
                        which, device, nccl->host.device);
}

/* A persistent request is written over by the second phase: writes its own arguments back. */
static void restore(struct client_request *request)
{
    const struct client_host_call *call = request->device.host_call;
    if (!call) return;
    request->op.comm = NULL;
    request->args = call->args;
    request->device.memory = WEFT_MEMORY_CUDA;
    request->device.stream = call->stream;
    request->device.on_stream = call->on_stream;
}

static enum weft_status take_call(struct client_nccl *nccl, struct client_request *request,
                                  struct weft_error *error)
{
    if (!request->device.host_call) WEFT_TRY(host_call_alloc(&nccl->host, &request->device.host_call, error));
    struct client_host_call *call = request->device.host_call;
    call->args = request->args;
    call->stream = request->device.stream;
    call->on_stream = request->device.on_stream;
    return WEFT_OK;
}

/* The call has failed: the caller's stream continues behind the work on NCCL's stream, which may use its
 * buffers. The end of the session, with the communicator's, lets that stream run. */
static void follow_abort(struct client_nccl *nccl, struct client_host_call *call)
{
    struct host_comm *host = &nccl->host;
    if (host->ops->record(call->done, host->stream, NULL) == WEFT_OK)
        (void)host->ops->wait(call->stream, call->done, NULL);
    pthread_mutex_lock(&host->lock);
    call->is_queued = true;
    pthread_mutex_unlock(&host->lock);
}

/* An error after the call has begun on this rank ends the session: the other ranks are in it. */
static enum weft_status queue_phases(struct client_nccl *nccl, struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_host_call *call = request->device.host_call;
    struct weft_error error = {0};
    host_call_run(&nccl->host, call);
    enum weft_status status = queue_reduce(nccl, call, &error);
    if (status == WEFT_OK) {
        status = start_across(nccl, call, request);
        if (status < 0) weft_error_set(&error, status, "%s", session->failure.error.text);
    }
    if (status >= 0) status = queue_gather(nccl, call, &error);
    if (status >= 0) return WEFT_IN_PROGRESS;
    follow_abort(nccl, call);
    client_fail(session, status, true, "rank %u: all_reduce by NCCL inside hosts: %.380s", session->rank,
                error.text[0] ? error.text : weft_reason_text(status));
    return client_error(session, status, "%s", session->failure.text);
}

/* The request refers to its call no more, unless it may be started again. */
static void release(struct client_nccl *nccl, struct client_request *request)
{
    struct client_host_call *call = request->device.host_call;
    if (!call || request->persistent) return;
    request->device.host_call = NULL;
    host_call_release(&nccl->host, call);
}

static enum weft_status submit(struct client_request *request)
{
    struct weft_session *session = request->session;
    struct client_nccl *nccl = session->calls->nccl;
    struct host_comm *host = &nccl->host;
    struct weft_error error = {0};
    int before;
    WEFT_TRY(check_address(nccl, session, "in", request->args.in));
    WEFT_TRY(check_address(nccl, session, "out", request->args.out));
    enum weft_status status = host->ops->enter(host->device, &before, &error);
    if (status == WEFT_OK) {
        status = take_call(nccl, request, &error);
        if (status == WEFT_OK)
            status = host->ops->record(request->device.host_call->ready, request->device.stream, &error);
        if (status == WEFT_OK) status = queue_phases(nccl, request);
        else release(nccl, request);
        host->ops->leave(before);
    }
    return status < 0 && error.status < 0 ? client_error(session, status, "all_reduce: %.400s", error.text)
                                          : status;
}

/* The engine completes the request. */
static void completed(struct client_request *request)
{
    struct client_host_call *call = request->device.host_call;
    struct host_comm *host = &request->session->calls->nccl->host;
    int before;
    pthread_mutex_lock(&host->lock);
    call->is_completed = true;
    const bool follows = call->is_queued && !call->on_stream;
    pthread_mutex_unlock(&host->lock);
    if (follows && host->ops->enter(host->device, &before, NULL) == WEFT_OK) {
        (void)host->ops->wait(call->stream, call->done, NULL); /* a refused device runs nothing more */
        client_device_leave(request->session, host->ops, before);
    }
    release(request->session->calls->nccl, request);
}

static void close_nccl(struct weft_session *session)
{
    struct client_nccl *nccl = session->calls->nccl;
    if (nccl->is_used) host_comm_close(&nccl->host);
}

static void free_nccl(struct weft_session *session)
{
    struct client_nccl *nccl = session->calls->nccl;
    if (nccl->is_used && session->live.pid == weft_process_id()) { /* a forked child has no device */
        nccl->host.ops->free(nccl->scratch);
        host_comm_free(&nccl->host);
    }
    session->calls->nccl_ops = NULL;
    weft_free_bytes(session->env, nccl);
}

void client_nccl_register(struct weft_session *session, struct client_nccl *nccl)
{
    static const struct client_call_nccl_ops ops = {.accepts = accepts,
                                                    .restore = restore,
                                                    .submit = submit,
                                                    .completed = completed,
                                                    .explain = explain,
                                                    .close = close_nccl,
                                                    .free = free_nccl};
    session->calls->nccl = nccl;
    session->calls->nccl_ops = &ops;
}
