/* run_options.c - the command line of `weft run`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/common.h"
#include "tools/run/run_job.h"

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

int run_parse(struct run *run, int argc, char **argv)
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
