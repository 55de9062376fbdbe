/* test_results.c - which results of shards an operation accepts (server_mode.c): those that it asked for, of
 * this job and membership. All others are dropped and their senders' buffers are freed, errors too, since an
 * error would end the session.
 *
 * The session has a transport and one tensor of two chunks that waits. Two endpoints play its shard and
 * another one. */
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

#include "client/engine/engine.h"
#include "client/session/session.h"
#include "client/tensor/server_mode.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"
#include "tests/collective/world.h"

enum { US = 0, SHARD = 1, OTHER = 2, HOSTS = 3, COUNT = 20, TENSOR = 7 };
enum { JOB = 4711, EPOCH = 3, STEP = 5 };

static struct world *world;
static struct weft_session session;
static struct client_engine engine;
static struct client_tensors tensors;
static struct weft_tensor tensor;
static struct client_chunk chunks[2];
static float out[2 * COUNT];

static void make(enum client_op_kind kind)
{
    world = world_create(weft_env_system(), HOSTS, 1, NULL);
    assert_non_null(world);
    memset(&session, 0, sizeof session);
    memset(&engine, 0, sizeof engine);
    memset(&tensors, 0, sizeof tensors);
    memset(&tensor, 0, sizeof tensor);
    memset(out, 0, sizeof out);
    session.env = world->envs[US];
    session.engine = &engine;
    session.tensors = &tensors;
    engine.session = &session;
    session.loop = engine.loop = world->loops[US];
    engine.transport = world->transports[US];
    tensors.by_id[TENSOR] = &tensor;
    session.membership.job_id = JOB;
    session.epoch = EPOCH;
    for (uint32_t i = 0; i < 2; i++) {
        chunks[i] = (struct client_chunk){.tensor = &tensor,
                                          .index = i,
                                          .endpoint = weft_transport_id(world->transports[SHARD]),
                                          .offset = i * COUNT,
                                          .count = COUNT,
                                          .awaits_result = true};
        weft_list_init(&chunks[i].send_link);
    }
    tensor.session = &session;
    tensor.id = TENSOR;
    tensor.dtype = tensor.wire.pull_dtype = WEFT_F32;
    tensor.chunk_table.chunks = chunks;
    tensor.chunk_table.count = 2;
    tensor.op = (struct client_tensor_op){
        .kind = kind, .step = STEP, .out = out, .epoch = EPOCH, .chunk_count = 2, .results_left = 2};
    client_server_mode_listen(&session);
}

static struct weft_wire_header wanted(void)
{
    return (struct weft_wire_header){.kind = WEFT_WIRE_RESULT,
                                     .codec = WEFT_CODEC_DENSE,
                                     .dtype = WEFT_F32,
                                     .job = JOB,
                                     .epoch = EPOCH,
                                     .tensor = TENSOR,
                                     .step = STEP,
                                     .payload_bytes = COUNT * sizeof(float)};
}

static void sent(struct weft_completion *completion, enum weft_status status) {}

/* Every element is `value`. The sender's buffer is free when the result was accepted or dropped. */
static void send_result(uint32_t host, struct weft_wire_header header, float value)
{
    const bool never = false;
    float values[COUNT];
    uint8_t bytes[WEFT_WIRE_HEADER_BYTES];
    struct weft_completion completion;
    for (uint32_t i = 0; i < COUNT; i++) values[i] = value;
    if (header.status < 0) header.payload_bytes = 0;
    weft_wire_encode(&header, bytes);
    const struct weft_message message = {.tag = WEFT_TAG(WEFT_CHANNEL_RESULT, 0),
                                         .header = bytes,
                                         .header_bytes = sizeof bytes,
                                         .payload = header.payload_bytes ? values : NULL,
                                         .payload_bytes = (size_t)header.payload_bytes};
    weft_completion_init(&completion, 1, sent);
    assert_true(weft_transport_send(
                    weft_transport_peer(world->transports[host], weft_transport_id(world->transports[US])),
                    &message, &completion) >= 0);
    world_run(world, &never, WEFT_SECONDS(1));
    assert_int_equal(completion.count, 0);
}

static void expect_untouched(void)
{
    assert_int_equal(tensor.op.results_left, 2);
    assert_true(chunks[0].awaits_result && chunks[1].awaits_result);
    assert_int_equal(client_failed(&session), WEFT_OK);
    for (uint32_t i = 0; i < 2 * COUNT; i++) assert_true(out[i] == 0);
}

/* Sends it with values and as an error. */
static void expect_dropped(uint32_t host, struct weft_wire_header header)
{
    send_result(host, header, 13);
    expect_untouched();
    header.status = WEFT_ERR_DEADLINE;
    send_result(host, header, 13);
    expect_untouched();
}

static void others_are_dropped(enum client_op_kind kind)
{
    struct weft_wire_header header;
    make(kind);
    expect_dropped(OTHER, wanted());
    header = wanted(), header.epoch = EPOCH - 1, expect_dropped(SHARD, header);
    header = wanted(), header.epoch = EPOCH + 1, expect_dropped(SHARD, header);
    header = wanted(), header.job = JOB + 1, expect_dropped(SHARD, header);
    header = wanted(), header.step = STEP - 1, expect_dropped(SHARD, header);
    header = wanted(), header.round = 1, expect_dropped(SHARD, header);
    header = wanted(), header.tensor = TENSOR + CLIENT_TENSOR_BUCKETS, expect_dropped(SHARD, header);
    header = wanted(), header.chunk = 2, expect_dropped(SHARD, header);
}

static void take_both(uint64_t step)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct weft_wire_header header = wanted();
        header.chunk = i;
        header.step = step;
        send_result(SHARD, header, (float)(i + 1));
        assert_int_equal(tensor.op.results_left, 1 - i);
        send_result(SHARD, header, 13); /* again */
    }
    for (uint32_t i = 0; i < 2 * COUNT; i++) assert_true(out[i] == (float)(i / COUNT + 1));
    assert_int_equal(tensor.op.in_transport, 0);
    world_free(world);
}

static void a_push_takes_its_own_step(void **state)
{
    others_are_dropped(CLIENT_OP_PUSH_PULL);
    struct weft_wire_header header = wanted();
    header.step = STEP + 1, expect_dropped(SHARD, header);
    take_both(STEP);
}

/* A rank that has rested accepts a later step of the shards. */
static void a_pull_takes_a_later_step(void **state)
{
    others_are_dropped(CLIENT_OP_PULL);
    take_both(STEP + 2);
}

static void an_operation_that_is_over_takes_nothing(void **state)
{
    make(CLIENT_OP_PUSH_PULL);
    tensor.op.kind = CLIENT_OP_NONE;
    expect_dropped(SHARD, wanted());
    tensor.op.kind = CLIENT_OP_PUSH_PULL;
    tensor.op.status = WEFT_ERR_CANCELLED;
    expect_dropped(SHARD, wanted());
    tensor.op.status = WEFT_OK;
    engine.failed = WEFT_ERR_PEER_LOST; /* ranks are lost, and the others have not agreed yet */
    expect_dropped(SHARD, wanted());
    engine.failed = WEFT_OK;
    take_both(STEP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_takes_its_own_step),
        cmocka_unit_test(a_pull_takes_a_later_step),
        cmocka_unit_test(an_operation_that_is_over_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
