/* samples.c - see samples.h. */
#include "tools/bench/lib/samples.h"

#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_percentile(const double *sorted, size_t count, double p)
{
    double at = p * (double)(count - 1);
    size_t below = (size_t)at;
    if (below + 1 >= count) return sorted[count - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

struct bench_summary bench_summarise(double *values, size_t count)
{
    struct bench_summary summary = {.count = count};
    if (count == 0) return summary;
    qsort(values, count, sizeof(*values), compare_doubles);
    for (size_t i = 0; i < count; i++) summary.mean += values[i];
    summary.mean /= (double)count;
    summary.min = values[0];
    summary.p25 = bench_percentile(values, count, 0.25);
    summary.p50 = bench_percentile(values, count, 0.50);
    summary.p75 = bench_percentile(values, count, 0.75);
    summary.p90 = bench_percentile(values, count, 0.90);
    summary.p95 = bench_percentile(values, count, 0.95);
    summary.p99 = bench_percentile(values, count, 0.99);
    summary.max = values[count - 1];
    return summary;
}

/* The chance that fewer than k of n values lie below the median equals that of fewer than k heads in n tosses
 * of a coin. */
void bench_median_bounds(const double *sorted, size_t count, double chance, double *low_out, double *high_out)
{
    size_t cut = 0;
    double outside = 0, of_this_many = pow(0.5, (double)count);
    while (2 * (cut + 1) <= count) {
        outside += 2 * of_this_many; /* exactly `cut` values on one side of the median, or on the other */
        if (1 - outside < chance) break;
        of_this_many *= (double)(count - cut) / (double)(cut + 1);
        cut++;
    }
    size_t from_end = cut > 0 ? cut - 1 : 0;
    *low_out = sorted[from_end];
    *high_out = sorted[count - 1 - from_end];
}

struct bench_ratio bench_compare(const double *a, const double *b, size_t count, double *scratch)
{
    size_t pairs = 0;
    for (size_t i = 0; i < count; i++) {
        if (a[i] > 0) scratch[pairs++] = b[i] / a[i];
    }
    struct bench_summary summary = bench_summarise(scratch, pairs);
    return (struct bench_ratio){
        .pairs = pairs, .median = summary.p50, .low = summary.p25, .high = summary.p75};
}

double bench_median_finite(const double *values, size_t count)
{
    double *sorted = malloc(count * sizeof *sorted + 1);
    size_t finite = 0;
    for (size_t i = 0; sorted && i < count; i++)
        if (isfinite(values[i])) sorted[finite++] = values[i];
    const double median = finite ? bench_summarise(sorted, finite).p50 : 0;
    free(sorted);
    return median;
}
