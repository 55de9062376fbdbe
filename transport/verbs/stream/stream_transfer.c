/* stream_transfer.c - large transfers, in chunks over all lanes.
 *
 * A lane that carries chunks of a transfer closes each *run* of them with an immediate without data. The
 * receiver counts by it, and the sender's progress is measured by it. A run ends when its transfer has
 * nothing left to post or when the lane switches to another transfer. */
#include <string.h>

#include "transport/verbs/stream/stream.h"

void stream_send_access(struct stream *stream, struct stream_send *send)
{
    send->has_id = send->eager = false;
    send->transfer.grant = STREAM_NO_GRANT;
    weft_list_init(&send->outgoing.link);
    weft_list_append(&stream->sends, &send->link);
    if (send->transfer.bytes > 0) stream_transfer_start(stream, &send->transfer);
    else stream_notify(stream, send);
}

void stream_transfer_start(struct stream *stream, struct stream_transfer *transfer)
{
    transfer->open = 0;
    transfer->refused = false;
    /* set when it starts: both HELLOs are known then */
    transfer->chunk_count = transfer->chunk_next = transfer->confirmed = transfer->replay_count = 0;
    weft_list_append(&stream->moving, &transfer->link);
}

/* ---- grants ---- */

static struct stream_send *announced_find(struct stream *stream, uint64_t id)
{
    uint32_t at = (uint32_t)(id & 0xfffff);
    struct stream_send *send = at < stream->announced.capacity ? stream->announced.items[at] : NULL;
    if (send && send->id == id && send->outgoing.intent == STREAM_INTENT_NONE) {
        stream_table_take(&stream->announced, at);
        send->has_id = false;
        return send;
    }
    stream_fail(stream, WEFT_ERR_MALFORMED, "it answered a message that was never announced");
    return NULL;
}

void stream_on_grant(struct stream *stream, uint64_t id, uint32_t grant, uint64_t address,
                     const struct stream_keys *keys)
{
    struct stream_send *send = announced_find(stream, id);
    if (!send) return;
    struct stream_transfer *transfer = &send->transfer;
    transfer->read = false;
    transfer->grant = grant;
    transfer->local = (uint8_t *)send->payload;
    transfer->bytes = send->payload_bytes;
    transfer->remote = address;
    transfer->remote_keys = *keys;
    if (transfer->bytes == 0) {
        stream_fail(stream, WEFT_ERR_MALFORMED, "it granted a buffer to an empty message");
        return;
    }
    stream_transfer_start(stream, transfer);
}

void stream_on_refusal(struct stream *stream, uint64_t id)
{
    struct stream_send *send = announced_find(stream, id);
    if (!send) return;
    weft_list_remove(&send->link);
    stream->ops->sent(stream->context, send, WEFT_OK);
}

void stream_on_chunks(struct stream *stream, uint32_t grant, uint32_t count)
{
    struct stream_receive *receive = grant < stream->grants.capacity ? stream->grants.items[grant] : NULL;
    if (!receive || count == 0 || count > receive->chunks_left ||
        receive->outgoing.intent != STREAM_INTENT_NONE) {
        stream_fail(stream, WEFT_ERR_MALFORMED, "it wrote into a buffer that was not granted");
        return;
    }
    receive->chunks_left -= count;
    if (receive->chunks_left > 0) return;
    stream_table_take(&stream->grants, grant);
    weft_list_remove(&receive->link);
    stream->ops->received(stream->context, receive, WEFT_OK);
    stream_grants_hand_out(stream);
}

/* ---- progress of the sender ---- */

static void transfer_done(struct stream *stream, struct stream_transfer *transfer)
{
    struct stream_send *send = weft_container_of(transfer, struct stream_send, transfer);
    if (send->notify) {
        stream_notify(stream, send);
        return;
    }
    weft_list_remove(&send->link);
    stream->ops->sent(stream->context, send, WEFT_OK);
}

/* A refused transfer ends when no entry refers to it. */
static void refused_check(struct stream *stream, struct stream_transfer *transfer)
{
    if (!transfer->refused || transfer->open > 0 || transfer->replay_count > 0) return;
    for (uint32_t i = 0; i < stream->options.lane_count; i++) {
        struct stream_lane *lane = &stream->lane_set.lanes[i];
        if (lane->run == transfer) lane->run = NULL;
        if (!lane->run) lane->run_count = 0;
        if (lane->unconfirmed == transfer) lane->unconfirmed_count = 0;
    }
    struct stream_send *send = weft_container_of(transfer, struct stream_send, transfer);
    weft_list_remove(&transfer->link);
    weft_list_remove(&send->link);
    stream->ops->sent(stream->context, send, WEFT_ERR_CANCELLED);
}

void stream_transfer_closed(struct stream *stream, struct stream_transfer *transfer)
{
    WEFT_ASSERT(transfer->open > 0);
    transfer->open--;
    refused_check(stream, transfer);
}

void stream_confirm(struct stream *stream, struct stream_transfer *transfer, uint32_t count)
{
    transfer->confirmed += count;
    if (STREAM_MUTANT == STREAM_MUTANT_EARLY_SENT) return;
    if (transfer->confirmed == transfer->chunk_count) transfer_done(stream, transfer);
}

void stream_replay_add(struct stream *stream, struct stream_transfer *transfer, uint32_t chunk,
                       uint32_t uncounted)
{
    uint32_t capacity = stream->options.lane_count_made * stream->options.lane_depth;
    /* at most as many as can be posted: new chunks wait behind them */
    WEFT_ASSERT(stream->replay.replay_count < capacity);
    uint32_t at = (stream->replay.replay_first + stream->replay.replay_count++) % capacity;
    stream->replay.replays[at] = (struct stream_replay){transfer, chunk, uncounted};
    transfer->replay_count++;
}

/* ---- posting ---- */

static bool transfer_has_ended(const struct stream_transfer *transfer)
{
    return transfer->refused || (transfer->chunk_count > 0 && transfer->chunk_next == transfer->chunk_count &&
                                 transfer->replay_count == 0);
}

bool stream_run_is_posted(const struct stream_lane *lane)
{
    return transfer_has_ended(lane->run);
}

static uint32_t run_imm(const struct stream_transfer *transfer, uint32_t count)
{
    return transfer->grant == STREAM_NO_GRANT ? stream_imm_flush() : stream_imm_data(transfer->grant, count);
}

void stream_run_close(struct stream *stream, uint32_t lane_at, struct stream_work *works, uint32_t *count)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    struct stream_entry entry = {
        .kind = STREAM_ENTRY_RUN, .number = lane->run_count, .of.transfer = lane->run};
    struct stream_work *work = stream_lane_work(stream, lane_at, works, count, STREAM_WORK_WRITE_IMM, entry);
    work->imm = run_imm(lane->run, lane->run_count);
    lane->run = NULL;
    lane->run_count = 0;
}

static void chunk_taken(struct stream *stream, struct stream_transfer *transfer)
{
    if (stream->replay.replay_count > 0) {
        stream->replay.replay_first = (stream->replay.replay_first + 1) %
                                      (stream->options.lane_count_made * stream->options.lane_depth);
        stream->replay.replay_count--;
        transfer->replay_count--;
        return;
    }
    transfer->chunk_next++;
    if (transfer->chunk_next == transfer->chunk_count) weft_list_remove(&transfer->link);
}

/* Stops posting refused transfers. */
static void refused_drop(struct stream *stream)
{
    while (stream->replay.replay_count > 0 &&
           stream->replay.replays[stream->replay.replay_first].transfer->refused) {
        struct stream_transfer *transfer = stream->replay.replays[stream->replay.replay_first].transfer;
        chunk_taken(stream, transfer);
        refused_check(stream, transfer);
    }
    while (stream->replay.replay_count == 0 && !weft_list_empty(&stream->moving)) {
        struct stream_transfer *transfer = weft_list_first(&stream->moving, struct stream_transfer, link);
        if (!transfer->refused) return;
        weft_list_remove(&transfer->link);
    }
}

/* The next chunk to post: replays first, then transfers in order. */
static bool chunk_next(struct stream *stream, struct stream_replay *next_out)
{
    refused_drop(stream);
    if (stream->replay.replay_count > 0) {
        *next_out = stream->replay.replays[stream->replay.replay_first];
        return true;
    }
    if (weft_list_empty(&stream->moving)) return false;
    struct stream_transfer *transfer = weft_list_first(&stream->moving, struct stream_transfer, link);
    uint32_t chunk = stream->options.chunk_bytes;
    if (transfer->chunk_count == 0) transfer->chunk_count = (uint32_t)((transfer->bytes + chunk - 1) / chunk);
    *next_out = (struct stream_replay){.transfer = transfer, .chunk = transfer->chunk_next};
    return true;
}

static void chunk_post(struct stream *stream, uint32_t lane_at, struct stream_transfer *transfer,
                       uint32_t chunk, struct stream_work *works, uint32_t *count)
{
    uint64_t offset = (uint64_t)chunk * stream->options.chunk_bytes, rest = transfer->bytes - offset;
    struct stream_entry entry = {.kind = transfer->read ? STREAM_ENTRY_READ : STREAM_ENTRY_CHUNK,
                                 .number = chunk,
                                 .of.transfer = transfer};
    enum stream_work_kind kind = transfer->read ? STREAM_WORK_READ : STREAM_WORK_WRITE;
    struct stream_work *work = stream_lane_work(stream, lane_at, works, count, kind, entry);
    work->bytes = (uint32_t)(rest < stream->options.chunk_bytes ? rest : stream->options.chunk_bytes);
    work->is_direct = transfer->is_direct;
    work->local = transfer->local + offset;
    work->local_key = transfer->local_keys.key[lane_at];
    work->remote = transfer->remote + offset;
    work->remote_key = transfer->remote_keys.key[lane_at];
}

/* Chunks written before their lane broke: only counted. */
static void uncounted_post(struct stream *stream, uint32_t lane_at, const struct stream_replay *next,
                           struct stream_work *works, uint32_t *count)
{
    struct stream_entry entry = {
        .kind = STREAM_ENTRY_UNCOUNTED, .number = next->uncounted, .of.transfer = next->transfer};
    struct stream_work *work = stream_lane_work(stream, lane_at, works, count, STREAM_WORK_WRITE_IMM, entry);
    work->imm = run_imm(next->transfer, next->uncounted);
}

static void next_post(struct stream *stream, uint32_t lane_at, const struct stream_replay *next,
                      struct stream_work *works, uint32_t *count)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    struct stream_transfer *transfer = next->transfer;
    if (lane->run && (lane->run != transfer || lane->run_count == STREAM_CHUNKS_PER_IMM_MAX))
        stream_run_close(stream, lane_at, works, count);
    if (!transfer->read) {
        lane->run = transfer;
        lane->run_count++;
    }
    bool close = lane->run == transfer && transfer_has_ended(transfer);
    if (STREAM_MUTANT == STREAM_MUTANT_IMM_FIRST && close) stream_run_close(stream, lane_at, works, count);
    chunk_post(stream, lane_at, transfer, next->chunk, works, count);
    if (STREAM_MUTANT != STREAM_MUTANT_IMM_FIRST && close) stream_run_close(stream, lane_at, works, count);
    if (STREAM_MUTANT == STREAM_MUTANT_EARLY_SENT && transfer_has_ended(transfer))
        transfer_done(stream, transfer);
}

/* One entry stays free for the immediate that closes the run. */
void stream_transfers_post(struct stream *stream, uint32_t lane_at, struct stream_work *works,
                           uint32_t *count, uint32_t limit)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    struct stream_replay next;
    while (limit-- > 0 && *count + 3 <= STREAM_BATCH && stream_lane_space(stream, lane) >= 3 &&
           chunk_next(stream, &next)) {
        chunk_taken(stream, next.transfer);
        if (next.uncounted > 0) uncounted_post(stream, lane_at, &next, works, count);
        else next_post(stream, lane_at, &next, works, count);
    }
}
