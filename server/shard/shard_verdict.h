/* shard_verdict.h - a closed round whose sum is held until the workers have the norm of the whole step.
 * Engine thread; see shard_verdict.c. */
#ifndef WEFT_SERVER_SHARD_SHARD_VERDICT_H
#define WEFT_SERVER_SHARD_SHARD_VERDICT_H

#include "server/shard/shard_engine.h"

struct shard_verdict {
    float *sum;             /* (count,) owned */
    double squares;         /* of the sum; the result of the round */
    uint64_t step;          /* of the sum; 0: no sum is held */
    uint64_t applied_step;  /* last step with a verdict; 0: none */
    float factor;           /* its verdict */
    float scale;            /* the mean is scale * sum */
    float lr, weight_decay; /* of the step */
    bool has_decay;
};

/* Allocates the memory of a sum. WEFT_ERR_NO_MEMORY. */
enum weft_status shard_verdict_reserve(struct shard_chunk *chunk);
/* Keeps the sum of the open round and computes the round's result. Any thread. */
void shard_verdict_hold(struct shard_chunk *chunk, const float *sum);
/* The round of `step` has closed with a held sum. */
void shard_verdict_closed(struct shard_chunk *chunk, uint64_t step);
/* Is the sum of this step held? */
static inline bool shard_verdict_is_due(const struct shard_chunk *chunk, uint64_t step)
{
    return chunk->verdict && chunk->verdict->step != 0 && chunk->verdict->step == step;
}
/* Drops a held sum: its step was skipped. */
void shard_verdict_forget(struct shard_chunk *chunk);
/* APPLY: the factor of the mean. */
void shard_verdict_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                           struct weft_arrival *arrival);
void shard_verdict_free(struct shard_chunk *chunk);

#endif
