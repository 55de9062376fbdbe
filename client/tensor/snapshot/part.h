/* part.h - a worker's part of a snapshot as bytes. Pure: no session.
 *
 *     head (40 bytes), blob, records of {name length u32, 0 u32, bytes u64, name, data}, xxh3 of all before
 *
 * Blob, names and data are padded with zeros to 8 bytes. Numbers are little-endian. The bytes are UNTRUSTED.
 * */
#ifndef WEFT_CLIENT_TENSOR_SNAPSHOT_PART_H
#define WEFT_CLIENT_TENSOR_SNAPSHOT_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define CLIENT_PART_HEAD_BYTES 40u
#define CLIENT_PART_DIGEST_BYTES 8u
#define CLIENT_PART_BLOB_BYTES_MAX ((uint64_t)4 << 30) /* stored within the 600 s of a snapshot */

struct client_part_head {
    uint64_t step, blob_bytes;
    uint32_t ranks; /* of the job that made it */
    uint32_t records;
};
struct client_part_record {
    const char *name; /* (name_bytes,) without a NUL */
    uint32_t name_bytes;
    const uint8_t *data;
    uint64_t bytes;
};

/* Bytes of a record, and of a whole part whose records have `record_bytes` in all. */
uint64_t client_part_record_bytes(uint32_t name_bytes, uint64_t bytes);
uint64_t client_part_bytes(uint64_t blob_bytes, uint64_t record_bytes);
/* Writes head and blob; returns where the first record begins. blob may be NULL if blob_bytes is 0. */
uint8_t *client_part_begin(uint8_t *out, const struct client_part_head *head, const void *blob);
/* Writes a record but its data; *data_out: destination of the data (bytes,). Returns the end of the
 * record. */
uint8_t *client_part_add(uint8_t *at, const char *name, uint64_t bytes, uint8_t **data_out);
/* Writes the hash behind the last record. */
void client_part_end(uint8_t *out, uint64_t part_bytes);

/* Reads the head of a part of `total` bytes, of which the first `bytes` are there. false: it is no part. */
bool client_part_read_head(const uint8_t *data, uint64_t bytes, uint64_t total,
                           struct client_part_head *head_out);
/* Checks all records and the hash. */
bool client_part_is_whole(const uint8_t *data, uint64_t bytes);
/* The record of this name in a whole part; false: none. */
bool client_part_find(const uint8_t *data, uint64_t bytes, const char *name,
                      struct client_part_record *record_out);

#endif
