/* samples.h - statistics of repeated measurements: percentiles, and a ratio with its noise.
 *
 * Slow spells of a machine last for seconds, so two programs are measured interleaved (A B A B ...): each
 * pair ran under nearly the same conditions and gives one ratio. The result is the median of the ratios; the
 * noise band is the middle half of the ratios. A difference inside the band is not significant. */
#ifndef WEFT_TOOLS_BENCH_LIB_SAMPLES_H
#define WEFT_TOOLS_BENCH_LIB_SAMPLES_H

#include <stddef.h>

struct bench_summary {
    size_t count;
    double mean, min, p25, p50, p75, p90, p95, p99, max;
};

/* Sorts `values` in place. All zero for no values. Percentiles by linear interpolation between ranks. */
struct bench_summary bench_summarise(double *values, size_t count);
/* The median of the values that are finite; 0: none, or out of memory. Leaves `values` as they are. */
double bench_median_finite(const double *values, size_t count);
/* p in 0..1 of values sorted in rising order, count > 0. */
double bench_percentile(const double *sorted, size_t count, double p);

/* The narrowest two of the sorted values, equally far from both ends, that enclose the true median with a
 * probability of at least `chance` (0.9) for any distribution; the first and the last value if there are too
 * few. count > 0. */
void bench_median_bounds(const double *sorted, size_t count, double chance, double *low_out,
                         double *high_out);

struct bench_ratio {
    size_t pairs;
    double median, low, high; /* of b/a; low..high: 25th to 75th percentile */
};

/* Ratios of paired measurements b[i] / a[i]; `scratch` has (count,). Pairs with a[i] <= 0 are left out. */
struct bench_ratio bench_compare(const double *a, const double *b, size_t count, double *scratch);

#endif
