/* test_shard_rounds.c - complete training steps through shard engines, every result compared bit for bit. */
#include "shard_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct fleet_tensor_spec dense_tensors[] = {
    {.name = "fc1",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9,weight_decay=1e-4",
     .dim_count = 2,
     .dims = {33, 29},
     .chunk_elems = 300},
    {.name = "bias",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9,nesterov=1",
     .dim_count = 1,
     .dims = {37}},
    {.name = "plain",
     .codec = "dense",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {1000},
     .chunk_elems = 512},
    {.name = "mean",
     .codec = "dense",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {700},
     .chunk_elems = 256},
};

static void train_and_check(struct fleet_options *options, uint64_t steps)
{
    struct fleet *fleet = fleet_create(options);
    fleet_install(fleet);
    bool ended = fleet_train(fleet, 1, steps);
    for (uint32_t w = 0; w < options->workers; w++) {
        if (fleet->worker[w].training.failure < 0)
            printf("shards %u workers %u: rank %u at step %llu: %s\n", options->shards, options->workers, w,
                   (unsigned long long)fleet->worker[w].training.step,
                   fleet->worker[w].training.failure_text);
        assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    }
    assert_true(ended);
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_settle(fleet, WEFT_SECONDS(1));
    for (uint32_t s = 0; s < options->shards; s++) {
        struct weft_shard_engine_stats stats;
        weft_shard_engine_stats(fleet->shard[s].engine, &stats);
        assert_int_equal(stats.receive_bytes_used, 0);
        assert_int_equal(weft_histogram_count(&stats.round), stats.rounds_closed);
        assert_int_equal(weft_histogram_count(&stats.push_receive), stats.rounds_closed * options->workers);
        assert_true(stats.receive_bytes_peak <=
                    (options->receive_bytes_max ? options->receive_bytes_max : 4u << 20));
        assert_true(weft_list_empty(&fleet->shard[s].engine->queues.deferred));
        assert_int_equal(fleet->shard[s].engine->reply_pool.replies_in_flight, 0);
        /* the data path allocates nothing */
        assert_int_equal(fleet->shard[s].allocations, fleet->shard[s].allocations_declared);
    }
    for (uint32_t c = 0; c < fleet->chunk_count; c++) {
        struct shard_chunk *chunk = fleet_shard_chunk(fleet, c);
        assert_int_equal(chunk->closed_step, steps);
        assert_null(chunk->workers.contributions);
    }
    fleet_free(fleet);
}

static void dense_matches_reference(void **state)
{
    for (uint32_t workers = 1; workers <= 8; workers++) {
        struct fleet_options options = {.seed = workers,
                                        .shards = 1 + workers % 3,
                                        .workers = workers,
                                        .tensors = dense_tensors,
                                        .tensor_count = 4,
                                        .weighted = workers % 2};
        train_and_check(&options, 4);
    }
}

/* Memory for one round of the largest chunk only, pushes in any order. */
static void tiny_memory_any_order(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) {
        uint32_t workers = 2 + (uint32_t)(seed % 7);
        size_t least = shard_slots_bytes(weft_tree_reduce_buffer_count(workers), 512 * sizeof(float));
        struct fleet_options options = {.seed = seed,
                                        .shards = 2,
                                        .workers = workers,
                                        .receive_bytes_max = least < 4096 ? 4096 : least,
                                        .tensors = dense_tensors,
                                        .tensor_count = 4,
                                        .think_ns = 200000,
                                        .weighted = true};
        train_and_check(&options, 3);
    }
}

static void many_workers(void **state)
{
    static const struct fleet_tensor_spec one[] = {{.name = "wide",
                                                    .codec = "dense",
                                                    .optimizer = "sgd:momentum=0.5",
                                                    .dim_count = 1,
                                                    .dims = {2000},
                                                    .chunk_elems = 500}};
    struct fleet_options options = {.seed = 5,
                                    .shards = 2,
                                    .workers = 61,
                                    .receive_bytes_max =
                                        shard_slots_bytes(weft_tree_reduce_buffer_count(61), 2000),
                                    .tensors = one,
                                    .tensor_count = 1,
                                    .think_ns = 100000};
    train_and_check(&options, 2);
    options.receive_bytes_max = shard_slots_bytes(weft_tree_reduce_buffer_count(61) + 3, 2000) * 2;
    train_and_check(&options, 2);
}

/* Every push may be sent twice, and pushes of older steps are repeated: nothing is applied twice. */
static void repeats_are_harmless(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct fleet_options options = {.seed = seed,
                                        .shards = 2,
                                        .workers = 1 + (uint32_t)(seed % 5),
                                        .receive_bytes_max = 16384,
                                        .tensors = dense_tensors,
                                        .tensor_count = 4,
                                        .think_ns = 100000,
                                        .faults.repeat_percent = 40};
        train_and_check(&options, 5);
    }
}

static const struct fleet_tensor_spec codec_tensors[] = {
    {.name = "half", .codec = "f16", .optimizer = "sgd:momentum=0.9", .dim_count = 1, .dims = {600}},
    {.name = "brain", .codec = "bf16", .optimizer = "none", .dim_count = 1, .dims = {500}},
    {.name = "low",
     .codec = "powersgd:rank=2",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {40, 30}},
    {.name = "top",
     .codec = "topk:ratio=0.05,min_count=64",
     .optimizer = "sgd",
     .dim_count = 2,
     .dims = {30, 30}},
    /* becomes dense */
    {.name = "bias", .codec = "powersgd:rank=2", .optimizer = "sgd", .dim_count = 1, .dims = {30}},
};

/* Encoded whole, combined chunk by chunk; the reference has one combiner. */
static const struct fleet_tensor_spec cut_tensors[] = {
    {.name = "brain",
     .codec = "bf16",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {1100},
     .chunk_elems = 256},
    {.name = "eight",
     .codec = "int8",
     .optimizer = "sgd",
     .dim_count = 2,
     .dims = {31, 37},
     .chunk_elems = 512},
    {.name = "four",
     .codec = "int4:min_count=0",
     .optimizer = "none",
     .dim_count = 1,
     .dims = {515},
     .chunk_elems = 256},
    {.name = "narrow",
     .codec = "e4m3:min_count=0",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {777},
     .chunk_elems = 512},
    {.name = "wide",
     .codec = "e5m2:min_count=0",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {512},
     .chunk_elems = 256},
    /* one chunk */
    {.name = "signs",
     .codec = "sign:min_count=0",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {600},
     .chunk_elems = 256},
};

static void codecs_match_reference(void **state)
{
    for (uint32_t workers = 1; workers <= 5; workers++) {
        struct fleet_options options = {.seed = workers,
                                        .shards = 2,
                                        .workers = workers,
                                        .receive_bytes_max = 8192,
                                        .tensors = codec_tensors,
                                        .tensor_count = 5,
                                        .think_ns = 50000,
                                        .faults.repeat_percent = workers > 2 ? 30 : 0,
                                        .weighted = workers % 2,
                                        .hash_every = 2};
        train_and_check(&options, 5);
    }
}

static void cut_codecs_match_reference(void **state)
{
    for (uint32_t workers = 1; workers <= 5; workers++) {
        struct fleet_options options = {.seed = workers,
                                        .shards = 1 + workers % 3,
                                        .workers = workers,
                                        .receive_bytes_max = 8192,
                                        .tensors = cut_tensors,
                                        .tensor_count = 6,
                                        .think_ns = 50000,
                                        .faults.repeat_percent = workers > 2 ? 30 : 0,
                                        .weighted = workers % 2,
                                        .hash_every = 2};
        train_and_check(&options, 5);
    }
}

static void push_steps(struct fleet *fleet, uint32_t chunk, const uint64_t *steps,
                       struct fleet_request *request)
{
    for (uint32_t w = 0; w < 2; w++) {
        fleet_request_free(fleet, &request[w]);
        fleet_push(fleet, w, chunk, WEFT_WIRE_PUSH_PULL, steps[w], &request[w]);
        fleet_settle(fleet, WEFT_MS(1)); /* in this order */
    }
}

/* A tensor may skip steps. A push of another step than the open one is refused with the ranks and steps, and
 * does not affect the open one. If that fails, any later step may be next. */
static void steps_may_pass_a_tensor_by(void **state)
{
    struct fleet_options options = {.seed = 5,
                                    .shards = 1,
                                    .workers = 2,
                                    .tensors = dense_tensors,
                                    .tensor_count = 4,
                                    .round_deadline_ns = WEFT_SECONDS(10)};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request request[2] = {{0}};
    uint32_t last = fleet->chunk_count - 1; /* of tensor 'mean' */
    struct shard_chunk *chunk = fleet_shard_chunk(fleet, last);
    size_t bytes = chunk->count * sizeof(float);
    fleet_install(fleet);
    static const uint64_t taken[] = {1, 5, 27};
    for (int i = 0; i < 3; i++) {
        push_steps(fleet, last, (const uint64_t[2]){taken[i], taken[i]}, request);
        assert_true(fleet_await(fleet, &request[0]) && fleet_await(fleet, &request[1]));
        assert_int_equal(chunk->closed_step, taken[i]);
        assert_memory_equal(request[0].out, reference_values(fleet->reference, 3, taken[i]) + chunk->offset,
                            bytes);
        assert_memory_equal(request[1].out, request[0].out, bytes);
    }
    for (uint64_t other = 29; other <= 31; other += 2) {
        push_steps(fleet, last, (const uint64_t[2]){30, other}, request);
        assert_true(fleet_await(fleet, &request[1]));
        assert_int_equal(request[1].status, WEFT_ERR_MISMATCH);
        assert_non_null(strstr(request[1].text,
                               other == 29
                                   ? "rank 1 pushes step 29 of tensor 'mean', rank 0 has opened step 30"
                                   : "rank 1 pushes step 31 of tensor 'mean', rank 0 has opened step 30"));
        assert_true(fleet_await(fleet, &request[0]));
        assert_int_equal(request[0].status, WEFT_ERR_DEADLINE);
        assert_int_equal(chunk->closed_step, 27);
    }
    /* the failed step 30 left nothing behind */
    push_steps(fleet, last, (const uint64_t[2]){28, 28}, request);
    assert_true(fleet_await(fleet, &request[0]) && fleet_await(fleet, &request[1]));
    assert_int_equal(request[0].status, WEFT_OK);
    assert_memory_equal(request[0].out, reference_values(fleet->reference, 3, 28) + chunk->offset, bytes);
    for (int w = 0; w < 2; w++) fleet_request_free(fleet, &request[w]);
    fleet_free(fleet);
}

static void weight_hashes_are_compared(void **state)
{
    struct fleet_options options = {
        .seed = 3, .shards = 1, .workers = 2, .tensors = codec_tensors, .tensor_count = 5, .hash_every = 2};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, 7));
    Weft__Control__WeightHash hash = WEFT__CONTROL__WEIGHT_HASH__INIT;
    struct weft_error error = {0};
    hash.tensor = 0;
    hash.worker = 1;
    for (uint64_t step = 4; step <= 6; step += 2) { /* the sums of the last two multiples are kept */
        hash.step = step;
        hash.hash = weft_weight_hash(reference_values(fleet->reference, 0, step), 600 * sizeof(float));
        assert_int_equal(weft_shard_engine_check_hash(fleet->shard[0].engine, &hash, &error), WEFT_OK);
        hash.hash++;
        assert_int_equal(weft_shard_engine_check_hash(fleet->shard[0].engine, &hash, &error),
                         WEFT_ERR_DIVERGED);
        assert_non_null(strstr(error.text, "'half'"));
        assert_non_null(strstr(error.text, "rank 1"));
        error = (struct weft_error){0};
    }
    hash.step = 2; /* its sum is dropped: ignored */
    assert_int_equal(weft_shard_engine_check_hash(fleet->shard[0].engine, &hash, &error), WEFT_OK);
    hash.tensor = 99;
    assert_int_equal(weft_shard_engine_check_hash(fleet->shard[0].engine, &hash, &error), WEFT_ERR_NOT_FOUND);
    fleet_free(fleet);
}

/* A tensor in chunks: each shard's sum over its own chunks. */
static void weight_hashes_of_chunks(void **state)
{
    struct fleet_options options = {
        .seed = 3, .shards = 2, .workers = 2, .tensors = cut_tensors, .tensor_count = 6, .hash_every = 2};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, 7));
    for (uint32_t shard = 0; shard < 2; shard++) {
        const float *values = reference_values(fleet->reference, 0, 6);
        Weft__Control__WeightHash hash = WEFT__CONTROL__WEIGHT_HASH__INIT;
        struct weft_error error = {0};
        uint32_t chunks = 0;
        hash.step = 6;
        for (uint32_t c = 0; c < fleet->chunk_count; c++) {
            const struct fleet_chunk *chunk = &fleet->chunk[c];
            if (chunk->tensor != 0 || chunk->shard != shard) continue;
            hash.hash += weft_chunk_hash(chunk->index, values + chunk->offset, chunk->count * sizeof(float));
            chunks++;
        }
        assert_true(chunks >= 2);
        assert_int_equal(weft_shard_engine_check_hash(fleet->shard[shard].engine, &hash, &error), WEFT_OK);
        assert_int_equal(weft_shard_engine_check_hash(fleet->shard[!shard].engine, &hash, &error),
                         WEFT_ERR_DIVERGED);
        hash.hash++;
        assert_int_equal(weft_shard_engine_check_hash(fleet->shard[shard].engine, &hash, &error),
                         WEFT_ERR_DIVERGED);
    }
    fleet_free(fleet);
}

/* The n-th allocation of create and declare fails, for every n: a status, no leak, no partial declaration. */
static void allocations_may_fail(void **state)
{
    struct fleet_options options = {.seed = 3,
                                    .shards = 1,
                                    .workers = 3,
                                    .receive_bytes_max = 8192,
                                    .tensors = codec_tensors,
                                    .tensor_count = 5};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_shard *shard = &fleet->shard[0];
    int64_t outstanding = shard->outstanding;
    bool all_succeeded = false;
    uint64_t n = 0;
    while (!all_succeeded) {
        struct weft_shard_engine *engine = NULL;
        struct weft_error error = {0};
        shard->allocations = 0;
        shard->allocation_to_fail = ++n;
        enum weft_status status = fleet_engine_create(shard, &engine, &error);
        for (uint32_t t = 0; status == WEFT_OK && t < options.tensor_count; t++) {
            status = fleet_declare(fleet, t, engine, &error);
            if (status != WEFT_OK) {
                assert_null(shard_table_tensor(engine, t));
                shard->allocation_to_fail = 0;
                /* and works with memory */
                assert_int_equal(fleet_declare(fleet, t, engine, NULL), WEFT_OK);
                break;
            }
        }
        all_succeeded = status == WEFT_OK;
        if (!all_succeeded) {
            assert_int_equal(status, WEFT_ERR_NO_MEMORY);
            assert_true(strlen(error.text) > 10);
        }
        if (engine) weft_shard_engine_close(engine);
        weft_shard_engine_free(engine);
        assert_int_equal(shard->outstanding, outstanding);
    }
    assert_true(n > 20);
    shard->allocation_to_fail = 0;
    fleet_free(fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_matches_reference),
        cmocka_unit_test(tiny_memory_any_order),
        cmocka_unit_test(many_workers),
        cmocka_unit_test(repeats_are_harmless),
        cmocka_unit_test(codecs_match_reference),
        cmocka_unit_test(cut_codecs_match_reference),
        cmocka_unit_test(weight_hashes_are_compared),
        cmocka_unit_test(weight_hashes_of_chunks),
        cmocka_unit_test(allocations_may_fail),
        cmocka_unit_test(steps_may_pass_a_tensor_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
