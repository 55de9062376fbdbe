/* device_cast.c - f16 and bf16 on a device; the bytes are those of cast_codec.c and cast_format.c.
 *
 *     encode  bf16   scale, cast and copy to the host in one part
 *             f16    the largest magnitude first: the exponent depends on it
 *     finish  copy to the device, widen, scale by the exponent and by `scale`, each only if it is not 1, as
 *             on the host */
#include "compress/device/device.h"
#include "compress/device/device_batch.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

struct device_cast {
    struct weft_codec base;
    float *scaled;                /* device (elems,) */
    uint16_t *halves;             /* device (elems,): the encoded gradient, later the received sums */
    uint8_t *sent, *aggregate;    /* window: cast_bytes(), the elements at a multiple of 4 */
};

static size_t head_bytes(const struct weft_codec *codec)
{
    return codec->spec.id == WEFT_CODEC_F16 ? sizeof(int32_t) : 0;
}

static enum weft_status queue_max(struct weft_codec *codec, const float *grad)
{
    WEFT_TRY(device_clear_max(codec));
    WEFT_TRY(device_launch_status(codec, device_kernels(codec)->max_abs_bits_f32(codec->device->max_bits,
                                                                                 grad, codec->elems,
                                                                                 device_stream(codec))));
    return device_fetch_max(codec);
}

static enum weft_status scale(struct weft_codec *codec, float *out, const float *in, float factor)
{
    return device_launch_status(
        codec, device_kernels(codec)->scale_f32(out, in, factor, codec->elems, device_stream(codec)));
}

static enum weft_status queue_cast(struct weft_codec *codec, const float *grad, float grad_scale,
                                     int32_t exponent)
{
    struct device_cast *self = (struct device_cast *)codec;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    const size_t elems = codec->elems;
    const float *from = grad;
    if (grad_scale != 1.0f) {
        WEFT_TRY(scale(codec, self->scaled, from, grad_scale));
        from = self->scaled;
    }
    if (exponent != 0) {
        WEFT_TRY(scale(codec, self->scaled, from, ldexpf(1.0f, -exponent)));
        from = self->scaled;
    }
    if (codec->spec.id == WEFT_CODEC_F16) {
        memcpy(self->sent, &exponent, sizeof exponent);
        WEFT_TRY(device_launch_status(
            codec, kernels->cast_f32_f16(self->halves, from, elems, device_stream(codec))));
    } else {
        WEFT_TRY(device_launch_status(
            codec, kernels->cast_f32_bf16(self->halves, from, elems, device_stream(codec))));
    }
    return device_copy(codec, self->sent + head_bytes(codec), self->halves, elems * sizeof *self->halves);
}

/* The part of `kind` as an entry of a batch. False: queue it alone. */
static bool batch_part(struct weft_codec *codec, enum weft_segment_kind kind, const float *grad,
                       float grad_scale, int32_t exponent)
{
    struct device_cast *self = (struct device_cast *)codec;
    const struct device_batch_entry entry = {
        .segment = {.kind = kind,
                    .count = (uint32_t)codec->elems,
                    .a = grad,
                    .factor = grad_scale,
                    .factor2 = ldexpf(1.0f, -exponent)},
        .to = self->sent + head_bytes(codec),
        .codes_bytes = kind == WEFT_SEGMENT_MAX ? 0 : codec->elems * sizeof *self->halves};
    if (codec->elems > WEFT_SEGMENT_ELEMS_MAX || !device_batch_add(codec, &entry)) return false;
    if (kind == WEFT_SEGMENT_F16) memcpy(self->sent, &exponent, sizeof exponent);
    return true;
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    const bool f16 = codec->spec.id == WEFT_CODEC_F16;
    int32_t exponent;
    switch (codec->device->part) {
    case 0:
        if (batch_part(codec, f16 ? WEFT_SEGMENT_MAX : WEFT_SEGMENT_BF16, grad, grad_scale, 0))
            return WEFT_IN_PROGRESS;
        WEFT_TRY(queue_max(codec, grad));
        if (!f16) WEFT_TRY(queue_cast(codec, grad, grad_scale, 0));
        return device_record_event(codec);
    case 1:
        if (!cast_exponent(codec->spec.id, *codec->device->max_seen, grad_scale, &exponent))
            return WEFT_ERR_INVALID;
        if (!f16) break;
        if (batch_part(codec, WEFT_SEGMENT_F16, grad, grad_scale, exponent)) return WEFT_IN_PROGRESS;
        WEFT_TRY(queue_cast(codec, grad, grad_scale, exponent));
        return device_record_event(codec);
    default: break;
    }
    return codec_send(codec, round, ((const struct device_cast *)codec)->sent,
                      cast_bytes(codec->spec.id, codec->elems), out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct device_cast *self = (struct device_cast *)codec;
    if (!cast_well_formed(codec->spec.id, aggregate, bytes, codec->elems)) return WEFT_ERR_MALFORMED;
    memcpy(self->aggregate, aggregate, bytes);
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float factor, float *out)
{
    struct device_cast *self = (struct device_cast *)codec;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    int32_t exponent = 0;
    WEFT_TRY(device_copy(codec, self->halves, self->aggregate + head_bytes(codec),
                         codec->elems * sizeof *self->halves));
    if (codec->spec.id == WEFT_CODEC_F16) {
        memcpy(&exponent, self->aggregate, sizeof exponent);
        WEFT_TRY(device_launch_status(
            codec, kernels->cast_f16_f32(out, self->halves, codec->elems, device_stream(codec))));
    } else {
        WEFT_TRY(device_launch_status(
            codec, kernels->cast_bf16_f32(out, self->halves, codec->elems, device_stream(codec))));
    }
    if (exponent != 0) WEFT_TRY(scale(codec, out, out, ldexpf(1.0f, exponent)));
    return factor != 1.0f ? scale(codec, out, out, factor) : WEFT_OK;
}

static void cast_free(struct weft_codec *codec) { weft_free_bytes(codec->env, codec); }

static const struct codec_ops ops = {
    .encode = encode, .take = take, .finish = finish, .free = cast_free};

enum weft_status device_cast_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                    const struct weft_shape *shape, const struct weft_codec_device *at,
                                    struct weft_codec **codec_out)
{
    const size_t elems = weft_shape_elems(shape), bytes = cast_bytes(spec->id, elems);
    struct device_cast *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return WEFT_ERR_NO_MEMORY;
    self->base = (struct weft_codec){.ops = &ops, .env = env};
    *codec_out = &self->base;
    const struct device_array arrays[] = {{&self->scaled, elems * sizeof *self->scaled},
                                          {&self->halves, elems * sizeof *self->halves}};
    WEFT_TRY(device_open(&self->base, at, arrays, 2, 2 * device_window_bytes(bytes)));
    self->sent = device_window(&self->base, bytes);
    self->aggregate = device_window(&self->base, bytes);
    if (elems <= WEFT_SEGMENT_ELEMS_MAX) device_batch_reserve(&self->base);
    return WEFT_OK;
}
