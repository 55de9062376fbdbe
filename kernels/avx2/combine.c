/* combine.c - sums, products, extremes and bits of all element types; the text is combine_loops.h. */
#include "kernels/avx2/avx2.h"

#define COMBINE(name) weft_avx2_##name
#include "kernels/templates/combine_loops.h"
