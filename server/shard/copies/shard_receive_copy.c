/* shard_receive_copy.c - the new copy's side: receives the parts of a chunk in place.
 *
 *     COPY --> term, leader, part checked --> memory --> received in place --> COPIED
 *     the weights are the last part: step, result and skips of their header; then REPLICATE is applied
 *
 * The chunk serves no request meanwhile, and its content has no meaning until the weights have arrived. A Map
 * of a newer term that names this engine as copy or leader follows only then; any other one releases the
 * memory. */
#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

size_t shard_receive_copy_bytes(const struct shard_chunk *chunk, uint8_t part)
{
    return part == WEFT_WIRE_PART_VERDICT ? sizeof(struct shard_verdict_last) : chunk->count * sizeof(float);
}

/* NULL: the chunk has no such part. Its memory is reserved. */
static void *place_of(const struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    const bool is_before = request->flags & WEFT_WIRE_COPY_BEFORE;
    if (request->round == WEFT_WIRE_PART_WEIGHTS) return is_before ? chunk->backup.values : chunk->values;
    if (request->round == WEFT_WIRE_PART_VERDICT)
        return !is_before && chunk->verdict ? &chunk->verdict->last : NULL;
    if (request->round >= WEFT_OPTIMIZER_STATES_MAX) return NULL;
    return is_before ? chunk->backup.states[request->round] : chunk->states[request->round];
}

enum shard_copy_next shard_receive_copy_judge(struct shard_chunk *chunk,
                                              const struct weft_wire_header *request,
                                              enum weft_status *status_out)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    *status_out = WEFT_ERR_STALE;
    if (shard_copy_is_busy(chunk)) return SHARD_COPY_WAIT;
    if (request->term < slot->term) return SHARD_COPY_ANSWER;
    if (request->term > slot->term) return SHARD_COPY_WAIT;
    if (slot->leader != request->worker || slot->copy == engine->endpoint + 1 ||
        request->step > SHARD_STEP_MAX || request->codec != WEFT_CODEC_DENSE || request->dtype != WEFT_F32 ||
        shard_tensor_is_fixed(chunk->tensor) ||
        request->payload_bytes != shard_receive_copy_bytes(chunk, request->round))
        return SHARD_COPY_DROP;
    *status_out = WEFT_ERR_NO_MEMORY;
    if (shard_table_reserve_chunk(chunk) < 0 ||
        (request->flags & WEFT_WIRE_COPY_BEFORE && shard_skip_reserve(chunk) < 0) ||
        (request->round == WEFT_WIRE_PART_VERDICT && shard_verdict_is_possible(chunk) &&
         shard_verdict_reserve(chunk) < 0))
        return SHARD_COPY_ANSWER;
    return place_of(chunk, request) ? SHARD_COPY_RECEIVE : SHARD_COPY_DROP;
}

/* The parts are complete. */
static void complete(struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    chunk->closed_step = chunk->result_step = request->step;
    chunk->result_round = 0;
    chunk->result_lr = chunk->lr = request->lr;
    chunk->result_weight_sum = request->weight_sum;
    chunk->result_data = chunk->values;
    chunk->result_bytes = chunk->count * sizeof(float);
    shard_verdict_copied(chunk, request->step, request->weight > 0);
    chunk->result_is_resendable = request->flags & WEFT_WIRE_COPY_RESULT;
    chunk->initialised = request->flags & WEFT_WIRE_COPY_FIRST;
    chunk->backup.valid = request->flags & WEFT_WIRE_COPY_UNDO && chunk->backup.values;
    chunk->skips = request->skips;
    chunk->open_step = 0;
    chunk->round = 0;
    chunk->error_step = 0;
    chunk->error_status = WEFT_OK;
    if (request->incarnation > 0) shard_copy_note_skip(chunk, request->incarnation);
    chunk->copy.synced_term = request->term;
}

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk *chunk = weft_container_of(completion, struct shard_chunk, copy.received);
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct weft_wire_header *request = &chunk->copy.request;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    if (engine->closed) return;
    chunk->copy.payload = NULL;
    chunk->copy.is_part = false;
    if (status == WEFT_OK && request->term == slot->term && slot->leader == request->worker) {
        if (request->flags & WEFT_WIRE_COPY_BEFORE) chunk->backup.step = request->step;
        else if (request->round == WEFT_WIRE_PART_WEIGHTS) complete(chunk, request);
        shard_copy_answer(chunk, request, WEFT_OK);
        engine->stats.received_bytes += request->payload_bytes;
    }
    shard_engine_resume(engine);
}

bool shard_receive_copy(struct shard_chunk *chunk, struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_copy *copy = &chunk->copy;
    void *place = place_of(chunk, &copy->request);
    weft_completion_init(&copy->received, 1, received);
    const enum weft_status status = weft_transport_accept(
        engine->transport, arrival, place, (size_t)copy->request.payload_bytes, &copy->received);
    if (status == WEFT_ERR_AGAIN) {
        shard_engine_schedule_retry(engine);
        return false;
    }
    if (status < 0) {
        weft_transport_discard(engine->transport, arrival);
        return true;
    }
    weft_list_remove(&copy->leave_link);
    copy->payload = place;
    copy->is_part = true;
    copy->synced_term = 0;
    return true;
}

/* ---- chunks that this engine no longer needs ---- */

static bool is_needed(const struct shard_chunk *chunk)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    return slot->leader == engine->endpoint || slot->copy == engine->endpoint + 1 ||
           chunk->copy.synced_term == slot->term;
}

void shard_copy_leave(struct shard_chunk *chunk)
{
    struct shard_replication *replication = &chunk->tensor->engine->replication;
    if (!chunk->is_here || is_needed(chunk)) return;
    weft_list_remove(&chunk->copy.leave_link);
    weft_list_append(&replication->leaving, &chunk->copy.leave_link);
}

void shard_copy_pump_leaving(struct weft_shard_engine *engine)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &engine->replication.leaving) {
        struct shard_chunk *chunk = weft_container_of(node, struct shard_chunk, copy.leave_link);
        if (!is_needed(chunk) && (!shard_chunk_is_unused(chunk) || chunk->tensor->released)) continue;
        weft_list_remove(&chunk->copy.leave_link);
        if (!is_needed(chunk)) shard_table_release_chunk(chunk);
    }
}
