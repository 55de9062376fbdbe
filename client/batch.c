/* batch.c - groups of calls. What is called between weft_group_start and weft_group_end starts together at the end:
 *
 *     all_reduce a, b   (small, f32, sum) ─┐ one bucket: copied together, one operation, copied apart
 *     all_reduce d      (large)            │ itself
 *     all_reduce c      (small, f32, sum) ─┘
 *     all_reduce e      (small, f16, sum) ── another bucket
 *     broadcast f                            itself
 *
 * Which calls share a bucket, and the order in which all of it is posted, follow from the calls and their order alone,
 * which are the same on all ranks: not from time, not from what is under way. A bucket's header carries a number made of
 * its calls' lengths, so ranks whose groups differ are told so even where the sums of the lengths agree.
 *
 * What cannot share is posted at its own place: a bucket has the place of its first call. Tensors: batch.h. */
#include "client/batch.h"

#include <stdio.h>
#include <string.h>

#include "client/call.h"
#include "client/reduce_path.h"
#include "client/session.h"
#include "client/tensor.h"

#define CALL_BYTES_MAX (64u << 10)    /* longer ones gain nothing: the copies cost what the start of an operation does */
#define BUCKET_BYTES_MAX (512u << 10) /* copied in one go on the engine: tens of microseconds */
#define BUCKETS_OPEN 16u              /* dtypes x reductions x groups that are filled at the same time */

struct client_bucket {
    struct weft_list link;     /* batch->idle */
    uint8_t *memory;           /* (capacity,) owned */
    size_t capacity;
    /* the group of calls it serves now */
    struct weft_session *session;
    struct client_request *first;
    struct weft_list calls;    /* struct client_request.op.link */
    uint64_t count, signature;
    size_t elem_bytes;
    /* the engine's */
    struct weft_mail mail;
    struct client_group_op op;
};

void client_batch_init(struct client_batch *batch)
{
    weft_list_init(&batch->gathered);
    weft_list_init(&batch->leaders);
    weft_list_init(&batch->idle);
    pthread_mutex_init(&batch->lock, NULL);
}

void client_batch_free(struct weft_session *session)
{
    struct client_batch *batch = &session->batch;
    while (!weft_list_empty(&batch->idle)) {
        struct client_bucket *bucket = weft_list_first(&batch->idle, struct client_bucket, link);
        weft_list_remove(&bucket->link);
        weft_free_bytes(session->env, bucket->memory);
        weft_free_bytes(session->env, bucket);
    }
    pthread_mutex_destroy(&batch->lock);
}

void client_batch_gather(struct client_request *request)
{
    weft_list_init(&request->link);
    weft_list_append(&request->session->batch.gathered, &request->link);
    atomic_store_explicit(&request->state, CLIENT_REQUEST_GATHERED, memory_order_relaxed);
}

/* ---- tensors ---- */

static bool alike(const struct weft_tensor *a, const struct weft_tensor *b)
{
    return memcmp(&a->codec_spec, &b->codec_spec, sizeof a->codec_spec) == 0 && a->shape.dim_count == b->shape.dim_count &&
           memcmp(a->shape.dims, b->shape.dims, a->shape.dim_count * sizeof a->shape.dims[0]) == 0;
}

struct weft_tensor *client_batch_leader(struct weft_tensor *tensor)
{
    struct client_batch *batch = &tensor->session->batch;
    struct weft_list *node, *spare;
    if (batch->depth == 0 || tensor->mode != WEFT_MODE_ALL_REDUCE || !tensor->codec || !weft_coll_codec_together(&tensor->codec_spec))
        return NULL;
    tensor->batch_serial = batch->serial;
    weft_list_foreach(node, spare, &batch->leaders) {
        struct weft_tensor *leader = weft_container_of(node, struct weft_tensor, batch_link);
        if (leader->batch_count >= WEFT_CODEC_TOGETHER_MAX || !alike(leader, tensor)) continue;
        leader->batch_count++;
        return leader;
    }
    tensor->batch_count = 1;
    weft_list_append(&batch->leaders, &tensor->batch_link);
    return tensor;
}

bool client_batch_holds(const struct weft_session *session, const struct weft_tensor *tensor)
{
    const struct client_batch *batch = &session->batch;
    if (batch->depth == 0) return false;
    return tensor ? tensor->batch_serial == batch->serial : !weft_list_empty(&batch->leaders);
}

/* Whoever leads knows all who follow: their letters came before this one. */
static void send_leaders(struct weft_session *session, bool start)
{
    while (!weft_list_empty(&session->batch.leaders)) {
        struct weft_tensor *leader = weft_list_first(&session->batch.leaders, struct weft_tensor, batch_link);
        weft_list_remove(&leader->batch_link);
        leader->batch_mail.fn = client_reduce_path_batch_closed;
        if (start) weft_loop_post(session->engine.loop, &leader->batch_mail);
    }
}

/* ---- buckets ---- */

/* The largest idle one, or a new one. NULL: no memory. */
static struct client_bucket *bucket_take(struct weft_session *session)
{
    struct client_batch *batch = &session->batch;
    struct client_bucket *bucket = NULL;
    pthread_mutex_lock(&batch->lock);
    if (!weft_list_empty(&batch->idle)) {
        bucket = weft_list_first(&batch->idle, struct client_bucket, link);
        weft_list_remove(&bucket->link);
    }
    pthread_mutex_unlock(&batch->lock);
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
    pthread_mutex_lock(&session->batch.lock);
    weft_list_insert_before(session->batch.idle.next, &bucket->link); /* the last one used is in the cache */
    pthread_mutex_unlock(&session->batch.lock);
}

static enum weft_status bucket_room(struct weft_session *session, struct client_bucket *bucket)
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

static bool may_share(const struct client_request *request)
{
    return request->kind == WEFT_COLL_ALL_REDUCE && request->reduction != WEFT_SCALED_SUM && !request->weighted &&
           request->count * weft_dtype_bytes((enum weft_dtype)request->dtype) <= CALL_BYTES_MAX && !client_stage_in_pieces(request);
}

static bool fits(const struct client_bucket *bucket, const struct client_request *request)
{
    const struct client_request *first = bucket->first;
    return first->op.comm == request->op.comm && first->dtype == request->dtype && first->reduction == request->reduction &&
           first->reproducible == request->reproducible && first->plan == request->plan && first->deadline_ns == request->deadline_ns &&
           (bucket->count + request->count) * bucket->elem_bytes <= BUCKET_BYTES_MAX;
}

static bool is_shared(const struct client_bucket *bucket) { return bucket->calls.next != bucket->calls.prev; }

static void bucket_add(struct client_bucket *bucket, struct client_request *request)
{
    if (!bucket->first) {
        bucket->first = request;
        bucket->elem_bytes = weft_dtype_bytes((enum weft_dtype)request->dtype);
    }
    request->bucket = bucket;
    weft_list_init(&request->op.link);
    weft_list_append(&bucket->calls, &request->op.link);
    bucket->count += request->count;
    bucket->signature = weft_fnv(bucket->signature, request->count) + 1;
}

/* ---- on the engine ---- */

static struct client_request *call_of(struct weft_list *node) { return weft_container_of(node, struct client_request, op.link); }

static enum weft_status copy_together(struct client_bucket *bucket, struct weft_error *error)
{
    uint8_t *at = bucket->memory;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &bucket->calls) {
        if (call_of(node)->stage) WEFT_TRY(client_stage_ready(call_of(node), error));
    }
    weft_list_foreach(node, spare, &bucket->calls) {
        const struct client_request *request = call_of(node);
        size_t bytes = request->count * bucket->elem_bytes;
        if (bytes > 0) memcpy(at, request->stage ? client_stage_memory(request) : request->in, bytes);
        at += bytes;
    }
    return WEFT_OK;
}

static enum weft_status copy_apart(struct client_bucket *bucket, struct weft_error *error)
{
    const uint8_t *at = bucket->memory;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &bucket->calls) {
        struct client_request *request = call_of(node);
        size_t bytes = request->count * bucket->elem_bytes;
        if (bytes > 0) memcpy(request->stage ? client_stage_memory(request) : request->out, at, bytes);
        if (request->stage) WEFT_TRY(client_stage_land(request, error));
        at += bytes;
    }
    return WEFT_OK;
}

/* Requests are the caller's again one after the other: the bucket goes back first. */
static void end_calls(struct weft_session *session, struct client_bucket *bucket, enum weft_status status, const char *text)
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
    if (session->engine.failed) {
        end_calls(session, bucket, session->engine.failed, session->engine.failed_text);
        return;
    }
    if (status == WEFT_OK && (status = copy_apart(bucket, &error)) < 0) text = error.text;
    if (status < 0) client_call_failed(op, status, text);
    else end_calls(session, bucket, WEFT_OK, NULL);
}

static enum weft_status post(struct client_group_op *op, struct weft_error *error)
{
    struct client_bucket *bucket = weft_container_of(op, struct client_bucket, op);
    struct weft_coll_args args;
    client_call_args(bucket->first, &args);
    WEFT_TRY(copy_together(bucket, error));
    args.in = args.out = bucket->memory;
    args.count = bucket->count;
    args.subject = weft_subject_together(bucket->signature);
    return weft_coll_post(client_call_group(bucket->first), &args, client_engine_group_op_done, op, &op->coll, error);
}

static void start_bucket(struct weft_mail *mail)
{
    struct client_bucket *bucket = weft_container_of(mail, struct client_bucket, mail);
    struct weft_session *session = bucket->session;
    struct client_engine *engine = &session->engine;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &bucket->calls) {
        struct client_request *request = weft_container_of(node, struct client_request, op.link);
        weft_list_append(&engine->open_requests, &request->link);
        if (request->stage) client_stage_opened(request);
    }
    if (engine->failed) {
        end_calls(session, bucket, engine->failed, engine->failed_text);
        return;
    }
    bucket->op = (struct client_group_op){.ready = true, .post = post, .done = on_done, .comm = bucket->first->op.comm};
    weft_list_init(&bucket->op.link);
    client_engine_queue_group_op(session, &bucket->op);
}

/* "that 17 calls share": for sentences about one of them. */
const struct weft_coll *client_batch_operation(const struct client_request *request)
{
    return request->bucket ? request->bucket->op.coll : request->op.coll;
}

/* ---- the caller's thread ---- */

void client_batch_remove(struct client_request *request, enum weft_status status, const char *text)
{
    weft_list_remove(&request->link);
    request->bucket = NULL;
    client_stage_drop(request);
    request->status = status;
    request->text_serial = client_text_put(request->session, text);
    if (request->completed) request->completed(request->context, status);
    atomic_store_explicit(&request->state, CLIENT_REQUEST_DONE, memory_order_release);
}

/* Never started. */
static void end_gathered(struct weft_session *session, enum weft_status status, const char *text)
{
    struct weft_list *gathered = &session->batch.gathered;
    while (!weft_list_empty(gathered)) client_batch_remove(weft_list_first(gathered, struct client_request, link), status, text);
}

void client_batch_drop(struct weft_session *session, enum weft_status status, const char *text)
{
    session->batch.depth = 0;
    send_leaders(session, false);
    end_gathered(session, status, text);
}

/* Buckets that are being filled. */
struct filling {
    struct client_bucket *open[BUCKETS_OPEN];
    uint32_t count;
};

/* The bucket this call goes into; a new one in the place of the oldest when there are too many. NULL: no memory. */
static struct client_bucket *bucket_for(struct weft_session *session, struct filling *filling, const struct client_request *request)
{
    for (uint32_t i = 0; i < filling->count; i++)
        if (fits(filling->open[i], request)) return filling->open[i];
    struct client_bucket *bucket = bucket_take(session);
    if (!bucket) return NULL;
    if (filling->count == BUCKETS_OPEN) memmove(filling->open, filling->open + 1, --filling->count * sizeof filling->open[0]);
    filling->open[filling->count++] = bucket;
    return bucket;
}

/* Into buckets; only the first call of each stays in the list of what is gathered. */
static enum weft_status fill_buckets(struct weft_session *session)
{
    struct filling filling = {.count = 0};
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &session->batch.gathered) {
        struct client_request *request = weft_container_of(node, struct client_request, link);
        if (!may_share(request)) continue;
        struct client_bucket *bucket = bucket_for(session, &filling, request);
        if (!bucket) return WEFT_ERR_NO_MEMORY;
        bucket_add(bucket, request);
    }
    weft_list_foreach(node, spare, &session->batch.gathered) {
        struct client_bucket *bucket = weft_container_of(node, struct client_request, link)->bucket;
        if (bucket && is_shared(bucket)) WEFT_TRY(bucket_room(session, bucket));
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
    bucket->mail.fn = start_bucket;
    client_event_post(session, &bucket->mail);
}

static void send_all(struct weft_session *session)
{
    struct weft_list *gathered = &session->batch.gathered;
    while (!weft_list_empty(gathered)) {
        struct client_request *request = weft_list_first(gathered, struct client_request, link);
        struct client_bucket *bucket = request->bucket;
        if (bucket && is_shared(bucket)) {
            send_bucket(session, bucket);
            continue;
        }
        if (bucket) { /* alone in it */
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
    if (!session) return client_missing("group_start", "session");
    WEFT_TRY(client_usable(session));
    if (session->batch.depth++ == 0) session->batch.serial++;
    return WEFT_OK;
}

enum weft_status weft_group_end(struct weft_session *session)
{
    if (!session) return client_missing("group_end", "session");
    if (session->batch.depth == 0) {
        WEFT_TRY(client_usable(session));
        return client_error(session, WEFT_ERR_STATE, "group_end without group_start");
    }
    enum weft_status status = client_usable(session);
    if (status == WEFT_ERR_FORKED) return status;
    if (--session->batch.depth > 0) return WEFT_OK;
    if (status == WEFT_OK) {
        status = fill_buckets(session);
        if (status < 0) /* the other ranks go on with these calls, and wait for this one */
            client_fail(session, status, true, "rank %u: no memory to start a group of calls", session->rank);
        if (status < 0) status = client_usable(session);
    }
    if (status < 0) {
        char text[480];
        snprintf(text, sizeof text, "%s", session->error.text);
        send_leaders(session, false);
        end_gathered(session, status, text);
        return status;
    }
    bool any = !weft_list_empty(&session->batch.gathered) || !weft_list_empty(&session->batch.leaders);
    send_leaders(session, true);
    send_all(session);
    return any ? WEFT_IN_PROGRESS : WEFT_OK;
}
