/* randomk_codec.c - the worker's side of random-k: k elements drawn identically on all ranks, with error
 * feedback.
 *
 *     encode(0)   p = grad * scale + feedback * e;  send the number of the next step, the key of the draw
 *     take(0)     the largest of all workers' numbers is the key, also if one was restored from an older
 *                 checkpoint
 *     encode(1)   send p at the drawn indices;  e' = p, zero where sent
 *     take(1)     the sum of all workers' values
 *     finish      out = sum * scale at the indices, zero elsewhere
 *     commit      e = e', step = the largest + 1
 *
 * Stich, Cordonnier, Jaggi 2018 (Sparsified SGD with Memory): no factor n/k, the rest returns through e. A
 * contraction by k/n in expectation.
 *
 * With feedback 1 nothing is lost, and an element that was not drawn for n/k steps carries all their
 * gradients at once: the learning rate of dense is then n/k times too large. With a feedback f below 1 the
 * residual fades, no element carries more than 1/(1 - f) steps, and the sum of what is sent is (k/n) / (1 - f
 * (1 - k/n)) of the gradients' in expectation: slower, and stable. (A decaying residual as LoCo has it, Xie
 * et al. 2024.)
 *
 * What may be summed compressed: the values of round 1, as one dense vector of k: bytes do not grow with
 * the ranks. */
#include <string.h>

#include "compress/codec.h"
#include "compress/randomk.h"
#include "kernels/kernels.h"

enum { BATCH = 512 };

struct randomk_codec {
    struct weft_codec base;
    uint64_t steps, shared; /* the next step's number; and the largest of all workers', in the open step */
    size_t k;
    uint32_t *indices;        /* owned (k,) of the open step */
    float *values, *sum;      /* owned (k,): sent, and taken */
};

struct weft_noise randomk_noise(uint64_t seed, uint64_t step)
{
    return (struct weft_noise){{(uint32_t)seed, (uint32_t)(seed >> 32)}, step, 0};
}

void randomk_indices(uint32_t *indices_out, uint64_t elems, uint64_t k, uint64_t seed, uint64_t step)
{
    const struct weft_noise noise = randomk_noise(seed, step);
    weft_sample_strata(indices_out, elems, k, &noise);
}

enum weft_status randomk_take(uint32_t round, const void *aggregate, size_t bytes, uint64_t own,
                              uint64_t *shared_out, float *sums_out, size_t k)
{
    if (bytes != (round == 0 ? sizeof own : k * sizeof *sums_out)) return WEFT_ERR_MALFORMED;
    if (round > 0) {
        memcpy(sums_out, aggregate, bytes);
        return WEFT_OK;
    }
    uint64_t largest;
    memcpy(&largest, aggregate, bytes);
    if (largest < own) return WEFT_ERR_MALFORMED;
    *shared_out = largest;
    return WEFT_OK;
}

void randomk_spread(float *out, size_t elems, const uint32_t *indices, const float *values, size_t k,
                    float scale)
{
    memset(out, 0, elems * sizeof *out);
    for (size_t at = 0; at < k; at += BATCH) {
        float scaled[BATCH];
        const size_t part = k - at < BATCH ? k - at : BATCH;
        weft_kernels()->scale_f32(scaled, values + at, scale, part);
        for (size_t j = 0; j < part; j++)
            out[indices[at + j]] = scaled[j];
    }
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct randomk_codec *self = (struct randomk_codec *)codec;
    if (round == 0) {
        const struct weft_kernels *kernels = weft_kernels();
        const float feedback = (float)codec->spec.feedback, *carried = self->base.residual;
        if (feedback != 1.0f) {
            kernels->scale_f32(self->base.shadow, carried, feedback, codec->elems);
            carried = self->base.shadow;
        }
        if (kernels->scale_add_f32(self->base.shadow, grad, grad_scale, carried, codec->elems) >=
            CODEC_MAGNITUDE_LIMIT_BITS)
            return WEFT_ERR_INVALID;
    } else {
        randomk_indices(self->indices, codec->elems, self->k, codec->spec.seed, self->shared);
        for (size_t j = 0; j < self->k; j++) {
            self->values[j] = self->base.shadow[self->indices[j]];
            self->base.shadow[self->indices[j]] = 0.0f;
        }
    }
    return round == 0 ? codec_send(codec, 0, &self->steps, sizeof self->steps, out, bytes_out)
                      : codec_send(codec, 1, self->values, self->k * sizeof *self->values, out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct randomk_codec *self = (struct randomk_codec *)codec;
    return randomk_take(round, aggregate, bytes, self->steps, &self->shared, self->sum, self->k);
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct randomk_codec *self = (struct randomk_codec *)codec;
    randomk_spread(out, codec->elems, self->indices, self->sum, self->k, scale);
    return WEFT_OK;
}

static void commit(struct weft_codec *codec)
{
    struct randomk_codec *self = (struct randomk_codec *)codec;
    self->steps = self->shared + 1;
}

static void state(struct weft_codec *codec, struct codec_state *state)
{
    struct randomk_codec *self = (struct randomk_codec *)codec;
    state->steps = &self->steps;
}

static void randomk_free(struct weft_codec *codec)
{
    struct randomk_codec *self = (struct randomk_codec *)codec;
    void *const all[] = {self->indices, self->values, self->sum};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        weft_free_bytes(codec->env, all[i]);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops randomk_ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .state = state,
    .free = randomk_free,
};

struct weft_codec *randomk_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                        const struct weft_shape *shape)
{
    const size_t elems = weft_shape_elems(shape);
    struct randomk_codec *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base = (struct weft_codec){.ops = &randomk_ops, .env = env};
    self->k = topk_count(spec, elems);
    self->indices = weft_alloc_array(env, self->k, sizeof *self->indices);
    self->values = weft_alloc_array(env, self->k, sizeof *self->values);
    self->sum = weft_alloc_array(env, self->k, sizeof *self->sum);
    if (!codec_residual_open(&self->base, elems) || !self->indices || !self->values || !self->sum) {
        weft_codec_free(&self->base);
        return NULL;
    }
    return &self->base;
}
