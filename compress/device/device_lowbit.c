/* device_lowbit.c - sign, e4m3 and e5m2 on a device; the equations are in lowbit_codec.c, lowbit.h has the
 * bytes.
 *
 *     encode  gradient to codes, scales and residual in one pass; to the host
 *     finish  the bf16 sum goes up and is widened there */
#include "compress/device/device.h"
#include "compress/device/device_batch.h"
#include "compress/lowbit.h"

#include <string.h>

struct device_lowbit {
    struct weft_codec base;
    size_t scales_bytes, codes_bytes;
    void *scales;           /* device */
    uint8_t *codes;         /* device */
    uint16_t *sum;          /* device (elems,): bf16 */
    uint8_t *sent, *aggregate; /* window */
};

/* Each piece has its own scales before its codes (lowbit_codec.c). */
static enum weft_status copy_pieces(struct device_lowbit *self)
{
    struct weft_codec *codec = &self->base;
    const uint8_t *scales = self->scales, *codes = self->codes;
    uint8_t *sent = self->sent;
    for (size_t at = 0; at < codec->elems; at += codec->piece) {
        const size_t part = codec->elems - at < codec->piece ? codec->elems - at : codec->piece;
        const size_t scales_bytes = lowbit_scales_bytes(codec->spec.id, part),
                     codes_bytes = lowbit_bytes(codec->spec.id, part) - scales_bytes;
        WEFT_TRY(device_copy(codec, sent, scales, scales_bytes));
        WEFT_TRY(device_copy(codec, sent + scales_bytes, codes, codes_bytes));
        scales += scales_bytes;
        codes += codes_bytes;
        sent += scales_bytes + codes_bytes;
    }
    return WEFT_OK;
}

static enum weft_status queue_codes(struct device_lowbit *self, const float *grad, float grad_scale)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    weft_device_stream stream = device_stream(codec);
    const enum weft_fp8 format = codec->spec.id == WEFT_CODEC_E4M3 ? WEFT_E4M3 : WEFT_E5M2;
    uint32_t *max_bits = codec->device->max_bits;
    WEFT_TRY(device_clear_max(codec));
    WEFT_TRY(device_launch_status(
        codec,
        codec->spec.id == WEFT_CODEC_SIGN
            ? kernels->scale_add_quantise_sign_f32(self->codes, self->scales, codec->shadow, grad, grad_scale,
                                                   codec->residual, codec->elems, max_bits, stream)
            : kernels->scale_add_quantise_fp8_f32(self->codes, self->scales, codec->shadow, grad, grad_scale,
                                                  codec->residual, codec->elems, format, max_bits, stream)));
    WEFT_TRY(copy_pieces(self));
    return device_fetch_max(codec);
}

/* The encode as an entry of a batch. False: queue it alone. */
static bool batch_encode(struct device_lowbit *self, const float *grad, float grad_scale)
{
    struct weft_codec *codec = &self->base;
    const struct device_batch_entry entry = {
        .segment = {.kind = codec->spec.id == WEFT_CODEC_SIGN   ? WEFT_SEGMENT_SIGN
                            : codec->spec.id == WEFT_CODEC_E4M3 ? WEFT_SEGMENT_E4M3
                                                                : WEFT_SEGMENT_E5M2,
                    .count = (uint32_t)codec->elems,
                    .a = grad,
                    .factor = grad_scale,
                    .b = codec->residual,
                    .x = codec->shadow},
        .to = self->sent,
        .scales_bytes = self->scales_bytes,
        .codes_bytes = self->codes_bytes};
    if (codec->elems > WEFT_SEGMENT_ELEMS_MAX || codec->piece != codec->elems) return false;
    return device_batch_add(codec, &entry);
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct device_lowbit *self = (struct device_lowbit *)codec;
    if (codec->device->part == 0) {
        if (batch_encode(self, grad, grad_scale)) return WEFT_IN_PROGRESS;
        WEFT_TRY(queue_codes(self, grad, grad_scale));
        return device_record_event(codec);
    }
    if (*codec->device->max_seen >= CODEC_MAGNITUDE_LIMIT_BITS) return WEFT_ERR_INVALID;
    return codec_send(codec, round, self->sent, self->scales_bytes + self->codes_bytes, out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct device_lowbit *self = (struct device_lowbit *)codec;
    if (!cast_well_formed(WEFT_CODEC_BF16, aggregate, bytes, codec->elems)) return WEFT_ERR_MALFORMED;
    memcpy(self->aggregate, aggregate, bytes);
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct device_lowbit *self = (struct device_lowbit *)codec;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    WEFT_TRY(device_copy(codec, self->sum, self->aggregate, codec->elems * sizeof *self->sum));
    WEFT_TRY(device_launch_status(
        codec, kernels->cast_bf16_f32(out, self->sum, codec->elems, device_stream(codec))));
    return scale != 1.0f ? device_launch_status(
                               codec, kernels->scale_f32(out, out, scale, codec->elems, device_stream(codec)))
                         : WEFT_OK;
}

static void lowbit_free(struct weft_codec *codec) { weft_free_bytes(codec->env, codec); }

static const struct codec_ops ops = {
    .encode = encode, .take = take, .finish = finish, .free = lowbit_free};

enum weft_status device_lowbit_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                      const struct weft_shape *shape, const struct weft_codec_device *at,
                                      struct weft_codec **codec_out)
{
    const size_t elems = weft_shape_elems(shape), bytes = lowbit_bytes(spec->id, elems),
                 sum_bytes = elems * sizeof(uint16_t);
    struct device_lowbit *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return WEFT_ERR_NO_MEMORY;
    self->base = (struct weft_codec){.ops = &ops, .env = env};
    *codec_out = &self->base;
    self->scales_bytes = lowbit_scales_bytes(spec->id, elems);
    self->codes_bytes = bytes - self->scales_bytes;
    const struct device_array arrays[] = {
        {&self->base.residual, elems * sizeof(float)}, {&self->base.shadow, elems * sizeof(float)},
        {&self->scales, self->scales_bytes}, {&self->codes, self->codes_bytes}, {&self->sum, sum_bytes},
    };
    WEFT_TRY(
        device_open(&self->base, at, arrays, 5, device_window_bytes(bytes) + device_window_bytes(sum_bytes)));
    self->sent = device_window(&self->base, bytes);
    self->aggregate = device_window(&self->base, sum_bytes);
    if (elems <= WEFT_SEGMENT_ELEMS_MAX) device_batch_reserve(&self->base);
    return WEFT_OK;
}
