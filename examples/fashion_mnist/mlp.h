/* mlp.h - a multi-layer perceptron with ReLU and softmax cross-entropy, layer by layer.
 *
 * Parameters and gradients are the caller's memory, such as that of weft_alloc. The model owns the
 * activations. The backward pass is one call per layer, last layer first, so that a trainer can send a
 * layer's gradients while earlier layers compute:
 *
 *     mlp_forward(x) -> logits ... mlp_loss(labels) -> delta of the last layer
 *     for (layer = last; layer >= 0; layer--)
 *         mlp_backward(layer)     gradients of this layer are ready; its weights are no longer read
 *
 * Shapes, row-major: x (batch, in), W (out, in), b (out,), activations (batch, out). */
#ifndef FASHION_MNIST_MLP_H
#define FASHION_MNIST_MLP_H

#include <stdbool.h>
#include <stdint.h>

enum { MLP_LAYERS_MAX = 8 };

struct mlp_layer {
    uint32_t in, out;
    float *weights, *bias;           /* borrowed: (out, in), (out,) */
    float *weights_grad, *bias_grad; /* borrowed, same shapes: mean over the batch */
    float *activation;               /* owned: (batch_max, out); the last layer's are logits */
    float *delta;                    /* owned: gradient of the loss by the layer's output before ReLU */
};

struct mlp {
    uint32_t layer_count, batch_max;
    struct mlp_layer layers[MLP_LAYERS_MAX];
};

/* sizes (layer_count + 1,): inputs, hidden..., classes. false: out of memory. */
bool mlp_create(struct mlp *mlp, const uint32_t *sizes, uint32_t layer_count, uint32_t batch_max);
void mlp_free(struct mlp *mlp);

/* Kaiming initialisation from the seed alone: equal weights on every machine and for any number of
 * workers. */
void mlp_init(struct mlp *mlp, uint64_t seed);

void mlp_forward(struct mlp *mlp, const float *x, uint32_t batch);
/* Returns the cross-entropy summed over the batch. correct_out, if not NULL, counts right answers.
 * with_delta: computes the delta of the last layer, of the mean loss, for mlp_backward. */
double mlp_loss(struct mlp *mlp, const uint8_t *labels, uint32_t batch, bool with_delta,
                uint32_t *correct_out);
/* Gradients of one layer. Requires the deltas of the next layer. */
void mlp_backward(struct mlp *mlp, uint32_t layer, const float *x, uint32_t batch);

/* splitmix64: the small seeded generator of this example. */
uint64_t random_next(uint64_t *state);

#endif
