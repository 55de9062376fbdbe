/* bench_pattern.h - inputs whose reduction over the ranks is known exactly, in every type.
 *
 * Elements are small integers, so that the reduction over all ranks is exact even in 8 bits and in any order.
 * Their period is a prime: a chunk in the wrong place differs for every chunk size. Different salts give
 * different contents, so data of an earlier operation is detected. */
#ifndef WEFT_TOOLS_BENCH_BENCH_PATTERN_H
#define WEFT_TOOLS_BENCH_BENCH_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/types.h"

struct bench_pattern {
    enum weft_dtype dtype;
    enum weft_op op; /* 0: the operation only moves data */
    uint32_t ranks, salt;
};

/* Whether the type has this reduction. */
bool bench_pattern_supports(enum weft_dtype dtype, enum weft_op op);
/* Largest number of ranks whose sum the type holds exactly; operations that only move data have no limit. */
uint32_t bench_pattern_ranks_max(enum weft_dtype dtype, enum weft_op op);
/* Factor of the contribution of a rank to a scaled sum. */
double bench_pattern_factor(uint32_t rank);

/* Fills `out` with the elements first .. first + count - 1 of the contribution of `rank`. */
void bench_pattern_fill(const struct bench_pattern *pattern, void *out, uint64_t first, uint64_t count,
                        uint32_t rank);
/* Counts the elements of `data` that differ from the reduction of all ranks, from element `first` on. A mean
 * may differ by one rounding. */
uint64_t bench_pattern_count_wrong(const struct bench_pattern *pattern, const void *data, uint64_t first,
                                   uint64_t count);
/* Counts the elements of `data` that differ from those of `rank`, from element `first` on. */
uint64_t bench_pattern_count_wrong_moved(const struct bench_pattern *pattern, const void *data,
                                         uint64_t first, uint64_t count, uint32_t rank);

#endif
