/* test_fastpath_direct.c - operations on mapped buffers that complete inside their call
 * (collective/onehost/fastpath_direct.c): fallback of each rank at each point, and calls that differ. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collective/onehost/onehost.h"
#include "tests/collective/onehost/shm_ranks.h"
#include "tests/collective/world.h"
#include "tests/lib/check.h"

enum { RANKS_MAX = 4, RANK_BUFFER_BYTES = 2 << 20, FLOATS = RANK_BUFFER_BYTES / 4 };

static struct shm_ranks shm_ranks;
static float *rank_buffers[RANKS_MAX], *mapped[RANKS_MAX], *ordinary[RANKS_MAX];
static struct outcome outcomes[RANKS_MAX];
static struct weft_coll *colls[RANKS_MAX];
static cpu_set_t whole;

static const enum weft_coll_kind kinds[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE, WEFT_COLL_BROADCAST,
                                            WEFT_COLL_REDUCE_SCATTER, WEFT_COLL_ALL_GATHER};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static bool of_own_pieces(enum weft_coll_kind kind)
{
    return kind == WEFT_COLL_REDUCE_SCATTER || kind == WEFT_COLL_ALL_GATHER;
}
static uint64_t elems_of(const struct weft_coll_args *args)
{
    return args->count * (of_own_pieces(args->kind) ? shm_ranks.ranks : 1);
}

/* Integers whose sums are exact in any order. */
static float value(uint32_t rank, uint64_t i, uint64_t seed)
{
    return (float)((rank * 7919 + i * 31 + seed * 101) % 1000) * (i % 3 ? 1.0f : 4096.0f);
}

static void fill(const struct weft_coll_args *args, uint64_t seed)
{
    for (uint32_t r = 0; r < shm_ranks.ranks; r++)
        for (uint64_t i = 0; i < elems_of(args); i++) rank_buffers[r][i] = value(r, i, seed);
}

static float wanted(const struct weft_coll_args *args, uint32_t rank, uint64_t i, uint64_t seed)
{
    float sum = 0;
    if (args->kind == WEFT_COLL_BROADCAST) return value(args->root, i, seed);
    if (args->kind == WEFT_COLL_ALL_GATHER) return value((uint32_t)(i / args->count), i, seed);
    if (args->kind == WEFT_COLL_REDUCE && rank != args->root) return value(rank, i, seed);
    if (args->kind == WEFT_COLL_REDUCE_SCATTER && i / args->count != rank) return value(rank, i, seed);
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) sum += value(r, i, seed);
    return sum;
}

static void all_right(const struct weft_coll_args *args, uint64_t seed)
{
    for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
        if (outcomes[r].status != WEFT_OK || !outcomes[r].ended) fail_msg("rank %u: %s", r, outcomes[r].text);
        for (uint64_t i = 0; i < elems_of(args); i++)
            if (rank_buffers[r][i] != wanted(args, r, i, seed))
                fail_msg("%s, rank %u: element %llu", weft_coll_kind_name(args->kind), r,
                         (unsigned long long)i);
    }
}

/* In place, if the kind permits. */
static struct weft_coll_args args_of(uint32_t rank, struct weft_coll_args args)
{
    args.in = rank_buffers[rank] + (args.kind == WEFT_COLL_ALL_GATHER ? rank * args.count : 0);
    args.out = rank_buffers[rank] + (args.kind == WEFT_COLL_REDUCE_SCATTER ? rank * args.count : 0);
    return args;
}

static void post(uint32_t rank, struct weft_coll_args given)
{
    struct weft_coll_args args = args_of(rank, given);
    struct weft_error error = {0};
    outcomes[rank] = (struct outcome){0};
    enum weft_status status =
        weft_coll_post(shm_ranks.groups[rank], &args, outcome_done, &outcomes[rank], &colls[rank], &error);
    if (status != WEFT_IN_PROGRESS) outcome_done(&outcomes[rank], status, error.text);
}

static enum weft_status try_fastpath(uint32_t rank, struct weft_coll_args given)
{
    struct weft_coll_args args = args_of(rank, given);
    outcomes[rank] = (struct outcome){0};
    enum weft_status status =
        weft_coll_try_fastpath(shm_ranks.groups[rank], &args, outcome_done, &outcomes[rank], &colls[rank]);
    if (status == WEFT_OK) outcome_done(&outcomes[rank], WEFT_OK, "");
    return status;
}

/* By the fast path, or queued if the machine was stopped so long that the group's timer is idle. */
static enum weft_status start(uint32_t rank, struct weft_coll_args args)
{
    enum weft_status status = try_fastpath(rank, args);
    if (status == WEFT_ERR_AGAIN) post(rank, args);
    return status == WEFT_ERR_AGAIN ? WEFT_IN_PROGRESS : status;
}

static bool run_all(uint32_t except)
{
    for (int i = 0; i < 400000; i++) {
        bool done = true;
        for (uint32_t r = 0; r < shm_ranks.ranks; r++) {
            if (r == except) continue;
            weft_loop_step(shm_ranks.loops[r]);
            done = done && outcomes[r].ended;
        }
        if (done) return true;
        if (i % 16 == 15) usleep(20);
    }
    return false;
}

/* After a queued operation of each kind: all ranks are connected and have a record with memory for
 * messages. */
static void open_group(uint32_t ranks, bool on_one, uint64_t deadline_ns)
{
    cpu_set_t one;
    assert_int_equal(sched_getaffinity(0, sizeof whole, &whole), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &whole)) CPU_SET(i, &one);
    if (on_one) assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    shm_ranks_open(&shm_ranks, ranks, NULL, false, deadline_ns);
    for (uint32_t r = 0; r < ranks; r++) {
        void *memory;
        assert_int_equal(weft_memory_alloc(weft_env_system(), RANK_BUFFER_BYTES, &memory, NULL), WEFT_OK);
        rank_buffers[r] = mapped[r] = memory;
        assert_non_null(ordinary[r] = calloc(1, RANK_BUFFER_BYTES));
    }
    for (uint32_t k = 0; k < KINDS; k++) {
        for (uint32_t r = 0; r < ranks; r++)
            post(r, (struct weft_coll_args){
                        .kind = kinds[k], .count = 30000, .dtype = WEFT_F32, .op = WEFT_SUM});
        assert_true(run_all(RANKS_MAX));
    }
}

static void close_group(void)
{
    uint32_t ranks = shm_ranks.ranks;
    shm_ranks_close(&shm_ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        weft_memory_free(weft_env_system(), mapped[r]);
        free(ordinary[r]);
    }
    assert_int_equal(sched_setaffinity(0, sizeof whole, &whole), 0);
}

/* Above the copy-in limits, which are higher if ranks share a core. */
static struct weft_coll_args call_at(uint32_t i, bool on_one)
{
    static const uint64_t apart[] = {20001, 9001, 120000}, together[] = {70001, 90001, 120000};
    const uint64_t *lengths = on_one ? together : apart;
    enum weft_coll_kind kind = kinds[i % KINDS];
    uint64_t count = lengths[i / KINDS % 3] / (of_own_pieces(kind) ? shm_ranks.ranks : 1);
    return (struct weft_coll_args){.kind = kind,
                                   .count = count,
                                   .dtype = WEFT_F32,
                                   .op = WEFT_SUM,
                                   .root = i / (3 * KINDS) % shm_ranks.ranks};
}

/* Oversubscribed: each rank falls back while it waits for the others, and all results are right. */
static void all_fall_back_on_one_core(void **state)
{
    open_group(4, true, 0);
    for (uint32_t i = 0; i < 60; i++) {
        struct weft_coll_args args = call_at(i, true);
        fill(&args, i);
        for (uint32_t r = 0; r < 4; r++) {
            enum weft_status status = start((r + i) % 4, args);
            assert_true(status == WEFT_IN_PROGRESS || r == 3); /* all_gather: the last one finds all */
        }
        assert_true(run_all(RANKS_MAX));
        all_right(&args, i);
    }
    close_group();
}

/* With a core each: the second rank finds the first one's descriptor, does its slice, and falls back while it
 * waits. */
static void stops_where_it_leaves(void **state)
{
    uint32_t leaving = 0;
    open_group(2, false, 0);
    for (uint32_t i = 0; i < 60; i++) {
        struct weft_coll_args args = call_at(i, false);
        fill(&args, i);
        assert_int_equal(start(i % 2, args), WEFT_IN_PROGRESS);
        assert_int_equal(start(1 - i % 2, args), WEFT_IN_PROGRESS);
        leaving += colls[1 - i % 2]->onehost.phase == ONEHOST_COMPLETING;
        assert_true(run_all(RANKS_MAX));
        all_right(&args, i);
    }
    assert_in_range(leaving, 30, 60); /* all, unless the machine was stopped */
    close_group();
}

/* Both ranks report calls that differ, by any mixture of the ways. */
static void calls_that_differ(void **state)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                      .count = 20000,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM},
                              other = args;
        const char *what = i % 3 == 0 ? "the count" : i % 3 == 1 ? "the reduction" : "the operation";
        if (i % 3 == 0) other.count++;
        if (i % 3 == 1) other.op = WEFT_MAX;
        if (i % 3 == 2) other.kind = WEFT_COLL_BROADCAST;
        open_group(2, i / 3 % 2, 0);
        if (i / 6) post(0, args);
        else assert_int_equal(start(0, args), WEFT_IN_PROGRESS);
        assert_int_equal(start(1, other), WEFT_IN_PROGRESS);
        assert_true(run_all(RANKS_MAX));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_MISMATCH);
            if (!strstr(outcomes[r].text, what)) fail_msg("rank %u, %u: %s", r, i, outcomes[r].text);
        }
        close_group();
    }
}

/* Some ranks' buffers are mapped and others' are not, or only those that peers do not access. */
static void memory_of_both_kinds(void **state)
{
    for (uint32_t on_one = 0; on_one < 2; on_one++) {
        open_group(3, on_one, 0);
        for (uint32_t i = 0; i < 90; i++) {
            struct weft_coll_args args = call_at(i, false);
            for (uint32_t r = 0; r < 3; r++) rank_buffers[r] = (i / 5 + i) >> r & 1 ? mapped[r] : ordinary[r];
            fill(&args, i);
            for (uint32_t r = 0; r < 3; r++) (void)start((r + i) % 3, args);
            assert_true(run_all(RANKS_MAX));
            all_right(&args, i);
        }
        close_group();
    }
}

/* The first rank publishes and cancels: the second finds its buffers closed, stores nothing, and gets the
 * reason. */
static void cancelled_by_another(void **state)
{
    for (uint32_t i = 0; i < 8; i++) {
        const bool on_one = i / 4;
        const enum weft_coll_kind other = on_one ? WEFT_COLL_REDUCE_SCATTER : WEFT_COLL_ALL_GATHER;
        struct weft_coll_args args = {.kind = i % 2 ? other : WEFT_COLL_ALL_REDUCE,
                                      .count = on_one ? 40000 : 20000, /* above the copy-in limit */
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM,
                                      .deadline_ns = WEFT_MS(300)};
        open_group(2, on_one, 0);
        fill(&args, i);
        if (i / 2 % 2) post(0, args);
        else assert_int_equal(start(0, args), WEFT_IN_PROGRESS);
        weft_coll_cancel(colls[0]);
        for (int step = 0; step < 10 && !outcomes[0].ended; step++) weft_loop_step(shm_ranks.loops[0]);
        assert_int_equal(outcomes[0].status, WEFT_ERR_CANCELLED);
        assert_int_equal(start(1, args), WEFT_IN_PROGRESS);
        assert_true(run_all(RANKS_MAX));
        assert_true(outcomes[1].status < 0);
        /* owned by the caller again */
        for (uint64_t e = 0; e < elems_of(&args); e++) assert_true(rank_buffers[0][e] == value(0, e, i));
        close_group();
    }
}

/* A rank that fell back names the rank that never arrives. */
static void a_deadline_names_the_late_one(void **state)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                      .count = 20000,
                                      .dtype = WEFT_F32,
                                      .op = WEFT_SUM,
                                      .deadline_ns = WEFT_MS(60)};
        open_group(3, i, 0);
        assert_int_equal(start(0, args), WEFT_IN_PROGRESS);
        assert_int_equal(start(1, args), WEFT_IN_PROGRESS);
        assert_true(run_all(2));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(outcomes[r].status, WEFT_ERR_DEADLINE);
            if (!strstr(outcomes[r].text, "rank 2")) fail_msg("rank %u: %s", r, outcomes[r].text);
        }
        close_group();
    }
}

/* A peer's offsets are checked before any access. */
static void outside_its_memory(void **state)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct weft_coll_args args = {
            .kind = WEFT_COLL_ALL_REDUCE, .count = 20000, .dtype = WEFT_F32, .op = WEFT_SUM};
        open_group(2, i % 2, 0);
        fill(&args, i);
        assert_int_equal(start(0, args), WEFT_IN_PROGRESS);
        struct onehost_descriptor *line =
            onehost_descriptor_of(shm_ranks.groups[0]->onehost->segment, colls[0]->onehost.seq);
        *(i / 2 ? &line->in : &line->out) = i / 2 ? UINT64_MAX - 64 : 1ull << 50;
        assert_int_equal(start(1, args), WEFT_IN_PROGRESS);
        for (int step = 0; step < 100000 && !outcomes[1].ended; step++) weft_loop_step(shm_ranks.loops[1]);
        assert_int_equal(outcomes[1].status, WEFT_ERR_MALFORMED);
        if (!strstr(outcomes[1].text, "outside its memory")) fail_msg("%s", outcomes[1].text);
        close_group();
    }
}

/* A root that has run ahead waits for its peers in the queue: they may have called something else. */
static void a_rank_ahead_posts(void **state)
{
    struct weft_coll_args args = {.kind = WEFT_COLL_ALL_REDUCE,
                                  .count = 20000,
                                  .dtype = WEFT_F32,
                                  .op = WEFT_SUM},
                          few = {.kind = WEFT_COLL_BROADCAST, .count = 2, .dtype = WEFT_F32};
    open_group(2, false, 0);
    for (uint32_t i = 0; i < 3; i++) /* the machine was stopped so long that the group's timer is idle */
        if (try_fastpath(0, few) != WEFT_OK) skip();
    fill(&args, 5);
    assert_int_equal(try_fastpath(0, args), WEFT_ERR_AGAIN);
    post(0, args);
    for (uint32_t i = 0; i < 3; i++) {
        (void)start(1, few);
        for (int step = 0; step < 100000 && !outcomes[1].ended; step++) weft_loop_step(shm_ranks.loops[1]);
        assert_int_equal(outcomes[1].status, WEFT_OK);
    }
    for (uint32_t e = 0; e < args.count; e++) rank_buffers[1][e] = value(1, e, 5);
    (void)start(1, args);
    assert_true(run_all(RANKS_MAX));
    all_right(&args, 5);
    close_group();
}

/* New link costs can change the memory for the plan by messages: prepared calls are validated again. */
static void links_change(void **state)
{
    struct weft_coll_args args = {
        .kind = WEFT_COLL_ALL_REDUCE, .count = 20000, .dtype = WEFT_F32, .op = WEFT_SUM};
    open_group(2, true, 0);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t r = 0; r < 2 && i; r++) {
            struct weft_link_cost cost = *weft_group_cost(shm_ranks.groups[r]);
            uint64_t shape = weft_coll_prepared_id(shm_ranks.groups[r], args.kind);
            weft_group_set_cost(shm_ranks.groups[r], &cost);
            assert_int_equal(weft_coll_try_prepared(shm_ranks.groups[r], args.kind, shape, rank_buffers[r],
                                                    rank_buffers[r], outcome_done, &outcomes[r], &colls[r]),
                             WEFT_ERR_AGAIN);
        }
        fill(&args, i);
        for (uint32_t r = 0; r < 2; r++) (void)start(r, args);
        assert_true(run_all(RANKS_MAX));
        all_right(&args, i);
    }
    close_group();
}

/* Rank 0 has no memory for a prepared call: it must not copy in what its peers expect to access directly. */
static bool refuses;
static void *alloc_but_outlines(struct weft_env *env, size_t bytes)
{
    (void)env;
    return refuses && bytes == sizeof(struct weft_coll) ? NULL
                                                        : weft_env_system()->alloc(weft_env_system(), bytes);
}

static void no_memory_for_direct(void **state)
{
    struct weft_env env = *weft_env_system();
    env.alloc = alloc_but_outlines;
    open_group(2, false, 0);
    for (uint32_t r = 0; r < 2; r++) weft_group_free(shm_ranks.groups[r]);
    shm_ranks.env = &env;
    shm_ranks_group(&shm_ranks, 7, WEFT_SECONDS(2));
    for (uint32_t i = 0; i < 4; i++) {
        struct weft_coll_args args = {
            .kind = WEFT_COLL_ALL_REDUCE, .count = i ? 4000 : 30000, .dtype = WEFT_F32, .op = WEFT_SUM};
        if (i) assert_true(onehost_can_prefer_direct(shm_ranks.groups[0], &args));
        fill(&args, i);
        for (uint32_t r = 0; r < 2; r++) {
            refuses = r == 0;
            (void)start(r, args);
        }
        refuses = false;
        assert_true(run_all(RANKS_MAX));
        all_right(&args, i);
    }
    close_group();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_fall_back_on_one_core),
                                       cmocka_unit_test(stops_where_it_leaves),
                                       cmocka_unit_test(calls_that_differ),
                                       cmocka_unit_test(memory_of_both_kinds),
                                       cmocka_unit_test(cancelled_by_another),
                                       cmocka_unit_test(a_deadline_names_the_late_one),
                                       cmocka_unit_test(outside_its_memory),
                                       cmocka_unit_test(a_rank_ahead_posts),
                                       cmocka_unit_test(links_change),
                                       cmocka_unit_test(no_memory_for_direct)};
    /* ranks of one process may not store into each other's memory there */
    if (SHM_RANKS_PLAIN_ONLY) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
