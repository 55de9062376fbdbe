/* shard_verdict.c - clipping by the global norm where shards run the optimiser.
 *
 *     PUSH_HOLD(s) of all workers --> sum, held --> RESULT: sum of squares of the chunk
 *     worker: squares of all chunks, in their order --> norm --> factor, the same bits on all workers
 *     APPLY(s, factor) of the first worker --> update with the factor --> RESULT: weights, to each worker
 *
 * The workers have the squares of all chunks, so shards exchange nothing, and the factor does not depend on
 * their number. Until the first verdict the chunk is as before the step: a skipped step is a sum that is
 * dropped. The memory of sums is that of the weights once more, allocated with the first such step.
 *
 * With copies the held sum is a change, and so is the factor: no squares leave before the copy holds the sum,
 * and no weights before it has the factor. So a new leader has the sum, or the step; workers may have freed
 * their gradients. */
#include "server/shard/shard_verdict.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum weft_status shard_verdict_reserve(struct shard_chunk *chunk)
{
    struct weft_env *env = chunk->tensor->engine->env;
    if (!chunk->verdict) chunk->verdict = weft_alloc_zero(env, sizeof *chunk->verdict);
    if (chunk->verdict && !chunk->verdict->sum)
        chunk->verdict->sum = weft_alloc_array(env, chunk->count, sizeof *chunk->verdict->sum);
    return chunk->verdict && chunk->verdict->sum ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

void shard_verdict_free(struct shard_chunk *chunk)
{
    struct weft_env *env = chunk->tensor->engine->env;
    if (!chunk->verdict) return;
    weft_free_bytes(env, chunk->verdict->sum);
    weft_free_bytes(env, chunk->verdict);
    chunk->verdict = NULL;
}

void shard_verdict_hold(struct shard_chunk *chunk, const float *sum)
{
    struct shard_verdict *held = chunk->verdict;
    memcpy(held->sum, sum, chunk->count * sizeof *sum);
    held->last.squares = chunk->tensor->engine->kernels->dot_f32(sum, sum, chunk->count);
    held->scale = chunk->work.grad_scale;
    held->lr = chunk->open.lr;
    held->has_decay = chunk->open.flags & WEFT_WIRE_DECAY;
    held->weight_decay = chunk->open.weight_decay;
    chunk->result.data = &held->last.squares;
    chunk->result.bytes = sizeof held->last.squares;
}

void shard_verdict_closed(struct shard_chunk *chunk, uint64_t step)
{
    chunk->verdict->step = step;
}

void shard_verdict_forget(struct shard_chunk *chunk)
{
    if (!chunk->verdict) return;
    if (chunk->verdict->step != 0) chunk->result.is_resendable = false;
    chunk->verdict->step = 0;
}

/* ---- the verdict ---- */

void shard_verdict_update(struct shard_chunk *chunk)
{
    const struct shard_verdict *held = chunk->verdict;
    struct weft_optimizer rule = chunk->tensor->optimizer;
    if (held->has_decay) rule.weight_decay = held->weight_decay;
    weft_optimizer_step(&rule, held->lr, held->step, chunk->values, chunk->states, held->sum,
                        (float)((double)held->scale * (double)held->last.factor), chunk->count);
    shard_half_round(chunk);
}

void shard_verdict_updated(struct shard_chunk *chunk)
{
    struct shard_verdict *held = chunk->verdict;
    chunk->closed_step = held->applied_step = held->step;
    held->step = 0;
    chunk->backup.valid = false;
    /* a worker may repeat its push under a new term: it lacks the squares of other chunks */
    chunk->result.is_resendable = shard_map_is_on(chunk->tensor->engine);
}

void shard_verdict_copied(struct shard_chunk *chunk, uint64_t step, bool has_verdict)
{
    struct shard_verdict *held = chunk->verdict;
    if (!held) return;
    held->step = 0;
    held->applied_step = has_verdict ? step : 0;
    if (!has_verdict) return;
    chunk->result.data = &held->last.squares;
    chunk->result.bytes = sizeof held->last.squares;
}

static void apply(struct weft_task *task)
{
    shard_verdict_update(weft_container_of(task, struct shard_chunk, work.task));
}

/* Requests that were deferred meanwhile, the first one included, get the weights. */
static void applied(struct shard_chunk *chunk)
{
    const uint64_t step_before = chunk->closed_step;
    shard_verdict_updated(chunk);
    shard_replicate(chunk, chunk->closed_step, step_before, WEFT_WIRE_CHANGE_VERDICT,
                    &chunk->verdict->last.factor);
    shard_round_resume(chunk);
    shard_pull_reply_waiting(chunk);
    shard_engine_resume(chunk->tensor->engine);
}

static void apply_done(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computing = false;
    applied(chunk);
}

static void start(struct shard_chunk *chunk, float factor)
{
    const uint64_t elements = chunk->count * (1 + weft_optimizer_states(&chunk->tensor->optimizer));
    chunk->verdict->last.factor = factor;
    shard_round_enter(chunk, SHARD_PHASE_APPLYING);
    if (elements > WEFT_LOOP_SLICE) {
        shard_round_start_task(chunk, apply, apply_done, elements);
        return;
    }
    apply(&chunk->work.task);
    applied(chunk);
}

/* A verdict is not negative and at most 1. Round 1 carries the one that is not a number. */
static float factor_of(const struct weft_wire_header *header)
{
    return header->round == 1 ? NAN : header->weight;
}

void shard_verdict_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                           struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_verdict *held = chunk->verdict;
    const float factor = factor_of(header);
    if (header->round > 1 || factor > 1) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_INVALID,
                           "rank %u scales the mean of tensor '%.40s' by %g: at most 1", header->worker,
                           chunk->tensor->name, (double)factor);
    } else if (chunk->open.phase == SHARD_PHASE_APPLYING) {
        shard_reply_defer(engine, arrival);
    } else if (shard_verdict_is_due(chunk, header->step) && chunk->open.phase == SHARD_PHASE_IDLE) {
        const bool is_first = !shard_result_is_in_use(chunk);
        shard_reply_defer(engine, arrival); /* until the update is made */
        if (is_first) start(chunk, factor);
    } else if (chunk->closed_step != header->step || !held || held->applied_step != header->step) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE,
                           "rank %u applies step %" PRIu64
                           " of tensor '%.40s', which the shard does not hold",
                           header->worker, header->step, chunk->tensor->name);
    } else if (memcmp(&held->last.factor, &factor, sizeof factor) != 0) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_MISMATCH,
                           "rank %u scales step %" PRIu64 " of tensor '%.20s' by %.9g, another rank by %.9g",
                           header->worker, header->step, chunk->tensor->name, (double)factor,
                           (double)held->last.factor);
    } else if (shard_replicate_holds(chunk)) {
        shard_reply_defer(engine, arrival);
    } else {
        (void)shard_reply_values(chunk, arrival, header, chunk->values);
    }
}
