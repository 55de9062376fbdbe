/* tcp_wire.h - encoding of frames on the socket of a pair. Pure; little endian.
 *
 *   parameters (bootstrap.h)   magic u32 | version u32 | budget u32 | 0 u32
 *   frame   kind u8 | 0 u8 | header_bytes u16 | taken u32 | number u64 | bytes u64, then header, payload
 *
 *   MESSAGE   number: tag; bytes: payload bytes, which follow the header
 *   ANNOUNCE  number: tag; bytes: payload bytes, which wait for a GRANT. Announcements of a
 *             connection are numbered from 0
 *   GRANT     number: of the announcement: send it
 *   REFUSE    number: of the announcement, whose payload is not needed: the send is complete
 *   DATA      number: of the announcement; bytes: the next payload bytes, which follow
 *   TAKEN     only the field `taken`
 *   LEAVE     the endpoint closes; the last frame
 *
 * taken: bytes returned to the sender's budget. A MESSAGE costs tcp_cost() of the budget that the receiver
 * announced for unconsumed messages. A message beyond the rest of the budget is announced. */
#ifndef WEFT_TRANSPORT_TCP_WIRE_H
#define WEFT_TRANSPORT_TCP_WIRE_H

#include "transport/bootstrap/address_blob.h"
#include "transport/transport.h"

enum {
    TCP_FRAME_BYTES = 24,
    TCP_PARAMETER_BYTES = 16,
    TCP_BUDGET_MIN = 64 << 10, /* budget before the peer's parameters arrive */
    TCP_BUDGET_MAX = 1 << 30,
    TCP_RECORD_BYTES = 512, /* cost of a stored message besides its payload */
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
/* False: not a frame of this protocol. */
bool tcp_frame_decode(const uint8_t data[TCP_FRAME_BYTES], struct tcp_frame *frame_out);

void tcp_parameters_encode(uint32_t budget, uint8_t out[TCP_PARAMETER_BYTES]);
enum weft_status tcp_parameters_decode(const void *data, size_t bytes, uint32_t *budget_out);

static const struct address_blob_kind tcp_address_blob_kind = {
    0x43545257 /* "WRTC" */, 1}; /* in the address blob */

#endif
