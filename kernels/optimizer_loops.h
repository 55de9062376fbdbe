/* optimizer_loops.h - the specification of adam, adagrad and ftrl, as loops every compiler turns into vectors. Each variant
 * compiles this text with its own instruction set, defining OPTIMIZER(name) first. Square roots and quotients are
 * rounded correctly everywhere, so the bits are the same. Private to the kernels room. */
#include <math.h>

#include "kernels/float_bits.h"
#include "kernels/kernels.h"

void OPTIMIZER(adam_f32)(float *restrict weights, float *restrict first, float *restrict second, const float *restrict grad,
                         float grad_scale, const struct weft_adam *adam, size_t count)
{
    const float beta1 = adam->beta1, rest1 = 1.0f - beta1, beta2 = adam->beta2, rest2 = 1.0f - beta2;
    const float eps = adam->eps, step_size = adam->step_size, root_scale = adam->root_scale;
    const float coupled = adam->decoupled ? 0.0f : adam->weight_decay;
    const float shrink = adam->decoupled ? adam->lr * adam->weight_decay : 0.0f;
    for (size_t i = 0; i < count; i++) {
        float w = weights[i], g = grad[i] * grad_scale;
        g = coupled != 0.0f ? g + coupled * w : g;
        w = shrink != 0.0f ? w - shrink * w : w;
        const float m = canonical(beta1 * first[i] + rest1 * g), v = canonical(beta2 * second[i] + rest2 * (g * g));
        first[i] = m;
        second[i] = v;
        weights[i] = canonical(w - step_size * (m / (sqrtf(v) * root_scale + eps)));
    }
}

void OPTIMIZER(adagrad_f32)(float *restrict weights, float *restrict sums, const float *restrict grad, float grad_scale, float lr,
                            float eps, float weight_decay, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] * grad_scale;
        g = weight_decay != 0.0f ? g + weight_decay * weights[i] : g;
        const float sum = canonical(sums[i] + g * g);
        sums[i] = sum;
        weights[i] = canonical(weights[i] - lr * (g / (sqrtf(sum) + eps)));
    }
}

void OPTIMIZER(ftrl_f32)(float *restrict weights, float *restrict z, float *restrict n, const float *restrict grad, float grad_scale,
                         const struct weft_ftrl *ftrl, size_t count)
{
    const float alpha = ftrl->alpha, beta = ftrl->beta, l1 = ftrl->l1, l2 = ftrl->l2;
    for (size_t i = 0; i < count; i++) {
        const float g = grad[i] * grad_scale, before = n[i], after = canonical(before + g * g);
        const float sigma = (sqrtf(after) - sqrtf(before)) / alpha;
        const float debt = canonical(z[i] + (g - sigma * weights[i]));
        const float side = copysignf(l1, debt), rate = (beta + sqrtf(after)) / alpha + l2;
        n[i] = after;
        z[i] = debt;
        weights[i] = fabsf(debt) <= l1 ? 0.0f : canonical((side - debt) / rate);
    }
}
