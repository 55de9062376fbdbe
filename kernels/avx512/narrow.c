/* narrow.c - 8-bit floats and signs, as this instruction set has them; the text is narrow_loops.h. */
#include "kernels/avx512/avx512.h"

#define NARROW(name) weft_avx512_##name
#include "kernels/narrow_loops.h"
