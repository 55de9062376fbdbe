/* test_shard_contributions.c - states of workers exist only for the chunks in use: results with few blocks,
 * and the memory of an engine with 4,096 workers. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

static const struct fleet_tensor_spec tensors[] = {
    {.name = "many",
     .codec = "dense",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {6400},
     .chunk_elems = 300},
    {.name = "low",
     .codec = "powersgd:rank=2,iterations=2",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 2,
     .dims = {24, 30}},
    {.name = "eight",
     .codec = "int8:min_count=0",
     .optimizer = "sgd",
     .dim_count = 1,
     .dims = {1600},
     .chunk_elems = 256},
};

/* With a block for one chunk, then for few: requests of other chunks are held, and every result is right. */
static void few_blocks_suffice(void **state)
{
    for (uint32_t blocks = 1; blocks <= 3; blocks++) {
        struct fleet_options options = {.seed = blocks,
                                        .shards = 1,
                                        .workers = 2 + blocks,
                                        .tensors = tensors,
                                        .tensor_count = 3,
                                        .think_ns = 100000,
                                        .faults.repeat_percent = 20,
                                        .state_blocks = blocks};
        struct fleet *fleet = fleet_create(&options);
        const struct shard_arena *pool = &fleet->shard[0].engine->memory.contributions;
        fleet_install(fleet);
        assert_true(fleet_train(fleet, 1, 3));
        fleet_settle(fleet, WEFT_SECONDS(1));
        for (uint32_t w = 0; w < options.workers; w++)
            assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
        assert_int_equal(fleet->counts.wrong, 0);
        assert_int_equal(fleet_wrong_values(fleet), 0);
        assert_int_equal(pool->peak_bytes, pool->bytes);
        assert_int_equal(pool->used_bytes, 0);
        assert_true(weft_list_empty(&fleet->shard[0].engine->queues.held_chunks));
        fleet_free(fleet);
    }
}

/* A failed engine refuses held requests, too. */
static void held_requests_are_refused(void **state)
{
    struct fleet_options options = {
        .seed = 9, .shards = 1, .workers = 2, .tensors = tensors, .tensor_count = 1, .state_blocks = 1};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request requests[3];
    memset(requests, 0, sizeof requests);
    fleet_install(fleet);
    for (uint32_t c = 0; c < 3; c++) fleet_push(fleet, 0, c, WEFT_WIRE_PUSH_PULL, 1, &requests[c]);
    fleet_settle(fleet, WEFT_MS(10));
    assert_non_null(fleet_shard_chunk(fleet, 0)->workers.contributions);
    assert_null(fleet_shard_chunk(fleet, 1)->workers.contributions);
    assert_false(weft_list_empty(&fleet_shard_chunk(fleet, 1)->workers.held));
    weft_shard_engine_fail(fleet->shard[0].engine, WEFT_ERR_ABORTED, "the job has ended");
    for (uint32_t c = 0; c < 3; c++) {
        assert_true(fleet_await(fleet, &requests[c]));
        assert_int_equal(requests[c].status, WEFT_ERR_ABORTED);
    }
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(fleet->shard[0].engine->memory.contributions.used_bytes, 0);
    fleet_free(fleet);
}

/* The only block belongs to a pull that nothing answers. Its deadline frees the block for the held pushes. */
static void an_expired_pull_frees_its_block(void **state)
{
    struct fleet_options options = {.seed = 10,
                                    .shards = 1,
                                    .workers = 2,
                                    .round_deadline_ns = WEFT_SECONDS(10),
                                    .tensors = tensors,
                                    .tensor_count = 1,
                                    .state_blocks = 1};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request pull, pushes[2];
    memset(&pull, 0, sizeof pull);
    memset(pushes, 0, sizeof pushes);
    fleet_install(fleet);
    const struct weft_wire_header header = fleet_header(fleet, 0, 0, WEFT_WIRE_PULL, 1);
    fleet_send(fleet, 0, 0, &pull, &header, NULL, 0);
    fleet_settle(fleet, WEFT_MS(10));
    for (uint32_t rank = 0; rank < 2; rank++)
        fleet_push(fleet, rank, 1, WEFT_WIRE_PUSH_PULL, 1, &pushes[rank]);
    fleet_settle(fleet, WEFT_MS(10));
    assert_false(pushes[0].done);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &pushes[rank]));
        assert_int_equal(pushes[rank].status, WEFT_OK);
        fleet_request_free(fleet, &pushes[rank]);
    }
    assert_true(pull.done);
    assert_int_equal(pull.status, WEFT_ERR_DEADLINE);
    fleet_free(fleet);
}

/* Counts the bytes that an engine allocates. */
struct counted {
    struct weft_env env;
    size_t bytes;
};
static void *counted_alloc(struct weft_env *env, size_t bytes)
{
    ((struct counted *)(void *)env)->bytes += bytes;
    return weft_alloc_bytes(weft_env_system(), bytes);
}
static void counted_free(struct weft_env *env, void *memory)
{
    (void)env;
    weft_free_bytes(weft_env_system(), memory);
}

/* 4,096 workers: a chunk of 256 KiB has its values, a bit for each worker, and 4 KiB at most besides. */
static void many_workers_take_no_memory_of_idle_chunks(void **state)
{
    enum { WORKERS = 4096, CHUNKS = 64 };
    const uint64_t elems = 65536;
    struct counted counted = {.env = *weft_env_system()};
    struct weft_loop *loop;
    struct weft_loop_options loop_options;
    weft_loop_options_init(&loop_options);
    assert_int_equal(weft_loop_create(weft_env_system(), &loop_options, &loop), WEFT_OK);
    struct weft_sim *sim;
    struct weft_sim_options sim_options;
    weft_sim_options_init(&sim_options);
    assert_int_equal(weft_sim_create(weft_env_system(), &sim_options, &sim), WEFT_OK);
    struct weft_transport_options transport_options;
    struct weft_transport *transport;
    weft_transport_options_init(&transport_options);
    transport_options.backend = "sim";
    transport_options.sim = sim;
    transport_options.id = 1;
    assert_int_equal(weft_transport_open(weft_sim_env(sim, 0), &transport_options, &transport, NULL),
                     WEFT_OK);
    uint32_t *endpoints = calloc(WORKERS, sizeof *endpoints);
    uint64_t *incarnations = calloc(WORKERS, sizeof *incarnations);
    struct weft_shard_engine_options options;
    struct weft_shard_engine *engine;
    counted.env.alloc = counted_alloc;
    counted.env.free = counted_free;
    weft_shard_engine_options_init(&options);
    options.transport = transport;
    options.loop = loop;
    options.endpoint = 1;
    options.workers = WORKERS;
    options.worker_endpoints = endpoints;
    options.worker_incarnations = incarnations;
    assert_int_equal(weft_shard_engine_create(&counted.env, &options, &engine, NULL), WEFT_OK);

    Weft__Control__Declare declare = WEFT__CONTROL__DECLARE__INIT;
    Weft__Control__Declared declared = WEFT__CONTROL__DECLARED__INIT;
    Weft__Control__Chunk chunk[CHUNKS], *chunks[CHUNKS];
    uint64_t dims[1] = {elems * CHUNKS};
    for (uint32_t i = 0; i < CHUNKS; i++) {
        weft__control__chunk__init(&chunk[i]);
        chunk[i].offset = i * elems;
        chunk[i].count = elems;
        chunk[i].endpoint = 1;
        chunks[i] = &chunk[i];
    }
    declare.name = (char *)"wide";
    declare.mode = WEFT_WIRE_MODE_SERVER;
    declare.dtype = WEFT_F32;
    declare.n_dims = 1;
    declare.dims = dims;
    declare.codec = (char *)"dense";
    declare.optimizer = (char *)"none";
    declared.declare = &declare;
    declared.n_chunks = CHUNKS;
    declared.chunks = chunks;
    counted.bytes = 0;
    assert_int_equal(weft_shard_engine_declare(engine, &declared, NULL), WEFT_OK);
    assert_in_range(counted.bytes, CHUNKS * elems * sizeof(float),
                    CHUNKS * (elems * sizeof(float) + WORKERS / 8 + 4096));
    weft_shard_engine_close(engine);
    weft_transport_close(transport);
    weft_transport_free(transport);
    weft_shard_engine_free(engine);
    weft_sim_free(sim);
    weft_loop_free(loop);
    free(endpoints);
    free(incarnations);
}

int main(void)
{
    const struct CMUnitTest tests_here[] = {
        cmocka_unit_test(few_blocks_suffice),
        cmocka_unit_test(held_requests_are_refused),
        cmocka_unit_test(an_expired_pull_frees_its_block),
        cmocka_unit_test(many_workers_take_no_memory_of_idle_chunks),
    };
    return cmocka_run_group_tests(tests_here, NULL, NULL);
}
