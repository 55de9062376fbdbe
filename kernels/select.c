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
 * The candidate list has room for all elements, so no input (all equal, all in one bucket) overflows it.
 * Ties go to the smaller index because candidates are walked in index order. */
#include <string.h>

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

enum { BUCKET_SHIFT = 19, MIDDLE_SHIFT = 9, MIDDLE_BUCKETS = 1024, LAST_BUCKETS = 512 };

_Static_assert(WEFT_SELECT_BUCKETS == 1 << (31 - BUCKET_SHIFT), "buckets cover all patterns of |x|");

static inline uint32_t magnitude(float value)
{
    return float_bits(value) & FLOAT_ABS;
}

void weft_select_begin(struct weft_select *select)
{
    memset(select, 0, sizeof *select);
}

void weft_select_count(struct weft_select *select, const float *part, size_t count)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        select->buckets[0][magnitude(part[i]) >> BUCKET_SHIFT]++;
        select->buckets[1][magnitude(part[i + 1]) >> BUCKET_SHIFT]++;
        select->buckets[0][magnitude(part[i + 2]) >> BUCKET_SHIFT]++;
        select->buckets[1][magnitude(part[i + 3]) >> BUCKET_SHIFT]++;
    }
    for (; i < count; i++)
        select->buckets[0][magnitude(part[i]) >> BUCKET_SHIFT]++;
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
    const uint32_t upper = bucket << (BUCKET_SHIFT - MIDDLE_SHIFT) | boundary_bucket(buckets, MIDDLE_BUCKETS, wanted);

    memset(buckets, 0, LAST_BUCKETS * sizeof buckets[0]);
    for (size_t c = 0; c < candidate_count; c++) {
        const uint32_t bits = magnitude(x[candidates[c]]);
        if (bits >> MIDDLE_SHIFT == upper) buckets[bits % LAST_BUCKETS]++;
    }
    return upper << MIDDLE_SHIFT | boundary_bucket(buckets, LAST_BUCKETS, wanted);
}

void weft_select_finish(const struct weft_select *select, uint32_t *indices_out, const float *x, size_t count,
                        size_t k, uint32_t *scratch)
{
    uint32_t buckets[WEFT_SELECT_BUCKETS];
    for (size_t b = 0; b < WEFT_SELECT_BUCKETS; b++)
        buckets[b] = select->buckets[0][b] + select->buckets[1][b];

    size_t ties = k;
    const uint32_t bucket = boundary_bucket(buckets, WEFT_SELECT_BUCKETS, &ties);
    const size_t candidate_count = weft_kernels()->indices_above_f32(scratch, x, count, bucket << BUCKET_SHIFT);
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

void weft_select_top(uint32_t *indices_out, const float *x, size_t count, size_t k, uint32_t *scratch)
{
    struct weft_select select;
    weft_select_begin(&select);
    weft_select_count(&select, x, count);
    weft_select_finish(&select, indices_out, x, count, k, scratch);
}
