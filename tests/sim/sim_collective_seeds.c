/* sim_collective_seeds.c - 64 ranks in one process with random kills, slow hosts and late callers.
 *
 * A seed selects the network, three overlapping groups, a script of operations for each, slow hosts, late
 * callers, kills, and one more fault: a rank that calls another operation (count, element type, reduction,
 * plan, kind, root, order), a rank that never calls, or a cut between two hosts, for some time or
 * permanently. In some seeds a host aborts as weft_abort does: its groups fail; the groups of the others fail
 * when they learn of it, from the coordinator or only through their groups.
 *
 * Checks for every operation of every live rank:
 *   - it ended exactly once within bounded virtual time (no hang);
 *   - it has the right bits, or ended with WEFT_ERR_PEER_LOST, _MISMATCH, _DEADLINE or _ABORTED, as the fault
 *     allows, with a text that names one of the culprits (after an abort: the text of the rank that aborted);
 *   - in a group without a fault every operation succeeded.
 *
 * With --topology every seed has a random network (random_topology.h) whose links queue, lose, duplicate and
 * fail.
 *
 *     sim_collective_seeds [--seeds N] [--first S] [--ranks R] [--topology] [--verbose] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/core/group.h"
#include "tests/collective/reference.h"
#include "tests/collective/world.h"
#include "tests/sim/arena.h"
#include "tests/sim/random_topology.h"

#define GROUPS 3
#define NO_RANK UINT32_MAX
#define OPS_MAX 3

static void no_log(struct weft_env *env, enum weft_log_level level, const char *module, const char *text) {}

/* ---- one seed ---- */
static uint64_t random_state;

static uint64_t roll(uint64_t below)
{
    random_state += 0x9e3779b97f4a7c15ull;
    uint64_t x = random_state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (x ^ (x >> 31)) % below;
}

struct rank_op {
    struct rank_script *script;
    uint8_t *in, *out;
    struct outcome outcome;
};

/* Script of one rank of one group. */
struct rank_script {
    struct group_script *group_script;
    struct weft_group *group;
    struct weft_loop *loop;
    struct weft_timer late, abort_timer;     /* abort_timer: time at which it learns of an abort */
    uint32_t rank, host, posted, op_count;
    struct rank_op ops[OPS_MAX];
};

struct group_script {
    /* for the hierarchy: ranks that share a host; any placement is valid */
    struct weft_plan_hosts sharing;
    uint32_t sharing_memory[9 * WORLD_HOSTS_MAX + 5];
    uint32_t ranks, op_count, at_once; /* at_once: posts before it waits for one */
    uint32_t hosts[WORLD_HOSTS_MAX];
    struct call calls[OPS_MAX];
    uint8_t *expected[OPS_MAX];        /* outputs of all ranks in sequence, or one for all ranks */
    struct rank_script scripts[WORLD_HOSTS_MAX];
    struct call odd_calls[OPS_MAX];    /* calls of rank `odd` */
    /* NO_RANK; odd differs from operation odd_from on; absent calls nothing from absent_from on */
    uint32_t odd, absent;
    uint32_t odd_from, absent_from;
    bool aborted;                      /* the rank that aborts is a member, or all members learn of it */
    bool hurt, cut;                    /* a member was killed; a permanent cut is between two members */
};

struct run {
    struct world *world;
    struct group_script groups[GROUPS];
    bool killed[WORLD_HOSTS_MAX];
    uint32_t cut_a, cut_b;             /* hosts; NO_RANK */
    bool cut_heals;
    struct weft_timer cut_timer;
    uint32_t aborts;                   /* host; NO_RANK */
    bool aborts_told;                  /* the other hosts learn of it as from a coordinator */
    char abort_text[100];
    uint32_t pending;                  /* operations of hosts that are not killed */
    bool all_done;
    size_t chunk_bytes; /* of all groups */
    char why[1000];
};
static struct run run;

static void post_some(struct rank_script *script);

static const struct call *call_of(const struct group_script *g, const struct rank_script *script, uint32_t n)
{
    return script->rank == g->odd ? &g->odd_calls[n] : &g->calls[n];
}

static void op_done(void *context, enum weft_status status, const char *text)
{
    struct rank_op *op = context;
    struct rank_script *script = op->script;
    outcome_done(&op->outcome, status, text);
    if (!run.killed[script->host] && --run.pending == 0) run.all_done = true;
    post_some(script);
}

/* Two thirds of the operations, on all ranks, have an urgency that differs from rank to rank; in a third of
 * the seeds with the least credit, so that most of their sends wait. */
static uint64_t urgency_of(const struct rank_script *script, uint32_t index, const struct call *call)
{
    if (coll_is_sendrecv(call->kind) || index % 3 == 0) return 0;
    return 1 + (index * 5 + script->host * 7 + run.world->seed) % 11;
}

static void set_credit(struct weft_group *group)
{
    if (run.world->seed % 3 > 0) return;
    send_credit_open(group);
    if (group->sending.send_credit) group->sending.send_credit->is_least = true;
}

/* Posts what the script allows. A refusal counts as the result of the operation. */
static void post_some(struct rank_script *script)
{
    struct group_script *g = script->group_script;
    uint32_t ended = 0;
    for (uint32_t i = 0; i < script->posted; i++) ended += script->ops[i].outcome.ended;
    while (script->posted < script->op_count && script->posted - ended < g->at_once) {
        struct rank_op *op = &script->ops[script->posted];
        const uint32_t index = script->posted;
        const struct call *call = call_of(g, script, script->posted++);
        struct weft_coll_args args = {.kind = call->kind,
                                      .in = op->in,
                                      .out = op->out,
                                      .count = call->count,
                                      .dtype = call->dtype,
                                      .op = call->op,
                                      .root = call->root,
                                      .urgency = urgency_of(script, index, call),
                                      .plan = call->plan};
        set_credit(script->group);
        struct weft_error error = {0};
        enum weft_status status = weft_coll_post(script->group, &args, op_done, op, NULL, &error);
        if (status == WEFT_IN_PROGRESS) continue;
        outcome_done(&op->outcome, status, error.text);
        if (!run.killed[script->host] && --run.pending == 0) run.all_done = true;
        ended++;
    }
}

static void late_fired(struct weft_timer *timer)
{
    post_some(weft_container_of(timer, struct rank_script, late));
}

static void received_abort(struct weft_timer *timer)
{
    weft_group_fail(weft_container_of(timer, struct rank_script, abort_timer)->group, WEFT_ERR_ABORTED,
                    run.abort_text);
}

static bool same_everywhere(const struct call *call)
{
    return call->kind <= WEFT_COLL_BARRIER && call->kind != WEFT_COLL_REDUCE_SCATTER;
}

static void choose_call(struct call *call, const struct weft_plan_hosts *sharing, uint32_t ranks)
{
    static const enum weft_coll_kind kinds[] = {
        WEFT_COLL_ALL_REDUCE, WEFT_COLL_ALL_REDUCE, WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER,
        WEFT_COLL_ALL_GATHER, WEFT_COLL_BROADCAST,  WEFT_COLL_BARRIER,    WEFT_COLL_REDUCE,
        WEFT_COLL_GATHER,     WEFT_COLL_SCATTER,    WEFT_COLL_ALL_TO_ALL};
    static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_I64};
    *call = (struct call){.kind = kinds[roll(11)],
                          .dtype = dtypes[roll(5)],
                          .op = roll(3) ? WEFT_SUM : WEFT_AVG,
                          .ranks = ranks,
                          .root = (uint32_t)roll(ranks),
                          .seed = roll(1000000)};
    bool pieces = call->kind != WEFT_COLL_ALL_REDUCE && call->kind != WEFT_COLL_BROADCAST &&
                  call->kind != WEFT_COLL_REDUCE;
    call->count = pieces ? roll(4) : roll(8) ? roll(2 * ranks) : roll(700);
    call->plan = (enum weft_plan_id)(1 + roll(WEFT_PLAN_COUNT - 1));
    if (!weft_plan_supports(call->plan, call->kind)) call->plan = WEFT_PLAN_DIRECT;
    call->chunk_bytes = run.chunk_bytes;
    call->hosts = sharing;
}

/* ---- a rank that makes another call, or none ---- */
static bool calls_differ(const struct call *a, const struct call *b)
{
    if (a->kind != b->kind) return true;
    if (a->kind == WEFT_COLL_BARRIER) return a->plan != b->plan;
    bool sums =
        a->kind == WEFT_COLL_ALL_REDUCE || a->kind == WEFT_COLL_REDUCE_SCATTER || a->kind == WEFT_COLL_REDUCE;
    bool roots = a->kind == WEFT_COLL_BROADCAST || a->kind == WEFT_COLL_REDUCE ||
                 a->kind == WEFT_COLL_GATHER || a->kind == WEFT_COLL_SCATTER;
    return a->count != b->count || a->dtype != b->dtype || a->plan != b->plan || (sums && a->op != b->op) ||
           (roots && a->root != b->root);
}

static void change_call(struct call *call, const struct weft_plan_hosts *sharing, uint32_t ranks)
{
    struct call other;
    enum weft_plan_id plan = (enum weft_plan_id)(1 + roll(WEFT_PLAN_COUNT - 1));
    switch (roll(6)) {
    case 0: call->count += 1 + roll(40); break;
    case 1: call->dtype = call->dtype == WEFT_F32 ? WEFT_BF16 : WEFT_F32; break;
    case 2: call->op = call->op == WEFT_SUM ? WEFT_AVG : WEFT_SUM; break;
    case 3: if (weft_plan_supports(plan, call->kind)) call->plan = plan; break;
    case 4: call->root = (call->root + 1) % ranks; break;
    default:
        choose_call(&other, sharing, ranks);
        *call = other;
        break;
    }
}

static void choose_odd(struct group_script *g)
{
    uint32_t n = (uint32_t)roll(g->op_count);
    memcpy(g->odd_calls, g->calls, sizeof g->calls);
    if (roll(4) == 0 && n + 1 < g->op_count) { /* in the other order */
        g->odd_calls[n] = g->calls[n + 1];
        g->odd_calls[n + 1] = g->calls[n];
    }
    for (int tries = 0; tries < 20 && !calls_differ(&g->odd_calls[n], &g->calls[n]); tries++)
        change_call(&g->odd_calls[n], &g->sharing, g->ranks);
    if (!calls_differ(&g->odd_calls[n], &g->calls[n])) return;
    g->odd = (uint32_t)roll(g->ranks);
    g->odd_from = n;
}

static void choose_trouble(struct group_script *g)
{
    uint64_t what = roll(5);
    g->odd = g->absent = NO_RANK;
    if (g->ranks < 2) return;
    if (what == 0) choose_odd(g);
    if (what == 1) g->absent = (uint32_t)roll(g->ranks), g->absent_from = (uint32_t)roll(g->op_count);
}

/* As after a measurement of links: any order and speeds are valid. */
static void follow_links(struct group_script *g, const uint32_t *host_of)
{
    uint32_t order[WORLD_HOSTS_MAX], speeds[WORLD_HOSTS_MAX], lanes[WORLD_HOSTS_MAX];
    for (uint32_t h = 0; h < g->sharing.count; h++) {
        uint32_t other = (h * 5 + host_of[g->ranks / 2]) % (h + 1);
        order[h] = order[other], order[other] = h;
        speeds[h] = 1 + h * 7 % 5;
    }
    for (uint32_t l = 0; l < g->sharing.lanes; l++) lanes[l] = (l + 1) % 3;
    weft_plan_hosts_apply_links(
        &g->sharing, g->sharing_memory, g->ranks,
        &(struct weft_plan_links){.order = order, .speeds = speeds, .lane_speeds = lanes});
}

static void make_script(struct group_script *g, uint32_t ranks, uint32_t hosts)
{
    g->ranks = ranks;
    g->op_count = 1 + (uint32_t)roll(OPS_MAX);
    g->at_once = 1 + (uint32_t)roll(OPS_MAX);
    g->hurt = g->aborted = false;
    for (uint32_t i = 0; i < hosts; i++) g->hosts[i] = i;
    for (uint32_t i = 0; i < ranks; i++) { /* a random order of the first `ranks` hosts */
        uint32_t j = i + (uint32_t)roll(hosts - i), host = g->hosts[j];
        g->hosts[j] = g->hosts[i];
        g->hosts[i] = host;
    }
    uint32_t host_of[WORLD_HOSTS_MAX], shared = 1 + (uint32_t)roll(ranks);
    for (uint32_t r = 0; r < ranks; r++) host_of[r] = roll(4) ? r * shared / ranks : (uint32_t)roll(shared);
    weft_plan_hosts_init(host_of, ranks, g->sharing_memory, &g->sharing);
    if (shared % 2) follow_links(g, host_of);
    for (uint32_t n = 0; n < g->op_count; n++) {
        struct call *call = &g->calls[n];
        choose_call(call, &g->sharing, ranks);
        size_t elem = weft_dtype_bytes(call->dtype);
        uint64_t out = call_out_elems(call, call->root); /* no rank has a longer output */
        uint32_t copies = same_everywhere(call) ? 1 : ranks;
        g->expected[n] = arena_alloc(NULL, copies * out * elem + 1);
        for (uint32_t r = 0; r < copies; r++)
            for (uint64_t i = 0; i < call_out_elems(call, copies == 1 ? call->root : r); i++)
                reference_output(call, r, i, g->expected[n] + (r * out + i) * elem);
    }
}

static void make_rank(struct group_script *g, uint32_t rank, struct weft_group *group)
{
    struct rank_script *script = &g->scripts[rank];
    memset(script, 0, sizeof *script);
    script->group_script = g;
    script->group = group;
    script->rank = rank;
    script->host = g->hosts[rank];
    script->loop = run.world->loops[script->host];
    script->op_count = rank == g->absent ? g->absent_from : g->op_count;
    for (uint32_t n = 0; n < script->op_count; n++) {
        const struct call *call = call_of(g, script, n);
        struct rank_op *op = &script->ops[n];
        size_t elem = weft_dtype_bytes(call->dtype);
        uint64_t in = call_in_elems(call, rank), out = call_out_elems(call, rank);
        op->script = script;
        op->in = arena_alloc(NULL, in * elem + 1);
        op->out = arena_alloc(NULL, out * elem + 1);
        for (uint64_t i = 0; i < in; i++) reference_input(call, rank, i, op->in + i * elem);
        if (call->kind == WEFT_COLL_BROADCAST && rank == call->root)
            for (uint64_t i = 0; i < out; i++) reference_input(call, rank, i, op->out + i * elem);
        if (!run.killed[script->host]) run.pending++;
    }
    weft_timer_init(&script->late, late_fired);
    weft_timer_init(&script->abort_timer, received_abort);
    if (roll(10) == 0)
        weft_timer_start(script->loop, &script->late,
                         weft_now_ns(run.world->envs[script->host]) + roll(400000));
    else post_some(script);
}

static bool with_topology; /* --topology */
static bool still;         /* --still: the clock of a host does not advance during a callback */
static uint64_t retried;   /* bursts, of all seeds */
static struct weft_topology *topology;

static void tweak(struct weft_sim_options *options)
{
    options->still_clock = still;
    options->topology = topology;
    options->latency_ns = 1000 + roll(20000);
    options->jitter_ns = roll(10000);
    options->detect_ns = 100000 + roll(100000000);
    options->bytes_per_second = roll(3) ? 12500000000 : 100000000;
}

static bool is_culprit(const struct group_script *g, uint32_t rank)
{
    if (rank >= g->ranks) return false;
    uint32_t host = g->hosts[rank];
    return run.killed[host] || host == run.aborts || rank == g->odd || rank == g->absent ||
           (g->cut && (host == run.cut_a || host == run.cut_b));
}

/* "rank 3", "ranks 4, 7-9": returns whether a culprit is among the ranks that the text names. */
static bool names_a_culprit(const struct group_script *g, const char *text)
{
    for (const char *at = text; (at = strstr(at, "rank"));) {
        at += 4;
        if (*at == 's') at++;
        while (*at == ' ' || *at == ',') {
            char *end;
            if (*at++ == ',') continue;
            unsigned long first = strtoul(at, &end, 10), last = first;
            if (end == at) break;
            if (*end == '-') last = strtoul(end + 1, &end, 10);
            for (unsigned long r = first; r <= last; r++)
                if (is_culprit(g, (uint32_t)r)) return true;
            at = end;
        }
    }
    return false;
}

/* Returns whether an operation of this group may end with this status. */
static bool may_end_so(const struct group_script *g, enum weft_status status)
{
    if (status == WEFT_ERR_PEER_LOST) return g->hurt || g->cut;
    if (status == WEFT_ERR_MISMATCH) return g->odd != NO_RANK;
    if (status == WEFT_ERR_ABORTED) return g->aborted;
    /* A rank that has aborted calls nothing any more. If no other message reports the abort and nothing
     * was in flight, it is late. */
    if (status == WEFT_ERR_DEADLINE)
        return g->absent != NO_RANK || g->cut || (g->aborted && !run.aborts_told);
    return false;
}

static bool check_rank(const struct group_script *g, const struct rank_script *script, uint32_t group_index)
{
    for (uint32_t n = 0; n < script->op_count; n++) {
        const struct rank_op *op = &script->ops[n];
        const struct call *call = call_of(g, script, n);
        /* if its part completed before the error arrived, its result is undefined */
        bool odd = script->rank == g->odd && n >= g->odd_from;
        size_t elem = weft_dtype_bytes(call->dtype), bytes = call_out_elems(call, script->rank) * elem;
        const uint8_t *expected =
            g->expected[n] +
            (same_everywhere(call) ? 0 : script->rank * call_out_elems(call, call->root) * elem);
        const char *what = NULL;
        if (op->outcome.times != 1) what = "did not end once";
        else if (op->outcome.status == WEFT_OK && !odd && memcmp(op->out, expected, bytes) != 0)
            what = "has wrong bits";
        else if (op->outcome.status < 0 && !may_end_so(g, op->outcome.status))
            what = "failed with a status that nothing here explains";
        else if (op->outcome.status == WEFT_ERR_ABORTED && !strstr(op->outcome.text, run.abort_text))
            what = "does not name the rank that aborted";
        else if (op->outcome.status < 0 && op->outcome.status != WEFT_ERR_ABORTED &&
                 !names_a_culprit(g, op->outcome.text))
            what = "does not name the rank that caused it";
        if (!what) continue;
        int used = snprintf(
            run.why, sizeof run.why,
            "group %u rank %u (host %u), operation %u (%s %s, plan %s, count %llu) %s: %s: %s", group_index,
            script->rank, script->host, n, weft_coll_kind_name(call->kind), weft_dtype_name(call->dtype),
            weft_plan_name(call->plan), (unsigned long long)call->count, what,
            weft_status_name(op->outcome.status), op->outcome.text);
        const struct call *odd_call = &g->odd_calls[g->odd_from];
        if (g->odd != NO_RANK)
            snprintf(run.why + used, sizeof run.why - (size_t)used,
                     "\nrank %u calls %s %s, plan %s, count %llu, op %d, root %u as operation %u", g->odd,
                     weft_coll_kind_name(odd_call->kind), weft_dtype_name(odd_call->dtype),
                     weft_plan_name(odd_call->plan), (unsigned long long)odd_call->count, (int)odd_call->op,
                     odd_call->root, g->odd_from);
        if (g->absent != NO_RANK)
            snprintf(run.why + used, sizeof run.why - (size_t)used,
                     "\nrank %u calls nothing from operation %u on", g->absent, g->absent_from);
        return false;
    }
    return true;
}

static void cut_fired(struct weft_timer *timer)
{
    weft_sim_partition(run.world->sim, run.cut_a, run.cut_b, false);
}

/* A cut between two hosts, from the start or for some time; on the ideal network, where messages wait
 * meanwhile. (Random topologies have their own cuts.) */
static void choose_cut(uint32_t hosts)
{
    run.cut_a = run.cut_b = NO_RANK;
    if (with_topology || roll(5) != 0) return;
    run.cut_a = (uint32_t)roll(hosts);
    run.cut_b = (run.cut_a + 1 + (uint32_t)roll(hosts - 1)) % hosts;
    run.cut_heals = roll(2);
    weft_sim_partition(run.world->sim, run.cut_a, run.cut_b, true);
    uint32_t third = 0; /* host whose loop ends the cut: a host that is killed would never end it */
    while (third < hosts && run.killed[third]) third++;
    weft_timer_init(&run.cut_timer, cut_fired);
    if (third == hosts) run.cut_heals = false;
    if (run.cut_heals)
        weft_timer_start(run.world->loops[third], &run.cut_timer,
                         weft_now_ns(run.world->envs[third]) + 1000 + roll(WEFT_MS(50)));
}

/* Returns whether a permanent cut is between two members. */
static bool is_cut(const struct group_script *g)
{
    uint32_t ends = 0;
    for (uint32_t r = 0; r < g->ranks; r++) ends += g->hosts[r] == run.cut_a || g->hosts[r] == run.cut_b;
    return ends == 2 && !run.cut_heals;
}

static void choose_faults(uint32_t hosts)
{
    memset(run.killed, 0, sizeof run.killed);
    uint32_t kills = roll(4) ? (uint32_t)roll(4) : 0;
    for (uint32_t i = 0; i < kills; i++) {
        uint32_t host = (uint32_t)roll(hosts);
        run.killed[host] = true;
        weft_sim_kill_at(run.world->sim, host, roll(1200000));
    }
    for (uint32_t i = (uint32_t)roll(4); i > 0; i--)
        weft_sim_slow(run.world->sim, (uint32_t)roll(hosts), 2 + (uint32_t)roll(30));
}

/* One host aborts at some time, in some seeds. The last random draw of a seed. */
static void choose_abort(uint32_t hosts)
{
    run.aborts = NO_RANK;
    if (roll(4) != 0) return;
    run.aborts = (uint32_t)roll(hosts);
    run.aborts_told = roll(3) > 0;
    snprintf(run.abort_text, sizeof run.abort_text, "host %u aborted the job: the loss is not finite",
             run.aborts);
    uint64_t at_ns = weft_now_ns(run.world->envs[run.aborts]) + roll(1 << roll(21)),
             spread_ns = 1000 + roll(WEFT_MS(5));
    for (uint32_t k = 0; k < GROUPS; k++) {
        struct group_script *g = &run.groups[k];
        for (uint32_t r = 0; r < g->ranks; r++) {
            struct rank_script *script = &g->scripts[r];
            bool self = script->host == run.aborts;
            if (self || run.aborts_told) g->aborted = true;
            if (self || run.aborts_told)
                weft_timer_start(script->loop, &script->abort_timer, self ? at_ns : at_ns + roll(spread_ns));
        }
    }
}

static bool run_seed(struct weft_env *env, uint64_t seed, uint32_t hosts)
{
    random_state = seed * 0x2545f4914f6cdd1dull + 1;
    arena_reset();
    run.pending = 0;
    run.all_done = false;
    topology = with_topology ? random_topology(env, seed, hosts) : NULL;
    run.world = world_create(env, hosts, seed, tweak);
    if (!run.world) {
        snprintf(run.why, sizeof run.why, "no memory for the world");
        return false;
    }
    choose_faults(hosts);
    choose_cut(hosts);
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.chunk_bytes = run.chunk_bytes = roll(2) ? 64 : 1 << 20;
    options.inflight_max = roll(2) ? 16 : 2 + (uint32_t)roll(30);
    options.deadline_ns = WEFT_SECONDS(2); /* far longer than any operation without a fault */
    for (uint32_t k = 0; k < GROUPS; k++) {
        struct weft_group *groups[WORLD_HOSTS_MAX];
        struct group_script *g = &run.groups[k];
        make_script(g, k == 0 ? hosts : 1 + (uint32_t)roll(k == 1 ? hosts / 2 : 8), hosts);
        choose_trouble(g);
        options.hosts = &g->sharing;
        g->cut = is_cut(g);
        for (uint32_t r = 0; r < g->ranks; r++) g->hurt |= run.killed[g->hosts[r]];
        if (world_group(run.world, g->hosts, g->ranks, 1 + k, &options, groups) < 0) {
            snprintf(run.why, sizeof run.why, "group %u could not be made", k);
            return false;
        }
        for (uint32_t r = 0; r < g->ranks; r++) make_rank(g, r, groups[r]);
    }
    choose_abort(hosts);
    enum weft_status status = world_run(run.world, &run.all_done, WEFT_SECONDS(30));
    bool good = true;
    for (uint32_t k = 0; k < GROUPS && good; k++)
        for (uint32_t r = 0; r < run.groups[k].ranks && good; r++)
            if (!run.killed[run.groups[k].hosts[r]])
                good = check_rank(&run.groups[k], &run.groups[k].scripts[r], k);
    if (good && status != WEFT_OK) {
        snprintf(run.why, sizeof run.why, "hang: %u operations did not end in 30 s of virtual time (%s)",
                 run.pending, weft_status_name(status));
        good = false;
    }
    struct weft_sim_traffic traffic;
    weft_sim_traffic(run.world->sim, &traffic);
    retried += traffic.retried;
    free(run.world->loops);
    free(run.world->transports);
    free(run.world->envs);
    free(run.world); /* all other memory is in the arena */
    return good;
}

/* Of the live ranks. */
struct ends {
    uint64_t good, lost, mismatched, late, aborted;
};

static void count_ends(struct ends *ends)
{
    for (uint32_t k = 0; k < GROUPS; k++)
        for (uint32_t r = 0; r < run.groups[k].ranks; r++) {
            const struct rank_script *script = &run.groups[k].scripts[r];
            for (uint32_t n = 0; n < script->op_count && !run.killed[script->host]; n++) {
                enum weft_status status = script->ops[n].outcome.status;
                *(status == WEFT_OK             ? &ends->good
                  : status == WEFT_ERR_MISMATCH ? &ends->mismatched
                  : status == WEFT_ERR_DEADLINE ? &ends->late
                  : status == WEFT_ERR_ABORTED  ? &ends->aborted
                                                : &ends->lost) += 1;
            }
        }
}

int main(int argc, char **argv)
{
    uint64_t seeds = 20, first = 1, hurt = 0;
    struct ends ends = {0};
    uint32_t ranks = 64;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) ranks = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--topology") == 0) with_topology = true;
        else if (strcmp(argv[i], "--still") == 0) still = true;
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else {
            fprintf(stderr,
                    "usage: %s [--seeds N] [--first S] [--ranks 2..%d] [--topology] [--still] [--verbose]\n",
                    argv[0], WORLD_HOSTS_MAX);
            return 2;
        }
    }
    if (ranks < 2 || ranks > WORLD_HOSTS_MAX) return 2;
    struct weft_env env = *weft_env_system();
    if (!arena_make(&env)) return fprintf(stderr, "no memory for the arena\n"), 1;
    env.log = no_log;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (!run_seed(&env, seed, ranks)) {
            printf("seed %llu: %s\nreplay: %s --first %llu --seeds 1 --ranks %u%s%s\n",
                   (unsigned long long)seed, run.why, argv[0], (unsigned long long)seed, ranks,
                   with_topology ? " --topology" : "", still ? " --still" : "");
            return 1;
        }
        bool any = run.groups[0].hurt; /* group 0 has all hosts */
        hurt += any;
        count_ends(&ends);
        if (verbose) printf("seed %llu: fine%s\n", (unsigned long long)seed, any ? ", with kills" : "");
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
    printf("%llu seeds of %u ranks, %llu with kills: no hang, no wrong sum; %llu operations right, ended "
           "with the culprit named: %llu by a lost "
           "rank, %llu mismatched, %llu by their deadline, %llu by an abort (%.1f ms a seed)\n",
           (unsigned long long)seeds, ranks, (unsigned long long)hurt, (unsigned long long)ends.good,
           (unsigned long long)ends.lost, (unsigned long long)ends.mismatched, (unsigned long long)ends.late,
           (unsigned long long)ends.aborted, seconds * 1e3 / (double)seeds);
    free(arena);
    if (with_topology) printf("%llu bursts sent again\n", (unsigned long long)retried);
    return with_topology && seeds >= 20 && retried == 0; /* otherwise the links lost nothing */
}
