/* test_recorded.c - messages as earlier versions wrote them (recorded/), against the code of today.
 *
 *     recorded/release-0.1.0.txt   written by the code of release 0.1.0
 *     recorded/version-1.txt       wire version 1 with everything that a capability of Hello announces
 *     recorded/version-2.txt       wire version 2
 *
 * Each line is the name of a message and its bytes. Today's code must read each one, with every field where
 * it was, and write the same bytes again: a change that breaks an earlier peer fails here. The file of the
 * newest version is written with --write; those of earlier ones never change. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/lib/check.h"
#include "tests/proto/sample_message.h"

enum { BYTES_MAX = 8192, LINE_MAX_BYTES = 2 * BYTES_MAX + 200 };

/* ---- data headers ---- */

/* Of wire version 1; those of the second list have a term, which a job with copies has. */
static const struct weft_wire_header headers_first[] = {
    {.kind = WEFT_WIRE_PUSH_PULL,
     .dtype = WEFT_F32,
     .job = 7,
     .incarnation = 8,
     .worker = 9,
     .epoch = 10,
     .tensor = 11,
     .chunk = 12,
     .step = 13,
     .payload_bytes = 4096,
     .lr = 0.5f,
     .weight = 32},
    {.kind = WEFT_WIRE_PUSH,
     .codec = 3,
     .round = 1,
     .job = ~0ull,
     .incarnation = 1ull << 40,
     .worker = 4095,
     .tensor = 65535,
     .chunk = 65535,
     .step = 1ull << 50,
     .payload_bytes = 1ull << 36,
     .lr = 1e-3f,
     .weight = 1,
     .flags = WEFT_WIRE_MAY_SKIP | WEFT_WIRE_CHECKED,
     .skips = 4095,
     .good = 77},
    {.kind = WEFT_WIRE_PUSH_PULL,
     .dtype = WEFT_F32,
     .job = 7,
     .step = 2,
     .lr = 0.5f,
     .flags = WEFT_WIRE_NOT_FINITE},
    {.kind = WEFT_WIRE_PULL,
     .job = 7,
     .incarnation = 8,
     .worker = 1,
     .epoch = 1,
     .tensor = 2,
     .chunk = 3,
     .step = 4},
    {.kind = WEFT_WIRE_INIT, .dtype = WEFT_F32, .job = 7, .tensor = 2, .payload_bytes = 1024},
    {.kind = WEFT_WIRE_RESULT,
     .dtype = WEFT_F32,
     .job = 7,
     .worker = 1,
     .tensor = 2,
     .step = 4,
     .payload_bytes = 1024,
     .weight_sum = 64,
     .late_us = 250},
    {.kind = WEFT_WIRE_RESULT,
     .status = WEFT_ERR_STALE,
     .job = 7,
     .worker = 1,
     .tensor = 2,
     .step = 4,
     .text_bytes = 9},
    {.kind = WEFT_WIRE_STATE_PULL, .round = WEFT_WIRE_PART_RESIDUAL, .job = 7, .tensor = 2, .step = 4},
    {.kind = WEFT_WIRE_STATE_INIT, .dtype = WEFT_F32, .round = 1, .job = 7, .tensor = 2, .payload_bytes = 64},
};
static const struct weft_wire_header headers_terms[] = {
    {.kind = WEFT_WIRE_PUSH_PULL,
     .dtype = WEFT_F32,
     .job = 7,
     .step = 2,
     .payload_bytes = 64,
     .lr = 0.5f,
     .weight = 1,
     .term = 3},
    {.kind = WEFT_WIRE_RESULT,
     .status = WEFT_ERR_STALE,
     .job = 7,
     .step = 4,
     .text_bytes = 9,
     .term = WEFT_LIMIT_TERM},
    {.kind = WEFT_WIRE_REPLICATE,
     .dtype = WEFT_F32,
     .job = 7,
     .incarnation = 3,
     .tensor = 2,
     .step = 4,
     .payload_bytes = 64,
     .lr = 0.5f,
     .weight_sum = 2,
     .flags = WEFT_WIRE_MAY_SKIP,
     .term = 3},
    {.kind = WEFT_WIRE_REPLICATED, .status = WEFT_ERR_STATE, .job = 7, .tensor = 2, .step = 4, .term = 3},
    {.kind = WEFT_WIRE_COPY,
     .dtype = WEFT_F32,
     .round = WEFT_WIRE_PART_WEIGHTS,
     .job = 7,
     .tensor = 2,
     .step = 4,
     .payload_bytes = 64,
     .flags = WEFT_WIRE_COPY_RESULT | WEFT_WIRE_COPY_FIRST,
     .term = 3},
    {.kind = WEFT_WIRE_COPIED,
     .round = WEFT_WIRE_PART_WEIGHTS,
     .job = 7,
     .tensor = 2,
     .step = 4,
     .flags = WEFT_WIRE_COPY_RESULT,
     .term = 3},
};
/* Of wire version 2. */
static const struct weft_wire_header headers_second[] = {
    {.kind = WEFT_WIRE_PUSH_HOLD,
     .dtype = WEFT_F32,
     .job = 7,
     .step = 2,
     .payload_bytes = 64,
     .lr = 0.5f,
     .weight = 1},
    {.kind = WEFT_WIRE_APPLY, .round = 1, .job = 7, .step = 2, .lr = 0.5f, .weight = 0.25f},
    {.kind = WEFT_WIRE_PUSH,
     .dtype = WEFT_BF16,
     .job = 7,
     .step = 2,
     .payload_bytes = 64,
     .lr = 0.5f,
     .weight = 1,
     .loss_exponent = -12},
    {.kind = WEFT_WIRE_PUSH_PULL,
     .dtype = WEFT_F32,
     .job = 7,
     .step = 2,
     .payload_bytes = 64,
     .lr = 0.5f,
     .weight = 1,
     .weight_sum = 0.125f,
     .flags = WEFT_WIRE_DECAY},
};
static const struct weft_wire_group groups[] = {
    {.kind = WEFT_WIRE_GROUP_REQUESTS, .job = 7, .number = 8, .count = 2, .payload_bytes = 2 * 96},
    {.kind = WEFT_WIRE_GROUP_RESULTS, .job = 7, .number = 9, .count = 256, .payload_bytes = 65536},
    {.kind = WEFT_WIRE_GROUP_REFUSED, .job = 7, .number = 8},
};

/* ---- control messages and records ---- */

/* A message with two fields that exclude each other is there twice. */
static const struct {
    const char *body, *without;
} variants[] = {
    {"declared", " Declared.runs "},        {"declared", " Declared.chunks "},
    {"tensor", " Declared.runs "},          {"snap_part", " SnapPart.error "},
    {"snap_part", " SnapPart.bytes "},      {"snap_fetched", " SnapFetched.error "},
    {"snap_fetched", " SnapFetched.data "},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* ---- writing ---- */

static void write_bytes(const char *kind, const char *name, const uint8_t *data, size_t bytes)
{
    printf("%s/%s ", kind, name);
    for (size_t i = 0; i < bytes; i++) printf("%02x", data[i]);
    putchar('\n');
}

static void write_message(const char *kind, const ProtobufCMessageDescriptor *type, unsigned body,
                          const char *variant, const char *given)
{
    char without[1024];
    uint8_t data[BYTES_MAX];
    snprintf(without, sizeof without, "%s%s", variant, given);
    const struct sample_message_rule rule = {without};
    const ProtobufCMessage *message = sample_message_make(type, body, &rule);
    if (protobuf_c_message_get_packed_size(message) > sizeof data) abort();
    write_bytes(kind, type->fields[body].name, data, protobuf_c_message_pack(message, data));
}

static void write_messages(const char *kind, const ProtobufCMessageDescriptor *type, const char *given)
{
    for (unsigned body = 0; body < type->n_fields; body++) {
        bool has_variants = false;
        for (int v = 0; v < VARIANTS; v++) {
            if (strcmp(variants[v].body, type->fields[body].name) != 0) continue;
            has_variants = true;
            write_message(kind, type, body, variants[v].without, given);
        }
        if (!has_variants) write_message(kind, type, body, "", given);
    }
}

static void write_headers(const char *kind, const struct weft_wire_header *headers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t data[WEFT_WIRE_HEADER_BYTES];
        char number[16];
        snprintf(number, sizeof number, "%zu", i);
        weft_wire_encode(&headers[i], data);
        write_bytes(kind, number, data, sizeof data);
    }
}

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* `given`: fields to leave out, " Message.field Message.field ". */
static void write_all(const char *given, int version)
{
    write_headers("header", headers_first, COUNT_OF(headers_first));
    write_messages("control", &weft__control__control__descriptor, given);
    write_headers("header-term", headers_terms, COUNT_OF(headers_terms));
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        uint8_t data[WEFT_WIRE_GROUP_HEADER_BYTES];
        char number[16];
        snprintf(number, sizeof number, "%zu", i);
        weft_wire_group_encode(&groups[i], data);
        write_bytes("group", number, data, sizeof data);
    }
    write_messages("stored", &weft__control__stored__descriptor, given);
    if (version >= 2) write_headers("header-second", headers_second, COUNT_OF(headers_second));
}
/* ---- reading ---- */

static void same_header(const char *line, const struct weft_wire_header *wanted, const uint8_t *data,
                        size_t bytes)
{
    uint8_t text[WEFT_WIRE_HEADER_BYTES_MAX] = {0}, again[WEFT_WIRE_HEADER_BYTES];
    struct weft_wire_header header;
    if (bytes != WEFT_WIRE_HEADER_BYTES) fail_msg("%s has %zu bytes", line, bytes);
    memcpy(text, data, bytes);
    if (weft_wire_decode(text, bytes + wanted->text_bytes, &header) != WEFT_OK)
        fail_msg("%s is refused", line);
    weft_wire_encode(&header, again);
    if (memcmp(again, data, bytes) != 0) fail_msg("%s: written again with other bytes", line);
    weft_wire_encode(wanted, again);
    if (memcmp(again, data, bytes) != 0) fail_msg("%s: another format than the recorded one", line);
}

static void same_group(const char *line, const struct weft_wire_group *wanted, const uint8_t *data,
                       size_t bytes)
{
    uint8_t again[WEFT_WIRE_GROUP_HEADER_BYTES];
    struct weft_wire_group group;
    if (weft_wire_group_decode(data, bytes, &group) != WEFT_OK) fail_msg("%s is refused", line);
    weft_wire_group_encode(wanted, again);
    if (bytes != sizeof again || memcmp(again, data, bytes) != 0)
        fail_msg("%s: another format than the recorded one", line);
}

/* The checks of the receiver accept it, and those of the sender write the same bytes. */
static void passes_checks(const char *line, bool is_control, const ProtobufCMessage *message,
                          const uint8_t *data, size_t bytes)
{
    struct weft_env *env = weft_env_system();
    Weft__Control__Control *control = NULL;
    Weft__Control__Stored *stored = NULL;
    uint8_t *again = NULL;
    size_t again_bytes = 0;
    if (is_control) {
        if (weft_control_unpack(env, data, bytes, &control) != WEFT_OK) fail_msg("%s is refused", line);
        assert_int_equal(
            weft_control_pack(env, (const Weft__Control__Control *)message, &again, &again_bytes), WEFT_OK);
    } else {
        if (weft_stored_unpack(env, data, bytes, &stored) != WEFT_OK) fail_msg("%s is refused", line);
        assert_int_equal(weft_stored_pack(env, (const Weft__Control__Stored *)message, &again, &again_bytes),
                         WEFT_OK);
    }
    if (again_bytes != bytes || memcmp(again, data, bytes) != 0)
        fail_msg("%s: written again with other bytes", line);
    weft_free_bytes(env, again);
    weft_control_free(env, control);
    weft_stored_free(env, stored);
}

static void same_message(const char *line, bool is_control, const char *name, const uint8_t *data,
                         size_t bytes)
{
    const ProtobufCMessageDescriptor *type =
        is_control ? &weft__control__control__descriptor : &weft__control__stored__descriptor;
    char path[200];
    ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, bytes, data);
    if (!message) fail_msg("%s cannot be read", line);
    const ProtobufCFieldDescriptor *body = protobuf_c_message_descriptor_get_field_by_name(type, name);
    /* the oneof's number is behind the same offset in all its fields */
    if (!body || *(const uint32_t *)((const uint8_t *)message + body->quantifier_offset) != body->id)
        fail_msg("%s is another message today", line);
    if (!sample_message_matches(message, path, sizeof path)) fail_msg("%s: %s", line, path);
    passes_checks(line, is_control, message, data, bytes);
    protobuf_c_message_free_unpacked(message, NULL);
}

static void check_line(const char *line, const uint8_t *data, size_t bytes)
{
    static const struct {
        const char *kind;
        const struct weft_wire_header *headers;
        size_t count;
    } lists[] = {{"header/", headers_first, COUNT_OF(headers_first)},
                 {"header-term/", headers_terms, COUNT_OF(headers_terms)},
                 {"header-second/", headers_second, COUNT_OF(headers_second)}};
    const char *name = strchr(line, '/') + 1;
    const size_t number = strtoul(name, NULL, 10);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        if (strncmp(line, lists[i].kind, strlen(lists[i].kind)) != 0) continue;
        assert_true(number < lists[i].count);
        same_header(line, &lists[i].headers[number], data, bytes);
        return;
    }
    if (strncmp(line, "group/", 6) == 0) {
        assert_true(number < COUNT_OF(groups));
        same_group(line, &groups[number], data, bytes);
    } else {
        same_message(line, strncmp(line, "control/", 8) == 0, name, data, bytes);
    }
}

static size_t bytes_of(const char *hex, uint8_t *out)
{
    size_t bytes = 0;
    for (unsigned value; sscanf(hex + 2 * bytes, "%2x", &value) == 1; bytes++) {
        assert_true(bytes < BYTES_MAX);
        out[bytes] = (uint8_t)value;
    }
    return bytes;
}

/* Checks a file; returns its messages. */
static unsigned check_file(const char *name)
{
    static char line[LINE_MAX_BYTES];
    static uint8_t data[BYTES_MAX];
    char path[1024];
    unsigned lines = 0;
    snprintf(path, sizeof path, "%s/tests/proto/recorded/%s", getenv("WEFT_SOURCE_ROOT"), name);
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s cannot be read", path);
    for (; fgets(line, sizeof line, file); lines++) {
        char *hex = strchr(line, ' ');
        assert_non_null(hex);
        *hex++ = 0;
        const size_t bytes = bytes_of(hex, data);
        check_line(line, data, bytes);
    }
    fclose(file);
    return lines;
}

static void first_release(void **state)
{
    assert_int_equal(check_file("release-0.1.0.txt"), 34);
}
static void version_1(void **state)
{
    assert_int_equal(check_file("version-1.txt"), 69);
}
static void version_2(void **state)
{
    assert_int_equal(check_file("version-2.txt"), 79);
}

/* ---- what a newer release may send ---- */

static size_t put_varint(uint8_t *out, uint64_t value)
{
    size_t bytes = 0;
    for (; value > 127; value >>= 7) out[bytes++] = (uint8_t)(value | 128);
    out[bytes++] = (uint8_t)value;
    return bytes;
}

static enum weft_status read_as(bool is_control, const uint8_t *data, size_t bytes)
{
    struct weft_env *env = weft_env_system();
    Weft__Control__Control *control = NULL;
    Weft__Control__Stored *stored = NULL;
    const enum weft_status status = is_control ? weft_control_unpack(env, data, bytes, &control)
                                               : weft_stored_unpack(env, data, bytes, &stored);
    weft_control_free(env, control);
    weft_stored_free(env, stored);
    return status;
}

/* Unknown fields, in the body and beside it, are skipped; an unknown body is refused. */
static void check_unknown(bool is_control, const ProtobufCMessageDescriptor *type)
{
    enum { UNKNOWN_FIELD = 3000, VARINT = 0, BYTES = 2 };
    for (unsigned body = 0; body < type->n_fields; body++) {
        uint8_t whole[BYTES_MAX], packed[BYTES_MAX], *inner = packed;
        const struct sample_message_rule rule = {" Declared.runs SnapPart.error SnapFetched.error "};
        const ProtobufCMessage *message = sample_message_make(type, body, &rule);
        const ProtobufCMessage *part =
            *(ProtobufCMessage *const *)((const uint8_t *)message + type->fields[body].offset);
        size_t inner_bytes = protobuf_c_message_pack(part, inner);
        inner_bytes += put_varint(inner + inner_bytes, UNKNOWN_FIELD << 3 | BYTES);
        inner_bytes += put_varint(inner + inner_bytes, 2);
        inner[inner_bytes++] = 0xff, inner[inner_bytes++] = 0;
        size_t bytes = put_varint(whole, type->fields[body].id << 3 | BYTES);
        bytes += put_varint(whole + bytes, inner_bytes);
        memcpy(whole + bytes, inner, inner_bytes);
        bytes += inner_bytes;
        bytes += put_varint(whole + bytes, UNKNOWN_FIELD << 3 | VARINT);
        bytes += put_varint(whole + bytes, 1ull << 40);
        if (read_as(is_control, whole, bytes) != WEFT_OK)
            fail_msg("%s with an unknown field is refused", type->fields[body].name);
        bytes = put_varint(whole, UNKNOWN_FIELD << 3 | BYTES);
        bytes += put_varint(whole + bytes, inner_bytes);
        memcpy(whole + bytes, inner, inner_bytes);
        assert_int_equal(read_as(is_control, whole, bytes + inner_bytes), WEFT_ERR_MALFORMED);
    }
}

static void unknown_parts(void **state)
{
    check_unknown(true, &weft__control__control__descriptor);
    check_unknown(false, &weft__control__stored__descriptor);
}

/* What a process of version 1 must not get is exactly what version 2 has added. */
static void versions_of_headers(void **state)
{
    for (size_t i = 0; i < COUNT_OF(headers_first); i++)
        assert_int_equal(weft_wire_version_of_header(&headers_first[i]), 1);
    for (size_t i = 0; i < COUNT_OF(headers_terms); i++)
        assert_int_equal(weft_wire_version_of_header(&headers_terms[i]), 1);
    for (size_t i = 0; i < COUNT_OF(headers_second); i++)
        assert_int_equal(weft_wire_version_of_header(&headers_second[i]), 2);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "--write") == 0) {
        write_all(count > 2 ? arguments[2] : "", WEFT_WIRE_VERSION);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(first_release), cmocka_unit_test(version_1),
                                       cmocka_unit_test(version_2), cmocka_unit_test(versions_of_headers),
                                       cmocka_unit_test(unknown_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
