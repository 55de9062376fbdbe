/* shard_members.c - the workers of an engine change: the job goes on under a new epoch.
 *
 *     MemberLost(epoch),
 *     Joined(epoch)  --> leave_epoch: open rounds and waiting requests are discarded, older ones ignored
 *     Shrunk(epoch)  --> enter_epoch: pending until every chunk is idle, then in force
 *     request of a newer epoch --> waits in `newer_epoch` until that epoch is in force
 *
 * Only the coordinator decides which worker is lost. Its messages and the workers' requests may arrive in any
 * order.
 *
 * Closed rounds stay: values, optimiser state and closed_step, the watermark of every worker. The workers
 * push an interrupted step again. If the chunk has closed it, they get its result as for a duplicate.
 * Otherwise the round starts anew. No push is applied twice. Clients ignore replies of an old epoch. An epoch
 * may have new workers, which pull the values before their first push. Nothing allocates: workers_max bounds
 * the workers of every epoch. */
#include <string.h>

#include "server/shard/shard_engine.h"

/* ---- leaving an epoch ---- */

void shard_members_clear_replies(struct shard_chunk *chunk)
{
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++) {
        if (chunk->contributions) chunk->contributions[worker].reply_pending = SHARD_REPLY_NONE;
        shard_error_set_unsent(chunk, worker, false);
    }
    chunk->replies_pending = 0;
    weft_list_remove(&chunk->reply_link);
}

/* A close task continues: all have contributed, and it is writing the values. */
static void leave_chunk(struct shard_chunk *chunk)
{
    shard_members_clear_replies(chunk);
    if (shard_round_is_closing(chunk)) return;
    if (chunk->arrived > 0 || !weft_list_empty(&chunk->round_link)) shard_round_forget(chunk);
    shard_contributions_release(chunk);
}

static void discard_pulls(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->pulls)) {
        struct weft_arrival *arrival = weft_list_first(&engine->pulls, struct weft_arrival, link);
        shard_engine_pull_removed(engine, arrival);
        weft_transport_discard(engine->transport, arrival);
    }
}

/* Defers the arrivals of newer epochs; is_current_epoch checks them again. */
static void retry_newer_epochs(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->newer_epoch)) {
        struct weft_arrival *arrival = weft_list_first(&engine->newer_epoch, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        shard_reply_defer(engine, arrival);
    }
}

void weft_shard_engine_leave_epoch(struct weft_shard_engine *engine, uint32_t epoch)
{
    if (engine->closed || engine->failed < 0 || epoch <= engine->newest_epoch) return;
    engine->newest_epoch = epoch;
    for (uint32_t id = 0; id < engine->tensor_capacity; id++) {
        struct shard_tensor *tensor = engine->tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++) leave_chunk(&tensor->chunks[i]);
    }
    discard_pulls(engine);
    retry_newer_epochs(engine);
    shard_contributions_defer_held(engine);
    shard_engine_resume(engine);
}

/* ---- entering an epoch ---- */

static bool all_idle(const struct weft_shard_engine *engine)
{
    for (uint32_t id = 0; id < engine->tensor_capacity; id++) {
        const struct shard_tensor *tensor = engine->tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            if (tensor->chunks[i].phase != SHARD_PHASE_IDLE) return false;
    }
    return true;
}

/* Resets the workers' states: ranks have new numbers and no contributions. */
static void reset_workers(struct shard_chunk *chunk)
{
    shard_members_clear_replies(chunk);
    chunk->error_step = 0;
    chunk->error_round = 0;
    shard_contributions_release(chunk);
}

void shard_members_enter_epoch(struct weft_shard_engine *engine)
{
    if (!engine->enters_epoch || engine->failed < 0 || !all_idle(engine)) return;
    engine->enters_epoch = false;
    for (uint32_t id = 0; id < engine->tensor_capacity; id++) {
        struct shard_tensor *tensor = engine->tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            reset_workers(&tensor->chunks[i]);
    }
    engine->workers = engine->next_workers;
    engine->epoch = engine->next_epoch;
    memcpy(engine->worker, engine->next_worker, engine->workers * sizeof *engine->worker);
    engine->left_count = 0;
    for (uint32_t i = 0; i < engine->workers; i++) engine->left_count += engine->worker[i].left;
    weft_log(engine->env, WEFT_LOG_INFO, "server", "endpoint %u serves %u workers, epoch %u",
             engine->endpoint, engine->workers, engine->epoch);
    retry_newer_epochs(engine);
}

enum weft_status weft_shard_engine_enter_epoch(struct weft_shard_engine *engine, uint32_t epoch,
                                               uint32_t workers, const uint32_t *endpoints,
                                               const uint64_t *incarnations, struct weft_error *error)
{
    if (engine->closed || engine->failed < 0) return WEFT_OK;
    if (!engine->elastic || epoch <= engine->epoch || workers == 0 || workers > engine->workers_max)
        return weft_error_set(
            error, WEFT_ERR_MALFORMED,
            "the coordinator names %u workers for epoch %u; the shard has %u of at most %u, of epoch "
            "%u",
            workers, epoch, engine->workers, engine->workers_max, engine->epoch);
    engine->next_epoch = epoch;
    engine->next_workers = workers;
    for (uint32_t i = 0; i < workers; i++)
        engine->next_worker[i] =
            (struct shard_worker){.endpoint = endpoints[i], .incarnation = incarnations[i]};
    engine->enters_epoch = true;
    weft_shard_engine_leave_epoch(engine, epoch); /* no effect if the epoch was left before */
    shard_engine_resume(engine);
    return WEFT_OK;
}
