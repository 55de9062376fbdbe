/* shard_restore.c - fills chunks from a piece of a snapshot, before the first step.
 *
 * A piece may have been written for another placement: an array is copied where it overlaps the engine's
 * chunks. The chunk then stands at the array's step, as if it had closed that step here. With consistency ssp
 * or asp the clocks begin anew, as the workers' do, and the optimiser counts one update of each worker for
 * each step. */
#include <inttypes.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/snapshot/shard_snapshot.h"

/* NULL: the chunk has no such part. */
static float *destination_of(const struct shard_chunk *chunk, uint8_t part)
{
    if (part == WEFT_PIECE_VALUES) return chunk->values;
    if (part == WEFT_PIECE_RESIDUAL)
        return chunk->coding.combiner ? weft_combiner_residual(chunk->coding.combiner) : NULL;
    return part - WEFT_PIECE_STATE < WEFT_OPTIMIZER_STATES_MAX ? chunk->states[part - WEFT_PIECE_STATE]
                                                               : NULL;
}

static bool is_in_range(const float *values, uint64_t count, uint8_t part)
{
    if (part == WEFT_PIECE_VALUES) return true; /* weights may have any value */
    return weft_kernels()->max_abs_bits_f32(values, count) <
           (part == WEFT_PIECE_RESIDUAL ? WEFT_RESIDUAL_LIMIT_BITS : WEFT_F32_INFINITY_BITS);
}

/* The part of the array that lies in the chunk. */
static enum weft_status chunk_restore(struct shard_chunk *chunk, const struct weft_piece *piece,
                                      uint32_t index, struct weft_error *error)
{
    const struct weft_piece_array *array = &piece->arrays[index];
    const uint64_t end = array->offset + array->count, chunk_end = chunk->offset + chunk->count,
                   first = array->offset > chunk->offset ? array->offset : chunk->offset,
                   last = end < chunk_end ? end : chunk_end;
    float *to = destination_of(chunk, array->part);
    if (first >= last) return WEFT_OK;
    if (!to && array->part == WEFT_PIECE_RESIDUAL) return WEFT_OK; /* of another codec: residuals are lost */
    if (!to)
        return weft_error_set(
            error, WEFT_ERR_MISMATCH,
            "the snapshot has a state %d of tensor '%.100s' that its optimizer does not have",
            array->part - WEFT_PIECE_STATE, array->tensor);
    if (chunk->initialised && !chunk->clock && chunk->closed_step != array->step)
        return weft_error_set(error, WEFT_ERR_MALFORMED,
                              "the snapshot has steps %" PRIu64 " and %" PRIu64 " of tensor '%.100s'",
                              chunk->closed_step, array->step, array->tensor);
    to += first - chunk->offset;
    weft_piece_values(piece, index, first - array->offset, last - first, to);
    if (!is_in_range(to, last - first, array->part))
        return weft_error_set(error, WEFT_ERR_MALFORMED,
                              "the snapshot has a state of tensor '%.100s' that is not finite",
                              array->tensor);
    if (chunk->clock) chunk->clock->counts->updates = array->step * chunk->tensor->engine->workers;
    else chunk->closed_step = array->step;
    chunk->initialised = true;
    return WEFT_OK;
}

enum weft_status weft_shard_engine_restore(struct weft_shard_engine *engine, uint32_t id,
                                           const struct weft_piece *piece, uint32_t index,
                                           struct weft_error *error)
{
    struct shard_tensor *tensor = shard_table_tensor(engine, id);
    for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) {
        if (!tensor->chunks[i].values) continue;
        WEFT_TRY(chunk_restore(&tensor->chunks[i], piece, index, error));
        if (piece->arrays[index].part == WEFT_PIECE_VALUES) shard_half_round(&tensor->chunks[i]);
    }
    if (piece->arrays[index].step > engine->newest_step) engine->newest_step = piece->arrays[index].step;
    return WEFT_OK;
}

bool weft_shard_engine_overlaps(struct weft_shard_engine *engine, uint32_t id, uint64_t offset,
                                uint64_t count)
{
    struct shard_tensor *tensor = shard_table_tensor(engine, id);
    for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) {
        const struct shard_chunk *chunk = &tensor->chunks[i];
        if (chunk->values && offset < chunk->offset + chunk->count && chunk->offset < offset + count)
            return true;
    }
    return false;
}

const struct weft_optimizer *weft_shard_engine_optimizer(struct weft_shard_engine *engine, uint32_t id)
{
    struct shard_tensor *tensor = shard_table_tensor(engine, id);
    return tensor ? &tensor->optimizer : NULL;
}
