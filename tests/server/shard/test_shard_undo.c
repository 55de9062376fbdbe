/* test_shard_undo.c - tensors with codecs and changing workers (shard_members.c, shard_skip.c): a step that
 * the workers discard leaves nothing behind at the shard. Three workers with real codecs; the second is
 * lost. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

#include "compress/compress.h"

enum { WORKERS = 3, LOST = 1, ELEMS = 600 };

struct trial {
    struct fleet *fleet;
    struct weft_codec *codecs[WORKERS];
    uint32_t workers[WORKERS], count, epoch; /* by rank */
};

static void start(struct trial *trial, const struct fleet_tensor_spec *tensor)
{
    const struct fleet_options options = {.seed = 5,
                                          .shards = 1,
                                          .workers = WORKERS,
                                          .tensors = tensor,
                                          .tensor_count = 1,
                                          .elastic = true,
                                          .hash_every = 1,
                                          .round_deadline_ns = WEFT_SECONDS(500)};
    *trial = (struct trial){.fleet = fleet_create(&options), .count = WORKERS, .epoch = FLEET_EPOCH};
    fleet_install(trial->fleet);
    for (uint32_t w = 0; w < WORKERS; w++) {
        trial->workers[w] = w;
        assert_int_equal(weft_codec_create(weft_env_system(), &trial->fleet->codec[0],
                                           &trial->fleet->shape[0], &trial->codecs[w]),
                         WEFT_OK);
        weft_codec_set_ranks(trial->codecs[w], WORKERS);
        weft_codec_set_stream(trial->codecs[w], 1, w);
    }
}

static void end(struct trial *trial)
{
    fleet_settle(trial->fleet, WEFT_SECONDS(1));
    for (uint32_t w = 0; w < WORKERS; w++) weft_codec_free(trial->codecs[w]);
    fleet_free(trial->fleet);
}

static struct shard_chunk *chunk_of(const struct trial *trial)
{
    return fleet_shard_chunk(trial->fleet, 0);
}

/* Whole numbers, so that 8-bit codes and their sums are exact. */
static float gradient_of(uint32_t worker, uint64_t step, uint32_t i)
{
    return (float)((worker * 37 + step * 11 + i * 7) % 101) - 50;
}

/* One round of the step, by all workers of the epoch. */
static void run_round(struct trial *trial, uint64_t step, uint32_t round)
{
    struct fleet_request requests[WORKERS] = {0};
    static uint8_t bytes[8 * ELEMS];
    for (uint32_t rank = 0; rank < trial->count; rank++) {
        const uint32_t worker = trial->workers[rank];
        float gradient[ELEMS];
        size_t length;
        for (uint32_t i = 0; i < ELEMS; i++) gradient[i] = gradient_of(worker, step, i);
        assert_int_equal(
            weft_codec_encode(trial->codecs[worker], round, round == 0 ? gradient : NULL, 1, bytes, &length),
            WEFT_OK);
        struct weft_wire_header header = fleet_header(trial->fleet, worker, 0, WEFT_WIRE_PUSH_PULL, step);
        header.codec = (uint8_t)trial->fleet->codec[0].id;
        header.round = (uint8_t)round;
        header.worker = rank;
        header.epoch = trial->epoch;
        header.weight = header.lr = 1;
        header.payload_bytes = length;
        fleet_send(trial->fleet, worker, 0, &requests[rank], &header, bytes, length);
    }
    for (uint32_t rank = 0; rank < trial->count; rank++) {
        struct weft_codec *codec = trial->codecs[trial->workers[rank]];
        assert_true(fleet_await(trial->fleet, &requests[rank]));
        assert_int_equal(requests[rank].status, WEFT_OK);
        assert_int_equal(
            weft_codec_take(codec, round, requests[rank].out, requests[rank].out_bytes, trial->count),
            WEFT_OK);
        fleet_request_free(trial->fleet, &requests[rank]);
    }
}

static void run_step(struct trial *trial, uint64_t step)
{
    float mean[ELEMS];
    for (uint32_t round = 0; round < weft_codec_rounds(&trial->fleet->codec[0]); round++)
        run_round(trial, step, round);
    for (uint32_t rank = 0; rank < trial->count; rank++)
        assert_int_equal(
            weft_codec_finish(trial->codecs[trial->workers[rank]], 1.0f / (float)trial->count, mean),
            WEFT_OK);
}

static void commit(struct trial *trial)
{
    for (uint32_t rank = 0; rank < trial->count; rank++)
        weft_codec_commit(trial->codecs[trial->workers[rank]]);
}

/* The others discard the open step and continue as the next epoch. */
static void lose(struct trial *trial, uint64_t committed)
{
    struct weft_shard_engine *engine = trial->fleet->shard[0].engine;
    uint32_t endpoints[WORKERS];
    uint64_t incarnations[WORKERS];
    struct weft_error error = {0};
    trial->workers[LOST] = trial->workers[LOST + 1];
    trial->count = WORKERS - 1;
    trial->epoch++;
    for (uint32_t rank = 0; rank < trial->count; rank++) {
        const uint32_t worker = trial->workers[rank];
        endpoints[rank] = trial->fleet->worker[worker].endpoint;
        incarnations[rank] = engine->members.worker[worker].incarnation;
        weft_codec_abandon(trial->codecs[worker]);
        weft_codec_set_ranks(trial->codecs[worker], trial->count);
    }
    fleet_kill_worker(trial->fleet, LOST);
    weft_shard_engine_leave_epoch(engine, trial->epoch);
    assert_int_equal(weft_shard_engine_enter_epoch(engine, trial->epoch, committed, trial->count, endpoints,
                                                   incarnations, &error),
                     WEFT_OK);
    fleet_settle(trial->fleet, WEFT_SECONDS(1));
    assert_int_equal(engine->epoch, trial->epoch);
    assert_int_equal(engine->end.failed, WEFT_OK);
}

static void assert_same(const float *a, const float *b)
{
    assert_int_equal(!a, !b);
    if (a) assert_memory_equal(a, b, ELEMS * sizeof *a);
}

/* The residual of the sums is scaled to the number of workers. */
static void check_residual(const struct trial *trial, const float *before)
{
    const float *residual = weft_combiner_residual(chunk_of(trial)->coding.combiner);
    for (uint32_t i = 0; residual && i < ELEMS; i++)
        assert_true(residual[i] == before[i] * ((float)trial->count / WORKERS));
}

/* Two jobs lose a worker behind step 2; in one of them the shard has closed step 3 before. */
static void check_undone(const struct fleet_tensor_spec *tensor)
{
    struct trial trials[2];
    float residual[ELEMS] = {0};
    for (uint32_t t = 0; t < 2; t++) {
        start(&trials[t], tensor);
        for (uint64_t step = 1; step <= 2; step++) run_step(&trials[t], step), commit(&trials[t]);
        const float *now = weft_combiner_residual(chunk_of(&trials[t])->coding.combiner);
        if (now) memcpy(residual, now, sizeof residual);
        if (t == 1) run_step(&trials[t], 3);
        assert_int_equal(chunk_of(&trials[t])->closed_step, 2 + t);
        lose(&trials[t], 2);
        assert_int_equal(chunk_of(&trials[t])->closed_step, 2);
        check_residual(&trials[t], residual);
        for (uint64_t step = 3; step <= 4; step++) run_step(&trials[t], step), commit(&trials[t]);
    }
    const struct shard_chunk *a = chunk_of(&trials[0]), *b = chunk_of(&trials[1]);
    assert_same(a->values, b->values);
    assert_same(a->states[0], b->states[0]);
    assert_same(weft_combiner_residual(a->coding.combiner), weft_combiner_residual(b->coding.combiner));
    for (uint32_t t = 0; t < 2; t++) end(&trials[t]);
}

static void discarded_steps_are_undone(void **state)
{
    static const struct fleet_tensor_spec tensors[] = {
        {.name = "global",
         .codec = "topk:ratio=0.05,min_count=0,global=1",
         .optimizer = "sgd:momentum=0.9",
         .dim_count = 1,
         .dims = {ELEMS}},
        {.name = "bytes", .codec = "int8:min_count=0", .optimizer = "adam", .dim_count = 1, .dims = {ELEMS}},
        {.name = "matrix",
         .codec = "powersgd:rank=2",
         .optimizer = "sgd:momentum=0.9",
         .dim_count = 2,
         .dims = {30, ELEMS / 30}},
    };
    for (uint32_t i = 0; i < 3; i++) check_undone(&tensors[i]);
}

/* The loss is between two rounds of a step: the others begin it with the first round. */
static void closed_rounds_are_forgotten(void **state)
{
    static const struct fleet_tensor_spec tensor = {
        .name = "bytes", .codec = "int8:min_count=0", .optimizer = "none", .dim_count = 1, .dims = {ELEMS}};
    struct trial trial;
    float mean[ELEMS];
    start(&trial, &tensor);
    run_round(&trial, 1, 0);
    assert_int_equal(chunk_of(&trial)->open.round, 1);
    lose(&trial, 0);
    run_step(&trial, 1);
    assert_int_equal(weft_codec_finish(trial.codecs[0], 0.5f, mean), WEFT_OK);
    for (uint32_t i = 0; i < ELEMS; i++)
        assert_true(mean[i] == (gradient_of(0, 1, i) + gradient_of(2, 1, i)) / 2);
    end(&trial);
}

/* A step that is not the last closed one has no copy: the engine ends the job. */
static void steps_without_a_copy_end_the_job(void **state)
{
    static const struct fleet_tensor_spec tensor = {
        .name = "bytes", .codec = "int8:min_count=0", .optimizer = "sgd", .dim_count = 1, .dims = {ELEMS}};
    struct trial trial;
    struct weft_error error = {0};
    const uint32_t endpoint = 100;
    const uint64_t incarnation = 1;
    start(&trial, &tensor);
    for (uint64_t step = 1; step <= 3; step++) run_step(&trial, step), commit(&trial);
    struct weft_shard_engine *engine = trial.fleet->shard[0].engine;
    assert_int_equal(
        weft_shard_engine_enter_epoch(engine, FLEET_EPOCH + 1, 1, 1, &endpoint, &incarnation, &error),
        WEFT_OK);
    fleet_settle(trial.fleet, WEFT_SECONDS(1));
    assert_int_equal(engine->end.failed, WEFT_ERR_STATE);
    assert_int_equal(chunk_of(&trial)->closed_step, 3);
    end(&trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(discarded_steps_are_undone),
        cmocka_unit_test(closed_rounds_are_forgotten),
        cmocka_unit_test(steps_without_a_copy_end_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
