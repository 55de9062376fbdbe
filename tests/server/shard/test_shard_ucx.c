/* test_shard_ucx.c - the shard engine over UCX on loopback tcp, every result bit for bit. */
#include "shard_check.h"

#include <stdio.h>

static const struct fleet_tensor_spec tensors[] = {
    {.name = "wide",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {300, 500},
     .chunk_elems = 40000},
    {.name = "bias", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {37}},
    {.name = "low",
     .codec = "powersgd:rank=2",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {300, 200}},
    {.name = "top",
     .codec = "topk:ratio=0.05,min_count=64",
     .optimizer = "sgd",
     .dim_count = 2,
     .dims = {100, 100}},
};

static void trains_over_tcp(void **state)
{
    struct fleet_options options = {.seed = 9,
                                    .shards = 2,
                                    .workers = 3,
                                    .receive_bytes_max = 1 << 20,
                                    .tensors = tensors,
                                    .tensor_count = 4,
                                    .ucx = true,
                                    .weighted = true,
                                    .faults.repeat_percent = 20,
                                    .round_deadline_ns = WEFT_SECONDS(20)};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, 4));
    for (uint32_t w = 0; w < options.workers; w++) {
        if (fleet->worker[w].training.failure < 0)
            printf("rank %u: %s\n", w, fleet->worker[w].training.failure_text);
        assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    }
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_free(fleet);
}

/* Closing during rounds: everything held and in flight is released. */
static void leaves_in_the_middle(void **state)
{
    struct fleet_options options = {.seed = 10,
                                    .shards = 1,
                                    .workers = 3,
                                    .receive_bytes_max = 1 << 20,
                                    .tensors = tensors,
                                    .tensor_count = 2,
                                    .ucx = true};
    static struct fleet_request request[8], pull;
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t w = 0; w < 2; w++) fleet_push(fleet, w, c, WEFT_WIRE_PUSH_PULL, 1, &request[c * 2 + w]);
    struct weft_wire_header header = fleet_header(fleet, 0, 0, WEFT_WIRE_PULL, 1);
    fleet_send(fleet, 0, 0, &pull, &header, NULL, 0);
    for (int i = 0; i < 1000 && fleet->shard[0].engine->stats.pushes < 8; i++)
        fleet_settle(fleet, WEFT_MS(1));
    assert_int_equal(fleet->shard[0].engine->stats.pushes, 8);
    fleet_free(fleet);
    for (int i = 0; i < 8; i++) fleet_request_free(fleet, &request[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(trains_over_tcp),
                                       cmocka_unit_test(leaves_in_the_middle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
