/* test_topology_ring.c - the ring all-reduce of the real interpreter over topologies, against the known
 * formula: 2(p-1)/p of the vector over each rank's slowest link, plus 2(p-1) steps of latency (a rendezvous
 * takes three). Payloads are timed only; sums take no virtual time. Tolerance 5 %: the pipeline of chunks is
 * not full at its ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/collective/world.h"

static const struct weft_topology *topology;

static void tweak(struct weft_sim_options *options)
{
    options->topology = topology;
    options->timing_only = true;
}

/* Seconds of one all-reduce of `bytes` f32 over hosts[0..ranks). */
static double ring_seconds(const char *text, const uint32_t *hosts, uint32_t ranks, size_t bytes)
{
    struct weft_topology *parsed = NULL;
    struct weft_error error = {0};
    if (weft_topology_parse(weft_env_system(), "net", text, strlen(text), &parsed, &error) < 0)
        fail_msg("%s", error.text);
    topology = parsed;
    struct world *world = world_create(weft_env_system(), weft_topology_hosts(parsed), 1, tweak);
    assert_non_null(world);
    struct weft_group *groups[WORLD_HOSTS_MAX];
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.chunk_bytes = 256 << 10;
    assert_int_equal(world_group(world, hosts, ranks, 1, &options, groups), WEFT_OK);
    float *vector = calloc(1, bytes); /* one for all ranks: no bytes are read */
    struct outcome outcomes[WORLD_HOSTS_MAX] = {0};
    uint32_t pending = ranks;
    bool done = false;
    double start = world_seconds(world);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                      .in = vector,
                                      .out = vector,
                                      .count = bytes / 4,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM,
                                      .plan = WEFT_PLAN_RING};
        outcomes[rank].pending = &pending;
        outcomes[rank].all_done = &done;
        if (weft_coll_post(groups[rank], &args, outcome_done, &outcomes[rank], NULL, &error) !=
            WEFT_IN_PROGRESS)
            fail_msg("%s", error.text);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(100)), WEFT_OK);
    double seconds = world_seconds(world) - start;
    for (uint32_t rank = 0; rank < ranks; rank++) assert_int_equal(outcomes[rank].status, WEFT_OK);
    for (uint32_t rank = 0; rank < ranks; rank++) weft_group_free(groups[rank]);
    world_free(world);
    weft_topology_free(parsed);
    free(vector);
    return seconds;
}

static double formula(uint32_t ranks, size_t bytes, double bytes_per_second, double latency)
{
    return 2.0 * (ranks - 1) / ranks * (double)bytes / bytes_per_second + 2.0 * (ranks - 1) * 3 * latency;
}

static void assert_near(double value, double expected)
{
    print_message("%.6f s, formula %.6f s, ratio %.3f\n", value, expected, value / expected);
    assert_true(value > expected * 0.95 && value < expected * 1.05);
}

static void test_star(void **state)
{
    for (uint32_t ranks = 2; ranks <= 32; ranks *= 4) {
        char text[300];
        snprintf(text, sizeof text,
                 "[host node]\ncount = %u\n[switch s]\ncount = 1\n[link l]\nfrom = node\nto = s\nrate = "
                 "100Gbit\nlatency = 500ns\n",
                 ranks);
        size_t bytes = (size_t)ranks << 20;
        assert_near(ring_seconds(text, NULL, ranks, bytes), formula(ranks, bytes, 12.5e9, 1e-6));
    }
}

/* Two leaves with a thin core: with ranks grouped by leaf the ring crosses the core once each way, with
 * interleaved ranks at every hop. */
static void test_placement(void **state)
{
    enum { RANKS = 16 };
    static const char tree[] =
        "[host node]\ncount = 16\n[switch leaf]\ncount = 2\n[link access]\nfrom = node\nto = leaf\nrate = "
        "100Gbit\n"
        "latency = 500ns\n[link core]\nfrom = leaf[0]\nto = leaf[1]\nrate = 100Gbit\nlatency = 500ns\n";
    uint32_t good[RANKS], bad[RANKS];
    size_t bytes = (size_t)RANKS << 20;
    for (uint32_t i = 0; i < RANKS; i++) good[i] = i, bad[i] = i % 2 * 8 + i / 2;
    assert_near(ring_seconds(tree, good, RANKS, bytes), formula(RANKS, bytes, 12.5e9, 1e-6));
    assert_near(ring_seconds(tree, bad, RANKS, bytes), formula(RANKS, bytes, 12.5e9 / 8, 1.5e-6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_star), cmocka_unit_test(test_placement)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
