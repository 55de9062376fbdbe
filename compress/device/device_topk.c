/* device_topk.c - exact top-k on a device; the equations are in topk_codec.c.
 *
 *     encode  u' with momentum; then p = g + e, its k largest and e' in one pass; indices and values to the
 *             host (8 k bytes)
 *     take    checks the union and copies its indices and values into the window
 *     finish  copies them to the device and scatters them; a dense aggregate is copied whole
 *
 * The select is exact without a threshold guess. The host encodes the index stream. */
#include "compress/device/device.h"

#include <string.h>

#include "compress/sparse.h"

struct device_topk {
    struct weft_codec base;
    size_t k, k_max, union_max;        /* of this step; of any; indices of an aggregate at most */
    uint64_t steps, union_count;
    bool union_dense;
    float momentum;
    float *velocity, *velocity_shadow; /* device (elems,): NULL without momentum */
    float *incoming;                   /* device (elems,): Nesterov's u' + g */
    uint32_t *indices;                 /* device (union_max,) */
    float *values;                     /* device (union_max,), or (elems,) where an aggregate may be dense */
    void *work;                        /* device: of the select */
    uint32_t *indices_seen;            /* window (k_max,) */
    float *values_seen;
    uint32_t *union_indices;           /* window (union_max,) */
    float *union_values;               /* window, as values */
    uint8_t *sent;                     /* owned host memory: this step's contribution */
};

/* u' into its shadow; *incoming_out is what is to be added to the residual. */
static enum weft_status add_momentum(struct device_topk *self, const float *grad, float grad_scale,
                                     const float **incoming_out)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    weft_device_stream stream = device_stream(codec);
    const size_t elems = codec->elems;
    float *next = self->velocity_shadow;
    uint32_t *max_bits = codec->device->max_bits;
    if (codec->spec.nesterov) {
        WEFT_TRY(
            device_launch_status(codec, kernels->scale_f32(self->incoming, grad, grad_scale, elems, stream)));
        WEFT_TRY(device_launch_status(codec,
                                      kernels->sum_f32(next, self->velocity, self->incoming, elems, stream)));
        WEFT_TRY(device_launch_status(codec, kernels->scale_f32(next, next, self->momentum, elems, stream)));
        WEFT_TRY(device_launch_status(codec, kernels->max_abs_bits_f32(max_bits, next, elems, stream)));
        WEFT_TRY(device_launch_status(codec,
                                      kernels->sum_f32(self->incoming, next, self->incoming, elems, stream)));
    } else {
        WEFT_TRY(device_launch_status(codec, kernels->scale_f32(next, grad, grad_scale, elems, stream)));
        WEFT_TRY(device_launch_status(codec, kernels->scale_add_f32(next, self->velocity, self->momentum,
                                                                    next, elems, max_bits, stream)));
    }
    *incoming_out = codec->spec.nesterov ? self->incoming : next;
    return WEFT_OK;
}

static enum weft_status queue_select(struct device_topk *self, const float *grad, float grad_scale)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    const float *incoming = grad;
    self->k = topk_count_at(&codec->spec, codec->elems, self->steps);
    WEFT_TRY(device_clear_max(codec));
    if (self->velocity) {
        WEFT_TRY(add_momentum(self, grad, grad_scale, &incoming));
        grad_scale = 1.0f;
    }
    WEFT_TRY(device_launch_status(
        codec, kernels->scale_add_select_top_f32(self->indices, self->values, codec->shadow, incoming,
                                                 grad_scale, codec->residual, codec->elems, self->k,
                                                 codec->device->max_bits, self->work, device_stream(codec))));
    WEFT_TRY(device_copy(codec, self->indices_seen, self->indices, self->k * sizeof *self->indices));
    WEFT_TRY(device_copy(codec, self->values_seen, self->values, self->k * sizeof *self->values));
    if (self->velocity && codec->spec.masking)
        WEFT_TRY(
            device_launch_status(codec, kernels->take_f32(self->values, self->velocity_shadow, self->indices,
                                                          self->k, device_stream(codec))));
    return device_fetch_max(codec);
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct device_topk *self = (struct device_topk *)codec;
    if (codec->device->part == 0) {
        WEFT_TRY(queue_select(self, grad, grad_scale));
        return device_record_event(codec);
    }
    if (*codec->device->max_seen >= CODEC_MAGNITUDE_LIMIT_BITS) return WEFT_ERR_INVALID;
    const size_t sent_bytes =
        sparse_encode(self->sent, self->indices_seen, self->values_seen, self->k, codec->elems);
    return codec_send(codec, round, self->sent, sent_bytes, out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct device_topk *self = (struct device_topk *)codec;
    const uint64_t together = (uint64_t)ranks * self->k_max;
    uint64_t count;
    WEFT_TRY(sparse_check(aggregate, bytes, codec->elems, together, &count));
    self->union_dense = sparse_is_dense(aggregate, bytes);
    /* more ranks than it was made for */
    if (count > self->union_max && !self->union_dense) return WEFT_ERR_MALFORMED;
    self->union_count = count;
    if (self->union_dense && self->union_max < codec->elems) return WEFT_ERR_MALFORMED;
    if (self->union_dense)
        memcpy(self->union_values, (const uint8_t *)aggregate + sizeof(uint32_t),
               codec->elems * sizeof(float));
    else sparse_read(aggregate, bytes, codec->elems, self->union_indices, self->union_values);
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct device_topk *self = (struct device_topk *)codec;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    WEFT_TRY(device_copy(codec, self->values, self->union_values, self->union_count * sizeof *self->values));
    if (self->union_dense)
        return device_launch_status(
            codec, kernels->scale_f32(out, self->values, scale, codec->elems, device_stream(codec)));
    WEFT_TRY(
        device_copy(codec, self->indices, self->union_indices, self->union_count * sizeof *self->indices));
    return device_launch_status(codec, kernels->scatter_f32(out, codec->elems, self->indices, self->values,
                                                            scale, self->union_count, device_stream(codec)));
}

static void commit(struct weft_codec *codec)
{
    struct device_topk *self = (struct device_topk *)codec;
    codec_swap(&self->velocity, &self->velocity_shadow);
    self->steps++;
}

static void state(struct weft_codec *codec, struct codec_state *state)
{
    struct device_topk *self = (struct device_topk *)codec;
    state->steps = &self->steps;
    if (!self->velocity) return;
    state->values[1] = self->velocity;
    state->counts[1] = codec->elems;
    state->on_device[1] = true;
    state->residual_count = 2;
}

static void topk_free(struct weft_codec *codec)
{
    struct device_topk *self = (struct device_topk *)codec;
    weft_free_bytes(codec->env, self->sent);
    weft_free_bytes(codec->env, self);
}

static const struct codec_ops ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .state = state,
    .free = topk_free,
};

/* Indices that an aggregate may have; all elements if it may be a vector. */
static size_t union_bytes_max(size_t elems, size_t k, uint32_t ranks)
{
    const size_t together = k > elems / ranks ? elems : k * ranks;
    const size_t longest = weft_index_bytes_max(elems, together) + together * sizeof(float);
    return longest >= sparse_dense_bytes(elems) ? elems : together;
}

static enum weft_status open_arrays(struct device_topk *self, bool nesterov,
                                    const struct weft_codec_device *at, size_t elems)
{
    const size_t all = elems * sizeof(float);
    const struct device_array arrays[] = {
        {&self->base.residual, all}, {&self->base.shadow, all},
        {&self->indices, self->union_max * sizeof *self->indices},
        {&self->values, self->union_max * sizeof *self->values},
        {&self->work, at->kernels->select_workspace(elems)},
        {&self->velocity, all}, {&self->velocity_shadow, all}, {&self->incoming, all}, /* with momentum */
    };
    const size_t sent_down = device_window_bytes(self->k_max * sizeof(float)),
                 come_up = device_window_bytes(self->union_max * sizeof(float));
    WEFT_TRY(device_open(&self->base, at, arrays,
                         self->momentum == 0 ? 5
                         : nesterov          ? 8
                                             : 7,
                         2 * sent_down + 2 * come_up));
    self->indices_seen = device_window(&self->base, self->k_max * sizeof *self->indices_seen);
    self->values_seen = device_window(&self->base, self->k_max * sizeof *self->values_seen);
    self->union_indices = device_window(&self->base, self->union_max * sizeof *self->union_indices);
    self->union_values = device_window(&self->base, self->union_max * sizeof *self->union_values);
    return self->velocity ? device_zero(&self->base, self->velocity, all) : WEFT_OK;
}

enum weft_status device_topk_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                    const struct weft_shape *shape, const struct weft_codec_device *at,
                                    struct weft_codec **codec_out)
{
    const size_t elems = weft_shape_elems(shape);
    if (spec->clip > 0) return WEFT_ERR_UNSUPPORTED; /* its norm is summed in an order that no kernel of
                                                      * the device has */
    struct device_topk *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return WEFT_ERR_NO_MEMORY;
    self->base = (struct weft_codec){.ops = &ops, .env = env};
    *codec_out = &self->base;
    self->k = self->k_max = topk_count_max(spec, elems);
    self->union_max = union_bytes_max(elems, self->k_max, at->ranks);
    self->momentum = (float)spec->momentum;
    self->sent = weft_alloc_bytes(env, weft_codec_contribution_bytes_max(spec, shape, 0));
    if (!self->sent) return WEFT_ERR_NO_MEMORY;
    return open_arrays(self, spec->nesterov, at, elems);
}
