/* shard_members.c - the workers of an engine become fewer: the job goes on without a lost one, or one at
 * rest, under another epoch; those at rest are back in a later one.
 *
 *     MemberLost(epoch),
 *     Joined(epoch)     --> part:   open rounds are forgotten, whoever waits is forgotten; requests of an older epoch get no answer
 *     Shrunk(epoch)     --> follow: kept until nothing of the old epoch is received or computed, then in force
 *     request of a newer epoch --> waits in `early` until that one is in force
 *
 * Who is lost, and in which epoch the others go on, is the coordinator's word alone; its messages and the
 * survivors' requests come by different ways, in any order.
 *
 * What a round that is closed has made stays: values, optimiser state and closed_step, which is every
 * worker's watermark. The survivors push the step that was cut short again: where it is closed they are told
 * its result as for any duplicate, the mean of all that were there when it closed; elsewhere the round begins
 * anew with theirs. So no push is applied twice, whoever heard of what. An answer that is under way is of the
 * old epoch and counts as nothing where it comes (client/tensor/server_mode.c).
 *
 * Nothing allocates: there are never more workers than at create. */
#include <string.h>

#include "server/shard/shard_engine.h"

/* ---- parting ---- */

static void clear_replies(struct shard_chunk *chunk)
{
    for (uint32_t worker = 0; worker < chunk->tensor->engine->workers; worker++) {
        chunk->contributions[worker].reply_pending = SHARD_REPLY_NONE;
        chunk->contributions[worker].error_unsent = false;
    }
    chunk->replies_pending = 0;
    weft_list_remove(&chunk->reply_link);
}

/* A close that has begun goes on: all have contributed, and the values are being written. */
static void leave_chunk(struct shard_chunk *chunk)
{
    clear_replies(chunk);
    if (shard_round_is_closing(chunk)) return;
    if (chunk->arrived > 0 || !weft_list_empty(&chunk->round_link)) shard_round_forget(chunk);
}

static void discard_pulls(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->pulls)) {
        struct weft_arrival *arrival = weft_list_first(&engine->pulls, struct weft_arrival, link);
        shard_engine_pull_removed(engine, arrival);
        weft_transport_discard(engine->transport, arrival);
    }
}

/* They are looked at again, and may wait again. */
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
    shard_engine_resume(engine);
}

/* ---- following ---- */

static bool all_idle(const struct weft_shard_engine *engine)
{
    for (uint32_t id = 0; id < engine->tensor_capacity; id++) {
        const struct shard_tensor *tensor = engine->tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            if (tensor->chunks[i].phase != SHARD_PHASE_IDLE) return false;
    }
    return true;
}

/* The records of the old ranks are the new ones', who have contributed nothing yet. */
static void reset_workers(struct shard_chunk *chunk, uint32_t workers)
{
    clear_replies(chunk);
    memset(chunk->contributions, 0, workers * sizeof *chunk->contributions);
    for (uint32_t worker = 0; worker < workers; worker++)
        chunk->contributions[worker].applied_step = chunk->closed_step;
    chunk->error_step = 0;
    chunk->error_round = 0;
}

void shard_members_enter_epoch(struct weft_shard_engine *engine)
{
    if (!engine->enters_epoch || engine->failed < 0 || !all_idle(engine)) return;
    engine->enters_epoch = false;
    for (uint32_t id = 0; id < engine->tensor_capacity; id++) {
        struct shard_tensor *tensor = engine->tensors[id];
        for (uint32_t i = 0; tensor && i < tensor->chunk_count; i++)
            reset_workers(&tensor->chunks[i], engine->next_workers);
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
    if (!engine->elastic || epoch <= engine->epoch || workers == 0 || workers > engine->workers_at_create)
        return weft_error_set(error, WEFT_ERR_MALFORMED,
                              "the coordinator names %u workers for epoch %u; the shard has %u, of epoch %u",
                              workers, epoch, engine->workers, engine->epoch);
    engine->next_epoch = epoch;
    engine->next_workers = workers;
    for (uint32_t i = 0; i < workers; i++)
        engine->next_worker[i] =
            (struct shard_worker){.endpoint = endpoints[i], .incarnation = incarnations[i]};
    engine->enters_epoch = true;
    weft_shard_engine_leave_epoch(engine, epoch); /* if that was not said before */
    shard_engine_resume(engine);
    return WEFT_OK;
}
