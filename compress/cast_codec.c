/* cast_codec.c - the worker's side of dense, f16 and bf16: one round, no residual, no state between steps.
 *
 *     grad --scale, narrow--> contribution ... aggregate --keep--> widen, scale --> out
 *
 * Nothing is remembered of the gradient, so encoding again reads it again. */
#include <string.h>

#include "compress/codec.h"

struct cast_codec {
    struct weft_codec base;
    void *aggregate; /* owned; cast_bytes(), as received */
};

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    if (!cast_pack(codec->spec.id, out, grad, grad_scale, codec->elems)) return WEFT_ERR_INVALID;
    *bytes_out = cast_bytes(codec->spec.id, codec->elems);
    return WEFT_OK;
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct cast_codec *cast = (struct cast_codec *)codec;
    if (!cast_well_formed(codec->spec.id, aggregate, bytes, codec->elems)) return WEFT_ERR_MALFORMED;
    memcpy(cast->aggregate, aggregate, bytes);
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    cast_unpack(codec->spec.id, out, ((struct cast_codec *)codec)->aggregate, scale, codec->elems);
    return WEFT_OK;
}

static void cast_free(struct weft_codec *codec)
{
    struct cast_codec *cast = (struct cast_codec *)codec;
    weft_free_bytes(codec->env, cast->aggregate);
    weft_free_bytes(codec->env, cast);
}

static const struct codec_ops cast_ops = {
    .encode = encode,
    .encode_again = encode,
    .take = take,
    .finish = finish,
    .free = cast_free,
};

struct weft_codec *cast_codec_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                     const struct weft_shape *shape)
{
    struct cast_codec *cast = weft_alloc_zero(env, sizeof *cast);
    if (!cast) return NULL;
    cast->base.ops = &cast_ops;
    cast->aggregate = weft_alloc_bytes(env, cast_bytes(spec->id, weft_shape_elems(shape)));
    if (!cast->aggregate) {
        weft_free_bytes(env, cast);
        return NULL;
    }
    return &cast->base;
}
