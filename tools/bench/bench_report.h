/* bench_report.h - rows of a benchmark as nccl-tests' table or as JSON lines. */
#ifndef WEFT_TOOLS_BENCH_BENCH_REPORT_H
#define WEFT_TOOLS_BENCH_BENCH_REPORT_H

#include "tools/bench/bench_options.h"
#include "tools/bench/lib/samples.h"

#include <stdio.h>

struct bench_timing {
    bool has_value, checked;
    double time_us;               /* mean of the iterations, of the ranks as -a says */
    struct bench_summary summary; /* of the iterations' means over the ranks, microseconds */
    double algbw, busbw;          /* GB/s, 1e9 bytes */
    double cpu_us;                /* of one operation, all ranks together */
    uint64_t wrong;               /* elements, all ranks */
};

/* OSU's: an operation started, work of its length done, the operation waited for. */
struct bench_overlap {
    bool has_value;
    double overall_us, compute_us, start_us, wait_us, percent;
};

/* Loading and storing as many bytes as the vector has, by all ranks at once. */
struct bench_limit {
    bool has_value;
    double us, gbps, percent; /* of one pass, the mean of the ranks; loaded plus stored by one rank; of the
                               * row's time in place */
};

struct bench_row {
    uint64_t bytes, count;
    enum weft_dtype dtype;
    enum weft_op op;                            /* 0: none */
    int root;                                   /* -1: none */
    struct bench_timing out_of_place, in_place;
    struct bench_overlap overlap;
    struct bench_limit limit;
    const char *last_plan;                     /* what `auto` meant; static; NULL: it has no plans */
    double step_us;                             /* push_pull: with step_begin and step_end */
    uint64_t pss_bytes;                         /* of the rank with most */
};

struct bench_curves;

struct bench_report {
    FILE *out;
    const struct bench_options *options;
    uint32_t ranks, shards;
    char transport[160]; /* the ways that are really used, as rank 0 sees them */
    double copy_gbps;    /* read plus written, of memcpy in this process before the first row */
    double busbw_sum, cpu_us;
    uint64_t row_count, wrong, pss_bytes;
    const char *last_plan; /* of the last row */
    struct bench_curves *curves; /* owned; what --plot draws */
};

/* Prints what stands above the rows. */
void bench_report_begin(struct bench_report *report);
void bench_report_row(struct bench_report *report, const struct bench_row *row);
/* False: the stream refused, or the plot could not be written (said on stderr). */
bool bench_report_end(struct bench_report *report);
void bench_report_free(struct bench_report *report);

/* bench_curves.c: busbw over size, a curve for each type, reduction, root and form. */
void bench_curves_add(struct bench_curves **curves, const struct bench_row *row);
/* An SVG, or, where the name ends in ".png", a PNG made of it by rsvg-convert. False: said why on stderr. */
bool bench_curves_write(const struct bench_curves *curves, const char *path, const char *title,
                        const char *subtitle);
void bench_curves_free(struct bench_curves *curves);

#endif
