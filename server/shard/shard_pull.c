/* shard_pull.c - sends weights (PULL) and receives first weights (INIT); the same for optimiser states and
 * codec residuals (STATE_PULL, STATE_INIT).
 *
 * A PULL names the oldest step it accepts. It gets the chunk's values when that step is closed. One pull per
 * worker and chunk may wait. In phase CLOSING a new pull waits for the new values, so a stream of pulls
 * cannot delay a close.
 *
 * INIT is received directly into the values, since no older copy is needed before the first step. Weights may
 * have any value. A state is checked before it is copied: an optimiser state must be finite, a residual below
 * 2^120. Both kinds are accepted until the first contribution of step 1, and may be repeated if a reply was
 * lost. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"

/* Can `data` answer a pull of `step`? At step 0 values need first weights; states start as zeros. */
static bool pull_ready(const struct shard_chunk *chunk, const float *data, uint64_t step)
{
    if (chunk->open.phase == SHARD_PHASE_CLOSING || chunk->open.phase == SHARD_PHASE_INSTALLING ||
        chunk->open.phase == SHARD_PHASE_APPLYING)
        return false;
    if (shard_replicate_holds(chunk)) return false;
    return chunk->closed_step >= step &&
           (chunk->closed_step > 0 || chunk->initialised || data != chunk->values);
}

static void pull(struct shard_chunk *chunk, const struct weft_wire_header *header,
                 struct weft_arrival *arrival, const float *data)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    struct shard_contribution *contribution = &chunk->workers.contributions[header->worker];
    const bool has_clock = chunk->clock && data == chunk->values;
    uint64_t reach = chunk->open.step ? chunk->open.step : chunk->closed_step + 1;
    if (header->step > reach) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE,
                           "pull of step %" PRIu64 " of tensor '%.40s', which is at step %" PRIu64,
                           header->step, tensor->name, chunk->closed_step);
        return;
    }
    if (has_clock ? shard_clock_pull_is_ready(chunk, header->worker, header->step)
                  : pull_ready(chunk, data, header->step)) {
        if (shard_reply_values(chunk, arrival, header, data)) engine->stats.pulls++;
        return;
    }
    if (contribution->pull) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE,
                           "rank %u pulls chunk %u of tensor '%.40s' twice at once", header->worker,
                           chunk->index, tensor->name);
        return;
    }
    contribution->pull = arrival;
    chunk->workers.pulls_waiting++;
    contribution->pull_since_ns = weft_now_ns(engine->env);
    weft_list_append(&engine->queues.pulls, &arrival->link);
    shard_engine_watch_deadlines(engine);
    shard_worker_left_check(chunk);
}

void shard_pull_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                        struct weft_arrival *arrival)
{
    const struct shard_tensor *tensor = chunk->tensor;
    bool values_follow = shard_chunk_is_dense(chunk) || tensor->optimizer.kind != WEFT_OPTIMIZER_NONE;
    if (!chunk->values || (!values_follow && (header->step > 0 || chunk->closed_step > 0))) {
        shard_reply_refuse(
            tensor->engine, arrival, header, WEFT_ERR_UNSUPPORTED,
            "tensor '%.40s' has a codec and no optimizer: there is nothing to pull after step 0",
            tensor->name);
        return;
    }
    pull(chunk, header, arrival, chunk->values);
}

void shard_pull_reply_waiting(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (chunk->workers.pulls_waiting == 0) return;
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        struct weft_arrival *arrival = chunk->workers.contributions[worker].pull;
        if (!arrival) continue;
        chunk->workers.contributions[worker].pull = NULL;
        weft_list_remove(&arrival->link);
        shard_reply_defer(engine, arrival); /* the next pump, which follows, handles it */
    }
    chunk->workers.pulls_waiting = 0;
    shard_contributions_release(chunk);
}

/* ---- INIT, and STATE_INIT ---- */

/* Copies the received state into place if its values are in range. false: they are not. */
static bool state_store(struct shard_chunk *chunk)
{
    const size_t bytes = chunk->count * sizeof(float);
    if (chunk->installation.to == chunk->values) { /* weights may have any value */
        memcpy(chunk->values, chunk->installation.buffer, bytes);
        return true;
    }
    const bool is_residual =
        chunk->coding.combiner && chunk->installation.to == weft_combiner_residual(chunk->coding.combiner);
    const uint32_t too_large_bits = is_residual ? WEFT_RESIDUAL_LIMIT_BITS : WEFT_F32_INFINITY_BITS;
    if (weft_kernels()->max_abs_bits_f32(chunk->installation.buffer, chunk->count) >= too_large_bits)
        return false;
    memcpy(chunk->installation.to, chunk->installation.buffer, bytes);
    return true;
}

/* Of first weights in the tensor's dtype, or of an array of f32. */
static size_t install_bytes(const struct shard_chunk *chunk, bool is_rounded)
{
    return chunk->count * (is_rounded ? sizeof *chunk->half : sizeof(float));
}

static void reply_refused(struct shard_chunk *chunk, enum weft_status status, const char *text)
{
    chunk->error.status = status;
    chunk->error.step = 0;
    chunk->error.round = chunk->installation.round;
    snprintf(chunk->error.text, sizeof chunk->error.text, "%s", text);
    shard_reply_note(chunk, 0, SHARD_REPLY_ERROR);
}

static void installed(struct weft_completion *completion, enum weft_status status)
{
    struct shard_chunk *chunk = weft_container_of(completion, struct shard_chunk, installation.received);
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (engine->end.closed) return;
    const bool has_buffer = chunk->installation.buffer != NULL;
    const bool is_rounded = shard_half_is_pushed(chunk) && !has_buffer;
    const bool is_stored = status == WEFT_OK && (!chunk->installation.buffer || state_store(chunk));
    if (is_stored && is_rounded) shard_half_install(chunk);
    else if (is_stored && chunk->installation.to == chunk->values) shard_half_round(chunk);
    weft_free_bytes(engine->env, chunk->installation.buffer);
    chunk->installation.buffer = NULL;
    WEFT_ASSERT(chunk->open.phase == SHARD_PHASE_INSTALLING);
    if (chunk->installation.to == chunk->values && (is_stored || !has_buffer)) chunk->initialised = is_stored;
    if (is_stored && engine->end.failed == WEFT_OK) {
        chunk->result.step = 0;
        chunk->result.round = chunk->installation.round;
        chunk->result.bytes = 0;
        chunk->result.lr = chunk->result.weight_sum = 0;
        chunk->result.is_finite = false;
        engine->stats.received_bytes += install_bytes(chunk, is_rounded);
        shard_replicate(chunk, 0, 0,
                        chunk->installation.to == chunk->values ? WEFT_WIRE_PART_WEIGHTS
                                                                : chunk->installation.round,
                        chunk->installation.to);
        shard_reply_note(chunk, 0, SHARD_REPLY_ACK);
    } else if (is_stored) {
        reply_refused(chunk, engine->end.failed, engine->end.failed_text);
    } else if (status == WEFT_OK) {
        reply_refused(chunk, WEFT_ERR_INVALID,
                       "a state with a value that is not finite, or too large; nothing was changed");
    } else {
        weft_log(engine->env, WEFT_LOG_WARN, "server", "first %s of tensor '%s' chunk %u did not arrive: %s",
                 chunk->installation.to == chunk->values ? "weights" : "state", chunk->tensor->name,
                 chunk->index, weft_reason_text(status));
        if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, 0);
    }
    shard_round_resume(chunk);
    if (!chunk->initialised && chunk->tensor->optimizer.kind != WEFT_OPTIMIZER_NONE &&
        chunk->open.arrived > 0)
        shard_round_drop(chunk, WEFT_ERR_STATE, "the tensor's first weights did not arrive");
    shard_pull_reply_waiting(chunk);
    shard_engine_resume(engine);
}

/* Starts receiving the payload into `place`. Refuses the request if place is NULL or the request is not
 * valid. */
static void install(struct shard_chunk *chunk, const struct weft_wire_header *header,
                    struct weft_arrival *arrival, float *place, const char *what)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    const bool is_state = header->kind == WEFT_WIRE_STATE_INIT;
    const bool is_rounded = shard_half_is_pushed(chunk) && !is_state;
    const enum weft_dtype dtype = is_rounded ? tensor->dtype : WEFT_F32;
    const size_t bytes = install_bytes(chunk, is_rounded);
    if (!place || header->worker != 0 || header->step != 0 || header->codec != WEFT_CODEC_DENSE ||
        header->dtype != dtype) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_INVALID,
                           "first %s must be sent by rank 0, as step 0, dense %s", what,
                           weft_dtype_name(dtype));
        return;
    }
    if (arrival->payload_bytes != bytes) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_MALFORMED,
                           "first %s of tensor '%.30s' chunk %u have %zu bytes, not %zu", what, tensor->name,
                           chunk->index, arrival->payload_bytes, bytes);
        return;
    }
    if (chunk->closed_step > 0 || chunk->open.arrived > 0) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_STATE,
                           "first %s of tensor '%.40s' after its training has begun", what, tensor->name);
        return;
    }
    /* The values are being read or written. */
    if (shard_result_is_in_use(chunk) || chunk->open.phase != SHARD_PHASE_IDLE) {
        shard_reply_defer(engine, arrival);
        return;
    }
    if (is_state) {
        chunk->installation.buffer = weft_alloc_array(engine->env, chunk->count, sizeof(float));
        if (!chunk->installation.buffer) {
            shard_reply_refuse(engine, arrival, header, WEFT_ERR_NO_MEMORY,
                               "no memory for the state of tensor '%.40s' chunk %u", tensor->name,
                               chunk->index);
            return;
        }
    }
    shard_round_enter(chunk, SHARD_PHASE_INSTALLING);
    weft_completion_init(&chunk->installation.received, 1, installed);
    chunk->installation.to = place;
    chunk->installation.round = header->round;
    void *const buffer = chunk->installation.buffer ? (void *)chunk->installation.buffer
                         : is_rounded          ? (void *)chunk->half
                                               : place;
    enum weft_status status =
        weft_transport_accept(engine->transport, arrival, buffer, bytes, &chunk->installation.received);
    if (status >= 0) {
        if (!is_state) chunk->initialised = false;
        return;
    }
    weft_free_bytes(engine->env, chunk->installation.buffer);
    chunk->installation.buffer = NULL;
    shard_round_enter(chunk, SHARD_PHASE_IDLE);
    if (status == WEFT_ERR_AGAIN) {
        shard_reply_defer(engine, arrival);
        shard_engine_schedule_retry(engine);
        return;
    }
    weft_transport_discard(engine->transport, arrival);
    if (status == WEFT_ERR_PEER_LOST) shard_engine_worker_lost(engine, 0);
}

void shard_install_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                           struct weft_arrival *arrival)
{
    install(chunk, header, arrival, chunk->values, "weights");
}

/* ---- states ---- */

void shard_state_request(struct shard_chunk *chunk, const struct weft_wire_header *header,
                         struct weft_arrival *arrival)
{
    float *const state = shard_chunk_state(chunk, header->round);
    if (!state)
        shard_reply_refuse(chunk->tensor->engine, arrival, header, WEFT_ERR_UNSUPPORTED,
                           "tensor '%.40s' chunk %u has no state of number %u", chunk->tensor->name,
                           chunk->index, header->round);
    else if (header->kind == WEFT_WIRE_STATE_PULL) pull(chunk, header, arrival, state);
    else install(chunk, header, arrival, state, "states");
}
