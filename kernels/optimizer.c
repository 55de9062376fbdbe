/* optimizer.c - what one step of each rule asks of the kernels. */
#include "kernels/optimizer.h"

#include <math.h>

#include "kernels/kernels.h"

uint32_t weft_optimizer_states(const struct weft_optimizer *optimizer)
{
    switch (optimizer->kind) {
    case WEFT_OPTIMIZER_SGD: return optimizer->momentum != 0.0f;
    case WEFT_OPTIMIZER_ADAM:
    case WEFT_OPTIMIZER_ADAMW:
    case WEFT_OPTIMIZER_LAMB:
    case WEFT_OPTIMIZER_FTRL: return 2;
    case WEFT_OPTIMIZER_ADAGRAD: return 1;
    default: return 0;
    }
}

bool weft_optimizer_is_whole(const struct weft_optimizer *optimizer)
{
    return optimizer->kind == WEFT_OPTIMIZER_LAMB;
}

/* By squaring, so that every machine gets the same bits: pow() is a library's own. */
static double power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

void weft_optimizer_step(const struct weft_optimizer *optimizer, float lr, uint64_t step, float *weights,
                         float *const states[WEFT_OPTIMIZER_STATES_MAX], const float *grad, float grad_scale,
                         size_t count)
{
    const struct weft_kernels *kernels = weft_kernels();
    const struct weft_optimizer *o = optimizer;
    WEFT_ASSERT(o->kind != WEFT_OPTIMIZER_NONE);
    switch (o->kind) {
    case WEFT_OPTIMIZER_ADAM:
    case WEFT_OPTIMIZER_ADAMW: {
        const struct weft_adam adam = {
            .lr = lr,
            .step_size = (float)((double)lr / (1.0 - power((double)o->beta1, step))),
            .root_scale = (float)(1.0 / sqrt(1.0 - power((double)o->beta2, step))),
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->eps,
            .weight_decay = o->weight_decay,
            .decoupled = o->kind == WEFT_OPTIMIZER_ADAMW,
        };
        kernels->adam_f32(weights, states[0], states[1], grad, grad_scale, &adam, count);
        break;
    }
    case WEFT_OPTIMIZER_ADAGRAD:
        kernels->adagrad_f32(weights, states[0], grad, grad_scale, lr, o->eps, o->weight_decay, count);
        break;
    case WEFT_OPTIMIZER_FTRL: {
        const struct weft_ftrl ftrl = {.alpha = lr, .beta = o->beta, .l1 = o->l1, .l2 = o->l2};
        kernels->ftrl_f32(weights, states[0], states[1], grad, grad_scale, &ftrl, count);
        break;
    }
    case WEFT_OPTIMIZER_LAMB: {
        const struct weft_lamb lamb = {
            .first_scale = (float)(1.0 / (1.0 - power((double)o->beta1, step))),
            .root_scale = (float)(1.0 / sqrt(1.0 - power((double)o->beta2, step))),
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->eps,
            .weight_decay = o->weight_decay,
        };
        weft_lamb_step(&lamb, lr, weights, states[0], states[1], grad, grad_scale, count);
        break;
    }
    default: {
        const struct weft_sgd sgd = {lr, o->momentum, o->weight_decay, o->nesterov};
        kernels->sgd_f32(weights, o->momentum != 0.0f ? states[0] : NULL, grad, grad_scale, &sgd, count);
    }
    }
}
