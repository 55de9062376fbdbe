/* narrow.c - 8-bit floats and signs; the text is narrow_loops.h. */
#include "kernels/scalar/scalar.h"

#define NARROW(name) weft_scalar_##name
#include "kernels/narrow_loops.h"
