/* calibrate.h - inside `weft bench calibrate`: what its parts share.
 *
 *   calibrate.c         the job: messages, sums, passes over memory, incast; the table
 *   bench_calibrate_messages.c    operations of ranks of one host that go by messages
 *   calibrate_memory.c  operations over memory that ranks of one host map */
#ifndef WEFT_TOOLS_BENCH_CALIBRATE_CALIBRATE_H
#define WEFT_TOOLS_BENCH_CALIBRATE_CALIBRATE_H

#include "tools/bench/bench_rank.h"
#include "transport/transport.h"

double bench_median(double *values, size_t count); /* sorts them */

/* All 0 where the ranks of the job do not meet in memory, or on several hosts: that is not theirs to
 * measure. Collective. */
bool bench_calibrate_memory(struct bench_rank *rank, struct weft_link_memory *memory_out);

/* The mean over all ranks of what an all_reduce of f32 takes: the median of some, one behind the other.
 * Collective. */
bool bench_calibrate_all_reduce(struct bench_rank *rank, float *in, float *out, uint64_t bytes,
                                double *us_out);

/* Where the ranks of one host go by messages; rank->in and out hold the longest length. cost: what was
 * measured so far. Collective. */
bool bench_calibrate_messages(struct bench_rank *rank, const struct weft_link_cost *cost,
                              struct weft_link_runs *runs_out);

#endif
