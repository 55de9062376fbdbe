/* wire_group.c - message groups: data messages of small tensors between a worker and an engine of a shard
 * that travel as one.
 *
 *     header   0 magic  4 version  6 kind  7 zero  8 job  16 number  20 count  24 payload_bytes  28 checksum
 *     payload  entries: data header (88 bytes, no text), its payload, zeros up to a multiple of 8 bytes
 *
 * docs/wire.md is the specification. An entry has the meaning of the same message outside a group. A decoded
 * group header has counts within wire_limits.h; weft_wire_group_next checks each entry. */
#include <string.h>

#include "proto/hash.h"
#include "proto/proto.h"

enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_KIND = 6,
    AT_ZERO = 7,
    AT_JOB = 8,
    AT_NUMBER = 16,
    AT_COUNT = 20,
    AT_PAYLOAD_BYTES = 24,
    AT_CHECKSUM = 28,
};
_Static_assert(AT_CHECKSUM + 4 == WEFT_WIRE_GROUP_HEADER_BYTES, "the checksum is last");

static bool is_in_limits(const struct weft_wire_group *group)
{
    if (group->kind == WEFT_WIRE_GROUP_REFUSED) return group->count == 0 && group->payload_bytes == 0;
    return (group->kind == WEFT_WIRE_GROUP_REQUESTS || group->kind == WEFT_WIRE_GROUP_RESULTS) &&
           group->count >= 1 && group->count <= WEFT_LIMIT_GROUP_ENTRIES &&
           group->payload_bytes <= WEFT_LIMIT_GROUP_BYTES &&
           group->payload_bytes >= group->count * WEFT_WIRE_HEADER_BYTES;
}

void weft_wire_group_encode(const struct weft_wire_group *group, uint8_t out[WEFT_WIRE_GROUP_HEADER_BYTES])
{
    WEFT_ASSERT(is_in_limits(group));
    put_le32(out + AT_MAGIC, WEFT_WIRE_GROUP_MAGIC);
    put_le16(out + AT_VERSION, WEFT_WIRE_GROUP_VERSION);
    out[AT_KIND] = group->kind;
    out[AT_ZERO] = 0;
    put_le64(out + AT_JOB, group->job);
    put_le32(out + AT_NUMBER, group->number);
    put_le32(out + AT_COUNT, group->count);
    put_le32(out + AT_PAYLOAD_BYTES, group->payload_bytes);
    put_le32(out + AT_CHECKSUM, wire_checksum(out, AT_CHECKSUM));
}

enum weft_status weft_wire_group_decode(const uint8_t *data, size_t bytes, struct weft_wire_group *group_out)
{
    if (bytes != WEFT_WIRE_GROUP_HEADER_BYTES) return WEFT_ERR_MALFORMED;
    if (get_le32(data + AT_MAGIC) != WEFT_WIRE_GROUP_MAGIC) return WEFT_ERR_MALFORMED;
    if (get_le16(data + AT_VERSION) != WEFT_WIRE_GROUP_VERSION) return WEFT_ERR_VERSION;
    if (get_le32(data + AT_CHECKSUM) != wire_checksum(data, AT_CHECKSUM)) return WEFT_ERR_MALFORMED;
    const struct weft_wire_group group = {
        .kind = data[AT_KIND],
        .job = get_le64(data + AT_JOB),
        .number = get_le32(data + AT_NUMBER),
        .count = get_le32(data + AT_COUNT),
        .payload_bytes = get_le32(data + AT_PAYLOAD_BYTES),
    };
    if (data[AT_ZERO] != 0 || !is_in_limits(&group)) return WEFT_ERR_MALFORMED;
    *group_out = group;
    return WEFT_OK;
}

static size_t padding(size_t bytes)
{
    return -bytes & 7u;
}

size_t weft_wire_group_entry_bytes(size_t payload_bytes)
{
    return WEFT_WIRE_HEADER_BYTES + payload_bytes + padding(payload_bytes);
}

void weft_wire_group_put(uint8_t *at, const uint8_t header[WEFT_WIRE_HEADER_BYTES], const void *payload,
                         size_t payload_bytes)
{
    memcpy(at, header, WEFT_WIRE_HEADER_BYTES);
    at += WEFT_WIRE_HEADER_BYTES;
    if (payload_bytes > 0) memcpy(at, payload, payload_bytes);
    memset(at + payload_bytes, 0, padding(payload_bytes));
}

enum weft_status weft_wire_group_next(const uint8_t *payload, size_t bytes, size_t *at,
                                      struct weft_wire_entry *entry_out)
{
    WEFT_ASSERT(*at <= bytes);
    const size_t left = bytes - *at;
    if (left < WEFT_WIRE_HEADER_BYTES) return WEFT_ERR_MALFORMED;
    /* another process may write the payload meanwhile: the copy is what is checked */
    memcpy(entry_out->header, payload + *at, WEFT_WIRE_HEADER_BYTES);
    WEFT_TRY(weft_wire_decode(entry_out->header, WEFT_WIRE_HEADER_BYTES, &entry_out->decoded));
    if (entry_out->decoded.payload_bytes > left - WEFT_WIRE_HEADER_BYTES) return WEFT_ERR_MALFORMED;
    entry_out->payload_bytes = (size_t)entry_out->decoded.payload_bytes;
    entry_out->payload = payload + *at + WEFT_WIRE_HEADER_BYTES;
    const size_t whole = weft_wire_group_entry_bytes(entry_out->payload_bytes);
    if (whole > left) return WEFT_ERR_MALFORMED;
    *at += whole;
    return WEFT_OK;
}
