/* shard_hash.c - checks that the workers' weights equal the shard's.
 *
 * With a codec and an optimiser no weights are sent: shard and workers apply the same aggregate with the same
 * kernel to their own copies. Every hash_every steps the engine sums the hashes of its chunks of a tensor as
 * they close the step (weft_chunk_hash) and keeps the last two sums. A worker's sum over the same chunks
 * arrives over the control connection, possibly some steps later, and must be equal. Chunks that another
 * endpoint was to have (copies) are in no sum, and after a fail-over no hash is compared. A hash of a step
 * without a sum is ignored. All chunks have closed step s before a worker contributes to step s + 1, so a
 * sum is of one step. */
#include <inttypes.h>

#include "server/shard/shard_engine.h"

void shard_hash_step(struct shard_chunk *chunk)
{
    struct shard_tensor *tensor = chunk->tensor;
    uint32_t every = tensor->engine->settings.hash_every;
    if (every == 0 || chunk->closed_step % every != 0 || !chunk->placement.is_at_home) return;
    if (tensor->hashing_step != chunk->closed_step) {
        tensor->hashing_step = chunk->closed_step;
        tensor->hashing = 0;
        tensor->hashing_chunks = 0;
    }
    tensor->hashing += weft_chunk_hash(chunk->index, chunk->values, chunk->count * sizeof(float));
    if (++tensor->hashing_chunks < tensor->home_count) return;
    tensor->hash_step[0] = tensor->hash_step[1];
    tensor->hash[0] = tensor->hash[1];
    tensor->hash_step[1] = tensor->hashing_step;
    tensor->hash[1] = tensor->hashing;
}

void shard_hash_forget(struct shard_tensor *tensor, uint64_t step)
{
    for (int i = 0; i < 2; i++)
        if (tensor->hash_step[i] == step) tensor->hash_step[i] = 0;
    if (tensor->hashing_step == step) tensor->hashing_step = 0;
}

enum weft_status weft_shard_engine_check_hash(struct weft_shard_engine *engine,
                                              const Weft__Control__WeightHash *hash, struct weft_error *error)
{
    struct shard_tensor *tensor = shard_table_tensor(engine, hash->tensor);
    if (engine->replication.leaders_changed) return WEFT_OK;
    if (!tensor)
        return weft_error_set(error, WEFT_ERR_NOT_FOUND,
                              "a weight hash of tensor %u, which has no chunk on this shard", hash->tensor);
    for (int i = 0; i < 2; i++) {
        if (hash->step == 0 || tensor->hash_step[i] != hash->step || tensor->hash[i] == hash->hash) continue;
        return weft_error_set(error, WEFT_ERR_DIVERGED,
                              "weights of tensor '%s' after step %" PRIu64
                              " differ: rank %u has hash %016" PRIx64 ", the shard %016" PRIx64
                              "; restart from the last checkpoint",
                              tensor->name, hash->step, hash->worker, hash->hash, tensor->hash[i]);
    }
    return WEFT_OK;
}
