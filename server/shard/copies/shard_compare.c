/* shard_compare.c - compares the bits of a copy with those of its leader.
 *
 *     leader: the copy has acknowledged step s, s % hash_every == 0 --> COMPARE(s, hash of the values)
 *     copy:   it has closed s, equal hash: nothing             else --> REPLICATED(s, DIVERGED)
 *     leader: report --> the coordinator removes the copy from the map, and has another one made
 *
 * With consistency ssp or asp the number of the last change takes the place of the step. The leader's next
 * change waits for the acknowledgement of this one, and follows COMPARE.
 *
 * Both run the same kernel on the same sums, so a difference is a fault of memory or of a program. Which of
 * the two is wrong is not known here: the workers compare their own weights with the leader's (shard_hash.c).
 * A message that is lost costs one comparison. */
#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"

/* Number that identifies the values: the step, or with clocks the change. */
static uint64_t newest(const struct shard_chunk *chunk)
{
    return chunk->clock ? chunk->clock->changes : chunk->closed_step;
}

/* With clocks a step is one change of each worker. */
static bool is_due(const struct shard_chunk *chunk, uint64_t step)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    const uint64_t every = (uint64_t)engine->settings.hash_every * (chunk->clock ? engine->workers : 1);
    return every > 0 && step > 0 && step % every == 0;
}

static uint64_t hash_of(const struct shard_chunk *chunk)
{
    return weft_chunk_hash(chunk->index, chunk->values, chunk->count * sizeof(float));
}

static void sent(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk *chunk = weft_container_of(completion, struct shard_chunk, compare.sent);
    chunk->compare.is_sending = false;
    shard_engine_resume(chunk->tensor->engine);
}

void shard_compare_send(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const uint64_t step = newest(chunk);
    if (!is_due(chunk, step) || !chunk->values || chunk->work.computing || chunk->compare.is_sending ||
        chunk->compare.step == step || shard_map_slot(chunk)->copy == 0)
        return;
    struct weft_wire_header header = {
        .kind = WEFT_WIRE_COMPARE,
        .codec = WEFT_CODEC_DENSE,
        .dtype = WEFT_F32,
        .job = engine->settings.job,
        .incarnation = hash_of(chunk),
        .epoch = engine->epoch,
        .tensor = chunk->tensor->id,
        .chunk = chunk->index,
        .step = step,
        .term = shard_map_term(chunk),
    };
    if (!shard_engine_speaks(engine, &header)) return;
    weft_completion_init(&chunk->compare.sent, 1, sent);
    chunk->compare.is_sending = shard_replicate_send(engine, shard_map_slot(chunk)->copy - 1, &header, NULL,
                                                     &chunk->compare.sent) >= 0;
    if (chunk->compare.is_sending) chunk->compare.step = step;
}

enum shard_copy_next shard_compare_received(const struct shard_chunk *chunk,
                                            const struct weft_wire_header *request,
                                            enum weft_status *status_out)
{
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    *status_out = WEFT_ERR_DIVERGED;
    if (shard_copy_is_busy(chunk)) return SHARD_COPY_WAIT;
    if (request->term != slot->term || slot->leader != request->worker || !chunk->placement.is_here ||
        slot->copy != chunk->tensor->engine->endpoint + 1 || request->step != newest(chunk) ||
        !chunk->values || hash_of(chunk) == request->incarnation)
        return SHARD_COPY_DROP;
    return SHARD_COPY_ANSWER;
}

bool shard_compare_answered(struct shard_chunk *chunk, uint32_t peer_id,
                            const struct weft_wire_header *header)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    if (header->status != WEFT_ERR_DIVERGED) return false;
    if (slot->leader != engine->endpoint || slot->copy != peer_id + 1 || header->term != slot->term ||
        header->step == 0 || header->step != chunk->compare.step)
        return true;
    weft_log(engine->env, WEFT_LOG_ERROR, "server",
             "tensor '%s' chunk %u: after %s %llu the copy has other bits than its leader; a new copy is "
             "made: check the memory of both hosts",
             chunk->tensor->name, chunk->index, chunk->clock ? "change" : "step",
             (unsigned long long)header->step);
    if (engine->replication.report)
        engine->replication.report(engine->replication.report_context,
                                   &(struct weft_slot_report){.slot = chunk->placement.slot,
                                                              .term = slot->term,
                                                              .to = peer_id,
                                                              .status = WEFT_ERR_DIVERGED});
    return true;
}
