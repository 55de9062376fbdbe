/* shard_hash.c - do the workers' weights still equal ours?
 *
 * In compressed server modes nobody sends weights: shard and workers apply the same aggregate with the
 * same kernel, each to its own copy. Every hash_every steps each engine hashes its chunks of a tensor,
 * adds their hashes up (weft_chunk_hash) as they close the step, and keeps the last two sums; a worker's
 * sum over the same chunks after the same step comes over the control plane, possibly a step or two later,
 * and must be equal. A hash of a step that is not kept any more (or not hashed) proves nothing and is
 * ignored. Nobody contributes to a next step before all chunks have closed this one: their values are of
 * one step. */
#include <inttypes.h>

#include "server/shard/shard_engine.h"

void shard_hash_step(struct shard_chunk *chunk)
{
    struct shard_tensor *tensor = chunk->tensor;
    uint32_t every = tensor->engine->hash_every;
    if (every == 0 || chunk->closed_step % every != 0) return;
    if (tensor->hashing_step != chunk->closed_step) {
        tensor->hashing_step = chunk->closed_step;
        tensor->hashing = 0;
        tensor->hashing_chunks = 0;
    }
    tensor->hashing += weft_chunk_hash(chunk->index, chunk->values, chunk->count * sizeof(float));
    if (++tensor->hashing_chunks < tensor->chunk_count) return;
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
