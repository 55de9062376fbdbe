/* stream_record.c - records through the ring: staged in order, posted on any lane, handled in order.
 *
 * A record is built once, in the local staging memory, at its offset in the peer's ring. It stays there
 * until the peer has consumed it, so a replay needs no copy. Ring space is returned as a count of consumed
 * records, inside each record of the other direction or as an immediate. */
#include <string.h>

#include "transport/verbs/stream/stream.h"

static uint32_t padded_bytes(uint64_t bytes)
{
    return (uint32_t)((bytes + STREAM_ALIGN - 1) / STREAM_ALIGN * STREAM_ALIGN);
}

static uint32_t eager_charge(uint32_t header_bytes, uint64_t payload_bytes)
{
    uint32_t charge = padded_bytes(header_bytes + payload_bytes);
    return charge ? charge : STREAM_ALIGN;
}

bool stream_takes_eager(const struct stream *stream, uint32_t header_bytes, uint64_t payload_bytes,
                        uint32_t eager_bytes)
{
    /* the smallest ring bounds a record until the HELLO arrives */
    uint32_t ring = stream->hello.hello_received ? stream->outgoing.ring_size : STREAM_RING_LEAST;
    if (payload_bytes > eager_bytes || STREAM_RECORD_BYTES + header_bytes + payload_bytes > ring / 4)
        return false;
    return stream->outgoing.eager_sent - stream->outgoing.eager_taken +
               eager_charge(header_bytes, payload_bytes) <=
           stream->hello.peer_eager_budget;
}

/* ---- send ---- */

static void wait_for_space(struct stream *stream, struct stream_outgoing *outgoing,
                           enum stream_record_intent intent)
{
    outgoing->intent = intent;
    weft_list_append(&stream->outgoing.waiting, &outgoing->link);
}

enum weft_status stream_send_message(struct stream *stream, struct stream_send *send, uint32_t eager_bytes)
{
    send->eager = stream_takes_eager(stream, send->header_bytes, send->payload_bytes, eager_bytes);
    send->has_id = !send->eager;
    if (send->eager) {
        stream->outgoing.eager_sent += eager_charge(send->header_bytes, send->payload_bytes);
    } else {
        if (!stream_table_put(stream->env, &stream->announced, send, &send->table_at))
            return WEFT_ERR_NO_MEMORY;
        send->id = ++stream->id_count << 20 | send->table_at;
    }
    weft_list_append(&stream->sends, &send->link);
    wait_for_space(stream, &send->outgoing, send->eager ? STREAM_INTENT_MESSAGE : STREAM_INTENT_ANNOUNCE);
    return WEFT_OK;
}

void stream_notify(struct stream *stream, struct stream_send *send)
{
    /* may exceed the budget: it has no payload */
    stream->outgoing.eager_sent += eager_charge(send->header_bytes, 0);
    send->payload_bytes = 0;
    wait_for_space(stream, &send->outgoing, STREAM_INTENT_MESSAGE);
}

void stream_accept(struct stream *stream, struct stream_receive *receive)
{
    receive->discarded = receive->granted = false;
    receive->outgoing.intent = STREAM_INTENT_NONE;
    weft_list_append(&stream->receives, &receive->link);
    if (receive->bytes == 0) {
        wait_for_space(stream, &receive->outgoing, STREAM_INTENT_DISCARD);
        return;
    }
    weft_list_append(&stream->ungranted, &receive->outgoing.link);
    stream_grants_hand_out(stream);
}

void stream_discard(struct stream *stream, struct stream_receive *receive)
{
    receive->granted = false;
    receive->discarded = true;
    weft_list_append(&stream->receives, &receive->link);
    wait_for_space(stream, &receive->outgoing, STREAM_INTENT_DISCARD);
}

void stream_grants_hand_out(struct stream *stream)
{
    while (!weft_list_empty(&stream->ungranted)) {
        struct stream_receive *receive =
            weft_list_first(&stream->ungranted, struct stream_receive, outgoing.link);
        if (!stream_table_put(stream->env, &stream->grants, receive, &receive->grant)) return;
        weft_list_remove(&receive->outgoing.link);
        receive->granted = true;
        uint32_t chunk = stream->options.chunk_bytes;
        receive->chunks_left = (uint32_t)((receive->bytes + chunk - 1) / chunk);
        wait_for_space(stream, &receive->outgoing, STREAM_INTENT_GRANT);
    }
}

/* Reserves space in the peer's ring; false: none now. */
static bool ring_take(struct stream *stream, uint32_t bytes, struct stream_record_out *out)
{
    uint32_t need = padded_bytes(bytes);
    uint32_t skip = stream->outgoing.ring_head + need > stream->outgoing.ring_size
                        ? stream->outgoing.ring_size - stream->outgoing.ring_head
                        : 0;
    bool has_space = stream->outgoing.ring_used + skip + need <= stream->outgoing.ring_size &&
                stream->outgoing.out_next - stream->outgoing.out_done < STREAM_RECORDS_MAX;
    if (STREAM_MUTANT == STREAM_MUTANT_NO_CREDIT) has_space = true;
    if (!has_space) return false;
    *out = (struct stream_record_out){
        .offset = skip ? 0 : stream->outgoing.ring_head, .bytes = bytes, .charged = skip + need};
    stream->outgoing.ring_head = (out->offset + need) % stream->outgoing.ring_size;
    stream->outgoing.ring_used += out->charged;
    return true;
}

static struct stream_send *send_of(struct stream_outgoing *outgoing)
{
    return weft_container_of(outgoing, struct stream_send, outgoing);
}
static struct stream_receive *receive_of(struct stream_outgoing *outgoing)
{
    return weft_container_of(outgoing, struct stream_receive, outgoing);
}

static void describe(struct stream *stream, struct stream_outgoing *outgoing, struct stream_record *record,
                     uint8_t *grant_bytes)
{
    if (outgoing->intent == STREAM_INTENT_MESSAGE || outgoing->intent == STREAM_INTENT_ANNOUNCE) {
        const struct stream_send *send = send_of(outgoing);
        bool announce = outgoing->intent == STREAM_INTENT_ANNOUNCE;
        *record = (struct stream_record){
            .kind = announce ? STREAM_RECORD_ANNOUNCE : STREAM_RECORD_MESSAGE,
            .header_bytes = send->header_bytes,
            .header = send->header,
            .tag = send->tag,
            .id = send->id,
            .payload_bytes = send->payload_bytes,
            .body_bytes = announce ? 0 : (uint32_t)send->payload_bytes,
            .body = announce ? NULL : send->payload,
        };
        return;
    }
    const struct stream_receive *receive = receive_of(outgoing);
    *record = (struct stream_record){.kind = STREAM_RECORD_DISCARD, .id = receive->id};
    if (outgoing->intent == STREAM_INTENT_DISCARD) return;
    struct stream_grant grant = {.address = (uintptr_t)receive->buffer,
                                 .grant = receive->grant,
                                 .lane_count = stream->options.lane_count};
    memcpy(grant.keys, receive->keys.key, sizeof grant.keys);
    record->kind = STREAM_RECORD_GRANT;
    record->body_bytes = stream_grant_encode(&grant, grant_bytes);
    record->body = grant_bytes;
}

/* The record is staged: an operation that only needed this is complete. */
static void outgoing_staged(struct stream *stream, struct stream_outgoing *outgoing)
{
    enum stream_record_intent intent = outgoing->intent;
    outgoing->intent = STREAM_INTENT_NONE;
    if (intent == STREAM_INTENT_MESSAGE) {
        struct stream_send *send = send_of(outgoing);
        weft_list_remove(&send->link);
        stream->ops->sent(stream->context, send, WEFT_OK);
    } else if (intent == STREAM_INTENT_DISCARD) {
        struct stream_receive *receive = receive_of(outgoing);
        weft_list_remove(&receive->link);
        stream->ops->received(stream->context, receive, WEFT_OK);
    }
}

bool stream_records_stage(struct stream *stream)
{
    bool any = false;
    while (!weft_list_empty(&stream->outgoing.waiting)) {
        struct stream_outgoing *outgoing =
            weft_list_first(&stream->outgoing.waiting, struct stream_outgoing, link);
        struct stream_record record;
        uint8_t grant_bytes[16 + 4 * STREAM_LANES_MAX];
        describe(stream, outgoing, &record, grant_bytes);
        uint32_t bytes = STREAM_RECORD_BYTES + record.header_bytes + record.body_bytes;
        if (padded_bytes(bytes) > stream->outgoing.ring_size / 2) {
            stream_fail(stream, WEFT_ERR_LIMIT,
                        "its ring is too small for our messages: set the same ring size at both ends");
            return any;
        }
        struct stream_record_out out;
        if (!ring_take(stream, bytes, &out)) return any;
        record.sequence = stream->outgoing.out_next;
        record.consumed = stream->incoming.in_reported = stream->incoming.in_next;
        record.taken = stream->incoming.taken_reported = stream->incoming.taken;
        stream->incoming.in_bytes_unreported = 0;
        stream_record_encode(&record, stream->options.staging + out.offset);
        if (record.kind == STREAM_RECORD_MESSAGE) stream->copied_bytes += record.body_bytes;
        stream->outgoing.out[stream->outgoing.out_next % STREAM_RECORDS_MAX] = out;
        stream->outgoing.out_next++;
        stream->outgoing.out_unposted++;
        weft_list_remove(&outgoing->link);
        outgoing_staged(stream, outgoing);
        any = true;
    }
    return any;
}

static bool credit_due(const struct stream *stream)
{
    return stream->credit_again ||
           stream->incoming.in_next - stream->incoming.in_reported >= STREAM_RECORDS_MAX / 2 ||
           stream->incoming.in_bytes_unreported >= stream->options.ring_bytes / 4;
}

static bool taken_due(const struct stream *stream)
{
    return stream->credit_again ||
           stream->incoming.taken - stream->incoming.taken_reported >= stream->options.eager_budget / 2;
}

static void credits_post(struct stream *stream, uint32_t lane_at, struct stream_work *works, uint32_t *count)
{
    struct stream_entry entry = {.kind = STREAM_ENTRY_CREDIT};
    bool again = stream->credit_again;
    if (credit_due(stream) && stream_lane_space(stream, &stream->lane_set.lanes[lane_at]) > 3) {
        stream_lane_work(stream, lane_at, works, count, STREAM_WORK_WRITE_IMM, entry)->imm =
            stream_imm_credit(false, stream->incoming.in_next);
        stream->incoming.in_reported = stream->incoming.in_next;
        stream->incoming.in_bytes_unreported = 0;
        stream->credit_again = false;
    }
    if ((again || taken_due(stream)) && stream_lane_space(stream, &stream->lane_set.lanes[lane_at]) > 2) {
        stream_lane_work(stream, lane_at, works, count, STREAM_WORK_WRITE_IMM, entry)->imm =
            stream_imm_credit(true, stream->incoming.taken / STREAM_ALIGN);
        stream->incoming.taken_reported = stream->incoming.taken;
    }
}

void stream_records_post(struct stream *stream, uint32_t lane_at, struct stream_work *works, uint32_t *count)
{
    struct stream_lane *lane = &stream->lane_set.lanes[lane_at];
    credits_post(stream, lane_at, works, count);
    for (uint64_t sequence = stream->outgoing.out_done;
         sequence < stream->outgoing.out_next && stream->outgoing.out_unposted > 0; sequence++) {
        struct stream_record_out *out = &stream->outgoing.out[sequence % STREAM_RECORDS_MAX];
        if (out->posted) continue;
        if (*count >= STREAM_BATCH || stream_lane_space(stream, lane) <= 2) return;
        struct stream_entry entry = {.kind = STREAM_ENTRY_RECORD, .of.sequence = sequence};
        struct stream_work *work =
            stream_lane_work(stream, lane_at, works, count, STREAM_WORK_WRITE_IMM, entry);
        work->imm = stream_imm_record(sequence, out->offset);
        work->bytes = out->bytes;
        work->local = stream->options.staging + out->offset;
        work->local_key = stream->options.staging_keys.key[lane_at];
        work->remote = stream->hello.peer_ring + out->offset;
        work->remote_key = stream->hello.peer_ring_keys.key[lane_at];
        out->posted = true;
        stream->outgoing.out_unposted--;
    }
}

/* ---- credits ---- */

static void consumed_to(struct stream *stream, uint64_t consumed)
{
    while (stream->outgoing.out_done < consumed) {
        const struct stream_record_out *out =
            &stream->outgoing.out[stream->outgoing.out_done % STREAM_RECORDS_MAX];
        if (!out->posted) stream->outgoing.out_unposted--; /* it had arrived before its lane broke */
        stream->outgoing.ring_used -= out->charged;
        stream->outgoing.out_done++;
    }
}

/* Credits of several lanes may be reordered: an older one is ignored. */
void stream_credit_imm(struct stream *stream, uint32_t imm)
{
    const uint32_t mask = 0x1fffffff;
    if (imm >> 29) {
        uint64_t taken = ((imm & mask) - (uint32_t)(stream->outgoing.eager_taken / STREAM_ALIGN)) & mask;
        if (taken * STREAM_ALIGN <= stream->outgoing.eager_sent - stream->outgoing.eager_taken)
            stream->outgoing.eager_taken += taken * STREAM_ALIGN;
        return;
    }
    uint64_t consumed = ((imm & mask) - (uint32_t)stream->outgoing.out_done) & mask;
    if (consumed <= stream->outgoing.out_next - stream->outgoing.out_done)
        consumed_to(stream, stream->outgoing.out_done + consumed);
}

/* ---- receive ---- */

static void announce_or_message(struct stream *stream, const struct stream_record *record)
{
    struct stream_arrival incoming = {
        .tag = record->tag,
        .header = record->header,
        .header_bytes = record->header_bytes,
        .payload_bytes = record->payload_bytes,
        .payload = record->body,
        .announced = record->kind == STREAM_RECORD_ANNOUNCE,
        .id = record->id,
    };
    if (!incoming.announced) {
        stream->incoming.payload_untaken += record->payload_bytes;
        if (stream->incoming.payload_untaken > stream->options.eager_budget) {
            stream_fail(stream, WEFT_ERR_MALFORMED, "it sent more than it was allowed to leave here");
            return;
        }
    }
    stream->ops->arrived(stream->context, &incoming);
}

static void record_handle(struct stream *stream, uint32_t offset)
{
    struct stream_record record;
    uint32_t limit = stream->outgoing.ring_size;
    if (offset >= limit || stream_record_decode(stream->options.ring + offset, limit - offset, &record) < 0 ||
        (STREAM_MUTANT != STREAM_MUTANT_ANY_ORDER && record.sequence != stream->incoming.in_next)) {
        stream_fail(stream, WEFT_ERR_MALFORMED, "it sent a record that cannot be understood");
        return;
    }
    if (record.consumed > stream->outgoing.out_next || record.taken > stream->outgoing.eager_sent) {
        stream_fail(stream, WEFT_ERR_MALFORMED, "it claims to have received more than was sent");
        return;
    }
    consumed_to(stream, record.consumed);
    if (record.taken > stream->outgoing.eager_taken) stream->outgoing.eager_taken = record.taken;
    struct stream_grant grant;
    struct stream_keys keys = {{0}};
    switch (record.kind) {
    case STREAM_RECORD_MESSAGE:
    case STREAM_RECORD_ANNOUNCE: announce_or_message(stream, &record); break;
    case STREAM_RECORD_DISCARD: stream_on_refusal(stream, record.id); break;
    case STREAM_RECORD_GRANT:
        if (stream_grant_decode(record.body, record.body_bytes, &grant) < 0 ||
            grant.lane_count < stream->options.lane_count) {
            stream_fail(stream, WEFT_ERR_MALFORMED, "it granted a buffer that cannot be understood");
            return;
        }
        memcpy(keys.key, grant.keys, sizeof keys.key);
        stream_on_grant(stream, record.id, grant.grant, grant.address, &keys);
        break;
    }
    stream->incoming.in_bytes_unreported +=
        padded_bytes(STREAM_RECORD_BYTES + record.header_bytes + record.body_bytes);
}

void stream_on_record(struct stream *stream, uint32_t sequence, uint32_t offset)
{
    uint32_t ahead = (sequence - (uint32_t)stream->incoming.in_next) & 0x3fff;
    struct stream_record_in *in =
        &stream->incoming.in[(stream->incoming.in_next + ahead) % STREAM_RECORDS_MAX];
    if (STREAM_MUTANT == STREAM_MUTANT_ANY_ORDER) {
        record_handle(stream, offset);
        stream->incoming.in_next++;
        return;
    }
    if (ahead >= STREAM_RECORDS_MAX || in->arrived) {
        stream->duplicate_count++;
        return;
    }
    *in = (struct stream_record_in){.offset = offset, .arrived = true};
    while (stream->incoming.in[stream->incoming.in_next % STREAM_RECORDS_MAX].arrived &&
           stream->failure == WEFT_OK && stream->phase == STREAM_RUNNING) {
        in = &stream->incoming.in[stream->incoming.in_next % STREAM_RECORDS_MAX];
        in->arrived = false;
        record_handle(stream, in->offset);
        stream->incoming.in_next++;
    }
}

void stream_eager_taken(struct stream *stream, uint32_t header_bytes, uint64_t payload_bytes)
{
    stream->incoming.taken += eager_charge(header_bytes, payload_bytes);
    stream->incoming.payload_untaken -= payload_bytes;
}
