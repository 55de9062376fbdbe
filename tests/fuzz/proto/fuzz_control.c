/* fuzz_control.c - control decoder: an accepted message can be packed again. Unknown fields are carried
 * unchanged, so a second decoding may refuse what the first skipped. */
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/fuzz/fuzz.h"

#define BYTES(text) ((ProtobufCBinaryData){sizeof(text) - 1, (uint8_t *)(text)})
#define TEXT (char *)"rank 3 (hostb, pid 41)"
#define NUMBER (number * 0x9e3779b97f4a7c15u >> number % 64)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_env *env = weft_env_system();
    Weft__Control__Control *message, *second;
    uint8_t *packed;
    size_t packed_bytes;
    if (weft_control_unpack(env, data, bytes, &message) != WEFT_OK) return 0;
    if (weft_control_pack(env, message, &packed, &packed_bytes) != WEFT_OK) abort();
    if (weft_control_unpack(env, packed, packed_bytes, &second) == WEFT_OK) weft_control_free(env, second);
    weft_free_bytes(env, packed);
    weft_control_free(env, message);
    return 0;
}

/* ---- valid messages ---- */

static size_t pack_one(Weft__Control__Control__BodyCase body, void *message, uint8_t *out, size_t capacity)
{
    struct weft_env *env = weft_env_system();
    Weft__Control__Control control = WEFT__CONTROL__CONTROL__INIT, *back;
    uint8_t *packed;
    size_t bytes;
    control.body_case = body;
    control.challenge = message; /* the members of the union share their memory */
    if (weft_control_pack(env, &control, &packed, &bytes) != WEFT_OK || bytes > capacity) abort();
    memcpy(out, packed, bytes);
    weft_free_bytes(env, packed);
    if (weft_control_unpack(env, out, bytes, &back) != WEFT_OK) abort(); /* a packed message can be read */
    weft_control_free(env, back);
    return bytes;
}

enum { FORMS = 19 }; /* messages of weft_fuzz_seed */

#define PACK(BODY, message) pack_one(WEFT__CONTROL__CONTROL__BODY_##BODY, message, out, capacity)

static size_t seed_of_start(uint64_t number, uint8_t *out, size_t capacity)
{
    uint64_t dims[] = {8, 1 + number % 5};
    Weft__Control__Hello hello = WEFT__CONTROL__HELLO__INIT;
    Weft__Control__LinkCost cost = WEFT__CONTROL__LINK_COST__INIT;
    Weft__Control__Go go = WEFT__CONTROL__GO__INIT;
    Weft__Control__Declare declare = WEFT__CONTROL__DECLARE__INIT;
    Weft__Control__Chunk dense = WEFT__CONTROL__CHUNK__INIT, other = WEFT__CONTROL__CHUNK__INIT,
                         *chunks[] = {&dense, &other};
    Weft__Control__Declared declared = WEFT__CONTROL__DECLARED__INIT;
    static uint8_t runs[WEFT_RUNS_BYTES];
    uint32_t endpoints[5] = {1, 2, 1, 2, 1};
    Weft__Control__ChunkRun run = WEFT__CONTROL__CHUNK_RUN__INIT, *all_runs[] = {&run};
    switch (number % FORMS) {
    case 8:
        hello.wire_version = WEFT_WIRE_VERSION, hello.wire_oldest = WEFT_WIRE_VERSION_OLDEST;
        hello.wire_newest = (uint32_t)(number % 3);
        hello.weft_version = hello.name = hello.host = hello.job = TEXT,
        hello.role = WEFT__CONTROL__ROLE__ROLE_WORKER;
        hello.wanted_index = -1, hello.pid = NUMBER, hello.nonce = BYTES("0123456789abcdef"),
        hello.endpoints = 2, hello.device = hello.states = hello.resume = true;
        hello.process = BYTES("0123456789abcdefghijklmn");
        return PACK(HELLO, &hello);
    case 9:
        cost.pairs = cost.unknown = 6, cost.latency_ns = NUMBER, cost.incast_milli = 40, cost.words_ns = 370,
        cost.last_kib = 491520, cost.past_ps = 40, cost.ring = BYTES("abcdefgh\1\0\0\0ijklmnop\0\1\0\0");
        cost.runs = (ProtobufCBinaryData){sizeof runs, runs};
        cost.calibration = BYTES("any bytes");
        go.epoch = 1, go.cost = &cost, go.committed = NUMBER, go.codec_steps = 12, go.tensors = 3;
        return PACK(GO, &go);
    default:
        declare.name = declare.codec = declare.optimizer = TEXT, declare.dtype = WEFT_F32, declare.n_dims = 2,
        declare.dims = dims, declare.mode = 1;
        declare.ordinal = declared.tensor = 3, declare.chunk_bytes = 4096;
        dense.count = other.count = dims[0] * dims[1], other.candidate = 1;
        declared.declare = &declare, declared.n_chunks = 2, declared.chunks = chunks;
        run.end = dense.count, run.cut = 8, run.n_endpoints = dims[1], run.endpoints = endpoints;
        if (number % FORMS == 17)
            declared.n_chunks = 0, declared.n_runs = 1, declared.runs = all_runs;
        return PACK(DECLARED, &declared);
    }
}

static size_t seed_of_snap(uint64_t number, uint8_t *out, size_t capacity)
{
    Weft__Control__SnapRange range = WEFT__CONTROL__SNAP_RANGE__INIT, *ranges[] = {&range, &range};
    Weft__Control__SnapPiece piece = WEFT__CONTROL__SNAP_PIECE__INIT, *pieces[] = {&piece, &piece};
    Weft__Control__SnapPieces body = WEFT__CONTROL__SNAP_PIECES__INIT;
    range.tensor = 3, range.part = (uint32_t)(number % WEFT_LIMIT_SNAP_PARTS), range.offset = number;
    range.count = 7, range.step = NUMBER;
    piece.name = BYTES("0123456789abcdef");
    if (number & 1) piece.base_name = piece.name, piece.chain = 1;
    piece.bytes = piece.stored = 4096, piece.n_ranges = 2, piece.ranges = ranges;
    body.id = (uint32_t)number, body.last = true, body.n_pieces = number % 3, body.pieces = pieces;
    if (number % 3 == 0) body.error = TEXT;
    return PACK(SNAP_PIECES, &body);
}

/* The messages of a worker's part. */
static size_t seed_of_part(uint64_t number, uint8_t *out, size_t capacity)
{
    Weft__Control__SnapPart part = WEFT__CONTROL__SNAP_PART__INIT;
    Weft__Control__SnapWanted wanted = WEFT__CONTROL__SNAP_WANTED__INIT;
    Weft__Control__SnapData data = WEFT__CONTROL__SNAP_DATA__INIT;
    Weft__Control__SnapFetch fetch = WEFT__CONTROL__SNAP_FETCH__INIT;
    Weft__Control__SnapFetched fetched = WEFT__CONTROL__SNAP_FETCHED__INIT;
    switch (number % 5) {
    case 0:
        part.id = (uint32_t)number, part.rank = 3;
        if (number & 1) part.bytes = number;
        else part.error = TEXT;
        return PACK(SNAP_PART, &part);
    case 1: wanted.id = 2, wanted.offset = number; return PACK(SNAP_WANTED, &wanted);
    case 2: data.id = 2, data.offset = number, data.data = BYTES("weft-prt"); return PACK(SNAP_DATA, &data);
    case 3: fetch.rank = 3, fetch.offset = number; return PACK(SNAP_FETCH, &fetch);
    default:
        fetched.rank = 3, fetched.offset = number, fetched.bytes = number + 8;
        fetched.data = BYTES("weft-prt");
        return PACK(SNAP_FETCHED, &fetched);
    }
}

/* Messages about shards that join and leave, and slots that move. */
static size_t seed_of_shards(uint64_t number, uint8_t *out, size_t capacity)
{
    ProtobufCBinaryData addresses[] = {BYTES("ab"), BYTES("\0\xff")};
    Weft__Control__Member member = WEFT__CONTROL__MEMBER__INIT;
    Weft__Control__ShardAdded added = WEFT__CONTROL__SHARD_ADDED__INIT;
    Weft__Control__ShardKnown known = WEFT__CONTROL__SHARD_KNOWN__INIT;
    Weft__Control__Rebalance rebalance = WEFT__CONTROL__REBALANCE__INIT;
    Weft__Control__RebalanceMove move = WEFT__CONTROL__REBALANCE_MOVE__INIT, *moves[] = {&move, &move};
    uint32_t speeds[] = {1000, 250};
    Weft__Control__Drain drain = WEFT__CONTROL__DRAIN__INIT;
    Weft__Control__SlotCopied copied = WEFT__CONTROL__SLOT_COPIED__INIT;
    switch (number / 13 % 5) {
    case 0:
        member.role = WEFT__CONTROL__ROLE__ROLE_SHARD, member.index = member.member = 3;
        member.name = member.host = TEXT, member.incarnation = NUMBER;
        member.n_addresses = 1 + number % 2, member.addresses = addresses;
        added.shard = &member;
        return PACK(SHARD_ADDED, &added);
    case 1: known.member = 3, known.text = number % 2 ? TEXT : (char *)""; return PACK(SHARD_KNOWN, &known);
    case 2:
        rebalance.text = TEXT, rebalance.by_load = number % 2, rebalance.plan = number % 3 > 0;
        move.slot = number % 4096, move.from = 1, move.to = 2, move.leads = number % 2, move.bytes = NUMBER;
        rebalance.n_moves = number % 3 ? 2 : 0, rebalance.moves = moves;
        rebalance.n_speeds = rebalance.n_moves, rebalance.speeds = speeds;
        return PACK(REBALANCE, &rebalance);
    case 3: drain.shard = 1, drain.text = TEXT; return PACK(DRAIN, &drain);
    default:
        copied.slot = 5, copied.term = 2, copied.to = 3, copied.chunks = 7, copied.bytes = NUMBER;
        copied.done = number % 2;
        return PACK(SLOT_COPIED, &copied);
    }
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    if (number % 13 == 10) return seed_of_shards(number, out, capacity);
    if (number % 13 == 11) return seed_of_part(number, out, capacity);
    if (number % 13 == 12) return seed_of_snap(number, out, capacity);
    ProtobufCBinaryData addresses[] = {BYTES("ab"), BYTES("\0\xff")};
    uint32_t ranks[] = {0, 300, (uint32_t)number};
    Weft__Control__Member member = WEFT__CONTROL__MEMBER__INIT, *members[] = {&member, &member};
    Weft__Control__Roster roster = WEFT__CONTROL__ROSTER__INIT;
    Weft__Control__MemberLost lost = WEFT__CONTROL__MEMBER_LOST__INIT;
    Weft__Control__Leave leave = WEFT__CONTROL__LEAVE__INIT;
    Weft__Control__Shrink shrink = WEFT__CONTROL__SHRINK__INIT;
    Weft__Control__Shrunk shrunk = WEFT__CONTROL__SHRUNK__INIT;
    Weft__Control__Join join = WEFT__CONTROL__JOIN__INIT;
    Weft__Control__Joined joined = WEFT__CONTROL__JOINED__INIT;
    Weft__Control__Grow grow = WEFT__CONTROL__GROW__INIT;
    Weft__Control__Left left = WEFT__CONTROL__LEFT__INIT;
    Weft__Control__Heartbeat heartbeat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__CodecFigures codec = WEFT__CONTROL__CODEC_FIGURES__INIT;
    uint64_t buckets[WEFT_HISTOGRAM_BOUNDS + 1] = {NUMBER, 3};
    Weft__Control__Resume resume = WEFT__CONTROL__RESUME__INIT;
    Weft__Control__Resumed resumed = WEFT__CONTROL__RESUMED__INIT;
    Weft__Control__Ack ack = WEFT__CONTROL__ACK__INIT;
    Weft__Control__Close close_body = WEFT__CONTROL__CLOSE__INIT;
    uint32_t copy = 3;
    Weft__Control__Slot slot = WEFT__CONTROL__SLOT__INIT, *slots[] = {&slot};
    Weft__Control__Map map = WEFT__CONTROL__MAP__INIT;
    member.role = WEFT__CONTROL__ROLE__ROLE_WORKER, member.name = member.host = TEXT,
    member.incarnation = NUMBER, member.device = true;
    member.n_addresses = 2, member.addresses = addresses;
    switch (number % FORMS) {
    case 0:
        roster.epoch = 1, roster.n_members = 2, roster.members = members, roster.coordinator = TEXT;
        roster.wire_version = (uint32_t)number, member.wire_newest = (uint32_t)NUMBER;
        return PACK(ROSTER, &roster);
    case 1: lost.member = lost.index = 2, lost.text = TEXT, lost.epoch = 4; return PACK(MEMBER_LOST, &lost);
    case 2: leave.text = TEXT, leave.committed = NUMBER; return PACK(LEAVE, &leave);
    case 3:
        shrink.epoch = 4, shrink.committed = NUMBER, shrink.codec_steps = 12;
        return PACK(SHRINK, &shrink);
    case 4:
        shrunk.epoch = 4, shrunk.committed = NUMBER, shrunk.n_members = 3, shrunk.members = ranks,
        shrunk.last = 3, shrunk.codec_steps = 12;
        shrunk.n_newcomers = number % 3, shrunk.newcomers = members;
        return PACK(SHRUNK, &shrunk);
    case 5: join.committed = NUMBER, join.codec_steps = 12; return PACK(JOIN, &join);
    case 6: joined.member = 2, joined.text = TEXT, joined.epoch = 4; return PACK(JOINED, &joined);
    case 7: grow.epoch = 4, grow.text = TEXT; return PACK(GROW, &grow);
    case 10: left.member = 2, left.index = 1, left.text = TEXT; return PACK(LEFT, &left);
    case 11:
        heartbeat.time_ns = NUMBER, heartbeat.ask = (uint32_t)number, heartbeat.answer = 300;
        report.steps = NUMBER, report.open = TEXT, report.missing = 300;
        codec.encode_buckets = codec.decode_buckets = buckets,
        codec.n_encode_buckets = WEFT_HISTOGRAM_BOUNDS + 1;
        codec.n_decode_buckets = number % 19, codec.encode_ns = codec.gradient_bytes = NUMBER,
        codec.encoded_bytes = number;
        report.codec = number % 4 == 1 ? &codec : NULL;
        heartbeat.report = number % 2 ? &report : NULL;
        return PACK(HEARTBEAT, &heartbeat);
    case 12:
        resume.member = 2, resume.incarnation = resume.received = NUMBER;
        resume.nonce = BYTES("0123456789abcdef"), resume.proof = BYTES("0123456789abcdef0123456789abcdef");
        return PACK(RESUME, &resume);
    case 13:
        resumed.received = NUMBER, resumed.proof = BYTES("0123456789abcdef0123456789abcdef");
        return PACK(RESUMED, &resumed);
    case 14: ack.received = NUMBER; return PACK(ACK, &ack);
    case 15: close_body.text = TEXT; return PACK(CLOSE, &close_body);
    case 18:
        slot.slot = 5, slot.term = 2, slot.leader = 2, slot.n_copies = 1, slot.copies = &copy;
        map.version = 3, map.n_slots = 1, map.slots = slots, map.lost = 2, map.text = TEXT;
        return PACK(MAP, &map);
    default: return seed_of_start(number, out, capacity);
    }
}
