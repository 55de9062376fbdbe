/* test_shard_worker_left.c - a worker has left (shard_worker_left.c): which waits end at once, with which
 * sentence, and which continue. Three workers and a round deadline far away. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS = 3, LEAVER = 1, SUM = 0, MEAN = 1 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "sum", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {40}},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {50}},
};

static struct fleet *start(void)
{
    struct fleet_options options = {.seed = 21,
                                    .shards = 1,
                                    .workers = WORKERS,
                                    .tensors = tensors,
                                    .tensor_count = 2,
                                    .round_deadline_ns = WEFT_SECONDS(500),
                                    .receive_bytes_max = (size_t)8 << 20};
    return fleet_create(&options);
}

static void leave(struct fleet *fleet, uint32_t worker)
{
    weft_shard_engine_worker_left(fleet->shard[0].engine, fleet->worker[worker].endpoint);
}

static void send_request(struct fleet *fleet, uint32_t worker, uint32_t chunk, enum weft_wire_kind kind,
                         uint64_t step, struct fleet_request *request)
{
    struct weft_wire_header header = fleet_header(fleet, worker, chunk, kind, step);
    const bool pulls = kind == WEFT_WIRE_PULL;
    float values[64];
    for (int i = 0; i < 64; i++) values[i] = (float)worker;
    header.weight = pulls ? header.weight : 1;
    header.lr = pulls ? header.lr : 1;
    header.payload_bytes = pulls ? 0 : fleet->chunk[chunk].count * sizeof(float);
    *request = (struct fleet_request){0};
    fleet_send(fleet, worker, 0, request, &header, values, (size_t)header.payload_bytes);
}

static void expect_left(struct fleet *fleet, struct fleet_request *request, const char *sentence)
{
    assert_true(fleet_await(fleet, request));
    assert_int_equal(request->status, WEFT_ERR_PEER_LOST);
    assert_string_equal(request->text, sentence);
}

static void finish(struct fleet *fleet, struct fleet_request *requests, uint32_t count)
{
    struct weft_shard_engine_stats stats;
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_true(weft_sim_now_ns(fleet->sim) < WEFT_SECONDS(100)); /* no wait reached the deadline */
    weft_shard_engine_stats(fleet->shard[0].engine, &stats);
    assert_int_equal(stats.receive_bytes_used, 0);
    for (uint32_t i = 0; i < count; i++) fleet_request_free(fleet, &requests[i]);
    fleet_free(fleet);
}

static void step_of_all(struct fleet *fleet, uint64_t step, struct fleet_request *r)
{
    for (uint32_t w = 0; w < WORKERS; w++) send_request(fleet, w, MEAN, WEFT_WIRE_PUSH_PULL, step, &r[w]);
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_true(fleet_await(fleet, &r[w]));
        assert_int_equal(r[w].status, WEFT_OK);
    }
}

/* Requests that wait already, and requests that arrive later, of each kind. */
static void rounds_that_cannot_close_end(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[10];
    step_of_all(fleet, 1, r);
    send_request(fleet, 0, MEAN, WEFT_WIRE_PUSH, 2, &r[3]);
    send_request(fleet, 2, MEAN, WEFT_WIRE_PULL, 2, &r[4]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(r[3].done || r[4].done);
    leave(fleet, LEAVER);
    expect_left(fleet, &r[3], "step 2 of 'mean' chunk 0: rank 1 left before it pushed");
    expect_left(fleet, &r[4], "pull of step 2 of 'mean' chunk 0: rank 1 left before it pushed");
    send_request(fleet, 2, MEAN, WEFT_WIRE_PUSH_PULL, 3, &r[5]);
    expect_left(fleet, &r[5], "step 3 of 'mean' chunk 0: rank 1 left before it pushed");
    send_request(fleet, 0, MEAN, WEFT_WIRE_PULL, 2, &r[6]);
    expect_left(fleet, &r[6], "pull of step 2 of 'mean' chunk 0: rank 1 left before it pushed");
    send_request(fleet, 0, MEAN, WEFT_WIRE_PULL, 1, &r[7]); /* the closed step is still served */
    assert_true(fleet_await(fleet, &r[7]));
    assert_int_equal(r[7].status, WEFT_OK);
    finish(fleet, r, 8);
}

/* A contribution that arrived before its worker left counts. */
static void a_round_with_the_leaver_goes_on(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[6];
    step_of_all(fleet, 1, r);
    send_request(fleet, LEAVER, MEAN, WEFT_WIRE_PUSH, 2, &r[3]);
    send_request(fleet, 0, MEAN, WEFT_WIRE_PUSH_PULL, 2, &r[4]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    leave(fleet, LEAVER);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(r[4].done);
    send_request(fleet, 2, MEAN, WEFT_WIRE_PUSH_PULL, 2, &r[5]);
    for (int i = 4; i < 6; i++) {
        assert_true(fleet_await(fleet, &r[i]));
        assert_int_equal(r[i].status, WEFT_OK);
        for (uint64_t e = 0; e < fleet->chunk[MEAN].count; e++)
            assert_true(((const float *)(const void *)r[i].out)[e] == 1);
    }
    finish(fleet, r, 6);
}

/* First weights are sent by rank 0: after another rank has left they are still waited for. */
static void first_weights_that_will_not_come(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request r[1];
    send_request(fleet, 2, SUM, WEFT_WIRE_PULL, 0, &r[0]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    leave(fleet, LEAVER);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(r[0].done);
    leave(fleet, 0);
    expect_left(fleet, &r[0], "pull of step 0 of 'sum' chunk 0: rank 0 left before it sent first weights");
    finish(fleet, r, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounds_that_cannot_close_end),
                                       cmocka_unit_test(a_round_with_the_leaver_goes_on),
                                       cmocka_unit_test(first_weights_that_will_not_come)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
