/* shard_clock_copy.c - the copy of a chunk with consistency ssp or asp: applies what its leader has applied.
 *
 *     REPLICATE(change n, worker) --> n is the next one --> received, acknowledged --> applied, clock moves
 *                                       \ n is applied: acknowledged; a later one: WEFT_ERR_STATE
 *
 * A change is one contribution. Changes are numbered by the sum of all clocks, which is the same at leader
 * and copy. The copy makes the leader's update: same gradient, rate, weight decay and number of updates. A
 * change without payload moves the clock alone.
 *
 * A new copy gets the counts as a part of the chunk (shard_move.c). */
#include "server/shard/shard_clock.h"

static void apply_change(struct shard_chunk *chunk, uint32_t worker, bool has_update)
{
    struct shard_clock *clock = chunk->clock;
    clock->counts->updates += has_update;
    if (chunk->tensor->engine->replication.mutants & WEFT_MUTANT_CLOCK_NOT_KEPT) clock->changes++;
    else shard_clock_move(chunk, worker);
    shard_clock_min_update(chunk);
}

enum shard_copy_next shard_clock_copy_next(struct shard_chunk *chunk, const struct weft_wire_header *request,
                                           uint32_t rank, enum weft_status *status_out)
{
    const struct shard_clock *clock = chunk->clock;
    *status_out = WEFT_OK;
    if (rank >= chunk->tensor->engine->workers || request->round != WEFT_WIRE_CHANGE_STEP)
        return SHARD_COPY_DROP;
    if (request->step <= clock->changes) return SHARD_COPY_ANSWER; /* it is applied */
    if (request->incarnation != clock->changes || request->step != clock->changes + 1) {
        *status_out = WEFT_ERR_STATE;
        return SHARD_COPY_ANSWER;
    }
    if (chunk->result.sends > 0)
        return SHARD_COPY_WAIT; /* results of this engine, which led the slot before */
    chunk->copy.rank = rank;
    if (request->payload_bytes > 0) return SHARD_COPY_RECEIVE;
    apply_change(chunk, rank, false);
    return SHARD_COPY_ANSWER;
}

void shard_clock_copy_apply(struct shard_chunk *chunk)
{
    const struct weft_wire_header *request = &chunk->copy.request;
    struct weft_optimizer rule = chunk->tensor->optimizer;
    if (request->flags & WEFT_WIRE_DECAY) rule.weight_decay = request->weight;
    weft_optimizer_step(&rule, request->lr, chunk->clock->counts->updates + 1, chunk->values, chunk->states,
                        chunk->copy.payload, 1.0f / request->weight_sum, chunk->count);
}

void shard_clock_copy_applied(struct shard_chunk *chunk)
{
    apply_change(chunk, chunk->copy.rank, true);
}

/* ---- a new copy ---- */

size_t shard_clock_counts_bytes(const struct shard_chunk *chunk)
{
    const struct shard_clock_counts *counts = chunk->clock->counts;
    return sizeof *counts + chunk->tensor->engine->workers * sizeof counts->clock[0];
}

bool shard_clock_counts_fit(const struct shard_chunk *chunk)
{
    const struct shard_clock_counts *counts = chunk->clock->counts;
    uint64_t most = counts->updates;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++)
        if (counts->clock[worker] > most) most = counts->clock[worker];
    return most <= SHARD_STEP_MAX;
}

void shard_clock_copied(struct shard_chunk *chunk)
{
    struct shard_clock *clock = chunk->clock;
    clock->changes = clock->min = 0;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++)
        clock->changes += clock->counts->clock[worker];
    shard_clock_min_update(chunk);
}
