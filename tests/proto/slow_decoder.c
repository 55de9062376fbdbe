/* slow_decoder.c - see slow_decoder.h: an independent implementation of docs/wire.md. */
#include "tests/proto/slow_decoder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- section 1 ---- */

static uint64_t little_endian(const uint8_t *data, unsigned at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) value += (uint64_t)data[at + i] << (8 * i);
    return value;
}

static uint32_t rotl(uint32_t x, int r) { return x << r | x >> (32 - r); }

/* xxHash's own specification, XXH32, seed 0. */
uint32_t slow_xxh32(const uint8_t *data, size_t bytes)
{
    const uint32_t p1 = 2654435761u, p2 = 2246822519u, p3 = 3266489917u, p4 = 668265263u, p5 = 374761393u;
    uint32_t acc = p5;
    size_t at = 0;
    if (bytes >= 16) {
        uint32_t lane[4] = {p1 + p2, p2, 0, 0u - p1};
        for (; at + 16 <= bytes; at += 16)
            for (unsigned i = 0; i < 4; i++)
                lane[i] =
                    rotl(lane[i] + (uint32_t)little_endian(data, (unsigned)at + 4 * i, 4) * p2, 13) * p1;
        acc = rotl(lane[0], 1) + rotl(lane[1], 7) + rotl(lane[2], 12) + rotl(lane[3], 18);
    }
    acc += (uint32_t)bytes;
    for (; at + 4 <= bytes; at += 4)
        acc = rotl(acc + (uint32_t)little_endian(data, (unsigned)at, 4) * p3, 17) * p4;
    for (; at < bytes; at++) acc = rotl(acc + data[at] * p5, 11) * p1;
    acc = (acc ^ acc >> 15) * p2;
    acc = (acc ^ acc >> 13) * p3;
    return acc ^ acc >> 16;
}

static bool finite_bits(uint32_t bits) { return (bits >> 23 & 0xff) != 0xff; }
static bool negative_bits(uint32_t bits) { return bits >> 31 != 0; }

int slow_header_decode(const uint8_t *data, size_t bytes, struct slow_header *out)
{
    if (bytes < 88 || bytes > 216) return -1;
    if (memcmp(data, "WTF1", 4) != 0) return -1;
    const uint64_t version = little_endian(data, 4, 2);
    if (version != 1 && version != 2) return -2;
    if (little_endian(data, 84, 4) != slow_xxh32(data, 84)) return -1;
    struct slow_header h;
    h.kind = data[6];
    h.codec = data[7];
    h.dtype = data[8];
    h.round = data[9];
    h.status = (int64_t)little_endian(data, 12, 4);
    if (h.status >= 1ll << 31) h.status -= 1ll << 32;
    h.job = little_endian(data, 16, 8);
    h.incarnation = little_endian(data, 24, 8);
    h.worker = little_endian(data, 32, 4);
    h.epoch = little_endian(data, 36, 4);
    h.tensor = little_endian(data, 40, 4);
    h.chunk = little_endian(data, 44, 4);
    h.step = little_endian(data, 48, 8);
    h.payload_bytes = little_endian(data, 56, 8);
    h.lr_bits = (uint32_t)little_endian(data, 64, 4);
    h.weight_bits = (uint32_t)little_endian(data, 68, 4);
    h.weight_sum_bits = (uint32_t)little_endian(data, 72, 4);
    h.text_bytes = data[76];
    h.loss_exponent = 0;
    h.term = little_endian(data, 77, 3);
    h.flags = little_endian(data, 10, 2) % 16;
    h.skips = little_endian(data, 10, 2) / 16;
    h.good = little_endian(data, 80, 4);

    const bool pushes = h.kind == 1 || h.kind == 2 || h.kind == 12;
    if (pushes) {
        h.loss_exponent = data[76] < 128 ? data[76] : data[76] - 256;
        h.text_bytes = 0;
    }
    if (h.loss_exponent && h.dtype != 2 && h.dtype != 3) return -1;
    if (h.loss_exponent > 60 || h.loss_exponent < -60) return -1;
    const bool answers = h.kind == 5 || h.kind == 9 || h.kind == 11;
    const bool between_shards = (h.kind >= 8 && h.kind <= 11) || h.kind == 14;
    if (h.kind < 1 || h.kind > 14) return -1;
    if (h.codec > 15 || h.dtype > 4 || h.round > 15 || (between_shards && !h.term)) return -1;
    if (h.status > 0 || h.status < -99) return -1;
    if (h.worker >= 4096 || h.tensor >= 65536 || h.chunk >= 65536 || h.payload_bytes > 1ull << 36) return -1;
    if (!finite_bits(h.lr_bits) || !finite_bits(h.weight_bits) || !finite_bits(h.weight_sum_bits)) return -1;
    if ((pushes || h.kind == 13) && negative_bits(h.weight_bits)) return -1;
    if (!answers && h.status != 0) return -1;
    const bool is_short = h.kind == 3 || h.kind == 6 || h.kind == 9 || h.kind == 11 || h.kind >= 13;
    if (h.payload_bytes && (is_short || h.status < 0)) return -1;
    if ((version == 1 && h.term) || (version == 2 && !h.term)) return -1;
    if (h.text_bytes > 128 || (h.text_bytes && (h.status >= 0 || h.kind != 5))) return -1;
    if (h.kind == 10 && !h.payload_bytes) return -1;
    if (h.flags && !pushes && h.kind != 10 && h.kind != 11 && h.kind != 5 && (h.kind != 8 || h.flags & 6))
        return -1;
    if (h.kind == 5 && h.flags && (h.flags != 2 || h.status < 0)) return -1;
    if (h.flags / 4 % 2 && h.payload_bytes && h.kind != 10) return -1;
    if (h.flags >= 8 && negative_bits(h.kind == 8 ? h.weight_bits : h.weight_sum_bits)) return -1;
    if ((h.skips && answers) || (h.good && !h.skips && h.kind != 5)) return -1;
    if (bytes != 88 + h.text_bytes) return -1;
    *out = h;
    return 0;
}

/* ---- section 2 ---- */

enum type {
    NONE,
    U32,
    U64,
    S32,
    BOOL,
    ENUM,
    TEXT,
    NAME,
    BYTES,
    U64_REPEATED,
    BYTES_REPEATED,
    PART,
    PART_REPEATED
};
struct field {
    int number;
    const char *name;
    enum type type;
    const struct field *part;
};

static const struct field challenge[] = {{1, "wire_version", U32},
                                         {2, "nonce", BYTES},
                                         {3, "weft_version", NAME},
                                         {4, "auth_required", BOOL},
                                         {7, "seals", U32},
                                         {104, "wire_newest", U32},
                                         {0}};
static const struct field hello[] = {{1, "wire_version", U32},
                                     {2, "weft_version", NAME},
                                     {3, "job", NAME},
                                     {4, "role", ENUM},
                                     {5, "name", NAME},
                                     {6, "wanted_index", S32},
                                     {7, "host", NAME},
                                     {8, "pid", U64},
                                     {9, "proof", BYTES},
                                     {10, "nonce", BYTES},
                                     {11, "endpoints", U32},
                                     {12, "device", BOOL},
                                     {13, "states", BOOL},
                                     {14, "frees", BOOL},
                                     {15, "seals", U32},
                                     {16, "progress", BOOL},
                                     {17, "slots", BOOL},
                                     {104, "wire_oldest", U32},
                                     {105, "wire_newest", U32},
                                     {0}};
static const struct field welcome[] = {{1, "member", U32},
                                       {2, "index", U32},
                                       {3, "incarnation", U64},
                                       {4, "transport_nonce", U64},
                                       {5, "workers", U32},
                                       {6, "shards", U32},
                                       {7, "endpoint_first", U32},
                                       {8, "proof", BYTES},
                                       {9, "job_id", U64},
                                       {10, "heartbeat_ns", U64},
                                       {11, "workers_min", U32},
                                       {12, "frees", BOOL},
                                       {13, "beat_ns", U64},
                                       {14, "copies", U32},
                                       {55, "workers_max", U32},
                                       {0}};
static const struct field endpoints[] = {{1, "addresses", BYTES_REPEATED}, {0}};
static const struct field member[] = {
    {1, "member", U32}, {2, "role", ENUM},       {3, "index", U32},          {4, "name", NAME},
    {5, "host", NAME},  {6, "incarnation", U64}, {7, "endpoint_first", U32}, {8, "addresses", BYTES_REPEATED},
    {9, "pid", U64},    {10, "device", BOOL},    {11, "states", BOOL},       {104, "wire_newest", U32},
    {0}};
static const struct field roster[] = {
    {1, "epoch", U32},       {2, "members", PART_REPEATED, member},
    {3, "coordinator", NAME}, {104, "wire_version", U32},
    {0}};
static const struct field link_cost[] = {{1, "pairs", U32},
                                         {2, "unknown", U32},
                                         {3, "latency_ns", U64},
                                         {4, "bytes_per_second", U64},
                                         {5, "eager_bytes", U64},
                                         {6, "inject_ns", U32},
                                         {7, "sum_ps", U32},
                                         {8, "pass_ps", U32},
                                         {9, "incast_milli", U32},
                                         {10, "ring", BYTES},
                                         {11, "words_ns", U32},
                                         {12, "slices_ns", U32},
                                         {13, "said_ps", U32},
                                         {14, "cached_ps", U32},
                                         {15, "passed_ps", U32},
                                         {16, "core_kib", U32},
                                         {17, "last_kib", U32},
                                         {19, "past_ps", U32},
                                         {20, "runs", BYTES},
                                         {21, "calibration", BYTES},
                                         {0}};
static const struct field ready[] = {{1, "epoch", U32}, {2, "cost", PART, link_cost}, {0}};
static const struct field go[] = {{1, "epoch", U32},     {2, "cost", PART, link_cost},
                                  {3, "committed", U64}, {4, "codec_steps", U64},
                                  {5, "tensors", U32},   {0}};
static const struct field declare[] = {{1, "ordinal", U32},
                                       {2, "name", NAME},
                                       {3, "dtype", U32},
                                       {4, "dims", U64_REPEATED},
                                       {5, "codec", NAME},
                                       {6, "optimizer", NAME},
                                       {7, "mode", U32},
                                       {8, "chunk_bytes", U64},
                                       {50, "consistency", NAME},
                                       {90, "pull_dtype", U32},
                                       {0}};
static const struct field chunk[] = {
    {1, "offset", U64},    {2, "count", U64}, {3, "endpoint", U32},
    {4, "candidate", U32}, {5, "slot", U32},  {0}};
static const struct field declared[] = {
    {1, "tensor", U32}, {2, "declare", PART, declare}, {3, "chunks", PART_REPEATED, chunk}, {0}};
static const struct field tensor_only[] = {{1, "tensor", U32}, {0}};
static const struct field codec_figures[] = {{1, "encode_buckets", U64_REPEATED},
                                             {2, "encode_ns", U64},
                                             {3, "decode_buckets", U64_REPEATED},
                                             {4, "decode_ns", U64},
                                             {5, "gradient_bytes", U64},
                                             {6, "encoded_bytes", U64},
                                             {0}};
static const struct field report[] = {{1, "steps", U64},
                                      {2, "step_ns", U64},
                                      {3, "exposed_ns", U64},
                                      {4, "exposed_peers_ns", U64},
                                      {5, "wait_ns", U64},
                                      {6, "requests", U64},
                                      {7, "encode_ns", U64},
                                      {8, "idle_ns", U64},
                                      {9, "open_ns", U64},
                                      {10, "open", TEXT},
                                      {11, "sent_bytes", U64},
                                      {12, "received_bytes", U64},
                                      {17, "step_buckets", U64_REPEATED},
                                      {18, "exposed_buckets", U64_REPEATED},
                                      {19, "exposed_tensor", U32},
                                      {20, "exposed_tensor_ns", U64},
                                      {93, "failover_buckets", U64_REPEATED},
                                      {94, "failover_ns", U64},
                                      {13, "rounds", U64},
                                      {14, "rounds_open", U64},
                                      {15, "round_ns", U64},
                                      {16, "missing", U64},
                                      {21, "pushed_bytes", U64},
                                      {22, "work_ns", U64},
                                      {124, "codec", PART, codec_figures},
                                      {0}};
static const struct field progress[] = {{1, "operations", U64},
                                        {2, "open_ns", U64},
                                        {3, "usual_ns", U64},
                                        {4, "waits_for", U32},
                                        {5, "call", NAME},
                                        {6, "is_stalled", BOOL},
                                        {0}};
static const struct field heartbeat[] = {{1, "time_ns", U64},
                                         {2, "ask", U32},
                                         {3, "answer", U32},
                                         {4, "wait_reason", BOOL},
                                         {5, "text", TEXT},
                                         {6, "progress", PART, progress},
                                         {7, "ask_progress", BOOL},
                                         {16, "report", PART, report},
                                         {0}};
static const struct field member_lost[] = {{1, "member", U32},
                                           {2, "text", TEXT},
                                           {3, "role", ENUM},
                                           {4, "index", U32},
                                           {5, "epoch", U32},
                                           {6, "pid", U64},
                                           {0}};
static const struct field abort_[] = {{1, "status", S32}, {2, "text", TEXT}, {0}};
static const struct field leave[] = {{1, "text", TEXT}, {2, "committed", U64}, {0}};
static const struct field text_only[] = {{1, "text", TEXT}, {0}};
static const struct field weight_hash[] = {{1, "tensor", U32}, {2, "step", U64}, {3, "hash", U64},
                                           {4, "worker", U32}, {5, "home", U32}, {0}};
static const struct field nothing[] = {{0}};
static const struct field status_reply[] = {{1, "json", BYTES}, {0}};
static const struct field shrink[] = {{1, "epoch", U32}, {2, "committed", U64}, {3, "codec_steps", U64}, {0}};
static const struct field shrunk[] = {{1, "epoch", U32},
                                      {2, "committed", U64},
                                      {3, "members", U64_REPEATED},
                                      {4, "last", U32},
                                      {5, "codec_steps", U64},
                                      {6, "newcomers", PART_REPEATED, member},
                                      {0}};
static const struct field join[] = {{1, "committed", U64}, {2, "codec_steps", U64}, {0}};
static const struct field joined[] = {{1, "member", U32}, {2, "text", TEXT}, {3, "epoch", U32}, {0}};
static const struct field grow[] = {{1, "epoch", U32}, {2, "text", TEXT}, {0}};
static const struct field left[] = {{1, "member", U32}, {2, "text", TEXT}, {3, "index", U32}, {0}};
static const struct field slot[] = {
    {1, "slot", U32}, {2, "term", U32}, {3, "leader", U32}, {4, "copies", U64_REPEATED}, {0}};
static const struct field map[] = {
    {1, "version", U32}, {2, "slots", PART_REPEATED, slot}, {3, "lost", U32}, {4, "text", TEXT}, {0}};
static const struct field host_finding[] = {
    {1, "subject", NAME}, {2, "text", TEXT}, {3, "advice", TEXT}, {0}};
static const struct field host_health[] = {
    {1, "host", NAME}, {2, "findings", PART_REPEATED, host_finding}, {0}};
static const struct field bodies[] = {{1, "challenge", PART, challenge},
                                      {2, "hello", PART, hello},
                                      {3, "welcome", PART, welcome},
                                      {4, "endpoints", PART, endpoints},
                                      {5, "roster", PART, roster},
                                      {6, "ready", PART, ready},
                                      {7, "go", PART, go},
                                      {8, "declare", PART, declare},
                                      {9, "declared", PART, declared},
                                      {10, "declared_ok", PART, tensor_only},
                                      {11, "heartbeat", PART, heartbeat},
                                      {12, "member_lost", PART, member_lost},
                                      {13, "abort", PART, abort_},
                                      {14, "leave", PART, leave},
                                      {15, "finished", PART, text_only},
                                      {16, "weight_hash", PART, weight_hash},
                                      {17, "status_request", PART, nothing},
                                      {18, "status_reply", PART, status_reply},
                                      {19, "shrink", PART, shrink},
                                      {20, "shrunk", PART, shrunk},
                                      {21, "join", PART, join},
                                      {22, "joined", PART, joined},
                                      {23, "grow", PART, grow},
                                      {24, "left", PART, left},
                                      {25, "tensor_free", PART, tensor_only},
                                      {30, "map", PART, map},
                                      {117, "host_health", PART, host_health},
                                      {0}};

struct writer {
    char *out;
    size_t used, capacity;
};

static void append(struct writer *writer, int indent, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    for (int i = 0; i < indent && writer->used + 1 < writer->capacity; i++) writer->out[writer->used++] = ' ';
    int n = vsnprintf(writer->out + writer->used, writer->capacity - writer->used, format, args);
    va_end(args);
    writer->used =
        writer->used + (size_t)n < writer->capacity ? writer->used + (size_t)n : writer->capacity - 1;
}

struct reader {
    const uint8_t *data;
    size_t bytes, at;
};

static bool varint(struct reader *reader, uint64_t *value_out)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (reader->at == reader->bytes) return false;
        uint8_t byte = reader->data[reader->at++];
        if (shift < 64) value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

static bool length(struct reader *reader, struct reader *inside)
{
    uint64_t bytes;
    if (!varint(reader, &bytes) || bytes > reader->bytes - reader->at) return false;
    *inside = (struct reader){reader->data + reader->at, (size_t)bytes, 0};
    reader->at += (size_t)bytes;
    return true;
}

static bool message(struct reader reader, const struct field *fields, int indent, struct writer *writer);

static bool one(struct reader *reader, int wire, const struct field *field, int indent, struct writer *writer)
{
    uint64_t value;
    struct reader inside;
    bool is_varint = field->type >= U32 && field->type <= ENUM;
    if (is_varint || (field->type == U64_REPEATED && wire == 0)) {
        if (wire != 0 || !varint(reader, &value)) return false;
        if (field->type == S32)
            append(writer, indent, "%s %d\n", field->name,
                (int)((uint32_t)value >> 1 ^ (0u - ((uint32_t)value & 1u))));
        else if (field->type == U32 || field->type == ENUM)
            append(writer, indent, "%s %u\n", field->name, (unsigned)value);
        else append(writer, indent, "%s %llu\n", field->name, (unsigned long long)value);
        return true;
    }
    if (wire != 2 || !length(reader, &inside)) return false;
    switch (field->type) {
    case U64_REPEATED:
        while (inside.at < inside.bytes) {
            if (!varint(&inside, &value)) return false;
            append(writer, indent, "%s %llu\n", field->name, (unsigned long long)value);
        }
        return true;
    case TEXT:
    case NAME:
        append(writer, indent, "%s \"", field->name);
        for (size_t i = 0; i < inside.bytes; i++) {
            bool unprintable = inside.data[i] < 0x20 || inside.data[i] == 0x7f;
            if (unprintable && field->type == NAME) return false;
            append(writer, 0, "%c", unprintable ? '?' : inside.data[i]);
        }
        append(writer, 0, "\"\n");
        return true;
    case BYTES:
    case BYTES_REPEATED:
        append(writer, indent, "%s ", field->name);
        for (size_t i = 0; i < inside.bytes; i++) append(writer, 0, "%02x", inside.data[i]);
        append(writer, 0, "\n");
        return true;
    default:
        append(writer, indent, "%s\n", field->name);
        return message(inside, field->part, indent + 2, writer);
    }
}

static bool message(struct reader reader, const struct field *fields, int indent, struct writer *writer)
{
    while (reader.at < reader.bytes) {
        uint64_t key;
        if (!varint(&reader, &key)) return false;
        const struct field *field = fields;
        while (field->number && (uint64_t)field->number != key >> 3) field++;
        if (!field->number) return false; /* the tests write no unknown fields */
        if (!one(&reader, (int)(key & 7), field, indent, writer)) return false;
    }
    return true;
}

bool slow_control_decode(const uint8_t *data, size_t bytes, char *out, size_t out_bytes)
{
    struct writer writer = {out, 0, out_bytes};
    out[0] = 0;
    return bytes > 0 && message((struct reader){data, bytes, 0}, bodies, 0, &writer) && out[0] != 0;
}

/* ---- section 4 ---- */

/* Bit `at` of the stream that starts at data[0]; -1: after the end. */
static int bit(const uint8_t *data, size_t bytes, size_t at)
{
    return at / 8 < bytes ? data[at / 8] >> at % 8 & 1 : -1;
}

/* One block of `count` indices. Returns the bytes of its bits and padding, or -1. */
static long block(const uint8_t *data, size_t bytes, unsigned b, uint64_t count, uint64_t start, uint64_t end,
                  uint32_t *indices_out)
{
    size_t at = 0;
    uint64_t previous = start - 1; /* wraps for the first block, and back */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t gap = 0;
        int value;
        while ((value = bit(data, bytes, at++)) == 0)
            if (++gap > 65536) return -1;
        if (value < 0) return -1;
        gap <<= b;
        for (unsigned k = 0; k < b; k++) {
            if ((value = bit(data, bytes, at++)) < 0) return -1;
            gap |= (uint64_t)value << k;
        }
        previous += gap + 1;
        if (previous >= end) return -1;
        indices_out[i] = (uint32_t)previous;
    }
    for (; at % 8; at++)
        if (bit(data, bytes, at) != 0) return -1;
    return (long)(at / 8);
}

long slow_index_decode(const uint8_t *data, size_t bytes, uint64_t elem_count, uint32_t *indices_out,
                       size_t indices_room, size_t *consumed_out)
{
    if (bytes < 4) return -1;
    uint64_t total = little_endian(data, 0, 4), found = 0;
    size_t at = 4;
    if (total > elem_count || total > indices_room) return -1;
    for (uint64_t start = 0; start < elem_count; start += 65536) {
        uint64_t end = start + 65536 < elem_count ? start + 65536 : elem_count;
        if (at >= bytes) return -1;
        unsigned form = data[at++];
        if (form == 0xff) continue;
        if (form > 15 || bytes - at < 2) return -1;
        uint64_t count = little_endian(data, (unsigned)at, 2) + 1;
        at += 2;
        if (count > total - found) return -1;
        long used = block(data + at, bytes - at, form, count, start, end, indices_out + found);
        if (used < 0) return -1;
        at += (size_t)used;
        found += count;
    }
    *consumed_out = at;
    return found == total ? (long)found : -1;
}
