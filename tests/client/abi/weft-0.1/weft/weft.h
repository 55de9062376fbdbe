/* weft/weft.h - moves gradients: parameter-server shards and all-reduce behind one set of calls.
 *
 * What a trainer needs, in the order it needs it:
 *
 *     struct weft_session *session;
 *     weft_init(NULL, &session);                          // joins the job that `weft run` started
 *     struct weft_tensor_options o;
 *     weft_tensor_options_init(&o);
 *     o.name = "fc1"; o.dim_count = 2; o.dims[0] = 1024; o.dims[1] = 784;
 *     o.optimizer = "sgd:momentum=0.9";                   // "" or "none": you get the mean gradient
 *     o.mode = WEFT_MODE_SERVER;  o.codec = "powersgd:rank=4";
 *     weft_declare(session, &o, &tensor);
 *     weft_tensor_init(tensor, weights);                  // rank 0's weights reach everybody
 *     for (step = 1; ...; step++) {
 *         weft_step_begin(session, &(struct weft_step){.step = step, .lr = lr, .weight = 1});
 *         ... backward of the last layer ...
 *         weft_push_pull(tensor, grad, weights, &request);     // starts moving, returns at once
 *         ... backward of the layer before, more push_pull ...
 *         weft_wait(&request, 0);                              // weights are those of the next step
 *         weft_step_end(session);
 *     }
 *     weft_finalize(session);
 *
 * The same lines train through shards or through all-reduce, dense or compressed: mode and codec are
 * options of the tensor. With the same seed the two dense modes give the same weights, bit for bit.
 *
 * Rules for all calls:
 *   - Errors are a status (weft/status.h) and a sentence, weft_error_text(): who, which operation, what to do.
 *   - Nothing hangs: every wait has a deadline (options.deadline_ms, default 300 s), and a lost peer ends it
 *     at once.  Nothing exits, no signal handler is installed, no SIGPIPE is raised.
 *   - Buffers passed to a starting call are borrowed until its request completes. After an error status an
 *     output buffer's contents are undefined unless said otherwise.
 *   - Calls on one session may come from any one thread at a time unless marked "any thread". While a thread waits in a
 *     call it moves the session's messages itself; of the caller's own only `completed` functions (section 4) run meanwhile,
 *     and signals stay his own.
 *   - After fork() the child may only call weft_finalize (frees, tells nobody); all else answers WEFT_ERR_FORKED.
 *   - Several sessions per process are fine. */
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
/* "0.1.0", of the library that is loaded. Any thread. */
WEFT_API const char *weft_version(void);

/* ---- 1. Session ------------------------------------------------------------------------------- */

struct weft_session; /* opaque; made by weft_init, freed by weft_finalize */

/* All fields have defaults; 0 or NULL takes the environment, then the default. `weft run` sets the environment; what it does not say
 * of coordinator, job and rank is taken from torchrun's, mpirun's or srun's (docs/running-by-hand.md). */
struct weft_options {
    size_t size;              /* sizeof(struct weft_options), set by weft_options_init */
    const char *coordinator;  /* "host:port"; WEFT_COORDINATOR; required by one or the other */
    const char *job;          /* WEFT_JOB; default "weft" */
    const char *secret;       /* WEFT_SECRET, or the content of the file WEFT_SECRET_FILE; default none */
    int rank;                 /* WEFT_RANK; default -1: any free one */
    uint64_t deadline_ms;     /* WEFT_DEADLINE_MS; of every wait and operation; default 300,000 */
    const char *lanes;        /* WEFT_TRANSPORT_LANES; "tcp" or "shm"; default "tcp" */
    const char *devices;      /* WEFT_TRANSPORT_DEVICES; default "lo" */
};
WEFT_API void weft_options_init(struct weft_options *options);

/* weft_init() - join the job; returns when all workers and shards are there (blocks, up to the deadline).
 * options may be NULL. On failure *session_out is untouched and weft_error_text(NULL) has the reason (of this thread). */
WEFT_API enum weft_status weft_init(const struct weft_options *options, struct weft_session **session_out);

/* weft_finalize() - leave the job in order and free the session, its tensors and buffers. Open requests complete
 * with WEFT_ERR_CLOSED. Blocks for at most 5 s. NULL is fine. WEFT_ERR_BUSY never: it always frees. */
WEFT_API enum weft_status weft_finalize(struct weft_session *session);

WEFT_API uint32_t weft_rank(const struct weft_session *session);   /* 0..ranks-1; any thread */
WEFT_API uint32_t weft_ranks(const struct weft_session *session);  /* workers in the job */
WEFT_API uint32_t weft_shards(const struct weft_session *session); /* 0: no servers, all-reduce only */

/* weft_error_text() - the sentence of the last error of this session (NULL: of weft_init on this thread);
 * "" when there was none. Any thread; valid until that thread asks again. */
WEFT_API const char *weft_error_text(const struct weft_session *session);

/* ---- 2. Tensors and steps ----------------------------------------------------------------------- */

enum weft_mode {
    WEFT_MODE_SERVER = 1,     /* pushed to shards; dense: the optimiser runs there and weights come back */
    WEFT_MODE_ALL_REDUCE = 2, /* reduced among the workers; the optimiser runs here */
};

struct weft_tensor; /* opaque; owned by the session */

struct weft_tensor_options {
    size_t size;             /* sizeof(struct weft_tensor_options) */
    const char *name;        /* unique in the job, 1..255 bytes; required */
    uint32_t dim_count;      /* 1..8 */
    uint64_t dims[8];        /* row-major shape */
    enum weft_dtype dtype;   /* default WEFT_F32, the only one with an optimiser or codec in this version */
    enum weft_mode mode;     /* default: SERVER when there are shards, else ALL_REDUCE */
    const char *codec;       /* default the job's client.codec, "dense"; "f16", "bf16", "powersgd:rank=4", "topk:ratio=0.01", "randomk:ratio=0.01",
                              * "int8", "int4", "e4m3", "e5m2", "sign"; "auto": the library chooses, see weft_choice_get */
    const char *optimizer;   /* default "none"; "sgd:momentum=0.9,weight_decay=1e-4,nesterov=1", "adam", "adagrad",
                              * "adamw:beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01", "ftrl:beta=1,l1=0,l2=0",
                              * "lamb:beta1=0.9,beta2=0.999,eps=1e-6,weight_decay=0.01" (one chunk, whatever chunk_bytes) */
    uint64_t chunk_bytes;    /* cut size over the shards of tensors that are dense or of a codec that works in blocks (then too in bytes
                              * of f32); default 0: 256 KiB, more for tensors of 4 GiB and longer */
};
WEFT_API void weft_tensor_options_init(struct weft_tensor_options *options);

/* weft_declare() - make a tensor known; every worker declares the same tensors in the same order. Blocks until all
 * have (up to the deadline). WEFT_ERR_MISMATCH names the rank and the field that differs. */
WEFT_API enum weft_status weft_declare(struct weft_session *session, const struct weft_tensor_options *options,
                                       struct weft_tensor **tensor_out);

/* weft_tensor_init() - give the tensor its first weights: rank 0's `weights` (elems,) are installed at the shards and
 * broadcast; on return every rank's buffer holds them. Collective, blocking. Needed before a push_pull with an optimiser.
 * In an elastic job with shards all call it again when the ranks have changed before a first step was good: it does what is missing. */
WEFT_API enum weft_status weft_tensor_init(struct weft_tensor *tensor, void *weights);

struct weft_step {
    uint64_t step;  /* 1, 2, 3 ...: one more than the last; equal on all ranks */
    float lr;       /* learning rate; equal on all ranks, disagreement is WEFT_ERR_MISMATCH */
    float weight;   /* this rank's sample weight, >= 0, not 0 on all; the mean is sum(weight*grad) / sum(weight) */
};
/* weft_step_begin() - open a step. Does not wait for the others. */
WEFT_API enum weft_status weft_step_begin(struct weft_session *session, const struct weft_step *step);
/* weft_step_end() - wait for every request of the step, commit codec state, check that all ranks took the same step.
 * On an error the step's codec state is given back (abandoned) and the session tells what happened. */
WEFT_API enum weft_status weft_step_end(struct weft_session *session);

/* Elastic jobs (weft run --min-workers N) go on when workers are lost, while N are left. From the loss on every
 * operation ends with WEFT_ERR_PEER_LOST. weft_step_end then agrees with the other ranks (blocks, up to the deadline) and answers
 *   WEFT_OK          the step was good on all ranks, the lost ones included: go on; the next step_begin will say WEFT_ERR_SHRUNK
 *   WEFT_ERR_SHRUNK  it is discarded on all ranks: run it again, same number, with the new weft_rank and weft_ranks.
 *                    Codecs have their contributions back. Buffers of calls in place are undefined but for preserve_input.
 * The text says who was lost. weft_step_begin answers WEFT_ERR_SHRUNK too, with no step open, when the loss came between two steps:
 * call it again. Ranks keep their order, without gaps. Groups and meshes end: make them again. What a discarded step has updated (weights
 * of tensors with an optimiser, and its arrays) is as before the step; each such push_pull copies it for that. Such tensors must lie in host memory.
 * Of tensors with codec "auto" the first step_begin after every change of the ranks measures and chooses anew, and waits for the others. step_end is one barrier longer in them.
 *
 * With shards: a chunk of a discarded step that had closed when the rank was lost keeps what it became then, the lost rank's contribution included, and
 * the step run again brings it to all; the other chunks get the mean of the ranks that are left (docs/decisions/0014). Such jobs have dense tensors
 * at their shards (weft_declare refuses others), and let nobody in.
 *
 * With weft run --restarts N or --max-workers N (no shards) workers come in, too, while the job runs: those that are started again, or by hand. They
 * wait in weft_init until the others have ended a step, well or not. Then these get, from the next step_begin or from step_end,
 *   WEFT_ERR_GREW      as WEFT_ERR_SHRUNK, and there are new ranks, behind the old ones. Every rank takes the parameters and what else
 *                      the trainer keeps from rank 0, by weft_broadcast and, of tensors with an optimiser, weft_tensor_share; then call step_begin again.
 * The new rank, which weft_newcomer tells behind weft_init, declares the same tensors, takes part in the same broadcasts, and begins the
 * step that weft_step_next says. What follows has the bits of a job of that size from that state (codecs owe what they owed; a new rank owes nothing). */

/* weft_tensor_share() - rank `root`'s weights (elems,) of a tensor in all-reduce mode and its optimiser's arrays, or in server mode (of an elastic
 * job) what the shards have, reach all ranks: after
 * WEFT_ERR_GREW and weft_join, again after every change of the ranks until a step has gone well (else push_pull of a tensor with an optimiser says
 * WEFT_ERR_STATE), and instead of weft_tensor_init on a new rank. Collective, blocking, between steps; when a rank is lost WEFT_ERR_PEER_LOST, as ever,
 * and weights and arrays as they were. */
WEFT_API enum weft_status weft_tensor_share(struct weft_tensor *tensor, void *weights, uint32_t root);

/* weft_shrink() - the same for those who have no steps: call it when an operation says WEFT_ERR_PEER_LOST. WEFT_ERR_SHRUNK: done,
 * the session goes on with the ranks that are left. WEFT_OK: nobody was lost. Collective, blocks. Not in a step. */
WEFT_API enum weft_status weft_shrink(struct weft_session *session);

/* weft_join() - this rank is out of data: the others go on without it. It takes no part in anything until all ranks have joined;
 * then all go on together, with the ranks as before, less the lost ones (and new ones behind them). In an elastic job, no step open, every request ended.
 * To the others it is as if the rank were lost, but for the text: the step they are in is run again without it (WEFT_ERR_SHRUNK),
 * averages are those of the ranks that are left, groups and meshes end. Blocks; timeout_ms 0: the session's deadline.
 *   WEFT_OK            all have joined; *last_out (may be NULL) is the rank that did last: it has the newest parameters, to be broadcast.
 *                      Steps go on after the last one of all: weft_step_next. Groups and meshes are to be made again, by all ranks
 *   WEFT_ERR_DEADLINE  others have data still; call it again to wait on. Until then any other call answers WEFT_ERR_STATE, but
 *                      weft_finalize, which leaves the job, weft_abort, weft_test and the like
 *   WEFT_ERR_ABORTED   also where the job has ended by a deadline: there is nothing to wait for
 * All ranks declare their tensors before the first of them joins. With shards a rank has the first weights (weft_tensor_init) before it joins, and takes those of
 * all steps by weft_tensor_share when it is back; a job whose ranks with data are all lost while others rest ends.
 * When ranks are lost while all go on, or newcomers come in, some learn of it inside weft_join (which answers WEFT_OK), others from the
 * operation that follows (WEFT_ERR_PEER_LOST, then WEFT_ERR_SHRUNK or GREW from the next step_begin or weft_shrink); and the rank that
 * *last_out named may be the lost one (then it is 0). So exchange until a step has ended well: all_gather the last step that each
 * rank's parameters are behind, broadcast from a rank with the largest, and do both again after every SHRUNK or GREW. */
WEFT_API enum weft_status weft_join(struct weft_session *session, uint64_t timeout_ms, uint32_t *last_out);

/* Has this rank come into a job that ran? Then the others call broadcast first. Equal from weft_init to weft_finalize. Any thread. */
WEFT_API bool weft_newcomer(const struct weft_session *session);

/* The number that the next weft_step_begin must have, or the open step's to be ended. Caller's thread. */
WEFT_API uint64_t weft_step_next(const struct weft_session *session);

/* Caller-embeddable: no allocation per operation. Zero it once ({0}) before first use; its memory must stay until
 * weft_wait or weft_test has answered for it. */
struct weft_request {
    uint64_t opaque[40];
};

/* weft_push_pull() - start one round: contribute grad (elems,), get the result in out (elems,).
 *   optimizer "none": out = weighted mean of the gradients (out may equal grad);
 *   with an optimiser:  out = the new weights; in codec or all-reduce modes out must still hold the weights of the
 *                       step before (the library updates them in place).
 * Does not block. WEFT_IN_PROGRESS; WEFT_ERR_STATE outside a step or when this tensor's last request is still open. */
WEFT_API enum weft_status weft_push_pull(struct weft_tensor *tensor, const void *grad, void *out, struct weft_request *request);

/* weft_tensor_memory() - where the buffers of this tensor's next push_pull, push and pull lie; host memory until this is called.
 * WEFT_MEMORY_CUDA: device memory, ordered by `stream` as struct weft_call.memory says. Does not block. In all-reduce mode without an
 * optimiser most codecs work on the device; the others, and optimisers, on the host's copy (docs/gpu.md). weft_tensor_init takes host
 * memory always. */
WEFT_API enum weft_status weft_tensor_memory(struct weft_tensor *tensor, enum weft_memory_kind memory, void *stream);

/* Server mode, the two halves: push contributes and completes when the shard has it; pull fetches the result of
 * this rank's last push (or push_pull) of the tensor into out, once all ranks have pushed that step; before the first
 * one, the initial weights. push needs an open step, pull does not. Dense codec only. */
WEFT_API enum weft_status weft_push(struct weft_tensor *tensor, const void *grad, struct weft_request *request);
WEFT_API enum weft_status weft_pull(struct weft_tensor *tensor, void *out, struct weft_request *request);

/* weft_wait() - until the request is done; timeout_ms 0: the session's deadline. A timeout leaves the operation running
 * (WEFT_ERR_DEADLINE, the text names whom it waits for; wait again or finalize). A request never started: WEFT_OK.
 * Any thread: several may wait at once, each for a request of its own, also while another thread makes other calls. */
WEFT_API enum weft_status weft_wait(struct weft_request *request, uint64_t timeout_ms);
/* weft_test() - WEFT_IN_PROGRESS, or the final status. Never blocks. Any thread. */
WEFT_API enum weft_status weft_test(struct weft_request *request);

/* ---- 3. Collectives on plain buffers --------------------------------------------------------------
 * All ranks call the same operations in the same order with the same count, dtype, op (else WEFT_ERR_MISMATCH on both
 * sides). Non-blocking; one of up to 4 KiB between ranks of one host may look a few microseconds for the others first (some tens
 * where ranks outnumber cores) and be over when it returns. In place is in == out, and where one buffer holds the pieces of all ranks: all_gather and gather's root
 * in == out + rank*count, reduce_scatter and scatter's root out == in + rank*count. All dtypes; sum, avg, prod, min, max, for
 * integers and, or, xor. Of one operation every rank gets the same bits, in every run (docs/collectives.md). */
WEFT_API enum weft_status weft_all_reduce(struct weft_session *session, const void *in, void *out, uint64_t count,
                                          enum weft_dtype dtype, enum weft_op op, struct weft_request *request);
/* The sum of factor*in, each rank with a factor of its own; the products are rounded to dtype, a float. */
WEFT_API enum weft_status weft_all_reduce_scaled(struct weft_session *session, const void *in, void *out, uint64_t count,
                                                 enum weft_dtype dtype, double factor, struct weft_request *request);
/* The average weighted by samples: sum(weight*in) / sum(weight), for floats; weight >= 0, and what a rank of weight 0 has in `in` does
 * not matter. WEFT_ERR_INVALID on all ranks, and nothing else happens, when all weights are 0. Bits: docs/collectives.md. */
WEFT_API enum weft_status weft_all_reduce_weighted(struct weft_session *session, const void *in, void *out, uint64_t count,
                                                   enum weft_dtype dtype, double weight, struct weft_request *request);
/* in (ranks*count,), out (count,): rank r gets the reduced piece r. */
WEFT_API enum weft_status weft_reduce_scatter(struct weft_session *session, const void *in, void *out, uint64_t count,
                                              enum weft_dtype dtype, enum weft_op op, struct weft_request *request);
/* in (count,), out (ranks*count,). */
WEFT_API enum weft_status weft_all_gather(struct weft_session *session, const void *in, void *out, uint64_t count,
                                          enum weft_dtype dtype, struct weft_request *request);
/* The root may be done before the others have called: to wait for them is what weft_barrier is for. */
WEFT_API enum weft_status weft_broadcast(struct weft_session *session, void *buffer, uint64_t count, enum weft_dtype dtype,
                                         uint32_t root, struct weft_request *request);
/* in (count,); out (count,) at the root, ignored elsewhere. All but the root may be done before the others have called, as in a gather;
 * the root of a scatter, too. */
WEFT_API enum weft_status weft_reduce(struct weft_session *session, const void *in, void *out, uint64_t count, enum weft_dtype dtype,
                                      enum weft_op op, uint32_t root, struct weft_request *request);
/* in (count,); out (ranks*count,) at the root, ignored elsewhere. */
WEFT_API enum weft_status weft_gather(struct weft_session *session, const void *in, void *out, uint64_t count, enum weft_dtype dtype,
                                      uint32_t root, struct weft_request *request);
/* in (ranks*count,) at the root, ignored elsewhere; out (count,). */
WEFT_API enum weft_status weft_scatter(struct weft_session *session, const void *in, void *out, uint64_t count, enum weft_dtype dtype,
                                       uint32_t root, struct weft_request *request);
/* in, out (ranks*count,): piece i goes to rank i and lies there as piece `rank`. In place takes a copy of in. */
WEFT_API enum weft_status weft_all_to_all(struct weft_session *session, const void *in, void *out, uint64_t count,
                                          enum weft_dtype dtype, struct weft_request *request);
WEFT_API enum weft_status weft_barrier(struct weft_session *session, struct weft_request *request);

/* Pieces of unequal lengths, one behind the other: counts (ranks,) of elements, borrowed until the request completes.
 * reduce_scatter_v, all_gather_v: the same counts on all ranks; this rank's piece is counts[rank] long.
 * gather_v, scatter_v: counts at the root (ignored elsewhere), `count` of the own piece at the others.
 * all_to_all_v: counts_in[r] elements go to rank r, counts_out[r] come from it; lengths that do not agree are found. */
WEFT_API enum weft_status weft_reduce_scatter_v(struct weft_session *session, const void *in, void *out, const uint64_t *counts,
                                                enum weft_dtype dtype, enum weft_op op, struct weft_request *request);
WEFT_API enum weft_status weft_all_gather_v(struct weft_session *session, const void *in, void *out, const uint64_t *counts,
                                            enum weft_dtype dtype, struct weft_request *request);
WEFT_API enum weft_status weft_gather_v(struct weft_session *session, const void *in, void *out, uint64_t count, const uint64_t *counts,
                                        enum weft_dtype dtype, uint32_t root, struct weft_request *request);
WEFT_API enum weft_status weft_scatter_v(struct weft_session *session, const void *in, void *out, uint64_t count, const uint64_t *counts,
                                         enum weft_dtype dtype, uint32_t root, struct weft_request *request);
WEFT_API enum weft_status weft_all_to_all_v(struct weft_session *session, const void *in, const uint64_t *counts_in, void *out,
                                            const uint64_t *counts_out, enum weft_dtype dtype, struct weft_request *request);

/* Between two ranks; the n-th send to a rank meets its n-th recv from this one, of the same count and dtype. The order
 * against other operations is free. A send may complete before the other rank has received: one that then leaves (weft_finalize) may take it along, and
 * the recv ends with WEFT_ERR_PEER_LOST. Ranks that leave at different times have a barrier, or a word back, behind their last sends. */
WEFT_API enum weft_status weft_send(struct weft_session *session, const void *buffer, uint64_t count, enum weft_dtype dtype, uint32_t to,
                                    struct weft_request *request);
WEFT_API enum weft_status weft_recv(struct weft_session *session, void *buffer, uint64_t count, enum weft_dtype dtype, uint32_t from,
                                    struct weft_request *request);

/* Which plan the next operations take: "auto" (default), one of direct, ring, doubling, halving, double_tree, bruck, pat, chain,
 * binomial for all operations that have it, or for some of them, as "all_reduce=halving,broadcast=chain". Same on all ranks.
 * WEFT_PLAN_ALL_REDUCE=ring in the environment says the same of one operation, collective.plan of all. */
WEFT_API enum weft_status weft_set_plan(struct weft_session *session, const char *plan);
/* Which plan "all_reduce" ... of `count` elements (where there are pieces: of one) would take now and what the model of cost
 * says of each, one line without an end of line. Blocks for at most a second. */
WEFT_API enum weft_status weft_explain(struct weft_session *session, const char *operation, uint64_t count, enum weft_dtype dtype, char *out,
                                       size_t out_bytes);
/* The plan of the operation that was started last ("one-host"); "auto" before the first. Any thread; static text. */
WEFT_API const char *weft_plan_taken(const struct weft_session *session);

/* ---- 4. Calls in a struct, persistent requests, groups of calls ---------------------------------------
 * Any operation of section 3, with what the short calls leave out: a group of ranks, a deadline of its own, reproducible
 * sums, a function to be called at the end.
 *
 *     weft_call_start(session, WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = dp, .in = grad, .out = grad, .count = n,
 *                                        .dtype = WEFT_F32, .op = WEFT_AVG), &request); */
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

struct weft_comm; /* a group of ranks, section 5 */

/* What is 0 is not there, or the default. */
struct weft_call {
    size_t size;                         /* sizeof(struct weft_call) */
    enum weft_call_kind kind;
    struct weft_comm *comm;              /* NULL: all ranks of the job; `root` and pieces are counted in the group's ranks */
    const void *in;                      /* as in the calls of section 3 */
    void *out;
    uint64_t count;
    const uint64_t *counts, *counts_out; /* pieces of unequal lengths; counts_out: all_to_all only */
    enum weft_dtype dtype;
    enum weft_op op;                     /* default WEFT_SUM */
    double factor;                       /* of WEFT_SCALED_SUM */
    uint32_t root;                       /* send, recv: the other rank */
    bool unequal;                        /* gather, scatter with counts: the root alone gives them, all ranks set this */
    bool preserve_input;                 /* all_reduce in place, in a step of an elastic job: a step that is to be run again finds its
                                          * input there again. One copy; without it such a buffer is undefined then */
    bool reproducible;                   /* of sums: the same bits whatever the count, plan or transport (docs/collectives.md) */
    uint64_t deadline_ms;                /* of this operation; at most the session's, and that by default */
    /* Called once when the operation has ended and its buffers are the caller's again, and before weft_wait and weft_test say so.
     * It runs on the engine's thread or on any thread that is waiting in this session, so it must be short, must not wait, and
     * may call nothing of weft but weft_test, weft_abort and weft_error_text. */
    void (*completed)(void *context, enum weft_status status);
    void *context;
    /* Where in and out lie. WEFT_MEMORY_CUDA: both on one CUDA device; `stream` is a cudaStream_t (NULL: that device's default one).
     * What is queued on it before the call comes before the operation reads or writes; what is queued on it after the request is
     * done comes after the result. A host that reads the result waits for the stream. Nothing waits for the device. docs/gpu.md */
    enum weft_memory_kind memory;
    void *stream;
    bool weighted;                       /* WEFT_AVG of all_reduce, reduce, reduce_scatter, as weft_all_reduce_weighted; all ranks set it */
    double weight;                       /* this rank's */
};
#define WEFT_CALL(...) (&(struct weft_call){.size = sizeof(struct weft_call), __VA_ARGS__})

/* Does not block. WEFT_IN_PROGRESS. `call` is read before it returns; what it points to is borrowed until the end. */
WEFT_API enum weft_status weft_call_start(struct weft_session *session, const struct weft_call *call, struct weft_request *request);

/* Persistent requests: the call is checked once and started as often as wanted, each time with what its buffers then hold;
 * nothing is allocated. All ranks make and start them in the same order as any calls. Does not block; WEFT_OK: nothing is
 * started yet. After weft_wait it may be started again. */
WEFT_API enum weft_status weft_call_init(struct weft_session *session, const struct weft_call *call, struct weft_request *request);
/* WEFT_ERR_BUSY: still under way. WEFT_ERR_STATE: not made by weft_call_init. */
WEFT_API enum weft_status weft_start(struct weft_request *request);
/* All of them as one group of calls (below). */
WEFT_API enum weft_status weft_start_all(struct weft_request *requests, size_t count);
/* A request at rest is zero again. WEFT_ERR_BUSY: still under way. Frees nothing: the memory is the caller's. */
WEFT_API enum weft_status weft_request_free(struct weft_request *request);

/* Groups of calls. What is called between the two (sections 3, 4, weft_start) starts at weft_group_end, and runs together: nothing
 * waits for the one before, so sends and recvs need no order among themselves. all_reduces of up to 64 KiB with the same dtype, op
 * and group travel as one operation; which ones do follows from the calls alone. Each call keeps its own request. All ranks make
 * the same calls in the same order in the group; else WEFT_ERR_MISMATCH. A call that is refused says so at once and is not part of it.
 * Pairs may lie in each other: the outermost counts. Do not block; weft_wait inside the group: WEFT_ERR_STATE. push and
 * pull are not gathered, nor is push_pull, with one exception: tensors in all-reduce mode of equal shape and codec, where the
 * codec is powersgd, start at weft_group_end as one operation, up to 32 at a time, with the bits they have alone. weft_step_end
 * inside such a group: WEFT_ERR_STATE. */
WEFT_API enum weft_status weft_group_start(struct weft_session *session);
/* WEFT_IN_PROGRESS; WEFT_OK: there were no calls, or an outer group is open. */
WEFT_API enum weft_status weft_group_end(struct weft_session *session);

/* ---- 5. Groups of ranks ------------------------------------------------------------------------------
 * A group has ranks 0 .. n-1 of its own and runs any operation (struct weft_call.comm), beside and independent of all other
 * groups. An operation that fails on a group ends the session, as any does. Making one is collective over those it is made
 * from: all call it in the same order, it blocks until all have (up to the deadline), and either all succeed or all get an error.
 * Groups end with the session. */

/* weft_split() - the ranks of `parent` (NULL: all) part: those with the same colour form a group, ordered by key, then by their
 * rank in parent. colour < 0: in no group, *comm_out is NULL. */
WEFT_API enum weft_status weft_split(struct weft_session *session, struct weft_comm *parent, int colour, int key, struct weft_comm **comm_out);
/* Any thread. */
WEFT_API uint32_t weft_comm_rank(const struct weft_comm *comm);
WEFT_API uint32_t weft_comm_ranks(const struct weft_comm *comm);
WEFT_API uint32_t weft_comm_id(const struct weft_comm *comm); /* the same on all its ranks, never given twice; in `weft inspect` */
/* The rank in the job of the group's rank; UINT32_MAX: there is none. */
WEFT_API uint32_t weft_comm_member(const struct weft_comm *comm, uint32_t rank);
/* Leave it; the others need not at the same time. Persistent requests of it are of no use any more. Blocks for the engine only.
 * WEFT_ERR_BUSY: its operations have not all ended. NULL is fine. Not for groups of a mesh. */
WEFT_API enum weft_status weft_comm_free(struct weft_comm *comm);

/* A mesh: all ranks of the job as a box with named axes (dp x tp x pp x ep). The last axis runs fastest: in {dp 2, tp 4} rank 6 is
 * dp 1, tp 2. The group of an axis holds the ranks that differ in this coordinate only. */
struct weft_mesh;
struct weft_axis {
    const char *name; /* 1..15 bytes, no comma */
    uint32_t size;    /* 0, for one of them: what is left of the ranks */
};
/* Collective over the job, blocks. The groups of all axes are made. WEFT_ERR_MISMATCH names the rank that described it otherwise. */
WEFT_API enum weft_status weft_mesh_create(struct weft_session *session, const struct weft_axis *axes, uint32_t axis_count,
                                           struct weft_mesh **mesh_out);
/* "tp": this rank's group along the axis; does not block. "dp,ep": along several, ordered by rank; the first time for a set of
 * axes this is collective over the job and blocks. The group belongs to the mesh. */
WEFT_API enum weft_status weft_mesh_comm(struct weft_mesh *mesh, const char *axes, struct weft_comm **comm_out);
WEFT_API uint32_t weft_mesh_size(const struct weft_mesh *mesh, const char *axis); /* 0: no such axis */
/* Where a rank of the job is on an axis; UINT32_MAX: no such rank or axis. */
WEFT_API uint32_t weft_mesh_coordinate(const struct weft_mesh *mesh, const char *axis, uint32_t rank);
/* coordinates (axis_count,) in the order of the axes -> the rank in the job; UINT32_MAX: outside. */
WEFT_API uint32_t weft_mesh_rank(const struct weft_mesh *mesh, const uint32_t *coordinates);
/* With its groups; as weft_comm_free. */
WEFT_API enum weft_status weft_mesh_free(struct weft_mesh *mesh);

/* ---- 6. Memory, statistics, recorder --------------------------------------------------------------- */

/* weft_alloc() - memory (zeroed, 64-byte aligned, pre-touched) that transports can use best: peers on this host map it and
 * copy straight from and to it. A forked child shares it with its parent (it is no copy). NULL when there is none.
 * weft_free gives it back, or weft_finalize. In a session that has failed it may be called before the other requests are over: they keep the
 * memory as long as they need it. Both from any thread. */
WEFT_API void *weft_alloc(struct weft_session *session, size_t bytes);
WEFT_API void weft_free(struct weft_session *session, void *memory);

struct weft_stats {
    size_t size;                     /* in: sizeof(struct weft_stats) */
    uint64_t sent_bytes;             /* at the transport, headers included, and what ranks of one host took from memory in place */
    uint64_t received_bytes;
    uint64_t steps;                  /* ended with WEFT_OK */
    uint64_t step_ns;                /* summed time between step_begin and the end of step_end */
    uint64_t exposed_ns;             /* of that, time spent waiting inside weft calls */
    uint64_t encode_ns;              /* time in codecs and optimiser on the engine */
    uint64_t requests;               /* completed */
};
WEFT_API enum weft_status weft_stats_get(struct weft_session *session, struct weft_stats *stats_out);

/* weft_describe_links() - by what each other process of the job is reached, a line each, for people: "rank 1 (host b, pid
 * 41): shm mapped, other memory by CMA". Cut to out_bytes. Asks the engine: may take as long as one of its steps.
 * WEFT_ERR_BUSY: not within a second; ask again. */
WEFT_API enum weft_status weft_describe_links(struct weft_session *session, char *out, size_t out_bytes);

/* weft_choice_get() - what the library has chosen for a tensor declared with codec
 *   "auto"                  dense or bf16, whichever makes the step shorter here
 *   "auto:topk,powersgd"    dense or one of those named (options as in their own specs; the most wanted first)
 *   "auto:lossy"            dense, bf16, int8, powersgd:rank=4 or topk:ratio=0.01
 * in both modes; in server mode the workers then keep the optimiser's state and update, as in all-reduce mode, and there is
 * neither push nor pull. The first weft_step_begin measures codecs and link together with the other ranks, and therefore
 * waits for them; from then on rank 0 looks at all ranks' figures every few steps, and a new choice is in force on all ranks
 * from the same step. What a codec still owes when it is left behind goes into the next gradient. With log level info
 * rank 0 logs every change, and at weft_finalize this report for all such tensors. Caller's thread; does not block. */
struct weft_choice {
    size_t size;             /* in: sizeof(struct weft_choice) */
    char codec[256];         /* in use; also of a tensor whose codec was given */
    uint32_t candidates;     /* it was chosen from so many; 0: it was given */
    uint32_t changes;        /* since the tensor was declared; it began dense */
    uint64_t since_step;     /* the codec is in use; 0: from the start */
    uint64_t coded_steps;    /* steps in which it was not dense */
    int64_t saved_bytes;     /* that this rank did not send, against dense */
    int64_t saved_ns;        /* of exchanges, as they would take with nothing hidden behind computation; by the model */
};
WEFT_API enum weft_status weft_choice_get(struct weft_tensor *tensor, struct weft_choice *choice_out);

/* What this rank's codec of a tensor remembers from step to step, for the trainer's checkpoint beside the weights: what it has
 * not sent yet, its momentum, PowerSGD's warm start, its counters. Every rank saves and loads its own, between steps (else
 * WEFT_ERR_STATE), on the caller's thread, without talking to anyone. Restored on as many ranks with the same codec, training goes
 * on bit for bit. On another number of ranks the debt is scaled so that the mean of what the remaining ranks owe stays;
 * a rank that is new loads nothing. A tensor with another codec now (all-reduce mode) takes the debt into its next gradient.
 *   weft_residual_bytes   how many bytes it is between these two steps; also of a dense tensor (a head, and nothing owed)
 *   weft_residual_save    into out, of exactly so many bytes
 *   weft_residual_load    bytes from a file, UNTRUSTED: WEFT_ERR_MALFORMED where anything is wrong with them; then nothing changed */
WEFT_API uint64_t weft_residual_bytes(const struct weft_tensor *tensor);
WEFT_API enum weft_status weft_residual_save(struct weft_tensor *tensor, void *out, uint64_t bytes);
WEFT_API enum weft_status weft_residual_load(struct weft_tensor *tensor, const void *data, uint64_t bytes);

/* What the job remembers of a tensor beside its weights, once for all ranks: the optimiser's arrays (momentum, moments, sums), kept by
 * the shards or by the workers; what a shard with codec topk:global=1 has not given back yet; the number of the last step. Save it beside
 * the weights that push_pull gave (the shard's own, f32) and every rank's residual, and a job goes on from there bit for bit, on another number of
 * shards, or in the other mode; on another number of ranks a shard's debt is scaled so that the mean stays what it was.
 *   weft_state_bytes   the same all the tensor's life; of a tensor without either a head alone
 *   weft_state_save    one rank, whichever, between steps (else WEFT_ERR_STATE), into out, of exactly so many bytes. Blocks while
 *                      the shards answer: all ranks must have ended the last step, or be about to; none need call anything.
 *   weft_state_load    all ranks, after weft_declare and before the first step, in the same order; blocks until all have it. Rank 0's bytes
 *                      count, the others may pass NULL and 0. UNTRUSTED: WEFT_ERR_MALFORMED on every rank where anything is wrong with them, or
 *                      they are another optimiser's; then nothing changed. Where installing them fails the session fails. Afterwards weft_step_next is the step after the one saved:
 *                      adam and its relatives count by it. A debt for which the tensor has no place now (another codec,
 *                      all-reduce mode) goes into the next gradients; in that case call weft_residual_load before.
 * WEFT_ERR_VERSION from both where shards keep any of it and one of them, or the coordinator, is of a release that has no such requests.
 * Caller's thread. */
WEFT_API uint64_t weft_state_bytes(const struct weft_tensor *tensor);
WEFT_API enum weft_status weft_state_save(struct weft_tensor *tensor, void *out, uint64_t bytes);
WEFT_API enum weft_status weft_state_load(struct weft_tensor *tensor, const void *data, uint64_t bytes);

/* weft_dump_events() - the flight recorder: the last collective operations (recorder.operations: 2,000), each with whom it
 * waits for and in which phase, and the last events, as JSON for `weft inspect`; or the events as a Perfetto trace when the
 * path ends in ".perfetto.json". A path that is a directory gets a file flight-JOB-rankN.json. The file appears whole or not
 * at all. A job that fails writes one by itself into recorder.directory (under weft run its log directory), and, if
 * recorder.signal asks for it, on a signal. Works on a failed session too. Blocks for the file only. Any thread. */
WEFT_API enum weft_status weft_dump_events(struct weft_session *session, const char *path);

/* weft_abort() - end the job for everybody, now: every rank's waits end with WEFT_ERR_ABORTED and this text. Any thread. */
WEFT_API enum weft_status weft_abort(struct weft_session *session, const char *text);

#ifdef __cplusplus
}
#endif
#endif
