/* coll_comm.c - the group of a communicator: all_reduce, registrations, the end. */
#include "nccl/collnet/coll.h"

#include <limits.h>

#define END_NS WEFT_MS(500)      /* limit of deregMr and close with operations open */
#define LEAVE_NS WEFT_SECONDS(3) /* to leave a fleet; later its thread does */
#define RELEASE_NS WEFT_MS(250)  /* then a rank that does not release buffers loses its connection */

static struct weft_env *env(void)
{
    return &net_process()->env;
}

/* ---- types and reductions: NCCL's numbers ---- */

static const enum weft_dtype dtypes[] = {WEFT_I8,  WEFT_U8,  WEFT_I32, WEFT_U32,  WEFT_I64,     WEFT_U64,
                                         WEFT_F16, WEFT_F32, WEFT_F64, WEFT_BF16, WEFT_F8_E4M3, WEFT_F8_E5M2};
static const enum weft_op ops[] = {WEFT_SUM, WEFT_PROD, WEFT_MAX, WEFT_MIN};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, OPS = sizeof ops / sizeof *ops };

enum nccl_result coll_reduce_support(int dtype, int op, int *is_supported_out)
{
    *is_supported_out = dtype >= 0 && dtype < DTYPES && op >= 0 && op < OPS;
    return NCCL_RESULT_SUCCESS;
}

/* ---- life ---- */

enum weft_status coll_group_create(struct coll_comm *comm, struct weft_error *error)
{
    struct weft_group_options options;
    struct weft_loop_options loop_options;
    for (int i = 0; i < COLL_REQUESTS; i++) {
        comm->requests[i].comm = comm;
        weft_list_append(&comm->free_requests, &comm->requests[i].link);
    }
    weft_loop_options_init(&loop_options);
    WEFT_TRY(weft_loop_create(env(), &loop_options, &comm->loop));
    WEFT_TRY(weft_transport_attach(comm->transport, comm->loop));
    uint32_t *ids = weft_alloc_array(env(), comm->ranks, sizeof *ids);
    if (!ids) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the group");
    for (uint32_t i = 0; i < comm->ranks; i++) ids[i] = i + 1;
    weft_group_options_init(&options);
    options.transport = comm->transport;
    options.loop = comm->loop;
    options.rank = comm->rank;
    options.ranks = comm->ranks;
    options.endpoint_ids = ids;
    options.group_id = 1;
    options.epoch = 1;
    options.operations_max = COLL_REQUESTS;
    options.deadline_ns = net_process()->deadline_ns;
    options.release_timeout_ns = RELEASE_NS;
    options.modes.keeps_affinity = true; /* the thread is NCCL's */
    enum weft_status status = weft_group_create(env(), &options, &comm->group, error);
    weft_free_bytes(env(), ids);
    return status;
}

/* Steps until the condition is true, at most END_NS. */
static bool step_until(struct coll_comm *comm, bool (*is_over)(struct coll_comm *comm))
{
    uint64_t limit_ns = weft_now_ns(env()) + END_NS;
    while (!is_over(comm)) {
        if (weft_now_ns(env()) >= limit_ns) return false;
        if (weft_loop_step(comm->loop) == 0) sched_yield();
    }
    return true;
}

static bool has_left(struct coll_comm *comm)
{
    return weft_group_has_left(comm->group);
}
/* A closed endpoint is no longer a pollable of the loop. */
static bool is_drained(struct coll_comm *comm)
{
    weft_transport_progress(comm->transport, NET_PROGRESS_BUDGET);
    return weft_transport_drained(comm->transport);
}

void coll_comm_free(struct coll_comm *comm)
{
    const uint64_t leave_ns = comm->failed == NCCL_RESULT_SUCCESS ? LEAVE_NS : END_NS;
    fleet_leave(comm->fleet, weft_now_ns(env()) + leave_ns);
    if (comm->group) {
        weft_group_leave(comm->group);
        step_until(comm, has_left);
        weft_group_free(comm->group);
    }
    if (comm->transport) {
        weft_transport_close(comm->transport);
        if (comm->loop) step_until(comm, is_drained);
        weft_transport_free(comm->transport);
    }
    weft_loop_free(comm->loop);
    while (!weft_list_empty(&comm->memories)) {
        struct net_memory *memory = weft_list_first(&comm->memories, struct net_memory, link);
        weft_list_remove(&memory->link);
        weft_free_bytes(env(), memory);
    }
    pthread_mutex_destroy(&comm->lock);
    weft_free_bytes(env(), comm);
}

/* ---- completion ---- */

static void operation_done(void *context, enum weft_status status, const char *text)
{
    struct coll_request *request = context;
    request->is_done = true;
    request->status = status;
    if (status < 0 && status != WEFT_ERR_CANCELLED && request->comm->failed == NCCL_RESULT_SUCCESS) {
        request->comm->failed = net_report(status, "CollNet: all_reduce: %s", text ? text : "");
        if (status == WEFT_ERR_MISMATCH) request->comm->failed = NCCL_RESULT_USAGE;
    }
}

/* Completes a request whose sum has arrived from the shards, or failed. */
static void request_poll(struct coll_request *request)
{
    char text[NET_TEXT_BYTES] = "";
    if (request->is_done || !request->call) return;
    const enum weft_status status = fleet_call_test(request->comm->fleet, request->call);
    if (status == WEFT_IN_PROGRESS) return;
    if (status < 0) fleet_error_text(request->comm->fleet, text, sizeof text);
    fleet_call_release(request->comm->fleet, request->call);
    request->call = NULL;
    operation_done(request, status, text);
}

static bool is_quiet(struct coll_comm *comm)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &comm->open_requests) {
        struct coll_request *request = weft_container_of(node, struct coll_request, link);
        request_poll(request);
        if (!request->is_done) return false;
    }
    return true;
}

/* Ends all operations, so that no rank accesses their buffers. The caller holds the lock. */
static void abandon(struct coll_comm *comm)
{
    if (comm->failed == NCCL_RESULT_SUCCESS) comm->failed = NCCL_RESULT_SYSTEM;
    weft_group_fail(comm->group, WEFT_ERR_CANCELLED, "NCCL ended the communicator with operations open");
    if (comm->fleet) fleet_abort(comm->fleet);
    if (!step_until(comm, is_quiet))
        net_report(WEFT_ERR_DEADLINE, "CollNet: a rank still holds buffers of an ended communicator");
}

enum nccl_result coll_close(void *comm)
{
    struct coll_comm *own = comm;
    if (!own) return net_report(WEFT_ERR_STATE, "CollNet: close without a communicator");
    if (!is_quiet(own)) abandon(own);
    coll_comm_free(own);
    return NCCL_RESULT_SUCCESS;
}

/* ---- registrations ---- */

enum nccl_result coll_reg_mr(void *comm, void *data, size_t bytes, int pointer, void **memory_out)
{
    struct coll_comm *own = comm;
    if (!own || pointer != NCCL_POINTER_HOST)
        return net_report(WEFT_ERR_STATE,
                          "CollNet: regMr of memory of kind %d: only host memory (%d) is "
                          "supported",
                          pointer, NCCL_POINTER_HOST);
    struct net_memory *memory = weft_alloc_zero(env(), sizeof *memory);
    if (!memory) return net_report(WEFT_ERR_NO_MEMORY, "CollNet: no memory for a registration");
    pthread_mutex_lock(&own->lock);
    weft_list_append(&own->memories, &memory->link);
    pthread_mutex_unlock(&own->lock);
    *memory_out = memory;
    return NCCL_RESULT_SUCCESS;
}

enum nccl_result coll_dereg_mr(void *comm, void *memory)
{
    struct coll_comm *own = comm;
    struct net_memory *ended = memory;
    struct weft_list *node, *spare;
    if (!own || !ended) return net_report(WEFT_ERR_STATE, "CollNet: deregMr without a registration");
    pthread_mutex_lock(&own->lock);
    if (ended->open_count > 0 && !is_quiet(own)) abandon(own);
    weft_list_foreach (node, spare, &own->open_requests) {
        struct coll_request *request = weft_container_of(node, struct coll_request, link);
        for (int i = 0; i < 2; i++)
            if (request->memories[i] == ended) request->memories[i] = NULL;
    }
    weft_list_remove(&ended->link);
    pthread_mutex_unlock(&own->lock);
    weft_free_bytes(env(), ended);
    return NCCL_RESULT_SUCCESS;
}

/* ---- operations ---- */

static void request_release(struct coll_request *request)
{
    for (int i = 0; i < 2; i++)
        if (request->memories[i]) request->memories[i]->open_count--;
    weft_list_remove(&request->link);
    weft_list_prepend(&request->comm->free_requests, &request->link);
}

static enum nccl_result post(struct coll_comm *comm, const struct weft_coll_args *args,
                             struct net_memory *memories[2], void **request_out)
{
    struct weft_error error = {0};
    if (comm->failed != NCCL_RESULT_SUCCESS) return comm->failed;
    if (weft_list_empty(&comm->free_requests)) return NCCL_RESULT_SUCCESS;
    struct coll_request *request = weft_list_first(&comm->free_requests, struct coll_request, link);
    weft_list_remove(&request->link);
    weft_list_append(&comm->open_requests, &request->link);
    request->is_done = false;
    request->bytes = args->count * weft_dtype_bytes(args->dtype);
    for (int i = 0; i < 2; i++) {
        request->memories[i] = memories[i];
        if (memories[i]) memories[i]->open_count++;
    }
    request->call = coll_fleet_post(comm, args);
    enum weft_status status = WEFT_IN_PROGRESS;
    if (!request->call) status = weft_coll_post(comm->group, args, operation_done, request, NULL, &error);
    if (status == WEFT_IN_PROGRESS) {
        *request_out = request;
        return NCCL_RESULT_SUCCESS;
    }
    request_release(request);
    if (status == WEFT_ERR_AGAIN) return NCCL_RESULT_SUCCESS;
    return comm->failed = net_report(status, "CollNet: all_reduce: %s", error.text);
}

enum nccl_result coll_iallreduce(void *comm, void *in, void *out, size_t count, int dtype, int op,
                                 void *in_memory, void *out_memory, void **request_out)
{
    struct coll_comm *own = comm;
    struct net_memory *memories[2] = {in_memory, out_memory};
    int is_supported;
    *request_out = NULL;
    coll_reduce_support(dtype, op, &is_supported);
    if (!own || !is_supported) return net_report(WEFT_ERR_STATE, "CollNet: type %d, reduction %d", dtype, op);
    struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                  .in = in,
                                  .out = out,
                                  .count = count,
                                  .dtype = dtypes[dtype],
                                  .op = ops[op],
                                  .reproducible = net_process()->is_reproducible};
    if (pthread_mutex_trylock(&own->lock) != 0) return NCCL_RESULT_SUCCESS;
    enum nccl_result result = post(own, &args, memories, request_out);
    pthread_mutex_unlock(&own->lock);
    return result;
}

/* As is_complete of net/request.c: the other ranks may wait for the last messages of this one. */
static bool is_complete(const struct coll_request *request)
{
    return request->is_done && (request->status < 0 || weft_transport_is_flushed(request->comm->transport));
}

enum nccl_result coll_test(void *request, int *is_done_out, int *bytes_out)
{
    struct coll_request *own = request;
    *is_done_out = 0;
    if (!own) return net_report(WEFT_ERR_STATE, "CollNet: test without a request");
    struct coll_comm *comm = own->comm;
    if (pthread_mutex_trylock(&comm->lock) != 0) return NCCL_RESULT_SUCCESS;
    if (!is_complete(own)) weft_loop_step(comm->loop);
    request_poll(own);
    enum nccl_result result = NCCL_RESULT_SUCCESS;
    if (is_complete(own)) {
        if (own->status < 0) result = comm->failed;
        else *is_done_out = 1;
        if (bytes_out) *bytes_out = own->bytes > INT_MAX ? INT_MAX : (int)own->bytes;
        request_release(own);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}
