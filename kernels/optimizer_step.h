/* optimizer_step.h - the arguments of the kernels for one step of each rule, the same on the host and on a
 * device. Private to the module. */
#ifndef WEFT_KERNELS_OPTIMIZER_STEP_H
#define WEFT_KERNELS_OPTIMIZER_STEP_H

#include <math.h>

#include "kernels/optimizer.h"
#include "kernels/parameters.h"

/* By squaring, so that every machine gets the same bits: pow() is a library's own. */
static inline double step_power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

static inline struct weft_adam adam_step(const struct weft_optimizer *o, float lr, uint64_t step)
{
    return (struct weft_adam){
        .lr = lr,
        .step_size = (float)((double)lr / (1.0 - step_power((double)o->beta1, step))),
        .root_scale = (float)(1.0 / sqrt(1.0 - step_power((double)o->beta2, step))),
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .weight_decay = o->weight_decay,
        .decoupled = o->kind == WEFT_OPTIMIZER_ADAMW,
    };
}

static inline struct weft_lamb lamb_step(const struct weft_optimizer *o, uint64_t step)
{
    return (struct weft_lamb){
        .first_scale = (float)(1.0 / (1.0 - step_power((double)o->beta1, step))),
        .root_scale = (float)(1.0 / sqrt(1.0 - step_power((double)o->beta2, step))),
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .weight_decay = o->weight_decay,
    };
}

static inline struct weft_ftrl ftrl_step(const struct weft_optimizer *o, float lr)
{
    return (struct weft_ftrl){.alpha = lr, .beta = o->beta, .l1 = o->l1, .l2 = o->l2};
}

static inline struct weft_sgd sgd_step(const struct weft_optimizer *o, float lr)
{
    return (struct weft_sgd){lr, o->momentum, o->weight_decay, o->nesterov};
}

#endif
