/* test_shard_request.c - replies to requests that are wrong, late, repeated or hostile. */
#include "shard_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_MAIN 0 /* 200 elements of 'main', with an optimiser */
#define CHUNK_MEAN 2 /* 50 elements of 'mean', without */

static const struct fleet_tensor_spec tensors[] = {
    {.name = "main",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {400},
     .chunk_elems = 200},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {50}},
    {.name = "half", .codec = "bf16", .optimizer = "none", .dim_count = 1, .dims = {80}},
};

static struct fleet *start(uint32_t workers, bool install)
{
    struct fleet_options options = {.seed = 11,
                                    .shards = 1,
                                    .workers = workers,
                                    .tensors = tensors,
                                    .tensor_count = 3,
                                    .round_deadline_ns = WEFT_SECONDS(10)};
    struct fleet *fleet = fleet_create(&options);
    if (install) fleet_install(fleet);
    return fleet;
}

static struct weft_shard_engine_stats stats_of(struct fleet *fleet)
{
    struct weft_shard_engine_stats stats;
    weft_shard_engine_stats(fleet->shard[0].engine, &stats);
    return stats;
}

/* Ends a test: the engine still works and holds nothing. */
static void finish(struct fleet *fleet, uint64_t next_step)
{
    fleet_settle(fleet, WEFT_SECONDS(30));
    bool ended = fleet_train(fleet, next_step, next_step + 1);
    for (uint32_t w = 0; w < fleet->options.workers; w++) {
        if (fleet->worker[w].training.failure < 0)
            printf("rank %u: %s\n", w, fleet->worker[w].training.failure_text);
        assert_int_equal(fleet->worker[w].training.failure, WEFT_OK);
    }
    assert_true(ended);
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(stats_of(fleet).receive_bytes_used, 0);
    fleet_free(fleet);
}

/* Sends one invalid push of rank 0 and expects this status and word in the sentence. */
static void expect_refused(struct fleet *fleet, struct weft_wire_header header, size_t bytes,
                           enum weft_status status, const char *word)
{
    struct fleet_request request = {0};
    uint8_t *payload = calloc(1, bytes + 1);
    uint64_t refused = stats_of(fleet).refused;
    fleet_send(fleet, 0, 0, &request, &header, payload, bytes);
    assert_true(fleet_await(fleet, &request));
    if (request.status != status || !strstr(request.text, word))
        printf("%s: %s\n", weft_status_name(request.status), request.text);
    assert_int_equal(request.status, status);
    assert_non_null(strstr(request.text, word));
    assert_int_equal(request.out_bytes, 0);
    assert_int_equal(stats_of(fleet).refused, refused + 1);
    free(payload);
}

static void wrong_requests_are_refused(void **state)
{
    struct fleet *fleet = start(2, true);
    size_t bytes = 200 * sizeof(float);
    struct weft_wire_header good = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1), bent;
    bent = good, bent.job++;
    expect_refused(fleet, bent, bytes, WEFT_ERR_STALE, "another job");
    bent = good, bent.incarnation--;
    expect_refused(fleet, bent, bytes, WEFT_ERR_STALE, "incarnation");
    bent = good, bent.epoch = 2;
    expect_refused(fleet, bent, bytes, WEFT_ERR_STALE, "epoch (2, here 3)");
    bent = good, bent.tensor = 77;
    expect_refused(fleet, bent, bytes, WEFT_ERR_NOT_FOUND, "tensor 77");
    bent = good, bent.chunk = 2;
    expect_refused(fleet, bent, bytes, WEFT_ERR_NOT_FOUND, "chunk 2");
    bent = good, bent.payload_bytes = bytes - 4;
    expect_refused(fleet, bent, bytes, WEFT_ERR_MALFORMED, "announces 796 bytes");
    expect_refused(fleet, bent, bytes - 4, WEFT_ERR_MALFORMED, "pushes 796 bytes");
    bent.payload_bytes = 1 << 20;
    expect_refused(fleet, bent, 1 << 20, WEFT_ERR_MALFORMED, "which has 800");
    bent = good, bent.payload_bytes = 0;
    expect_refused(fleet, bent, 0, WEFT_ERR_MALFORMED, "pushes 0 bytes");
    bent = good, bent.codec = WEFT_CODEC_TOPK;
    expect_refused(fleet, bent, bytes, WEFT_ERR_MISMATCH, "codec 4");
    bent = good, bent.dtype = WEFT_I64;
    expect_refused(fleet, bent, bytes, WEFT_ERR_MISMATCH, "dtype 4");
    bent = good, bent.round = 1;
    expect_refused(fleet, bent, bytes, WEFT_ERR_INVALID, "round 1");
    bent = good, bent.step = 0;
    expect_refused(fleet, bent, bytes, WEFT_ERR_INVALID, "step 0");
    bent = good, bent.step = UINT64_MAX;
    expect_refused(fleet, bent, bytes, WEFT_ERR_STATE, "whose round 0 is next");
    bent = fleet_header(fleet, 0, 3, WEFT_WIRE_PUSH_PULL, 1); /* bf16: at most 160 bytes */
    bent.payload_bytes = 164;
    expect_refused(fleet, bent, 164, WEFT_ERR_MALFORMED, "at most 160");
    bent = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_INIT, 0), bent.step = 1;
    expect_refused(fleet, bent, bytes, WEFT_ERR_INVALID, "rank 0");
    bent = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_INIT, 0), bent.payload_bytes = 4;
    expect_refused(fleet, bent, 4, WEFT_ERR_MALFORMED, "have 4 bytes, not 800");
    bent = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PULL, 2);
    expect_refused(fleet, bent, 0, WEFT_ERR_STATE, "is at step 0");
    bent = fleet_header(fleet, 0, 3, WEFT_WIRE_PULL, 1);
    expect_refused(fleet, bent, 0, WEFT_ERR_UNSUPPORTED, "'half'");
    finish(fleet, 1);
}

/* The age of the oldest open round, and the number of workers that it waits for. */
static void open_rounds_are_counted(void **state)
{
    struct fleet *fleet = start(3, true);
    struct fleet_request r[3] = {0};
    assert_int_equal(stats_of(fleet).rounds_open, 0);
    assert_int_equal(stats_of(fleet).oldest_round.ns, 0);
    assert_int_equal(stats_of(fleet).last_round_ns, 0);
    fleet_push(fleet, 1, CHUNK_MEAN, WEFT_WIRE_PUSH_PULL, 1, &r[1]);
    fleet_settle(fleet, WEFT_SECONDS(4));
    fleet_push(fleet, 0, CHUNK_MEAN, WEFT_WIRE_PUSH_PULL, 1, &r[0]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    struct weft_shard_engine_stats stats = stats_of(fleet);
    assert_int_equal(stats.rounds_open, 1);
    assert_int_equal(stats.oldest_round.missing, 1);
    assert_true(stats.oldest_round.ns > WEFT_SECONDS(4) && stats.oldest_round.ns < WEFT_SECONDS(6));
    assert_true(stats.receive_bytes_used > 0 && stats.receive_bytes_used <= stats.receive_bytes_max);
    fleet_push(fleet, 2, CHUNK_MEAN, WEFT_WIRE_PUSH_PULL, 1, &r[2]);
    for (int w = 0; w < 3; w++) assert_true(fleet_await(fleet, &r[w]));
    stats = stats_of(fleet);
    assert_int_equal(stats.rounds_open + stats.oldest_round.ns + stats.oldest_round.missing, 0);
    assert_true(stats.last_round_ns > 0 && stats.last_round_ns < WEFT_SECONDS(1));
    assert_int_equal(weft_histogram_count(&stats.round), 1);
    assert_true(stats.round.sum > WEFT_SECONDS(5) && stats.round.sum < WEFT_SECONDS(6));
    assert_int_equal(weft_histogram_count(&stats.spread), 1);
    assert_true(stats.spread.sum > WEFT_SECONDS(5) && stats.spread.sum < stats.round.sum);
    assert_int_equal(stats.close.sum, stats.round.sum - stats.spread.sum);
    assert_int_equal(weft_histogram_count(&stats.push_wait), 3);
    assert_int_equal(weft_histogram_count(&stats.push_receive), 3);
    assert_true(stats.push_receive.sum > 0 && stats.push_receive.sum < WEFT_SECONDS(1));
    for (int w = 0; w < 3; w++) fleet_request_free(fleet, &r[w]);
    fleet_free(fleet);
}

static uint64_t longest(struct weft_histogram histogram)
{
    uint64_t bound = 0;
    for (uint32_t i = 0; i < WEFT_HISTOGRAM_BOUNDS; i++)
        if (histogram.counts[i] > 0) bound = weft_histogram_bounds[i].value;
    return bound;
}

/* The receive memory has space for one round: the push of another chunk waits until that round closes. */
static void a_push_without_memory_counts_its_wait(void **state)
{
    struct fleet *fleet = start(2, true);
    struct fleet_request r[3] = {0};
    struct shard_arena *arena = &fleet->shard[0].engine->memory.arena;
    fleet_push(fleet, 0, CHUNK_MEAN, WEFT_WIRE_PUSH_PULL, 1, &r[0]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_true(longest(stats_of(fleet).push_wait) < WEFT_SECONDS(1));
    void *rest = NULL;
    size_t bytes = arena->bytes - arena->used_bytes;
    while (bytes >= 64 && !(rest = shard_arena_reserve(arena, bytes & ~(size_t)63))) bytes -= 64;
    assert_non_null(rest);
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &r[1]);
    fleet_settle(fleet, WEFT_SECONDS(4));
    shard_arena_release(arena, rest, bytes & ~(size_t)63);
    fleet_push(fleet, 1, CHUNK_MEAN, WEFT_WIRE_PUSH_PULL, 1, &r[2]);
    assert_true(fleet_await(fleet, &r[0]) && fleet_await(fleet, &r[2]));
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(longest(stats_of(fleet).push_wait), WEFT_SECONDS(5));
    fleet_request_free(fleet, &r[0]);
    fleet_request_free(fleet, &r[2]);
    fleet_free(fleet);
}

/* ---- states ---- */

#define SECOND 1 /* the second of adam's moments */

static void ask_state(struct fleet *fleet, uint32_t rank, uint64_t step, struct fleet_request *request)
{
    struct weft_wire_header header = fleet_header(fleet, rank, CHUNK_MAIN, WEFT_WIRE_STATE_PULL, step);
    header.round = SECOND;
    *request = (struct fleet_request){0};
    fleet_send(fleet, rank, 0, request, &header, NULL, 0);
}

static void give_state(struct fleet *fleet, const float *values)
{
    struct weft_wire_header header = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_STATE_INIT, 0);
    struct fleet_request request = {0};
    header.round = SECOND;
    fleet_send(fleet, 0, 0, &request, &header, values, 200 * sizeof *values);
    assert_true(fleet_await(fleet, &request));
    assert_int_equal(request.status, WEFT_OK);
    assert_int_equal(request.out_bytes, 0);
    fleet_request_free(fleet, &request);
}

static void check_state(struct fleet *fleet, struct fleet_request *request, const float *values)
{
    assert_true(fleet_await(fleet, request));
    assert_int_equal(request->status, WEFT_OK);
    assert_int_equal(request->out_bytes, 200 * sizeof *values);
    assert_memory_equal(request->out, values, 200 * sizeof *values);
    fleet_request_free(fleet, request);
}

/* Received before the first step, sent at any time, but not during a step that changes it. */
static void states_come_and_go(void **state)
{
    static const struct fleet_tensor_spec moments[] = {{.name = "main",
                                                        .codec = "dense",
                                                        .optimizer = "adam",
                                                        .dim_count = 1,
                                                        .dims = {400},
                                                        .chunk_elems = 200}};
    struct fleet_options options = {.seed = 12,
                                    .shards = 1,
                                    .workers = 2,
                                    .tensors = moments,
                                    .tensor_count = 1,
                                    .round_deadline_ns = WEFT_SECONDS(10)};
    struct fleet *fleet = fleet_create(&options);
    struct fleet_request asked, pushed[2] = {{0}};
    float squares[200], zeros[200] = {0};
    for (int i = 0; i < 200; i++) squares[i] = (float)i + 0.5f;
    fleet_install(fleet);
    ask_state(fleet, 1, 0, &asked);
    check_state(fleet, &asked, zeros);
    give_state(fleet, squares);
    ask_state(fleet, 1, 0, &asked);
    check_state(fleet, &asked, squares);
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &pushed[0]);
    fleet_settle(fleet, WEFT_MS(1));
    ask_state(fleet, 0, 1, &asked);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(asked.done); /* step 1 is not closed */
    fleet_push(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &pushed[1]);
    check_state(fleet, &asked, fleet_shard_chunk(fleet, CHUNK_MAIN)->states[SECOND]);
    assert_memory_not_equal(fleet_shard_chunk(fleet, CHUNK_MAIN)->states[SECOND], squares, sizeof squares);
    expect_refused(fleet, fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_STATE_INIT, 0), sizeof zeros,
                   WEFT_ERR_STATE, "has begun");
    for (int w = 0; w < 2; w++) {
        assert_true(fleet_await(fleet, &pushed[w]));
        fleet_request_free(fleet, &pushed[w]);
    }
    fleet_settle(fleet, WEFT_SECONDS(1));
    fleet_free(fleet);
}

/* From a rank 0 without checks: no optimiser state and no residual that is out of range. */
static void states_out_of_range_change_nothing(void **state)
{
    static const struct fleet_tensor_spec kinds[] = {
        {.name = "main", .codec = "dense", .optimizer = "adam", .dim_count = 1, .dims = {200}},
        {.name = "residual",
         .codec = "topk:ratio=0.05,global=1,min_count=0",
         .optimizer = "none",
         .dim_count = 1,
         .dims = {200}}};
    /* the last: out of range only as a residual */
    static const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7b800000};
    struct fleet_options options = {.seed = 13,
                                    .shards = 1,
                                    .workers = 2,
                                    .tensors = kinds,
                                    .tensor_count = 2,
                                    .round_deadline_ns = WEFT_SECONDS(10)};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
        struct weft_wire_header header = fleet_header(fleet, 0, chunk, WEFT_WIRE_STATE_INIT, 0);
        header.codec = WEFT_CODEC_DENSE;
        header.round = chunk == 0 ? SECOND : WEFT_WIRE_PART_RESIDUAL;
        const struct shard_chunk *at = fleet_shard_chunk(fleet, chunk);
        const float *kept = chunk == 0 ? at->states[SECOND] : weft_combiner_residual(at->coding.combiner);
        float good[200];
        for (int i = 0; i < 200; i++) good[i] = (float)i * 0x1p100f;
        for (size_t wrong = 0; wrong <= sizeof bits / sizeof *bits; wrong++) {
            struct fleet_request request = {0};
            float values[200];
            memcpy(values, good, sizeof good);
            if (wrong > 0) memcpy(&values[199], &bits[wrong - 1], sizeof *bits);
            const bool taken = wrong == 0 || (chunk == 0 && wrong == sizeof bits / sizeof *bits);
            fleet_send(fleet, 0, 0, &request, &header, values, sizeof values);
            assert_true(fleet_await(fleet, &request));
            assert_int_equal(request.status, taken ? WEFT_OK : WEFT_ERR_INVALID);
            if (!taken) assert_non_null(strstr(request.text, "not finite"));
            assert_memory_equal(kept, taken ? values : good, sizeof good);
            fleet_request_free(fleet, &request);
        }
    }
    fleet_free(fleet);
}

static void wrong_states_are_refused(void **state)
{
    struct fleet *fleet = start(2, true);
    const struct weft_wire_header in = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_STATE_INIT, 0),
                                  out = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_STATE_PULL, 0);
    const size_t bytes = 200 * sizeof(float);
    struct weft_wire_header bent;
    bent = in, bent.round = 1;
    expect_refused(fleet, bent, bytes, WEFT_ERR_UNSUPPORTED, "no state of number 1");
    bent = out, bent.round = WEFT_WIRE_PART_RESIDUAL;
    expect_refused(fleet, bent, 0, WEFT_ERR_UNSUPPORTED, "no state of number 15");
    bent = out, bent.round = 7;
    expect_refused(fleet, bent, 0, WEFT_ERR_UNSUPPORTED, "no state of number 7");
    expect_refused(fleet, fleet_header(fleet, 0, CHUNK_MEAN, WEFT_WIRE_STATE_PULL, 0), 0,
                   WEFT_ERR_UNSUPPORTED, "no state of number 0");
    /* bf16 has no residual */
    bent = fleet_header(fleet, 0, 3, WEFT_WIRE_STATE_PULL, 0), bent.round = WEFT_WIRE_PART_RESIDUAL;
    expect_refused(fleet, bent, 0, WEFT_ERR_UNSUPPORTED, "no state of number 15");
    bent = in, bent.step = 1;
    expect_refused(fleet, bent, bytes, WEFT_ERR_INVALID, "rank 0");
    bent = in, bent.codec = WEFT_CODEC_BF16;
    expect_refused(fleet, bent, bytes, WEFT_ERR_INVALID, "dense f32");
    bent = in, bent.payload_bytes = 4;
    expect_refused(fleet, bent, 4, WEFT_ERR_MALFORMED, "have 4 bytes, not 800");
    bent = out, bent.step = 2;
    expect_refused(fleet, bent, 0, WEFT_ERR_STATE, "is at step 0");
    finish(fleet, 1);
}

/* No header, another version, another worker, a RESULT: dropped and counted, no reply. */
static void malformed_requests_are_dropped(void **state)
{
    struct fleet *fleet = start(2, true);
    struct weft_wire_header good = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1), bent;
    uint8_t encoded[WEFT_WIRE_HEADER_BYTES];
    struct fleet_request request[6] = {{0}};
    uint8_t payload[800] = {0};
    uint64_t refused = stats_of(fleet).refused;
    weft_wire_encode(&good, encoded);
    fleet_send_raw(fleet, 0, 0, &request[0], encoded, 12, payload, 800);
    fleet_send_raw(fleet, 0, 0, &request[1], encoded, 0, payload, 0);
    encoded[4] ^= 3; /* version */
    fleet_send_raw(fleet, 0, 0, &request[2], encoded, sizeof encoded, payload, 800);
    bent = good, bent.worker = 1;
    fleet_send(fleet, 0, 0, &request[3], &bent, payload, 800);
    bent = good, bent.worker = 4000;
    fleet_send(fleet, 0, 0, &request[4], &bent, payload, 800);
    bent = good, bent.kind = WEFT_WIRE_RESULT;
    fleet_send(fleet, 0, 0, &request[5], &bent, payload, 800);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(stats_of(fleet).refused, refused + 6);
    for (int i = 0; i < 6; i++) {
        assert_false(request[i].done);
        assert_false(request[i].sending);
    }
    assert_int_equal(fleet->worker[0].unexpected + fleet->worker[1].unexpected, 0);
    fleet->worker[0].open = NULL; /* no reply will arrive for those */
    finish(fleet, 1);
}

static void duplicates_are_answered_and_not_applied(void **state)
{
    struct fleet *fleet = start(2, true);
    struct fleet_request a = {0}, b = {0}, again = {0};
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &a);
    /* while the round is open: one reply */
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &again);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(a.done || again.done);
    assert_int_equal(stats_of(fleet).duplicates, 1);
    fleet_push(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PUSH, 1, &b);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_true(b.done && b.status == WEFT_OK && b.out_bytes == 0); /* PUSH: a reply without data */
    assert_true(a.done != again.done);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet->worker[0].open = NULL;

    struct fleet_request late = {0}, late_push = {0}, moved_on = {0};
    /* after the close: gets the result */
    fleet_push(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &late);
    assert_true(fleet_await(fleet, &late));
    assert_int_equal(late.status, WEFT_OK);
    assert_int_equal(late.out_bytes, 800);
    assert_memory_equal(late.out, reference_values(fleet->reference, 0, 1), 800);
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH, 1, &late_push);
    assert_true(fleet_await(fleet, &late_push));
    assert_true(late_push.status == WEFT_OK && late_push.out_bytes == 0);
    assert_int_equal(stats_of(fleet).duplicates, 3);
    assert_int_equal(fleet_shard_chunk(fleet, CHUNK_MAIN)->closed_step, 1);
    assert_int_equal(fleet_wrong_values(fleet), 0);

    for (uint32_t rank = 0; rank < 2; rank++) {
        struct fleet_request *request = rank ? &b : &a;
        fleet_request_free(fleet, request);
        *request = (struct fleet_request){0};
        fleet_push(fleet, rank, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 2, request);
        if (rank > 0) continue;
        fleet_settle(fleet, WEFT_MS(10));
        /* of the step before, and the worker has pushed the next: no reply is expected */
        fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &moved_on);
        fleet_settle(fleet, WEFT_SECONDS(1));
        assert_int_equal(stats_of(fleet).duplicates, 4);
    }
    assert_true(fleet_await(fleet, &a) && fleet_await(fleet, &b));
    assert_false(moved_on.done);
    fleet->worker[0].open = NULL;
    struct fleet_request stale = {0};
    fleet_push(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &stale);
    assert_true(fleet_await(fleet, &stale));
    assert_int_equal(stale.status, WEFT_ERR_STALE);
    assert_non_null(strstr(stale.text, "step 1 round 0 of tensor 'main' is over, steps up to 2 are"));
    assert_int_equal(fleet_shard_chunk(fleet, CHUNK_MAIN)->closed_step, 2);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_request_free(fleet, &a), fleet_request_free(fleet, &b), fleet_request_free(fleet, &again),
        fleet_request_free(fleet, &late);
    fleet_request_free(fleet, &moved_on);
    fleet_free(fleet);
}

static void lr_disagreement_names_ranks(void **state)
{
    struct fleet *fleet = start(3, true);
    struct fleet_request request[3] = {{0}};
    float payload[200] = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1);
        header.lr = rank == 1 ? 0.25f : 0.5f;
        fleet_send(fleet, rank, 0, &request[rank], &header, payload, sizeof payload);
        fleet_settle(fleet, WEFT_MS(10));
    }
    /* pushes later, gets the error too */
    fleet_push(fleet, 2, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &request[2]);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_MISMATCH);
        assert_string_equal(request[rank].text,
                            "lr of step 1 differs: rank 0 has 0.5, rank 1 has 0.25 (tensor 'main')");
    }
    assert_int_equal(fleet_shard_chunk(fleet, CHUNK_MAIN)->closed_step, 0);
    finish(fleet, 1); /* the same step again: works, without a trace of the first try */
}

/* A decay of 0 differs from none, which leaves that of the optimiser. */
static void decay_disagreement_names_ranks(void **state)
{
    struct fleet *fleet = start(2, true);
    struct fleet_request request[2] = {{0}};
    float payload[200] = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1);
        header.flags = rank == 1 ? WEFT_WIRE_DECAY : 0;
        fleet_send(fleet, rank, 0, &request[rank], &header, payload, sizeof payload);
        fleet_settle(fleet, WEFT_MS(10));
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_MISMATCH);
        assert_string_equal(request[rank].text,
                            "decay of step 1 differs: rank 0 has 0, rank 1 has 0 (tensor 'main')");
    }
    finish(fleet, 1);
}

/* A contribution without a gradient has no payload, and skips the step of all. */
static void a_push_without_a_gradient_skips_the_step(void **state)
{
    struct fleet *fleet = start(2, true);
    struct fleet_request request[2] = {{0}};
    struct weft_wire_header header = fleet_header(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1);
    header.flags = WEFT_WIRE_NOT_FINITE;
    header.payload_bytes = 0;
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &request[0]);
    fleet_send(fleet, 1, 0, &request[1], &header, NULL, 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_SKIPPED);
    }
    assert_int_equal(fleet_shard_chunk(fleet, CHUNK_MAIN)->closed_step, 0);
    finish(fleet, 1);
}

static void deadline_names_missing_ranks(void **state)
{
    struct fleet *fleet = start(4, true);
    struct fleet_request request[4] = {{0}}, pull = {0};
    uint64_t begun = weft_sim_now_ns(fleet->sim);
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &request[0]);
    fleet_push(fleet, 2, CHUNK_MAIN, WEFT_WIRE_PUSH, 1, &request[2]);
    struct weft_wire_header header = fleet_header(fleet, 3, CHUNK_MEAN, WEFT_WIRE_PULL, 1);
    fleet_send(fleet, 3, 0, &pull, &header, NULL, 0);
    assert_true(fleet_await(fleet, &request[0]) && fleet_await(fleet, &request[2]) &&
                fleet_await(fleet, &pull));
    uint64_t took = weft_sim_now_ns(fleet->sim) - begun;
    assert_true(took >= WEFT_SECONDS(10) && took < WEFT_SECONDS(11)); /* virtual time */
    assert_int_equal(request[0].status, WEFT_ERR_DEADLINE);
    assert_string_equal(request[0].text, "step 1 of 'main' chunk 0: no push from rank 1, 3 in 10 s");
    assert_string_equal(request[2].text, request[0].text);
    assert_int_equal(pull.status, WEFT_ERR_DEADLINE);
    assert_non_null(strstr(pull.text, "step 1 was not reached"));
    assert_int_equal(fleet_shard_chunk(fleet, CHUNK_MAIN)->closed_step, 0);
    /* tries again, which does not affect the others: */
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &request[0]);
    for (uint32_t rank = 1; rank < 4; rank += 2) {
        /* late ones get the error once */
        fleet_push(fleet, rank, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &request[rank]);
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_DEADLINE);
        assert_string_equal(request[rank].text, request[2].text);
    }
    for (uint32_t rank = 1; rank < 4; rank++)
        fleet_push(fleet, rank, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &request[rank]);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_OK);
        assert_memory_equal(request[rank].out, reference_values(fleet->reference, 0, 1), 800);
        fleet_request_free(fleet, &request[rank]);
    }
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_free(fleet);
}

static void failing_answers_everyone(void **state)
{
    struct fleet *fleet = start(3, true);
    struct fleet_request push = {0}, push2 = {0}, pull = {0}, later = {0};
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &push);
    fleet_push(fleet, 1, CHUNK_MEAN, WEFT_WIRE_PUSH, 1, &push2);
    struct weft_wire_header header = fleet_header(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PULL, 1);
    fleet_send(fleet, 1, 0, &pull, &header, NULL, 0);
    fleet_settle(fleet, WEFT_MS(10));
    weft_shard_engine_fail(fleet->shard[0].engine, WEFT_ERR_PEER_LOST, "rank 2 (host c, pid 7) is lost");
    weft_shard_engine_fail(fleet->shard[0].engine, WEFT_ERR_ABORTED, "a second reason");
    fleet_push(fleet, 0, CHUNK_MEAN, WEFT_WIRE_PUSH_PULL, 1, &later);
    struct fleet_request *all[] = {&push, &push2, &pull, &later};
    for (int i = 0; i < 4; i++) {
        assert_true(fleet_await(fleet, all[i]));
        assert_int_equal(all[i]->status, WEFT_ERR_PEER_LOST);
        assert_string_equal(all[i]->text, "rank 2 (host c, pid 7) is lost");
    }
    fleet_settle(fleet, WEFT_SECONDS(30));
    assert_int_equal(stats_of(fleet).receive_bytes_used, 0);
    assert_int_equal(fleet_wrong_values(fleet), 0);
    fleet_free(fleet);
}

static void pulls_wait_for_their_step(void **state)
{
    struct fleet *fleet = start(2, false);
    struct fleet_request first = {0}, twice = {0}, next = {0}, push[2] = {{0}};
    struct weft_wire_header header = fleet_header(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PULL, 0);
    fleet_send(fleet, 1, 0, &first, &header, NULL, 0); /* before INIT: waits for it */
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(first.done);
    fleet->worker[1].open = NULL; /* the reply to the second must not match the first */
    fleet_send(fleet, 1, 0, &twice, &header, NULL, 0);
    assert_true(fleet_await(fleet, &twice));
    assert_int_equal(twice.status, WEFT_ERR_STATE);
    first.next = NULL;
    fleet->worker[1].open = &first;
    fleet_install(fleet);
    assert_true(fleet_await(fleet, &first));
    assert_int_equal(first.status, WEFT_OK);
    assert_memory_equal(first.out, reference_values(fleet->reference, 0, 0), 800);

    header.step = 1;
    fleet_send(fleet, 1, 0, &next, &header, NULL, 0);
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH, 1, &push[0]);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_false(next.done);
    header = fleet_header(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PUSH, 1);
    fleet_push(fleet, 1, CHUNK_MAIN, WEFT_WIRE_PUSH, 1, &push[1]);
    assert_true(fleet_await(fleet, &push[0]) && fleet_await(fleet, &push[1]) && fleet_await(fleet, &next));
    assert_int_equal(next.result.step, 1);
    assert_memory_equal(next.out, reference_values(fleet->reference, 0, 1), 800);
    assert_int_equal(stats_of(fleet).pulls, 2);
    fleet_request_free(fleet, &first), fleet_request_free(fleet, &next);
    fleet_free(fleet);
}

static void weights_come_before_steps(void **state)
{
    struct fleet *fleet = start(2, false);
    struct fleet_request push = {0}, init = {0}, other = {0}, late = {0};
    float payload[200] = {0};
    fleet_push(fleet, 0, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1, &push);
    assert_true(fleet_await(fleet, &push));
    assert_int_equal(push.status, WEFT_ERR_STATE);
    assert_non_null(strstr(push.text, "weft_tensor_init"));
    struct weft_wire_header header = fleet_header(fleet, 1, CHUNK_MAIN, WEFT_WIRE_INIT, 0);
    fleet_send(fleet, 1, 0, &other, &header, payload, sizeof payload); /* only rank 0 may send it */
    assert_true(fleet_await(fleet, &other));
    assert_int_equal(other.status, WEFT_ERR_INVALID);
    header = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_INIT, 0);
    fleet_send(fleet, 0, 0, &init, &header, payload, sizeof payload);
    assert_true(fleet_await(fleet, &init));
    assert_int_equal(init.status, WEFT_OK);
    fleet_install(fleet); /* again with other weights: the last ones count */
    assert_true(fleet_train(fleet, 1, 1));
    assert_int_equal(fleet->counts.wrong, 0);
    header = fleet_header(fleet, 0, CHUNK_MAIN, WEFT_WIRE_INIT, 0);
    fleet_send(fleet, 0, 0, &late, &header, payload, sizeof payload);
    assert_true(fleet_await(fleet, &late));
    assert_int_equal(late.status, WEFT_ERR_STATE);
    finish(fleet, 2);
}

/* A contribution that the combiner refuses ends the round for all, with the rank's name. */
static void malformed_contribution_names_rank(void **state)
{
    struct fleet *fleet = start(2, true);
    struct fleet_request request[2] = {{0}};
    uint8_t payload[160] = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, 3, WEFT_WIRE_PUSH_PULL, 1);
        header.payload_bytes = rank == 1 ? 158 : 160;
        fleet_send(fleet, rank, 0, &request[rank], &header, payload, (size_t)header.payload_bytes);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_MALFORMED);
        assert_non_null(strstr(request[rank].text, "rank 1's contribution to tensor 'half'"));
    }
    finish(fleet, 1);
}

static void weights_that_cannot_be_summed(void **state)
{
    struct fleet *fleet = start(2, true);
    struct fleet_request request[2] = {{0}};
    float payload[200] = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct weft_wire_header header = fleet_header(fleet, rank, CHUNK_MAIN, WEFT_WIRE_PUSH_PULL, 1);
        header.weight = 3e38f;
        fleet_send(fleet, rank, 0, &request[rank], &header, payload, sizeof payload);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_true(fleet_await(fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_INVALID);
    }
    finish(fleet, 1);
}

static void wrong_declarations_are_refused(void **state)
{
    struct fleet *fleet = start(2, false);
    uint64_t dims[2] = {64, 64};
    Weft__Control__Chunk chunk = WEFT__CONTROL__CHUNK__INIT, *chunks[1] = {&chunk};
    Weft__Control__Declare declare = WEFT__CONTROL__DECLARE__INIT;
    Weft__Control__Declared declared = WEFT__CONTROL__DECLARED__INIT;
    char name[] = "new", dense[] = "dense", f16[] = "f16", bf16[] = "bf16", bad[] = "zip", none[] = "none";
    declare.name = name, declare.codec = dense, declare.optimizer = none;
    declare.dtype = WEFT_F32, declare.mode = WEFT_WIRE_MODE_SERVER, declare.n_dims = 2, declare.dims = dims;
    chunk.count = 4096, chunk.endpoint = 1;
    declared.tensor = 3, declared.declare = &declare, declared.n_chunks = 1, declared.chunks = chunks;
    struct weft_shard_engine *engine = fleet->shard[0].engine;
#define REFUSED(status, word)                                                                \
    do {                                                                                     \
        struct weft_error error = {0};                                                       \
        assert_int_equal(weft_shard_engine_declare(engine, &declared, &error), status);      \
        if (!strstr(error.text, word)) printf("%s\n", error.text);                           \
        assert_non_null(strstr(error.text, word));                                           \
    } while (0)
    declared.tensor = 1;
    REFUSED(WEFT_ERR_EXISTS, "already");
    declared.tensor = 1u << 30;
    REFUSED(WEFT_ERR_INVALID, "limits");
    declared.tensor = 3, chunk.count = 4097;
    REFUSED(WEFT_ERR_INVALID, "outside");
    chunk.count = 4096, chunk.offset = UINT64_MAX;
    REFUSED(WEFT_ERR_INVALID, "outside");
    chunk.offset = 0, chunk.count = 4000, declare.codec = f16;
    REFUSED(WEFT_ERR_INVALID, "one chunk");
    declare.codec = bf16; /* may be cut between its blocks */
    REFUSED(WEFT_ERR_INVALID, "inside a block");
    chunk.offset = 100, chunk.count = 3996;
    REFUSED(WEFT_ERR_INVALID, "inside a block");
    chunk.offset = 0, chunk.count = 4000;
    declare.codec = bad;
    REFUSED(WEFT_ERR_INVALID, "zip");
    declare.codec = dense, declare.dtype = WEFT_I64;
    REFUSED(WEFT_ERR_UNSUPPORTED, "i64");
    declare.dtype = WEFT_F32, dims[0] = 1ull << 40;
    REFUSED(WEFT_ERR_INVALID, "too many");
    dims[0] = 1 << 20, chunk.count = 1 << 21; /* 8 MiB in 4 MiB of receive memory */
    REFUSED(WEFT_ERR_LIMIT, "receive memory");
    dims[0] = 64, chunk.count = 4096;
    struct weft_error error = {0};
    assert_int_equal(weft_shard_engine_declare(engine, &declared, &error), WEFT_OK);
    chunk.endpoint = 9, declared.tensor = 4; /* no chunk of it is here */
    assert_int_equal(weft_shard_engine_declare(engine, &declared, &error), WEFT_OK);
    assert_null(shard_table_tensor(engine, 4));
    fleet_free(fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(malformed_requests_are_dropped),
        cmocka_unit_test(duplicates_are_answered_and_not_applied),
        cmocka_unit_test(lr_disagreement_names_ranks),
        cmocka_unit_test(decay_disagreement_names_ranks),
        cmocka_unit_test(a_push_without_a_gradient_skips_the_step),
        cmocka_unit_test(deadline_names_missing_ranks),
        cmocka_unit_test(failing_answers_everyone),
        cmocka_unit_test(pulls_wait_for_their_step),
        cmocka_unit_test(weights_come_before_steps),
        cmocka_unit_test(malformed_contribution_names_rank),
        cmocka_unit_test(weights_that_cannot_be_summed),
        cmocka_unit_test(wrong_declarations_are_refused),
        cmocka_unit_test(open_rounds_are_counted),
        cmocka_unit_test(a_push_without_memory_counts_its_wait),
        cmocka_unit_test(states_come_and_go),
        cmocka_unit_test(states_out_of_range_change_nothing),
        cmocka_unit_test(wrong_states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
