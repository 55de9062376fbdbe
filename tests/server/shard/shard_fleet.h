/* shard_fleet.h - shard engines and simulated workers in one process.
 *
 * A fleet has `shards` real engines and `workers` workers that use the wire protocol, each on its own
 * simulated host. Gradients are a pure function of (seed, worker, tensor, element, step). A scalar reference
 * (shard_reference.c: recursive tree T, its own optimiser loop) computes every expected result, bit for bit.
 * Tests send single messages (fleet_send) or let all workers train (fleet_train). The fleet also runs over
 * real UCX connections (options.ucx) in one test. The test is the coordinator: it assigns ids and, if
 * requested, fails the engines when a peer is lost. */
#ifndef WEFT_TESTS_SERVER_SHARD_SHARD_FLEET_H
#define WEFT_TESTS_SERVER_SHARD_SHARD_FLEET_H

#include "compress/compress.h"
#include "proto/proto.h"
#include "server/shard/shard_engine.h"
#include "transport/transport.h"

#define FLEET_SHARDS_MAX 4
#define FLEET_WORKERS_MAX 64
#define FLEET_TENSORS_MAX 10
#define FLEET_CHUNKS_MAX 96
#define FLEET_JOB 0x1234567890abcdefull
#define FLEET_EPOCH 3u

struct fleet_tensor_spec {
    const char *name, *codec, *optimizer;
    uint32_t dim_count;
    uint64_t dims[2];
    uint64_t chunk_elems;              /* 0: one chunk, as for a codec that cannot be cut */
    const char *consistency;           /* NULL: bsp */
    enum weft_dtype dtype, pull_dtype; /* 0: f32; as dtype */
    bool clips;                        /* three of four steps are clipped by their norm (fleet_clips) */
};

/* Faults that the test injects. */
struct fleet_faults {
    uint32_t repeat_percent; /* percent of pushes that are sent twice, or repeated from the step before */
    uint32_t other_lr_rank;  /* this rank has another learning rate from step other_lr_step on (0: never) */
    uint64_t other_lr_step;
    uint32_t again_percent;  /* percent of a shard's sends that return WEFT_ERR_AGAIN */
    uint32_t odd_rank;       /* 1 + the rank whose payloads have odd addresses; 0: none */
    uint32_t mutants;        /* of the engines: enum weft_shard_mutant */
    uint32_t map_mutants;    /* of the test's coordinator: enum fleet_mutant */
};
struct fleet_options {
    uint64_t seed;
    uint32_t shards, workers;
    size_t receive_bytes_max;
    size_t copy_bytes_max; /* memory for steps of copies; 0: 16 KiB */
    uint64_t round_deadline_ns;
    uint32_t hash_every;
    uint64_t move_rate;
    const struct fleet_tensor_spec *tensors;
    uint32_t tensor_count;
    bool weighted;           /* sample weights differ */
    int8_t loss_exponent;    /* f16 and bf16: gradients are sent times 2 to this power */
    uint64_t think_ns;       /* a worker's pushes of one step are spread over 0..think_ns, in random order */
    struct fleet_faults faults;
    const struct weft_topology *topology; /* at least shards + workers hosts; borrowed; NULL: ideal network */
    uint32_t state_blocks;  /* chunks whose workers can have states at once; 0: the engine's choice */
    uint64_t groups;        /* bit r: rank r sends the requests of one step of its loop in message groups */
    bool maps_payloads;     /* the shards read announced payloads in the workers' memory */
    bool ucx;               /* real connections over loopback instead of the simulator; no losses then */
    bool elastic;           /* engines that continue without lost workers: the test calls leave_epoch and
                           * enter_epoch */
    uint32_t first_workers; /* elastic: workers of the first epoch; 0: all */
    bool coordinate;        /* a lost worker fails every engine, with its name */
    bool copies;            /* every chunk is a slot with a copy on the next shard; 2 shards at least */
    uint32_t late;          /* with copies: of the shards, the last ones, which join later (fleet_add) */
};
/* A fail-over leaves the term as it is; a shard without the chunk, or with a part of it, leads. */
enum fleet_mutant {
    FLEET_MUTANT_SAME_TERM = 1,
    FLEET_MUTANT_WRONG_LEADER = 2,
    FLEET_MUTANT_NO_REPEAT = 4, /* workers repeat no round whose result they have */
    /* a shard that joins gets slots before it has the tensors, or before all workers are connected to it */
    FLEET_MUTANT_ADDED_UNDECLARED = 8,
    FLEET_MUTANT_ADDED_UNCONNECTED = 16,
    FLEET_MUTANT_UNFINISHED_COPY = 32
};

struct fleet;

/* One request of a worker and its reply. */
struct fleet_request {
    struct fleet_worker *worker;
    struct weft_wire_header header;
    struct weft_completion sent, received;
    struct weft_timer timer;
    struct fleet_request *next; /* the worker's open requests */
    bool open, done, answered, sending, timed;
    /* training, with copies: it was pushed in this step; the round's result has arrived; rounds before it,
     * or the round itself, are repeated under a new term */
    bool pushed, settled, repeating;
    bool measured;           /* of a clipped step: the squares have arrived; the next request is APPLY */
    enum weft_status status; /* the transport's, or the result's */
    struct weft_wire_header result;
    char text[WEFT_LIMIT_RESULT_TEXT_BYTES + 1];
    uint8_t *payload, *out; /* owned; out: payload of the result */
    size_t payload_bytes, out_bytes;
    uint32_t chunk_number; /* training: chunk number in the fleet */
};

struct fleet_chunk {
    uint32_t tensor, index, shard, candidate;
    uint32_t term, copy; /* of its slot; copy: shard + 1, 0: none */
    uint32_t move_to;    /* shard + 1 that the leader copies it to; 0: none */
    bool hands_over;     /* the leader is to stop, and the copy to lead */
    uint64_t answered;   /* largest step of which a worker has the result */
    uint64_t offset, count;
};

/* fleet_groups.c */
struct fleet_worker_groups {
    struct weft_timer timer;
    struct fleet_group *all, *open[FLEET_SHARDS_MAX];
    uint32_t number;
};
struct fleet_training {
    uint64_t step, last_step, step_began_ns;
    uint32_t left;       /* chunks of the step without a result */
    uint32_t unmeasured; /* of them clipped ones without their squares */
    bool finished;       /* all steps done, or failed */
    enum weft_status failure;
    char failure_text[WEFT_LIMIT_RESULT_TEXT_BYTES + 1];
};
/* Of the slots, by the newest Map that the worker has received. */
struct fleet_worker_map {
    struct weft_timer timer;
    uint32_t deaf_chunk; /* 1 + chunk whose results of term 1 are lost; 0: none */
    uint32_t leader[FLEET_CHUNKS_MAX], term[FLEET_CHUNKS_MAX];
    uint64_t answered[FLEET_CHUNKS_MAX]; /* last step of which it has the result; of chunks with a clock */
};
struct fleet_worker_codecs {
    struct weft_codec *codec[FLEET_TENSORS_MAX];
    float *weights[FLEET_TENSORS_MAX];     /* codec tensors with an optimiser */
    uint8_t *aggregate[FLEET_TENSORS_MAX]; /* codec tensors: received parts of the round */
    uint32_t gathered[FLEET_TENSORS_MAX];  /* number of chunks received */
    uint8_t round[FLEET_TENSORS_MAX];      /* of the codec's step */
};
struct fleet_worker {
    struct fleet *fleet;
    uint32_t rank, host, endpoint;
    struct weft_env *env;
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct fleet_request *open;
    uint32_t unexpected; /* results without an open request */
    bool lost[FLEET_SHARDS_MAX];
    bool killed, hold;
    struct weft_arrival *held[8];
    uint32_t held_count;
    struct fleet_worker_groups groups;
    struct fleet_training training;
    struct fleet_worker_map map;
    struct fleet_worker_codecs codecs;
    struct fleet_request request[FLEET_CHUNKS_MAX];
};

struct fleet_shard {
    struct fleet *fleet;
    uint32_t host, endpoint;
    struct weft_env *env;
    struct weft_loop *loop;
    struct weft_transport *transport;
    struct weft_shard_engine *engine;
    struct weft_timer map_timer;
    bool killed;
    bool given_up;                 /* lost for the coordinator, or has left: it gets no Map */
    bool is_absent;                /* it has not joined */
    bool leaves;                   /* its slots move to the others, then it is given up */
    struct weft_env engine_env;    /* the host's env with a counting allocator */
    uint64_t allocations;          /* by the engine so far */
    uint64_t allocations_declared; /* after all declarations: must not change */
    int64_t outstanding;
    uint64_t allocation_to_fail; /* this allocation fails; 0: none */
};

struct reference;

/* Payloads of failed sends. */
struct fleet_kept {
    struct fleet_kept *next;
    uint8_t *payload;
};

struct fleet_counts {
    uint32_t repeats; /* messages repeated on purpose */
    uint32_t groups_sent, groups_refused, results_in_groups;
    uint32_t wrong;  /* results that differ from the reference */
    uint32_t unheld; /* results of a step that the copy did not hold; Maps with such a copy */
    uint32_t moved, handed_over, moves_failed; /* slots */
    uint32_t added, left;                      /* shards */
    uint32_t unloaded;                         /* moves from shards that are slower than the fastest one */
    uint32_t diverged; /* copies that were dropped, because their bits differed from the leader's */
    uint32_t terms_fallen;                     /* slots of engines whose term is not that of the last Map */
    uint64_t longest_step_ns;                  /* of a worker */
};
struct fleet {
    struct fleet_options options;
    struct fleet_kept *kept; /* owned */
    struct weft_env env;
    struct weft_sim *sim;
    struct fleet_shard shard[FLEET_SHARDS_MAX];
    struct fleet_worker worker[FLEET_WORKERS_MAX];
    struct fleet_chunk chunk[FLEET_CHUNKS_MAX], chunk_before[FLEET_CHUNKS_MAX]; /* before: the last change */
    uint32_t chunk_count;
    struct weft_shape shape[FLEET_TENSORS_MAX];
    struct weft_codec_spec codec[FLEET_TENSORS_MAX];
    /* codec "auto"; fleet_train uses dense only */
    struct weft_codec_candidates candidates[FLEET_TENSORS_MAX];
    struct weft_optimizer optimizer[FLEET_TENSORS_MAX];
    struct reference *reference;
    uint64_t random;
    struct fleet_counts counts;
    uint32_t training; /* workers alive and not finished */
    bool done;
    uint64_t map_delay_ns;                     /* of Maps after a move */
    bool closes_lost; /* a shard that gets a Map closes its connection with the lost one, as workers do */
};

struct fleet *fleet_create(const struct fleet_options *options);
/* For tests of declare: an engine and a declaration of one tensor, without the asserts of fleet_create. */
enum weft_status fleet_engine_create(struct fleet_shard *shard, struct weft_shard_engine **out,
                                     struct weft_error *error);
enum weft_status fleet_declare(struct fleet *fleet, uint32_t tensor, struct weft_shard_engine *engine,
                               struct weft_error *error);
void fleet_free(struct fleet *fleet);
/* Sends rank 0's first weights of every chunk; runs until all are acknowledged. */
void fleet_install(struct fleet *fleet);
/* Every worker trains steps first..last. Runs until all live workers have finished; false after virtual 1,000
 * s. Results are compared with the reference: fleet->wrong counts differences. */
bool fleet_train(struct fleet *fleet, uint64_t first, uint64_t last);
/* The same in pieces, for tests that interfere meanwhile. end: false after virtual until_ns. */
void fleet_train_begin(struct fleet *fleet, uint64_t first, uint64_t last);
bool fleet_train_end(struct fleet *fleet, uint64_t until_ns);
/* Runs until the request is done; false after virtual 1,000 s. */
bool fleet_await(struct fleet *fleet, struct fleet_request *request);
/* Runs until no event is left or `ns` have passed. */
void fleet_settle(struct fleet *fleet, uint64_t ns);
/* While held, a worker receives no result; afterwards it receives all. */
void fleet_hold(struct fleet *fleet, uint32_t rank, bool hold);
void fleet_kill_worker(struct fleet *fleet, uint32_t rank);
void fleet_kill_shard(struct fleet *fleet, uint32_t shard);
/* ---- fleet_copies.c ---- */
/* First Map of all engines and workers. */
void fleet_copies_begin(struct fleet *fleet);
/* The coordinator abandons the shard: its copies lead. The others get the Map within delay_ns, at random. */
void fleet_fail_over(struct fleet *fleet, uint32_t shard, uint64_t delay_ns);
/* The leader copies the chunk to a live shard that neither leads nor copies it; a Map follows. No effect
 * during another move. */
void fleet_copy(struct fleet *fleet, uint32_t chunk_number, uint32_t shard);
/* The leader and the copy of the chunk change places. No effect without a copy, or during another move. */
void fleet_hand_over(struct fleet *fleet, uint32_t chunk_number);
/* An absent shard joins: all are connected to it, and it has the map and the tensors. */
void fleet_add(struct fleet *fleet, uint32_t shard);
/* The shard is to leave. No effect if fewer than two others would be left. */
void fleet_drain(struct fleet *fleet, uint32_t shard);
/* Moves the chunks of shards that are to leave. Call repeatedly. */
void fleet_drains_continue(struct fleet *fleet);
/* A chunk moves from the shard that leads most to the one that leads least, if that makes them more even.
 * by_load: in proportion to their speeds. */
void fleet_rebalance(struct fleet *fleet, bool by_load);
/* The shard has joined, lives, and is not to leave. */
bool fleet_is_live(const struct fleet *fleet, uint32_t shard);
uint32_t fleet_live_shards(const struct fleet *fleet);
/* As the coordinator does from time to time: the engine may have got the request before the Map. */
void fleet_moves_repeat(struct fleet *fleet);
void fleet_slot_report(void *context, const struct weft_slot_report *report);
/* Each chunk of the shard has a copy on a live shard. */
bool fleet_can_lose(const struct fleet *fleet, uint32_t shard);
/* The worker may accept this result. Counts results of a step that the copy does not hold. */
bool fleet_copies_admit(struct fleet_worker *worker, uint32_t chunk_number,
                        const struct weft_wire_header *result);
/* Pushes the request of an open step again, from round 0 of a codec, if its slot has a newer term. */
void fleet_copies_resend(struct fleet_request *request);
/* A result of a round that was repeated, and is not needed: pushes the next round. false: it is needed. */
bool fleet_copies_repeated(struct fleet_request *request);
/* Counts copies at live shards whose values after `step` differ from the reference, or whose residual or
 * result differs from the leader's. */
uint32_t fleet_wrong_copies(struct fleet *fleet, uint64_t step);
/* shard_fleet.c: the training's push; unlinks an open request first */
void fleet_push_again(struct fleet_request *request, uint8_t round);
/* shard_fleet.c: connects the shard with all others that live, except the worker with this rank plus one. */
void fleet_connect_shard(struct fleet *fleet, uint32_t shard, uint32_t except_worker);
uint64_t fleet_random(struct fleet *fleet);
/* Counts values at live shards that differ from the reference after the chunk's closed step. */
uint32_t fleet_wrong_values(struct fleet *fleet);

/* A valid header for a push of this chunk; tests change it. */
struct weft_wire_header fleet_header(struct fleet *fleet, uint32_t rank, uint32_t chunk_number,
                                     enum weft_wire_kind kind, uint64_t step);
/* Sends it (payload copied, `bytes` long); the request gets the result. `request` must be zeroed. */
void fleet_send(struct fleet *fleet, uint32_t rank, uint32_t shard, struct fleet_request *request,
                const struct weft_wire_header *header, const void *payload, size_t bytes);
/* The same with any bytes as header. */
void fleet_send_raw(struct fleet *fleet, uint32_t rank, uint32_t shard, struct fleet_request *request,
                    const void *header, uint32_t header_bytes, const void *payload, size_t bytes);
/* A chunk's part of a codec's round: in one worker's contribution, or in the aggregate. */
struct fleet_share {
    size_t at, bytes_max; /* tensors in several chunks: exactly this many */
};
struct fleet_share fleet_contribution(const struct fleet *fleet, const struct fleet_chunk *chunk,
                                      uint32_t round);
struct fleet_share fleet_aggregate(const struct fleet *fleet, const struct fleet_chunk *chunk,
                                   uint32_t round);
/* Pushes the correct dense contribution of a chunk. */
void fleet_push(struct fleet *fleet, uint32_t rank, uint32_t chunk_number, enum weft_wire_kind kind,
                uint64_t step, struct fleet_request *request);
void fleet_request_free(struct fleet *fleet, struct fleet_request *request);
struct shard_chunk *fleet_shard_chunk(struct fleet *fleet, uint32_t chunk_number);
struct shard_chunk *fleet_chunk_at(const struct fleet *fleet, uint32_t shard, uint32_t chunk_number);

/* ---- fleet_half.c ---- */
enum weft_dtype fleet_dtype(const struct fleet *fleet, uint32_t tensor);
enum weft_dtype fleet_pull_dtype(const struct fleet *fleet, uint32_t tensor);
/* To nearest even; f32 is unchanged. */
float fleet_half_round(enum weft_dtype dtype, float value);
/* The values rounded to the dtype; the caller frees them. */
void *fleet_pack(enum weft_dtype dtype, const float *values, uint64_t count, size_t *bytes_out);
/* The result of the chunk is `expected` (count,) in the dtype of results. */
bool fleet_result_is(const struct fleet *fleet, const struct fleet_chunk *chunk, const float *expected,
                     const void *result, size_t bytes);

/* ---- fleet_groups.c ---- */
static inline bool fleet_sends_groups(const struct fleet *fleet, uint32_t rank)
{
    return fleet->options.groups >> rank & 1;
}
void fleet_groups_init(struct fleet_worker *worker);
void fleet_groups_free(struct fleet_worker *worker);
/* The request travels in the worker's next group to the shard. */
void fleet_group_add(struct fleet_worker *worker, uint32_t shard,
                     const uint8_t header[WEFT_WIRE_HEADER_BYTES], const void *payload, size_t bytes);
/* In shard_fleet.c: a result of a group; a request without a reply of its own, payload copied. */
void fleet_result(struct fleet_worker *worker, const struct weft_wire_header *header, const void *payload);
void fleet_send_copy(struct fleet_worker *worker, uint32_t shard,
                     const uint8_t header[WEFT_WIRE_HEADER_BYTES], const void *payload, size_t bytes);

/* ---- shard_reference.c ---- */
uint64_t fleet_mix(uint64_t value);
float fleet_lr(uint64_t step);
float fleet_weight(const struct fleet *fleet, uint32_t rank, uint64_t step);
/* the whole tensor */
void fleet_gradient(const struct fleet *fleet, uint32_t rank, uint32_t tensor, uint64_t step, float *out);
void fleet_first_weights(const struct fleet *fleet, uint32_t tensor, float *out);
struct reference *reference_create(struct fleet *fleet);
void reference_free(struct reference *reference);
/* Values of a tensor after `step` (weights with an optimiser, otherwise the mean): computed on demand,
 * cached. */
const float *reference_values(struct reference *reference, uint32_t tensor, uint64_t step);
/* The sum of the contributions to a dense step. */
const float *reference_sum(struct reference *reference, uint32_t tensor, uint64_t step);
/* The tensor has consistency ssp or asp: its gradients are whole numbers times the workers (a power of two),
 * its rate is 1, and its first weights are 0. So each update is exact, in any order. */
static inline bool fleet_has_clock(const struct fleet *fleet, uint32_t tensor)
{
    return fleet->options.tensors[tensor].consistency != NULL;
}
/* The step of the tensor is clipped, and the factor of all clipped tensors of the step. */
bool fleet_clips(const struct fleet *fleet, uint32_t tensor, uint64_t step);
float fleet_factor(const struct fleet *fleet, uint64_t step);
/* The aggregate of a codec's round. */
const void *reference_aggregate(struct reference *reference, uint32_t tensor, uint64_t step, uint32_t round,
                                size_t *bytes_out);

#endif
