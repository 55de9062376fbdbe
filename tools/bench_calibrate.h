/* bench_calibrate.h - inside `weft bench calibrate`: what its parts share.
 *
 *   bench_calibrate.c         the job: messages, sums, passes over memory, incast; the table
 *   bench_calibrate_memory.c  operations over memory that ranks of one host map */
#ifndef WEFT_TOOLS_BENCH_CALIBRATE_H
#define WEFT_TOOLS_BENCH_CALIBRATE_H

#include "tools/bench_rank.h"
#include "transport/transport.h"

double bench_median(double *values, size_t count); /* sorts them */

/* All 0 where the ranks of the job do not meet in memory, or on several hosts: that is not theirs to measure. Collective. */
bool bench_calibrate_memory(struct bench_rank *rank, struct weft_link_memory *memory_out);

#endif
