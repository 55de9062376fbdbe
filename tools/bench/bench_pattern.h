/* bench_pattern.h - inputs whose reduction over the ranks is known exactly, in every type.
 *
 * Elements are small whole numbers, so few that what is made of those of all ranks is exact even in 8
 * bits, in any order. Their period is a prime: a chunk that lands in the wrong place is seen whatever its
 * size. Different salts give different contents, so data of an earlier operation never passes. */
#ifndef WEFT_TOOLS_BENCH_BENCH_PATTERN_H
#define WEFT_TOOLS_BENCH_BENCH_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/types.h"

struct bench_pattern {
    enum weft_dtype dtype;
    enum weft_op op; /* 0: of an operation that only moves */
    uint32_t ranks, salt;
};

/* Has this reduction a meaning for this type? */
bool bench_pattern_supports(enum weft_dtype dtype, enum weft_op op);
/* Most ranks whose sums this type still holds exactly; operations that only move have no such limit. */
uint32_t bench_pattern_ranks_max(enum weft_dtype dtype, enum weft_op op);
/* What a rank's contribution to a scaled sum is multiplied with. */
double bench_pattern_factor(uint32_t rank);

/* Elements first, first + 1 ... (count,) of what `rank` contributes. */
void bench_pattern_fill(const struct bench_pattern *pattern, void *out, uint64_t first, uint64_t count,
                        uint32_t rank);
/* How many of (count,) elements are not what all ranks' elements from `first` on reduce to (a mean: to one
 * rounding). */
uint64_t bench_pattern_count_wrong(const struct bench_pattern *pattern, const void *data, uint64_t first,
                                   uint64_t count);
/* How many are not those of `rank` from `first` on. */
uint64_t bench_pattern_count_wrong_moved(const struct bench_pattern *pattern, const void *data,
                                         uint64_t first, uint64_t count, uint32_t rank);

#endif
