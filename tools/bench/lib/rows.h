/* rows.h - the JSON lines of benchmarks (--json): written, read back and compared. A row has one measured
 * number under a name that identifies the measurement. Rows of one name are runs of one measurement.
 *
 * Rows are recognised by their fields: p2p (t_typical_us, avg_GBps, rate_Mps), p2p-beside (weft), kernels
 * (time_ms), waiting (cpu_us, throughput_ratio) and any other row with a time_us (all_reduce, push_pull).
 * Other lines are counted, not used. */
#ifndef WEFT_TOOLS_BENCH_LIB_ROWS_H
#define WEFT_TOOLS_BENCH_LIB_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct json_t;

/* Prints one line and flushes it, so that the row is visible while the next is measured. The line also has
 * host, weft_version, git_revision and date (origin.h). Frees `row`; `digits` is the precision of numbers. */
void bench_row_print(FILE *out, struct json_t *row, int digits);

enum { BENCH_NAME_MAX = 160, BENCH_ROWS_MAX = 20000, BENCH_LINE_MAX = 1 << 20, BENCH_RUNS_ENOUGH = 3 };

struct bench_measurement {
    char name[BENCH_NAME_MAX]; /* "send lat pairs wait poll mapped ranks 2 window 2 8B" */
    char variant[64];          /* transport, plan or kernel set: what two files usually differ in */
    char metric[24], unit[8];  /* "t_typical_us", "us" */
    bool lower_is_better;
    double value; /* above 0 */
    double wrong; /* number of wrong contents in the row; 0: none */
};

struct bench_rows {
    struct bench_measurement *rows; /* owned; (count,) in the order of the file */
    size_t count, capacity;
    size_t skipped; /* lines that are not rows */
    bool several_variants;
};

/* `metric`: name of the number to compare (cpu_s_per_GB); NULL: the main number of each row. Blocks. False:
 * `error` has the sentence (cannot be read, a line or a file beyond the limits, no row), and nothing is to be
 * freed. */
bool bench_rows_read(const char *path, const char *metric, struct bench_rows *rows, char *error,
                     size_t error_bytes);
void bench_rows_free(struct bench_rows *rows);

/* One line of a comparison: the same measurement in A and in B. */
struct bench_difference {
    const struct bench_measurement *row; /* borrowed from A */
    size_t a_runs, b_runs;
    double a, b;             /* medians */
    double ratio, low, high; /* b / a, and its bounds by the noise */
    bool bounds_assumed;     /* too few runs for measured bounds: `noise` to both sides */
    int direction;           /* of B: 1 faster, -1 slower, 0 within the noise */
};

/* Writes at most `capacity` differences in the order of A; *only_a and *only_b count the measurements that
 * the other file lacks.
 *
 * With BENCH_RUNS_ENOUGH runs or more on both sides the bounds are those of the two medians
 * (bench_median_bounds, 90 %); with fewer they are `noise` (0.05) to both sides. B differs if 1 is outside
 * the bounds and the medians differ by more than `noise`. Rows of files with several variants are matched by
 * variant, too. */
size_t bench_rows_compare(const struct bench_rows *a, const struct bench_rows *b, double noise,
                          struct bench_difference *out, size_t capacity, size_t *only_a, size_t *only_b);

#endif
