/* tensors.h - the tensors of a session: struct client_tensors. */
#ifndef WEFT_CLIENT_TENSOR_TENSORS_H
#define WEFT_CLIENT_TENSOR_TENSORS_H

#include <stdint.h>

#include "base/base.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/order/learned_order.h"
#include "client/tensor/order/push_group.h"
#include "client/tensor/order/push_order.h"
#include "client/tensor/shard/shard_map.h"
#include "client/tensor/skip_nonfinite.h"
#include "client/tensor/snapshot/snapshot.h"

struct weft_session;
struct weft_tensor;

#define CLIENT_TENSOR_BUCKETS 256u

struct client_tensors {
    struct weft_session *session;
    /* the caller's thread */
    struct weft_list list;        /* struct weft_tensor.session_link */
    struct weft_list freed;       /* the same: freed by the caller, while another thread may hold them; until
                                   * weft_finalize */
    uint32_t count;               /* number of the next declaration; freed tensors are counted */
    uint32_t live_count, reduce_count; /* in `list`; of these in all-reduce mode */
    struct weft_list leaders;     /* struct weft_tensor.call_group.link: leaders of the open group of calls */
    struct client_codec_tuner codec_tuner;
    struct client_skip skip;
    struct client_snapshot snapshot; /* its own lock */
    struct client_learned_order learned_order;
    /* the engine thread */
    struct weft_tensor *by_id[CLIENT_TENSOR_BUCKETS]; /* chained */
    struct weft_list send_queue;     /* struct client_chunk.send_link: the transport had no space */
    struct client_push_groups push_groups;
    struct client_push_order push_order;
    struct client_shard_map shard_map;
    struct weft_list record_waiters; /* struct weft_tensor.record_link: need the step's record
                                      * (allreduce_mode.c) */
};

/* Registers the folder with engine and calls. */
void client_tensors_init(struct weft_session *session, struct client_tensors *tensors);
void client_tensors_free(struct weft_session *session); /* the engine has ended */
/* Tensors that the job has declared, freed ones too; equal on all ranks. Caller's thread. */
uint32_t client_tensors_declared(const struct weft_session *session);
struct weft_tensor *client_tensor_find(const struct weft_session *session, uint32_t id); /* engine thread */

/* ---- groups of calls (call_group.c): tensors of one shape and codec share an operation ---- */
/* The tensor that leads the operation, perhaps `tensor` itself; NULL: the tensor has its own operation.
 * Caller's thread. */
struct weft_tensor *client_tensor_group_leader(struct weft_tensor *tensor);
/* The tensor's operation starts with weft_group_end. NULL: that of any tensor. Caller's thread. */
bool client_tensor_is_gathered(const struct weft_session *session, const struct weft_tensor *tensor);
/* weft_group_end: starts the operations of the leaders, or forgets them. */
void client_tensor_group_ended(struct weft_session *session, bool start);

#endif
