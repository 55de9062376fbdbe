/* lowbit.c - 8-bit floats and signs; the text is lowbit_loops.h. */
#include "kernels/scalar/scalar.h"

#define NARROW(name) weft_scalar_##name
#include "kernels/templates/lowbit_loops.h"
