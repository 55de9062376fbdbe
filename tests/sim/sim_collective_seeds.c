/* sim_collective_seeds.c - 64 ranks in one process under random kills, slow hosts and late callers, seed after seed.
 *
 * A seed decides the network, three overlapping groups, a script of operations for each, who is slow, who calls
 * late, and who is killed when. Checked for every operation of every rank that lives:
 *   - it ended, exactly once, within bounded virtual time (no hang);
 *   - it either has the right bits (no wrong sum), or ended with WEFT_ERR_PEER_LOST naming a rank that was killed;
 *   - where nobody of a group was killed, everything succeeded.
 *
 * With --topology every seed has a network of its own (random_topology.h), whose links queue, lose, double and break.
 *
 *     sim_collective_seeds [--seeds N] [--first S] [--ranks R] [--topology] [--verbose]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/collective/reference.h"
#include "tests/collective/world.h"
#include "tests/sim/random_topology.h"

#define GROUPS 3
#define OPS_MAX 3

/* ---- memory: one arena, forgotten after each seed; freed blocks go back to their size class ---- */
#define ARENA_BYTES (512u << 20)
static uint8_t *arena;
static size_t arena_used;
static struct block { struct block *next; } *classes[40];

static uint32_t class_of(size_t bytes)
{
    uint32_t class = 6;
    while ((size_t)1 << class < bytes) class++;
    return class;
}

/* A block is preceded by 64 bytes that hold its class. */
static void *arena_alloc(struct weft_env *env, size_t bytes)
{
    uint32_t class = class_of(bytes);
    struct block *block = classes[class];
    if (block) {
        classes[class] = block->next;
        return block;
    }
    size_t whole = ((size_t)1 << class) + 64;
    if (arena_used + whole > ARENA_BYTES) return NULL;
    uint8_t *at = arena + arena_used;
    arena_used += whole;
    memcpy(at, &class, sizeof class);
    return at + 64;
}

static void arena_free(struct weft_env *env, void *memory)
{
    uint32_t class;
    memcpy(&class, (uint8_t *)memory - 64, sizeof class);
    struct block *block = memory;
    block->next = classes[class];
    classes[class] = block;
}

static void arena_reset(void)
{
    arena_used = 0;
    memset(classes, 0, sizeof classes);
}

static void no_log(struct weft_env *env, enum weft_log_level level, const char *room, const char *text) {}

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

/* What one rank of one group does. */
struct rank_script {
    struct group_script *group_script;
    struct weft_group *group;
    struct weft_loop *loop;
    struct weft_timer late;
    uint32_t rank, host, posted;
    struct rank_op ops[OPS_MAX];
};

struct group_script {
    uint32_t ranks, op_count, at_once; /* posts that many before it waits for one */
    uint32_t hosts[WORLD_HOSTS_MAX];
    struct call calls[OPS_MAX];
    uint8_t *expected[OPS_MAX];        /* outputs of all ranks one after the other, or one for all */
    struct rank_script scripts[WORLD_HOSTS_MAX];
    bool hurt;                         /* somebody of it was killed */
};

struct run {
    struct world *world;
    struct group_script groups[GROUPS];
    bool killed[WORLD_HOSTS_MAX];
    uint32_t pending;                  /* operations of hosts that are not to be killed */
    bool all_done;
    size_t chunk_bytes; /* of all groups */
    char why[700];
};
static struct run run;

static void post_some(struct rank_script *script);

static void op_done(void *context, enum weft_status status, const char *text)
{
    struct rank_op *op = context;
    struct rank_script *script = op->script;
    outcome_done(&op->outcome, status, text);
    if (!run.killed[script->host] && --run.pending == 0) run.all_done = true;
    post_some(script);
}

/* Post what the script allows; a refusal counts as the outcome of the operation. */
static void post_some(struct rank_script *script)
{
    struct group_script *g = script->group_script;
    uint32_t ended = 0;
    for (uint32_t i = 0; i < script->posted; i++) ended += script->ops[i].outcome.ended;
    while (script->posted < g->op_count && script->posted - ended < g->at_once) {
        struct rank_op *op = &script->ops[script->posted];
        const struct call *call = &g->calls[script->posted++];
        struct weft_coll_args args = {.kind = call->kind, .in = op->in, .out = op->out, .count = call->count, .dtype = call->dtype,
                                      .op = call->op, .root = call->root, .plan = call->plan};
        struct weft_error error = {0};
        enum weft_status status = weft_coll_post(script->group, &args, op_done, op, NULL, &error);
        if (status == WEFT_IN_PROGRESS) continue;
        outcome_done(&op->outcome, status, error.text);
        if (!run.killed[script->host] && --run.pending == 0) run.all_done = true;
        ended++;
    }
}

static void late_fired(struct weft_timer *timer) { post_some(weft_container_of(timer, struct rank_script, late)); }

static bool same_everywhere(const struct call *call) { return call->kind <= WEFT_COLL_BARRIER && call->kind != WEFT_COLL_REDUCE_SCATTER; }

static void choose_call(struct call *call, uint32_t ranks)
{
    static const enum weft_coll_kind kinds[] = {WEFT_COLL_ALL_REDUCE, WEFT_COLL_ALL_REDUCE, WEFT_COLL_ALL_REDUCE, WEFT_COLL_REDUCE_SCATTER,
                                                WEFT_COLL_ALL_GATHER, WEFT_COLL_BROADCAST, WEFT_COLL_BARRIER, WEFT_COLL_REDUCE, WEFT_COLL_GATHER,
                                                WEFT_COLL_SCATTER, WEFT_COLL_ALL_TO_ALL};
    static const enum weft_dtype dtypes[] = {WEFT_F32, WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_I64};
    *call = (struct call){.kind = kinds[roll(11)], .dtype = dtypes[roll(5)], .op = roll(3) ? WEFT_SUM : WEFT_AVG, .ranks = ranks,
                          .root = (uint32_t)roll(ranks), .seed = roll(1000000)};
    bool pieces = call->kind != WEFT_COLL_ALL_REDUCE && call->kind != WEFT_COLL_BROADCAST && call->kind != WEFT_COLL_REDUCE;
    call->count = pieces ? roll(4) : roll(8) ? roll(2 * ranks) : roll(700);
    call->plan = (enum weft_plan_id)(1 + roll(WEFT_PLAN_COUNT - 1));
    if (!weft_plan_supports(call->plan, call->kind)) call->plan = WEFT_PLAN_DIRECT;
    call->chunk_bytes = run.chunk_bytes;
}

static void make_script(struct group_script *g, uint32_t ranks, uint32_t hosts)
{
    g->ranks = ranks;
    g->op_count = 1 + (uint32_t)roll(OPS_MAX);
    g->at_once = 1 + (uint32_t)roll(OPS_MAX);
    g->hurt = false;
    for (uint32_t i = 0; i < hosts; i++) g->hosts[i] = i;
    for (uint32_t i = 0; i < ranks; i++) { /* a random arrangement of the first `ranks` drawn */
        uint32_t j = i + (uint32_t)roll(hosts - i), host = g->hosts[j];
        g->hosts[j] = g->hosts[i];
        g->hosts[i] = host;
    }
    for (uint32_t n = 0; n < g->op_count; n++) {
        struct call *call = &g->calls[n];
        choose_call(call, ranks);
        size_t elem = weft_dtype_bytes(call->dtype);
        uint64_t out = call_out_elems(call, call->root); /* nobody has a longer one */
        uint32_t copies = same_everywhere(call) ? 1 : ranks;
        g->expected[n] = arena_alloc(NULL, copies * out * elem + 1);
        for (uint32_t r = 0; r < copies; r++)
            for (uint64_t i = 0; i < call_out_elems(call, copies == 1 ? call->root : r); i++) reference_output(call, r, i, g->expected[n] + (r * out + i) * elem);
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
    for (uint32_t n = 0; n < g->op_count; n++) {
        const struct call *call = &g->calls[n];
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
    if (roll(10) == 0) weft_timer_start(script->loop, &script->late, weft_now_ns(run.world->envs[script->host]) + roll(400000));
    else post_some(script);
}

static bool with_topology; /* --topology */
static uint64_t retried;   /* bursts, of all seeds */
static struct weft_topology *topology;

static void tweak(struct weft_sim_options *options)
{
    options->topology = topology;
    options->latency_ns = 1000 + roll(20000);
    options->jitter_ns = roll(10000);
    options->detect_ns = 100000 + roll(100000000);
    options->bytes_per_second = roll(3) ? 12500000000 : 100000000;
}

/* Some killed rank of the group is named. */
static bool names_a_dead(const struct group_script *g, const char *text)
{
    for (uint32_t r = 0; r < g->ranks; r++) {
        char name[32];
        snprintf(name, sizeof name, "rank %u ", r);
        const char *at = strstr(text, name);
        if (at && run.killed[g->hosts[r]]) return true;
    }
    return false;
}

static bool check_rank(const struct group_script *g, const struct rank_script *script, uint32_t group_index)
{
    for (uint32_t n = 0; n < g->op_count; n++) {
        const struct rank_op *op = &script->ops[n];
        const struct call *call = &g->calls[n];
        size_t elem = weft_dtype_bytes(call->dtype), bytes = call_out_elems(call, script->rank) * elem;
        const uint8_t *expected = g->expected[n] + (same_everywhere(call) ? 0 : script->rank * call_out_elems(call, call->root) * elem);
        const char *what = NULL;
        if (op->outcome.times != 1) what = "did not end once";
        else if (op->outcome.status == WEFT_OK && memcmp(op->out, expected, bytes) != 0) what = "has wrong bits";
        else if (op->outcome.status < 0 && !g->hurt) what = "failed though nobody was killed";
        else if (op->outcome.status < 0 && op->outcome.status != WEFT_ERR_PEER_LOST) what = "failed with another status than peer lost";
        else if (op->outcome.status < 0 && !names_a_dead(g, op->outcome.text)) what = "names nobody who was killed";
        if (!what) continue;
        snprintf(run.why, sizeof run.why, "group %u rank %u (host %u), operation %u (%s %s, plan %s, count %llu) %s: %s: %s", group_index,
                 script->rank, script->host, n, weft_coll_kind_name(call->kind), weft_dtype_name(call->dtype), weft_plan_name(call->plan),
                 (unsigned long long)call->count, what, weft_status_name(op->outcome.status), op->outcome.text);
        return false;
    }
    return true;
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
    for (uint32_t i = (uint32_t)roll(4); i > 0; i--) weft_sim_slow(run.world->sim, (uint32_t)roll(hosts), 2 + (uint32_t)roll(30));
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
    struct weft_group_options options;
    weft_group_options_init(&options);
    options.chunk_bytes = run.chunk_bytes = roll(2) ? 64 : 1 << 20;
    options.inflight_max = roll(2) ? 16 : 2 + (uint32_t)roll(30);
    options.deadline_ns = WEFT_SECONDS(30);
    for (uint32_t k = 0; k < GROUPS; k++) {
        struct weft_group *groups[WORLD_HOSTS_MAX];
        struct group_script *g = &run.groups[k];
        make_script(g, k == 0 ? hosts : 1 + (uint32_t)roll(k == 1 ? hosts / 2 : 8), hosts);
        for (uint32_t r = 0; r < g->ranks; r++) g->hurt |= run.killed[g->hosts[r]];
        if (world_group(run.world, g->hosts, g->ranks, 1 + k, &options, groups) < 0) {
            snprintf(run.why, sizeof run.why, "group %u could not be made", k);
            return false;
        }
        for (uint32_t r = 0; r < g->ranks; r++) make_rank(g, r, groups[r]);
    }
    enum weft_status status = world_run(run.world, &run.all_done, WEFT_SECONDS(10));
    bool good = true;
    for (uint32_t k = 0; k < GROUPS && good; k++)
        for (uint32_t r = 0; r < run.groups[k].ranks && good; r++)
            if (!run.killed[run.groups[k].hosts[r]]) good = check_rank(&run.groups[k], &run.groups[k].scripts[r], k);
    if (good && status != WEFT_OK) {
        snprintf(run.why, sizeof run.why, "hang: %u operations did not end in 10 s of virtual time (%s)", run.pending, weft_status_name(status));
        good = false;
    }
    struct weft_sim_traffic traffic;
    weft_sim_traffic(run.world->sim, &traffic);
    retried += traffic.retried;
    free(run.world->loops);
    free(run.world->transports);
    free(run.world->envs);
    free(run.world); /* everything else lies in the arena */
    return good;
}

/* Of the ranks that lived. */
static void count_ends(uint64_t *good, uint64_t *lost)
{
    for (uint32_t k = 0; k < GROUPS; k++)
        for (uint32_t r = 0; r < run.groups[k].ranks; r++)
            for (uint32_t n = 0; n < run.groups[k].op_count && !run.killed[run.groups[k].hosts[r]]; n++)
                *(run.groups[k].scripts[r].ops[n].outcome.status == WEFT_OK ? good : lost) += 1;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 20, first = 1, hurt = 0, good = 0, lost = 0;
    uint32_t ranks = 64;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) ranks = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--topology") == 0) with_topology = true;
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else {
            fprintf(stderr, "usage: %s [--seeds N] [--first S] [--ranks 2..%d] [--topology] [--verbose]\n", argv[0], WORLD_HOSTS_MAX);
            return 2;
        }
    }
    if (ranks < 2 || ranks > WORLD_HOSTS_MAX) return 2;
    arena = malloc(ARENA_BYTES);
    struct weft_env env = *weft_env_system();
    env.alloc = arena_alloc;
    env.free = arena_free;
    env.log = no_log;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (!run_seed(&env, seed, ranks)) {
            printf("seed %llu: %s\nreplay: %s --first %llu --seeds 1 --ranks %u%s\n", (unsigned long long)seed, run.why, argv[0],
                   (unsigned long long)seed, ranks, with_topology ? " --topology" : "");
            return 1;
        }
        bool any = run.groups[0].hurt; /* it has all hosts */
        hurt += any;
        count_ends(&good, &lost);
        if (verbose) printf("seed %llu: fine%s\n", (unsigned long long)seed, any ? ", with kills" : "");
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
    printf("%llu seeds of %u ranks, %llu with kills: no hang, no wrong sum; %llu operations right, %llu lost and named (%.1f ms a seed)\n",
           (unsigned long long)seeds, ranks, (unsigned long long)hurt, (unsigned long long)good, (unsigned long long)lost,
           seconds * 1e3 / (double)seeds);
    free(arena);
    if (with_topology) printf("%llu bursts sent again\n", (unsigned long long)retried);
    return with_topology && seeds >= 20 && retried == 0; /* then the links lost nothing */
}
