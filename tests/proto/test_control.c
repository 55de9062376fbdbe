/* test_control.c - control messages: each body against the slow decoder, limits, hostile bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/proto/slow_decoder.h"
#include "tests/lib/check.h"

#define BIN(text) ((ProtobufCBinaryData){sizeof(text) - 1, (uint8_t *)(text)})
#define NONCE BIN("0123456789abcdef")

typedef Weft__Control__Control Control;

/* One valid sample of each body, and its text by docs/wire.md. */
struct samples {
    Weft__Control__Challenge challenge;
    Weft__Control__Hello hello;
    Weft__Control__Welcome welcome;
    Weft__Control__Endpoints endpoints;
    Weft__Control__Member member[2], *members[2];
    Weft__Control__Roster roster;
    Weft__Control__Ready ready;
    Weft__Control__Go go;
    Weft__Control__LinkCost cost;
    Weft__Control__Declare declare;
    Weft__Control__Chunk chunk[2], *chunks[2];
    Weft__Control__Declared declared;
    Weft__Control__DeclaredOk declared_ok;
    Weft__Control__Heartbeat heartbeat;
    Weft__Control__Report report;
    Weft__Control__CodecFigures codec;
    Weft__Control__Progress progress;
    uint64_t buckets[20];
    Weft__Control__MemberLost member_lost;
    Weft__Control__Abort abort;
    Weft__Control__Leave leave;
    Weft__Control__Finished finished;
    Weft__Control__WeightHash weight_hash;
    Weft__Control__StatusRequest status_request;
    Weft__Control__StatusReply status_reply;
    Weft__Control__Shrink shrink;
    Weft__Control__Shrunk shrunk;
    Weft__Control__Join join;
    Weft__Control__Joined joined;
    Weft__Control__Grow grow;
    Weft__Control__Left left;
    Weft__Control__TensorFree tensor_free;
    Weft__Control__Slot slot[2], *slots[2];
    Weft__Control__Map map;
    Weft__Control__HostFinding host_finding, *host_findings[17];
    Weft__Control__HostHealth host_health;
    uint32_t copy;
    uint32_t ranks[2];
    ProtobufCBinaryData addresses[2];
    uint64_t dims[2];
};

/* a quarter of LinkCost.runs */
#define NUMBERS_16 "abcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcdabcd"
#define READ_16                                                                                              \
    "616263646162636461626364616263646162636461626364616263646162636461626364616263646162636461626364616263" \
    "64616263646162636461626364"
#define BODIES 117 /* the highest number; some below it have no body */
static const char *const readings[BODIES + 1] = {
    "",
    "challenge\n  wire_version 1\n  nonce 30313233343536373839616263646566\n  weft_version \"0.1.0\"\n  "
    "auth_required 1\n  seals 1\n  wire_newest 2\n",
    "hello\n  wire_version 2\n  weft_version \"0.1.0\"\n  job \"mnist\"\n  role 1\n  name \"rank 3 (hostb, "
    "pid 41)\"\n  wanted_index -1\n"
    "  host \"hostb\"\n  pid 41\n  nonce 30313233343536373839616263646566\n  endpoints 2\n  device 1\n  "
    "states 1\n  frees 1\n  seals 1\n  progress 1\n  slots 1\n  wire_oldest 1\n  wire_newest 2\n",
    "welcome\n  member 3\n  index 1\n  incarnation 18446744073709551615\n  transport_nonce 9\n  workers 2\n  "
    "shards 1\n"
    "  endpoint_first 4\n  job_id 300\n  heartbeat_ns 30000000000\n  workers_min 1\n  frees 1\n  beat_ns 7\n "
    " copies 1\n  workers_max 6\n",
    "endpoints\n  addresses 6162\n  addresses 00ff\n",
    "roster\n  epoch 1\n  members\n    role 2\n    name \"shard 0\"\n    host \"h\"\n    incarnation 5\n    "
    "addresses 6162\n    addresses 00ff\n    states 1\n    wire_newest 2\n"
    "  members\n    member 1\n    role 1\n    index 1\n    name \"rank 1\"\n    endpoint_first 2\n    "
    "addresses 6162\n    pid 7\n    device 1\n  coordinator \"shard 0 (h, pid 3)\"\n  "
    "wire_version 1\n",
    "ready\n  epoch 1\n",
    "go\n  epoch 200\n  cost\n    pairs 6\n    unknown 6\n    latency_ns 5000\n    bytes_per_second "
    "12000000000\n"
    "    eager_bytes 8192\n    inject_ns 640\n    sum_ps 125\n    pass_ps 90\n    incast_milli 40\n"
    "    ring 616263646566676801000000\n    words_ns 370\n    slices_ns 480\n    said_ps 260\n    cached_ps "
    "12\n    passed_ps 51\n    core_kib 2048\n    last_kib 491520\n    past_ps 40\n    runs " READ_16 READ_16
        READ_16 READ_16 "\n    calibration 616e79206279746573\n  committed 41\n  codec_steps 12\n"
    "  tensors 2\n",
    "declare\n  ordinal 3\n  name \"fc1\"\n  dtype 1\n  dims 1024\n  dims 784\n  codec \"dense\"\n  "
    "optimizer \"sgd\"\n  mode 1\n  chunk_bytes 4194304\n",
    "declared\n  tensor 3\n  declare\n    ordinal 3\n    name \"fc1\"\n    dtype 1\n    dims 1024\n    dims "
    "784\n    codec \"dense\"\n"
    "    optimizer \"sgd\"\n    mode 1\n    chunk_bytes 4194304\n  chunks\n    count 800000\n    endpoint 7\n"
    "  chunks\n    offset 800000\n    count 2816\n    endpoint 8\n    slot 300\n",
    "declared_ok\n  tensor 3\n",
    "heartbeat\n  time_ns 123456789012\n  ask 1\n  answer 300\n  wait_reason 1\n  text \"rank 2\"\n"
    "  progress\n    operations 70\n    open_ns 3000000000\n    usual_ns 9\n    waits_for 2\n"
    "    call \"barrier 3\"\n"
    "    is_stalled 1\n  ask_progress 1\n"
    "  report\n    steps 41\n    idle_ns 5000000001\n    open \"waits for rank 2\"\n    missing 1\n"
    "    step_buckets 7\n    step_buckets 300\n    failover_ns 300\n"
    "    codec\n      encode_buckets 7\n      encode_buckets 300\n      encode_ns 9\n      decode_ns "
    "4000000000\n"
    "      gradient_bytes 400\n      encoded_bytes 100\n",
    "member_lost\n  member 2\n  text \"rank 2 lost\"\n  role 1\n  index 2\n  epoch 4\n  pid 7\n",
    "abort\n  status -62\n  text \"shapes differ\"\n",
    "leave\n  text \"done\"\n  committed 41\n",
    "finished\n",
    "weight_hash\n  tensor 1\n  step 50\n  hash 12297829382473034410\n  worker 1\n  home 3\n",
    "status_request\n",
    "status_reply\n  json 7b7d\n",
    "shrink\n  epoch 4\n  committed 41\n  codec_steps 12\n",
    "shrunk\n  epoch 4\n  committed 41\n  members 0\n  members 300\n  last 3\n  codec_steps 12\n  "
    "newcomers\n    member 1\n    role 1\n    index 1\n"
    "    name \"rank 1\"\n    endpoint_first 2\n    addresses 6162\n    pid 7\n    device 1\n",
    "join\n  committed 41\n  codec_steps 12\n",
    "joined\n  member 2\n  text \"rank 2 rests\"\n  epoch 4\n",
    "grow\n  epoch 4\n  text \"rank 3 waits\"\n",
    "left\n  member 2\n  text \"rank 2 left\"\n  index 1\n",
    "tensor_free\n  tensor 3\n",
    [30] = "map\n  version 2\n  slots\n    slot 1\n    term 3\n    leader 7\n    copies 8\n"
           "  slots\n    slot 300\n    term 1\n    leader 8\n  lost 2\n  text \"shard 0 lost\"\n",
    [117] = "host_health\n  host \"hostb\"\n  findings\n    subject \"GPU 0\"\n    text \"lost\"\n"
            "    advice \"restart\"\n"};

static void fill(struct samples *s)
{
    memset(s, 0, sizeof *s);
    s->addresses[0] = BIN("ab");
    s->addresses[1] = (ProtobufCBinaryData){2, (uint8_t *)"\0\xff"};
    s->dims[0] = 1024, s->dims[1] = 784;
    weft__control__challenge__init(&s->challenge);
    s->challenge.wire_version = 1, s->challenge.wire_newest = 2, s->challenge.nonce = NONCE;
    s->challenge.weft_version = (char *)"0.1.0", s->challenge.auth_required = s->challenge.seals = 1;
    weft__control__hello__init(&s->hello);
    s->hello.wire_version = s->hello.wire_newest = 2, s->hello.wire_oldest = 1;
    s->hello.weft_version = (char *)"0.1.0",
    s->hello.job = (char *)"mnist";
    s->hello.role = WEFT__CONTROL__ROLE__ROLE_WORKER, s->hello.name = (char *)"rank 3 (hostb, pid 41)",
    s->hello.wanted_index = -1;
    s->hello.host = (char *)"hostb", s->hello.pid = 41, s->hello.nonce = NONCE, s->hello.endpoints = 2,
    s->hello.device = 1,
    s->hello.states = s->hello.frees = s->hello.seals = s->hello.progress = s->hello.slots = 1;
    weft__control__welcome__init(&s->welcome);
    s->welcome.member = 3, s->welcome.index = 1, s->welcome.incarnation = UINT64_MAX,
    s->welcome.transport_nonce = 9;
    s->welcome.workers = 2, s->welcome.shards = 1, s->welcome.endpoint_first = 4, s->welcome.job_id = 300;
    s->welcome.heartbeat_ns = WEFT_SECONDS(30), s->welcome.workers_min = 1, s->welcome.frees = 1;
    s->welcome.beat_ns = 7, s->welcome.copies = 1, s->welcome.workers_max = 6;
    weft__control__endpoints__init(&s->endpoints);
    s->endpoints.n_addresses = 2, s->endpoints.addresses = s->addresses;
    for (int i = 0; i < 2; i++) weft__control__member__init(&s->member[i]), s->members[i] = &s->member[i];
    s->member[0].role = WEFT__CONTROL__ROLE__ROLE_SHARD, s->member[0].name = (char *)"shard 0",
    s->member[0].host = (char *)"h";
    s->member[0].incarnation = 5, s->member[0].n_addresses = 2, s->member[0].addresses = s->addresses;
    s->member[0].states = 1, s->member[0].wire_newest = 2;
    s->member[1].member = 1, s->member[1].role = WEFT__CONTROL__ROLE__ROLE_WORKER, s->member[1].index = 1,
    s->member[1].pid = 7;
    s->member[1].name = (char *)"rank 1", s->member[1].endpoint_first = 2, s->member[1].n_addresses = 1,
    s->member[1].addresses = s->addresses;
    s->member[1].device = 1;
    weft__control__roster__init(&s->roster);
    s->roster.epoch = 1, s->roster.n_members = 2, s->roster.members = s->members,
    s->roster.coordinator = (char *)"shard 0 (h, pid 3)", s->roster.wire_version = 1;
    weft__control__ready__init(&s->ready), s->ready.epoch = 1;
    weft__control__go__init(&s->go), s->go.epoch = 200, s->go.cost = &s->cost, s->go.committed = 41,
                                     s->go.codec_steps = 12;
    s->go.tensors = 2;
    weft__control__link_cost__init(&s->cost);
    s->cost.pairs = 6, s->cost.unknown = 6, s->cost.latency_ns = 5000,
    s->cost.bytes_per_second = 12000000000ull;
    s->cost.eager_bytes = 8192, s->cost.inject_ns = 640, s->cost.sum_ps = 125, s->cost.pass_ps = 90,
    s->cost.incast_milli = 40;
    s->cost.ring = (ProtobufCBinaryData){12, (uint8_t *)"abcdefgh\1\0\0\0"};
    s->cost.words_ns = 370, s->cost.slices_ns = 480, s->cost.said_ps = 260, s->cost.cached_ps = 12,
    s->cost.passed_ps = 51;
    s->cost.core_kib = 2048, s->cost.last_kib = 491520, s->cost.past_ps = 40;
    s->cost.runs =
        (ProtobufCBinaryData){WEFT_RUNS_BYTES, (uint8_t *)NUMBERS_16 NUMBERS_16 NUMBERS_16 NUMBERS_16};
    s->cost.calibration = BIN("any bytes");
    weft__control__declare__init(&s->declare);
    s->declare.ordinal = 3, s->declare.name = (char *)"fc1", s->declare.dtype = WEFT_F32,
    s->declare.n_dims = 2, s->declare.dims = s->dims;
    s->declare.codec = (char *)"dense", s->declare.optimizer = (char *)"sgd", s->declare.mode = 1,
    s->declare.chunk_bytes = 4 << 20;
    for (int i = 0; i < 2; i++) weft__control__chunk__init(&s->chunk[i]), s->chunks[i] = &s->chunk[i];
    s->chunk[0].count = 800000, s->chunk[0].endpoint = 7;
    s->chunk[1].offset = 800000, s->chunk[1].count = 1024 * 784 - 800000, s->chunk[1].endpoint = 8;
    s->chunk[1].slot = 300;
    weft__control__declared__init(&s->declared);
    s->declared.tensor = 3, s->declared.declare = &s->declare, s->declared.n_chunks = 2,
    s->declared.chunks = s->chunks;
    weft__control__declared_ok__init(&s->declared_ok), s->declared_ok.tensor = 3;
    weft__control__heartbeat__init(&s->heartbeat), s->heartbeat.time_ns = 123456789012, s->heartbeat.ask = 1,
                                                   s->heartbeat.answer = 300, s->heartbeat.wait_reason = true,
                                                   s->heartbeat.text = (char *)"rank 2";
    weft__control__report__init(&s->report), s->report.steps = 41, s->report.idle_ns = 5000000001,
                                             s->report.open = (char *)"waits for rank 2",
                                             s->report.missing = 1, s->report.failover_ns = 300,
                                             s->report.n_step_buckets = 2,
                                             s->report.step_buckets = s->buckets, s->buckets[0] = 7,
                                             s->buckets[1] = 300;
    weft__control__codec_figures__init(&s->codec),
        s->codec.n_encode_buckets = 2, s->codec.encode_buckets = s->buckets, s->codec.encode_ns = 9,
        s->codec.decode_ns = 4000000000, s->codec.gradient_bytes = 400, s->codec.encoded_bytes = 100,
        s->report.codec = &s->codec;
    s->heartbeat.report = &s->report;
    weft__control__progress__init(&s->progress), s->progress.operations = 70,
        s->progress.open_ns = 3000000000, s->progress.usual_ns = 9, s->progress.waits_for = 2,
        s->progress.call = (char *)"barrier 3", s->progress.is_stalled = 1;
    s->heartbeat.progress = &s->progress, s->heartbeat.ask_progress = 1;
    weft__control__member_lost__init(&s->member_lost), s->member_lost.member = 2,
                                                       s->member_lost.text = (char *)"rank 2 lost";
    s->member_lost.role = WEFT__CONTROL__ROLE__ROLE_WORKER, s->member_lost.index = 2,
    s->member_lost.epoch = 4, s->member_lost.pid = 7;
    weft__control__abort__init(&s->abort), s->abort.status = WEFT_ERR_MISMATCH,
                                           s->abort.text = (char *)"shapes differ";
    weft__control__leave__init(&s->leave), s->leave.text = (char *)"done", s->leave.committed = 41;
    weft__control__finished__init(&s->finished);
    weft__control__weight_hash__init(&s->weight_hash);
    s->weight_hash.tensor = 1, s->weight_hash.step = 50, s->weight_hash.hash = 12297829382473034410ull,
    s->weight_hash.worker = 1, s->weight_hash.home = 3;
    weft__control__status_request__init(&s->status_request);
    weft__control__status_reply__init(&s->status_reply), s->status_reply.json = (char *)"{}";
    weft__control__shrink__init(&s->shrink);
    s->shrink.epoch = 4, s->shrink.committed = 41, s->shrink.codec_steps = 12;
    weft__control__shrunk__init(&s->shrunk);
    s->ranks[0] = 0, s->ranks[1] = 300;
    s->shrunk.epoch = 4, s->shrunk.committed = 41, s->shrunk.n_members = 2, s->shrunk.members = s->ranks,
    s->shrunk.last = 3, s->shrunk.codec_steps = 12;
    s->shrunk.n_newcomers = 1, s->shrunk.newcomers = s->members + 1;
    weft__control__join__init(&s->join), s->join.committed = 41, s->join.codec_steps = 12;
    weft__control__joined__init(&s->joined), s->joined.member = 2, s->joined.text = (char *)"rank 2 rests",
                                             s->joined.epoch = 4;
    weft__control__grow__init(&s->grow), s->grow.epoch = 4, s->grow.text = (char *)"rank 3 waits";
    weft__control__tensor_free__init(&s->tensor_free), s->tensor_free.tensor = 3;
    for (int i = 0; i < 2; i++) weft__control__slot__init(&s->slot[i]), s->slots[i] = &s->slot[i];
    s->copy = 8;
    s->slot[0].slot = 1, s->slot[0].term = 3, s->slot[0].leader = 7, s->slot[0].n_copies = 1,
    s->slot[0].copies = &s->copy;
    s->slot[1].slot = 300, s->slot[1].term = 1, s->slot[1].leader = 8;
    weft__control__map__init(&s->map), s->map.version = 2, s->map.n_slots = 2, s->map.slots = s->slots,
                                       s->map.lost = 2, s->map.text = (char *)"shard 0 lost";
    weft__control__host_finding__init(&s->host_finding);
    s->host_finding.subject = (char *)"GPU 0", s->host_finding.text = (char *)"lost",
    s->host_finding.advice = (char *)"restart";
    for (int i = 0; i < 17; i++) s->host_findings[i] = &s->host_finding;
    weft__control__host_health__init(&s->host_health);
    s->host_health.host = (char *)"hostb", s->host_health.n_findings = 1,
    s->host_health.findings = s->host_findings;
    weft__control__left__init(&s->left), s->left.member = 2, s->left.text = (char *)"rank 2 left",
                                         s->left.index = 1;
}

static Control wrap(struct samples *s, int body)
{
    void *const bodies[BODIES + 1] = {NULL,
                                      &s->challenge,
                                      &s->hello,
                                      &s->welcome,
                                      &s->endpoints,
                                      &s->roster,
                                      &s->ready,
                                      &s->go,
                                      &s->declare,
                                      &s->declared,
                                      &s->declared_ok,
                                      &s->heartbeat,
                                      &s->member_lost,
                                      &s->abort,
                                      &s->leave,
                                      &s->finished,
                                      &s->weight_hash,
                                      &s->status_request,
                                      &s->status_reply,
                                      &s->shrink,
                                      &s->shrunk,
                                      &s->join,
                                      &s->joined,
                                      &s->grow,
                                      &s->left,
                                      &s->tensor_free,
                                      [30] = &s->map,
                                      [117] = &s->host_health};
    Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = (Weft__Control__Control__BodyCase)body;
    message.challenge = bodies[body]; /* the members of the union share their memory */
    return message;
}

static size_t pack(const Control *message, uint8_t *out, size_t capacity)
{
    uint8_t *data;
    size_t bytes;
    assert_int_equal(weft_control_pack(weft_env_system(), message, &data, &bytes), WEFT_OK);
    assert_true(bytes <= capacity);
    memcpy(out, data, bytes);
    weft_free_bytes(weft_env_system(), data);
    return bytes;
}

static void every_body(void **state)
{
    struct samples s;
    fill(&s);
    for (int body = 1; body <= BODIES; body++) {
        uint8_t data[2048], again[2048];
        char text[4096];
        if (!readings[body]) continue;
        Control message = wrap(&s, body), *unpacked;
        size_t bytes = pack(&message, data, sizeof data);
        assert_true(slow_control_decode(data, bytes, text, sizeof text));
        assert_string_equal(text, readings[body]);
        assert_int_equal(weft_control_unpack(weft_env_system(), data, bytes, &unpacked), WEFT_OK);
        assert_int_equal(unpacked->body_case, body);
        assert_int_equal(pack(unpacked, again, sizeof again), bytes);
        assert_memory_equal(again, data, bytes);
        weft_control_free(weft_env_system(), unpacked);
    }
}

/* What pack refuses must also be refused by unpack (packed by protobuf directly). */
static void refused(struct samples *s, int body, const char *what)
{
    static uint8_t data[8 << 20];
    Control message = wrap(s, body), *unpacked;
    uint8_t *packed;
    size_t bytes;
    if (weft_control_pack(weft_env_system(), &message, &packed, &bytes) != WEFT_ERR_LIMIT)
        fail_msg("packed: %s", what);
    bytes = protobuf_c_message_get_packed_size(&message.base);
    assert_true(bytes <= sizeof data);
    protobuf_c_message_pack(&message.base, data);
    if (weft_control_unpack(weft_env_system(), data, bytes, &unpacked) != WEFT_ERR_MALFORMED)
        fail_msg("unpacked: %s", what);
    fill(s);
}

#define REFUSED(body, change) (change, refused(&s, body, #change))

static void limits(void **state)
{
    struct samples s;
    static char text_1001[1002], name_256[257], json[(4 << 20) + 2];
    static ProtobufCBinaryData many[WEFT_LIMIT_ENGINES + 1];
    static uint8_t big[WEFT_LIMIT_ADDRESS_BYTES + 1];
    static uint64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, huge[2] = {1ull << 33, 1ull << 32},
                    zero[2] = {4, 0};
    memset(text_1001, 't', 1001), memset(name_256, 'n', 256), memset(json, ' ', sizeof json - 1);
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++) many[i] = BIN("a");
    fill(&s);
    REFUSED(1, s.challenge.nonce.len = 15);
    REFUSED(1, s.challenge.weft_version = name_256);
    REFUSED(1, s.challenge.job = name_256);
    REFUSED(2, s.hello.job = (char *)"");
    REFUSED(2, s.hello.name = (char *)"");
    REFUSED(2, s.hello.name = name_256);
    REFUSED(2, s.hello.name = (char *)"a\nb");
    REFUSED(2, s.hello.host = (char *)"\033[2J");
    REFUSED(2, s.hello.role = (Weft__Control__Role)0);
    REFUSED(2, s.hello.role = (Weft__Control__Role)4);
    REFUSED(2, s.hello.wanted_index = -2);
    REFUSED(2, s.hello.wanted_index = (int32_t)WEFT_LIMIT_WORKERS);
    REFUSED(2, s.hello.proof = BIN("short"));
    REFUSED(2, s.hello.nonce.len = 0);
    REFUSED(2, s.hello.endpoints = WEFT_LIMIT_ENGINES + 1);
    /* the range has no version of this code, and wire_version is one */
    REFUSED(2, (s.hello.wire_oldest = s.hello.wire_newest = 9, s.hello.nonce.len = 0));
    REFUSED(3, s.welcome.copies = WEFT_LIMIT_COPIES + 1);
    REFUSED(9, s.chunk[1].slot = WEFT_LIMIT_SLOTS);
    REFUSED(30, s.slot[1].slot = WEFT_LIMIT_SLOTS);
    REFUSED(30, s.slot[1].slot = 1);
    REFUSED(30, s.slot[0].term = 0);
    REFUSED(30, s.slot[0].term = WEFT_LIMIT_TERM + 1);
    REFUSED(30, s.slot[1].leader = WEFT_LIMIT_ENDPOINTS);
    REFUSED(30, s.copy = 7);
    REFUSED(30, s.map.text = text_1001);
    REFUSED(3, s.welcome.workers = WEFT_LIMIT_WORKERS + 1);
    REFUSED(3, s.welcome.workers_min = 3);
    REFUSED(3, s.welcome.workers_max = WEFT_LIMIT_WORKERS + 1);
    REFUSED(3, s.welcome.endpoint_first = WEFT_LIMIT_ENDPOINTS);
    REFUSED(4, s.endpoints.n_addresses = 0);
    REFUSED(4, (s.endpoints.addresses = many, s.endpoints.n_addresses = WEFT_LIMIT_ENGINES + 1));
    REFUSED(4, s.addresses[0].len = 0);
    REFUSED(4, s.addresses[1] = ((ProtobufCBinaryData){sizeof big, big}));
    REFUSED(7, s.cost.unknown = 7);
    REFUSED(7, s.cost.ring.len = 11);
    REFUSED(7, s.cost.runs.len = WEFT_RUNS_BYTES - 4);
    static uint8_t calibration[WEFT_LIMIT_CALIBRATION_BYTES + 1];
    REFUSED(7, s.cost.calibration = ((ProtobufCBinaryData){sizeof calibration, calibration}));
    static uint8_t ring[12 * (WEFT_LIMIT_WORKERS + 1)];
    REFUSED(7, s.cost.ring = ((ProtobufCBinaryData){sizeof ring, ring}));
    REFUSED(6, (s.ready.cost = &s.cost, s.cost.pairs = 5));
    REFUSED(5, s.roster.n_members = 0);
    REFUSED(5, s.roster.coordinator = name_256);
    REFUSED(5, s.member[1].role = WEFT__CONTROL__ROLE__ROLE_OBSERVER);
    REFUSED(5, s.member[0].n_addresses = 0);
    REFUSED(8, s.declare.ordinal = WEFT_LIMIT_TENSORS);
    REFUSED(8, s.declare.name = (char *)"");
    REFUSED(8, s.declare.dtype = 0);
    REFUSED(8, s.declare.dtype = 5);
    REFUSED(8, s.declare.pull_dtype = WEFT_F32);
    REFUSED(8, s.declare.pull_dtype = 77);
    REFUSED(8, s.declare.n_dims = 0);
    REFUSED(8, (s.declare.dims = nine, s.declare.n_dims = 9));
    REFUSED(8, s.declare.dims = huge);
    REFUSED(8, s.declare.dims = zero);
    REFUSED(8, s.declare.codec = name_256);
    REFUSED(8, s.declare.mode = 3);
    REFUSED(8, s.declare.chunk_bytes = 1023);
    REFUSED(9, s.declared.tensor = 4);
    REFUSED(9, s.declared.declare = NULL);
    /* Candidates: in order, each covers the tensor, after the dense chunks. */
    REFUSED(9, s.chunk[1].candidate = 1);
    REFUSED(9, (s.chunk[0].count = 1024 * 784, s.chunk[1].candidate = 2, s.chunk[1].offset = 0,
                s.chunk[1].count = 1024 * 784));
    REFUSED(9, (s.chunk[0].count = 1024 * 784, s.chunk[1].candidate = 1, s.chunk[1].offset = 0,
                s.chunk[1].count = 1024 * 783));
    REFUSED(9, (s.chunk[0].candidate = 1, s.chunk[0].count = 1024 * 784, s.chunk[1].offset = 0,
                s.chunk[1].count = 1024 * 784));
    REFUSED(9, s.declared.n_chunks = 1);
    REFUSED(9, s.declared.n_chunks = 0);
    REFUSED(9, s.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE);
    REFUSED(9, s.chunk[1].offset = 0);
    REFUSED(9, s.chunk[1].count++);
    REFUSED(9, s.chunk[0].count = UINT64_MAX);
    REFUSED(9, s.chunk[1].count = 0);
    REFUSED(9, s.chunk[0].endpoint = WEFT_LIMIT_ENDPOINTS);
    REFUSED(10, s.declared_ok.tensor = WEFT_LIMIT_TENSORS);
    REFUSED(11, s.heartbeat.text = text_1001);
    REFUSED(11, s.report.open = text_1001);
    REFUSED(11, s.progress.waits_for = WEFT_LIMIT_WORKERS + 1);
    REFUSED(11, s.progress.call = (char *)"a\x1b");
    REFUSED(11, s.report.n_step_buckets = WEFT_HISTOGRAM_BOUNDS + 2);
    REFUSED(11, (s.report.exposed_buckets = s.buckets,
                 s.report.n_exposed_buckets = WEFT_HISTOGRAM_BOUNDS + 2));
    REFUSED(11, (s.report.failover_buckets = s.buckets,
                 s.report.n_failover_buckets = WEFT_HISTOGRAM_BOUNDS + 2));
    REFUSED(11, s.codec.n_encode_buckets = WEFT_HISTOGRAM_BOUNDS + 2);
    REFUSED(11, (s.codec.decode_buckets = s.buckets, s.codec.n_decode_buckets = WEFT_HISTOGRAM_BOUNDS + 2));
    REFUSED(12, s.member_lost.text = text_1001);
    REFUSED(12, s.member_lost.index = WEFT_LIMIT_WORKERS);
    REFUSED(13, s.abort.status = 0);
    REFUSED(13, s.abort.status = -100);
    REFUSED(14, s.leave.text = text_1001);
    REFUSED(16, s.weight_hash.worker = WEFT_LIMIT_WORKERS);
    REFUSED(16, s.weight_hash.home = WEFT_LIMIT_ENDPOINTS + 1);
    REFUSED(18, s.status_reply.json = json);
    REFUSED(19, s.shrink.epoch = 0);
    REFUSED(20, s.shrunk.epoch = 0);
    REFUSED(20, s.shrunk.n_members = 0);
    static uint32_t crowd[WEFT_LIMIT_WORKERS + 1];
    REFUSED(20, (s.shrunk.members = crowd, s.shrunk.n_members = WEFT_LIMIT_WORKERS + 1));
    REFUSED(20, (s.shrunk.newcomers = s.members, s.shrunk.n_newcomers = 2, s.shrunk.n_members = 1));
    REFUSED(20, s.member[1].name = (char *)"a\nb");
    REFUSED(22, s.joined.epoch = 0);
    REFUSED(22, s.joined.text = text_1001);
    REFUSED(23, s.grow.epoch = 0);
    REFUSED(23, s.grow.text = text_1001);
    REFUSED(24, s.left.index = WEFT_LIMIT_WORKERS);
    REFUSED(24, s.left.text = text_1001);
    REFUSED(25, s.tensor_free.tensor = WEFT_LIMIT_TENSORS);
    REFUSED(117, s.host_health.host = (char *)"");
    REFUSED(117, s.host_health.n_findings = WEFT_LIMIT_HOST_FINDINGS + 1);
    REFUSED(117, s.host_finding.subject = name_256);
    REFUSED(117, s.host_finding.text = text_1001);
    REFUSED(117, s.host_finding.advice = text_1001);
}

static void other_versions_can_be_refused_in_words(void **state)
{
    struct samples s;
    uint8_t data[2048];
    Control *unpacked;
    fill(&s);
    s.hello.wire_version = s.hello.wire_newest = 9, s.hello.wire_oldest = 8;
    s.hello.nonce.len = 0, s.hello.role = (Weft__Control__Role)9, s.hello.wanted_index = -7;
    Control message = wrap(&s, 2);
    size_t bytes = pack(&message, data, sizeof data);
    assert_int_equal(weft_control_unpack(weft_env_system(), data, bytes, &unpacked), WEFT_OK);
    assert_int_equal(unpacked->hello->wire_version, 9);
    weft_control_free(weft_env_system(), unpacked);
}

static void texts_are_cleaned(void **state)
{
    struct samples s;
    fill(&s);
    const struct {
        int body;
        char **text;
    } texts[] = {{12, &s.member_lost.text}, {13, &s.abort.text}, {14, &s.leave.text}, {15, &s.finished.text},
                 {22, &s.joined.text},      {23, &s.grow.text},  {24, &s.left.text}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        uint8_t data[2048];
        Control *unpacked;
        *texts[i].text = (char *)"a\n\033[1mb";
        Control message = wrap(&s, texts[i].body);
        size_t bytes = pack(&message, data, sizeof data);
        assert_int_equal(weft_control_unpack(weft_env_system(), data, bytes, &unpacked), WEFT_OK);
        bytes = pack(unpacked, data, sizeof data);
        if (!memmem(data, bytes, "a??[1mb", 7)) fail_msg("body %d has the text unchanged", texts[i].body);
        weft_control_free(weft_env_system(), unpacked);
    }
}

/* 4 MiB of empty members request a hundred times that: refused within the budget. */
static size_t granted_bytes;
static void *counting_alloc(struct weft_env *env, size_t bytes)
{
    granted_bytes += bytes;
    return weft_env_system()->alloc(env, bytes);
}

static void expansion_is_bounded(void **state)
{
    struct weft_env env = *weft_env_system();
    env.alloc = counting_alloc;
    size_t inner = 4u << 20, bytes = 0;
    uint8_t *data = malloc(inner + 16);
    Control *unpacked;
    data[bytes++] = 5 << 3 | 2; /* Control.roster */
    for (size_t left = inner; left; left >>= 7)
        data[bytes++] = (uint8_t)((left & 0x7f) | (left >> 7 ? 0x80 : 0));
    /* Roster.members, empty */
    for (size_t i = 0; i < inner; i += 2) data[bytes++] = 2 << 3 | 2, data[bytes++] = 0;
    granted_bytes = 0;
    assert_int_equal(weft_control_unpack(&env, data, bytes, &unpacked), WEFT_ERR_MALFORMED);
    assert_true(granted_bytes <= (64u << 10) + 40 * bytes); /* the limit of docs/wire.md */
    free(data);
}

static void mutations(void **state)
{
    const char *given = getenv("WEFT_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : 1;
    print_message("replay: WEFT_TEST_SEED=%u\n", seed);
    struct samples s;
    fill(&s);
    for (int body = 1; body <= BODIES; body++) {
        uint8_t data[2048], mutant[2048];
        if (!readings[body]) continue;
        Control message = wrap(&s, body), *unpacked;
        size_t bytes = pack(&message, data, sizeof data);
        for (int i = 0; i < 1500; i++) {
            memcpy(mutant, data, bytes);
            size_t length = i % 3 ? bytes : (size_t)rand_r(&seed) % (bytes + 1);
            for (int flips = rand_r(&seed) % 4; flips >= 0; flips--)
                mutant[(size_t)rand_r(&seed) % bytes] ^= (uint8_t)(1u << rand_r(&seed) % 8);
            uint8_t *exact = malloc(length + 1); /* so that the address sanitizer detects one byte too many */
            memcpy(exact, mutant, length);
            if (weft_control_unpack(weft_env_system(), exact, length, &unpacked) == WEFT_OK) {
                uint8_t *again;
                size_t again_bytes;
                assert_int_equal(weft_control_pack(weft_env_system(), unpacked, &again, &again_bytes),
                                 WEFT_OK);
                weft_free_bytes(weft_env_system(), again);
                weft_control_free(weft_env_system(), unpacked);
            }
            free(exact);
        }
    }
    Control *unpacked;
    assert_int_equal(weft_control_unpack(weft_env_system(), (const uint8_t *)"", 0, &unpacked),
                     WEFT_ERR_MALFORMED);
}

/* The Nth allocation fails: a status, and no leak (the sanitizer build checks). */
static int allocations_left;
static void *failing_alloc(struct weft_env *env, size_t bytes)
{
    return allocations_left-- > 0 ? weft_env_system()->alloc(env, bytes) : NULL;
}

static void allocation_failures(void **state)
{
    struct weft_env env = *weft_env_system();
    env.alloc = failing_alloc;
    struct samples s;
    fill(&s);
    uint8_t data[2048], *packed;
    Control message = wrap(&s, 9), *unpacked;
    size_t bytes = pack(&message, data, sizeof data);
    for (int n = 0;; n++) {
        allocations_left = n;
        if (weft_control_unpack(&env, data, bytes, &unpacked) == WEFT_OK) break;
        assert_true(n < 1000);
    }
    weft_control_free(&env, unpacked);
    allocations_left = 0;
    assert_int_equal(weft_control_pack(&env, &message, &packed, &bytes), WEFT_ERR_NO_MEMORY);
}

/* ---- runs of chunks ---- */

enum { RUN_CHUNKS = 4, RUN_ELEMS = 1024 * 784 };

/* Three chunks of dense and one of a candidate, as runs. */
static void fill_runs(struct samples *s, Weft__Control__ChunkRun run[2], Weft__Control__ChunkRun *runs[2],
                      uint32_t endpoints[RUN_CHUNKS])
{
    fill(s);
    for (uint32_t i = 0; i < RUN_CHUNKS; i++) endpoints[i] = 7 + i % 2;
    for (int r = 0; r < 2; r++) weft__control__chunk_run__init(&run[r]), runs[r] = &run[r];
    run[0].end = run[1].end = RUN_ELEMS, run[0].cut = 300000, run[1].cut = RUN_ELEMS, run[1].candidate = 1;
    run[0].n_endpoints = 3, run[0].endpoints = endpoints;
    run[1].n_endpoints = 1, run[1].endpoints = endpoints + 3;
    s->declared.n_chunks = 0, s->declared.chunks = NULL, s->declared.n_runs = 2, s->declared.runs = runs;
}

static void runs_become_chunks(void **state)
{
    struct samples s;
    Weft__Control__ChunkRun run[2], *runs[2];
    uint32_t endpoints[RUN_CHUNKS];
    uint8_t data[2048];
    fill_runs(&s, run, runs, endpoints);
    Control message = wrap(&s, 9), *unpacked;
    const size_t bytes = pack(&message, data, sizeof data);
    assert_int_equal(weft_control_unpack(weft_env_system(), data, bytes, &unpacked), WEFT_OK);
    const Weft__Control__Declared *declared = unpacked->declared;
    assert_int_equal(declared->n_runs, 0);
    assert_int_equal(declared->n_chunks, RUN_CHUNKS);
    Weft__Control__Chunk chunks[RUN_CHUNKS];
    for (uint32_t i = 0; i < RUN_CHUNKS; i++) {
        chunks[i] = *declared->chunks[i];
        assert_int_equal(chunks[i].offset, i < 3 ? i * 300000 : 0);
        assert_int_equal(chunks[i].count, i < 2 ? 300000 : i == 2 ? RUN_ELEMS - 600000 : RUN_ELEMS);
        assert_int_equal(chunks[i].endpoint, 7 + i % 2);
        assert_int_equal(chunks[i].candidate, i == 3);
    }
    struct weft_chunk_runs again; /* and back */
    uint32_t memory[RUN_CHUNKS];
    assert_true(weft_chunk_runs_make(chunks, RUN_CHUNKS, &again, memory));
    assert_int_equal(again.count, 2);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(again.run[r].end, run[r].end);
        assert_int_equal(again.run[r].cut, run[r].cut);
        assert_int_equal(again.run[r].n_endpoints, run[r].n_endpoints);
    }
    for (uint32_t i = 0; i < RUN_CHUNKS; i++) assert_int_equal(memory[i], endpoints[i]);
    weft_control_free(weft_env_system(), unpacked);
    Weft__Control__Chunk uneven[2 * WEFT_LIMIT_CANDIDATES + 2]; /* each pair begins a run */
    uint32_t more[2 * WEFT_LIMIT_CANDIDATES + 2];
    for (uint32_t i = 0; i < 2 * WEFT_LIMIT_CANDIDATES + 2; i++) {
        weft__control__chunk__init(&uneven[i]);
        uneven[i].offset = i / 2 * 3 + i % 2 * 2, uneven[i].count = 2 - i % 2;
    }
    assert_true(weft_chunk_runs_make(uneven, 2 * WEFT_LIMIT_CANDIDATES, &again, more));
    uneven[1].count = 4; /* longer than the one before: a run of its own */
    assert_true(weft_chunk_runs_make(uneven, 2, &again, more));
    assert_int_equal(again.count, 2);
    uneven[1].count = 1;
    assert_false(weft_chunk_runs_make(uneven, 2 * WEFT_LIMIT_CANDIDATES + 2, &again, more));
}

#define RUN_REFUSED(change)                                                                                 \
    (fill_runs(&s, run, runs, endpoints), change, refused(&s, 9, #change))

static void runs_have_limits(void **state)
{
    struct samples s;
    Weft__Control__ChunkRun run[2], *runs[2];
    uint32_t endpoints[RUN_CHUNKS];
    static uint32_t many[(RUN_ELEMS + 11) / 12]; /* more than WEFT_LIMIT_CHUNKS */
    RUN_REFUSED(run[0].cut = 0);
    RUN_REFUSED(run[0].cut = 200000);
    RUN_REFUSED(run[0].n_endpoints = 2);
    RUN_REFUSED(run[0].end = 0);
    RUN_REFUSED(run[0].end = UINT64_MAX);
    RUN_REFUSED(run[0].offset = 1);
    RUN_REFUSED(run[1].candidate = 0);
    RUN_REFUSED(run[1].candidate = 2);
    RUN_REFUSED(endpoints[1] = WEFT_LIMIT_ENDPOINTS);
    RUN_REFUSED(s.declared.n_runs = 0);
    RUN_REFUSED((s.declared.n_chunks = 2, s.declared.chunks = s.chunks));
    RUN_REFUSED(s.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE);
    RUN_REFUSED((run[0].cut = 12, run[0].n_endpoints = (RUN_ELEMS + 11) / 12, run[0].endpoints = many));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_body),
                                       cmocka_unit_test(limits),
                                       cmocka_unit_test(other_versions_can_be_refused_in_words),
                                       cmocka_unit_test(texts_are_cleaned),
                                       cmocka_unit_test(expansion_is_bounded),
                                       cmocka_unit_test(mutations),
                                       cmocka_unit_test(runs_become_chunks),
                                       cmocka_unit_test(runs_have_limits),
                                       cmocka_unit_test(allocation_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
