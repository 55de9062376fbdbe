/* stream_wire.h - encoding of a verbs stream: immediates, records in the ring, control messages on the
 * link. Pure, so that a fuzzer can link it alone. Little endian.
 *
 *   immediate   kind (2 bits) |
 *                 RECORD  sequence (14) | offset / 64 (16)     a record was written into the ring
 *                 DATA    grant (10) | chunks (20)             so many chunks of that grant were written
 *                 FLUSH   0                                    earlier puts are visible
 *                 CREDIT  which (1) | value (29)        0: records consumed; 1: eager bytes consumed / 64
 *   record      kind u8 | 0 u8 | header_bytes u16 | body_bytes u32 | sequence u64 | consumed u64 |
 *               taken u64 | tag u64 | id u64 | payload_bytes u64 | header (header_bytes) | body (body_bytes)
 *               MESSAGE: body is the payload. ANNOUNCE: no body. DISCARD: only id.
 *               GRANT: body is address u64 | grant u32 | lanes u32 | key u32 x lanes
 *   control     kind u8 | lane u8 | bytes u16 | epoch u32 | value u64 | HELLO, queue pair address or text
 *               HELLO: version u32 | lanes u32 | ring_bytes u32 | chunk_bytes u32 | eager_budget u32 |
 *                      0 u32 | ring u64 | key u32 x lanes */
#ifndef WEFT_TRANSPORT_VERBS_STREAM_STREAM_WIRE_H
#define WEFT_TRANSPORT_VERBS_STREAM_STREAM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

enum {
    STREAM_LANES_MAX = 8,
    STREAM_VERSION = 1,
    STREAM_ALIGN = 64,            /* alignment of records */
    STREAM_RING_LEAST = 4096,     /* bytes of the smallest ring */
    STREAM_RECORD_BYTES = 56,     /* fixed part */
    STREAM_BLOB_BYTES_MAX = 128,  /* address of a queue pair */
    STREAM_CONTROL_FIXED_BYTES = 16,
    STREAM_CONTROL_BYTES_MAX = STREAM_CONTROL_FIXED_BYTES + 160,
    STREAM_GRANTS_MAX = 1024,
    STREAM_NO_GRANT = 0xffffffff,
    STREAM_CHUNKS_PER_IMM_MAX = (1 << 20) - 1,
};

enum stream_imm_kind {
    STREAM_IMM_RECORD = 0,
    STREAM_IMM_DATA = 1,
    STREAM_IMM_FLUSH = 2,
    STREAM_IMM_CREDIT = 3
};

static inline uint32_t stream_imm_record(uint64_t sequence, uint32_t offset)
{
    return (uint32_t)STREAM_IMM_RECORD << 30 | (uint32_t)(sequence & 0x3fff) << 16 | offset / STREAM_ALIGN;
}
static inline uint32_t stream_imm_data(uint32_t grant, uint32_t chunks)
{
    return (uint32_t)STREAM_IMM_DATA << 30 | grant << 20 | chunks;
}
static inline uint32_t stream_imm_flush(void) { return (uint32_t)STREAM_IMM_FLUSH << 30; }
static inline uint32_t stream_imm_credit(bool taken, uint64_t value)
{
    return (uint32_t)STREAM_IMM_CREDIT << 30 | (uint32_t)taken << 29 | (uint32_t)(value & 0x1fffffff);
}

enum stream_record_kind {
    STREAM_RECORD_MESSAGE = 1,
    STREAM_RECORD_ANNOUNCE,
    STREAM_RECORD_GRANT,
    STREAM_RECORD_DISCARD
};

struct stream_record {
    enum stream_record_kind kind;
    uint32_t header_bytes, body_bytes;
    uint64_t sequence, consumed, taken, tag, id, payload_bytes;
    const uint8_t *header, *body; /* point into the decoded bytes */
};

/* Writes STREAM_RECORD_BYTES + header_bytes + body_bytes; the caller fills a NULL body. */
void stream_record_encode(const struct stream_record *record, uint8_t *out);
/* WEFT_OK or WEFT_ERR_MALFORMED; `bytes`: available behind `data`. */
enum weft_status stream_record_decode(const uint8_t *data, size_t bytes, struct stream_record *record_out);

struct stream_grant {
    uint64_t address;
    uint32_t grant, lane_count;
    uint32_t keys[STREAM_LANES_MAX];
};
uint32_t stream_grant_encode(const struct stream_grant *grant, uint8_t *out); /* bytes written */
enum weft_status stream_grant_decode(const uint8_t *data, size_t bytes, struct stream_grant *grant_out);

enum stream_control_kind {
    STREAM_CONTROL_HELLO = 1,
    STREAM_CONTROL_OFFER,     /* the local queue pair of this lane and epoch */
    STREAM_CONTROL_READY,     /* the queue pair receives */
    STREAM_CONTROL_BROKEN,    /* it is fenced; value: immediates received on it */
    STREAM_CONTROL_LEAVE,     /* value: number of records sent; nothing follows */
    STREAM_CONTROL_LEAVE_REPLY, /* the reply */
    STREAM_CONTROL_LOST,      /* the sender gives the connection up; body: the reason as text */
};

struct stream_control {
    enum stream_control_kind kind;
    uint32_t lane, epoch, bytes;
    uint64_t value;
    const uint8_t *body; /* points into the decoded bytes */
};

struct stream_hello {
    uint32_t version, lane_count, ring_bytes, chunk_bytes, eager_budget;
    uint64_t ring;
    uint32_t keys[STREAM_LANES_MAX];
};

/* bytes written */
uint32_t stream_control_encode(const struct stream_control *control, uint8_t out[STREAM_CONTROL_BYTES_MAX]);
enum weft_status stream_control_decode(const void *data, size_t bytes, struct stream_control *control_out);
uint32_t stream_hello_encode(const struct stream_hello *hello, uint8_t *out);
enum weft_status stream_hello_decode(const uint8_t *data, size_t bytes, struct stream_hello *hello_out);

#endif
