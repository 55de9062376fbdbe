/* run.c - `weft run`: a whole job on this host, one command.
 *
 *     secret -> shard 0 (coordinates) -> port file -> other shards, workers -> all end -> exit status 0
 *                                                                           \-> one fails: the others have
 *                                              GRACE_NS to end, then SIGTERM, then SIGKILL -> exit status 1
 *
 * Without shards the coordinator runs in this process. If mpirun, torchrun or srun starts N copies of this
 * command (base/config/launcher.h), each copy starts one worker of one job, and the copy of rank 0 runs the
 * coordinator. Every child has a log file; rank 0's standard output is also copied to ours. No process stays
 * behind: children die with this process, and their process groups are killed at the end. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "server/server.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/run/coordinate.h"
#include "tools/run/run.h"

#define PORT_NS WEFT_SECONDS(20) /* limit for shard 0 to open its ports */
/* limit for the coordinator's loss report after all processes have ended */
#define LOSS_REPORT_NS WEFT_MS(300)
#define GRACE_NS WEFT_SECONDS(2)     /* limit to end without a signal, after a failure or the last worker */
#define TERMINATE_NS WEFT_SECONDS(2) /* from SIGTERM to SIGKILL */
#define TAIL_LINES 8
#define LEAVE_MS 5000 /* limit for processes of other hosts to disconnect from our coordinator */

/* Options of the command line and of the configuration. */
struct run_job {
    uint64_t workers, shards, engines;  /* engines 0: not given */
    uint32_t copies;                    /* server.copies; 0: a lost shard ends the job */
    uint64_t workers_min, workers_max;  /* workers_min 0: none may be lost */
    uint64_t restarts;
    const char *lanes, *devices;
    bool http;
    enum run_bind bind;
};

/* Lost workers. */
struct run_losses {
    uint64_t workers_lost, restarted;
    uint64_t restarted_lost; /* number of workers_lost that had been restarted */
    struct run_process *last_lost;
    /* until then the coordinator must report a survived loss for each worker of workers_lost; WEFT_NEVER: all
     * are */
    uint64_t loss_deadline_ns;
};

/* How the job ends. */
struct run_end {
    /* the first process seen to fail; at the end, the one that the coordinator reports as lost first */
    struct run_process *first_failed;
    uint64_t term_at_ns, kill_at_ns; /* when to send SIGTERM, and SIGKILL; WEFT_NEVER: not yet */
    int interrupted_by;              /* the first signal received that ends the job; 0: none */
    /* shards_signalled: no worker was left, so the shards received SIGTERM */
    bool workers_done, shards_signalled;
};

struct run {
    struct weft_env *env;
    struct run_job options;
    bool has_snapshots;                 /* snapshot.folder */
    char *store; /* owned; server.store: the job outlives shard 0, which coordinates; NULL: none */
    struct run_losses losses;
    struct run_core *cores; /* (core_count,); NULL without --bind */
    uint32_t core_count;
    char job[WEFT_LIMIT_NAME_BYTES + 1];
    char log_dir[RUN_PATH_BYTES - 64];
    bool exposed;                                /* print rank 0's report of client.exposed_report */
    char exposed_directory[RUN_PATH_BYTES + 40]; /* WEFT_CLIENT_EXPOSED_REPORT=... for the workers, or "" */
    char recorder[RUN_PATH_BYTES + 32]; /* WEFT_RECORDER_DIRECTORY=... for the workers, or "" */
    char **trainer;
    struct run_scratch scratch;
    char coordinator[300];
    struct run_process *processes; /* shards, then workers */
    uint32_t process_count;
    int signal_fd;

    /* NULL with shards, and with a launcher except on rank 0 */
    struct weft_coordinator_thread *own_coordinator;
    bool launched; /* by mpirun, torchrun or srun: one worker here, the others under their own `weft run` */
    struct weft_launcher launcher;
    char *secret; /* with a launcher: the secret of the user; NULL: none */

    struct run_watch *watch;
    struct run_end end;
};

/* ---- the command line ---- */

static int set_bind(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    if (run_bind_parse(text, option->value)) return -1;
    return cli_value_error(command, "--bind", text, "none, core or auto");
}

/* -1: continue; otherwise the exit status. The trainer is argv[*first_out] and its arguments follow. */
static int parse_options(struct run *run, int argc, char **argv, const char **job_out,
                         const char **log_dir_out, int *first_out)
{
    const struct cli_option table[] = {
        {"workers", 'n', "N", "workers: processes that run TRAINER",
         "1; under mpirun, torchrun or srun: one in each of their processes, all in one job",
         CLI_U64(&run->options.workers, 1, WEFT_LIMIT_WORKERS)},
        {"shards", 's', "N",
         "parameter-server shards; 0: all-reduce among the workers; under mpirun, torchrun or srun shards "
         "are "
         "started by hand",
         CLI_U64(&run->options.shards, 0, WEFT_LIMIT_SHARDS)},
        {"min-workers", 0, "N", "workers with which the job continues after a loss",
         "a lost worker ends the job", CLI_U64(&run->options.workers_min, 1, WEFT_LIMIT_WORKERS)},
        {"restarts", 0, "N",
         "restarts of lost workers in all; a restarted worker joins at the end of a step; requires "
         "--min-workers",
         CLI_U64(&run->options.restarts, 0, 1000000)},
        {"max-workers", 0, "N",
         "workers up to which workers started by hand may join; requires --min-workers", "none may join",
         CLI_U64(&run->options.workers_max, 1, WEFT_LIMIT_WORKERS)},
        {"engines", 'e', "N", "engine threads of each shard", "server.engines",
         CLI_U64(&run->options.engines, 1, WEFT_LIMIT_ENGINES)},
        {"job", 'j', "NAME", "name of the job", "a new one", CLI_TEXT(job_out)},
        {"log-dir", 'l', "DIR", "directory for the log files shard0.log, rank0.log, ...", "weft-logs/JOB",
         CLI_TEXT(log_dir_out)},
        {"lanes", 0, "LANES", "transport lanes: tcp, shm", "transport.lanes", CLI_TEXT(&run->options.lanes)},
        {"devices", 0, "LIST", "network devices", "transport.devices", CLI_TEXT(&run->options.devices)},
        {"bind", 0, "HOW",
         "processors of the workers. none: any; core: one core each, which starves a trainer of several "
         "threads; "
         "auto: an equal share of the cores, or none with fewer cores than workers",
         "none", CLI_CALL(set_bind, &run->options.bind)},
        {"exposed", 0, NULL,
         "print at the end which tensors the steps of rank 0 waited for, and what to change; the reports of "
         "all ranks are among the logs (client.exposed_report)",
         CLI_FLAG(&run->exposed)},
        {"http", 0, NULL, "shard 0 serves /metrics, /healthz and /status; its port is printed",
         CLI_FLAG(&run->options.http)},
    };
    const struct cli_command command = {
        "weft run",
        "weft run [options] -- TRAINER [ARGUMENTS...]",
        "Starts shards and workers of one job on this host and waits for them.\n",
        CLI_TABLE(table),
        .notes =
            "A worker finds its job in its environment: WEFT_COORDINATOR, WEFT_JOB, WEFT_RANK,\n"
            "WEFT_SECRET_FILE. Rank 0's standard output is also that of this command. When a process\n"
            "fails, the coordinator notifies the others. They have 2 s to end, then receive SIGTERM, and\n"
            "SIGKILL 2 s later. Each worker of a failed job leaves its flight record among the logs; `weft\n"
            "inspect DIR` finds the rank that was late.\n"
            "\n"
            "Exit status: 0 all processes ended with 0 (or as many workers as --min-workers), 1 not all\n"
            "did (the process, the reason and its log are on stderr), 2 wrong usage.\n",
        .stops_at_argument = true};
    return cli_parse(&command, argc, argv, first_out);
}

static int parse(struct run *run, int argc, char **argv)
{
    const char *job = NULL, *log_dir = NULL;
    int first, status = parse_options(run, argc, argv, &job, &log_dir, &first);
    if (status >= 0) return status;
    int refused = run_find_launcher(run->options.workers, run->options.shards, &run->launcher);
    if (refused >= 0) return refused;
    run->launched = run->launcher.name;
    if (run->options.workers == 0) run->options.workers = 1;
    if (run->launched && !job) job = getenv("WEFT_JOB");
    if (run->launched && !(job && *job)) job = run->launcher.job;
    if (first >= argc)
        return tool_usage_error("weft run", "the trainer is missing: give -- TRAINER [ARGUMENTS...]");
    if (run->options.http && run->options.shards == 0)
        return tool_usage_error("weft run", "--http is served by shard 0 and this job has no shards");
    uint64_t workers = run->launched ? run->launcher.ranks : run->options.workers;
    if (run->options.workers_min > workers)
        return tool_usage_error("weft run", "--min-workers is at most the number of workers, %llu",
                                (unsigned long long)workers);
    if ((run->options.workers_max || run->options.restarts) && !run->options.workers_min)
        return tool_usage_error(
            "weft run",
            "--max-workers and --restarts require --min-workers: a job that continues without lost workers");
    if (run->options.workers_max && run->options.workers_max < workers)
        return tool_usage_error("weft run", "--max-workers is at least the number of workers");
    if (run->options.restarts && run->launched)
        return tool_usage_error(
            "weft run", "--restarts: the workers are not this command's to start again, but the launcher's");
    if (run->options.bind == RUN_BIND_CORE && run->launched)
        return tool_usage_error("weft run",
                                "--bind core: the launcher places its processes; use its own options");
    if (run->options.restarts && !run->options.workers_max) run->options.workers_max = workers;
    if (job && (job[0] == 0 || strlen(job) > 200 || strpbrk(job, "/\n\t")))
        return tool_usage_error("weft run", "a job's name has 1 to 200 bytes and no slash");
    if (log_dir && !log_dir[0])
        return tool_usage_error("weft run",
                                "--log-dir is empty; name a directory, or leave it away for weft-logs/JOB");
    if (log_dir && strlen(log_dir) >= sizeof run->log_dir)
        return tool_usage_error("weft run", "the path of --log-dir is too long");
    run->trainer = argv + first;
    uint32_t random = (uint32_t)weft_random_u64(run->env);
    if (job) snprintf(run->job, sizeof run->job, "%s", job);
    else snprintf(run->job, sizeof run->job, "run-%d-%08x", (int)getpid(), random);
    if (log_dir) snprintf(run->log_dir, sizeof run->log_dir, "%s", log_dir);
    else snprintf(run->log_dir, sizeof run->log_dir, "weft-logs/%s", run->job);
    weft_log_source_set(run->job, NULL, 0);
    return -1;
}

/* ---- starting ---- */

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

static bool start_worker(struct run *run, uint32_t rank)
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

static void reap(struct run *run);
static bool read_signals(struct run *run);

/* Shard 0 writes its ports once they are open. It may also die, or hang before. */
static bool wait_for_ports(struct run *run)
{
    struct run_process *shard = &run->processes[0];
    uint64_t deadline_ns = weft_now_ns(run->env) + PORT_NS;
    for (;;) {
        if (run_scratch_read_port(&run->scratch, "coordinator", run->coordinator, sizeof run->coordinator))
            break;
        struct pollfd fd = {.fd = run->signal_fd, .events = POLLIN};
        if (poll(&fd, 1, 10) > 0 && read_signals(run)) return false;
        reap(run);
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
    return start_worker(run, run->launcher.rank);
}

static bool start_all(struct run *run)
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
        if (!start_worker(run, rank)) return false;
    return true;
}

/* ---- joining ---- */

/* Every signal except SIGCHLD ends the job. SIGCHLD only wakes the poll. */
static bool read_signals(struct run *run)
{
    struct signalfd_siginfo info;
    while (read(run->signal_fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD && !run->end.interrupted_by)
            run->end.interrupted_by = (int)info.ssi_signo;
    return run->end.interrupted_by != 0;
}

/* Shard 0 coordinates; with a store another one continues. If the chunks of the lost one have no copies, the
 * coordinator ends the job, and the workers end with an error. */
static bool can_lose_shard(struct run *run, const struct run_process *process)
{
    char how[100];
    if (run->options.copies == 0 || (process == &run->processes[0] && !run->store)) return false;
    run_process_describe(process, how, sizeof how);
    fprintf(stderr, "weft run: %s (pid %d) %s; the job continues with the copies of its chunks (%s)\n",
            process->name, (int)process->pid, how, process->log_path);
    return true;
}

/* Decides whether the job continues without this process, and counts the loss of a worker. */
static bool can_lose(struct run *run, struct run_process *process)
{
    char how[100];
    if (process < &run->processes[run->options.shards]) return can_lose_shard(run, process);
    if (!run->options.workers_min) return false;
    if (run->options.workers + run->losses.restarted - ++run->losses.workers_lost < run->options.workers_min)
        return false;
    process->should_restart = run->losses.restarted < run->options.restarts;
    process->lost_at_ns = weft_now_ns(run->env);
    run->losses.restarted_lost += process->was_restarted;
    run_process_describe(process, how, sizeof how);
    run->losses.last_lost = process;
    fprintf(stderr, "weft run: %s (pid %d) %s; the job continues without it (%s)\n", process->name,
            (int)process->pid, how, process->log_path);
    return true;
}

static void reap(struct run *run)
{
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < run->process_count; i++) {
            struct run_process *process = &run->processes[i];
            if (process->pid != pid || process->ended) continue;
            process->ended = true;
            process->wait_status = wait_status;
            /* this command has asked all processes to end */
            bool asked = run->end.interrupted_by || run->end.kill_at_ns != WEFT_NEVER;
            if (run_process_has_failed(process) && !run->end.first_failed && !asked &&
                !can_lose(run, process))
                run->end.first_failed = process;
        }
    }
}

static uint32_t count_running(const struct run *run, bool workers_only)
{
    uint32_t count = 0;
    for (uint32_t i = workers_only ? (uint32_t)run->options.shards : 0; i < run->process_count; i++)
        count += run->processes[i].pid > 0 && !run->processes[i].ended;
    return count;
}

static void signal_all(struct run *run, int signal_number)
{
    for (uint32_t i = 0; i < run->process_count; i++)
        if (!run->processes[i].ended) run_process_signal(&run->processes[i], signal_number);
}

/* A worker that died before the job began, or failed after it had left, is not a loss that the job survives:
 * the coordinator reports none. A restarted worker may die before it has joined, without a report. */
static void check_losses(struct run *run, uint64_t now_ns)
{
    if (run->losses.workers_lost - run->losses.restarted_lost <= run_watch_survived_count(run->watch))
        run->losses.loss_deadline_ns = WEFT_NEVER;
    else if (run->losses.loss_deadline_ns == WEFT_NEVER) run->losses.loss_deadline_ns = now_ns + GRACE_NS;
    else if (run->losses.loss_deadline_ns <= now_ns && !run->end.first_failed)
        run->end.first_failed = run->losses.last_lost;
    if (run->end.first_failed) run->losses.loss_deadline_ns = WEFT_NEVER;
}

/* Sets the present coordinator of the store. If the store names none, the former one stays, and the worker
 * waits for the next one. */
static void follow_coordinator(struct run *run)
{
    char address[256];
    if (run->store && run->options.shards > 0 &&
        weft_takeover_address(run->env, run->store, run->job, address, NULL) == WEFT_OK)
        snprintf(run->coordinator, sizeof run->coordinator, "%s", address);
}

/* Restarts lost workers once the coordinator has reported the loss: before that the job is full. The
 * coordinator reports no loss of a worker that had not joined; such a worker restarts after GRACE_NS. */
static void restart(struct run *run, uint64_t now_ns)
{
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++) {
        struct run_process *process = &run->processes[i];
        bool due = process->should_restart && !run->end.first_failed && !run->end.interrupted_by &&
                   run->losses.restarted < run->options.restarts;
        bool known = run->losses.workers_lost <= run_watch_survived_count(run->watch) ||
                     now_ns >= process->lost_at_ns + GRACE_NS;
        if (!due || !known) continue;
        run_process_copy(process);
        run_process_close(process);
        *process = (struct run_process){.output_fd = -1, .log_fd = -1, .was_restarted = true};
        run->losses.restarted++;
        follow_coordinator(run);
        if (!start_worker(run, i - (uint32_t)run->options.shards)) run->end.first_failed = process;
    }
}

static bool restart_pending(const struct run *run)
{
    bool pending = false;
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++)
        pending |= run->processes[i].should_restart;
    return pending && !run->end.first_failed && run->losses.restarted < run->options.restarts;
}

static bool is_lost(const struct run *run, const struct run_process *process)
{
    return process >= &run->processes[run->options.shards] && process->pid > 0 &&
           run_watch_has_lost_worker(run->watch, (uint64_t)process->pid,
                                     run->launched ? process->name : NULL);
}

/* Number of workers that the job has lost while their processes run: stopped or cut off. The job continues
 * without them. */
static uint32_t count_lost_running(const struct run *run)
{
    uint32_t count = 0;
    if (run_watch_survived_count(run->watch) == 0) return 0;
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++)
        count += !run->processes[i].ended && is_lost(run, &run->processes[i]);
    return count;
}

/* Finds a worker that exited with 0 without weft_finalize: the job has lost it. NULL: none. */
static struct run_process *find_unfinished(const struct run *run)
{
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++) {
        struct run_process *process = &run->processes[i];
        if (process->ended && !run_process_has_failed(process) && is_lost(run, process)) return process;
    }
    return NULL;
}

/* A shard exits with an error when a worker is lost. If that worker exited with 0, the other workers decide
 * the status. */
static void ignore_shard_failure(struct run *run)
{
    bool shard = run->end.first_failed && run->end.first_failed < &run->processes[run->options.shards];
    if (!shard || !find_unfinished(run)) return;
    run->end.first_failed = NULL;
    if (run->end.kill_at_ns == WEFT_NEVER) run->end.term_at_ns = WEFT_NEVER;
}

/* If all workers exited with 0, the status is 0 although a shard exited with an error, as in a job without
 * shards. */
static void ignore_shard_exit(struct run *run)
{
    struct run_process *shard = run->end.first_failed;
    char state[80];
    if (!shard || shard >= &run->processes[run->options.shards] || !WIFEXITED(shard->wait_status)) return;
    for (uint32_t i = (uint32_t)run->options.shards; i < run->process_count; i++)
        if (!run->processes[i].ended || run_process_has_failed(&run->processes[i])) return;
    run_process_describe(shard, state, sizeof state);
    fprintf(stderr, "weft run: %s %s, and all workers ended with status 0 (%s)\n", shard->name, state,
            shard->log_path);
    run->end.first_failed = NULL;
}

/* Acts on the clock and on the ends of processes: restarts, SIGTERM, SIGKILL. */
static void decide(struct run *run)
{
    uint64_t now_ns = weft_now_ns(run->env);
    ignore_shard_failure(run);
    check_losses(run, now_ns);
    restart(run, now_ns);
    bool failed = run->end.first_failed != NULL,
         workers_done = count_running(run, true) <= count_lost_running(run);
    if (run->end.term_at_ns == WEFT_NEVER && (failed || workers_done))
        run->end.term_at_ns = now_ns + GRACE_NS;
    if (run->end.interrupted_by && run->end.kill_at_ns == WEFT_NEVER) run->end.term_at_ns = now_ns;
    if (workers_done && !failed && run->end.term_at_ns <= now_ns) run->end.shards_signalled = true;
    if (run->end.term_at_ns <= now_ns && run->end.kill_at_ns == WEFT_NEVER) {
        signal_all(run, SIGTERM);
        run->end.kill_at_ns = now_ns + TERMINATE_NS;
    }
    if (run->end.kill_at_ns <= now_ns) signal_all(run, SIGKILL);
}

static void join_all(struct run *run)
{
    /* Workers waiting for a restart are not counted: if none runs, the job ends without them. */
    while (count_running(run, false) > 0) {
        struct pollfd fds[2] = {{.fd = run->signal_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
        struct run_process *rank_0 = &run->processes[run->options.shards];
        if (run->process_count > run->options.shards) fds[1].fd = rank_0->output_fd;
        uint64_t next_ns = run->end.kill_at_ns < run->end.term_at_ns || run->end.kill_at_ns != WEFT_NEVER
                               ? run->end.kill_at_ns
                               : run->end.term_at_ns;
        if (run->losses.loss_deadline_ns < next_ns) next_ns = run->losses.loss_deadline_ns;
        uint64_t now_ns = weft_now_ns(run->env);
        if (restart_pending(run) && next_ns > now_ns + WEFT_MS(5)) next_ns = now_ns + WEFT_MS(5);
        int timeout_ms = next_ns == WEFT_NEVER ? -1
                         : next_ns <= now_ns   ? 10
                                               : (int)((next_ns - now_ns) / 1000000) + 1;
        poll(fds, 2, timeout_ms);
        if (fds[1].revents) run_process_copy(rank_0);
        read_signals(run);
        reap(run);
        decide(run);
    }
    /* The last output of rank 0. If a process that rank 0 started still holds the pipe, the rest is left. */
    if (run->process_count > run->options.shards) run_process_copy(&run->processes[run->options.shards]);
}

/* ---- the end ---- */

static void correct_first_failed(struct run *run)
{
    char lost[24];
    run_watch_first_lost(run->watch, lost);
    for (uint32_t i = 0; run->end.first_failed && i < run->process_count; i++)
        if (run_process_has_failed(&run->processes[i]) && strcmp(run->processes[i].name, lost) == 0)
            run->end.first_failed = &run->processes[i];
}

static void report_failure(struct run *run)
{
    char how[100];
    const struct run_process *failed = run->end.first_failed;
    run_process_describe(failed, how, sizeof how);
    fprintf(stderr, "weft run: %s (pid %d) %s; the end of %s:\n", failed->name, (int)failed->pid, how,
            failed->log_path);
    run_process_print_tail(failed, TAIL_LINES);
    for (uint32_t i = 0; i < run->process_count; i++) {
        const struct run_process *process = &run->processes[i];
        if (process == failed || process->pid == 0 || !run_process_has_failed(process)) continue;
        run_process_describe(process, how, sizeof how);
        fprintf(stderr, "weft run: after it %s %s (%s)\n", process->name, how, process->log_path);
    }
}

static bool has_ended_in_order(const struct run *run)
{
    return run->own_coordinator && weft_coordinator_thread_ended_in_order(run->own_coordinator);
}

/* Waits up to LOSS_REPORT_NS for a report of a loss: all processes may exit before it arrives. */
static void await_loss_report(struct run *run)
{
    const uint64_t until_ns = weft_now_ns(run->env) + LOSS_REPORT_NS;
    if (!run->end.first_failed && !run->own_coordinator) return;
    while (!run_watch_is_settled(run->watch) && !has_ended_in_order(run) &&
           weft_now_ns(run->env) < until_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* If all workers succeed but the shards do not end, the workers never joined the job: a success with a
 * remark. */
static int conclude(struct run *run, bool started)
{
    if (run->end.interrupted_by) {
        fprintf(stderr, "weft run: ended by %s\n",
                run->end.interrupted_by == SIGINT    ? "SIGINT"
                : run->end.interrupted_by == SIGTERM ? "SIGTERM"
                                                 : "SIGHUP");
        return 1;
    }
    await_loss_report(run);
    ignore_shard_failure(run);
    correct_first_failed(run);
    ignore_shard_exit(run);
    const struct run_process *unfinished = find_unfinished(run);
    if (unfinished)
        fprintf(stderr,
                "weft run: %s (pid %d) ended without weft_finalize: the job lost it; call weft_finalize "
                "before the process ends (%s)\n",
                unfinished->name, (int)unfinished->pid, unfinished->log_path);
    if (run->end.first_failed) report_failure(run);
    if (!started || run->end.first_failed) return 1;
    for (uint32_t i = 0; i < run->process_count; i++) {
        int error = run->processes[i].output_error;
        if (!error || error == EPIPE) continue; /* the reader of our output has closed the pipe */
        fprintf(stderr, "weft run: cannot write all of %s's output: %s\n", run->processes[i].name,
                strerror(error));
        return 1;
    }
    if (run->end.shards_signalled && run->options.shards > 0 && !unfinished)
        fprintf(stderr,
                "weft run: the workers ended without leaving the job; the shards received SIGTERM (does %s "
                "call weft_init and weft_finalize?)\n",
                run->trainer[0]);
    return 0;
}

/* Copies rank 0's report to standard output. With a launcher rank 0 may be on another host. */
static void print_exposed_report(const struct run *run)
{
    char path[RUN_PATH_BYTES + 40], block[4096];
    size_t bytes;
    if (!run->exposed || (run->launched && run->launcher.rank != 0)) return;
    snprintf(path, sizeof path, "%s/exposed-rank0.txt", run->log_dir);
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "weft run: --exposed: there is no report %s: %s (does %s call weft_finalize?)\n",
                path, strerror(errno), run->trainer[0]);
        return;
    }
    while ((bytes = fread(block, 1, sizeof block, file)) > 0) fwrite(block, 1, bytes, stdout);
    fclose(file);
    fflush(stdout);
}

static int run_job(struct run *run)
{
    run->process_count = (uint32_t)(run->options.shards + run->options.workers);
    run->processes = calloc(run->process_count, sizeof *run->processes);
    if (!run->processes) {
        fprintf(stderr, "weft run: no memory for %u processes\n", run->process_count);
        return 1;
    }
    sigset_t taken, before;
    sigemptyset(&taken);
    int const signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 4; i++) sigaddset(&taken, signals[i]);
    sigprocmask(SIG_BLOCK, &taken, &before);
    run->signal_fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    bool started = run->signal_fd >= 0 && run_make_directory(run->log_dir) &&
                   run_scratch_create(&run->scratch, run->job) && start_all(run);
    if (!started) run->end.term_at_ns = 0; /* processes that already run end now */
    join_all(run);
    /* processes that the children started */
    for (uint32_t i = 0; i < run->process_count; i++) run_process_signal(&run->processes[i], SIGKILL);
    int status = conclude(run, started);
    if (started) print_exposed_report(run);
    run_watch_free(run->watch);
    tool_coordinator_stop(run->own_coordinator, run->launched ? LEAVE_MS : 0);
    free(run->secret);
    run_scratch_remove(&run->scratch);
    if (run->signal_fd >= 0) close(run->signal_fd);
    free(run->processes);
    free(run->cores);
    free(run->store);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

int weft_run_main(int argc, char **argv)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run) return 1;
    run->env = weft_env_system();
    run->end.term_at_ns = run->end.kill_at_ns = run->losses.loss_deadline_ns = WEFT_NEVER;
    int status = parse(run, argc, argv);
    if (status < 0) status = run_job(run);
    free(run);
    return status;
}
