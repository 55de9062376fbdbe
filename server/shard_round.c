/* shard_round.c - one round of one chunk: from the first announcement to the result.
 *
 *              first announcement       memory reserved         all folded            readers gone
 *        IDLE ------------------> WAITING ----------> COLLECTING ---------> CLOSING -------------> IDLE
 *         ^ \                       |                   |   |                  |
 *         |  INIT: INSTALLING       | dropped           |   dropped, receives  | dropped
 *         +---------/---------------+-------------------+   v in flight        |
 *         +------------------------------------------- DRAINING                |
 *         +--------------------------------------------------------------------+
 *
 * shard_round_enter alone writes the phase. A dropped round (deadline, disagreement, lost worker) leaves no
 * trace in the values: its contributors hear why at once, the others when their contribution comes, and the
 * same step may be tried again from the codec's round 0.
 *
 * Memory. A round opens when the arena has its block, in the order of first announcements. A dense round
 * keeps the partial sums of T in its slots: after ranks 0..k-1 are folded, popcount(k) of them. A rank is
 * received ahead of its turn only when every missing rank before it would still find a slot when it comes
 * (room_for): "one slot stays with the lowest missing rank", counted exactly.
 *
 * Why no order of pushes can deadlock it:
 *   1. An announcement costs no memory of ours, so it always gets in, whatever is open.
 *   2. An open round can always receive its lowest missing rank: block size >= weft_fold_slots(workers), and
 *      room_for never gives away what a missing rank needs. Folding needs nobody else.
 *   3. So an open round closes as soon as all its workers have announced it, and gives its block back; the
 *      round waiting longest gets it (its block fits an empty arena: checked at declare).
 *   4. Closing waits for readers of the previous result only; a reader's buffer is its own and waits for nothing.
 * What remains is that each worker announces each chunk of the step. A client that holds announcements
 * back until results of other chunks have come must hold them back in the same order on every worker, or
 * have fewer in flight than there are blocks: announcements are cheap, so it has no reason to.
 *
 * Result. Values (or the aggregate) are sent from where they lie, to every worker; the next round collects
 * meanwhile and writes only when the last send has ended: the values are one round buffer, its slots the other.
 *
 * Exactly once. A contribution is folded at most once: its step must be the open one, closed_step + 1, its part
 * must be NONE, and closing moves closed_step and every worker's watermark in the same call. Duplicates of
 * the last closed round are answered from its result, older ones are refused as stale. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/shard_engine.h"

static uint64_t event_id(const struct shard_chunk *chunk)
{
    return (uint64_t)chunk->tensor->id << 32 | chunk->index;
}

/* ---- phases ---- */

static const uint8_t legal_before[] = {
    [SHARD_PHASE_IDLE] = 1 << SHARD_PHASE_INSTALLING | 1 << SHARD_PHASE_WAITING | 1 << SHARD_PHASE_COLLECTING |
                         1 << SHARD_PHASE_CLOSING | 1 << SHARD_PHASE_DRAINING,
    [SHARD_PHASE_INSTALLING] = 1 << SHARD_PHASE_IDLE,
    [SHARD_PHASE_WAITING] = 1 << SHARD_PHASE_IDLE,
    [SHARD_PHASE_COLLECTING] = 1 << SHARD_PHASE_WAITING,
    [SHARD_PHASE_CLOSING] = 1 << SHARD_PHASE_COLLECTING,
    [SHARD_PHASE_DRAINING] = 1 << SHARD_PHASE_COLLECTING,
};

static bool phase_has_round(uint8_t phase)
{
    return phase == SHARD_PHASE_WAITING || phase == SHARD_PHASE_COLLECTING || phase == SHARD_PHASE_CLOSING;
}

/* The one place that changes a phase; membership in the engine's lists follows from it. */
void shard_round_enter(struct shard_chunk *chunk, enum shard_phase phase)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    WEFT_ASSERT(legal_before[phase] & 1 << chunk->phase);
    WEFT_ASSERT(phase != SHARD_PHASE_IDLE || chunk->receiving == 0);
    WEFT_ASSERT(phase != SHARD_PHASE_CLOSING || chunk->next == engine->workers);
    if (phase == SHARD_PHASE_WAITING) {
        chunk->first_ns = weft_now_ns(engine->env);
        weft_list_append(&engine->waiting, &chunk->waiting_link);
        weft_list_append(&engine->rounds, &chunk->round_link);
        weft_event_ring_add(engine->events, "round", WEFT_EVENT_BEGIN, event_id(chunk), UINT32_MAX, 0, WEFT_OK);
    } else {
        weft_list_remove(&chunk->waiting_link);
        if (!phase_has_round((uint8_t)phase)) weft_list_remove(&chunk->round_link);
    }
    chunk->phase = (uint8_t)phase;
    if (phase == SHARD_PHASE_WAITING) shard_engine_watch_deadlines(engine);
}

void shard_round_resume(struct shard_chunk *chunk)
{
    shard_round_enter(chunk, SHARD_PHASE_IDLE);
    if (chunk->arrived > 0) shard_round_enter(chunk, SHARD_PHASE_WAITING);
}

/* ---- receiving ---- */

static bool in_slot(const struct shard_part *part)
{
    return part->state == SHARD_PART_RECEIVING || part->state == SHARD_PART_HELD;
}

/* Partial sums that live after ranks 0..added-1 are folded. */
static uint32_t partials(const struct shard_chunk *chunk, uint32_t added)
{
    return shard_tensor_is_dense(chunk->tensor) ? (uint32_t)__builtin_popcount(added) : 0;
}

/* May `rank` take a slot? Each missing rank before it must still find one when its turn comes: then the
 * partials, the ranks in slots behind it, `rank` and itself are there. Growing in rank: when one may not,
 * none after it may. */
static bool room_for(const struct shard_chunk *chunk, uint32_t rank)
{
    const struct shard_slots *slots = &chunk->slots;
    if (slots->count >= chunk->tensor->engine->workers) return true;
    if (rank == chunk->next) return true;
    if (slots->used == slots->count) return false; /* all before it are in slots and will be folded soon */
    uint32_t behind = slots->used - partials(chunk, chunk->next);
    for (uint32_t k = chunk->next; k < rank; k++) {
        if (in_slot(&chunk->parts[k])) behind--;
        else if (partials(chunk, k) + 1 + behind + 1 > slots->count) return false;
    }
    return true;
}

static void advance(struct shard_chunk *chunk);

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct shard_slot *slot = weft_container_of(completion, struct shard_slot, completion);
    struct shard_chunk *chunk = slot->chunk;
    struct weft_shard_engine *engine = chunk->tensor->engine;
    uint32_t worker = slot->worker;
    WEFT_ASSERT(chunk->receiving > 0);
    chunk->receiving--;
    if (engine->closed) return;

    if (status < 0) {
        weft_log(engine->env, WEFT_LOG_WARN, "server", "rank %u's push of tensor '%s' chunk %u did not arrive: %s", worker,
                 chunk->tensor->name, chunk->index, weft_status_text(status));
        if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, worker);
    }
    if (chunk->phase == SHARD_PHASE_DRAINING) {
        if (chunk->receiving == 0) {
            shard_slots_close(&chunk->slots, &engine->arena);
            shard_round_resume(chunk);
            shard_engine_moved(engine);
        }
        return;
    }
    struct shard_part *part = &chunk->parts[worker];
    WEFT_ASSERT(part->state == SHARD_PART_RECEIVING);
    if (status < 0) {
        part->state = SHARD_PART_NONE;
        part->slot = NULL;
        chunk->arrived--;
        shard_slots_give(&chunk->slots, slot);
        shard_round_fill(chunk);
        return;
    }
    engine->stats.received_bytes += slot->payload_bytes;
    part->state = SHARD_PART_HELD;
    advance(chunk);
}

/* Bring a waiting contribution in. false: not now, and none of a later rank either. */
static bool receive(struct shard_chunk *chunk, uint32_t worker)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_part *part = &chunk->parts[worker];
    if (!room_for(chunk, worker)) {
        chunk->starved = true;
        return false;
    }
    struct shard_slot *slot = shard_slots_take(&chunk->slots);
    struct weft_arrival *arrival = part->arrival;
    slot->chunk = chunk;
    slot->worker = worker;
    slot->payload_bytes = arrival->payload_bytes;
    weft_completion_init(&slot->completion, 1, received);
    enum weft_status status = weft_transport_accept(engine->transport, arrival, shard_slot_data(slot), arrival->payload_bytes, &slot->completion);
    if (status >= 0) {
        part->arrival = NULL;
        part->slot = slot;
        part->state = SHARD_PART_RECEIVING;
        chunk->receiving++;
        return true;
    }
    shard_slots_give(&chunk->slots, slot);
    if (status == WEFT_ERR_AGAIN) {
        chunk->starved = true;
        engine->accept_again = true;
        shard_engine_retry_soon(engine);
        return false;
    }
    weft_transport_discard(engine->transport, arrival);
    part->arrival = NULL;
    part->state = SHARD_PART_NONE;
    chunk->arrived--;
    if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, worker);
    return true;
}

void shard_round_fill(struct shard_chunk *chunk)
{
    if (chunk->phase != SHARD_PHASE_COLLECTING) return;
    chunk->starved = false;
    for (uint32_t worker = chunk->next; worker < chunk->tensor->engine->workers; worker++)
        if (chunk->parts[worker].state == SHARD_PART_WAITING && !receive(chunk, worker)) return;
}

/* As many slots as there are workers while memory is plenty, else what the fold cannot do without. */
static bool slots_open(struct shard_chunk *chunk)
{
    struct shard_arena *arena = &chunk->tensor->engine->arena;
    uint32_t least = shard_chunk_slots_min(chunk), most = chunk->tensor->engine->workers;
    size_t bytes = shard_chunk_contribution_bytes(chunk, chunk->round);
    if (least + 8 < most) most = least + 8;
    if (most > least && arena->used_bytes + shard_slots_bytes(most, bytes) <= arena->bytes / 2 &&
        shard_slots_open(&chunk->slots, arena, most, bytes))
        return true;
    return shard_slots_open(&chunk->slots, arena, least, bytes);
}

void shard_round_open_waiting(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->waiting)) {
        struct shard_chunk *chunk = weft_list_first(&engine->waiting, struct shard_chunk, waiting_link);
        if (!slots_open(chunk)) return;
        weft_fold_init(&chunk->fold, chunk->count);
        shard_round_enter(chunk, SHARD_PHASE_COLLECTING);
        shard_round_fill(chunk);
    }
}

/* ---- folding and closing ---- */

static void give_freed(struct shard_chunk *chunk, float *const *freed, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) shard_slots_give(&chunk->slots, shard_slot_of(freed[i]));
}

static void drop_malformed(struct shard_chunk *chunk, uint32_t worker, enum weft_status status)
{
    char text[SHARD_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %u's contribution to tensor '%.30s' is not usable: %s", worker, chunk->tensor->name,
             weft_status_name(status));
    shard_round_drop(chunk, status, text);
}

/* Fold the lowest missing rank, which is held. false: it cannot be now, or the round was dropped. */
static bool fold_next(struct shard_chunk *chunk)
{
    struct shard_tensor *tensor = chunk->tensor;
    uint32_t worker = chunk->next;
    struct shard_part *part = &chunk->parts[worker];
    WEFT_ASSERT(part->applied_step <= chunk->closed_step);
    if (shard_tensor_is_dense(tensor)) {
        float *freed[32];
        uint32_t freed_count = weft_fold_add(&chunk->fold, shard_slot_data(part->slot), freed);
        give_freed(chunk, freed, freed_count);
        WEFT_ASSERT(chunk->fold.depth == partials(chunk, worker + 1));
    } else {
        if (worker == 0) {
            if (shard_result_busy(chunk)) return false; /* the aggregate is still being sent */
            chunk->result_answerable = false;
            weft_combiner_begin(tensor->combiner, chunk->round);
        }
        enum weft_status status = weft_combiner_add(tensor->combiner, shard_slot_data(part->slot), part->slot->payload_bytes);
        if (status < 0) {
            drop_malformed(chunk, worker, status);
            return false;
        }
        shard_slots_give(&chunk->slots, part->slot);
    }
    part->slot = NULL;
    part->state = SHARD_PART_FOLDED;
    chunk->next++;
    return true;
}

static float weight_sum(const struct shard_chunk *chunk)
{
    double sum = 0;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++) sum += (double)chunk->parts[worker].weight;
    return (float)sum;
}

static void optimise(struct shard_chunk *chunk, const float *grad, float grad_scale)
{
    const struct shard_tensor *tensor = chunk->tensor;
    struct weft_sgd sgd = {
        .lr = chunk->lr,
        .momentum = tensor->optimizer.momentum,
        .weight_decay = tensor->optimizer.weight_decay,
        .nesterov = tensor->optimizer.nesterov,
    };
    tensor->engine->kernels->sgd_f32(chunk->values, chunk->velocity, grad, grad_scale, &sgd, chunk->count);
}

static void close_dense(struct shard_chunk *chunk, float grad_scale)
{
    float *freed[32];
    uint32_t freed_count;
    float *sum = weft_fold_finish(&chunk->fold, freed, &freed_count);
    WEFT_ASSERT(sum != NULL);
    if (chunk->tensor->optimizer.enabled) optimise(chunk, sum, grad_scale);
    else chunk->tensor->engine->kernels->scale_f32(chunk->values, sum, grad_scale, chunk->count);
    chunk->result_data = chunk->values;
    chunk->result_bytes = chunk->count * sizeof(float);
}

static enum weft_status close_codec(struct shard_chunk *chunk, float grad_scale, bool last)
{
    struct shard_tensor *tensor = chunk->tensor;
    const void *aggregate;
    size_t bytes;
    WEFT_TRY(weft_combiner_close(tensor->combiner, &aggregate, &bytes));
    if (last && tensor->optimizer.enabled) {
        WEFT_TRY(weft_combiner_finish(tensor->combiner, grad_scale, tensor->engine->scratch));
        optimise(chunk, tensor->engine->scratch, 1.0f);
    }
    chunk->result_data = aggregate;
    chunk->result_bytes = bytes;
    return WEFT_OK;
}

/* Forget who contributed; `answer_wanted`: everyone gets what he asked for. */
static void parts_reset(struct shard_chunk *chunk, bool answer_wanted)
{
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++) {
        struct shard_part *part = &chunk->parts[worker];
        if (answer_wanted) shard_reply_note(chunk, worker, (enum shard_answer)part->want);
        part->state = SHARD_PART_NONE;
        part->slot = NULL;
    }
    chunk->arrived = chunk->next = 0;
    chunk->starved = false;
}

static void close_round(struct shard_chunk *chunk)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    bool last = chunk->round + 1u == tensor->rounds;
    WEFT_ASSERT(chunk->phase == SHARD_PHASE_CLOSING && !shard_result_busy(chunk));

    chunk->result_weight_sum = weight_sum(chunk);
    float grad_scale = (float)(1.0 / (double)chunk->result_weight_sum);
    if (!isfinite(chunk->result_weight_sum) || !isfinite(grad_scale)) {
        chunk->result_weight_sum = 0;
        shard_round_drop(chunk, WEFT_ERR_INVALID, "the workers' sample weights are too large or too small to sum");
        return;
    }
    if (shard_tensor_is_dense(tensor)) {
        close_dense(chunk, grad_scale);
    } else {
        enum weft_status status = close_codec(chunk, grad_scale, last);
        if (status < 0) {
            shard_round_drop(chunk, status, "the shard could not combine the contributions");
            return;
        }
    }
    shard_slots_close(&chunk->slots, &engine->arena);
    chunk->result_step = chunk->closed_step + 1;
    chunk->result_round = chunk->round;
    chunk->result_lr = chunk->lr;
    chunk->result_answerable = true;
    if (last) {
        chunk->closed_step++;
        chunk->round = 0;
        for (uint32_t worker = 0; worker < engine->workers; worker++) chunk->parts[worker].applied_step = chunk->closed_step;
        if (!shard_tensor_is_dense(tensor) && tensor->optimizer.enabled) shard_hash_step(chunk);
    } else {
        chunk->round++;
    }
    engine->stats.rounds_closed++;
    weft_event_ring_add(engine->events, "round", WEFT_EVENT_END, event_id(chunk), UINT32_MAX, chunk->result_bytes, WEFT_OK);
    parts_reset(chunk, true);
    shard_round_enter(chunk, SHARD_PHASE_IDLE);
    if (last) shard_pull_answer_waiting(chunk);
    shard_engine_moved(engine);
}

static void advance(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    while (chunk->phase == SHARD_PHASE_COLLECTING && chunk->next < engine->workers &&
           chunk->parts[chunk->next].state == SHARD_PART_HELD) {
        if (!fold_next(chunk)) return;
    }
    if (chunk->phase != SHARD_PHASE_COLLECTING) return;
    if (chunk->next < engine->workers) {
        if (chunk->starved) shard_round_fill(chunk);
        return;
    }
    shard_round_enter(chunk, SHARD_PHASE_CLOSING);
    if (!shard_result_busy(chunk)) close_round(chunk);
}

void shard_round_result_released(struct shard_chunk *chunk)
{
    if (chunk->phase == SHARD_PHASE_CLOSING) close_round(chunk);
    else advance(chunk);
}

/* ---- dropping ---- */

void shard_round_drop(struct shard_chunk *chunk, enum weft_status status, const char *text)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    chunk->error_status = status;
    chunk->error_step = chunk->closed_step + 1;
    chunk->error_round = chunk->round;
    snprintf(chunk->error_text, sizeof chunk->error_text, "%s", text);
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        struct shard_part *part = &chunk->parts[worker];
        part->owed = part->state == SHARD_PART_NONE;
        if (part->state == SHARD_PART_WAITING) {
            weft_transport_discard(engine->transport, part->arrival);
            part->arrival = NULL;
        }
        if (!part->owed) shard_reply_note(chunk, worker, SHARD_ANSWER_ERROR);
    }
    parts_reset(chunk, false);
    if (chunk->round > 0) { /* the next attempt begins with the codec's first round again */
        chunk->round = 0;
        chunk->result_answerable = false;
    }
    weft_event_ring_add(engine->events, "round", WEFT_EVENT_END, event_id(chunk), UINT32_MAX, 0, status);
    if (chunk->phase != SHARD_PHASE_INSTALLING) {
        if (chunk->receiving > 0) {
            shard_round_enter(chunk, SHARD_PHASE_DRAINING);
        } else {
            shard_slots_close(&chunk->slots, &engine->arena);
            shard_round_enter(chunk, SHARD_PHASE_IDLE);
        }
    }
    shard_engine_moved(engine);
}

void shard_round_missing(const struct shard_chunk *chunk, char *out, size_t out_bytes)
{
    uint32_t missing = 0, named = 0;
    size_t length = 0;
    out[0] = 0;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++)
        missing += chunk->parts[worker].state == SHARD_PART_NONE;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers && named < missing && named < 4; worker++) {
        if (chunk->parts[worker].state != SHARD_PART_NONE) continue;
        int added = snprintf(out + length, out_bytes - length, "%s%u", named == 0 ? "rank " : ", ", worker);
        if (added < 0 || (size_t)added >= out_bytes - length) return;
        length += (size_t)added;
        named++;
    }
    if (missing > named) snprintf(out + length, out_bytes - length, " and %u more", missing - named);
}

/* ---- a push that has passed the door ---- */

/* A push of a round that is closed already: told again what it was told, or that it comes too late. */
static void push_again(struct shard_chunk *chunk, const struct weft_wire_header *header, struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (!chunk->result_answerable || header->step != chunk->result_step || header->round != chunk->result_round) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STALE, "step %" PRIu64 " of tensor '%.30s' is closed, %" PRIu64 " is open",
                           header->step, chunk->tensor->name, chunk->closed_step + 1);
        return;
    }
    if (chunk->parts[header->worker].state != SHARD_PART_NONE) { /* it has moved on: nobody waits for this answer */
        engine->stats.duplicates++;
        weft_transport_discard(engine->transport, arrival);
        return;
    }
    enum shard_answer answer = header->kind == WEFT_WIRE_PUSH ? SHARD_ANSWER_ACK : SHARD_ANSWER_DATA;
    if (shard_reply_result(chunk, arrival, header, answer)) engine->stats.duplicates++;
}

#define STEP_MAX (UINT64_MAX / 2) /* no count of steps gets there; steps beyond it are refused, so that closed_step cannot wrap */

/* The learning rate is the step's: all ranks and all rounds have the same. Bits, not values, are compared. */
static bool lr_agrees(const struct shard_chunk *chunk, float lr)
{
    return (chunk->arrived == 0 && chunk->round == 0) || memcmp(&lr, &chunk->lr, sizeof lr) == 0;
}

void shard_round_push(struct shard_chunk *chunk, const struct weft_wire_header *header, struct weft_arrival *arrival)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    struct shard_part *part = &chunk->parts[header->worker];
    if (chunk->phase == SHARD_PHASE_DRAINING) {
        shard_reply_defer(engine, arrival);
        return;
    }
    if (header->step <= chunk->closed_step || (header->step == chunk->closed_step + 1 && header->round < chunk->round)) {
        push_again(chunk, header, arrival);
        return;
    }
    if (part->owed && header->step == chunk->error_step) { /* even when others try again already: it must hear of it once */
        part->owed = false;
        shard_reply_note(chunk, header->worker, SHARD_ANSWER_ERROR);
        weft_transport_discard(engine->transport, arrival);
        shard_engine_moved(engine);
        return;
    }
    /* Steps may pass a tensor by (declared late, frozen for a while): whoever comes first opens the step. */
    bool opens = chunk->phase == SHARD_PHASE_IDLE && chunk->round == 0 && header->round == 0 && header->step <= STEP_MAX;
    if ((header->step > chunk->closed_step + 1 && !opens) || header->round > chunk->round) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE, "push of step %" PRIu64 " round %u of tensor '%.30s' while step %" PRIu64 " round %u is open",
                           header->step, header->round, tensor->name, chunk->closed_step + 1, chunk->round);
        return;
    }
    if (part->state != SHARD_PART_NONE) {
        engine->stats.duplicates++; /* the first one is answered when the round closes */
        weft_transport_discard(engine->transport, arrival);
        return;
    }
    if (tensor->optimizer.enabled && !chunk->initialised && chunk->phase != SHARD_PHASE_INSTALLING) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE, "tensor '%.40s' has an optimizer and no first weights: call weft_tensor_init first",
                           tensor->name);
        return;
    }
    if (header->round > 0 && memcmp(&part->weight, &header->weight, sizeof part->weight) != 0) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_MISMATCH, "rank %u's weight changed from %g to %g within step %" PRIu64,
                           header->worker, (double)part->weight, (double)header->weight, header->step);
        return;
    }
    bool agrees = lr_agrees(chunk, header->lr);
    char text[SHARD_TEXT_BYTES];
    if (!agrees)
        snprintf(text, sizeof text, "lr of step %" PRIu64 " differs: rank %u has %.9g, rank %u has %.9g (tensor '%.20s')", header->step,
                 chunk->lr_worker, (double)chunk->lr, header->worker, (double)header->lr, tensor->name);
    else if (chunk->arrived == 0) {
        chunk->lr = header->lr;
        chunk->lr_worker = header->worker;
    }

    if (opens) {
        chunk->closed_step = header->step - 1;
        for (uint32_t worker = 0; worker < engine->workers; worker++) chunk->parts[worker].applied_step = chunk->closed_step;
    }
    part->arrival = arrival;
    part->state = SHARD_PART_WAITING;
    part->want = header->kind == WEFT_WIRE_PUSH ? SHARD_ANSWER_ACK : SHARD_ANSWER_DATA;
    part->weight = header->weight;
    chunk->arrived++;
    engine->stats.pushes++;
    if (chunk->phase == SHARD_PHASE_IDLE) shard_round_enter(chunk, SHARD_PHASE_WAITING);

    if (!agrees) shard_round_drop(chunk, WEFT_ERR_MISMATCH, text);
    else if (chunk->phase == SHARD_PHASE_WAITING) shard_round_open_waiting(engine);
    else if (chunk->phase == SHARD_PHASE_COLLECTING && (!chunk->starved || header->worker == chunk->next)) receive(chunk, header->worker);
}
