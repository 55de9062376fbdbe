/* mlp.c - see mlp.h. The heavy arithmetic is three matrix products per layer, by BLAS. */
#include "mlp.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *alloc_floats(size_t count)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, count * sizeof(float)) != 0) return NULL;
    memset(memory, 0, count * sizeof(float));
    return memory;
}

bool mlp_create(struct mlp *mlp, const uint32_t *sizes, uint32_t layer_count, uint32_t batch_max)
{
    *mlp = (struct mlp){.layer_count = layer_count, .batch_max = batch_max};
    for (uint32_t l = 0; l < layer_count; l++) {
        struct mlp_layer *layer = &mlp->layers[l];
        layer->in = sizes[l];
        layer->out = sizes[l + 1];
        layer->activation = alloc_floats((size_t)batch_max * layer->out);
        layer->delta = alloc_floats((size_t)batch_max * layer->out);
        if (!layer->activation || !layer->delta) {
            mlp_free(mlp);
            return false;
        }
    }
    return true;
}

void mlp_free(struct mlp *mlp)
{
    for (uint32_t l = 0; l < mlp->layer_count; l++) {
        free(mlp->layers[l].activation);
        free(mlp->layers[l].delta);
    }
    *mlp = (struct mlp){0};
}

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void mlp_init(struct mlp *mlp, uint64_t seed)
{
    uint64_t state = seed;
    for (uint32_t l = 0; l < mlp->layer_count; l++) {
        struct mlp_layer *layer = &mlp->layers[l];
        float range = sqrtf(6.0f / (float)layer->in);
        for (size_t i = 0; i < (size_t)layer->out * layer->in; i++) {
            float unit = (float)(random_next(&state) >> 40) * 0x1p-24f; /* [0, 1), exact */
            layer->weights[i] = (2.0f * unit - 1.0f) * range;
        }
        memset(layer->bias, 0, layer->out * sizeof(float));
    }
}

void mlp_forward(struct mlp *mlp, const float *x, uint32_t batch)
{
    const float *input = x;
    for (uint32_t l = 0; l < mlp->layer_count; l++) {
        struct mlp_layer *layer = &mlp->layers[l];
        for (uint32_t i = 0; i < batch; i++) {
            memcpy(layer->activation + (size_t)i * layer->out, layer->bias, layer->out * sizeof(float));
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)batch, (int)layer->out, (int)layer->in,
                    1.0f, input, (int)layer->in, layer->weights, (int)layer->in, 1.0f, layer->activation,
                    (int)layer->out);
        if (l + 1 < mlp->layer_count) {
            for (size_t i = 0; i < (size_t)batch * layer->out; i++) {
                layer->activation[i] = layer->activation[i] > 0.0f ? layer->activation[i] : 0.0f;
            }
        }
        input = layer->activation;
    }
}

double mlp_loss(struct mlp *mlp, const uint8_t *labels, uint32_t batch, bool with_delta,
                uint32_t *correct_out)
{
    struct mlp_layer *last = &mlp->layers[mlp->layer_count - 1];
    double loss = 0;
    uint32_t correct = 0;
    for (uint32_t i = 0; i < batch; i++) {
        const float *logits = last->activation + (size_t)i * last->out;
        uint32_t best = 0;
        for (uint32_t c = 1; c < last->out; c++) {
            if (logits[c] > logits[best]) best = c;
        }
        correct += best == labels[i];
        double sum = 0;
        /* never overflows */
        for (uint32_t c = 0; c < last->out; c++) sum += exp((double)logits[c] - logits[best]);
        loss += log(sum) + logits[best] - logits[labels[i]];
        if (!with_delta) continue;
        float *delta = last->delta + (size_t)i * last->out;
        for (uint32_t c = 0; c < last->out; c++) {
            double share = exp((double)logits[c] - logits[best]) / sum;
            delta[c] = (float)((share - (c == labels[i])) / batch);
        }
    }
    if (correct_out) *correct_out = correct;
    return loss;
}

void mlp_backward(struct mlp *mlp, uint32_t l, const float *x, uint32_t batch)
{
    struct mlp_layer *layer = &mlp->layers[l];
    const float *input = l == 0 ? x : mlp->layers[l - 1].activation;
    if (l > 0) { /* first: it reads this layer's weights, which may change once its gradient is pushed */
        struct mlp_layer *before = &mlp->layers[l - 1];
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)batch, (int)layer->in, (int)layer->out,
                    1.0f, layer->delta, (int)layer->out, layer->weights, (int)layer->in, 0.0f, before->delta,
                    (int)layer->in);
        for (size_t i = 0; i < (size_t)batch * layer->in; i++) {
            before->delta[i] = before->activation[i] > 0.0f ? before->delta[i] : 0.0f;
        }
    }
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)layer->out, (int)layer->in, (int)batch, 1.0f,
                layer->delta, (int)layer->out, input, (int)layer->in, 0.0f, layer->weights_grad,
                (int)layer->in);
    memset(layer->bias_grad, 0, layer->out * sizeof(float));
    for (uint32_t i = 0; i < batch; i++) {
        const float *delta = layer->delta + (size_t)i * layer->out;
        for (uint32_t o = 0; o < layer->out; o++) layer->bias_grad[o] += delta[o];
    }
}
