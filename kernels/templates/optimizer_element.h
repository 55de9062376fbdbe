/* optimizer_element.h - the update rules of one element, every operation rounded: as kernels.h specifies
 * of the optimisers, in the one text that the CPU's loops and the GPU's threads compile. Private to the
 * module. */
#ifndef WEFT_KERNELS_TEMPLATES_OPTIMIZER_ELEMENT_H
#define WEFT_KERNELS_TEMPLATES_OPTIMIZER_ELEMENT_H

#include <math.h>

#include "kernels/float_bits.h"
#include "kernels/parameters.h"

KERNEL_INLINE float sgd_element(float w, float *velocity, float g, const struct weft_sgd *sgd)
{
    if (sgd->weight_decay != 0.0f) g = g + sgd->weight_decay * w;
    if (sgd->momentum != 0.0f) {
        const float v = canonical(sgd->momentum * *velocity + g);
        *velocity = v;
        g = sgd->nesterov ? g + sgd->momentum * v : v;
    }
    return canonical(w - sgd->lr * g);
}

/* The term that weight decay changes. Loops pass it as a constant, since gcc does not vectorise a loop
 * that tests it. */
enum adam_decay { ADAM_DECAY_NONE, ADAM_DECAY_COUPLED, ADAM_DECAY_DECOUPLED };

KERNEL_INLINE enum adam_decay adam_decay_of(const struct weft_adam *adam)
{
    if (adam->decoupled)
        return adam->lr * adam->weight_decay != 0.0f ? ADAM_DECAY_DECOUPLED : ADAM_DECAY_NONE;
    return adam->weight_decay != 0.0f ? ADAM_DECAY_COUPLED : ADAM_DECAY_NONE;
}

KERNEL_INLINE float adam_element(float w, float *first, float *second, float g, const struct weft_adam *adam,
                                 enum adam_decay decay)
{
    const float shrink = adam->lr * adam->weight_decay;
    if (decay == ADAM_DECAY_COUPLED) g = g + adam->weight_decay * w;
    if (decay == ADAM_DECAY_DECOUPLED) w = w - shrink * w;
    const float m = canonical(adam->beta1 * *first + (1.0f - adam->beta1) * g);
    const float v = canonical(adam->beta2 * *second + (1.0f - adam->beta2) * (g * g));
    *first = m;
    *second = v;
    return canonical(w - adam->step_size * (m / (sqrtf(v) * adam->root_scale + adam->eps)));
}

KERNEL_INLINE float adagrad_element(float w, float *sum, float g, float lr, float eps, float weight_decay,
                                    bool decays)
{
    if (decays) g = g + weight_decay * w;
    const float s = canonical(*sum + g * g);
    *sum = s;
    return canonical(w - lr * (g / (sqrtf(s) + eps)));
}

KERNEL_INLINE float ftrl_element(float w, float *z, float *n, float g, const struct weft_ftrl *ftrl)
{
    const float before = *n, after = canonical(before + g * g);
    const float sigma = (sqrtf(after) - sqrtf(before)) / ftrl->alpha;
    const float z_next = canonical(*z + (g - sigma * w));
    const float side = copysignf(ftrl->l1, z_next),
                rate = (ftrl->beta + sqrtf(after)) / ftrl->alpha + ftrl->l2;
    *n = after;
    *z = z_next;
    return fabsf(z_next) <= ftrl->l1 ? 0.0f : canonical((side - z_next) / rate);
}

KERNEL_INLINE void lamb_moments_element(float *first, float *second, float g, const struct weft_lamb *lamb)
{
    *first = canonical(lamb->beta1 * *first + (1.0f - lamb->beta1) * g);
    *second = canonical(lamb->beta2 * *second + (1.0f - lamb->beta2) * (g * g));
}

KERNEL_INLINE float lamb_direction(float w, float first, float second, const struct weft_lamb *lamb,
                                   bool decays)
{
    const float d = (first * lamb->first_scale) / (sqrtf(second) * lamb->root_scale + lamb->eps);
    return canonical(decays ? d + lamb->weight_decay * w : d);
}

/* lr times the trust ratio |w| / |d|, which is 1 where one of them is 0. */
KERNEL_INLINE float lamb_rate(float lr, double weight_squares, double direction_squares)
{
    if (weight_squares == 0.0 || direction_squares == 0.0) return lr;
    return (float)((double)lr * (sqrt(weight_squares) / sqrt(direction_squares)));
}

#endif
