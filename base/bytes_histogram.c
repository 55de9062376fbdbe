/* bytes_histogram.c - see bytes_histogram.h. */
#include "base/bytes_histogram.h"

const struct weft_bytes_bound weft_bytes_bounds[WEFT_BYTES_BOUNDS] = {
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

void weft_bytes_histogram_add(struct weft_bytes_histogram *histogram, uint64_t bytes)
{
    uint32_t bucket = 0;
    while (bucket < WEFT_BYTES_BOUNDS && bytes > weft_bytes_bounds[bucket].bytes) bucket++;
    histogram->counts[bucket]++;
    histogram->sum_bytes += bytes;
}
