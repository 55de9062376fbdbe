/* test_plans.c - proves every plan without a network.
 *
 * Numbers of ranks: a sample up to 130; with --thorough all up to 257, and above that primes and powers of
 * two up to 4,099. The large numbers cover all ranks for plans whose messages grow with log(ranks) or with
 * ranks in total; plans with rotational symmetry are proved on one rank (plan_rotated.h).
 *
 * For each case the model (plan_model.h) proves: each element gets each rank's contribution exactly once and
 * in the declared order; each send matches a receive of equal number and length; a window of two steps does
 * not deadlock; no scratch is overwritten while it is in use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/plan/algorithm.h"
#include "tests/collective/plan/plan_model.h"
#include "tests/collective/plan/plan_rotated.h"

static uint32_t ranks_max = 130; /* --ranks N */
static bool thorough;            /* --thorough: every count for every number of ranks */

static void prove(const struct plan_case *c)
{
    char why[256];
    if (plan_model_run(c, why, sizeof why)) return;
    print_error(
        "plan %s, %s, ranks %u, root %u, count %llu%s, chunk %llu, lanes %u, window %u%s, seed %llu: %s\n",
        weft_plan_name(c->plan), weft_coll_kind_name(c->kind), c->ranks, c->root,
        (unsigned long long)c->count, c->cuts ? " and less" : "", (unsigned long long)c->chunk_elems,
        c->lanes, c->window, c->in_place ? ", in place" : "", (unsigned long long)c->seed, why);
    fail();
}

/* Edge counts: none, one, fewer than ranks, not divisible, several chunks with a short last one. */
static void prove_vector_kind(enum weft_plan_id plan, enum weft_coll_kind kind)
{
    for (uint32_t p = 1; p <= ranks_max; p++) {
        /* a power of two and its neighbours */
        bool edge = (p & (p - 1)) == 0 || ((p - 1) & (p - 2)) == 0 || ((p + 1) & p) == 0;
        if (!thorough && p > 20 && !edge && p % 13) continue;
        bool whole = kind == WEFT_COLL_ALL_REDUCE || kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_REDUCE;
        uint64_t counts[] = {0, 1, p / 2, p + 1, 3ull * p + p / 3, 7ull * p + 5};
        uint64_t pieces[] = {0, 1, 2, 5};
        size_t n = whole ? 6 : 4;
        for (size_t i = 0; i < n; i++) {
            bool few = p > (thorough ? 40 : 12);
            if (few && i != p % n) continue; /* a different count for each p */
            uint64_t count = whole ? counts[i] : pieces[i];
            uint64_t chunk = i == 5 ? 3 : i == 3 ? 2 : i == 4 ? 1 + p % 3 : 1;
            struct plan_case c = {.plan = plan,
                                  .kind = kind,
                                  .ranks = p,
                                  .root = p / 3,
                                  .count = count,
                                  .chunk_elems = chunk,
                                  .lanes = 1 + p % 3,
                                  .window = p % 2 || few ? 2 : 16};
            bool one_place = kind == WEFT_COLL_BROADCAST || kind == WEFT_COLL_ALL_TO_ALL;
            for (uint32_t variant = 0; variant < 4; variant++) {
                /* two roots, with and without a random schedule */
                if (few && variant != (p + p / 6) % 4) continue;
                c.in_place = variant % 2 && !one_place;
                c.seed = variant >= 2 ? p * 10 + i + 1 : 0;
                if (variant > 0)
                    c.lanes = 2, c.window = c.seed ? 2 + (uint32_t)c.seed % 40 : p % 2 && !few ? 16 : 3;
                prove(&c);
            }
        }
    }
}

static void direct_all_reduce(void **state) { prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_ALL_REDUCE); }
static void direct_reduce_scatter(void **state)
{
    prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_REDUCE_SCATTER);
}
static void direct_all_gather(void **state) { prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_ALL_GATHER); }
static void direct_all_gather_bytes(void **state)
{
    prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_ALL_GATHER_BYTES);
}
static void ring_all_reduce(void **state) { prove_vector_kind(WEFT_PLAN_RING, WEFT_COLL_ALL_REDUCE); }
static void ring_reduce_scatter(void **state) { prove_vector_kind(WEFT_PLAN_RING, WEFT_COLL_REDUCE_SCATTER); }
static void ring_all_gather(void **state) { prove_vector_kind(WEFT_PLAN_RING, WEFT_COLL_ALL_GATHER); }
static void doubling(void **state) { prove_vector_kind(WEFT_PLAN_DOUBLING, WEFT_COLL_ALL_REDUCE); }
static void halving(void **state) { prove_vector_kind(WEFT_PLAN_HALVING, WEFT_COLL_ALL_REDUCE); }
static void double_tree(void **state) { prove_vector_kind(WEFT_PLAN_DOUBLE_TREE, WEFT_COLL_ALL_REDUCE); }
static void direct_reduce(void **state) { prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_REDUCE); }
static void binomial_reduce(void **state) { prove_vector_kind(WEFT_PLAN_BINOMIAL, WEFT_COLL_REDUCE); }
static void chain_reduce(void **state) { prove_vector_kind(WEFT_PLAN_CHAIN, WEFT_COLL_REDUCE); }
static void chain_broadcast(void **state) { prove_vector_kind(WEFT_PLAN_CHAIN, WEFT_COLL_BROADCAST); }
static void bruck_all_gather(void **state) { prove_vector_kind(WEFT_PLAN_BRUCK, WEFT_COLL_ALL_GATHER); }
static void bruck_all_to_all(void **state) { prove_vector_kind(WEFT_PLAN_BRUCK, WEFT_COLL_ALL_TO_ALL); }
static void pat_reduce_scatter(void **state) { prove_vector_kind(WEFT_PLAN_PAT, WEFT_COLL_REDUCE_SCATTER); }
static void pat_all_gather(void **state) { prove_vector_kind(WEFT_PLAN_PAT, WEFT_COLL_ALL_GATHER); }
static void binomial_gather(void **state) { prove_vector_kind(WEFT_PLAN_BINOMIAL, WEFT_COLL_GATHER); }
static void binomial_scatter(void **state) { prove_vector_kind(WEFT_PLAN_BINOMIAL, WEFT_COLL_SCATTER); }

/* PAT with a message of one piece, of some, of half of all. */
static void pat_aggregated(void **state)
{
    static const enum weft_coll_kind kinds[] = {WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER};
    for (uint32_t p = 2; p <= ranks_max; p += p < 20 || (thorough && p < 70) ? 1 : 13)
        for (uint32_t pieces = 1; pieces <= p; pieces *= 2)
            for (int k = 0; k < 2; k++)
                prove(&(struct plan_case){.plan = WEFT_PLAN_PAT,
                                          .kind = kinds[k],
                                          .ranks = p,
                                          .count = 1 + p % 3,
                                          .chunk_elems = pieces * (1 + p % 3),
                                          .lanes = 1,
                                          .window = 2 + p % 15,
                                          .in_place = p % 2,
                                          .seed = pieces % 3 * p});
}

/* Hosts with equal and unequal numbers of ranks, consecutive and interleaved. */
enum spread { SPREAD_EVEN, SPREAD_UNEVEN, SPREAD_IN_TURN, SPREADS };
static void spread_ranks(enum spread spread, uint32_t ranks, uint32_t size, uint32_t *host_of)
{
    for (uint32_t r = 0, host = 0, taken = 0; r < ranks; r++) {
        uint32_t host_size = spread == SPREAD_UNEVEN ? 1 + (host * 5 + size) % (2 * size) : size;
        if (spread == SPREAD_IN_TURN) host_of[r] = r % ((ranks + size - 1) / size) * 7;
        else host_of[r] = host;
        if (++taken == host_size) host++, taken = 0;
    }
}

static void prove_hierarchy(uint32_t p, enum spread spread, uint32_t size, uint64_t count, uint64_t chunk,
                            uint32_t variant)
{
    static uint32_t host_of[5000], memory[9 * 5000 + 5];
    struct weft_plan_hosts hosts;
    spread_ranks(spread, p, size, host_of);
    weft_plan_hosts_init(host_of, p, memory, &hosts);
    struct plan_case c = {.plan = WEFT_PLAN_HIERARCHY,
                          .kind = WEFT_COLL_ALL_REDUCE,
                          .ranks = p,
                          .count = count,
                          .chunk_elems = chunk,
                          .lanes = 1,
                          .window = 2 + variant * 5 % 17,
                          .in_place = variant % 2,
                          .seed = variant % 3 * p,
                          .hosts = &hosts};
    prove(&c);
    c.kind = WEFT_COLL_BROADCAST, c.root = p * 2 / 3, c.in_place = false;
    prove(&c);
}

/* Its kinds with pieces, of equal and unequal lengths. */
static void prove_host_pieces(enum weft_coll_kind kind, uint32_t p, enum spread spread, uint32_t size,
                              uint64_t count, uint64_t chunk, uint32_t variant)
{
    static uint32_t host_of[5000], memory[9 * 5000 + 5];
    static uint64_t cuts[5000];
    struct weft_plan_hosts hosts;
    spread_ranks(spread, p, size, host_of);
    weft_plan_hosts_init(host_of, p, memory, &hosts);
    struct plan_case c = {.plan = WEFT_PLAN_HIERARCHY,
                          .kind = kind,
                          .ranks = p,
                          .count = count,
                          .chunk_elems = chunk,
                          .lanes = 1,
                          .window = 2 + variant * 5 % 17,
                          .in_place = variant % 2,
                          .seed = variant % 3 * p,
                          .hosts = &hosts};
    for (uint32_t r = 0; r < p; r++) cuts[r + 1] = cuts[r] + (r % 4 == 1 ? 0 : (r * 5 + p) % (count + 1));
    if (variant % 4 == 3) c.cuts = cuts;
    prove(&c);
    c.plan = WEFT_PLAN_RING, c.lanes = 1 + variant % 3; /* host by host */
    prove(&c);
    c.kind = WEFT_COLL_ALL_REDUCE, c.count = count * p / 2 + 1, c.cuts = NULL;
    if (kind == WEFT_COLL_REDUCE_SCATTER) prove(&c);
}

static void host_pieces(enum weft_coll_kind kind)
{
    for (uint32_t p = 1; p <= ranks_max; p += p < 24 || thorough ? 1 : 19)
        for (uint32_t size = 1; size <= 16; size += 1 + size / 3)
            for (int spread = 0; spread < SPREADS; spread++) {
                /* another sample for each p */
                if (p > 20 && (p + size + (uint32_t)spread) % (p > 80 ? 8 : 4)) continue;
                uint32_t variant = p + size * 3 + (uint32_t)spread;
                prove_host_pieces(kind, p, spread, size, p > 40 ? variant % 4 : variant % 9, 1 + variant % 3,
                                  variant / (p > 20 ? 4 : 1));
            }
}
static void hierarchy_reduce_scatter(void **state) { host_pieces(WEFT_COLL_REDUCE_SCATTER); }
static void hierarchy_all_gather(void **state) { host_pieces(WEFT_COLL_ALL_GATHER); }

static void hierarchy(void **state)
{
    for (uint32_t p = 1; p <= ranks_max; p += p < 24 || thorough ? 1 : 9)
        for (uint32_t size = 1; size <= 16; size += 1 + size / 3)
            for (int spread = 0; spread < SPREADS; spread++) {
                if (p > 40 && (p + size + (uint32_t)spread) % 4) continue; /* another sample for each p */
                uint32_t variant = p + size * 3 + (uint32_t)spread;
                prove_hierarchy(p, spread, size, variant % 5 ? (variant * 7) % 60 : 0, 1 + variant % 4,
                                variant);
            }
    for (uint32_t p = 2; p <= 12; p++) /* chunks long enough to be halved between hosts */
        prove_hierarchy(p, SPREAD_UNEVEN, 2, 30000, 6000, p);
}

/* ---- measured links ---- */
static uint32_t random_below(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*state >> 33) % below);
}

/* Random speeds, equal ones, very different ones, and lanes without traffic; hosts in any order. */
static void follow_some_links(struct weft_plan_hosts *hosts, uint32_t *memory, uint32_t ranks,
                              uint64_t *state)
{
    static uint32_t order[5000], speeds[5000], lanes[5000];
    uint32_t most = 1u << random_below(state, 20);
    for (uint32_t h = 0; h < hosts->count; h++) {
        uint32_t other = random_below(state, h + 1);
        order[h] = order[other], order[other] = h;
        speeds[h] = 1 + random_below(state, most);
    }
    for (uint32_t l = 0; l < hosts->lanes; l++)
        lanes[l] = random_below(state, 4) ? 1 + random_below(state, most) : 0;
    lanes[random_below(state, hosts->lanes)] = most;
    weft_plan_hosts_apply_links(
        hosts, memory, ranks,
        &(struct weft_plan_links){.order = order, .speeds = speeds, .lane_speeds = lanes});
}

/* Links change the ring order of ring, chain and double tree, and the lanes of the hierarchy, also with
 * unequal pieces. */
static void measured_hosts(void **state)
{
    static const struct {
        enum weft_plan_id plan;
        enum weft_coll_kind kind;
    } calls[] = {{WEFT_PLAN_RING, WEFT_COLL_ALL_REDUCE},
                 {WEFT_PLAN_RING, WEFT_COLL_REDUCE_SCATTER},
                 {WEFT_PLAN_RING, WEFT_COLL_ALL_GATHER},
                 {WEFT_PLAN_CHAIN, WEFT_COLL_BROADCAST},
                 {WEFT_PLAN_CHAIN, WEFT_COLL_REDUCE},
                 {WEFT_PLAN_DOUBLE_TREE, WEFT_COLL_ALL_REDUCE},
                 {WEFT_PLAN_HIERARCHY, WEFT_COLL_ALL_REDUCE},
                 {WEFT_PLAN_HIERARCHY, WEFT_COLL_BROADCAST},
                 {WEFT_PLAN_HIERARCHY, WEFT_COLL_REDUCE_SCATTER},
                 {WEFT_PLAN_HIERARCHY, WEFT_COLL_ALL_GATHER}};
    static uint32_t host_of[5000], memory[9 * 5000 + 5];
    static uint64_t cuts[5000];
    uint64_t random = 11;
    for (uint32_t p = 1; p <= ranks_max; p += p < 20 || thorough ? 1 : 13)
        for (uint32_t i = 0; i < 10; i++) {
            if (p > 40 && (p + i) % 3) continue;
            struct weft_plan_hosts hosts;
            spread_ranks((enum spread)random_below(&random, SPREADS), p, 1 + random_below(&random, 7),
                         host_of);
            weft_plan_hosts_init(host_of, p, memory, &hosts);
            follow_some_links(&hosts, memory, p, &random);
            bool pieces = calls[i].kind == WEFT_COLL_REDUCE_SCATTER || calls[i].kind == WEFT_COLL_ALL_GATHER;
            struct plan_case c = {.plan = calls[i].plan,
                                  .kind = calls[i].kind,
                                  .ranks = p,
                                  .root = random_below(&random, p),
                                  .count = random_below(&random, pieces ? 6 : 5 * p),
                                  .chunk_elems = 1 + random_below(&random, 4),
                                  .lanes = 1 + random_below(&random, 3),
                                  .window = 2 + random_below(&random, 17),
                                  .seed = random_below(&random, 3),
                                  .in_place =
                                      calls[i].kind != WEFT_COLL_BROADCAST && random_below(&random, 2),
                                  .hosts = &hosts};
            prove(&c);
            for (uint32_t r = 0; r < p; r++)
                cuts[r + 1] = cuts[r] + (r % 4 == 1 ? 0 : random_below(&random, (uint32_t)c.count + 1));
            if (pieces) c.cuts = cuts, prove(&c);
        }
}

/* Slices of random lengths, with empty ones, and one that is the whole vector; direct and ring. */
static void unequal_slices(void **state)
{
    static uint32_t slice_weights[5000];
    uint64_t random = 12;
    for (uint32_t p = 2; p <= ranks_max; p += p < 20 || thorough ? 1 : 13)
        for (uint32_t variant = 0; variant < (p > 40 ? 4 : 12); variant++) {
            uint32_t most = 1 + random_below(&random, variant % 3 == 2 ? 60000 : variant % 3 ? 20 : 2);
            slice_weights[0] = slice_weights[p + 1] = 0;
            for (uint32_t r = 0; r < p; r++) {
                uint32_t weight = r + 1 == p && slice_weights[r] == 0 ? 1
                                  : random_below(&random, 3)          ? random_below(&random, most + 1)
                                                                      : 0;
                slice_weights[r + 1] = slice_weights[r] + weight;
                if (weight > slice_weights[p + 1]) slice_weights[p + 1] = weight;
            }
            struct plan_case c = {.plan = WEFT_PLAN_DIRECT,
                                  .kind = WEFT_COLL_ALL_REDUCE,
                                  .ranks = p,
                                  .count = random_below(&random, (p > 40 ? 3 : 9) * p),
                                  .chunk_elems = 1 + random_below(&random, 5),
                                  .lanes = 1 + random_below(&random, 3),
                                  .window = 2 + random_below(&random, 30),
                                  .in_place = variant % 2,
                                  .seed = variant % 4 * p,
                                  .slice_weights = slice_weights};
            prove(&c);
            c.plan = WEFT_PLAN_RING;
            prove(&c);
        }
}

/* Weights of a direct all_reduce: equal for equal links; one slow rank of many gets no slice; the time of
 * the slowest rank is never above that of equal slices. */
static void shares_follow_speeds(void **state)
{
    uint64_t random = 13;
    for (uint32_t p = 3; p < 200; p += 1 + p / 9) {
        uint32_t host_of[200], memory[9 * 200 + 5], speeds[200];
        struct weft_plan_hosts hosts;
        for (uint32_t r = 0; r < p; r++) host_of[r] = r, speeds[r] = 1000 + random_below(&random, 50);
        weft_plan_hosts_init(host_of, p, memory, &hosts);
        weft_plan_hosts_apply_links(&hosts, memory, p, &(struct weft_plan_links){.speeds = speeds});
        assert_true(!hosts.slice_weights && hosts.number == 0 && hosts.ring_is_identity);
        speeds[p / 2] = 250;
        weft_plan_hosts_init(host_of, p, memory, &hosts);
        weft_plan_hosts_apply_links(&hosts, memory, p, &(struct weft_plan_links){.speeds = speeds});
        assert_true(hosts.slice_weights && hosts.number != 0);
        assert_int_equal(hosts.slice_weights[p / 2], hosts.slice_weights[p / 2 + 1]);
        for (uint32_t r = 0; r < p; r++) speeds[r] = 1 + random_below(&random, 1000);
        weft_plan_hosts_init(host_of, p, memory, &hosts);
        weft_plan_hosts_apply_links(&hosts, memory, p, &(struct weft_plan_links){.speeds = speeds});
        if (!hosts.slice_weights) continue;
        double worst = 0, equal = 0;
        for (uint32_t r = 0; r < p; r++) {
            double part =
                (double)(hosts.slice_weights[r + 1] - hosts.slice_weights[r]) / hosts.slice_weights[p];
            worst = fmax(worst, (1 + (p - 2) * part) / speeds[r]);
            equal = fmax(equal, (2 - 2.0 / p) / speeds[r]);
        }
        assert_true(worst < equal * 1.05); /* weights are small numbers */
    }
}

/* Hosts that are subtrees of T: the model compares the two trees if `subtrees` is set. */
static void subtrees(void **state)
{
    static const struct {
        uint32_t sizes[4];
        bool subtrees;
    } cases[] = {{{4, 4, 4, 4}, true}, {{4, 4, 3, 0}, true},  {{2, 2, 2, 1}, true},
                 {{1, 1, 1, 1}, true}, {{5, 0}, true},        {{3, 3, 0}, false},
                 {{2, 4, 0}, false},   {{4, 2, 4, 0}, false}, {{4, 4, 5, 0}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t host_of[32], memory[9 * 32 + 5], ranks = 0;
        struct weft_plan_hosts hosts;
        for (uint32_t h = 0; h < 4 && cases[i].sizes[h]; h++)
            for (uint32_t n = 0; n < cases[i].sizes[h]; n++) host_of[ranks++] = 100 - h;
        weft_plan_hosts_init(host_of, ranks, memory, &hosts);
        assert_true(hosts.subtrees == cases[i].subtrees && hosts.has_consecutive_ranks);
        assert_true(weft_plan_reproducible(WEFT_PLAN_HIERARCHY, &hosts) == cases[i].subtrees);
    }
    assert_false(weft_plan_reproducible(WEFT_PLAN_HIERARCHY, NULL));
}

static void gather(void **state) { prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_GATHER); }
static void scatter(void **state) { prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_SCATTER); }
static void all_to_all(void **state) { prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_ALL_TO_ALL); }
static void broadcast(void **state) { prove_vector_kind(WEFT_PLAN_DIRECT, WEFT_COLL_BROADCAST); }

static void broadcast_any_root(void **state)
{
    for (uint32_t p = 1; p <= 33; p++)
        for (uint32_t root = 0; root < p; root++)
            prove(&(struct plan_case){.plan = WEFT_PLAN_DIRECT,
                                      .kind = WEFT_COLL_BROADCAST,
                                      .ranks = p,
                                      .root = root,
                                      .count = 7,
                                      .chunk_elems = 2,
                                      .lanes = 1,
                                      .window = 2 + root % 3});
}

static void barrier(void **state)
{
    for (uint32_t p = 1; p <= ranks_max; p++)
        prove(&(struct plan_case){.plan = WEFT_PLAN_DIRECT,
                                  .kind = WEFT_COLL_BARRIER,
                                  .ranks = p,
                                  .chunk_elems = 1,
                                  .lanes = 1,
                                  .window = 2});
}

/* Pieces of unrelated lengths, some empty. */
static void unequal_pieces(void **state)
{
    static const enum weft_coll_kind kinds[] = {WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER,
                                                WEFT_COLL_GATHER, WEFT_COLL_SCATTER, WEFT_COLL_ALL_TO_ALL};
    for (uint32_t p = 1; p <= (thorough ? 257 : 35); p += p > 70 ? 17 : 1)
        for (size_t k = 0; k < 5; k++)
            for (int plan = WEFT_PLAN_DIRECT; plan < WEFT_PLAN_COUNT; plan++) {
                /* the hierarchy has a proof of its own */
                if (!weft_plan_supports_unequal(plan, kinds[k]) || plan == WEFT_PLAN_HIERARCHY) continue;
                uint64_t cuts[258] = {0};
                for (uint32_t r = 0; r < p; r++) cuts[r + 1] = cuts[r] + (r % 4 == 1 ? 0 : (r * 5 + p) % 7);
                struct plan_case c = {.plan = plan,
                                      .kind = kinds[k],
                                      .ranks = p,
                                      .root = p / 2,
                                      .count = 4,
                                      .chunk_elems = 1 + p % 3,
                                      .lanes = 2,
                                      .window = 2 + p % 5,
                                      .cuts = cuts,
                                      .seed = p % 3 ? p : 0};
                prove(&c);
                c.in_place = kinds[k] != WEFT_COLL_ALL_TO_ALL;
                if (c.in_place) prove(&c);
            }
}

static void any_root(void **state)
{
    static const struct {
        enum weft_plan_id plan;
        enum weft_coll_kind kind;
    } rooted[] = {{WEFT_PLAN_DIRECT, WEFT_COLL_REDUCE},   {WEFT_PLAN_BINOMIAL, WEFT_COLL_REDUCE},
                  {WEFT_PLAN_CHAIN, WEFT_COLL_REDUCE},    {WEFT_PLAN_CHAIN, WEFT_COLL_BROADCAST},
                  {WEFT_PLAN_DIRECT, WEFT_COLL_GATHER},   {WEFT_PLAN_DIRECT, WEFT_COLL_SCATTER},
                  {WEFT_PLAN_BINOMIAL, WEFT_COLL_GATHER}, {WEFT_PLAN_BINOMIAL, WEFT_COLL_SCATTER}};
    for (uint32_t p = 1; p <= (thorough ? 40 : 17); p++)
        for (uint32_t root = 0; root < p; root++)
            for (size_t i = 0; i < sizeof rooted / sizeof *rooted; i++)
                prove(&(struct plan_case){.plan = rooted[i].plan,
                                          .kind = rooted[i].kind,
                                          .ranks = p,
                                          .root = root,
                                          .count = 7,
                                          .chunk_elems = 2,
                                          .lanes = 1,
                                          .window = 2 + root % 7,
                                          .in_place = root % 2 && rooted[i].kind != WEFT_COLL_BROADCAST,
                                          .seed = root % 3});
}

/* No rank passes a barrier before all have arrived: one rank's plan is held back, and the others must not
 * complete. */
static void barrier_holds(void **state)
{
    for (uint32_t p = 2; p <= 70; p++) {
        /* heard[r]: set of ranks whose arrival r knows of; at the end all ranks. */
        uint8_t heard[70][70];
        memset(heard, 0, sizeof heard);
        for (uint32_t r = 0; r < p; r++) heard[r][r] = 1;
        struct weft_plan_cursor cursors[70];
        for (uint32_t r = 0; r < p; r++)
            weft_plan_begin(&cursors[r], &(struct weft_plan_args){.plan = WEFT_PLAN_DIRECT,
                                                                  .kind = WEFT_COLL_BARRIER,
                                                                  .rank = r,
                                                                  .ranks = p,
                                                                  .chunk_elems = 1,
                                                                  .lanes = 1});
        for (bool more = true; more;) {
            uint8_t before[70][70];
            memcpy(before, heard, sizeof heard);
            for (uint32_t r = 0; r < p; r++) {
                struct weft_action send, recv;
                weft_plan_next(&cursors[r], &send);
                weft_plan_next(&cursors[r], &recv);
                more = send.kind == WEFT_ACTION_SEND;
                if (!more) continue;
                for (uint32_t q = 0; q < p; q++) heard[r][q] |= before[recv.peer][q];
            }
        }
        for (uint32_t r = 0; r < p; r++)
            for (uint32_t q = 0; q < p; q++) assert_int_equal(heard[r][q], 1);
    }
}

/* exchange_bytes has the steps of all_to_all of bytes, so the proof of one holds for the other. */
static void exchange_bytes_is_all_to_all(void **state)
{
    for (uint32_t p = 1; p <= 40; p++)
        for (uint32_t rank = 0; rank < p; rank++) {
            struct weft_plan_args args = {.plan = WEFT_PLAN_DIRECT,
                                          .kind = WEFT_COLL_ALL_TO_ALL,
                                          .rank = rank,
                                          .ranks = p,
                                          .count = 7,
                                          .chunk_elems = 3,
                                          .lanes = 1};
            struct weft_plan_cursor all_to_all, exchange;
            struct weft_action a, b;
            weft_plan_begin(&all_to_all, &args);
            args.kind = WEFT_COLL_EXCHANGE_BYTES;
            weft_plan_begin(&exchange, &args);
            do {
                weft_plan_next(&all_to_all, &a);
                weft_plan_next(&exchange, &b);
                assert_memory_equal(&a, &b, sizeof a);
            } while (a.kind != WEFT_ACTION_DONE);
        }
}

/* ---- many ranks ---- */
static bool prime(uint32_t p)
{
    for (uint32_t d = 2; d * d <= p; d++)
        if (p % d == 0) return false;
    return true;
}
static bool beside_a_power(uint32_t p)
{
    return p > 250 && ((p & (p - 1)) == 0 || p == 251 || p == 257 || p == 509 || p == 521 || p == 1021 ||
                       p == 1031 || p == 2039 || p == 2053 || p == 4093 || p == 4099);
}

/* Primes and powers of two above 257: all where that is fast, else those next to powers of two. */
#define RANKS_LARGEST 4099u
static uint32_t next_large(uint32_t p, bool all)
{
    for (p++; p <= RANKS_LARGEST; p++)
        if (beside_a_power(p) || (all && ((p & (p - 1)) == 0 || prime(p)))) break;
    return p;
}

/* Plans with rotational symmetry, on one rank, for primes and powers of two up to 4,099. */
static void turned(void **state)
{
    static const struct {
        enum weft_plan_id plan;
        enum weft_coll_kind kind;
    } plans[] = {{WEFT_PLAN_DIRECT, WEFT_COLL_ALL_REDUCE}, {WEFT_PLAN_DIRECT, WEFT_COLL_REDUCE_SCATTER},
                 {WEFT_PLAN_DIRECT, WEFT_COLL_ALL_GATHER}, {WEFT_PLAN_DIRECT, WEFT_COLL_ALL_TO_ALL},
                 {WEFT_PLAN_RING, WEFT_COLL_ALL_REDUCE},   {WEFT_PLAN_RING, WEFT_COLL_REDUCE_SCATTER},
                 {WEFT_PLAN_RING, WEFT_COLL_ALL_GATHER},   {WEFT_PLAN_PAT, WEFT_COLL_REDUCE_SCATTER},
                 {WEFT_PLAN_PAT, WEFT_COLL_ALL_GATHER}};
    for (uint32_t p = 5; p <= RANKS_LARGEST; p = p < 257 ? p + 84 : next_large(p, thorough))
        for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
            for (uint32_t variant = 0; variant < 2; variant++) {
                struct plan_case c = {.plan = plans[i].plan,
                                      .kind = plans[i].kind,
                                      .ranks = p,
                                      .count = variant ? 3 : 1,
                                      .chunk_elems = variant ? 2 : 1 + p % 5 * 16,
                                      .lanes = 1 + variant,
                                      .window = variant ? 16 : 2};
                char why[256];
                if (!thorough && p > 257 && p != 1024 && p != 4099) continue;
                if (p > 257 && !beside_a_power(p) && variant != p / 2 % 2) continue;
                /* below 257 the model covers them */
                bool every = thorough && !variant && (p == 509 || p == 512);
                if (plan_rotated_run(&c, every, why, sizeof why)) continue;
                print_error("plan %s, %s, ranks %u, %llu of a slice, chunk %llu, window %u: %s\n",
                            weft_plan_name(c.plan), weft_coll_kind_name(c.kind), p,
                            (unsigned long long)c.count, (unsigned long long)c.chunk_elems, c.window, why);
                fail();
            }
}

static void prove_large(enum weft_plan_id plan, enum weft_coll_kind kind, bool all,
                        uint64_t (*count)(uint32_t ranks))
{
    for (uint32_t p = 257; p <= (thorough ? RANKS_LARGEST : 257); p = next_large(p, all))
        prove(&(struct plan_case){.plan = plan,
                                  .kind = kind,
                                  .ranks = p,
                                  .root = p / 3,
                                  .count = count(p),
                                  .chunk_elems = count(p) > p ? p / 2 : 1 + p % 4,
                                  .lanes = 1,
                                  .window = 2 + p % 3 * 7,
                                  .seed = all && p % 3 == 0 ? p : 0});
}
static uint64_t five(uint32_t ranks) { return 5; }
static uint64_t one(uint32_t ranks) { return 1; }
static uint64_t a_slice_each(uint32_t ranks) { return ranks + ranks / 2; }

static void large_doubling(void **state)
{
    prove_large(WEFT_PLAN_DOUBLING, WEFT_COLL_ALL_REDUCE, true, five);
}
static void large_halving(void **state)
{
    prove_large(WEFT_PLAN_HALVING, WEFT_COLL_ALL_REDUCE, true, five);
    prove_large(WEFT_PLAN_HALVING, WEFT_COLL_ALL_REDUCE, false, a_slice_each);
}
static void large_double_tree(void **state)
{
    prove_large(WEFT_PLAN_DOUBLE_TREE, WEFT_COLL_ALL_REDUCE, true, five);
}
static void large_trees(void **state)
{
    prove_large(WEFT_PLAN_BINOMIAL, WEFT_COLL_REDUCE, true, five);
    prove_large(WEFT_PLAN_BINOMIAL, WEFT_COLL_BROADCAST, true, five);
    prove_large(WEFT_PLAN_BINOMIAL, WEFT_COLL_GATHER, true, one);
    prove_large(WEFT_PLAN_BINOMIAL, WEFT_COLL_SCATTER, true, one);
    prove_large(WEFT_PLAN_DIRECT, WEFT_COLL_BARRIER, true, one);
}
static void large_rooted(void **state)
{
    prove_large(WEFT_PLAN_CHAIN, WEFT_COLL_BROADCAST, true, five);
    prove_large(WEFT_PLAN_CHAIN, WEFT_COLL_REDUCE, true, five);
    prove_large(WEFT_PLAN_DIRECT, WEFT_COLL_GATHER, true, one);
    prove_large(WEFT_PLAN_DIRECT, WEFT_COLL_SCATTER, true, one);
}
static void large_direct_reduce(void **state)
{
    prove_large(WEFT_PLAN_DIRECT, WEFT_COLL_REDUCE, false, a_slice_each);
}
static void large_bruck(void **state) { prove_large(WEFT_PLAN_BRUCK, WEFT_COLL_ALL_GATHER, false, one); }
static void large_bruck_all_to_all(void **state)
{
    prove_large(WEFT_PLAN_BRUCK, WEFT_COLL_ALL_TO_ALL, false, one);
}
static void large_hierarchy(void **state)
{
    for (uint32_t p = 257; p <= (thorough ? RANKS_LARGEST : 257); p = next_large(p, true))
        prove_hierarchy(p, p % SPREADS, 1 + p % 13, p % 3 ? 5 : 40, 1 + p % 4, p);
}

/* Two to four groups over the same ranks, each with one operation, interleaved at random. */
static void groups_together(void **state)
{
    uint64_t random = 12345;
    for (uint32_t round = 0; round < (thorough ? 6000 : 60); round++) {
        struct plan_case cases[PLAN_MODEL_GROUPS_MAX];
        size_t groups = 2 + round % 3;
        for (size_t g = 0; g < groups;) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            struct plan_case *c = &cases[g];
            *c = (struct plan_case){.plan = 1 + (random >> 33) % (WEFT_PLAN_COUNT - 1),
                                    .kind = 1 + (random >> 40) % (WEFT_COLL_KIND_COUNT - 1),
                                    .ranks = 1 + (random >> 48) % 24,
                                    .count = (random >> 20) % 50,
                                    .chunk_elems = 1 + (random >> 27) % 8,
                                    .lanes = 2,
                                    .window = 2 + (random >> 30) % 8,
                                    .seed = random | 1};
            c->root = (uint32_t)((random >> 50) % c->ranks);
            bool pair = c->kind == WEFT_COLL_SEND || c->kind == WEFT_COLL_RECV ||
                        c->kind == WEFT_COLL_EXCHANGE_BYTES || c->kind == WEFT_COLL_ALL_GATHER_BYTES;
            bool barrier = c->kind == WEFT_COLL_BARRIER;
            if (barrier) c->count = 0;
            if (!pair && c->plan != WEFT_PLAN_HIERARCHY && weft_plan_supports(c->plan, c->kind)) g++;
        }
        char why[256];
        if (plan_model_run_together(cases, groups, random, why, sizeof why)) continue;
        print_error("round %u, %zu groups together: %s\n", round, groups, why);
        fail();
    }
}

/* Very long vectors: checks the arithmetic of slices and chunks, and that slices tile the vector. */
static void huge_counts(void **state)
{
    static const uint64_t counts[] = {1ull << 40, (1ull << 40) + 12345, (1ull << 47) + 1};
    for (size_t i = 0; i < 3; i++)
        for (uint32_t p = 1; p <= 4096; p = p * 3 + 1) {
            struct weft_plan_args args = {.plan = WEFT_PLAN_RING,
                                          .kind = WEFT_COLL_ALL_REDUCE,
                                          .ranks = p,
                                          .count = counts[i],
                                          .chunk_elems = 1 << 18,
                                          .lanes = 4};
            assert_int_equal(weft_plan_slice_first(&args, 0), 0);
            assert_true(weft_plan_slice_first(&args, p) == counts[i]);
            for (uint32_t s = 0; s < p; s++) {
                uint64_t length = weft_plan_slice_first(&args, s + 1) - weft_plan_slice_first(&args, s);
                assert_true(length == counts[i] / p || length == counts[i] / p + 1);
            }
        }
}

/* The begin of every plan: a send to the next rank and a receive from the previous one that wait for
 * nothing. They are empty, or have elements if weft_plan_checks_headers is true. Those of doubling may
 * wait for its other messages. */
static void check_greeting(const struct weft_plan_args *args)
{
    struct weft_plan_cursor cursor;
    struct weft_action action;
    bool greets = weft_plan_checks_headers(args), sent = false, heard = false;
    weft_plan_begin(&cursor, args);
    while (!sent || !heard) {
        weft_plan_next(&cursor, &action);
        bool sends = action.kind == WEFT_ACTION_SEND,
             copies = action.kind == WEFT_ACTION_COPY || action.kind == WEFT_ACTION_FOLD;
        if (copies && args->kind == WEFT_COLL_ALL_GATHER) continue; /* copy of the own piece */
        bool right = action.kind != WEFT_ACTION_DONE && action.kind != WEFT_ACTION_NONE,
             later = greets && args->plan == WEFT_PLAN_DOUBLING;
        uint32_t peer = (args->rank + (sends ? 1 : args->ranks - 1)) % args->ranks;
        if (right && later && action.peer != peer && action.count > 0) continue;
        right = right && (later || (action.depends == 0 && action.after == 0));
        if (!right || action.peer != peer || (action.count > 0) != greets)
            fail_msg("plan %s, %s, rank %u of %u, count %llu: does not begin with a greeting",
                     weft_plan_name(args->plan), weft_coll_kind_name(args->kind), args->rank, args->ranks,
                     (unsigned long long)args->count);
        if (sends) sent = true;
        else heard = true;
    }
}

static void greetings(void **state)
{
    for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++)
        for (int kind = 1; kind < WEFT_COLL_KIND_COUNT; kind++) {
            if (!weft_plan_supports(plan, kind) || plan == WEFT_PLAN_HIERARCHY || kind == WEFT_COLL_SEND ||
                kind == WEFT_COLL_RECV)
                continue;
            for (uint32_t p = 2; p <= 17; p++)
                for (uint32_t i = 0; i < 5 * p; i++) {
                    const uint64_t counts[] = {0, 1, p - 1, p, 40 * p + 1};
                    check_greeting(&(struct weft_plan_args){.plan = plan,
                                                            .kind = kind,
                                                            .rank = i % p,
                                                            .ranks = p,
                                                            .count = counts[i / p],
                                                            .chunk_elems = 16,
                                                            .lanes = 1 + p % 3});
                }
        }
}

/* ---- ranks that make different calls ---- */

/* Which of two calls each rank made. Each receive completes before the next step (a window only starts
 * more), a send is immediate. Each message carries its sender's call. */
struct called {
    struct weft_plan_cursor cursors[16];
    struct weft_action next[16];
    uint8_t call[16], queue[16][16][64]; /* from, to */
    uint32_t sent[16][16], taken[16][16];
};

static bool one_finds_out(struct called *c, uint32_t p)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < p; r++) {
            struct weft_action *action = &c->next[r];
            uint32_t peer = action->peer;
            if (action->kind == WEFT_ACTION_DONE) continue;
            bool receives = action->kind == WEFT_ACTION_RECV || action->kind == WEFT_ACTION_RECV_FOLD ||
                            action->kind == WEFT_ACTION_RECV_SUM;
            if (action->kind == WEFT_ACTION_SEND) c->queue[r][peer][c->sent[r][peer]++ % 64] = c->call[r];
            if (receives && c->taken[peer][r] == c->sent[peer][r]) continue;
            if (receives && c->queue[peer][r][c->taken[peer][r]++ % 64] != c->call[r]) return true;
            weft_plan_next(&c->cursors[r], action);
            moved = true;
        }
    }
    return false;
}

static void all_mixtures(const struct weft_plan_args calls[2], uint32_t p)
{
    static struct called c;
    for (uint32_t mixture = 1; mixture + 1 < 1u << p; mixture++) {
        memset(&c, 0, sizeof c);
        for (uint32_t r = 0; r < p; r++) {
            struct weft_plan_args args = calls[c.call[r] = mixture >> r & 1];
            args.rank = r;
            args.ranks = p;
            weft_plan_begin(&c.cursors[r], &args);
            weft_plan_next(&c.cursors[r], &c.next[r]);
        }
        if (!one_finds_out(&c, p))
            fail_msg("%u ranks, those of %#x called %s %s, the others %s %s: no rank detects it", p, mixture,
                     weft_plan_name(calls[1].plan), weft_coll_kind_name(calls[1].kind),
                     weft_plan_name(calls[0].plan), weft_coll_kind_name(calls[0].kind));
    }
}

/* For any two calls and any division of the ranks between them. */
static void other_calls_are_found(void **state)
{
    static const uint64_t counts[] = {0, 1, 3, 40};
    struct weft_plan_args calls[2] = {
        {.kind = WEFT_COLL_ALL_REDUCE, .count = 1, .chunk_elems = 16, .lanes = 1}};
    static const enum weft_plan_id first[] = {WEFT_PLAN_DOUBLING, WEFT_PLAN_RING, WEFT_PLAN_DIRECT,
                                              WEFT_PLAN_HALVING};
    for (uint32_t p = 2; p <= 9; p++)
        for (int i = 0; i < 4 * 4; i++)
            for (int plan = 1; plan < WEFT_PLAN_COUNT; plan++)
                for (int kind = 1; kind < WEFT_COLL_KIND_COUNT; kind++) {
                    if (!weft_plan_supports(plan, kind) || plan == WEFT_PLAN_HIERARCHY ||
                        kind == WEFT_COLL_SEND || kind == WEFT_COLL_RECV)
                        continue;
                    calls[0].plan = first[i / 4];
                    calls[0].count = i / 4 == 0 ? 1 : 40;
                    calls[1] = (struct weft_plan_args){
                        .plan = plan, .kind = kind, .count = counts[i % 4], .chunk_elems = 16, .lanes = 1};
                    all_mixtures(calls, p);
                }
}

/* The ring goes host by host. With ranks interleaved over hosts its order differs from that of the header
 * check. */
static void greetings_of_the_ring_among_hosts(void **state)
{
    static const enum weft_coll_kind kinds[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER,
                                                WEFT_COLL_ALL_GATHER};
    for (uint32_t p = 2; p <= 12; p++)
        for (uint32_t i = 0; i < 6 * p; i++) {
            uint32_t host_of[12], memory[128], in_turn = i / p / 3;
            struct weft_plan_hosts hosts;
            for (uint32_t r = 0; r < p; r++) host_of[r] = in_turn ? r % 2 : r / 2;
            assert_true(weft_plan_hosts_words(p) <= sizeof memory / sizeof memory[0]);
            weft_plan_hosts_init(host_of, p, memory, &hosts);
            struct weft_plan_args args = {.plan = WEFT_PLAN_RING,
                                          .kind = kinds[i / p % 3],
                                          .rank = i % p,
                                          .ranks = p,
                                          .count = 40 * p,
                                          .chunk_elems = 16,
                                          .lanes = 2,
                                          .hosts = &hosts};
            check_greeting(&args);
            assert_true(weft_plan_checks_headers(&args) == (!in_turn || p < 3));
        }
}

static void names_and_choice(void **state)
{
    assert_int_equal(weft_plan_parse("ring"), WEFT_PLAN_RING);
    for (int plan = 0; plan < WEFT_PLAN_COUNT; plan++)
        if (weft_plan_name(plan)[0] != '?') assert_int_equal(weft_plan_parse(weft_plan_name(plan)), plan);
    assert_int_equal(weft_plan_parse("nothing"), WEFT_PLAN_AUTO);
    assert_string_equal(weft_plan_name(WEFT_PLAN_RING), "ring");
    for (int kind = 1; kind < WEFT_COLL_KIND_COUNT; kind++)
        for (uint32_t p = 1; p <= 300; p += p / 5 + 1)
            for (uint64_t bytes = 0; bytes < 1ull << 40; bytes = bytes * 7 + 1)
                for (int same = 0; same < 2; same++) {
                    struct weft_plan_question question = {.kind = kind,
                                                          .ranks = p,
                                                          .bytes = bytes,
                                                          .elem_bytes = 4,
                                                          .wide_bytes = 4,
                                                          .reproducible = same,
                                                          .unequal = bytes % 3 == 0};
                    enum weft_plan_id plan = weft_plan_choose(&question, NULL);
                    assert_true(weft_plan_supports(plan, kind) &&
                                (!same || weft_plan_reproducible(plan, NULL)));
                    if (question.unequal && weft_plan_supports_unequal(WEFT_PLAN_DIRECT, kind))
                        assert_true(weft_plan_supports_unequal(plan, kind));
                }
    struct weft_plan_question question = {
        .kind = WEFT_COLL_ALL_REDUCE, .ranks = 16, .bytes = 8, .elem_bytes = 4, .wide_bytes = 4};
    assert_int_equal(weft_plan_choose(&question, NULL), WEFT_PLAN_DOUBLING);
    question.bytes = 1ull << 30;
    assert_int_equal(weft_plan_choose(&question, NULL), WEFT_PLAN_RING);
    char text[500];
    question.forced_plan = WEFT_PLAN_HALVING;
    assert_int_equal(weft_plan_choose(&question, NULL), WEFT_PLAN_HALVING);
    assert_in_range(weft_plan_explain(&question, text, sizeof text), 40, sizeof text - 1);
    assert_non_null(strstr(text, "halving (forced)"));
    assert_non_null(strstr(text, "; a message handed over ")); /* all constants of the model */
    assert_non_null(strstr(text, " ns, passed over 0.100 ns, incast 4.0 %"));
    assert_in_range(weft_plan_explain(&question, text, 20), 20, 400); /* cut, not overrun */
    question.reproducible = true, question.forced_plan = WEFT_PLAN_RING;
    /* `reproducible` has priority over the forced plan */
    assert_true(weft_plan_reproducible(weft_plan_choose(&question, NULL), NULL));
}

/* Bytes in flight on a link, in chunks: a power of two, bounded, and not for plans whose bits depend on
 * it. */
static void chunks_of_long_links(void **state)
{
    struct weft_link_cost near = {.latency_ns = 5000, .bytes_per_second = 12500000000},
                          far = {.latency_ns = 15000000, .bytes_per_second = 1250000000};
    struct weft_link_cost between = {.latency_ns = 1000000, .bytes_per_second = 500000000}, unknown = {0};
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DIRECT, &near, 1 << 18, 0), 1 << 18);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DIRECT, &unknown, 1 << 18, 0), 1 << 18);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DIRECT, NULL, 1 << 18, 0), 1 << 18);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DIRECT, &between, 1 << 18, 0), 1 << 19);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_HALVING, &far, 1 << 18, 0), PLAN_LINK_CHUNK_MAX);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_RING, &far, 3 << 19, 0), 3 << 20);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_RING, &far, 16 << 20, 0), 16 << 20);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DOUBLE_TREE, &far, 1 << 18, 0), 1 << 18);
}

/* Chunks are at least the transport's fastest message, unless shorter ones are requested, and not for
 * plans whose bits depend on it. */
static void chunks_that_a_transport_moves_best(void **state)
{
    struct weft_link_cost far = {.latency_ns = 15000000, .bytes_per_second = 1250000000},
                          between = {.latency_ns = 1000000, .bytes_per_second = 500000000};
    assert_int_equal(plan_link_chunk(WEFT_PLAN_RING, NULL, WEFT_COLL_CHUNK_BYTES, 1 << 19), 1 << 19);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_RING, NULL, WEFT_COLL_CHUNK_BYTES - 1, 1 << 19),
                     WEFT_COLL_CHUNK_BYTES - 1);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_RING, NULL, 1 << 20, 1 << 19), 1 << 20);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DIRECT, &between, WEFT_COLL_CHUNK_BYTES, 1 << 19), 1 << 19);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DIRECT, &far, WEFT_COLL_CHUNK_BYTES, 1 << 19),
                     PLAN_LINK_CHUNK_MAX);
    assert_int_equal(plan_link_chunk(WEFT_PLAN_DOUBLE_TREE, NULL, WEFT_COLL_CHUNK_BYTES, 1 << 19),
                     WEFT_COLL_CHUNK_BYTES);
}

static const struct weft_link_memory host_memory = {.flag_round_ns = 400,
                                                    .slices_overhead_ns = 500,
                                                    .copyin_ps = 36,
                                                    .private_cache_ps = 12,
                                                    .last_cache_ps = 44,
                                                    .private_cache_kib = 2048,
                                                    .last_cache_kib = 32768,
                                                    .nt_store_ps = 40};
static const enum weft_coll_kind host_kinds[] = {
    WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER, WEFT_COLL_BROADCAST,
    WEFT_COLL_REDUCE,     WEFT_COLL_GATHER,         WEFT_COLL_SCATTER,    WEFT_COLL_ALL_TO_ALL};
enum { HOST_KINDS = sizeof host_kinds / sizeof *host_kinds };

/* Bytes that sums load and store, all ranks together. */
static uint64_t moved_of_all(enum weft_coll_kind kind, uint32_t ranks, uint64_t bytes)
{
    bool all = kind == WEFT_COLL_ALL_REDUCE, piece = kind == WEFT_COLL_REDUCE_SCATTER;
    return all                        ? 2 * ranks * bytes
           : piece                    ? (ranks + 1) * ranks * bytes
           : kind == WEFT_COLL_REDUCE ? (ranks + 1) * bytes
                                      : 0;
}

/* A longer vector never costs less, and a step of a tenth costs at most a quarter more. Exceptions: the
 * end of copy-in, where the fixed cost of slices begins, and the begin of non-temporal stores. With a core
 * for each rank only copy-in sizes of oversubscribed ranks may be slower. */
static void one_host_by_size(void **state)
{
    struct weft_link_cost cost = {.pairs = 1,
                                  .latency_ns = 1000,
                                  .bytes_per_second = 8000000000,
                                  .sum_ps = 11,
                                  .pass_ps = 90,
                                  .memory = host_memory};
    for (size_t k = 0; k < HOST_KINDS; k++)
        for (uint32_t ranks = 2; ranks <= 64; ranks++) {
            bool pieces = host_kinds[k] == WEFT_COLL_REDUCE_SCATTER || host_kinds[k] == WEFT_COLL_SCATTER ||
                          host_kinds[k] == WEFT_COLL_ALL_TO_ALL;
            struct weft_plan_question question = {.kind = host_kinds[k],
                                                  .ranks = ranks,
                                                  .bytes = 8,
                                                  .elem_bytes = 4,
                                                  .wide_bytes = 4,
                                                  .cost = &cost};
            uint64_t before = weft_onehost_model_ns(&question, 2),
                     copyin_limit = plan_onehost_copyin_limit_direct(host_kinds[k], ranks, ranks > 2);
            while (question.bytes < 1u << 30) {
                uint64_t from = question.bytes * (pieces ? ranks : 1);
                question.bytes += question.bytes / 10 + 1;
                uint64_t to = question.bytes * (pieces ? ranks : 1), ns = weft_onehost_model_ns(&question, 2);
                bool held_no_more = from <= copyin_limit && to > copyin_limit;
                uint64_t all = moved_of_all(host_kinds[k], ranks, question.bytes),
                         past = plan_onehost_nt_sum_bytes(32 << 20, 4 << 20);
                bool goes_past = all >= past && all * 10 / 12 < past;
                assert_true(ns >= before && (held_no_more || ns <= before + before / (goes_past ? 2 : 4)));
                assert_true(weft_onehost_model_ns(&question, 0) <= ns);
                before = ns;
            }
        }
    struct weft_plan_question barrier = {.kind = WEFT_COLL_BARRIER, .ranks = 5, .cost = &cost};
    assert_int_equal(weft_onehost_model_ns(&barrier, 8), 400);
}

/* Two measured cores with 32 MiB, with one rank each and oversubscribed. An all_reduce of a hundredth more
 * never takes less, except where non-temporal stores begin, and never 1.3 times as much, also at the end
 * of copy-in and of the caches. That follows from the copy-in limits, not from the model. */
static void one_host_does_not_leap(void **state)
{
    static const struct weft_link_memory measured[] = {{.flag_round_ns = 330,
                                                        .slices_overhead_ns = 100,
                                                        .copyin_ps = 118,
                                                        .private_cache_ps = 13,
                                                        .last_cache_ps = 15,
                                                        .private_cache_kib = 1024,
                                                        .last_cache_kib = 32768,
                                                        .nt_store_ps = 17},
                                                       {.flag_round_ns = 320,
                                                        .slices_overhead_ns = 40,
                                                        .copyin_ps = 76,
                                                        .private_cache_ps = 12,
                                                        .last_cache_ps = 15,
                                                        .private_cache_kib = 1024,
                                                        .last_cache_kib = 32768,
                                                        .nt_store_ps = 17}};
    for (uint32_t ranks = 2; ranks <= 64; ranks++)
        for (int is_oversubscribed = 0; is_oversubscribed < 2; is_oversubscribed++) {
            struct weft_link_cost cost = {.pairs = 1,
                                          .latency_ns = 1000,
                                          .bytes_per_second = 8000000000,
                                          .sum_ps = 11,
                                          .pass_ps = 25,
                                          .memory = measured[is_oversubscribed]};
            struct weft_plan_question question = {.kind = WEFT_COLL_ALL_REDUCE,
                                                  .ranks = ranks,
                                                  .bytes = 8,
                                                  .elem_bytes = 4,
                                                  .wide_bytes = 4,
                                                  .cost = &cost};
            uint32_t processors = is_oversubscribed ? ranks / 2 : ranks;
            for (uint64_t before = weft_onehost_model_ns(&question, processors); question.bytes < 1u << 28;) {
                question.bytes += question.bytes / 100 + 1;
                uint64_t ns = weft_onehost_model_ns(&question, processors), all = 2 * ranks * question.bytes;
                uint64_t past = plan_onehost_nt_sum_bytes(32 << 20, (uint64_t)processors << 20);
                bool past_now = all >= past && all * 98 / 100 < past;
                assert_true((past_now || ns >= before) && ns <= before + before * 3 / 10);
                before = ns;
            }
        }
}

/* Copy-in has a limit for each kind and number of ranks, at least one small slot, and not less if
 * oversubscribed; with direct buffers it is not higher. The model, of direct buffers, gives one round for
 * it, without slices. */
static void onehost_estimate(void **state)
{
    struct weft_link_cost cost = {
        .pairs = 1, .latency_ns = 1000, .bytes_per_second = 8000000000, .memory = host_memory};
    cost.memory.slices_overhead_ns = 999999999;
    for (size_t k = 0; k < HOST_KINDS; k++)
        for (uint32_t ranks = 2; ranks <= 64; ranks++)
            for (int is_oversubscribed = 0; is_oversubscribed < 2; is_oversubscribed++) {
                bool pieces = host_kinds[k] == WEFT_COLL_REDUCE_SCATTER ||
                              host_kinds[k] == WEFT_COLL_SCATTER || host_kinds[k] == WEFT_COLL_ALL_TO_ALL;
                uint64_t copyin_limit =
                             plan_onehost_copyin_limit_direct(host_kinds[k], ranks, is_oversubscribed),
                         most = plan_onehost_copyin_limit(host_kinds[k], ranks, is_oversubscribed),
                         one = pieces ? ranks : 1;
                assert_in_range(copyin_limit, 1024, most);
                assert_in_range(most, copyin_limit, PLAN_ONEHOST_COPYIN_BYTES_MAX);
                assert_true(most <= plan_onehost_copyin_limit(host_kinds[k], ranks, true));
                struct weft_plan_question question = {.kind = host_kinds[k],
                                                      .ranks = ranks,
                                                      .bytes = copyin_limit / one,
                                                      .elem_bytes = 1,
                                                      .wide_bytes = 4,
                                                      .cost = &cost};
                assert_true(weft_onehost_model_ns(&question, is_oversubscribed ? 1 : ranks) < 999999999);
                question.bytes++;
                assert_true(weft_onehost_model_ns(&question, is_oversubscribed ? 1 : ranks) > 999999999);
            }
    for (uint32_t ranks = 1; ranks <= 2; ranks++)
        assert_int_equal(plan_onehost_copyin_limit(WEFT_COLL_ALL_REDUCE, ranks, false),
                         PLAN_ONEHOST_COPYIN_BYTES_MAX);
    assert_int_equal(plan_onehost_copyin_limit(WEFT_COLL_ALL_REDUCE, 3, false), 8 << 10);
    assert_int_equal(plan_onehost_copyin_limit_direct(WEFT_COLL_ALL_REDUCE, 4, true), 32 << 10);
    assert_int_equal(plan_onehost_copyin_limit_direct(WEFT_COLL_ALL_REDUCE, 4, false), 2 << 10);
    assert_int_equal(plan_onehost_copyin_limit(WEFT_COLL_GATHER, 2, true), PLAN_ONEHOST_COPYIN_BYTES_MAX);
    assert_int_equal(plan_onehost_copyin_limit_direct(WEFT_COLL_REDUCE, 4, true), 128 << 10);
    assert_int_equal(plan_onehost_copyin_limit_direct(WEFT_COLL_REDUCE_SCATTER, 4, false), 4 << 10);
}

/* Up to twice the copy-in limit the model follows the limit. */
static bool estimate_is_half(enum weft_coll_kind kind, uint32_t ranks, uint64_t bytes, uint32_t processors)
{
    bool pieces =
        kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_SCATTER || kind == WEFT_COLL_ALL_TO_ALL;
    return bytes * (pieces ? ranks : 1) <=
           2 * plan_onehost_copyin_limit_direct(kind, ranks, ranks > processors);
}

/* Sums that eight cores of host_memory store with non-temporal stores. */
static bool is_past(enum weft_coll_kind kind, uint32_t ranks, uint64_t bytes)
{
    return moved_of_all(kind, ranks, bytes) >=
           plan_onehost_nt_sum_bytes(32 << 20, (uint64_t)(ranks < 8 ? ranks : 8) << 21);
}

/* More ranks never take less. Exceptions: a reduce, whose root stores what is one rank's share of the
 * loads; copy-in at half the length, because the limit falls with the ranks; non-temporal stores. One more
 * rank than cores is a step; beyond it each rank adds at most its share, unless cores get one more. */
static void one_host_by_ranks(void **state)
{
    struct weft_link_cost cost = {
        .pairs = 1, .latency_ns = 1000, .bytes_per_second = 8000000000, .memory = host_memory};
    for (size_t k = 0; k < HOST_KINDS; k++)
        for (uint64_t bytes = 8; bytes <= 64 << 20; bytes *= 4) {
            struct weft_plan_question question = {.kind = host_kinds[k],
                                                  .ranks = 2,
                                                  .bytes = bytes,
                                                  .elem_bytes = 4,
                                                  .wide_bytes = 4,
                                                  .cost = &cost};
            for (uint64_t before = weft_onehost_model_ns(&question, 8); question.ranks < 64;) {
                question.ranks++;
                uint64_t ns = weft_onehost_model_ns(&question, 8);
                bool follows = estimate_is_half(host_kinds[k], question.ranks - 1, bytes, 8);
                bool goes_past = is_past(host_kinds[k], question.ranks, bytes) &&
                                 !is_past(host_kinds[k], question.ranks - 1, bytes);
                bool may_fall = host_kinds[k] == WEFT_COLL_REDUCE || follows || goes_past;
                assert_true(ns + (may_fall ? ns / 5 : 0) >= before);
                if (host_kinds[k] == WEFT_COLL_ALL_REDUCE && bytes > 4096 && question.ranks > 9 &&
                    question.ranks % 8 != 1)
                    assert_true(ns <= before + before / 3);
                before = ns;
            }
        }
}

/* The model returns the measured times at the measured lengths, for any number of ranks and cores; about,
 * where oversubscribed ranks have no cache left for the shortest. */
static void one_host_is_calibrated(void **state)
{
    for (uint32_t ranks = 2; ranks <= 64; ranks++)
        for (uint32_t processors = 1; processors <= 64; processors *= 2) {
            struct weft_link_cost cost = {.pairs = 1,
                                          .latency_ns = 1000,
                                          .bytes_per_second = 8000000000,
                                          .memory = host_memory},
                                  fitted = {.pairs = 1};
            struct weft_plan_question question = {
                .kind = WEFT_COLL_ALL_REDUCE, .ranks = ranks, .elem_bytes = 4, .wide_bytes = 4};
            double times_ns[WEFT_ONEHOST_SAMPLES];
            cost.memory.last_cache_kib = 1 << 21;
            fitted.memory = (struct weft_link_memory){.private_cache_kib = cost.memory.private_cache_kib,
                                                      .last_cache_kib = cost.memory.last_cache_kib};
            for (int which = 0; which < WEFT_ONEHOST_SAMPLES; which++) {
                question.bytes = weft_onehost_sample_bytes((enum weft_onehost_sample)which, ranks, processors,
                                                           &cost.memory);
                question.cost = &cost;
                times_ns[which] = (double)weft_onehost_model_ns(&question, processors);
            }
            weft_onehost_model_fit(ranks, processors, times_ns, &fitted.memory);
            for (int which = 0; which < WEFT_ONEHOST_SAMPLES; which++) {
                question.bytes = weft_onehost_sample_bytes((enum weft_onehost_sample)which, ranks, processors,
                                                           &cost.memory);
                question.cost = &fitted;
                assert_in_range(weft_onehost_model_ns(&question, processors),
                                (uint64_t)(times_ns[which] * 0.85), (uint64_t)(times_ns[which] * 1.15));
            }
        }
    /* impossible times still give figures that fit into a table */
    struct weft_link_memory nonsense = {0};
    weft_onehost_model_fit(2, 2, (const double[]){900, 100, 50, 20, 10, 5}, &nonsense);
    assert_true(nonsense.flag_round_ns >= 1 && nonsense.slices_overhead_ns >= 1 &&
                nonsense.copyin_ps >= nonsense.private_cache_ps && nonsense.private_cache_ps >= 1 &&
                nonsense.last_cache_ps >= nonsense.private_cache_ps && nonsense.nt_store_ps >= 1);
    weft_onehost_model_fit(2, 2, (const double[]){3e9, 5e12, 6e12, 7e13, 8e16, 9e17}, &nonsense);
    assert_true(nonsense.flag_round_ns <= 999999999 && nonsense.slices_overhead_ns <= 999999999 &&
                nonsense.copyin_ps <= 999999999 && nonsense.private_cache_ps <= 999999999 &&
                nonsense.last_cache_ps <= 999999999 && nonsense.nt_store_ps <= 999999999);
}

/* The terms are printed, and a table without them is reported. */
static void one_host_is_explained(void **state)
{
    struct weft_link_cost cost = {
        .pairs = 1, .latency_ns = 1000, .bytes_per_second = 8000000000, .memory = host_memory};
    struct weft_plan_question question = {.kind = WEFT_COLL_ALL_REDUCE,
                                          .ranks = 2,
                                          .bytes = 65536,
                                          .elem_bytes = 4,
                                          .wide_bytes = 4,
                                          .cost = &cost};
    char text[300];
    assert_in_range(weft_onehost_model_explain(&question, 2, text, sizeof text), 40, sizeof text - 1);
    assert_string_equal(text, "one-host 2.47 us, in memory that all ranks map (measured: words 0.40 us, "
                              "slices 0.50 us, a rank's 131072 B 1.57 us by 0.0120 ns)");
    cost.memory = (struct weft_link_memory){0};
    assert_in_range(weft_onehost_model_explain(&question, 2, text, sizeof text), 40, sizeof text - 1);
    assert_non_null(strstr(text, "(assumed: "));
    assert_in_range(weft_onehost_model_explain(&question, 2, text, 20), 20, 400); /* cut, not overrun */
}

/* Several ranks on each of several hosts that share its link: the hierarchy is chosen where neither
 * latency nor bytes dominate. */
static void choice_among_hosts(void **state)
{
    static const uint32_t ranks[] = {256, 250, 30};
    for (size_t i = 0; i < 3; i++) {
        uint32_t host_of[256], memory[9 * 256 + 5];
        struct weft_plan_hosts hosts;
        char text[900];
        for (uint32_t r = 0; r < ranks[i]; r++) host_of[r] = r / 8;
        weft_plan_hosts_init(host_of, ranks[i], memory, &hosts);
        struct weft_link_cost cost = {.pairs = 2, .latency_ns = 4000, .bytes_per_second = 12500000000};
        struct weft_plan_question question = {.kind = WEFT_COLL_ALL_REDUCE,
                                              .ranks = ranks[i],
                                              .bytes = i ? 64 << 10 : 8 << 10,
                                              .elem_bytes = 4,
                                              .wide_bytes = 4,
                                              .cost = &cost,
                                              .hosts = &hosts};
        assert_int_equal(weft_plan_choose(&question, NULL), WEFT_PLAN_HIERARCHY);
        assert_in_range(weft_plan_explain(&question, text, sizeof text), 40, sizeof text - 1);
        assert_non_null(strstr(text, "hosts of up to 8 ranks"));
        /* 250 = 31 hosts of 8 and one of 2, 30 = 3 of 8 and one of 6: all of them subtrees of T */
        question.reproducible = true;
        assert_true(hosts.subtrees && weft_plan_reproducible(weft_plan_choose(&question, NULL), &hosts));
        question.kind = i % 2 ? WEFT_COLL_REDUCE_SCATTER : WEFT_COLL_ALL_GATHER, question.bytes = 65536,
        question.reproducible = i % 2;
        assert_int_equal(weft_plan_choose(&question, NULL), WEFT_PLAN_HIERARCHY);
        question.kind = WEFT_COLL_ALL_REDUCE, question.reproducible = true;
        for (uint32_t r = 0; r < ranks[i]; r++) host_of[r] = r % 5;
        weft_plan_hosts_init(host_of, ranks[i], memory, &hosts);
        assert_true(!hosts.subtrees && weft_plan_choose(&question, NULL) != WEFT_PLAN_HIERARCHY);
        question.forced_plan = WEFT_PLAN_HIERARCHY, question.reproducible = false;
        assert_int_equal(weft_plan_choose(&question, NULL), WEFT_PLAN_HIERARCHY);
        question.hosts = NULL; /* forced, but hosts are unknown */
        assert_int_not_equal(weft_plan_choose(&question, NULL), WEFT_PLAN_HIERARCHY);
    }
}

/* No leap: from one size, or number of ranks, to the next the modelled time of the chosen plan grows by
 * what was added. */
static void no_cliffs(void **state)
{
    struct weft_plan_question question = {.kind = WEFT_COLL_ALL_REDUCE, .elem_bytes = 4, .wide_bytes = 4};
    for (question.ranks = 2; question.ranks < 200; question.ranks++) {
        uint64_t before = 0;
        for (question.bytes = 8; question.bytes < 1ull << 32; question.bytes += question.bytes / 8 + 1) {
            uint64_t times[WEFT_PLAN_COUNT], now = times[weft_plan_choose(&question, times)];
            if (before) assert_in_range(now, before, before + before / 7 + 1);
            before = now;
        }
    }
}

/* The model returns the measured times at the measured lengths; in between it has no leap, a longer vector
 * never costs less, and twice the ranks on the same cores take longer. */
static const struct weft_link_runs runs_of_sockets = {
    2,
    2,
    5000,
    1500,
    {{60, 65, 70, 75, 80, 100, 120, 160, 200, 215, 230, 300},
     {40, 45, 50, 65, 80, 95, 110, 140, 170, 185, 200, 280},
     {80, 85, 90, 95, 100, 140, 180, 210, 240, 250, 260, 330},
     {70, 85, 100, 105, 110, 135, 160, 185, 210, 250, 290, 400},
     {90, 100, 110, 120, 130, 160, 190, 225, 260, 280, 300, 420}}};
static void runs_are_calibrated(void **state)
{
    for (uint32_t ranks = 2; ranks <= 16; ranks++) {
        struct weft_link_cost cost = {.pairs = 1,
                                      .latency_ns = 12000,
                                      .bytes_per_second = 2000000000,
                                      .inject_ns = 1500,
                                      .sum_ps = 10,
                                      .pass_ps = 40};
        struct weft_link_cost known = cost, fitted = cost;
        struct weft_plan_question question = {
            .kind = WEFT_COLL_ALL_REDUCE, .ranks = ranks, .elem_bytes = 4, .wide_bytes = 4, .cost = &known};
        double times_ns[WEFT_LINK_PATTERNS][WEFT_PLAN_MESSAGE_COST_SAMPLES];
        uint64_t modelled[WEFT_PLAN_COUNT];
        known.runs = runs_of_sockets, known.runs.ranks = ranks;
        for (int sample = 0; sample < WEFT_PLAN_MESSAGE_COST_SAMPLES; sample++) {
            question.bytes =
                sample == 0 ? WEFT_PLAN_MESSAGE_COST_SHORT_BYTES : weft_link_length((uint32_t)sample - 1);
            weft_plan_choose(&question, modelled);
            for (int pattern = 0; pattern < WEFT_LINK_PATTERNS; pattern++)
                times_ns[pattern][sample] =
                    (double)modelled[weft_plan_of_pattern((enum weft_link_pattern)pattern)];
        }
        weft_plan_fit_message_costs(ranks, 2, times_ns, &cost, &fitted.runs);
        assert_true(weft_link_runs_are_valid(&fitted.runs) && fitted.runs.ranks == ranks &&
                    fitted.runs.processors == 2);
        question.cost = &fitted;
        for (int sample = 0; sample < WEFT_PLAN_MESSAGE_COST_SAMPLES; sample++) {
            question.bytes =
                sample == 0 ? WEFT_PLAN_MESSAGE_COST_SHORT_BYTES : weft_link_length((uint32_t)sample - 1);
            weft_plan_choose(&question, modelled);
            for (int pattern = 0; pattern < WEFT_LINK_PATTERNS; pattern++)
                assert_in_range(modelled[weft_plan_of_pattern((enum weft_link_pattern)pattern)],
                                (uint64_t)(times_ns[pattern][sample] * 0.9),
                                (uint64_t)(times_ns[pattern][sample] * 1.1));
        }
    }
    struct weft_link_cost cost = {.pairs = 1, .latency_ns = 1, .bytes_per_second = 1};
    /* impossible times still give figures that fit into a table */
    double none[WEFT_LINK_PATTERNS][WEFT_PLAN_MESSAGE_COST_SAMPLES] = {{0}};
    weft_plan_fit_message_costs(5, 0, none, &cost, &cost.runs);
    assert_true(weft_link_runs_are_valid(&cost.runs));
    for (int i = 0; i < WEFT_LINK_PATTERNS * WEFT_PLAN_MESSAGE_COST_SAMPLES; i++)
        none[i / WEFT_PLAN_MESSAGE_COST_SAMPLES][i % WEFT_PLAN_MESSAGE_COST_SAMPLES] = i % 3 ? 1e16 : 1;
    weft_plan_fit_message_costs(2, 2, none, &cost, &cost.runs);
    assert_true(weft_link_runs_are_valid(&cost.runs));
}

static void runs_have_no_cliffs(void **state)
{
    struct weft_link_cost cost = {.pairs = 1,
                                  .latency_ns = 12000,
                                  .bytes_per_second = 2000000000,
                                  .sum_ps = 10,
                                  .pass_ps = 40,
                                  .runs = runs_of_sockets};
    struct weft_plan_question question = {
        .kind = WEFT_COLL_ALL_REDUCE, .elem_bytes = 4, .wide_bytes = 4, .cost = &cost};
    for (question.ranks = 2; question.ranks <= 64; question.ranks++) {
        uint64_t before = 0;
        for (question.bytes = 8; question.bytes < 1ull << 32; question.bytes += question.bytes / 8 + 1) {
            uint64_t times[WEFT_PLAN_COUNT], now = times[weft_plan_choose(&question, times)];
            if (before) assert_in_range(now, before, before + before / 4 + 1);
            before = now;
        }
    }
    uint64_t own[WEFT_PLAN_COUNT], shared[WEFT_PLAN_COUNT];
    question.ranks = 8, question.bytes = 1 << 20;
    cost.runs.processors = cost.runs.ranks = 8;
    weft_plan_choose(&question, own);
    cost.runs.processors = cost.runs.ranks = 2; /* each core now runs four ranks */
    weft_plan_choose(&question, shared);
    assert_true(shared[WEFT_PLAN_RING] > 3 * own[WEFT_PLAN_RING]);
}

static void forced_plans(void **state)
{
    enum weft_plan_id plans[WEFT_COLL_KIND_COUNT] = {0};
    struct weft_error error = {0};
    assert_int_equal(weft_plans_parse("ring", plans, &error), WEFT_OK);
    assert_true(plans[WEFT_COLL_ALL_REDUCE] == WEFT_PLAN_RING &&
                plans[WEFT_COLL_BROADCAST] == WEFT_PLAN_AUTO);
    assert_int_equal(weft_plans_parse("all_reduce=halving,broadcast=chain", plans, &error), WEFT_OK);
    assert_true(plans[WEFT_COLL_ALL_REDUCE] == WEFT_PLAN_HALVING &&
                plans[WEFT_COLL_BROADCAST] == WEFT_PLAN_CHAIN);
    assert_true(plans[WEFT_COLL_ALL_GATHER] == WEFT_PLAN_RING);
    assert_int_equal(weft_plans_parse("reduce=ring", plans, &error), WEFT_ERR_UNSUPPORTED);
    static const char *const bad[] = {"one-host",
                                      "rin",
                                      "all_reduce=",
                                      "=ring",
                                      "all_reduc=ring",
                                      "broadcast=chain,all_reduce=nothing",
                                      "a_name_that_is_longer_than_any_plan_has"};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(weft_plans_parse(bad[i], plans, &error), WEFT_ERR_INVALID);
        assert_true(plans[WEFT_COLL_BROADCAST] == WEFT_PLAN_CHAIN);
    }
    assert_int_equal(weft_plans_parse("auto", plans, &error), WEFT_OK);
    for (int kind = 0; kind < WEFT_COLL_KIND_COUNT; kind++) assert_int_equal(plans[kind], WEFT_PLAN_AUTO);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--thorough") == 0) thorough = true, ranks_max = 257;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) cmocka_set_test_filter(argv[++i]);
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) ranks_max = (uint32_t)atoi(argv[++i]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(direct_all_reduce),
        cmocka_unit_test(direct_reduce_scatter),
        cmocka_unit_test(direct_all_gather),
        cmocka_unit_test(direct_all_gather_bytes),
        cmocka_unit_test(ring_all_reduce),
        cmocka_unit_test(ring_reduce_scatter),
        cmocka_unit_test(ring_all_gather),
        cmocka_unit_test(doubling),
        cmocka_unit_test(halving),
        cmocka_unit_test(double_tree),
        cmocka_unit_test(direct_reduce),
        cmocka_unit_test(binomial_reduce),
        cmocka_unit_test(chain_reduce),
        cmocka_unit_test(chain_broadcast),
        cmocka_unit_test(bruck_all_gather),
        cmocka_unit_test(bruck_all_to_all),
        cmocka_unit_test(hierarchy),
        cmocka_unit_test(hierarchy_reduce_scatter),
        cmocka_unit_test(hierarchy_all_gather),
        cmocka_unit_test(subtrees),
        cmocka_unit_test(measured_hosts),
        cmocka_unit_test(unequal_slices),
        cmocka_unit_test(shares_follow_speeds),
        cmocka_unit_test(pat_reduce_scatter),
        cmocka_unit_test(pat_all_gather),
        cmocka_unit_test(pat_aggregated),
        cmocka_unit_test(binomial_gather),
        cmocka_unit_test(binomial_scatter),
        cmocka_unit_test(gather),
        cmocka_unit_test(scatter),
        cmocka_unit_test(all_to_all),
        cmocka_unit_test(unequal_pieces),
        cmocka_unit_test(any_root),
        cmocka_unit_test(broadcast),
        cmocka_unit_test(broadcast_any_root),
        cmocka_unit_test(exchange_bytes_is_all_to_all),
        cmocka_unit_test(barrier),
        cmocka_unit_test(barrier_holds),
        cmocka_unit_test(turned),
        cmocka_unit_test(groups_together),
        cmocka_unit_test(large_doubling),
        cmocka_unit_test(large_halving),
        cmocka_unit_test(large_double_tree),
        cmocka_unit_test(large_trees),
        cmocka_unit_test(large_rooted),
        cmocka_unit_test(large_direct_reduce),
        cmocka_unit_test(large_bruck),
        cmocka_unit_test(large_bruck_all_to_all),
        cmocka_unit_test(large_hierarchy),
        cmocka_unit_test(huge_counts),
        cmocka_unit_test(greetings),
        cmocka_unit_test(greetings_of_the_ring_among_hosts),
        cmocka_unit_test(names_and_choice),
        cmocka_unit_test(choice_among_hosts),
        cmocka_unit_test(no_cliffs),
        cmocka_unit_test(other_calls_are_found),
        cmocka_unit_test(chunks_of_long_links),
        cmocka_unit_test(chunks_that_a_transport_moves_best),
        cmocka_unit_test(one_host_by_size),
        cmocka_unit_test(one_host_does_not_leap),
        cmocka_unit_test(onehost_estimate),
        cmocka_unit_test(one_host_by_ranks),
        cmocka_unit_test(one_host_is_calibrated),
        cmocka_unit_test(one_host_is_explained),
        cmocka_unit_test(runs_are_calibrated),
        cmocka_unit_test(runs_have_no_cliffs),
        cmocka_unit_test(forced_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
