/* histogram.h - counts of durations in fixed buckets, without allocation. One thread writes; a copy of the
 * struct is a snapshot. The bounds are the same for every histogram, so that histograms can be added. */
#ifndef WEFT_BASE_HISTOGRAM_H
#define WEFT_BASE_HISTOGRAM_H

#include <stdint.h>

#define WEFT_HISTOGRAM_BOUNDS 17u

struct weft_histogram {
    uint64_t counts[WEFT_HISTOGRAM_BOUNDS + 1]; /* durations in each bucket; the last bucket has no bound */
    uint64_t sum_ns;                            /* of all durations; wraps after 584 years */
};

struct weft_histogram_bound {
    uint64_t ns;      /* a bucket holds durations up to this one */
    const char *text; /* in seconds, as a label of Prometheus */
};
/* Ascending, from 10 us to 300 s. */
extern const struct weft_histogram_bound weft_histogram_bounds[WEFT_HISTOGRAM_BOUNDS];

void weft_histogram_add(struct weft_histogram *histogram, uint64_t ns);
uint64_t weft_histogram_count(const struct weft_histogram *histogram); /* durations in all buckets */

#endif
