/* fuzz_transport_wire.c - the header in front of every UCX message, and the address blob: whatever is
 * accepted lies inside the input, keeps its bounds, and encodes to the same bytes again. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "transport/ucx/ucx_wire.h"

#define MUST(expression) do { if (!(expression)) abort(); } while (0)

static void message(const uint8_t *data, size_t bytes)
{
    struct ucx_wire_header header;
    if (ucx_wire_decode(data, bytes, &header) < 0) return;
    MUST(header.header_bytes <= WEFT_TRANSPORT_HEADER_BYTES_MAX);
    MUST(header.header >= data && header.header + header.header_bytes == data + bytes);
    MUST(header.kind >= UCX_WIRE_MESSAGE && header.kind <= UCX_WIRE_BYE_TOO);
    uint8_t again[UCX_WIRE_HEADER_BYTES_MAX];
    ucx_wire_encode(&header, again);
    MUST(memcmp(again, data, bytes) == 0);
}

static void address(const uint8_t *data, size_t bytes)
{
    const void *inside = NULL;
    if (bytes < 8) return;
    uint32_t hash, id;
    memcpy(&hash, data, 4);
    memcpy(&id, data + 4, 4);
    if (ucx_wire_address_decode(data + 8, bytes - 8, hash, id, &inside) < 0) return;
    MUST((const uint8_t *)inside > data + 8 && (const uint8_t *)inside < data + bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    message(data, bytes);
    address(data, bytes);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t room)
{
    uint8_t content[WEFT_TRANSPORT_HEADER_BYTES_MAX];
    memset(content, (int)number, sizeof content);
    if (number % 2 == 0) {
        struct ucx_wire_header header = {
            .kind = (enum ucx_wire_kind)(1 + number / 2 % 4),
            .header_bytes = (uint32_t)(number * 37 % (sizeof content + 1)),
            .sender = (uint32_t)number,
            .nonce = number * 0x9e3779b97f4a7c15ull,
            .payload_bytes = number << (number % 50),
            .header = content,
        };
        uint8_t bytes[UCX_WIRE_HEADER_BYTES_MAX];
        size_t length = UCX_WIRE_FIXED_BYTES + header.header_bytes;
        if (length > room) return 0;
        ucx_wire_encode(&header, bytes);
        memcpy(out, bytes, length);
        return length;
    }
    uint32_t words[2] = {(uint32_t)(number * 77), (uint32_t)number}, address_bytes = 1 + (uint32_t)(number % 200);
    if (8 + UCX_WIRE_ADDRESS_BYTES + address_bytes > room) return 0;
    memcpy(out, words, sizeof words);
    ucx_wire_address_encode(words[0], words[1], content, address_bytes, out + 8);
    return 8 + UCX_WIRE_ADDRESS_BYTES + address_bytes;
}
