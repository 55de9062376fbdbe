/* shard_push.c - a push with a checked header: validates step, round, lr and weight, then waits for a slot.
 *
 * Steps. The first contribution after a close opens the next step. It usually has number closed_step + 1, but
 * may skip steps (tensor declared late, or frozen). Until that step is closed or dropped, a push of another
 * step is refused.
 *
 * Exactly once. A contribution is folded at most once: its step must be the open one, larger than
 * closed_step, and its state must be NONE. A close moves closed_step, which is every worker's watermark. A
 * duplicate of the last closed round gets its result again; older duplicates are refused as stale. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

/* The worker needs no result of this round: it has pushed a later one, or repeats all under a new term. */
static bool is_passed(const struct shard_chunk *chunk, const struct weft_wire_header *header)
{
    if (!shard_rounds_are_repeated(chunk) || header->step != chunk->result.step) return false;
    return header->round < chunk->result.round ||
           (header->step == chunk->open.step &&
            shard_contribution_state(chunk, header->worker) != SHARD_CONTRIBUTION_NONE);
}

void shard_push_again(struct shard_chunk *chunk, const struct weft_wire_header *header,
                      struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const bool holds = header->kind == WEFT_WIRE_PUSH_HOLD;
    if (is_passed(chunk, header)) {
        engine->stats.duplicates++;
        shard_reply_passed(engine, arrival, header);
        return;
    }
    if (!chunk->result.is_resendable || header->step != chunk->result.step ||
        header->round != chunk->result.round || holds != shard_verdict_is_result(chunk)) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STALE,
                           "step %" PRIu64 " round %u of tensor '%.30s' is over, steps up to %" PRIu64 " are",
                           header->step, header->round, chunk->tensor->name, chunk->closed_step);
        return;
    }
    if (shard_replicate_holds(chunk)) {
        shard_reply_defer(engine, arrival);
        return;
    }
    if (shard_contribution_state(chunk, header->worker) != SHARD_CONTRIBUTION_NONE) {
        /* the worker has pushed a later round and does not wait for this reply */
        engine->stats.duplicates++;
        weft_transport_discard(engine->transport, arrival);
        return;
    }
    enum shard_reply_kind kind = header->kind == WEFT_WIRE_PUSH ? SHARD_REPLY_ACK : SHARD_REPLY_DATA;
    if (shard_reply_result(chunk, arrival, header, kind)) engine->stats.duplicates++;
}

static bool is_first(const struct shard_chunk *chunk)
{
    return chunk->open.arrived == 0 && chunk->open.round == 0;
}

static float weight_decay_of(const struct weft_wire_header *header)
{
    return header->flags & WEFT_WIRE_DECAY ? header->weight_sum : 0;
}

/* lr and weight decay are properties of the step: equal in all ranks and rounds. Compares bits, so NaN is
 * equal to itself. A difference is described in `text`. */
static bool step_agrees(const struct shard_chunk *chunk, const struct weft_wire_header *header, char *text)
{
    const float decay = weight_decay_of(header);
    const bool has_decay = header->flags & WEFT_WIRE_DECAY, had_decay = chunk->open.flags & WEFT_WIRE_DECAY;
    const bool holds = header->kind == WEFT_WIRE_PUSH_HOLD;
    const bool lr_differs = memcmp(&header->lr, &chunk->open.lr, sizeof chunk->open.lr) != 0;
    if (is_first(chunk)) return true;
    if (holds != chunk->open.holds) {
        snprintf(text, SHARD_TEXT_BYTES,
                 "rank %u clips step %" PRIu64 " of '%.20s' by its norm, rank %u does not",
                 holds ? header->worker : chunk->open.lr_worker, header->step, chunk->tensor->name,
                 holds ? chunk->open.lr_worker : header->worker);
        return false;
    }
    if (!lr_differs && has_decay == had_decay && memcmp(&decay, &chunk->open.weight_decay, sizeof decay) == 0)
        return true;
    snprintf(text, SHARD_TEXT_BYTES,
             "%s of step %" PRIu64 " differs: rank %u has %.9g, rank %u has %.9g (tensor '%.16s')",
             lr_differs ? "lr" : "decay", header->step, chunk->open.lr_worker,
             (double)(lr_differs ? chunk->open.lr : chunk->open.weight_decay), header->worker,
             (double)(lr_differs ? header->lr : decay), chunk->tensor->name);
    return false;
}

/* With copies a worker may repeat a skipped step under each term, from its first round. */
static bool is_skipped(const struct shard_chunk *chunk, const struct weft_wire_header *header)
{
    return shard_map_is_on(chunk->tensor->engine) && chunk->error.status == WEFT_ERR_SKIPPED &&
           header->step == chunk->error.step;
}

/* Is it the worker's first push of the open round? Otherwise replies to it and returns false. */
static bool push_is_due(struct shard_chunk *chunk, const struct weft_wire_header *header,
                        struct weft_arrival *arrival)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    struct shard_contribution *contribution = &chunk->workers.contributions[header->worker];
    if (header->step <= chunk->closed_step || shard_verdict_is_due(chunk, header->step) ||
        (header->step == chunk->open.step && header->round < chunk->open.round)) {
        shard_push_again(chunk, header, arrival);
        return false;
    }
    if (is_skipped(chunk, header)) {
        if (shard_replicate_holds(chunk)) shard_reply_defer(engine, arrival);
        else shard_reply_refuse(engine, arrival, header, WEFT_ERR_SKIPPED, "%s", chunk->error.text);
        return false;
    }
    if (shard_error_is_unsent(chunk, header->worker) && header->step == chunk->error.step &&
        header->round == chunk->error.round) {
        /* the error is reported once, also if other workers have started a new attempt */
        shard_error_set_unsent(chunk, header->worker, false);
        shard_reply_note(chunk, header->worker, SHARD_REPLY_ERROR);
        weft_transport_discard(engine->transport, arrival);
        shard_engine_resume(engine);
        return false;
    }
    if (chunk->open.step != 0 && header->step != chunk->open.step) {
        shard_reply_refuse(
            engine, arrival, header, WEFT_ERR_MISMATCH,
            "rank %u pushes step %" PRIu64 " of tensor '%.30s', rank %u has opened step %" PRIu64,
            header->worker, header->step, tensor->name, chunk->open.lr_worker, chunk->open.step);
        return false;
    }
    if (header->round > chunk->open.round && header->step == chunk->error.step) {
        /* the round was dropped: report why round 0 is next */
        shard_reply_refuse(engine, arrival, header, chunk->error.status, "%s", chunk->error.text);
        return false;
    }
    if (header->round > chunk->open.round || header->step > SHARD_STEP_MAX) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE,
                           "push of step %" PRIu64 " round %u of tensor '%.30s', whose round %u is next",
                           header->step, header->round, tensor->name, chunk->open.round);
        return false;
    }
    if (contribution->state != SHARD_CONTRIBUTION_NONE) {
        /* the first push gets the reply when the round closes */
        engine->stats.duplicates++;
        weft_transport_discard(engine->transport, arrival);
        return false;
    }
    return true;
}

/* Can the chunk accept this contribution? Otherwise refuses it and returns false. */
static bool push_is_usable(struct shard_chunk *chunk, const struct weft_wire_header *header,
                           struct weft_arrival *arrival)
{
    struct shard_tensor *tensor = chunk->tensor;
    if (tensor->optimizer.kind != WEFT_OPTIMIZER_NONE && !chunk->initialised &&
        chunk->open.phase != SHARD_PHASE_INSTALLING) {
        shard_reply_refuse(
            tensor->engine, arrival, header, WEFT_ERR_STATE,
            "tensor '%.40s' has an optimizer and no first weights: call weft_tensor_init first",
            tensor->name);
        return false;
    }
    if (header->round > 0 &&
        memcmp(&chunk->workers.weights[header->worker], &header->weight, sizeof header->weight) != 0) {
        shard_reply_refuse(tensor->engine, arrival, header, WEFT_ERR_MISMATCH,
                           "rank %u's weight changed from %g to %g within step %" PRIu64, header->worker,
                           (double)chunk->workers.weights[header->worker], (double)header->weight,
                           header->step);
        return false;
    }
    return true;
}

void shard_push_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                        struct weft_arrival *arrival)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_contribution *contribution = &chunk->workers.contributions[header->worker];
    if (chunk->open.phase == SHARD_PHASE_DRAINING) {
        shard_reply_defer(engine, arrival);
        return;
    }
    if (!push_is_due(chunk, header, arrival) || !push_is_usable(chunk, header, arrival)) return;
    if (!shard_snapshot_admit(chunk, header)) {
        shard_reply_defer(engine, arrival);
        return;
    }

    char text[SHARD_TEXT_BYTES];
    const bool agrees = step_agrees(chunk, header, text);
    if (agrees && chunk->open.arrived == 0) {
        chunk->open.lr = header->lr;
        chunk->open.weight_decay = weight_decay_of(header);
        chunk->open.lr_worker = header->worker;
        chunk->open.step = header->step;
        chunk->open.flags = 0;
        chunk->open.holds = header->kind == WEFT_WIRE_PUSH_HOLD;
    }
    chunk->open.flags |= header->flags;
    contribution->arrival = arrival;
    contribution->state = SHARD_CONTRIBUTION_ANNOUNCED;
    contribution->reply_wanted = header->kind == WEFT_WIRE_PUSH ? SHARD_REPLY_ACK : SHARD_REPLY_DATA;
    contribution->weight = header->weight;
    if (shard_half_is_pushed(chunk)) shard_half_push(chunk, header, contribution);
    if (chunk->workers.weights) chunk->workers.weights[header->worker] = header->weight;
    contribution->announced_ns = chunk->open.announced_ns = weft_now_ns(engine->env);
    if (chunk->open.arrived == 0) chunk->open.opened_ns = chunk->open.announced_ns;
    chunk->open.arrived++;
    shard_in_place_find(chunk, contribution);
    engine->stats.pushes++;
    if (chunk->open.phase == SHARD_PHASE_IDLE) shard_round_enter(chunk, SHARD_PHASE_WAITING);

    if (!agrees) shard_round_drop(chunk, WEFT_ERR_MISMATCH, text);
    else if (header->flags & WEFT_WIRE_NOT_FINITE)
        shard_round_drop(chunk, WEFT_ERR_SKIPPED, "a gradient is not finite");
    else if (chunk->open.phase == SHARD_PHASE_WAITING) {
        shard_receive_queue(chunk);
        shard_receive_open_waiting(engine);
    } else if (chunk->open.phase == SHARD_PHASE_COLLECTING &&
               (!chunk->open.lacks_slot || header->worker == chunk->open.next))
        shard_receive_one(chunk, header->worker);
    shard_worker_left_check(chunk);
}
