/* randomk.h - which elements random-k takes in a step: shared by worker and combiner. Private to the module.
 *
 * The tensor is cut into k strata of n/k elements (to a whole one up or down) and each gives one: sorted,
 * without repetition, drawn in one pass, and every element is taken with probability about k/n
 * (weft_sample_strata). Drawn from (seed, step) alone, so every rank takes the same without an index sent. */
#ifndef WEFT_COMPRESS_RANDOMK_H
#define WEFT_COMPRESS_RANDOMK_H

#include "compress/compress.h"
#include "kernels/kernels.h"

/* Key of the draw of a step. */
struct weft_noise randomk_noise(uint64_t seed, uint64_t step);
/* The aggregate of a round. 0: the largest of all workers' step numbers, to *shared_out; 1: sums_out (k,).
 * WEFT_ERR_MALFORMED: another length, or a number below this worker's `own`. */
enum weft_status randomk_take(uint32_t round, const void *aggregate, size_t bytes, uint64_t own,
                              uint64_t *shared_out, float *sums_out, size_t k);
/* Rising. (k,) */
void randomk_indices(uint32_t *indices_out, uint64_t elems, uint64_t k, uint64_t seed, uint64_t step);
/* out (elems,) = values * scale at the indices, 0 elsewhere. */
void randomk_spread(float *out, size_t elems, const uint32_t *indices, const float *values, size_t k,
                    float scale);

#endif
