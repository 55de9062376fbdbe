/* shard_copy.c - the copy's side of replication: holds what closed a step, acknowledges, applies.
 *
 *     REPLICATE --> term, leader, step checked --> memory --> payload received: held --> REPLICATED
 *                     \ another one is applied, no memory, newer term: waits          --> applied with the
 *                                                                                         leader's kernel
 *
 * A copy is an ordinary chunk of the table in phase IDLE. It keeps what a leader keeps to answer repeated
 * pushes: the watermark and the result of the last step. So it leads as soon as a Map names it
 * (shard_map.c).
 * It applies each step once: a repeated REPLICATE, under the leader's next term, is only acknowledged. The
 * values equal the leader's, bit for bit: the same kernel with the same sum, lr and weight_sum. Of a codec
 * the combiner loads what the leader's has saved. So a repeated push gets the same aggregate, and the next
 * step has the same residual. */
#include <stdio.h>
#include <string.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

/* ---- answers: one at a time for each chunk ---- */

void shard_copy_answer(struct shard_chunk *chunk, const struct weft_wire_header *request,
                       enum weft_status status)
{
    const bool is_part = request->kind == WEFT_WIRE_COPY;
    chunk->copy.ack = (struct weft_wire_header){
        .kind = is_part ? WEFT_WIRE_COPIED : WEFT_WIRE_REPLICATED,
        .flags = is_part ? request->flags : 0,
        .codec = request->codec,
        .dtype = request->dtype,
        .round = request->round,
        .status = status,
        .job = request->job,
        .worker = request->worker,
        .epoch = request->epoch,
        .tensor = request->tensor,
        .chunk = request->chunk,
        .step = request->step,
        .term = request->term,
    };
    weft_list_append(&chunk->tensor->engine->replication.acks, &chunk->copy.ack_link);
}

static void ack_sent(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk *chunk = weft_container_of(completion, struct shard_chunk, copy.ack_sent);
    chunk->copy.is_ack_sending = false;
    shard_engine_resume(chunk->tensor->engine);
}

static void pump_acks(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->replication.acks)) {
        struct shard_copy *copy = weft_list_first(&engine->replication.acks, struct shard_copy, ack_link);
        struct weft_wire_header header = copy->ack;
        header.worker = 0;
        weft_completion_init(&copy->ack_sent, 1, ack_sent);
        const enum weft_status status =
            shard_replicate_send(engine, copy->ack.worker, &header, NULL, &copy->ack_sent);
        if (status == WEFT_ERR_AGAIN) {
            shard_engine_schedule_retry(engine);
            return;
        }
        weft_list_remove(&copy->ack_link);
        copy->is_ack_sending = status >= 0; /* else the leader is lost */
    }
}

/* ---- applying ---- */

static float *place_of(const struct shard_chunk *chunk, uint8_t part)
{
    return part == WEFT_WIRE_PART_WEIGHTS ? chunk->values : shard_chunk_state(chunk, part);
}

static void end(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_copy *copy = &chunk->copy;
    if (copy->payload)
        shard_arena_release(&engine->replication.memory, copy->payload, (size_t)copy->request.payload_bytes);
    copy->payload = NULL;
}

static void optimise(struct shard_chunk *chunk, const float *grad, float grad_scale)
{
    const struct weft_wire_header *request = &chunk->copy.request;
    struct weft_optimizer rule = chunk->tensor->optimizer;
    if (request->flags & WEFT_WIRE_DECAY) rule.weight_decay = request->weight;
    weft_optimizer_step(&rule, request->lr, request->step, chunk->values, chunk->states, grad, grad_scale,
                        chunk->count);
}

/* The combiner becomes that of the leader after its last round. */
static void apply_coded(struct shard_chunk *chunk, float grad_scale)
{
    const struct shard_copy *copy = &chunk->copy;
    weft_combiner_step_load(chunk->coding.combiner, copy->payload, (size_t)copy->request.payload_bytes,
                            &chunk->result.data, &chunk->result.bytes);
    if (chunk->tensor->optimizer.kind == WEFT_OPTIMIZER_NONE) return;
    const enum weft_status status =
        weft_combiner_finish(chunk->coding.combiner, grad_scale, chunk->work.scratch);
    WEFT_ASSERT(status == WEFT_OK);
    optimise(chunk, chunk->work.scratch, 1.0f);
}

static bool is_change(const struct weft_wire_header *request, enum weft_wire_change change)
{
    return request->step > 0 && request->payload_bytes > 0 && request->round == change;
}

/* The factor of the held sum. */
static void apply_verdict(struct shard_chunk *chunk)
{
    float *factor = &chunk->verdict->last.factor;
    memcpy(factor, chunk->copy.payload, sizeof *factor);
    if (chunk->tensor->engine->replication.mutants & WEFT_MUTANT_FACTOR_NOT_KEPT) *factor = 1;
    shard_verdict_update(chunk);
}

static void apply(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    const struct shard_copy *copy = &chunk->copy;
    const struct weft_wire_header *request = &copy->request;
    const size_t bytes = chunk->count * sizeof(float);
    const float grad_scale = (float)(1.0 / (double)request->weight_sum);
    if (chunk->clock && request->step > 0) {
        shard_clock_copy_apply(chunk);
        return;
    }
    if (is_change(request, WEFT_WIRE_CHANGE_HELD)) {
        chunk->work.grad_scale = grad_scale;
        chunk->open.lr = request->lr;
        chunk->open.weight_decay = request->weight;
        shard_verdict_hold(chunk, copy->payload);
        return;
    }
    if (is_change(request, WEFT_WIRE_CHANGE_VERDICT)) {
        apply_verdict(chunk);
        return;
    }
    if (copy->saves) shard_skip_save(chunk);
    if (request->step == 0) memcpy(place_of(chunk, request->round), copy->payload, bytes);
    else if (chunk->coding.combiner) apply_coded(chunk, grad_scale);
    else if (chunk->tensor->optimizer.kind != WEFT_OPTIMIZER_NONE) optimise(chunk, copy->payload, grad_scale);
    else memcpy(chunk->values, copy->payload, bytes);
    shard_half_round(chunk);
}

void shard_copy_note_result(struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    chunk->result.step = request->step;
    chunk->result.round = (uint8_t)(chunk->coding.rounds - 1);
    chunk->result.lr = chunk->open.lr = request->lr;
    chunk->result.weight_sum = request->weight_sum;
    chunk->result.is_finite = false; /* this engine has not received the gradients */
}

static void applied(struct shard_chunk *chunk)
{
    const struct weft_wire_header *request = &chunk->copy.request;
    const bool is_held = is_change(request, WEFT_WIRE_CHANGE_HELD);
    if (request->step == 0) {
        chunk->initialised |= request->round == WEFT_WIRE_PART_WEIGHTS;
    } else if (chunk->clock) {
        shard_clock_copy_applied(chunk);
    } else if (is_change(request, WEFT_WIRE_CHANGE_VERDICT)) {
        shard_verdict_updated(chunk);
    } else {
        if (is_held) shard_verdict_closed(chunk, request->step);
        else chunk->closed_step = request->step;
        shard_copy_note_result(chunk, request);
        if (!chunk->coding.combiner && !is_held) {
            chunk->result.data = shard_chunk_result(chunk);
            chunk->result.bytes = shard_chunk_result_bytes(chunk);
        }
        chunk->result.is_resendable =
            !(chunk->tensor->engine->replication.mutants & WEFT_MUTANT_RESULT_NOT_KEPT);
    }
    end(chunk);
}

static void apply_done(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computing = false;
    applied(chunk);
    shard_engine_resume(chunk->tensor->engine);
}

/* Chunks that need the engine's scratch all run on the same thread (shard_round.c). */
static uint64_t apply_elements(const struct shard_chunk *chunk)
{
    const uint32_t states = weft_optimizer_states(&chunk->tensor->optimizer);
    if (is_change(&chunk->copy.request, WEFT_WIRE_CHANGE_HELD)) return 2 * chunk->count;
    if (!chunk->coding.combiner || chunk->copy.request.step == 0) return chunk->count * (1 + states);
    if (chunk->tensor->optimizer.kind != WEFT_OPTIMIZER_NONE) return chunk->tensor->engine->scratches.count;
    return weft_combiner_residual(chunk->coding.combiner) ? chunk->count
                                                   : chunk->copy.request.payload_bytes / sizeof(float);
}

static void start_apply(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct weft_wire_header *request = &chunk->copy.request;
    chunk->backup.valid = false;
    chunk->open.flags = request->flags;
    chunk->copy.saves =
        request->step > 0 && shard_skip_needs_copy(chunk) && is_change(request, WEFT_WIRE_CHANGE_STEP);
    /* without memory for it the step cannot be undone after a fail-over; requests then get WEFT_ERR_STATE */
    if (chunk->copy.saves && shard_skip_reserve(chunk) < 0) {
        weft_log(engine->env, WEFT_LOG_WARN, "server",
                 "no memory to keep what step %llu of tensor '%s' overwrites",
                 (unsigned long long)request->step, chunk->tensor->name);
        chunk->copy.saves = false;
    }
    chunk->work.scratch = engine->scratches.scratch;
    const uint64_t elements = apply_elements(chunk);
    if (elements > WEFT_LOOP_SLICE) {
        shard_round_start_task(chunk, apply, apply_done, elements);
        return;
    }
    apply(&chunk->work.task);
    applied(chunk);
}

/* ---- receiving ---- */

static bool is_copied_from(const struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    return request->term == slot->term && slot->leader == request->worker &&
           (slot->copy == engine->endpoint + 1 || chunk->copy.synced_term == slot->term);
}

static bool is_coded(const struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    return chunk->coding.combiner && request->step > 0;
}

static enum weft_status payload_check(const struct shard_chunk *chunk)
{
    const struct shard_copy *copy = &chunk->copy;
    if (!is_coded(chunk, &copy->request)) return WEFT_OK;
    return weft_combiner_step_check(chunk->coding.combiner, copy->payload,
                                    (size_t)copy->request.payload_bytes);
}

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk *chunk = weft_container_of(completion, struct shard_chunk, copy.received);
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (engine->end.closed) return;
    if (status < 0 || !is_copied_from(chunk, &chunk->copy.request)) {
        end(chunk); /* the leader is lost or replaced: no worker has received this step's result */
    } else if (payload_check(chunk) < 0) {
        end(chunk);
        shard_copy_answer(chunk, &chunk->copy.request, WEFT_ERR_MALFORMED);
    } else {
        if (!(engine->replication.mutants & WEFT_MUTANT_ACK_BEFORE_HELD))
            shard_copy_answer(chunk, &chunk->copy.request, WEFT_OK);
        engine->stats.received_bytes += chunk->copy.request.payload_bytes;
        start_apply(chunk);
    }
    shard_engine_resume(engine);
}

/* false: there is no memory for the payload now. */
static bool receive(struct shard_chunk *chunk, struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_copy *copy = &chunk->copy;
    const size_t bytes = (size_t)copy->request.payload_bytes;
    copy->payload = shard_arena_reserve(&engine->replication.memory, bytes);
    if (!copy->payload) return false;
    weft_completion_init(&copy->received, 1, received);
    const enum weft_status status =
        weft_transport_accept(engine->transport, arrival, copy->payload, bytes, &copy->received);
    if (status >= 0) {
        if (engine->replication.mutants & WEFT_MUTANT_ACK_BEFORE_HELD)
            shard_copy_answer(chunk, &chunk->copy.request, WEFT_OK);
        return true;
    }
    end(chunk);
    if (status == WEFT_ERR_AGAIN) {
        shard_engine_schedule_retry(engine);
        return false;
    }
    weft_transport_discard(engine->transport, arrival);
    return true;
}

void shard_copy_note_skip(struct shard_chunk *chunk, uint64_t step)
{
    chunk->error.status = WEFT_ERR_SKIPPED;
    chunk->error.step = step;
    chunk->error.round = 0;
    snprintf(chunk->error.text, sizeof chunk->error.text, "a gradient or the mean is not finite");
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++)
        shard_error_set_unsent(chunk, worker, true);
}

/* Steps that the leader has taken back are taken back here. false: this copy lacks a step. */
static bool follow_skips(struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    struct weft_wire_header header = *request;
    header.good = (uint32_t)request->incarnation;
    return shard_skip_undo(chunk, &header) == WEFT_OK;
}

static bool request_fits(const struct shard_chunk *chunk, const struct weft_wire_header *request)
{
    const uint64_t bytes = request->payload_bytes;
    const enum weft_codec_id codec = request->step > 0 ? chunk->coding.codec.id : WEFT_CODEC_DENSE;
    if (request->step > SHARD_STEP_MAX || request->codec != codec || request->dtype != WEFT_F32) return false;
    if (request->step == 0 && !place_of(chunk, request->round)) return false;
    if (bytes == 0) return request->step > 0;
    if (request->step > 0 && request->round != WEFT_WIRE_CHANGE_STEP &&
        (request->round > WEFT_WIRE_CHANGE_VERDICT || !shard_verdict_is_possible(chunk)))
        return false;
    return is_coded(chunk, request)
               ? bytes <= shard_replicate_coded_bytes_max(chunk)
               : bytes == shard_replicate_payload_bytes(chunk, request->step, request->round, true);
}

/* The same for the sum and the factor of a step with clip_norm, whose step before is closed here. */
static enum shard_copy_next classify_verdict(struct shard_chunk *chunk,
                                             const struct weft_wire_header *request,
                                             enum weft_status *status_out)
{
    const bool is_held = shard_verdict_is_due(chunk, request->step);
    const bool is_sum = is_change(request, WEFT_WIRE_CHANGE_HELD);
    *status_out = WEFT_OK;
    if (is_sum && is_held) return SHARD_COPY_ANSWER; /* sent again under a new term */
    if (is_sum) *status_out = shard_verdict_reserve(chunk);
    else if (!is_held) *status_out = WEFT_ERR_STATE;
    return *status_out < 0 ? SHARD_COPY_ANSWER : SHARD_COPY_RECEIVE;
}

/* What to do with a REPLICATE. rank: of its worker; status_out: of the answer. */
static enum shard_copy_next classify(struct shard_chunk *chunk, const struct weft_wire_header *request,
                                     uint32_t rank, enum weft_status *status_out)
{
    *status_out = WEFT_ERR_STALE;
    if (shard_copy_is_busy(chunk)) return SHARD_COPY_WAIT;
    if (request->term < shard_map_term(chunk)) {
        if (chunk->tensor->engine->replication.mutants & WEFT_MUTANT_LOWER_TERM) *status_out = WEFT_OK;
        return SHARD_COPY_ANSWER;
    }
    if (request->term > shard_map_term(chunk)) return SHARD_COPY_WAIT;
    if (!chunk->placement.is_here || !is_copied_from(chunk, request)) return SHARD_COPY_DROP;
    if (!request_fits(chunk, request)) return SHARD_COPY_DROP;
    const bool has_payload = request->payload_bytes > 0;
    *status_out = WEFT_OK;
    if (request->step == 0) return chunk->closed_step == 0 ? SHARD_COPY_RECEIVE : SHARD_COPY_ANSWER;
    if (chunk->clock) return shard_clock_copy_next(chunk, request, rank, status_out);
    /* a new epoch undoes such steps on the leader and here (shard_members.c) */
    if (shard_tensor_has_codec(chunk->tensor) && request->epoch != chunk->tensor->engine->epoch)
        return request->epoch > chunk->tensor->engine->epoch ? SHARD_COPY_WAIT : SHARD_COPY_ANSWER;
    if (!follow_skips(chunk, request)) {
        *status_out = WEFT_ERR_STATE;
        return SHARD_COPY_ANSWER;
    }
    if (has_payload && request->step == chunk->closed_step) return SHARD_COPY_ANSWER; /* it is applied */
    if (request->incarnation != chunk->closed_step) {
        *status_out = WEFT_ERR_STATE;
        return SHARD_COPY_ANSWER;
    }
    if (has_payload && request->round != WEFT_WIRE_CHANGE_STEP)
        return classify_verdict(chunk, request, status_out);
    if (!has_payload) shard_copy_note_skip(chunk, request->step);
    return has_payload ? SHARD_COPY_RECEIVE : SHARD_COPY_ANSWER;
}

/* false: the arrival waits. */
static bool handle(struct weft_shard_engine *engine, struct weft_arrival *arrival)
{
    struct weft_wire_header header;
    struct shard_chunk *chunk = NULL;
    enum weft_status status = weft_wire_decode(arrival->header, arrival->header_bytes, &header);
    const bool is_ours =
        status == WEFT_OK && weft_wire_is_between_shards(header.kind) && header.job == engine->settings.job &&
        header.payload_bytes == arrival->payload_bytes && shard_engine_speaks(engine, &header);
    struct shard_tensor *tensor = is_ours ? shard_table_tensor(engine, header.tensor) : NULL;
    if (tensor) chunk = shard_table_chunk(tensor, header.chunk);
    enum shard_copy_next next = SHARD_COPY_DROP;
    if (chunk && (header.kind == WEFT_WIRE_REPLICATED || header.kind == WEFT_WIRE_COPIED)) {
        const bool is_of_step =
            header.kind == WEFT_WIRE_COPIED || !shard_compare_answered(chunk, arrival->peer_id, &header);
        if (is_of_step && header.kind == WEFT_WIRE_REPLICATED)
            shard_replicate_acked(chunk, arrival->peer_id, &header);
        if (is_of_step) shard_move_acked(chunk, arrival->peer_id, &header);
    } else if (chunk && engine->end.failed == WEFT_OK) {
        const uint32_t rank = header.worker;
        header.worker = arrival->peer_id; /* the sender, for the answer */
        next = header.kind == WEFT_WIRE_COPY      ? shard_receive_copy_judge(chunk, &header, &status)
               : header.kind == WEFT_WIRE_COMPARE ? shard_compare_received(chunk, &header, &status)
                                                  : classify(chunk, &header, rank, &status);
    }
    if (next == SHARD_COPY_WAIT) return false;
    if (next == SHARD_COPY_RECEIVE) {
        chunk->copy.request = header;
        if (header.kind != WEFT_WIRE_COPY) return receive(chunk, arrival);
        const bool is_received = shard_receive_copy(chunk, arrival);
        pump_acks(engine); /* of a part without payload */
        return is_received;
    }
    if (next == SHARD_COPY_ANSWER) {
        shard_copy_answer(chunk, &header, status);
        pump_acks(engine);
    }
    weft_transport_discard(engine->transport, arrival);
    return true;
}

void shard_copy_arrived(void *context, struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = context;
    weft_list_init(&arrival->link);
    if (!handle(engine, arrival)) weft_list_append(&engine->replication.waiting, &arrival->link);
}

void shard_copy_pump(struct weft_shard_engine *engine)
{
    struct weft_list now;
    pump_acks(engine);
    weft_list_take(&now, &engine->replication.waiting);
    while (!weft_list_empty(&now)) {
        struct weft_arrival *arrival = weft_list_first(&now, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        if (!handle(engine, arrival)) weft_list_append(&engine->replication.waiting, &arrival->link);
    }
}
