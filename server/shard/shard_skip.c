/* shard_skip.c - undoes the last closed step of a chunk if the workers skipped or discarded that step.
 *
 * The workers detect together that a gradient of a step is not finite. Chunks that closed the step must then
 * be restored. A close copies what it overwrites if its contributions carry WEFT_WIRE_MAY_SKIP. A skip has no
 * message of its own: every request carries the number of steps its worker has skipped and the last good step
 * of the tensor. The first request with another count decides whether the closed step was good.
 *
 *     close s (copy) --> request, skips + 1, good = s - 1 --> swap values and copy, closed_step = s - 1
 *                    \-> request, skips + 1, good = s     --> nothing to undo
 *
 * In an elastic job a loss discards the open step on all workers. Chunks of tensors with codecs always copy,
 * and the new epoch undoes steps after the last good one (shard_members.c); it also resets the counts.
 *
 * The swap need not wait for sends that read the values: the next close, which overwrites the copy, waits for
 * them. */
#include <inttypes.h>
#include <string.h>

#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

static enum weft_status copy_reserve(struct weft_env *env, float **copy, const float *original,
                                     uint64_t count)
{
    if (original && !*copy) *copy = weft_alloc_array(env, count, sizeof **copy);
    return !original || *copy ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static float *residual_of(const struct shard_chunk *chunk)
{
    return chunk->coding.combiner ? weft_combiner_residual(chunk->coding.combiner) : NULL;
}

/* A codec without an optimiser does not write the values. */
static float *overwritten_values(const struct shard_chunk *chunk)
{
    return shard_chunk_is_dense(chunk) || chunk->tensor->optimizer.kind != WEFT_OPTIMIZER_NONE ? chunk->values
                                                                                               : NULL;
}

/* In mapped memory, because an undo makes the copy the chunk's values. */
static enum weft_status mapped_reserve(struct weft_shard_engine *engine, size_t bytes, void **memory)
{
    if (*memory) return WEFT_OK;
    if (engine->settings.maps) (void)weft_memory_alloc(engine->env, bytes, memory, NULL);
    else *memory = weft_alloc_bytes(engine->env, bytes);
    return *memory ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static enum weft_status values_reserve(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_backup *backup = &chunk->backup;
    if (!overwritten_values(chunk)) return WEFT_OK;
    WEFT_TRY(mapped_reserve(engine, chunk->tensor->values_stride, &backup->owned_values));
    if (!backup->values) backup->values = backup->owned_values;
    if (!chunk->half) return WEFT_OK;
    WEFT_TRY(mapped_reserve(engine, chunk->tensor->half_stride, &backup->owned_half));
    if (!backup->half) backup->half = backup->owned_half;
    return WEFT_OK;
}

bool shard_skip_needs_copy(const struct shard_chunk *chunk)
{
    return chunk->open.flags & WEFT_WIRE_MAY_SKIP ||
           (chunk->tensor->engine->settings.elastic && shard_tensor_has_codec(chunk->tensor));
}

enum weft_status shard_skip_reserve(struct shard_chunk *chunk)
{
    struct weft_env *env = chunk->tensor->engine->env;
    struct shard_backup *backup = &chunk->backup;
    WEFT_TRY(values_reserve(chunk));
    for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++)
        WEFT_TRY(copy_reserve(env, &backup->states[s], chunk->states[s], chunk->count));
    return copy_reserve(env, &backup->residual, residual_of(chunk), chunk->count);
}

void shard_skip_save(struct shard_chunk *chunk)
{
    struct shard_backup *backup = &chunk->backup;
    const size_t bytes = chunk->count * sizeof(float);
    const float *residual = residual_of(chunk);
    if (overwritten_values(chunk)) memcpy(backup->values, chunk->values, bytes);
    if (chunk->half) memcpy(backup->half, chunk->half, chunk->count * sizeof *chunk->half);
    for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++)
        if (chunk->states[s]) memcpy(backup->states[s], chunk->states[s], bytes);
    if (residual) memcpy(backup->residual, residual, bytes);
    backup->step = chunk->closed_step;
    backup->valid = true;
}

static void swap(float **a, float **b)
{
    float *keep = *a;
    *a = *b;
    *b = keep;
}

static void swap_values(struct shard_chunk *chunk)
{
    struct shard_backup *backup = &chunk->backup;
    uint16_t *const half = chunk->half;
    swap(&chunk->values, &backup->values);
    if (!half) return;
    chunk->half = backup->half;
    backup->half = half;
}

void shard_skip_exchange(struct shard_chunk *chunk)
{
    swap_values(chunk);
    chunk->backup.step = chunk->closed_step;
    chunk->backup.valid = true;
}

static void undo(struct shard_chunk *chunk)
{
    struct shard_backup *backup = &chunk->backup;
    float *residual = residual_of(chunk);
    if (overwritten_values(chunk)) swap_values(chunk);
    for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++)
        if (chunk->states[s]) swap(&chunk->states[s], &backup->states[s]);
    if (residual) memcpy(residual, backup->residual, chunk->count * sizeof *residual);
    shard_hash_forget(chunk->tensor, chunk->closed_step);
    chunk->closed_step = backup->step;
    chunk->result.is_resendable = false;
    backup->valid = false;
}

/* Steps of a candidate's chunks are not consecutive (codec "auto"): closed_step may be older than the last
 * good step. */
static bool is_after(uint64_t step, uint32_t good) { return (int32_t)((uint32_t)step - good) > 0; }

enum weft_status shard_skip_undo(struct shard_chunk *chunk, const struct weft_wire_header *header)
{
    if (header->skips == chunk->backup.skips) return WEFT_OK;
    if (chunk->open.phase == SHARD_PHASE_DRAINING || chunk->open.phase == SHARD_PHASE_APPLYING)
        return WEFT_ERR_AGAIN;
    if (chunk->open.phase != SHARD_PHASE_IDLE) return WEFT_ERR_STATE;
    if (is_after(chunk->closed_step, header->good)) {
        if (!chunk->backup.valid || is_after(chunk->backup.step, header->good)) return WEFT_ERR_STATE;
        undo(chunk);
    }
    shard_verdict_forget(chunk);
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++)
        shard_error_set_unsent(chunk, worker, false);
    chunk->error.step = 0;
    chunk->open.step = 0; /* a codec's partly done step, left by the skip */
    chunk->open.round = 0;
    chunk->backup.skips = header->skips;
    return WEFT_OK;
}

enum weft_status shard_skip_undo_after(struct shard_chunk *chunk, uint64_t committed)
{
    if (chunk->closed_step <= committed) return WEFT_OK;
    if (!chunk->backup.valid || chunk->backup.step > committed) return WEFT_ERR_STATE;
    undo(chunk);
    return WEFT_OK;
}

void shard_skip_free(struct shard_chunk *chunk)
{
    struct weft_env *env = chunk->tensor->engine->env;
    struct shard_backup *backup = &chunk->backup;
    weft_memory_free(env, backup->owned_values);
    weft_memory_free(env, backup->owned_half);
    for (int s = 0; s < WEFT_OPTIMIZER_STATES_MAX; s++) weft_free_bytes(env, backup->states[s]);
    weft_free_bytes(env, backup->residual);
}
