/* test_ops.c - every operation x type x reduction x plan x number of ranks, in the simulator, in bits. */
#include "tests/collective/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"

/* A group per number of ranks serves all its calls: records and tags are used again and again. */
static struct world *world;
static struct weft_group *groups[WORLD_HOSTS_MAX];

static void open_groups(uint32_t ranks, size_t chunk_bytes, uint32_t inflight)
{
    world = world_create(weft_env_system(), ranks, ranks, NULL);
    assert_non_null(world);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.chunk_bytes = chunk_bytes;
    options.inflight_max = inflight;
    assert_int_equal(world_group(world, NULL, ranks, 5, &options, groups), WEFT_OK);
}

static void close_groups(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) weft_group_free(groups[r]);
    world_free(world);
}

static void run_call(const struct call *call, bool in_place)
{
    struct posted posted[WORLD_HOSTS_MAX];
    uint32_t pending = call->ranks;
    bool done = false;
    char name[160], why[200];
    call_name(call, name, sizeof name);
    for (uint32_t r = 0; r < call->ranks; r++) {
        posted_prepare(&posted[r], call, r, in_place);
        posted[r].outcome.pending = &pending;
        posted[r].outcome.all_done = &done;
        assert_int_equal(posted_start(&posted[r], groups[r], 0), WEFT_IN_PROGRESS);
        assert_false(posted[r].outcome.ended); /* never from inside the call */
    }
    enum weft_status status = world_run(world, &done, WEFT_SECONDS(20));
    if (status != WEFT_OK) fail_msg("%s: %u ranks did not end (%s)", name, pending, weft_status_name(status));
    for (uint32_t r = 0; r < call->ranks; r++) {
        if (posted[r].outcome.status != WEFT_OK) fail_msg("%s: rank %u: %s", name, r, posted[r].outcome.text);
        assert_int_equal(posted[r].outcome.times, 1);
        if (!posted_check(&posted[r], why, sizeof why)) fail_msg("%s%s: %s", name, in_place ? ", in place" : "", why);
        posted_release(&posted[r]);
    }
}

static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_BF16, WEFT_I64};

static void sweep(uint32_t ranks, const uint64_t *counts, size_t count_count, bool all_types)
{
    static const enum weft_coll_kind kinds[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER, WEFT_COLL_BROADCAST,
                                                WEFT_COLL_BARRIER};
    uint64_t seed = 1;
    for (size_t k = 0; k < 5; k++)
        for (int plan = WEFT_PLAN_DIRECT; plan <= WEFT_PLAN_RING; plan++)
            for (size_t d = 0; d < 4; d++)
                for (size_t n = 0; n < count_count; n++) {
                    if (!weft_plan_supports(plan, kinds[k])) continue;
                    if (kinds[k] == WEFT_COLL_BARRIER && (d || n)) continue;
                    if (!all_types && (d + n + ranks) % 4) continue;
                    struct call call = {.kind = kinds[k], .plan = plan, .dtype = dtypes[d], .op = (d + n) % 2 ? WEFT_AVG : WEFT_SUM,
                                        .ranks = ranks, .root = (uint32_t)(seed % ranks), .count = counts[n], .seed = seed};
                    bool piecewise = kinds[k] == WEFT_COLL_REDUCE_SCATTER || kinds[k] == WEFT_COLL_ALL_GATHER;
                    if (piecewise && call.count > 40) call.count = call.count / ranks + 1;
                    run_call(&call, seed % 2);
                    if (all_types) {
                        call.op = call.op == WEFT_SUM ? WEFT_AVG : WEFT_SUM;
                        run_call(&call, seed % 2 == 0);
                    }
                    seed++;
                }
}

/* Chunks of 64 bytes and a narrow window: many chunks of few elements. */
static void few_ranks(void **state)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 7, 8};
    for (size_t i = 0; i < 7; i++) {
        uint64_t counts[] = {0, 1, sizes[i] + 1, 37, 501};
        open_groups(sizes[i], i % 2 ? 64 : 128, i % 3 ? 16 : 2);
        sweep(sizes[i], counts, 5, true);
        close_groups(sizes[i]);
    }
}

static void many_ranks(void **state)
{
    static const uint32_t sizes[] = {16, 33, 64};
    for (size_t i = 0; i < 3; i++) {
        uint64_t counts[] = {1, 37, 1009, 4 * sizes[i]};
        open_groups(sizes[i], 1 << 20, 16);
        sweep(sizes[i], counts, 4, false);
        close_groups(sizes[i]);
    }
}

/* Longer than eager messages: payloads move only into buffers that were named (rendezvous). */
static void long_vectors(void **state)
{
    for (uint32_t ranks = 2; ranks <= 5; ranks++) {
        open_groups(ranks, 16384, 8);
        for (int plan = WEFT_PLAN_DIRECT; plan <= WEFT_PLAN_RING; plan++)
            for (size_t d = 0; d < 4; d++) {
                struct call call = {.kind = WEFT_COLL_ALL_REDUCE, .plan = plan, .dtype = dtypes[d], .op = d % 2 ? WEFT_SUM : WEFT_AVG,
                                    .ranks = ranks, .count = 50021, .seed = ranks * 10 + d};
                run_call(&call, d % 2);
            }
        close_groups(ranks);
    }
}

static void gathered_bytes(uint32_t ranks, uint64_t piece_max, size_t chunk_bytes)
{
    open_groups(ranks, chunk_bytes, 4);
    uint8_t *in[WORLD_HOSTS_MAX], *out[WORLD_HOSTS_MAX];
    uint64_t lengths[WORLD_HOSTS_MAX][WORLD_HOSTS_MAX], own[WORLD_HOSTS_MAX];
    struct outcome outcomes[WORLD_HOSTS_MAX] = {0};
    uint32_t pending = ranks;
    bool done = false;
    for (uint32_t r = 0; r < ranks; r++) {
        own[r] = r == 0 ? piece_max : r == 1 ? 0 : (piece_max * r * 7 / 11) % (piece_max + 1);
        in[r] = malloc(piece_max + 1);
        out[r] = calloc(ranks, piece_max + 1);
        for (uint64_t i = 0; i < own[r]; i++) in[r][i] = (uint8_t)(r * 31 + i * 7);
        outcomes[r].pending = &pending;
        outcomes[r].all_done = &done;
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_GATHER_BYTES, .in = in[r], .out = out[r], .count = own[r],
                                      .piece_bytes_max = piece_max, .piece_bytes_out = lengths[r]};
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, &outcomes[r], NULL, NULL), WEFT_IN_PROGRESS);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(10)), WEFT_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(outcomes[r].status, WEFT_OK);
        for (uint32_t peer = 0; peer < ranks; peer++) {
            assert_true(lengths[r][peer] == own[peer]);
            assert_memory_equal(out[r] + peer * piece_max, in[peer], own[peer]);
        }
    }
    for (uint32_t r = 0; r < ranks; r++) free(in[r]), free(out[r]);
    close_groups(ranks);
}

static void gather_bytes(void **state)
{
    gathered_bytes(1, 100, 64);
    gathered_bytes(2, 1, 64);
    gathered_bytes(3, 0, 64);
    gathered_bytes(4, 1000, 64);
    gathered_bytes(7, 30000, 16384);
}

/* The flight recorder has a begin and an end of each operation. */
static void recorded(void **state)
{
    struct weft_event_ring *ring;
    assert_int_equal(weft_event_ring_create(weft_env_system(), 64, &ring), WEFT_OK);
    world = world_create(weft_env_system(), 2, 1, NULL);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.events = ring;
    assert_int_equal(world_group(world, NULL, 2, 5, &options, groups), WEFT_OK);
    run_call(&(struct call){.kind = WEFT_COLL_ALL_REDUCE, .plan = WEFT_PLAN_RING, .dtype = WEFT_F32, .op = WEFT_SUM, .ranks = 2, .count = 3}, false);
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(weft_event_ring_dump_json(ring, "test", out), WEFT_OK);
    fclose(out);
    uint32_t found = 0;
    for (const char *at = text; (at = strstr(at, "\"all_reduce\"")); at++) found++;
    assert_int_equal(found, 4); /* two ranks share this ring */
    free(text);
    close_groups(2);
    weft_event_ring_free(ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_ranks), cmocka_unit_test(many_ranks), cmocka_unit_test(long_vectors), cmocka_unit_test(gather_bytes), cmocka_unit_test(recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
