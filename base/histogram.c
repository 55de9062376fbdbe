/* histogram.c - see histogram.h. Two or three bounds per decade: a quantile is known within a factor of 4. */
#include "base/histogram.h"

const struct weft_histogram_bound weft_histogram_bounds[WEFT_HISTOGRAM_BOUNDS] = {
    {10000u, "0.00001"},    {50000u, "0.00005"},  {100000u, "0.0001"},  {250000u, "0.00025"},
    {500000u, "0.0005"},    {1000000u, "0.001"},  {2500000u, "0.0025"}, {5000000u, "0.005"},
    {10000000u, "0.01"},    {25000000u, "0.025"}, {50000000u, "0.05"},  {100000000u, "0.1"},
    {250000000u, "0.25"},   {1000000000u, "1"},   {5000000000u, "5"},   {30000000000u, "30"},
    {300000000000u, "300"},
};

const struct weft_histogram_bound weft_histogram_byte_bounds[WEFT_HISTOGRAM_BOUNDS] = {
    {4096u, "4096"},
    {16384u, "16384"},
    {65536u, "65536"},
    {262144u, "262144"},
    {1048576u, "1048576"},
    {4194304u, "4194304"},
    {16777216u, "16777216"},
    {67108864u, "67108864"},
    {268435456u, "268435456"},
    {1073741824u, "1073741824"},
    {4294967296u, "4294967296"},
    {17179869184u, "17179869184"},
    {68719476736u, "68719476736"},
    {274877906944u, "274877906944"},
    {1099511627776u, "1099511627776"},
    {4398046511104u, "4398046511104"},
    {17592186044416u, "17592186044416"},
};

static void add(struct weft_histogram *histogram, const struct weft_histogram_bound *bounds, uint64_t value)
{
    uint32_t bucket = 0;
    while (bucket < WEFT_HISTOGRAM_BOUNDS && value > bounds[bucket].value) bucket++;
    histogram->counts[bucket]++;
    histogram->sum += value;
}

void weft_histogram_add(struct weft_histogram *histogram, uint64_t ns)
{
    add(histogram, weft_histogram_bounds, ns);
}

void weft_histogram_add_bytes(struct weft_histogram *histogram, uint64_t bytes)
{
    add(histogram, weft_histogram_byte_bounds, bytes);
}

uint64_t weft_histogram_count(const struct weft_histogram *histogram)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i <= WEFT_HISTOGRAM_BOUNDS; i++) count += histogram->counts[i];
    return count;
}
