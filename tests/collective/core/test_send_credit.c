/* test_send_credit.c - operations with an urgency over slow and fast links, near and far, in virtual time:
 *
 *     large operations, the least urgent first ──► after a while the urgent one
 *
 * The urgent one ends before the others and earlier than without urgencies. All together end about as early,
 * because the credit keeps the links busy. With the least credit nothing stops, whatever the order on each
 * rank. */
#include "collective/core/group.h"
#include "tests/collective/world.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 5, OPERATIONS_MAX = 24 };

struct link {
    uint64_t bytes_per_second, latency_ns;
};

static struct link now_link;

struct traffic {
    uint32_t ranks, large; /* large operations; the urgent one follows */
    uint64_t large_bytes, urgent_bytes;
    uint64_t delay_ns; /* from the post of the large ones to that of the urgent one */
    bool link_is_known;
    bool is_eager;          /* payloads travel with their headers */
    enum weft_plan_id plan; /* AUTO: direct */
};

struct result {
    double urgent_ms, all_ms; /* of the slowest rank */
    uint32_t place;           /* operations of rank 0 that end before the urgent one */
};

static void set_link(struct weft_sim_options *options)
{
    options->bytes_per_second = now_link.bytes_per_second;
    options->latency_ns = now_link.latency_ns;
    options->jitter_ns = 0;
    options->timing_only = true;
    options->still_clock = true;
}

struct operation {
    uint32_t rank;
    uint64_t ended_ns;
};

static struct world *world;
static struct weft_group *groups[RANKS_MAX];
static struct operation operations[RANKS_MAX][OPERATIONS_MAX];
static uint32_t pending;
static bool all_done;

static void ended(void *context, enum weft_status status, const char *text)
{
    struct operation *operation = context;
    if (status < 0) fail_msg("%s: %s", weft_status_name(status), text);
    operation->ended_ns = weft_now_ns(world->envs[operation->rank]);
    if (--pending == 0) all_done = true;
}

static void post(uint32_t rank, uint32_t index, uint64_t bytes, uint64_t urgency, enum weft_plan_id plan)
{
    static uint8_t memory[64]; /* timing_only: it is not read */
    const struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_REDUCE,
        .in = memory,
        .out = memory,
        .count = bytes / 4,
        .dtype = WEFT_F32,
        .op = WEFT_SUM,
        .plan = plan,
        .urgency = urgency,
    };
    operations[rank][index] = (struct operation){.rank = rank};
    pending++;
    assert_int_equal(weft_coll_post(groups[rank], &args, ended, &operations[rank][index], NULL, NULL),
                     WEFT_IN_PROGRESS);
    weft_sim_wake(world->sim, rank);
}

static void open_groups(const struct link *link, uint32_t ranks, bool link_is_known, bool is_eager)
{
    struct weft_group_options options;
    const struct weft_link_cost cost = {.pairs = ranks * (ranks - 1),
                                        .latency_ns = link->latency_ns,
                                        .bytes_per_second = link->bytes_per_second};
    now_link = *link;
    world = world_create_eager(weft_env_system(), ranks, 5, set_link, is_eager ? 512u << 10 : 0);
    assert_non_null(world);
    weft_group_options_init(&options);
    options.modes.timing_only = true;
    if (link_is_known) options.cost = &cost;
    assert_int_equal(world_group(world, NULL, ranks, 3, &options, groups), WEFT_OK);
    pending = 0;
    all_done = false;
}

static void close_groups(uint32_t ranks)
{
    for (uint32_t rank = 0; rank < ranks; rank++) weft_group_free(groups[rank]);
    world_free(world);
}

/* ---- an urgent operation behind large ones ---- */

static struct result step(const struct traffic *traffic, bool urgencies)
{
    struct result result = {0};
    const bool never = false;
    const uint32_t last = traffic->large;
    const enum weft_plan_id plan = traffic->plan ? traffic->plan : WEFT_PLAN_DIRECT;
    all_done = false;
    const double began = world_seconds(world);
    for (uint32_t index = 0; index < last; index++)
        for (uint32_t rank = 0; rank < traffic->ranks; rank++)
            post(rank, index, traffic->large_bytes, urgencies ? 1 + last - index : 0, plan);
    world_run(world, &never, traffic->delay_ns);
    const double posted = world_seconds(world);
    for (uint32_t rank = 0; rank < traffic->ranks; rank++)
        post(rank, last, traffic->urgent_bytes, urgencies, plan);
    if (world_run(world, &all_done, WEFT_SECONDS(1000)) != WEFT_OK) fail_msg("%u did not end", pending);
    result.all_ms = (world_seconds(world) - began) * 1e3;
    for (uint32_t rank = 0; rank < traffic->ranks; rank++) {
        const double ms = (double)operations[rank][last].ended_ns / 1e6 - posted * 1e3;
        if (ms > result.urgent_ms) result.urgent_ms = ms;
    }
    for (uint32_t index = 0; index < last; index++)
        result.place += operations[0][index].ended_ns < operations[0][last].ended_ns;
    return result;
}

static struct result run(const struct link *link, const struct traffic *traffic, bool urgencies)
{
    open_groups(link, traffic->ranks, traffic->link_is_known, traffic->is_eager);
    for (uint32_t rank = 0; rank < traffic->ranks; rank++) {
        send_credit_open(groups[rank]);
        post(rank, 0, 64, 0, WEFT_PLAN_AUTO); /* for the latency */
    }
    if (world_run(world, &all_done, WEFT_SECONDS(1)) != WEFT_OK) fail_msg("a short operation did not end");
    const struct result result = step(traffic, urgencies);
    close_groups(traffic->ranks);
    return result;
}

static void compare(const struct link *link, const struct traffic *traffic, double urgent_most)
{
    const struct result without = run(link, traffic, false), with = run(link, traffic, true);
    const double urgent = with.urgent_ms / without.urgent_ms, all = with.all_ms / without.all_ms;
    if (urgent <= urgent_most && all <= 1.2) return;
    fail_msg("%.3f Gbit/s %.1f us, %u ranks: urgent %.3f ms, %.3f ms without urgency; all %.3f and %.3f ms",
             (double)link->bytes_per_second * 8e-9, (double)link->latency_ns * 1e-3, traffic->ranks,
             with.urgent_ms, without.urgent_ms, with.all_ms, without.all_ms);
}

/* Links that hold less than the operations: the urgent one passes. The longer the link, the less it does. */
static void test_links(void **state)
{
    static const struct link links[] = {
        {12500000, 50000}, {125000000, 20000}, {125000000, 1000000}, {1250000000, 5000}, {12500000000, 2000}};
    for (size_t l = 0; l < sizeof links / sizeof links[0]; l++)
        for (uint32_t ranks = 2; ranks <= 4; ranks++)
            for (int way = 0; way < 4; way++) {
                const bool known = way % 2;
                const struct traffic traffic = {
                    .ranks = ranks,
                    .large = 6,
                    .is_eager = way / 2,
                    .large_bytes = 4u << 20,
                    .urgent_bytes = l % 2 ? 1u << 20 : 64u << 10,
                    .delay_ns = (uint64_t)(8e9 * 1024 * 1024 / (double)links[l].bytes_per_second),
                    .link_is_known = known,
                };
                compare(&links[l], &traffic, known && links[l].bytes_per_second < 12500000000 ? 0.95 : 1);
            }
}

/* A long link holds all operations: nothing is held back, and nothing is slower. */
static void test_far(void **state)
{
    const struct link link = {1250000000, 5000000};
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        const struct traffic traffic = {.ranks = ranks,
                                        .large = 6,
                                        .large_bytes = 4u << 20,
                                        .urgent_bytes = 64u << 10,
                                        .delay_ns = WEFT_MS(6)};
        compare(&link, &traffic, 1.01);
    }
}

/* Of equal operations the urgent one, though posted last, is among the first to end. */
static void test_overtakes(void **state)
{
    const struct link link = {125000000, 20000};
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++)
        for (int known = 0; known < 2; known++) {
            const struct traffic traffic = {.ranks = ranks,
                                            .large = 6,
                                            .large_bytes = 4u << 20,
                                            .urgent_bytes = 4u << 20,
                                            .delay_ns = WEFT_MS(1),
                                            .link_is_known = known};
            assert_int_equal(run(&link, &traffic, false).place, traffic.large);
            const uint32_t place = run(&link, &traffic, true).place;
            if (known ? place > 1 : place >= traffic.large) fail_msg("%u ranks: place %u", ranks, place);
        }
}

/* Over a known link the urgent operation has almost the whole link, whatever the number of peers: the credit
 * is per peer, and the oldest operation has no share beside it. In a ring each rank sends to one peer. */
static void test_whole_link(void **state)
{
    const struct link link = {125000000, 20000};
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++)
        for (int eager = 0; eager < 2; eager++) {
            struct traffic traffic = {.ranks = ranks,
                                      .large_bytes = 4u << 20,
                                      .urgent_bytes = 4u << 20,
                                      .link_is_known = true,
                                      .is_eager = eager,
                                      .plan = WEFT_PLAN_RING};
            const double alone_ms = run(&link, &traffic, true).urgent_ms;
            traffic.large = 6;
            traffic.delay_ns = WEFT_MS(10);
            const double behind_ms = run(&link, &traffic, true).urgent_ms;
            if (behind_ms > 1.3 * alone_ms)
                fail_msg("%u ranks: %.3f ms behind others, %.3f ms alone", ranks, behind_ms, alone_ms);
        }
}

/* ---- nothing stops ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    return (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull >> 20;
}

/* The least credit, and another order of the urgencies on every rank. */
static void one_seed(uint64_t seed)
{
    static const enum weft_plan_id plans[] = {WEFT_PLAN_AUTO,     WEFT_PLAN_DIRECT,  WEFT_PLAN_RING,
                                              WEFT_PLAN_DOUBLING, WEFT_PLAN_HALVING, WEFT_PLAN_DOUBLE_TREE};
    const struct link link = {1250000000, 1000 + mix(seed) % 100000};
    const uint32_t ranks = 2 + (uint32_t)(mix(seed + 1) % (RANKS_MAX - 1));
    open_groups(&link, ranks, false, mix(seed + 2) % 2);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        send_credit_open(groups[rank]);
        groups[rank]->sending.send_credit->is_least = true;
    }
    for (uint32_t index = 0; index < OPERATIONS_MAX; index++) {
        const uint64_t bytes = 4 + mix(seed * 7 + index) % (3u << 20);
        const enum weft_plan_id plan = plans[mix(seed * 11 + index) % 6];
        for (uint32_t rank = 0; rank < ranks; rank++)
            post(rank, index, bytes, 1 + mix(seed * 13 + index * 97 + rank) % 30, plan);
    }
    if (world_run(world, &all_done, WEFT_SECONDS(100)) != WEFT_OK)
        fail_msg("seed %llu: %u operations did not end", (unsigned long long)seed, pending);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t peer = 0; peer < ranks; peer++)
            assert_int_equal(groups[rank]->sending.send_credit->peers[peer].in_flight, 0);
        assert_int_equal(groups[rank]->sending.send_credit->held_count, 0);
    }
    close_groups(ranks);
}

static void test_least_credit(void **state)
{
    for (uint64_t seed = 1; seed <= 80; seed++) one_seed(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_overtakes),
        cmocka_unit_test(test_whole_link),
        cmocka_unit_test(test_least_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
