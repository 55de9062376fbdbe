/* wire.c - encodes and decodes the header of data messages between worker and shard.
 *
 *     0 magic  4 version  6 kind codec dtype round  10 flags, skips  12 status  16 job  24 incarnation
 *    32 worker  36 epoch  40 tensor  44 chunk  48 step  56 payload_bytes
 *    64 lr  68 weight  72 weight_sum  76 text_bytes or loss_exponent, term  80 good, late_us  84 checksum
 *    (88 bytes)
 *
 * Version 2 has a term, version 1 has none: the term is 0. A header without a term is written as version 1,
 * so a job without copies speaks version 1.
 *
 * Fields are written one by one, little endian, so padding and byte order of the host do not matter.
 * docs/wire.md is the specification. The checksum is xxh32 (seed 0) of the 84 bytes before it. It detects
 * mixed-up buffers, not an attacker. A decoded header has every count and index within wire_limits.h. The
 * shard engine checks that it fits the job. */
#include <math.h>
#include <string.h>

#include "proto/hash.h"
#include "proto/proto.h"
#include "proto/wire_limits.h"

enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_KIND = 6,
    AT_CODEC = 7,
    AT_DTYPE = 8,
    AT_ROUND = 9,
    AT_FLAGS_SKIPS = 10,
    AT_STATUS = 12,
    AT_JOB = 16,
    AT_INCARNATION = 24,
    AT_WORKER = 32,
    AT_EPOCH = 36,
    AT_TENSOR = 40,
    AT_CHUNK = 44,
    AT_STEP = 48,
    AT_PAYLOAD_BYTES = 56,
    AT_LR = 64,
    AT_WEIGHT = 68,
    AT_WEIGHT_SUM = 72,
    AT_TEXT_TERM = 76, /* bits 0 to 7: text_bytes, of a contribution loss_exponent; bits 8 to 31: term */
    AT_GOOD_LATE = 80,
    AT_CHECKSUM = 84,
    AT_END = 88,
};
_Static_assert(AT_END == WEFT_WIRE_HEADER_BYTES, "the layout and the face agree");
_Static_assert(AT_CHECKSUM + 4 == AT_END, "the checksum is last");
_Static_assert(WEFT_LIMIT_RESULT_TEXT_BYTES < 256, "text_bytes fits beside the term");
_Static_assert(sizeof(float) == 4, "floats travel as IEEE binary32");

static void put_float(uint8_t *out, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_le32(out, bits);
}

static float get_float(const uint8_t *data)
{
    uint32_t bits = get_le32(data);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool is_kind(uint8_t kind)
{
    return kind >= WEFT_WIRE_PUSH_PULL && kind <= WEFT_WIRE_COMPARE;
}

/* The limits of a header: encode asserts them, decode checks them. Floats are not included: they are the
 * user's numbers and must not reach an assertion. */
static bool header_in_limits(const struct weft_wire_header *header)
{
    if (!is_kind(header->kind)) return false;
    const bool acknowledges = header->kind == WEFT_WIRE_REPLICATED || header->kind == WEFT_WIRE_COPIED;
    if (weft_wire_is_between_shards(header->kind) && header->term == 0) return false;
    if (header->codec > WEFT_LIMIT_CODEC_ID || header->round > WEFT_LIMIT_ROUND) return false;
    if (header->dtype > WEFT_I64) return false;
    if (header->worker >= WEFT_LIMIT_WORKERS || header->tensor >= WEFT_LIMIT_TENSORS) return false;
    if (header->chunk >= WEFT_LIMIT_CHUNKS || header->payload_bytes > WEFT_LIMIT_PAYLOAD_BYTES) return false;
    if (header->status > 0 || header->status < -99) return false;
    const bool answers = header->kind == WEFT_WIRE_RESULT || acknowledges;
    if (!answers && header->status != 0) return false;
    const bool is_short = header->kind == WEFT_WIRE_PULL || header->kind == WEFT_WIRE_STATE_PULL ||
                          acknowledges || header->kind == WEFT_WIRE_APPLY ||
                          header->kind == WEFT_WIRE_COMPARE;
    if (is_short && header->payload_bytes != 0) return false;
    if (header->status < 0 && header->payload_bytes != 0) return false;
    if (header->text_bytes > WEFT_LIMIT_RESULT_TEXT_BYTES || header->term > WEFT_LIMIT_TERM) return false;
    if (header->flags & ~(WEFT_WIRE_MAY_SKIP | WEFT_WIRE_CHECKED | WEFT_WIRE_NOT_FINITE | WEFT_WIRE_DECAY))
        return false;
    const bool replicates = header->kind == WEFT_WIRE_REPLICATE, copies = header->kind == WEFT_WIRE_COPY,
               is_result = header->kind == WEFT_WIRE_RESULT;
    if (header->flags && !weft_wire_contributes(header->kind) && !replicates && !copies && !is_result &&
        header->kind != WEFT_WIRE_COPIED)
        return false;
    if (is_result && header->flags & (header->status < 0 ? 15 : ~WEFT_WIRE_FINITE)) return false;
    if (replicates && header->flags & ~(WEFT_WIRE_MAY_SKIP | WEFT_WIRE_DECAY)) return false;
    if (copies && header->payload_bytes == 0 && header->round != WEFT_WIRE_PART_WEIGHTS) return false;
    if (header->flags & WEFT_WIRE_NOT_FINITE && header->payload_bytes != 0 && !copies) return false;
    const bool may_be_scaled = weft_wire_contributes(header->kind) && weft_dtype_is_half(header->dtype);
    if (header->loss_exponent && !may_be_scaled) return false;
    if (header->loss_exponent > WEFT_LIMIT_LOSS_EXPONENT || header->loss_exponent < -WEFT_LIMIT_LOSS_EXPONENT)
        return false;
    if (answers && header->skips) return false;
    if (header->skips >= WEFT_WIRE_SKIPS || (header->good && !header->skips)) return false;
    return header->text_bytes == 0 || (header->status < 0 && header->kind == WEFT_WIRE_RESULT);
}

static bool floats_usable(const struct weft_wire_header *header)
{
    const bool is_weighted = weft_wire_contributes(header->kind) || header->kind == WEFT_WIRE_APPLY;
    if (!isfinite(header->lr) || !isfinite(header->weight) || !isfinite(header->weight_sum)) return false;
    const bool replicates = header->kind == WEFT_WIRE_REPLICATE;
    if (header->flags & WEFT_WIRE_DECAY && signbit(replicates ? header->weight : header->weight_sum))
        return false;
    return !is_weighted || !signbit(header->weight);
}

void weft_wire_encode(const struct weft_wire_header *header, uint8_t out[WEFT_WIRE_HEADER_BYTES])
{
    WEFT_ASSERT(header_in_limits(header));
    put_le32(out + AT_MAGIC, WEFT_WIRE_MAGIC);
    put_le16(out + AT_VERSION, header->term > 0 ? WEFT_WIRE_HEADER_VERSION_TERMS : WEFT_WIRE_HEADER_VERSION);
    out[AT_KIND] = header->kind;
    out[AT_CODEC] = header->codec;
    out[AT_DTYPE] = header->dtype;
    out[AT_ROUND] = header->round;
    put_le16(out + AT_FLAGS_SKIPS, (uint16_t)(header->flags | header->skips << 4));
    put_le32(out + AT_STATUS, (uint32_t)header->status);
    put_le64(out + AT_JOB, header->job);
    put_le64(out + AT_INCARNATION, header->incarnation);
    put_le32(out + AT_WORKER, header->worker);
    put_le32(out + AT_EPOCH, header->epoch);
    put_le32(out + AT_TENSOR, header->tensor);
    put_le32(out + AT_CHUNK, header->chunk);
    put_le64(out + AT_STEP, header->step);
    put_le64(out + AT_PAYLOAD_BYTES, header->payload_bytes);
    put_float(out + AT_LR, header->lr);
    put_float(out + AT_WEIGHT, header->weight);
    put_float(out + AT_WEIGHT_SUM, header->weight_sum);
    const uint32_t text_or_scale =
        weft_wire_contributes(header->kind) ? (uint8_t)header->loss_exponent : header->text_bytes;
    put_le32(out + AT_TEXT_TERM, text_or_scale | header->term << 8);
    put_le32(out + AT_GOOD_LATE, header->kind == WEFT_WIRE_RESULT ? header->late_us : header->good);
    put_le32(out + AT_CHECKSUM, wire_checksum(out, AT_CHECKSUM));
}

enum weft_status weft_wire_decode(const uint8_t *data, size_t bytes, struct weft_wire_header *header_out)
{
    if (bytes < WEFT_WIRE_HEADER_BYTES || bytes > WEFT_WIRE_HEADER_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (get_le32(data + AT_MAGIC) != WEFT_WIRE_MAGIC) return WEFT_ERR_MALFORMED;
    /* Before the checksum, which another version may have elsewhere. */
    const uint16_t version = get_le16(data + AT_VERSION);
    if (version != WEFT_WIRE_HEADER_VERSION && version != WEFT_WIRE_HEADER_VERSION_TERMS)
        return WEFT_ERR_VERSION;
    if (get_le32(data + AT_CHECKSUM) != wire_checksum(data, AT_CHECKSUM)) return WEFT_ERR_MALFORMED;

    struct weft_wire_header header = {
        .kind = data[AT_KIND],
        .codec = data[AT_CODEC],
        .dtype = data[AT_DTYPE],
        .round = data[AT_ROUND],
        .status = (int32_t)get_le32(data + AT_STATUS),
        .job = get_le64(data + AT_JOB),
        .incarnation = get_le64(data + AT_INCARNATION),
        .worker = get_le32(data + AT_WORKER),
        .epoch = get_le32(data + AT_EPOCH),
        .tensor = get_le32(data + AT_TENSOR),
        .chunk = get_le32(data + AT_CHUNK),
        .step = get_le64(data + AT_STEP),
        .payload_bytes = get_le64(data + AT_PAYLOAD_BYTES),
        .lr = get_float(data + AT_LR),
        .weight = get_float(data + AT_WEIGHT),
        .weight_sum = get_float(data + AT_WEIGHT_SUM),
        .term = get_le32(data + AT_TEXT_TERM) >> 8,
        .flags = get_le16(data + AT_FLAGS_SKIPS) & 15,
        .skips = get_le16(data + AT_FLAGS_SKIPS) >> 4,
    };
    *(header.kind == WEFT_WIRE_RESULT ? &header.late_us : &header.good) = get_le32(data + AT_GOOD_LATE);
    const uint32_t text_or_scale = get_le32(data + AT_TEXT_TERM) & 255;
    if (weft_wire_contributes(header.kind)) header.loss_exponent = (int8_t)text_or_scale;
    else header.text_bytes = text_or_scale;
    if ((version == WEFT_WIRE_HEADER_VERSION_TERMS) != (header.term > 0)) return WEFT_ERR_MALFORMED;
    if (!header_in_limits(&header) || !floats_usable(&header)) return WEFT_ERR_MALFORMED;
    if (bytes != WEFT_WIRE_HEADER_BYTES + (size_t)header.text_bytes) return WEFT_ERR_MALFORMED;
    *header_out = header;
    return WEFT_OK;
}

void weft_wire_text(const uint8_t *data, const struct weft_wire_header *header,
                    char out[WEFT_LIMIT_RESULT_TEXT_BYTES + 1])
{
    WEFT_ASSERT(header->text_bytes <= WEFT_LIMIT_RESULT_TEXT_BYTES);
    for (uint32_t i = 0; i < header->text_bytes; i++) {
        uint8_t byte = data[WEFT_WIRE_HEADER_BYTES + i];
        out[i] = byte < 0x20 || byte == 0x7f ? '?' : (char)byte;
    }
    out[header->text_bytes] = 0;
}
