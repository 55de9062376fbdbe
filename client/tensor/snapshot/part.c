/* part.c - see part.h. */
#include "client/tensor/snapshot/part.h"

#include <string.h>

#include "proto/proto.h"

#define RECORD_HEAD_BYTES 16u

static const char magic[8] = {'w', 'e', 'f', 't', '-', 'p', 'r', 't'};
enum { VERSION = 1 };

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

uint64_t client_part_record_bytes(uint32_t name_bytes, uint64_t bytes)
{
    return RECORD_HEAD_BYTES + padded(name_bytes) + padded(bytes);
}

uint64_t client_part_bytes(uint64_t blob_bytes, uint64_t record_bytes)
{
    return CLIENT_PART_HEAD_BYTES + padded(blob_bytes) + record_bytes + CLIENT_PART_DIGEST_BYTES;
}

/* ---- writing ---- */

/* Copies (bytes,) and pads. */
static uint8_t *put_padded(uint8_t *at, const void *from, uint64_t bytes)
{
    if (bytes > 0) memcpy(at, from, bytes);
    memset(at + bytes, 0, padded(bytes) - bytes);
    return at + padded(bytes);
}

uint8_t *client_part_begin(uint8_t *out, const struct client_part_head *head, const void *blob)
{
    memcpy(out, magic, sizeof magic);
    put_le32(out + 8, VERSION);
    put_le32(out + 12, head->ranks);
    put_le64(out + 16, head->step);
    put_le64(out + 24, head->blob_bytes);
    put_le32(out + 32, head->records);
    put_le32(out + 36, 0);
    return put_padded(out + CLIENT_PART_HEAD_BYTES, blob, head->blob_bytes);
}

uint8_t *client_part_add(uint8_t *at, const char *name, uint64_t bytes, uint8_t **data_out)
{
    const uint32_t name_bytes = (uint32_t)strlen(name);
    put_le32(at, name_bytes);
    put_le32(at + 4, 0);
    put_le64(at + 8, bytes);
    *data_out = put_padded(at + RECORD_HEAD_BYTES, name, name_bytes);
    memset(*data_out + bytes, 0, padded(bytes) - bytes);
    return *data_out + padded(bytes);
}

void client_part_end(uint8_t *out, uint64_t part_bytes)
{
    const uint64_t covered = part_bytes - CLIENT_PART_DIGEST_BYTES;
    put_le64(out + covered, weft_weight_hash(out, covered));
}

/* ---- reading ---- */

bool client_part_read_head(const uint8_t *data, uint64_t bytes, uint64_t total,
                           struct client_part_head *head_out)
{
    if (bytes < CLIENT_PART_HEAD_BYTES || bytes > total ||
        total < CLIENT_PART_HEAD_BYTES + CLIENT_PART_DIGEST_BYTES || memcmp(data, magic, sizeof magic) != 0 ||
        get_le32(data + 8) != VERSION || get_le32(data + 36) != 0)
        return false;
    *head_out = (struct client_part_head){.ranks = get_le32(data + 12),
                                          .step = get_le64(data + 16),
                                          .blob_bytes = get_le64(data + 24),
                                          .records = get_le32(data + 32)};
    return head_out->ranks > 0 && head_out->blob_bytes <= CLIENT_PART_BLOB_BYTES_MAX &&
           padded(head_out->blob_bytes) <= total - CLIENT_PART_HEAD_BYTES - CLIENT_PART_DIGEST_BYTES;
}

/* Reads the record at *at, and moves *at behind it. false: it does not fit before `end`. */
static bool next_record(const uint8_t *data, uint64_t *at, uint64_t end, struct client_part_record *record)
{
    uint64_t rest = end - *at;
    if (rest < RECORD_HEAD_BYTES) return false;
    rest -= RECORD_HEAD_BYTES;
    record->name_bytes = get_le32(data + *at);
    record->bytes = get_le64(data + *at + 8);
    if (get_le32(data + *at + 4) != 0 || record->name_bytes == 0 ||
        record->name_bytes > WEFT_LIMIT_NAME_BYTES || padded(record->name_bytes) > rest)
        return false;
    rest -= padded(record->name_bytes);
    if (record->bytes > rest || padded(record->bytes) > rest) return false;
    record->name = (const char *)data + *at + RECORD_HEAD_BYTES;
    record->data = data + *at + RECORD_HEAD_BYTES + padded(record->name_bytes);
    *at += client_part_record_bytes(record->name_bytes, record->bytes);
    return true;
}

bool client_part_is_whole(const uint8_t *data, uint64_t bytes)
{
    struct client_part_head head;
    struct client_part_record record;
    if (!client_part_read_head(data, bytes, bytes, &head)) return false;
    const uint64_t end = bytes - CLIENT_PART_DIGEST_BYTES;
    uint64_t at = CLIENT_PART_HEAD_BYTES + padded(head.blob_bytes);
    for (uint32_t i = 0; i < head.records; i++)
        if (!next_record(data, &at, end, &record)) return false;
    return at == end && get_le64(data + end) == weft_weight_hash(data, end);
}

bool client_part_find(const uint8_t *data, uint64_t bytes, const char *name,
                      struct client_part_record *record_out)
{
    struct client_part_head head;
    if (!client_part_read_head(data, bytes, bytes, &head)) return false;
    const size_t name_bytes = strlen(name);
    uint64_t at = CLIENT_PART_HEAD_BYTES + padded(head.blob_bytes);
    for (uint32_t i = 0; i < head.records; i++) {
        if (!next_record(data, &at, bytes - CLIENT_PART_DIGEST_BYTES, record_out)) return false;
        if (record_out->name_bytes == name_bytes && memcmp(record_out->name, name, name_bytes) == 0)
            return true;
    }
    return false;
}
