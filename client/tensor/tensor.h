/* tensor.h - struct weft_tensor and its operation.
 *
 * A tensor runs one operation at a time: init, push_pull, push or pull. The caller fills `op` while the
 * tensor is idle, then posts the request's message. Until the request completes the engine owns `op` and
 * the fields after it.
 *
 *     server mode        scale -> send chunks -> results -> (codec: take, next round) -> update -> complete
 *     all-reduce mode    scale -> group operation -> the step's records -> update -> complete
 *
 * "scale" multiplies by the sample weight, if it is not 1. "update" runs the optimiser, or computes the
 * mean. */
#ifndef WEFT_CLIENT_TENSOR_TENSOR_H
#define WEFT_CLIENT_TENSOR_TENSOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/engine/work.h"
#include "client/tensor/codec_tuner.h"
#include "client/tensor/order/learned_order.h"
#include "collective/codec_times.h"
#include "compress/compress.h"
#include "kernels/kernels.h"
#include "proto/proto.h"
#include "weft/weft.h"

/* A slice of the tensor that one endpoint of a shard owns. A codec that cannot be cut
 * (weft_codec_can_split) has one chunk. With codec "auto" the dense chunks are first, followed by those of
 * each candidate; an operation uses the chunks of one choice. */
struct client_chunk {
    struct weft_tensor *tensor;
    uint32_t index, endpoint;
    uint32_t slot, term;    /* of the slot; term 0: a job without copies, or no Map has arrived */
    uint64_t offset, count; /* elements */
    uint32_t hash_index;    /* index of the endpoint's entry in tensor->hash.endpoints, if there are any */
    double squares;         /* of the chunk's sum, if its shard holds it (clip_norm); from the shard */
    /* state of the running operation */
    bool awaits_result;         /* the result has not arrived */
    bool is_started;               /* it was sent, or waits to be sent */
    bool is_sending, is_receiving; /* the transport holds its payload, its result's buffer */
    uint8_t round;      /* of its open or next request. Less than op.round: a codec's rounds are repeated
                                    * under a new term; more: it has all results of op.round */
    uint8_t sent_round; /* of the last send */
    uint32_t sent_term;
    struct weft_list send_link; /* in the session's send_queue while the transport returns WEFT_ERR_AGAIN, or
                                 * in the pending list of a message group (push_group.c) */
    uint32_t group;             /* number of the message group that carries its request; 0: its own message */
    struct weft_completion sent, received;
};

/* Sum of the weight hashes of the chunks of one endpoint; the shard computes the same sum. */
struct client_endpoint_hash {
    uint32_t endpoint;
    uint64_t hash;
};

enum client_op_kind {
    CLIENT_OP_NONE = 0,
    CLIENT_OP_INIT,
    CLIENT_OP_PUSH_PULL,
    CLIENT_OP_PUSH,
    CLIENT_OP_PULL,
    CLIENT_OP_STATE_PULL,
    CLIENT_OP_STATE_INIT,
    CLIENT_OP_APPLY
};

/* Factors of the contribution and of the update. */
struct client_op_rates {
    float lr, weight;
    float factor;         /* the contribution is factor * gradient: the sample weight; unscaled, unless the
                           * mean is (client_mean_unscale) */
    int8_t loss_exponent; /* of the loss scale, if the shards unscale (client_tensor_shards_scale) */
    bool has_decay;       /* weight_decay replaces that of the optimiser */
    float weight_decay;
    float grad_scale;     /* 1 / sum of weights, unscaled (client_mean_unscale). Written by the engine */
};

/* State of the gradient until it is sent. The engine writes all fields except `scaled`. */
struct client_op_gradient {
    float *scaled;          /* (elems,) receives factor * gradient + carry; NULL: the gradient is sent
                             * unchanged */
    bool scaled_is_ready;
    bool input_is_ready;    /* the input is in host memory, or the codec can read it on the device */
    uint64_t work_at;       /* elements done by the running computation */
    uint32_t chunks_scaled; /* server mode: chunks whose scaled gradient was sent */
};

/* Checks for values that are not finite (skip_nonfinite.c). */
struct client_op_checks {
    enum weft_coll_finite sum_finite; /* of the result; all-reduce mode, dense */
    bool warns_late;        /* the gradient is checked for the warning after the sum, if that is not known to
                             * be finite; server mode: chunk by chunk */
    bool grad_is_nonfinite; /* the sum has overwritten a gradient that was not finite; written by the
                             * engine */
    bool shard_skips_step;  /* a shard returned WEFT_ERR_SKIPPED for a chunk */
};

/* All-reduce mode: one operation carries several tensors (order/codec_batch.c, call_group_leader.c). */
struct client_op_carrier {
    struct weft_tensor *leader;        /* tensor whose operation carries this one; itself: its operation waits
                                        * for weft_group_end and may carry others; NULL: neither */
    struct weft_tensor *follower;      /* next tensor with the same leader */
    struct weft_tensor *last_follower; /* a leader's last follower */
    bool group_is_closed;              /* a leader's: weft_group_end was called */
};

/* Server mode, codec: the running computation; written by the engine. */
struct client_op_coding {
    void (*run)(struct weft_task *task);
    void (*next)(struct weft_tensor *tensor); /* its continuation on the engine */
    enum weft_status computed;                /* its status */
    uint32_t encoding_round;                  /* round of the last encode */
    uint64_t device_since_ns;                 /* since then an encode waits for the device */
    size_t aggregate_bytes;                   /* bytes received in this round */
    bool aggregate_is_damaged;                /* the received aggregate is invalid */
    uint64_t compute_ns;
    struct weft_codec_exchange exchange;      /* written by the running computation */
};

struct client_tensor_op {
    enum client_op_kind kind;
    struct client_request *request;
    uint64_t step;
    struct client_op_rates rates;
    const void *in;
    void *out;
    float *sum;                        /* (elems,) receives the sum, if the update of the weights is on the
                                        * device; NULL: elsewhere */
    struct client_op_gradient gradient;
    struct client_op_checks checks;
    struct client_op_carrier carrier;
    bool holds;                        /* the shards hold the sum until CLIENT_OP_APPLY (elastic/clip.c) */
    uint8_t wire_flags;                /* WEFT_WIRE_MAY_SKIP, WEFT_WIRE_CHECKED of its contributions */
    uint32_t order_words;              /* all-reduce mode: 64-bit words with one bit for each declared
                                        * tensor */
    /* written by the engine */
    uint32_t epoch;                    /* server mode: epoch in which the operation began */
    uint32_t round;                    /* round of the codec; 0 for dense; for the STATE kinds an enum
                                        * weft_wire_part */
    uint32_t chunk_first, chunk_count; /* server mode: chunks in use */
    uint32_t results_left;             /* chunks whose result has not arrived */
    uint32_t in_transport;             /* sends and receives whose buffers the transport holds, plus a task
                                        * that runs */
    bool sum_has_arrived;              /* all-reduce mode, dense: it waits for the step's records */
    struct client_op_coding coding;
    enum weft_status status;           /* first error */
};

/* An update that weft_step_end makes, because the step clips its gradients (elastic/clip.c). */
struct client_clip {
    bool is_pending;
    float lr, scale;   /* the mean is scale * (the tensor's sum) */
    bool has_decay;
    float weight_decay;
    float *out;        /* weights */
    double squares;    /* of the elements of the sum */
    struct weft_request request; /* of CLIENT_OP_APPLY */
};

/* Times of the tensor's push_pull, push and pull operations, ns (weft_tensor_stats_get). */
struct client_tensor_times {
    uint64_t started_ns;           /* of the running operation; 0: not started. Written by the engine */
    _Atomic uint64_t wait_from_ns; /* a call waits for the running operation since then; 0: none */
    /* of the last completed operation; written by the engine */
    _Atomic uint64_t ready_ns, began_ns, done_ns, waited_from_ns;
    /* sums over completed operations; exposed_ns is also written by a wait that ended early */
    _Atomic uint64_t operations, queued_ns, transfer_ns, ahead_ns, exposed_ns, exposed_operations;
    bool spans_loss; /* the running operation was open when a shard was lost (shard/shard_map.c) */
};

/* Which operations have delivered their results (weft_tensor_wait). */
struct client_tensor_delivery {
    _Atomic bool busy;                    /* an operation is open */
    uint32_t started_serial;              /* number of operations */
    const struct client_request *request; /* of the last operation; only its address is used */
    _Atomic uint32_t serial;              /* operations whose request is done; written by the engine */
    int32_t status;                       /* of the last of them; written by the engine */
    uint32_t text;                        /* its sentence (client_text_get); written by the engine */
};

/* A tensor that waits for the end of a group of calls (call_group_leader.c). */
struct client_tensor_call_group {
    struct weft_list link;       /* in the call group's list of leaders */
    struct weft_tensor *next;    /* leader that `command` closes after this one */
    uint64_t serial;             /* of the group of calls of the last push, if it has a leader */
    uint32_t count;              /* a leader's: tensors of its operation */
    struct weft_command command; /* to the engine, when the group of calls ends */
};

/* Copies of weights and optimiser arrays that the update fills, so that a step can be undone. */
struct client_tensor_backup {
    struct backup *arrays[1 + WEFT_OPTIMIZER_STATES_MAX]; /* NULL: none */
    uint64_t step;                                        /* whose update has copies; 0: none */
};

/* State that new ranks receive (state_broadcast.c). */
struct client_tensor_broadcast {
    bool is_required; /* push_pull requires weft_tensor_share first */
    uint32_t epoch;   /* of the last weft_tensor_share */
    uint64_t step;    /* last good step of the job at that time */
};

/* Hash of the weights, compared by the shards every hash_every steps (update.c). */
struct client_tensor_hash {
    struct weft_command command; /* to the net thread */
    _Atomic bool is_posted;      /* true from the computation of a hash until the net thread has sent it */
    bool is_made;                /* a hash was computed in the open step */
    /* (endpoint_count,) owned; only with a codec and an optimiser in server mode */
    struct client_endpoint_hash *endpoints;
    uint32_t endpoint_count;
    uint64_t step;
};

/* Arguments of the declaration. */
struct client_tensor_options {
    struct weft_shape shape;
    struct weft_codec_spec codec_spec; /* resolved for this shape */
    struct weft_optimizer optimizer;
    struct weft_consistency consistency;
    bool skip_nonfinite;
    bool alone;                        /* its operation carries no other tensor */
    int32_t priority;
    uint32_t group;
};

/* Its entries in the tables of the session and of the engine. */
struct client_tensor_registration {
    struct weft_list session_link;
    struct weft_tensor *engine_next; /* next in the engine's table */
    struct weft_command attach_command, detach_command;
    _Atomic bool detached;           /* the engine has removed the tensor from its table */
};

/* Chunks of all choices; server mode. */
struct client_chunk_table {
    uint32_t count;
    /* choice c has the chunks [c] .. [c + 1] - 1; without a choice c is 0 */
    uint32_t choice_first[WEFT_CODEC_CANDIDATES_MAX + 1];
    struct client_chunk *chunks; /* (count,) owned */
};

/* Owned arrays, f32. NULL: the mode does not need the array. */
struct client_tensor_arrays {
    float *states[WEFT_OPTIMIZER_STATES_MAX]; /* (elems,) each: optimiser arrays, if this process runs the
                                               * optimiser */
    float *scratch;                           /* (elems,) reduced or scaled gradient */
    float *carry;                             /* (elems,) residual of an earlier codec; NULL: none */
    uint32_t carry_ranks;                     /* number of ranks that the carry is scaled for
                                               * (client_codecs_set_membership) */
};

/* Owned arrays of the values on the wire; server mode. */
struct client_tensor_wire {
    enum weft_dtype pull_dtype;                   /* of results */
    uint16_t *rounded;                            /* (elems,) results of pull_dtype, before they are widened;
                                                   * NULL: they are received in place */
    uint64_t rounding_seed;                       /* hash of the name; with the rank, the seed of the codec's
                                                   * rounding */
    uint8_t *contribution[WEFT_CODEC_ROUNDS_MAX]; /* codec: encoded contribution; valid until the step ends */
    size_t contribution_bytes[WEFT_CODEC_ROUNDS_MAX];
    uint8_t *aggregate;                           /* codec: received aggregate */
    size_t aggregate_bytes_max;
};

/* Buffers of the caller, and their memory kind. Written by the caller's thread. */
struct client_tensor_buffers {
    enum weft_memory_kind memory; /* of the buffers of push_pull, push and pull */
    void *stream;
    bool on_stream;               /* on device memory: `stream` waits for results */
    bool host_codec_logged;       /* the reason why a device tensor uses the host codec was logged */
    bool host_update_logged;      /* the same of the optimiser */
    /* owned: the optimiser on the device (device_update.h); its arrays are there. NULL: on the host */
    struct client_device_update *device_update;
    void *weights;                /* buffer of the last weft_tensor_init, weft_tensor_share or push_pull */
    struct {
        void *zeros;                 /* (bytes,) owned: input of weft_push_none, and its dropped result;
                                      * NULL until the first call */
        struct weft_request request; /* weft_step_end waits for it */
    } none;                       /* of weft_push_none */
};

/* Steps so far. Written by the caller's thread. */
struct client_tensor_progress {
    bool initialised;
    bool is_restored;            /* the shards have its weights from a snapshot */
    bool warned;                 /* the warning about a gradient that is not finite was logged */
    uint64_t last_step;          /* step of the last push or push_pull; 0: none */
    uint64_t step_before;        /* last_step before the present one */
    uint64_t clock;              /* consistency ssp and asp: pushes so far; the step of its messages */
    uint64_t skipped_step;       /* step whose mean was not finite; 0: none. Written by the engine until the
                                  * step ends */
    float group_lr, group_decay; /* of its group in the open step, if the step has groups */
};

/* State for changes of the membership. Written by the caller's thread. */
struct client_tensor_elastic {
    struct client_tensor_broadcast broadcast;
    struct client_tensor_backup backup;
};

/* Place of the tensor in the order of operations. */
struct client_tensor_order {
    struct client_tensor_need need; /* its place among tensors with one priority */
    struct client_tensor_call_group call_group;
    struct push_batch *batch;       /* order/push_order.c: not agreed on; NULL: no push, or agreed on. The
                                     * engine's */
    struct weft_list push_link;     /* in its batch, then in its bucket. The engine's */
};

/* Task and work items of the operation. Written by the engine. */
struct client_tensor_execution {
    bool has_begun;                 /* the engine has received the request */
    struct client_work work;
    struct weft_task task;
    struct weft_timer device_timer; /* server mode: polls an encode on a device */
    struct client_group_op group_op;
    struct weft_list record_link;
};

struct weft_tensor {
    struct weft_session *session;
    struct client_tensor_registration registration;
    uint32_t id;
    char name[256];
    uint64_t elems;
    size_t bytes;
    enum weft_dtype dtype;
    enum weft_mode mode;
    struct client_tensor_options options;
    struct weft_codec *codec;                /* owned; NULL: dense */
    struct client_codec_choice codec_choice; /* codec "auto" */
    struct client_chunk_table chunk_table;
    struct client_tensor_arrays arrays;
    struct client_tensor_wire wire;
    struct client_tensor_buffers buffers;
    struct client_tensor_progress progress;
    struct client_tensor_elastic elastic;
    struct client_clip clip;                 /* the engine's until the request has completed */
    struct client_tensor_delivery delivery;
    struct client_tensor_times times;
    struct client_tensor_order order;
    struct client_tensor_op op;              /* filled by the caller's thread; the engine's once
                                              * execution.has_begun */
    struct client_tensor_execution execution;
    struct client_tensor_hash hash;
};

/* Returns whether the codec tuner chooses its codec. */
static inline bool client_tensor_has_codec_choice(const struct weft_tensor *tensor)
{
    return tensor->codec_choice.candidates.count > 1;
}
/* Returns whether its contributions are applied as they arrive (consistency ssp and asp). Its ranks may be in
 * different steps and have different weights. */
static inline bool client_tensor_has_clock(const struct weft_tensor *tensor)
{
    return tensor->options.consistency.kind != WEFT_CONSISTENCY_BSP;
}
/* Returns whether this process runs the optimiser: in all-reduce mode, with a codec, and with a codec choice.
 * For dense tensors in server mode the shards run it. */
static inline bool client_tensor_has_local_optimizer(const struct weft_tensor *tensor)
{
    return tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE &&
           (tensor->mode == WEFT_MODE_ALL_REDUCE || tensor->codec || client_tensor_has_codec_choice(tensor));
}
/* Returns whether results are rounded at the shards and widened here. */
static inline bool client_tensor_widens(const struct weft_tensor *tensor)
{
    return tensor->wire.pull_dtype != tensor->dtype;
}
/* Returns whether gradients travel as f16 or bf16, and the shards scale them. */
static inline bool client_tensor_shards_scale(const struct weft_tensor *tensor)
{
    return tensor->mode == WEFT_MODE_SERVER && tensor->dtype != WEFT_F32;
}
/* Returns whether the shards have weights in f32 that no result carries. */
static inline bool client_tensor_has_masters(const struct weft_tensor *tensor)
{
    return tensor->mode == WEFT_MODE_SERVER && tensor->wire.pull_dtype != WEFT_F32 &&
           tensor->options.optimizer.kind != WEFT_OPTIMIZER_NONE;
}
/* Bytes of an array of the optimiser. */
static inline size_t client_tensor_state_bytes(const struct weft_tensor *tensor)
{
    return tensor->elems * sizeof(float);
}
/* Subject of its operations (weft_coll_args.subject). Equal on all ranks, since all declare in the same
 * order. */
static inline uint32_t client_tensor_subject(const struct weft_tensor *tensor) { return tensor->id + 1; }
/* Returns whether it is reduced before the other one if both are ready. Equal on all ranks. */
static inline bool client_tensor_precedes(const struct weft_tensor *tensor, const struct weft_tensor *other)
{
    return tensor->options.priority != other->options.priority
               ? tensor->options.priority > other->options.priority
               : tensor->order.need.position < other->order.need.position;
}
/* The same as a number (weft_coll_args.urgency). 0 with client.push_order=called. */
uint64_t client_tensor_urgency(const struct weft_tensor *tensor);
void client_tensor_free(struct weft_tensor *tensor);
/* Allocates tensor->arrays.scratch. Caller's thread. WEFT_ERR_NO_MEMORY. */
enum weft_status client_tensor_alloc_scratch(struct weft_tensor *tensor);
/* state_broadcast.c: WEFT_ERR_STATE if the ranks must call weft_tensor_share before this tensor's next step.
 * Caller's thread. */
enum weft_status client_state_broadcast_check(struct weft_tensor *tensor, const char *call);
/* Requires weft_tensor_share for all tensors, after the membership grew or ranks returned from weft_join.
 * confirm: the step ended well, so tensors pushed in it no longer require it. Caller's thread. */
void client_state_broadcast_require(struct weft_session *session);
void client_state_broadcast_confirm(struct weft_session *session);
/* init.c: first weights of shards, in an elastic job. Collective; blocks. Caller's thread. */
enum weft_status client_tensor_init_elastic(struct weft_tensor *tensor, void *weights, const char *what);
/* Whether the shards have weights, as far as the ranks know. A newcomer is admitted after a good step: if all
 * ranks are new, the shards have them. Collective; blocks. Caller's thread. */
enum weft_status client_tensor_shards_have_weights(struct weft_tensor *tensor, const char *what,
                                                   bool *have_out);
/* Copies, or reserves copies of, what the operation's update overwrites, if the step may be repeated or
 * skipped. Caller's thread. */
enum weft_status client_state_backup(struct weft_tensor *tensor);
/* ---- skipped steps (skip_nonfinite.c) ---- */
/* Returns whether a mean of this tensor that is not finite skips the step. */
static inline bool client_tensor_can_skip_step(const struct weft_tensor *tensor)
{
    return tensor->codec || client_tensor_has_codec_choice(tensor) || tensor->options.skip_nonfinite;
}
/* Returns whether the step can be skipped after this tensor was updated. Caller's thread. */
bool client_skip_needs_backup(const struct weft_tensor *tensor);
/* Returns whether values[at .. at + count), of the tensor's dtype, are finite. Engine thread. */
bool client_skip_is_finite(const struct weft_tensor *tensor, const void *values, uint64_t at, uint64_t count);
/* Should this rank warn of a gradient that is not finite? Without skip_nonfinite it enters the weights of all
 * ranks. One warning a tensor. */
bool client_skip_should_warn(const struct weft_tensor *tensor);
/* Warns if a value of op.in[at .. at + count) is not finite. The thread that owns `op`. */
void client_skip_warn(struct weft_tensor *tensor, uint64_t at, uint64_t count);
/* Records that the mean is not finite. grad_is_nonfinite: nor is this rank's gradient. Engine thread. */
void client_skip_record_nonfinite(struct weft_tensor *tensor, bool grad_is_nonfinite);
/* Records it and completes the request with WEFT_ERR_SKIPPED. All ranks do, since all have the same mean or
 * the shard's result. Engine thread. */
void client_skip_tensor(struct weft_tensor *tensor);

/* Starts the tensor's operation. Caller's thread. WEFT_ERR_STATE: the last request is open. */
enum weft_status client_tensor_claim(struct weft_tensor *tensor, const char *call);
/* The residual of a snapshot (residual.c). share: part of it that this rank restores, above 0 and at most 1.
 * adds: it joins the one that the tensor has. Before the first step; an error changes nothing. Caller's
 * thread. */
enum weft_status client_residual_restore(struct weft_tensor *tensor, const void *data, uint64_t bytes,
                                         float share, bool adds);
/* For calls that save or load. Caller's thread. WEFT_ERR_STATE: a step or request is open. WEFT_ERR_INVALID:
 * buffer is NULL. */
enum weft_status client_tensor_check_between_steps(struct weft_tensor *tensor, const void *buffer,
                                                   const char *call);
/* Caller's thread. WEFT_ERR_STATE: a group of calls is open, and would gather the operations that `call`
 * waits for. */
enum weft_status client_tensor_check_no_group(struct weft_tensor *tensor, const char *call);
/* Sends rank 0's weights (elems,) to the shards (push_pull.c). Caller's thread, does not block. */
enum weft_status client_tensor_start_init(struct weft_tensor *tensor, const void *weights,
                                          struct weft_request *request);
/* Receives the shards' weights, which may be of a later step than this rank knows, or of a snapshot
 * (push_pull.c). call: for error texts. Caller's thread, does not block. */
enum weft_status client_tensor_start_pull(struct weft_tensor *tensor, void *weights, const char *call,
                                          struct weft_request *request);
/* Receives part `part` of the shards' state in out (elems,), or sends rank 0's `in` (elems,) to them
 * (push_pull.c). Caller's thread, does not block. */
enum weft_status client_tensor_start_state(struct weft_tensor *tensor, uint32_t part, const float *in,
                                           float *out, struct weft_request *request);
/* Sends the factor of the held mean to the shards, and receives the new weights in out (elems,)
 * (push_pull.c). Caller's thread, does not block. */
enum weft_status client_tensor_start_apply(struct weft_tensor *tensor, float factor, float *out);
/* Marks the tensor as idle; called by client_request_complete. Engine thread. */
void client_tensor_release(struct weft_tensor *tensor);
/* Called by client_request_complete before the request is done, and after. `serial` is the result
 * of the first. Engine thread. */
uint32_t client_tensor_result(struct weft_tensor *tensor, enum weft_status status, uint32_t text_serial);
void client_tensor_delivered(struct weft_tensor *tensor, uint32_t serial);
/* A call begins to wait for the running operation; it has ended before the operation. Any thread. */
void client_tensor_wait_begins(struct weft_tensor *tensor);
void client_tensor_wait_ends(struct weft_tensor *tensor);
/* The transfer of the running operation starts. Engine thread. */
static inline void client_tensor_transfer_starts(struct weft_tensor *tensor, uint64_t now_ns)
{
    if (!tensor->times.started_ns) tensor->times.started_ns = now_ns;
}
/* Fails the session with a sentence that names the operation. Engine thread. */
void client_tensor_fail(struct weft_tensor *tensor, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, after the coordinator had time to report a more precise reason, such as a loss. */
void client_tensor_fail_later(struct weft_tensor *tensor, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A shard has refused the operation because a rank is lost or has left. Engine thread. */
void client_tensor_remote_lost(struct weft_tensor *tensor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The session has failed: drops what has not started, and completes the operation when its buffers are free.
 * Engine thread. */
void client_tensor_failed(struct weft_tensor *tensor);
/* Returns whether the operation, or the agreement on its place, waits in the group of all workers. Engine
 * thread. */
bool client_tensor_is_in_group(const struct weft_tensor *tensor);
void client_tensor_describe(const struct weft_tensor *tensor, char *out, size_t out_bytes);
/* Writes "push_pull of tensor 'fc1' step 12". */
void client_tensor_op_name(const struct weft_tensor *tensor, char *out, size_t out_bytes);

/* ---- computations in slices (update.c) ---- */
/* What turns the sum of scaled gradients into unscaled ones. A dense all-reduce applies it to the mean, which
 * costs no pass; every other contribution is unscaled before it leaves the rank: 1. */
float client_mean_unscale(const struct weft_tensor *tensor);
/* scaled[i] = factor * grad[i] (+ carry[i]) for at most one slice, up to `end`. Returns whether op.work_at
 * reached `end`. */
bool client_scale_slice(struct weft_tensor *tensor, uint64_t end);
/* Updates one slice. With an optimiser it applies grad * scale to the weights in `out`; else out = grad *
 * scale. Returns whether the tensor is complete. */
bool client_update_slice(struct weft_tensor *tensor, const float *grad, float scale);
/* Returns whether this step hashes the weights of a codec tensor in server mode. client_hash_weights reads
 * all of them, and may run on the compute thread. */
bool client_hash_due(const struct weft_tensor *tensor);
void client_hash_weights(struct weft_tensor *tensor);
/* Sends the hash after a good step. A skipped step has other weights under the same number. Caller's
 * thread. */
void client_hash_step_ended(struct weft_tensor *tensor, bool good);
static inline float client_grad_scale(float weight_sum) { return (float)(1.0 / (double)weight_sum); }

#endif
