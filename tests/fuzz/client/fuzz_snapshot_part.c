/* fuzz_snapshot_part.c - any bytes are a worker's part of a snapshot, whose blob and records can be read, or
 * are refused. A second run corrects the hash, so that inputs reach the records behind it. */
#include <stdlib.h>
#include <string.h>

#include "client/tensor/snapshot/part.h"
#include "proto/proto.h"
#include "tests/fuzz/fuzz.h"

static volatile uint8_t sink; /* so that every byte is read */

static void read_bytes(const uint8_t *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) sink = data[i];
}

static void read_part(const uint8_t *data, uint64_t bytes)
{
    struct client_part_head head;
    struct client_part_record record;
    /* a prefix of a longer part: the blob is read when that much is there */
    if (client_part_read_head(data, bytes, bytes + 100, &head) &&
        bytes >= CLIENT_PART_HEAD_BYTES + head.blob_bytes)
        read_bytes(data + CLIENT_PART_HEAD_BYTES, head.blob_bytes);
    if (!client_part_is_whole(data, bytes)) return;
    static const char *const names[] = {"layer0", "layer1", "none"};
    for (size_t i = 0; i < 3; i++)
        if (client_part_find(data, bytes, names[i], &record)) read_bytes(record.data, record.bytes);
    if (!client_part_read_head(data, bytes, bytes, &head)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read_part(data, bytes);
    if (bytes < CLIENT_PART_HEAD_BYTES + CLIENT_PART_DIGEST_BYTES) return 0;
    uint8_t *copy = malloc(bytes);
    if (!copy) abort();
    memcpy(copy, data, bytes);
    client_part_end(copy, bytes);
    read_part(copy, bytes);
    free(copy);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    const struct client_part_head head = {.step = number,
                                          .blob_bytes = number % 20,
                                          .ranks = 1 + (uint32_t)number % 3,
                                          .records = (uint32_t)number % 3};
    uint64_t record_bytes = 0;
    uint8_t *data;
    for (uint32_t i = 0; i < head.records; i++) record_bytes += client_part_record_bytes(6, number % 50 + i);
    const uint64_t bytes = client_part_bytes(head.blob_bytes, record_bytes);
    if (bytes > capacity) return 0;
    uint8_t *at = client_part_begin(out, &head, "01234567890123456789");
    for (uint32_t i = 0; i < head.records; i++) {
        at = client_part_add(at, i ? "layer1" : "layer0", number % 50 + i, &data);
        memset(data, (int)number, number % 50 + i);
    }
    if (at + CLIENT_PART_DIGEST_BYTES != out + bytes) abort();
    client_part_end(out, bytes);
    if (!client_part_is_whole(out, bytes)) abort(); /* a written part can be read */
    return bytes;
}
