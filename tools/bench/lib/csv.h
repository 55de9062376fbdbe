/* csv.h - reads two columns of a comma-separated file as numbers. No quoting. */
#ifndef WEFT_TOOLS_BENCH_LIB_CSV_H
#define WEFT_TOOLS_BENCH_LIB_CSV_H

#include <stdbool.h>
#include <stddef.h>

struct bench_points {
    double *x, *y; /* owned */
    size_t count;
};

/* Columns by the names of the first line. Incomplete rows are left out. False: `error` has the sentence. */
bool bench_csv_read(const char *path, const char *x_name, const char *y_name, struct bench_points *points,
                    char *error, size_t error_bytes);
void bench_points_free(struct bench_points *points);

#endif
