/* weft/weft.h - moves gradients: parameter-server shards and all-reduce behind one set of calls.
 *
 * This header is the manual of libweft. A data-parallel trainer needs the calls of this example:
 *
 * @code
 *     static float weights[4096], grad[4096];
 *     struct weft_session *session;
 *     struct weft_tensor *tensor;
 *     struct weft_tensor_options options;
 *     struct weft_request request = {{0}};
 *
 *     if (weft_init(NULL, &session) < 0) return 1;            // join the job that `weft run` started
 *     weft_tensor_options_init(&options);
 *     options.name = "fc1";
 *     options.dim_count = 2;
 *     options.dims[0] = 64;
 *     options.dims[1] = 64;
 *     options.optimizer = "sgd:momentum=0.9";                 // "none": push_pull returns the mean gradient
 *     enum weft_status status = weft_declare(session, &options, &tensor);
 *     if (status >= 0) status = weft_tensor_init(tensor, weights);  // rank 0's weights, once in a session
 *     for (uint64_t number = 1; number <= 100 && status >= 0; number++) {
 *         struct weft_step step = {number, 0.1f, 1.0f};       // number, learning rate, sample weight
 *         status = weft_step_begin(session, &step);
 *         if (status < 0) break;
 *         backward(weights, grad, 4096);                      // the gradient of this rank's samples
 *         status = weft_push_pull(tensor, grad, weights, &request); // weights is written from here on
 *         if (status >= 0) status = weft_wait(&request, 0);   // weights holds the weights of the next step
 *         if (status >= 0) status = weft_step_end(session);
 *     }
 *     if (status < 0) fprintf(stderr, "%s\n", weft_error_text(session));
 *     weft_finalize(session);
 * @endcode
 *
 * A trainer with several tensors calls weft_push_pull for each as its gradient is ready, and weft_wait after
 * the last: the transfers then overlap with the backward pass. Push a tensor only when the backward pass no
 * longer reads its weights, which the library may write from then on. Mode and codec are options of the
 * tensor, so the same lines train through shards or all-reduce, dense or compressed. With the same seed the
 * two dense modes give the same weights, bit for bit.
 *
 * RETURN CODES
 *   Every call returns enum weft_status (weft/status.h): 0 done, 1 in progress, below 0 an error.
 *   weft_error_text() returns the sentence of the last error: what happened, on which rank, what to do next.
 *   A call is validated before anything is sent. An error of the caller's thread leaves the session usable:
 *     WEFT_ERR_INVALID, _UNSUPPORTED, _STATE      correct the call; nothing was changed
 *     WEFT_ERR_NOT_FOUND, _EXISTS, _BUSY          correct the call; nothing was changed
 *     WEFT_ERR_NO_MEMORY, _LIMIT, _IO             free the resource, then call again
 *     WEFT_ERR_DEADLINE of weft_wait, _wait_any, _wait_all, _tensor_wait, _join   call again: it goes on
 *     WEFT_ERR_CANCELLED                          the request may be started again
 *     WEFT_ERR_SKIPPED, _SHRUNK, _GREW            begin the step that weft_step_next returns
 *     WEFT_ERR_PEER_LOST in an elastic job        call weft_step_end, or weft_shrink outside steps
 *     WEFT_ERR_MALFORMED of weft_residual_load, weft_state_load            nothing was changed
 *     WEFT_ERR_MISMATCH of weft_tensor_free, weft_mesh_create, _mesh_comm  nothing was changed on any rank
 *   Every other error of an operation ends the session, on all ranks: a lost peer, a mismatch, an operation's
 *   deadline, diverged weights, an abort. So does an error that one rank alone gets inside a collective call,
 *   such as WEFT_ERR_NO_MEMORY. Each later call returns the status and sentence that ended the session. These
 *   calls still work: weft_finalize, weft_test, weft_stats_get, weft_tensor_stats_get, weft_dump_events,
 *   weft_error_text, the free functions. After WEFT_ERR_ROLLED_BACK all ranks call weft_finalize, weft_init:
 *   the job continues from a snapshot (docs/snapshots.md). After fork() the child may only call
 *   weft_finalize. All other calls return WEFT_ERR_FORKED.
 *
 * BUFFERS
 *   A call that takes a request borrows its buffers until the request completes. The library may write an
 *   output buffer from the call on. The caller does not write an input buffer, and does not read or write an
 *   output buffer, until then. A shape (n,) counts elements. After an error an output buffer is undefined,
 *   unless the call states otherwise.
 *
 * TIME AND THREADS
 *   Every wait has a deadline (weft_options.deadline_ms, default 300,000 ms). A lost peer ends it at once.
 *   The library never exits the process, installs no signal handler unless the option recorder.signal asks
 *   for one, and raises no SIGPIPE. Any thread may call on a session, one thread at a time, unless marked
 *   "Any thread". A thread that waits in a call moves the session's messages itself. Of the caller's
 *   functions only weft_call.completed runs then. A process may have several sessions.
 *
 * NaN AND INFINITY
 *   Collectives (section 4)        sums, products and averages follow IEEE 754; WEFT_MIN and WEFT_MAX return
 *                                  NaN if an input is NaN. The call returns WEFT_OK. All ranks get the same
 *                                  bits
 *   weft_all_reduce_weighted       the input of a rank with weight 0 does not matter
 *   tensor with a codec            all ranks skip the step: weft_step_end returns WEFT_ERR_SKIPPED
 *   tensor with skip_nonfinite     the same
 *   any other tensor               the value enters the mean and the weights of all ranks; a gradient in host
 *                                  memory is checked, and the first one is logged as a warning
 *
 * STRUCTS
 *   A struct begins with its size, which its _init function or macro sets. Later releases append fields. A
 *   smaller struct, of an older header, takes the defaults of the missing fields. A larger struct, of a newer
 *   header, is accepted if the unknown fields are 0; else the call returns WEFT_ERR_UNSUPPORTED. A struct
 *   that the library fills gets the number of bytes filled in size. WEFT_STEP and WEFT_CALL are for C. In C++
 *   zero the struct, set its size and its fields, and pass its address.
 *
 * SECTIONS: 1 session, 2 tensors and steps, 3 requests, 4 collectives, 5 calls in a struct, 6 groups of
 * ranks, 7 memory, 8 checkpoints, 9 plans, statistics, flight recorder, 10 elastic jobs, 11 outer steps. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/status.h"
#include "weft/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0
/* weft_version() - the version of the loaded library, such as "0.1.0". Static text. Any thread. */
WEFT_API const char *weft_version(void);
/* weft_struct_bytes() - sizeof of a public struct in the loaded library, by its name, such as "weft_request".
 * A binding that declares the structs by itself compares all sizes before its first call and refuses to load
 * if one differs. 0: the library has no such struct; also if libweft_core.so cannot be opened. Any thread. */
WEFT_API size_t weft_struct_bytes(const char *name);

/* ---- 1. Session ---------------------------------------------------------------------------------------- */

struct weft_session; /* opaque; made by weft_init, freed by weft_finalize */

/* A field that is 0 or NULL takes the environment variable, then the default. `weft run` sets the
 * environment. Coordinator, job and rank may also be those of torchrun, mpirun or srun; rank 0 then runs the
 * coordinator of the job on a thread of its own (docs/running-by-hand.md). */
struct weft_options {
    size_t size;              /* sizeof(struct weft_options), set by weft_options_init */
    const char *coordinator;  /* "host:port"; WEFT_COORDINATOR; required without a launcher */
    const char *job;          /* name of the job; WEFT_JOB; default "weft" */
    const char *secret;       /* WEFT_SECRET, or the content of the file WEFT_SECRET_FILE; default none */
    int rank;                 /* WEFT_RANK; default -1: any free rank */
    uint64_t deadline_ms;     /* of every wait and operation, in ms; WEFT_DEADLINE_MS; default 300,000 */
    const char *lanes;        /* UCX transports, as in UCX_TLS; WEFT_TRANSPORT_LANES; default "tcp" */
    const char *devices;      /* network devices; WEFT_TRANSPORT_DEVICES; default "lo" */
};
/* weft_options_init() - set the size and the defaults. The function initialises the struct of release 0.1;
 * the macro of the same name initialises the whole struct. */
WEFT_API void weft_options_init(struct weft_options *options);
WEFT_API void weft_options_init_sized(struct weft_options *options, size_t size);
#define weft_options_init(options) weft_options_init_sized((options), sizeof(struct weft_options))

/* weft_init() - join the job. Blocks until all workers and shards have joined, at most options->deadline_ms.
 * After 2 s, and then every 10 s, it logs the missing members or why the coordinator is out of reach. options
 * may be NULL. Under a launcher, sessions that two threads open at the same time need job names of their own.
 * Return codes: WEFT_OK. On any error *session_out is unchanged; weft_error_text(NULL) has the sentence, per
 * thread. */
WEFT_API enum weft_status weft_init(const struct weft_options *options, struct weft_session **session_out);

/* weft_finalize() - leave the job and free the session with its tensors, groups and memory. Open requests
 * complete with WEFT_ERR_CLOSED. NULL does nothing. Blocks at most 5 s, but on a rank 0 that runs the job's
 * coordinator until the other ranks have left, at most options->deadline_ms. Ranks that leave together
 * compare their last rooted operations, sends and recvs, for at most 2 s. Return codes: WEFT_OK;
 * WEFT_ERR_MISMATCH: the ranks made different calls, weft_error_text(NULL) names them. The session is freed
 * in both cases. */
WEFT_API enum weft_status weft_finalize(struct weft_session *session);

/* weft_rank(), weft_ranks() - this rank, 0 .. ranks-1, and the number of workers. 0 for NULL. Any thread.
 * weft_shards() - the number of shards; 0: all-reduce only. Any thread. */
WEFT_API uint32_t weft_rank(const struct weft_session *session);
WEFT_API uint32_t weft_ranks(const struct weft_session *session);
WEFT_API uint32_t weft_shards(const struct weft_session *session);

/* weft_error_text() - the sentence of the session's last error; "" if there was none. NULL: the last error of
 * weft_init, weft_finalize or a call without a session, on this thread. The text is valid until this thread
 * calls weft_error_text again. Any thread. */
WEFT_API const char *weft_error_text(const struct weft_session *session);

/* weft_abort() - end the job: all waits on all ranks end with WEFT_ERR_ABORTED and `text`. Does not block.
 * Any thread. Return codes: WEFT_OK, or the status of a session that has ended before. */
WEFT_API enum weft_status weft_abort(struct weft_session *session, const char *text);

/* ---- 2. Tensors and steps ------------------------------------------------------------------------------ */

enum weft_mode {
    WEFT_MODE_SERVER = 1,     /* pushed to the shards; dense: the optimiser runs there, and weights return */
    WEFT_MODE_ALL_REDUCE = 2, /* reduced among the workers; the optimiser runs on each worker */
};

struct weft_tensor; /* opaque; owned by the session */

struct weft_tensor_options {
    size_t size;             /* sizeof(struct weft_tensor_options), set by weft_tensor_options_init */
    const char *name;        /* unique in the job, 1 to 255 bytes, no control characters; required */
    uint32_t dim_count;      /* 1 to 8 */
    uint64_t dims[8];        /* row-major shape, in elements; the product is at most 2^32 */
    enum weft_dtype dtype;   /* of gradients, results and weights: WEFT_F32 (default), _F16, _BF16, _I64. All
                              * but _F32 are dense. Server mode: _F16 and _BF16 with consistency bsp; the
                              * shards sum, update and keep the weights in f32 and round what they send to
                              * nearest even. All-reduce mode: all but _F32 without an optimiser */
    enum weft_mode mode;     /* default: _SERVER if the job has shards, else _ALL_REDUCE */
    const char *codec;       /* default: the job's option client.codec, else "dense". "f16", "bf16", "int8",
                              * "int4", "e4m3", "e5m2", "sign", "powersgd:rank=4", "topk:ratio=0.01",
                              * "randomk:ratio=0.01"; "auto": the library chooses (weft_choice_get) */
    const char *optimizer;   /* default "none", the mean; "sum", the sum of the gradients;
                              * "sgd:momentum=0.9,weight_decay=1e-4,nesterov=1", "adam",
                              * "adamw:beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01", "adagrad",
                              * "ftrl:beta=1,l1=0,l2=0", and with one chunk per tensor
                              * "lamb:beta1=0.9,beta2=0.999,eps=1e-6,weight_decay=0.01". The bias correction
                              * of adam, adamw and lamb counts the steps of the job, not those of the tensor:
                              * declare such tensors before the first step */
    uint64_t chunk_bytes;    /* bytes of f32 in one chunk of a shard, 1 KiB to 64 GiB, for dense tensors and
                              * codecs that work in blocks; default 0: 256 KiB, more from 4 GiB on */
    bool skip_nonfinite;     /* dense: skip the step if the mean is NaN or infinite; always with a codec.
                              * Equal on all ranks. Not in server mode of an elastic job. Default: the option
                              * client.skip_nonfinite, "no" */
    int32_t priority;        /* all-reduce mode: of several tensors that are ready, the one with the highest
                              * priority is reduced first; of equal ones the one that the next forward pass
                              * needs first, learned from the first steps, and before that the first declared
                              * (client.learn_order). Default 0. Equal on all ranks */
    bool alone;              /* never travels with other small tensors. Equal on all ranks */
    uint32_t group;          /* parameter group, an index of weft_step_options.group_lr; default 0. Equal on
                              * all ranks */
    const char *consistency; /* server mode, dense, with an optimiser, not in elastic jobs. Default "bsp": a
                              * step closes when all ranks have pushed, and all get the same weights. "ssp:S":
                              * each push is applied as it arrives, and a rank gets weights when no other rank
                              * is over S pushes of the tensor behind. "asp": at once. ssp and asp are not
                              * deterministic (docs/consistency.md). Equal on all ranks */
    enum weft_dtype pull_dtype; /* server mode, dense, consistency bsp, dtype _F32: WEFT_F16 or _BF16: the
                              * shards send results in it, rounded to nearest even, half the bytes; the
                              * library widens them into the caller's f32. The shards' weights stay f32.
                              * Default 0: no rounding. Equal on all ranks */
};
/* weft_tensor_options_init() - set the size and the defaults; function and macro as for weft_options_init. */
WEFT_API void weft_tensor_options_init(struct weft_tensor_options *options);
WEFT_API void weft_tensor_options_init_sized(struct weft_tensor_options *options, size_t size);
#define weft_tensor_options_init(options) \
    weft_tensor_options_init_sized((options), sizeof(struct weft_tensor_options))

/* weft_declare() - make a tensor. Collective: all workers declare the same tensors in the same order, outside
 * a step. The options are copied. Blocks until all have declared it. Return codes: WEFT_OK; WEFT_ERR_INVALID,
 * _UNSUPPORTED, _EXISTS (the name), _NO_MEMORY, _VERSION (a member of an earlier release does not support an
 * option; docs/fleet.md): nothing was sent; WEFT_ERR_PEER_LOST: in an elastic job whose membership ends
 * nothing was sent, call weft_shrink and then weft_declare again; during the call it ends the session;
 * WEFT_ERR_MISMATCH: names rank and field, ends the session. */
WEFT_API enum weft_status weft_declare(struct weft_session *session,
                                       const struct weft_tensor_options *options,
                                       struct weft_tensor **tensor_out);

/* weft_tensor_init() - set the first weights: rank 0's `weights` (elems,), in host memory, reach the shards
 * and every rank's buffer. Call it once, before the first step; weft_push_pull with an optimiser requires it.
 * Collective; blocks. Return codes: WEFT_OK; WEFT_ERR_STATE: in a step, or the tensor has weights. Elastic
 * jobs with shards: docs/elastic.md. */
WEFT_API enum weft_status weft_tensor_init(struct weft_tensor *tensor, void *weights);

/* weft_tensor_free() - free the tensor on all ranks and shards: memory, residual, optimiser arrays.
 * Collective, between steps, with no request of it open; blocks until all have called. The name may be
 * declared again. A job declares at most 65,536 tensors in all. On an error the tensor is unchanged. Return
 * codes: WEFT_OK: `tensor` is invalid; WEFT_ERR_BUSY: its request is open; WEFT_ERR_STATE: in a step or a
 * group of calls, or a rank rests in weft_join; WEFT_ERR_MISMATCH: ranks named different tensors;
 * WEFT_ERR_PEER_LOST: elastic job, no rank has freed it: call weft_shrink, then this call again
 * (docs/elastic.md); WEFT_ERR_VERSION: a member is of an older release. */
WEFT_API enum weft_status weft_tensor_free(struct weft_tensor *tensor);

struct weft_step {
    uint64_t step;  /* 1, 2, 3 ...: one more than the last step; equal on all ranks */
    float lr;       /* learning rate; equal on all ranks */
    float weight;   /* sample weight of this rank: 0, or 2^-100 to 2^100; the mean of the gradients is
                     * sum(weight*grad) / sum(weight). If it is 0 on all ranks, they skip the step */
};
/* weft_step_begin() - open a step. Blocks only to choose codecs ("auto"), to agree after a loss, and to
 * complete the delivery of the last step (weft_tensor_wait), whose error it then returns. Return codes:
 * WEFT_OK; WEFT_ERR_INVALID: step, lr or weight is out of range; WEFT_ERR_STATE: a step is open;
 * WEFT_ERR_SHRUNK, _GREW: section 10, no step is open. Another step or lr on another rank ends the session
 * with WEFT_ERR_MISMATCH. */
WEFT_API enum weft_status weft_step_begin(struct weft_session *session, const struct weft_step *step);
/* weft_step_begin_with() - the same call with a struct that can grow. A field that is 0 takes its default;
 * step and weight have none: weft_step_begin_with(session, WEFT_STEP(.step = 1, .lr = 0.1f, .weight = 1)).
 * The arrays are read in the call. All fields but weight, skip and norm_out are equal on all ranks; if
 * tensors are in all-reduce mode, a difference ends the session with WEFT_ERR_MISMATCH. Further return codes:
 * WEFT_ERR_INVALID: a field is out of range; WEFT_ERR_UNSUPPORTED: skip, and no tensor is declared, or one
 * of an elastic job is in server mode. weft_push_pull, weft_push and weft_push_none return WEFT_ERR_INVALID
 * for a tensor with an optimiser whose group is not below group_count; and WEFT_ERR_UNSUPPORTED with
 * clip_norm for weights on a device, and for a tensor in server mode with a codec, with weft_push, with
 * consistency ssp or asp, or in an elastic job; in all-reduce mode for another dtype than f32 with
 * loss_scale; and WEFT_ERR_VERSION in server mode with clip_norm or group_weight_decay, if a member is of an
 * earlier release without them. */
struct weft_step_options {
    size_t size;                     /* sizeof(struct weft_step_options), set by WEFT_STEP */
    uint64_t step;                   /* these three as in struct weft_step */
    float lr;
    float weight;
    uint32_t group_count;            /* number of parameter groups; default 0: every tensor takes lr */
    float loss_scale;                /* the gradients are those of loss * loss_scale; means, updates and
                                      * residuals are unscaled. A power of two, 2^-60 to 2^60; default 1 */
    const float *group_lr;           /* (group_count,): learning rate of the tensors of each group */
    const float *group_weight_decay; /* (group_count,), >= 0: replaces weight_decay of their optimiser;
                                      * default NULL: their own */
    double *norm_out;                /* receives, in weft_step_end, the norm that clip_norm limits; valid
                                      * until then; default NULL */
    float clip_norm;                 /* > 0: weft_step_end multiplies the means of all tensors with an
                                      * optimiser by min(1, clip_norm / (norm + 1e-6)), then updates; norm: of
                                      * all these means together. weft_wait then precedes the update: `out`
                                      * holds the new weights from weft_step_end on. Default 0: no limit, the
                                      * updates do not wait. INFINITY: norm_out alone */
    bool skip;                       /* this rank has no usable gradient: all ranks skip the step, and
                                      * weft_step_end returns WEFT_ERR_SKIPPED. The rank still pushes the same
                                      * tensors, at least one, or calls weft_push_none */
    bool deliver_late; /* results of tensors may arrive after weft_step_end; see weft_tensor_wait. Equal on
                        * all ranks. Default: false */
};
#define WEFT_STEP(...) (&(struct weft_step_options){.size = sizeof(struct weft_step_options), __VA_ARGS__})
WEFT_API enum weft_status weft_step_begin_with(struct weft_session *session,
                                               const struct weft_step_options *options);

/* weft_step_end() - wait for all requests of the step, commit the residuals, compare that all ranks did the
 * same step. With deliver_late most of it is done later (weft_tensor_wait). Blocks. On an error the codecs
 * return to their state before the step. Return codes:
 *   WEFT_OK            the step is complete
 *   WEFT_ERR_SKIPPED   on all ranks: a gradient or mean of a tensor with a codec or skip_nonfinite is NaN or
 *                      infinite (powersgd, topk: 2^120 or above), or all sample weights are 0. The text names
 *                      tensor and rank; weft_wait of that tensor returns it too, and so does that of
 *                      tensors that share its operation (powersgd in a group of calls). Weights, optimiser
 *                      arrays and residuals have their bits of before the step; other outputs are undefined
 *   WEFT_ERR_SHRUNK, WEFT_ERR_GREW   elastic job, section 10
 *   WEFT_ERR_MISMATCH  a rank pushed a tensor that another did not (see weft_push_none). Ends the session
 *   WEFT_ERR_DIVERGED  weights differ between ranks; compared every client.hash_every steps
 *                      (default 50). The buffer of the last push_pull must still be valid. Ends the session
 *   WEFT_ERR_INVALID   the step must be skipped, and an update cannot be undone: weights on a device, or at
 *                      the shards of an elastic job. Ends the session
 * If a tensor can be skipped, push_pull of every other tensor with an optimiser copies its weights and
 * arrays, and `out` must stay valid until weft_step_end returns. */
WEFT_API enum weft_status weft_step_end(struct weft_session *session);

/* weft_step_next() - the number that the next weft_step_begin takes; inside a step, the number of that
 * step. */
WEFT_API uint64_t weft_step_next(const struct weft_session *session);

/* A handle in the caller's memory; no call allocates one. Zero it before its first use: struct weft_request
 * request = {{0}}; its memory must stay valid until weft_wait or weft_test has returned the final status. */
struct weft_request {
    uint64_t opaque[40];
};

/* weft_push_pull() - start one round of a tensor: contribute grad (elems,), receive out (elems,). Once in a
 * step.
 *   optimizer "none"    out receives the weighted mean of the gradients; out may be grad
 *   optimizer "sum"     out receives the weighted sum; out may be grad
 *   with an optimiser   out receives the new weights. In all-reduce mode and with a codec the library updates
 *                       out in place: it must hold the weights of the last step, and out == grad is
 *                       WEFT_ERR_INVALID
 * Any other overlap is WEFT_ERR_INVALID. Ranks may push in different orders: in all-reduce mode the most
 * urgent tensor that all have pushed is reduced next (priority of struct weft_tensor_options), and small ones
 * travel together (docs/overlap-order.md). Between two other operations of all ranks, all push the same
 * tensors; else WEFT_ERR_MISMATCH. Does not block. Return codes: WEFT_IN_PROGRESS; WEFT_ERR_STATE:
 * outside a step, twice in a step, without weights, or the tensor's last request is open. */
WEFT_API enum weft_status weft_push_pull(struct weft_tensor *tensor, const void *grad, void *out,
                                         struct weft_request *request);

/* weft_push_none() - contribute zeros, for a tensor that this rank did not use in the step. The step's weight
 * still counts, and the optimiser runs. With an optimiser the new weights are written to the last weights
 * buffer of the tensor (weft_tensor_init, weft_tensor_share, weft_push_pull), which must be valid host
 * memory; else the result is dropped. Does not block; weft_step_end waits for it. Return codes: WEFT_OK; else
 * as weft_push_pull; WEFT_ERR_UNSUPPORTED: with an optimiser on a device. */
WEFT_API enum weft_status weft_push_none(struct weft_tensor *tensor);

/* weft_push(), weft_pull() - the halves of push_pull, for dense tensors in server mode. weft_push contributes
 * grad (elems,) inside a step, and completes when the shards hold it. weft_pull receives in out (elems,) the
 * result of this rank's last push of the tensor, after all ranks have pushed that step; before the first
 * push, the initial weights. Do not block. Return codes: WEFT_IN_PROGRESS; WEFT_ERR_UNSUPPORTED: another mode
 * or codec; WEFT_ERR_STATE. */
WEFT_API enum weft_status weft_push(struct weft_tensor *tensor, const void *grad,
                                    struct weft_request *request);
WEFT_API enum weft_status weft_pull(struct weft_tensor *tensor, void *out, struct weft_request *request);

struct weft_choice {
    size_t size;             /* sizeof(struct weft_choice), set by the caller */
    char codec[256];         /* codec in use; also of a tensor whose codec was given */
    uint32_t candidates;     /* number of candidates; 0: the codec was given */
    uint32_t changes;        /* changes since the tensor was declared; it began dense */
    uint64_t since_step;     /* first step of the codec in use; 0: from the start */
    uint64_t coded_steps;    /* steps in which the codec was not dense */
    int64_t saved_bytes;     /* bytes that this rank did not send, against dense */
    int64_t saved_ns;        /* estimated ns of exchanges saved, against dense, nothing overlapped */
};
/* weft_choice_get() - the codec in use. The library chooses the codec of a tensor declared with one of
 *   "auto"                dense or bf16, by the estimated time of a step
 *   "auto:topk,powersgd"  dense or one of the listed codecs, with options as in their own specs, most wanted
 *                         first
 *   "auto:lossy"          dense, bf16, int8 or powersgd:rank=4
 * The first weft_step_begin measures codecs and links together with all ranks, and blocks for that. Later
 * rank 0 reviews the choice every few steps; a change takes effect on all ranks in the same step, and the
 * residual of the old codec enters the next gradient. In server mode the workers then hold the optimiser
 * arrays, and push and pull are unsupported. Rank 0 logs changes at level info. Does not block. Return codes:
 * WEFT_OK; WEFT_ERR_INVALID. */
WEFT_API enum weft_status weft_choice_get(struct weft_tensor *tensor, struct weft_choice *choice_out);

/* weft_tensor_wait() - block until the last operation of the tensor is done (push_pull, push_none, push,
 * pull): its result is in memory. timeout_ms as in weft_wait. Its request need not be waited for, and may be
 * used again afterwards. Needed for steps with deliver_late, and usable in any other:
 *
 *     forward of each layer, after weft_tensor_wait of its tensors    the last step's results arrive
 *     weft_step_begin_with(session, WEFT_STEP(.step = n, .lr = lr, .weight = 1, .deliver_late = true))
 *     backward of each layer, then weft_push_pull of its tensors
 *     weft_step_end                                                   waits for calls of section 4 only
 *
 * From weft_push_pull until weft_tensor_wait has returned, in this step or after it: the caller does not
 * write grad, and neither reads nor writes out. From then until the delivery is complete: it may read out,
 * does not write it, and keeps it valid. The delivery of a step is complete when the next weft_step_begin has
 * returned, or weft_step_wait, weft_shrink, weft_join, weft_declare, or any call of a tensor that belongs
 * between steps (init, share, free, residual, state). Each of these first does what weft_step_end does
 * without deliver_late: it waits, agrees with the other ranks, and commits or abandons the step. If that
 * fails, the call does nothing else and returns the error of weft_step_end. After WEFT_ERR_SKIPPED, _SHRUNK
 * and _GREW the weights are those of before the step: repeat the forward pass, too. weft_finalize waits for
 * results, at most 5 s: grad and out stay valid until it returns.
 *
 * Return codes: WEFT_OK, also if the tensor had no operation; its error, WEFT_ERR_SKIPPED and _PEER_LOST
 * (elastic job) included: call weft_step_begin, or weft_step_wait, which returns the fate of the step;
 * WEFT_ERR_DEADLINE: it goes on, the text names what it waits for; WEFT_ERR_STATE: its group of calls is
 * still open. */
WEFT_API enum weft_status weft_tensor_wait(struct weft_tensor *tensor, uint64_t timeout_ms);

/* weft_step_wait() - complete the delivery of the last step, for a trainer that needs all weights, such as
 * before an evaluation. Blocks; at most the session's deadline. Does nothing if no delivery is open. Return
 * codes: as weft_step_end; WEFT_ERR_STATE: a step is open. */
WEFT_API enum weft_status weft_step_wait(struct weft_session *session);

/* ---- 3. Requests --------------------------------------------------------------------------------------- */

/* weft_wait() - block until the request completes. timeout_ms 0: the session's deadline. Any thread: several
 * threads may wait, each for its own request, while another thread makes calls. When any call but weft_test
 * has returned the error that ended the session, all requests have completed (this takes up to 1.3 s) and
 * their memory is the caller's. Return codes: the final status; WEFT_OK for a request that was not started;
 * WEFT_ERR_DEADLINE: the operation goes on, the text names what it waits for; WEFT_ERR_STATE: its group of
 * calls is still open. */
WEFT_API enum weft_status weft_wait(struct weft_request *request, uint64_t timeout_ms);
/* weft_test() - the final status, or WEFT_IN_PROGRESS. Never blocks. Any thread. If no other thread owns the
 * engine, it runs one of its steps, so that an operation advances while the caller computes and tests. */
WEFT_API enum weft_status weft_test(struct weft_request *request);

/* weft_wait_all() - block until all of requests (count,) have completed; NULL and unstarted entries are
 * ignored. timeout_ms as in weft_wait, for all together. Any thread. Return codes: WEFT_OK; the error of the
 * first failed entry; WEFT_ERR_DEADLINE: some go on, the text names one. */
WEFT_API enum weft_status weft_wait_all(struct weft_request *const *requests, size_t count,
                                        uint64_t timeout_ms);
/* weft_wait_any() - block until one of requests (count,), all of one session, has completed; NULL and
 * unstarted entries are ignored. *index_out is its index. Set the entry to NULL before the next call. Any
 * thread. Return codes: the status of that request; WEFT_OK and index SIZE_MAX: nothing is started;
 * WEFT_ERR_DEADLINE and SIZE_MAX: all go on. */
WEFT_API enum weft_status weft_wait_any(struct weft_request *const *requests, size_t count,
                                        uint64_t timeout_ms, size_t *index_out);

/* weft_event_fd() - a descriptor for poll or epoll: readable if a request of the session has completed since
 * the last weft_event_clear. Requests of blocking calls count too. The first call makes it, readable; later
 * calls return the same one. The session owns it: do not close, read or write it, and do not use it in a
 * forked child. After the first call the session makes progress without a waiting thread. Does not block.
 * Return codes: WEFT_OK; WEFT_ERR_LIMIT: no descriptor is left. */
WEFT_API enum weft_status weft_event_fd(struct weft_session *session, int *fd_out);
/* weft_event_clear() - make the descriptor unreadable until the next completion. Call it first and weft_test
 * all open requests afterwards: no completion is missed. Never blocks. Any thread. Return codes: WEFT_OK;
 * WEFT_ERR_STATE: weft_event_fd was not called. */
WEFT_API enum weft_status weft_event_clear(struct weft_session *session);

/* weft_cancel() - end an open request before its operation has begun on any rank. It completes with
 * WEFT_ERR_CANCELLED.
 *   a call inside weft_group_start      leaves the group. All ranks cancel the same calls before
 *                                       weft_group_end
 *   a recv whose send has not arrived   its send matches the next recv from that rank. Only this rank cancels
 *   any other request                   WEFT_ERR_BUSY, nothing changes
 * Blocks for the engine, at most 1 s. Another thread may wait for the request. Return codes: WEFT_OK;
 * WEFT_ERR_BUSY; WEFT_ERR_STATE: the request is not open, weft_test has its status. */
WEFT_API enum weft_status weft_cancel(struct weft_request *request);

/* ---- 4. Collectives on plain buffers ------------------------------------------------------------------- */

/* All ranks call the same operations in the same order, with the same count, dtype and op; else the session
 * ends with WEFT_ERR_MISMATCH. A call does not block. It may poll for the other ranks for some microseconds,
 * and may have completed when it returns. `count` is in elements.
 *
 * Return codes of all calls of this section: WEFT_IN_PROGRESS: wait for the request; WEFT_ERR_INVALID,
 * _UNSUPPORTED, _STATE, _BUSY (the request is open): nothing was started.
 *
 * In place: in == out. Where one buffer holds the pieces of all ranks, in place is this rank's piece of it:
 * all_gather, gather at the root: in == out + rank*count; reduce_scatter, scatter at the root: out == in +
 * rank*count. Any other overlap is WEFT_ERR_INVALID. Every rank gets the same bits, in every run
 * (docs/collectives.md).
 *
 *   dtype                                    element
 *   WEFT_F32, WEFT_F64                       float, double
 *   WEFT_F16, WEFT_BF16                      16-bit float, as uint16_t bits
 *   WEFT_F8_E4M3, WEFT_F8_E5M2               8-bit float, as uint8_t bits
 *   WEFT_I8, _U8, _I32, _U32, _I64, _U64     integer
 *
 *   op                             dtypes      result
 *   WEFT_SUM, WEFT_PROD            all         integers wrap
 *   WEFT_AVG                       all         the sum, times 1/ranks; integers: divided, rounded toward 0
 *   WEFT_MIN, WEFT_MAX             all         NaN if an input is NaN; -0 is below +0
 *   WEFT_AND, WEFT_OR, WEFT_XOR    integers    bit by bit
 *   WEFT_SCALED_SUM                floats      sum(factor*in); weft_all_reduce_scaled, weft_call.factor */

/* weft_all_reduce() - in, out (count,): every rank receives the reduction. */
WEFT_API enum weft_status weft_all_reduce(struct weft_session *session, const void *in, void *out,
                                          uint64_t count, enum weft_dtype dtype, enum weft_op op,
                                          struct weft_request *request);
/* weft_all_reduce_scaled() - sum(factor*in), for floats. Each rank has its own finite factor. A product is
 * rounded to dtype before the sum. */
WEFT_API enum weft_status weft_all_reduce_scaled(struct weft_session *session, const void *in, void *out,
                                                 uint64_t count, enum weft_dtype dtype, double factor,
                                                 struct weft_request *request);
/* weft_all_reduce_weighted() - sum(weight*in) / sum(weight), for floats; weight >= 0. The input of a rank
 * with weight 0 does not matter. If all weights are 0, the request completes with WEFT_ERR_INVALID on all
 * ranks, and the session stays usable. */
WEFT_API enum weft_status weft_all_reduce_weighted(struct weft_session *session, const void *in, void *out,
                                                   uint64_t count, enum weft_dtype dtype, double weight,
                                                   struct weft_request *request);
/* weft_reduce_scatter() - in (ranks*count,), out (count,): rank r receives the reduction of piece r. */
WEFT_API enum weft_status weft_reduce_scatter(struct weft_session *session, const void *in, void *out,
                                              uint64_t count, enum weft_dtype dtype, enum weft_op op,
                                              struct weft_request *request);
/* weft_all_gather() - in (count,), out (ranks*count,): the inputs of all ranks, in the order of ranks. */
WEFT_API enum weft_status weft_all_gather(struct weft_session *session, const void *in, void *out,
                                          uint64_t count, enum weft_dtype dtype,
                                          struct weft_request *request);
/* weft_broadcast() - buffer (count,): the root's content reaches every rank. The root may complete before the
 * other ranks have called; weft_barrier waits for them. */
WEFT_API enum weft_status weft_broadcast(struct weft_session *session, void *buffer, uint64_t count,
                                         enum weft_dtype dtype, uint32_t root, struct weft_request *request);
/* weft_reduce() - in (count,); out (count,) at the root, ignored elsewhere. Ranks other than the root may
 * complete before the rest have called. */
WEFT_API enum weft_status weft_reduce(struct weft_session *session, const void *in, void *out, uint64_t count,
                                      enum weft_dtype dtype, enum weft_op op, uint32_t root,
                                      struct weft_request *request);
/* weft_gather() - in (count,); out (ranks*count,) at the root, ignored elsewhere. Completion as in
 * weft_reduce. */
WEFT_API enum weft_status weft_gather(struct weft_session *session, const void *in, void *out, uint64_t count,
                                      enum weft_dtype dtype, uint32_t root, struct weft_request *request);
/* weft_scatter() - in (ranks*count,) at the root, ignored elsewhere; out (count,): rank r receives piece r.
 * Completion as in weft_broadcast. */
WEFT_API enum weft_status weft_scatter(struct weft_session *session, const void *in, void *out,
                                       uint64_t count, enum weft_dtype dtype, uint32_t root,
                                       struct weft_request *request);
/* weft_all_to_all() - in, out (ranks*count,): piece i of in reaches rank i, as piece `rank` of its out. In
 * place copies in first. */
WEFT_API enum weft_status weft_all_to_all(struct weft_session *session, const void *in, void *out,
                                          uint64_t count, enum weft_dtype dtype,
                                          struct weft_request *request);
/* weft_barrier() - completes after all ranks have called it. */
WEFT_API enum weft_status weft_barrier(struct weft_session *session, struct weft_request *request);

/* The _v calls take pieces of unequal lengths, stored one after the other. counts (ranks,) in elements is
 * borrowed until the request completes.
 *   reduce_scatter_v, all_gather_v   counts equal on all ranks; this rank's piece has counts[rank] elements
 *   gather_v, scatter_v              counts at the root, ignored elsewhere; `count` of the own piece at the
 *                                    others
 *   all_to_all_v                     counts_in[r] elements go to rank r, counts_out[r] elements arrive from
 *                                    it
 * Counts of two ranks that disagree end the session with WEFT_ERR_MISMATCH. */
WEFT_API enum weft_status weft_reduce_scatter_v(struct weft_session *session, const void *in, void *out,
                                                const uint64_t *counts, enum weft_dtype dtype,
                                                enum weft_op op, struct weft_request *request);
WEFT_API enum weft_status weft_all_gather_v(struct weft_session *session, const void *in, void *out,
                                            const uint64_t *counts, enum weft_dtype dtype,
                                            struct weft_request *request);
WEFT_API enum weft_status weft_gather_v(struct weft_session *session, const void *in, void *out,
                                        uint64_t count, const uint64_t *counts, enum weft_dtype dtype,
                                        uint32_t root, struct weft_request *request);
WEFT_API enum weft_status weft_scatter_v(struct weft_session *session, const void *in, void *out,
                                         uint64_t count, const uint64_t *counts, enum weft_dtype dtype,
                                         uint32_t root, struct weft_request *request);
WEFT_API enum weft_status weft_all_to_all_v(struct weft_session *session, const void *in,
                                            const uint64_t *counts_in, void *out, const uint64_t *counts_out,
                                            enum weft_dtype dtype, struct weft_request *request);

/* weft_send(), weft_recv() - buffer (count,) between two ranks. The n-th send to a rank matches that rank's
 * n-th recv from this one; count and dtype must be equal. Other operations may lie in between, in any order.
 * A send may complete before the receiver has called. If the sender then leaves the job, the recv can end
 * with WEFT_ERR_PEER_LOST: call a barrier after the last sends. */
WEFT_API enum weft_status weft_send(struct weft_session *session, const void *buffer, uint64_t count,
                                    enum weft_dtype dtype, uint32_t to, struct weft_request *request);
WEFT_API enum weft_status weft_recv(struct weft_session *session, void *buffer, uint64_t count,
                                    enum weft_dtype dtype, uint32_t from, struct weft_request *request);

/* ---- 5. Calls in a struct, persistent requests, groups of calls ---------------------------------------- */

enum weft_call_kind {
    WEFT_CALL_ALL_REDUCE = 1,
    WEFT_CALL_REDUCE_SCATTER = 2,
    WEFT_CALL_ALL_GATHER = 3,
    WEFT_CALL_BROADCAST = 4,   /* `out` is the buffer */
    WEFT_CALL_BARRIER = 5,
    WEFT_CALL_REDUCE = 7,
    WEFT_CALL_GATHER = 8,
    WEFT_CALL_SCATTER = 9,
    WEFT_CALL_ALL_TO_ALL = 10,
    WEFT_CALL_SEND = 11,
    WEFT_CALL_RECV = 12,
};

struct weft_comm; /* a group of ranks, section 6 */

/* An operation of section 4 with the fields that the short calls leave out. A field that is 0 is absent, or
 * takes its default. */
struct weft_call {
    size_t size;                         /* sizeof(struct weft_call), set by WEFT_CALL */
    enum weft_call_kind kind;
    struct weft_comm *comm;              /* NULL: all ranks of the job; root and pieces use its ranks */
    const void *in;                      /* as in the calls of section 4 */
    void *out;
    uint64_t count;                      /* elements */
    const uint64_t *counts, *counts_out; /* (ranks,) pieces of unequal lengths; counts_out: all_to_all only */
    enum weft_dtype dtype;
    enum weft_op op;                     /* default WEFT_SUM */
    double factor;                       /* of WEFT_SCALED_SUM; finite */
    uint32_t root;                       /* send, recv: the other rank */
    bool unequal;                        /* gather, scatter with counts at the root: all ranks set it */
    bool preserve_input;                 /* all_reduce in place in a step of an elastic job, in host memory:
                                          * the call copies the input, a discarded step restores it */
    bool reproducible;                   /* sums: the same bits for every count, plan and transport */
    uint64_t deadline_ms;                /* of this operation, in ms; default and maximum: the session's */
    /* Called once, when the operation has ended and before weft_wait and weft_test return its status. It runs
     * on the engine thread or on a thread that waits in this session. It must not block. Of weft it may call
     * weft_test, weft_abort and weft_error_text only. */
    void (*completed)(void *context, enum weft_status status);
    void *context;                       /* first argument of completed */
    /* Where in and out are. WEFT_MEMORY_CUDA: both on one CUDA device. The operation follows the work queued
     * on stream before the call; work queued after the request has completed follows the result. A host that
     * reads the result synchronises with the stream (docs/gpu.md). */
    enum weft_memory_kind memory;
    void *stream;                        /* a cudaStream_t; NULL: the default stream of that device */
    bool weighted;                       /* weight the AVG of a reduction; all ranks set it */
    double weight;                       /* this rank's, >= 0; as in weft_all_reduce_weighted */
    /* Of memory _CUDA, outside a group of calls: `stream` itself waits for the result. Work queued after the
     * call follows the result, and the caller need not wait before it queues more. If the operation fails,
     * the stream continues with undefined output, the session has ended, and later calls return the reason.
     * Ranks make such calls in one order, also those of different groups. If the driver cannot do it, the
     * call blocks until the result follows in the stream, at most the session's deadline. */
    bool on_stream;
};
#define WEFT_CALL(...) (&(struct weft_call){.size = sizeof(struct weft_call), __VA_ARGS__})

/* weft_call_start() - start the operation. The struct is read before the call returns; what it points to is
 * borrowed until the request completes. Does not block. Return codes: as in section 4. In C:
 * @code
 *     status = weft_call_start(session, WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = grad, .out = grad,
 *                                                 .count = 4096, .dtype = WEFT_F32, .op = WEFT_AVG),
 *                              &request);
 * @endcode */
WEFT_API enum weft_status weft_call_start(struct weft_session *session, const struct weft_call *call,
                                          struct weft_request *request);

/* weft_call_init() - make a persistent request: the call is validated once, and weft_start starts it as often
 * as needed on the same buffers. All ranks make and start them in the same order as other calls. Does not
 * block and starts nothing. Return codes: WEFT_OK; else as weft_call_start. */
WEFT_API enum weft_status weft_call_init(struct weft_session *session, const struct weft_call *call,
                                         struct weft_request *request);
/* weft_start() - start a persistent request. Does not block and does not allocate. Return codes:
 * WEFT_IN_PROGRESS; WEFT_ERR_BUSY: it is open; WEFT_ERR_STATE: weft_call_init did not make it. */
WEFT_API enum weft_status weft_start(struct weft_request *request);
/* weft_start_all() - start requests (count,) of one session as one group of calls. Return codes: as
 * weft_group_end, or the first error of weft_start; the requests before it are started. */
WEFT_API enum weft_status weft_start_all(struct weft_request *requests, size_t count);
/* weft_request_free() - zero a request that is not open. The memory stays the caller's. Return codes:
 * WEFT_OK; WEFT_ERR_BUSY: it is open. */
WEFT_API enum weft_status weft_request_free(struct weft_request *request);

/* weft_group_start() - gather the calls of sections 4 and 5 until weft_group_end, which starts them together.
 * No call waits for another of the group. all_reduces of up to 64 KiB with equal dtype, op and group of ranks
 * travel as one operation. Each call keeps its request. All ranks make the same calls in the same order; else
 * WEFT_ERR_MISMATCH. A refused call returns its error at once and is not in the group. Pairs nest: the
 * outermost counts. Inside the pair weft_wait of a gathered call and blocking collective calls return
 * WEFT_ERR_STATE. push_pull is not gathered, except for tensors in all-reduce mode with codec powersgd: those
 * of equal shape and codec go as one operation, up to 32, in any order of the pushes. Does not block. Return
 * codes: WEFT_OK. */
WEFT_API enum weft_status weft_group_start(struct weft_session *session);
/* weft_group_end() - start the gathered calls. Does not block. Return codes: WEFT_IN_PROGRESS; WEFT_OK: no
 * calls were gathered, or an outer group is open; WEFT_ERR_STATE: no group is open. */
WEFT_API enum weft_status weft_group_end(struct weft_session *session);

/* ---- 6. Groups of ranks -------------------------------------------------------------------------------- */

/* A group has ranks 0 .. n-1 and runs any operation (weft_call.comm), independent of other groups. A failed
 * operation ends the session. To make a group blocks. weft_split and meshes are collective over the parent:
 * all its ranks call in the same order, and either all ranks succeed or all get an error. weft_comm_create
 * is collective over the members of the new group only. Groups end with the session. */

/* weft_split() - partition `parent` (NULL: all ranks): the ranks of one colour form a group, ordered by key,
 * then by rank in parent. colour < 0: no group, *comm_out is NULL. Collective, blocks. Return codes: WEFT_OK;
 * WEFT_ERR_STATE: a group of calls is open; WEFT_ERR_LIMIT: no group id is left. */
WEFT_API enum weft_status weft_split(struct weft_session *session, struct weft_comm *parent, int colour,
                                     int key, struct weft_comm **comm_out);
/* weft_comm_create() - make a group of `ranks` (count,): ranks of the job in the group's order, each once,
 * this rank among them. Only the members call, all with the same ranks and tag; the other ranks of the job
 * take no part. Ranks make the groups that they share in the same order; a tag that differs then shows which
 * calls met. Blocks until all members have called, at most the session's deadline. Ends the session:
 * WEFT_ERR_DEADLINE names the members that have not called; WEFT_ERR_MISMATCH: a member waits in a call with
 * other ranks or another tag. Return codes: WEFT_OK; WEFT_ERR_INVALID: the list, nothing was sent;
 * WEFT_ERR_STATE: a group of calls is open; WEFT_ERR_LIMIT, on all members: no group id is left. */
WEFT_API enum weft_status weft_comm_create(struct weft_session *session, const uint32_t *ranks,
                                           uint32_t count, uint64_t tag, struct weft_comm **comm_out);
/* weft_comm_rank(), weft_comm_ranks() - this rank in the group, and the group's number of ranks. 0 for NULL.
 * Any thread.
 * weft_comm_id() - the id of the group: equal on its ranks, no other group of one of them has it. Printed by
 * `weft inspect`. Any thread.
 * weft_comm_member() - the rank in the job of the group's `rank`; UINT32_MAX: no such rank. Any thread. */
WEFT_API uint32_t weft_comm_rank(const struct weft_comm *comm);
WEFT_API uint32_t weft_comm_ranks(const struct weft_comm *comm);
WEFT_API uint32_t weft_comm_id(const struct weft_comm *comm);
WEFT_API uint32_t weft_comm_member(const struct weft_comm *comm, uint32_t rank);
/* weft_comm_free() - leave the group and free it. The other ranks need not call at the same time. Its
 * persistent requests must not be started again. Blocks for the engine only. Do not free a group of a mesh.
 * NULL does nothing. Return codes: WEFT_OK; WEFT_ERR_BUSY: operations of the group are open. */
WEFT_API enum weft_status weft_comm_free(struct weft_comm *comm);

/* A mesh is a grid of all ranks of the job with named axes, such as dp x tp x pp. The last axis varies
 * fastest: in dp=2 x tp=4 rank 6 has dp 1, tp 2. The group of an axis has the ranks that differ in that
 * coordinate only. */
struct weft_mesh;
struct weft_axis {
    const char *name; /* 1 to 15 bytes, no comma, no control characters */
    uint32_t size;    /* ranks along the axis; 0, for one axis: the remaining factor */
};
/* weft_mesh_create() - make a mesh of 1 to 8 axes and the groups of all axes. Collective over the job,
 * blocks. Return codes: WEFT_OK; WEFT_ERR_INVALID: the sizes do not give the number of ranks;
 * WEFT_ERR_MISMATCH: names the rank that described another mesh. */
WEFT_API enum weft_status weft_mesh_create(struct weft_session *session, const struct weft_axis *axes,
                                           uint32_t axis_count, struct weft_mesh **mesh_out);
/* weft_mesh_comm() - this rank's group along `axes`. One axis, "tp": does not block. Several, "dp,ep":
 * ordered by rank; the first call for a set of axes is collective over the job and blocks. The mesh owns the
 * group. Return codes: WEFT_OK; WEFT_ERR_INVALID: no such axis; WEFT_ERR_MISMATCH: ranks ask for different
 * sets. */
WEFT_API enum weft_status weft_mesh_comm(struct weft_mesh *mesh, const char *axes,
                                         struct weft_comm **comm_out);
/* weft_mesh_size() - ranks along an axis; 0: no such axis.
 * weft_mesh_coordinate() - the coordinate of a rank of the job on an axis; UINT32_MAX: no such rank or
 * axis.
 * weft_mesh_rank() - coordinates (axis_count,), in the order of the axes, to the rank; UINT32_MAX:
 * outside. */
WEFT_API uint32_t weft_mesh_size(const struct weft_mesh *mesh, const char *axis);
WEFT_API uint32_t weft_mesh_coordinate(const struct weft_mesh *mesh, const char *axis, uint32_t rank);
WEFT_API uint32_t weft_mesh_rank(const struct weft_mesh *mesh, const uint32_t *coordinates);
/* weft_mesh_free() - free the mesh and its groups. NULL does nothing. Return codes: as weft_comm_free. */
WEFT_API enum weft_status weft_mesh_free(struct weft_mesh *mesh);

/* ---- 7. Memory ----------------------------------------------------------------------------------------- */

/* weft_alloc() - zeroed memory (bytes,), 64-byte aligned, that peers on the same host can map: collectives
 * then copy from and to it directly. A forked child shares it with the parent. NULL: no memory is left. Any
 * thread.
 * weft_free() - return it; weft_finalize does too. In a session that has ended it may be called while other
 * requests are open: the memory then stays until weft_finalize. NULL does nothing. Any thread.
 * weft_disown() - let memory of weft_alloc outlive the session: weft_finalize leaves it, and weft_free(NULL,
 * memory) returns it at any time later. For language bindings, where views of the memory may outlive the
 * session. Any thread. Return codes: WEFT_OK; WEFT_ERR_INVALID: no session; WEFT_ERR_NOT_FOUND: not from
 * weft_alloc of this session; WEFT_ERR_FORKED. */
WEFT_API void *weft_alloc(struct weft_session *session, size_t bytes);
WEFT_API void weft_free(struct weft_session *session, void *memory);
WEFT_API enum weft_status weft_disown(struct weft_session *session, void *memory);

/* weft_register() - register (bytes,) of host memory with the transport's devices, so that the first
 * operation on it does not pay for that. The memory must be readable and writable, and mapped until
 * weft_unregister or weft_finalize. Local to this rank; gives no peer access. A no-op for tcp, shm, and
 * where unmapping cannot be detected. Blocks, at most the session's deadline. Return codes: WEFT_OK;
 * WEFT_ERR_EXISTS: this address is registered; WEFT_ERR_LIMIT, _NO_MEMORY: the locked-memory limit (ulimit
 * -l); WEFT_ERR_INVALID: empty, wraps, unmapped or read-only; WEFT_ERR_BUSY: the engine computes, call
 * again. */
WEFT_API enum weft_status weft_register(struct weft_session *session, void *memory, size_t bytes);
/* weft_unregister() - end the registration of the address given to weft_register, while no request on it
 * is open. Blocks as weft_register. Return codes: WEFT_OK, also in a session that has ended;
 * WEFT_ERR_NOT_FOUND. */
WEFT_API enum weft_status weft_unregister(struct weft_session *session, void *memory);

/* weft_tensor_memory() - where the buffers of the tensor's next push_pull, push and pull are; the default is
 * host memory. WEFT_MEMORY_CUDA: device memory, ordered by `stream` as weft_call.stream. Without an
 * optimiser most codecs run on the device; else the host works on a copy (docs/gpu.md).
 * weft_tensor_init takes host memory. Does not block. Return codes: WEFT_OK; WEFT_ERR_INVALID. */
WEFT_API enum weft_status weft_tensor_memory(struct weft_tensor *tensor, enum weft_memory_kind memory,
                                             void *stream);

/* weft_tensor_on_stream() - on_stream: on device memory, the stream of weft_tensor_memory itself waits for
 * the results of the tensor's next push_pull, push and pull, as with weft_call.on_stream. Work queued behind
 * the call follows the result, and no host thread waits. Ranks start such operations, and stream-ordered
 * calls, in one order. Outside groups of calls. weft_step_end still waits for the results, except in a step
 * with deliver_late. If the operation fails or its step is skipped, the stream continues with undefined
 * output; the status is that of the request, or of the step. Where the driver cannot make a stream wait, the
 * operation blocks. No effect on host memory. Does not block. Return codes: WEFT_OK; WEFT_ERR_INVALID. */
WEFT_API enum weft_status weft_tensor_on_stream(struct weft_tensor *tensor, bool on_stream);

/* weft_nccl_open() - from here on, all_reduces of all ranks on CUDA memory of `device`, this rank's, use NCCL
 * inside each host, and each rank moves only its slice to the other hosts (docs/gpu.md). Each such call then
 * has memory _CUDA on all ranks or on none. Small ones, other operations, and reductions that NCCL cannot do
 * with the promised bits go as before; weft_explain has the reason. Collective over the job, once, outside
 * groups of calls; blocks, at most the session's deadline. Return codes: WEFT_OK, also if NCCL is not used;
 * WEFT_ERR_UNSUPPORTED: it is not, and the option client.nccl is "yes"; WEFT_ERR_INVALID, _EXISTS. */
WEFT_API enum weft_status weft_nccl_open(struct weft_session *session, int device);

/* ---- 8. Checkpoints ------------------------------------------------------------------------------------ */

/* A checkpoint is the weights, the state of each tensor, saved by one rank, and the residual of each tensor,
 * saved by every rank. examples/03_checkpoint.c saves and loads one. A job then continues bit for bit, on
 * another number of shards or in the other mode too. On another number of ranks residuals are scaled so that
 * their mean is kept. To load: weft_declare, weft_tensor_init, weft_residual_load, weft_state_load,
 * weft_step_next. */

/* weft_residual_bytes() - size of the residual, between these two steps: the unsent part of the gradients,
 * momentum, warm start and counters of this rank's codec. A dense tensor has a header only. 0 for NULL, and
 * if an open delivery ends with an error.
 * weft_residual_save() - write it to out (bytes,), exactly weft_residual_bytes. Between steps, local, does
 * not block.
 * weft_residual_load() - restore it from data (bytes,). With another codec (all-reduce mode) the residual
 * enters the next gradient. A rank that has no file loads nothing. Between steps, local, does not block.
 * Return codes: WEFT_OK; WEFT_ERR_STATE: inside a step; WEFT_ERR_INVALID: `bytes` is wrong;
 * WEFT_ERR_MALFORMED: the data is damaged or of another tensor, nothing was changed. */
WEFT_API uint64_t weft_residual_bytes(const struct weft_tensor *tensor);
WEFT_API enum weft_status weft_residual_save(struct weft_tensor *tensor, void *out, uint64_t bytes);
WEFT_API enum weft_status weft_residual_load(struct weft_tensor *tensor, const void *data, uint64_t bytes);

/* weft_state_bytes() - size of the state, constant for a tensor: the optimiser arrays, the weights in f32 of
 * shards that send them as f16 or bf16, the residual of a shard (codec topk:global=1) and the number of the
 * last step. 0 for NULL.
 * weft_state_save() - write it to out (bytes,), exactly weft_state_bytes. One rank calls, between steps; all
 * ranks must have ended the last step or be about to. Blocks for the shards.
 * weft_state_load() - restore it from rank 0's data (bytes,); the other ranks may pass NULL and 0.
 * Collective, after weft_declare and before the first step; blocks until all ranks have it. weft_step_next
 * then returns the step after the saved one. If the tensor has no place for the shards' residual, it enters
 * the next gradients: call weft_residual_load first. Elastic jobs: WEFT_ERR_UNSUPPORTED. Return codes:
 * WEFT_OK; WEFT_ERR_STATE; WEFT_ERR_INVALID: `bytes` is wrong; WEFT_ERR_MALFORMED, on all ranks: damaged, or
 * of another optimiser, nothing was changed; WEFT_ERR_VERSION: a shard or the coordinator is of an older
 * release. An error while the state is installed ends the session. */
WEFT_API uint64_t weft_state_bytes(const struct weft_tensor *tensor);
WEFT_API enum weft_status weft_state_save(struct weft_tensor *tensor, void *out, uint64_t bytes);
WEFT_API enum weft_status weft_state_load(struct weft_tensor *tensor, const void *data, uint64_t bytes);

/* weft_snapshot_blob() - sets data of this rank, such as its position in the data. Snapshots of the shards
 * store it with the rank's residuals (docs/snapshots.md): that of step s has the newest blob at the end of
 * step s. Copies data (bytes,), at most 4 GiB; NULL and 0: no blob. A rank of a job without snapshots may
 * call it. Local, does not block. Return codes: WEFT_OK; WEFT_ERR_INVALID; WEFT_ERR_LIMIT: too large;
 * WEFT_ERR_NO_MEMORY. */
WEFT_API enum weft_status weft_snapshot_blob(struct weft_session *session, const void *data, uint64_t bytes);
/* weft_snapshot_restored_blob() - the blob of `rank`, a rank of the job that made the snapshot, if this job
 * has restored one (weftd --restore): writes it to out; *bytes is the size of out before, and of the blob
 * after the call. out NULL: only the size. *step_out: the step of the snapshot; may be NULL. Residuals are
 * restored by weft_declare, weights by weft_tensor_init. Blocks for the coordinator, at most the session's
 * deadline. Return codes: WEFT_OK; WEFT_ERR_NOT_FOUND: no restored snapshot, or no part of this rank in it;
 * WEFT_ERR_INVALID: out is too small; WEFT_ERR_IO, _MALFORMED: the part cannot be read; WEFT_ERR_DEADLINE. */
WEFT_API enum weft_status weft_snapshot_restored_blob(struct weft_session *session, uint32_t rank, void *out,
                                                      uint64_t *bytes, uint64_t *step_out);

/* ---- 9. Plans, statistics, flight recorder ------------------------------------------------------------- */

/* weft_set_plan() - the plan of the next operations: "auto" (default), or direct, ring, doubling, halving,
 * double_tree, bruck, pat, chain, binomial for all operations that have it; or a list,
 * "all_reduce=halving,broadcast=chain". Equal on all ranks. Reproducible calls, and unequal pieces that the
 * plan cannot cut, use auto. The environment has WEFT_PLAN_ALL_REDUCE=ring and so on. Does not block. Return
 * codes: WEFT_OK; WEFT_ERR_INVALID: the text names the plans. */
WEFT_API enum weft_status weft_set_plan(struct weft_session *session, const char *plan);
/* weft_explain() - one line without a newline: the plan that `operation` ("all_reduce") with `count`
 * elements, of one piece where there are pieces, would take now, and the estimated time of each plan. Cut to
 * out_bytes. Blocks at most 1 s. Return codes: WEFT_OK; WEFT_ERR_INVALID; WEFT_ERR_BUSY: the engine computes,
 * call again. */
WEFT_API enum weft_status weft_explain(struct weft_session *session, const char *operation, uint64_t count,
                                       enum weft_dtype dtype, char *out, size_t out_bytes);
/* weft_plan_taken() - the plan of the last started operation, such as "one-host"; "auto" before the first.
 * Static text. Any thread. */
WEFT_API const char *weft_plan_taken(const struct weft_session *session);

struct weft_stats {
    size_t size;                     /* sizeof(struct weft_stats), set by the caller */
    uint64_t sent_bytes;             /* at the transport with headers, and bytes read by peers on this host */
    uint64_t received_bytes;
    uint64_t steps;                  /* steps that ended with WEFT_OK */
    uint64_t step_ns;                /* summed ns from weft_step_begin to the end of weft_step_end, or with
                                      * deliver_late until the delivery is complete */
    uint64_t exposed_ns;             /* of step_ns: ns spent waiting inside weft calls */
    uint64_t encode_ns;              /* ns in codecs and optimisers on the engine */
    uint64_t requests;               /* completed requests */
    uint64_t exposed_peers_ns;       /* of exposed_ns: ns in which a rank had not begun the operation */
    uint64_t exposed_network_ns;     /* of exposed_ns: the rest, transfers and work of ranks and shards */
    uint64_t waited_outside_ns;      /* ns that weft_wait, _wait_any, _wait_all and _tensor_wait blocked
                                      * outside steps */
};
/* weft_stats_get() - fill *stats_out; its size must be set. Works in a session that has ended. Blocks at most
 * 1 s. Return codes: WEFT_OK; WEFT_ERR_INVALID; WEFT_ERR_BUSY: the engine computes, call again. */
WEFT_API enum weft_status weft_stats_get(struct weft_session *session, struct weft_stats *stats_out);

/* What the trainer waited for, by tensor. An operation is a push_pull, push_none, push or pull that is done.
 * Times are ns of CLOCK_MONOTONIC. A call that waits for several results counts, for each, from the result
 * before it. */
struct weft_tensor_stats {
    size_t size;                 /* sizeof(struct weft_tensor_stats), set by the caller */
    uint64_t bytes;              /* of the values */
    uint64_t operations;         /* number of operations; the next sums are over them */
    uint64_t queued_ns;          /* from the call to the start of the transfer */
    uint64_t transfer_ns;        /* from there until the result was in memory */
    uint64_t ahead_ns;           /* from the call until a call waited for the result, or the result arrived */
    uint64_t exposed_ns;         /* that a call waited for the result, for slower ranks too */
    uint64_t exposed_operations; /* operations that a call waited for */
    uint64_t ready_ns;           /* last operation: the call */
    uint64_t started_ns;         /* last operation: its transfer started */
    uint64_t done_ns;            /* last operation: the result was in memory */
    uint64_t waited_from_ns;     /* last operation: a call waited from then until done_ns; 0: none */
};
/* weft_tensor_stats_get() - fill *stats_out; its size must be set. Does not block. Works in a session that
 * has ended. While an operation completes, the fields may be of two operations. Return codes: WEFT_OK;
 * WEFT_ERR_INVALID. */
WEFT_API enum weft_status weft_tensor_stats_get(struct weft_tensor *tensor,
                                                struct weft_tensor_stats *stats_out);

/* weft_describe_links() - how each other process of the job is reached, one line each, such as "rank 1 (host
 * b, pid 41): shm mapped, other memory by CMA". Cut to out_bytes. Blocks at most 1 s. Return codes: as
 * weft_explain. */
WEFT_API enum weft_status weft_describe_links(struct weft_session *session, char *out, size_t out_bytes);

/* weft_dump_events() - write the flight recorder as JSON for `weft inspect`: the last collective operations
 * (recorder.operations, default 2,000) with phase and awaited ranks, and the last events. Path
 * "*.perfetto.json": the events as a Perfetto trace. A directory: the file flight-JOB-rankN.json. The file
 * appears complete or not at all. A job that fails writes one to recorder.directory by itself. Works in a
 * session that has ended. Blocks for the file. Any thread. Return codes: WEFT_OK; WEFT_ERR_INVALID;
 * WEFT_ERR_IO. */
WEFT_API enum weft_status weft_dump_events(struct weft_session *session, const char *path);

/* ---- 10. Elastic jobs ---------------------------------------------------------------------------------- */

/* A job of weft run --min-workers N continues when workers are lost, while N are left. docs/elastic.md has
 * the protocol and a loop to copy. From a loss on every operation ends with WEFT_ERR_PEER_LOST, until
 * weft_step_end, weft_step_begin or weft_shrink has agreed with the other ranks and returns one of:
 *   WEFT_ERR_SHRUNK   ranks were lost. weft_rank and weft_ranks are new, the order is kept. A step that was
 *                     open is discarded on all ranks, weights and residuals are those of before (shards:
 *                     docs/elastic.md); begin weft_step_next again
 *   WEFT_ERR_GREW     the same, and new ranks follow the old ones (--restarts, --max-workers). All ranks take
 *                     the state from rank 0: weft_tensor_share, weft_broadcast
 * Groups and meshes end with the membership: make them again. Weights must be in host memory. */

/* weft_tensor_share() - copy rank `root`'s weights (elems,), in host memory, and optimiser arrays to all
 * ranks; with an optimiser in server mode of an elastic job, copy the shards' state. Required after
 * WEFT_ERR_GREW and weft_join, and again after every change of ranks until a step has ended well; a new rank
 * calls it instead of weft_tensor_init. Collective, between steps, blocks. Return codes: WEFT_OK;
 * WEFT_ERR_PEER_LOST: weights and arrays are unchanged; WEFT_ERR_UNSUPPORTED: server mode of another job, or
 * device memory. */
WEFT_API enum weft_status weft_tensor_share(struct weft_tensor *tensor, void *weights, uint32_t root);

/* weft_shrink() - agree on the remaining ranks, for trainers without steps: call it after WEFT_ERR_PEER_LOST.
 * Collective, blocks, outside steps. Return codes: WEFT_OK: no rank was lost; WEFT_ERR_SHRUNK, WEFT_ERR_GREW:
 * the session continues. */
WEFT_API enum weft_status weft_shrink(struct weft_session *session);

/* weft_join() - this rank has no more data: the others continue without it, and it rests until all ranks have
 * joined. Elastic jobs only, outside steps, with no request open, all tensors declared. Blocks; timeout_ms 0:
 * the session's deadline. *last_out, which may be NULL, is the rank that joined last: take its parameters.
 * Return codes: WEFT_OK: all ranks are back, weft_step_next has the next step; WEFT_ERR_DEADLINE: others
 * still have data, call again, until then other calls return WEFT_ERR_STATE, except weft_finalize, weft_abort
 * and weft_test; WEFT_ERR_ABORTED: the job has ended; WEFT_ERR_STATE: a step is open, or the job is not
 * elastic; WEFT_ERR_BUSY: a request is open. */
WEFT_API enum weft_status weft_join(struct weft_session *session, uint64_t timeout_ms, uint32_t *last_out);

/* weft_newcomer() - whether this rank joined a running job. Constant from weft_init to weft_finalize. Any
 * thread. */
WEFT_API bool weft_newcomer(const struct weft_session *session);

/* ---- 11. Outer steps ----------------------------------------------------------------------------------- */

/* Training with little communication, for slow links (local SGD; DiLoCo: Douillard et al. 2023, algorithm 1;
 * fragments and overlap: Streaming DiLoCo, 2025). Each rank runs its own optimizer on its own weights. Every
 * `every` inner steps the ranks exchange how far their weights have moved from the anchor, the weights that
 * they share, and an outer optimizer moves the anchor by the mean. docs/outer-steps.md has a loop to copy.
 *
 *     weft_outer_create(session, WEFT_OUTER(.every = 100), &outer);
 *     weft_outer_add(outer, "fc1", weights, 2, dims);         // all weights, on all ranks in the same order
 *     weft_outer_begin(outer, NULL, 0);                       // rank 0's weights reach all ranks
 *     for (;;) { inner_step(); weft_outer_step(outer); }
 *
 * An exchange is one step of the session: no other step may be open meanwhile. Weights are in host memory;
 * between the calls the trainer may read and write them. The ranks call weft_outer_step equally often. */
struct weft_outer; /* opaque; free it before weft_finalize */

struct weft_outer_options {
    size_t size;           /* sizeof(struct weft_outer_options), set by WEFT_OUTER */
    const char *codec;     /* of the exchange, as in weft_tensor_options; default "int8" */
    const char *optimizer; /* outer optimizer, default "sgd:momentum=0.9,nesterov=1"; "sgd" with lr 1: the
                            * mean of the weights */
    float lr;              /* of the outer optimizer; default 0.7 */
    uint64_t every;        /* inner steps between two exchanges of a tensor; default 100 */
    uint32_t fragments;    /* default 1. n: the tensors form n groups of about equal size, one of which is
                            * exchanged every `every`/n inner steps */
    uint64_t overlap;      /* inner steps during which an exchange runs, below every/fragments; default 0:
                            * weft_outer_step blocks. Inner updates made meanwhile are kept */
};
#define WEFT_OUTER(...) (&(struct weft_outer_options){.size = sizeof(struct weft_outer_options), __VA_ARGS__})

/* weft_outer_create() - options NULL: the defaults. Local, does not block. Return codes: WEFT_OK;
 * WEFT_ERR_INVALID, _NO_MEMORY. */
WEFT_API enum weft_status weft_outer_create(struct weft_session *session,
                                            const struct weft_outer_options *options,
                                            struct weft_outer **outer_out);
/* weft_outer_add() - weights (dims), f32, which stay the caller's and must stay valid until weft_outer_free.
 * Takes memory for one copy of them, and one for each array of the outer optimizer. Declares the tensor
 * "outer/NAME": collective and blocks, as weft_declare. Return codes: as weft_declare; WEFT_ERR_STATE: after
 * weft_outer_begin. On an error nothing was added. */
WEFT_API enum weft_status weft_outer_add(struct weft_outer *outer, const char *name, float *weights,
                                         uint32_t dim_count, const uint64_t *dims);
/* weft_outer_begin() - set the anchors. saved NULL: rank 0's weights, which reach the buffers of all ranks.
 * Else (bytes,) of weft_outer_save: rank 0's state reaches all ranks. A rank that has its own state keeps its
 * weights, which the caller has loaded; a rank without one gets the anchors. The number of ranks may differ
 * from that of the save. Collective, blocks. Return codes: WEFT_OK; WEFT_ERR_MALFORMED: a rank's state
 * is damaged or of other tensors or options, nothing was changed on any rank; WEFT_ERR_INVALID: rank 0 has no
 * state and another rank has; WEFT_ERR_STATE: no weights were added, or a second call. */
WEFT_API enum weft_status weft_outer_begin(struct weft_outer *outer, const void *saved, uint64_t bytes);
/* weft_outer_step() - count one inner step, after the inner optimizer; exchange the fragments that are due.
 * Blocks until an exchange of this call is complete, with overlap only at its last step. Return codes:
 *   WEFT_OK
 *   WEFT_ERR_SKIPPED                 on all ranks: a weight of the fragment is not finite on some rank; all
 *                                    ranks' weights of the fragment are the anchor again
 *   WEFT_ERR_SHRUNK, WEFT_ERR_GREW   elastic job, section 10: nothing was changed, the next call repeats the
 *                                    exchange; after WEFT_ERR_GREW call weft_outer_share first
 *   WEFT_ERR_DEADLINE                while the session has not ended: call weft_outer_wait
 *   others                           end the session */
WEFT_API enum weft_status weft_outer_step(struct weft_outer *outer);
/* weft_outer_wait() - end the open exchange, if there is one, before its overlap is over. All ranks call it
 * after the same inner step. Blocks. Return codes: as weft_outer_step. */
WEFT_API enum weft_status weft_outer_wait(struct weft_outer *outer);
/* weft_outer_sync() - exchange all fragments now: all ranks then have equal weights, the anchors. For
 * evaluation and the end of a training. Collective, blocks. Return codes: as weft_outer_step. */
WEFT_API enum weft_status weft_outer_sync(struct weft_outer *outer);
/* weft_outer_share() - copy rank 0's anchors, outer optimizer and counters to all ranks; a new rank, which
 * calls it instead of weft_outer_begin, gets the anchors as weights. Required after WEFT_ERR_GREW, and again
 * after a change of ranks until it returns WEFT_OK. Collective, blocks. Return codes: WEFT_OK;
 * WEFT_ERR_PEER_LOST: call weft_shrink, then again; WEFT_ERR_STATE: inside an exchange. */
WEFT_API enum weft_status weft_outer_share(struct weft_outer *outer);
/* weft_outer_bytes() - size of the state now. 0 for NULL.
 * weft_outer_save() - write it to out (bytes,), exactly weft_outer_bytes: anchors, outer optimizer, counters,
 * the residual of this rank's codec. The caller saves the weights and the inner optimizer. Local, does not
 * block. Return codes: WEFT_OK; WEFT_ERR_STATE: an exchange is open; WEFT_ERR_INVALID. */
WEFT_API uint64_t weft_outer_bytes(const struct weft_outer *outer);
WEFT_API enum weft_status weft_outer_save(struct weft_outer *outer, void *out, uint64_t bytes);
/* weft_outer_free() - free the anchors and the tensors; the weights stay the caller's. Collective as
 * weft_tensor_free; in an elastic or ended job local, and the tensors stay until weft_finalize. NULL does
 * nothing. Return codes: WEFT_OK; WEFT_ERR_BUSY: an exchange is open, nothing was freed; else as
 * weft_tensor_free: the memory is freed. */
WEFT_API enum weft_status weft_outer_free(struct weft_outer *outer);

#ifdef __cplusplus
}
#endif
#endif
