/* bytes_histogram.h - counts of sizes in fixed buckets, as histogram.h has them for durations. */
#ifndef WEFT_BASE_BYTES_HISTOGRAM_H
#define WEFT_BASE_BYTES_HISTOGRAM_H

#include <stdint.h>

#define WEFT_BYTES_BOUNDS 17u

struct weft_bytes_histogram {
    uint64_t counts[WEFT_BYTES_BOUNDS + 1]; /* sizes in each bucket; the last bucket has no bound */
    uint64_t sum_bytes;                     /* of all sizes */
};

struct weft_bytes_bound {
    uint64_t bytes;   /* a bucket holds sizes up to this one */
    const char *text; /* as a label of Prometheus */
};
/* Ascending by a factor of 4, from 4 KiB to 16 TiB. */
extern const struct weft_bytes_bound weft_bytes_bounds[WEFT_BYTES_BOUNDS];

void weft_bytes_histogram_add(struct weft_bytes_histogram *histogram, uint64_t bytes);

#endif
