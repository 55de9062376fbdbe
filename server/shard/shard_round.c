/* shard_round.c - one round of one chunk: from the first announcement to the result.
 *
 *              first announcement       memory reserved         all folded            result sent
 *        IDLE ------------------> WAITING ----------> COLLECTING ---------> CLOSING -------------> IDLE
 *         ^ \                       |                   |   |                  |
 *         |  INIT: INSTALLING       | dropped           |   dropped, receives  | dropped
 *         +---------/---------------+-------------------+   v in flight        |
 *         +------------------------------------------- DRAINING                |
 *         +--------------------------------------------------------------------+
 *
 * A dropped round (deadline, mismatch, lost worker) does not change the values. Its contributors get the
 * reason at once, other workers on their next push; the step may be retried from round 0. Arithmetic on more
 * than WEFT_LOOP_SLICE elements is a loop task: the chunk stays COLLECTING or CLOSING; a round dropped during
 * a fold drains until the task ends. A close that has started is not dropped. Results are sent from the
 * values or the aggregate; the next round collects meanwhile and writes them after the last send. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

static uint64_t event_id(const struct shard_chunk *chunk)
{
    return (uint64_t)chunk->tensor->id << 32 | chunk->index;
}

/* ---- phases ---- */

static const uint8_t legal_phases[] = {
    [SHARD_PHASE_IDLE] = 1 << SHARD_PHASE_INSTALLING | 1 << SHARD_PHASE_WAITING |
                         1 << SHARD_PHASE_COLLECTING | 1 << SHARD_PHASE_CLOSING | 1 << SHARD_PHASE_DRAINING |
                         1 << SHARD_PHASE_APPLYING,
    [SHARD_PHASE_INSTALLING] = 1 << SHARD_PHASE_IDLE,
    [SHARD_PHASE_WAITING] = 1 << SHARD_PHASE_IDLE | 1 << SHARD_PHASE_COLLECTING,
    [SHARD_PHASE_COLLECTING] = 1 << SHARD_PHASE_WAITING,
    [SHARD_PHASE_CLOSING] = 1 << SHARD_PHASE_COLLECTING,
    [SHARD_PHASE_DRAINING] = 1 << SHARD_PHASE_COLLECTING,
    [SHARD_PHASE_APPLYING] = 1 << SHARD_PHASE_IDLE,
};

static bool phase_has_round(uint8_t phase)
{
    return phase == SHARD_PHASE_WAITING || phase == SHARD_PHASE_COLLECTING || phase == SHARD_PHASE_CLOSING;
}

/* Changes the phase and updates the engine's lists. No other function writes the phase. */
void shard_round_enter(struct shard_chunk *chunk, enum shard_phase phase)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    WEFT_ASSERT(legal_phases[phase] & 1 << chunk->open.phase);
    WEFT_ASSERT(phase != SHARD_PHASE_IDLE || (chunk->open.receiving == 0 && !chunk->work.computing));
    WEFT_ASSERT(phase != SHARD_PHASE_CLOSING || chunk->open.next == engine->workers);
    if (phase == SHARD_PHASE_WAITING && chunk->open.phase == SHARD_PHASE_IDLE) {
        chunk->open.first_ns = weft_now_ns(engine->env);
        weft_list_append(&engine->queues.rounds, &chunk->links.round);
        weft_event_ring_add(engine->events, "round", WEFT_EVENT_BEGIN, event_id(chunk), UINT32_MAX, 0,
                            WEFT_OK);
    }
    weft_list_remove(&chunk->links.waiting);
    if (!phase_has_round((uint8_t)phase)) weft_list_remove(&chunk->links.round);
    chunk->open.phase = (uint8_t)phase;
    if (phase == SHARD_PHASE_IDLE) shard_contributions_release(chunk);
    if (phase != SHARD_PHASE_WAITING) return;
    shard_receive_queue(chunk);
    shard_engine_watch_deadlines(engine);
}

void shard_round_resume(struct shard_chunk *chunk)
{
    shard_round_enter(chunk, SHARD_PHASE_IDLE);
    if (chunk->open.arrived > 0) shard_round_enter(chunk, SHARD_PHASE_WAITING);
    shard_worker_left_check(chunk);
}

/* ---- folding and closing ---- */

static void release_freed(struct shard_chunk *chunk, float *const *freed, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) shard_slots_free(&chunk->open.slots, shard_slot_of(freed[i]));
}

static void drop_malformed(struct shard_chunk *chunk, uint32_t worker, enum weft_status status)
{
    char text[SHARD_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %u's contribution to tensor '%.30s' is not usable: %s", worker,
             chunk->tensor->name, weft_status_name(status));
    shard_round_drop(chunk, status, text);
}

/* ---- arithmetic, as a loop task if it exceeds WEFT_LOOP_SLICE elements ---- */

static void fold(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    if (shard_half_is_pushed(chunk)) shard_half_widen(chunk, chunk->work.folding);
    if (shard_chunk_is_dense(chunk))
        chunk->work.freed_count =
            weft_tree_reduce_add(&chunk->open.fold, shard_slot_data(chunk->work.folding), chunk->work.freed);
    else
        chunk->work.computed = weft_combiner_add(chunk->coding.combiner, shard_slot_data(chunk->work.folding),
                                            chunk->work.folding->payload_bytes);
}

/* Ends the fold of rank open.next. Returns false if the contribution was invalid and the round was
 * dropped. */
static bool folded(struct shard_chunk *chunk)
{
    uint32_t worker = chunk->open.next;
    struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    if (shard_chunk_is_dense(chunk)) {
        release_freed(chunk, chunk->work.freed, chunk->work.freed_count);
        WEFT_ASSERT(chunk->open.fold.depth == shard_round_partials(chunk, worker + 1));
    } else {
        if (chunk->work.computed < 0) {
            drop_malformed(chunk, worker, chunk->work.computed);
            return false;
        }
        shard_slots_free(&chunk->open.slots, contribution->slot);
    }
    contribution->slot = NULL;
    contribution->state = SHARD_CONTRIBUTION_FOLDED;
    chunk->open.next++;
    return true;
}

static void fold_done(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computing = false;
    if (chunk->open.phase == SHARD_PHASE_DRAINING) shard_round_finish_drain(chunk);
    else if (folded(chunk)) shard_round_advance(chunk);
}

void shard_work_begin(struct weft_shard_engine *engine)
{
    if (engine->work.active++ == 0) engine->work.began_ns = weft_now_ns(engine->env);
}

void shard_work_end(struct weft_shard_engine *engine)
{
    WEFT_ASSERT(engine->work.active > 0);
    if (--engine->work.active == 0)
        engine->stats.load.ns += weft_elapsed_ns(engine->work.began_ns, weft_now_ns(engine->env));
}

void shard_round_start_task(struct shard_chunk *chunk, void (*run)(struct weft_task *),
                            void (*done)(struct weft_task *), uint64_t elements)
{
    chunk->work.computing = true;
    chunk->work.task.run = run;
    chunk->work.task.done = done;
    weft_loop_compute(chunk->tensor->engine->loop, &chunk->work.task, elements);
}

/* Folds rank chunk->open.next, which is HELD. false: not possible now, running as a task, or the round was
 * dropped. */
static bool fold_next(struct shard_chunk *chunk)
{
    struct shard_contribution *contribution = &chunk->workers.contributions[chunk->open.next];
    WEFT_ASSERT(chunk->closed_step < chunk->open.step);
    if (!shard_chunk_is_dense(chunk) && chunk->open.next == 0) {
        if (shard_result_is_in_use(chunk)) return false; /* the aggregate is still being sent */
        chunk->result.is_resendable = false;
        weft_combiner_begin(chunk->coding.combiner, chunk->open.round);
    }
    chunk->work.folding = contribution->slot;
    /* Dense: rank r merges one partial sum per trailing zero bit of r + 1. */
    const uint32_t merges = shard_chunk_is_dense(chunk) ? (uint32_t)__builtin_ctz(chunk->open.next + 1) : 1;
    uint64_t elements = contribution->slot->payload_bytes / sizeof(float) * merges;
    if (shard_half_is_pushed(chunk)) elements = chunk->count * (merges + 1);
    if (elements > WEFT_LOOP_SLICE) {
        shard_round_start_task(chunk, fold, fold_done, elements);
        return false;
    }
    fold(&chunk->work.task);
    return folded(chunk);
}

static float weight_sum(const struct shard_chunk *chunk)
{
    double sum = 0;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++)
        sum += (double)chunk->workers.contributions[worker].weight;
    return (float)sum;
}

static void optimise(struct shard_chunk *chunk, const float *grad, float grad_scale)
{
    struct weft_optimizer rule = chunk->tensor->optimizer;
    if (chunk->open.flags & WEFT_WIRE_DECAY) rule.weight_decay = chunk->open.weight_decay;
    weft_optimizer_step(&rule, chunk->open.lr, chunk->open.step, chunk->values, chunk->states, grad,
                        grad_scale, chunk->count);
}

bool shard_round_is_skipped(struct shard_chunk *chunk)
{
    chunk->result.is_finite = chunk->open.fold.max_bits < WEFT_F32_INFINITY_BITS;
    return chunk->open.flags & WEFT_WIRE_CHECKED && !chunk->result.is_finite;
}

/* Without an optimiser the values of the step before are not copied: values and backup exchange their
 * memory. */
static void store_mean(struct shard_chunk *chunk, const float *sum)
{
    const bool is_kept = shard_skip_needs_copy(chunk);
    float *const out = is_kept ? chunk->backup.values : chunk->values;
    chunk->tensor->engine->kernels->scale_f32(out, sum, chunk->work.grad_scale, chunk->count);
    if (is_kept) shard_skip_exchange(chunk);
}

static enum weft_status close_dense(struct shard_chunk *chunk)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    float *sum = weft_tree_reduce_finish(&chunk->open.fold, chunk->work.freed, &chunk->work.freed_count);
    WEFT_ASSERT(sum != NULL);
    chunk->hold.sum = sum;
    if (engine->workers == 1 && !chunk->open.in_place) /* nothing was summed */
        chunk->open.fold.max_bits = engine->kernels->max_abs_bits_f32(sum, chunk->count);
    if (shard_round_is_skipped(chunk)) return WEFT_ERR_SKIPPED;
    if (chunk->open.holds) {
        shard_verdict_hold(chunk, sum);
        return WEFT_OK;
    }
    if (chunk->tensor->optimizer.kind == WEFT_OPTIMIZER_NONE) {
        store_mean(chunk, sum);
    } else {
        if (shard_skip_needs_copy(chunk)) shard_skip_save(chunk);
        optimise(chunk, sum, chunk->work.grad_scale);
    }
    shard_half_round(chunk);
    chunk->result.data = shard_chunk_result(chunk);
    chunk->result.bytes = shard_chunk_result_bytes(chunk);
    return WEFT_OK;
}

static bool is_last_round(const struct shard_chunk *chunk)
{
    return chunk->open.round + 1u == chunk->coding.rounds;
}

static enum weft_status close_codec(struct shard_chunk *chunk)
{
    struct shard_tensor *tensor = chunk->tensor;
    const void *aggregate;
    size_t bytes;
    if (is_last_round(chunk) && shard_skip_needs_copy(chunk)) shard_skip_save(chunk);
    WEFT_TRY(weft_combiner_close(chunk->coding.combiner, &aggregate, &bytes));
    if (is_last_round(chunk) && tensor->optimizer.kind != WEFT_OPTIMIZER_NONE) {
        WEFT_TRY(weft_combiner_finish(chunk->coding.combiner, chunk->work.grad_scale, chunk->work.scratch));
        optimise(chunk, chunk->work.scratch, 1.0f);
    }
    if (is_last_round(chunk)) shard_replicate_save(chunk);
    chunk->result.data = aggregate;
    chunk->result.bytes = bytes;
    chunk->result.is_finite = false; /* workers check their gradients before they encode */
    return WEFT_OK;
}

static void close_values(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computed = shard_chunk_is_dense(chunk) ? close_dense(chunk) : close_codec(chunk);
}

/* Elements that a close processes. Chunks that need the engine's scratch all run on the same thread: this
 * returns the same value for all of them. */
static uint64_t close_elements(const struct shard_chunk *chunk)
{
    const struct shard_tensor *tensor = chunk->tensor;
    if (shard_chunk_is_dense(chunk)) {
        /* the remaining merges of the tree, then the scaling or the optimiser */
        const uint32_t merges = chunk->open.fold.depth - 1;
        return chunk->count *
               (merges + 1 + weft_optimizer_states(&tensor->optimizer) + (chunk->half != NULL));
    }
    if (is_last_round(chunk) && tensor->optimizer.kind != WEFT_OPTIMIZER_NONE)
        return tensor->engine->scratches.count;
    return shard_chunk_contribution_bytes(chunk, chunk->open.round) / sizeof(float);
}

static uint32_t late_us(const struct shard_chunk *chunk, const struct shard_contribution *contribution)
{
    const uint64_t us = weft_elapsed_ns(contribution->announced_ns, chunk->open.announced_ns) / 1000;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Clears all contributions. reply_wanted: queues each worker's wanted reply. */
static void contributions_reset(struct shard_chunk *chunk, bool reply_wanted)
{
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++) {
        struct shard_contribution *contribution = &chunk->workers.contributions[worker];
        contribution->late_us = late_us(chunk, contribution);
        if (reply_wanted) shard_reply_note(chunk, worker, (enum shard_reply_kind)contribution->reply_wanted);
        contribution->state = SHARD_CONTRIBUTION_NONE;
        contribution->slot = NULL;
        contribution->source = NULL;
    }
    chunk->open.arrived = chunk->open.next = chunk->open.sources = 0;
    chunk->open.lacks_slot = chunk->open.in_place = false;
}

static void count_times(struct weft_shard_engine *engine, const struct shard_chunk *chunk)
{
    const uint64_t now_ns = weft_now_ns(engine->env);
    weft_histogram_add(&engine->stats.round, weft_elapsed_ns(chunk->open.opened_ns, now_ns));
    weft_histogram_add(&engine->stats.spread,
                       weft_elapsed_ns(chunk->open.opened_ns, chunk->open.announced_ns));
    weft_histogram_add(&engine->stats.close, weft_elapsed_ns(chunk->open.announced_ns, now_ns));
}

/* The values are those of the closed step, or the aggregate is complete. */
void shard_round_closed(struct shard_chunk *chunk)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    bool last = is_last_round(chunk);
    if (chunk->work.computed < 0) {
        shard_round_drop(chunk, chunk->work.computed,
                         chunk->work.computed == WEFT_ERR_SKIPPED
                             ? "the mean gradient is not finite"
                             : "the shard could not combine the contributions");
        return;
    }
    if (last) shard_replicate_close(chunk, chunk->closed_step);
    shard_slots_close(&chunk->open.slots, &engine->memory.arena);
    chunk->result.step = chunk->open.step;
    chunk->result.round = chunk->open.round;
    chunk->result.lr = chunk->open.lr;
    chunk->result.is_resendable = true;
    if (last) {
        if (chunk->open.holds) shard_verdict_closed(chunk, chunk->open.step);
        else chunk->closed_step = chunk->open.step;
        chunk->open.step = 0;
        chunk->open.round = 0;
        if (!shard_chunk_is_dense(chunk) && tensor->optimizer.kind != WEFT_OPTIMIZER_NONE)
            shard_hash_step(chunk);
    } else {
        chunk->open.round++;
        if (!shard_map_leads(chunk)) shard_map_forget_step(chunk);
    }
    engine->stats.rounds_closed++;
    count_times(engine, chunk);
    engine->work.last_round_ns = chunk->open.announced_ns;
    weft_event_ring_add(engine->events, "round", WEFT_EVENT_END, event_id(chunk), UINT32_MAX,
                        chunk->result.bytes, WEFT_OK);
    contributions_reset(chunk, shard_map_leads(chunk));
    shard_round_enter(chunk, SHARD_PHASE_IDLE);
    if (last) shard_pull_reply_waiting(chunk);
    else shard_worker_left_check(chunk);
    shard_engine_resume(engine);
}

static void close_done(struct weft_task *task)
{
    struct shard_chunk *chunk = weft_container_of(task, struct shard_chunk, work.task);
    chunk->work.computing = false;
    shard_round_closed(chunk);
}

bool shard_round_scale(struct shard_chunk *chunk)
{
    chunk->result.weight_sum = weight_sum(chunk);
    chunk->work.grad_scale = weft_optimizer_grad_scale(&chunk->tensor->optimizer, chunk->result.weight_sum) *
                        shard_half_unscale(chunk);
    return isfinite(chunk->result.weight_sum) && isfinite(chunk->work.grad_scale);
}

static void close_round(struct shard_chunk *chunk)
{
    WEFT_ASSERT(chunk->open.phase == SHARD_PHASE_CLOSING && !shard_result_is_in_use(chunk));
    if (chunk->work.computing) return;
    if (!shard_round_scale(chunk)) {
        const bool is_zero = chunk->result.weight_sum == 0;
        chunk->result.weight_sum = 0;
        shard_round_drop(chunk, is_zero ? WEFT_ERR_SKIPPED : WEFT_ERR_INVALID,
                         is_zero ? "the sample weights of all ranks are 0"
                                 : "the workers' sample weights are too large or too small to sum");
        return;
    }
    chunk->backup.valid = false;
    if (is_last_round(chunk) && shard_skip_needs_copy(chunk) && shard_skip_reserve(chunk) < 0) {
        shard_round_drop(chunk, WEFT_ERR_NO_MEMORY,
                         "no memory for a copy of what the step overwrites, which may be skipped or undone");
        return;
    }
    if (chunk->open.holds && shard_verdict_reserve(chunk) < 0) {
        shard_round_drop(chunk, WEFT_ERR_NO_MEMORY, "no memory for the sum of a step with clip_norm");
        return;
    }
    chunk->work.scratch = chunk->tensor->engine->scratches.scratch;
    uint64_t elements = close_elements(chunk);
    if (elements > WEFT_LOOP_SLICE) {
        shard_round_start_task(chunk, close_values, close_done, elements);
        return;
    }
    close_values(&chunk->work.task);
    shard_round_closed(chunk);
}

void shard_round_advance(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    if (chunk->work.computing) return;
    while (chunk->open.phase == SHARD_PHASE_COLLECTING && chunk->open.next < engine->workers &&
           chunk->workers.contributions[chunk->open.next].state == SHARD_CONTRIBUTION_HELD) {
        if (!fold_next(chunk)) return;
    }
    if (chunk->open.phase != SHARD_PHASE_COLLECTING) return;
    if (chunk->open.next < engine->workers) {
        if (chunk->open.lacks_slot) shard_receive_fill(chunk);
        return;
    }
    shard_round_enter(chunk, SHARD_PHASE_CLOSING);
    if (!shard_result_is_in_use(chunk)) close_round(chunk);
}

void shard_round_result_released(struct shard_chunk *chunk)
{
    if (chunk->open.phase == SHARD_PHASE_CLOSING) close_round(chunk);
    else shard_round_advance(chunk);
}

/* ---- dropping ---- */

static void end_round(struct shard_chunk *chunk, enum weft_status status)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    const bool are_being_read =
        chunk->open.in_place && chunk->work.computing; /* shard_in_place_drained ends them */
    for (uint32_t worker = 0; worker < engine->workers && !are_being_read; worker++) {
        struct shard_contribution *contribution = &chunk->workers.contributions[worker];
        if (contribution->state != SHARD_CONTRIBUTION_ANNOUNCED) continue;
        weft_transport_discard(engine->transport, contribution->arrival);
        contribution->arrival = NULL;
    }
    contributions_reset(chunk, false);
    chunk->open.step = 0;
    chunk->open.round =
        0; /* the retry begins at round 0 of the codec; earlier results of this attempt are not
                       * requested again */
    weft_event_ring_add(engine->events, "round", WEFT_EVENT_END, event_id(chunk), UINT32_MAX, 0, status);
    if (chunk->open.phase != SHARD_PHASE_INSTALLING) {
        WEFT_ASSERT(!shard_round_is_closing(chunk));
        if (chunk->open.receiving > 0 || chunk->work.computing) {
            shard_round_enter(chunk, SHARD_PHASE_DRAINING);
        } else {
            shard_slots_close(&chunk->open.slots, &engine->memory.arena);
            shard_round_enter(chunk, SHARD_PHASE_IDLE);
        }
    }
}

void shard_round_drop(struct shard_chunk *chunk, enum weft_status status, const char *text)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    chunk->error.status = status;
    chunk->error.step = chunk->open.step;
    chunk->error.round = chunk->open.round;
    snprintf(chunk->error.text, sizeof chunk->error.text, "%s", text);
    /* after this answer a worker does not push the step again: the copy must know it */
    if (status == WEFT_ERR_SKIPPED) shard_replicate(chunk, chunk->open.step, chunk->closed_step, 0, NULL);
    for (uint32_t worker = 0; worker < engine->workers; worker++) {
        struct shard_contribution *contribution = &chunk->workers.contributions[worker];
        const bool is_unsent = contribution->state == SHARD_CONTRIBUTION_NONE;
        shard_error_set_unsent(chunk, worker, is_unsent);
        if (!is_unsent) shard_reply_note(chunk, worker, SHARD_REPLY_ERROR);
    }
    end_round(chunk, status);
    shard_engine_resume(engine);
}

void shard_round_forget(struct shard_chunk *chunk) { end_round(chunk, WEFT_ERR_PEER_LOST); }

void shard_round_finish_drain(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    WEFT_ASSERT(chunk->open.phase == SHARD_PHASE_DRAINING);
    if (chunk->open.receiving > 0 || chunk->work.computing) return;
    shard_in_place_drained(chunk);
    shard_slots_close(&chunk->open.slots, &engine->memory.arena);
    shard_round_resume(chunk);
    shard_engine_resume(engine);
}

void shard_round_describe_missing(const struct shard_chunk *chunk, char *out, size_t out_bytes)
{
    uint32_t missing = 0, named = 0;
    size_t length = 0;
    out[0] = 0;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++)
        missing += shard_contribution_state(chunk, worker) == SHARD_CONTRIBUTION_NONE;
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers && named < missing && named < 4;
         worker++) {
        if (shard_contribution_state(chunk, worker) != SHARD_CONTRIBUTION_NONE) continue;
        int added = snprintf(out + length, out_bytes - length, "%s%u", named == 0 ? "rank " : ", ", worker);
        if (added < 0 || (size_t)added >= out_bytes - length) return;
        length += (size_t)added;
        named++;
    }
    if (missing > named) snprintf(out + length, out_bytes - length, " and %u more", missing - named);
}
