/* fuzz_wire_group.c - decoder of message groups: an input is a group header and its payload. An accepted
 * header encodes to the same bytes; entries lie within the payload, one behind the other; an accepted entry
 * is written again as it was read, but for its padding. */
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/fuzz/fuzz.h"

static void expect(bool promise)
{
    if (!promise) abort();
}

static void read_entries(const uint8_t *payload, size_t bytes)
{
    static uint8_t again[WEFT_LIMIT_GROUP_BYTES + 8];
    struct weft_wire_entry entry;
    size_t at = 0, before = 0;
    while (at < bytes && weft_wire_group_next(payload, bytes, &at, &entry) == WEFT_OK) {
        const size_t whole = weft_wire_group_entry_bytes(entry.payload_bytes);
        expect(at == before + whole && at <= bytes && whole <= sizeof again);
        expect(entry.payload == payload + before + WEFT_WIRE_HEADER_BYTES);
        weft_wire_group_put(again, entry.header, entry.payload, entry.payload_bytes);
        expect(memcmp(again, payload + before, WEFT_WIRE_HEADER_BYTES + entry.payload_bytes) == 0);
        before = at;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_wire_group group;
    uint8_t again[WEFT_WIRE_GROUP_HEADER_BYTES];
    const size_t head = bytes < sizeof again ? bytes : sizeof again;
    if (weft_wire_group_decode(data, head, &group) == WEFT_OK) {
        weft_wire_group_encode(&group, again);
        expect(memcmp(again, data, sizeof again) == 0);
    }
    const size_t rest = bytes - head;
    read_entries(data + head, rest < WEFT_LIMIT_GROUP_BYTES ? rest : WEFT_LIMIT_GROUP_BYTES);
    return 0;
}

/* A valid group of pushes. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const float values[40];
    const size_t payload_bytes = number % 5 * 8 + number % 3 * 4;
    struct weft_wire_group group = {.kind = WEFT_WIRE_GROUP_REQUESTS, .job = number, .number = 1};
    size_t at = WEFT_WIRE_GROUP_HEADER_BYTES;
    for (uint32_t i = 0; i < 1 + number % 4; i++) {
        const size_t whole = weft_wire_group_entry_bytes(payload_bytes);
        if (at + whole > capacity) break;
        uint8_t header[WEFT_WIRE_HEADER_BYTES];
        weft_wire_encode(
            &(struct weft_wire_header){
                .kind = WEFT_WIRE_PUSH_PULL, .tensor = i, .step = number, .payload_bytes = payload_bytes},
            header);
        weft_wire_group_put(out + at, header, values, payload_bytes);
        at += whole;
        group.count++;
    }
    if (group.count == 0) return 0;
    group.payload_bytes = (uint32_t)(at - WEFT_WIRE_GROUP_HEADER_BYTES);
    weft_wire_group_encode(&group, out);
    return at;
}
