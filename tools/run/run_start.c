/* run_start.c - starts the processes of a job: shard 0 or a coordinator of our own, the other shards, the
 * workers. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server.h"
#include "tools/common.h"
#include "tools/run/coordinate.h"
#include "tools/run/run_job.h"

#define PORT_NS WEFT_SECONDS(20) /* limit for shard 0 to open its ports */

static void name_process(const struct run *run, struct run_process *process, const char *kind, uint32_t index)
{
    snprintf(process->name, sizeof process->name, "%s %u", kind, index);
    snprintf(process->log_path, sizeof process->log_path, "%s/%s%u.log", run->log_dir, kind, index);
    process->output_fd = process->log_fd = -1;
}

static bool start_shard(struct run *run, const char *weftd, uint32_t index)
{
    struct run_process *process = &run->processes[index];
    char number[6][16], secret[RUN_PATH_BYTES + 64], job[WEFT_LIMIT_NAME_BYTES + 16];
    const char *argv[32];
    int argc = 0;
    name_process(run, process, "shard", index);
    snprintf(number[0], sizeof number[0], "%u", index);
    snprintf(number[1], sizeof number[1], "%u", (unsigned)run->options.workers);
    snprintf(number[2], sizeof number[2], "%u", (unsigned)run->options.shards);
    snprintf(number[3], sizeof number[3], "%u", (unsigned)run->options.engines);
    snprintf(number[4], sizeof number[4], "%u", (unsigned)run->options.workers_min);
    snprintf(number[5], sizeof number[5], "%u", (unsigned)run->options.workers_max);
    snprintf(secret, sizeof secret, "WEFT_SECRET_FILE=%s", run->scratch.secret_path);
    snprintf(job, sizeof job, "WEFT_JOB=%s", run->job);
    argv[argc++] = weftd;
    argv[argc++] = "--index", argv[argc++] = number[0];
    if (index == 0) {
        argv[argc++] = "--workers", argv[argc++] = number[1];
        argv[argc++] = "--shards", argv[argc++] = number[2];
        if (run->options.workers_min) argv[argc++] = "--min-workers", argv[argc++] = number[4];
        if (run->options.workers_max) argv[argc++] = "--max-workers", argv[argc++] = number[5];
        argv[argc++] = "--port", argv[argc++] = "0";
        argv[argc++] = "--port-file", argv[argc++] = run->scratch.port_path;
        if (run->options.http) argv[argc++] = "--http-port", argv[argc++] = "0";
    } else {
        argv[argc++] = "--coordinator", argv[argc++] = run->coordinator;
    }
    if (run->options.engines) argv[argc++] = "--engines", argv[argc++] = number[3];
    if (run->options.lanes) argv[argc++] = "--lanes", argv[argc++] = run->options.lanes;
    if (run->options.devices) argv[argc++] = "--devices", argv[argc++] = run->options.devices;
    argv[argc] = NULL;
    const char *environment[] = {secret, job, NULL};
    return run_process_start(process, (char *const *)argv, environment, NULL, false);
}

/* Workers of a failed job write their flight records beside their logs, unless the user has set
 * recorder.directory. */
static void read_config(struct run *run)
{
    struct weft_config *config = NULL;
    /* an absolute path: a trainer may change its working directory */
    char *whole = realpath(run->log_dir, NULL);
    const bool is_loaded = weft_config_load(run->env, &config, NULL) == WEFT_OK;
    if (is_loaded) run->options.copies = (uint32_t)weft_config_u64(config, "server.copies");
    if (is_loaded) run->options.rollback = weft_config_bool(config, "server.rollback");
    if (is_loaded && weft_config_text(config, "server.store")[0])
        run->store = strdup(weft_config_text(config, "server.store"));
    if (is_loaded) run->has_snapshots = weft_config_text(config, "snapshot.folder")[0] != 0;
    if (is_loaded && whole && strcmp(weft_config_source(config, "recorder.directory"), "default") == 0)
        snprintf(run->recorder, sizeof run->recorder, "WEFT_RECORDER_DIRECTORY=%s", whole);
    if (run->exposed && whole)
        snprintf(run->exposed_directory, sizeof run->exposed_directory, "WEFT_CLIENT_EXPOSED_REPORT=%s",
                 whole);
    if (run->exposed && whole) { /* a report of an earlier job is not that of this one */
        char path[RUN_PATH_BYTES + 40];
        snprintf(path, sizeof path, "%s/exposed-rank0.txt", whole);
        (void)unlink(path);
    }
    weft_config_free(config);
    free(whole);
}

/* False: a sentence is on stderr. */
static bool find_cores(struct run *run)
{
    if (run->options.bind == RUN_BIND_NONE || run->launched) return true;
    run->cores = run_bind_cores("/sys/devices/system/cpu", &run->core_count);
    if (!run->cores)
        return fprintf(stderr, "weft run: --bind: cannot read the processors of this command: %s\n",
                       strerror(errno)),
               false;
    if (run->options.bind != RUN_BIND_CORE || run->core_count >= run->options.workers) return true;
    fprintf(stderr,
            "weft run: --bind core: %u workers and %u cores here that this command may use; start fewer, or\n"
            "give --bind auto or none\n",
            (unsigned)run->options.workers, run->core_count);
    return false;
}

bool run_start_worker(struct run *run, uint32_t rank)
{
    struct run_process *process = &run->processes[run->launched ? 0 : run->options.shards + rank];
    char coordinator[350], job[WEFT_LIMIT_NAME_BYTES + 16], secret[RUN_PATH_BYTES + 64], number[32],
        lanes[300], devices[300];
    name_process(run, process, "rank", rank);
    if (run->losses.restarted)
        snprintf(process->log_path, sizeof process->log_path, "%s/rank%u.again%u.log", run->log_dir, rank,
                 (unsigned)run->losses.restarted);
    snprintf(coordinator, sizeof coordinator, "WEFT_COORDINATOR=%s", run->coordinator);
    snprintf(job, sizeof job, "WEFT_JOB=%s", run->job);
    snprintf(secret, sizeof secret, "WEFT_SECRET_FILE=%s", run->scratch.secret_path);
    snprintf(number, sizeof number, "WEFT_RANK=%u", rank);
    const char *environment[9] = {coordinator, job, number};
    int used = 3;
    /* with a launcher, the environment of the user has it */
    if (!run->launched) environment[used++] = secret;
    if (run->options.lanes)
        snprintf(lanes, sizeof lanes, "WEFT_TRANSPORT_LANES=%.250s", run->options.lanes),
            environment[used++] = lanes;
    if (run->options.devices)
        snprintf(devices, sizeof devices, "WEFT_TRANSPORT_DEVICES=%.250s", run->options.devices),
            environment[used++] = devices;
    if (run->recorder[0]) environment[used++] = run->recorder;
    if (run->exposed_directory[0]) environment[used++] = run->exposed_directory;
    struct run_cpus cpus;
    bool bound = run_bind_assign(run->options.bind, run->cores, run->core_count,
                                 (uint32_t)run->options.workers, rank, &cpus);
    return run_process_start(process, run->trainer, environment, bound ? &cpus : NULL,
                             rank == 0 && !run->losses.restarted);
}

/* Shard 0 writes its ports once they are open. It may also die, or hang before. */
static bool wait_for_ports(struct run *run)
{
    struct run_process *shard = &run->processes[0];
    uint64_t deadline_ns = weft_now_ns(run->env) + PORT_NS;
    for (;;) {
        if (run_scratch_read_port(&run->scratch, "coordinator", run->coordinator, sizeof run->coordinator))
            break;
        struct pollfd fd = {.fd = run->signal_fd, .events = POLLIN};
        if (poll(&fd, 1, 10) > 0 && run_read_signals(run)) return false;
        run_reap(run);
        if (shard->ended) return false;
        if (weft_now_ns(run->env) > deadline_ns) {
            fprintf(stderr, "weft run: shard 0 did not open its ports within %d s; its log is %s\n",
                    (int)(PORT_NS / WEFT_SECONDS(1)), shard->log_path);
            return false;
        }
    }
    char http[300];
    if (run->options.http && run_scratch_read_port(&run->scratch, "http", http, sizeof http))
        fprintf(stderr, "weft run: http://%s/status\n", http);
    return true;
}

static bool host_coordinator(struct run *run)
{
    uint16_t port = 0;
    const char *host = weft_loopback_host();
    run->own_coordinator = tool_coordinator_start(
        "weft run", host, 0, run->job, run->scratch.secret, (uint32_t)run->options.workers,
        (uint32_t)run->options.workers_min, (uint32_t)run->options.workers_max, &port);
    snprintf(run->coordinator, sizeof run->coordinator, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    return run->own_coordinator != NULL;
}

/* Prints a word quoted for a shell. */
static void print_word(const char *word)
{
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,@%+-";
    if (word[0] && word[strspn(word, plain)] == 0) {
        fprintf(stderr, " %s", word);
        return;
    }
    fputs(" '", stderr);
    for (; *word; word++) fputs(*word == '\'' ? "'\\''" : (char[]){*word, 0}, stderr);
    fputc('\'', stderr);
}

/* With --max-workers: prints the command by which a worker joins. */
static void print_how_to_join(const struct run *run)
{
    if (run->options.workers_max <= run->options.workers || (run->launched && run->launcher.rank != 0))
        return;
    char word[RUN_PATH_BYTES + 64];
    fprintf(
        stderr,
        "weft run: up to %u workers may run; each further one joins by this command%s, without WEFT_RANK:\n ",
        (unsigned)run->options.workers_max,
        run->launched ? ", on any host that has the job's secret in WEFT_SECRET_FILE" : " on this host");
    snprintf(word, sizeof word, "WEFT_COORDINATOR=%s", run->coordinator), print_word(word);
    snprintf(word, sizeof word, "WEFT_JOB=%s", run->job), print_word(word);
    if (!run->launched)
        snprintf(word, sizeof word, "WEFT_SECRET_FILE=%s", run->scratch.secret_path), print_word(word);
    if (run->store && run->options.shards > 0) /* the worker finds a coordinator that has replaced this one */
        snprintf(word, sizeof word, "WEFT_SERVER_STORE=%s", run->store), print_word(word);
    if (run->options.lanes)
        snprintf(word, sizeof word, "WEFT_TRANSPORT_LANES=%s", run->options.lanes), print_word(word);
    if (run->options.devices)
        snprintf(word, sizeof word, "WEFT_TRANSPORT_DEVICES=%s", run->options.devices), print_word(word);
    for (char *const *argument = run->trainer; *argument; argument++) print_word(*argument);
    fputc('\n', stderr);
}

/* Of all copies of `weft run` that the launcher started, the copy of rank 0 runs the coordinator. */
static bool start_launched(struct run *run)
{
    char host[256];
    uint16_t port = 0;
    struct weft_error error = {0};
    snprintf(run->coordinator, sizeof run->coordinator, "%s", run->launcher.coordinator);
    if (!tool_read_secret("weft run", NULL, NULL, &run->secret)) return false;
    if (weft_host_port_parse(run->coordinator, host, &port, &error) < 0)
        return fprintf(stderr, "weft run: %s\n", error.text), false;
    if (run->launcher.rank == 0) {
        run->own_coordinator = tool_coordinator_start("weft run", host, port, run->job, run->secret,
                                                      run->launcher.ranks, (uint32_t)run->options.workers_min,
                                                      (uint32_t)run->options.workers_max, &port);
        if (!run->own_coordinator) return false;
    }
    /* the coordinator of rank 0 logs the members it waits for */
    run->watch = run_watch_start(
        &(struct run_watch_options){.coordinator = run->coordinator, .job = run->job, .secret = run->secret});
    read_config(run);
    print_how_to_join(run);
    return run_start_worker(run, run->launcher.rank);
}

bool run_start_all(struct run *run)
{
    char weftd[RUN_PATH_BYTES];
    if (!find_cores(run)) return false;
    if (run->launched) return start_launched(run);
    read_config(run);
    if (run->options.shards == 0) {
        if (!host_coordinator(run)) return false;
    } else {
        if (!run_find_sibling("weftd", weftd) || !start_shard(run, weftd, 0) || !wait_for_ports(run))
            return false;
    }
    run->watch = run_watch_start(&(struct run_watch_options){
        .coordinator = run->coordinator,
        .job = run->job,
        .secret = run->scratch.secret,
        .store = run->options.shards > 0 ? run->store : NULL,
        /* without shards the coordinator in this process logs the members it waits for */
        .reports = run->options.shards > 0,
        .has_snapshots = run->options.shards > 0 && run->has_snapshots});
    for (uint32_t i = 1; i < run->options.shards; i++)
        if (!start_shard(run, weftd, i)) return false;
    print_how_to_join(run);
    for (uint32_t rank = 0; rank < run->options.workers; rank++)
        if (!run_start_worker(run, rank)) return false;
    return true;
}
