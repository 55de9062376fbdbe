/* call_group.c - groups of calls. Calls between weft_group_start and weft_group_end start together at the
 * end:
 *
 *     all_reduce a, b   (small, f32, sum) ─┐ one bucket: copied in, one operation, copied out
 *     all_reduce d      (large)            │ own operation
 *     all_reduce c      (small, f32, sum) ─┘
 *     all_reduce e      (small, f16, sum) ── another bucket
 *     broadcast f                            own operation
 *
 * The calls and their order alone decide which calls share a bucket and in which order the operations are
 * posted. Both are equal on all ranks. A bucket's header carries a hash of the lengths of its calls: ranks
 * whose groups differ fail even if the sums of lengths agree. A bucket has the place of its first call.
 * Tensors: tensor/call_group_leader.c. */
#include "client/call/call_group.h"

#include <stdio.h>
#include <string.h>

#include "client/call/call.h"
#include "client/call/calls.h"
#include "client/call/device_staging.h"
#include "client/engine/engine.h"
#include "client/engine/event_fd.h"
#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/session/failure.h"
#include "client/session/session.h"

/* for longer calls the copies cost as much as the start of an operation */
#define CALL_BYTES_MAX (64u << 10)
#define BUCKET_BYTES_MAX (512u << 10) /* copied in one callback of the engine: tens of microseconds */
#define BUCKETS_OPEN 16u              /* buckets filled at the same time: dtypes x reductions x groups */

struct client_bucket {
    struct weft_list link;     /* call_group->idle */
    uint8_t *memory;           /* (capacity,) owned */
    size_t capacity;
    /* the group of calls that uses it */
    struct weft_session *session;
    struct client_request *first;
    struct weft_list calls;    /* struct client_request.op.link */
    uint64_t count, signature;
    size_t elem_bytes;
    /* the engine thread */
    struct weft_command command;
    struct client_group_op op;
};

void client_call_group_init(struct client_call_group *call_group)
{
    weft_list_init(&call_group->gathered);
    weft_list_init(&call_group->idle);
    pthread_mutex_init(&call_group->lock, NULL);
}

void client_call_group_free(struct weft_session *session)
{
    struct client_call_group *call_group = &session->calls->call_group;
    while (!weft_list_empty(&call_group->idle)) {
        struct client_bucket *bucket = weft_list_first(&call_group->idle, struct client_bucket, link);
        weft_list_remove(&bucket->link);
        weft_free_bytes(session->env, bucket->memory);
        weft_free_bytes(session->env, bucket);
    }
    pthread_mutex_destroy(&call_group->lock);
}

void client_call_group_add(struct client_request *request)
{
    weft_list_init(&request->link);
    weft_list_append(&request->session->calls->call_group.gathered, &request->link);
    atomic_store_explicit(&request->state, CLIENT_REQUEST_GATHERED, memory_order_relaxed);
}

/* ---- buckets ---- */

/* An idle bucket, the last used first, or a new one. NULL: no memory. */
static struct client_bucket *bucket_alloc(struct weft_session *session)
{
    struct client_call_group *call_group = &session->calls->call_group;
    struct client_bucket *bucket = NULL;
    pthread_mutex_lock(&call_group->lock);
    if (!weft_list_empty(&call_group->idle)) {
        bucket = weft_list_first(&call_group->idle, struct client_bucket, link);
        weft_list_remove(&bucket->link);
    }
    pthread_mutex_unlock(&call_group->lock);
    if (!bucket) bucket = weft_alloc_zero(session->env, sizeof *bucket);
    if (!bucket) return NULL;
    weft_list_init(&bucket->link);
    weft_list_init(&bucket->calls);
    bucket->session = session;
    bucket->first = NULL;
    bucket->count = 0;
    bucket->signature = WEFT_FNV_BASIS;
    return bucket;
}

static void bucket_return(struct weft_session *session, struct client_bucket *bucket)
{
    pthread_mutex_lock(&session->calls->call_group.lock);
    /* the last used one is in the cache */
    weft_list_insert_before(session->calls->call_group.idle.next, &bucket->link);
    pthread_mutex_unlock(&session->calls->call_group.lock);
}

static enum weft_status bucket_reserve(struct weft_session *session, struct client_bucket *bucket)
{
    size_t bytes = bucket->count * bucket->elem_bytes;
    if (bytes <= bucket->capacity) return WEFT_OK;
    weft_free_bytes(session->env, bucket->memory);
    bucket->capacity = 0;
    bucket->memory = weft_alloc_bytes(session->env, bytes);
    if (!bucket->memory) return WEFT_ERR_NO_MEMORY;
    bucket->capacity = bytes;
    return WEFT_OK;
}

static bool can_use_bucket(const struct client_request *request)
{
    return request->args.kind == WEFT_COLL_ALL_REDUCE && request->args.reduction != WEFT_SCALED_SUM &&
           !request->average.weighted &&
           request->args.count * weft_dtype_bytes((enum weft_dtype)request->args.dtype) <= CALL_BYTES_MAX &&
           !client_stage_in_pieces(request);
}

static bool bucket_accepts(const struct client_bucket *bucket, const struct client_request *request)
{
    const struct client_request *first = bucket->first;
    return first->op.comm == request->op.comm && first->args.dtype == request->args.dtype &&
           first->args.reduction == request->args.reduction &&
           first->args.reproducible == request->args.reproducible && first->args.plan == request->args.plan &&
           first->args.deadline_ns == request->args.deadline_ns &&
           (bucket->count + request->args.count) * bucket->elem_bytes <= BUCKET_BYTES_MAX;
}

static bool has_several_calls(const struct client_bucket *bucket)
{
    return bucket->calls.next != bucket->calls.prev;
}

static void bucket_add(struct client_bucket *bucket, struct client_request *request)
{
    if (!bucket->first) {
        bucket->first = request;
        bucket->elem_bytes = weft_dtype_bytes((enum weft_dtype)request->args.dtype);
    }
    request->bucket = bucket;
    weft_list_init(&request->op.link);
    weft_list_append(&bucket->calls, &request->op.link);
    bucket->count += request->args.count;
    bucket->signature = weft_fnv(bucket->signature, request->args.count) + 1;
}

/* ---- engine thread ---- */

static struct client_request *request_of_node(struct weft_list *node)
{
    return weft_container_of(node, struct client_request, op.link);
}

static enum weft_status copy_in_calls(struct client_bucket *bucket, struct weft_error *error)
{
    uint8_t *at = bucket->memory;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &bucket->calls) {
        if (request_of_node(node)->device.stage) WEFT_TRY(client_stage_ready(request_of_node(node), error));
    }
    weft_list_foreach(node, spare, &bucket->calls) {
        const struct client_request *request = request_of_node(node);
        size_t bytes = request->args.count * bucket->elem_bytes;
        if (bytes > 0)
            memcpy(at, request->device.stage ? client_stage_memory(request) : request->args.in, bytes);
        at += bytes;
    }
    return WEFT_OK;
}

static enum weft_status copy_out_calls(struct client_bucket *bucket, struct weft_error *error)
{
    const uint8_t *at = bucket->memory;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &bucket->calls) {
        struct client_request *request = request_of_node(node);
        size_t bytes = request->args.count * bucket->elem_bytes;
        if (bytes > 0)
            memcpy(request->device.stage ? client_stage_memory(request) : request->args.out, at, bytes);
        if (request->device.stage) WEFT_TRY(client_stage_copy_out(request, error));
        at += bytes;
    }
    return WEFT_OK;
}

/* The bucket is released first: each completed request is the caller's again. */
static void complete_calls(struct weft_session *session, struct client_bucket *bucket,
                           enum weft_status status, const char *text)
{
    struct weft_list calls;
    weft_list_init(&calls);
    while (!weft_list_empty(&bucket->calls)) {
        struct weft_list *node = bucket->calls.next;
        weft_list_remove(node);
        weft_list_append(&calls, node);
    }
    bucket_return(session, bucket);
    while (!weft_list_empty(&calls)) {
        struct client_request *request = weft_list_first(&calls, struct client_request, op.link);
        weft_list_remove(&request->op.link);
        client_request_complete(request, status, text);
    }
}

static void on_done(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct client_bucket *bucket = weft_container_of(op, struct client_bucket, op);
    struct weft_session *session = bucket->session;
    struct weft_error error = {0};
    if (session->engine->failed) {
        complete_calls(session, bucket, session->engine->failed, session->engine->failed_text);
        return;
    }
    if (status == WEFT_OK && (status = copy_out_calls(bucket, &error)) < 0) text = error.text;
    if (status < 0) client_call_failed(op, status, text);
    else complete_calls(session, bucket, WEFT_OK, NULL);
}

static enum weft_status post(struct client_group_op *op, struct weft_error *error)
{
    struct client_bucket *bucket = weft_container_of(op, struct client_bucket, op);
    struct weft_coll_args args;
    client_call_args(bucket->first, &args);
    WEFT_TRY(copy_in_calls(bucket, error));
    args.in = args.out = bucket->memory;
    args.count = bucket->count;
    args.subject = weft_subject_batch(bucket->signature);
    return weft_coll_post(client_request_group(bucket->first), &args, client_engine_group_op_done, op,
                          &op->coll, error);
}

static void start_bucket(struct weft_command *command)
{
    struct client_bucket *bucket = weft_container_of(command, struct client_bucket, command);
    struct weft_session *session = bucket->session;
    struct client_engine *engine = session->engine;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &bucket->calls) {
        struct client_request *request = weft_container_of(node, struct client_request, op.link);
        weft_list_append(&engine->open_requests, &request->link);
        if (request->device.stage) client_stage_opened(request);
    }
    if (engine->failed) {
        complete_calls(session, bucket, engine->failed, engine->failed_text);
        return;
    }
    bucket->op = (struct client_group_op){
        .ready = true, .post = post, .done = on_done, .comm = bucket->first->op.comm};
    weft_list_init(&bucket->op.link);
    client_engine_queue_group_op(session, &bucket->op);
}

const struct weft_coll *client_call_group_operation(const struct client_request *request)
{
    return request->bucket ? request->bucket->op.coll : request->op.coll;
}

/* ---- caller's thread ---- */

void client_call_group_remove(struct client_request *request, enum weft_status status, const char *text)
{
    weft_list_remove(&request->link);
    request->bucket = NULL;
    client_stage_drop(request);
    request->status = status;
    request->text_serial = client_text_put(request->session, text);
    if (request->completed) request->completed(request->context, status);
    atomic_store_explicit(&request->state, CLIENT_REQUEST_DONE, memory_order_release);
}

/* Completes calls that were never started. */
static void complete_gathered(struct weft_session *session, enum weft_status status, const char *text)
{
    struct weft_list *gathered = &session->calls->call_group.gathered;
    while (!weft_list_empty(gathered))
        client_call_group_remove(weft_list_first(gathered, struct client_request, link), status, text);
}

void client_call_group_cancel(struct weft_session *session, enum weft_status status, const char *text)
{
    session->calls->call_group.depth = 0;
    session->calls->tensor_ops->group_ended(session, false);
    complete_gathered(session, status, text);
}

/* Buckets that are being filled. */
struct open_buckets {
    struct client_bucket *open[BUCKETS_OPEN];
    uint32_t count;
};

/* The bucket for this call. If BUCKETS_OPEN are filled, a new one replaces the oldest. NULL: no memory. */
static struct client_bucket *find_bucket(struct weft_session *session, struct open_buckets *open_buckets,
                                         const struct client_request *request)
{
    for (uint32_t i = 0; i < open_buckets->count; i++)
        if (bucket_accepts(open_buckets->open[i], request)) return open_buckets->open[i];
    struct client_bucket *bucket = bucket_alloc(session);
    if (!bucket) return NULL;
    if (open_buckets->count == BUCKETS_OPEN)
        memmove(open_buckets->open, open_buckets->open + 1,
                --open_buckets->count * sizeof open_buckets->open[0]);
    open_buckets->open[open_buckets->count++] = bucket;
    return bucket;
}

/* Fills buckets; only the first call of each bucket stays in the list of gathered calls. */
static enum weft_status fill_buckets(struct weft_session *session)
{
    struct open_buckets open_buckets = {.count = 0};
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->calls->call_group.gathered) {
        struct client_request *request = weft_container_of(node, struct client_request, link);
        if (!can_use_bucket(request)) continue;
        struct client_bucket *bucket = find_bucket(session, &open_buckets, request);
        if (!bucket) return WEFT_ERR_NO_MEMORY;
        bucket_add(bucket, request);
    }
    weft_list_foreach(node, spare, &session->calls->call_group.gathered) {
        struct client_bucket *bucket = weft_container_of(node, struct client_request, link)->bucket;
        if (bucket && has_several_calls(bucket)) WEFT_TRY(bucket_reserve(session, bucket));
    }
    return WEFT_OK;
}

static void send_bucket(struct weft_session *session, struct client_bucket *bucket)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &bucket->calls) {
        struct client_request *request = weft_container_of(node, struct client_request, op.link);
        weft_list_remove(&request->link);
        client_request_open(request);
    }
    bucket->command.fn = start_bucket;
    client_event_post(session, &bucket->command);
}

static void send_all(struct weft_session *session)
{
    struct weft_list *gathered = &session->calls->call_group.gathered;
    while (!weft_list_empty(gathered)) {
        struct client_request *request = weft_list_first(gathered, struct client_request, link);
        struct client_bucket *bucket = request->bucket;
        if (bucket && has_several_calls(bucket)) {
            send_bucket(session, bucket);
            continue;
        }
        if (bucket) { /* its only call */
            weft_list_remove(&request->op.link);
            request->bucket = NULL;
            bucket_return(session, bucket);
        }
        weft_list_remove(&request->link);
        client_request_post(request, client_call_start);
    }
}

enum weft_status weft_group_start(struct weft_session *session)
{
    if (!session) return client_null_argument("group_start", "session");
    WEFT_TRY(client_usable(session));
    if (session->calls->call_group.depth++ == 0) session->calls->call_group.serial++;
    return WEFT_OK;
}

enum weft_status weft_group_end(struct weft_session *session)
{
    if (!session) return client_null_argument("group_end", "session");
    if (session->calls->call_group.depth == 0) {
        WEFT_TRY(client_usable(session));
        return client_error(session, WEFT_ERR_STATE, "group_end without group_start");
    }
    enum weft_status status = client_usable(session);
    if (status == WEFT_ERR_FORKED) return status;
    if (--session->calls->call_group.depth > 0) return WEFT_OK;
    if (status == WEFT_OK) {
        status = fill_buckets(session);
        if (status < 0) /* the other ranks start these calls and wait for this rank */
            client_fail(session, status, true, "rank %u: no memory to start a group of calls", session->rank);
        if (status < 0) status = client_usable(session);
    }
    if (status < 0) {
        char text[480];
        snprintf(text, sizeof text, "%s", session->failure.error.text);
        session->calls->tensor_ops->group_ended(session, false);
        complete_gathered(session, status, text);
        return status;
    }
    const bool any = !weft_list_empty(&session->calls->call_group.gathered) ||
                     session->calls->tensor_ops->group_has_tensors(session);
    session->calls->tensor_ops->group_ended(session, true);
    send_all(session);
    return any ? WEFT_IN_PROGRESS : WEFT_OK;
}
