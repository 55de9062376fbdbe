/* device_randomk.c - random-k on a device; the equations are in randomk_codec.c.
 *
 *     encode(0)  p = grad * scale + feedback * e; the number of the next step
 *     encode(1)  the drawn indices, and p there, which becomes 0; k values to the host
 *     finish     k sums to the device, scattered there */
#include "compress/device/device.h"

#include <string.h>

#include "compress/randomk.h"

struct device_randomk {
    struct weft_codec base;
    uint64_t steps, shared; /* the next step's number; and the largest of all workers', in the open step */
    size_t k;
    uint32_t *indices;               /* device (k,) of the open step */
    float *values;                   /* device (k,): to be sent, later the sums */
    float *values_seen, *sums_seen;  /* window (k,) */
};

static enum weft_status queue_sum(struct device_randomk *self, const float *grad, float grad_scale)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    weft_device_stream stream = device_stream(codec);
    const float feedback = (float)codec->spec.feedback, *carried = codec->residual;
    WEFT_TRY(device_clear_max(codec));
    if (feedback != 1.0f) {
        WEFT_TRY(device_launch_status(
            codec, kernels->scale_f32(codec->shadow, carried, feedback, codec->elems, stream)));
        carried = codec->shadow;
    }
    WEFT_TRY(device_launch_status(codec,
                                  kernels->scale_add_f32(codec->shadow, grad, grad_scale, carried,
                                                         codec->elems, codec->device->max_bits, stream)));
    return device_fetch_max(codec);
}

static enum weft_status queue_values(struct device_randomk *self)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    weft_device_stream stream = device_stream(codec);
    const struct weft_noise noise = randomk_noise(codec->spec.seed, self->shared);
    WEFT_TRY(device_launch_status(
        codec, kernels->sample_strata(self->indices, codec->elems, self->k, &noise, stream)));
    WEFT_TRY(device_launch_status(
        codec, kernels->take_f32(self->values, codec->shadow, self->indices, self->k, stream)));
    return device_copy(codec, self->values_seen, self->values, self->k * sizeof *self->values);
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct device_randomk *self = (struct device_randomk *)codec;
    if (codec->device->part == 0) {
        WEFT_TRY(round == 0 ? queue_sum(self, grad, grad_scale) : queue_values(self));
        return device_record_event(codec);
    }
    if (round == 0 && *codec->device->max_seen >= CODEC_MAGNITUDE_LIMIT_BITS) return WEFT_ERR_INVALID;
    return round == 0 ? codec_send(codec, 0, &self->steps, sizeof self->steps, out, bytes_out)
                      : codec_send(codec, 1, self->values_seen, self->k * sizeof *self->values_seen, out,
                                   bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct device_randomk *self = (struct device_randomk *)codec;
    return randomk_take(round, aggregate, bytes, self->steps, &self->shared, self->sums_seen, self->k);
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct device_randomk *self = (struct device_randomk *)codec;
    WEFT_TRY(device_copy(codec, self->values, self->sums_seen, self->k * sizeof *self->values));
    return device_launch_status(codec,
                                device_kernels(codec)->scatter_f32(out, codec->elems, self->indices,
                                                                   self->values, scale, self->k,
                                                                   device_stream(codec)));
}

static void commit(struct weft_codec *codec)
{
    struct device_randomk *self = (struct device_randomk *)codec;
    self->steps = self->shared + 1;
}

static void state(struct weft_codec *codec, struct codec_state *state)
{
    state->steps = &((struct device_randomk *)codec)->steps;
}

static void randomk_free(struct weft_codec *codec) { weft_free_bytes(codec->env, codec); }

static const struct codec_ops ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .state = state,
    .free = randomk_free,
};

enum weft_status device_randomk_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                       const struct weft_shape *shape, const struct weft_codec_device *at,
                                       struct weft_codec **codec_out)
{
    const size_t elems = weft_shape_elems(shape);
    struct device_randomk *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return WEFT_ERR_NO_MEMORY;
    self->base = (struct weft_codec){.ops = &ops, .env = env};
    *codec_out = &self->base;
    self->k = topk_count(spec, elems);
    const size_t bytes = self->k * sizeof(float);
    const struct device_array arrays[] = {
        {&self->base.residual, elems * sizeof(float)},
        {&self->base.shadow, elems * sizeof(float)},
        {&self->indices, self->k * sizeof *self->indices},
        {&self->values, bytes},
    };
    WEFT_TRY(device_open(&self->base, at, arrays, 4, 2 * device_window_bytes(bytes)));
    self->values_seen = device_window(&self->base, bytes);
    self->sums_seen = device_window(&self->base, bytes);
    return WEFT_OK;
}
