/* fuzz_collective.c - a group with a hostile rank: any bytes in headers, any lengths, any order.
 *
 * An input is one byte that selects the operation, then messages of 84 bytes: tag choice, payload length (2),
 * fill, header (80). For any input: the operation completes once, within its deadline and the time of the
 * diagnosis; memory beside the output does not change; the group can be freed. */
#include <stdlib.h>
#include <string.h>

#include "collective/core/group.h"
#include "tests/collective/world.h"
#include "tests/fuzz/fuzz.h"

enum { MESSAGES = 16, RECORD = 4 + COLL_HEADER_BYTES, COUNT = 64, BUFFER_BYTES = 8 * COUNT, GUARD = 64 };

static void expect(bool promise)
{
    if (!promise) abort();
}

static struct weft_coll_args args_of(uint8_t choice, uint8_t *in, uint8_t *out, uint64_t *lengths)
{
    static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_I64};
    struct weft_coll_args args = {.kind = 1 + choice % 6,
                                  .in = in,
                                  .out = out,
                                  .count = COUNT / 2,
                                  .dtype = dtypes[choice / 6 % 3],
                                  .op = WEFT_SUM,
                                  .root = 1,
                                  .deadline_ns = WEFT_MS(100),
                                  .piece_bytes_max = BUFFER_BYTES / 2,
                                  .piece_bytes_out = lengths};
    if (weft_plan_supports(WEFT_PLAN_RING, args.kind) && choice / 18 % 2) args.plan = WEFT_PLAN_RING;
    return args;
}

struct sent {
    struct weft_completion completion;
    uint8_t payload[1 << 10];
};
static void sent_done(struct weft_completion *completion, enum weft_status status) {}

static void send_one(struct world *world, struct weft_group *group, const uint8_t *record, struct sent *sent)
{
    uint64_t tags[] = {group_tag(group, 0), group_control_tag(group), group_tag(group, 0),
                       group_tag(group, record[0] / 4)};
    memset(sent->payload, record[3], sizeof sent->payload);
    struct weft_message message = {
        .tag = tags[record[0] % 4], .header = record + 4, .header_bytes = COLL_HEADER_BYTES};
    message.payload_bytes = (record[1] | record[2] << 8) % sizeof sent->payload;
    message.payload = sent->payload;
    if (record[0] >= 250) message.header_bytes = record[0] - 250;
    weft_completion_init(&sent->completion, 1, sent_done);
    weft_transport_send(weft_transport_peer(world->transports[1], 100), &message, &sent->completion);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct sent sent[MESSAGES];
    static uint8_t in[BUFFER_BYTES], out[BUFFER_BYTES + GUARD];
    uint64_t lengths[2];
    if (bytes == 0) return 0;
    struct weft_env env = *weft_env_system();
    env.log_level = WEFT_LOG_ERROR;
    struct world *world = world_create(&env, 2, 1, NULL);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.transport = world->transports[0];
    options.loop = world->loops[0];
    options.ranks = 2;
    options.endpoint_ids = (const uint32_t[]){100, 101};
    options.group_id = 1;
    options.chunk_bytes = 64;
    options.retune = data[0] >= 128 ? WEFT_RETUNE_ANY : WEFT_RETUNE_OFF;
    struct weft_group *group;
    expect(weft_group_create(world->envs[0], &options, &group, NULL) == WEFT_OK);
    memset(out, 0xa5, sizeof out);
    struct outcome outcome = {0};
    struct weft_coll_args args = args_of(data[0], in, out, lengths);
    expect(weft_coll_post(group, &args, outcome_done, &outcome, NULL, NULL) == WEFT_IN_PROGRESS);
    for (size_t i = 0; i < MESSAGES && 1 + (i + 1) * RECORD <= bytes; i++)
        send_one(world, group, data + 1 + i * RECORD, &sent[i]);
    bool never = false;
    world_run(world, &never, WEFT_SECONDS(5));
    expect(outcome.times == 1);
    for (size_t i = BUFFER_BYTES; i < sizeof out; i++) expect(out[i] == 0xa5);
    weft_group_free(group);
    world_free(world);
    return 0;
}

/* Headers of a valid run of the other rank. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    uint8_t choice = (uint8_t)(number * 7);
    uint64_t lengths[2];
    uint8_t nothing[1];
    struct weft_coll_args args = args_of(choice, nothing, nothing, lengths);
    size_t elem = args.kind >= WEFT_COLL_BARRIER ? 1 : weft_dtype_bytes(args.dtype);
    enum weft_plan_id plan_id = args.plan ? args.plan : WEFT_PLAN_DIRECT;
    uint64_t count = args.kind == WEFT_COLL_BARRIER            ? 0
                     : args.kind == WEFT_COLL_ALL_GATHER_BYTES ? args.piece_bytes_max
                                                               : args.count;
    struct weft_plan_args plan = {.plan = plan_id,
                                  .kind = args.kind,
                                  .rank = 1,
                                  .ranks = 2,
                                  .root = args.kind == WEFT_COLL_BROADCAST,
                                  .count = count,
                                  .chunk_elems = 64 / elem,
                                  .lanes = 4};
    bool sums = args.kind <= WEFT_COLL_REDUCE_SCATTER;
    struct coll_header header = {.type = COLL_MESSAGE_DATA,
                                 .kind = (uint8_t)args.kind,
                                 .dtype = elem == 1 ? 0 : (uint8_t)args.dtype,
                                 .op = sums ? WEFT_SUM : 0,
                                 .plan = (uint8_t)plan_id,
                                 .group = 1,
                                 .rank = 1,
                                 .root = plan.root,
                                 .lanes = 4,
                                 .count = count,
                                 .chunk = plan.chunk_elems,
                                 .piece_bytes = args.kind == WEFT_COLL_ALL_GATHER_BYTES ? 100 : 0};
    size_t used = 0;
    out[used++] = choice;
    struct weft_plan_cursor cursor;
    weft_plan_begin(&cursor, &plan);
    for (struct weft_action action; used + RECORD <= capacity;) {
        weft_plan_next(&cursor, &action);
        if (action.kind == WEFT_ACTION_DONE) break;
        if (action.kind != WEFT_ACTION_SEND) continue;
        size_t length = action.count * elem;
        if (args.kind == WEFT_COLL_ALL_GATHER_BYTES)
            length = action.offset_in >= 100                 ? 0
                     : 100 - action.offset_in < action.count ? 100 - action.offset_in
                                                             : action.count;
        uint8_t *record = out + used;
        record[0] = number % 5 == 4 ? 1 : 0;
        record[1] = (uint8_t)length;
        record[2] = (uint8_t)(length >> 8);
        record[3] = (uint8_t)number;
        header.message = action.message;
        header.type = (uint8_t)(number % 5 == 4 ? 2 + number % 10 : COLL_MESSAGE_DATA);
        coll_header_write(record + 4, &header);
        used += RECORD;
    }
    return used;
}
