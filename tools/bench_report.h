/* bench_report.h - rows of a benchmark as nccl-tests' table or as JSON lines. */
#ifndef WEFT_TOOLS_BENCH_REPORT_H
#define WEFT_TOOLS_BENCH_REPORT_H

#include "tools/bench_options.h"
#include "tools/benchlib/samples.h"

#include <stdio.h>

struct bench_timing {
    double time_us;               /* mean over ranks and iterations */
    struct bench_summary summary; /* of rank 0's iterations, microseconds */
    double algbw, busbw;          /* GB/s, 1e9 bytes */
    uint64_t wrong;               /* elements, all ranks */
};

struct bench_row {
    uint64_t bytes, count;
    struct bench_timing out_of_place, in_place; /* in_place: all_reduce only */
    const char *plan_taken;                     /* all_reduce: what `auto` meant; static */
    double step_us;                             /* push_pull: with step_begin and step_end */
};

struct bench_report {
    FILE *out;
    const struct bench_options *options;
    uint32_t ranks, shards;
    char transport[160]; /* the ways that are really used, as rank 0 sees them */
    double copy_gbps; /* read plus written, of memcpy in this process before the first row */
    double busbw_sum;
    uint64_t row_count, wrong;
    const char *plan_taken; /* of the last row */
};

/* Prints what stands above the rows. */
void bench_report_begin(struct bench_report *report);
void bench_report_row(struct bench_report *report, const struct bench_row *row);
/* False: the stream refused. */
bool bench_report_end(struct bench_report *report);

#endif
