/* bench.h - `weft bench`: times of the C API, of transports and of kernels.
 *
 *   bench.c                table of benchmarks; starts a job or takes part in one
 *   bench_options          options of the benchmarks in a job; bench_cli.h has lines that tables share
 *   bench_operation        operations: buffers, bus factor, call; bench_pattern inputs with known sums
 *   bench_job, _timing     one rank: sweep, timed loops, checks (bench_rank.h); bench_machine clocks
 *   bench_report, _curves  nccl-tests' table and JSON rows; the chart of --plot
 *   bench_launch           starts the processes of a job on this host
 *   bench_start, _waiting, _exposed, _checks, _limit, _reduction_order, _cacheline: one benchmark each
 *   foreign/               names and options of nccl-tests, OSU and perftest
 *   calibrate/, compare/, codec/, copies/, failover/, fleet/, kernels/, p2p/, replay/: one benchmark each
 *   lib/                   sweeps, samples, tables, charts, rows */
#ifndef WEFT_TOOLS_BENCH_BENCH_H
#define WEFT_TOOLS_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* argv[0] is "bench". Returns the exit status: 0; 1 failed, or a result was wrong; 2 wrong usage; 3 (of
 * compare) something is slower. */
int weft_bench_main(int argc, char **argv);

/* Whether `weft bench NAME` is a benchmark, also by the name of another suite. */
bool bench_has(const char *name);

/* bench_launch.c: the processes of one job on this host. */
struct bench_launch {
    uint32_t shards, processes;
    const char *bind; /* for `weft run --bind` */
    const char *what; /* name of the benchmark */
    int argc;
    char **argv;         /* its options, which each process has too */
    FILE *output, *errors; /* standard output of rank 0, and standard error; NULL: ours */
};
/* Runs `weft bench WHAT` with the options in each process; returns the exit status. */
int bench_launch(const struct bench_launch *launch);
/* The same with --json and `added` (ends with NULL) behind the options: returns the rows that rank 0 has
 * printed. What the job prints on standard error is shown only if it fails. NULL: it failed. */
struct json_t *bench_launch_rows(const struct bench_launch *launch, char *const added[]);

int weft_bench_start_main(int argc, char **argv);
int weft_bench_calibrate_main(int argc, char **argv);
int weft_bench_reduction_order_main(int argc, char **argv);
int weft_bench_p2p_main(int argc, char **argv); /* tools/bench/p2p */
int weft_bench_plot_main(int argc, char **argv);
int weft_bench_kernels_main(int argc, char **argv);
int weft_bench_cacheline_main(int argc, char **argv);
int weft_bench_codec_main(int argc, char **argv);
int weft_bench_compare_main(int argc, char **argv);

#endif
