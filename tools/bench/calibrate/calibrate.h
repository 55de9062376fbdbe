/* calibrate.h - inside `weft bench calibrate`.
 *
 *   calibrate.c           the job: messages, sums, passes over memory, incast; the table
 *   calibrate_messages.c  operations by messages between ranks of one host
 *   calibrate_memory.c    operations over memory that ranks of one host map */
#ifndef WEFT_TOOLS_BENCH_CALIBRATE_CALIBRATE_H
#define WEFT_TOOLS_BENCH_CALIBRATE_CALIBRATE_H

#include "tools/bench/bench_rank.h"
#include "transport/transport.h"

double bench_median(double *values, size_t count); /* sorts them */

/* Figures of the one-host path. All are 0 if the ranks use no mapped memory or have several hosts.
 * Collective. */
bool bench_calibrate_memory(struct bench_rank *rank, struct weft_link_memory *memory_out);

/* Time of an all_reduce of f32: the mean over the ranks, the median of several calls in sequence.
 * Collective. */
bool bench_calibrate_all_reduce(struct bench_rank *rank, float *in, float *out, uint64_t bytes,
                                double *us_out);

/* Figures of operations by messages between ranks of one host. rank->in and out hold the largest size; `cost`
 * has the figures measured so far. Collective. */
bool bench_calibrate_messages(struct bench_rank *rank, const struct weft_link_cost *cost,
                              struct weft_link_runs *runs_out);

#endif
