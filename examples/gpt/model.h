/* model.h - a byte-level GPT: embedding, pre-norm transformer blocks, one output layer that shares the
 * embedding.
 *
 *     forward    layer 0 (embedding) -> blocks 1 .. L -> layer L + 1 (norm, logits, loss)
 *     backward   layer L + 1 -> blocks L .. 1 -> layer 0
 *
 * Parameters of a layer are parts: the matrices, and one vector with all norms and biases. Masters are f32.
 * With bf16 the layers compute from a bf16 copy, which gpt_refresh makes from the masters.
 * After gpt_backward(layer) the gradients of its parts are complete, and no later call of this step reads
 * their masters. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { GPT_BYTES = 256, GPT_LAYERS_MAX = 48, GPT_PARTS_MAX = 5 * GPT_LAYERS_MAX + 3 };

struct gpt_shape {
    uint32_t blocks, width, heads, length; /* length: bytes of a sample */
    bool bf16;
};

struct gpt_part {
    char name[24];
    uint32_t layer;       /* 0 .. blocks + 1 */
    uint32_t rows, cols;  /* cols 0: a vector */
    uint64_t count;
    float *master, *grad; /* (count,) borrowed: the caller sets them before gpt_init */
    uint16_t *half;       /* (count,) owned; bf16 only */
};

struct gpt_block {
    float *in, *norm1, *mixed, *sum, *norm2, *gate, *act; /* (rows, width), the last two (rows, 4*width) */
    float *qkv, *up;                                      /* (rows, 3*width), (rows, 4*width) */
    float *share; /* attention weights (samples, heads, length, length) */
    float *mean1, *scale1, *mean2, *scale2;               /* (rows,) of the norms; scale: 1 / deviation */
};

struct gpt {
    struct gpt_shape shape;
    uint32_t samples_max, rows_max, part_count;
    struct gpt_part parts[GPT_PARTS_MAX];
    struct gpt_block blocks[GPT_LAYERS_MAX];
    float *out, *out_norm, *out_mean, *out_scale; /* (rows, width) twice, (rows,) twice */
    float *logits;                                /* (rows, 256); the loss leaves their gradient here */
    float *d_out, *d_width, *d_qkv, *d_four, *d_share; /* gradients of activations, reused by each layer */
    float *d_tied; /* what the output layer adds to the embedding's gradient */
    float *expanded[2]; /* bf16: f32 copies of the parts in use */
    uint32_t samples;   /* of the running step */
    const uint8_t *text;
};

/* samples_max: of one call. false: out of memory. */
bool gpt_create(struct gpt *gpt, const struct gpt_shape *shape, uint32_t samples_max);
void gpt_free(struct gpt *gpt);
/* Sets the masters from the seed alone: equal on every machine and for any number of ranks. */
void gpt_init(struct gpt *gpt, uint64_t seed);
/* bf16: rounds the layer's masters to the working copy. Call it when the masters have changed. */
void gpt_refresh(struct gpt *gpt, uint32_t layer);
/* Begins a pass. text: (samples, length + 1), valid until the backward pass has ended. */
void gpt_begin(struct gpt *gpt, const uint8_t *text, uint32_t samples);
/* Layers in ascending order. The last returns the mean cross-entropy in nats; the others 0. */
double gpt_forward(struct gpt *gpt, uint32_t layer);
/* Layers in descending order, after all have run forward. */
void gpt_backward(struct gpt *gpt, uint32_t layer);

uint64_t random_next(uint64_t *state); /* splitmix64 */

#endif
