/* optimizer.c - what one step of each rule asks of the kernels. */
#include "kernels/optimizer.h"

#include "kernels/kernels.h"
#include "kernels/optimizer_step.h"

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
        const struct weft_adam adam = adam_step(o, lr, step);
        kernels->adam_f32(weights, states[0], states[1], grad, grad_scale, &adam, count);
        break;
    }
    case WEFT_OPTIMIZER_ADAGRAD:
        kernels->adagrad_f32(weights, states[0], grad, grad_scale, lr, o->eps, o->weight_decay, count);
        break;
    case WEFT_OPTIMIZER_FTRL: {
        const struct weft_ftrl ftrl = ftrl_step(o, lr);
        kernels->ftrl_f32(weights, states[0], states[1], grad, grad_scale, &ftrl, count);
        break;
    }
    case WEFT_OPTIMIZER_LAMB: {
        const struct weft_lamb lamb = lamb_step(o, step);
        weft_lamb_step(&lamb, lr, weights, states[0], states[1], grad, grad_scale, count);
        break;
    }
    default: {
        const struct weft_sgd sgd = sgd_step(o, lr);
        kernels->sgd_f32(weights, o->momentum != 0.0f ? states[0] : NULL, grad, grad_scale, &sgd, count);
    }
    }
}
