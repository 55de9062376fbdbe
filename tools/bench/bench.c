/* bench.c - `weft bench`: selects the benchmark and, with -n, starts its processes.
 *
 * A benchmark is an ordinary job: -n runs `weft run` on this program, and each process joins as a trainer
 * does. */
#include "tools/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench_job.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/failover/failover.h"
#include "tools/bench/fleet/fleet.h"
#include "tools/bench/foreign/foreign.h"
#include "tools/bench/order/bench_order.h"
#include "tools/bench/replay/bench_replay.h"
#include "tools/bench/snapshot/bench_snapshot.h"
#include "tools/cli.h"
#include "tools/common.h"

/* A benchmark that runs in a job. */
struct bench {
    const char *name;
    uint32_t shards, processes; /* processes 0: take part in the job of the environment */
    const char *bind;           /* for `weft run --bind` */
    int (*take_part)(const void *options);
    const void *options;
};

static int start_or_join(const struct bench *bench, int argc, char **argv)
{
    struct weft_launcher launcher;
    struct weft_error error = {0};
    const struct bench_launch launch = {.shards = bench->shards,
                                        .processes = bench->processes,
                                        .bind = bench->bind,
                                        .what = bench->name,
                                        .argc = argc,
                                        .argv = argv};
    if (bench->processes > 0) return bench_launch(&launch);
    const char *coordinator = getenv("WEFT_COORDINATOR");
    if (coordinator && *coordinator) return bench->take_part(bench->options);
    enum weft_status status = weft_launcher_find(false, &launcher, &error);
    if (status == WEFT_OK) return bench->take_part(bench->options); /* the library of rank 0 coordinates */
    if (status != WEFT_ERR_NOT_FOUND)
        return tool_usage_error("weft bench", "%s; with -n a job of its own is started here", error.text);
    fprintf(stderr, "weft bench: there is no job to take part in; use -n 2 to start one on this host\n");
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
    if (answer >= 0) return answer;
    if (options.copies > 0 && options.processes > 0) return bench_copies_run(&options, argc, argv);
    const struct bench bench = {bench_name(&options), options.shards, options.processes,
                                options.bind,         measure_one,    &options};
    return start_or_join(&bench, argc, argv);
}

static int replay_one(const void *options)
{
    return bench_replay_run(options);
}

/* Outside of a job, starts as many processes as the record has ranks. */
static int replay(int argc, char **argv)
{
    struct bench_replay options;
    struct weft_launcher launcher;
    int answer = bench_replay_parse(&options, argc, argv);
    if (answer >= 0) return answer;
    if (!options.has_processes && !getenv("WEFT_COORDINATOR") &&
        weft_launcher_find(false, &launcher, NULL) == WEFT_ERR_NOT_FOUND) {
        options.processes = bench_replay_ranks(options.path);
        if (options.processes == 0) return 1;
    }
    const struct bench bench = {"replay", 0, options.processes, "auto", replay_one, &options};
    return start_or_join(&bench, argc, argv);
}

static int fleet_one(const void *options)
{
    return fleet_run_rank(options);
}

static int fleet(int argc, char **argv)
{
    struct fleet_options options;
    int answer = fleet_options_parse(&options, argc, argv);
    if (answer >= 0) return answer;
    if (options.host_count > 0) return fleet_run_hosts(&options);
    const struct bench bench = {"fleet", 0, options.processes, "auto", fleet_one, &options};
    return start_or_join(&bench, argc, argv);
}

static int order_one(const void *options)
{
    return bench_order_run(options);
}
static int order(int argc, char **argv)
{
    struct bench_order options;
    int answer = bench_order_parse(&options, argc, argv);
    if (answer >= 0) return answer;
    const char *bind = options.shards > 0 ? "none" : "auto"; /* shards have further threads */
    const struct bench bench = {"order", options.shards, options.processes, bind, order_one, &options};
    return start_or_join(&bench, argc, argv);
}

static int failover_one(const void *options)
{
    return failover_run_rank(options);
}
static int failover(int argc, char **argv)
{
    struct failover_options options;
    int answer = failover_options_parse(&options, argc, argv);
    if (answer >= 0) return answer;
    if (options.processes > 0) return failover_run_jobs(&options, argc, argv);
    const struct bench bench = {"failover", 0, 0, "none", failover_one, &options};
    return start_or_join(&bench, argc, argv);
}

static int snapshot_one(const void *options)
{
    return bench_snapshot_run(options);
}
static int snapshot(int argc, char **argv)
{
    struct bench_snapshot options;
    int answer = bench_snapshot_parse(&options, argc, argv);
    if (answer >= 0) return answer;
    const struct bench bench = {"snapshot", options.shards, options.processes,
                                "none",     snapshot_one,   &options};
    if (options.processes > 0 && !bench_snapshot_prepare(&options)) return 1;
    answer = start_or_join(&bench, argc, argv);
    bench_snapshot_clean(&options);
    return answer;
}

static int push_pull(int argc, char **argv)
{
    return measure(BENCH_PUSH_PULL, NULL, argc, argv);
}
static int waiting(int argc, char **argv)
{
    return measure(BENCH_WAITING, NULL, argc, argv);
}
static int checks(int argc, char **argv)
{
    return measure(BENCH_CHECKS, NULL, argc, argv);
}
static int exposed(int argc, char **argv)
{
    return measure(BENCH_EXPOSED, NULL, argc, argv);
}

/* ---- the command ---- */

/* The benchmarks that are not one operation (bench_operation.h has those). */
static const struct benchmark {
    const char *name, *old_name; /* old_name: accepted with a line on stderr; NULL: none */
    int (*main)(int argc, char **argv);
    const char *help;
} benchmarks[] = {
    {"push_pull", NULL, push_pull, "all-reduce through parameter-server shards"},
    {"replay", NULL, replay, "the calls of a recorded job, with other data"},
    {"waiting", NULL, waiting,
     "CPU of idle and of waiting ranks, and what waiting takes from computing ranks"},
    {"checks", NULL, checks,
     "checks of a step: values that are not finite, weights that differ between ranks"},
    {"exposed", NULL, exposed, "time for which a step waits, by cause: other ranks or the network"},
    {"order", NULL, order, "small tensors together, and an urgent tensor behind others"},
    {"failover", NULL, failover, "shards with copies, killed at random: time until the next step"},
    {"snapshot", NULL, snapshot, "step time with and without snapshots of the shards"},
    {"start", NULL, weft_bench_start_main, "time until a job of many ranks begins, and the memory of a rank"},
    {"calibrate", NULL, weft_bench_calibrate_main, "link table from which plans are chosen, into a file"},
    {"reduction-order", "orders", weft_bench_reduction_order_main,
     "price of reproducible sums, and of f32 partial sums of 16-bit types"},
    {"kernels", NULL, weft_bench_kernels_main, "kernels and codecs of one thread against copy bandwidth"},
    {"cacheline", "lines", weft_bench_cacheline_main,
     "transfer of cache lines between two cores, with and without claiming them"},
    {"codec", NULL, weft_bench_codec_main,
     "ratio, error and time of each codec, and the link speed below which it pays"},
    {"p2p", NULL, weft_bench_p2p_main,
     "messages between endpoints of one transport: latency, bandwidth, message rate"},
    {"fleet", NULL, fleet, "bandwidth and latency between each pair of hosts; the slow links"},
    {"compare", NULL, weft_bench_compare_main,
     "two commands in turn, or two files of rows: the median ratio and its noise"},
    {"plot", NULL, weft_bench_plot_main, "charts (SVG) of CSV files"},
};
enum { BENCHMARK_COUNT = sizeof benchmarks / sizeof benchmarks[0], OPERATIONS_MAX = 32 };

static void print_help(FILE *out)
{
    const struct bench_operation *operation;
    fputs("usage: weft bench WHAT [options]\n\nOperations: time and bandwidth, every element of the result\n"
          "checked.\n",
          out);
    for (uint32_t i = 0; (operation = bench_operation_at(i)); i++)
        fprintf(out, "  %-17s %s\n", operation->name, operation->about);
    fputs("\nOthers:\n", out);
    for (size_t i = 0; i < BENCHMARK_COUNT; i++)
        fprintf(out, "  %-17s %s\n", benchmarks[i].name, benchmarks[i].help);
    fputs("\nWith -n N, the operations, push_pull, waiting, checks, exposed, order, failover, snapshot,\n"
          "start, calibrate, fleet and reduction-order start N processes on this host. Without it they take\n"
          "part in the job that started them: weft run -n 4 -- weft bench all_reduce, mpirun -n 4 weft\n"
          "bench all_reduce, or the same with srun or torchrun. `weft bench WHAT --help` lists options.\n\n"
          "Names of nccl-tests (all_reduce_perf), OSU (osu_allreduce) and perftest (ib_write_bw) run the\n"
          "counterpart, with the options of that suite; a link to weft by such a name does the same.\n",
          out);
}

/* osu_hello, ib_atomic_bw, hypercube_perf: named as in another suite, and without a counterpart. */
static bool is_foreign_form(const char *what)
{
    const size_t length = strlen(what);
    return strncmp(what, "osu_", 4) == 0 || strncmp(what, "ib_", 3) == 0 ||
           (length > 5 && strcmp(what + length - 5, "_perf") == 0);
}

static int unknown_error(const char *what)
{
    if (is_foreign_form(what))
        return tool_usage_error("weft bench",
                                "'%s' has no counterpart here; names such as all_reduce_perf, osu_allreduce "
                                "and ib_write_bw have",
                                what);
    const char *names[OPERATIONS_MAX + BENCHMARK_COUNT + 1] = {NULL};
    size_t count = 0;
    for (; count < OPERATIONS_MAX && bench_operation_at((uint32_t)count); count++)
        names[count] = bench_operation_at((uint32_t)count)->name;
    for (size_t i = 0; i < BENCHMARK_COUNT; i++) names[count++] = benchmarks[i].name;
    return cli_unknown_error("weft bench", what[0] == '-' ? "option" : "benchmark", what, names);
}

static int run_foreign(int argc, char **argv)
{
    struct bench_foreign foreign;
    struct weft_launcher launcher;
    int status = bench_foreign_translate(&foreign, argc, argv);
    if (status >= 0) return status;
    /* one line for all ranks of a job */
    if (weft_launcher_find(true, &launcher, NULL) != WEFT_OK || launcher.rank == 0) {
        fprintf(stderr, "%s (%s): weft bench", argv[0], foreign.suite);
        for (int i = 0; i < foreign.argc; i++) fprintf(stderr, " %s", foreign.argv[i]);
        fputc('\n', stderr);
        if (foreign.ignored[0]) fprintf(stderr, "%s: without effect here: %s\n", argv[0], foreign.ignored);
    }
    char *words[BENCH_FOREIGN_WORDS_MAX + 2] = {(char *)"bench"};
    memcpy(words + 1, foreign.argv, sizeof foreign.argv);
    return weft_bench_main(foreign.argc + 1, words);
}

bool bench_has(const char *name)
{
    bool found = bench_operation_find(name) != NULL || bench_foreign_has(name);
    for (size_t i = 0; i < BENCHMARK_COUNT; i++) found |= strcmp(benchmarks[i].name, name) == 0;
    return found;
}

int weft_bench_main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (bench_foreign_has(what)) return run_foreign(argc - 1, argv + 1);
    const struct bench_operation *operation = bench_operation_find(what);
    if (operation) return measure(BENCH_OPERATION, operation, argc - 1, argv + 1);
    for (size_t i = 0; i < BENCHMARK_COUNT; i++) {
        const bool is_old = benchmarks[i].old_name && strcmp(what, benchmarks[i].old_name) == 0;
        if (is_old)
            fprintf(stderr, "weft bench: %s is the old name of %s and will be removed\n", what,
                    benchmarks[i].name);
        if (is_old || strcmp(what, benchmarks[i].name) == 0) return benchmarks[i].main(argc - 1, argv + 1);
    }
    const bool wants_help =
        strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0 || strcmp(what, "help") == 0;
    if (!wants_help && *what) return unknown_error(what);
    print_help(wants_help ? stdout : stderr);
    return wants_help ? 0 : 2;
}
