/* shard_engine.h - what the files of one shard engine share; nobody else includes it.
 *
 *     transport handler            shard_request.c   every check of an untrusted header, then push / pull / init
 *        | push                    shard_push.c      is it due, is it usable
 *        |                         shard_receive.c   which round gets memory, which worker sends now
 *        | memory                  shard_slots.c     the bounded receive memory rounds are opened from
 *        |                         shard_round.c     one round of one chunk: phases, fold, close, drop
 *        | pull, init              shard_pull.c      weights and states out, first ones in
 *        v result                  shard_reply.c     RESULT messages, a fixed number in flight
 *     tables                       shard_table.c     tensors and chunks made at declare
 *     life, deadlines, failure     shard_engine.c
 *     weight hashes                shard_hash.c
 *     workers become fewer         shard_members.c
 *
 * Words (docs/glossary.md): a *contribution* is what one worker pushes in one round; a *round* of a chunk
 * takes one contribution of every worker; a dense step has one round, a codec's step as many as the codec.
 *
 * One thread: everything here runs on the owner of the engine's loop. After declare nothing allocates. */
#ifndef WEFT_SERVER_SHARD_SHARD_ENGINE_H
#define WEFT_SERVER_SHARD_SHARD_ENGINE_H

#include "compress/compress.h"
#include "kernels/kernels.h"
#include "server/server.h"

#define SHARD_TEXT_BYTES 129 /* 128 bytes of a RESULT's sentence and the terminator */

struct shard_chunk;

/* ---- receive memory (shard_slots.c) ---- */

/* One address-ordered free list over one block of memory taken at create. */
struct shard_arena {
    uint8_t *memory; /* owned */
    size_t bytes;
    size_t used_bytes, peak_bytes;
    struct shard_span *free_spans;
};
enum weft_status shard_arena_init(struct shard_arena *arena, struct weft_env *env, size_t bytes);
void shard_arena_fini(struct shard_arena *arena, struct weft_env *env);
void *shard_arena_reserve(struct shard_arena *arena, size_t bytes); /* NULL: not now */
void shard_arena_release(struct shard_arena *arena, void *memory, size_t bytes);

/* Room for one contribution: this head, then the payload's bytes. Lives in a round's block. */
struct shard_slot {
    struct weft_completion completion;
    struct shard_chunk *chunk;
    struct shard_slot *next_free;
    size_t payload_bytes;
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

/* The slots of one open round: a block of the arena. */
struct shard_slots {
    void *block;
    size_t block_bytes;
    uint32_t count, used;
    struct shard_slot *free_slots;
};
/* Bytes the arena must have for one round of `slot_count` contributions of at most payload_bytes. */
size_t shard_slots_bytes(uint32_t slot_count, size_t payload_bytes);
bool shard_slots_open(struct shard_slots *slots, struct shard_arena *arena, uint32_t slot_count,
                      size_t payload_bytes);
void shard_slots_close(struct shard_slots *slots, struct shard_arena *arena);
struct shard_slot *shard_slots_alloc(struct shard_slots *slots); /* one must be free */
void shard_slots_free(struct shard_slots *slots, struct shard_slot *slot);

/* ---- tables (shard_table.c) ---- */

/* Where one worker's contribution to the chunk's present round stands. */
enum shard_contribution_state {
    SHARD_CONTRIBUTION_NONE = 0,      /* not arrived */
    SHARD_CONTRIBUTION_ANNOUNCED = 1,   /* announced; the payload is still with the worker */
    SHARD_CONTRIBUTION_RECEIVING = 2, /* on its way into a slot */
    SHARD_CONTRIBUTION_HELD = 3,      /* in a slot, waits for the ranks before it */
    SHARD_CONTRIBUTION_FOLDED = 4,    /* in the sum */
};

/* What a worker is still to be told about the chunk. */
enum shard_reply_kind {
    SHARD_REPLY_NONE = 0,
    SHARD_REPLY_ACK = 1,   /* the last result's step and status, no payload */
    SHARD_REPLY_DATA = 2,  /* the last result */
    SHARD_REPLY_ERROR = 3, /* the chunk's last error */
};

/* One worker's standing with one chunk. */
struct shard_contribution {
    struct weft_arrival *arrival; /* WAITING: the announced contribution */
    struct weft_arrival *pull;    /* a PULL that waits for its step, or NULL; in engine->pulls */
    struct shard_slot *slot;      /* RECEIVING, HELD */
    uint64_t pull_since_ns;
    uint64_t applied_step;        /* watermark: no contribution of this step or an older one is ever folded
                                   * again */
    uint64_t announced_ns;        /* when the contribution of the present round was */
    uint32_t late_us;             /* how long the round closed last waited for others after it */
    float weight;
    uint8_t state;                /* enum shard_contribution_state */
    uint8_t reply_wanted;                 /* enum shard_reply_kind at the close of the present round */
    uint8_t reply_pending;               /* enum shard_reply_kind to be sent now */
    bool error_unsent;                    /* has not heard of the chunk's last error, and will when it
                                           * comes */
};

enum shard_phase {
    SHARD_PHASE_IDLE = 0,       /* no contribution of the next round has arrived */
    SHARD_PHASE_INSTALLING = 1, /* INIT: the first weights are being received */
    SHARD_PHASE_WAITING = 2,    /* contributions are announced; no receive memory yet */
    SHARD_PHASE_COLLECTING = 3, /* receive memory is reserved; contributions are received and folded */
    SHARD_PHASE_CLOSING = 4,    /* all folded; the result before is still being sent */
    SHARD_PHASE_DRAINING = 5,   /* dropped; receives in flight must end before the memory is free */
};

/* What the last close overwrote, if its step may be skipped (shard_skip.c). */
struct shard_backup {
    /* (count,) each, owned; NULL: not needed so far */
    float *values, *states[WEFT_OPTIMIZER_STATES_MAX], *residual;
    uint64_t step;                                            /* closed_step before the close */
    bool valid;
};

struct shard_chunk {
    struct shard_tensor *tensor;
    uint32_t index;
    uint64_t offset, count; /* elements */
    struct weft_codec_spec codec;   /* resolved; the tensor's, or of a tensor with a choice one
                                     * candidate's; or of a piece of it */
    struct weft_shape shape;        /* what that codec codes here: the tensor, or a piece of it */
    uint32_t rounds;                /* of a step */
    struct weft_combiner *combiner; /* owned; NULL: dense */

    float *values;    /* (count,) owned; weights with an optimiser; else the last mean (step 0: the first
                       * weights). NULL: a coded candidate of a tensor with a choice, whose first weights
                       * are dense */
    float *states[WEFT_OPTIMIZER_STATES_MAX]; /* (count,) each, owned: the optimiser's; NULL where it needs
                                               * none */
    bool initialised; /* values hold first weights or something later */
    uint64_t closed_step;
    struct shard_backup backup;
    uint16_t skips;   /* number of skipped steps that the last request carried */

    /* The result of the round closed last, and who still reads it. */
    uint64_t result_step;
    uint8_t result_round;
    bool result_is_resendable; /* a duplicate may be answered from it */
    const void *result_data;
    size_t result_bytes;
    float result_lr, result_weight_sum;
    uint32_t sends;         /* sends in flight that read values or the aggregate */
    uint32_t replies_pending;       /* parts whose answer is not sent yet */
    uint32_t reply_cursor;

    /* The round that collects. */
    uint64_t open_step; /* above closed_step; 0: nobody has come to a next step yet, the first one names it */
    uint8_t phase; /* enum shard_phase; written by shard_round_enter alone */
    uint8_t round;
    uint8_t flags; /* WEFT_WIRE_MAY_SKIP, WEFT_WIRE_CHECKED of its contributions */
    float lr;
    uint32_t lr_worker;
    uint32_t arrived, receiving; /* parts not NONE; parts RECEIVING */
    uint32_t next;               /* lowest rank that is not folded */
    bool lacks_slot;                /* a contribution was not received for want of a slot */
    uint64_t first_ns, announced_ns; /* of the first and the last contribution */
    struct shard_slots slots;
    struct weft_tree_reduce fold;
    struct weft_completion install;
    float *installing;           /* what it is for: the values, or a part of the state */
    float *install_buffer;         /* (count,) owned; a part of the state comes in here, to be looked at.
                                  * NULL: none is coming */
    uint8_t install_round;       /* its message's */

    /* The arithmetic of a fold or a close, a task of the loop when it is long (shard_round.c). While it is
     * computed the chunk counts as receiving: its slots, values and combiner are not the engine's to
     * touch. */
    struct weft_task task;
    bool computing;
    struct shard_slot *folding; /* the slot that is being folded */
    float grad_scale;           /* of a close */
    float *scratch;             /* the engine's when the close began */
    enum weft_status computed;  /* what came of it */
    float *freed[32];           /* buffers the fold has done with */
    uint32_t freed_count;

    /* The last error of the chunk. */
    enum weft_status error_status;
    uint64_t error_step;
    uint8_t error_round;
    char error_text[SHARD_TEXT_BYTES];

    struct weft_list waiting_link;   /* engine->waiting: phase WAITING */
    struct weft_list round_link;     /* engine->rounds: WAITING, COLLECTING, CLOSING; oldest first */
    struct weft_list reply_link; /* engine->answering: answers > 0 */
    struct shard_contribution *contributions;        /* (workers,) owned */
};

struct shard_tensor {
    struct weft_shard_engine *engine;
    uint32_t id;
    char name[WEFT_LIMIT_NAME_BYTES + 1];
    struct weft_shape shape;
    struct weft_codec_candidates candidates; /* what its chunks' codecs are taken from; count 1: there is
                                              * no choice */
    struct weft_optimizer optimizer; /* none where there is a choice: then the workers update */
    uint32_t chunk_count;           /* ours */
    struct shard_chunk *chunks;     /* owned, by rising index */
    uint64_t hash_step[2];          /* 0: none */
    uint64_t hash[2];               /* of all our chunks */
    uint64_t hashing_step, hashing; /* of those that have closed that step */
    uint32_t hashing_chunks;
    bool released;                  /* all workers have freed it; freed here when it is at rest
                                     * (shard_release.c) */
};

/* ---- the engine ---- */

/* One RESULT on its way. */
struct shard_reply {
    struct weft_completion completion;
    struct weft_shard_engine *engine;
    struct shard_chunk *chunk; /* whose memory it reads; NULL: none */
    struct shard_reply *next_free;
};

struct shard_worker {
    uint32_t endpoint;
    uint64_t incarnation;
    bool lost; /* logged once */
    bool left; /* has left in order (shard_worker_left.c) */
};

enum { SHARD_SCRATCHES = 64 }; /* each twice as long as the one before */

struct weft_shard_engine {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_loop *loop;
    struct weft_event_ring *events;
    const struct weft_kernels *kernels;
    uint64_t job;
    uint32_t endpoint, epoch, workers;
    struct shard_worker *worker; /* (workers_at_create,) owned */
    uint32_t workers_at_create;
    uint32_t left_count;         /* of worker[] */
    bool worker_left_check_due;              /* a contribution was dropped: rounds must be checked for
                                              * workers that have left */
    bool elastic;                /* lost workers need not end it (shard_members.c) */
    uint32_t newest_epoch;        /* the newest one heard of; above epoch: rounds of the old one are over */
    bool enters_epoch;                /* next_... are to be in force as soon as nothing of the epoch before
                                       * is under way */
    uint32_t next_epoch, next_workers;
    struct shard_worker *next_worker; /* (workers_at_create,) owned */
    struct weft_list newer_epoch;      /* arrivals of epochs that are not in force here yet */
    uint64_t round_deadline_ns;
    uint32_t hash_every;

    struct shard_tensor **tensors; /* (tensor_capacity,) by id, NULL where we own nothing; owned */
    uint32_t tensor_capacity;
    uint32_t releasing; /* tensors that are released and not at rest */
    float *scratch; /* (scratch_count,) owned; a decoded codec step on its way into the optimiser */
    uint64_t scratch_count;
    float *retired[SHARD_SCRATCHES]; /* earlier ones */
    uint32_t retired_count;

    struct shard_arena arena;
    struct weft_list waiting;   /* chunks that want receive memory, in the order they came */
    struct weft_list rounds;    /* chunks with a round, by its first contribution */
    struct weft_list reply_queue; /* chunks with answers to send */
    struct weft_list pulls;     /* arrivals: pulls that wait for their step, oldest first */
    struct weft_list deferred;  /* arrivals to be handled again from the start when something has moved */
    bool accept_again;          /* a receive was answered AGAIN: try again */

    struct shard_reply *replies; /* (reply_count,) owned */
    struct shard_reply *free_replies;
    uint32_t replies_in_flight;
    bool blocked;    /* no reply or no send was to be had: stop pumping until something moves */
    bool pumping, pump_again;

    struct weft_timer deadline_timer, retry_timer, release_timer;

    bool closed;             /* holds nothing of the transport's any more, starts nothing */
    enum weft_status failed; /* WEFT_OK, or why nothing is served any more */
    char failed_text[SHARD_TEXT_BYTES];
    struct weft_shard_engine_stats stats;
};

/* shard_table.c */
enum weft_status shard_table_add(struct weft_shard_engine *engine, const Weft__Control__Declared *declared,
                                 struct weft_error *error);
void shard_table_free(struct weft_shard_engine *engine);
void shard_table_drop(struct shard_tensor *tensor); /* memory only: it is at rest, and in no table */
/* shard_release.c */
void shard_release_on_timer(struct weft_timer *timer);
/* from a timer, since callers may hold a chunk */
void shard_release_schedule(struct weft_shard_engine *engine);
struct shard_tensor *shard_table_tensor(struct weft_shard_engine *engine, uint32_t id);   /* NULL: not ours */
struct shard_chunk *shard_table_chunk(struct shard_tensor *tensor, uint32_t index);       /* NULL: not ours */
static inline bool shard_chunk_is_dense(const struct shard_chunk *chunk)
{
    return chunk->codec.id == WEFT_CODEC_DENSE;
}
/* The longest contribution to a round, and the slots without which a round cannot run. */
size_t shard_chunk_contribution_bytes(const struct shard_chunk *chunk, uint8_t round);
uint32_t shard_chunk_slots_min(const struct shard_chunk *chunk);

/* shard_request.c */
void shard_request_handle(struct weft_shard_engine *engine, struct weft_arrival *arrival);
void shard_request_arrived(void *context, struct weft_arrival *arrival);

/* shard_push.c */
void shard_push_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                        struct weft_arrival *arrival);

/* shard_receive.c */
/* Give memory to the rounds that wait for it; receive what may be received. */
void shard_receive_open_waiting(struct weft_shard_engine *engine);
void shard_receive_fill(struct shard_chunk *chunk);
/* Bring a WAITING contribution in. false: not now, and none of a later rank either. */
bool shard_receive_one(struct shard_chunk *chunk, uint32_t worker);
/* Slots that partial sums take after ranks 0..added-1 are folded. */
uint32_t shard_round_partials(const struct shard_chunk *chunk, uint32_t added);

/* shard_round.c */
void shard_round_enter(struct shard_chunk *chunk, enum shard_phase phase);
/* After INSTALLING or DRAINING: go on with what has arrived meanwhile. */
void shard_round_resume(struct shard_chunk *chunk);
/* Fold what is held and next; close when that was all. */
void shard_round_advance(struct shard_chunk *chunk);
/* The round is over without a result: its contributors hear `status` and `text` now, the others when they
 * come. */
void shard_round_drop(struct shard_chunk *chunk, enum weft_status status, const char *text);
/* The same, and nobody is told: they know it of the coordinator. */
void shard_round_forget(struct shard_chunk *chunk);
/* DRAINING: give the slots back as soon as nothing is received into them or computed from them. */
void shard_round_finish_drain(struct shard_chunk *chunk);
/* Its values are being written by a close that will end in a moment. */
static inline bool shard_round_is_closing(const struct shard_chunk *chunk)
{
    return chunk->phase == SHARD_PHASE_CLOSING && chunk->computing;
}
/* The result's readers have become fewer: close or fold what waited for them. */
void shard_round_result_released(struct shard_chunk *chunk);
/* "rank 1, 4 and 7" of the parts without a contribution; "" when none. */
void shard_round_describe_missing(const struct shard_chunk *chunk, char *out, size_t out_bytes);
static inline bool shard_result_is_in_use(const struct shard_chunk *chunk)
{
    return chunk->sends > 0 || chunk->replies_pending > 0;
}

/* shard_pull.c */
void shard_pull_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                        struct weft_arrival *arrival);
void shard_pull_reply_waiting(struct shard_chunk *chunk); /* after a close or an install */
void shard_install_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                           struct weft_arrival *arrival);
/* both kinds */
void shard_state_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                         struct weft_arrival *arrival);

/* shard_reply.c */
enum weft_status shard_reply_init(struct weft_shard_engine *engine, uint32_t count);
void shard_reply_fini(struct weft_shard_engine *engine);
/* Answer a request at once and end its arrival; when that is not possible now, the request is deferred
 * whole. */
void shard_reply_refuse(struct weft_shard_engine *engine, struct weft_arrival *arrival,
                        const struct weft_wire_header *header, enum weft_status status, const char *format,
                        ...) __attribute__((format(printf, 5, 6)));
/* The same with the chunk's last result (a duplicate), or with its values, or what else of it `data` is (a
 * pull). true: answered; false: deferred. */
bool shard_reply_result(struct shard_chunk *chunk, struct weft_arrival *arrival,
                        const struct weft_wire_header *header, enum shard_reply_kind kind);
bool shard_reply_values(struct shard_chunk *chunk, struct weft_arrival *arrival,
                        const struct weft_wire_header *header, const float *data);
/* Note what a worker is to be told; the pump sends it. */
void shard_reply_note(struct shard_chunk *chunk, uint32_t worker, enum shard_reply_kind kind);
void shard_reply_pump(struct weft_shard_engine *engine);
void shard_reply_defer(struct weft_shard_engine *engine, struct weft_arrival *arrival);

/* shard_worker_left.c */
/* Refuses the requests that wait for a worker that has left. May drop the round. */
void shard_worker_left_check(struct shard_chunk *chunk);
void shard_worker_left_check_all(struct weft_shard_engine *engine);

/* shard_hash.c */
/* shard_skip.c. reserve: room for the copies of a close; WEFT_ERR_NO_MEMORY. keep: makes them; any thread.
 * follow: before a request is handled: takes back what its worker has skipped. WEFT_ERR_AGAIN: later, the
 * chunk is not idle yet; WEFT_ERR_STATE: there is no copy of the step. */
enum weft_status shard_skip_reserve(struct shard_chunk *chunk);
void shard_skip_save(struct shard_chunk *chunk);
enum weft_status shard_skip_undo(struct shard_chunk *chunk, const struct weft_wire_header *header);
void shard_skip_free(struct shard_chunk *chunk);
void shard_hash_forget(struct shard_tensor *tensor, uint64_t step); /* it was taken back */
void shard_hash_step(struct shard_chunk *chunk);

/* shard_members.c */
void shard_members_enter_epoch(struct weft_shard_engine *engine); /* if it is due and can be */

/* shard_engine.c */
/* it waits no more */
void shard_engine_pull_removed(struct weft_shard_engine *engine, struct weft_arrival *arrival);
void shard_engine_worker_lost(struct weft_shard_engine *engine, uint32_t worker);
/* Something moved (memory, a reply, a send): serve what waited for it. */
void shard_engine_resume(struct weft_shard_engine *engine);
void shard_engine_schedule_retry(struct weft_shard_engine *engine);
void shard_engine_watch_deadlines(struct weft_shard_engine *engine);

#endif
