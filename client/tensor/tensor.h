/* tensor.h - the private side of struct weft_tensor, and of its one operation.
 *
 * A tensor does one operation at a time (init, push_pull, push or pull). The caller fills `op` while the
 * tensor is idle and posts the request's letter; until the request is done `op` and everything below it is
 * the engine's.
 *
 *     server mode        prepare -> send chunks -> results -> (codec: take, next round) -> (codec: update) -> done
 *     all-reduce mode    prepare -> group operation -> step's record -> update -> done
 *
 * "prepare" multiplies by the sample weight when it is not 1; "update" is the optimiser, or the mean. */
#ifndef WEFT_CLIENT_TENSOR_TENSOR_H
#define WEFT_CLIENT_TENSOR_TENSOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/engine/group.h"
#include "client/engine/request.h"
#include "client/engine/work.h"
#include "client/tensor/codec_tuner.h"
#include "compress/compress.h"
#include "kernels/kernels.h"
#include "proto/proto.h"
#include "weft/weft.h"

/* A piece of the tensor with one owner; of a codec that cannot be cut (weft_codec_can_split) one chunk
 * holds all. With codec "auto" there are the dense chunks, then those of each coded candidate; an
 * operation uses those of one choice. */
struct client_chunk {
    struct weft_tensor *tensor;
    uint32_t index, endpoint;
    uint64_t offset, count;        /* elements */
    uint32_t hash_index;                 /* the tensor's home that it is of, where the tensor has homes */
    /* of the running operation */
    bool awaits_result;                   /* its result has not come yet */
    struct weft_list send_link;    /* engine's send_queue, while the transport has no room */
    struct weft_completion sent, received;
};

/* The chunks of one endpoint, which hashes their weights as this rank does. */
struct client_endpoint_hash {
    uint32_t endpoint;
    uint64_t hash;
};

enum client_op_kind { CLIENT_OP_NONE = 0, CLIENT_OP_INIT, CLIENT_OP_PUSH_PULL, CLIENT_OP_PUSH, CLIENT_OP_PULL,
                      CLIENT_OP_STATE_PULL, CLIENT_OP_STATE_INIT };

struct client_tensor_op {
    enum client_op_kind kind;
    struct client_request *request;
    uint64_t step;
    float lr, weight;
    const void *in;
    void *out;
    struct weft_tensor *leader;    /* all-reduce mode: whose operation carries it (call_group.h); NULL: its
                                    * own alone */
    float *scaled;                 /* where weight * gradient + carry goes; NULL: the gradient goes as it
                                    * is */
    bool scaled_is_ready;             /* engine's */
    bool grad_is_nonfinite;                 /* the gradient, which the sum has overwritten, was not finite;
                                             * written by the engine */
    bool shard_skips_step;                  /* a shard answered that the tensor skips the step */
    uint8_t wire_flags;            /* of its contributions to shards: WEFT_WIRE_MAY_SKIP, WEFT_WIRE_CHECKED */
    bool input_is_ready;                  /* engine's: the input is in host memory, or its codec can read
                                           * it on the device */
    /* engine's */
    uint32_t epoch;                /* server mode: of the membership that it was begun in */
    uint64_t work_at;              /* elements done by the running computation */
    uint32_t chunks_scaled;        /* server mode: chunks whose scaled gradient is ready and on its way */
    uint32_t round;                /* of the codec; 0 for dense; of the STATE kinds enum weft_wire_part */
    uint32_t chunk_first, chunk_count; /* server mode: the chunks it uses */
    uint32_t results_left;         /* chunks whose result has not come */
    uint32_t in_transport;         /* sends and accepts whose buffers the transport holds; a task that is
                                    * computing */
    size_t aggregate_bytes;        /* codec: what has come in this round */
    float grad_scale;              /* 1 / sum of weights */
    struct weft_tensor *follower;  /* of the same leader, the next one */
    struct weft_tensor *last_follower;      /* a leader's last follower */
    bool group_is_closed;          /* a leader's: weft_group_end has come */
    /* server mode, codec: the arithmetic under way, what it answered, and what follows it on the engine */
    void (*run)(struct weft_task *task);
    void (*next)(struct weft_tensor *tensor);
    enum weft_status computed;
    bool aggregate_is_damaged;                  /* it was the aggregate that could not be used */
    uint64_t compute_ns;
    enum weft_status status;       /* first error: settle and end */
};

struct weft_tensor {
    struct weft_session *session;
    struct weft_list session_link;
    struct weft_tensor *engine_next;   /* engine's table */
    struct weft_command attach_mail, detach_mail;
    _Atomic bool detached;             /* weft_tensor_free: the engine does not know it any more */
    uint32_t id;
    char name[256];
    struct weft_shape shape;
    uint64_t elems;
    size_t bytes;
    enum weft_dtype dtype;
    enum weft_mode mode;
    struct weft_codec_spec codec_spec; /* resolved for this shape */
    struct weft_optimizer optimizer;
    struct weft_codec *codec;          /* owned; NULL: dense */
    uint64_t rounding_seed;                    /* of its name: what its codec's rounding is drawn by, with
                                                * the rank */
    struct client_codec_choice codec_choice;   /* codec "auto" */
    uint32_t chunk_count;              /* of all choices */
    /* choice c has the chunks from [c] to [c + 1]; without a choice there is the first alone */
    uint32_t choice_first[WEFT_CODEC_CANDIDATES_MAX + 1];
    struct client_chunk *chunks;       /* (chunk_count,) owned; server mode */

    /* owned, all elements of f32; NULL where the mode needs none */
    float *states[WEFT_OPTIMIZER_STATES_MAX]; /* (elems,) each: the optimiser's, of modes that update here;
                                               * else NULL */
    float *scratch;                    /* reduced or scaled gradient */
    float *carry;                      /* (elems,) what a codec before this one still owes; NULL: nothing */
    uint32_t carry_ranks;              /* of the mean over so many: it follows their number
                                        * (client_codecs_set_membership) */
    uint8_t *contribution[WEFT_CODEC_ROUNDS_MAX]; /* codec, server mode: encoded; kept until the step ends */
    size_t contribution_bytes[WEFT_CODEC_ROUNDS_MAX];
    uint8_t *aggregate;                /* codec, server mode: what comes back */
    size_t aggregate_bytes_max;

    /* the caller's */
    enum weft_memory_kind memory;      /* of what push_pull, push and pull are given */
    void *stream;
    bool host_codec_logged;                   /* buffers on a device, and the codec on the host: it has
                                               * been said why */
    bool initialised;
    bool broadcast_required;                    /* ranks are new, or back: of a tensor with an optimiser
                                                 * all share what one has (state_broadcast.c) */
    uint32_t broadcast_epoch;             /* the membership in which they did last */
    uint64_t last_step;                /* of the last push or push_pull; 0: none */
    uint64_t step_before;              /* the one before that */
    void *weights;                     /* buffer of the last weft_tensor_init, weft_tensor_share or
                                        * push_pull */
    void *zeros;                        /* (bytes,) owned: zeros of weft_push_none, and its dropped result;
                                         * NULL until the first one */
    struct weft_request zeros_request;  /* of weft_push_none; weft_step_end waits for it */
    struct backup *undo[1 + WEFT_OPTIMIZER_STATES_MAX]; /* copies of weights and arrays that the update
                                                         * fills; NULL: none */
    uint64_t backup_step;                /* step in which its weights and arrays were copied before the
                                          * update; 0: none */
    uint64_t skipped_step;             /* step in which its mean was not finite; 0: none. Written by the
                                        * engine until the step ends */
    bool skip_nonfinite;               /* the option */
    bool warned;                       /* of a gradient that is not finite, and goes into the mean */
    _Atomic bool busy;
    struct weft_list call_group_link;       /* batch->leaders */
    uint64_t call_group_serial;             /* the group of calls in which it was pushed last, if it goes
                                             * with others */
    uint32_t call_group_count;              /* a leader's: that go together */
    struct weft_command call_group_message;

    /* the engine's */
    struct client_tensor_op op;        /* a caller fills it in; the engine's once begun */
    bool has_begun;                        /* the letter has come: one that is still on its way is ended by
                                            * it */
    struct client_work work;
    struct weft_task task;
    struct client_group_op group_op;
    struct weft_list record_link;
    struct weft_command hash_mail;        /* to the net thread, every hash_every steps */
    _Atomic bool hash_posted;          /* from the making of a hash until the net thread has sent it */
    bool hash_made;                    /* in the open step; the engine's until the operation has completed */
    /* (endpoint_hash_count,) owned; codec and optimiser in server mode, else none */
    struct client_endpoint_hash *endpoint_hashes;
    uint32_t endpoint_hash_count;
    uint64_t hash_step;
};

/* Is its codec the judge's to choose? */
static inline bool client_tensor_has_codec_choice(const struct weft_tensor *tensor)
{
    return tensor->codec_choice.candidates.count > 1;
}
/* The whole-tensor modes keep their optimiser here, and so does a tensor whose mode may become one with
 * any step; dense server mode leaves it to the shards. */
static inline bool client_tensor_has_local_optimizer(const struct weft_tensor *tensor)
{
    return tensor->optimizer.kind != WEFT_OPTIMIZER_NONE &&
           (tensor->mode == WEFT_MODE_ALL_REDUCE || tensor->codec || client_tensor_has_codec_choice(tensor));
}
/* The subject of its operations (weft_coll_args.subject). Equal on all ranks, since they declare in the
 * same order. */
static inline uint32_t client_tensor_subject(const struct weft_tensor *tensor) { return tensor->id + 1; }
void client_tensor_free(struct weft_tensor *tensor);
/* Caller: memory for weight * gradient where `out` cannot serve. */
enum weft_status client_tensor_alloc_scratch(struct weft_tensor *tensor);
/* state_broadcast.c: may this tensor take part in a step, or must the ranks share its state first? */
enum weft_status client_state_broadcast_check(struct weft_tensor *tensor, const char *call);
/* Ranks have come, or come back. And: a step was good, and no rank has come with the news of that. */
void client_state_broadcast_require(struct weft_session *session);
void client_state_broadcast_confirm(struct weft_session *session);
/* Copies what the update of this operation overwrites, if the step may be run again or skipped. */
enum weft_status client_state_backup(struct weft_tensor *tensor);
/* ---- skipped steps (skip_nonfinite.c) ---- */
/* Returns whether a mean of this tensor that is not finite skips the step. */
static inline bool client_tensor_can_skip_step(const struct weft_tensor *tensor)
{
    return tensor->codec || client_tensor_has_codec_choice(tensor) || tensor->skip_nonfinite;
}
/* Returns whether another tensor may skip a step after this one was updated. Caller's thread. */
bool client_skip_needs_backup(const struct weft_tensor *tensor);
/* Returns whether the slice [at, at + count) of `values`, of the tensor's dtype, is finite. Engine. */
bool client_skip_is_finite(const struct weft_tensor *tensor, const void *values, uint64_t at, uint64_t count);
/* Records that the mean is not finite. `poisoned`: the gradient of this rank is not. Engine. */
void client_skip_record_nonfinite(struct weft_tensor *tensor, bool grad_is_nonfinite);
/* Marks it and completes the request with WEFT_ERR_SKIPPED: all ranks do, as they have the same mean or
 * the shard's answer. Engine. */
void client_skip_tensor(struct weft_tensor *tensor);

/* Caller: the tensor's one operation starts. WEFT_ERR_STATE when the last one is still open. */
enum weft_status client_tensor_claim(struct weft_tensor *tensor, const char *call);
/* Caller, for what is saved and restored: there is one state between steps. WEFT_ERR_STATE inside one,
 * WEFT_ERR_INVALID for NULL. */
enum weft_status client_tensor_check_between_steps(struct weft_tensor *tensor, const void *buffer,
                                                   const char *call);
/* WEFT_ERR_STATE if a group of calls is open: it would gather the operations that `call` posts and waits
 * for. Caller's thread. */
enum weft_status client_tensor_check_no_group(struct weft_tensor *tensor, const char *call);
/* Caller: rank 0's weights to the shards (push_pull.c). */
enum weft_status client_tensor_start_init(struct weft_tensor *tensor, const void *weights,
                                          struct weft_request *request);
/* Caller: part `part` of what the shards remember into `out`, or rank 0's `in` to them (push_pull.c). */
enum weft_status client_tensor_start_state(struct weft_tensor *tensor, uint32_t part, const float *in,
                                           float *out, struct weft_request *request);
/* Engine: from client_request_complete. */
void client_tensor_release(struct weft_tensor *tensor);
/* Engine: its operation cannot end well: the session fails with a sentence that names it. */
void client_tensor_fail(struct weft_tensor *tensor, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, but the coordinator is given a moment to say it better, as of a loss. */
void client_tensor_fail_later(struct weft_tensor *tensor, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A shard has refused the operation because a rank is lost or has left. */
void client_tensor_remote_lost(struct weft_tensor *tensor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Engine: the session has failed: drop what waits, end the operation when its buffers are free. */
void client_tensor_failed(struct weft_tensor *tensor);
void client_tensor_describe(const struct weft_tensor *tensor, char *out, size_t out_bytes);
/* "push_pull of tensor 'fc1' step 12" */
void client_tensor_op_name(const struct weft_tensor *tensor, char *out, size_t out_bytes);

/* ---- computations in slices (update.c) ---- */
/* scaled[i] = weight * grad[i] (+ carry[i]) of at most one slice, not beyond `end`; true when op.work_at
 * reached `end`. */
bool client_scale_slice(struct weft_tensor *tensor, uint64_t end);
/* One slice of: with an optimiser, weights `out` take gradient `grad` * scale; without, out = grad *
 * scale. */
bool client_update_slice(struct weft_tensor *tensor, const float *grad, float scale);
/* The weights of a codec tensor in server mode: is it time to tell the shard their hash, and do so. Reads
 * all of them: may run on the compute thread. */
bool client_hash_due(const struct weft_tensor *tensor);
void client_hash_weights(struct weft_tensor *tensor);
/* The hash is sent after a good step only: a skipped step has other weights under the same number.
 * Caller's thread. */
void client_hash_step_ended(struct weft_tensor *tensor, bool good);
static inline float client_grad_scale(float weight_sum) { return (float)(1.0 / (double)weight_sum); }

#endif
