/* device_optimizer.c - see device_optimizer.h. */
#include "kernels/device_optimizer.h"

#include "kernels/optimizer_step.h"

size_t weft_optimizer_device_workspace(const struct weft_device_kernels *kernels,
                                       const struct weft_optimizer *optimizer, size_t count)
{
    return optimizer->kind == WEFT_OPTIMIZER_LAMB ? kernels->lamb_workspace(count) : 0;
}

enum weft_status weft_optimizer_step_on_device(const struct weft_device_kernels *kernels,
                                               const struct weft_optimizer *optimizer, float lr,
                                               uint64_t step, float *weights,
                                               float *const states[WEFT_OPTIMIZER_STATES_MAX],
                                               const float *grad, float grad_scale, size_t count,
                                               void *workspace, weft_device_stream stream)
{
    const struct weft_optimizer *o = optimizer;
    switch (o->kind) {
    case WEFT_OPTIMIZER_ADAM:
    case WEFT_OPTIMIZER_ADAMW: {
        const struct weft_adam adam = adam_step(o, lr, step);
        return kernels->adam_f32(weights, states[0], states[1], grad, grad_scale, &adam, count, stream);
    }
    case WEFT_OPTIMIZER_ADAGRAD:
        return kernels->adagrad_f32(weights, states[0], grad, grad_scale, lr, o->eps, o->weight_decay, count,
                                    stream);
    case WEFT_OPTIMIZER_FTRL: {
        const struct weft_ftrl ftrl = ftrl_step(o, lr);
        return kernels->ftrl_f32(weights, states[0], states[1], grad, grad_scale, &ftrl, count, stream);
    }
    case WEFT_OPTIMIZER_LAMB: {
        const struct weft_lamb lamb = lamb_step(o, step);
        return kernels->lamb_f32(weights, states[0], states[1], grad, grad_scale, &lamb, lr, count, workspace,
                                 stream);
    }
    case WEFT_OPTIMIZER_SGD: {
        const struct weft_sgd sgd = sgd_step(o, lr);
        return kernels->sgd_f32(weights, o->momentum != 0.0f ? states[0] : NULL, grad, grad_scale, &sgd,
                                count, stream);
    }
    default: return WEFT_ERR_INVALID;
    }
}
