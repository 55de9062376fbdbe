/* shard_request.c - entry point of a shard engine: checks every message of the push channel.
 *
 * Order of the checks: valid header; elastic jobs: epoch (shard_members.c); sender is the worker it names;
 * job, epoch and incarnation; the engine has not failed; the chunk exists; the payload has the announced
 * length and fits the chunk. A message that is not a request of its sender is dropped and counted, since a
 * reply would go to another worker. Every other failure gets a RESULT with a status and a sentence.
 *
 * Until the checks have passed, the payload stays at the worker. */
#include <inttypes.h>
#include <stdio.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"
#include "server/shard/shard_verdict.h"

static bool is_request(uint8_t kind)
{
    return kind == WEFT_WIRE_PUSH_PULL || kind == WEFT_WIRE_PUSH || kind == WEFT_WIRE_PULL ||
           kind == WEFT_WIRE_INIT || kind == WEFT_WIRE_STATE_PULL || kind == WEFT_WIRE_STATE_INIT ||
           kind == WEFT_WIRE_PUSH_HOLD || kind == WEFT_WIRE_APPLY;
}

static void drop(struct weft_shard_engine *engine, struct weft_arrival *arrival, const char *why)
{
    engine->stats.refused++;
    weft_log(engine->env, WEFT_LOG_DEBUG, "server", "message of endpoint %u dropped: %s", arrival->peer_id,
             why);
    weft_transport_discard(engine->transport, arrival);
}

/* Checks codec, round and length of a contribution. */
static bool contribution_fits(struct shard_chunk *chunk, const struct weft_wire_header *header,
                              struct weft_arrival *arrival)
{
    struct shard_tensor *tensor = chunk->tensor;
    struct weft_shard_engine *engine = tensor->engine;
    bool dense = shard_chunk_is_dense(chunk);
    if (header->codec != chunk->coding.codec.id || (dense && header->dtype != tensor->dtype)) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_MISMATCH,
                           "rank %u pushes tensor '%.40s' with codec %u dtype %u, not %u and %u",
                           header->worker, tensor->name, header->codec, header->dtype,
                           (unsigned)chunk->coding.codec.id, (unsigned)tensor->dtype);
        return false;
    }
    if (header->round >= chunk->coding.rounds || header->step == 0) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_INVALID,
                           "tensor '%.40s' has no step %" PRIu64 " round %u", tensor->name, header->step,
                           header->round);
        return false;
    }
    const size_t most = shard_chunk_contribution_bytes(chunk, header->round);
    const bool is_whole = dense && !(header->flags & WEFT_WIRE_NOT_FINITE);
    if (arrival->payload_bytes > most || (is_whole && arrival->payload_bytes != most)) {
        shard_reply_refuse(engine, arrival, header, WEFT_ERR_MALFORMED,
                           "rank %u pushes %zu bytes of tensor '%.30s' chunk %u, which has %s%zu",
                           header->worker, arrival->payload_bytes, tensor->name, chunk->index,
                           dense ? "" : "at most ", most);
        return false;
    }
    return true;
}

static bool hold_fits(struct shard_chunk *chunk, const struct weft_wire_header *header,
                      struct weft_arrival *arrival)
{
    const struct shard_tensor *tensor = chunk->tensor;
    if (shard_verdict_is_possible(chunk)) return true;
    shard_reply_refuse(tensor->engine, arrival, header, WEFT_ERR_UNSUPPORTED,
                       "tensor '%.40s' is clipped by the norm of a step: shards do that for dense tensors "
                       "with an optimizer and consistency bsp",
                       tensor->name);
    return false;
}

static void dispatch_kind(struct shard_chunk *chunk, const struct weft_wire_header *header,
                          struct weft_arrival *arrival)
{
    switch ((enum weft_wire_kind)header->kind) {
    case WEFT_WIRE_PULL:
        shard_pull_request(chunk, header, arrival);
        return;
    case WEFT_WIRE_INIT:
        shard_install_request(chunk, header, arrival);
        return;
    case WEFT_WIRE_STATE_PULL:
    case WEFT_WIRE_STATE_INIT:
        if (chunk->clock && chunk->work.computing) shard_reply_defer(chunk->tensor->engine, arrival);
        else shard_state_request(chunk, header, arrival);
        return;
    case WEFT_WIRE_PUSH_HOLD:
        if (!hold_fits(chunk, header, arrival)) return;
        /* fall through */
    case WEFT_WIRE_PUSH_PULL:
    case WEFT_WIRE_PUSH:
        if (!contribution_fits(chunk, header, arrival)) return;
        if (chunk->clock) shard_clock_push(chunk, header, arrival);
        else shard_push_request(chunk, header, arrival);
        return;
    case WEFT_WIRE_APPLY:
    case WEFT_WIRE_RESULT:
    case WEFT_WIRE_REPLICATE:
    case WEFT_WIRE_REPLICATED:
    case WEFT_WIRE_COPY:
    case WEFT_WIRE_COPIED:
    case WEFT_WIRE_COMPARE: break;
    }
    WEFT_ASSERT(!"a request kind that is_request lets through");
}

static void dispatch(struct shard_chunk *chunk, const struct weft_wire_header *header,
                     struct weft_arrival *arrival)
{
    const bool pushes = weft_wire_contributes(header->kind);
    if (header->kind == WEFT_WIRE_APPLY) {
        shard_verdict_request(chunk, header, arrival);
        return;
    }
    if (!chunk->workers.contributions && !chunk->clock && pushes &&
        (header->step <= chunk->closed_step || shard_verdict_is_due(chunk, header->step))) {
        /* Others may have begun the next step or push, whose chunks have all blocks and wait for this
         * worker. */
        if (contribution_fits(chunk, header, arrival)) shard_push_again(chunk, header, arrival);
        return;
    }
    if (!shard_contributions_take(chunk)) {
        shard_contributions_hold(chunk, arrival);
        return;
    }
    dispatch_kind(chunk, header, arrival);
    shard_contributions_release(chunk);
}

/* Ranks belong to an epoch. The coordinator notifies a worker with an older epoch; a reply from here would
 * fail the worker. */
static bool is_current_epoch(struct weft_shard_engine *engine, const struct weft_wire_header *header,
                          struct weft_arrival *arrival)
{
    if (header->epoch < engine->epoch_change.newest_epoch) {
        drop(engine, arrival, "of an epoch that is over");
        return false;
    }
    if (header->epoch == engine->epoch) return true;
    if (engine->end.failed < 0) {
        shard_reply_refuse(engine, arrival, header, engine->end.failed, "%s", engine->end.failed_text);
        return false;
    }
    weft_list_append(&engine->epoch_change.newer_epoch, &arrival->link);
    return false;
}

void shard_request_handle(struct weft_shard_engine *engine, struct weft_arrival *arrival)
{
    struct weft_wire_header header;
    if (weft_wire_decode(arrival->header, arrival->header_bytes, &header) < 0 || !is_request(header.kind)) {
        drop(engine, arrival, "not a request header of this version");
        return;
    }
    if (engine->settings.elastic && header.job == engine->settings.job &&
        !is_current_epoch(engine, &header, arrival))
        return;
    if (header.worker >= engine->workers ||
        engine->members.worker[header.worker].endpoint != arrival->peer_id) {
        drop(engine, arrival, "its header names another worker");
        return;
    }
    if (header.job != engine->settings.job || header.epoch != engine->epoch ||
        header.incarnation != engine->members.worker[header.worker].incarnation) {
        shard_reply_refuse(engine, arrival, &header, WEFT_ERR_STALE,
                           "rank %u speaks for another job, epoch (%u, here %u) or incarnation",
                           header.worker, header.epoch, engine->epoch);
        return;
    }
    if (engine->end.failed < 0 && shard_map_is_on(engine)) {
        /* a copy may lead the slot: only the coordinator reports the end of the job to workers */
        drop(engine, arrival, "this shard has failed");
        return;
    }
    if (engine->end.failed < 0) {
        shard_reply_refuse(engine, arrival, &header, engine->end.failed, "%s", engine->end.failed_text);
        return;
    }
    if (!shard_engine_speaks(engine, &header)) {
        shard_reply_refuse(engine, arrival, &header, WEFT_ERR_VERSION,
                           "rank %u sent a message of wire version %u, this job has version %u",
                           header.worker, weft_wire_version_of_header(&header),
                           engine->settings.wire_version);
        return;
    }
    struct shard_tensor *tensor = shard_table_tensor(engine, header.tensor);
    struct shard_chunk *chunk = tensor ? shard_table_chunk(tensor, header.chunk) : NULL;
    if (!chunk) {
        shard_reply_refuse(engine, arrival, &header, WEFT_ERR_NOT_FOUND,
                           "tensor %u chunk %u is not on this shard", header.tensor, header.chunk);
        return;
    }
    if (!shard_map_admits(chunk, &header, arrival)) return;
    if (header.payload_bytes != arrival->payload_bytes) {
        shard_reply_refuse(engine, arrival, &header, WEFT_ERR_MALFORMED,
                           "header announces %" PRIu64 " bytes, the message has %zu", header.payload_bytes,
                           arrival->payload_bytes);
        return;
    }
    const enum weft_status followed = chunk->clock ? WEFT_OK : shard_skip_undo(chunk, &header);
    if (followed == WEFT_ERR_AGAIN) shard_reply_defer(engine, arrival);
    else if (followed < 0)
        shard_reply_refuse(engine, arrival, &header, followed,
                           "the skipped step %" PRIu64
                           " of tensor '%.30s' cannot be taken back: the shard has no copy",
                           chunk->closed_step, tensor->name);
    else dispatch(chunk, &header, arrival);
}

void shard_request_arrived(void *context, struct weft_arrival *arrival)
{
    weft_list_init(&arrival->link);
    shard_request_handle(context, arrival);
}
