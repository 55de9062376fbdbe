/* ucx_wire.h - the bytes this backend puts on the wire itself: the header in front of each active message,
 * and the address blob. No UCX in here, so that a fuzzer can have it alone. All little endian.
 *
 *   message   magic u32 | version u8 | kind u8 | header_bytes u16 | sender u32 | receiver u32 | nonce u64 |
 *             tag u64 | sequence u64 | payload_bytes u64 | header (header_bytes)
 *   address   magic u32 | version u32 | nonce hash u32 | id u32 | bytes u32 | checksum u32 | UCX's address (bytes)
 *
 * The address carries only a hash of the nonce, because blobs are printed and stored; its checksum is
 * against accidents: UCX trusts an address it unpacks. */
#ifndef WEFT_TRANSPORT_UCX_WIRE_H
#define WEFT_TRANSPORT_UCX_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

enum {
    UCX_WIRE_MAGIC = 0x314d4157,         /* "WAM1" */
    UCX_WIRE_ADDRESS_MAGIC = 0x58435557, /* "WUCX" */
    UCX_WIRE_VERSION = 1,
    UCX_WIRE_FIXED_BYTES = 48,
    UCX_WIRE_HEADER_BYTES_MAX = UCX_WIRE_FIXED_BYTES + WEFT_TRANSPORT_HEADER_BYTES_MAX,
    UCX_WIRE_ADDRESS_BYTES = 24,
};

enum ucx_wire_kind {
    UCX_WIRE_MESSAGE = 1,
    UCX_WIRE_HELLO = 2,  /* sent once by each side of a connection; one byte of payload, by rendezvous */
    UCX_WIRE_BYE = 3,    /* the last in sequence: the sender closes and will take no more */
    UCX_WIRE_BYE_TOO = 4, /* the answer: nothing will follow from here either */
};

struct ucx_wire_header {
    enum ucx_wire_kind kind;
    uint32_t header_bytes;
    uint32_t sender, receiver;
    uint64_t nonce, tag;
    uint64_t sequence;      /* of the messages from sender to receiver, from 0 */
    uint64_t payload_bytes;
    const uint8_t *header;  /* inside the decoded bytes */
};

/* Writes UCX_WIRE_FIXED_BYTES + header_bytes. */
void ucx_wire_encode(const struct ucx_wire_header *header, uint8_t out[UCX_WIRE_HEADER_BYTES_MAX]);
/* WEFT_OK, WEFT_ERR_MALFORMED or WEFT_ERR_VERSION; *header_out only on WEFT_OK. */
enum weft_status ucx_wire_decode(const void *data, size_t bytes, struct ucx_wire_header *header_out);

void ucx_wire_address_encode(uint32_t nonce_hash, uint32_t id, const void *address, uint32_t address_bytes, uint8_t *out);
/* WEFT_OK and *address_out inside `blob`; WEFT_ERR_MALFORMED, WEFT_ERR_VERSION, WEFT_ERR_AUTH (another job's nonce). */
enum weft_status ucx_wire_address_decode(const void *blob, size_t bytes, uint32_t nonce_hash, uint32_t id, const void **address_out);

#endif
