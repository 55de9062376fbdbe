/* reference.h - the result of each collective in bits, computed in the simplest way. Inputs are functions
 * value(seed, rank, element) of mixed magnitudes, so another order of sums changes the bits. The 16-bit
 * casts here are independent of the kernels. */
#ifndef WEFT_TESTS_REFERENCE_H
#define WEFT_TESTS_REFERENCE_H

#include "collective/collective.h"

struct call {
    enum weft_coll_kind kind;
    enum weft_plan_id plan; /* AUTO: a plan that evaluates T */
    enum weft_dtype dtype;
    enum weft_op op;
    uint32_t ranks, root;
    uint64_t count, seed;
    const struct weft_plan_hosts *hosts; /* of the group, for the hierarchy's order */
    uint64_t chunk_bytes; /* of the group: the double tree's order depends on it; 0: 1 MiB */
};

uint64_t call_in_elems(const struct call *call, uint32_t rank);
uint64_t call_out_elems(const struct call *call, uint32_t rank);
double call_factor(uint32_t rank); /* of a scaled sum */
/* Element `i` of the input vector of `rank`, written in the dtype at out. */
void reference_input(const struct call *call, uint32_t rank, uint64_t i, void *out);
/* Element `i` of the output vector of `rank`. */
void reference_output(const struct call *call, uint32_t rank, uint64_t i, void *out);

#endif
