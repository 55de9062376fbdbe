/* test_wire.c - the data header: round trips against the slow decoder, every refusal, mutations,
 * truncation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/proto/slow_decoder.h"
#include "tests/lib/check.h"

static uint64_t seed;

static uint64_t next_random(void)
{
    seed += 0x9e3779b97f4a7c15ull;
    uint64_t x = seed;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint32_t below(uint32_t bound) { return (uint32_t)(next_random() % bound); }

static struct weft_wire_header sample(void)
{
    static const uint8_t kinds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    struct weft_wire_header header = {.kind = kinds[below(sizeof kinds)],
                                      .codec = (uint8_t)below(5),
                                      .dtype = (uint8_t)below(5),
                                      .round = (uint8_t)below(16),
                                      .job = next_random(),
                                      .incarnation = next_random(),
                                      .worker = below(WEFT_LIMIT_WORKERS),
                                      .epoch = below(1000),
                                      .tensor = below(WEFT_LIMIT_TENSORS),
                                      .chunk = below(WEFT_LIMIT_CHUNKS),
                                      .step = next_random(),
                                      .payload_bytes = next_random() % (WEFT_LIMIT_PAYLOAD_BYTES + 1),
                                      .lr = (float)below(1000) / 1000,
                                      .weight = (float)(1 + below(1000)),
                                      .weight_sum = (float)below(100000)};
    if (header.kind >= WEFT_WIRE_REPLICATE || below(2)) header.term = 1 + below(WEFT_LIMIT_TERM);
    if (header.kind == WEFT_WIRE_RESULT) header.late_us = (uint32_t)next_random();
    if (header.kind == WEFT_WIRE_RESULT && below(2)) {
        header.status = -(int32_t)(1 + below(99));
        header.text_bytes = below(WEFT_LIMIT_RESULT_TEXT_BYTES + 1);
        header.payload_bytes = 0;
    } else if (header.kind == WEFT_WIRE_RESULT && below(2)) {
        header.flags = WEFT_WIRE_FINITE;
    }
    const bool acknowledges = header.kind == WEFT_WIRE_REPLICATED || header.kind == WEFT_WIRE_COPIED;
    if (acknowledges && below(2)) header.status = -(int32_t)(1 + below(99));
    if (header.kind == WEFT_WIRE_PULL || header.kind == WEFT_WIRE_STATE_PULL || acknowledges ||
        header.kind == WEFT_WIRE_APPLY || header.kind == WEFT_WIRE_COMPARE)
        header.payload_bytes = 0;
    if (header.kind == WEFT_WIRE_REPLICATE) header.flags = (uint8_t)(below(2) | below(2) * WEFT_WIRE_DECAY);
    if (header.kind != WEFT_WIRE_RESULT && !acknowledges && below(2)) {
        header.skips = (uint16_t)(1 + below(WEFT_WIRE_SKIPS - 1));
        header.good = (uint32_t)next_random();
    }
    if (weft_wire_contributes(header.kind)) header.flags = (uint8_t)below(16);
    if (weft_wire_contributes(header.kind) && weft_dtype_is_half(header.dtype))
        header.loss_exponent =
            (int8_t)((int32_t)below(2 * WEFT_LIMIT_LOSS_EXPONENT + 1) - WEFT_LIMIT_LOSS_EXPONENT);
    if (header.kind == WEFT_WIRE_COPY || header.kind == WEFT_WIRE_COPIED) header.flags = (uint8_t)below(16);
    if (header.kind == WEFT_WIRE_COPY && header.payload_bytes == 0) header.payload_bytes = 4;
    else if (header.flags & WEFT_WIRE_NOT_FINITE && header.kind != WEFT_WIRE_COPY) header.payload_bytes = 0;
    return header;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static void check_same(const struct weft_wire_header *header, const struct slow_header *slow)
{
    assert_int_equal(header->kind, slow->kind);
    assert_int_equal(header->codec, slow->codec);
    assert_int_equal(header->dtype, slow->dtype);
    assert_int_equal(header->round, slow->round);
    assert_int_equal(header->status, slow->status);
    assert_true(header->job == slow->job && header->incarnation == slow->incarnation &&
                header->step == slow->step);
    assert_int_equal(header->worker, slow->worker);
    assert_int_equal(header->epoch, slow->epoch);
    assert_int_equal(header->tensor, slow->tensor);
    assert_int_equal(header->chunk, slow->chunk);
    assert_true(header->payload_bytes == slow->payload_bytes);
    assert_int_equal(bits_of(header->lr), slow->lr_bits);
    assert_int_equal(bits_of(header->weight), slow->weight_bits);
    assert_int_equal(bits_of(header->weight_sum), slow->weight_sum_bits);
    assert_int_equal(header->text_bytes, slow->text_bytes);
    assert_int_equal(header->loss_exponent, slow->loss_exponent);
    assert_int_equal(header->term, slow->term);
    assert_int_equal(header->flags, slow->flags);
    assert_int_equal(header->skips, slow->skips);
    assert_int_equal(header->kind == WEFT_WIRE_RESULT ? header->late_us : header->good, slow->good);
}

static void round_trip(void **state)
{
    uint8_t data[WEFT_WIRE_HEADER_BYTES_MAX];
    for (int i = 0; i < 5000; i++) {
        struct weft_wire_header in = sample(), out;
        struct slow_header slow;
        memset(data, 'x', sizeof data);
        weft_wire_encode(&in, data);
        size_t bytes = WEFT_WIRE_HEADER_BYTES + in.text_bytes;
        assert_int_equal(weft_wire_decode(data, bytes, &out), WEFT_OK);
        assert_int_equal(slow_header_decode(data, bytes, &slow), 0);
        check_same(&in, &slow);
        check_same(&out, &slow);
    }
}

/* The bytes of one header. A change of them is a change of the wire version. */
static void golden(void **state)
{
    struct weft_wire_header header = {.kind = WEFT_WIRE_PUSH_PULL,
                                      .codec = 0,
                                      .dtype = WEFT_F32,
                                      .job = 0x1122334455667788ull,
                                      .incarnation = 3,
                                      .worker = 1,
                                      .epoch = 1,
                                      .tensor = 2,
                                      .chunk = 5,
                                      .step = 77,
                                      .payload_bytes = 4096,
                                      .lr = 0.5f,
                                      .weight = 1};
    static const uint8_t expected[84] = {
        'W',  'T',  'F',  '1', 1,    0, 1,  0,    1,    0, 0, 0, 0, 0, 0, 0,  0x88, 0x77, 0x66, 0x55, 0x44,
        0x33, 0x22, 0x11, 3,   0,    0, 0,  0,    0,    0, 0, 1, 0, 0, 0, 1,  0,    0,    0,    2,    0,
        0,    0,    5,    0,   0,    0, 77, 0,    0,    0, 0, 0, 0, 0, 0, 16, 0,    0,    0,    0,    0,
        0,    0,    0,    0,   0x3f, 0, 0,  0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0,  0,    0,    0,    0,    0};
    uint8_t data[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(&header, data);
    assert_memory_equal(data, expected, sizeof expected);
    assert_int_equal(slow_xxh32((const uint8_t *)"", 0), 0x02cc5d05u); /* xxHash's published value */
}

/* Changes one field after encoding and corrects the checksum. */
static enum weft_status decode_poked(unsigned at, unsigned bytes, uint64_t value, enum weft_wire_kind kind)
{
    struct weft_wire_header header = {.kind = (uint8_t)kind, .dtype = WEFT_F32, .weight = 1},
                            out = {.kind = 200};
    if (kind == WEFT_WIRE_PUSH && at == 72) header.flags = WEFT_WIRE_DECAY;
    uint8_t data[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(&header, data);
    for (unsigned i = 0; i < bytes; i++) data[at + i] = (uint8_t)(value >> 8 * i);
    if (at != 84) {
        uint32_t sum = slow_xxh32(data, 84);
        for (unsigned i = 0; i < 4; i++) data[84 + i] = (uint8_t)(sum >> 8 * i);
    }
    enum weft_status status = weft_wire_decode(data, sizeof data, &out);
    if (status != WEFT_OK) assert_int_equal(out.kind, 200);
    return status;
}

static void refusals(void **state)
{
    assert_int_equal(decode_poked(6, 1, WEFT_WIRE_PUSH, WEFT_WIRE_PUSH), WEFT_OK);
    assert_int_equal(decode_poked(0, 4, 0x31465458u, WEFT_WIRE_PUSH), WEFT_ERR_MALFORMED);
    assert_int_equal(decode_poked(4, 2, 3, WEFT_WIRE_PUSH), WEFT_ERR_VERSION);
    assert_int_equal(decode_poked(4, 2, 0, WEFT_WIRE_PUSH), WEFT_ERR_VERSION);
    static const struct { unsigned at, bytes; uint64_t value; enum weft_wire_kind kind;
    } bad[] = {{4, 2, 2, WEFT_WIRE_PUSH},  /* version 2 without a term */
               {77, 3, 1, WEFT_WIRE_PUSH}, /* version 1 with a term */
               {6, 1, 0, WEFT_WIRE_PUSH},
               {6, 1, 8, WEFT_WIRE_PUSH}, /* without a term */
               {6, 1, 10, WEFT_WIRE_PUSH},
               {7, 1, 16, WEFT_WIRE_PUSH},
               {8, 1, 5, WEFT_WIRE_PUSH},
               {9, 1, 16, WEFT_WIRE_PUSH},
               {10, 1, 8, WEFT_WIRE_PULL},
               {10, 1, 1, WEFT_WIRE_PULL},
               {10, 1, 16, WEFT_WIRE_RESULT},
               {12, 4, 0xffffffff, WEFT_WIRE_PUSH},
               {12, 4, 1, WEFT_WIRE_RESULT},
               {12, 4, (uint32_t)-100, WEFT_WIRE_RESULT},
               {32, 4, WEFT_LIMIT_WORKERS, WEFT_WIRE_PUSH},
               {40, 4, WEFT_LIMIT_TENSORS, WEFT_WIRE_PUSH},
               {44, 4, WEFT_LIMIT_CHUNKS, WEFT_WIRE_PUSH},
               {56, 8, WEFT_LIMIT_PAYLOAD_BYTES + 1, WEFT_WIRE_PUSH},
               {56, 8, 1, WEFT_WIRE_PULL},
               {56, 8, 1, WEFT_WIRE_STATE_PULL},
               {12, 4, 0xffffffff, WEFT_WIRE_STATE_INIT},
               {64, 4, 0x7fc00000, WEFT_WIRE_PUSH},
               {68, 4, 0x80000001, WEFT_WIRE_PUSH},
               {68, 4, 0x80000000, WEFT_WIRE_PUSH_PULL},
               {68, 4, 0xbf800000, WEFT_WIRE_PUSH},
               {72, 4, 0x7f800000, WEFT_WIRE_RESULT},
               {72, 4, 0x80000000, WEFT_WIRE_PUSH},
               {72, 4, 0x7f800000, WEFT_WIRE_PUSH},
               {76, 4, 1, WEFT_WIRE_PUSH},
               {76, 4, 0xffffffff, WEFT_WIRE_RESULT},
               {80, 4, 1, WEFT_WIRE_PUSH},
               {84, 4, 0, WEFT_WIRE_PUSH}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (decode_poked(bad[i].at, bad[i].bytes, bad[i].value, bad[i].kind) != WEFT_ERR_MALFORMED)
            fail_msg("case %zu: offset %u value %llu was not refused", i, bad[i].at,
                     (unsigned long long)bad[i].value);
    assert_int_equal(decode_poked(68, 4, 0, WEFT_WIRE_PUSH), WEFT_OK); /* a worker without data */
    assert_int_equal(decode_poked(72, 4, 0x3f000000, WEFT_WIRE_PUSH), WEFT_OK); /* a weight decay */
    /* only contributions have a weight */
    assert_int_equal(decode_poked(68, 4, 0xbf800000, WEFT_WIRE_INIT), WEFT_OK);
}

/* A truncated or mutated header is refused, or equal in both decoders; also with a corrected checksum. */
static void mutations(void **state)
{
    for (int i = 0; i < 20000; i++) {
        struct weft_wire_header in = sample(), out;
        struct slow_header slow;
        uint8_t data[WEFT_WIRE_HEADER_BYTES_MAX + 8] = {0};
        weft_wire_encode(&in, data);
        size_t bytes = WEFT_WIRE_HEADER_BYTES + in.text_bytes;
        uint32_t flips = 1 + below(3);
        for (uint32_t f = 0; f < flips; f++) data[below(84)] ^= (uint8_t)(1u << below(8));
        if (i % 2) {
            uint32_t sum = slow_xxh32(data, 84);
            for (unsigned k = 0; k < 4; k++) data[84 + k] = (uint8_t)(sum >> 8 * k);
        }
        if (i % 8 == 0) bytes = below((uint32_t)sizeof data);
        enum weft_status status = weft_wire_decode(data, bytes, &out);
        int expected = slow_header_decode(data, bytes, &slow);
        assert_int_equal(status, expected == 0    ? WEFT_OK
                                 : expected == -2 ? WEFT_ERR_VERSION
                                                  : WEFT_ERR_MALFORMED);
        if (expected == 0) check_same(&out, &slow);
    }
    struct weft_wire_header header = sample(), out;
    uint8_t data[WEFT_WIRE_HEADER_BYTES];
    header.status = 0, header.text_bytes = 0;
    weft_wire_encode(&header, data);
    for (size_t bytes = 0; bytes < sizeof data; bytes++)
        assert_int_equal(weft_wire_decode(data, bytes, &out), WEFT_ERR_MALFORMED);
}

static void text(void **state)
{
    struct weft_wire_header header = {.kind = WEFT_WIRE_RESULT, .status = WEFT_ERR_MISMATCH, .text_bytes = 6},
                            out;
    uint8_t data[WEFT_WIRE_HEADER_BYTES_MAX];
    char text_out[WEFT_LIMIT_RESULT_TEXT_BYTES + 1];
    weft_wire_encode(&header, data);
    memcpy(data + WEFT_WIRE_HEADER_BYTES, "a\033[b\n\0", 6);
    assert_int_equal(weft_wire_decode(data, WEFT_WIRE_HEADER_BYTES + 6, &out), WEFT_OK);
    weft_wire_text(data, &out, text_out);
    assert_string_equal(text_out, "a?[b??");
    assert_int_equal(weft_wire_decode(data, WEFT_WIRE_HEADER_BYTES + 5, &out), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_wire_decode(data, WEFT_WIRE_HEADER_BYTES + 7, &out), WEFT_ERR_MALFORMED);
}

/* ---- message groups ---- */

static void put32(uint8_t *at, uint32_t value)
{
    for (unsigned k = 0; k < 4; k++) at[k] = (uint8_t)(value >> 8 * k);
}

/* The bytes of docs/wire.md. */
static void group_header(void **state)
{
    const struct weft_wire_group in = {.kind = WEFT_WIRE_GROUP_RESULTS,
                                       .job = 0x1122334455667788ull,
                                       .number = 0x01020304,
                                       .count = 2,
                                       .payload_bytes = 200};
    uint8_t data[WEFT_WIRE_GROUP_HEADER_BYTES],
        expected[WEFT_WIRE_GROUP_HEADER_BYTES] = {'W',  'T',  'G',  '1',  1,    0,    2, 0, 0x88, 0x77,
                                                  0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 4, 3, 2,    1,
                                                  2,    0,    0,    0,    200,  0,    0, 0};
    struct weft_wire_group out;
    put32(expected + 28, slow_xxh32(expected, 28));
    weft_wire_group_encode(&in, data);
    assert_memory_equal(data, expected, sizeof data);
    assert_int_equal(weft_wire_group_decode(data, sizeof data, &out), WEFT_OK);
    assert_int_equal(out.kind, in.kind);
    assert_int_equal(out.job, in.job);
    assert_int_equal(out.number, in.number);
    assert_int_equal(out.count, in.count);
    assert_int_equal(out.payload_bytes, in.payload_bytes);
}

static enum weft_status decode_group_poked(size_t at, uint32_t value)
{
    const struct weft_wire_group in = {.kind = WEFT_WIRE_GROUP_REQUESTS, .count = 2, .payload_bytes = 200};
    struct weft_wire_group out;
    uint8_t data[WEFT_WIRE_GROUP_HEADER_BYTES];
    weft_wire_group_encode(&in, data);
    put32(data + at, value);
    put32(data + 28, slow_xxh32(data, 28));
    return weft_wire_group_decode(data, sizeof data, &out);
}

static void group_refusals(void **state)
{
    const struct weft_wire_group in = {.kind = WEFT_WIRE_GROUP_REFUSED, .number = 7};
    struct weft_wire_group out;
    uint8_t data[WEFT_WIRE_GROUP_HEADER_BYTES];
    weft_wire_group_encode(&in, data);
    for (size_t bytes = 0; bytes < sizeof data; bytes++)
        assert_int_equal(weft_wire_group_decode(data, bytes, &out), WEFT_ERR_MALFORMED);
    data[30] ^= 1;
    assert_int_equal(weft_wire_group_decode(data, sizeof data, &out), WEFT_ERR_MALFORMED);
    assert_int_equal(decode_group_poked(20, 2), WEFT_OK);
    assert_int_equal(decode_group_poked(0, 0x31465457), WEFT_ERR_MALFORMED);
    assert_int_equal(decode_group_poked(4, 0x00010002), WEFT_ERR_VERSION);
    assert_int_equal(decode_group_poked(4, 0x00000001), WEFT_ERR_MALFORMED); /* kind 0 */
    assert_int_equal(decode_group_poked(4, 0x00040001), WEFT_ERR_MALFORMED);
    assert_int_equal(decode_group_poked(4, 0x01010001), WEFT_ERR_MALFORMED);
    assert_int_equal(decode_group_poked(4, 0x00030001), WEFT_ERR_MALFORMED); /* a refusal with entries */
    assert_int_equal(decode_group_poked(20, 0), WEFT_ERR_MALFORMED);
    assert_int_equal(decode_group_poked(20, 3), WEFT_ERR_MALFORMED); /* more than fit into 200 bytes */
    assert_int_equal(decode_group_poked(20, WEFT_LIMIT_GROUP_ENTRIES + 1), WEFT_ERR_MALFORMED);
    assert_int_equal(decode_group_poked(24, WEFT_LIMIT_GROUP_BYTES), WEFT_OK);
    assert_int_equal(decode_group_poked(24, WEFT_LIMIT_GROUP_BYTES + 1), WEFT_ERR_MALFORMED);
}

static void group_entries(void **state)
{
    uint8_t payload[512], header[WEFT_WIRE_HEADER_BYTES];
    struct weft_wire_entry entry;
    size_t used = 0, at = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const uint8_t data[12] = {(uint8_t)(i + 1)};
        weft_wire_encode(
            &(struct weft_wire_header){.kind = WEFT_WIRE_PUSH, .tensor = i, .payload_bytes = 4 * i}, header);
        weft_wire_group_put(payload + used, header, data, 4 * i);
        used += weft_wire_group_entry_bytes(4 * i);
    }
    assert_int_equal(used, 88 + 96 + 96); /* multiples of 8 bytes */
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(weft_wire_group_next(payload, used, &at, &entry), WEFT_OK);
        assert_int_equal(entry.decoded.tensor, i);
        assert_int_equal(entry.payload_bytes, 4 * i);
        if (i > 0) assert_int_equal(entry.payload[0], i + 1);
    }
    assert_int_equal(at, used);
    for (size_t bytes = 88 + 1; bytes < 88 + 96; bytes++) { /* the second entry is cut */
        at = 88;
        assert_int_equal(weft_wire_group_next(payload, bytes, &at, &entry), WEFT_ERR_MALFORMED);
    }
}

int main(void)
{
    const char *given = getenv("WEFT_TEST_SEED");
    seed = given ? strtoull(given, NULL, 0) : 1;
    print_message("replay: WEFT_TEST_SEED=%llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(golden), cmocka_unit_test(refusals),
        cmocka_unit_test(mutations), cmocka_unit_test(text), cmocka_unit_test(group_header),
        cmocka_unit_test(group_refusals), cmocka_unit_test(group_entries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
