/* optimizer.c - adam, adagrad and ftrl, as this instruction set has them; the text is optimizer_loops.h. */
#include "kernels/avx2/avx2.h"

#define OPTIMIZER(name) weft_avx2_##name
#include "kernels/templates/optimizer_loops.h"
