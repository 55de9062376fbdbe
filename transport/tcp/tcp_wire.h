/* tcp_wire.h - what two endpoints say to each other over their socket, as bytes. Pure.
 *
 *   parameters (with the proofs, meet.h)   magic u32 | version u32 | budget u32 | 0 u32
 *   frame   kind u8 | 0 u8 | header_bytes u16 | taken u32 | number u64 | bytes u64        then header and payload, if any
 *
 *   MESSAGE   number: tag, bytes: of the payload, which follows the header at once
 *   ANNOUNCE  number: tag, bytes: of the payload, which waits for a GRANT; the n-th ANNOUNCE of a connection has the number n, from 0
 *   GRANT     number: of the announcement: send it          REFUSE  nobody wants it: its sender is done
 *   DATA      number: of the announcement, bytes: the next so many of its payload, which follow
 *   TAKEN     nothing but `taken`                           LEAVE   the endpoint closes; nothing follows
 *
 * taken: so much of the budget is free again. A MESSAGE costs tcp_cost() of what the other side has said it
 * keeps for messages that nobody
 * has taken yet; what would cost more than is left is announced.                                            all little endian */
#ifndef WEFT_TRANSPORT_TCP_WIRE_H
#define WEFT_TRANSPORT_TCP_WIRE_H

#include "transport/bootstrap/address_blob.h"
#include "transport/transport.h"

enum {
    TCP_FRAME_BYTES = 24,
    TCP_PARAMETER_BYTES = 16,
    TCP_BUDGET_MIN = 64 << 10, /* which a sender may use before it has heard of the other's */
    TCP_BUDGET_MAX = 1 << 30,
    TCP_RECORD_BYTES = 512, /* what keeping a message costs besides its payload */
};
#define TCP_PAYLOAD_BYTES_MAX ((uint64_t)1 << 48)

enum tcp_kind {
    TCP_MESSAGE = 1,
    TCP_ANNOUNCE,
    TCP_GRANT,
    TCP_REFUSE,
    TCP_DATA,
    TCP_TAKEN,
    TCP_LEAVE,
    TCP_KINDS
};

struct tcp_frame {
    enum tcp_kind kind;
    uint32_t header_bytes, taken;
    uint64_t number, bytes;
};

static inline uint64_t tcp_cost(uint64_t payload_bytes) { return payload_bytes + TCP_RECORD_BYTES; }

void tcp_frame_encode(const struct tcp_frame *frame, uint8_t out[TCP_FRAME_BYTES]);
/* false: no frame of this protocol. */
bool tcp_frame_decode(const uint8_t data[TCP_FRAME_BYTES], struct tcp_frame *frame_out);

void tcp_parameters_encode(uint32_t budget, uint8_t out[TCP_PARAMETER_BYTES]);
enum weft_status tcp_parameters_decode(const void *data, size_t bytes, uint32_t *budget_out);

static const struct address_blob_kind tcp_address_blob_kind = {
    0x43545257 /* "WRTC" */, 1}; /* of the address that others connect with */

#endif
