/* test_shard_in_place.c - rounds whose contributions are summed in the workers' memory: the same bits,
 * without receive memory; other rounds beside them; ends of workers and rounds meanwhile. */
#include "shard_check.h"

#include <math.h>
#include <string.h>

enum { ELEMS = 2304, LONG = 70000 }; /* of a chunk with mapped values; of a chunk that is summed as a task */

static const struct fleet_tensor_spec tensors[] = {
    {.name = "mean",
     .codec = "dense",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {ELEMS * 9 + 5},
     .chunk_elems = ELEMS},
    {.name = "plain",
     .codec = "dense",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {1000},
     .chunk_elems = 512},
    {.name = "bias", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {37}},
};
static const struct fleet_tensor_spec long_tensor = {.name = "long",
                                                     .codec = "dense",
                                                     .optimizer = "sgd",
                                                     .dim_count = 1,
                                                     .dims = {LONG},
                                                     .chunk_elems = LONG};

static void train(struct fleet *fleet, uint64_t steps)
{
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, steps));
    fleet_settle(fleet, WEFT_SECONDS(1));
    for (uint32_t w = 0; w < fleet->options.workers; w++)
        assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    assert_int_equal(fleet->shard[0].allocations, fleet->shard[0].allocations_declared);
}

static struct weft_shard_engine_stats stats_of(struct fleet *fleet)
{
    struct weft_shard_engine_stats stats;
    weft_shard_engine_stats(fleet->shard[0].engine, &stats);
    return stats;
}

/* The bits are those of the reference. The means of one tensor exchange their memory with the spare. */
static void bits_are_the_same(void **state)
{
    for (uint32_t workers = 1; workers <= 9; workers++) {
        struct fleet_options options = {.seed = workers,
                                        .shards = 1,
                                        .workers = workers,
                                        .tensors = tensors,
                                        .tensor_count = 3,
                                        .weighted = workers % 2,
                                        .think_ns = workers % 3 * 100000,
                                        .maps_payloads = true};
        struct fleet *fleet = fleet_create(&options);
        const float *before[9];
        uint32_t moved = 0;
        for (uint32_t c = 0; c < 9; c++) before[c] = fleet_shard_chunk(fleet, c)->values;
        train(fleet, 4);
        for (uint32_t c = 0; c < 9; c++) moved += fleet_shard_chunk(fleet, c)->values != before[c];
        assert_true(moved > 0);
        assert_int_equal(stats_of(fleet).receive_bytes_used, 0);
        fleet_free(fleet);
    }
}

/* The receive memory has place for a sum, and for one slot of the round that is not summed in place. */
static void only_sums_take_memory(void **state)
{
    struct fleet_options options = {.seed = 3,
                                    .shards = 1,
                                    .workers = 8,
                                    .tensors = &long_tensor,
                                    .tensor_count = 1,
                                    .maps_payloads = true};
    struct fleet *fleet = fleet_create(&options);
    train(fleet, 2);
    assert_int_equal(stats_of(fleet).receive_bytes_peak, shard_slots_bytes(1, LONG * sizeof(float)));
    fleet_free(fleet);
}

/* A contribution that cannot be read as floats is received, and so are all others of its round. */
static void one_that_cannot_be_read_in_place(void **state)
{
    struct fleet_options options = {.seed = 4,
                                    .shards = 1,
                                    .workers = 3,
                                    .tensors = tensors,
                                    .tensor_count = 3,
                                    .maps_payloads = true,
                                    .faults.odd_rank = 2};
    struct fleet *fleet = fleet_create(&options);
    train(fleet, 3);
    assert_true(stats_of(fleet).receive_bytes_peak >= shard_slots_bytes(2, ELEMS * sizeof(float)));
    fleet_free(fleet);
}

/* A worker ends after its push: the sum of its memory is not used, and the round waits for it again. */
static void a_lost_contribution_is_not_used(void **state)
{
    struct fleet_options options = {
        .seed = 5, .shards = 1, .workers = 3, .tensors = tensors, .tensor_count = 1, .maps_payloads = true};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request requests[3];
    memset(requests, 0, sizeof requests);
    struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    const float *values = chunk->values;
    for (uint32_t rank = 0; rank < 2; rank++)
        fleet_push(fleet, rank, 0, WEFT_WIRE_PUSH_PULL, 1, &requests[rank]);
    fleet_settle(fleet, WEFT_MS(10));
    assert_int_equal(chunk->open.phase, SHARD_PHASE_WAITING);
    fleet_kill_worker(fleet, 0);
    fleet_push(fleet, 2, 0, WEFT_WIRE_PUSH_PULL, 1, &requests[2]);
    fleet_settle(fleet, WEFT_MS(10));
    assert_int_equal(chunk->open.phase, SHARD_PHASE_WAITING);
    assert_int_equal(chunk->open.arrived, 2);
    assert_int_equal(chunk->closed_step, 0);
    assert_ptr_equal(chunk->values, values);
    assert_non_null(chunk->tensor->spare);
    assert_int_equal(stats_of(fleet).receive_bytes_used, 0);
    weft_shard_engine_fail(fleet->shard[0].engine, WEFT_ERR_PEER_LOST, "rank 0 is lost");
    for (uint32_t rank = 1; rank < 3; rank++) {
        assert_true(fleet_await(fleet, &requests[rank]));
        assert_int_equal(requests[rank].status, WEFT_ERR_PEER_LOST);
    }
    fleet_free(fleet);
}

/* A round is dropped while its task reads the workers' memory: the pushes end after the task. */
static void a_round_dropped_during_its_sum(void **state)
{
    struct fleet_options options = {.seed = 6,
                                    .shards = 1,
                                    .workers = 3,
                                    .tensors = &long_tensor,
                                    .tensor_count = 1,
                                    .coordinate = true,
                                    .maps_payloads = true};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request requests[3];
    memset(requests, 0, sizeof requests);
    fleet_install(fleet);
    weft_sim_freeze(fleet->sim, fleet->shard[0].host, true); /* pushes and the loss arrive at once */
    for (uint32_t rank = 0; rank < 3; rank++)
        fleet_push(fleet, rank, 0, WEFT_WIRE_PUSH_PULL, 1, &requests[rank]);
    fleet_settle(fleet, WEFT_MS(10));
    fleet_kill_worker(fleet, 2);
    fleet_settle(fleet, WEFT_SECONDS(1));
    weft_sim_freeze(fleet->sim, fleet->shard[0].host, false);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &requests[rank]));
        assert_int_equal(requests[rank].status, WEFT_ERR_PEER_LOST);
    }
    fleet_settle(fleet, WEFT_SECONDS(1));
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    assert_int_equal(chunk->open.phase, SHARD_PHASE_IDLE);
    assert_int_equal(chunk->closed_step, 0);
    assert_null(chunk->workers.contributions);
    for (uint32_t rank = 0; rank < 2; rank++) assert_false(requests[rank].sending);
    assert_int_equal(stats_of(fleet).receive_bytes_used, 0);
    fleet_free(fleet);
}

/* A further round opens only while the open ones have less than round_bytes; without that bound all open. */
static void rounds_stay_within_round_bytes(void **state)
{
    const size_t round = shard_slots_bytes(3, ELEMS * sizeof(float)), limits[] = {0, 1, 2 * round, SIZE_MAX};
    for (uint32_t i = 0; i < 4; i++) {
        struct fleet_options options = {
            .seed = 7, .shards = 1, .workers = 3, .tensors = tensors, .tensor_count = 1, .think_ns = 100000};
        struct fleet *fleet = fleet_create(&options);
        fleet->shard[0].engine->settings.round_bytes = limits[i];
        train(fleet, 3);
        const uint64_t peak = stats_of(fleet).receive_bytes_peak;
        if (limits[i] <= 1) assert_int_equal(peak, round);
        else if (limits[i] < SIZE_MAX) assert_in_range(peak, limits[i], limits[i] + round);
        else assert_true(peak > 4 * round);
        fleet_free(fleet);
    }
}

/* One step of chunk 0; element 7 of the last rank's contribution is `value`. */
struct step {
    uint64_t number;
    float value;
    uint8_t flags;
    uint16_t skips;
    uint32_t good;
};

static void push_steps(struct fleet *fleet, const struct step *step, struct fleet_request *requests)
{
    const uint32_t workers = fleet->options.workers;
    float gradient[ELEMS];
    for (uint32_t rank = 0; rank < workers; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, 0, WEFT_WIRE_PUSH_PULL, step->number);
        for (uint32_t i = 0; i < ELEMS; i++) gradient[i] = (float)(i + rank + step->number);
        if (rank + 1 == workers) gradient[7] = step->value;
        header.flags = step->flags;
        header.skips = step->skips;
        header.good = step->good;
        fleet_send(fleet, rank, 0, &requests[rank], &header, gradient,
                   fleet_shard_chunk(fleet, 0)->count * sizeof(float));
    }
}

/* Returns the flags of the results, which all have `status`. */
static uint8_t run_step(struct fleet *fleet, const struct step *step, enum weft_status status)
{
    struct fleet_request requests[3] = {{0}};
    push_steps(fleet, step, requests);
    for (uint32_t rank = 0; rank < fleet->options.workers; rank++) {
        assert_true(fleet_await(fleet, &requests[rank]));
        assert_int_equal(requests[rank].status, status);
        assert_int_equal(requests[rank].result.flags, requests[0].result.flags);
        fleet_request_free(fleet, &requests[rank]);
    }
    return requests[0].result.flags;
}

/* The first request of step 6 undoes step 5. */
static void undo_step_5(struct fleet *fleet, const float *before)
{
    const struct step step = {6, 1, WEFT_WIRE_MAY_SKIP | WEFT_WIRE_CHECKED, 2, 4};
    struct fleet_request requests[3] = {{0}};
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    struct weft_wire_header pull = fleet_header(fleet, 0, 0, WEFT_WIRE_PULL, 0);
    pull.skips = 2;
    pull.good = 4;
    fleet_send(fleet, 0, 0, &requests[0], &pull, NULL, 0);
    assert_true(fleet_await(fleet, &requests[0]));
    assert_int_equal(requests[0].status, WEFT_OK);
    assert_memory_equal(requests[0].out, before, chunk->count * sizeof(float));
    fleet_request_free(fleet, &requests[0]);
    assert_int_equal(chunk->closed_step, 4);
    assert_int_equal(run_step(fleet, &step, WEFT_OK), WEFT_WIRE_FINITE);
}

/* The flag of a result shows whether the gradients were finite. A checked step with a gradient that is not
 * finite changes no value. A step that is skipped later is undone. Each for sums in place and received
 * sums, with and without an optimiser. */
static void steps_that_are_not_finite(struct fleet *fleet)
{
    static const struct step steps[] = {
        {.number = 1, .value = 3, .flags = WEFT_WIRE_MAY_SKIP},
        {.number = 2, .value = INFINITY, .flags = WEFT_WIRE_MAY_SKIP | WEFT_WIRE_CHECKED},
        {.number = 3, .value = NAN, .flags = WEFT_WIRE_CHECKED, .skips = 1, .good = 1},
        {.number = 4, .value = 4, .flags = WEFT_WIRE_CHECKED, .skips = 1, .good = 1},
        {.number = 5, .value = 5, .flags = WEFT_WIRE_MAY_SKIP | WEFT_WIRE_CHECKED, .skips = 1, .good = 4},
        {.number = 7, .value = -INFINITY, .skips = 2, .good = 6},
    };
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    const size_t bytes = chunk->count * sizeof(float);
    const bool has_spare = chunk->tensor->spare;
    float before[ELEMS];
    fleet_install(fleet);
    assert_int_equal(run_step(fleet, &steps[0], WEFT_OK), WEFT_WIRE_FINITE);
    memcpy(before, chunk->values, bytes);
    assert_int_equal(run_step(fleet, &steps[1], WEFT_ERR_SKIPPED), 0);
    assert_memory_equal(chunk->values, before, bytes);
    assert_int_equal(run_step(fleet, &steps[2], WEFT_ERR_SKIPPED), 0);
    assert_memory_equal(chunk->values, before, bytes);
    assert_int_equal(chunk->tensor->spare != NULL, has_spare);
    assert_int_equal(run_step(fleet, &steps[3], WEFT_OK), WEFT_WIRE_FINITE);
    memcpy(before, chunk->values, bytes);
    assert_int_equal(run_step(fleet, &steps[4], WEFT_OK), WEFT_WIRE_FINITE);
    assert_memory_not_equal(chunk->values, before, bytes);
    undo_step_5(fleet, before);
    assert_int_equal(run_step(fleet, &steps[5], WEFT_OK), 0);
    assert_int_equal(chunk->closed_step, 7);
    assert_int_equal(chunk->tensor->spare != NULL, has_spare);
}

static void what_is_not_finite(void **state)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct fleet_options options = {.seed = i + 1,
                                        .shards = 1,
                                        .workers = 1 + i / 4,
                                        .tensors = &tensors[i % 2],
                                        .tensor_count = 1,
                                        .maps_payloads = i / 2 % 2};
        struct fleet *fleet = fleet_create(&options);
        steps_that_are_not_finite(fleet);
        fleet_free(fleet);
    }
}

int main(void)
{
    const struct CMUnitTest tests_here[] = {
        cmocka_unit_test(bits_are_the_same),
        cmocka_unit_test(only_sums_take_memory),
        cmocka_unit_test(one_that_cannot_be_read_in_place),
        cmocka_unit_test(a_lost_contribution_is_not_used),
        cmocka_unit_test(a_round_dropped_during_its_sum),
        cmocka_unit_test(rounds_stay_within_round_bytes),
        cmocka_unit_test(what_is_not_finite),
    };
    return cmocka_run_group_tests(tests_here, NULL, NULL);
}
