/* lowbit.c - 8-bit floats and signs, as this instruction set has them; the text is lowbit_loops.h. */
#include "kernels/avx2/avx2.h"

#define NARROW(name) weft_avx2_##name
#include "kernels/templates/lowbit_loops.h"
