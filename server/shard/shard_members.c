/* shard_members.c - the workers of an engine change: the job goes on under a new epoch.
 *
 *     MemberLost(epoch),
 *     Joined(epoch)  --> leave_epoch: open rounds and waiting requests are discarded, older ones ignored
 *     Shrunk(epoch)  --> enter_epoch: pending until every chunk is idle, then in force
 *     request of a newer epoch --> waits in `newer_epoch` until that epoch is in force
 *
 * Only the coordinator decides which worker is lost. Its messages and the workers' requests may arrive in any
 * order. An epoch may have new workers, which pull the values before their first push.
 *
 * Closed rounds of dense tensors stay: values, optimiser state and closed_step, the watermark of every
 * worker. The workers push an interrupted step again. If the chunk has closed it, they get its result as for
 * a duplicate. Otherwise the round starts anew. No push is applied twice. Clients ignore replies of an old
 * epoch. Nothing allocates: workers_max bounds the workers of every epoch.
 *
 * With a codec the workers' residuals are again those before the interrupted step, so chunks that closed it
 * undo it: values, optimiser state and the combiner's residual (shard_skip.c). Combiners are made anew for
 * the number of workers (docs/decisions/0060). */
#include <string.h>

#include "server/shard/shard_engine.h"

/* ---- leaving an epoch ---- */

void shard_members_clear_replies(struct shard_chunk *chunk)
{
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++) {
        if (chunk->workers.contributions)
            chunk->workers.contributions[worker].reply_pending = SHARD_REPLY_NONE;
        shard_error_set_unsent(chunk, worker, false);
    }
    chunk->result.replies_pending = 0;
    weft_list_remove(&chunk->links.reply);
}

/* A close task continues: all have contributed, and it is writing the values. */
static void leave_chunk(struct shard_chunk *chunk)
{
    shard_members_clear_replies(chunk);
    if (shard_round_is_closing(chunk)) return;
    if (chunk->open.arrived > 0 || !weft_list_empty(&chunk->links.round)) shard_round_forget(chunk);
    shard_contributions_release(chunk);
}

static void discard_pulls(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->queues.pulls)) {
        struct weft_arrival *arrival = weft_list_first(&engine->queues.pulls, struct weft_arrival, link);
        shard_engine_pull_removed(engine, arrival);
        weft_transport_discard(engine->transport, arrival);
    }
}

/* Defers the arrivals of newer epochs; is_current_epoch checks them again. */
static void retry_newer_epochs(struct weft_shard_engine *engine)
{
    shard_reply_defer_all(engine, &engine->epoch_change.newer_epoch);
}

void weft_shard_engine_leave_epoch(struct weft_shard_engine *engine, uint32_t epoch)
{
    if (engine->end.closed || engine->end.failed < 0 || epoch <= engine->epoch_change.newest_epoch) return;
    engine->epoch_change.newest_epoch = epoch;
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) leave_chunk(&tensor->chunks[i]);
    }
    discard_pulls(engine);
    retry_newer_epochs(engine);
    shard_contributions_defer_held(engine);
    shard_engine_resume(engine);
}

/* ---- entering an epoch ---- */

/* Undo and combiner change what these use: sends of the aggregate; a step that a copy has not acknowledged,
 * or that this copy applies; a new copy whose parts are under way. */
static bool is_in_use(const struct shard_chunk *chunk)
{
    return (chunk->coding.combiner && chunk->result.sends > 0) || chunk->hold.is_due ||
           chunk->hold.is_sending || chunk->copy.payload || shard_move_is_in_use(chunk->move) ||
           shard_move_is_started(chunk->move);
}

static bool is_idle(const struct shard_chunk *chunk)
{
    return chunk->open.phase == SHARD_PHASE_IDLE &&
           !(shard_tensor_has_codec(chunk->tensor) && is_in_use(chunk));
}

static bool all_idle(const struct weft_shard_engine *engine)
{
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        const struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            if (!is_idle(&tensor->chunks[i])) return false;
    }
    return true;
}

/* Copies the residual, scaled to the number of workers as those of the workers' codecs are. */
static void move_residual(const struct shard_chunk *chunk, struct weft_combiner *combiner, uint32_t workers)
{
    const struct weft_kernels *kernels = chunk->tensor->engine->kernels;
    const float *from = weft_combiner_residual(chunk->coding.combiner);
    float *to = weft_combiner_residual(combiner), most;
    if (!from) return;
    const float factor = (float)((double)workers / (double)chunk->tensor->engine->workers);
    uint32_t bits = kernels->max_abs_bits_f32(from, chunk->count);
    memcpy(&most, &bits, sizeof most);
    most *= factor;
    memcpy(&bits, &most, sizeof bits);
    if (bits < WEFT_RESIDUAL_LIMIT_BITS) {
        kernels->scale_f32(to, from, factor, chunk->count);
        return;
    }
    memcpy(to, from, chunk->count * sizeof *to);
    weft_log(chunk->tensor->engine->env, WEFT_LOG_WARN, "server",
             "tensor '%s': the residual of its codec is too large to scale to the number of workers",
             chunk->tensor->name);
}

static enum weft_status remake_combiner(struct shard_chunk *chunk, uint32_t workers)
{
    struct weft_combiner *combiner;
    WEFT_TRY(weft_combiner_create(chunk->tensor->engine->env, &chunk->coding.codec, &chunk->coding.shape,
                                  workers, &combiner));
    move_residual(chunk, combiner, workers);
    weft_combiner_free(chunk->coding.combiner);
    chunk->coding.combiner = combiner;
    return WEFT_OK;
}

static enum weft_status enter_with_codec(struct shard_chunk *chunk)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    WEFT_TRY(shard_skip_undo_after(chunk, engine->epoch_change.next_committed));
    chunk->backup.skips = 0;
    chunk->result.is_resendable = false;
    return !chunk->coding.combiner || engine->epoch_change.next_workers == engine->workers
               ? WEFT_OK
               : remake_combiner(chunk, engine->epoch_change.next_workers);
}

/* Resets the workers' states: ranks have new numbers and no contributions. A codec's step may have closed
 * some of its rounds. */
static enum weft_status reset_workers(struct shard_chunk *chunk)
{
    shard_members_clear_replies(chunk);
    chunk->error.step = 0;
    chunk->error.round = 0;
    chunk->open.step = 0;
    chunk->open.round = 0;
    shard_contributions_release(chunk);
    return shard_tensor_has_codec(chunk->tensor) ? enter_with_codec(chunk) : WEFT_OK;
}

static enum weft_status reset_all(struct weft_shard_engine *engine)
{
    for (uint32_t id = 0; id < engine->table.capacity; id++) {
        struct shard_tensor *tensor = engine->table.tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            WEFT_TRY(reset_workers(&tensor->chunks[i]));
    }
    return WEFT_OK;
}

void shard_members_enter_epoch(struct weft_shard_engine *engine)
{
    if (!engine->epoch_change.enters_epoch || engine->end.failed < 0 || !all_idle(engine)) return;
    engine->epoch_change.enters_epoch = false;
    const enum weft_status status = reset_all(engine);
    if (status < 0) {
        weft_shard_engine_fail(engine, status,
                               status == WEFT_ERR_NO_MEMORY
                                   ? "a shard has no memory for the combiners of the new number of ranks"
                                   : "a shard cannot undo a step that the ranks have discarded");
        return;
    }
    engine->workers = engine->epoch_change.next_workers;
    engine->epoch = engine->epoch_change.next_epoch;
    memcpy(engine->members.worker, engine->epoch_change.next_worker,
           engine->workers * sizeof *engine->members.worker);
    engine->members.left_count = 0;
    for (uint32_t i = 0; i < engine->workers; i++)
        engine->members.left_count += engine->members.worker[i].left;
    weft_log(engine->env, WEFT_LOG_INFO, "server", "endpoint %u serves %u workers, epoch %u",
             engine->endpoint, engine->workers, engine->epoch);
    retry_newer_epochs(engine);
}

enum weft_status weft_shard_engine_enter_epoch(struct weft_shard_engine *engine, uint32_t epoch,
                                               uint64_t committed, uint32_t workers,
                                               const uint32_t *endpoints, const uint64_t *incarnations,
                                               struct weft_error *error)
{
    if (engine->end.closed || engine->end.failed < 0) return WEFT_OK;
    if (!engine->settings.elastic || epoch <= engine->epoch || workers == 0 ||
        workers > engine->members.workers_max)
        return weft_error_set(
            error, WEFT_ERR_MALFORMED,
            "the coordinator names %u workers for epoch %u; the shard has %u of at most %u, of epoch "
            "%u",
            workers, epoch, engine->workers, engine->members.workers_max, engine->epoch);
    engine->epoch_change.next_epoch = epoch;
    engine->epoch_change.next_workers = workers;
    engine->epoch_change.next_committed = committed;
    for (uint32_t i = 0; i < workers; i++)
        engine->epoch_change.next_worker[i] =
            (struct shard_worker){.endpoint = endpoints[i], .incarnation = incarnations[i]};
    engine->epoch_change.enters_epoch = true;
    weft_shard_engine_leave_epoch(engine, epoch); /* no effect if the epoch was left before */
    shard_engine_resume(engine);
    return WEFT_OK;
}
