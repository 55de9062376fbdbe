/* shard_receive_copy.c - the new copy's side: receives the parts of a chunk in place.
 *
 *     COPY --> term, leader, part checked --> memory --> received in place --> COPIED
 *     the weights are the last part: step, result and skips of their header, rounded if results have 16
 *     bits; then REPLICATE is applied
 *
 * From its first part on the chunk has memory, and a combiner if it has a codec. Parts of a codec's chunk are
 * of one epoch: if this engine is in a later one, the leader sends all again. The chunk serves no request
 * meanwhile, and its content has no meaning until the weights have arrived. A Map of a newer term that names
 * this engine as copy or leader follows only then; any other one releases the memory. */
#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

/* Where a part is received, and its bytes; of a result the most bytes. */
struct place {
    void *data; /* NULL: the chunk has no such part */
    size_t bytes;
};

/* The memory of the chunk is reserved. */
static struct place place_of(const struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    const struct shard_backup *backup = &chunk->backup;
    const bool is_before = request->flags & WEFT_WIRE_COPY_BEFORE;
    float *data = NULL;
    if (request->round == WEFT_WIRE_PART_VERDICT)
        return is_before || !chunk->verdict
                   ? (struct place){NULL, 0}
                   : (struct place){&chunk->verdict->last, sizeof chunk->verdict->last};
    if (request->round == WEFT_WIRE_PART_CLOCKS)
        return is_before || !chunk->clock
                   ? (struct place){NULL, 0}
                   : (struct place){chunk->clock->counts, shard_clock_counts_bytes(chunk)};
    if (request->round == WEFT_WIRE_PART_RESULT && chunk->coding.combiner && !is_before)
        return (struct place){chunk->hold.coded, shard_replicate_coded_bytes_max(chunk)};
    if (request->round == WEFT_WIRE_PART_WEIGHTS) data = is_before ? backup->values : chunk->values;
    else if (request->round < WEFT_OPTIMIZER_STATES_MAX)
        data = is_before ? backup->states[request->round] : chunk->states[request->round];
    else if (request->round == WEFT_WIRE_PART_RESIDUAL && chunk->coding.combiner)
        data = is_before ? backup->residual : weft_combiner_residual(chunk->coding.combiner);
    return (struct place){data, data ? chunk->count * sizeof *data : 0};
}

static bool is_result(const struct weft_wire_header *request)
{
    return request->round == WEFT_WIRE_PART_RESULT;
}

static bool is_weights(const struct weft_wire_header *request)
{
    return request->round == WEFT_WIRE_PART_WEIGHTS;
}

/* A result has any length; the weights of a chunk without have none. */
static bool part_fits(const struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    const struct place place = place_of(chunk, request);
    const bool is_short = is_result(request) && request->payload_bytes < place.bytes;
    return (request->payload_bytes == place.bytes || is_short) && (place.data || is_weights(request));
}

static bool codec_fits(const struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    const enum weft_codec_id codec = is_result(request) ? chunk->coding.codec.id : WEFT_CODEC_DENSE;
    return request->codec == codec && request->dtype == WEFT_F32;
}

enum shard_copy_next shard_receive_copy_judge(struct shard_chunk *chunk,
                                              const struct weft_wire_header *request,
                                              enum weft_status *status_out)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    *status_out = WEFT_ERR_STALE;
    /* sends: of results, by an engine that led the slot before */
    if (shard_copy_is_busy(chunk) || chunk->result.sends > 0) return SHARD_COPY_WAIT;
    if (request->term < slot->term) return SHARD_COPY_ANSWER;
    if (request->term > slot->term) return SHARD_COPY_WAIT;
    if (slot->leader != request->worker || slot->copy == engine->endpoint + 1 ||
        request->step > SHARD_STEP_MAX || !codec_fits(chunk, request))
        return SHARD_COPY_DROP;
    /* a new epoch undoes steps of codecs (shard_members.c): both must be in the same one */
    if (shard_tensor_has_codec(chunk->tensor) && request->epoch != engine->epoch) {
        *status_out = WEFT_ERR_AGAIN;
        return request->epoch > engine->epoch ? SHARD_COPY_WAIT : SHARD_COPY_ANSWER;
    }
    *status_out = WEFT_ERR_NO_MEMORY;
    const bool needs_backup = request->flags & (WEFT_WIRE_COPY_BEFORE | WEFT_WIRE_COPY_UNDO);
    if (shard_table_reserve_chunk(chunk) < 0 || (needs_backup && shard_skip_reserve(chunk) < 0) ||
        (request->round == WEFT_WIRE_PART_VERDICT && shard_verdict_is_possible(chunk) &&
         shard_verdict_reserve(chunk) < 0))
        return SHARD_COPY_ANSWER;
    return part_fits(chunk, request) ? SHARD_COPY_RECEIVE : SHARD_COPY_DROP;
}

/* The parts have arrived. */
static void complete(struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    const bool has_result = request->flags & WEFT_WIRE_COPY_RESULT;
    chunk->closed_step = request->step;
    shard_copy_note_result(chunk, request);
    chunk->result.data = chunk->coding.combiner ? chunk->hold.coded : shard_chunk_result(chunk);
    chunk->result.bytes = chunk->coding.combiner ? chunk->hold.coded_bytes : shard_chunk_result_bytes(chunk);
    chunk->result.is_resendable = has_result && chunk->result.bytes > 0;
    shard_verdict_copied(chunk, request->step, request->weight > 0);
    if (chunk->clock) shard_clock_copied(chunk);
    chunk->initialised = request->flags & WEFT_WIRE_COPY_FIRST;
    chunk->backup.valid = request->flags & WEFT_WIRE_COPY_UNDO;
    chunk->backup.skips = request->skips;
    chunk->error.step = 0;
    chunk->error.status = WEFT_OK;
    if (request->incarnation > 0) shard_copy_note_skip(chunk, request->incarnation);
    chunk->copy.synced_term = request->term;
}

/* Results of 16 bits are not sent. */
static void round_values(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    shard_half_round(chunk);
    if (chunk->copy.request.flags & WEFT_WIRE_COPY_UNDO) shard_half_round_backup(chunk);
}

static void rounded(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computing = false;
    if (chunk->tensor->engine->end.closed) return;
    complete(chunk, &chunk->copy.request);
    shard_copy_answer(chunk, &chunk->copy.request, WEFT_OK);
    shard_engine_resume(chunk->tensor->engine);
}

static void part_received(struct shard_chunk *chunk)
{
    const struct weft_wire_header *request = &chunk->copy.request;
    const bool is_before = request->flags & WEFT_WIRE_COPY_BEFORE;
    chunk->tensor->engine->stats.received_bytes += request->payload_bytes;
    if (request->round == WEFT_WIRE_PART_CLOCKS && !shard_clock_counts_fit(chunk)) {
        shard_copy_answer(chunk, request, WEFT_ERR_MALFORMED);
        return;
    }
    if (is_before) chunk->backup.step = request->step;
    if (is_result(request)) chunk->hold.coded_bytes = (size_t)request->payload_bytes;
    if (is_weights(request) && !is_before && chunk->half && chunk->count > WEFT_LOOP_SLICE) {
        shard_round_start_task(chunk, round_values, rounded, chunk->count);
        return;
    }
    if (is_weights(request) && !is_before) {
        round_values(&chunk->work.task);
        complete(chunk, request);
    }
    shard_copy_answer(chunk, request, WEFT_OK);
}

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk *chunk = weft_container_of(completion, struct shard_chunk, copy.received);
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct weft_wire_header *request = &chunk->copy.request;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    if (engine->end.closed) return;
    chunk->copy.payload = NULL;
    chunk->copy.is_part = false;
    if (status == WEFT_OK && request->term == slot->term && slot->leader == request->worker)
        part_received(chunk);
    shard_engine_resume(engine);
}

/* The content of the chunk has no meaning until all parts have arrived. */
static void begin(struct shard_chunk *chunk)
{
    weft_list_remove(&chunk->copy.leave_link);
    chunk->copy.synced_term = 0;
    chunk->closed_step = 0;
    chunk->result.is_resendable = chunk->backup.valid = false;
    shard_map_forget_step(chunk);
}

bool shard_receive_copy(struct shard_chunk *chunk, struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_copy *copy = &chunk->copy;
    void *const place = place_of(chunk, &copy->request).data;
    const size_t bytes = (size_t)copy->request.payload_bytes;
    if (bytes == 0) {
        begin(chunk);
        weft_transport_discard(engine->transport, arrival);
        part_received(chunk);
        return true;
    }
    weft_completion_init(&copy->received, 1, received);
    const enum weft_status status =
        weft_transport_accept(engine->transport, arrival, place, bytes, &copy->received);
    if (status == WEFT_ERR_AGAIN) {
        shard_engine_schedule_retry(engine);
        return false;
    }
    if (status < 0) {
        weft_transport_discard(engine->transport, arrival);
        return true;
    }
    begin(chunk);
    copy->payload = place;
    copy->is_part = true;
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
    if (!chunk->placement.is_here || is_needed(chunk)) return;
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
