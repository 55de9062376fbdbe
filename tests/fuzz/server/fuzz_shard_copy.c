/* fuzz_shard_copy.c - two shard engines that copy each other's chunks, and a peer that sends anything.
 *
 * An input is up to 40 messages of 12 bytes. A message is a replicate, a copy or an answer to them of one
 * shard to the other with any fields within the limits of a header, a push of the worker, held or not, a
 * factor, a Map, or a request that a leader copies a slot or hands it over. For any input: no memory of the
 * copies remains in use, their receive stays within its limit, and nothing leaks. */
#include <stdlib.h>
#include <string.h>

#include "shard_fleet.h"
#include "tests/fuzz/fuzz.h"

enum { MESSAGES = 40, FIELDS = 12, PAYLOAD = 4096 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "main",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {300},
     .chunk_elems = 200},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {40}},
    {.name = "codes", .codec = "int8:min_count=0", .optimizer = "sgd", .dim_count = 1, .dims = {300}},
    {.name = "largest",
     .codec = "topk:ratio=0.1,min_count=0,global=1",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {300}},
    {.name = "short", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {60}, .dtype = WEFT_BF16},
    {.name = "halves",
     .codec = "powersgd:rank=1",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {12, 20}},
    {.name = "clock",
     .codec = "dense",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {60},
     .consistency = "asp"},
};

struct message {
    struct weft_completion sent;
    uint8_t payload[PAYLOAD];
};

static void expect(bool promise)
{
    if (!promise) abort();
}

static void message_sent(struct weft_completion *completion, enum weft_status status) {}

/* Of a step that fits the chunk, if its codec has one length. */
static uint64_t payload_bytes(struct fleet *fleet, uint32_t number)
{
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, number);
    return chunk->coding.combiner ? weft_combiner_step_bytes_max(chunk->coding.combiner, 1)
                                  : chunk->count * sizeof(float);
}

/* A part of a chunk, mostly one that it has. */
static void copy_header(struct fleet *fleet, const uint8_t *field, struct weft_wire_header *header)
{
    static const uint8_t parts[] = {0,
                                    1,
                                    WEFT_WIRE_PART_RESULT,
                                    WEFT_WIRE_PART_WEIGHTS,
                                    WEFT_WIRE_PART_WEIGHTS,
                                    WEFT_WIRE_PART_RESIDUAL,
                                    WEFT_WIRE_PART_CLOCKS};
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, field[2] % fleet->chunk_count);
    const bool is_result = parts[field[6] % sizeof parts] == WEFT_WIRE_PART_RESULT;
    header->kind = WEFT_WIRE_COPY;
    header->round = parts[field[6] % sizeof parts];
    header->flags = field[8] % 16;
    header->skips = field[10] >= 200 ? field[10] % 4 : 0;
    header->incarnation = field[4] % 8 < 6 ? 0 : field[4];
    header->codec =
        is_result == (field[9] < 240) ? (uint8_t)chunk->coding.codec.id : (uint8_t)WEFT_CODEC_DENSE;
    header->epoch = field[9] == 236 ? FLEET_EPOCH + 1 : field[9] == 235 ? FLEET_EPOCH - 1 : FLEET_EPOCH;
    header->payload_bytes = is_result && field[7] < 200 ? 1u + field[7]
                            : field[7] < 240            ? chunk->count * sizeof(float)
                                                        : field[7] * 8u;
    if (header->round == WEFT_WIRE_PART_CLOCKS && field[7] < 200)
        header->payload_bytes = (1 + fleet->options.workers) * sizeof(uint64_t); /* updates, clocks */
    if (field[7] == 239 && header->round == WEFT_WIRE_PART_WEIGHTS) header->payload_bytes = 0;
}

static struct weft_wire_header header_of(struct fleet *fleet, const uint8_t *field)
{
    const struct fleet_chunk *chunk = &fleet->chunk[field[2] % fleet->chunk_count];
    struct weft_wire_header header = {
        .kind = field[1] % 4 == 3 ? WEFT_WIRE_REPLICATED : WEFT_WIRE_REPLICATE,
        .dtype = field[9] >= 250 ? field[9] % 5 : WEFT_F32,
        .codec = field[9] >= 240 && field[9] < 250 ? field[9] % 3
                 : field[3] % 6 > 0                ? (uint8_t)fleet->codec[chunk->tensor].id
                                                   : (uint8_t)WEFT_CODEC_DENSE,
        .round = field[6] < 128 ? 0 : field[6] % 16,
        .job = field[9] == 239 ? 1 : FLEET_JOB,
        .incarnation = field[4] == 255 ? UINT64_MAX : field[4] % 6,
        .epoch = FLEET_EPOCH,
        .tensor = field[9] == 238 ? 9 : chunk->tensor,
        .chunk = field[9] == 237 ? 77 : chunk->index,
        .step = field[3] == 255 ? UINT64_MAX : field[3] % 6,
        .term = 1 + field[5] % 3,
        .lr = (float)field[10],
        .weight_sum = (float)(field[10] % 5),
    };
    if (field[1] % 8 == 2) {
        copy_header(fleet, field, &header);
        return header;
    }
    if (header.kind == WEFT_WIRE_REPLICATED) {
        if (field[1] % 8 == 7) header.kind = WEFT_WIRE_COPIED;
        header.status = field[8] % 3 ? 0 : -(int32_t)(1 + field[8] % 99);
        return header;
    }
    if (field[1] % 16 == 4) { /* of the values, or of others */
        const struct shard_chunk *at = fleet_shard_chunk(fleet, field[2] % fleet->chunk_count);
        header.kind = WEFT_WIRE_COMPARE;
        header.incarnation = field[4] % 2 || !at->values
                                 ? field[4]
                                 : weft_chunk_hash(at->index, at->values, at->count * sizeof(float));
        return header;
    }
    header.worker = field[10] % 3;
    header.flags = field[8] & WEFT_WIRE_MAY_SKIP;
    header.skips = field[8] >= 200 ? field[8] % 4 : 0;
    header.good = header.skips ? field[4] % 6 : 0;
    header.payload_bytes = field[7] < 50    ? 0
                           : field[7] < 180 ? payload_bytes(fleet, field[2] % fleet->chunk_count)
                           : field[7] < 200 ? chunk->count * sizeof(float)
                           : field[7] < 220 ? sizeof(float)
                                            : field[7] * 8u;
    return header;
}

static void send_one(struct fleet *fleet, const uint8_t *field, struct message *message)
{
    const uint32_t from = field[0] & 1;
    const struct weft_wire_header header = header_of(fleet, field);
    uint8_t bytes[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(&header, bytes);
    if (field[11] == 255) bytes[field[6] % sizeof bytes] ^= field[7];
    memset(message->payload, field[11], sizeof message->payload);
    weft_completion_init(&message->sent, 1, message_sent);
    const struct weft_message out = {.tag = WEFT_TAG(WEFT_CHANNEL_SHARD, 0),
                                     .header = bytes,
                                     .header_bytes = sizeof bytes,
                                     .payload = header.payload_bytes ? message->payload : NULL,
                                     .payload_bytes = (size_t)header.payload_bytes};
    (void)weft_transport_send(weft_transport_peer(fleet->shard[from].transport, fleet->shard[!from].endpoint),
                              &out, &message->sent);
}

/* The worker's push of a step that is clipped, or its factor. */
static void clip_one(struct fleet *fleet, const uint8_t *field, struct fleet_request *request)
{
    const uint32_t number = field[2] % fleet->chunk_count;
    if (field[4] & 1) {
        fleet_push(fleet, 0, number, WEFT_WIRE_PUSH_HOLD, 1 + field[3] % 5, request);
        return;
    }
    struct weft_wire_header header = fleet_header(fleet, 0, number, WEFT_WIRE_APPLY, 1 + field[3] % 5);
    header.round = field[6] % 3;
    header.weight = (float)field[10] / 128;
    fleet_send(fleet, 0, fleet->chunk[number].shard, request, &header, NULL, 0);
}

/* A leader without copy, a change of places, or an entry without effect. */
static void map_one(struct fleet *fleet, const uint8_t *field)
{
    const uint32_t number = field[2] % fleet->chunk_count, leader = field[3] & 1;
    uint32_t copy = fleet->shard[!leader].endpoint;
    Weft__Control__Slot slot = WEFT__CONTROL__SLOT__INIT, *slots = &slot;
    Weft__Control__Map map = WEFT__CONTROL__MAP__INIT;
    slot.slot = field[6] == 255 ? WEFT_LIMIT_SLOTS - 1 : number;
    slot.term = 1 + field[5] % 4;
    slot.leader = fleet->shard[leader].endpoint;
    slot.n_copies = field[4] & 1;
    slot.copies = &copy;
    map.n_slots = 1;
    map.slots = &slots;
    for (uint32_t s = 0; s < 2; s++)
        if (field[7] & (1u << s)) weft_shard_engine_map(fleet->shard[s].engine, &map);
}

/* The leader copies the slot to the other shard, or hands it over. */
static void move_one(struct fleet *fleet, const uint8_t *field)
{
    struct weft_shard_engine *engine = fleet->shard[field[3] & 1].engine;
    const uint32_t slot = field[2] % fleet->chunk_count, term = 1 + field[5] % 4;
    if (field[4] & 1) weft_shard_engine_hand_over(engine, slot, term);
    else weft_shard_engine_copy(engine, slot, term, fleet->shard[!(field[3] & 1)].endpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct message message[MESSAGES];
    static struct fleet_request request[MESSAGES];
    const struct fleet_options options = {.seed = 1,
                                          .shards = 2,
                                          .workers = 1,
                                          .receive_bytes_max = 8192,
                                          .tensors = tensors,
                                          .tensor_count = sizeof tensors / sizeof tensors[0],
                                          .round_deadline_ns = WEFT_SECONDS(1),
                                          .copies = true};
    struct fleet *fleet = fleet_create(&options);
    memset(request, 0, sizeof request);
    fleet_install(fleet);
    for (size_t i = 0; i < MESSAGES && (i + 1) * FIELDS <= bytes; i++) {
        const uint8_t *field = data + i * FIELDS;
        if (field[1] < 20) clip_one(fleet, field, &request[i]);
        else if (field[1] < 40)
            fleet_push(fleet, 0, field[2] % fleet->chunk_count, WEFT_WIRE_PUSH_PULL, 1 + field[3] % 5,
                       &request[i]);
        else if (field[1] >= 240) map_one(fleet, field);
        else if (field[1] >= 232) move_one(fleet, field);
        else send_one(fleet, field, &message[i]);
        if (field[0] & 0x80) fleet_settle(fleet, 5000 * (field[0] & 0x3fu));
    }
    fleet_settle(fleet, WEFT_SECONDS(5));
    for (uint32_t s = 0; s < 2; s++) {
        struct weft_shard_engine_stats stats;
        const struct shard_arena *memory = &fleet->shard[s].engine->replication.memory;
        weft_shard_engine_stats(fleet->shard[s].engine, &stats);
        expect(memory->used_bytes == 0 && memory->peak_bytes <= memory->bytes);
        expect(stats.receive_bytes_peak <= options.receive_bytes_max);
    }
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct shard_chunk *chunk = fleet_shard_chunk(fleet, c);
        expect(!chunk->copy.payload && chunk->closed_step <= SHARD_STEP_MAX);
    }
    for (int i = 0; i < MESSAGES; i++) fleet_request_free(fleet, &request[i]);
    fleet_free(fleet);
    return 0;
}

/* Pushes and replicates in order; odd numbers change the leader in the middle, every third one drops the
 * copies, which are made again. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    size_t at = 0;
    for (uint8_t i = 0; i < 30 && at + FIELDS <= capacity; i++, at += FIELDS) {
        memset(out + at, 0, FIELDS);
        out[at] = (uint8_t)(0x80 + 9 + (number / 2 + i) % 2);
        out[at + 1] = i % 3 == 0 ? 10 : 40;
        out[at + 2] = (uint8_t)((number + i) % 6);
        out[at + 3] = (uint8_t)(i / 6);
        out[at + 4] = (uint8_t)(i % 3 == 0 ? 0 : i / 6 - (i >= 6));
        out[at + 7] = 100;
        out[at + 10] = 1;
        if (number % 2 && i == 15) out[at + 1] = 250, out[at + 5] = 1, out[at + 7] = 3;
        if (number % 3 == 0 && i % 3 == 1) out[at + 1] = 250, out[at + 5] = 1, out[at + 7] = 3;
        if (number % 3 == 0 && i % 3 == 2) {
            out[at + 1] = 232;
            out[at + 2] = (uint8_t)((number + i - 1) % 6);
            out[at + 5] = 1;
        }
    }
    return at;
}
