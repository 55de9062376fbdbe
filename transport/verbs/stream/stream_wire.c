/* stream_wire.c - see stream_wire.h. Decoding checks every length. */
#include "transport/verbs/stream/stream_wire.h"

#include <string.h>

void stream_record_encode(const struct stream_record *record, uint8_t *out)
{
    out[0] = (uint8_t)record->kind;
    out[1] = 0;
    put_le16(out + 2, record->header_bytes);
    put_le32(out + 4, record->body_bytes);
    put_le64(out + 8, record->sequence);
    put_le64(out + 16, record->consumed);
    put_le64(out + 24, record->taken);
    put_le64(out + 32, record->tag);
    put_le64(out + 40, record->id);
    put_le64(out + 48, record->payload_bytes);
    if (record->header_bytes > 0) memcpy(out + STREAM_RECORD_BYTES, record->header, record->header_bytes);
    if (record->body_bytes > 0 && record->body)
        memcpy(out + STREAM_RECORD_BYTES + record->header_bytes, record->body, record->body_bytes);
}

enum weft_status stream_record_decode(const uint8_t *data, size_t bytes, struct stream_record *record_out)
{
    if (bytes < STREAM_RECORD_BYTES) return WEFT_ERR_MALFORMED;
    struct stream_record record = {
        .kind = data[0],
        .header_bytes = get_le16(data + 2),
        .body_bytes = get_le32(data + 4),
        .sequence = get_le64(data + 8),
        .consumed = get_le64(data + 16),
        .taken = get_le64(data + 24),
        .tag = get_le64(data + 32),
        .id = get_le64(data + 40),
        .payload_bytes = get_le64(data + 48),
    };
    if (data[1] != 0 || record.kind < STREAM_RECORD_MESSAGE || record.kind > STREAM_RECORD_DISCARD)
        return WEFT_ERR_MALFORMED;
    if (record.header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX) return WEFT_ERR_MALFORMED;
    size_t rest = bytes - STREAM_RECORD_BYTES;
    if (record.header_bytes > rest || record.body_bytes > rest - record.header_bytes)
        return WEFT_ERR_MALFORMED;
    if (record.kind == STREAM_RECORD_MESSAGE && record.payload_bytes != record.body_bytes)
        return WEFT_ERR_MALFORMED;
    if ((record.kind == STREAM_RECORD_ANNOUNCE || record.kind == STREAM_RECORD_DISCARD) &&
        record.body_bytes != 0)
        return WEFT_ERR_MALFORMED;
    record.header = data + STREAM_RECORD_BYTES;
    record.body = record.header + record.header_bytes;
    *record_out = record;
    return WEFT_OK;
}

uint32_t stream_grant_encode(const struct stream_grant *grant, uint8_t *out)
{
    put_le64(out, grant->address);
    put_le32(out + 8, grant->grant);
    put_le32(out + 12, grant->lane_count);
    for (uint32_t i = 0; i < grant->lane_count; i++) put_le32(out + 16 + 4 * i, grant->keys[i]);
    return 16 + 4 * grant->lane_count;
}

enum weft_status stream_grant_decode(const uint8_t *data, size_t bytes, struct stream_grant *grant_out)
{
    if (bytes < 16) return WEFT_ERR_MALFORMED;
    struct stream_grant grant = {
        .address = get_le64(data), .grant = get_le32(data + 8), .lane_count = get_le32(data + 12)};
    if (grant.grant >= STREAM_GRANTS_MAX || grant.lane_count > STREAM_LANES_MAX ||
        bytes != 16 + 4 * (size_t)grant.lane_count)
        return WEFT_ERR_MALFORMED;
    for (uint32_t i = 0; i < grant.lane_count; i++) grant.keys[i] = get_le32(data + 16 + 4 * i);
    *grant_out = grant;
    return WEFT_OK;
}

uint32_t stream_control_encode(const struct stream_control *control, uint8_t out[STREAM_CONTROL_BYTES_MAX])
{
    out[0] = (uint8_t)control->kind;
    out[1] = (uint8_t)control->lane;
    put_le16(out + 2, control->bytes);
    put_le32(out + 4, control->epoch);
    put_le64(out + 8, control->value);
    if (control->bytes > 0) memcpy(out + STREAM_CONTROL_FIXED_BYTES, control->body, control->bytes);
    return STREAM_CONTROL_FIXED_BYTES + control->bytes;
}

enum weft_status stream_control_decode(const void *data, size_t bytes, struct stream_control *control_out)
{
    const uint8_t *at = data;
    if (bytes < STREAM_CONTROL_FIXED_BYTES || bytes > STREAM_CONTROL_BYTES_MAX) return WEFT_ERR_MALFORMED;
    struct stream_control control = {
        .kind = at[0],
        .lane = at[1],
        .bytes = get_le16(at + 2),
        .epoch = get_le32(at + 4),
        .value = get_le64(at + 8),
        .body = at + STREAM_CONTROL_FIXED_BYTES,
    };
    if (control.kind < STREAM_CONTROL_HELLO || control.kind > STREAM_CONTROL_LOST) return WEFT_ERR_MALFORMED;
    if (control.lane >= STREAM_LANES_MAX || control.bytes != bytes - STREAM_CONTROL_FIXED_BYTES)
        return WEFT_ERR_MALFORMED;
    *control_out = control;
    return WEFT_OK;
}

uint32_t stream_hello_encode(const struct stream_hello *hello, uint8_t *out)
{
    put_le32(out, hello->version);
    put_le32(out + 4, hello->lane_count);
    put_le32(out + 8, hello->ring_bytes);
    put_le32(out + 12, hello->chunk_bytes);
    put_le32(out + 16, hello->eager_budget);
    put_le32(out + 20, 0);
    put_le64(out + 24, hello->ring);
    for (uint32_t i = 0; i < hello->lane_count; i++) put_le32(out + 32 + 4 * i, hello->keys[i]);
    return 32 + 4 * hello->lane_count;
}

enum weft_status stream_hello_decode(const uint8_t *data, size_t bytes, struct stream_hello *hello_out)
{
    if (bytes < 32) return WEFT_ERR_MALFORMED;
    struct stream_hello hello = {
        .version = get_le32(data),
        .lane_count = get_le32(data + 4),
        .ring_bytes = get_le32(data + 8),
        .chunk_bytes = get_le32(data + 12),
        .eager_budget = get_le32(data + 16),
        .ring = get_le64(data + 24),
    };
    if (hello.version != STREAM_VERSION) return WEFT_ERR_VERSION;
    if (hello.lane_count == 0 || hello.lane_count > STREAM_LANES_MAX ||
        bytes != 32 + 4 * (size_t)hello.lane_count)
        return WEFT_ERR_MALFORMED;
    if (hello.ring_bytes < STREAM_RING_LEAST || hello.ring_bytes > 4u << 20 ||
        hello.ring_bytes % STREAM_ALIGN != 0)
        return WEFT_ERR_MALFORMED;
    if (hello.chunk_bytes < 64 || hello.chunk_bytes > 1u << 30) return WEFT_ERR_MALFORMED;
    for (uint32_t i = 0; i < hello.lane_count; i++) hello.keys[i] = get_le32(data + 32 + 4 * i);
    *hello_out = hello;
    return WEFT_OK;
}
