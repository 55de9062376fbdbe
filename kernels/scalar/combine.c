/* combine.c - sums, products, extremes and bits of all element types; the text is combine_loops.h. */
#include "kernels/scalar/scalar.h"

#define COMBINE(name) weft_scalar_##name
#include "kernels/templates/combine_loops.h"
