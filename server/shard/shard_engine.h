/* shard_engine.h - structs and functions of one shard engine. Only server/shard includes it.
 *
 *     transport handler            shard_request.c      checks an untrusted header, dispatches by kind
 *        | push                    shard_push.c         checks step, round, lr and weight
 *        |                         shard_receive.c      assigns receive memory to rounds, slots to workers
 *        |                         shard_clock.c        consistency ssp and asp: no rounds
 *        | memory                  shard_slots.c        bounded receive memory
 *        |                         shard_round.c        one round of one chunk: phases, fold, close, drop
 *        |                         shard_in_place.c     a round whose contributions are summed where they lie
 *        |                         shard_contributions.c  states of a chunk's workers, while they are in use
 *        |                         shard_half.c         contributions and results of f16 and bf16
 *        | pull, init              shard_pull.c         sends weights and states, receives the first ones
 *        v result                  shard_reply.c        RESULT messages, a fixed number in flight
 *                                  shard_group.h        small requests and results, several in one message
 *     Map                          shard_map.c          leader, copy and term of each slot
 *     closed step -> copy          shard_replicate.c    the leader's side: holds the result until the ack
 *     leader -> held, applied      shard_copy.c         the copy's side
 *     slot -> a further engine     shard_move.h         makes copies, hands leadership over
 *    snapshot                      shard_snapshot.c     copies of values and states after one step
 *
 * One thread: the owner of the engine's loop. After declare no function allocates, except for skips and
 * states. */
#ifndef WEFT_SERVER_SHARD_SHARD_ENGINE_H
#define WEFT_SERVER_SHARD_SHARD_ENGINE_H

#include "compress/compress.h"
#include "kernels/kernels.h"
#include "proto/proto.h"
#include "server/server.h"

#define SHARD_STEP_MAX (UINT64_MAX / 2) /* keeps step + 1 from wrapping */
#define SHARD_TEXT_BYTES 129 /* text of a RESULT, 128 bytes, and a NUL */

struct shard_chunk;
struct shard_tensor;

/* ---- receive memory (shard_slots.c) ---- */

/* One block of memory, reserved at create, with an address-ordered free list. Its pages are taken from the
 * start as they are needed. */
struct shard_arena {
    uint8_t *memory; /* owned */
    size_t bytes;
    size_t committed_bytes; /* pages are taken up to here; a multiple of WEFT_MEMORY_STEP_BYTES, or bytes */
    size_t used_bytes, peak_bytes;
    struct shard_span *free_spans;
};
/* is_mapped: peers on this host may write contributions into it themselves. */
enum weft_status shard_arena_init(struct shard_arena *arena, struct weft_env *env, size_t bytes,
                                  bool is_mapped);
void shard_arena_fini(struct shard_arena *arena, struct weft_env *env);
void *shard_arena_reserve(struct shard_arena *arena, size_t bytes); /* NULL: no free span is large enough */
void shard_arena_release(struct shard_arena *arena, void *memory, size_t bytes);

#include "server/shard/shard_group.h"

/* Header of a slot for one contribution. The payload follows it. Part of a round's block. */
struct shard_slot {
    struct weft_completion completion;
    struct shard_chunk *chunk;
    struct shard_slot *next_free;
    size_t payload_bytes;
    uint64_t accepted_ns; /* when the receive began */
    uint32_t worker;
};
#define SHARD_SLOT_HEAD_BYTES 64
_Static_assert(sizeof(struct shard_slot) <= SHARD_SLOT_HEAD_BYTES, "a slot's head fits its cache line");
static inline void *shard_slot_data(struct shard_slot *slot)
{
    return (uint8_t *)slot + SHARD_SLOT_HEAD_BYTES;
}
static inline struct shard_slot *shard_slot_of(void *data)
{
    return (struct shard_slot *)(void *)((uint8_t *)data - SHARD_SLOT_HEAD_BYTES);
}

/* The slots of one open round: one block of the arena. */
struct shard_slots {
    void *block;
    size_t block_bytes;
    uint32_t count, used;
    struct shard_slot *free_slots;
};
/* Bytes of a block for `slot_count` contributions of at most payload_bytes. */
size_t shard_slots_bytes(uint32_t slot_count, size_t payload_bytes);
bool shard_slots_open(struct shard_slots *slots, struct shard_arena *arena, uint32_t slot_count,
                      size_t payload_bytes);
void shard_slots_close(struct shard_slots *slots, struct shard_arena *arena);
struct shard_slot *shard_slots_alloc(struct shard_slots *slots); /* Precondition: a slot is free. */
void shard_slots_free(struct shard_slots *slots, struct shard_slot *slot);

/* ---- tables (shard_table.c) ---- */

/* State of one worker's contribution to the chunk's open round. */
enum shard_contribution_state {
    SHARD_CONTRIBUTION_NONE = 0,      /* not arrived */
    SHARD_CONTRIBUTION_ANNOUNCED = 1, /* the header has arrived; the payload is still at the worker */
    SHARD_CONTRIBUTION_RECEIVING = 2, /* the payload is being received into a slot */
    SHARD_CONTRIBUTION_HELD = 3,      /* the payload is in a slot; lower ranks are not folded yet */
    SHARD_CONTRIBUTION_FOLDED = 4,    /* the payload is in the sum */
};

/* A reply that a worker is due for a chunk. */
enum shard_reply_kind {
    SHARD_REPLY_NONE = 0,
    SHARD_REPLY_ACK = 1,   /* step and status of the last result, no payload */
    SHARD_REPLY_DATA = 2,  /* the last result */
    SHARD_REPLY_ERROR = 3, /* status and text of the chunk's last error */
};

/* One worker's state in one chunk. Written by the engine. */
struct shard_contribution {
    struct weft_arrival *arrival; /* ANNOUNCED: the contribution; else NULL. Of a dropped round that is being
                                   * summed in place: until that ends */
    /* ANNOUNCED: (count,) of the tensor's dtype in the worker's memory, mapped here; NULL: it must be
     * received. UNTRUSTED */
    const void *source;
    struct weft_arrival *pull;    /* a PULL that waits for its step, also in queues.pulls; NULL: none */
    struct shard_slot *slot;      /* RECEIVING, HELD */
    uint64_t pull_since_ns;
    uint64_t announced_ns;        /* when the contribution of the open round was announced */
    uint32_t late_us;             /* last closed round: time from this contribution to the last one */
    float weight;
    float factor;          /* of f16 and bf16: scales the widened gradient (shard_half.c) */
    uint8_t state;         /* enum shard_contribution_state */
    uint8_t reply_wanted;  /* enum shard_reply_kind: reply when the open round closes */
    uint8_t reply_pending; /* enum shard_reply_kind: reply to send now */
};

enum shard_phase {
    SHARD_PHASE_IDLE = 0,       /* no contribution of the next round has arrived */
    SHARD_PHASE_INSTALLING = 1, /* INIT or STATE_INIT: a payload is being received */
    SHARD_PHASE_WAITING = 2,    /* contributions are announced; the round has no receive memory yet */
    SHARD_PHASE_COLLECTING = 3, /* the round has receive memory; contributions are received and folded */
    SHARD_PHASE_CLOSING = 4,    /* all contributions are folded; the previous result is still being sent */
    SHARD_PHASE_DRAINING = 5,   /* the round was dropped; receives in flight still use its slots */
    SHARD_PHASE_APPLYING = 6,   /* a held sum is applied (shard_verdict.c) */
};

/* Copy of what the last close overwrote, if its step may be skipped or undone (shard_skip.c). */
struct shard_backup {
    /* (count,) each, owned, except that an undo swaps `values` with those of the chunk; NULL: not
     * allocated */
    float *values, *states[WEFT_OPTIMIZER_STATES_MAX], *residual;
    uint16_t *half;     /* as values */
    void *owned_values; /* memory behind values */
    void *owned_half;
    uint64_t step;                                            /* closed_step before that close */
    bool valid;
    uint16_t skips; /* skipped steps that the last request carried */
};

/* A change of the chunk that its copy must hold before its replies leave (shard_replicate.c). */
struct shard_hold {
    uint64_t step, step_before; /* step 0: first weights or a state; step_before: closed before it */
    const void *payload;        /* NULL: the step was skipped */
    size_t payload_bytes;
    /* owned: of a chunk with a codec, what closed the last step, the payload; of a chunk that was copied
     * here, the result of that step */
    void *coded;
    size_t coded_bytes;       /* of the last step */
    const float *sum;         /* of the last close, in its slots */
    struct shard_slots slots; /* of the sum: kept until its send has ended */
    struct weft_completion sent;
    struct weft_list link; /* replication.unsent */
    uint64_t due_ns;       /* time at which it became due */
    uint32_t worker;       /* of a chunk with a clock: the worker whose contribution it is */
    uint8_t part, flags;
    bool is_due;     /* the copy has not acknowledged it */
    bool is_sending; /* the send in flight reads the payload */
};

/* Comparison of the leader's values with those of its copy (shard_compare.c). */
struct shard_compare {
    struct weft_completion sent;
    uint64_t step; /* last step that was compared */
    bool is_sending;
};

/* A step that a copy receives and applies (shard_copy.c). */
struct shard_copy {
    struct weft_completion received;
    struct weft_wire_header request; /* of the leader; `worker` is its endpoint */
    void *payload;               /* in replication.memory, while it is received and applied; NULL: none is */
    bool saves;                  /* what it overwrites is saved */
    struct weft_wire_header ack; /* the answer to the leader; `worker` is its endpoint */
    struct weft_completion ack_sent;
    struct weft_list ack_link; /* replication.acks: the answer is to be sent */
    bool is_ack_sending;
    uint32_t rank;        /* of a chunk with a clock: the worker whose contribution it is */
    bool is_part;         /* the payload is a part of the chunk, received in place (shard_receive_copy.c) */
    uint32_t synced_term; /* term under which the leader has copied the whole chunk; 0: it has not */
    struct weft_list leave_link; /* replication.leaving: this engine no longer needs the chunk */
};
#include "server/shard/copies/shard_move.h"

/* Placement of the chunk, in a job with copies. */
struct shard_chunk_placement {
    uint32_t slot;
    bool is_at_home; /* on the endpoint of its declaration, which workers' hashes name */
    bool is_here;    /* its memory is on this engine; false only in a job with copies */
    /* owned; memory of values and half of a chunk that was copied here; NULL: tensor->values, halves */
    void *own_values, *own_half;
};

struct shard_chunk_coding {
    struct weft_codec_spec codec;   /* resolved codec of the chunk; with codec "auto" that of one candidate */
    struct weft_shape shape;        /* shape that the codec encodes: the tensor, or this chunk of it */
    uint32_t rounds;                /* rounds of one step */
    struct weft_combiner *combiner; /* owned; NULL: dense */
};

/* Result of the last closed round. Readers: sends in flight and pending replies. */
struct shard_result {
    uint64_t step;
    uint8_t round;
    bool is_resendable; /* a duplicate push may be answered with it */
    const void *data;
    size_t bytes;
    float lr, weight_sum;
    bool is_finite;           /* no gradient of its round had a NaN or an infinity */
    uint32_t sends;           /* sends in flight that read the values or the aggregate */
    uint32_t replies_pending; /* workers with reply_pending != NONE */
    uint32_t reply_cursor;
};

struct shard_open_round {
    uint64_t step; /* larger than closed_step; 0: none; set by the first contribution of a step */
    uint8_t phase; /* enum shard_phase; written by shard_round_enter only */
    uint8_t round;
    uint8_t flags; /* WEFT_WIRE_MAY_SKIP, WEFT_WIRE_CHECKED, WEFT_WIRE_DECAY: or of all contributions */
    bool holds;    /* the contributions are PUSH_HOLD */
    float lr, weight_decay;      /* weight_decay: with WEFT_WIRE_DECAY, else 0 */
    uint32_t lr_worker;
    uint32_t arrived, receiving; /* contributions not NONE; contributions RECEIVING */
    uint32_t sources;            /* before the round has memory: contributions with a source */
    bool in_place;               /* the round has memory for the sum alone */
    float *mean;                 /* the tensor's spare, while this round is summed into it; else NULL */
    uint32_t next;               /* lowest rank that is not folded */
    bool lacks_slot;             /* a contribution was not received because no slot was free */
    uint64_t first_ns;           /* start of the round's deadline */
    uint64_t opened_ns;          /* announcement of the first contribution */
    uint64_t announced_ns;       /* announcement of the last contribution */
    struct shard_slots slots;
    struct weft_tree_reduce fold;
};

/* INIT or STATE_INIT: a payload that is being received. */
struct shard_installation {
    struct weft_completion received;
    float *to;     /* destination of the payload: values or a state; of values in f16 or bf16 it is received
                    * in `half` */
    float *buffer; /* (count,) owned; receives a state, which is checked before it is copied. NULL: none */
    uint8_t round; /* round field of the INIT request */
};

/* Arithmetic of a fold or a close; a loop task if it exceeds WEFT_LOOP_SLICE elements. While `computing` is
 * true the engine must not use the chunk's slots, values and combiner. */
struct shard_arithmetic {
    struct weft_task task;
    bool computing;
    struct shard_slot *folding; /* the slot being folded; of a round in place: the slot of the sum */
    float grad_scale;           /* factor of a close: 1 / sum of weights */
    float *scratch;             /* engine->scratches.scratch when the close began */
    enum weft_status computed;  /* status of the fold or close */
    float *freed[32];           /* slots' payloads that the fold no longer needs */
    uint32_t freed_count;
};

/* The last error of the chunk. */
struct shard_chunk_error {
    enum weft_status status;
    uint64_t step;
    uint8_t round;
    char text[SHARD_TEXT_BYTES];
    uint64_t *unsent; /* (workers,) bits, owned: did not contribute to the dropped round, and gets its error
                       * on the next push of it */
};

/* Its entries in the lists of the engine. */
struct shard_chunk_links {
    struct weft_list waiting; /* engine->queues.waiting: phase WAITING */
    struct weft_list round;   /* engine->queues.rounds: WAITING, COLLECTING, CLOSING; oldest first */
    struct weft_list reply;   /* engine->queues.reply_queue: replies_pending > 0 */
    struct weft_list held;    /* engine->queues.held_chunks */
    uint32_t capture;         /* 1 + its entry in the armed snapshot, while that lacks the chunk; else 0 */
};

/* States of its workers. */
struct shard_chunk_workers {
    /* (workers,) in engine->memory.contributions, or own_contributions; NULL: no worker has a state
     * (shard_contributions.c) */
    struct shard_contribution *contributions;
    /* (workers_max,) owned; NULL: it uses a block of the pool */
    struct shard_contribution *own_contributions;
    float *weights; /* (workers,) owned: sample weights of round 0, which later rounds repeat; NULL: one
                     * round */
    uint32_t pulls_waiting; /* contributions with a pull */
    struct weft_list held;  /* arrivals that wait for contributions */
};

struct shard_chunk {
    struct shard_tensor *tensor;
    uint32_t index;
    struct shard_chunk_placement placement;
    struct shard_hold hold;
    struct shard_copy copy;
    struct shard_compare compare;
    struct shard_chunk_move *move; /* owned; NULL: it is not copied to another engine */
    uint64_t offset, count;         /* elements */
    struct shard_chunk_coding coding;

    float *values;    /* (count,) in tensor->values or of the backup: weights if there is an optimiser, else
                       * the last mean. Step 0: the first weights. NULL: a candidate of codec "auto" other
                       * than dense, which has no weights. */
    float *states[WEFT_OPTIMIZER_STATES_MAX]; /* (count,) each, owned; optimiser state; NULL: not used */
    /* (count,) in tensor->halves or of the backup: the values, rounded to the dtype of results. NULL: results
     * are the values */
    uint16_t *half;
    bool initialised; /* values hold first weights or a later step */
    uint64_t closed_step; /* watermark of every worker: contributions of this step and older ones are never
                           * folded again */
    struct shard_backup backup;

    struct shard_result result;
    struct shard_open_round open;
    struct shard_installation installation;
    struct shard_arithmetic work;
    struct shard_chunk_error error;
    struct shard_chunk_links links;
    struct shard_chunk_workers workers;
    struct shard_clock *clock;     /* owned; NULL: consistency bsp (shard_clock.h) */
    struct shard_verdict *verdict; /* owned; NULL: no step was clipped (shard_verdict.h) */
};

struct shard_tensor {
    struct weft_shard_engine *engine;
    uint32_t id;
    char name[WEFT_LIMIT_NAME_BYTES + 1];
    struct weft_shape shape;
    struct weft_codec_candidates candidates; /* codecs of its chunks; count 1: one codec */
    struct weft_optimizer optimizer;         /* none with codec "auto": the workers update */
    struct weft_consistency consistency;
    enum weft_dtype dtype, pull_dtype;       /* of contributions and first weights; of results */
    uint32_t chunk_count;                    /* chunks on this endpoint; with copies all, see is_here */
    uint32_t home_count;                     /* of them at home */
    struct shard_chunk *chunks;              /* owned, sorted by index */
    void *values; /* owned: the values of all its chunks; mapped by peers on this host if that can pay */
    size_t values_stride; /* bytes of one chunk's values in it */
    void *halves;         /* owned, as `values`: `half` of all its chunks; NULL: results are f32 */
    size_t half_stride;
    /* in `values`: a mean may be written here and exchanged with its chunk's values; NULL: in use, or none */
    float *spare;
    uint64_t hash_step[2];                   /* steps of the last two sums; 0: none */
    uint64_t hash[2];                        /* sums over all chunks on this endpoint */
    uint64_t hashing_step, hashing;          /* sum over the hashing_chunks chunks that have closed
                                              * hashing_step */
    uint32_t hashing_chunks;
    bool released;                  /* all workers have freed it; this memory is freed when nothing uses it
                                     * (shard_release.c) */
};

/* ---- the engine ---- */

/* One RESULT in flight. */
struct shard_reply {
    struct weft_completion completion;
    struct weft_shard_engine *engine;
    struct shard_chunk *chunk; /* chunk whose memory the send reads; NULL: none */
    struct shard_version *version; /* of a chunk with a clock: the values that the send reads; NULL: none */
    struct shard_reply *next_free;
};

struct shard_worker {
    uint32_t endpoint;
    uint64_t incarnation;
    bool lost; /* its connection is lost; logged once */
    bool left; /* sent Leave when that was due (shard_worker_left.c) */
};

/* Leader and copy of a slot, by its newest Map. The quiet flags are of this term (shard_handover.c). */
struct shard_map_slot {
    uint32_t term, leader; /* endpoint; term 0: no Map has named the slot */
    uint32_t copy;         /* endpoint + 1; 0: none */
    bool is_quiet;         /* this engine leads it and admits no request until the next term */
    bool is_reported;      /* the coordinator has been notified that no change is under way */
};

struct shard_replication {
    struct shard_map_slot *slots; /* (WEFT_LIMIT_SLOTS,) owned; NULL: a job without copies */
    struct shard_arena memory;    /* payloads that copies have received and not applied */
    struct weft_list unsent;      /* struct shard_hold.link: to be sent to the copy */
    struct weft_list acks;        /* struct shard_copy.ack_link: to be sent to the leader */
    struct weft_list waiting;     /* arrivals: of leaders, which wait for memory, an earlier step or a Map */
    struct weft_list newer_terms; /* arrivals: requests of workers that have a newer Map */
    bool leaders_changed;         /* since the first Map: workers' hashes may be of other sets of chunks */
    uint32_t mutants;             /* enum weft_shard_mutant */
    struct weft_list moves;       /* struct shard_move.link: slots that are being copied from here */
    struct weft_list leaving;     /* struct shard_copy.leave_link */
    size_t moving_bytes;          /* of parts that are not acknowledged */
    struct {
        uint64_t rate, due_ns; /* rate: bytes per s, 0: no limit; due_ns: no chunk starts before */
        struct weft_timer timer;
    } move_pace;
    uint32_t quiet_count;         /* slots with is_quiet that are not reported */
    void (*report)(void *context, const struct weft_slot_report *report);
    void *report_context;
};

enum { SHARD_SCRATCHES = 64 }; /* each scratch is at least twice as large as the one before */

/* Arguments of the engine's creation. */
struct shard_settings {
    uint64_t job;
    uint32_t wire_version; /* of the job */
    uint64_t round_deadline_ns;
    uint32_t hash_every;
    size_t round_bytes;    /* a further round opens only while the open ones have less memory */
    bool elastic;          /* a lost worker need not end the job (shard_members.c) */
    bool maps;             /* peers on this host can map memory of weft_memory_alloc */
};

struct shard_members {
    struct shard_worker *worker; /* (workers_max,) owned */
    uint32_t workers_max;        /* of any epoch */
    uint32_t left_count;         /* entries of worker[] with left */
    bool worker_left_check_due;  /* a contribution was removed: check the rounds for workers that have left */
};

/* The membership of the next epoch (shard_members.c). */
struct shard_epoch_change {
    uint32_t newest_epoch;            /* newest epoch heard of; larger than epoch: rounds of `epoch` were
                                       * discarded */
    bool enters_epoch;                /* next_* take effect when every chunk is idle */
    uint32_t next_epoch, next_workers;
    uint64_t next_committed;          /* last good step of the workers of next_epoch */
    struct shard_worker *next_worker; /* (workers_max,) owned */
    struct weft_list newer_epoch;     /* arrivals of epochs that are newer than `epoch` */
};

struct shard_tensor_table {
    struct shard_tensor **tensors; /* (capacity,) by id, owned; NULL: no chunk on this endpoint */
    uint32_t capacity;
    uint32_t releasing;            /* released tensors that are still in use */
};

struct shard_scratches {
    float *scratch; /* (count,) owned; receives a decoded step for the optimiser */
    uint64_t count;
    float *retired[SHARD_SCRATCHES]; /* earlier scratches; a task may still write to them */
    uint32_t retired_count;
};

struct shard_memory {
    struct shard_arena arena;         /* of rounds */
    struct shard_arena contributions; /* states of workers */
};

struct shard_queues {
    struct weft_list held_chunks; /* chunks with held requests, oldest first */
    struct weft_list waiting;     /* chunks that wait for receive memory, in order of announcement */
    struct weft_list rounds;      /* chunks with an open round, by first contribution */
    struct weft_list reply_queue; /* chunks with replies to send */
    struct weft_list pulls;       /* arrivals: pulls that wait for their step, oldest first */
    struct weft_list deferred;    /* arrivals that the next pump handles again from the start */
    bool opening;                 /* shard_receive_open_waiting is running */
    bool accept_again;            /* an accept returned WEFT_ERR_AGAIN: try again */
};

/* Contributions of tensors with a clock (shard_clock.c). */
struct shard_clock_queues {
    struct shard_slot *slot;                 /* owned: a contribution beside the arena; NULL: none */
    struct weft_list receive, waits, apply;  /* struct shard_clock.*_link */
};

/* RESULT messages (shard_reply.c). */
struct shard_reply_pool {
    struct shard_reply *replies; /* (reply_count,) owned */
    struct shard_reply *free_replies;
    uint32_t replies_in_flight;
    bool blocked;    /* no free reply, or a send returned WEFT_ERR_AGAIN: the pump stops until an event */
    bool pumping, pump_again;
};

struct shard_timers {
    struct weft_timer deadline, retry, release, open;
};

struct shard_end {
    bool closed;             /* uses neither transport nor timers any more */
    enum weft_status failed; /* WEFT_OK, or the status that every request gets */
    char failed_text[SHARD_TEXT_BYTES];
};

struct weft_shard_engine {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_loop *loop;
    struct weft_event_ring *events;
    const struct weft_kernels *kernels;
    uint32_t endpoint, epoch, workers;
    struct shard_settings settings;
    struct shard_members members;
    struct shard_epoch_change epoch_change;
    struct shard_tensor_table table;
    struct shard_scratches scratches;
    struct shard_replication replication;
    struct shard_memory memory;
    struct shard_groups groups;
    struct shard_queues queues;
    struct shard_clock_queues clock;
    struct shard_reply_pool reply_pool;
    struct shard_timers timers;
    struct shard_snapshot *snapshot; /* owned; NULL: none is armed (shard_snapshot.c) */
    uint64_t newest_step;            /* largest step of an accepted push */
    struct shard_end end;
    struct weft_shard_engine_stats stats;
    struct {
        uint32_t active; /* receives and tasks under way */
        uint64_t began_ns;
        uint64_t last_round_ns; /* last contribution to the round that closed last; 0: none has closed */
    } work;
};

/* shard_table.c */
enum weft_status shard_table_add(struct weft_shard_engine *engine, const Weft__Control__Declared *declared,
                                 struct weft_error *error);
void shard_table_free(struct weft_shard_engine *engine);
/* Memory of a chunk that is not here. WEFT_ERR_NO_MEMORY */
enum weft_status shard_table_reserve_chunk(struct shard_chunk *chunk);
/* Releases what can be released of a chunk that is unused: its place in tensor->values remains. */
void shard_table_release_chunk(struct shard_chunk *chunk);
/* The chunk is on this engine, for the statistics, or no longer. */
void shard_table_count(struct shard_chunk *chunk, bool is_here);
/* frees the memory; the tensor is unused and in no table */
void shard_table_drop(struct shard_tensor *tensor);
/* shard_release.c */
void shard_release_on_timer(struct weft_timer *timer);
/* Nothing in flight uses the chunk. */
bool shard_chunk_is_unused(const struct shard_chunk *chunk);
/* runs on a timer, because the caller may use the chunk */
void shard_release_schedule(struct weft_shard_engine *engine);
/* The chunk's array of an enum weft_wire_part; NULL: it has no such state. */
float *shard_chunk_state(const struct shard_chunk *chunk, uint8_t part);
/* NULL: no chunk on this endpoint */
struct shard_tensor *shard_table_tensor(struct weft_shard_engine *engine, uint32_t id);
/* NULL: not on this endpoint */
struct shard_chunk *shard_table_chunk(struct shard_tensor *tensor, uint32_t index);
static inline bool shard_chunk_is_dense(const struct shard_chunk *chunk)
{
    return chunk->coding.codec.id == WEFT_CODEC_DENSE;
}
/* Bytes of the longest contribution to a round; fewest slots that a round needs. */
size_t shard_chunk_contribution_bytes(const struct shard_chunk *chunk, uint8_t round);
/* Bytes of a slot for it: a dense one becomes a partial sum of f32. */
size_t shard_chunk_slot_bytes(const struct shard_chunk *chunk, uint8_t round);
uint32_t shard_chunk_slots_min(const struct shard_chunk *chunk);

/* Its values or its workers' weights depend on what a codec has sent: a discarded step is undone. */
static inline bool shard_tensor_has_codec(const struct shard_tensor *tensor)
{
    return tensor->candidates.count > 1 || tensor->candidates.specs[0].id != WEFT_CODEC_DENSE;
}

/* shard_contributions.c */
enum weft_status shard_contributions_init(struct weft_shard_engine *engine, size_t receive_bytes);
/* false: no block is free; hold the request. */
bool shard_contributions_take(struct shard_chunk *chunk);
void shard_contributions_release(struct shard_chunk *chunk); /* if no worker's state is in use */
void shard_contributions_hold(struct shard_chunk *chunk, struct weft_arrival *arrival);
/* Assigns free blocks to chunks with held requests, which are then deferred. */
void shard_contributions_serve(struct weft_shard_engine *engine);
void shard_contributions_defer_held(struct weft_shard_engine *engine); /* all of them, without blocks */
void shard_contributions_drop(struct shard_chunk *chunk);              /* the chunk ends */
static inline enum shard_contribution_state shard_contribution_state(const struct shard_chunk *chunk,
                                                                     uint32_t worker)
{
    return chunk->workers.contributions
               ? (enum shard_contribution_state)chunk->workers.contributions[worker].state
               : SHARD_CONTRIBUTION_NONE;
}
static inline bool shard_error_is_unsent(const struct shard_chunk *chunk, uint32_t worker)
{
    return chunk->error.unsent[worker / 64] >> worker % 64 & 1;
}
static inline void shard_error_set_unsent(struct shard_chunk *chunk, uint32_t worker, bool is_unsent)
{
    const uint64_t bit = (uint64_t)1 << worker % 64;
    if (is_unsent) chunk->error.unsent[worker / 64] |= bit;
    else chunk->error.unsent[worker / 64] &= ~bit;
}

/* shard_request.c */
void shard_request_handle(struct weft_shard_engine *engine, struct weft_arrival *arrival);
void shard_request_arrived(void *context, struct weft_arrival *arrival);

/* shard_push.c */
void shard_push_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                        struct weft_arrival *arrival);

/* Replies to a push of a closed round: the result again, or WEFT_ERR_STALE. Needs no states of workers. */
void shard_push_again(struct shard_chunk *chunk, const struct weft_wire_header *header,
                      struct weft_arrival *arrival);

/* shard_receive.c */
/* A chunk in phase WAITING requests memory, unless its round may still be summed in place. */
void shard_receive_queue(struct shard_chunk *chunk);
/* Gives memory to rounds that wait for it, then receives what their slots allow. */
void shard_receive_open_waiting(struct weft_shard_engine *engine);
void shard_receive_on_timer(struct weft_timer *timer);
void shard_receive_fill(struct shard_chunk *chunk);
/* Receives an ANNOUNCED contribution. false: not possible now, nor for a higher rank. */
bool shard_receive_one(struct shard_chunk *chunk, uint32_t worker);
/* Accepts the worker's announced contribution into the slot. An error changes nothing but the slot. */
enum weft_status shard_receive_accept(struct shard_chunk *chunk, uint32_t worker, struct shard_slot *slot,
                                      void (*done)(struct weft_completion *, enum weft_status));
/* Call when a receive of a contribution, or a sum in place, begins, and when it ends. The engine counts
 * the time in which any of them runs. */
void shard_work_begin(struct weft_shard_engine *engine);
void shard_work_end(struct weft_shard_engine *engine);
/* Slots that partial sums use after ranks 0..added-1 are folded. */
uint32_t shard_round_partials(const struct shard_chunk *chunk, uint32_t added);

/* shard_half.c */
/* The chunk's contributions are f16 or bf16. */
static inline bool shard_half_is_pushed(const struct shard_chunk *chunk)
{
    return chunk->tensor->dtype != WEFT_F32;
}
/* Sets the factor of an ANNOUNCED contribution. */
void shard_half_push(const struct shard_chunk *chunk, const struct weft_wire_header *header,
                     struct shard_contribution *contribution);
/* The factor of a mean also undoes what shard_half_push has scaled all contributions by. */
float shard_half_unscale(const struct shard_chunk *chunk);
/* Where in a slot a contribution is received, so that shard_half_widen can widen it. */
void *shard_half_place(const struct shard_chunk *chunk, struct shard_slot *slot);
/* The contribution in the slot becomes f32, scaled. Any thread. */
void shard_half_widen(const struct shard_chunk *chunk, struct shard_slot *slot);
/* out (count,) = T over the scaled sources of all workers. Returns max_abs_bits_f32 of it. Any thread. */
uint32_t shard_half_sum(const struct shard_chunk *chunk, float *out);
/* Rounds the values to `half`, if the chunk has one. Call when the values have changed. Any thread. */
void shard_half_round(struct shard_chunk *chunk);
/* The same for the copy of what the last close overwrote, after its values were received. Any thread. */
void shard_half_round_backup(struct shard_chunk *chunk);
/* First weights were received in `half`: widens them to the values. */
void shard_half_install(struct shard_chunk *chunk);
/* What results and pulls carry: `half`, else the values. */
static inline const void *shard_chunk_result(const struct shard_chunk *chunk)
{
    return chunk->half ? (const void *)chunk->half : chunk->values;
}
static inline size_t shard_chunk_result_bytes(const struct shard_chunk *chunk)
{
    return chunk->count * (chunk->half ? sizeof *chunk->half : sizeof *chunk->values);
}

/* shard_in_place.c */
/* Finds where the contribution of an ANNOUNCED push lies. */
void shard_in_place_find(struct shard_chunk *chunk, struct shard_contribution *contribution);
/* All contributions of the round so far can be summed where they lie. */
bool shard_in_place_is_possible(const struct shard_chunk *chunk);
/* A round in place without other use of its sum is summed, scaled, into the tensor's spare. Precondition of
 * both: phase COLLECTING. */
bool shard_in_place_takes_spare(struct shard_chunk *chunk);
/* Sums the contributions of all workers: true if it is done, false if it continues as a task. */
bool shard_in_place_sum(struct shard_chunk *chunk);
/* Ends the arrivals that the task of a dropped round has read. */
void shard_in_place_drained(struct shard_chunk *chunk);

/* shard_round.c */
void shard_round_enter(struct shard_chunk *chunk, enum shard_phase phase);
/* Runs `run` as the chunk's task: on the compute thread if it exceeds WEFT_LOOP_SLICE elements. */
void shard_round_start_task(struct shard_chunk *chunk, void (*run)(struct weft_task *),
                            void (*done)(struct weft_task *), uint64_t elements);
/* After INSTALLING or DRAINING: continue with contributions that arrived meanwhile. */
void shard_round_resume(struct shard_chunk *chunk);
/* Folds the next ranks that are HELD; closes the round after the last rank. */
void shard_round_advance(struct shard_chunk *chunk);
/* Computes the factor of the mean from the weights. false: they are 0, or too large or too small. */
bool shard_round_scale(struct shard_chunk *chunk);
/* Call when the sum is complete. Records whether the sum is finite, and returns true if an infinite sum or
 * a NaN skips the step. Any thread. */
bool shard_round_is_skipped(struct shard_chunk *chunk);
/* The values are those of the open step: ends the round with its result. */
void shard_round_closed(struct shard_chunk *chunk);
/* Ends the round without a result. Its contributors get `status` and `text` now, other workers on their next
 * push of it. */
void shard_round_drop(struct shard_chunk *chunk, enum weft_status status, const char *text);
/* Ends the round without notifying the workers: the coordinator does. */
void shard_round_forget(struct shard_chunk *chunk);
/* DRAINING: releases the slots if no receive and no task uses them. */
void shard_round_finish_drain(struct shard_chunk *chunk);
/* A close task is writing the values. */
static inline bool shard_round_is_closing(const struct shard_chunk *chunk)
{
    return chunk->open.phase == SHARD_PHASE_CLOSING && chunk->work.computing;
}
/* The last reader of the result has finished: closes or folds what waited for it. */
void shard_round_result_released(struct shard_chunk *chunk);
/* "rank 1, 4 and 7": workers without a contribution to the round; "": none. */
void shard_round_describe_missing(const struct shard_chunk *chunk, char *out, size_t out_bytes);
static inline bool shard_result_is_in_use(const struct shard_chunk *chunk)
{
    return chunk->result.sends > 0 || chunk->result.replies_pending > 0 || chunk->hold.is_due ||
           chunk->hold.is_sending || shard_move_is_in_use(chunk->move);
}

/* shard_pull.c */
void shard_pull_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                        struct weft_arrival *arrival);
void shard_pull_reply_waiting(struct shard_chunk *chunk); /* call after a close or an install */
void shard_install_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                           struct weft_arrival *arrival);
/* STATE_PULL and STATE_INIT */
void shard_state_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                         struct weft_arrival *arrival);

/* shard_reply.c */
enum weft_status shard_reply_init(struct weft_shard_engine *engine, uint32_t count);
void shard_reply_fini(struct weft_shard_engine *engine);
/* Replies to a request and ends its arrival. If no reply can be sent now, the request is deferred. */
void shard_reply_refuse(struct weft_shard_engine *engine, struct weft_arrival *arrival,
                        const struct weft_wire_header *header, enum weft_status status, const char *format,
                        ...) __attribute__((format(printf, 5, 6)));
/* The same with the chunk's last result (duplicates) or with `data`, (count,) (pulls). false: the request was
 * deferred. */
bool shard_reply_result(struct shard_chunk *chunk, struct weft_arrival *arrival,
                        const struct weft_wire_header *header, enum shard_reply_kind kind);
bool shard_reply_values(struct shard_chunk *chunk, struct weft_arrival *arrival,
                        const struct weft_wire_header *header, const float *data);
/* Replies without a payload to a repeated request whose result no worker needs. */
void shard_reply_passed(struct weft_shard_engine *engine, struct weft_arrival *arrival,
                        const struct weft_wire_header *header);
/* Sets a worker's pending reply; the pump sends it. */
void shard_reply_note(struct shard_chunk *chunk, uint32_t worker, enum shard_reply_kind kind);
void shard_reply_pump(struct weft_shard_engine *engine);
/* The completion of a reply of engine->reply_pool.free_replies, which is free again. */
void shard_reply_sent(struct weft_completion *completion, enum weft_status status);
void shard_reply_defer(struct weft_shard_engine *engine, struct weft_arrival *arrival);
void shard_reply_defer_all(struct weft_shard_engine *engine, struct weft_list *arrivals);

/* shard_worker_left.c */
/* Refuses requests that wait for a worker that has left. May drop the round. */
void shard_worker_left_check(struct shard_chunk *chunk);
void shard_worker_left_check_all(struct weft_shard_engine *engine);

/* shard_map.c */
enum weft_status shard_map_init(struct weft_shard_engine *engine, size_t copy_bytes);
void shard_map_fini(struct weft_shard_engine *engine);
void shard_map_close(struct weft_shard_engine *engine); /* the engine closes: ends the waiting arrivals */
static inline bool shard_map_is_on(const struct weft_shard_engine *engine)
{
    return engine->replication.slots != NULL;
}
/* The chunk's values are on this engine, as leader or copy. */
bool shard_map_has(const struct weft_shard_engine *engine, const Weft__Control__Chunk *chunk);
static inline const struct shard_map_slot *shard_map_slot(const struct shard_chunk *chunk)
{
    return &chunk->tensor->engine->replication.slots[chunk->placement.slot];
}
/* Of messages that the chunk's leader sends; 0 in a job without copies. */
static inline uint32_t shard_map_term(const struct shard_chunk *chunk)
{
    return shard_map_is_on(chunk->tensor->engine) ? shard_map_slot(chunk)->term : 0;
}
/* Replies to workers are this engine's. */
static inline bool shard_map_leads(const struct shard_chunk *chunk)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    return !shard_map_is_on(engine) || shard_map_slot(chunk)->leader == engine->endpoint;
}
/* Some rounds of a codec's step have closed, and another engine begins it anew: as a copy this one has no
 * open step. */
void shard_map_forget_step(struct shard_chunk *chunk);
/* Another engine will lead the chunk: open rounds are discarded, and workers get no further reply. */
void shard_map_stop_leading(struct shard_chunk *chunk);
/* May this engine handle the worker's request? Otherwise the arrival has ended, or waits for a Map. */
bool shard_map_admits(struct shard_chunk *chunk, const struct weft_wire_header *header,
                      struct weft_arrival *arrival);

/* shard_replicate.c */
/* The replies of the chunk wait until the copy holds this change. Call before they are noted. `part`: enum
 * weft_wire_change, of step 0 enum weft_wire_part. payload NULL: `step` was skipped. No effect on a slot
 * without a copy. */
void shard_replicate(struct shard_chunk *chunk, uint64_t step, uint64_t step_before, uint8_t part,
                     const void *payload);
/* The same for the step that the chunk closes. Call before its slots are released. */
void shard_replicate_close(struct shard_chunk *chunk, uint64_t step_before);
/* Bytes of a dense change. */
size_t shard_replicate_payload_bytes(const struct shard_chunk *chunk, uint64_t step, uint8_t part,
                                     bool has_payload);
/* Most bytes of a change that the chunk's copy receives. */
size_t shard_replicate_bytes_max(const struct shard_chunk *chunk);
/* Of them, what closes a codec's step with any number of workers; 0: dense. */
size_t shard_replicate_coded_bytes_max(const struct shard_chunk *chunk);
/* A codec's step has closed: keeps what its copy needs. Any thread. */
void shard_replicate_save(struct shard_chunk *chunk);
/* Workers repeat the rounds of a codec's step under each term of the slot. */
static inline bool shard_rounds_are_repeated(const struct shard_chunk *chunk)
{
    return shard_map_is_on(chunk->tensor->engine) && chunk->coding.rounds > 1;
}
/* Replies must wait. */
static inline bool shard_replicate_holds(const struct shard_chunk *chunk)
{
    const uint32_t mutants = chunk->tensor->engine->replication.mutants;
    return (chunk->hold.is_due && !(mutants & WEFT_MUTANT_REPLY_BEFORE_ACK)) ||
           (shard_move_holds(chunk->move) && !(mutants & WEFT_MUTANT_REPLY_BEFORE_NEW_COPY));
}
void shard_replicate_acked(struct shard_chunk *chunk, uint32_t peer_id,
                           const struct weft_wire_header *header);
/* The slot has a new term, and this engine leads it: sends what is due again, or replies if it has no copy.
 * */
void shard_replicate_map_changed(struct shard_chunk *chunk);
void shard_replicate_pump(struct weft_shard_engine *engine);
/* Sends the change of chunk->hold to a copy. WEFT_ERR_AGAIN: not now. */
enum weft_status shard_replicate_change(struct shard_chunk *chunk, uint32_t endpoint,
                                        struct weft_completion *completion);
/* All copies hold the change, or there is none: replies may leave. */
void shard_replicate_check(struct shard_chunk *chunk);
/* Sends a message of kind REPLICATE or REPLICATED. WEFT_ERR_AGAIN: not now. */
enum weft_status shard_replicate_send(struct weft_shard_engine *engine, uint32_t endpoint,
                                      const struct weft_wire_header *header, const void *payload,
                                      struct weft_completion *completion);

/* shard_copy.c */
void shard_copy_arrived(void *context, struct weft_arrival *arrival);
/* Sends answers to leaders, and handles their arrivals that wait. */
void shard_copy_pump(struct weft_shard_engine *engine);
/* Queues the answer to the leader. */
void shard_copy_answer(struct shard_chunk *chunk, const struct weft_wire_header *request,
                       enum weft_status status);
/* Call when the copy has the leader's result of request->step. Stores its step, round, rate and weights. */
void shard_copy_note_result(struct shard_chunk *chunk, const struct weft_wire_header *request);
/* The leader has answered workers that the step is skipped: so does this engine if it leads later. */
void shard_copy_note_skip(struct shard_chunk *chunk, uint64_t step);
/* A message of a leader cannot be handled now. */
static inline bool shard_copy_is_busy(const struct shard_chunk *chunk)
{
    return chunk->copy.payload || !weft_list_empty(&chunk->copy.ack_link) || chunk->copy.is_ack_sending ||
           chunk->open.phase != SHARD_PHASE_IDLE || chunk->work.computing;
}

/* shard_compare.c */
/* Call when the copy has acknowledged the closed step. Sends the hash of the values, if a comparison is
 * due. */
void shard_compare_send(struct shard_chunk *chunk);
/* Returns how to handle a COMPARE. *status_out is the status of the answer. */
enum shard_copy_next shard_compare_received(const struct shard_chunk *chunk,
                                            const struct weft_wire_header *request,
                                            enum weft_status *status_out);
/* Handles the answer to a COMPARE. Returns false if it answers another message. */
bool shard_compare_answered(struct shard_chunk *chunk, uint32_t peer_id,
                            const struct weft_wire_header *header);

/* shard_hash.c */
/* shard_skip.c. needs_copy: the close of the open step copies what it overwrites. reserve: allocates the
 * copies; WEFT_ERR_NO_MEMORY. save: makes them; any thread. exchange: instead, if the step has written its
 * values to backup.values; any thread. undo: call before handling a request; undoes the
 * step that its worker has skipped. WEFT_ERR_AGAIN: the round is draining, retry. undo_after: undoes a step
 * after `committed`; the chunk is idle. WEFT_ERR_STATE: there is no copy of that step. */
bool shard_skip_needs_copy(const struct shard_chunk *chunk);
enum weft_status shard_skip_undo_after(struct shard_chunk *chunk, uint64_t committed);
enum weft_status shard_skip_reserve(struct shard_chunk *chunk);
void shard_skip_save(struct shard_chunk *chunk);
void shard_skip_exchange(struct shard_chunk *chunk);
enum weft_status shard_skip_undo(struct shard_chunk *chunk, const struct weft_wire_header *header);
void shard_skip_free(struct shard_chunk *chunk);
void shard_hash_forget(struct shard_tensor *tensor, uint64_t step); /* the step was undone */
void shard_hash_step(struct shard_chunk *chunk);

/* shard_snapshot.c */
/* Call before a push is accepted. false: the chunk must be captured first, and there is no memory for that;
 * defer the push. */
bool shard_snapshot_admit(struct shard_chunk *chunk, const struct weft_wire_header *header);
/* Call before an update of a chunk with a clock: captures it if it is due and there is memory. */
void shard_snapshot_capture(struct shard_chunk *chunk);
void shard_snapshot_forget(struct weft_shard_engine *engine); /* of the armed snapshot: frees the memory */

/* shard_members.c */
/* Forgets the replies and errors that workers are due. */
void shard_members_clear_replies(struct shard_chunk *chunk);
/* if an epoch is pending and every chunk is idle */
void shard_members_enter_epoch(struct weft_shard_engine *engine);

/* shard_engine.c */
/* The job's wire version has the message. */
static inline bool shard_engine_speaks(const struct weft_shard_engine *engine,
                                       const struct weft_wire_header *header)
{
    return engine->settings.wire_version >= WEFT_WIRE_VERSION ||
           weft_wire_version_of_header(header) <= engine->settings.wire_version;
}
/* removes it from engine->queues.pulls */
void shard_engine_pull_removed(struct weft_shard_engine *engine, struct weft_arrival *arrival);
void shard_engine_worker_lost(struct weft_shard_engine *engine, uint32_t worker);
/* Memory, a reply or a send became free: serves the requests that wait for it. */
void shard_engine_resume(struct weft_shard_engine *engine);
void shard_engine_schedule_retry(struct weft_shard_engine *engine);
void shard_engine_discard_all(struct weft_shard_engine *engine, struct weft_list *arrivals);
void shard_engine_watch_deadlines(struct weft_shard_engine *engine);

#endif
