/* bench_pattern.h - inputs whose sum over the ranks is known exactly, in every type.
 *
 * Elements are small whole numbers, so few that the sum over all ranks is exact even in bf16, in any
 * order of addition. Their period is a prime: a chunk that lands in the wrong place is seen whatever
 * its size. Different salts give different contents, so data of an earlier operation never passes. */
#ifndef WEFT_TOOLS_BENCH_PATTERN_H
#define WEFT_TOOLS_BENCH_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/types.h"

/* Most ranks whose sums this type still holds exactly. */
uint32_t bench_pattern_ranks_max(enum weft_dtype dtype);
void bench_pattern_fill(void *out, uint64_t count, enum weft_dtype dtype, uint32_t rank, uint32_t ranks,
                        uint32_t salt);
/* Elements that are not the sum (or the mean, to one rounding) over all ranks. */
uint64_t bench_pattern_check(const void *data, uint64_t count, enum weft_dtype dtype, enum weft_op op,
                             uint32_t ranks, uint32_t salt);

#endif
