/* quantise_codec.c - the worker's side of int8 and int4: block quantisation under exponents that all workers
 * share.
 *
 *     encode(0)   p = grad * scale + e;  per block of 256 the exponent E_i its largest |p| needs
 *     take(0)     E = max over workers of E_i
 *     encode(1)   code = p / 2^(E-127), rounded;  e' = p - code * 2^(E-127)
 *     take(1)     the integer sums of all workers' codes: exact, in any order
 *     finish      out = sum * 2^(E-127) * scale
 *     commit      e = e'
 *
 * What may be summed compressed: codes under one exponent, as integers. Scales are powers of two (E8M0, OCP
 * Microscaling Formats 1.0, section 5.2), so they are divided by exactly and commute with the sum. Rounding
 * is stochastic, unbiased up to 2^-9 of a code (Alistarh et al. 2017, QSGD, section 3.1, with 8 random bits),
 * its bits a pure function of (seed, step, tensor, worker, element): a retry, another host or a GPU draws the
 * same, another worker does not, so that errors of equal gradients do not add up in the sum. What rounding
 * loses is the residual, local to the worker. A block may be all zero: exponent 0, codes 0.
 *
 * p lives in `shadow` and becomes e' there in encode(1); commit swaps it with e. */
#include <string.h>

#include "compress/codec.h"
#include "compress/quantise.h"
#include "kernels/kernels.h"

struct quantise_codec {
    struct weft_codec base;
    uint64_t steps;                /* committed so far: keys the noise */
    uint8_t *own, *shared;         /* owned (blocks,): E_i and E */
    uint8_t *sent;                 /* owned: the codes on the wire, kept for a retry */
    int8_t *codes;                 /* owned (elems,) */
    int32_t *sums;                 /* owned (elems,) */
};

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct quantise_codec *self = (struct quantise_codec *)codec;
    const unsigned limit = quantise_limit(codec->spec.id);
    if (round == 0) {
        const uint32_t max_bits = weft_kernels()->scale_add_blocks_f32(
            self->base.shadow, grad, grad_scale, self->base.residual, codec->elems, limit, self->own);
        if (max_bits >= CODEC_MAGNITUDE_LIMIT_BITS) return WEFT_ERR_INVALID;
    } else {
        const struct weft_noise noise =
            weft_noise_of(codec->spec.seed, codec->tensor, codec->worker, self->steps);
        weft_kernels()->quantise_f32(self->codes, self->base.shadow, self->shared, codec->elems, limit,
                                     &noise);
        quantise_pack(codec->spec.id, self->sent, self->codes, codec->elems);
    }
    return codec_send(codec, round, round == 0 ? self->own : self->sent,
                      quantise_contribution_bytes(codec->spec.id, codec->elems, round), out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct quantise_codec *self = (struct quantise_codec *)codec;
    const uint8_t *from = aggregate;
    codec->malformed_elem = 0;
    if (bytes != quantise_aggregate_bytes(codec->spec.id, codec->elems, round, ranks))
        return WEFT_ERR_MALFORMED;
    for (size_t at = 0; at < codec->elems; at += codec->piece) {
        const size_t part = codec->elems - at < codec->piece ? codec->elems - at : codec->piece;
        const size_t length = quantise_aggregate_bytes(codec->spec.id, part, round, ranks);
        const enum weft_status status =
            round == 0 ? quantise_check_exponents(from, length, part, self->own + at / WEFT_CODEC_PIECE)
                       : quantise_read_sums(codec->spec.id, from, length, part, ranks, self->sums + at);
        if (status < 0) {
            codec->malformed_elem = at;
            return status;
        }
        from += length;
    }
    if (round == 0) memcpy(self->shared, aggregate, bytes);
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct quantise_codec *self = (struct quantise_codec *)codec;
    weft_kernels()->dequantise_i32_f32(out, self->sums, self->shared, scale, codec->elems);
    return WEFT_OK;
}

static void commit(struct weft_codec *codec)
{
    struct quantise_codec *self = (struct quantise_codec *)codec;
    self->steps++;
}

static void state(struct weft_codec *codec, struct codec_state *state)
{
    struct quantise_codec *self = (struct quantise_codec *)codec;
    state->steps = &self->steps;
}

static void quantise_free(struct weft_codec *codec)
{
    struct quantise_codec *self = (struct quantise_codec *)codec;
    void *const all[] = {self->own, self->shared, self->sent, self->codes, self->sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        weft_free_bytes(codec->env, all[i]);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops quantise_ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .state = state,
    .free = quantise_free,
};

struct weft_codec *quantise_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                         const struct weft_shape *shape)
{
    const size_t elems = weft_shape_elems(shape), blocks = quantise_blocks(elems);
    struct quantise_codec *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return NULL;
    self->base = (struct weft_codec){.ops = &quantise_ops, .env = env};
    self->own = weft_alloc_bytes(env, blocks);
    self->shared = weft_alloc_bytes(env, blocks);
    self->sent = weft_alloc_bytes(env, quantise_contribution_bytes(spec->id, elems, 1));
    self->codes = weft_alloc_bytes(env, elems);
    self->sums = weft_alloc_array(env, elems, sizeof *self->sums);
    if (!codec_residual_open(&self->base, elems) || !self->own || !self->shared || !self->sent ||
        !self->codes || !self->sums) {
        weft_codec_free(&self->base);
        return NULL;
    }
    return &self->base;
}
