/* optimizer_loops.h - adam, adagrad, ftrl and lamb (optimizer_element.h) as loops every compiler turns
 * into vectors. Each variant compiles this text with its own instruction set, defining OPTIMIZER(name)
 * first. Square roots and quotients are rounded correctly everywhere, so the bits are the same. Private to
 * the module. */
#include "kernels/kernels.h"
#include "kernels/templates/optimizer_element.h"

#define LOOP static inline __attribute__((always_inline)) void

LOOP adam_loop(float *restrict weights, float *restrict first, float *restrict second,
               const float *restrict grad, float grad_scale, struct weft_adam rule, enum adam_decay decay,
               size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float m = first[i], v = second[i];
        weights[i] = adam_element(weights[i], &m, &v, grad[i] * grad_scale, &rule, decay);
        first[i] = m;
        second[i] = v;
    }
}

void OPTIMIZER(adam_f32)(float *restrict weights, float *restrict first, float *restrict second,
                         const float *restrict grad, float grad_scale, const struct weft_adam *adam,
                         size_t count)
{
    switch (adam_decay_of(adam)) {
    case ADAM_DECAY_NONE:
        adam_loop(weights, first, second, grad, grad_scale, *adam, ADAM_DECAY_NONE, count);
        break;
    case ADAM_DECAY_COUPLED:
        adam_loop(weights, first, second, grad, grad_scale, *adam, ADAM_DECAY_COUPLED, count);
        break;
    case ADAM_DECAY_DECOUPLED:
        adam_loop(weights, first, second, grad, grad_scale, *adam, ADAM_DECAY_DECOUPLED, count);
        break;
    }
}

LOOP adagrad_loop(float *restrict weights, float *restrict sums, const float *restrict grad, float grad_scale,
                  float lr, float eps, float weight_decay, bool decays, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = sums[i];
        weights[i] = adagrad_element(weights[i], &sum, grad[i] * grad_scale, lr, eps, weight_decay, decays);
        sums[i] = sum;
    }
}

void OPTIMIZER(adagrad_f32)(float *restrict weights, float *restrict sums, const float *restrict grad,
                            float grad_scale, float lr, float eps, float weight_decay, size_t count)
{
    if (weight_decay != 0.0f)
        adagrad_loop(weights, sums, grad, grad_scale, lr, eps, weight_decay, true, count);
    else adagrad_loop(weights, sums, grad, grad_scale, lr, eps, 0.0f, false, count);
}

void OPTIMIZER(ftrl_f32)(float *restrict weights, float *restrict z, float *restrict n,
                         const float *restrict grad, float grad_scale, const struct weft_ftrl *ftrl,
                         size_t count)
{
    const struct weft_ftrl rule = *ftrl;
    for (size_t i = 0; i < count; i++) {
        float z_next = z[i], squares = n[i];
        weights[i] = ftrl_element(weights[i], &z_next, &squares, grad[i] * grad_scale, &rule);
        z[i] = z_next;
        n[i] = squares;
    }
}

/* Up to sixteen elements (a constant where inlined), one for each lane of the sums: as in dot_f32. */
LOOP lamb_lanes(float *restrict first, float *restrict second, const float *restrict weights,
                const float *restrict grad, float grad_scale, struct weft_lamb rule, bool decays,
                size_t width, double *restrict of_weights, double *restrict of_directions)
{
    float directions[16];
    for (size_t j = 0; j < width; j++) {
        float m = first[j], v = second[j];
        lamb_moments_element(&m, &v, grad[j] * grad_scale, &rule);
        first[j] = m;
        second[j] = v;
        directions[j] = lamb_direction(weights[j], m, v, &rule, decays);
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

LOOP lamb_moments_loop(float *restrict first, float *restrict second, const float *restrict weights,
                       const float *restrict grad, float grad_scale, struct weft_lamb rule, bool decays,
                       size_t count, double squares_out[2])
{
    double of_weights[16] = {0}, of_directions[16] = {0};
    size_t at = 0;
    for (; at + 16 <= count; at += 16)
        lamb_lanes(first + at, second + at, weights + at, grad + at, grad_scale, rule, decays, 16, of_weights,
                   of_directions);
    lamb_lanes(first + at, second + at, weights + at, grad + at, grad_scale, rule, decays, count - at,
               of_weights, of_directions);
    squares_out[0] = lamb_fold(of_weights);
    squares_out[1] = lamb_fold(of_directions);
}

void OPTIMIZER(lamb_moments_f32)(float *restrict first, float *restrict second, const float *restrict weights,
                                 const float *restrict grad, float grad_scale, const struct weft_lamb *lamb,
                                 size_t count, double squares_out[2])
{
    if (lamb->weight_decay != 0.0f)
        lamb_moments_loop(first, second, weights, grad, grad_scale, *lamb, true, count, squares_out);
    else
        lamb_moments_loop(first, second, weights, grad, grad_scale, *lamb, false, count, squares_out);
}

LOOP lamb_apply_loop(float *restrict weights, const float *restrict first, const float *restrict second,
                     struct weft_lamb rule, bool decays, float rate, size_t count)
{
    for (size_t i = 0; i < count; i++)
        weights[i] =
            canonical(weights[i] - rate * lamb_direction(weights[i], first[i], second[i], &rule, decays));
}

void OPTIMIZER(lamb_apply_f32)(float *restrict weights, const float *restrict first,
                               const float *restrict second, const struct weft_lamb *lamb, float rate,
                               size_t count)
{
    if (lamb->weight_decay != 0.0f) lamb_apply_loop(weights, first, second, *lamb, true, rate, count);
    else lamb_apply_loop(weights, first, second, *lamb, false, rate, count);
}

#undef LOOP
