/* test_retune.c - re-tuning of plans while a job runs (collective/core/retune.h), in virtual time. Ranks
 * that measure different times, some operations apart, never disagree; measured times correct a wrong link
 * table; a forced plan stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/core/group.h"
#include "collective/core/op.h"
#include "collective/core/retune.h"
#include "tests/collective/world.h"

#define RANKS_MAX 12u
#define DEPTH_MAX 4u
#define OPS_MAX 2400u
#define COUNT_MAX 65536u

struct script;
struct posted_op {
    struct script *script;
    struct weft_coll *coll;
    uint32_t number;
    bool busy;
    int32_t *in, *out; /* (COUNT_MAX,) */
};
struct script {
    uint32_t rank, next, ended, depth;
    bool stopped;
    struct weft_timer timer; /* when it goes on */
    struct weft_group *group;
    struct posted_op ops[DEPTH_MAX];
    uint8_t plans[OPS_MAX];
    uint64_t ended_ns[OPS_MAX];
};

static struct {
    struct world *world;
    struct script scripts[RANKS_MAX];
    uint32_t ranks, ops, pending, counts[4], count_kinds, delay_max_ns;
    enum weft_coll_kind kinds[4];
    enum weft_plan_id forced_plan;
    enum weft_dtype dtype;
    uint32_t fail_at; /* a rank fails after so many operations; 0: none */
    uint32_t root;
    bool leaves;      /* each rank leaves after its last operation */
    uint64_t random, latency_ns, bytes_per_second;
    bool done;
    const char *plans; /* plans of an earlier job, or NULL */
    char kept[WEFT_GROUP_PLANS_BYTES_MAX];
} run;

static uint64_t roll(uint64_t below)
{
    run.random = run.random * 6364136223846793005ull + 1442695040888963407ull;
    return below ? (run.random >> 33) % below : 0;
}
static uint32_t count_of(uint32_t number) { return run.counts[number % run.count_kinds]; }
static enum weft_coll_kind kind_of(uint32_t number) { return run.kinds[number % run.count_kinds]; }
static int32_t input(uint32_t rank, uint32_t number, uint32_t i)
{
    return (int32_t)(rank * 1000 + number + i);
}

static void post_some(struct script *script);

static void check_output(const struct posted_op *op)
{
    if (run.dtype != WEFT_I32) return;
    uint32_t count = count_of(op->number), piece = 0;
    bool gathers = kind_of(op->number) == WEFT_COLL_ALL_GATHER;
    for (uint32_t i = 0; i < (gathers ? count * run.ranks : count); i += 1 + i / 7) {
        int32_t is_wanted = 0;
        if (kind_of(op->number) == WEFT_COLL_BROADCAST) is_wanted = input(run.root, op->number, i);
        else if (gathers) piece = i / count, is_wanted = input(piece, op->number, i - piece * count);
        else for (uint32_t r = 0; r < run.ranks; r++) is_wanted += input(r, op->number, i);
        assert_int_equal(op->out[i], is_wanted);
    }
}

/* The group has ended: this rank is done when its last operation is. */
static void stop(struct script *script)
{
    for (uint32_t slot = 0; slot < script->depth; slot++)
        if (script->ops[slot].busy) return;
    if (script->stopped) return;
    script->stopped = true;
    if (--run.pending == 0) run.done = true;
}

static void op_done(void *context, enum weft_status status, const char *text)
{
    struct posted_op *op = context;
    struct script *script = op->script;
    op->busy = false;
    if (status != WEFT_OK && run.fail_at) {
        if (status != WEFT_ERR_ABORTED)
            fail_msg("rank %u of %u, operation %u: %s: %s", script->rank, run.ranks, op->number,
                     weft_status_name(status), text);
        stop(script);
        return;
    }
    if (status != WEFT_OK) fail_msg("rank %u, operation %u: %s", script->rank, op->number, text);
    script->plans[op->number] = (uint8_t)weft_coll_plan(op->coll);
    script->ended_ns[op->number] = weft_now_ns(run.world->envs[script->rank]);
    check_output(op);
    bool last = ++script->ended == run.ops;
    if (last && run.leaves) {
        weft_group_free(script->group);
        script->group = NULL;
    }
    if (last && --run.pending == 0) run.done = true;
    if (last) return;
    uint64_t delay_ns = run.delay_max_ns && roll(3) == 0 ? roll(run.delay_max_ns) : 0;
    if (delay_ns == 0) post_some(script);
    else
        weft_timer_start(run.world->loops[script->rank], &script->timer,
                         weft_now_ns(run.world->envs[script->rank]) + delay_ns);
}

static void post_some(struct script *script)
{
    for (uint32_t slot = 0; slot < script->depth && script->next < run.ops; slot++) {
        struct posted_op *op = &script->ops[slot];
        if (op->busy) continue;
        op->number = script->next++;
        op->busy = true;
        for (uint32_t i = 0; i < count_of(op->number) && run.dtype == WEFT_I32; i++)
            op->in[i] = input(script->rank, op->number, i);
        /* in place */
        if (run.count_kinds == 1 && run.kinds[0] == WEFT_COLL_BROADCAST)
            memcpy(op->out, op->in, count_of(op->number) * sizeof *op->out);
        struct weft_coll_args args = {.kind = kind_of(op->number),
                                      .in = op->in,
                                      .out = op->out,
                                      .count = count_of(op->number),
                                      .dtype = run.dtype,
                                      .op = WEFT_SUM,
                                      .plan = run.forced_plan,
                                      .root = run.root};
        struct weft_error error = {0};
        bool posted =
            weft_coll_post(script->group, &args, op_done, op, &op->coll, &error) == WEFT_IN_PROGRESS;
        if (posted && run.fail_at && script->rank == run.ranks - 1 && op->number == run.fail_at)
            weft_group_fail(script->group, WEFT_ERR_ABORTED, "enough");
        if (posted) continue;
        if (!run.fail_at) fail_msg("%s", error.text);
        op->busy = false;
        stop(script);
        return;
    }
}

static void timer_fired(struct weft_timer *timer)
{
    post_some(weft_container_of(timer, struct script, timer));
}

static void no_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text) {}

static void network(struct weft_sim_options *options)
{
    options->latency_ns = run.latency_ns;
    options->bytes_per_second = run.bytes_per_second;
}

/* Runs all operations on all ranks; on every rank each had the same plan. */
static void run_job(enum weft_retune retune, const struct weft_link_cost *cost, uint64_t seed,
                    uint32_t depth_max)
{
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.retune = retune;
    options.cost = cost;
    struct weft_group *groups[RANKS_MAX];
    run.random = seed * 977 + 1;
    static struct weft_env ops_since_settled;
    ops_since_settled = *weft_env_system();
    ops_since_settled.log = no_log;
    run.world = world_create(&ops_since_settled, run.ranks, seed, network);
    assert_non_null(run.world);
    assert_int_equal(world_group(run.world, NULL, run.ranks, 7, &options, groups), WEFT_OK);
    struct weft_error error = {0};
    if (run.plans && weft_group_plans_read(groups[0], run.plans, strlen(run.plans), &error) < 0)
        fail_msg("%s", error.text);
    run.pending = run.ranks;
    run.done = false;
    for (uint32_t r = 0; r < run.ranks; r++) {
        struct script *script = &run.scripts[r];
        script->rank = r;
        script->next = script->ended = 0;
        script->stopped = false;
        script->depth = 1 + (uint32_t)roll(depth_max);
        script->group = groups[r];
        weft_timer_init(&script->timer, timer_fired);
        for (uint32_t slot = 0; slot < DEPTH_MAX; slot++) {
            struct posted_op *op = &script->ops[slot];
            op->script = script;
            op->busy = false;
            if (!op->in)
                op->in = calloc(COUNT_MAX, sizeof *op->in), op->out = calloc(COUNT_MAX, sizeof *op->out);
        }
    }
    for (uint32_t r = 0; r < run.ranks; r++) post_some(&run.scripts[r]);
    assert_int_equal(world_run(run.world, &run.done, WEFT_SECONDS(1000)), WEFT_OK);
    for (uint32_t r = 1; r < run.ranks; r++)
        for (uint32_t n = 0; n < (run.fail_at ? run.fail_at / 2 : run.ops); n++) /* completed on all ranks */
            if (run.scripts[r].plans[n] != run.scripts[0].plans[n])
                fail_msg("seed %llu: operation %u: rank %u took another plan", (unsigned long long)seed, n,
                         r);
    if (!run.leaves)
        assert_in_range(weft_group_plans_write(groups[0], run.kept, sizeof run.kept), 30,
                        sizeof run.kept - 1);
    for (uint32_t r = 0; r < run.ranks; r++) {
        weft_timer_stop(run.world->loops[r], &run.scripts[r].timer);
        weft_group_free(run.scripts[r].group);
    }
    world_free(run.world);
}

static uint32_t changes(void)
{
    uint32_t found = 0;
    for (uint32_t n = run.count_kinds; n < run.ops; n++)
        found += run.scripts[0].plans[n] != run.scripts[0].plans[n - run.count_kinds];
    return found;
}

/* Nanoseconds of operations [first, first + count), one at a time. */
static uint64_t time_of(uint32_t first, uint32_t count)
{
    return (run.scripts[0].ended_ns[first + count - 1] - run.scripts[0].ended_ns[first - 1]) / count;
}

static void one_kind(uint32_t ranks, enum weft_coll_kind kind, uint32_t count, uint32_t ops)
{
    run.ranks = ranks, run.ops = ops, run.count_kinds = 1, run.kinds[0] = kind, run.counts[0] = count;
    run.forced_plan = WEFT_PLAN_AUTO, run.dtype = WEFT_I32, run.delay_max_ns = 0;
    run.latency_ns = 2000, run.bytes_per_second = 1250000000;
}

static void ranks_never_disagree(void **state)
{
    uint32_t changed = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        one_kind(2 + seed % 7, WEFT_COLL_ALL_REDUCE, 300, 500);
        run.count_kinds = 4;
        run.kinds[1] = WEFT_COLL_ALL_GATHER, run.kinds[2] = WEFT_COLL_ALL_REDUCE,
        run.kinds[3] = WEFT_COLL_BROADCAST;
        run.counts[1] = 64, run.counts[2] = 5000, run.counts[3] = 100;
        run.kinds[3] = WEFT_COLL_ALL_REDUCE;
        run.delay_max_ns = seed % 3 ? 100000 : 3000;
        struct weft_link_cost wrong = {.pairs = 2,
                                       .latency_ns = seed % 2 ? 300000 : 100,
                                       .bytes_per_second = seed % 2 ? 100000000000 : 100000000};
        run_job(WEFT_RETUNE_ANY, &wrong, seed, DEPTH_MAX);
        changed += changes();
    }
    assert_in_range(changed, 100, 100000);
}

static void a_wrong_table_is_corrected(void **state)
{
    static const struct {
        enum weft_coll_kind kind;
        uint32_t count;
        struct weft_link_cost wrong;
    } cases[] = {
        {WEFT_COLL_ALL_REDUCE, 60000, {.pairs = 2, .latency_ns = 400000, .bytes_per_second = 100000000000}},
        {WEFT_COLL_ALL_REDUCE, 200, {.pairs = 2, .latency_ns = 1, .bytes_per_second = 10000000}},
        {WEFT_COLL_ALL_GATHER, 20, {.pairs = 2, .latency_ns = 1, .bytes_per_second = 10000000}}};
    static const enum weft_plan_id plans[] = {WEFT_PLAN_DIRECT,  WEFT_PLAN_RING,  WEFT_PLAN_DOUBLING,
                                              WEFT_PLAN_HALVING, WEFT_PLAN_BRUCK, WEFT_PLAN_PAT};
    uint32_t gained = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t best = UINT64_MAX;
        one_kind(12, cases[i].kind, cases[i].count, 12);
        for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
            run.forced_plan = plans[p];
            if (!weft_plan_supports(run.forced_plan, run.kinds[0])) continue;
            run_job(WEFT_RETUNE_OFF, &cases[i].wrong, 5, 1);
            if (time_of(4, 8) < best) best = time_of(4, 8);
        }
        one_kind(12, cases[i].kind, cases[i].count, 200);
        run_job(WEFT_RETUNE_ANY, &cases[i].wrong, 5, 1);
        uint64_t first = time_of(2, 6), last = time_of(190, 8);
        print_message("case %zu: best %llu ns, model's %llu, re-tuned %llu, %u changes\n", i,
                      (unsigned long long)best, (unsigned long long)first, (unsigned long long)last,
                      changes());
        assert_true(last < first);
        assert_true(last * 8 <= best * 9); /* close to the best plan */
        gained += last * 4 < first * 3;
        /* each plan was tried once, then the best one stays */
        assert_in_range(changes(), 1, WEFT_PLAN_COUNT);
    }
    assert_in_range(gained, 2, 3); /* more than a quarter */
}

/* A rank fails, perhaps while others hold operations: all end with its text. */
static void no_rank_waits_for_ever(void **state)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct weft_link_cost wrong = {.pairs = 2, .latency_ns = 100, .bytes_per_second = 100000000};
        one_kind(2 + seed % 5, WEFT_COLL_ALL_REDUCE, 100, 300);
        run.delay_max_ns = 5000;
        run.fail_at = 8 + (uint32_t)seed % 23;
        run_job(WEFT_RETUNE_ANY, &wrong, seed, DEPTH_MAX);
    }
    run.fail_at = 0;
}

/* A broadcast completes at its root before other ranks call it. A rank leaves after its last operation,
 * also during a change, and the others complete theirs. */
static void no_rank_waits_for_one_that_has_left(void **state)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct weft_link_cost wrong = {.pairs = 2, .latency_ns = 100, .bytes_per_second = 100000000};
        one_kind(3 + seed % 4, WEFT_COLL_BROADCAST, 100, 10 + (uint32_t)seed % 17);
        run.root = seed % 2 ? 0 : (uint32_t)(seed / 2) % run.ranks;
        run.delay_max_ns = seed % 3 ? 100000 : 10000;
        run.leaves = true;
        run_job(WEFT_RETUNE_ANY, &wrong, seed, DEPTH_MAX);
    }
    run.root = 0, run.leaves = false;
}

/* A report about operations that rank 0 has not called yet counts; a report that no rank could send does
 * not. */
static void a_report_before_the_first_call(void **state)
{
    struct weft_link_cost cost = {.pairs = 2, .latency_ns = 2000, .bytes_per_second = 1250000000};
    struct weft_group_options options;
    struct weft_group *groups[RANKS_MAX];
    weft_group_options_init(&options);
    options.retune = WEFT_RETUNE_ANY;
    options.cost = &cost;
    run.latency_ns = 2000, run.bytes_per_second = 1250000000;
    struct world *world = world_create(weft_env_system(), 3, 1, network);
    assert_non_null(world);
    assert_int_equal(world_group(world, NULL, 3, 7, &options, groups), WEFT_OK);
    const struct retune *retune = groups[0]->planning.retune;
    struct coll_header report = {.type = COLL_MESSAGE_RETUNE_REPORT, .rank = 1, .count = 5000};
    static const uint64_t wrong[] = {0, 1 << 19, 64 << 8 | WEFT_COLL_BROADCAST,
                                     (uint64_t)1 << 32 | WEFT_COLL_BROADCAST};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        report.cuts = wrong[i];
        retune_receive(groups[0], &report);
        assert_int_equal(retune->cells[0].key, 0);
    }
    report.cuts = 8 << 8 | WEFT_COLL_BROADCAST;
    for (uint32_t reports = 1; reports <= 5; reports++) { /* more reports than ranks: one is a duplicate */
        retune_receive(groups[0], &report);
        assert_int_equal(retune->cells[0].key, report.cuts);
        assert_int_equal(retune->cells[0].reports, reports);
        assert_false(retune->cells[0].is_wanted); /* nothing is decided before rank 0 has called it */
    }
    report.sequence = 1; /* of a version that does not exist */
    retune_receive(groups[0], &report);
    assert_int_equal(retune->cells[0].reports, 5);
    for (uint32_t r = 0; r < 3; r++) weft_group_free(groups[r]);
    world_free(world);
}

/* A job begins with the plans that an earlier one settled. */
static void kept_for_the_next_job(void **state)
{
    struct weft_link_cost wrong = {.pairs = 2, .latency_ns = 1, .bytes_per_second = 10000000};
    static char text[WEFT_GROUP_PLANS_BYTES_MAX];
    one_kind(12, WEFT_COLL_ALL_REDUCE, 200, 100);
    run_job(WEFT_RETUNE_ANY, &wrong, 5, 1);
    uint8_t first = run.scripts[0].plans[0], settled = run.scripts[0].plans[99];
    assert_int_not_equal(first, settled);
    snprintf(text, sizeof text, "%s", run.kept);
    run.plans = text;
    run_job(WEFT_RETUNE_ANY, &wrong, 5, 1);
    run.plans = NULL;
    /* none is tried again */
    for (uint32_t n = 12; n < 60; n++) assert_int_equal(run.scripts[0].plans[n], settled);
    assert_non_null(strstr(run.kept, weft_plan_name(settled)));
}

/* A file is taken whole or not at all, and no content does harm. */
static void bad_files(void **state)
{
    static const char good[] = "weft-plans 1\nranks 3 hosts 0\ncell all_reduce 9 2 ring 5000\ncell "
                               "all_gather 12 0 bruck 70\nend 2\n";
    static const char *const bad[] = {
        "",
        "weft-plans 2\n",
        "weft-plans 1\nranks 4 hosts 0\nend 0\n",
        "weft-plans 1\nranks 3 hosts 0\n",
        "weft-plans 1\nranks 3 hosts 0\nend 1\n",
        "weft-plans 1\nranks 3 hosts 0\ncell all_reduce 9 2 bruck 5000\nend 1\n",
        "weft-plans 1\nranks 3 hosts 0\ncell nothing 9 2 ring 5000\nend 1\n",
        "weft-plans 1\nranks 3 hosts 0\ncell all_reduce 64 2 ring 5000\nend 1\n",
        "weft-plans 1\nranks 3 hosts 0\ncell all_reduce 9 8 ring 5000\nend 1\n",
        "weft-plans 1\nranks 3 hosts 0\ncell all_reduce 9 2 ring 0\nend 1\n",
        "weft-plans 1\nranks 3 hosts 0\ncell all_reduce 9 2 ring 5 6\nend 1\n"};
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.retune = WEFT_RETUNE_ANY;
    struct weft_group *groups[RANKS_MAX];
    struct weft_error error;
    one_kind(3, WEFT_COLL_ALL_REDUCE, 100, 10);
    run.world = world_create(weft_env_system(), 3, 1, network);
    assert_int_equal(world_group(run.world, NULL, 3, 7, &options, groups), WEFT_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_true(weft_group_plans_read(groups[0], bad[i], strlen(bad[i]), &error) < 0);
    for (size_t bytes = 0; bytes + 1 < sizeof good; bytes++)
        assert_true(weft_group_plans_read(groups[0], good, bytes, &error) < 0);
    assert_int_equal(weft_group_plans_write(groups[0], run.kept, sizeof run.kept),
                     strlen("weft-plans 1\nranks 3 hosts 0\nend 0\n"));
    assert_int_equal(weft_group_plans_read(groups[0], good, sizeof good - 1, &error), WEFT_OK);
    assert_int_equal(weft_group_plans_write(groups[0], run.kept, sizeof run.kept), sizeof good - 1);
    assert_string_equal(run.kept, good);
    for (uint32_t r = 0; r < 3; r++) weft_group_free(groups[r]);
    world_free(run.world);
}

static void a_forced_plan_is_kept(void **state)
{
    struct weft_link_cost wrong = {.pairs = 2, .latency_ns = 400000, .bytes_per_second = 100000000000};
    one_kind(6, WEFT_COLL_ALL_REDUCE, 3000, 60);
    run.forced_plan = WEFT_PLAN_RING;
    run_job(WEFT_RETUNE_ANY, &wrong, 3, 2);
    for (uint32_t n = 0; n < run.ops; n++) assert_int_equal(run.scripts[0].plans[n], WEFT_PLAN_RING);
    run.forced_plan = WEFT_PLAN_AUTO;
    run_job(WEFT_RETUNE_OFF, &wrong, 3, 2);
    assert_int_equal(changes(), 0);
}

/* Floats: only plans that evaluate the tree of the model's choice are tried. */
static void order_is_kept(void **state)
{
    struct weft_link_cost wrong = {.pairs = 2, .latency_ns = 20000, .bytes_per_second = 100000000000};
    one_kind(8, WEFT_COLL_ALL_REDUCE, 20000, 200);
    run.dtype = WEFT_F32;
    run_job(WEFT_RETUNE_SAME_ORDER, &wrong, 3, 1);
    assert_in_range(changes(), 1, WEFT_PLAN_COUNT);
    for (uint32_t n = 0; n < run.ops; n++) assert_true(weft_plan_reproducible(run.scripts[0].plans[n], NULL));
}

/* Two sizes of one octave whose modelled plans add in different orders: each keeps its own. */
static void order_is_kept_within_an_octave(void **state)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < 60; i++) {
        struct weft_link_cost wrong = {
            .pairs = 2, .latency_ns = 500 << i % 10, .bytes_per_second = 1000000000};
        uint8_t without[2];
        one_kind(6, WEFT_COLL_ALL_REDUCE, 1024 << i / 10, 4);
        run.dtype = WEFT_F32, run.count_kinds = 2, run.kinds[1] = WEFT_COLL_ALL_REDUCE,
        run.counts[1] = run.counts[0] * 2 - 8;
        run_job(WEFT_RETUNE_OFF, &wrong, 3, 1);
        memcpy(without, run.scripts[0].plans, sizeof without);
        if (weft_plan_reproducible(without[0], NULL) == weft_plan_reproducible(without[1], NULL)) continue;
        for (int turned = 0; turned < 2; turned++) { /* which of them is the first of the cell */
            run.counts[turned] = 1024 << i / 10, run.counts[1 - turned] = 2 * run.counts[turned] - 8,
            run.ops = 300;
            run_job(WEFT_RETUNE_SAME_ORDER, &wrong, 3, 1);
            for (uint32_t n = 0; n < run.ops; n++) {
                uint8_t plan = run.scripts[0].plans[n], own = without[(n + turned) % 2];
                if (plan != own && !(weft_plan_reproducible(plan, NULL) && weft_plan_reproducible(own, NULL)))
                    fail_msg("operation %u of %u elements: %s, without re-tuning %s", n, count_of(n),
                             weft_plan_name(plan), weft_plan_name(own));
            }
        }
        found++;
    }
    assert_in_range(found, 1, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_never_disagree),
                                       cmocka_unit_test(a_wrong_table_is_corrected),
                                       cmocka_unit_test(no_rank_waits_for_ever),
                                       cmocka_unit_test(no_rank_waits_for_one_that_has_left),
                                       cmocka_unit_test(a_report_before_the_first_call),
                                       cmocka_unit_test(kept_for_the_next_job),
                                       cmocka_unit_test(bad_files),
                                       cmocka_unit_test(a_forced_plan_is_kept),
                                       cmocka_unit_test(order_is_kept),
                                       cmocka_unit_test(order_is_kept_within_an_octave)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        for (uint32_t slot = 0; slot < DEPTH_MAX; slot++) {
            free(run.scripts[r].ops[slot].in);
            free(run.scripts[r].ops[slot].out);
        }
    return failed;
}
