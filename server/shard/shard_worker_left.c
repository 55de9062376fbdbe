/* shard_worker_left.c - ends rounds and pulls that wait for a worker that has left the job.
 *
 *     Left(member)                                          --> mark its endpoint, check every chunk
 *     a push, a failed receive, the end of a drain,
 *     the close of a codec's round                          --> check that chunk
 *
 * A round that has the leaver's contribution continues. A round without it cannot close: its contributors get
 * WEFT_ERR_PEER_LOST with the rank, the tensor and the step. Pulls that wait for such a round get it too, and
 * pulls of first weights if rank 0 has left.
 *
 * Left arrives on the control connection, possibly before data that the leaver sent earlier. No reply is
 * lost: a worker leaves after the replies to its requests, or abandons them. */
#include <inttypes.h>
#include <stdio.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"

/* The lowest rank that has left and has no contribution in the chunk's round; UINT32_MAX: none. */
static uint32_t leaver_missing(const struct shard_chunk *chunk)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    for (uint32_t worker = 0; engine->members.left_count > 0 && worker < engine->workers; worker++)
        if (engine->members.worker[worker].left &&
            shard_contribution_state(chunk, worker) == SHARD_CONTRIBUTION_NONE)
            return worker;
    return UINT32_MAX;
}

static void refuse_pulls(struct shard_chunk *chunk, uint32_t leaver)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    /* the last one may release the contributions */
    for (uint32_t worker = 0; worker < engine->workers && chunk->workers.pulls_waiting > 0; worker++) {
        struct weft_arrival *arrival = chunk->workers.contributions[worker].pull;
        struct weft_wire_header header;
        if (!arrival || weft_wire_decode(arrival->header, arrival->header_bytes, &header) != WEFT_OK)
            continue;
        if (header.step <= chunk->closed_step && leaver != 0)
            continue; /* it waits for first weights from rank 0 */
        shard_engine_pull_removed(engine, arrival);
        shard_reply_refuse(engine, arrival, &header, WEFT_ERR_PEER_LOST,
                           "pull of step %" PRIu64 " of '%.24s' chunk %u: rank %u left before it %s",
                           header.step, chunk->tensor->name, chunk->index, leaver,
                           header.step > chunk->closed_step ? "pushed" : "sent first weights");
    }
}

void shard_worker_left_check(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (chunk->clock && chunk->initialised) { /* the others go on */
        shard_clock_worker_left(chunk);
        return;
    }
    const uint32_t leaver = leaver_missing(chunk);
    const bool can_end = chunk->open.phase == SHARD_PHASE_IDLE || chunk->open.phase == SHARD_PHASE_WAITING ||
                         chunk->open.phase == SHARD_PHASE_COLLECTING;
    if (leaver == UINT32_MAX || !can_end || engine->end.failed < 0 || engine->end.closed ||
        engine->epoch_change.newest_epoch > engine->epoch)
        return;
    refuse_pulls(chunk, leaver);
    if (chunk->open.phase == SHARD_PHASE_IDLE || chunk->open.arrived == 0)
        return; /* the next contribution is refused */
    char text[SHARD_TEXT_BYTES];
    snprintf(text, sizeof text, "step %" PRIu64 " of '%.24s' chunk %u: rank %u left before it pushed",
             chunk->open.step, chunk->tensor->name, chunk->index, leaver);
    weft_log(engine->env, WEFT_LOG_WARN, "server", "%s", text);
    shard_round_drop(chunk, WEFT_ERR_PEER_LOST, text);
}

void shard_worker_left_check_all(struct weft_shard_engine *engine)
{
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            shard_worker_left_check(&tensor->chunks[i]);
    }
}

void weft_shard_engine_worker_left(struct weft_shard_engine *engine, uint32_t endpoint)
{
    if (engine->end.closed) return;
    for (uint32_t i = 0; engine->epoch_change.enters_epoch && i < engine->epoch_change.next_workers; i++)
        if (engine->epoch_change.next_worker[i].endpoint == endpoint)
            engine->epoch_change.next_worker[i].left = true;
    for (uint32_t i = 0; i < engine->workers; i++) {
        if (engine->members.worker[i].endpoint != endpoint || engine->members.worker[i].left) continue;
        engine->members.worker[i].left = true;
        engine->members.left_count++;
    }
    shard_worker_left_check_all(engine);
    shard_engine_resume(engine);
}
