/* bench_job.h - one rank of a benchmark: session, buffers, timed loops, reductions over the ranks. */
#ifndef WEFT_TOOLS_BENCH_BENCH_JOB_H
#define WEFT_TOOLS_BENCH_BENCH_JOB_H

#include "tools/bench/bench_options.h"

/* Joins the job of the environment, runs the sweep, prints on rank 0. Returns the exit status. */
int bench_job_run(const struct bench_options *options);
/* The same for `weft bench waiting`. */
int bench_waiting_run(const struct bench_options *options);
/* The same for `weft bench exposed`. */
int bench_exposed_run(const struct bench_options *options);
/* The same for `weft bench checks`. */
int bench_checks_run(const struct bench_options *options);

/* copies/bench_copies.c: starts a push_pull job for each number of copies of --copies, and prints. Returns
 * the exit status. */
int bench_copies_run(const struct bench_options *options, int argc, char **argv);

#endif
