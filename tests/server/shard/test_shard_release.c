/* test_shard_release.c - a tensor that all workers have freed: its memory is freed when nothing uses it, and
 * requests are refused. */
#include "shard_check.h"

#include <string.h>

enum { WORKERS = 3 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "dense",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {5000},
     .chunk_elems = 1000},
    {.name = "low", .codec = "powersgd:rank=2", .optimizer = "sgd", .dim_count = 2, .dims = {60, 50}},
    {.name = "kept", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {300}},
};

static struct fleet *trained(uint64_t steps)
{
    const struct fleet_options options = {.seed = 5,
                                          .shards = 1,
                                          .workers = WORKERS,
                                          .receive_bytes_max = 1 << 20,
                                          .tensors = tensors,
                                          .tensor_count = 3,
                                          .round_deadline_ns = WEFT_SECONDS(60)};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, steps));
    return fleet;
}

static void goes_at_rest(void **state)
{
    (void)state;
    struct fleet *fleet = trained(3);
    struct fleet_shard *shard = &fleet->shard[0];
    struct weft_shard_engine_stats before, after;
    static struct fleet_request request;
    fleet_settle(fleet, WEFT_SECONDS(1));
    weft_shard_engine_stats(shard->engine, &before);
    const int64_t outstanding = shard->outstanding;
    weft_shard_engine_release(shard->engine, 0);
    weft_shard_engine_release(shard->engine, 1);
    weft_shard_engine_release(shard->engine, 1); /* again, and one that is not here */
    weft_shard_engine_release(shard->engine, 77);
    fleet_settle(fleet, WEFT_SECONDS(1));
    weft_shard_engine_stats(shard->engine, &after);
    assert_int_equal(before.weights_bytes - after.weights_bytes, (5000 + 60 * 50) * sizeof(float));
    assert_int_equal(before.chunks - after.chunks, 6);
    assert_true(shard->outstanding < outstanding);
    assert_null(shard_table_tensor(shard->engine, 0));
    assert_non_null(shard_table_tensor(shard->engine, 2));
    struct weft_wire_header header = fleet_header(fleet, 0, 0, WEFT_WIRE_PUSH, 4);
    static uint8_t payload[4000];
    memset(&request, 0, sizeof request);
    fleet_send(fleet, 0, 0, &request, &header, payload, sizeof payload);
    assert_true(fleet_await(fleet, &request));
    assert_true(request.result.status < 0);
    fleet_request_free(fleet, &request);
    fleet_free(fleet);
}

/* A worker has not received its result yet: memory being sent stays until the send has completed. */
static void waits_for_its_sends(void **state)
{
    (void)state;
    struct fleet *fleet = trained(1);
    struct fleet_shard *shard = &fleet->shard[0];
    static struct fleet_request request[WORKERS];
    memset(request, 0, sizeof request);
    fleet_settle(fleet, WEFT_SECONDS(1));
    fleet_hold(fleet, 1, true);
    for (uint32_t w = 0; w < WORKERS; w++) fleet_push(fleet, w, 0, WEFT_WIRE_PUSH_PULL, 2, &request[w]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    assert_int_equal(chunk->closed_step, 2);
    assert_true(chunk->result.sends > 0);
    weft_shard_engine_release(shard->engine, 0);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(shard->engine->table.releasing, 1);
    fleet_hold(fleet, 1, false);
    assert_true(fleet_await(fleet, &request[1]));
    assert_int_equal(request[1].result.status, WEFT_OK);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(shard->engine->table.releasing, 0);
    for (uint32_t w = 0; w < WORKERS; w++) fleet_request_free(fleet, &request[w]);
    fleet_free(fleet);
}

/* The engine ends while one is still in use. */
static void ends_while_held(void **state)
{
    (void)state;
    struct fleet *fleet = trained(1);
    static struct fleet_request request[WORKERS];
    memset(request, 0, sizeof request);
    fleet_hold(fleet, 1, true);
    for (uint32_t w = 0; w < WORKERS; w++) fleet_push(fleet, w, 0, WEFT_WIRE_PUSH_PULL, 2, &request[w]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    weft_shard_engine_release(fleet->shard[0].engine, 0);
    fleet_free(fleet);
    for (uint32_t w = 0; w < WORKERS; w++) fleet_request_free(fleet, &request[w]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(goes_at_rest), cmocka_unit_test(waits_for_its_sends),
                                       cmocka_unit_test(ends_while_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
