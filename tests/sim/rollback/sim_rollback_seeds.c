/* sim_rollback_seeds.c - jobs with server.rollback whose shards die, in one process and in virtual time:
 * weftd, and the client as trainers call it.
 *
 *     sim_rollback_seeds [--seeds N] [--first S] [--mutant NAME] [--verbose]
 *
 * A seed selects the number of shards and workers, the options, and the step in which shards die: two with
 * copies at about the same time, or the second one later; also the coordinator, in jobs with a store; one or
 * two in jobs without copies. With copies some die silently. No new copy is made before the second loss.
 * Workers push whole numbers, and begin another session when they are rolled back.
 *
 * Checks: each job ends in order on all workers, or with a sentence that has the reason why it cannot be
 * rolled back; all workers begin behind the same snapshots; the weights that a worker begins with are those
 * behind that step, its blob too, and each later result equals the sum; no program hangs; each snapshot on
 * disk is whole. A failing seed prints the command that replays it. --mutant makes one fault, which a seed
 * must detect. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "client/session/session.h"
#include "coordinator/takeover/records.h"
#include "server/server.h"
#include "tests/sim/arena.h"
#include "tests/sim/seed.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_process.h"
#include "tests/sim/takeover_snapshots.h"

enum {
    DRIVER = 0,
    FIRST_SHARD = 1,
    SHARDS_MAX = 5,
    WORKERS_MAX = 3,
    COUNT = 700,
    CHUNK = 256,
    BEGINS_MAX = 4
};
enum fault_kind { FAULT_TWO, FAULT_LATER, FAULT_COORDINATOR, FAULT_ONE, FAULT_PLAIN_LATER, FAULT_KINDS };
enum { WITH_STORE = 2, WITH_COPIES = 1, PLAIN = 0, OPTION_SETS = 3, INTERVALS = 2 };

struct death {
    struct weft_timer timer;
    uint32_t host;
};

struct worker {
    uint32_t host, wrong, begins;
    uint64_t first[BEGINS_MAX]; /* first step of each session */
    bool ended;
    struct weft_session *session; /* NULL: it has ended in order */
    enum weft_status status;
    char text[480];
    float grad[COUNT], out[COUNT], model[COUNT];
};

static struct run {
    uint64_t seed, fault_step;
    uint32_t shards, workers, goal, options;
    enum fault_kind kind;
    bool has_fault, all_done;
    struct death deaths[3];
    uint32_t death_count;
    struct worker all[WORKERS_MAX];
    struct weft_sim *sim;
    struct weft_loop *driver;
    struct weft_config *config; /* borrowed */
    const char *store;
    char why[900];
} run;

/* ---- mutants (linked with --wrap) ---- */

static const char *const mutants[] = {"listens-on", "begins-afresh", "record-ended"};
static const char *mutant = "";

static bool is_mutant(uint32_t index)
{
    return strcmp(mutant, mutants[index]) == 0;
}

/* Members that join early find a job that has ended. */
void __real_weft_net_unlisten(struct weft_net_listener *listener);
void __wrap_weft_net_unlisten(struct weft_net_listener *listener);
void __wrap_weft_net_unlisten(struct weft_net_listener *listener)
{
    if (!is_mutant(0)) __real_weft_net_unlisten(listener);
}

/* A shard restores nothing. */
struct weftd_engine;
enum weft_status __real_weftd_restore_tensor(struct weftd_engine *engine,
                                             const Weft__Control__Declared *declared, uint64_t *restored_out,
                                             struct weft_error *error);
enum weft_status __wrap_weftd_restore_tensor(struct weftd_engine *engine,
                                             const Weft__Control__Declared *declared, uint64_t *restored_out,
                                             struct weft_error *error);
enum weft_status __wrap_weftd_restore_tensor(struct weftd_engine *engine,
                                             const Weft__Control__Declared *declared, uint64_t *restored_out,
                                             struct weft_error *error)
{
    *restored_out = 0;
    return is_mutant(1) ? WEFT_OK : __real_weftd_restore_tensor(engine, declared, restored_out, error);
}

/* No other process can begin the job. */
bool __real_coordinator_records_begin_again(struct weft_coordinator *coordinator);
bool __wrap_coordinator_records_begin_again(struct weft_coordinator *coordinator);
bool __wrap_coordinator_records_begin_again(struct weft_coordinator *coordinator)
{
    return is_mutant(2) || __real_coordinator_records_begin_again(coordinator);
}

/* ---- workers ---- */

static float base(uint64_t step, uint32_t i)
{
    return (float)(2 * ((step + i) % 2));
}

static float mean_of(uint64_t step, uint32_t i)
{
    return base(step, i) + (float)(run.workers - 1);
}

static float weights_after(uint64_t step, uint32_t i)
{
    float value = 0;
    for (uint64_t s = 1; s <= step; s++) value -= mean_of(s, i);
    return value;
}

static enum weft_status declare(struct weft_session *session, const char *name, struct weft_tensor **out)
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

static enum weft_status run_step(struct worker *worker, struct weft_session *session,
                                 struct weft_tensor **tensors, uint64_t number)
{
    const struct weft_step step = {number, 1.0f, 1.0f};
    for (uint32_t i = 0; i < COUNT; i++) worker->grad[i] = base(number, i) + 2.0f * (float)weft_rank(session);
    WEFT_TRY(weft_step_begin(session, &step));
    WEFT_TRY(exchange(worker, tensors[0]));
    for (uint32_t i = 0; i < COUNT; i++) worker->wrong += worker->out[i] != mean_of(number, i);
    WEFT_TRY(exchange(worker, tensors[1]));
    for (uint32_t i = 0; i < COUNT; i++) worker->wrong += worker->out[i] != weights_after(number, i);
    WEFT_TRY(weft_snapshot_blob(session, &number, sizeof number));
    return weft_step_end(session);
}

/* The weights and the blob are those behind the step before. */
static enum weft_status check_begin(struct worker *worker, struct weft_session *session, uint64_t first)
{
    uint64_t blob = 0, bytes = sizeof blob, step = 0;
    for (uint32_t i = 0; i < COUNT; i++) worker->wrong += worker->model[i] != weights_after(first - 1, i);
    if (first == 1) return WEFT_OK;
    WEFT_TRY(weft_snapshot_restored_blob(session, weft_rank(session), &blob, &bytes, &step));
    worker->wrong += blob != first - 1 || step != first - 1;
    return WEFT_OK;
}

static void begin_fault(void);

static enum weft_status train(struct worker *worker, struct weft_session *session)
{
    struct weft_tensor *tensors[2];
    const uint64_t first = weft_step_next(session);
    if (worker->begins < BEGINS_MAX) worker->first[worker->begins++] = first;
    memset(worker->model, 0, sizeof worker->model);
    WEFT_TRY(declare(session, "mean", &tensors[0]));
    WEFT_TRY(declare(session, "weights", &tensors[1]));
    WEFT_TRY(weft_tensor_init(tensors[1], worker->model));
    WEFT_TRY(check_begin(worker, session, first));
    for (uint64_t step = first; step <= run.goal; step++) {
        if (step == run.fault_step && worker == &run.all[0]) begin_fault();
        sim_process_sleep(1 + mix(run.seed + 31 * step + worker->host) % (WEFT_MS(1) << (run.seed % 8)));
        WEFT_TRY(run_step(worker, session, tensors, step));
    }
    return WEFT_OK;
}

static enum weft_status run_session(struct worker *worker)
{
    struct weft_session *session = NULL;
    struct weft_options options;
    char name[16];
    weft_options_init(&options);
    options.coordinator = "coordinator:4000";
    options.job = "simulated";
    options.deadline_ms = 100000;
    snprintf(name, sizeof name, "h%u", worker->host);
    setenv("WEFT_CLIENT_HOST", name, 1); /* all are read before the first wait */
    if (run.options == WITH_STORE) setenv("WEFT_SERVER_STORE", run.store, 1);
    else unsetenv("WEFT_SERVER_STORE");
    enum weft_status status = client_init(weft_sim_env(run.sim, worker->host), &options, &session);
    if (status < 0) {
        snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(NULL));
        return status;
    }
    worker->session = session;
    status = train(worker, session);
    if (status < 0) snprintf(worker->text, sizeof worker->text, "%s", weft_error_text(session));
    worker->session = NULL;
    weft_finalize(session);
    return status;
}

static void worker_main(void *context)
{
    struct worker *worker = context;
    do worker->status = run_session(worker);
    while (worker->status == WEFT_ERR_ROLLED_BACK);
    worker->ended = true;
    bool all_done = true;
    for (uint32_t i = 0; i < run.workers; i++) all_done &= run.all[i].ended;
    run.all_done = all_done;
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
    options.index = (int)index;
    options.engines = 1 + (uint32_t)(run.seed % 2);
    options.config = run.config;
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

static void die(struct weft_timer *timer)
{
    const struct death *death = weft_container_of(timer, struct death, timer);
    weft_sim_kill(run.sim, death->host);
    /* without copies a worker that sees the end of its connection before the coordinator does ends the job */
    sim_net_died(death->host, run.options != PLAIN && roll(5) == 0);
}

static void add_death(uint32_t shard, uint64_t within_ns)
{
    struct death *death = &run.deaths[run.death_count++];
    death->host = FIRST_SHARD + shard;
    weft_timer_init(&death->timer, die);
    weft_timer_start(run.driver, &death->timer, weft_sim_now_ns(run.sim) + 1 + roll(within_ns));
}

/* Worker 0 begins the step. */
static void begin_fault(void)
{
    const uint32_t one = 1 + (uint32_t)roll(run.shards - 1), other = 1 + one % (run.shards - 1);
    const uint64_t soon_ns = WEFT_MS(1) << roll(6), later_ns = WEFT_MS(1) << roll(14);
    if (run.has_fault) return;
    run.has_fault = true;
    add_death(one, soon_ns);
    if (run.kind != FAULT_ONE) add_death(other, run.kind == FAULT_TWO ? soon_ns : later_ns);
    if (run.kind == FAULT_COORDINATOR) add_death(0, later_ns);
    weft_sim_wake(run.sim, DRIVER);
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

/* A job may also end because too few shards are left. */
static bool is_refused(const struct worker *worker)
{
    return strstr(worker->text, "cannot be rolled back") != NULL;
}

static void check(struct weft_env *env)
{
    uint64_t committed;
    for (uint32_t i = 0; i < run.workers; i++) {
        const struct worker *worker = &run.all[i];
        char doing[80] = "";
        if (!worker->ended) sim_process_describe(worker->host, doing, sizeof doing);
        if (!worker->ended) fail_seed("h%u has not ended: it %s", worker->host, doing);
        if (worker->wrong > 0) fail_seed("h%u has %u wrong numbers", worker->host, worker->wrong);
        if (worker->status < 0 && !is_refused(worker))
            fail_seed("h%u: %s: %s", worker->host, weft_status_name(worker->status), worker->text);
        if (worker->begins != run.all[0].begins ||
            memcmp(worker->first, run.all[0].first, sizeof worker->first) != 0)
            fail_seed("h%u has begun behind other snapshots than h%u", worker->host, run.all[0].host);
    }
    if (!takeover_snapshots_check(env, weights_after, COUNT, &committed, run.why, sizeof run.why) &&
        !run.why[0])
        fail_seed("a snapshot is damaged");
}

static void log_lines(struct weft_env *env, enum weft_log_level level, const char *module, const char *text)
{
    if (verbose)
        fprintf(stderr, "%.6f h%u %s %s\n", (double)weft_sim_now_ns(run.sim) / 1e9, sim_process_host(env),
                module, text);
}

static void choose_job(uint64_t seed, struct weft_config *configs[OPTION_SETS][INTERVALS], const char *store)
{
    memset(&run, 0, sizeof run);
    seed_random(seed);
    run.seed = seed;
    run.store = store;
    run.kind = (enum fault_kind)roll(FAULT_KINDS);
    run.options = run.kind == FAULT_COORDINATOR ? WITH_STORE
                  : run.kind >= FAULT_ONE       ? PLAIN
                                                : WITH_COPIES + (uint32_t)roll(2);
    run.config = configs[run.options][roll(INTERVALS)];
    run.shards = run.kind == FAULT_COORDINATOR ? SHARDS_MAX : 3 + (uint32_t)roll(2);
    run.workers = 1 + (uint32_t)roll(WORKERS_MAX);
    run.goal = 8 + (uint32_t)roll(24);
    run.fault_step = 1 + run.goal / 3 + roll(run.goal - run.goal / 3);
}

static bool start_hosts(struct weft_env *env)
{
    struct weft_sim_options options;
    weft_sim_options_init(&options);
    options.seed = run.seed;
    options.host_count = FIRST_SHARD + run.shards + run.workers;
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
    for (uint32_t i = 0; i < run.workers; i++) {
        run.all[i].host = FIRST_SHARD + run.shards + i;
        if (sim_process_start(run.all[i].host, 1000 + roll(WEFT_MS(1)), worker_main, &run.all[i]) < 0)
            return false;
    }
    return true;
}

static void no_death(void) {}

struct paths {
    char folder[64], store[80], snapshots[80];
};

/* All memory is in the arena. Hosts that died leave files of the store open. */
static bool run_seed(struct weft_env *env, uint64_t seed, struct weft_config *configs[OPTION_SETS][INTERVALS],
                     const struct paths *paths)
{
    const int first_file = dup(STDERR_FILENO);
    arena_reset();
    (void)unlink(paths->store);
    choose_job(seed, configs, paths->store);
    takeover_snapshots_begin(paths->snapshots, FIRST_SHARD, 0, false, no_death);
    if (!start_hosts(env)) fail_seed("the hosts cannot start");
    else {
        weft_sim_run(run.sim, &run.all_done, WEFT_SECONDS(600));
        check(env);
    }
    for (uint32_t i = 0; i < WORKERS_MAX; i++)
        if (run.all[i].session) weft_list_remove(&run.all[i].session->live.link);
    for (int file = first_file; file < first_file + 64; file++) (void)close(file);
    return !run.why[0];
}

static bool set(struct weft_config *config, const char *option, const char *value)
{
    return weft_config_set(config, option, value, "test", NULL) == WEFT_OK;
}

/* No new copy is made while the job runs: move_rate. */
static struct weft_config *make_config(const struct paths *paths, uint32_t options, const char *every)
{
    struct weft_config *config = NULL;
    if (weft_config_load(weft_env_system(), &config, NULL) < 0 || !set(config, "server.rollback", "yes") ||
        !set(config, "snapshot.folder", paths->snapshots) || !set(config, "snapshot.every", every) ||
        !set(config, "snapshot.keep", "1") || !set(config, "server.receive_bytes", "1MiB") ||
        !set(config, "server.move_rate", "1") ||
        (options == WITH_STORE && !set(config, "server.store", paths->store)) ||
        (options != PLAIN &&
         (!set(config, "server.copies", "1") || !set(config, "server.copies_on_one_host", "yes"))))
        return NULL;
    return config;
}

/* In memory where possible. */
static bool make_paths(struct paths *paths)
{
    snprintf(paths->folder, sizeof paths->folder, "%s",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm/weft-XXXXXX" : "/tmp/weft-XXXXXX");
    if (!mkdtemp(paths->folder)) return false;
    snprintf(paths->store, sizeof paths->store, "%s/store", paths->folder);
    snprintf(paths->snapshots, sizeof paths->snapshots, "%s/snapshots", paths->folder);
    return true;
}

static int run_seeds(struct weft_env *env, uint64_t first, uint64_t seeds,
                     struct weft_config *configs[OPTION_SETS][INTERVALS], const struct paths *paths)
{
    uint64_t rolled_back[FAULT_KINDS] = {0}, twice = 0, refused = 0;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (!run_seed(env, seed, configs, paths)) {
            printf("seed %llu: %s\nreplay: sim_rollback_seeds --first %llu --seeds 1 --verbose%s%s\n",
                   (unsigned long long)seed, run.why, (unsigned long long)seed, mutant[0] ? " --mutant " : "",
                   mutant);
            return 1;
        }
        rolled_back[run.kind] += run.all[0].begins > 1;
        twice += run.all[0].begins > 2;
        refused += run.all[0].status < 0;
    }
    printf("%llu jobs: rolled back %llu, %llu, %llu, %llu and %llu of each kind, %llu of them twice; %llu "
           "refused: no "
           "wrong number, no hang\n",
           (unsigned long long)seeds, (unsigned long long)rolled_back[0], (unsigned long long)rolled_back[1],
           (unsigned long long)rolled_back[2], (unsigned long long)rolled_back[3],
           (unsigned long long)rolled_back[4], (unsigned long long)twice, (unsigned long long)refused);
    for (uint32_t kind = 0; kind < FAULT_KINDS && seeds >= 60; kind++)
        if (rolled_back[kind] == 0) return 1; /* something never happened */
    return refused > seeds / 2;
}

int main(int argc, char **argv)
{
    static const char *const intervals[INTERVALS] = {"2 steps", "30ms"};
    uint64_t seeds = 20, first = 1;
    struct paths paths;
    struct weft_config *configs[OPTION_SETS][INTERVALS];
    bool has_memory = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--mutant") == 0 && i + 1 < argc) mutant = argv[++i];
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else
            return fprintf(stderr, "usage: %s [--seeds N] [--first S] [--mutant NAME] [--verbose]\n",
                           argv[0]),
                   2;
    }
    setenv("WEFT_TRANSPORT_BACKEND", "sim", 1);
    if (mutant[0] && !is_mutant(0) && !is_mutant(1) && !is_mutant(2))
        return fprintf(stderr, "no mutant %s\n", mutant), 2;
    if (!make_paths(&paths)) return fprintf(stderr, "no folder for the store\n"), 1;
    for (uint32_t i = 0; i < OPTION_SETS * INTERVALS; i++)
        has_memory &= (configs[i / INTERVALS][i % INTERVALS] =
                           make_config(&paths, i / INTERVALS, intervals[i % INTERVALS])) != NULL;
    struct weft_env env = *weft_env_system();
    if (!has_memory || !arena_make(&env)) return fprintf(stderr, "no memory\n"), 1;
    env.log = log_lines;
    env.log_level = verbose ? WEFT_LOG_DEBUG : WEFT_LOG_WARN;
    const int status = run_seeds(&env, first, seeds, configs, &paths);
    takeover_snapshots_clear(paths.folder);
    for (uint32_t i = 0; i < OPTION_SETS * INTERVALS; i++)
        weft_config_free(configs[i / INTERVALS][i % INTERVALS]);
    free(arena);
    if (mutant[0]) return status == 0 ? fprintf(stderr, "no seed has detected %s\n", mutant), 1 : 0;
    return status;
}
