/* test_failures.c - every failure ends on every rank, once, with a text that names the culprit and the
 * cause. */
#include "collective/core/control/group_control.h"
#include "collective/core/group.h"
#include "collective/core/op.h"
#include "tests/collective/call.h"
#include "tests/lib/check.h"
#include "tests/lib/fail_env.h"
#include "tests/lib/log_capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 16

static struct world *world;
static struct weft_group *groups[RANKS_MAX];
static struct outcome outcomes[RANKS_MAX];
static uint32_t pending;
static bool done, never;

static void describe(void *context, uint32_t rank, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "rank %u (host %c)", rank, 'a' + (int)rank);
}

static const struct weft_plan_hosts *hosts; /* of the groups that are opened next */

static void open_groups_in(struct weft_env *env, uint32_t ranks)
{
    world = world_create(env, ranks, 99, NULL);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.names.describe = describe;
    options.chunk_bytes = 65536;
    options.hosts = hosts;
    assert_int_equal(world_group(world, NULL, ranks, 3, &options, groups), WEFT_OK);
    memset(outcomes, 0, sizeof outcomes);
    pending = 0;
    done = false;
}

static struct weft_env silent;

static void open_groups(uint32_t ranks)
{
    silent = *weft_env_system();
    silent.log_level = WEFT_LOG_ERROR;
    open_groups_in(&silent, ranks);
}

static void close_groups(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) weft_group_free(groups[r]);
    world_free(world);
}

static struct weft_coll *post(uint32_t rank, const struct weft_coll_args *args)
{
    struct weft_coll *coll = NULL;
    outcomes[rank].pending = &pending;
    outcomes[rank].all_done = &done;
    pending++;
    assert_int_equal(weft_coll_post(groups[rank], args, outcome_done, &outcomes[rank], &coll, NULL),
                     WEFT_IN_PROGRESS);
    return coll;
}

static void all_ended(uint32_t ranks, enum weft_status status, const char *part, const char *other_part)
{
    enum weft_status run = world_run(world, &done, WEFT_SECONDS(1000));
    if (run != WEFT_OK) fail_msg("%u operations did not end: %s", pending, weft_status_name(run));
    for (uint32_t r = 0; r < ranks; r++) {
        if (outcomes[r].times == 0) continue; /* posted nothing */
        assert_int_equal(outcomes[r].times, 1);
        if (outcomes[r].status != status || !strstr(outcomes[r].text, part) ||
            !strstr(outcomes[r].text, other_part))
            fail_msg("rank %u: %s: %s (wanted %s, \"%s\", \"%s\")", r, weft_status_name(outcomes[r].status),
                     outcomes[r].text, weft_status_name(status), part, other_part);
    }
}

/* ---- calls that differ ---- */
static float buffers[RANKS_MAX][2][40000];
static enum weft_plan_id base_plan = WEFT_PLAN_RING;

static struct weft_coll_args base_args(uint32_t rank)
{
    return (struct weft_coll_args){.kind = WEFT_COLL_ALL_REDUCE,
                                   .in = buffers[rank][0],
                                   .out = buffers[rank][1],
                                   .count = 1000,
                                   .dtype = WEFT_F32,
                                   .op = WEFT_SUM,
                                   .plan = base_plan};
}

static void differ(uint32_t ranks, uint32_t odd, void (*change)(struct weft_coll_args *args),
                   const char *what)
{
    char name[32];
    snprintf(name, sizeof name, "rank %u (host %c)", odd, 'a' + (int)odd);
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args args = base_args(r);
        if (r == odd) change(&args);
        post(r, &args);
    }
    all_ended(ranks, WEFT_ERR_MISMATCH, what, name);
    for (uint32_t r = 0; r < ranks; r++) {
        /* the group has ended: later calls return the same text */
        struct weft_coll_args args = base_args(r);
        struct weft_error error = {0};
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, NULL, NULL, &error),
                         WEFT_ERR_MISMATCH);
        assert_string_equal(error.text, outcomes[r].text);
    }
    close_groups(ranks);
}

/* Failures of a send or recv: no other operation is posted, and all ranks get the error. */
static struct weft_coll_args pair_args(uint32_t rank, enum weft_coll_kind kind, uint32_t other,
                                       uint64_t count)
{
    return (struct weft_coll_args){.kind = kind,
                                   .in = buffers[rank][0],
                                   .out = buffers[rank][1],
                                   .count = count,
                                   .dtype = WEFT_F32,
                                   .root = other,
                                   .deadline_ns = WEFT_SECONDS(2)};
}

static void pairs_that_do_not_match(void **state)
{
    open_groups(3);
    struct weft_coll_args lonely = pair_args(0, WEFT_COLL_RECV, 2, 10);
    post(0, &lonely);
    all_ended(3, WEFT_ERR_DEADLINE, "a recv", "rank 2 (host c)");
    close_groups(3);
    for (uint64_t longer = 0; longer < 2; longer++) { /* longer than the buffer, and shorter */
        open_groups(2);
        struct weft_coll_args send = pair_args(0, WEFT_COLL_SEND, 1, longer ? 12 : 8),
                              recv = pair_args(1, WEFT_COLL_RECV, 0, 10);
        post(0, &send);
        post(1, &recv);
        world_run(world, &done, WEFT_SECONDS(100));
        assert_int_equal(outcomes[1].status, WEFT_ERR_MISMATCH);
        assert_non_null(strstr(outcomes[1].text, "the count"));
        close_groups(2);
    }
    open_groups(2);
    struct weft_coll_args self = pair_args(0, WEFT_COLL_SEND, 0, 1),
                          beyond = pair_args(0, WEFT_COLL_RECV, 2, 1);
    struct weft_error error = {0};
    assert_int_equal(weft_coll_post(groups[0], &self, outcome_done, NULL, NULL, &error), WEFT_ERR_INVALID);
    assert_int_equal(weft_coll_post(groups[0], &beyond, outcome_done, NULL, NULL, &error), WEFT_ERR_INVALID);
    close_groups(2);
}

/* Pieces with lengths that differ between two ranks; counts that must be equal on all ranks. */
static void counts_that_differ(void **state)
{
    static const uint64_t counts[2] = {5, 7}, others[2] = {7, 5}, to[2] = {3, 4}, from[2] = {3, 9};
    open_groups(2);
    for (uint32_t r = 0; r < 2; r++) {
        struct weft_coll_args args = base_args(r);
        args.kind = WEFT_COLL_ALL_GATHER, args.counts = r ? others : counts;
        post(r, &args);
    }
    all_ended(2, WEFT_ERR_MISMATCH, "the counts of the pieces", "rank");
    close_groups(2);
    open_groups(2);
    for (uint32_t r = 0; r < 2; r++) {
        struct weft_coll_args args = base_args(r);
        args.kind = WEFT_COLL_ALL_TO_ALL, args.plan = WEFT_PLAN_AUTO, args.counts = to,
        args.counts_out = from;
        post(r, &args);
    }
    all_ended(2, WEFT_ERR_MISMATCH, "differs in the count of the piece from rank ", ", which expects ");
    close_groups(2);
}

/* One side expects an empty piece, or a length that differs by whole messages. Without a length in the
 * first message the pair would time out, or one side would succeed. */
static void pieces_that_differ(void **state)
{
    /* length at the root, and at rank 1 */
    static const uint64_t lengths[][2] = {{0, 10}, {10, 0}, {16384, 32768}, {32768, 16384}, {7, 8}};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int gathers = 0; gathers < 2; gathers++) {
            const uint64_t counts[3] = {3, lengths[i][0], 5};
            open_groups(3);
            for (uint32_t r = 0; r < 3; r++) {
                struct weft_coll_args args = base_args(r);
                args.kind = gathers ? WEFT_COLL_GATHER : WEFT_COLL_SCATTER, args.plan = WEFT_PLAN_AUTO,
                args.unequal = true;
                args.counts = r == 0 ? counts : NULL;
                args.count = r == 1 ? lengths[i][1] : counts[r];
                post(r, &args);
            }
            assert_int_equal(world_run(world, &done, WEFT_SECONDS(20)), WEFT_OK);
            never = false;
            world_run(world, &never, WEFT_MS(1));
            assert_int_equal(outcomes[gathers ? 0 : 1].status, WEFT_ERR_MISMATCH);
            /* a rank that completed before gets the error with its next call */
            for (uint32_t r = 0; r < 3; r++) {
                struct weft_coll_args args = base_args(r);
                struct weft_error error = {0};
                assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, NULL, NULL, &error),
                                 WEFT_ERR_MISMATCH);
                char counts_text[80];
                snprintf(counts_text, sizeof counts_text, "which expects %llu",
                         (unsigned long long)lengths[i][!gathers]);
                if (!strstr(error.text, "the count of rank 1's piece") || !strstr(error.text, counts_text) ||
                    !strstr(error.text, gathers ? "rank 1 (host b)" : "rank 1"))
                    fail_msg("%s", error.text);
            }
            close_groups(3);
        }
    /* rank 0 sends none, rank 1 expects 7 */
    static const uint64_t to[2][2] = {{3, 0}, {5, 3}}, from[2][2] = {{3, 0}, {7, 3}};
    open_groups(2);
    for (uint32_t r = 0; r < 2; r++) {
        struct weft_coll_args args = base_args(r);
        args.kind = WEFT_COLL_ALL_TO_ALL, args.plan = WEFT_PLAN_AUTO, args.counts = to[r],
        args.counts_out = from[r];
        post(r, &args);
    }
    all_ended(2, WEFT_ERR_MISMATCH, "differs in the count of the piece from rank ", ", which expects ");
    close_groups(2);
}

/* Ranks interleaved over two hosts, so the ring order is 0 2 1 3. Ranks 0 and 3 call a ring and send to 2
 * and 0. Ranks 1 and 2 call a broadcast from 2, which sends to 3, 0 and, from there, to 1. Only the header
 * check connects ranks that differ. */
static void two_ways_round(void **state)
{
    static const uint32_t host_of[4] = {0, 1, 0, 1};
    uint32_t memory[64];
    struct weft_plan_hosts in_turn;
    assert_true(weft_plan_hosts_words(4) <= sizeof memory / sizeof memory[0]);
    weft_plan_hosts_init(host_of, 4, memory, &in_turn);
    hosts = &in_turn;
    open_groups(4);
    hosts = NULL;
    for (uint32_t r = 0; r < 4; r++) {
        struct weft_coll_args args = base_args(r);
        args.plan = WEFT_PLAN_RING;
        if (r == 1 || r == 2) args.kind = WEFT_COLL_BROADCAST, args.plan = WEFT_PLAN_DIRECT, args.root = 2;
        post(r, &args);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(1000)), WEFT_OK);
    for (uint32_t r = 0; r < 4; r++)
        /* the root may have completed */
        if (outcomes[r].status != WEFT_ERR_MISMATCH && (r != 2 || outcomes[r].status != WEFT_OK))
            fail_msg("rank %u: %s: %s", r, weft_status_name(outcomes[r].status), outcomes[r].text);
    close_groups(4);
}

static void other_count(struct weft_coll_args *args) { args->count = 999; }
static void no_count(struct weft_coll_args *args) { args->count = 0; }
static void long_count(struct weft_coll_args *args) { args->count = 40000; }
static void other_dtype(struct weft_coll_args *args) { args->dtype = WEFT_BF16; }
static void other_op(struct weft_coll_args *args) { args->op = WEFT_AVG; }
static void other_plan(struct weft_coll_args *args)
{
    args->plan = args->plan == WEFT_PLAN_DIRECT ? WEFT_PLAN_RING : WEFT_PLAN_DIRECT;
}
static void as_barrier(struct weft_coll_args *args) { args->kind = WEFT_COLL_BARRIER, args->plan = 0; }
static void as_broadcast(struct weft_coll_args *args)
{
    args->kind = WEFT_COLL_BROADCAST, args->plan = 0, args->root = 1;
}
static void as_scatter(struct weft_coll_args *args)
{
    args->kind = WEFT_COLL_REDUCE_SCATTER, args->plan = WEFT_PLAN_RING, args->count = 100;
}

static void every_field_of(uint32_t ranks_most)
{
    for (uint32_t ranks = 2; ranks <= ranks_most; ranks++)
        for (uint32_t odd = 0; odd < ranks; odd++) {
            differ(ranks, odd, other_count, "differs in the count");
            differ(ranks, odd, no_count, "differs in the count");
            differ(ranks, odd, long_count, "differs in the count");
            differ(ranks, odd, other_dtype, "differs in the element type");
            differ(ranks, odd, other_op, "differs in the reduction");
            differ(ranks, odd, other_plan, "differs in the plan");
            differ(ranks, odd, as_barrier, "called barrier");
            differ(ranks, odd, as_broadcast, "called broadcast");
            differ(ranks, odd, as_scatter, "called reduce_scatter");
        }
}

static void every_field(void **state) { every_field_of(5); }

/* With and without a header check before the plan's own messages. */
static void every_plan(void **state)
{
    static const enum weft_plan_id plans[] = {WEFT_PLAN_DIRECT, WEFT_PLAN_DOUBLING, WEFT_PLAN_HALVING,
                                              WEFT_PLAN_DOUBLE_TREE};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        base_plan = plans[i];
        every_field_of(3);
    }
    base_plan = WEFT_PLAN_RING;
}

/* A root only sends. With eager messages its part may complete before the FAIL arrives; then its next call
 * returns the error. */
static void other_root(void **state)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        open_groups(ranks);
        for (uint32_t r = 0; r < ranks; r++) {
            struct weft_coll_args args = base_args(r);
            args.kind = WEFT_COLL_BROADCAST;
            args.plan = WEFT_PLAN_AUTO;
            args.root = r == 1 ? 1 : 0;
            post(r, &args);
        }
        assert_int_equal(world_run(world, &done, WEFT_SECONDS(20)), WEFT_OK);
        never = false;
        world_run(world, &never, WEFT_MS(1));
        for (uint32_t r = 0; r < ranks; r++) {
            assert_true(outcomes[r].status == WEFT_ERR_MISMATCH ||
                        (r <= 1 && ranks > 2 && outcomes[r].status == WEFT_OK));
            struct weft_coll_args args = base_args(r);
            struct weft_error error = {0};
            assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, NULL, NULL, &error),
                             WEFT_ERR_MISMATCH);
            assert_non_null(strstr(error.text, "operation 0 differs in the root"));
            assert_non_null(strstr(error.text, "rank 1 (host b)"));
        }
        close_groups(ranks);
    }
}

/* Rank 2 calls two operations in the other order. */
static void other_order(void **state)
{
    uint32_t ranks = 4;
    struct outcome second[RANKS_MAX] = {0};
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args reduce = base_args(r), barrier = {.kind = WEFT_COLL_BARRIER};
        post(r, r == 2 ? &barrier : &reduce);
        second[r].pending = &pending;
        second[r].all_done = &done;
        pending++;
        assert_int_equal(
            weft_coll_post(groups[r], r == 2 ? &reduce : &barrier, outcome_done, &second[r], NULL, NULL),
            WEFT_IN_PROGRESS);
    }
    all_ended(ranks, WEFT_ERR_MISMATCH, "operation 0 differs in the operation", "rank 2 (host c)");
    for (uint32_t r = 0; r < ranks; r++) assert_int_equal(second[r].status, WEFT_ERR_MISMATCH);
    close_groups(ranks);
}

/* ---- late, silent and dead ranks ---- */
static void late(uint32_t ranks, uint32_t odd, uint64_t count, enum weft_plan_id plan)
{
    char part[64];
    snprintf(part, sizeof part, "rank %u (host %c) has not called it", odd, 'a' + (int)odd);
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args args = base_args(r);
        args.count = count;
        args.plan = plan;
        args.deadline_ns = WEFT_SECONDS(5);
        if (r != odd) post(r, &args);
    }
    all_ended(ranks, WEFT_ERR_DEADLINE, part, "operation 0 (all_reduce of");
    assert_true(world_seconds(world) < 6.0); /* buffers longer than eager messages were released as well */
    struct weft_coll_args args = base_args(odd);
    struct weft_error error = {0};
    never = false;
    world_run(world, &never, WEFT_MS(10));
    assert_int_equal(weft_coll_post(groups[odd], &args, outcome_done, NULL, NULL, &error), WEFT_ERR_DEADLINE);
    assert_non_null(strstr(error.text, part));
    close_groups(ranks);
}

static void late_rank(void **state)
{
    for (int plan = WEFT_PLAN_DIRECT; plan <= WEFT_PLAN_RING; plan++) {
        late(2, 1, 100, plan);
        late(5, 0, 100, plan);
        late(5, 3, 40000, plan); /* 32 KiB slices: the matching receives are never posted */
    }
}

/* A stopped process: connected and silent. After release_timeout_ns its connection is closed. */
static void stopped_rank(void **state)
{
    uint32_t ranks = 4;
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args args = base_args(r);
        args.count = 40000;
        args.deadline_ns = WEFT_SECONDS(5);
        post(r, &args);
    }
    weft_sim_remove(world->sim, world->loops[2]); /* not stepped any more, and not dead */
    pending--;
    enum weft_status run = world_run(world, &done, WEFT_SECONDS(20));
    assert_int_equal(run, WEFT_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        if (r == 2) continue;
        assert_int_equal(outcomes[r].status, WEFT_ERR_DEADLINE);
        assert_non_null(strstr(outcomes[r].text, "rank 2 (host c) does not answer"));
        assert_null(strstr(outcomes[r].text, "cut off"));
    }
    assert_true(world_seconds(world) < 9.0);
    close_groups(ranks);
}

/* All others are silent: they may be lost, or this rank is cut off. */
static void cut_off_rank(void **state)
{
    open_groups(4);
    struct weft_coll_args args = base_args(1);
    args.deadline_ns = WEFT_SECONDS(5);
    post(1, &args);
    for (uint32_t r = 0; r < 4; r++)
        if (r != 1) weft_sim_partition(world->sim, 1, r, true);
    all_ended(4, WEFT_ERR_DEADLINE, "rank 0 (host a) does not answer",
              "or it is rank 1 (host b) that is cut off from all of them");
    close_groups(4);
}

/* Six ranks are one operation further than two ranks with a broken link between them; these two wait for
 * each other. */
static void cut_between_others(void **state)
{
    static int64_t in[8], out[8][8];
    struct outcome second[8] = {0};
    open_groups(8);
    weft_sim_partition(world->sim, 3, 4, true);
    for (uint32_t r = 0; r < 8; r++) {
        struct weft_coll_args gather = {.kind = WEFT_COLL_ALL_GATHER,
                                        .in = &in[r],
                                        .out = out[r],
                                        .count = 1,
                                        .dtype = WEFT_I64,
                                        .plan = WEFT_PLAN_DIRECT,
                                        .deadline_ns = WEFT_SECONDS(9)};
        struct weft_coll_args barrier = {.kind = WEFT_COLL_BARRIER, .deadline_ns = WEFT_SECONDS(5)};
        post(r, &gather);
        if (r == 3 || r == 4) continue; /* they call it after all others */
        second[r].pending = &pending;
        second[r].all_done = &done;
        pending++;
        assert_int_equal(weft_coll_post(groups[r], &barrier, outcome_done, &second[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(100)), WEFT_OK);
    assert_int_equal(second[0].status, WEFT_ERR_DEADLINE);
    if (!strstr(second[0].text,
                "2 ranks have not called it, being at operation 0 or before it; ranks wait for each other") ||
        !strstr(second[0].text, "rank 3 (host d)") || !strstr(second[0].text, "rank 4 (host e)"))
        fail_msg("%s", second[0].text);
    close_groups(8);
}

static void killed_rank(void **state)
{
    for (int plan = WEFT_PLAN_DIRECT; plan <= WEFT_PLAN_RING; plan++)
        for (uint64_t at_us = 0; at_us < 60; at_us += 7) {
            uint32_t ranks = 6;
            open_groups(ranks);
            for (uint32_t r = 0; r < ranks; r++) {
                struct weft_coll_args args = base_args(r);
                args.count = 40000;
                args.plan = plan;
                post(r, &args);
            }
            weft_sim_kill_at(world->sim, 4, weft_sim_now_ns(world->sim) + at_us * 1000);
            pending--; /* the dead rank completes nothing, or completed before */
            never = false;
            world_run(world, &never, WEFT_SECONDS(2));
            for (uint32_t r = 0; r < ranks; r++) {
                if (r == 4) continue;
                assert_int_equal(outcomes[r].times, 1);
                assert_int_equal(outcomes[r].status, WEFT_ERR_PEER_LOST);
                assert_non_null(strstr(outcomes[r].text, "rank 4 (host e)"));
            }
            close_groups(ranks);
        }
}

/* No operation is posted when a rank dies: the next call returns the error. */
static void killed_while_idle(void **state)
{
    open_groups(5);
    weft_sim_kill(world->sim, 2);
    never = false;
    world_run(world, &never, WEFT_SECONDS(1));
    for (uint32_t r = 0; r < 5; r++) {
        struct weft_coll_args args = base_args(r);
        struct weft_error error = {0};
        if (r == 2) continue;
        assert_int_equal(weft_coll_post(groups[r], &args, outcome_done, NULL, NULL, &error),
                         WEFT_ERR_PEER_LOST);
        assert_non_null(strstr(error.text, "lost rank 2 (host c)"));
    }
    close_groups(5);
}

/* Rank 0 does not run for ten seconds (a debugger, a paused machine): they do not count for its deadline
 * of five. */
static void own_pause_does_not_count(void **state)
{
    open_groups(2);
    struct weft_coll_args args = base_args(0);
    args.deadline_ns = WEFT_SECONDS(5);
    post(0, &args);
    never = false;
    world_run(world, &never, WEFT_SECONDS(2));
    weft_sim_remove(world->sim, world->loops[0]);
    world_run(world, &never, WEFT_SECONDS(10));
    assert_int_equal(weft_sim_add(world->sim, 0, world->loops[0]), WEFT_OK);
    world_run(world, &never, WEFT_SECONDS(2));
    assert_false(outcomes[0].ended);
    args = base_args(1);
    post(1, &args);
    all_ended(2, WEFT_OK, "", "");
    close_groups(2);
}

/* ---- before a group is made here ---- */

static struct weft_group *make_in_epoch(uint32_t rank, uint32_t ranks, uint32_t group_id, uint32_t epoch)
{
    const uint32_t ids[] = {100, 101, 102};
    struct weft_group *group;
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.transport = world->transports[rank];
    options.loop = world->loops[rank];
    options.rank = rank;
    options.ranks = ranks;
    options.endpoint_ids = ids;
    options.group_id = group_id;
    options.epoch = epoch;
    options.names.describe = describe;
    options.modes.ids_increase = true;
    assert_int_equal(weft_group_create(world->envs[rank], &options, &group, NULL), WEFT_OK);
    return group;
}

static struct weft_group *make_one(uint32_t rank, uint32_t ranks, uint32_t group_id)
{
    return make_in_epoch(rank, ranks, group_id, 0);
}

static void run_for(uint64_t ns)
{
    never = false;
    world_run(world, &never, ns);
}

/* Control messages for groups that are made later wait, for one group after the other, without end. */
static void failure_before_the_group_exists(void **state)
{
    enum { GROUPS = 1500 }; /* more than the router holds at one time */
    open_groups(2);
    for (uint32_t g = 0; g < GROUPS; g++) {
        char text[32];
        struct weft_error error = {0};
        struct weft_coll_args args = {.kind = WEFT_COLL_BARRIER};
        snprintf(text, sizeof text, "group %u is no use", g);
        struct weft_group *early = make_one(0, 2, 10 + g);
        outcomes[0] = (struct outcome){0};
        assert_int_equal(weft_coll_post(early, &args, outcome_done, &outcomes[0], NULL, NULL),
                         WEFT_IN_PROGRESS);
        weft_group_fail(early, WEFT_ERR_ABORTED, text);
        run_for(WEFT_MS(1));
        assert_true(outcomes[0].ended);
        struct weft_group *late = make_one(1, 2, 10 + g);
        run_for(WEFT_MS(1)); /* the text is the payload */
        if (weft_coll_post(late, &args, outcome_done, &outcomes[1], NULL, &error) != WEFT_ERR_ABORTED ||
            strcmp(error.text, text) != 0)
            fail_msg("group %u: the reason is missing: %s", g, error.text);
        weft_group_free(early);
        weft_group_free(late);
    }
    close_groups(2);
}

/* The third rank is in none of many groups of the first two. Then all are in one group, and messages of
 * the first two arrive before the third has made it. */
static void rest(uint32_t epochs)
{
    struct weft_group *here[3], *before;
    open_groups(3);
    for (uint32_t r = 0; r < 3; r++) here[r] = make_in_epoch(r, 3, 10, 1);
    for (uint32_t r = 0; r < 3; r++) weft_group_fail(here[r], WEFT_ERR_PEER_LOST, "the third rests");
    for (uint32_t epoch = 2; epoch <= epochs; epoch++) {
        for (uint32_t r = 0; r < 2; r++) {
            weft_group_free(here[r]);
            here[r] = make_in_epoch(r, epoch == epochs ? 3 : 2, 10, epoch);
        }
        weft_groups_set_epoch(world->transports[2], epoch);
        run_for(WEFT_MS(1));
    }
    for (uint32_t r = 0; r < 3; r++) {
        struct weft_coll_args args = base_args(r);
        args.deadline_ns = WEFT_SECONDS(5);
        outcomes[r] = (struct outcome){0};
        if (r == 2) {
            run_for(WEFT_MS(10));
            before = here[r];
            here[r] = make_in_epoch(r, 3, 10, epochs);
            weft_group_free(before);
        }
        assert_int_equal(weft_coll_post(here[r], &args, outcome_done, &outcomes[r], NULL, NULL),
                         WEFT_IN_PROGRESS);
    }
    run_for(WEFT_SECONDS(10));
    for (uint32_t r = 0; r < 3; r++)
        if (!outcomes[r].ended || outcomes[r].status != WEFT_OK)
            fail_msg("rank %u, after %u epochs: %s", r, epochs, outcomes[r].text);
    for (uint32_t r = 0; r < 3; r++) weft_group_free(here[r]);
    close_groups(3);
}

static void a_rested_rank_receives_the_end_of_the_whole_group(void **state)
{
    const uint32_t epochs[] = {3, 100, 129, 130, 200, 256, 257, 258, 600};
    for (size_t i = 0; i < sizeof epochs / sizeof *epochs; i++) rest(epochs[i]);
}

/* A barrier of ranks first to last in the group of the first three, which the others of them have not
 * called. Half of its deadline has passed. */
static void wait_in_another_group(uint32_t first, uint32_t last, struct weft_group **others,
                                  struct outcome *ends)
{
    for (uint32_t r = 0; r < 3; r++) {
        struct weft_coll_args barrier = {.kind = WEFT_COLL_BARRIER, .deadline_ns = WEFT_SECONDS(20)};
        others[r] = make_one(r, 3, 10);
        if (r >= first && r <= last)
            assert_int_equal(weft_coll_post(others[r], &barrier, outcome_done, &ends[r], NULL, NULL),
                             WEFT_IN_PROGRESS);
    }
    run_for(WEFT_SECONDS(11));
}

/* The peer of a recv has called nothing in its group and waits in another group: the text names that. */
static void pair_with_one_that_waits_elsewhere(void **state)
{
    struct weft_group *others[3];
    struct outcome ends[3] = {{0}};
    open_groups(3);
    wait_in_another_group(0, 1, others, ends);
    struct weft_coll_args recv = pair_args(0, WEFT_COLL_RECV, 1, 10);
    post(0, &recv);
    all_ended(3, WEFT_ERR_DEADLINE,
              "rank 1 (host b), which has not met it, and waits for rank 2 (host c) in an operation of "
              "another group",
              "a recv");
    for (uint32_t r = 0; r < 3; r++) weft_group_free(others[r]);
    close_groups(3);
}

/* Only these two have not called it. */
static void two_that_wait_elsewhere(void **state)
{
    struct weft_group *others[3];
    struct outcome ends[3] = {{0}};
    open_groups(4);
    wait_in_another_group(1, 2, others, ends);
    for (uint32_t r = 0; r < 4; r += 3) {
        struct weft_coll_args args = base_args(r);
        args.deadline_ns = WEFT_SECONDS(2);
        post(r, &args);
    }
    all_ended(4, WEFT_ERR_DEADLINE,
              "furthest behind: rank 1 (host b), rank 2 (host c); ranks 1-2 have not called it",
              "all_reduce");
    for (uint32_t r = 0; r < 3; r++) weft_group_free(others[r]);
    close_groups(4);
}

static void said(struct weft_completion *completion, enum weft_status status) {}

/* A rank may claim to wait for any rank. */
static void an_answer_that_cannot_be(void **state)
{
    static const uint32_t awaited[] = {3, 77, GROUP_RANK_NONE - 1};
    for (uint32_t i = 0; i < 3; i++) {
        struct weft_group *two[2];
        struct outcome ends[2] = {{0}};
        open_groups(3);
        for (uint32_t r = 0; r < 2; r++) {
            struct weft_coll_args args = base_args(r);
            args.deadline_ns = WEFT_SECONDS(1);
            two[r] = make_one(r, 3, 10);
            assert_int_equal(weft_coll_post(two[r], &args, outcome_done, &ends[r], NULL, NULL),
                             WEFT_IN_PROGRESS);
        }
        /* rank 0 requests status; rank 2 has no such group and replies all the same */
        run_for(WEFT_SECONDS(1) + WEFT_MS(50));
        const struct coll_header header = {.type = COLL_MESSAGE_STATUS_REPLY,
                                           .group = 10,
                                           .rank = 2,
                                           .count = 1,
                                           .lanes = 1,
                                           .root = awaited[i]};
        uint8_t bytes[COLL_HEADER_BYTES];
        coll_header_write(bytes, &header);
        const struct weft_message message = {
            .tag = group_control_tag(two[0]), .header = bytes, .header_bytes = sizeof bytes};
        for (uint32_t r = 0; r < 2; r++) {
            static struct weft_completion sent[2];
            weft_completion_init(&sent[r], 1, said);
            assert_true(weft_transport_send(weft_transport_peer(world->transports[2], 100 + r), &message,
                                            &sent[r]) >= 0);
        }
        run_for(WEFT_SECONDS(5));
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(ends[r].status, WEFT_ERR_DEADLINE);
            if (!strstr(ends[r].text, "all ranks have called it, and it waits for rank 2 (host c)"))
                fail_msg("rank %u: %s", r, ends[r].text);
            weft_group_free(two[r]);
        }
        close_groups(3);
    }
}

/* ---- ended by the owner ---- */
static void failed_by_the_owner(void **state)
{
    uint32_t ranks = 5;
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args args = base_args(r);
        args.count = 40000;
        if (r != 3) post(r, &args);
    }
    never = false;
    world_run(world, &never, WEFT_MS(1));
    weft_group_fail(groups[0], WEFT_ERR_ABORTED, "the coordinator says so");
    assert_false(outcomes[0].ended); /* from the loop, not inside the call */
    all_ended(ranks, WEFT_ERR_ABORTED, "the coordinator says so", "");
    close_groups(ranks);
}

static void freed_in_the_middle(void **state)
{
    uint32_t ranks = 4;
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args args = base_args(r);
        args.count = 40000;
        post(r, &args);
    }
    never = false;
    world_run(world, &never, 7000);
    weft_group_free(groups[1]);
    groups[1] = NULL;
    assert_int_equal(outcomes[1].status, WEFT_ERR_CLOSED);
    world_run(world, &done, WEFT_SECONDS(400));
    for (uint32_t r = 0; r < ranks; r++) assert_int_equal(outcomes[r].times, 1);
    close_groups(ranks);
}

/* A group that ends in order: a rank that leaves first is not needed by operations that it took part in. */
static void leaving_is_no_loss(void **state)
{
    uint32_t ranks = 5;
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) post(r, &(struct weft_coll_args){.kind = WEFT_COLL_BARRIER});
    while (!outcomes[0].ended) {
        bool first = false;
        world_run(world, &first, 1000);
    }
    weft_group_free(groups[0]);
    groups[0] = NULL;
    all_ended(ranks, WEFT_OK, "", "");
    never = false;
    world_run(world, &never, WEFT_MS(1));
    struct weft_coll_args args = base_args(1);
    struct weft_error error = {0};
    assert_int_equal(weft_coll_post(groups[1], &args, outcome_done, NULL, NULL, &error), WEFT_ERR_PEER_LOST);
    assert_non_null(strstr(error.text, "rank 0 (host a) left"));
    close_groups(ranks);
}

static void cancelled(void **state)
{
    uint32_t ranks = 3;
    open_groups(ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_coll_args args = base_args(r);
        args.deadline_ns = WEFT_SECONDS(3);
        struct weft_coll *coll = post(r, &args);
        if (r == 1) weft_coll_cancel(coll);
    }
    assert_false(outcomes[1].ended);
    assert_int_equal(world_run(world, &done, WEFT_SECONDS(20)), WEFT_OK);
    assert_int_equal(outcomes[1].status, WEFT_ERR_CANCELLED);
    assert_int_equal(outcomes[0].status, WEFT_ERR_DEADLINE);
    assert_int_equal(outcomes[2].status, WEFT_ERR_DEADLINE);
    close_groups(ranks);
}

static void wrong_arguments(void **state)
{
    open_groups(2);
    struct weft_error error;
    struct weft_coll_args bad[8];
    for (size_t i = 0; i < 8; i++) bad[i] = base_args(0);
    bad[0].kind = 77;
    bad[1].dtype = 0;
    bad[2].op = 99;
    bad[3].kind = WEFT_COLL_BROADCAST, bad[3].root = 2, bad[3].plan = 0;
    bad[4].in = NULL;
    bad[5].count = UINT64_MAX / 3;
    bad[6].reproducible = true;
    bad[7].kind = WEFT_COLL_ALL_GATHER_BYTES, bad[7].plan = 0, bad[7].piece_bytes_max = 10;
    for (size_t i = 0; i < 8; i++) {
        error = (struct weft_error){0};
        assert_int_equal(weft_coll_post(groups[0], &bad[i], outcome_done, NULL, NULL, &error),
                         WEFT_ERR_INVALID);
        assert_true(strlen(error.text) > 10);
    }
    bad[0].kind = WEFT_COLL_BARRIER; /* by the ring */
    assert_int_equal(weft_coll_post(groups[0], &bad[0], outcome_done, NULL, NULL, &error),
                     WEFT_ERR_UNSUPPORTED);
    close_groups(2);
}

static void warned_after_30_s(void **state)
{
    struct log_capture capture;
    log_capture_init(&capture);
    open_groups_in(&capture.env, 2);
    struct weft_coll_args args = base_args(0);
    struct weft_coll_args recv = base_args(0);
    recv.kind = WEFT_COLL_RECV, recv.root = 1, recv.plan = WEFT_PLAN_AUTO;
    post(0, &args);
    post(0, &recv);
    never = false;
    world_run(world, &never, WEFT_SECONDS(29));
    assert_false(log_capture_contains(&capture, "waits for"));
    world_run(world, &never, WEFT_SECONDS(2));
    assert_true(log_capture_contains(
        &capture, "operation 0 (all_reduce of 1000 f32, sum, plan ring) waits for rank 1 (host b)"));
    assert_true(log_capture_contains(&capture, "a recv (message of 1000 f32) waits for rank 1 (host b)"));
    close_groups(2);
    log_capture_fini(&capture);
}

static void too_many(void **state)
{
    world = world_create(weft_env_system(), 2, 1, NULL);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.operations_max = 2;
    assert_int_equal(world_group(world, NULL, 2, 3, &options, groups), WEFT_OK);
    memset(outcomes, 0, sizeof outcomes);
    for (int i = 0; i < 3; i++) {
        struct weft_coll_args args = base_args(0);
        enum weft_status status = weft_coll_post(groups[0], &args, outcome_done, &outcomes[i], NULL, NULL);
        assert_int_equal(status, i < 2 ? WEFT_IN_PROGRESS : WEFT_ERR_AGAIN);
    }
    close_groups(2);
}

/* ---- memory runs out ---- */
static enum weft_status attempt(struct weft_env *env, void *context)
{
    world = world_create(env, 3, 1, NULL);
    if (!world) return WEFT_ERR_NO_MEMORY;
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.deadline_ns = WEFT_SECONDS(5);
    enum weft_status status = world_group(world, NULL, 3, 3, &options, groups);
    memset(outcomes, 0, sizeof outcomes);
    pending = 0;
    done = false;
    enum weft_status first = status;
    for (uint32_t r = 0; r < 3 && status == WEFT_OK; r++) {
        struct weft_coll_args args = base_args(r);
        args.plan = WEFT_PLAN_DIRECT;
        outcomes[r].pending = &pending;
        outcomes[r].all_done = &done;
        enum weft_status posted = weft_coll_post(groups[r], &args, outcome_done, &outcomes[r], NULL, NULL);
        if (posted == WEFT_IN_PROGRESS) pending++;
        else first = posted;
    }
    if (pending) world_run(world, &done, WEFT_SECONDS(60)); /* a step without memory is retried */
    for (uint32_t r = 0; r < 3; r++) {
        if (first == WEFT_OK && outcomes[r].status != WEFT_OK) first = WEFT_ERR_INTERNAL;
        if (status == WEFT_OK) weft_group_free(groups[r]);
    }
    world_free(world);
    struct fail_env *fail = context;
    /* it succeeded in spite of the failed allocation: equally good */
    return first == WEFT_OK && fail->failed ? WEFT_ERR_NO_MEMORY : first;
}

static void memory_runs_out(void **state)
{
    for (uint64_t n = 1;; n++) {
        struct fail_env env;
        fail_env_init(&env, n);
        enum weft_status status = attempt(&env.env, &env);
        if (atomic_load(&env.live))
            fail_msg("allocation %llu fails: %lld blocks leaked", (unsigned long long)n,
                     (long long)atomic_load(&env.live));
        if (status == WEFT_OK) break;
        if (status != WEFT_ERR_NO_MEMORY)
            fail_msg("allocation %llu fails: %s", (unsigned long long)n, weft_status_name(status));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_that_do_not_match),
        cmocka_unit_test(pieces_that_differ),
        cmocka_unit_test(counts_that_differ),
        cmocka_unit_test(two_ways_round),
        cmocka_unit_test(every_field),
        cmocka_unit_test(every_plan),
        cmocka_unit_test(other_root),
        cmocka_unit_test(other_order),
        cmocka_unit_test(late_rank),
        cmocka_unit_test(stopped_rank),
        cmocka_unit_test(cut_off_rank),
        cmocka_unit_test(cut_between_others),
        cmocka_unit_test(killed_rank),
        cmocka_unit_test(killed_while_idle),
        cmocka_unit_test(own_pause_does_not_count),
        cmocka_unit_test(failure_before_the_group_exists),
        cmocka_unit_test(a_rested_rank_receives_the_end_of_the_whole_group),
        cmocka_unit_test(pair_with_one_that_waits_elsewhere),
        cmocka_unit_test(two_that_wait_elsewhere),
        cmocka_unit_test(an_answer_that_cannot_be),
        cmocka_unit_test(failed_by_the_owner),
        cmocka_unit_test(freed_in_the_middle),
        cmocka_unit_test(leaving_is_no_loss),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(warned_after_30_s),
        cmocka_unit_test(too_many),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
