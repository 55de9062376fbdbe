/* shard_replicate.c - the leader's side of replication: no reply leaves before the copy holds the step.
 *
 *     step closed --> hold: REPLICATE to the copy --> REPLICATED under the slot's term --> replies, pulls
 *                       \ Map, new term: sent again, or without a copy released
 *
 * What travels is what closed the step: the sum, for which the copy runs the same optimiser, or the mean;
 * of a codec what its combiner needs to be as it is here (weft_combiner_step_save); of a step with clip_norm
 * first the sum, then its factor (shard_verdict.c); with ssp and asp each contribution (shard_clock.c). First
 * weights, states and the verdict that a step was skipped are held in the same way. The payload is sent from
 * where it lies: the values, or the slot of the sum, whose block stays reserved. The next close waits for
 * both (shard_result_is_in_use). A chunk has at most one such change, since no worker contributes to the next
 * step before it has the result; with ssp and asp the next contribution waits.
 *
 * No ring of engines can block: a copy acknowledges when its own memory for copies has the payload, and that
 * memory is released by its own arithmetic. A leader that has been replaced gets no REPLICATED under its
 * term, so it cannot reply; this needs no clock. */
#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

static void release(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_hold *hold = &chunk->hold;
    if (hold->is_due || hold->is_sending || shard_move_is_in_use(chunk->move)) return;
    shard_slots_close(&hold->slots, &engine->memory.arena);
    if (chunk->clock && !engine->end.closed) shard_clock_replicated(chunk);
    else if (!engine->end.closed && !shard_result_is_in_use(chunk)) shard_round_result_released(chunk);
}

void shard_replicate_check(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (engine->end.closed) return;
    if (!shard_replicate_holds(chunk)) {
        if (chunk->result.replies_pending > 0 && weft_list_empty(&chunk->links.reply))
            weft_list_append(&engine->queues.reply_queue, &chunk->links.reply);
        shard_pull_reply_waiting(chunk);
    }
    release(chunk);
}

/* The copy holds the change, or there is no copy. */
static void end_hold(struct shard_chunk *chunk)
{
    chunk->hold.is_due = false;
    weft_list_remove(&chunk->hold.link);
    shard_replicate_check(chunk);
}

/* ---- sending ---- */

/* A lost copy is reported by the coordinator, whose Map ends the hold. */
static void sent(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk *chunk = weft_container_of(completion, struct shard_chunk, hold.sent);
    chunk->hold.is_sending = false;
    release(chunk);
    shard_engine_resume(chunk->tensor->engine);
}

enum weft_status shard_replicate_send(struct weft_shard_engine *engine, uint32_t endpoint,
                                      const struct weft_wire_header *header, const void *payload,
                                      struct weft_completion *completion)
{
    struct weft_peer *peer = weft_transport_peer(engine->transport, endpoint);
    if (!peer || weft_peer_status(peer) < 0) return WEFT_ERR_PEER_LOST;
    uint8_t bytes[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(header, bytes);
    struct weft_message message = {
        .tag = WEFT_TAG(WEFT_CHANNEL_SHARD, (uint64_t)header->chunk << 32 | header->tensor),
        .header = bytes,
        .header_bytes = sizeof bytes,
        .payload = payload,
        .payload_bytes = payload ? (size_t)header->payload_bytes : 0,
    };
    return weft_transport_send(peer, &message, completion);
}

enum weft_status shard_replicate_change(struct shard_chunk *chunk, uint32_t endpoint,
                                        struct weft_completion *completion)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_hold *hold = &chunk->hold;
    const struct weft_wire_header header = {
        .kind = WEFT_WIRE_REPLICATE,
        .codec = hold->step > 0 ? (uint8_t)chunk->coding.codec.id : (uint8_t)WEFT_CODEC_DENSE,
        .dtype = WEFT_F32,
        .round = hold->part,
        .flags = hold->flags,
        .skips = chunk->backup.skips,
        .good = chunk->backup.skips ? (uint32_t)hold->step_before : 0,
        .job = engine->settings.job,
        .incarnation = hold->step_before,
        .worker = hold->worker,
        .epoch = engine->epoch,
        .tensor = chunk->tensor->id,
        .chunk = chunk->index,
        .step = hold->step,
        .payload_bytes = hold->payload_bytes,
        .lr = chunk->open.lr,
        .weight = hold->flags & WEFT_WIRE_DECAY ? chunk->open.weight_decay : 0,
        .weight_sum = chunk->result.weight_sum,
        .term = shard_map_term(chunk),
    };
    WEFT_TRY(shard_replicate_send(engine, endpoint, &header, hold->payload, completion));
    engine->stats.replicated++;
    engine->stats.replicated_bytes += header.payload_bytes;
    return WEFT_OK;
}

/* false: not now. */
static bool send_hold(struct shard_chunk *chunk)
{
    struct shard_hold *hold = &chunk->hold;
    weft_completion_init(&hold->sent, 1, sent);
    const enum weft_status status =
        shard_replicate_change(chunk, shard_map_slot(chunk)->copy - 1, &hold->sent);
    if (status == WEFT_ERR_AGAIN) return false;
    hold->is_sending = status == WEFT_OK; /* else the copy is lost */
    return true;
}

void shard_replicate_pump(struct weft_shard_engine *engine)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &engine->replication.unsent) {
        struct shard_hold *hold = weft_container_of(node, struct shard_hold, link);
        struct shard_chunk *chunk = weft_container_of(hold, struct shard_chunk, hold);
        if (hold->is_sending) continue; /* under the term before */
        if (!send_hold(chunk)) {
            shard_engine_schedule_retry(engine);
            return;
        }
        weft_list_remove(node);
    }
}

/* ---- holding ---- */

void shard_replicate(struct shard_chunk *chunk, uint64_t step, uint64_t step_before, uint8_t part,
                     const void *payload)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct shard_hold *hold = &chunk->hold;
    if (!shard_map_is_on(engine) || shard_map_slot(chunk)->leader != engine->endpoint) return;
    const bool has_copy = shard_map_slot(chunk)->copy > 0;
    if (!shard_move_change(chunk) && !has_copy) return;
    hold->step = step;
    hold->step_before = step_before;
    hold->part = part;
    hold->flags = step > 0 && payload ? chunk->open.flags & (WEFT_WIRE_MAY_SKIP | WEFT_WIRE_DECAY) : 0;
    hold->payload = payload;
    hold->payload_bytes = shard_replicate_payload_bytes(chunk, step, part, payload != NULL);
    hold->is_due = has_copy;
    hold->due_ns = weft_now_ns(engine->env);
    weft_list_remove(&chunk->links.reply); /* replies of an earlier step wait, too */
    weft_list_remove(&hold->link);
    if (has_copy) weft_list_append(&engine->replication.unsent, &hold->link);
}

size_t shard_replicate_payload_bytes(const struct shard_chunk *chunk, uint64_t step, uint8_t part,
                                     bool has_payload)
{
    if (!has_payload) return 0;
    return step > 0 && part == WEFT_WIRE_CHANGE_VERDICT ? sizeof(float) : chunk->count * sizeof(float);
}

size_t shard_replicate_coded_bytes_max(const struct shard_chunk *chunk)
{
    if (!chunk->coding.combiner) return 0;
    const size_t all = weft_combiner_step_bytes_max(chunk->coding.combiner,
                                                    chunk->tensor->engine->members.workers_max),
                 /* may be longer: top-k of few elements */
        one = weft_combiner_step_bytes_max(chunk->coding.combiner, 1);
    return all > one ? all : one;
}

size_t shard_replicate_bytes_max(const struct shard_chunk *chunk)
{
    const size_t values = chunk->count * sizeof(float); /* of a dense step, first weights, or a state */
    const size_t coded = shard_replicate_coded_bytes_max(chunk);
    return coded > values ? coded : values;
}

void shard_replicate_save(struct shard_chunk *chunk)
{
    if (chunk->hold.coded)
        chunk->hold.coded_bytes = weft_combiner_step_save(chunk->coding.combiner, chunk->hold.coded);
}

void shard_replicate_close(struct shard_chunk *chunk, uint64_t step_before)
{
    struct shard_hold *hold = &chunk->hold;
    const bool updates = chunk->tensor->optimizer.kind != WEFT_OPTIMIZER_NONE;
    if (chunk->open.holds) {
        if (!(chunk->tensor->engine->replication.mutants & WEFT_MUTANT_SUM_NOT_COPIED))
            shard_replicate(chunk, chunk->open.step, step_before, WEFT_WIRE_CHANGE_HELD, chunk->verdict->sum);
        return;
    }
    shard_replicate(chunk, chunk->open.step, step_before, 0,
                    chunk->coding.combiner ? hold->coded
                    : updates       ? hold->sum
                                    : chunk->values);
    if (!hold->is_due && !shard_move_holds(chunk->move)) return;
    if (chunk->coding.combiner) hold->payload_bytes = hold->coded_bytes;
    if (chunk->coding.combiner || !updates) return;
    chunk->hold.slots = chunk->open.slots;
    chunk->open.slots = (struct shard_slots){0};
}

/* A higher term is known to the copy: another engine leads the slot, and its Map is on the way. */
static void log_fenced(const struct shard_chunk *chunk, const struct weft_wire_header *header)
{
    weft_log(chunk->tensor->engine->env, WEFT_LOG_WARN, "server",
             "tensor '%s' chunk %u: the copy refuses step %llu of term %u (%s)", chunk->tensor->name,
             chunk->index, (unsigned long long)header->step, header->term,
             weft_status_name((enum weft_status)header->status));
}

void shard_replicate_acked(struct shard_chunk *chunk, uint32_t peer_id, const struct weft_wire_header *header)
{
    struct shard_hold *hold = &chunk->hold;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    if (slot->leader != chunk->tensor->engine->endpoint || slot->copy != peer_id + 1 ||
        header->term != slot->term || !hold->is_due || header->step != hold->step ||
        header->round != hold->part)
        return;
    if (header->status < 0) {
        log_fenced(chunk, header);
        return;
    }
    struct weft_shard_engine *engine = chunk->tensor->engine;
    weft_histogram_add(&engine->stats.replicate, weft_elapsed_ns(hold->due_ns, weft_now_ns(engine->env)));
    shard_compare_send(chunk);
    end_hold(chunk);
    shard_engine_resume(engine);
}

void shard_replicate_map_changed(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const struct shard_map_slot *slot = shard_map_slot(chunk);
    if (!chunk->hold.is_due) return;
    if (slot->leader != engine->endpoint || slot->copy == 0) end_hold(chunk);
    else if (weft_list_empty(&chunk->hold.link))
        weft_list_append(&engine->replication.unsent, &chunk->hold.link);
}
