/* sim_overlap.c - what communication adds to a step of a GPT, in virtual time: push_pull behind the backward
 * pass, of each layer inside it, and with waits for each layer in the next forward pass (deliver_late).
 *
 * Two workers have the tensors of examples/gpt. A layer computes for a given time, which costs no processor
 * here, so only the network counts. Virtual time is equal in every run. Checks: each way is at most as long
 * as the one before it, within 1 %; none is shorter than computation or traffic; with deliver_late
 * weft_step_end takes less than half of its time without.
 *
 *     sim_overlap [--compute-ms N] [--rate BYTES_PER_SECOND] [--latency-us N] [--table] [--verbose]
 *     --table: the ranks have a link table (collective.links) */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "client/session/session.h"
#include "server/server.h"
#include "tests/sim/arena.h"
#include "tests/sim/seed.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_process.h"

enum { COORDINATOR = 0, FIRST = 1, WORKERS = 2, BLOCKS = 4, WIDTH = 128, LENGTH = 64, LAYERS = BLOCKS + 2 };
enum { WARM = 3, STEPS = 10, PARTS = 5 * BLOCKS + 3, ELEMS_MAX = 4 * WIDTH * WIDTH };
enum way { AFTER, BACKWARD, FORWARD, WAYS };
static const char *const names[WAYS] = {"after", "backward", "forward"};

struct part {
    uint32_t layer;
    uint64_t rows, cols;
};

struct worker {
    uint32_t host;
    struct weft_session *session;
    struct weft_tensor *tensors[PARTS];
    struct weft_request requests[PARTS];
    float *grads[PARTS], *weights[PARTS];
    double step_ms[WAYS];
    uint64_t end_ns[WAYS]; /* spent in weft_step_end */
    bool failed;
};

static struct {
    struct weft_sim *sim;
    struct part parts[PARTS];
    struct worker workers[WORKERS];
    uint64_t layer_ns, rate, latency_ns; /* of a layer's forward pass; backward: twice */
    uint32_t ended;
    bool done;
} run;

static void make_parts(void)
{
    uint32_t count = 0;
    run.parts[count++] = (struct part){0, 256, WIDTH};
    run.parts[count++] = (struct part){0, LENGTH, WIDTH};
    for (uint32_t layer = 1; layer <= BLOCKS; layer++) {
        static const uint64_t rows[] = {3 * WIDTH, WIDTH, 4 * WIDTH, 4 * WIDTH, 13};
        for (int i = 0; i < 5; i++) run.parts[count++] = (struct part){layer, rows[i], WIDTH};
    }
    run.parts[count++] = (struct part){BLOCKS + 1, 2, WIDTH};
}

static uint64_t all_bytes(void)
{
    uint64_t bytes = 0;
    for (int p = 0; p < PARTS; p++) bytes += run.parts[p].rows * run.parts[p].cols * sizeof(float);
    return bytes;
}

/* ---- a worker ---- */

static enum weft_status declare(struct worker *worker)
{
    for (int p = 0; p < PARTS; p++) {
        struct weft_tensor_options options;
        const uint64_t elems = run.parts[p].rows * run.parts[p].cols;
        char name[16];
        weft_tensor_options_init(&options);
        snprintf(name, sizeof name, "p%d", p);
        options.name = name;
        options.dim_count = 2;
        options.dims[0] = run.parts[p].rows;
        options.dims[1] = run.parts[p].cols;
        options.optimizer = "adamw";
        worker->grads[p] = calloc(elems, sizeof(float));
        worker->weights[p] = calloc(elems, sizeof(float));
        if (!worker->grads[p] || !worker->weights[p]) return WEFT_ERR_NO_MEMORY;
        WEFT_TRY(weft_declare(worker->session, &options, &worker->tensors[p]));
        WEFT_TRY(weft_tensor_init(worker->tensors[p], worker->weights[p]));
    }
    return WEFT_OK;
}

static enum weft_status push_layer(struct worker *worker, uint32_t layer)
{
    for (int p = 0; p < PARTS; p++)
        if (run.parts[p].layer == layer)
            WEFT_TRY(weft_push_pull(worker->tensors[p], worker->grads[p], worker->weights[p],
                                    &worker->requests[p]));
    return WEFT_OK;
}

static enum weft_status step(struct worker *worker, enum way way, uint64_t number)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (int p = 0; p < PARTS; p++)
            if (run.parts[p].layer == layer) WEFT_TRY(weft_tensor_wait(worker->tensors[p], 0));
        sim_process_sleep(run.layer_ns);
    }
    WEFT_TRY(weft_step_begin_with(
        worker->session, WEFT_STEP(.step = number, .lr = 0.1f, .weight = 1, .deliver_late = way == FORWARD)));
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        sim_process_sleep(2 * run.layer_ns);
        if (way != AFTER) WEFT_TRY(push_layer(worker, layer));
    }
    for (uint32_t layer = LAYERS; way == AFTER && layer-- > 0;) WEFT_TRY(push_layer(worker, layer));
    const uint64_t ends_ns = weft_sim_now_ns(run.sim);
    const enum weft_status status = weft_step_end(worker->session);
    worker->end_ns[way] += weft_sim_now_ns(run.sim) - ends_ns;
    return status;
}

static enum weft_status train(struct worker *worker)
{
    uint64_t number = 1;
    WEFT_TRY(declare(worker));
    for (enum way way = AFTER; way < WAYS; way++) {
        uint64_t began_ns = 0;
        for (int i = 0; i < WARM + STEPS; i++) {
            if (i == WARM) began_ns = weft_sim_now_ns(run.sim);
            WEFT_TRY(step(worker, way, number++));
        }
        worker->step_ms[way] = 1e-6 * (double)(weft_sim_now_ns(run.sim) - began_ns) / STEPS;
        WEFT_TRY(weft_step_wait(worker->session));
    }
    return WEFT_OK;
}

static void worker_main(void *context)
{
    struct worker *worker = context;
    struct weft_options options;
    char name[16];
    weft_options_init(&options);
    options.coordinator = "coordinator:4000";
    options.job = "simulated";
    snprintf(name, sizeof name, "h%u", worker->host);
    setenv("WEFT_CLIENT_HOST", name, 1); /* read before the first wait */
    enum weft_status status = client_init(weft_sim_env(run.sim, worker->host), &options, &worker->session);
    if (status >= 0) status = train(worker);
    if (status < 0) fprintf(stderr, "%s: %s\n", name, weft_error_text(worker->session));
    worker->failed = status < 0;
    struct weft_session *session = worker->session;
    worker->session = NULL;
    weft_finalize(session);
    run.done = ++run.ended == WORKERS;
}

/* ---- the job ---- */

static uint64_t net_random(uint64_t below)
{
    return roll(below);
}
static void wake(uint32_t host)
{
    weft_sim_wake(run.sim, host);
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
    options.workers = WORKERS;
    return weft_net_create(env, &net) == WEFT_OK &&
           weft_coordinator_server_start(env, net, "127.0.0.1", 0, &options, &port, &server, &error) ==
               WEFT_OK;
}

static bool run_job(struct weft_env *env)
{
    struct weft_sim_options options;
    weft_sim_options_init(&options);
    options.host_count = FIRST + WORKERS;
    options.latency_ns = run.latency_ns;
    options.bytes_per_second = run.rate;
    if (weft_sim_create(env, &options, &run.sim) < 0) return false;
    sim_processes_begin(run.sim, FIRST + WORKERS);
    sim_net_begin(sim_process_host, wake, net_random, WEFT_MS(1));
    if (!start_coordinator(weft_sim_env(run.sim, COORDINATOR))) return false;
    for (uint32_t i = 0; i < WORKERS; i++) {
        run.workers[i].host = FIRST + i;
        if (sim_process_start(FIRST + i, 0, worker_main, &run.workers[i]) < 0) return false;
    }
    weft_sim_run(run.sim, &run.done, WEFT_SECONDS(3000));
    return run.done && !run.workers[0].failed && !run.workers[1].failed;
}

/* Two ranks exchange each half of the bytes twice: all bytes pass each link. */
static bool print_and_check(void)
{
    const double compute_ms = 1e-6 * 3 * LAYERS * (double)run.layer_ns;
    const double traffic_ms = 1e3 * (double)all_bytes() / (double)run.rate;
    const double least_ms = compute_ms > traffic_ms ? compute_ms : traffic_ms;
    bool well = true;
    for (enum way way = AFTER; way < WAYS; way++) {
        const double ms = run.workers[0].step_ms[way];
        printf("%.0f Mbit/s: compute %.2f ms, traffic %.2f ms, %-8s step %.2f ms, added %.2f ms, above the "
               "longer one %.1f %%\n",
               8e-6 * (double)run.rate, compute_ms, traffic_ms, names[way], ms, ms - compute_ms,
               100 * (ms / least_ms - 1));
        well = well && ms > 0.999 * least_ms && (way == AFTER || ms < 1.01 * run.workers[0].step_ms[way - 1]);
    }
    return well && 2 * run.workers[0].end_ns[FORWARD] < run.workers[0].end_ns[BACKWARD];
}

static void write_table(char *path)
{
    const int file = mkstemp(path);
    if (file < 0 || dprintf(file,
                            "weft-links 1\nhost 1 h1\nhost 2 h2\nlink 0 1 works %llu %llu sim|\n"
                            "link 1 0 works %llu %llu sim|\nend 4\n",
                            (unsigned long long)run.latency_ns, (unsigned long long)run.rate,
                            (unsigned long long)run.latency_ns, (unsigned long long)run.rate) < 0)
        exit(1);
    close(file);
    setenv("WEFT_COLLECTIVE_LINKS", path, 1);
}

int main(int argc, char **argv)
{
    char path[] = "/tmp/weft-sim-overlap-XXXXXX";
    uint64_t compute_ms = 41, latency_us = 20;
    bool table = false;
    run.rate = 125000000;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--compute-ms") == 0 && i + 1 < argc) compute_ms = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--rate") == 0 && i + 1 < argc) run.rate = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--latency-us") == 0 && i + 1 < argc)
            latency_us = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--table") == 0) table = true;
        else if (strcmp(argv[i], "--verbose") == 0) verbose = true;
        else
            return fprintf(stderr, "usage: %s [--compute-ms N] [--rate B] [--latency-us N] [--table]\n",
                           argv[0]),
                   2;
    }
    run.layer_ns = WEFT_MS(compute_ms) / (3 * LAYERS);
    run.latency_ns = latency_us * 1000;
    setenv("WEFT_TRANSPORT_BACKEND", "sim", 1);
    if (table) write_table(path);
    struct weft_env env = *weft_env_system();
    if (!arena_make(&env)) return fprintf(stderr, "no memory for the arena\n"), 1;
    env.log = log_line;
    make_parts();
    const bool well = run_job(&env) && print_and_check();
    if (table) unlink(path);
    return well ? 0 : 1;
}
