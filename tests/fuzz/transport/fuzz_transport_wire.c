/* fuzz_transport_wire.c - header of every UCX message, and the address blob: an accepted one lies inside the
 * input, is within its limits, and encodes to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "transport/ucx/wire/ucx_wire.h"

#define MUST(expression) do { if (!(expression)) abort(); } while (0)

static void message(const uint8_t *data, size_t bytes)
{
    struct ucx_wire_header header;
    if (ucx_wire_decode(data, bytes, &header) < 0) return;
    MUST(header.header_bytes <= UCX_WIRE_INNER_BYTES_MAX);
    MUST(header.header >= data && header.header + header.header_bytes == data + bytes);
    MUST(header.kind >= UCX_WIRE_MESSAGE && header.kind <= UCX_WIRE_KIND_LAST);
    uint8_t again[UCX_WIRE_HEADER_BYTES_MAX];
    ucx_wire_encode(&header, again);
    MUST(memcmp(again, data, bytes) == 0);
}

static void words(const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        struct ucx_wire_entry entry;
        size_t used = ucx_wire_entry_decode(data, bytes, &entry);
        if (used == 0) return;
        MUST(used <= bytes && entry.header + entry.header_bytes == data + used);
        uint8_t again[UCX_WIRE_ENTRY_BYTES + WEFT_TRANSPORT_HEADER_BYTES_MAX];
        ucx_wire_entry_encode(&entry, again);
        MUST(memcmp(again, data, used) == 0);
        data += used;
        bytes -= used;
    }
}

static void records(const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        struct ucx_wire_record record;
        size_t used = ucx_wire_record_decode(data, bytes, &record);
        if (used == 0) return;
        MUST(used <= bytes && (const uint8_t *)record.payload + record.payload_bytes == data + used);
        MUST(record.header_bytes <= WEFT_TRANSPORT_HEADER_BYTES_MAX);
        uint8_t *again = malloc(used);
        MUST(again && ucx_wire_record_encode(&record, again) == used && memcmp(again, data, used) == 0);
        free(again);
        data += used;
        bytes -= used;
    }
}

static void key_and_put(const uint8_t *data, size_t bytes)
{
    struct ucx_wire_key key;
    if (ucx_wire_key_decode(data, bytes, &key) == WEFT_OK) {
        MUST(key.address + key.bytes >= key.address);
        uint8_t again[UCX_WIRE_KEY_BYTES];
        ucx_wire_key_encode(&key, again);
        MUST(memcmp(again, data, bytes) == 0);
    }
    struct ucx_wire_put put, twice;
    if (ucx_wire_put_decode(data, bytes, &put) < 0) return;
    uint8_t again[UCX_WIRE_PUT_BYTES], third[UCX_WIRE_PUT_BYTES];
    ucx_wire_put_encode(&put, again);
    MUST(ucx_wire_put_decode(again, sizeof again, &twice) == WEFT_OK);
    ucx_wire_put_encode(&twice, third);
    MUST(memcmp(again, third, sizeof again) == 0);
}

static void address(const uint8_t *data, size_t bytes)
{
    struct ucx_wire_address found;
    if (ucx_wire_address_decode(data, bytes, &found) < 0) return;
    MUST(found.packed_bytes > 0 && (const uint8_t *)found.packed + found.packed_bytes == found.proof);
    MUST(found.proof + UCX_SEAL_PROOF_BYTES == data + bytes);
    uint8_t again[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    ucx_wire_address_encode(&found, again);
    MUST(memcmp(again, data, bytes - UCX_SEAL_PROOF_BYTES) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    message(data, bytes);
    address(data, bytes);
    words(data, bytes);
    records(data, bytes);
    key_and_put(data, bytes);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    uint8_t content[WEFT_TRANSPORT_HEADER_BYTES_MAX];
    memset(content, (int)number, sizeof content);
    if (number % 2 == 0) {
        struct ucx_wire_header header = {
            .kind = (enum ucx_wire_kind)(1 + number / 2 % UCX_WIRE_KIND_LAST),
            .header_bytes = (uint32_t)(number * 37 % (sizeof content + 1)),
            .sender = (uint32_t)number,
            .token = number * 0x9e3779b97f4a7c15ull,
            .payload_bytes = number << (number % 50),
            .header = content,
        };
        uint8_t bytes[UCX_WIRE_HEADER_BYTES_MAX];
        size_t length = UCX_WIRE_FIXED_BYTES + header.header_bytes;
        if (length > capacity) return 0;
        ucx_wire_encode(&header, bytes);
        memcpy(out, bytes, length);
        return length;
    }
    if (number % 8 == 3 && capacity >= 2 * (UCX_WIRE_ENTRY_BYTES + 8)) {
        struct ucx_wire_entry entry = {.control = (enum ucx_wire_control)(1 + number / 4 % UCX_CONTROL_LAST),
                                       .header_bytes = 8,
                                       .id = number,
                                       .header = content};
        for (int i = 0; i < 2; i++) ucx_wire_entry_encode(&entry, out + i * (UCX_WIRE_ENTRY_BYTES + 8));
        return 2 * (UCX_WIRE_ENTRY_BYTES + 8);
    }
    if (number % 8 == 1 && capacity >= UCX_WIRE_KEY_BYTES) {
        struct ucx_wire_key key = {.owner = 3,
                                   .rights = 3,
                                   .window = number,
                                   .bytes = 4096,
                                   .address = number % 16 == 1 ? 1 << 20 : 0};
        ucx_wire_key_encode(&key, out);
        return UCX_WIRE_KEY_BYTES;
    }
    struct ucx_wire_address one = {.mark = (uint32_t)(number * 77),
                                   .id = (uint32_t)number,
                                   .challenge = content,
                                   .process.pid = number,
                                   .packed = content,
                                   .packed_bytes = 1 + (uint32_t)(number % 200)};
    if (UCX_WIRE_AROUND_BYTES + one.packed_bytes > capacity) return 0;
    ucx_wire_address_encode(&one, out);
    return UCX_WIRE_AROUND_BYTES + one.packed_bytes;
}
