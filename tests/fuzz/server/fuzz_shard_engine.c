/* fuzz_shard_engine.c - a shard engine with hostile workers: any sequence of requests.
 *
 * An input is up to 48 messages of 12 bytes. Each selects every field of the header, the payload length and
 * the sending worker. Fields are within the limits of a header (fuzz_wire covers others), values are
 * arbitrary. The requests of some workers travel in message groups. For any input: the engine's memory stays
 * within its limit; after the deadline nothing is held or in flight; steps increase by complete rounds; valid
 * workers get replies. */
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard_verdict.h"
#include "shard_fleet.h"
#include "tests/fuzz/fuzz.h"

enum { MESSAGES = 48, FIELDS = 12, WORKERS = 3, PAYLOAD = 2048 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "main",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {300},
     .chunk_elems = 200},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {40}},
    {.name = "half", .codec = "f16", .optimizer = "sgd", .dim_count = 1, .dims = {50}},
    {.name = "low",
     .codec = "powersgd:rank=1,min_ratio=1",
     .optimizer = "sgd",
     .dim_count = 2,
     .dims = {8, 8}},
    {.name = "top",
     .codec = "topk:ratio=0.1,min_count=16",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {100}},
    {.name = "owing",
     .codec = "topk:ratio=0.1,global=1,min_count=16",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {60}},
    {.name = "clock",
     .codec = "dense",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {70},
     .consistency = "ssp:1"},
    {.name = "bfloat",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {61},
     .dtype = WEFT_BF16},
    {.name = "rounded",
     .codec = "dense",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {45},
     .pull_dtype = WEFT_F16},
};

static void expect(bool promise)
{
    if (!promise) abort();
}

static float odd_float(uint8_t choice, float usual)
{
    static const float odd[] = {0, 1e-40f, 3e38f, -1, 1};
    return choice < 200 ? usual : odd[choice % 5];
}

/* Header of one message: a valid one with fields replaced. */
static struct weft_wire_header header_of(struct fleet *fleet, const uint8_t *field, uint32_t chunk_number)
{
    static const enum weft_wire_kind kinds[] = {
        WEFT_WIRE_PUSH_PULL,  WEFT_WIRE_PUSH,       WEFT_WIRE_PULL,  WEFT_WIRE_INIT,
        WEFT_WIRE_STATE_PULL, WEFT_WIRE_STATE_INIT, WEFT_WIRE_RESULT};
    enum weft_wire_kind kind = kinds[field[1] % 7];
    if (field[1] >= 248) kind = field[1] % 2 ? WEFT_WIRE_APPLY : WEFT_WIRE_PUSH_HOLD;
    struct weft_wire_header header =
        fleet_header(fleet, field[0] % WORKERS, chunk_number, kind, field[3] % 5);
    if (field[4] >= 240) header.worker = field[4] == 240 ? 4095 : field[4] % WORKERS;
    if (field[5] >= 240) header.tensor = field[5] * 257u, header.chunk = field[5];
    header.round = field[6] % 4;
    const bool state = kind == WEFT_WIRE_STATE_PULL || kind == WEFT_WIRE_STATE_INIT;
    if (state && field[6] % 4 == 3) header.round = WEFT_WIRE_PART_RESIDUAL;
    if (state && field[6] % 8 == 2) header.round = WEFT_WIRE_PART_WEIGHTS;
    if (field[7] >= 200) header.codec = field[7] % 16;
    if (field[7] >= 250) header.dtype = field[7] % 5;
    if (field[8] >= 250) header.step = field[8] == 255 ? UINT64_MAX : header.step + field[8];
    if (field[9] >= 250) header.job++;
    else if (field[9] >= 240) header.epoch--;
    else if (field[9] >= 230) header.incarnation++;
    if (weft_wire_contributes((uint8_t)kind) && weft_dtype_is_half(header.dtype))
        header.loss_exponent =
            (int8_t)(field[9] % (2 * WEFT_LIMIT_LOSS_EXPONENT + 1) - WEFT_LIMIT_LOSS_EXPONENT);
    header.lr = odd_float(field[10], header.lr);
    if (weft_wire_contributes((uint8_t)kind) || kind == WEFT_WIRE_APPLY)
        header.weight = odd_float((uint8_t)(field[10] * 31), 1);
    return header;
}

static void send_one(struct fleet *fleet, const uint8_t *field, struct fleet_request *request)
{
    static uint8_t payload[PAYLOAD];
    uint32_t chunk_number = field[2] % fleet->chunk_count;
    const struct fleet_chunk *chunk = &fleet->chunk[chunk_number];
    struct weft_wire_header header = header_of(fleet, field, chunk_number);
    size_t bytes = chunk->count * (weft_dtype_is_half(header.dtype) ? sizeof(uint16_t) : sizeof(float));
    const struct weft_codec_spec *codec = &fleet->codec[chunk->tensor];
    const bool asks = header.kind == WEFT_WIRE_PULL || header.kind == WEFT_WIRE_STATE_PULL ||
                      header.kind == WEFT_WIRE_APPLY,
               plain = header.kind == WEFT_WIRE_INIT || header.kind == WEFT_WIRE_STATE_INIT;
    if (!plain && codec->id != WEFT_CODEC_DENSE && header.round < weft_codec_rounds(codec))
        bytes = weft_codec_contribution_bytes_max(codec, &fleet->shape[chunk->tensor], header.round);
    if (field[11] >= 200) bytes = field[11] * 8u;
    if (asks) bytes = 0;
    memset(payload, field[11], sizeof payload);
    /* zeros are a valid contribution for most codecs */
    if (field[11] < 100) memset(payload, 0, sizeof payload);
    header.payload_bytes = field[8] % 16 == 15 && !asks ? bytes + 1 : bytes;

    uint8_t encoded[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(&header, encoded);
    if (field[8] % 16 == 14) encoded[field[6] % sizeof encoded] ^= field[7];
    request->header = header;
    fleet_send_raw(fleet, field[0] % WORKERS, 0, request, encoded, sizeof encoded, payload, bytes);
}

static void check_quiet(struct fleet *fleet)
{
    struct weft_shard_engine_stats stats;
    weft_shard_engine_stats(fleet->shard[0].engine, &stats);
    expect(stats.receive_bytes_used == 0 && stats.receive_bytes_peak <= fleet->options.receive_bytes_max);
    expect(fleet->shard[0].engine->reply_pool.replies_in_flight == 0);
    expect(fleet->shard[0].engine->groups.memory.used_bytes == 0);
    expect(weft_list_empty(&fleet->shard[0].engine->queues.deferred) &&
           weft_list_empty(&fleet->shard[0].engine->queues.pulls));
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        const struct shard_chunk *chunk = fleet_shard_chunk(fleet, c);
        expect(chunk->open.phase == SHARD_PHASE_IDLE && chunk->open.arrived == 0 &&
               chunk->result.replies_pending == 0 && chunk->result.sends == 0);
        expect(chunk->closed_step <= UINT64_MAX / 2);
        expect(!chunk->workers.contributions);
    }
}

/* A valid push of every worker gets a reply, and succeeds in the end. A worker may first get an earlier error
 * that it has not seen; it then tries again, as a client would. */
static void check_alive(struct fleet *fleet)
{
    static struct fleet_request request[WORKERS];
    uint64_t step = fleet_shard_chunk(fleet, 0)->closed_step + 1;
    const struct shard_verdict *verdict = fleet_shard_chunk(fleet, 0)->verdict;
    if (verdict && verdict->step >= step) step = verdict->step + 1; /* the held sum is left behind */
    enum weft_status wanted = fleet_shard_chunk(fleet, 0)->initialised ? WEFT_OK : WEFT_ERR_STATE;
    memset(request, 0, sizeof request);
    /* drop replies to earlier requests */
    for (uint32_t w = 0; w < WORKERS; w++) fleet->worker[w].open = NULL;
    fleet->options.groups = 0;
    for (uint32_t w = 0; w < WORKERS; w++) fleet_push(fleet, w, 0, WEFT_WIRE_PUSH_PULL, step, &request[w]);
    fleet_settle(fleet, WEFT_MS(1));
    for (uint32_t w = 0; w < WORKERS; w++)
        if (request[w].done && request[w].status != wanted)
            fleet_push(fleet, w, 0, WEFT_WIRE_PUSH_PULL, step, &request[w]);
    for (uint32_t w = 0; w < WORKERS; w++) {
        expect(fleet_await(fleet, &request[w]));
        expect(request[w].status == wanted);
        fleet_request_free(fleet, &request[w]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct fleet_request request[MESSAGES];
    struct fleet_options options = {.seed = 1,
                                    .shards = 1,
                                    .workers = WORKERS,
                                    .receive_bytes_max = 8192,
                                    .tensors = tensors,
                                    .tensor_count = sizeof tensors / sizeof tensors[0],
                                    .round_deadline_ns = WEFT_SECONDS(1),
                                    .hash_every = 1};
    options.groups = bytes > 0 ? data[0] >> 3 & 7 : 0; /* ranks whose requests travel in groups */
    struct fleet *fleet = fleet_create(&options);
    memset(request, 0, sizeof request);
    for (size_t i = 0; i < MESSAGES && (i + 1) * FIELDS <= bytes; i++) {
        const uint8_t *field = data + i * FIELDS;
        send_one(fleet, field, &request[i]);
        if (field[0] & 0x80) fleet_settle(fleet, 5000 * (field[0] & 0x3fu));
        if (field[0] == 0x7f) fleet_settle(fleet, WEFT_SECONDS(2));
    }
    fleet_settle(fleet, WEFT_SECONDS(5));
    check_quiet(fleet);
    check_alive(fleet);
    for (int i = 0; i < MESSAGES; i++) fleet_request_free(fleet, &request[i]);
    fleet_free(fleet);
    return 0;
}

/* First weights of every chunk, or a state, then steps of all workers in an order by `number`, and a state
 * pull. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    size_t at = 0;
    for (uint8_t chunk = 0; chunk < 8 && at + FIELDS <= capacity; chunk++, at += FIELDS) {
        memset(out + at, 0, FIELDS);
        out[at] = 0x80 + 30;
        out[at + 1] = number % 4 == 3 ? 5 : 3;
        out[at + 2] = number % 8 == 7 ? chunk + 1 : chunk;
        out[at + 6] = number % 8 == 7 ? 3 : 0; /* the residual */
    }
    for (uint8_t i = 0; i < 40 && at + FIELDS <= capacity; i++, at += FIELDS) {
        memset(out + at, 0, FIELDS);
        uint8_t which = (uint8_t)(i + number * 5) % 24;
        out[at] = (uint8_t)(which % 3 + (number % 3 == 0 ? 0x80 + 9 : 0));
        out[at] = (uint8_t)(out[at] - out[at] % 3 + which % 3);
        out[at + 1] = (uint8_t)(number + i) % 2;
        out[at + 2] = which / 3;
        out[at + 3] = 1 + i / 24;
        if (number % 4 == 1) { /* held sums, then verdicts */
            out[at + 1] = i < 24 ? 250 : 251;
            out[at + 3] = 1;
        }
        if (number % 4 >= 2 && i % 9 == 8) out[at + 1] = 4, out[at + 6] = number % 8 == 6 ? 3 : 0;
    }
    return at;
}
