/* shard_release.c - frees the memory of a tensor that all workers have freed.
 *
 * All requests of the workers have ended, so no round is open. A pending reply or a send in flight may still
 * use the tensor. It is freed when no chunk is in use, on a timer after the event that ended the use, because
 * the code of that event may still hold the chunk. */
#include "server/shard/shard_engine.h"
#include "server/shard/snapshot/shard_snapshot.h"

static bool contribution_is_idle(const struct shard_contribution *contribution)
{
    return !contribution->arrival && !contribution->pull && !contribution->slot;
}

bool shard_chunk_is_unused(const struct shard_chunk *chunk)
{
    if (chunk->open.phase != SHARD_PHASE_IDLE || chunk->result.sends > 0 ||
        chunk->result.replies_pending > 0 || chunk->hold.is_sending ||
        chunk->compare.is_sending || chunk->copy.payload ||
        chunk->copy.is_ack_sending || chunk->work.computing || chunk->installation.buffer ||
        shard_move_is_in_use(chunk->move) || !weft_list_empty(&chunk->workers.held))
        return false;
    for (uint32_t worker = 0; chunk->workers.contributions && worker < chunk->tensor->engine->workers;
         worker++)
        if (!contribution_is_idle(&chunk->workers.contributions[worker])) return false;
    return true;
}

static bool tensor_is_idle(const struct shard_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        if (!shard_chunk_is_unused(&tensor->chunks[i])) return false;
    return true;
}

void shard_release_on_timer(struct weft_timer *timer)
{
    struct weft_shard_engine *engine = weft_container_of(timer, struct weft_shard_engine, timers.release);
    for (uint32_t id = 0; engine->table.releasing > 0 && id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        if (!tensor || !tensor->released || !tensor_is_idle(tensor)) continue;
        for (uint32_t i = 0; i < tensor->chunk_count; i++) shard_table_count(&tensor->chunks[i], false);
        engine->table.tensors[id] = NULL;
        engine->table.releasing--;
        shard_table_drop(tensor);
    }
}

void shard_release_schedule(struct weft_shard_engine *engine)
{
    (void)weft_timer_start_now(
        engine->loop, &engine->timers.release); /* on WEFT_ERR_NO_MEMORY the next event tries again */
}

void weft_shard_engine_release(struct weft_shard_engine *engine, uint32_t id)
{
    struct shard_tensor *tensor = shard_table_tensor(engine, id);
    if (!tensor || engine->end.closed) return;
    shard_move_tensor_released(tensor);
    tensor->released = true;
    engine->table.releasing++;
    weft_shard_engine_snapshot_abandon(engine, "a tensor was freed");
    shard_engine_resume(engine);
}
