/* combine.c - sums, products, extremes and bits of all element types; the text is combine_loops.h. */
#include "kernels/avx512/avx512.h"

#define COMBINE(name) weft_avx512_##name
#include "kernels/templates/combine_loops.h"
