/* bucket.c - small dense tensors that all ranks have pushed travel in one all_reduce.
 *
 *     tensor a ─┐ copied in          copied out, or the optimiser reads the sum from the bucket
 *     tensor b ─┼─► bucket ─► all_reduce by T ─┬─► a
 *     tensor c ─┘                              └─► b, c
 *
 * T adds each element in the order of the ranks, so a bucket gives the bits of separate operations. A bucket
 * has the place of its most urgent tensor. A tensor that is alone in its bucket has its own operation.
 * Tensors with a codec: codec_batch.c. */
#include <stdio.h>
#include <string.h>

#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/session/session.h"
#include "client/tensor/allreduce_mode.h"
#include "client/tensor/order/push_order.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

#define BUCKET_BYTES_MAX (256u << 10) /* a chunk; more would delay urgent tensors behind it */
#define BUCKETS_OPEN WEFT_DTYPE_COUNT

struct push_bucket {
    struct weft_list link;
    struct weft_session *session;
    struct client_group_op op;
    struct weft_list tensors; /* struct weft_tensor.push_link */
    uint64_t count;           /* elements */
    uint64_t hash;            /* of subjects and counts */
    uint8_t *memory;          /* (BUCKET_BYTES_MAX,) bytes, owned; peers of this host may map it */
};

static struct weft_tensor *tensor_of(struct weft_list *node)
{
    return weft_container_of(node, struct weft_tensor, order.push_link);
}

static const struct weft_tensor *first_of(const struct push_bucket *bucket)
{
    return tensor_of(bucket->tensors.next);
}

/* ---- the operation ---- */

static enum weft_status post(struct client_group_op *op, struct weft_error *error)
{
    struct push_bucket *bucket = weft_container_of(op, struct push_bucket, op);
    const struct weft_tensor *first = first_of(bucket);
    const uint64_t now_ns = weft_now_ns(bucket->session->env);
    uint8_t *to = bucket->memory;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &bucket->tensors) {
        struct weft_tensor *tensor = tensor_of(node);
        client_tensor_transfer_starts(tensor, now_ns);
        client_allreduce_mode_check_input(tensor);
        memcpy(to, client_allreduce_mode_input(tensor), tensor->bytes);
        to += tensor->bytes;
    }
    const struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_REDUCE,
        .in = bucket->memory,
        .out = bucket->memory,
        .count = bucket->count,
        .dtype = first->dtype,
        .op = client_allreduce_mode_op(first),
        .subject = weft_subject_batch(bucket->hash),
        .urgency = client_tensor_urgency(first),
        .reproducible = true,
    };
    return weft_coll_post(bucket->session->engine->group, &args, client_engine_group_op_done, op, &op->coll,
                          error);
}

static void fail(struct push_bucket *bucket, enum weft_status status, const char *text)
{
    char name[192], sentence[480];
    client_tensor_op_name(first_of(bucket), name, sizeof name);
    snprintf(sentence, sizeof sentence, "%.190s and the small tensors with it: %.240s", name,
             text ? text : weft_reason_text(status));
    client_engine_group_op_failed(&bucket->op, status, sentence);
}

static void done(struct client_group_op *op, enum weft_status status, const char *text)
{
    struct push_bucket *bucket = weft_container_of(op, struct push_bucket, op);
    struct weft_session *session = bucket->session;
    if (status < 0 && !session->engine->failed) {
        fail(bucket, status, text);
        return;
    }
    const uint8_t *sum = bucket->memory;
    while (!weft_list_empty(&bucket->tensors)) {
        struct weft_tensor *tensor = tensor_of(bucket->tensors.next);
        const size_t bytes = tensor->bytes; /* a completed tensor is the caller's */
        weft_list_remove(&tensor->order.push_link);
        client_allreduce_mode_reduced(tensor, sum);
        sum += bytes;
    }
    weft_list_prepend(&session->tensors->push_order.buckets, &bucket->link); /* its memory is in the cache */
}

/* ---- filling ---- */

static struct push_bucket *bucket_alloc(struct weft_session *session)
{
    struct weft_list *idle = &session->tensors->push_order.buckets;
    struct push_bucket *bucket;
    if (!weft_list_empty(idle)) {
        bucket = weft_list_first(idle, struct push_bucket, link);
        weft_list_remove(&bucket->link);
    } else {
        if (!(bucket = weft_alloc_zero(session->env, sizeof *bucket))) return NULL;
        if (!(bucket->memory = client_transport_memory_alloc(session, BUCKET_BYTES_MAX))) {
            weft_free_bytes(session->env, bucket);
            return NULL;
        }
        weft_list_init(&bucket->link);
        weft_list_init(&bucket->op.link);
        weft_list_init(&bucket->tensors);
    }
    bucket->session = session;
    bucket->count = 0;
    bucket->hash = WEFT_FNV_BASIS;
    bucket->op.post = post;
    bucket->op.done = done;
    bucket->op.ready = true;
    return bucket;
}

static void bucket_add(struct push_bucket *bucket, struct weft_tensor *tensor)
{
    weft_list_append(&bucket->tensors, &tensor->order.push_link);
    bucket->count += tensor->elems;
    bucket->hash = weft_fnv(weft_fnv(bucket->hash, client_tensor_subject(tensor)), tensor->elems) + 1;
}

static bool can_share(const struct weft_tensor *tensor)
{
    return !tensor->codec && !client_tensor_has_codec_choice(tensor) && !tensor->options.alone &&
           tensor->bytes <= CLIENT_SMALL_TENSOR_BYTES;
}

/* The place where small tensors of one dtype travel: the operation of the first one, until a second one
 * joins. */
struct place {
    struct weft_tensor *first;  /* NULL: no tensor yet */
    struct push_bucket *bucket; /* NULL: one tensor */
    size_t bytes;
};

static void begin_place(struct place *place, struct weft_tensor *tensor, struct weft_list *position)
{
    *place = (struct place){.first = tensor, .bytes = tensor->bytes};
    client_engine_queue_group_op_before(tensor->session, &tensor->execution.group_op, position);
}

/* The first tensor's operation becomes the bucket's. */
static bool make_bucket(struct place *place)
{
    struct weft_tensor *first = place->first;
    struct push_bucket *bucket = bucket_alloc(first->session);
    if (!bucket) return false;
    client_engine_queue_group_op_before(first->session, &bucket->op, &first->execution.group_op.link);
    weft_list_remove(&first->execution.group_op.link);
    bucket_add(bucket, first);
    place->bucket = bucket;
    return true;
}

static bool join_place(struct place *place, struct weft_tensor *tensor)
{
    if (!place->bucket && !make_bucket(place)) return false;
    bucket_add(place->bucket, tensor);
    place->bytes += tensor->bytes;
    return true;
}

void client_buckets_queue(struct weft_session *session, struct weft_list *tensors, struct weft_list *position,
                          struct client_codec_batches *batches)
{
    struct place places[BUCKETS_OPEN] = {{0}};
    while (!weft_list_empty(tensors)) {
        struct weft_tensor *tensor = tensor_of(tensors->next);
        struct place *place = &places[tensor->dtype % BUCKETS_OPEN];
        weft_list_remove(&tensor->order.push_link);
        client_allreduce_mode_hand_over(tensor);
        if (client_codec_batch_follow(batches, tensor)) continue;
        if (!can_share(tensor)) {
            client_engine_queue_group_op_before(session, &tensor->execution.group_op, position);
        } else if (!place->first || place->bytes + tensor->bytes > BUCKET_BYTES_MAX) {
            begin_place(place, tensor, position);
        } else if (!join_place(place, tensor)) {
            /* the other ranks have it in their bucket, so the session fails */
            client_engine_queue_group_op_before(session, &tensor->execution.group_op, position);
            client_tensor_fail(tensor, WEFT_ERR_NO_MEMORY, "has no memory for %u bytes of small tensors",
                               BUCKET_BYTES_MAX);
        }
    }
}

void client_buckets_free(struct weft_session *session)
{
    struct weft_list *idle = &session->tensors->push_order.buckets;
    while (!weft_list_empty(idle)) {
        struct push_bucket *bucket = weft_list_first(idle, struct push_bucket, link);
        weft_list_remove(&bucket->link);
        weft_memory_free(session->env, bucket->memory);
        weft_free_bytes(session->env, bucket);
    }
}
