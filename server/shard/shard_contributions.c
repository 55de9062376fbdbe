/* shard_contributions.c - the states of a chunk's workers exist only while one of them is in use.
 *
 *     request --> take --> a block of states for all workers --> round, replies, pulls --> idle: release
 *                   \ no block is free: the request is held, until an earlier chunk releases its block
 *
 * Blocks have one size and a pool of their own: 4,096 workers need states for the chunks in use, not for
 * all. A chunk without a block has no contribution, pending reply or waiting pull. Its watermark is
 * closed_step, and errors that workers are due are bits. Between the rounds of a codec's step a chunk has no
 * block either: a worker may wait for all chunks of the tensor before its next round. Held requests cannot
 * deadlock: chunks get blocks in order, and a chunk with a block accepts every request (shard_receive.c).
 *
 * In a job with copies a chunk of a codec with several rounds has a block of its own: after a fail-over it
 * begins with round 0 again, while chunks of other shards have blocks for round 1 and wait for its
 * workers. So has a chunk with a clock: ranks are in different steps, and chunks of a later step may have all
 * blocks and wait for a rank whose contribution to this chunk would be held. */
#include <string.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"

enum { BLOCKS_MIN = 64, SHARE = 8 }; /* blocks of the pool; else this part of the receive memory */

static size_t block_bytes(const struct weft_shard_engine *engine)
{
    return engine->members.workers_max * sizeof(struct shard_contribution);
}

enum weft_status shard_contributions_init(struct weft_shard_engine *engine, size_t receive_bytes)
{
    const size_t block = (block_bytes(engine) + 63) / 64 * 64, least = BLOCKS_MIN * block;
    const size_t share = receive_bytes / SHARE;
    weft_list_init(&engine->queues.held_chunks);
    return shard_arena_init(&engine->memory.contributions, engine->env, share > least ? share : least, false);
}

bool shard_contributions_take(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (chunk->workers.contributions) return true;
    if (chunk->workers.own_contributions) {
        chunk->workers.contributions = memset(chunk->workers.own_contributions, 0, block_bytes(engine));
        return true;
    }
    if (!weft_list_empty(&engine->queues.held_chunks)) return false; /* earlier chunks have precedence */
    chunk->workers.contributions = shard_arena_reserve(&engine->memory.contributions, block_bytes(engine));
    if (chunk->workers.contributions) memset(chunk->workers.contributions, 0, block_bytes(engine));
    return chunk->workers.contributions != NULL;
}

static void block_release(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (chunk->workers.contributions && !chunk->workers.own_contributions)
        shard_arena_release(&engine->memory.contributions, chunk->workers.contributions, block_bytes(engine));
    chunk->workers.contributions = NULL;
}

void shard_contributions_release(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (!chunk->workers.contributions || chunk->open.phase != SHARD_PHASE_IDLE || chunk->open.arrived > 0 ||
        chunk->result.replies_pending > 0 || chunk->workers.pulls_waiting > 0 || shard_clock_has_waits(chunk))
        return;
    block_release(chunk);
    if (!weft_list_empty(&engine->queues.held_chunks)) shard_engine_schedule_retry(engine);
}

void shard_contributions_hold(struct shard_chunk *chunk, struct weft_arrival *arrival)
{
    if (weft_list_empty(&chunk->workers.held))
        weft_list_append(&chunk->tensor->engine->queues.held_chunks, &chunk->links.held);
    weft_list_append(&chunk->workers.held, &arrival->link);
}

/* Moves the held requests of the chunk behind the deferred ones, which the next pump handles again. */
static void defer_held(struct shard_chunk *chunk)
{
    weft_list_remove(&chunk->links.held);
    shard_reply_defer_all(chunk->tensor->engine, &chunk->workers.held);
}

void shard_contributions_defer_held(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->queues.held_chunks))
        defer_held(weft_list_first(&engine->queues.held_chunks, struct shard_chunk, links.held));
}

void shard_contributions_serve(struct weft_shard_engine *engine)
{
    /* a failed engine refuses them before they need a block */
    if (engine->end.failed < 0) shard_contributions_defer_held(engine);
    while (!weft_list_empty(&engine->queues.held_chunks)) {
        struct shard_chunk *chunk =
            weft_list_first(&engine->queues.held_chunks, struct shard_chunk, links.held);
        void *block = shard_arena_reserve(&engine->memory.contributions, block_bytes(engine));
        if (!block) return;
        chunk->workers.contributions = memset(block, 0, block_bytes(engine));
        defer_held(chunk);
    }
}

void shard_contributions_drop(struct shard_chunk *chunk)
{
    block_release(chunk);
}
