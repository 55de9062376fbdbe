/* tcp_wire.c - see tcp_wire.h. */
#include "transport/tcp/tcp_wire.h"

#include <string.h>

enum { PARAMETER_MAGIC = 0x50545257 /* "WRTP" */, VERSION = 1 };

void tcp_frame_encode(const struct tcp_frame *frame, uint8_t out[TCP_FRAME_BYTES])
{
    put_le32(out, (uint32_t)frame->kind | frame->header_bytes << 16);
    put_le32(out + 4, frame->taken);
    put_le64(out + 8, frame->number);
    put_le64(out + 16, frame->bytes);
}

bool tcp_frame_decode(const uint8_t data[TCP_FRAME_BYTES], struct tcp_frame *frame_out)
{
    uint32_t first = get_le32(data), kind = first & 0xffu;
    *frame_out = (struct tcp_frame){.kind = (enum tcp_kind)kind,
                                    .header_bytes = first >> 16,
                                    .taken = get_le32(data + 4),
                                    .number = get_le64(data + 8),
                                    .bytes = get_le64(data + 16)};
    bool message = kind == TCP_MESSAGE || kind == TCP_ANNOUNCE;
    if (kind == 0 || kind >= TCP_KINDS || (first & 0xff00u) != 0) return false;
    if (frame_out->header_bytes > (message ? WEFT_TRANSPORT_HEADER_BYTES_MAX : 0)) return false;
    if (!message && kind != TCP_DATA && frame_out->bytes != 0) return false;
    return frame_out->bytes <= TCP_PAYLOAD_BYTES_MAX;
}

void tcp_parameters_encode(uint32_t budget, uint8_t out[TCP_PARAMETER_BYTES])
{
    put_le32(out, PARAMETER_MAGIC);
    put_le32(out + 4, VERSION);
    put_le32(out + 8, budget);
    put_le32(out + 12, 0);
}

enum weft_status tcp_parameters_decode(const void *data, size_t bytes, uint32_t *budget_out)
{
    const uint8_t *at = data;
    if (bytes != TCP_PARAMETER_BYTES || get_le32(at) != PARAMETER_MAGIC) return WEFT_ERR_MALFORMED;
    if (get_le32(at + 4) != VERSION) return WEFT_ERR_VERSION;
    *budget_out = get_le32(at + 8);
    if (*budget_out < TCP_BUDGET_MIN || *budget_out > TCP_BUDGET_MAX || get_le32(at + 12) != 0)
        return WEFT_ERR_MALFORMED;
    return WEFT_OK;
}
