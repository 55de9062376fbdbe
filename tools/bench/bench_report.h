/* bench_report.h - the rows of a benchmark as the table of nccl-tests or as JSON lines. */
#ifndef WEFT_TOOLS_BENCH_BENCH_REPORT_H
#define WEFT_TOOLS_BENCH_BENCH_REPORT_H

#include "tools/bench/bench_options.h"
#include "tools/bench/lib/samples.h"

#include <stdio.h>

struct bench_timing {
    bool has_value, checked;
    double time_us;               /* mean of the iterations, combined over the ranks by -a */
    struct bench_summary summary; /* of the means of the iterations over the ranks, microseconds */
    double algbw, busbw;          /* GB/s, 1e9 bytes */
    double cpu_us;                /* of one operation, all ranks together, microseconds */
    uint64_t wrong;               /* wrong elements of all ranks */
};

/* As in the OSU benchmarks: start an operation, compute as long as it takes, wait for it. */
struct bench_overlap {
    bool has_value;
    double overall_us, compute_us, start_us, wait_us, percent;
};

/* All ranks at once load and store as many bytes as the vector has. */
struct bench_limit {
    bool has_value;
    /* us: of one pass, mean of the ranks; gbps: loaded plus stored by one rank; percent: of the time of the
     * row in place */
    double us, gbps, percent;
};

struct bench_row {
    uint64_t bytes, count;
    enum weft_dtype dtype;
    enum weft_op op; /* 0: none */
    int root;        /* -1: none */
    struct bench_timing out_of_place, in_place;
    struct bench_overlap overlap;
    struct bench_limit limit;
    /* the plan that `auto` selected; static string; NULL: the operation has no plans */
    const char *last_plan;
    /* push_pull: a step with step_begin and step_end, microseconds */
    double step_us;
    double shard_bytes; /* the same with --copies: bytes that all shards receive in a step; 0: not counted */
    uint64_t pss_bytes; /* of the rank with the largest Pss */
};

struct bench_curves;

struct bench_report {
    FILE *out;
    const struct bench_options *options;
    uint32_t ranks, shards;
    char transport[160]; /* the transports in use, as rank 0 describes them */
    double copy_gbps;    /* read plus written, of memcpy in this process before the first row */
    double busbw_sum, cpu_us;
    uint64_t row_count, wrong, pss_bytes;
    const char *last_plan;       /* of the last row */
    struct bench_curves *curves; /* owned; NULL without --plot */
};

/* Prints the lines above the rows. */
void bench_report_begin(struct bench_report *report);
void bench_report_row(struct bench_report *report, const struct bench_row *row);
/* False: the stream or the plot could not be written; the sentence is on stderr. */
bool bench_report_end(struct bench_report *report);
void bench_report_free(struct bench_report *report);

/* bench_curves.c: busbw over size, one curve for each type, reduction, root and form. */
void bench_curves_add(struct bench_curves **curves, const struct bench_row *row);
/* Writes an SVG, or for a name that ends in ".png" a PNG made by rsvg-convert. False: the sentence is on
 * stderr. */
bool bench_curves_write(const struct bench_curves *curves, const char *path, const char *title,
                        const char *subtitle);
void bench_curves_free(struct bench_curves *curves);

#endif
