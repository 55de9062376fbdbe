/* optimizer_loops.h - adam, adagrad, ftrl and lamb (optimizer_element.h) as loops every compiler turns into vectors. Each variant
 * compiles this text with its own instruction set, defining OPTIMIZER(name) first. Square roots and quotients are
 * rounded correctly everywhere, so the bits are the same. Private to the kernels room. */
#include "kernels/kernels.h"
#include "kernels/optimizer_element.h"

void OPTIMIZER(adam_f32)(float *restrict weights, float *restrict first, float *restrict second, const float *restrict grad,
                         float grad_scale, const struct weft_adam *adam, size_t count)
{
    const struct weft_adam rule = *adam;
    for (size_t i = 0; i < count; i++) {
        float m = first[i], v = second[i];
        weights[i] = adam_element(weights[i], &m, &v, grad[i] * grad_scale, &rule);
        first[i] = m;
        second[i] = v;
    }
}

void OPTIMIZER(adagrad_f32)(float *restrict weights, float *restrict sums, const float *restrict grad, float grad_scale, float lr,
                            float eps, float weight_decay, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = sums[i];
        weights[i] = adagrad_element(weights[i], &sum, grad[i] * grad_scale, lr, eps, weight_decay);
        sums[i] = sum;
    }
}

void OPTIMIZER(ftrl_f32)(float *restrict weights, float *restrict z, float *restrict n, const float *restrict grad, float grad_scale,
                         const struct weft_ftrl *ftrl, size_t count)
{
    const struct weft_ftrl rule = *ftrl;
    for (size_t i = 0; i < count; i++) {
        float debt = z[i], squares = n[i];
        weights[i] = ftrl_element(weights[i], &debt, &squares, grad[i] * grad_scale, &rule);
        z[i] = debt;
        n[i] = squares;
    }
}

/* Up to sixteen elements (a constant where inlined), one for each lane of the sums: as in dot_f32. */
static inline __attribute__((always_inline)) void lamb_lanes(float *restrict first, float *restrict second,
                                                             const float *restrict weights, const float *restrict grad,
                                                             float grad_scale, struct weft_lamb rule, size_t width,
                                                             double *restrict of_weights, double *restrict of_directions)
{
    float directions[16];
    for (size_t j = 0; j < width; j++) {
        float m = first[j], v = second[j];
        lamb_moments_element(&m, &v, grad[j] * grad_scale, &rule);
        first[j] = m;
        second[j] = v;
        directions[j] = lamb_direction(weights[j], m, v, &rule);
    }
    for (size_t j = 0; j < width; j++) {
        of_weights[j] += (double)weights[j] * (double)weights[j];
        of_directions[j] += (double)directions[j] * (double)directions[j];
    }
}

static inline double lamb_fold(double *lanes)
{
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return lanes[0] == lanes[0] ? lanes[0] : (double)float_from_bits(FLOAT_NAN);
}

void OPTIMIZER(lamb_moments_f32)(float *restrict first, float *restrict second, const float *restrict weights,
                                 const float *restrict grad, float grad_scale, const struct weft_lamb *lamb, size_t count,
                                 double squares_out[2])
{
    double of_weights[16] = {0}, of_directions[16] = {0};
    size_t at = 0;
    for (; at + 16 <= count; at += 16)
        lamb_lanes(first + at, second + at, weights + at, grad + at, grad_scale, *lamb, 16, of_weights, of_directions);
    lamb_lanes(first + at, second + at, weights + at, grad + at, grad_scale, *lamb, count - at, of_weights, of_directions);
    squares_out[0] = lamb_fold(of_weights);
    squares_out[1] = lamb_fold(of_directions);
}

void OPTIMIZER(lamb_apply_f32)(float *restrict weights, const float *restrict first, const float *restrict second,
                               const struct weft_lamb *lamb, float rate, size_t count)
{
    const struct weft_lamb rule = *lamb;
    for (size_t i = 0; i < count; i++)
        weights[i] = canonical(weights[i] - rate * lamb_direction(weights[i], first[i], second[i], &rule));
}
