/* push_order.h - the order in which tensors in all-reduce mode are reduced: agreed on by all ranks, by
 * priority, small tensors together.
 *
 *     push_pull ──► batch, an entry of the group's queue ──► agreement: which tensors have all ranks pushed?
 *                     ▲                                          │
 *                     └── tensors that a rank has not pushed ────┴──► group operations, before the batch
 *
 * A batch holds the push_pulls between two other operations of the group. An agreement is an all_reduce of
 * one bit per tensor (push_order.c). Small tensors with one dtype travel in one operation, a bucket
 * (bucket.c). What all ranks have pushed decides everything, so all ranks post the same operations. Engine
 * thread, but for the calls that name another. */
#ifndef WEFT_CLIENT_TENSOR_ORDER_PUSH_ORDER_H
#define WEFT_CLIENT_TENSOR_ORDER_PUSH_ORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"

struct weft_session;
struct weft_tensor;

struct client_push_order {
    bool step_has_ended; /* this rank has pushed all tensors of the step */
    struct {
        struct weft_command command;
        _Atomic bool is_posted; /* the engine has not run it */
    } step_end;
    struct weft_list idle;    /* struct push_batch.link */
    struct weft_list batches; /* struct push_batch.link, in the order of the queue */
    struct weft_list buckets; /* struct push_bucket.link: idle */
};

void client_push_order_init(struct weft_session *session);
void client_push_order_free(struct weft_session *session); /* the engine has ended */
/* A tensor that leads an operation, or has its own, was pushed. */
void client_push_order_add(struct weft_tensor *tensor);
/* tensor->group_op.ready has become true: it takes part in the next agreement. */
void client_push_order_ready(struct weft_tensor *tensor);
/* Caller's thread: this rank has pushed all tensors of the open step. */
void client_push_order_step_ends(struct weft_session *session);
/* Returns whether the tensor waits until all ranks have pushed it. rank_out: a rank that is waited for, or
 * UINT32_MAX. */
bool client_push_order_waits_for(const struct weft_tensor *tensor, uint32_t *rank_out);

/* Bytes of a tensor up to which it shares an operation. For longer dense tensors the copies cost as much as
 * starting an operation. */
#define CLIENT_SMALL_TENSOR_BYTES (32u << 10)

/* ---- codec_batch.c ---- */
#define CLIENT_CODEC_BATCHES_OPEN 16u /* shapes x codecs that are filled at the same time */

/* The batches of one agreement that may get another tensor. Equal on all ranks. */
struct client_codec_batches {
    bool is_grouped; /* all of them were pushed in groups of calls */
    uint32_t count;
    struct {
        struct weft_tensor *leader;
        uint32_t tensors; /* with the leader */
    } open[CLIENT_CODEC_BATCHES_OPEN];
};

/* Returns whether tensors like this one can share an operation. Any thread. */
bool client_codec_batch_accepts(const struct weft_tensor *tensor);
/* Returns whether both, which are accepted, can share one. Any thread. */
bool client_codec_batch_can_share(const struct weft_tensor *a, const struct weft_tensor *b);
/* Returns true: the operation of an earlier tensor carries the tensor. false: queue its operation, which may
 * carry later tensors. */
bool client_codec_batch_follow(struct client_codec_batches *batches, struct weft_tensor *tensor);

/* ---- bucket.c ---- */
/* Queues the operations of these tensors (struct weft_tensor.push_link), which all ranks have pushed, before
 * `position` of the group's queue. Empties the list. */
void client_buckets_queue(struct weft_session *session, struct weft_list *tensors, struct weft_list *position,
                          struct client_codec_batches *batches);
void client_buckets_free(struct weft_session *session);

#endif
