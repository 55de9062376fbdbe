/* sample_message.c - see sample_message.h. */
#include "tests/proto/sample_message.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values within the limits; of bytes: the length. NAME@i: of element i of a repeated field. */
static const struct {
    const char *path;
    int64_t value;
} specials[] = {
    {"Member.role@1000", 2}, /* of a field "shard"; before the general one */
    {"Challenge.wire_version", 1}, {"Challenge.nonce", 16},
    {"Hello.wire_version", 1},     {"Hello.role", 1},
    {"Hello.proof", 32},           {"Hello.nonce", 16},
    {"Hello.endpoints", 3},        {"Hello.process", 24},
    {"Hello.wire_oldest", 1},      {"Welcome.workers", 100},
    {"Welcome.proof", 32},         {"Welcome.copies", 1},
    {"Welcome.resume_key", 16},    {"Member.role", 1},
    {"LinkCost.pairs", 100},       {"LinkCost.ring", 12},
    {"LinkCost.runs", 256},        {"Declare.ordinal", 3},
    {"Declare.dtype", 1},          {"Declare.mode", 1},
    {"Declare.dims", 24},          {"Declare.chunk_bytes", 4096},
    {"Declare.pull_dtype", 2},     {"Declared.tensor", 3},
    {"Chunk.offset@0", 0},         {"Chunk.count@0", 10},
    {"Chunk.candidate@0", 0},      {"Chunk.offset@1", 10},
    {"Chunk.count@1", 14},         {"Chunk.candidate@1", 0},
    {"Chunk.offset@2", 0},         {"Chunk.count@2", 24},
    {"Chunk.candidate@2", 1},      {"ChunkRun.offset@0", 0},
    {"ChunkRun.end@0", 10},        {"ChunkRun.cut@0", 10},
    {"ChunkRun.candidate@0", 0},   {"ChunkRun.offset@1", 10},
    {"ChunkRun.end@1", 24},        {"ChunkRun.cut@1", 14},
    {"ChunkRun.candidate@1", 0},   {"ChunkRun.offset@2", 0},
    {"ChunkRun.end@2", 24},        {"ChunkRun.cut@2", 24},
    {"ChunkRun.candidate@2", 1},   {"MemberLost.role", 1},
    {"Abort.status", -5},          {"SlotCopied.status", -5},
    {"Resume.nonce", 16},          {"Resume.proof", 32},
    {"Resumed.proof", 32},         {"SnapPiece.name", 16},
    {"SnapPiece.base_name", 16},   {"SnapPiece.chain", 3},
    {"SnapRange.part", 2},         {"SnapFetched.bytes", 1000},
    {"StoredReign.process", 24},   {"StoredJob.workers", 2},
    {"StoredJob.shards", 1},       {"StoredJob.members", 3},
    {"StoredJob.copies", 1},       {"StoredMember.resume_key", 16},
    {"StoredMember.process", 24},  {"StoredMembership.workers_min", 1},
    {"StoredShrunk.before", 1},
};

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
    return hash;
}

static int64_t value_of(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field,
                        unsigned index, int64_t usual)
{
    char path[128], indexed[136];
    snprintf(path, sizeof path, "%s.%s", type->short_name, field->name);
    snprintf(indexed, sizeof indexed, "%s@%u", path, index);
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        if (strcmp(specials[i].path, path) == 0 || strcmp(specials[i].path, indexed) == 0)
            return specials[i].value;
    return usual;
}

static int64_t number_of(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field,
                         unsigned index)
{
    return value_of(type, field, index, (int64_t)(1 + hash_of(field->name) % 89));
}

static bool is_left_out(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field,
                        const struct sample_message_rule *rule)
{
    char path[128];
    snprintf(path, sizeof path, " %s.%s ", type->short_name, field->name);
    return rule->without && strstr(rule->without, path);
}

/* Elements of a repeated field: chunks need three to have each field at least once. */
static unsigned count_of(const ProtobufCFieldDescriptor *field)
{
    return strcmp(field->name, "chunks") == 0 || strcmp(field->name, "runs") == 0 ? 3 : 1;
}

static size_t width_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT64: return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    default: return 4; /* sint32, uint32, enum and bool, the types of control.proto */
    }
}

/* Memory that stays until the process ends, and reachable, so that it is no leak. */
static void *keep(size_t bytes)
{
    static struct kept {
        struct kept *next;
        max_align_t memory[];
    } *all;
    struct kept *kept = calloc(1, sizeof *kept + bytes);
    assert(kept);
    kept->next = all;
    all = kept;
    return kept->memory;
}

static char *keep_text(const char *text) { return strcpy(keep(strlen(text) + 1), text); }

static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *type, unsigned index,
                              const struct sample_message_rule *rule);

/* The index for the fields of a message in this field. */
static unsigned inner_index(const ProtobufCFieldDescriptor *field, unsigned index)
{
    return strcmp(field->name, "shard") == 0 ? 1000 : index;
}

static void put(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field, void *at,
                unsigned index, const struct sample_message_rule *rule)
{
    const int64_t number = number_of(type, field, index);
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT64: *(uint64_t *)at = (uint64_t)number; break;
    case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)at = true; break;
    case PROTOBUF_C_TYPE_STRING: *(char **)at = keep_text(field->name); break;
    case PROTOBUF_C_TYPE_BYTES: {
        ProtobufCBinaryData *bytes = at;
        bytes->len = (size_t)value_of(type, field, index, 8);
        bytes->data = keep(bytes->len);
        for (size_t i = 0; i < bytes->len; i++) bytes->data[i] = (uint8_t)((uint64_t)number + i);
        break;
    }
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = fill(field->descriptor, inner_index(field, index), rule);
        break;
    default: *(int32_t *)at = (int32_t)number; break;
    }
}

static ProtobufCMessage *fill(const ProtobufCMessageDescriptor *type, unsigned index,
                              const struct sample_message_rule *rule)
{
    ProtobufCMessage *message = keep(type->sizeof_message);
    protobuf_c_message_init(type, message);
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        uint8_t *at = (uint8_t *)message + field->offset;
        if (is_left_out(type, field, rule) || field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) continue;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            put(type, field, at, index, rule);
            continue;
        }
        const unsigned count = count_of(field);
        uint8_t *elements = keep(count * width_of(field));
        for (unsigned e = 0; e < count; e++) put(type, field, elements + e * width_of(field), e, rule);
        *(size_t *)((uint8_t *)message + field->quantifier_offset) = count;
        *(uint8_t **)at = elements;
    }
    return message;
}

ProtobufCMessage *sample_message_make(const ProtobufCMessageDescriptor *type, unsigned body,
                                      const struct sample_message_rule *rule)
{
    const ProtobufCFieldDescriptor *field = &type->fields[body];
    ProtobufCMessage *message = keep(type->sizeof_message);
    protobuf_c_message_init(type, message);
    assert(field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && field->type == PROTOBUF_C_TYPE_MESSAGE);
    *(uint32_t *)((uint8_t *)message + field->quantifier_offset) = field->id;
    *(ProtobufCMessage **)((uint8_t *)message + field->offset) = fill(field->descriptor, 0, rule);
    return message;
}

/* ---- comparison ---- */

static bool matches(const ProtobufCMessage *message, unsigned index, char *path_out, size_t path_bytes);

static bool element_matches(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field,
                            const void *at, unsigned index, char *path_out, size_t path_bytes)
{
    const int64_t number = number_of(type, field, index);
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT64:
        return *(const uint64_t *)at == 0 || *(const uint64_t *)at == (uint64_t)number;
    case PROTOBUF_C_TYPE_BOOL: return true;
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(const char *const *)at;
        return !text || !text[0] || strcmp(text, field->name) == 0;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *bytes = at;
        if (bytes->len == 0) return true;
        return bytes->len == (size_t)value_of(type, field, index, 8) && bytes->data[0] == (uint8_t)number;
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *part = *(const ProtobufCMessage *const *)at;
        return !part || matches(part, inner_index(field, index), path_out, path_bytes);
    }
    default: return *(const int32_t *)at == 0 || *(const int32_t *)at == (int32_t)number;
    }
}

static bool is_absent(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    return field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF &&
           *(const uint32_t *)((const uint8_t *)message + field->quantifier_offset) != field->id;
}

static bool matches(const ProtobufCMessage *message, unsigned index, char *path_out, size_t path_bytes)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    if (message->n_unknown_fields > 0) {
        snprintf(path_out, path_bytes, "%s: field %u is unknown", type->short_name,
                 message->unknown_fields[0].tag);
        return false;
    }
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        const uint8_t *at = (const uint8_t *)message + field->offset;
        const bool is_repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
        const size_t count =
            is_repeated ? *(const size_t *)((const uint8_t *)message + field->quantifier_offset) : 1;
        if (is_repeated) at = *(uint8_t *const *)at;
        for (size_t e = 0; e < count && !is_absent(message, field); e++) {
            if (element_matches(type, field, at + e * width_of(field), is_repeated ? (unsigned)e : index,
                                path_out, path_bytes))
                continue;
            if (!path_out[0]) snprintf(path_out, path_bytes, "%s.%s", type->short_name, field->name);
            return false;
        }
    }
    return true;
}

bool sample_message_matches(const ProtobufCMessage *message, char *path_out, size_t path_bytes)
{
    path_out[0] = 0;
    return matches(message, 0, path_out, path_bytes);
}
