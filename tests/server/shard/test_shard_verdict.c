/* test_shard_verdict.c - a held sum (shard_verdict.c): its squares are the result of the round, and the
 * values change with the first verdict, once. The rate is 1, the sample weights are 1. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS = 2, SMALL = 40, LARGE = 70000 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "w", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {SMALL}},
    {.name = "wide", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {LARGE}},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {SMALL}},
    {.name = "half", .codec = "bf16", .optimizer = "sgd", .dim_count = 1, .dims = {SMALL}},
    {.name = "clock",
     .codec = "dense",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {SMALL},
     .consistency = "asp"},
};
enum { WIDE = 1, MEAN, HALF, CLOCK, TENSORS };

static struct fleet *start(void)
{
    struct fleet_options options = {.seed = 3,
                                    .shards = 1,
                                    .workers = WORKERS,
                                    .tensors = tensors,
                                    .tensor_count = TENSORS,
                                    .round_deadline_ns = WEFT_SECONDS(10)};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    return fleet;
}

static void send_request(struct fleet *fleet, uint32_t rank, uint32_t chunk, enum weft_wire_kind kind,
                         uint64_t step, float number, struct fleet_request *request)
{
    struct weft_wire_header header = fleet_header(fleet, rank, chunk, kind, step);
    const bool contributes = weft_wire_contributes((uint8_t)kind);
    const uint64_t count = fleet->chunk[chunk].count;
    float *values = malloc(count * sizeof *values);
    for (uint64_t i = 0; i < count; i++) values[i] = number;
    header.lr = contributes;
    header.weight = contributes ? 1 : number;
    header.payload_bytes = contributes ? count * sizeof *values : 0;
    free(request->out);
    *request = (struct fleet_request){0};
    fleet_send(fleet, rank, fleet->chunk[chunk].shard, request, &header, values,
               (size_t)header.payload_bytes);
    free(values);
}

static void await_status(struct fleet *fleet, struct fleet_request *request, enum weft_status wanted,
                         const char *text)
{
    assert_true(fleet_await(fleet, request));
    assert_string_equal(request->text, text);
    assert_int_equal(request->status, wanted);
}

static double squares_in(const struct fleet_request *request)
{
    double squares;
    assert_int_equal(request->out_bytes, sizeof squares);
    memcpy(&squares, request->out, sizeof squares);
    return squares;
}

static void finish(struct fleet *fleet, struct fleet_request *requests, uint32_t count)
{
    struct weft_shard_engine_stats stats;
    fleet_settle(fleet, WEFT_SECONDS(1));
    weft_shard_engine_stats(fleet->shard[0].engine, &stats);
    assert_int_equal(stats.receive_bytes_used, 0);
    for (uint32_t i = 0; i < count; i++) free(requests[i].out);
    fleet_free(fleet);
}

static void a_sum_waits_for_its_verdict(void **state)
{
    for (uint32_t chunk = 0; chunk <= WIDE; chunk++) {
        struct fleet *fleet = start();
        struct fleet_request request[WORKERS] = {{0}}, again = {0};
        const struct shard_chunk *real = fleet_shard_chunk(fleet, chunk);
        const float before = real->values[1];
        for (uint32_t rank = 0; rank < WORKERS; rank++)
            send_request(fleet, rank, chunk, WEFT_WIRE_PUSH_HOLD, 1, 1 + (float)rank, &request[rank]);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            await_status(fleet, &request[rank], WEFT_OK, "");
            assert_true(squares_in(&request[rank]) == 9.0 * (double)real->count);
            assert_true(request[rank].result.weight_sum == 2);
        }
        send_request(fleet, 1, chunk, WEFT_WIRE_PUSH_HOLD, 1, 7, &again); /* again: answered, not added */
        await_status(fleet, &again, WEFT_OK, "");
        assert_true(squares_in(&again) == 9.0 * (double)real->count);
        assert_true(real->values[1] == before && real->closed_step == 0);
        for (uint32_t rank = 0; rank < WORKERS; rank++)
            send_request(fleet, rank, chunk, WEFT_WIRE_APPLY, 1, 0.5f, &request[rank]);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            await_status(fleet, &request[rank], WEFT_OK, "");
            assert_int_equal(request[rank].out_bytes, real->count * sizeof(float));
            assert_true(((const float *)(const void *)request[rank].out)[1] == before - 0.75f);
        }
        assert_int_equal(real->closed_step, 1);
        send_request(fleet, 1, chunk, WEFT_WIRE_APPLY, 1, 0.5f, &again); /* again: not applied twice */
        await_status(fleet, &again, WEFT_OK, "");
        assert_true(real->values[1] == before - 0.75f);
        free(again.out);
        finish(fleet, request, WORKERS);
    }
}

static void a_skipped_step_drops_the_sum(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request[WORKERS] = {{0}};
    const struct shard_chunk *real = fleet_shard_chunk(fleet, 0);
    const float before = real->values[1];
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        send_request(fleet, rank, 0, WEFT_WIRE_PUSH_HOLD, 1, 8, &request[rank]);
    for (uint32_t rank = 0; rank < WORKERS; rank++) await_status(fleet, &request[rank], WEFT_OK, "");
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, 0, WEFT_WIRE_PUSH_PULL, 1);
        float values[SMALL] = {0};
        values[1] = 1;
        header.lr = header.weight = 1;
        header.skips = 1;
        free(request[rank].out);
        request[rank] = (struct fleet_request){0};
        fleet_send(fleet, rank, 0, &request[rank], &header, values, sizeof values);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) await_status(fleet, &request[rank], WEFT_OK, "");
    assert_true(real->values[1] == before - 1 && real->closed_step == 1);
    finish(fleet, request, WORKERS);
}

static void wrong_verdicts_are_refused(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request[WORKERS] = {{0}};
    send_request(fleet, 0, 0, WEFT_WIRE_APPLY, 1, 1, &request[0]);
    await_status(fleet, &request[0], WEFT_ERR_STATE,
                 "rank 0 applies step 1 of tensor 'w', which the shard does not hold");
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        send_request(fleet, rank, 0, rank ? WEFT_WIRE_PUSH_HOLD : WEFT_WIRE_PUSH_PULL, 1, 1, &request[rank]);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        await_status(fleet, &request[rank], WEFT_ERR_MISMATCH,
                     "rank 1 clips step 1 of 'w' by its norm, rank 0 does not");
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        send_request(fleet, rank, 0, WEFT_WIRE_PUSH_HOLD, 1, 1, &request[rank]);
    for (uint32_t rank = 0; rank < WORKERS; rank++) await_status(fleet, &request[rank], WEFT_OK, "");
    send_request(fleet, 0, 0, WEFT_WIRE_APPLY, 1, 1.5f, &request[0]);
    await_status(fleet, &request[0], WEFT_ERR_INVALID,
                 "rank 0 scales the mean of tensor 'w' by 1.5: at most 1");
    send_request(fleet, 0, 0, WEFT_WIRE_APPLY, 2, 1, &request[0]);
    await_status(fleet, &request[0], WEFT_ERR_STATE,
                 "rank 0 applies step 2 of tensor 'w', which the shard does not hold");
    send_request(fleet, 0, 0, WEFT_WIRE_APPLY, 1, 1, &request[0]);
    await_status(fleet, &request[0], WEFT_OK, "");
    send_request(fleet, 1, 0, WEFT_WIRE_APPLY, 1, 0.5f, &request[1]);
    await_status(fleet, &request[1], WEFT_ERR_MISMATCH,
                 "rank 1 scales step 1 of tensor 'w' by 0.5, another rank by 1");
    send_request(fleet, 1, 0, WEFT_WIRE_PUSH_HOLD, 1, 1, &request[1]);
    await_status(fleet, &request[1], WEFT_ERR_STALE,
                 "step 1 round 0 of tensor 'w' is over, steps up to 1 are");
    finish(fleet, request, WORKERS);
}

static void only_dense_tensors_with_an_optimizer_are_held(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request = {0};
    for (uint32_t chunk = MEAN; chunk < TENSORS; chunk++) {
        send_request(fleet, 0, chunk, WEFT_WIRE_PUSH_HOLD, 1, 1, &request);
        assert_true(fleet_await(fleet, &request));
        assert_int_equal(request.status, WEFT_ERR_UNSUPPORTED);
        assert_non_null(strstr(request.text, "is clipped by the norm of a step"));
    }
    finish(fleet, &request, 1);
}

/* A shard that got its copy after the verdict leads: repeated requests of the step get the same replies. */
static void a_new_copy_knows_the_verdict(void **state)
{
    struct fleet_options options = {.seed = 3,
                                    .shards = 3,
                                    .workers = WORKERS,
                                    .tensors = tensors,
                                    .tensor_count = 1,
                                    .round_deadline_ns = WEFT_SECONDS(10),
                                    .copies = true};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request request[WORKERS] = {{0}}, again = {0};
    fleet_install(fleet);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        send_request(fleet, rank, 0, WEFT_WIRE_PUSH_HOLD, 1, 2, &request[rank]);
    for (uint32_t rank = 0; rank < WORKERS; rank++) await_status(fleet, &request[rank], WEFT_OK, "");
    const double squares = squares_in(&request[0]);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        send_request(fleet, rank, 0, WEFT_WIRE_APPLY, 1, 0.5f, &request[rank]);
    for (uint32_t rank = 0; rank < WORKERS; rank++) await_status(fleet, &request[rank], WEFT_OK, "");
    fleet_copy(fleet, 0, 2);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(fleet->counts.moved, 1);
    fleet_kill_shard(fleet, 0);
    fleet_fail_over(fleet, 0, 0);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(fleet->chunk[0].shard, 2);
    send_request(fleet, 1, 0, WEFT_WIRE_PUSH_HOLD, 1, 2, &again);
    await_status(fleet, &again, WEFT_OK, "");
    assert_true(squares_in(&again) == squares);
    send_request(fleet, 1, 0, WEFT_WIRE_APPLY, 1, 0.25f, &again);
    assert_true(fleet_await(fleet, &again));
    assert_int_equal(again.status, WEFT_ERR_MISMATCH);
    send_request(fleet, 1, 0, WEFT_WIRE_APPLY, 1, 0.5f, &again);
    await_status(fleet, &again, WEFT_OK, "");
    assert_int_equal(again.out_bytes, request[1].out_bytes);
    assert_memory_equal(again.out, request[1].out, again.out_bytes);
    for (uint32_t rank = 0; rank < WORKERS; rank++) free(request[rank].out);
    free(again.out);
    fleet_free(fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_waits_for_its_verdict),
        cmocka_unit_test(a_skipped_step_drops_the_sum),
        cmocka_unit_test(wrong_verdicts_are_refused),
        cmocka_unit_test(only_dense_tensors_with_an_optimizer_are_held),
        cmocka_unit_test(a_new_copy_knows_the_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
