/* lowbit_codec.c - the worker's side of sign, e4m3 and e5m2: one round, each worker under scales of its own.
 *
 *     encode   p = grad * scale + e;  per block of 256: codes under the scale this block needs;  e' = p -
 *                                     decoded
 *     take     the sum of all workers' decoded contributions, as bf16
 *     finish   out = sum * scale
 *     commit   e = e'
 *
 *   sign         c = mean|p| * sgn(p): Bernstein et al. 2018 with the L1 scale and feedback of Karimireddy et
 *                al. 2019
 *                (EF-signSGD, algorithm 1), per block as Zheng et al. 2019; a contraction by ||p||_1^2 / (n
 *                ||p||_2^2)
 *   e4m3, e5m2   8-bit floats (OCP 8-bit Floating Point Specification 1.0) under a power-of-two scale per
 *                block
 *
 * What may be summed compressed: nothing, the scales differ. A contribution is widened to f32, the sum is by
 * the tree T and is rounded once to bf16 (relative 2^-9, not fed back): small one way, two bytes the other.
 * Rounding to nearest needs no noise here: feedback returns what was lost.
 *
 * p lives in `shadow` and becomes e' there; commit swaps it with e. */
#include <string.h>

#include "compress/codec.h"
#include "compress/lowbit.h"
#include "kernels/kernels.h"

struct lowbit_codec {
    struct weft_codec base;
    uint8_t *sent;            /* owned: this step's contribution, kept for a retry */
    uint8_t *aggregate;       /* owned: the bf16 sum as received */
};

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct lowbit_codec *self = (struct lowbit_codec *)codec;
    uint8_t *sent = self->sent;
    for (size_t at = 0; at < codec->elems; at += codec->piece) {
        /* each with its own scales before its codes */
        const size_t part = codec->elems - at < codec->piece ? codec->elems - at : codec->piece;
        if (!lowbit_pack(codec->spec.id, sent, codec->shadow + at, grad + at, grad_scale,
                         codec->residual + at, part))
            return WEFT_ERR_INVALID;
        sent += lowbit_bytes(codec->spec.id, part);
    }
    return codec_send(codec, round, self->sent, lowbit_bytes(codec->spec.id, codec->elems), out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct lowbit_codec *self = (struct lowbit_codec *)codec;
    if (!cast_well_formed(WEFT_CODEC_BF16, aggregate, bytes, codec->elems)) return WEFT_ERR_MALFORMED;
    memcpy(self->aggregate, aggregate, bytes);
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    cast_unpack(WEFT_CODEC_BF16, out, ((struct lowbit_codec *)codec)->aggregate, scale, codec->elems);
    return WEFT_OK;
}

static void lowbit_free(struct weft_codec *codec)
{
    struct lowbit_codec *self = (struct lowbit_codec *)codec;
    weft_free_bytes(codec->env, self->sent);
    weft_free_bytes(codec->env, self->aggregate);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops lowbit_ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .free = lowbit_free,
};

struct weft_codec *lowbit_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                       const struct weft_shape *shape)
{
    const size_t elems = weft_shape_elems(shape);
    struct lowbit_codec *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base = (struct weft_codec){.ops = &lowbit_ops, .env = env};
    self->sent = weft_alloc_bytes(env, lowbit_bytes(spec->id, elems));
    self->aggregate = weft_alloc_bytes(env, cast_bytes(WEFT_CODEC_BF16, elems));
    if (!codec_residual_open(&self->base, elems) || !self->sent || !self->aggregate) {
        weft_codec_free(&self->base);
        return NULL;
    }
    return &self->base;
}
