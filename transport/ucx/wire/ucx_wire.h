/* ucx_wire.h - encoding of this backend's data: the header of each active message, control entries, window
 * keys and address blobs. Uses no UCX, so a fuzzer can link it alone. Little endian.
 *
 *   message   magic u32 | version u8 | kind u8 | header_bytes u16 | sender u32 | receiver u32 | token u64 |
 *             tag u64 | sequence u64 | payload_bytes u64 | header (header_bytes)
 *   entry     kind u8 | 0 u8 | header_bytes u16 | status i32 | id u64 | a u64 | b u64 | c u64 | header
 *             (header_bytes)
 *   record    tag u64 | sequence u64 | payload bytes u32 | header_bytes u16 | 0 u16 | header | payload
 *   put       window u64 | secret u64 | put id u64 | all bytes u64 | notify u8, 0 (7) | tag u64 | sequence
 *             u64, then the header of the notification: inside the header of a PUT message
 *   key       magic u32 | version u32 | owner u32 | rights u32 | window u64 | secret u64 | bytes u64 |
 *             address u64
 *   address   magic u32 | version u32 | job's mark u32 | id u32 | bytes u32 | 0 u32 | challenge (16) |
 *             process | UCX address (bytes) | proof (16) over all before it
 *   process   pid u64 | start time u64 | pid namespace u64 | host (16 bytes)
 *
 * The three numbers of a message by kind:
 *   kind      tag          sequence         payload_bytes      payload
 *   MESSAGE   tag          of the message   of the message     the payload
 *   HELLO     eager bytes  -                1                  one byte, by rendezvous
 *   BYE       -            of the message   0
 *   DATA      landing id   offset           of this fragment   the fragment
 *   PUT       window       offset           of this fragment   the fragment
 *   BATCH     -            -                of the entries     control entries
 *   GATHER    -            -                of the records     records: messages
 *
 * Token, mark, challenge and proof: ucx_seal.h. An address reveals neither nonce nor secret, because
 * addresses are printed and stored. */
#ifndef WEFT_TRANSPORT_UCX_WIRE_UCX_WIRE_H
#define WEFT_TRANSPORT_UCX_WIRE_UCX_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"
#include "transport/ucx/wire/ucx_seal.h"

enum {
    UCX_WIRE_MAGIC = 0x324d4157,         /* "WAM2" */
    UCX_WIRE_ADDRESS_MAGIC = 0x58435557, /* "WUCX" */
    UCX_WIRE_KEY_MAGIC = 0x594b5557,     /* "WUKY" */
    UCX_WIRE_VERSION = 4,
    UCX_WIRE_FIXED_BYTES = 48,
    UCX_WIRE_ENTRY_BYTES = 40,
    UCX_WIRE_RECORD_BYTES = 24,
    UCX_WIRE_PUT_BYTES = 56,
    UCX_WIRE_INNER_BYTES_MAX = UCX_WIRE_PUT_BYTES + WEFT_TRANSPORT_HEADER_BYTES_MAX,
    UCX_WIRE_HEADER_BYTES_MAX = UCX_WIRE_FIXED_BYTES + UCX_WIRE_INNER_BYTES_MAX,
    UCX_WIRE_KEY_BYTES = 48,
    UCX_WIRE_PROCESS_BYTES = 40,
    /* in front of UCX's address */
    UCX_WIRE_ADDRESS_BYTES = 24 + UCX_SEAL_CHALLENGE_BYTES + UCX_WIRE_PROCESS_BYTES,
    UCX_WIRE_AROUND_BYTES = UCX_WIRE_ADDRESS_BYTES + UCX_SEAL_PROOF_BYTES,
};

enum ucx_wire_kind {
    UCX_WIRE_MESSAGE = 1,
    UCX_WIRE_HELLO = 2,   /* first message of each side: its eager credit for the peer */
    UCX_WIRE_BYE = 3,     /* last in sequence: the sender closes and accepts nothing more */
    UCX_WIRE_BYE_REPLY = 4, /* the reply: nothing follows from this side */
    UCX_WIRE_DATA = 5,    /* fragment of a payload with a named buffer */
    UCX_WIRE_PUT = 6,     /* fragment of a put */
    UCX_WIRE_BATCH = 7,   /* control entries */
    UCX_WIRE_GATHER = 8,  /* small messages */
    UCX_WIRE_KIND_LAST = UCX_WIRE_GATHER,
};

struct ucx_wire_header {
    enum ucx_wire_kind kind;
    uint32_t header_bytes;
    uint32_t sender, receiver;
    uint64_t token, tag;
    uint64_t sequence;      /* of messages from sender to receiver, from 0 */
    uint64_t payload_bytes;
    const uint8_t *header;  /* points into the decoded bytes */
};

enum ucx_wire_control {
    UCX_CONTROL_ANNOUNCE = 1, /* id: of the send; a: tag, b: sequence, c: payload bytes; the message's
                               * header */
    UCX_CONTROL_GRANT = 2,    /* id: of the send; a: landing id */
    UCX_CONTROL_TAKEN = 3,    /* id: of the send; its payload is not needed */
    UCX_CONTROL_ABORT = 4,    /* id: landing id; status: why no more data follows */
    UCX_CONTROL_CREDIT = 5,   /* a: bytes consumed by the receiver */
    UCX_CONTROL_PUT_DONE = 6, /* id: put id; status */
    UCX_CONTROL_GET = 7,      /* id: landing id; a: window, b: offset, c: bytes; header: secret u64 */
    UCX_CONTROL_KEY_REVOKE = 8,     /* id: window; the owner asks for the release of the key */
    UCX_CONTROL_KEY_RELEASED = 9,   /* id: window; no access is in flight or will follow */
    UCX_CONTROL_KEY_REQUEST = 10,    /* id: window; a: secret; requests UCX's key. No answer: no key */
    UCX_CONTROL_KEY = 11,   /* id: window; header: UCX's key */
    /* a: tag; header of a notification; the bytes of its put are in the owner's memory */
    UCX_CONTROL_NOTIFY = 12,
    UCX_CONTROL_LAST = UCX_CONTROL_NOTIFY,
};

struct ucx_wire_entry {
    enum ucx_wire_control control;
    int32_t status;
    uint32_t header_bytes;
    uint64_t id, a, b, c;
    const uint8_t *header;
};

struct ucx_wire_record {
    uint64_t tag, sequence;
    uint32_t payload_bytes, header_bytes;
    const void *header, *payload;
};

struct ucx_wire_put {
    uint64_t window, secret, id, bytes;
    bool notify;
    uint64_t tag, sequence; /* of the notification */
};

struct ucx_wire_key {
    uint32_t owner, rights;
    uint64_t window, secret, bytes;
    uint64_t address; /* for UCX remote access; 0: by messages only */
};

/* Identity of a process, for peers on its host. */
struct ucx_wire_process {
    uint64_t pid;       /* in its pid namespace; 0: unknown */
    uint64_t start;     /* clock ticks after boot */
    uint64_t namespace; /* inode of its pid namespace */
    uint8_t host[16];   /* boot id of the host */
};

/* Writes UCX_WIRE_FIXED_BYTES + header_bytes. */
void ucx_wire_encode(const struct ucx_wire_header *header, uint8_t out[UCX_WIRE_HEADER_BYTES_MAX]);
/* WEFT_OK, WEFT_ERR_MALFORMED or WEFT_ERR_VERSION; *header_out only on WEFT_OK. */
enum weft_status ucx_wire_decode(const void *data, size_t bytes, struct ucx_wire_header *header_out);

/* Writes UCX_WIRE_ENTRY_BYTES + header_bytes. */
void ucx_wire_entry_encode(const struct ucx_wire_entry *entry, uint8_t *out);
/* Decodes the first entry; returns its length, or 0: malformed. */
size_t ucx_wire_entry_decode(const uint8_t *data, size_t bytes, struct ucx_wire_entry *entry_out);

/* Writes UCX_WIRE_RECORD_BYTES, the header and the payload; returns the length. */
size_t ucx_wire_record_encode(const struct ucx_wire_record *record, uint8_t *out);
/* Decodes the first record; returns its length, or 0: malformed. */
size_t ucx_wire_record_decode(const uint8_t *data, size_t bytes, struct ucx_wire_record *record_out);

void ucx_wire_put_encode(const struct ucx_wire_put *put, uint8_t out[UCX_WIRE_PUT_BYTES]);
enum weft_status ucx_wire_put_decode(const uint8_t *data, size_t bytes, struct ucx_wire_put *put_out);

void ucx_wire_key_encode(const struct ucx_wire_key *key, uint8_t out[UCX_WIRE_KEY_BYTES]);
enum weft_status ucx_wire_key_decode(const uint8_t *data, size_t bytes, struct ucx_wire_key *key_out);

uint64_t ucx_wire_u64(const uint8_t *at);
void ucx_wire_put_u64(uint8_t *at, uint64_t value);

struct ucx_wire_address {
    uint32_t mark, id;
    const uint8_t *challenge; /* (UCX_SEAL_CHALLENGE_BYTES,) */
    struct ucx_wire_process process;
    const void *packed;       /* UCX's */
    uint32_t packed_bytes;
    const uint8_t *proof;     /* decoded: over all before it; verify it before using `packed` */
};

/* Writes UCX_WIRE_AROUND_BYTES + packed_bytes, with a zero proof. */
void ucx_wire_address_encode(const struct ucx_wire_address *address, uint8_t *out);
/* WEFT_OK, WEFT_ERR_MALFORMED or WEFT_ERR_VERSION; decoded pointers point into `blob`. */
enum weft_status ucx_wire_address_decode(const void *blob, size_t bytes,
                                         struct ucx_wire_address *address_out);

#endif
