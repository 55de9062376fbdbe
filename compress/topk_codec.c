/* topk_codec.c - the worker's side of exact top-k sparsification with error feedback.
 *
 *     encode   p = grad * scale + e;  send the k largest |p| (ties to the smaller index);  e' = p, zero where sent
 *     take     the union of all workers' indices, values summed
 *     finish   out = the sparse sum * scale, zero elsewhere
 *     commit   e = e'
 *
 * Values move, they never change: sent bits plus residual bits are the bits of p. k = clamp(ceil(n * ratio), 1, n),
 * always exactly k, also when p is zero everywhere, so every size is known beforehand.
 *
 * p is written once: the histogram of the radix select is counted block by block while the block is in cache. */
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "compress/sparse.h"
#include "kernels/kernels.h"

enum { BLOCK = 4096, F32_INF_BITS = 0x7f800000 };

struct topk_codec {
    struct weft_codec base;
    size_t k;
    float *residual, *shadow;  /* owned (elems,): e, and p or e' of the open step */
    uint32_t *indices;         /* owned (k,) */
    float *values;             /* owned (k,) */
    uint8_t *sent;             /* owned; this step's contribution, kept for a retry */
    size_t sent_bytes;
    void *work;                /* owned; scratch of the select, later the aggregate as it came */
    size_t work_bytes, aggregate_bytes;
    struct weft_select select;
};

static enum weft_status encode_again(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                                     void *out, size_t *bytes_out)
{
    const struct topk_codec *self = (const struct topk_codec *)codec;
    memcpy(out, self->sent, self->sent_bytes);
    *bytes_out = self->sent_bytes;
    return WEFT_OK;
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale, void *out,
                               size_t *bytes_out)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    const struct weft_kernels *kernels = weft_kernels();
    uint32_t max_bits = 0;
    weft_select_begin(&self->select);
    for (size_t at = 0; at < codec->elems; at += BLOCK) {
        const size_t part = codec->elems - at < BLOCK ? codec->elems - at : BLOCK;
        const uint32_t bits = kernels->scale_add_f32(self->shadow + at, grad + at, grad_scale, self->residual + at, part);
        max_bits = bits > max_bits ? bits : max_bits;
        weft_select_count(&self->select, self->shadow + at, part);
    }
    if (max_bits >= F32_INF_BITS) return WEFT_ERR_INVALID;

    weft_select_finish(&self->select, self->indices, self->shadow, codec->elems, self->k, self->work);
    for (size_t i = 0; i < self->k; i++) {
        self->values[i] = self->shadow[self->indices[i]];
        self->shadow[self->indices[i]] = 0.0f;
    }
    self->sent_bytes = sparse_encode(self->sent, self->indices, self->values, self->k, codec->elems);
    return encode_again(codec, round, grad, grad_scale, out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes, uint32_t ranks)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    const uint64_t together = (uint64_t)ranks * self->k; /* both below 2^32 */
    uint64_t count;
    if (bytes > self->work_bytes) return WEFT_ERR_MALFORMED;
    WEFT_TRY(sparse_check(aggregate, bytes, codec->elems, together, &count));
    memcpy(self->work, aggregate, bytes);
    self->aggregate_bytes = bytes;
    return WEFT_OK;
}

static void finish(struct weft_codec *codec, float scale, float *out)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    sparse_scatter(self->work, self->aggregate_bytes, codec->elems, scale, out);
}

static void commit(struct weft_codec *codec)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    float *old = self->residual;
    self->residual = self->shadow;
    self->shadow = old;
}

static double residual_norm(const struct weft_codec *codec)
{
    const struct topk_codec *self = (const struct topk_codec *)codec;
    return sqrt(weft_kernels()->dot_f32(self->residual, self->residual, codec->elems));
}

static struct codec_state state(const struct weft_codec *codec)
{
    const struct topk_codec *self = (const struct topk_codec *)codec;
    return (struct codec_state){NULL, {self->residual, NULL}, {codec->elems, 0}};
}

static void topk_free(struct weft_codec *codec)
{
    struct topk_codec *self = (struct topk_codec *)codec;
    void *const all[] = {self->residual, self->shadow, self->indices, self->values, self->sent, self->work};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        weft_free_bytes(codec->env, all[i]);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops topk_ops = {
    .encode = encode,
    .encode_again = encode_again,
    .take = take,
    .finish = finish,
    .commit = commit,
    .residual_norm = residual_norm,
    .state = state,
    .free = topk_free,
};

struct weft_codec *topk_codec_create(struct weft_env *env, const struct weft_codec_spec *spec, const struct weft_shape *shape)
{
    const size_t elems = weft_shape_elems(shape), k = topk_count(spec, elems);
    struct topk_codec *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base = (struct weft_codec){.ops = &topk_ops, .env = env};
    self->k = k;
    /* The number of ranks is not known here: room for an aggregate that holds every element. That is also more
     * than the select's scratch of one uint32 per element. */
    self->work_bytes = weft_index_bytes_max(elems, elems) + elems * sizeof(float);
    self->residual = weft_alloc_array(env, elems, sizeof *self->residual);
    self->shadow = weft_alloc_array(env, elems, sizeof *self->shadow);
    self->indices = weft_alloc_array(env, k, sizeof *self->indices);
    self->values = weft_alloc_array(env, k, sizeof *self->values);
    self->sent = weft_alloc_bytes(env, weft_codec_contribution_bytes_max(spec, shape, 0));
    self->work = weft_alloc_bytes(env, self->work_bytes);
    if (!self->residual || !self->shadow || !self->indices || !self->values || !self->sent || !self->work) {
        topk_free(&self->base);
        return NULL;
    }
    memset(self->residual, 0, elems * sizeof *self->residual);
    return &self->base;
}
