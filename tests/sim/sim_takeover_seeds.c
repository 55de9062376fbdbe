/* sim_takeover_seeds.c - jobs with a store whose coordinator dies, stops, or loses answers of it, in one
 * process and in virtual time: weftd with the coordinator, other weftd, and the client as trainers call it.
 *
 *     sim_takeover_seeds [--seeds N] [--first S] [--elastic | --early] [--separate] [--mutant NAME]
 *                        [--verbose]
 *
 * A seed selects the number of shards and workers, and one fault of the process that coordinates: it dies
 * while it sends its n-th control frame (the store may have what the frame announced), at a random time,
 * silently, or it is stopped for some time and continues. In half of the jobs without snapshots some shards,
 * and in a quarter the workers, speak wire version 1. In some jobs transactions of the store are lost, or
 * done and reported as failed. Workers push whole numbers, and declare and free tensors meanwhile. Two thirds
 * of the jobs make snapshots, by steps or by time; there the coordinator may also die before or behind any
 * file that it writes.
 *
 * --elastic: jobs that continue without lost workers. Workers die at any time, with the coordinator, or
 * after it, and a worker may join, also at the next coordinator.
 *
 * --early: a shard dies soon after it has joined, before the job begins or after that, at once or silently;
 * or the coordinator dies, or is stopped, before the job begins or soon after that. At least two shards are
 * left: the job begins, and ends in order. Workers read the store; some start when the coordinator is dead.
 *
 * Checks: a job of which any worker has begun ends in order on all of them; each result equals the sum, so no
 * push is lost or counted twice; no program hangs; each snapshot on disk is whole, and has the weights of its
 * step; in a job that continues long enough the next coordinator completes one, and no worker waits in
 * weft_finalize for a part that is not stored. Where no worker has begun, each ends with a sentence, before
 * its deadline. A failing seed prints the command that replays it. --mutant makes one fault of the
 * coordinator, which a seed must detect.
 * --separate: no process can read whether one on another host is dead. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "client/session/session.h"
#include "coordinator/store/store.h"
#include "server/server.h"
#include "tests/sim/arena.h"
#include "tests/sim/seed.h"
#include "tests/sim/sim_host_faults.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_process.h"
#include "tests/sim/takeover_mutants.h"
#include "tests/sim/takeover_snapshots.h"

#define SETTLE_NS WEFT_SECONDS(7)     /* members that do not resume are lost */
#define BEFORE_GO_NS WEFT_SECONDS(66) /* the deadline of weft_init, and its slack */
#define AMPLE_NS WEFT_SECONDS(4)      /* with so many steps in it, a snapshot is completed */
#define FINALIZE_NS WEFT_SECONDS(25)  /* a take-over may happen in it */
enum { AMPLE_STEPS = 10 };

enum { DRIVER = 0, FIRST_SHARD = 1, SHARDS_MAX = 4, WORKERS_MAX = 4, COUNT = 700, CHUNK = 256, TENSORS = 3 };
enum { WORKERS_AND_NEW = WORKERS_MAX + 1 };
enum fault_kind { FAULT_NONE, FAULT_FRAME, FAULT_TIME, FAULT_SILENT, FAULT_STOP, FAULT_FILE, FAULT_KINDS };
#define EARLY_SHARD (FIRST_SHARD + 1)
enum snapshot_kind { SNAPSHOTS_NONE, SNAPSHOTS_BY_STEPS, SNAPSHOTS_BY_TIME, SNAPSHOT_KINDS };

struct worker {
    uint32_t host, wrong, steps;
    uint64_t finalize_ns, ended_ns; /* time in weft_finalize; when it ended */
    bool has_begun, ended, is_dead;
    struct weft_timer death;
    struct weft_session *session; /* NULL: it has ended in order */
    enum weft_status status;
    char text[480];
    float grad[COUNT], out[COUNT], model[COUNT], mean[COUNT];
};

static struct run {
    uint64_t seed;
    uint32_t shards, workers, goal;
    bool is_elastic, has_newcomer, is_early;
    bool loses_shard;      /* is_early: not the coordinator */
    char next_address[64]; /* of the next coordinator; "": none yet */
    struct worker all[WORKERS_AND_NEW];
    struct weft_sim *sim;
    struct weft_loop *driver;
    struct weft_config *config, *config_old; /* borrowed; config_old: of processes of wire version 1 */
    enum snapshot_kind snapshots;
    uint64_t committed; /* snapshots of another coordinator */
    struct weft_timer death, settled, early_death;
    uint64_t died_ns;       /* of the coordinator; 0: it lives */
    uint64_t settled_ns;    /* the next coordinator coordinates since SETTLE_NS; 0: not yet */
    uint32_t settled_steps; /* done then */
    enum fault_kind kind;
    uint32_t lost_answers, takeovers; /* lost_answers: that are left */
    bool is_dying, is_dead, all_done; /* is_dying: until its host is stopped, at the same time */
    char why[900];
} run;

/* ---- the store loses answers (linked with --wrap) ---- */

enum weft_status __real_weft_store_txn(struct weft_store *store, const struct weft_store_txn *txn,
                                       uint64_t *revision_out);
enum weft_status __wrap_weft_store_txn(struct weft_store *store, const struct weft_store_txn *txn,
                                       uint64_t *revision_out);
enum weft_status __wrap_weft_store_txn(struct weft_store *store, const struct weft_store_txn *txn,
                                       uint64_t *revision_out)
{
    if (run.is_dying) return WEFT_ERR_IO; /* the process has died in the send before this call */
    const bool is_lost = run.lost_answers > 0 && roll(3) == 0;
    const bool is_done = !is_lost || roll(2) == 0;
    if (is_lost) run.lost_answers--;
    const enum weft_status status = is_done ? __real_weft_store_txn(store, txn, revision_out) : WEFT_ERR_IO;
    return is_lost ? WEFT_ERR_IO : status;
}

/* ---- workers ---- */

static float base(uint64_t step, uint32_t i)
{
    return (float)(2 * ((step + i) % 2));
}

static enum weft_status declare(struct worker *worker, struct weft_session *session, const char *name,
                                struct weft_tensor **out)
{
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.mode = WEFT_MODE_SERVER;
    options.codec = "dense";
    options.chunk_bytes = CHUNK * sizeof(float);
    options.optimizer = strcmp(name, "weights") == 0 ? "sgd" : "none";
    return weft_declare(session, &options, out);
}

static enum weft_status exchange(struct worker *worker, struct weft_tensor *tensor)
{
    struct weft_request request = {{0}};
    enum weft_status status = weft_push_pull(tensor, worker->grad, worker->out, &request);
    return status < 0 ? status : weft_wait(&request, 0);
}

/* tensors[1] has the optimizer. */
static enum weft_status run_step(struct worker *worker, struct weft_session *session,
                                 struct weft_tensor **tensors, uint64_t number)
{
    const struct weft_step step = {number, 1.0f, 1.0f};
    const float others = (float)(weft_ranks(session) - 1);
    for (uint32_t i = 0; i < COUNT; i++) worker->grad[i] = base(number, i) + 2.0f * (float)weft_rank(session);
    enum weft_status status = weft_step_begin(session, &step);
    for (uint32_t t = 0; t < TENSORS && status >= 0; t++) {
        if (!tensors[t]) continue;
        status = exchange(worker, tensors[t]);
        for (uint32_t i = 0; i < COUNT && status >= 0; i++) {
            const float mean = base(number, i) + others;
            if (t == 1) worker->model[i] -= mean;
            worker->wrong += worker->out[i] != (t == 1 ? worker->model[i] : mean);
        }
    }
    return status < 0 ? status : weft_step_end(session);
}

/* A third tensor lives for some of the steps, under the same name again and again. A free ends a snapshot
 * under way, so jobs with snapshots have fewer. */
static enum weft_status change_tensors(struct worker *worker, struct weft_session *session,
                                       struct weft_tensor **tensors, uint64_t step)
{
    const uint64_t period = run.snapshots == SNAPSHOTS_NONE ? 3 : 12, at = step % period;
    if (at == 1) return declare(worker, session, "passing", &tensors[2]);
    if (at != 3 % period || !tensors[2]) return WEFT_OK;
    const enum weft_status status = weft_tensor_free(tensors[2]);
    tensors[2] = NULL;
    return status;
}

static enum weft_status train(struct worker *worker, struct weft_session *session)
{
    struct weft_tensor *tensors[TENSORS] = {NULL};
    enum weft_status status = declare(worker, session, "mean", &tensors[0]);
    if (status >= 0) status = declare(worker, session, "weights", &tensors[1]);
    if (status >= 0) status = weft_tensor_init(tensors[1], worker->model);
    for (uint64_t step = 1; step <= run.goal && status >= 0; step++) {
        sim_process_sleep(1 + mix(run.seed + 31 * step + worker->host) % (WEFT_MS(1) << (run.seed % 12)));
        status = change_tensors(worker, session, tensors, step);
        if (status >= 0) status = run_step(worker, session, tensors, step);
        worker->steps += status >= 0;
    }
    return status;
}

/* The mean does not depend on the number of ranks: a step may be repeated by fewer. */
static float elastic_mean(uint64_t step, uint32_t i)
{
    return base(step, i) + 1;
}

static float elastic_weights(uint64_t step, uint32_t i)
{
    float value = 0;
    for (uint64_t s = 1; s <= step; s++) value -= elastic_mean(s, i);
    return value;
}

static enum weft_status elastic_step(struct worker *worker, struct weft_session *session,
                                     struct weft_tensor **tensors)
{
    const uint64_t number = weft_step_next(session);
    const struct weft_step step = {number, 1.0f, 1.0f};
    const float own = 2.0f * (float)weft_rank(session) - (float)(weft_ranks(session) - 1);
    WEFT_TRY(weft_step_begin(session, &step));
    for (uint32_t i = 0; i < COUNT; i++) worker->grad[i] = elastic_mean(number, i) + own;
    enum weft_status status = exchange(worker, tensors[0]);
    if (status >= 0) memcpy(worker->mean, worker->out, sizeof worker->mean);
    if (status >= 0) status = exchange(worker, tensors[1]);
    if (status < 0 && status != WEFT_ERR_PEER_LOST) return status;
    status = weft_step_end(session);
    for (uint32_t i = 0; i < COUNT && status == WEFT_OK; i++) {
        worker->wrong += worker->mean[i] != elastic_mean(number, i);
        worker->wrong += worker->out[i] != elastic_weights(number, i);
    }
    return status;
}

/* The loop of docs/elastic.md. */
static enum weft_status train_elastic(struct worker *worker, struct weft_session *session)
{
    struct weft_tensor *tensors[TENSORS] = {NULL};
    bool is_shared = false;
    WEFT_TRY(declare(worker, session, "mean", &tensors[0]));
    WEFT_TRY(declare(worker, session, "weights", &tensors[1]));
    while (weft_step_next(session) <= run.goal) {
        sim_process_sleep(1 + mix(run.seed + 31 * worker->steps + worker->host) %
                                  (WEFT_MS(1) << (run.seed % 12)));
        enum weft_status status = is_shared ? WEFT_OK : weft_tensor_share(tensors[1], worker->model, 0);
        if (status == WEFT_OK || status == WEFT_ERR_PEER_LOST)
            status = elastic_step(worker, session, tensors);
        worker->steps += status == WEFT_OK;
        if (status == WEFT_OK) is_shared = true;
        else if (status == WEFT_ERR_GREW) is_shared = false;
        else if (status != WEFT_ERR_SHRUNK) return status;
    }
    return WEFT_OK;
}

static void check_done(void)
{
    for (uint32_t i = 0; i < run.workers + run.has_newcomer; i++)
        if (!run.all[i].ended && !run.all[i].is_dead) return;
    run.all_done = true;
}

static void worker_main(void *context)
{
    struct worker *worker = context;
    struct weft_session *session = NULL;
    struct weft_options options;
    char name[16];
    weft_options_init(&options);
    options.coordinator = run.next_address[0] ? run.next_address : "coordinator:4000";
    options.job = "simulated";
    options.deadline_ms = 60000;
    snprintf(name, sizeof name, "h%u", worker->host);
    setenv("WEFT_CLIENT_HOST", name, 1); /* both are read before the first wait */
    const bool is_old = run.seed % 4 == 1 && run.snapshots == SNAPSHOTS_NONE && !run.is_elastic;
    setenv("WEFT_JOB_WIRE_VERSION", is_old ? "1" : "0", 1);
    worker->status = client_init(weft_sim_env(run.sim, worker->host), &options, &session);
    if (worker->status < 0) {
        snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(NULL));
    } else {
        worker->has_begun = true;
        worker->session = session;
        worker->status = run.is_elastic ? train_elastic(worker, session) : train(worker, session);
        if (worker->status < 0) snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(session));
        const uint64_t began_ns = weft_sim_now_ns(run.sim);
        worker->session = NULL;
        weft_finalize(session);
        worker->finalize_ns = weft_sim_now_ns(run.sim) - began_ns;
    }
    worker->ended = true;
    worker->ended_ns = weft_sim_now_ns(run.sim);
    check_done();
}

/* Shard 0 coordinates. */
static void shard_main(void *context)
{
    const uint32_t index = (uint32_t)(uintptr_t)context;
    struct weftd_options options;
    weftd_options_init(&options);
    options.job = "simulated";
    options.coordinator = index > 0 ? "coordinator:4000" : NULL;
    options.workers = run.workers;
    options.shards = run.shards;
    if (run.is_elastic) options.workers_min = 1;
    if (run.has_newcomer) options.workers_max = run.workers + 1;
    options.index = (int)index;
    options.engines = 1 + (uint32_t)(run.seed % 2);
    options.config = run.seed % 2 && mix(run.seed + 77 * index) % 2 ? run.config_old : run.config;
    (void)weftd_run(weft_sim_env(run.sim, FIRST_SHARD + index), &options);
}

/* ---- faults ---- */

static uint64_t net_random(uint64_t below)
{
    return roll(below);
}
static void wake(uint32_t host)
{
    weft_sim_wake(run.sim, host);
}

/* ---- deaths of workers ---- */

/* A loss while a tensor is declared ends the job. At least one rank stays. */
static bool may_kill(const struct worker *victim)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < run.workers; i++) {
        if (run.all[i].is_dead) continue;
        if (run.all[i].steps == 0 || run.all[i].ended) return false;
        alive++;
    }
    return alive > 1 && !victim->is_dead;
}

static void kill_worker(struct weft_timer *timer)
{
    struct worker *worker = weft_container_of(timer, struct worker, death);
    if (!may_kill(worker)) return;
    worker->is_dead = true;
    weft_sim_kill(run.sim, worker->host);
    sim_net_died(worker->host, roll(6) == 0);
}

static void kill_some(uint64_t within_ns)
{
    for (uint32_t i = 0; run.is_elastic && i < run.workers; i++)
        if (roll(2 + run.workers) == 0)
            weft_timer_start(run.driver, &run.all[i].death, weft_sim_now_ns(run.sim) + roll(within_ns));
    weft_sim_wake(run.sim, DRIVER);
}

/* ---- death of the coordinator ---- */

static void die(struct weft_timer *timer)
{
    if (run.is_dead) return;
    run.is_dead = true;
    run.is_dying = false;
    run.died_ns = weft_sim_now_ns(run.sim);
    kill_some(WEFT_MS(1) << roll(8));
    weft_sim_kill(run.sim, FIRST_SHARD);
    sim_net_died(FIRST_SHARD, run.kind == FAULT_SILENT);
}

static void dies_in_send(void)
{
    run.is_dying = true;
    takeover_snapshots_stop();
    weft_timer_start(run.driver, &run.death, weft_sim_now_ns(run.sim));
    weft_sim_wake(run.sim, DRIVER);
}

static uint32_t steps_done(void)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < run.workers; i++)
        if (run.all[i].steps > most) most = run.all[i].steps;
    return most;
}

static void settle(struct weft_timer *timer)
{
    run.settled_ns = weft_sim_now_ns(run.sim);
    run.settled_steps = steps_done();
}

static void die_early(struct weft_timer *timer)
{
    weft_sim_kill(run.sim, EARLY_SHARD);
    sim_net_died(EARLY_SHARD, roll(4) == 0);
}

/* Reads the log line of the coordinator about shard 1, and starts the timer of its death. */
static void shard_joined(const char *text)
{
    if (!run.loses_shard || strncmp(text, "shard 1 (", 9) != 0 || !strstr(text, ") joined, endpoints"))
        return;
    const uint64_t delay_ns = 1 + roll(8000ull << roll(12));
    weft_timer_start(run.driver, &run.early_death, weft_sim_now_ns(run.sim) + delay_ns);
    weft_sim_wake(run.sim, DRIVER);
}

static void choose_early(void)
{
    static const enum fault_kind of_coordinator[] = {FAULT_FRAME, FAULT_FRAME, FAULT_TIME, FAULT_SILENT,
                                                     FAULT_STOP};
    run.lost_answers = 0;
    run.loses_shard = roll(3) == 0;
    run.kind = run.loses_shard ? FAULT_NONE : of_coordinator[roll(5)];
}

static void choose_fault(const char *snapshots)
{
    weft_timer_init(&run.early_death, die_early);
    for (uint32_t i = 0; i < run.workers; i++) weft_timer_init(&run.all[i].death, kill_worker);
    kill_some(WEFT_MS(16) << roll(10));
    const uint64_t span_ns = run.is_early ? WEFT_MS(1) << roll(4) : WEFT_MS(16) << roll(10);
    const uint64_t at_ns = 1 + roll(span_ns);
    run.kind = (enum fault_kind)roll(FAULT_KINDS);
    if (roll(3) == 0) run.kind = FAULT_FRAME;
    run.lost_answers = roll(3) ? 0 : (uint32_t)roll(7);
    if (run.kind == FAULT_FILE && run.snapshots == SNAPSHOTS_NONE) run.kind = FAULT_FRAME;
    if (run.is_early) choose_early();
    weft_timer_init(&run.death, die);
    weft_timer_init(&run.settled, settle);
    const uint32_t die_at = run.kind == FAULT_FILE ? 1 + (uint32_t)roll(3 + roll(20)) : 0;
    takeover_snapshots_begin(snapshots, FIRST_SHARD, die_at, roll(2), dies_in_send);
    if (run.kind == FAULT_FRAME)
        sim_net_die_at(FIRST_SHARD,
                       1 + roll((run.is_early ? 6
                                 : roll(2)    ? 60
                                              : 20) *
                                (run.shards + run.workers)),
                       dies_in_send);
    if (run.kind == FAULT_TIME || run.kind == FAULT_SILENT) weft_timer_start(run.driver, &run.death, at_ns);
    if (run.kind != FAULT_STOP) return;
    /* often about as long as the lease: some members have not noticed it */
    struct sim_fault stop = {.stopped = 1ull << FIRST_SHARD, .at_ns = at_ns};
    stop.lasts_ns = roll(3) ? WEFT_MS(2900) + roll(WEFT_MS(1200)) : WEFT_MS(1) << roll(15);
    (void)sim_fault_add(run.sim, run.driver, &stop);
}

/* ---- one seed ---- */

static void fail_seed(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail_seed(const char *format, ...)
{
    va_list list;
    if (run.why[0]) return;
    va_start(list, format);
    vsnprintf(run.why, sizeof run.why, format, list);
    va_end(list);
}

/* The weights behind a step. All are whole numbers. */
static float weights_after(uint64_t step, uint32_t index)
{
    float value = 0;
    if (run.is_elastic) return elastic_weights(step, index);
    for (uint64_t s = 1; s <= step; s++) value -= base(s, index) + (float)(run.workers - 1);
    return value;
}

static void check_snapshots(struct weft_env *env)
{
    char why[700] = "";
    if (run.snapshots == SNAPSHOTS_NONE) return;
    if (!takeover_snapshots_check(env, weights_after, COUNT, &run.committed, why, sizeof why))
        fail_seed("%s", why);
    for (uint32_t i = 0; i < run.workers; i++)
        if (run.all[i].finalize_ns > FINALIZE_NS)
            fail_seed("h%u was %.1f s in weft_finalize", run.all[i].host,
                      (double)run.all[i].finalize_ns / 1e9);
    if (run.settled_ns > 0 && !run.is_elastic && run.all[0].status == WEFT_OK && run.committed == 0 &&
        run.goal >= run.settled_steps + AMPLE_STEPS && weft_sim_now_ns(run.sim) >= run.settled_ns + AMPLE_NS)
        fail_seed("the next coordinator has made no snapshot in %u steps and %.1f s",
                  (unsigned)(run.goal - run.settled_steps),
                  (double)(weft_sim_now_ns(run.sim) - run.settled_ns) / 1e9);
}

/* The newcomer has joined before the job began and has the rank of this worker. */
static bool is_replaced(const struct worker *worker)
{
    return run.has_newcomer && run.all[run.workers].has_begun && !worker->has_begun &&
           worker->status == WEFT_ERR_EXISTS;
}

static void check(void)
{
    bool has_begun = run.is_early; /* each job of --early begins */
    for (uint32_t i = 0; i < run.workers; i++) has_begun |= run.all[i].has_begun;
    for (uint32_t i = 0; i < run.workers + run.has_newcomer; i++) {
        const struct worker *worker = &run.all[i];
        if (worker->is_dead) continue;
        char doing[80] = "";
        if (!worker->ended) sim_process_describe(worker->host, doing, sizeof doing);
        if (!worker->ended)
            fail_seed("h%u has not ended after step %u: it %s", worker->host, worker->steps, doing);
        if (worker->wrong > 0) fail_seed("h%u has %u wrong numbers", worker->host, worker->wrong);
        const bool waits_long = worker->ended_ns > run.died_ns + BEFORE_GO_NS;
        if (!has_begun && i < run.workers && run.died_ns > 0 && (waits_long || !worker->text[0]))
            fail_seed("h%u had not begun, and ended %.1f s behind the coordinator: %s", worker->host,
                      ((double)worker->ended_ns - (double)run.died_ns) / 1e9, worker->text);
        /* a newcomer may join too late, or wait for admission when the coordinator dies */
        const bool must_end_in_order = i < run.workers ? has_begun : worker->has_begun;
        if (must_end_in_order && worker->status < 0 && !is_replaced(worker))
            fail_seed("h%u ended after step %u: %s: %s", worker->host, worker->steps,
                      weft_status_name(worker->status), worker->text);
    }
}

static void log_takeovers(struct weft_env *env, enum weft_log_level level, const char *module,
                          const char *text)
{
    if (strstr(text, "this process takes over at")) {
        run.takeovers++;
        snprintf(run.next_address, sizeof run.next_address, "%.60s", strstr(text, "over at") + 8);
        kill_some(WEFT_MS(1) << roll(14));
        if (!run.is_early) weft_timer_start(run.driver, &run.settled, weft_sim_now_ns(run.sim) + SETTLE_NS);
        weft_sim_wake(run.sim, DRIVER);
    }
    shard_joined(strstr(text, "] ") ? strstr(text, "] ") + 2 : text);
    if (verbose)
        fprintf(stderr, "%.6f h%u %s %s\n", (double)weft_sim_now_ns(run.sim) / 1e9, sim_process_host(env),
                module, text);
}

static bool is_elastic, is_early; /* --elastic, --early */

static void choose_job(uint64_t seed, struct weft_config **configs)
{
    memset(&run, 0, sizeof run);
    seed_random(seed);
    run.seed = seed;
    run.snapshots = (enum snapshot_kind)roll(SNAPSHOT_KINDS);
    run.config = configs[run.snapshots];
    /* an elastic job with a store has wire version 2 */
    run.config_old = run.snapshots == SNAPSHOTS_NONE && !is_elastic ? configs[SNAPSHOT_KINDS] : run.config;
    run.shards = 2 + (uint32_t)roll(SHARDS_MAX - 1);
    run.workers = 1 + (uint32_t)roll(WORKERS_MAX);
    run.is_early = is_early;
    if (is_early && run.shards < 3) run.shards = 3;
    run.is_elastic = is_elastic;
    run.has_newcomer = is_elastic && roll(2);
    run.goal = run.snapshots == SNAPSHOTS_NONE ? 2 + (uint32_t)roll(8) : 12 + (uint32_t)roll(24);
}

static bool start_hosts(struct weft_env *env)
{
    struct weft_sim_options options;
    weft_sim_options_init(&options);
    options.seed = run.seed;
    options.host_count = FIRST_SHARD + run.shards + run.workers + run.has_newcomer;
    options.latency_ns = 1000 + roll(20000);
    options.jitter_ns = roll(10000);
    options.detect_ns = 100000 + roll(WEFT_MS(1) << roll(8));
    if (weft_sim_create(env, &options, &run.sim) < 0) return false;
    sim_processes_begin(run.sim, options.host_count);
    sim_net_begin(sim_process_host, wake, net_random, 1000 + roll(WEFT_MS(1) << roll(4)));
    if (weft_loop_create(weft_sim_env(run.sim, DRIVER), NULL, &run.driver) < 0 ||
        weft_sim_add(run.sim, DRIVER, run.driver) < 0)
        return false;
    for (uint32_t i = 0; i < run.shards; i++)
        if (sim_process_start(FIRST_SHARD + i, i == 0 ? 0 : 1000 + roll(WEFT_MS(1)), shard_main,
                              (void *)(uintptr_t)i) < 0)
            return false;
    for (uint32_t i = 0; i < run.workers + run.has_newcomer; i++) {
        const uint64_t delay_ns = 1000 + roll(i < run.workers ? WEFT_MS(1) : WEFT_MS(64) << roll(9));
        run.all[i].host = FIRST_SHARD + run.shards + i;
        if (sim_process_start(run.all[i].host, delay_ns, worker_main, &run.all[i]) < 0) return false;
    }
    return true;
}

struct paths {
    char folder[64], store[80], snapshots[80];
};

/* Sessions of dead programs are in the list of live ones. */
static void forget_sessions(void)
{
    for (uint32_t i = 0; i < WORKERS_AND_NEW; i++)
        if (run.all[i].session) weft_list_remove(&run.all[i].session->live.link);
}

/* All memory is in the arena. Hosts that died leave files of the store open. */
static bool run_seed(struct weft_env *env, uint64_t seed, struct weft_config **configs,
                     const struct paths *paths)
{
    const int first_file = dup(STDERR_FILENO);
    arena_reset();
    (void)unlink(paths->store);
    choose_job(seed, configs);
    if (!start_hosts(env)) fail_seed("the hosts cannot start");
    else {
        choose_fault(paths->snapshots);
        weft_sim_run(run.sim, &run.all_done, WEFT_SECONDS(300));
        check();
        check_snapshots(env);
    }
    forget_sessions();
    for (int file = first_file; file < first_file + 64; file++) (void)close(file);
    return !run.why[0];
}

/* every: the interval of snapshots; NULL: none. */
static struct weft_config *make_config(const struct paths *paths, const char *every, const char *wire_version)
{
    struct weft_config *config = NULL;
    if (weft_config_load(weft_env_system(), &config, NULL) < 0 ||
        weft_config_set(config, "server.store", paths->store, "test", NULL) < 0 ||
        weft_config_set(config, "job.wire_version", wire_version, "test", NULL) < 0 ||
        (every && weft_config_set(config, "snapshot.folder", paths->snapshots, "test", NULL) < 0) ||
        (every && weft_config_set(config, "snapshot.every", every, "test", NULL) < 0) ||
        weft_config_set(config, "server.copies", "1", "test", NULL) < 0 ||
        weft_config_set(config, "server.copies_on_one_host", "yes", "test", NULL) < 0 ||
        weft_config_set(config, "server.receive_bytes", "1MiB", "test", NULL) < 0)
        return NULL;
    return config;
}

/* In memory where possible: each decision is an fsync. */
static bool make_paths(struct paths *paths)
{
    snprintf(paths->folder, sizeof paths->folder, "%s",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm/weft-XXXXXX" : "/tmp/weft-XXXXXX");
    if (!mkdtemp(paths->folder)) return false;
    snprintf(paths->store, sizeof paths->store, "%s/store", paths->folder);
    snprintf(paths->snapshots, sizeof paths->snapshots, "%s/snapshots", paths->folder);
    return true;
}

static uint64_t kinds[FAULT_KINDS], takeovers, ended, committed, deaths, deaths_then, new_ranks;

/* deaths_then, new_ranks: in jobs with another coordinator. */
static void count_workers(void)
{
    uint64_t dead = 0;
    for (uint32_t i = 0; i < run.workers; i++) dead += run.all[i].is_dead;
    deaths += dead;
    deaths_then += run.takeovers > 0 ? dead : 0;
    new_ranks += run.takeovers > 0 && run.has_newcomer && run.all[run.workers].steps > 0;
}

static int run_seeds(struct weft_env *env, uint64_t first, uint64_t seeds, struct weft_config **configs,
                     const struct paths *paths, const char *words)
{
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (!run_seed(env, seed, configs, paths)) {
            printf("seed %llu: %s\nreplay: sim_takeover_seeds --first %llu --seeds 1%s --verbose\n",
                   (unsigned long long)seed, run.why, (unsigned long long)seed, words);
            return 1;
        }
        kinds[run.kind]++;
        takeovers += run.takeovers;
        committed += run.committed;
        count_workers();
        ended += run.all[0].status == WEFT_OK;
    }
    printf("%llu jobs, %llu ended in order, %llu other coordinators, %llu snapshots of these; %llu workers "
           "died, %llu of them and %llu new ones in jobs with another coordinator: no number lost or counted "
           "twice, no hang\n",
           (unsigned long long)seeds, (unsigned long long)ended, (unsigned long long)takeovers,
           (unsigned long long)committed, (unsigned long long)deaths, (unsigned long long)deaths_then,
           (unsigned long long)new_ranks);
    if (is_elastic && seeds >= 100 && (deaths_then == 0 || new_ranks == 0)) return 1;
    if (is_early) return ended < seeds || (seeds >= 60 && takeovers == 0);
    for (uint32_t kind = 0; kind < FAULT_KINDS && seeds >= 100; kind++)
        if (kinds[kind] == 0 || takeovers == 0 || committed == 0 || ended < seeds / 2)
            return 1; /* something never happened */
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 20, first = 1;
    bool separate = false;
    struct paths paths;
    char words[80];
    const char *mutant = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--separate") == 0) sim_processes_separate(separate = true);
        else if (strcmp(argv[i], "--elastic") == 0) is_elastic = true;
        else if (strcmp(argv[i], "--early") == 0) is_early = true;
        else if (strcmp(argv[i], "--mutant") == 0 && i + 1 < argc) mutant = argv[++i];
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else
            return fprintf(
                       stderr,
                       "usage: %s [--seeds N] [--first S] [--elastic | --early] [--separate] [--mutant NAME] "
                       "[--verbose]\n",
                       argv[0]),
                   2;
    }
    setenv("WEFT_TRANSPORT_BACKEND", "sim", 1);
    if (mutant && !takeover_mutant_select(mutant)) return fprintf(stderr, "no mutant %s\n", mutant), 2;
    if (!make_paths(&paths)) return fprintf(stderr, "no folder for the store\n"), 1;
    if (is_early) setenv("WEFT_SERVER_STORE", paths.store, 1);
    struct weft_config *configs[SNAPSHOT_KINDS + 1] = {
        make_config(&paths, NULL, "0"), make_config(&paths, "2 steps", "0"), make_config(&paths, "30ms", "0"),
        make_config(&paths, NULL, "1")};
    struct weft_env env = *weft_env_system();
    if (!configs[0] || !configs[1] || !configs[2] || !configs[3] || !arena_make(&env))
        return fprintf(stderr, "no memory\n"), 1;
    env.log = log_takeovers;
    env.log_level = verbose ? WEFT_LOG_DEBUG : is_early ? WEFT_LOG_INFO : WEFT_LOG_WARN;
    snprintf(words, sizeof words, "%s%s%s%.40s",
             is_elastic ? " --elastic"
             : is_early ? " --early"
                        : "",
             separate ? " --separate" : "", mutant ? " --mutant " : "", mutant ? mutant : "");
    const int status = run_seeds(&env, first, seeds, configs, &paths, words);
    takeover_snapshots_clear(paths.folder);
    for (uint32_t i = 0; i <= SNAPSHOT_KINDS; i++) weft_config_free(configs[i]);
    free(arena);
    if (mutant) return status == 0 ? fprintf(stderr, "no seed has detected %s\n", mutant), 1 : 0;
    return status;
}
