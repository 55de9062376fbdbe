/* shard_reply.c - RESULT messages to workers, a fixed number in flight.
 *
 *     note (chunk, worker, kind) --> reply queue ------\
 *                                                       pump --> free reply --> weft_transport_send --> sent
 *     refuse / result / values (at once, or deferred) -/
 *
 * A reply is only a completion. The transport copies the header; the payload is sent from the chunk's values
 * or the combiner's aggregate. A result therefore uses no memory per worker. chunk->result.sends counts such
 * sends; while it is above zero the memory is not written (shard_round.c). If no reply is free, or the
 * transport returns WEFT_ERR_AGAIN:
 * - replies of a closed or dropped round stay pending in the chunk, one byte per worker;
 * - any other request is deferred: its arrival stays in a list and is handled again from the start later.
 *
 * A slow reader therefore uses no memory. A send to a lost one fails. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/shard/shard_clock.h"
#include "server/shard/shard_engine.h"

enum weft_status shard_reply_init(struct weft_shard_engine *engine, uint32_t count)
{
    engine->reply_pool.replies = weft_alloc_zero(engine->env, count * sizeof *engine->reply_pool.replies);
    if (!engine->reply_pool.replies) return WEFT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        engine->reply_pool.replies[i].engine = engine;
        engine->reply_pool.replies[i].next_free = engine->reply_pool.free_replies;
        engine->reply_pool.free_replies = &engine->reply_pool.replies[i];
    }
    return WEFT_OK;
}

void shard_reply_fini(struct weft_shard_engine *engine)
{
    weft_free_bytes(engine->env, engine->reply_pool.replies);
    engine->reply_pool.replies = engine->reply_pool.free_replies = NULL;
}

void shard_reply_sent(struct weft_completion *completion, enum weft_status status)
{
    struct shard_reply *reply = weft_container_of(completion, struct shard_reply, completion);
    struct weft_shard_engine *engine = reply->engine;
    struct shard_chunk *chunk = reply->chunk;
    struct shard_version *version = reply->version;
    reply->chunk = NULL;
    reply->version = NULL;
    reply->next_free = engine->reply_pool.free_replies;
    engine->reply_pool.free_replies = reply;
    engine->reply_pool.replies_in_flight--;
    if (chunk) {
        WEFT_ASSERT(chunk->result.sends > 0);
        chunk->result.sends--;
        if (version) shard_clock_send_ended(chunk, version);
        else if (chunk->clock) shard_clock_continue(chunk);
        else if (!engine->end.closed && !shard_result_is_in_use(chunk)) shard_round_result_released(chunk);
    }
    shard_engine_resume(engine);
}

/* Sends one RESULT with `text` of header->text_bytes bytes. false: not possible now. true: sent, or the peer
 * is lost. */
static bool send_result(struct weft_shard_engine *engine, uint32_t peer_id,
                        const struct weft_wire_header *header, const char *text, struct shard_chunk *chunk,
                        const void *payload)
{
    struct weft_peer *peer = weft_transport_peer(engine->transport, peer_id);
    if (!peer || weft_peer_status(peer) < 0) return true;
    if (shard_result_group_add(engine, header, payload)) return true;
    struct shard_reply *reply = engine->reply_pool.free_replies;
    if (!reply) {
        engine->reply_pool.blocked = true;
        return false;
    }
    uint8_t bytes[WEFT_WIRE_HEADER_BYTES_MAX];
    weft_wire_encode(header, bytes);
    memcpy(bytes + WEFT_WIRE_HEADER_BYTES, text, header->text_bytes);
    struct weft_message message = {
        .tag = WEFT_TAG(WEFT_CHANNEL_RESULT, (uint64_t)header->chunk << 32 | header->tensor),
        .header = bytes,
        .header_bytes = WEFT_WIRE_HEADER_BYTES + header->text_bytes,
        .payload = header->payload_bytes ? payload : NULL,
        .payload_bytes = (size_t)header->payload_bytes,
    };
    weft_completion_init(&reply->completion, 1, shard_reply_sent);
    enum weft_status status = weft_transport_send(peer, &message, &reply->completion);
    if (status == WEFT_ERR_AGAIN) {
        engine->reply_pool.blocked = true;
        shard_engine_schedule_retry(engine);
        return false;
    }
    if (status < 0) return true; /* lost between the two calls: no reply is needed */
    engine->reply_pool.free_replies = reply->next_free;
    engine->reply_pool.replies_in_flight++;
    engine->stats.sent_bytes += message.header_bytes + message.payload_bytes;
    if (message.payload_bytes) {
        reply->chunk = chunk;
        chunk->result.sends++;
        if (chunk->clock && payload == chunk->values) reply->version = shard_clock_send_begins(chunk);
    }
    return true;
}

/* Header of a RESULT to `worker`. */
static struct weft_wire_header result_header(const struct shard_chunk *chunk, uint32_t worker)
{
    const struct weft_shard_engine *engine = chunk->tensor->engine;
    return (struct weft_wire_header){
        .kind = WEFT_WIRE_RESULT,
        .codec = (uint8_t)chunk->coding.codec.id,
        .dtype = (uint8_t)chunk->tensor->pull_dtype,
        .job = engine->settings.job,
        .incarnation = engine->members.worker[worker].incarnation,
        .worker = worker,
        .epoch = engine->epoch,
        .tensor = chunk->tensor->id,
        .chunk = chunk->index,
        .term = shard_map_term(chunk),
    };
}

static void header_text(struct weft_wire_header *header, enum weft_status status, const char *text)
{
    size_t bytes = strlen(text);
    header->status = status;
    header->text_bytes =
        (uint32_t)(bytes < WEFT_LIMIT_RESULT_TEXT_BYTES ? bytes : WEFT_LIMIT_RESULT_TEXT_BYTES);
}

/* Of a chunk with a clock: the reply to the worker's own contribution. */
static bool send_clock_reply(struct shard_chunk *chunk, uint32_t worker, enum shard_reply_kind kind)
{
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct weft_wire_header header = result_header(chunk, worker);
    header.step = chunk->clock->worker[worker].reply_clock;
    header.round = header.step > 0 ? 0 : chunk->result.round; /* 0: first weights, or a state */
    if (kind == SHARD_REPLY_DATA) header.payload_bytes = chunk->count * sizeof(float);
    if (kind == SHARD_REPLY_ERROR) header_text(&header, chunk->error.status, chunk->error.text);
    const char *text = kind == SHARD_REPLY_ERROR ? chunk->error.text : "";
    return send_result(engine, engine->members.worker[worker].endpoint, &header, text, chunk, chunk->values);
}

static bool send_reply(struct shard_chunk *chunk, uint32_t worker, enum shard_reply_kind kind, float weight,
                       uint32_t late_us)
{
    if (chunk->clock) return send_clock_reply(chunk, worker, kind);
    struct weft_shard_engine *engine = chunk->tensor->engine;
    struct weft_wire_header header = result_header(chunk, worker);
    if (kind == SHARD_REPLY_ERROR) {
        header.step = chunk->error.step;
        header.round = chunk->error.round;
        header_text(&header, chunk->error.status, chunk->error.text);
        return send_result(engine, engine->members.worker[worker].endpoint, &header, chunk->error.text, NULL,
                           NULL);
    }
    header.step = chunk->result.step;
    header.round = chunk->result.round;
    header.lr = chunk->result.lr;
    header.weight = weight;
    header.weight_sum = chunk->result.weight_sum;
    header.late_us = late_us;
    header.flags = chunk->result.is_finite ? WEFT_WIRE_FINITE : 0;
    if (!shard_engine_speaks(engine, &header)) header.flags = 0;
    header.payload_bytes = kind == SHARD_REPLY_DATA ? chunk->result.bytes : 0;
    return send_result(engine, engine->members.worker[worker].endpoint, &header, "", chunk,
                       chunk->result.data);
}

/* ---- immediate replies ---- */

void shard_reply_defer(struct weft_shard_engine *engine, struct weft_arrival *arrival)
{
    weft_list_append(&engine->queues.deferred, &arrival->link);
}

void shard_reply_defer_all(struct weft_shard_engine *engine, struct weft_list *arrivals)
{
    while (!weft_list_empty(arrivals)) {
        struct weft_arrival *arrival = weft_list_first(arrivals, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        shard_reply_defer(engine, arrival);
    }
}

/* After a reply the request's payload is not needed. Without one the request is deferred. */
static bool ended(struct weft_shard_engine *engine, struct weft_arrival *arrival, bool answered)
{
    if (answered) weft_transport_discard(engine->transport, arrival);
    else shard_reply_defer(engine, arrival);
    return answered;
}

/* Without a payload. */
static struct weft_wire_header header_of_reply(const struct weft_wire_header *request)
{
    struct weft_wire_header header = *request;
    header.kind = WEFT_WIRE_RESULT;
    header.payload_bytes = 0;
    header.loss_exponent = 0;
    header.weight_sum = 0;
    header.flags = 0;
    header.skips = 0;
    header.good = header.late_us = 0;
    return header;
}

void shard_reply_passed(struct weft_shard_engine *engine, struct weft_arrival *arrival,
                        const struct weft_wire_header *request)
{
    const struct weft_wire_header header = header_of_reply(request);
    (void)ended(engine, arrival, send_result(engine, arrival->peer_id, &header, "", NULL, NULL));
}

void shard_reply_refuse(struct weft_shard_engine *engine, struct weft_arrival *arrival,
                        const struct weft_wire_header *request, enum weft_status status, const char *format,
                        ...)
{
    char text[SHARD_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    struct weft_wire_header header = header_of_reply(request);
    header_text(&header, status, text);
    if (!ended(engine, arrival, send_result(engine, arrival->peer_id, &header, text, NULL, NULL))) return;
    engine->stats.refused++;
    weft_log(engine->env, WEFT_LOG_DEBUG, "server", "rank %u tensor %u chunk %u step %llu refused: %s",
             request->worker, request->tensor, request->chunk, (unsigned long long)request->step, text);
}

bool shard_reply_result(struct shard_chunk *chunk, struct weft_arrival *arrival,
                        const struct weft_wire_header *header, enum shard_reply_kind kind)
{
    return ended(chunk->tensor->engine, arrival, send_reply(chunk, header->worker, kind, header->weight, 0));
}

bool shard_reply_values(struct shard_chunk *chunk, struct weft_arrival *arrival,
                        const struct weft_wire_header *request, const float *data)
{
    struct weft_wire_header header = result_header(chunk, request->worker);
    const bool is_result = data == chunk->values && request->kind != WEFT_WIRE_STATE_PULL;
    header.codec = WEFT_CODEC_DENSE;
    header.step = chunk->closed_step;
    header.round = request->round;
    header.payload_bytes = is_result ? shard_chunk_result_bytes(chunk) : chunk->count * sizeof(float);
    if (!is_result) header.dtype = WEFT_F32;
    return ended(chunk->tensor->engine, arrival,
                 send_result(chunk->tensor->engine, arrival->peer_id, &header, "", chunk,
                             is_result ? shard_chunk_result(chunk) : data));
}

/* ---- queued replies ---- */

void shard_reply_note(struct shard_chunk *chunk, uint32_t worker, enum shard_reply_kind kind)
{
    struct shard_contribution *contribution = &chunk->workers.contributions[worker];
    if (contribution->reply_pending == SHARD_REPLY_NONE && chunk->result.replies_pending++ == 0) {
        chunk->result.reply_cursor = 0;
        if (!shard_replicate_holds(chunk))
            weft_list_append(&chunk->tensor->engine->queues.reply_queue, &chunk->links.reply);
    }
    contribution->reply_pending = (uint8_t)kind;
    if (worker < chunk->result.reply_cursor) chunk->result.reply_cursor = worker;
}

/* false: blocked. */
static bool pump_chunk(struct shard_chunk *chunk)
{
    while (chunk->result.replies_pending > 0) {
        WEFT_ASSERT(chunk->result.reply_cursor < chunk->tensor->engine->workers);
        struct shard_contribution *contribution = &chunk->workers.contributions[chunk->result.reply_cursor];
        if (contribution->reply_pending != SHARD_REPLY_NONE) {
            if (!send_reply(chunk, chunk->result.reply_cursor,
                            (enum shard_reply_kind)contribution->reply_pending, contribution->weight,
                            contribution->late_us))
                return false;
            contribution->reply_pending = SHARD_REPLY_NONE;
            chunk->result.replies_pending--;
        }
        chunk->result.reply_cursor++;
    }
    weft_list_remove(&chunk->links.reply);
    if (!shard_result_is_in_use(chunk)) shard_round_result_released(chunk);
    shard_contributions_release(chunk);
    return true;
}

static void pump_deferred(struct weft_shard_engine *engine)
{
    struct weft_list now;
    weft_list_take(&now, &engine->queues.deferred);
    while (!weft_list_empty(&now)) {
        struct weft_arrival *arrival = weft_list_first(&now, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        if (engine->reply_pool.blocked) shard_reply_defer(engine, arrival);
        else shard_request_handle(engine, arrival);
    }
}

void shard_reply_pump(struct weft_shard_engine *engine)
{
    engine->reply_pool.pump_again = true;
    if (engine->reply_pool.pumping || engine->groups.corks > 0) return;
    engine->reply_pool.pumping = true;
    engine->reply_pool.blocked = false;
    while (engine->reply_pool.pump_again && !engine->reply_pool.blocked) {
        engine->reply_pool.pump_again = false;
        while (!weft_list_empty(&engine->queues.reply_queue)) {
            if (!pump_chunk(weft_list_first(&engine->queues.reply_queue, struct shard_chunk, links.reply)))
                break;
        }
        if (!engine->reply_pool.blocked) pump_deferred(engine);
    }
    shard_result_groups_flush(engine);
    engine->reply_pool.pumping = false;
}
