/* test_shard_clock.c - consistency ssp and asp (shard_clock.c). The gradient of rank r is BASE^r times the
 * number of workers, with rate 1: a value then is minus a number in base BASE, whose digit r counts the
 * applied contributions of rank r. So each result shows the clocks that it was read at. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS = 4, BASE = 32, STEPS = 30, SMALL = 40, LARGE = 40000, WAIT_S = 10 };

struct world {
    struct fleet *fleet;
    uint64_t random;
    uint64_t elems;
};

static struct fleet_tensor_spec spec_of(const char *consistency, uint64_t elems)
{
    return (struct fleet_tensor_spec){.name = "w",
                                      .codec = "dense",
                                      .optimizer = "sgd",
                                      .dim_count = 1,
                                      .dims = {elems},
                                      .consistency = consistency};
}

static void send_request(struct world *world, uint32_t rank, enum weft_wire_kind kind, uint64_t step,
                         struct fleet_request *request)
{
    struct weft_wire_header header = fleet_header(world->fleet, rank, 0, kind, step);
    const bool pushes = kind == WEFT_WIRE_PUSH || kind == WEFT_WIRE_PUSH_PULL;
    float *values = malloc(world->elems * sizeof *values), value = kind == WEFT_WIRE_INIT ? 0 : WORKERS;
    for (uint32_t i = 0; i < rank; i++) value *= BASE;
    for (uint64_t i = 0; i < world->elems; i++) values[i] = value;
    header.lr = header.weight = pushes;
    header.payload_bytes = kind == WEFT_WIRE_PULL ? 0 : world->elems * sizeof *values;
    free(request->out);
    *request = (struct fleet_request){0};
    fleet_send(world->fleet, rank, 0, request, &header, values, (size_t)header.payload_bytes);
    free(values);
}

static struct world start(const char *consistency, uint64_t elems, size_t receive_bytes)
{
    static struct fleet_tensor_spec spec; /* the fleet keeps its address */
    spec = spec_of(consistency, elems);
    struct fleet_options options = {.seed = 5,
                                    .shards = 1,
                                    .workers = WORKERS,
                                    .tensors = &spec,
                                    .tensor_count = 1,
                                    .round_deadline_ns = WEFT_SECONDS(WAIT_S),
                                    .receive_bytes_max = receive_bytes};
    struct world world = {.fleet = fleet_create(&options), .random = 7, .elems = elems};
    struct fleet_request init = {0};
    send_request(&world, 0, WEFT_WIRE_INIT, 0, &init);
    assert_true(fleet_await(world.fleet, &init));
    assert_int_equal(init.status, WEFT_OK);
    return world;
}

/* Clock of a rank in a result. All elements must be of one version. */
static uint64_t clock_in(const struct world *world, const struct fleet_request *request, uint32_t rank)
{
    const float *values = (const float *)(const void *)request->out;
    assert_int_equal(request->out_bytes, world->elems * sizeof *values);
    for (uint64_t i = 1; i < world->elems; i++) assert_true(values[i] == values[0]);
    uint64_t number = (uint64_t)-values[0];
    for (uint32_t i = 0; i < rank; i++) number /= BASE;
    return number % BASE;
}

static void await_ok(struct world *world, struct fleet_request *request)
{
    assert_true(fleet_await(world->fleet, request));
    if (request->status < 0) fail_msg("%s", request->text);
}

static void push_pull(struct world *world, uint32_t rank, uint64_t step, struct fleet_request *request)
{
    send_request(world, rank, WEFT_WIRE_PUSH_PULL, step, request);
    await_ok(world, request);
}

static void finish(struct world *world, struct fleet_request *requests, uint32_t count)
{
    struct weft_shard_engine_stats stats;
    fleet_settle(world->fleet, WEFT_SECONDS(1));
    weft_shard_engine_stats(world->fleet->shard[0].engine, &stats);
    assert_int_equal(stats.receive_bytes_used, 0);
    assert_true(!fleet_shard_chunk(world->fleet, 0)->workers.contributions);
    for (uint32_t i = 0; i < count; i++) free(requests[i].out);
    fleet_free(world->fleet);
}

static void asp_never_waits(void **state)
{
    struct world world = start("asp", SMALL, 0);
    struct fleet_request request[2] = {{0}};
    for (uint64_t step = 1; step <= STEPS; step++) {
        push_pull(&world, 1, step, &request[0]);
        assert_int_equal(clock_in(&world, &request[0], 1), step);
        assert_int_equal(clock_in(&world, &request[0], 0), 0);
    }
    send_request(&world, 2, WEFT_WIRE_PULL, 0, &request[1]);
    await_ok(&world, &request[1]);
    assert_int_equal(clock_in(&world, &request[1], 1), STEPS);
    finish(&world, request, 2);
}

/* Rank 3 does not receive its result; its send reads a version that later updates leave as it is. */
static void a_slow_reader_delays_no_update(void **state)
{
    for (uint64_t elems = LARGE / 2; elems <= LARGE; elems *= 2) { /* updates inside a step, and as tasks */
        struct world world = start("asp", elems, 0);
        struct fleet_request request[3] = {{0}};
        fleet_hold(world.fleet, 3, true);
        fleet_hold(world.fleet, 2, true);
        for (uint32_t rank = 2; rank < 4; rank++) {
            send_request(&world, rank, WEFT_WIRE_PUSH_PULL, 1, &request[rank - 1]);
            fleet_settle(world.fleet, WEFT_MS(100));
        }
        for (uint64_t step = 1; step <= 5; step++) push_pull(&world, 0, step, &request[0]);
        fleet_hold(world.fleet, 2, false);
        fleet_hold(world.fleet, 3, false);
        for (uint32_t rank = 2; rank < 4; rank++) {
            await_ok(&world, &request[rank - 1]);
            assert_int_equal(clock_in(&world, &request[rank - 1], 2), 1);
            assert_int_equal(clock_in(&world, &request[rank - 1], 3), rank == 3);
            assert_int_equal(clock_in(&world, &request[rank - 1], 0), 0);
        }
        finish(&world, request, 3);
    }
}

static void ssp_waits_for_the_slowest(void **state)
{
    struct world world = start("ssp:2", SMALL, 0);
    struct fleet_request request[WORKERS + 1] = {{0}};
    for (uint64_t step = 1; step <= 2; step++) push_pull(&world, 1, step, &request[1]);
    send_request(&world, 1, WEFT_WIRE_PUSH, 3, &request[1]); /* a push alone does not wait */
    await_ok(&world, &request[1]);
    send_request(&world, 1, WEFT_WIRE_PULL, 3, &request[1]);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        fleet_settle(world.fleet, WEFT_MS(100));
        assert_false(request[1].done);
        if (rank != 1) push_pull(&world, rank, 1, &request[rank]);
    }
    await_ok(&world, &request[1]);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        assert_int_equal(clock_in(&world, &request[1], rank), rank == 1 ? 3 : 1);
    send_request(&world, 1, WEFT_WIRE_PUSH_PULL, 4, &request[1]); /* the same wait, of a push_pull */
    fleet_settle(world.fleet, WEFT_MS(100));
    assert_false(request[1].done);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        if (rank != 1) push_pull(&world, rank, 2, &request[rank]);
    await_ok(&world, &request[1]);
    finish(&world, request, WORKERS);
}

static void a_wait_has_a_deadline_and_a_name(void **state)
{
    struct world world = start("ssp:0", SMALL, 0);
    struct fleet_request request[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < 3; rank++)
        send_request(&world, rank, rank == 2 ? WEFT_WIRE_PUSH : WEFT_WIRE_PUSH_PULL, 1, &request[rank]);
    await_ok(&world, &request[2]);
    send_request(&world, 2, WEFT_WIRE_PULL, 1, &request[2]);
    const uint64_t from_ns = weft_sim_now_ns(world.fleet->sim);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_true(fleet_await(world.fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_DEADLINE);
        assert_string_equal(request[rank].text,
                            "step 1 of 'w' chunk 0 waited 10 s for rank 3 at step 0 (ssp:0)");
    }
    assert_true(weft_sim_now_ns(world.fleet->sim) - from_ns < WEFT_SECONDS(WAIT_S + 1));
    push_pull(&world, 3, 1, &request[3]); /* the updates were applied */
    for (uint32_t rank = 0; rank < WORKERS; rank++) assert_int_equal(clock_in(&world, &request[3], rank), 1);
    finish(&world, request, WORKERS);
}

static void each_contribution_counts_once(void **state)
{
    struct world world = start("asp", SMALL, 0);
    struct fleet_request request[3] = {{0}};
    push_pull(&world, 0, 1, &request[0]);
    push_pull(&world, 0, 1, &request[0]); /* again: answered, not applied */
    assert_int_equal(clock_in(&world, &request[0], 0), 1);
    push_pull(&world, 0, 2, &request[0]);
    send_request(&world, 0, WEFT_WIRE_PUSH, 1, &request[1]);
    assert_true(fleet_await(world.fleet, &request[1]));
    assert_int_equal(request[1].status, WEFT_ERR_STALE);
    assert_string_equal(request[1].text, "step 1 of tensor 'w' is over, steps of rank 0 up to 2 are");
    send_request(&world, 0, WEFT_WIRE_PUSH, 4, &request[1]);
    assert_true(fleet_await(world.fleet, &request[1]));
    assert_int_equal(request[1].status, WEFT_ERR_STATE);
    assert_string_equal(request[1].text, "rank 0 pushes step 4 of tensor 'w', its step 3 is next");
    struct weft_wire_header header = fleet_header(world.fleet, 1, 0, WEFT_WIRE_PUSH_PULL, 1);
    header.flags = WEFT_WIRE_NOT_FINITE; /* no gradient: the clock moves, the values do not */
    header.payload_bytes = 0;
    fleet_send(world.fleet, 1, 0, &request[2], &header, NULL, 0);
    await_ok(&world, &request[2]);
    assert_int_equal(clock_in(&world, &request[2], 0), 2);
    assert_int_equal(clock_in(&world, &request[2], 1), 0);
    assert_int_equal(fleet_shard_chunk(world.fleet, 0)->closed_step, 2);
    finish(&world, request, 3);
}

/* Rate and weight decay are those of the push. */
static void each_push_has_its_rates(void **state)
{
    struct world world = start("asp", SMALL, 0);
    struct fleet_request request = {0};
    static const struct {
        float lr, decay, wanted;
    } pushes[] = {{1, -1, -1}, {2, 0.5f, -2}, {0.5f, -1, -2.5f}};
    for (uint32_t i = 0; i < 3; i++) {
        struct weft_wire_header header = fleet_header(world.fleet, 2, 0, WEFT_WIRE_PUSH_PULL, 1 + i);
        float values[SMALL];
        for (uint32_t at = 0; at < SMALL; at++) values[at] = WORKERS;
        header.lr = pushes[i].lr;
        header.weight = 1;
        header.flags = pushes[i].decay < 0 ? 0 : WEFT_WIRE_DECAY;
        header.weight_sum = pushes[i].decay < 0 ? 0 : pushes[i].decay;
        free(request.out);
        request = (struct fleet_request){0};
        fleet_send(world.fleet, 2, 0, &request, &header, values, sizeof values);
        await_ok(&world, &request);
        assert_true(((const float *)(const void *)request.out)[7] == pushes[i].wanted);
    }
    finish(&world, &request, 1);
}

static void the_others_go_on_without_a_worker_that_left(void **state)
{
    struct world world = start("ssp:1", SMALL, 0);
    struct fleet_request request[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < 3; rank++) push_pull(&world, rank, 1, &request[rank]);
    for (uint32_t rank = 0; rank < 3; rank++)
        send_request(&world, rank, WEFT_WIRE_PUSH_PULL, 2, &request[rank]);
    fleet_settle(world.fleet, WEFT_MS(100));
    assert_false(request[0].done);
    weft_shard_engine_worker_left(world.fleet->shard[0].engine, world.fleet->worker[3].endpoint);
    for (uint32_t rank = 0; rank < 3; rank++) await_ok(&world, &request[rank]);
    finish(&world, request, WORKERS);
}

static void a_failed_engine_answers_all(void **state)
{
    struct world world = start("ssp:0", LARGE, LARGE * sizeof(float) + 8192);
    struct fleet_request request[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < 3; rank++) { /* one waits for rank 3; others have no memory, or receive */
        send_request(&world, rank, WEFT_WIRE_PUSH_PULL, 1, &request[rank]);
        if (rank == 0) fleet_settle(world.fleet, WEFT_MS(100));
    }
    fleet_settle(world.fleet, 20000);
    weft_shard_engine_fail(world.fleet->shard[0].engine, WEFT_ERR_PEER_LOST, "rank 3 is lost");
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_true(fleet_await(world.fleet, &request[rank]));
        assert_int_equal(request[rank].status, WEFT_ERR_PEER_LOST);
        assert_string_equal(request[rank].text, "rank 3 is lost");
    }
    finish(&world, request, WORKERS);
}

/* ---- worlds of a seed: random order, repeated messages, readers that stop, little memory ---- */

static uint32_t below(struct world *world, uint32_t limit)
{
    world->random = fleet_mix(world->random);
    return (uint32_t)(world->random % limit);
}

struct pusher {
    struct fleet_request request, again;
    uint64_t step;
    bool is_open;
};

/* The result of the last push shows that it was applied, and how far the others were. */
static void check_result(struct world *world, struct pusher *pusher, uint32_t rank, uint64_t staleness)
{
    if (!pusher->is_open || !pusher->request.done) return;
    pusher->is_open = false;
    await_ok(world, &pusher->request);
    for (uint32_t other = 0; other < WORKERS; other++) {
        const uint64_t clock = clock_in(world, &pusher->request, other);
        if (other == rank) assert_int_equal(clock, pusher->step);
        else assert_true(clock + staleness >= pusher->step);
    }
}

static uint64_t run_seed(uint64_t seed, const char *consistency, uint64_t staleness)
{
    const bool is_large = seed % 16 == 0;
    const uint64_t elems = is_large ? LARGE : SMALL * (1 + seed % 9);
    struct world world = start(consistency, elems, is_large ? LARGE * sizeof(float) + 8192 : 4096);
    struct pusher pusher[WORKERS] = {{{0}}};
    uint64_t farthest = 0;
    uint32_t left = WORKERS;
    world.random = fleet_mix(seed + 1);
    while (left > 0) {
        const uint32_t rank = below(&world, WORKERS);
        struct pusher *own = &pusher[rank];
        if (below(&world, 8) == 0) fleet_hold(world.fleet, rank, false);
        if (!own->is_open && own->step < STEPS && (rank > 0 || below(&world, 4) == 0)) {
            if (below(&world, 8) == 0 && own->step > 0) {
                send_request(&world, rank, WEFT_WIRE_PUSH, own->step, &own->again);
                assert_true(fleet_await(world.fleet, &own->again));
                assert_int_equal(own->again.status, WEFT_OK);
            }
            if (below(&world, 8) == 0) fleet_hold(world.fleet, rank, true);
            own->is_open = true;
            send_request(&world, rank, WEFT_WIRE_PUSH_PULL, ++own->step, &own->request);
        }
        fleet_settle(world.fleet, 1 + below(&world, 200000));
        left = 0;
        for (uint32_t r = 0; r < WORKERS; r++) {
            check_result(&world, &pusher[r], r, staleness);
            left += pusher[r].is_open || pusher[r].step < STEPS;
            for (uint32_t other = 0; other < WORKERS; other++)
                if (pusher[r].step > pusher[other].step + farthest)
                    farthest = pusher[r].step - pusher[other].step;
        }
    }
    struct fleet_request last = {0};
    send_request(&world, 0, WEFT_WIRE_PULL, STEPS, &last);
    await_ok(&world, &last);
    for (uint32_t rank = 0; rank < WORKERS; rank++) assert_int_equal(clock_in(&world, &last, rank), STEPS);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        free(pusher[rank].request.out), free(pusher[rank].again.out);
    finish(&world, &last, 1);
    return farthest;
}

/* A worker may be one push ahead of its last result: at most staleness + 1 ahead of another. */
static void seeds_stay_within_the_staleness(void **state)
{
    static const struct {
        const char *text;
        uint64_t staleness;
    } rules[] = {{"ssp:0", 0}, {"ssp:1", 1}, {"ssp:4", 4}, {"asp", STEPS}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        uint64_t farthest = 0;
        for (uint64_t seed = 0; seed < 32; seed++) {
            const uint64_t ahead = run_seed(seed, rules[i].text, rules[i].staleness);
            if (ahead > farthest) farthest = ahead;
        }
        assert_true(farthest <= rules[i].staleness + 1);
        assert_true(farthest > rules[i].staleness || rules[i].staleness == STEPS); /* the bound was reached */
        assert_true(farthest > 5 || rules[i].staleness < STEPS);
    }
}

static void other_declarations_are_refused(void **state)
{
    static const struct {
        const char *codec, *optimizer, *consistency, *words;
        enum weft_status status;
    } bad[] = {{"dense", "sgd", "ssp", "none of bsp, ssp:S", WEFT_ERR_INVALID},
               {"dense", "sgd", "ssp:", "none of bsp, ssp:S", WEFT_ERR_INVALID},
               {"dense", "sgd", "ssp:-1", "none of bsp, ssp:S", WEFT_ERR_INVALID},
               {"dense", "sgd", "ssp:1000001", "none of bsp, ssp:S", WEFT_ERR_INVALID},
               {"dense", "sgd", "ssp:42949672960", "none of bsp, ssp:S", WEFT_ERR_INVALID},
               {"dense", "none", "asp", "dense tensors with an optimizer", WEFT_ERR_UNSUPPORTED},
               {"bf16", "sgd", "asp", "dense tensors with an optimizer", WEFT_ERR_UNSUPPORTED},
               {"auto", "sgd", "ssp:1", "dense tensors with an optimizer", WEFT_ERR_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct world world = start("bsp", SMALL, 0);
        struct fleet_tensor_spec spec = spec_of(bad[i].consistency, SMALL);
        struct weft_error error = {0};
        spec.codec = bad[i].codec;
        spec.optimizer = bad[i].optimizer;
        world.fleet->options.tensors = &spec;
        weft_shard_engine_release(world.fleet->shard[0].engine, 0);
        fleet_settle(world.fleet, WEFT_MS(1));
        assert_int_equal(fleet_declare(world.fleet, 0, world.fleet->shard[0].engine, &error), bad[i].status);
        assert_non_null(strstr(error.text, bad[i].words));
        fleet_free(world.fleet);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asp_never_waits),
        cmocka_unit_test(a_slow_reader_delays_no_update),
        cmocka_unit_test(ssp_waits_for_the_slowest),
        cmocka_unit_test(a_wait_has_a_deadline_and_a_name),
        cmocka_unit_test(each_contribution_counts_once),
        cmocka_unit_test(each_push_has_its_rates),
        cmocka_unit_test(the_others_go_on_without_a_worker_that_left),
        cmocka_unit_test(a_failed_engine_answers_all),
        cmocka_unit_test(seeds_stay_within_the_staleness),
        cmocka_unit_test(other_declarations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
