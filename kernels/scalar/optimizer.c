/* optimizer.c - adam, adagrad and ftrl; the text is optimizer_loops.h. */
#include "kernels/scalar/scalar.h"

#define OPTIMIZER(name) weft_scalar_##name
#include "kernels/templates/optimizer_loops.h"
