/* sim_group_seeds.c - whole jobs in virtual time, with several groups of ranks, with shards, and with
 * differing calls.
 *
 * A seed selects the workers and shards, the groups (a split, the axes of a mesh; with --created also groups
 * of weft_comm_create, with common ranks), the operations of each step in each group and their interleaving
 * on each rank, with --reordered also the order of the two pushes on each rank; whether one rank once calls
 * another operation, count, element type or root, or makes a group with another tag; and hosts that die, stop
 * for some time, or are cut off. Workers and shards (weftd_run) are programs with their own stacks
 * (sim_process.h).
 *
 * Checks:
 *   - every worker ends in bounded virtual time;
 *   - every result that a rank gets with WEFT_OK has the bits of the operation's definition, of integers that
 *     the test adds;
 *   - a differing call ends the job on all ranks with WEFT_ERR_MISMATCH and the name of its caller, unless a
 *     rank died before;
 *   - any other end has a status that a fault explains and a text that names a culprit; with short stops and
 *     cuts only, every worker completes.
 * A failing seed prints the command that replays it.
 *
 *     sim_group_seeds [--seeds N] [--first S] [--created] [--reordered] [--late] [--breaks] [--each-frame]
 *     [--verbose]
 *     --late: half of the steps have deliver_late
 *     --breaks: no host fails, and the network breaks control connections by chance: every worker completes
 *     --each-frame: the same with one break, at each frame between the coordinator and a member in turn */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/session/session.h"
#include "server/server.h"
#include "tests/sim/arena.h"
#include "tests/sim/seed.h"
#include "tests/sim/sim_host_faults.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_process.h"

enum { HAND = 0, COORDINATOR = 1, FIRST = 2 }; /* hosts: workers from FIRST on, then shards */
enum {
    WORKERS_MAX = 8,
    SHARDS_MAX = 3,
    STEPS_MAX = 5,
    CALLS_MAX = 6,
    GROUPS = 6, /* 0: all; 1: split; 2, 3: axes of a mesh; 4, 5: made by their members, with --created */
    GROUPS_FIRST_CREATED = 4,
    COUNT_MAX = 400,
    PUSHED = 300
};

#define DEADLINE_NS WEFT_SECONDS(20)

enum ending { RUNS, FINISHED, FAILED };

struct planned { /* a call, equal on all ranks of its group but one */
    uint32_t group;
    enum weft_call_kind kind;
    uint32_t count, root;
};

struct worker {
    uint32_t host, rank;
    struct weft_session *session;
    struct weft_comm *comms[GROUPS];  /* NULL: all, or not made */
    struct weft_tensor *tensors[2];   /* a mean that may skip the step, and weights that are trained */
    /* not on the stack: after a failed wait weft_finalize ends them */
    struct weft_request requests[CALLS_MAX], pushed, trained;
    int64_t in[CALLS_MAX][WORKERS_MAX * COUNT_MAX], out[CALLS_MAX][WORKERS_MAX * COUNT_MAX];
    float grad[PUSHED], mean[PUSHED], weights[PUSHED];
    uint64_t steps;                   /* completed with WEFT_OK */
    enum ending ending;
    enum weft_status status;
    bool killed, named;               /* named: its rank is known */
    char text[480];
};

static struct run {
    uint64_t seed;
    uint32_t workers, shards, steps, calls, colours, dp;
    bool with[GROUPS];
    struct planned plan[STEPS_MAX][CALLS_MAX];
    bool differs;                     /* one rank calls something else: */
    uint32_t odd_rank, odd_step, odd_call, odd_how;
    bool odd_creates;                 /* it is a group that the rank makes with another tag */
    struct worker *all;
    struct weft_sim *sim;
    struct weft_loop *hand;
    struct weft_config *config;
    bool done, lost;                  /* lost: a fault that may end the job */
    uint64_t break_frame;             /* of --each-frame */
    uint64_t suspects, heartbeat_ns;
    uint64_t goods, mismatches, skipped;
    char why[1200];
} run;

static void fail_seed(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail_seed(const char *format, ...)
{
    va_list list;
    if (run.why[0]) return;
    va_start(list, format);
    vsnprintf(run.why, sizeof run.why, format, list);
    va_end(list);
    run.done = true;
}

static uint64_t bit(uint32_t host) { return 1ull << host; }

static void check_done(void)
{
    for (uint32_t i = 0; i < run.workers; i++)
        if (!run.all[i].killed && run.all[i].ending == RUNS) return;
    run.done = true;
}

/* ---- the model: members of a group, result of a call ---- */

static uint32_t group_count = GROUPS_FIRST_CREATED; /* GROUPS with --created */

/* Which of the groups 4 or 5 the rank is in, and its place. The two overlap in any way. */
static uint32_t circle_of(uint32_t group, uint32_t rank)
{
    return (uint32_t)(mix(run.seed * 11 + group * 101 + rank) % 3);
}
static int place_of(uint32_t group, uint32_t rank)
{
    return (int)(mix(run.seed * 13 + group * 7 + rank) % 5);
}

static uint32_t colour_of(uint32_t rank) { return (uint32_t)(mix(run.seed ^ rank) % run.colours); }
static int key_of(uint32_t rank) { return (int)(mix(run.seed * 3 + rank) % 5); }

/* Ranks of the job in the group that `rank` is in, in the group's order. */
static uint32_t members_of(uint32_t group, uint32_t rank, uint32_t *members)
{
    uint32_t count = 0, tp = run.workers / run.dp;
    for (int key = 0; key < (group == 1 || group >= GROUPS_FIRST_CREATED ? 5 : 1); key++)
        for (uint32_t r = 0; r < run.workers; r++) {
            bool in = group == 0 || (group == 1 && colour_of(r) == colour_of(rank) && key_of(r) == key) ||
                      (group == 2 && r % tp == rank % tp) || (group == 3 && r / tp == rank / tp) ||
                      (group >= GROUPS_FIRST_CREATED && circle_of(group, r) == circle_of(group, rank) &&
                       place_of(group, r) == key);
            if (in) members[count++] = r;
        }
    return count;
}

static int64_t input_of(uint32_t rank, uint32_t step, uint32_t call, uint32_t i)
{
    return (int64_t)(mix(rank * 0x9e3779b97f4a7c15ull + step * 977 + call * 77 + i * 131071ull + run.seed) >>
                     8);
}

static int64_t reduce_spec_of(const uint32_t *members, uint32_t ranks, uint32_t step, uint32_t call,
                              uint32_t i)
{
    int64_t sum = 0;
    for (uint32_t r = 0; r < ranks; r++) sum += input_of(members[r], step, call, i);
    return sum;
}

/* Number of elements that this rank gets, and the i-th of them. */
static uint32_t results_of(const struct planned *call, uint32_t me, uint32_t ranks)
{
    switch (call->kind) {
    case WEFT_CALL_BARRIER: return 0;
    case WEFT_CALL_REDUCE: return me == call->root ? call->count : 0;
    case WEFT_CALL_GATHER: return me == call->root ? call->count * ranks : 0;
    case WEFT_CALL_ALL_GATHER:
    case WEFT_CALL_ALL_TO_ALL: return call->count * ranks;
    default: return call->count;
    }
}

static int64_t result_of(const struct planned *call, const uint32_t *members, uint32_t me, uint32_t ranks,
                         uint32_t step, uint32_t at, uint32_t i)
{
    uint32_t n = call->count;
    switch (call->kind) {
    case WEFT_CALL_BROADCAST: return input_of(members[call->root], step, at, i);
    case WEFT_CALL_ALL_GATHER:
    case WEFT_CALL_GATHER: return input_of(members[i / n], step, at, i % n);
    case WEFT_CALL_SCATTER: return input_of(members[call->root], step, at, me * n + i);
    case WEFT_CALL_ALL_TO_ALL: return input_of(members[i / n], step, at, me * n + i % n);
    case WEFT_CALL_REDUCE_SCATTER: return reduce_spec_of(members, ranks, step, at, me * n + i);
    default: return reduce_spec_of(members, ranks, step, at, i);
    }
}

static void check_call(const struct worker *worker, uint32_t step, uint32_t at)
{
    const struct planned *call = &run.plan[step][at];
    uint32_t members[WORKERS_MAX], ranks = members_of(call->group, worker->rank, members), me = 0;
    while (members[me] != worker->rank) me++;
    for (uint32_t i = 0; i < results_of(call, me, ranks); i++) {
        int64_t right = result_of(call, members, me, ranks, step, at, i);
        if (worker->out[at][i] == right) continue;
        fail_seed("rank %u: step %u, call %u (kind %d, group %u): element %u is %lld, not %lld", worker->rank,
                  step, at, call->kind, call->group, i, (long long)worker->out[at][i], (long long)right);
        return;
    }
    run.goods++;
}

/* ---- a worker ---- */

/* Several times, with all ranks of the circle: ranks are early and late by turns. */
static enum weft_status create_groups(struct worker *worker)
{
    for (uint32_t turn = 0; turn < 3; turn++)
        for (uint32_t group = GROUPS_FIRST_CREATED; group < group_count; group++) {
            const bool is_odd = run.odd_creates && worker->rank == run.odd_rank && turn == 1 &&
                                group == GROUPS_FIRST_CREATED;
            const uint64_t tag = group + turn + (is_odd ? 100 : 0);
            uint32_t members[WORKERS_MAX], ranks = members_of(group, worker->rank, members);
            if (!run.with[group]) continue;
            if (roll(4) == 0) sim_process_sleep(1 + roll(WEFT_MS(2)));
            WEFT_TRY(weft_comm_free(worker->comms[group]));
            worker->comms[group] = NULL;
            WEFT_TRY(weft_comm_create(worker->session, members, ranks, tag, &worker->comms[group]));
            for (uint32_t r = 0; r < ranks; r++)
                if (weft_comm_member(worker->comms[group], r) != members[r])
                    fail_seed("rank %u: group %u has another rank at place %u", worker->rank, group, r);
        }
    return WEFT_OK;
}

static enum weft_status make_groups(struct worker *worker)
{
    struct weft_mesh *mesh;
    WEFT_TRY(create_groups(worker));
    if (run.with[1])
        WEFT_TRY(weft_split(worker->session, NULL, (int)colour_of(worker->rank), key_of(worker->rank),
                            &worker->comms[1]));
    if (!run.with[2] && !run.with[3]) return WEFT_OK;
    const struct weft_axis axes[2] = {{"dp", run.dp}, {"tp", 0}};
    WEFT_TRY(weft_mesh_create(worker->session, axes, 2, &mesh));
    WEFT_TRY(weft_mesh_comm(mesh, "dp", &worker->comms[2]));
    return weft_mesh_comm(mesh, "tp", &worker->comms[3]);
}

/* The planned call, or another one on the rank that differs. */
static enum weft_status start_call(struct worker *worker, uint32_t step, uint32_t at)
{
    const struct planned *planned = &run.plan[step][at];
    uint32_t members[WORKERS_MAX], ranks = members_of(planned->group, worker->rank, members);
    struct weft_call call = {.size = sizeof call,
                             .kind = planned->kind,
                             .comm = worker->comms[planned->group],
                             .in = worker->in[at],
                             .out = worker->out[at],
                             .count = planned->count,
                             .dtype = WEFT_I64,
                             .root = planned->root,
                             .op = WEFT_SUM};
    for (uint32_t i = 0; i < ranks * planned->count; i++)
        worker->in[at][i] = input_of(worker->rank, step, at, i);
    memset(worker->out[at], 0x55, sizeof worker->out[at]);
    if (planned->kind == WEFT_CALL_BROADCAST) memcpy(worker->out[at], worker->in[at], planned->count * 8);
    if (run.differs && worker->rank == run.odd_rank && step == run.odd_step && at == run.odd_call) {
        if (run.odd_how == 0) call.count--;
        if (run.odd_how == 1) call.dtype = WEFT_I32;
        if (run.odd_how == 2) call.root = (call.root + 1) % ranks;
        if (run.odd_how == 3)
            call.kind = call.kind == WEFT_CALL_BARRIER ? WEFT_CALL_ALL_REDUCE : WEFT_CALL_BARRIER;
    }
    return weft_call_start(worker->session, &call, &worker->requests[at]);
}

/* The calls of a group in order, those of different groups in any order. */
static enum weft_status start_calls(struct worker *worker, uint32_t step)
{
    bool started[CALLS_MAX] = {false};
    for (uint32_t n = 0; n < run.calls; n++) {
        uint32_t group = (uint32_t)roll(group_count), at = 0;
        while (at < run.calls && (started[at] || run.plan[step][at].group != group)) at++;
        if (at == run.calls)
            for (at = 0; started[at];) at++;
        started[at] = true;
        enum weft_status status = start_call(worker, step, at);
        if (status < 0) return status;
        if (roll(4) == 0) sim_process_sleep(1 + roll(WEFT_MS(2)));
    }
    return WEFT_OK;
}

static float grad_of(uint32_t rank, uint32_t step, uint32_t i)
{
    return (float)((int)(mix(rank * 31 + step * 7 + i + 1) % 2001) - 1000);
}

static void check_mean(const struct worker *worker, uint32_t step)
{
    for (uint32_t i = 0; i < PUSHED; i++) {
        float sum = 0; /* integers: exact */
        for (uint32_t r = 0; r < run.workers; r++) sum += grad_of(r, step, i);
        float mean = sum / (float)run.workers, off = worker->mean[i] - mean;
        if (off > 1e-3f || off < -1e-3f || off != off) {
            fail_seed("rank %u: step %u, element %u of the mean is %g, not %g", worker->rank, step, i,
                      (double)worker->mean[i], (double)mean);
            return;
        }
    }
}

/* The weights began with 0 and took every good step once, at a learning rate of 1. */
static void check_weights(const struct worker *worker, uint32_t steps)
{
    for (uint32_t i = 0; i < PUSHED; i++) {
        double wanted = 0;
        for (uint32_t step = 0; step < steps; step++)
            for (uint32_t r = 0; r < run.workers; r++) wanted -= (double)grad_of(r, step, i) / run.workers;
        const double off = (double)worker->weights[i] - wanted;
        if (!(off < 0.1 && off > -0.1)) {
            fail_seed("rank %u: after %u good steps weight %u is %g, not %g", worker->rank, steps, i,
                      (double)worker->weights[i], wanted);
            return;
        }
    }
}

static bool reordered; /* --reordered */

static enum weft_status push_pull(struct worker *worker, uint32_t tensor)
{
    return tensor == 1
               ? weft_push_pull(worker->tensors[1], worker->grad, worker->weights, &worker->trained)
               : weft_push_pull(worker->tensors[0], worker->grad, worker->mean, &worker->pushed);
}

static enum weft_status push_both(struct worker *worker, uint32_t step)
{
    const uint32_t first = reordered ? mix(run.seed * 17 + worker->rank * 3 + step) & 1 : 1;
    memset(&worker->pushed, 0, sizeof worker->pushed);
    memset(&worker->trained, 0, sizeof worker->trained);
    WEFT_TRY(push_pull(worker, first));
    if (reordered && roll(3) == 0) sim_process_sleep(1 + roll(WEFT_MS(2)));
    return push_pull(worker, 1 - first);
}

static bool with_late; /* --late */

/* A step in which one rank's gradient is not finite: all ranks skip it, or a fault ends the job. The
 * shards may have closed it for the trained tensor. */
static enum weft_status skip_step(struct worker *worker, uint32_t step)
{
    const uint32_t culprit = (uint32_t)(mix(run.seed * 7 + step) % run.workers);
    const bool late = with_late && mix(run.seed * 19 + step) % 2;
    WEFT_TRY(weft_step_begin_with(worker->session, WEFT_STEP(.step = step + 1, .lr = 1, .weight = 1,
                                                             .deliver_late = late)));
    for (uint32_t i = 0; i < PUSHED; i++) worker->grad[i] = 1e6f;
    if (worker->rank == culprit) worker->grad[mix(run.seed + step) % PUSHED] = NAN;
    if (roll(4) == 0) sim_process_sleep(1 + roll(WEFT_MS(2)));
    WEFT_TRY(push_both(worker, step));
    WEFT_TRY(weft_wait(&worker->trained, 0));
    const enum weft_status pushed = weft_wait(&worker->pushed, 0);
    if (pushed != WEFT_ERR_SKIPPED) return pushed < 0 ? pushed : WEFT_ERR_INTERNAL;
    enum weft_status status = weft_step_end(worker->session);
    if (late && status == WEFT_OK) status = weft_step_wait(worker->session);
    if (status != WEFT_ERR_SKIPPED) return status < 0 ? status : WEFT_ERR_INTERNAL;
    check_weights(worker, step);
    run.skipped++;
    return WEFT_OK;
}

/* Results of the tensors after weft_step_end. */
static enum weft_status take_late_results(struct worker *worker, uint32_t step)
{
    WEFT_TRY(weft_tensor_wait(worker->tensors[0], 0));
    check_mean(worker, step);
    WEFT_TRY(weft_tensor_wait(worker->tensors[1], 0));
    check_weights(worker, step + 1);
    return WEFT_OK;
}

static enum weft_status run_step(struct worker *worker, uint32_t step)
{
    const bool late = with_late && mix(run.seed * 17 + step) % 2;
    /* without shards the tensor is one more call of all ranks, in sequence with the others */
    bool groups_first = run.shards > 0 && roll(2);
    WEFT_TRY(weft_step_begin_with(worker->session, WEFT_STEP(.step = step + 1, .lr = 1, .weight = 1,
                                                             .deliver_late = late)));
    memset(worker->requests, 0, sizeof worker->requests);
    for (uint32_t i = 0; i < PUSHED; i++) worker->grad[i] = grad_of(worker->rank, step, i);
    if (groups_first) WEFT_TRY(start_calls(worker, step));
    enum weft_status status = push_both(worker, step);
    if (status >= 0 && !groups_first) status = start_calls(worker, step);
    if (status < 0) return status;
    for (uint32_t n = 0, first = (uint32_t)roll(run.calls); n < run.calls; n++) {
        uint32_t at = (first + n) % run.calls;
        WEFT_TRY(weft_wait(&worker->requests[at], 0));
        check_call(worker, step, at);
    }
    if (late) {
        WEFT_TRY(weft_step_end(worker->session));
        return take_late_results(worker, step);
    }
    WEFT_TRY(weft_wait(&worker->pushed, 0));
    check_mean(worker, step);
    WEFT_TRY(weft_wait(&worker->trained, 0));
    check_weights(worker, step + 1);
    return weft_step_end(worker->session);
}

static enum weft_status train(struct worker *worker)
{
    for (int t = 0; t < 2; t++) {
        struct weft_tensor_options options;
        weft_tensor_options_init(&options);
        options.name = t ? "trained" : "pushed";
        options.optimizer = t ? "sgd" : "none";
        options.skip_nonfinite = t == 0;
        options.dim_count = 1;
        options.dims[0] = PUSHED;
        options.chunk_bytes = 1024; /* on several shards */
        WEFT_TRY(weft_declare(worker->session, &options, &worker->tensors[t]));
    }
    WEFT_TRY(weft_tensor_init(worker->tensors[1], worker->weights));
    WEFT_TRY(make_groups(worker));
    for (uint32_t step = 0; step < run.steps; step++) {
        for (uint32_t skips = (uint32_t)(mix(run.seed * 5 + step) % 3); skips > 0; skips--)
            WEFT_TRY(skip_step(worker, step));
        enum weft_status status = run_step(worker, step);
        if (status < 0) return status;
        worker->steps++;
    }
    return weft_step_wait(worker->session);
}

static void worker_main(void *context)
{
    struct worker *worker = context;
    struct weft_options options;
    char name[16];
    weft_options_init(&options);
    options.coordinator = "coordinator:4000";
    options.job = "simulated";
    options.deadline_ms = DEADLINE_NS / WEFT_MS(1);
    snprintf(name, sizeof name, "h%u", worker->host);
    setenv("WEFT_CLIENT_HOST", name, 1); /* read before the first wait */
    worker->status = client_init(weft_sim_env(run.sim, worker->host), &options, &worker->session);
    if (worker->status < 0) {
        snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(NULL));
    } else {
        worker->rank = weft_rank(worker->session);
        worker->named = true;
        worker->status = train(worker);
        if (worker->status < 0)
            snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(worker->session));
        struct weft_session *session = worker->session;
        worker->session = NULL;
        weft_finalize(session);
    }
    worker->ending = worker->status < 0 ? FAILED : FINISHED;
    check_done();
}

static void shard_main(void *context)
{
    const uint32_t index = (uint32_t)(uintptr_t)context;
    struct weftd_options options;
    weftd_options_init(&options);
    options.job = "simulated";
    options.coordinator = "coordinator:4000";
    options.index = (int)index;
    options.workers = run.workers;
    options.shards = run.shards;
    options.engines = 1;
    options.config = run.config;
    (void)weftd_run(weft_sim_env(run.sim, FIRST + run.workers + index), &options);
}

/* ---- choices of a seed ---- */

static void choose_calls(void)
{
    static const enum weft_call_kind kinds[] = {
        WEFT_CALL_ALL_REDUCE, WEFT_CALL_REDUCE_SCATTER, WEFT_CALL_ALL_GATHER,
        WEFT_CALL_BROADCAST,  WEFT_CALL_BARRIER,        WEFT_CALL_REDUCE,
        WEFT_CALL_GATHER,     WEFT_CALL_SCATTER,        WEFT_CALL_ALL_TO_ALL};
    for (uint32_t step = 0; step < run.steps; step++)
        for (uint32_t at = 0; at < run.calls; at++) {
            struct planned *call = &run.plan[step][at];
            do call->group = (uint32_t)roll(group_count);
            while (!run.with[call->group]);
            call->kind = kinds[roll(sizeof kinds / sizeof kinds[0])];
            call->count = 2 + (uint32_t)roll(roll(2) ? 10 : COUNT_MAX - 2);
            call->root = 0; /* groups of a split differ in size */
        }
}

/* A rank may have its result and leave before another rank's differing call is detected. */
static bool still; /* --still */

static bool one_way(enum weft_call_kind kind)
{
    return kind == WEFT_CALL_BROADCAST || kind == WEFT_CALL_SCATTER || kind == WEFT_CALL_REDUCE ||
           kind == WEFT_CALL_GATHER;
}

/* Selects a differing call that has an effect. */
static void choose_odd(void)
{
    uint32_t members[WORKERS_MAX];
    run.odd_rank = (uint32_t)roll(run.workers);
    run.odd_step = (uint32_t)roll(run.steps);
    run.odd_call = (uint32_t)roll(run.calls);
    run.odd_how = (uint32_t)roll(4);
    const struct planned *call = &run.plan[run.odd_step][run.odd_call];
    run.differs = members_of(call->group, run.odd_rank, members) > 1 &&
                  (run.odd_how != 2 || one_way(call->kind)) &&
                  (run.odd_how > 1 || call->kind != WEFT_CALL_BARRIER);
}

static void choose_odd_creation(void)
{
    uint32_t members[WORKERS_MAX];
    if (roll(6) > 0 || !run.with[GROUPS_FIRST_CREATED]) return;
    run.odd_rank = (uint32_t)roll(run.workers);
    if (members_of(GROUPS_FIRST_CREATED, run.odd_rank, members) < 2) return;
    run.differs = run.odd_creates = true;
    run.odd_how = 4; /* no call differs */
}

static void choose_job(uint64_t seed)
{
    run.seed = seed;
    run.workers = 2 + (uint32_t)roll(WORKERS_MAX - 1);
    run.shards = roll(2) ? 1 + (uint32_t)roll(SHARDS_MAX) : 0;
    run.steps = 1 + (uint32_t)roll(STEPS_MAX);
    run.calls = 1 + (uint32_t)roll(CALLS_MAX);
    run.colours = 1 + (uint32_t)roll(3);
    do run.dp = 1 + (uint32_t)roll(run.workers);
    while (run.workers % run.dp);
    run.with[0] = true;
    run.with[1] = roll(2);
    run.with[2] = run.with[3] = roll(2);
    for (uint32_t group = GROUPS_FIRST_CREATED; group < group_count; group++) run.with[group] = roll(4) > 0;
    run.heartbeat_ns = WEFT_SECONDS(2 + roll(4));
    choose_calls();
    if (roll(3) == 0) choose_odd();
    else if (group_count == GROUPS) choose_odd_creation();
}

struct death {
    struct weft_timer timer;
    uint32_t host;
    bool silent;
};

static void die(struct weft_timer *timer)
{
    const struct death *death = weft_container_of(timer, struct death, timer);
    struct worker *worker = death->host < FIRST + run.workers ? &run.all[death->host - FIRST] : NULL;
    if (worker && worker->ending != RUNS) return;
    if (worker) worker->killed = true;
    weft_sim_kill(run.sim, death->host);
    sim_net_died(death->host, death->silent);
    check_done();
}

static void choose_death(struct weft_env *env, uint64_t at_ns)
{
    struct death *death = weft_alloc_zero(env, sizeof *death);
    if (!death) return;
    death->host = FIRST + (uint32_t)roll(run.workers + run.shards);
    death->silent = roll(4) == 0;
    run.suspects |= bit(death->host);
    run.lost = true;
    weft_timer_init(&death->timer, die);
    weft_timer_start(run.hand, &death->timer, at_ns);
}

static uint64_t some_hosts(void)
{
    uint64_t mask = 0;
    while (!mask)
        for (uint32_t i = 0; i < run.workers + run.shards; i++)
            if (roll(3) == 0) mask |= bit(FIRST + i);
    return mask;
}

static void choose_fault(uint64_t at_ns)
{
    struct sim_fault fault = {.at_ns = at_ns};
    const uint64_t everybody = bit(FIRST + run.workers + run.shards) - bit(COORDINATOR);
    fault.lasts_ns = WEFT_MS(1) << roll(16);
    fault.lasts_ns += roll(WEFT_MS(1));
    switch (roll(5)) {
    case 0: fault.stopped = roll(5) ? some_hosts() : bit(COORDINATOR); break;
    case 1: fault.left = some_hosts(), fault.right = everybody & ~fault.left & ~bit(COORDINATOR); break;
    case 2: fault.left = some_hosts(), fault.right = everybody & ~fault.left; break;
    case 3: fault.left = some_hosts(), fault.right = bit(COORDINATOR); break;
    case 4:
        fault.left = some_hosts(), fault.right = everybody & ~fault.left & ~bit(COORDINATOR);
        fault.lasts_ns = 1 + roll(WEFT_MS(20));
        fault.times = 1 + (uint32_t)roll(30);
        break;
    }
    if (!fault.stopped && fault.times == 0 && roll(5) == 0) fault.lasts_ns = WEFT_NEVER;
    run.suspects |= fault.stopped | fault.left | fault.right;
    run.lost |= fault.lasts_ns >= run.heartbeat_ns / 10 * 7;
    sim_fault_add(run.sim, run.hand, &fault);
}

static bool breaks, each_frame;

static void choose_faults(struct weft_env *env)
{
    if (breaks || each_frame) {
        sim_net_break(COORDINATOR, run.break_frame, each_frame ? 0 : 4 + roll(30));
        return;
    }
    uint64_t span_ns = WEFT_MS(1) << roll(7);
    for (uint64_t n = roll(3); n > 0; n--) {
        uint64_t at_ns = 1 + roll(span_ns);
        if (roll(3) == 0) choose_death(env, at_ns);
        else choose_fault(at_ns);
    }
}

static bool start_coordinator(struct weft_env *env)
{
    struct weft_net *net;
    struct weft_coordinator_server *server;
    struct weft_coordinator_options options;
    struct weft_error error = {0};
    uint16_t port = 0;
    weft_coordinator_options_init(&options);
    options.job = "simulated";
    options.workers = run.workers;
    options.shards = run.shards;
    options.heartbeat_ns = run.heartbeat_ns;
    options.join_ns = WEFT_SECONDS(30);
    enum weft_status status = weft_net_create(env, &net);
    if (status == WEFT_OK)
        status = weft_coordinator_server_start(env, net, "127.0.0.1", 0, &options, &port, &server, &error);
    if (status < 0 || port != 4000) fail_seed("no coordinator: %s", error.text);
    return !run.why[0];
}

/* ---- results ---- */

static bool names_a_culprit(const char *text)
{
    char name[24];
    for (uint32_t i = 0; i < run.workers; i++) {
        snprintf(name, sizeof name, "(h%u, ", FIRST + i);
        if (run.suspects >> (FIRST + i) & 1 && strstr(text, name)) return true;
    }
    for (uint32_t i = 0; i < run.shards; i++) {
        snprintf(name, sizeof name, "shard %u", i);
        if (run.suspects >> (FIRST + run.workers + i) & 1 && strstr(text, name)) return true;
    }
    if (strstr(text, "do not answer") && __builtin_popcountll(run.suspects) > 3) return true; /* by numbers */
    return run.suspects & bit(COORDINATOR) && strstr(text, "coordinator");
}

/* A shard names the ranks that it waits for by number. */
static bool shard_names_a_culprit(const char *text)
{
    char name[32];
    for (uint32_t i = 0; i < run.workers; i++) {
        snprintf(name, sizeof name, "no push from rank %u in", run.all[i].rank);
        if (run.all[i].named && run.suspects >> run.all[i].host & 1 && strstr(text, name)) return true;
    }
    return false;
}

static bool names_the_odd_one(const char *text)
{
    char name[16];
    for (uint32_t i = 0; i < run.workers; i++) {
        snprintf(name, sizeof name, "(h%u, ", run.all[i].host);
        if (run.all[i].named && run.all[i].rank == run.odd_rank && strstr(text, name)) return true;
    }
    return false;
}

static const char *what_is_wrong(const struct worker *worker)
{
    uint32_t members[WORKERS_MAX];
    if (worker->ending == RUNS) return "did not end in 300 s of virtual time";
    if (worker->ending == FINISHED) {
        if (!run.differs) return NULL;
        if (run.odd_creates) return "finished, though a rank made another group";
        uint32_t ranks = members_of(run.plan[run.odd_step][run.odd_call].group, worker->rank, members);
        for (uint32_t r = 0; r < ranks && !one_way(run.plan[run.odd_step][run.odd_call].kind); r++)
            if (members[r] == run.odd_rank) return "was not notified of a call that differed in its group";
        return worker->steps == run.steps ? NULL : "ended well before its time";
    }
    if (run.differs && worker->status == WEFT_ERR_MISMATCH)
        return names_the_odd_one(worker->text) ? NULL : "does not name the rank that called something else";
    if (!run.lost)
        return run.differs ? "was not notified of a call that differed"
                           : "ended though nothing was wrong for long";
    if (worker->status == WEFT_ERR_UNREACHABLE)
        return strstr(worker->text, "coordinator:4000") ? NULL
                                                        : "does not name the address of the coordinator";
    if (!worker->named && strstr(worker->text, "is over")) return NULL;
    if (worker->status == WEFT_ERR_DEADLINE && strstr(worker->text, "not joined"))
        return strstr(worker->text, ": rank ") || strstr(worker->text, ": shard ")
                   ? NULL
                   : "does not name the missing members";
    bool away = run.suspects >> worker->host & 1; /* the worker itself is cut off from the coordinator */
    if (worker->status == WEFT_ERR_DEADLINE && away &&
        (strstr(worker->text, "coordinator:4000") || strstr(worker->text, "no Hello within")))
        return NULL;
    if (worker->status == WEFT_ERR_DEADLINE && shard_names_a_culprit(worker->text)) return NULL;
    return names_a_culprit(worker->text) ? NULL : "names no rank that died, was stopped or cut off";
}

static void check_ends(void)
{
    for (uint32_t i = 0; i < run.workers; i++) {
        const struct worker *worker = &run.all[i];
        char doing[80] = "";
        const char *what = worker->killed ? NULL : what_is_wrong(worker);
        if (worker->ending == RUNS) sim_process_describe(worker->host, doing, sizeof doing);
        if (what)
            fail_seed("h%u %s: %s, rank %u, %llu steps: %s %s", worker->host, what,
                      weft_status_name(worker->status), worker->rank, (unsigned long long)worker->steps,
                      worker->text, doing);
        run.mismatches += worker->ending == FAILED && worker->status == WEFT_ERR_MISMATCH;
    }
}

/* ---- a seed ---- */

static uint64_t net_random(uint64_t below) { return roll(below); }
static void wake(uint32_t host) { weft_sim_wake(run.sim, host); }

static bool start_all(struct weft_env *env)
{
    struct weft_sim_options options;
    uint32_t hosts = FIRST + run.workers + run.shards;
    weft_sim_options_init(&options);
    options.seed = run.seed;
    options.host_count = hosts;
    options.still_clock = still;
    options.latency_ns = 1000 + roll(20000);
    options.jitter_ns = roll(10000);
    options.detect_ns = 100000 + roll(WEFT_MS(1) << roll(8));
    if (weft_sim_create(env, &options, &run.sim) < 0 ||
        !(run.all = weft_alloc_zero(env, run.workers * sizeof *run.all)))
        return false;
    sim_processes_begin(run.sim, hosts);
    sim_net_begin(sim_process_host, wake, net_random, 1000 + roll(WEFT_MS(1) << roll(4)));
    if (weft_loop_create(weft_sim_env(run.sim, HAND), NULL, &run.hand) < 0 ||
        weft_sim_add(run.sim, HAND, run.hand) < 0)
        return false;
    if (!start_coordinator(weft_sim_env(run.sim, COORDINATOR))) return false;
    for (uint32_t i = 0; i < run.workers + run.shards; i++) {
        if (i < run.workers) run.all[i].host = FIRST + i;
        void *context = i < run.workers ? (void *)&run.all[i] : (void *)(uintptr_t)(i - run.workers);
        if (sim_process_start(FIRST + i, roll(WEFT_MS(1)), i < run.workers ? worker_main : shard_main,
                              context) < 0)
            return false;
    }
    return true;
}

static bool run_seed(struct weft_env *env, struct weft_config *config, uint64_t seed, uint64_t break_frame)
{
    seed_random(seed);
    arena_reset();
    memset(&run, 0, sizeof run);
    run.config = config;
    run.break_frame = break_frame;
    choose_job(seed);
    if (!start_all(env)) return false;
    choose_faults(weft_sim_env(run.sim, HAND));
    weft_sim_run(run.sim, &run.done, WEFT_SECONDS(300));
    check_ends();
    /* of dead and hanging programs: they are in the arena */
    for (uint32_t i = 0; i < run.workers; i++)
        if (run.all[i].session) weft_list_remove(&run.all[i].session->live.link);
    return !run.why[0];
}

int main(int argc, char **argv)
{
    uint64_t seeds = 20, first = 1, goods = 0, mismatches = 0, skipped = 0, served = 0, finished = 0,
             failed = 0, troubled = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--still") == 0) still = true;
        else if (strcmp(argv[i], "--created") == 0) group_count = GROUPS;
        else if (strcmp(argv[i], "--reordered") == 0) reordered = true;
        else if (strcmp(argv[i], "--late") == 0) with_late = true;
        else if (strcmp(argv[i], "--breaks") == 0) breaks = true;
        else if (strcmp(argv[i], "--each-frame") == 0) each_frame = true;
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else {
            fprintf(stderr,
                    "usage: %s [--seeds N] [--first S] [--still] [--created] [--reordered] [--late] "
                    "[--breaks] [--each-frame] [--verbose]\n",
                    argv[0]);
            return 2;
        }
    }
    setenv("WEFT_TRANSPORT_BACKEND", "sim", 1);
    setenv("WEFT_CLIENT_DEADLINE", "20s", 1); /* also of the shards */
    setenv("WEFT_SERVER_RECEIVE_BYTES", "1MiB", 1);
    struct weft_env env = *weft_env_system();
    struct weft_config *config;
    if (!arena_make(&env) || weft_config_load(weft_env_system(), &config, NULL) < 0)
        return fprintf(stderr, "no memory for the arena\n"), 1;
    env.log = log_line;
    if (verbose) env.log_level = WEFT_LOG_DEBUG;
    uint64_t break_frame = each_frame ? 1 : 0, broken = 0;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (!run_seed(&env, config, seed, break_frame)) {
            printf("seed %llu: %s\nreplay: %s --first %llu --seeds 1%s%s%s%s%s%s --verbose\n",
                   (unsigned long long)seed, run.why, argv[0], (unsigned long long)seed,
                   still ? " --still" : "", group_count == GROUPS ? " --created" : "",
                   reordered ? " --reordered" : "", with_late ? " --late" : "", breaks ? " --breaks" : "",
                   each_frame ? " --each-frame" : "");
            return 1;
        }
        if (each_frame && sim_net_frames() >= break_frame) {
            broken++;
            break_frame++;
            seed--; /* the same job again, with a break one frame later */
            continue;
        }
        if (each_frame) break_frame = 1;
        goods += run.goods, mismatches += run.mismatches, skipped += run.skipped, served += run.shards > 0,
            troubled += run.suspects != 0;
        for (uint32_t i = 0; i < run.workers; i++)
            finished += run.all[i].ending == FINISHED, failed += run.all[i].ending == FAILED;
    }
    printf("%llu jobs, %llu with shards, %llu with deaths, stops or cuts: no hang, no wrong result; %llu "
           "calls good, %llu steps of ranks skipped, %llu workers finished, %llu ended with the "
           "culprit named, of them %llu by a call that differed\n",
           (unsigned long long)seeds, (unsigned long long)served, (unsigned long long)troubled,
           (unsigned long long)goods, (unsigned long long)skipped, (unsigned long long)finished,
           (unsigned long long)failed, (unsigned long long)mismatches);
    if (each_frame)
        printf("a break at each of %llu frames in turn\n", (unsigned long long)broken);
    const bool is_varied = goods && mismatches && skipped && served && finished && failed && troubled;
    if (seeds >= 400 && !breaks && !each_frame && !is_varied)
        return printf("something did not happen at all\n"), 1;
    weft_config_free(config);
    free(arena);
    return 0;
}
