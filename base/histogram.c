/* histogram.c - see histogram.h. Two or three bounds per decade: a quantile is known within a factor of 4. */
#include "base/histogram.h"

const struct weft_histogram_bound weft_histogram_bounds[WEFT_HISTOGRAM_BOUNDS] = {
    {10000u, "0.00001"},    {50000u, "0.00005"},  {100000u, "0.0001"},  {250000u, "0.00025"},
    {500000u, "0.0005"},    {1000000u, "0.001"},  {2500000u, "0.0025"}, {5000000u, "0.005"},
    {10000000u, "0.01"},    {25000000u, "0.025"}, {50000000u, "0.05"},  {100000000u, "0.1"},
    {250000000u, "0.25"},   {1000000000u, "1"},   {5000000000u, "5"},   {30000000000u, "30"},
    {300000000000u, "300"},
};

void weft_histogram_add(struct weft_histogram *histogram, uint64_t ns)
{
    uint32_t bucket = 0;
    while (bucket < WEFT_HISTOGRAM_BOUNDS && ns > weft_histogram_bounds[bucket].ns) bucket++;
    histogram->counts[bucket]++;
    histogram->sum_ns += ns;
}

uint64_t weft_histogram_count(const struct weft_histogram *histogram)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i <= WEFT_HISTOGRAM_BOUNDS; i++) count += histogram->counts[i];
    return count;
}
