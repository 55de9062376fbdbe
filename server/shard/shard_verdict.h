/* shard_verdict.h - a closed round whose sum is held until the workers have the norm of the whole step.
 * Engine thread; see shard_verdict.c. */
#ifndef WEFT_SERVER_SHARD_SHARD_VERDICT_H
#define WEFT_SERVER_SHARD_SHARD_VERDICT_H

#include "server/shard/shard_engine.h"

/* What repeated requests of the last step get; as it travels to a new copy (WEFT_WIRE_PART_VERDICT). */
struct shard_verdict_last {
    double squares; /* of the sum; the result of the round */
    float factor;   /* the verdict */
    float zero;
};

struct shard_verdict {
    float *sum; /* (count,) owned */
    struct shard_verdict_last last;
    uint64_t step;          /* of the sum; 0: no sum is held */
    uint64_t applied_step;  /* last step with a verdict; 0: none */
    float scale;            /* the mean is scale * sum */
    float lr, weight_decay; /* of the step */
    bool has_decay;
};

/* A shard holds a sum that its optimiser can apply, where all workers stay. */
static inline bool shard_verdict_is_possible(const struct shard_chunk *chunk)
{
    return shard_chunk_is_dense(chunk) && chunk->tensor->optimizer.kind != WEFT_OPTIMIZER_NONE &&
           !chunk->clock && !chunk->tensor->engine->settings.elastic;
}
/* Allocates the memory of a sum. WEFT_ERR_NO_MEMORY. */
enum weft_status shard_verdict_reserve(struct shard_chunk *chunk);
/* Keeps the sum of the open round, of the chunk's lr, weight decay and grad_scale, and computes the round's
 * result. Any thread. */
void shard_verdict_hold(struct shard_chunk *chunk, const float *sum);
/* The round of `step` has closed with a held sum. */
void shard_verdict_closed(struct shard_chunk *chunk, uint64_t step);
/* Is the sum of this step held? */
static inline bool shard_verdict_is_due(const struct shard_chunk *chunk, uint64_t step)
{
    return chunk->verdict && chunk->verdict->step != 0 && chunk->verdict->step == step;
}
/* The last step had a verdict, and the result that may be requested again is its squares. */
static inline bool shard_verdict_is_result(const struct shard_chunk *chunk)
{
    return chunk->verdict && chunk->result.data == &chunk->verdict->last.squares;
}
/* Updates the values with the held sum and last.factor. Any thread. */
void shard_verdict_update(struct shard_chunk *chunk);
/* The values are those of the held step. */
void shard_verdict_updated(struct shard_chunk *chunk);
/* A new copy has all parts: the last one of `step` with a verdict, or without one. */
void shard_verdict_copied(struct shard_chunk *chunk, uint64_t step, bool has_verdict);
/* Drops a held sum: its step was skipped. */
void shard_verdict_forget(struct shard_chunk *chunk);
/* APPLY: the factor of the mean. */
void shard_verdict_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                           struct weft_arrival *arrival);
void shard_verdict_free(struct shard_chunk *chunk);

#endif
