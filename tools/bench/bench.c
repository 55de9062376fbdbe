/* bench.c - `weft bench`: chooses the benchmark and, with -n, has the processes started that it runs in.
 *
 * A benchmark is an ordinary job: -n runs `weft run` on this same program, and each process joins as any
 * trainer does. */
#include "tools/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server.h"
#include "tools/bench/bench_job.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/replay/bench_replay.h"
#include "tools/common.h"
#include "tools/run/coordinate.h"

static const char others[] =
    "  push_pull         an all-reduce through parameter-server shards\n"
    "  replay            the calls of a recorded job, with other data\n"
    "  waiting           what waiting costs: CPU when idle, when a rank is late, and what it takes from "
    "ranks that compute\n"
    "  checks            what the checks of a step cost: values that are not finite, weights that differ "
    "between ranks\n"
    "  exposed           what a step waits for, other ranks or the network, beside the step without "
    "communication\n"
    "  start             how long a job of many ranks needs to begin, and the memory of a rank, also with "
    "many groups\n"
    "  calibrate         what the choice of plans wants to know of links and processors, into a file\n"
    "  orders            what reproducible sums cost, and f32 partials of 16-bit types\n"
    "  kernels           speed of the kernels and codecs of one thread beside copy bandwidth\n"
    "  lines             memory that two cores write and read in turn, and what it gives that the reader "
    "takes its lines\n"
    "  codec             ratio, error and time of each codec, and below which link speed it pays\n"
    "  p2p               messages between endpoints of one transport: latency, bandwidth, message rate; "
    "beside ucx_perftest\n"
    "  compare           two commands in turn, or two files of rows: the median ratio and its noise\n"
    "  plot              charts (SVG) of CSV files\n\n"
    "With -n N, the operations, push_pull, waiting, checks, exposed, start, calibrate and orders start N "
    "processes on this host; without it they take part in the job they\n"
    "were started in: weft run -n 4 -- weft bench all_reduce, mpirun -n 4 weft bench all_reduce, srun or "
    "torchrun alike. `weft bench\n"
    "WHAT --help` has the options.\n";

static void print_help(FILE *out)
{
    const struct bench_operation *operation;
    fputs("usage: weft bench WHAT [options]\n\nOperations: time and bandwidth, every element of the result "
          "checked.\n",
          out);
    for (uint32_t i = 0; (operation = bench_operation_at(i)); i++)
        fprintf(out, "  %-17s %s\n", operation->name, operation->about);
    fprintf(out, "\nOthers:\n%s", others);
}

enum { LEAVE_MS = 5000 };

/* What is started, and how one rank takes part. */
struct bench {
    const char *name;
    uint32_t shards, processes; /* processes 0: take part in the job of the environment */
    const char *bind;           /* of `weft run --bind` */
    int (*take_part)(const void *options);
    const void *options;
};

/* Under mpirun, torchrun or srun nobody has started a coordinator: rank 0 has it in its own process. */
static int take_part_launched(const struct bench *bench, const struct weft_launcher *launcher)
{
    char host[256], *secret = NULL;
    uint16_t port = 0;
    struct weft_error error = {0};
    if (!launcher->coordinator[0] || launcher->ranks == 0) {
        fprintf(stderr,
                "weft bench: what %s says of this process does not tell where rank 0 is and how many there "
                "are; set MASTER_ADDR and "
                "MASTER_PORT for all of them, or start the job with -n or weft run\n",
                launcher->name);
        return 2;
    }
    if (launcher->rank != 0) return bench->take_part(bench->options);
    if (!tool_read_secret("weft bench", NULL, NULL, &secret)) return 1;
    if (weft_host_port_parse(launcher->coordinator, host, &port, &error) < 0) {
        fprintf(stderr, "weft bench: %s\n", error.text);
        free(secret);
        return 2;
    }
    const char *job = getenv("WEFT_JOB");
    struct tool_coordinator *coordinator = tool_coordinator_start(
        "weft bench", host, port, job && *job ? job : launcher->job, secret, launcher->ranks, 0, 0, &port);
    free(secret);
    int status = coordinator ? bench->take_part(bench->options) : 1;
    tool_coordinator_stop(coordinator, LEAVE_MS);
    return status;
}

static int start_or_join(const struct bench *bench, int argc, char **argv)
{
    struct weft_launcher launcher;
    struct weft_error error = {0};
    if (bench->processes > 0)
        return bench_launch(bench->shards, bench->processes, bench->bind, bench->name, argc, argv);
    const char *coordinator = getenv("WEFT_COORDINATOR");
    if (coordinator && *coordinator) return bench->take_part(bench->options);
    enum weft_status status = weft_launcher_find(false, &launcher, &error);
    if (status == WEFT_OK) return take_part_launched(bench, &launcher);
    if (status != WEFT_ERR_NOT_FOUND)
        return tool_usage_error("weft bench", "%s; with -n a job of its own is started here", error.text);
    fprintf(stderr, "weft bench: there is no job to take part in; say -n 2 to start one on this host\n");
    return 2;
}

static int measure_one(const void *options)
{
    const struct bench_options *chosen = options;
    if (chosen->kind == BENCH_CHECKS) return bench_checks_run(chosen);
    if (chosen->kind == BENCH_EXPOSED) return bench_exposed_run(chosen);
    return chosen->kind == BENCH_WAITING ? bench_waiting_run(chosen) : bench_job_run(chosen);
}

static int measure(enum bench_kind kind, const struct bench_operation *operation, int argc, char **argv)
{
    struct bench_options options;
    int answer = bench_options_parse(&options, kind, operation, argc, argv);
    if (answer != 0) return answer - 1;
    const struct bench bench = {bench_name(&options), options.shards, options.processes,
                                options.bind,         measure_one,    &options};
    return start_or_join(&bench, argc, argv);
}

static int replay_one(const void *options) { return bench_replay_run(options); }

/* Without a job around, as many processes as the record is of. */
static int replay(int argc, char **argv)
{
    struct bench_replay options;
    struct weft_launcher launcher;
    int answer = bench_replay_parse(&options, argc, argv);
    if (answer != 0) return answer - 1;
    if (!options.has_processes && !getenv("WEFT_COORDINATOR") &&
        weft_launcher_find(false, &launcher, NULL) == WEFT_ERR_NOT_FOUND) {
        options.processes = bench_replay_ranks(options.path);
        if (options.processes == 0) return 1;
    }
    const struct bench bench = {"replay", 0, options.processes, "auto", replay_one, &options};
    return start_or_join(&bench, argc, argv);
}

int weft_bench_main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const struct bench_operation *operation = bench_operation_find(what);
    if (operation) return measure(BENCH_OPERATION, operation, argc - 1, argv + 1);
    if (strcmp(what, "push_pull") == 0) return measure(BENCH_PUSH_PULL, NULL, argc - 1, argv + 1);
    if (strcmp(what, "waiting") == 0) return measure(BENCH_WAITING, NULL, argc - 1, argv + 1);
    if (strcmp(what, "checks") == 0) return measure(BENCH_CHECKS, NULL, argc - 1, argv + 1);
    if (strcmp(what, "exposed") == 0) return measure(BENCH_EXPOSED, NULL, argc - 1, argv + 1);
    if (strcmp(what, "start") == 0) return weft_bench_start_main(argc - 1, argv + 1);
    if (strcmp(what, "calibrate") == 0) return weft_bench_calibrate_main(argc - 1, argv + 1);
    if (strcmp(what, "orders") == 0) return weft_bench_reduction_order_main(argc - 1, argv + 1);
    if (strcmp(what, "replay") == 0) return replay(argc - 1, argv + 1);
    if (strcmp(what, "kernels") == 0) return weft_bench_kernels_main(argc - 1, argv + 1);
    if (strcmp(what, "lines") == 0) return weft_bench_cacheline_main(argc - 1, argv + 1);
    if (strcmp(what, "codec") == 0) return weft_bench_codec_main(argc - 1, argv + 1);
    if (strcmp(what, "p2p") == 0) return weft_bench_p2p_main(argc - 1, argv + 1);
    if (strcmp(what, "plot") == 0) return weft_bench_plot_main(argc - 1, argv + 1);
    if (strcmp(what, "compare") == 0) return weft_bench_compare_main(argc - 1, argv + 1);
    bool asked = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0 || strcmp(what, "help") == 0;
    if (!asked && *what) fprintf(stderr, "weft bench: there is no benchmark '%s'\n", what);
    print_help(asked ? stdout : stderr);
    return asked ? 0 : 2;
}
