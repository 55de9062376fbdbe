/* test_shard_half.c - tensors of f16 and bf16, and results that are rounded (shard_half.c): bits of the
 * reference, which sums and updates in f32; the largest numbers; weights in f32 as a state; what overwrites
 * results also restores them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/snapshot/shard_snapshot.h"
#include "shard_check.h"

enum { ELEMS = 5003, CHUNK = 1100, LONG = 70000 };

#define TENSOR(NAME, OPTIMIZER, DTYPE, PULL_DTYPE)                                               \
    {                                                                                            \
        .name = NAME, .codec = "dense", .optimizer = OPTIMIZER, .dim_count = 1, .dims = {ELEMS}, \
        .chunk_elems = CHUNK, .dtype = DTYPE, .pull_dtype = PULL_DTYPE                           \
    }

static const struct fleet_tensor_spec tensors[] = {
    TENSOR("mean bf16", "none", WEFT_BF16, 0),
    TENSOR("weights bf16", "sgd:momentum=0.9,weight_decay=0.01", WEFT_BF16, 0),
    TENSOR("mean f16", "none", WEFT_F16, 0),
    TENSOR("weights f16", "sgd", WEFT_F16, 0),
    TENSOR("pulled bf16", "sgd:momentum=0.9", WEFT_F32, WEFT_BF16),
    TENSOR("pulled f16", "none", WEFT_F32, WEFT_F16),
    TENSOR("sum bf16", "sum", WEFT_BF16, 0),
    TENSOR("sum f32", "sum", WEFT_F32, 0),
};
enum { TENSORS = 8 };
static const struct fleet_tensor_spec small[] = {
    {.name = "w", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {7}, .dtype = WEFT_BF16},
    {.name = "m", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {3}, .dtype = WEFT_BF16},
    {.name = "p", .codec = "dense", .optimizer = "sgd", .dim_count = 1, .dims = {5}, .pull_dtype = WEFT_F16},
};
static const struct fleet_tensor_spec long_tensor = {.name = "long",
                                                     .codec = "dense",
                                                     .optimizer = "sgd",
                                                     .dim_count = 1,
                                                     .dims = {LONG},
                                                     .chunk_elems = LONG,
                                                     .dtype = WEFT_BF16};

static void train(struct fleet *fleet, uint64_t steps)
{
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, steps));
    fleet_settle(fleet, WEFT_SECONDS(1));
    for (uint32_t w = 0; w < fleet->options.workers; w++)
        assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
}

/* Received into slots, summed where they lie, in message groups; with sample weights and a loss scale. */
static void bits_are_those_of_f32(void **state)
{
    for (uint32_t workers = 1; workers <= 9; workers++) {
        struct fleet_options options = {.seed = workers,
                                        .shards = 1 + workers % 2,
                                        .workers = workers,
                                        .tensors = tensors,
                                        .tensor_count = TENSORS,
                                        .weighted = workers % 3 != 0,
                                        .loss_exponent = (int8_t)(workers % 3 * 5),
                                        .faults.repeat_percent = workers % 4 == 1 ? 20 : 0,
                                        .groups = workers % 4 == 2 ? ~0ull : 0,
                                        .think_ns = workers % 3 * 100000,
                                        .maps_payloads = workers % 2};
        struct fleet *fleet = fleet_create(&options);
        train(fleet, 3);
        assert_int_equal(fleet->shard[0].allocations, fleet->shard[0].allocations_declared);
        fleet_free(fleet);
    }
}

/* A fold, a sum in place and a close that are tasks. */
static void long_chunks(void **state)
{
    for (uint32_t maps = 0; maps < 2; maps++) {
        struct fleet_options options = {.seed = 3,
                                        .shards = 1,
                                        .workers = 3,
                                        .tensors = &long_tensor,
                                        .tensor_count = 1,
                                        .maps_payloads = maps};
        struct fleet *fleet = fleet_create(&options);
        train(fleet, 2);
        fleet_free(fleet);
    }
}

/* A copy gets what closed the step in f32, and answers with rounded results after the leader is lost. */
static void copies_have_the_same_bits(void **state)
{
    struct fleet_options options = {
        .seed = 4, .shards = 2, .workers = 3, .tensors = tensors, .tensor_count = TENSORS, .copies = true};
    struct fleet *fleet = fleet_create(&options);
    train(fleet, 3);
    assert_int_equal(fleet_wrong_copies(fleet, 3), 0);
    fleet_kill_shard(fleet, 0);
    fleet_fail_over(fleet, 0, WEFT_MS(5));
    fleet_settle(fleet, WEFT_MS(50));
    assert_true(fleet_train(fleet, 4, 6));
    assert_int_equal(fleet->counts.wrong, 0);
    fleet_free(fleet);
}

/* A new copy rounds the weights as a task, then leads. */
static void long_chunks_are_copied(void **state)
{
    struct fleet_options options = {.seed = 5,
                                    .shards = 3,
                                    .workers = 2,
                                    .copy_bytes_max = LONG * sizeof(float),
                                    .tensors = &long_tensor,
                                    .tensor_count = 1,
                                    .copies = true};
    struct fleet *fleet = fleet_create(&options);
    train(fleet, 2);
    fleet_copy(fleet, 0, 2);
    fleet_settle(fleet, WEFT_MS(100));
    assert_int_equal(fleet->counts.moved, 1);
    assert_int_equal(fleet_wrong_copies(fleet, 2), 0);
    fleet_hand_over(fleet, 0);
    fleet_settle(fleet, WEFT_MS(100));
    assert_int_equal(fleet->chunk[0].shard, 2);
    assert_true(fleet_train(fleet, 3, 4));
    assert_int_equal(fleet->counts.wrong + fleet->counts.unheld + fleet_wrong_copies(fleet, 4), 0);
    fleet_free(fleet);
}

/* ---- single messages ---- */

static struct fleet *start(uint32_t workers)
{
    struct fleet_options options = {.seed = 2,
                                    .shards = 1,
                                    .workers = workers,
                                    .tensors = small,
                                    .tensor_count = 3,
                                    .round_deadline_ns = WEFT_SECONDS(10)};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    return fleet;
}

static void request(struct fleet *fleet, struct fleet_request *request, const struct weft_wire_header *header,
                    const void *payload)
{
    free(request->out);
    *request = (struct fleet_request){0};
    fleet_send(fleet, header->worker, 0, request, header, payload, (size_t)header->payload_bytes);
}

static void await_ok(struct fleet *fleet, struct fleet_request *request)
{
    assert_true(fleet_await(fleet, request));
    assert_string_equal(request->text, "");
    assert_int_equal(request->status, WEFT_OK);
}

/* All workers push `bits` in every element of a bf16 chunk. */
static void push_all(struct fleet *fleet, uint32_t chunk, uint64_t step, uint16_t bits, uint8_t flags,
                     struct fleet_request *requests)
{
    uint16_t values[16];
    for (int i = 0; i < 16; i++) values[i] = bits;
    for (uint32_t rank = 0; rank < fleet->options.workers; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, chunk, WEFT_WIRE_PUSH_PULL, step);
        header.flags = flags;
        header.lr = 1;
        request(fleet, &requests[rank], &header, values);
    }
}

static uint16_t first_of(const struct fleet_request *request)
{
    uint16_t bits;
    memcpy(&bits, request->out, sizeof bits);
    return bits;
}

/* The mean of finite numbers is finite, though their sum exceeds f32. NaN and infinity stay. */
static void means_of_the_largest_numbers(void **state)
{
    static const uint16_t values[] = {0x7f7f, 0xff7f, 0x0001, 0x8080, 0x7f80, 0xff80};
    struct fleet_request requests[7] = {{0}};
    for (uint32_t workers = 1; workers <= 7; workers++) {
        struct fleet *fleet = start(workers);
        for (uint32_t i = 0; i < 6; i++) {
            push_all(fleet, 1, i + 1, values[i], 0, requests);
            for (uint32_t rank = 0; rank < workers; rank++) {
                await_ok(fleet, &requests[rank]);
                assert_int_equal(first_of(&requests[rank]), values[i]);
            }
        }
        push_all(fleet, 1, 7, 0x7fc1, 0, requests);
        for (uint32_t rank = 0; rank < workers; rank++) {
            await_ok(fleet, &requests[rank]);
            assert_int_equal(first_of(&requests[rank]) & 0x7f80, 0x7f80);
            assert_true(first_of(&requests[rank]) & 0x7f);
        }
        /* with WEFT_WIRE_CHECKED the step is skipped */
        push_all(fleet, 1, 8, 0x7f80, WEFT_WIRE_CHECKED, requests);
        for (uint32_t rank = 0; rank < workers; rank++) {
            assert_true(fleet_await(fleet, &requests[rank]));
            assert_int_equal(requests[rank].status, WEFT_ERR_SKIPPED);
            free(requests[rank].out);
            requests[rank].out = NULL;
        }
        fleet_free(fleet);
    }
}

/* STATE_PULL has the weights in f32, PULL has them rounded; STATE_INIT sets them, before the first step. */
static void weights_are_a_state(void **state)
{
    struct fleet *fleet = start(2);
    struct fleet_request answer = {0};
    float master[7];
    for (int i = 0; i < 7; i++) master[i] = 1.0f + (float)i / 1024;
    struct weft_wire_header header = fleet_header(fleet, 0, 0, WEFT_WIRE_STATE_INIT, 0);
    header.round = WEFT_WIRE_PART_WEIGHTS;
    request(fleet, &answer, &header, master);
    await_ok(fleet, &answer);
    header = fleet_header(fleet, 1, 0, WEFT_WIRE_STATE_PULL, 0);
    header.round = WEFT_WIRE_PART_WEIGHTS;
    request(fleet, &answer, &header, NULL);
    await_ok(fleet, &answer);
    assert_int_equal(answer.result.dtype, WEFT_F32);
    assert_int_equal(answer.out_bytes, sizeof master);
    assert_memory_equal(answer.out, master, sizeof master);
    header = fleet_header(fleet, 1, 0, WEFT_WIRE_PULL, 0);
    request(fleet, &answer, &header, NULL);
    await_ok(fleet, &answer);
    assert_int_equal(answer.result.dtype, WEFT_BF16);
    assert_true(fleet_result_is(fleet, &fleet->chunk[0], master, answer.out, answer.out_bytes));
    free(answer.out);
    fleet_free(fleet);
}

static void refused(struct fleet *fleet, const struct weft_wire_header *header, const void *payload,
                    enum weft_status status, const char *text)
{
    struct fleet_request answer = {0};
    request(fleet, &answer, header, payload);
    assert_true(fleet_await(fleet, &answer));
    assert_string_equal(answer.text, text);
    assert_int_equal(answer.status, status);
    free(answer.out);
}

static void other_dtypes_are_refused(void **state)
{
    struct fleet *fleet = start(2);
    const float payload[8] = {0};
    struct weft_wire_header header = fleet_header(fleet, 1, 0, WEFT_WIRE_PUSH_PULL, 1);
    header.dtype = WEFT_F16;
    refused(fleet, &header, payload, WEFT_ERR_MISMATCH,
            "rank 1 pushes tensor 'w' with codec 0 dtype 2, not 0 and 3");
    header.dtype = WEFT_BF16;
    header.payload_bytes = 7 * sizeof(float);
    refused(fleet, &header, payload, WEFT_ERR_MALFORMED,
            "rank 1 pushes 28 bytes of tensor 'w' chunk 0, which has 14");
    header = fleet_header(fleet, 0, 0, WEFT_WIRE_INIT, 0);
    header.dtype = WEFT_F32;
    refused(fleet, &header, payload, WEFT_ERR_INVALID,
            "first weights must be sent by rank 0, as step 0, dense bf16");
    header = fleet_header(fleet, 0, 0, WEFT_WIRE_STATE_INIT, 0);
    header.round = WEFT_WIRE_PART_WEIGHTS;
    header.dtype = WEFT_BF16;
    refused(fleet, &header, payload, WEFT_ERR_INVALID,
            "first states must be sent by rank 0, as step 0, dense f32");
    fleet_free(fleet);
}

/* The results of a step that is undone are those of the step before. */
static void undone_results(void **state)
{
    struct fleet *fleet = start(2);
    struct fleet_request requests[2] = {{0}}, pull = {0};
    for (uint64_t step = 1; step <= 2; step++) {
        push_all(fleet, 0, step, 0x3f80, WEFT_WIRE_MAY_SKIP, requests);
        for (uint32_t rank = 0; rank < 2; rank++) await_ok(fleet, &requests[rank]);
    }
    const float after_two = fleet_shard_chunk(fleet, 0)->values[0];
    struct weft_wire_header header = fleet_header(fleet, 0, 0, WEFT_WIRE_PULL, 1);
    header.skips = 1;
    header.good = 1;
    request(fleet, &pull, &header, NULL);
    await_ok(fleet, &pull);
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    assert_int_equal(chunk->closed_step, 1);
    assert_true(chunk->values[0] == after_two + 1);
    assert_true(fleet_result_is(fleet, &fleet->chunk[0], chunk->values, pull.out, pull.out_bytes));
    for (uint32_t rank = 0; rank < 2; rank++) free(requests[rank].out);
    free(pull.out);
    fleet_free(fleet);
}

/* A held sum: its squares in f64, then rounded weights. */
static void a_clipped_step(void **state)
{
    struct fleet *fleet = start(2);
    struct fleet_request requests[2] = {{0}};
    const uint16_t two[7] = {0x4000, 0x4000, 0x4000, 0x4000, 0x4000, 0x4000, 0x4000};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, 0, WEFT_WIRE_PUSH_HOLD, 1);
        header.lr = 1;
        header.loss_exponent = 1;
        request(fleet, &requests[rank], &header, two);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        double squares;
        await_ok(fleet, &requests[rank]);
        assert_int_equal(requests[rank].out_bytes, sizeof squares);
        memcpy(&squares, requests[rank].out, sizeof squares);
        assert_true(squares == 7 * 4); /* of the sum of 2 / 2 of two workers */
    }
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    const float before = chunk->values[0];
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, 0, WEFT_WIRE_APPLY, 1);
        header.weight = 0.5f;
        request(fleet, &requests[rank], &header, NULL);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        await_ok(fleet, &requests[rank]);
        assert_true(chunk->values[0] == before - 0.5f);
        assert_true(fleet_result_is(fleet, &fleet->chunk[0], chunk->values, requests[rank].out,
                                    requests[rank].out_bytes));
        free(requests[rank].out);
    }
    fleet_free(fleet);
}

/* A snapshot has the weights in f32; the results of a restored chunk are their rounding. */
static void restored_weights_are_rounded(void **state)
{
    struct fleet *fleet = start(1);
    struct weft_error error = {0};
    struct weft_piece *piece = weft_piece_create(weft_env_system(), 1, 7 * sizeof(float));
    const struct weft_piece_array array = {.part = WEFT_PIECE_VALUES, .tensor = "w", .count = 7, .step = 9};
    float values[7];
    for (int i = 0; i < 7; i++) values[i] = 3.0f + (float)i / 512;
    weft_piece_add(piece, &array, values);
    struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    chunk->initialised = false;
    assert_int_equal(weft_shard_engine_restore(fleet->shard[0].engine, 0, piece, 0, &error), WEFT_OK);
    assert_memory_equal(chunk->values, values, sizeof values);
    assert_int_equal(chunk->closed_step, 9);
    assert_true(fleet_result_is(fleet, &fleet->chunk[0], values, shard_chunk_result(chunk),
                                shard_chunk_result_bytes(chunk)));
    weft_piece_free(piece);
    fleet_free(fleet);
}

static void declares_that_do_not_fit(void **state)
{
    static const struct {
        struct fleet_tensor_spec spec;
        const char *text;
    } cases[] = {
        {{.dtype = WEFT_I64}, "shards serve f32, f16 and bf16, not i64"},
        {{.dtype = WEFT_BF16, .codec = "int8"},
         "shards exchange bf16 with dense tensors of consistency bsp only: leave out the codec and the "
         "consistency, or use f32"},
        {{.pull_dtype = WEFT_F16, .consistency = "asp", .optimizer = "sgd"},
         "shards exchange f16 with dense tensors of consistency bsp only: leave out the codec and the "
         "consistency, or use f32"},
        {{.dtype = WEFT_BF16, .pull_dtype = WEFT_F16},
         "pull_dtype is f16 or bf16 and belongs to a tensor of f32; it is f16, of bf16"},
    };
    struct fleet_tensor_spec spec = small[0];
    struct fleet_options options = {
        .seed = 1, .shards = 1, .workers = 1, .tensors = &spec, .tensor_count = 1};
    struct fleet *fleet = fleet_create(&options);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct weft_error error = {0};
        struct weft_shard_engine *engine;
        spec = cases[i].spec;
        spec.name = "x";
        spec.codec = spec.codec ? spec.codec : "dense";
        spec.optimizer = spec.optimizer ? spec.optimizer : "none";
        spec.dim_count = 1;
        spec.dims[0] = 5000;
        assert_int_equal(fleet_engine_create(&fleet->shard[0], &engine, &error), WEFT_OK);
        assert_true(fleet_declare(fleet, 0, engine, &error) < 0);
        assert_string_equal(error.text, cases[i].text);
        weft_shard_engine_close(engine);
        weft_shard_engine_free(engine);
    }
    fleet_free(fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_f32),
        cmocka_unit_test(long_chunks),
        cmocka_unit_test(copies_have_the_same_bits),
        cmocka_unit_test(long_chunks_are_copied),
        cmocka_unit_test(means_of_the_largest_numbers),
        cmocka_unit_test(weights_are_a_state),
        cmocka_unit_test(other_dtypes_are_refused),
        cmocka_unit_test(undone_results),
        cmocka_unit_test(a_clipped_step),
        cmocka_unit_test(restored_weights_are_rounded),
        cmocka_unit_test(declares_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
