/* shard_left.c - a worker has left the job in order: what the others do without it must not wait for it.
 *
 *     Left(member) --> its endpoint is noted, and every chunk is looked at
 *     a push, a receive that failed, the end of a drain, the close of a codec's round --> that chunk is looked at
 *
 * A round that holds the leaver's contribution goes on. One that does not can never close: its contributors get WEFT_ERR_PEER_LOST at once,
 * with the rank, the tensor and the step. So do pulls that wait for such a round, and for first weights that rank 0 did not give.
 *
 * The news comes by the control connection and may be earlier than what the leaver sent before it left. Nothing that it waited for is lost by
 * that: a worker leaves after the answers to its requests, or gives them up. */
#include <inttypes.h>
#include <stdio.h>

#include "server/shard_engine.h"

/* The lowest rank that has left and is not in the chunk's round; UINT32_MAX: none. */
static uint32_t leaver_missing(const struct shard_chunk *chunk)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    for (uint32_t worker = 0; engine->left_count > 0 && worker < engine->workers; worker++)
        if (engine->worker[worker].left && chunk->parts[worker].state == SHARD_PART_NONE) return worker;
    return UINT32_MAX;
}

static void refuse_pulls(struct shard_chunk *chunk, uint32_t leaver)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        struct weft_arrival *arrival = chunk->parts[worker].pull;
        struct weft_wire_header header;
        if (!arrival || weft_wire_decode(arrival->header, arrival->header_bytes, &header) != WEFT_OK) continue;
        if (header.step <= chunk->closed_step && leaver != 0) continue; /* it waits for what rank 0 gives */
        shard_engine_pull_taken(engine, arrival);
        shard_reply_refuse(engine, arrival, &header, WEFT_ERR_PEER_LOST, "pull of step %" PRIu64 " of '%.24s' chunk %u: rank %u left before it %s",
                           header.step, chunk->tensor->name, chunk->index, leaver, header.step > chunk->closed_step ? "pushed" : "gave first weights");
    }
}

void shard_left_check(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const uint32_t leaver = leaver_missing(chunk);
    const bool settled = chunk->phase == SHARD_PHASE_IDLE || chunk->phase == SHARD_PHASE_WAITING || chunk->phase == SHARD_PHASE_COLLECTING;
    if (leaver == UINT32_MAX || !settled || engine->failed < 0 || engine->closed || engine->epoch_asked > engine->epoch) return;
    refuse_pulls(chunk, leaver);
    if (chunk->phase == SHARD_PHASE_IDLE || chunk->arrived == 0) return; /* the next contribution is the one to be told */
    char text[SHARD_TEXT_BYTES];
    snprintf(text, sizeof text, "step %" PRIu64 " of '%.24s' chunk %u: rank %u left before it pushed", chunk->open_step, chunk->tensor->name,
             chunk->index, leaver);
    weft_log(engine->env, WEFT_LOG_WARN, "server", "%s", text);
    shard_round_drop(chunk, WEFT_ERR_PEER_LOST, text);
}

void shard_left_check_all(struct weft_shard_engine *engine)
{
    for (uint32_t id = 0; id < engine->tensor_capacity; id++) {
        struct shard_tensor *tensor = engine->tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) shard_left_check(&tensor->chunks[i]);
    }
}

void weft_shard_engine_left(struct weft_shard_engine *engine, uint32_t endpoint)
{
    if (engine->closed) return;
    for (uint32_t i = 0; engine->follows && i < engine->next_workers; i++)
        if (engine->next_worker[i].endpoint == endpoint) engine->next_worker[i].left = true;
    for (uint32_t i = 0; i < engine->workers; i++) {
        if (engine->worker[i].endpoint != endpoint || engine->worker[i].left) continue;
        engine->worker[i].left = true;
        engine->left_count++;
    }
    shard_left_check_all(engine);
    shard_engine_moved(engine);
}
