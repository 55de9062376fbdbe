/* histogram.h - counts of durations, or of sizes, in fixed buckets, without allocation. One thread writes; a
 * copy of the struct is a snapshot. The bounds are the same for every histogram of durations, and for every
 * one of sizes, so that histograms can be added. */
#ifndef WEFT_BASE_HISTOGRAM_H
#define WEFT_BASE_HISTOGRAM_H

#include <stdint.h>

#define WEFT_HISTOGRAM_BOUNDS 17u

struct weft_histogram {
    uint64_t counts[WEFT_HISTOGRAM_BOUNDS + 1]; /* values in each bucket; the last bucket has no bound */
    uint64_t sum;                               /* of all values, in ns or bytes; ns wrap after 584 years */
};

struct weft_histogram_bound {
    uint64_t value;   /* a bucket holds values up to this one, in ns or bytes */
    const char *text; /* in seconds or bytes, as a label of Prometheus */
};
/* Of durations: ascending, from 10 us to 300 s. */
extern const struct weft_histogram_bound weft_histogram_bounds[WEFT_HISTOGRAM_BOUNDS];
/* Of sizes: ascending by a factor of 4, from 4 KiB to 16 TiB. */
extern const struct weft_histogram_bound weft_histogram_byte_bounds[WEFT_HISTOGRAM_BOUNDS];

void weft_histogram_add(struct weft_histogram *histogram, uint64_t ns);
void weft_histogram_add_bytes(struct weft_histogram *histogram, uint64_t bytes);
uint64_t weft_histogram_count(const struct weft_histogram *histogram); /* values in all buckets */

#endif
