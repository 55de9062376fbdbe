/* test_shard_groups.c - message groups: the bits of messages sent alone, over mapped and received payloads;
 * refusals, malformed entries, errors and deaths meanwhile; the memory of every group returns. */
#include "shard_check.h"

#include <string.h>

static const struct fleet_tensor_spec tensors[] = {
    {.name = "fc1",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9,weight_decay=1e-4",
     .dim_count = 2,
     .dims = {33, 29},
     .chunk_elems = 300},
    {.name = "bias", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {37}},
    {.name = "mean",
     .codec = "dense",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {2000},
     .chunk_elems = 256},
    {.name = "half", .codec = "f16", .optimizer = "sgd", .dim_count = 1, .dims = {50}},
    {.name = "long", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {9000}},
    {.name = "low",
     .codec = "powersgd:rank=1,min_ratio=1",
     .optimizer = "sgd",
     .dim_count = 2,
     .dims = {16, 16}},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

static void check_idle(struct fleet *fleet)
{
    fleet_settle(fleet, WEFT_SECONDS(1));
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        const struct weft_shard_engine *engine = fleet->shard[s].engine;
        if (fleet->shard[s].killed) continue;
        assert_int_equal(engine->groups.memory.used_bytes, 0);
        assert_int_equal(engine->memory.arena.used_bytes, 0);
        assert_int_equal(engine->groups.open_count, 0);
        assert_int_equal(engine->groups.corks, 0);
        assert_true(weft_list_empty(&engine->groups.waiting) && weft_list_empty(&engine->groups.unsent) &&
                    weft_list_empty(&engine->groups.accepted));
        assert_int_equal(engine->reply_pool.replies_in_flight, 0);
        assert_int_equal(fleet->shard[s].allocations, fleet->shard[s].allocations_declared);
    }
}

static void train(struct fleet *fleet, uint64_t steps)
{
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, steps));
    for (uint32_t w = 0; w < fleet->options.workers; w++)
        assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    check_idle(fleet);
}

static void bits_are_the_same(void **state)
{
    for (uint32_t workers = 1; workers <= 9; workers++)
        for (uint32_t maps = 0; maps < 2; maps++) {
            struct fleet_options options = {.seed = workers,
                                            .shards = 1 + workers % 2,
                                            .workers = workers,
                                            .receive_bytes_max = 64 << 20,
                                            .tensors = tensors,
                                            .tensor_count = TENSORS,
                                            .weighted = workers % 2,
                                            .maps_payloads = maps,
                                            .groups = UINT64_MAX};
            struct fleet *fleet = fleet_create(&options);
            train(fleet, 4);
            /* each step sends at least one group to each shard, and its results return in groups */
            assert_true(fleet->counts.groups_sent >= 4 * options.shards * workers);
            assert_true(fleet->counts.results_in_groups > 4 * workers);
            assert_int_equal(fleet->counts.groups_refused, 0);
            fleet_free(fleet);
        }
}

/* Ranks with and without groups, in any order, with repeated pushes and a transport without space. */
static void mixed_with_messages_sent_alone(void **state)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct fleet_options options = {.seed = seed,
                                        .shards = 1,
                                        .workers = 5,
                                        .tensors = tensors,
                                        .tensor_count = TENSORS,
                                        .think_ns = 20000,
                                        .faults.repeat_percent = 20,
                                        .faults.again_percent = 30,
                                        .maps_payloads = seed % 2,
                                        .groups = 0x15};
        struct fleet *fleet = fleet_create(&options);
        train(fleet, 5);
        assert_true(fleet->counts.groups_sent > 0 && fleet->counts.repeats > 0);
        fleet_free(fleet);
    }
}

/* The pool has no space for most groups: their entries are sent alone. */
static void without_memory_entries_are_sent_alone(void **state)
{
    struct fleet_options options = {.seed = 3,
                                    .shards = 1,
                                    .workers = 6,
                                    .receive_bytes_max = 128 << 10,
                                    .tensors = tensors,
                                    .tensor_count = TENSORS,
                                    .groups = UINT64_MAX};
    struct fleet *fleet = fleet_create(&options);
    train(fleet, 4);
    assert_true(fleet->counts.groups_refused > 0);
    fleet_free(fleet);
}

/* ---- single groups ---- */

static struct fleet *two_workers(bool maps)
{
    struct fleet_options options = {.seed = 7,
                                    .shards = 1,
                                    .workers = 2,
                                    .tensors = &tensors[2],
                                    .tensor_count = 1,
                                    .maps_payloads = maps,
                                    .coordinate = true,
                                    .groups = UINT64_MAX};
    return fleet_create(&options);
}

/* An entry that cannot be read ends the group; the ones before it count, and no memory is lost. */
static void a_malformed_entry_ends_the_group(void **state)
{
    for (uint32_t maps = 0; maps < 2; maps++) {
        struct fleet *fleet = two_workers(maps);
        struct fleet_request good, bad, other;
        uint8_t header[WEFT_WIRE_HEADER_BYTES];
        float zeros[256] = {0};
        memset(&good, 0, sizeof good), memset(&bad, 0, sizeof bad), memset(&other, 0, sizeof other);
        fleet_push(fleet, 0, 0, WEFT_WIRE_PUSH_PULL, 1, &good);
        struct weft_wire_header changed = fleet_header(fleet, 0, 1, WEFT_WIRE_PUSH_PULL, 1);
        weft_wire_encode(&changed, header);
        header[40] ^= 1; /* the checksum does not fit */
        fleet_group_add(&fleet->worker[0], 0, header, zeros, sizeof zeros);
        fleet_push(fleet, 0, 2, WEFT_WIRE_PUSH_PULL, 1, &bad);
        fleet_push(fleet, 1, 0, WEFT_WIRE_PUSH_PULL, 1, &other);
        assert_true(fleet_await(fleet, &good) && good.status == WEFT_OK);
        assert_true(fleet_await(fleet, &other) && other.status == WEFT_OK);
        assert_int_equal(fleet_shard_chunk(fleet, 0)->closed_step, 1);
        assert_int_equal(fleet_shard_chunk(fleet, 2)->open.arrived, 0);
        assert_false(bad.done);
        fleet_request_free(fleet, &good);
        fleet_request_free(fleet, &other);
        fleet->worker[0].open = NULL;
        check_idle(fleet);
        fleet_free(fleet);
    }
}

/* The error of one entry names its tensor and leaves the others as they are. */
static void an_error_names_its_tensor(void **state)
{
    struct fleet_options options = {
        .seed = 8, .shards = 1, .workers = 1, .tensors = tensors, .tensor_count = 3, .groups = UINT64_MAX};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request mean, bias;
    memset(&mean, 0, sizeof mean), memset(&bias, 0, sizeof bias);
    uint32_t bias_chunk = 0, mean_chunk = 0;
    while (fleet->chunk[bias_chunk].tensor != 1) bias_chunk++;
    while (fleet->chunk[mean_chunk].tensor != 2) mean_chunk++;
    fleet_push(fleet, 0, bias_chunk, WEFT_WIRE_PUSH_PULL, 1, &bias); /* it has no first weights */
    fleet_push(fleet, 0, mean_chunk, WEFT_WIRE_PUSH_PULL, 1, &mean);
    assert_true(fleet_await(fleet, &mean) && fleet_await(fleet, &bias));
    assert_int_equal(fleet->counts.groups_sent, 1);
    assert_int_equal(mean.status, WEFT_OK);
    assert_int_equal(bias.status, WEFT_ERR_STATE);
    assert_non_null(strstr(bias.text, "tensor 'bias'"));
    fleet_request_free(fleet, &mean);
    check_idle(fleet);
    fleet_free(fleet);
}

/* A worker ends while the shard holds its group. */
static void a_lost_worker_returns_the_memory(void **state)
{
    for (uint32_t maps = 0; maps < 2; maps++) {
        struct fleet *fleet = two_workers(maps);
        struct fleet_request requests[4];
        memset(requests, 0, sizeof requests);
        for (uint32_t c = 0; c < 4; c++) fleet_push(fleet, 0, c, WEFT_WIRE_PUSH_PULL, 1, &requests[c]);
        fleet_settle(fleet, WEFT_MS(10));
        assert_int_equal(fleet_shard_chunk(fleet, 3)->open.arrived, 1);
        assert_true(fleet->shard[0].engine->groups.memory.used_bytes > 0);
        fleet_kill_worker(fleet, 0);
        check_idle(fleet);
        assert_int_equal(fleet_shard_chunk(fleet, 3)->open.arrived, 0);
        fleet_free(fleet);
    }
}

/* A worker ends after its group has arrived: what lies in its memory is not summed. */
static void a_lost_contribution_is_not_used(void **state)
{
    struct fleet_options options = {.seed = 9,
                                    .shards = 1,
                                    .workers = 2,
                                    .tensors = &tensors[2],
                                    .tensor_count = 1,
                                    .maps_payloads = true,
                                    .groups = UINT64_MAX};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request requests[2][2];
    memset(requests, 0, sizeof requests);
    for (uint32_t c = 0; c < 2; c++) fleet_push(fleet, 0, c, WEFT_WIRE_PUSH_PULL, 1, &requests[0][c]);
    fleet_settle(fleet, WEFT_MS(10));
    fleet_kill_worker(fleet, 0);
    for (uint32_t c = 0; c < 2; c++) fleet_push(fleet, 1, c, WEFT_WIRE_PUSH_PULL, 1, &requests[1][c]);
    fleet_settle(fleet, WEFT_MS(10));
    for (uint32_t c = 0; c < 2; c++) {
        assert_int_equal(fleet_shard_chunk(fleet, c)->closed_step, 0);
        assert_int_equal(fleet_shard_chunk(fleet, c)->open.arrived, 1);
    }
    fleet->worker[1].open = NULL;
    fleet_free(fleet);
}

/* The engine closes while groups are held. */
static void a_close_returns_the_memory(void **state)
{
    struct fleet *fleet = two_workers(true);
    struct fleet_request requests[4];
    memset(requests, 0, sizeof requests);
    for (uint32_t c = 0; c < 4; c++) fleet_push(fleet, 1, c, WEFT_WIRE_PUSH_PULL, 1, &requests[c]);
    fleet_settle(fleet, WEFT_MS(10));
    assert_true(fleet->shard[0].engine->groups.memory.used_bytes > 0);
    weft_shard_engine_close(fleet->shard[0].engine);
    assert_int_equal(fleet->shard[0].engine->groups.memory.used_bytes, 0);
    fleet->worker[1].open = NULL;
    fleet_free(fleet);
}

/* A group with one result is a plain message. */
static void one_result_is_sent_alone(void **state)
{
    struct fleet *fleet = two_workers(false);
    struct fleet_request requests[2];
    memset(requests, 0, sizeof requests);
    for (uint32_t rank = 0; rank < 2; rank++)
        fleet_push(fleet, rank, 0, WEFT_WIRE_PUSH_PULL, 1, &requests[rank]);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &requests[rank]) && requests[rank].status == WEFT_OK);
        fleet_request_free(fleet, &requests[rank]);
    }
    assert_int_equal(fleet->counts.results_in_groups, 0);
    check_idle(fleet);
    fleet_free(fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_the_same),
        cmocka_unit_test(mixed_with_messages_sent_alone),
        cmocka_unit_test(without_memory_entries_are_sent_alone),
        cmocka_unit_test(a_malformed_entry_ends_the_group),
        cmocka_unit_test(an_error_names_its_tensor),
        cmocka_unit_test(a_lost_worker_returns_the_memory),
        cmocka_unit_test(a_lost_contribution_is_not_used),
        cmocka_unit_test(a_close_returns_the_memory),
        cmocka_unit_test(one_result_is_sent_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
