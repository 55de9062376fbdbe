/* test_shard_gates.c - a result stays unchanged until its last reader has it; a codec's rounds stay together.
 */
#include "shard_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct fleet_tensor_spec tensors[] = {
    {.name = "main", .codec = "dense", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {400}},
    {.name = "half", .codec = "f16", .optimizer = "none", .dim_count = 1, .dims = {800}},
    {.name = "low", .codec = "powersgd:rank=2", .optimizer = "sgd", .dim_count = 2, .dims = {200, 180}},
};
enum { MAIN = 0, HALF = 1, LOW = 2 };

static struct fleet *start(void)
{
    struct fleet_options options = {.seed = 21,
                                    .shards = 1,
                                    .workers = 2,
                                    .tensors = tensors,
                                    .tensor_count = 3,
                                    .round_deadline_ns = WEFT_SECONDS(10)};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    return fleet;
}

/* Pushes one round of a codec tensor by the fleet's own codec of that worker. weight, lr: 0: the fleet's. */
static void codec_push_of(struct fleet *fleet, uint32_t rank, uint32_t tensor, uint64_t step, uint8_t round,
                          float weight, float lr, struct fleet_request *request)
{
    float *grad = malloc(weft_shape_elems(&fleet->shape[tensor]) * sizeof(float));
    uint8_t *bytes =
        malloc(weft_codec_contribution_bytes_max(&fleet->codec[tensor], &fleet->shape[tensor], round));
    size_t length;
    fleet_gradient(fleet, rank, tensor, step, grad);
    assert_int_equal(weft_codec_encode(fleet->worker[rank].codecs.codec[tensor], round, grad,
                                       fleet_weight(fleet, rank, step), bytes, &length),
                     WEFT_OK);
    struct weft_wire_header header = fleet_header(fleet, rank, tensor, WEFT_WIRE_PUSH_PULL, step);
    header.payload_bytes = length;
    header.round = round;
    if (weight > 0) header.weight = weight;
    if (lr > 0) header.lr = lr;
    fleet_request_free(fleet, request);
    *request = (struct fleet_request){0};
    fleet_send(fleet, rank, 0, request, &header, bytes, length);
    free(grad);
    free(bytes);
}

static void codec_push(struct fleet *fleet, uint32_t rank, uint32_t tensor, uint64_t step, uint8_t round,
                       float weight, struct fleet_request *request)
{
    codec_push_of(fleet, rank, tensor, step, round, weight, 0, request);
}

static void expect_aggregate(struct fleet *fleet, struct fleet_request *request, uint32_t tensor,
                             uint64_t step, uint8_t round)
{
    size_t bytes;
    const void *expected = reference_aggregate(fleet->reference, tensor, step, round, &bytes);
    assert_true(fleet_await(fleet, request));
    if (request->status < 0) printf("%s\n", request->text);
    assert_int_equal(request->status, WEFT_OK);
    assert_int_equal(request->out_bytes, bytes);
    assert_memory_equal(request->out, expected, bytes);
}

static void take(struct fleet *fleet, uint32_t rank, uint32_t tensor, uint8_t round,
                 struct fleet_request *request)
{
    assert_int_equal(
        weft_codec_take(fleet->worker[rank].codecs.codec[tensor], round, request->out, request->out_bytes, 2),
        WEFT_OK);
}

/* A slow reader of the previous weights delays the close, not the collecting; then both get correct values.
 */
static void values_wait_for_their_readers(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request pull = {0}, late = {0}, push[2] = {{0}};
    struct weft_wire_header header = fleet_header(fleet, 1, MAIN, WEFT_WIRE_PULL, 0);
    fleet_hold(fleet, 1, true);
    fleet_send(fleet, 1, 0, &pull, &header, NULL, 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        fleet_push(fleet, rank, MAIN, WEFT_WIRE_PUSH_PULL, 1, &push[rank]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(fleet_shard_chunk(fleet, MAIN)->open.phase, SHARD_PHASE_CLOSING);
    assert_int_equal(fleet_shard_chunk(fleet, MAIN)->closed_step, 0);
    header = fleet_header(fleet, 0, MAIN, WEFT_WIRE_PULL, 0);
    fleet_send(fleet, 0, 0, &late, &header, NULL, 0); /* waits for the close: it must not delay it */
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(late.done);
    fleet_hold(fleet, 1, false);
    assert_true(fleet_await(fleet, &pull) && fleet_await(fleet, &push[0]) && fleet_await(fleet, &push[1]) &&
                fleet_await(fleet, &late));
    assert_memory_equal(pull.out, reference_values(fleet->reference, MAIN, 0), 1600);
    assert_memory_equal(push[0].out, reference_values(fleet->reference, MAIN, 1), 1600);
    assert_memory_equal(push[1].out, reference_values(fleet->reference, MAIN, 1), 1600);
    assert_memory_equal(late.out, reference_values(fleet->reference, MAIN, 1), 1600);
    assert_int_equal(late.result.step, 1);
    for (int i = 0; i < 2; i++) fleet_request_free(fleet, &push[i]);
    fleet_request_free(fleet, &pull), fleet_request_free(fleet, &late);
    fleet_free(fleet);
}

/* The deadline of a round that a reader delays names that cause. */
static void deadline_of_a_held_close(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request pull = {0}, push[2] = {{0}};
    struct weft_wire_header header = fleet_header(fleet, 1, MAIN, WEFT_WIRE_PULL, 0);
    fleet_hold(fleet, 1, true);
    fleet_send(fleet, 1, 0, &pull, &header, NULL, 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        fleet_push(fleet, rank, MAIN, WEFT_WIRE_PUSH_PULL, 1, &push[rank]);
    assert_true(fleet_await(fleet, &push[0]));
    assert_int_equal(push[0].status, WEFT_ERR_DEADLINE);
    assert_string_equal(
        push[0].text,
        "step 1 of 'main' chunk 0: all pushed, a rank has not taken the result before, in 10 s");
    fleet_hold(fleet, 1, false);
    assert_true(fleet_await(fleet, &pull) && fleet_await(fleet, &push[1]));
    assert_memory_equal(pull.out, reference_values(fleet->reference, MAIN, 0), 1600);
    assert_int_equal(push[1].status, WEFT_ERR_DEADLINE);
    assert_true(fleet_train(fleet, 1, 2));
    assert_int_equal(fleet->counts.wrong, 0);
    fleet_request_free(fleet, &pull);
    fleet_free(fleet);
}

/* Rank 1 still reads the aggregate of step 1 while both push step 2: it is not overwritten. */
static void aggregate_waits_for_its_readers(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request first[2] = {{0}}, second[2] = {{0}};
    fleet_hold(fleet, 1, true);
    for (uint32_t rank = 0; rank < 2; rank++) codec_push(fleet, rank, HALF, 1, 0, 0, &first[rank]);
    expect_aggregate(fleet, &first[0], HALF, 1, 0);
    for (uint32_t rank = 0; rank < 2; rank++) codec_push(fleet, rank, HALF, 2, 0, 0, &second[rank]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(fleet_shard_chunk(fleet, HALF)->closed_step, 1);
    assert_int_equal(fleet_shard_chunk(fleet, HALF)->open.phase, SHARD_PHASE_COLLECTING);
    assert_int_equal(fleet_shard_chunk(fleet, HALF)->open.next, 0);
    fleet_hold(fleet, 1, false);
    expect_aggregate(fleet, &first[1], HALF, 1, 0);
    for (uint32_t rank = 0; rank < 2; rank++) expect_aggregate(fleet, &second[rank], HALF, 2, 0);
    for (int i = 0; i < 2; i++) fleet_request_free(fleet, &first[i]), fleet_request_free(fleet, &second[i]);
    fleet_free(fleet);
}

static void both_rounds(struct fleet *fleet, struct fleet_request request[2])
{
    for (uint8_t round = 0; round < 2; round++) {
        for (uint32_t rank = 0; rank < 2; rank++) codec_push(fleet, rank, LOW, 1, round, 0, &request[rank]);
        for (uint32_t rank = 0; rank < 2; rank++) expect_aggregate(fleet, &request[rank], LOW, 1, round);
        for (uint32_t rank = 0; rank < 2; rank++) take(fleet, rank, LOW, round, &request[rank]);
    }
    assert_int_equal(fleet_shard_chunk(fleet, LOW)->closed_step, 1);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    for (int i = 0; i < 2; i++) fleet_request_free(fleet, &request[i]);
}

/* All rounds of a step have one learning rate: the second round's first push has the first round's. */
static void one_learning_rate_in_all_rounds(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request[2] = {{0}};
    for (uint32_t rank = 0; rank < 2; rank++) codec_push(fleet, rank, LOW, 1, 0, 0, &request[rank]);
    for (uint32_t rank = 0; rank < 2; rank++) expect_aggregate(fleet, &request[rank], LOW, 1, 0);
    for (uint32_t rank = 0; rank < 2; rank++) take(fleet, rank, LOW, 0, &request[rank]);
    codec_push_of(fleet, 0, LOW, 1, 1, 0, 7.0f, &request[0]);
    codec_push(fleet, 1, LOW, 1, 1, 0, &request[1]);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_MISMATCH);
        assert_non_null(strstr(request[rank].text, "lr of step 1 differs"));
        assert_non_null(strstr(request[rank].text, "rank 0 has 7 "));
    }
    for (uint32_t rank = 0; rank < 2; rank++) weft_codec_abandon(fleet->worker[rank].codecs.codec[LOW]);
    both_rounds(fleet, request);
    fleet_free(fleet);
}

/* A repeated push gets the result of its own round. The result of an earlier round is dropped, also if its
 * step was the last closed one. */
static void a_repeat_of_an_earlier_round(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request[2] = {{0}};
    both_rounds(fleet, request);
    request[0] = (struct fleet_request){0};
    codec_push(fleet, 0, LOW, 1, 0, 0, &request[0]);
    assert_true(fleet_await(fleet, &request[0]));
    assert_int_equal(request[0].status, WEFT_ERR_STALE);
    assert_non_null(strstr(request[0].text, "step 1 round 0 of tensor 'low' is over"));
    fleet_request_free(fleet, &request[0]);
    fleet_free(fleet);
}

/* A step that fails in its second round restarts with its first. */
static void failed_second_round_starts_over(void **state)
{
    struct fleet *fleet = start();
    struct fleet_request request[2] = {{0}};
    for (uint32_t rank = 0; rank < 2; rank++) codec_push(fleet, rank, LOW, 1, 0, 0, &request[rank]);
    for (uint32_t rank = 0; rank < 2; rank++) expect_aggregate(fleet, &request[rank], LOW, 1, 0);
    for (uint32_t rank = 0; rank < 2; rank++) take(fleet, rank, LOW, 0, &request[rank]);

    codec_push(fleet, 0, LOW, 1, 1, 7.0f, &request[0]); /* another weight than in round 0 */
    assert_true(fleet_await(fleet, &request[0]));
    assert_int_equal(request[0].status, WEFT_ERR_MISMATCH);
    assert_non_null(strstr(request[0].text, "rank 0's weight changed from 1 to 7"));

    codec_push(fleet, 0, LOW, 1, 1, 0, &request[0]); /* rank 1 does not push: deadline */
    assert_true(fleet_await(fleet, &request[0]));
    assert_int_equal(request[0].status, WEFT_ERR_DEADLINE);
    codec_push(fleet, 1, LOW, 1, 1, 0, &request[1]);
    assert_true(fleet_await(fleet, &request[1]));
    assert_int_equal(request[1].status, WEFT_ERR_DEADLINE);
    codec_push(fleet, 1, LOW, 1, 1, 0, &request[1]); /* the second round of a dropped step: gets the reason */
    assert_true(fleet_await(fleet, &request[1]));
    assert_int_equal(request[1].status, WEFT_ERR_DEADLINE);
    assert_non_null(strstr(request[1].text, "no push from rank 1"));

    for (uint32_t rank = 0; rank < 2; rank++) weft_codec_abandon(fleet->worker[rank].codecs.codec[LOW]);
    both_rounds(fleet, request);
    fleet_free(fleet);
}

/* One reply at a time: everything else waits and nothing is lost. */
static void few_replies_are_enough(void **state)
{
    struct fleet_options options = {.seed = 4,
                                    .shards = 1,
                                    .workers = 6,
                                    .tensors = tensors,
                                    .tensor_count = 3,
                                    .think_ns = 50000,
                                    .faults.repeat_percent = 50};
    struct fleet *fleet = fleet_create(&options);
    struct weft_shard_engine *engine = fleet->shard[0].engine;
    struct shard_reply *rest = engine->reply_pool.free_replies->next_free;
    engine->reply_pool.free_replies->next_free = NULL;
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, 6));
    for (uint32_t w = 0; w < 6; w++) assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_non_null(engine->reply_pool.free_replies);
    engine->reply_pool.free_replies->next_free = rest;
    fleet_free(fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_wait_for_their_readers),   cmocka_unit_test(deadline_of_a_held_close),
        cmocka_unit_test(aggregate_waits_for_its_readers), cmocka_unit_test(failed_second_round_starts_over),
        cmocka_unit_test(one_learning_rate_in_all_rounds), cmocka_unit_test(a_repeat_of_an_earlier_round),
        cmocka_unit_test(few_replies_are_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
