/* shard_clock.h - chunks of tensors with consistency ssp or asp: contributions are applied as they arrive,
 * and a clock counts those of each worker. Engine thread; see shard_clock.c. */
#ifndef WEFT_SERVER_SHARD_SHARD_CLOCK_H
#define WEFT_SERVER_SHARD_SHARD_CLOCK_H

#include "proto/proto.h"
#include "server/shard/shard_engine.h"

/* One memory for the values of a chunk. Replies read the current one; a contribution is applied to another
 * one while they do. */
struct shard_version {
    float *values; /* (count,) */
    void *owned;   /* memory behind values; NULL: the tensor's */
    uint32_t sends;
    struct shard_version *next;
};

/* What a new copy gets beside values and states (WEFT_WIRE_PART_CLOCKS). */
struct shard_clock_counts {
    uint64_t updates; /* contributions applied: the step of the optimiser */
    uint64_t clock[]; /* (workers_max,) watermark of each worker: its last applied contribution */
};

struct shard_clock_worker {
    uint64_t reply_clock;   /* contribution that its pending reply answers */
    uint64_t since_ns;      /* the result of `clock` waits for other workers since then; 0: no result waits */
    float lr, weight_decay; /* of its contribution that is not applied yet */
    uint8_t flags;
    bool is_dropped; /* its contribution, which is still being received, was discarded */
};

struct shard_clock {
    struct shard_chunk *chunk;
    struct shard_clock_counts *counts;           /* owned */
    struct shard_clock_worker *worker;           /* (workers_max,) owned */
    uint64_t min;                                /* lowest clock of the workers that have not left */
    uint64_t changes;                            /* sum of all clocks: number of the last change */
    struct shard_version own, *current, *target; /* target: of the update in progress */
    struct shard_version *versions;              /* all of them; `own` is the last */
    uint32_t reads;                              /* sends of all versions */
    struct shard_slot *first, *last;             /* received contributions in order of arrival */
    struct shard_slot *replicated;               /* of the change that the copy is to hold; NULL: none */
    uint32_t waits;                              /* workers with since_ns */
    struct weft_list receive_link;               /* engine->clock_receive: a contribution waits for memory */
    struct weft_list wait_link;                  /* engine->clock_waits: waits > 0 */
    struct weft_list apply_link;                 /* engine->clock_apply: received ones may be applied */
};

/* Allocates the clock of a chunk whose values exist, unless it has one or needs none. WEFT_ERR_NO_MEMORY. */
enum weft_status shard_clock_reserve(struct shard_chunk *chunk);
/* chunk->values is the chunk's own memory afterwards; its content is undefined. */
void shard_clock_free(struct shard_chunk *chunk);
void shard_clock_push(struct shard_chunk *chunk, const struct weft_wire_header *header,
                      struct weft_arrival *arrival);
/* Some result of the chunk waits for another worker. */
static inline bool shard_clock_has_waits(const struct shard_chunk *chunk)
{
    return chunk->clock && chunk->clock->waits > 0;
}
/* Can a pull of the values after this worker's contribution `step` be answered? */
bool shard_clock_pull_is_ready(const struct shard_chunk *chunk, uint32_t worker, uint64_t step);
/* A send of the chunk's current values begins: returns the version, whose send has ended later. */
struct shard_version *shard_clock_send_begins(struct shard_chunk *chunk);
void shard_clock_send_ended(struct shard_chunk *chunk, struct shard_version *version);
/* A send of a state has ended, or first weights have arrived. */
void shard_clock_continue(struct shard_chunk *chunk);
/* Applies contributions that are scheduled, and receives those that waited for memory. */
void shard_clock_resume(struct weft_shard_engine *engine);
/* The next shard_engine_resume applies what has been received, if it can. */
void shard_clock_schedule(struct shard_chunk *chunk);
/* The copy holds the last change, and no send reads it. Call shard_engine_resume afterwards. */
void shard_clock_replicated(struct shard_chunk *chunk);
/* Another engine will lead the chunk: drops all contributions without replies. */
void shard_clock_stop_leading(struct shard_chunk *chunk);
/* One more contribution of the worker is applied. */
void shard_clock_move(struct shard_chunk *chunk, uint32_t worker);
/* Some clocks have moved: replies to the results and pulls that waited for the slowest worker. */
void shard_clock_min_update(struct shard_chunk *chunk);

/* ---- copies/shard_clock_copy.c ---- */
/* What to do with a REPLICATE of a contribution of `rank`. status_out: of the answer. */
enum shard_copy_next shard_clock_copy_next(struct shard_chunk *chunk, const struct weft_wire_header *request,
                                           uint32_t rank, enum weft_status *status_out);
/* Applies the contribution. Any thread; then applied. */
void shard_clock_copy_apply(struct shard_chunk *chunk);
void shard_clock_copy_applied(struct shard_chunk *chunk);
/* Bytes of the counts that a new copy gets, in place. fit: they are in range. copied: all parts are here. */
size_t shard_clock_counts_bytes(const struct shard_chunk *chunk);
bool shard_clock_counts_fit(const struct shard_chunk *chunk);
void shard_clock_copied(struct shard_chunk *chunk);

/* A worker has left, and its clock no longer counts. */
void shard_clock_worker_left(struct shard_chunk *chunk);
/* The engine has failed: its reason answers all requests of the chunk. */
void shard_clock_fail(struct shard_chunk *chunk);
/* Time of the result that waits longest; WEFT_NEVER: none. expire: answers those that wait since `until_ns`
 * or longer with WEFT_ERR_DEADLINE. */
uint64_t shard_clock_since_ns(const struct weft_shard_engine *engine);
void shard_clock_expire(struct weft_shard_engine *engine, uint64_t until_ns);
/* "step 9 of 'w' chunk 0 waited 10 s for rank 1 at step 3 (ssp:4)" */
void shard_clock_describe(const struct shard_chunk *chunk, uint64_t step, char text[SHARD_TEXT_BYTES]);

#endif
