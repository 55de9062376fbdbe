/* select.c - exact top-k by magnitude: radix select on the bit pattern of |x|.
 *
 * Without its sign a float's bit pattern orders like its value, so "k largest" is a question about 31-bit
 * integers, answered by counting, never by comparing elements with each other:
 *
 *     pass 1   count the top 12 bits (8 of exponent, 4 of mantissa) of every |x|     reads x
 *              -> the bucket that holds the k-th largest; all above it are in
 *     pass 2   gather the indices of everything in that bucket or above              reads x
 *     refine   the candidates of the boundary bucket by the next 10 and last 9 bits
 *              -> the exact k-th pattern and how many of its ties still fit
 *     emit     walk the candidates in index order                                     reads candidates
 *
 * The candidate list holds all elements, so no input (all equal, all in one bucket) overflows it.
 * Ties go to the smaller index because candidates are walked in index order. */
#include <string.h>

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

enum { TOP_BUCKETS = 4096, BUCKET_SHIFT = 19, MIDDLE_SHIFT = 9, MIDDLE_BUCKETS = 1024, LAST_BUCKETS = 512 };

_Static_assert(TOP_BUCKETS == 1 << (31 - BUCKET_SHIFT), "buckets cover all patterns of |x|");

static inline uint32_t magnitude(float value)
{
    return float_bits(value) & FLOAT_ABS;
}

struct counts {
    uint32_t buckets[2][TOP_BUCKETS]; /* by the top 12 bits of |x|; two, against store stalls */
};

static void count_top_bits(struct counts *counts, const float *x, size_t count)
{
    size_t i = 0;
    memset(counts, 0, sizeof *counts);
    for (; i + 4 <= count; i += 4) {
        counts->buckets[0][magnitude(x[i]) >> BUCKET_SHIFT]++;
        counts->buckets[1][magnitude(x[i + 1]) >> BUCKET_SHIFT]++;
        counts->buckets[0][magnitude(x[i + 2]) >> BUCKET_SHIFT]++;
        counts->buckets[1][magnitude(x[i + 3]) >> BUCKET_SHIFT]++;
    }
    for (; i < count; i++)
        counts->buckets[0][magnitude(x[i]) >> BUCKET_SHIFT]++;
    for (size_t b = 0; b < TOP_BUCKETS; b++)
        counts->buckets[0][b] += counts->buckets[1][b];
}

/* Where the wanted-th largest lies: walks down from the highest bucket; *wanted becomes what is still
 * wanted inside the bucket found. */
static uint32_t boundary_bucket(const uint32_t *buckets, uint32_t bucket_count, size_t *wanted)
{
    uint32_t bucket = bucket_count - 1;
    while (bucket > 0 && buckets[bucket] < *wanted) {
        *wanted -= buckets[bucket];
        bucket--;
    }
    return bucket;
}

/* The exact pattern of the wanted-th largest among candidates whose top bits are `bucket`; on return
 * *wanted is how many elements of exactly that pattern are to be taken. */
static uint32_t refine(const uint32_t *candidates, size_t candidate_count, const float *x, uint32_t bucket,
                       size_t *wanted)
{
    uint32_t buckets[MIDDLE_BUCKETS];
    memset(buckets, 0, sizeof buckets);
    for (size_t c = 0; c < candidate_count; c++) {
        const uint32_t bits = magnitude(x[candidates[c]]);
        if (bits >> BUCKET_SHIFT == bucket) buckets[(bits >> MIDDLE_SHIFT) % MIDDLE_BUCKETS]++;
    }
    const uint32_t upper =
        bucket << (BUCKET_SHIFT - MIDDLE_SHIFT) | boundary_bucket(buckets, MIDDLE_BUCKETS, wanted);

    memset(buckets, 0, LAST_BUCKETS * sizeof buckets[0]);
    for (size_t c = 0; c < candidate_count; c++) {
        const uint32_t bits = magnitude(x[candidates[c]]);
        if (bits >> MIDDLE_SHIFT == upper) buckets[bits % LAST_BUCKETS]++;
    }
    return upper << MIDDLE_SHIFT | boundary_bucket(buckets, LAST_BUCKETS, wanted);
}

uint32_t weft_select_among(uint32_t *picked_out, const float *values, size_t candidate_count, size_t k)
{
    struct counts counts;
    uint32_t buckets[MIDDLE_BUCKETS];
    size_t ties = k;
    count_top_bits(&counts, values, candidate_count);
    const uint32_t top = boundary_bucket(counts.buckets[0], TOP_BUCKETS, &ties);

    memset(buckets, 0, sizeof buckets);
    for (size_t c = 0; c < candidate_count; c++)
        if (magnitude(values[c]) >> BUCKET_SHIFT == top)
            buckets[(magnitude(values[c]) >> MIDDLE_SHIFT) % MIDDLE_BUCKETS]++;
    const uint32_t upper =
        top << (BUCKET_SHIFT - MIDDLE_SHIFT) | boundary_bucket(buckets, MIDDLE_BUCKETS, &ties);

    memset(buckets, 0, LAST_BUCKETS * sizeof buckets[0]);
    for (size_t c = 0; c < candidate_count; c++)
        if (magnitude(values[c]) >> MIDDLE_SHIFT == upper) buckets[magnitude(values[c]) % LAST_BUCKETS]++;
    const uint32_t kth = upper << MIDDLE_SHIFT | boundary_bucket(buckets, LAST_BUCKETS, &ties);

    for (size_t c = 0, emitted = 0; emitted < k; c++) {
        const uint32_t bits = magnitude(values[c]);
        const bool tie = bits == kth && ties > 0;
        picked_out[emitted] = (uint32_t)c;
        emitted += bits > kth || tie;
        ties -= tie;
    }
    return kth;
}

void weft_select_top(uint32_t *indices_out, const float *x, size_t count, size_t k, uint32_t *scratch)
{
    struct counts counts;
    size_t ties = k;
    count_top_bits(&counts, x, count);
    const uint32_t bucket = boundary_bucket(counts.buckets[0], TOP_BUCKETS, &ties);
    const size_t candidate_count =
        weft_kernels()->indices_above_f32(scratch, x, count, bucket << BUCKET_SHIFT);
    const uint32_t kth = refine(scratch, candidate_count, x, bucket, &ties);

    size_t emitted = 0;
    for (size_t c = 0; c < candidate_count && emitted < k; c++) {
        const uint32_t bits = magnitude(x[scratch[c]]);
        const bool tie = bits == kth && ties > 0;
        indices_out[emitted] = scratch[c];
        emitted += bits > kth || tie;
        ties -= tie;
    }
}
