/* device_quantise.c - int8 and int4 on a device; the equations are in quantise_codec.c, the bytes in
 * quantise.h.
 *
 *     encode(0)  p and the exponents of its blocks; n / 256 bytes to the host
 *     encode(1)  shared exponents to the device; codes and residual in one pass; n or n / 2 bytes to the host
 *     finish     integer sums to the device in their width (1, 2 or 4 bytes), widened there */
#include "compress/device/device.h"
#include "compress/device/device_batch.h"
#include "compress/quantise.h"

#include <string.h>

struct device_quantise {
    struct weft_codec base;
    uint64_t steps;
    size_t sums_bytes;           /* of the aggregate that was taken */
    uint8_t *own, *shared;       /* device (blocks,) */
    bool shared_is_there;        /* the step's encode has copied `shared` to the device, for itself */
    int8_t *codes;               /* device (elems,); also sums of one byte */
    uint8_t *packed;             /* device: int4's codes as they go */
    void *sums;                  /* device (elems,) i16 or i32 */
    uint8_t *own_seen, *shared_seen, *sent, *sums_seen; /* window */
};

static enum weft_status queue_exponents(struct device_quantise *self, const float *grad, float grad_scale)
{
    struct weft_codec *codec = &self->base;
    WEFT_TRY(device_clear_max(codec));
    WEFT_TRY(device_launch_status(codec, device_kernels(codec)->scale_add_blocks_f32(
                                             codec->shadow, grad, grad_scale, codec->residual, codec->elems,
                                             quantise_limit(codec->spec.id), self->own,
                                             codec->device->max_bits, device_stream(codec))));
    WEFT_TRY(device_copy(codec, self->own_seen, self->own, quantise_blocks(codec->elems)));
    return device_fetch_max(codec);
}

static enum weft_status queue_codes(struct device_quantise *self)
{
    struct weft_codec *codec = &self->base;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    const struct weft_noise noise =
        weft_noise_of(codec->spec.seed, codec->tensor, codec->worker, self->steps);
    const void *from = self->codes;
    WEFT_TRY(device_copy(codec, self->shared, self->shared_seen, quantise_blocks(codec->elems)));
    WEFT_TRY(device_launch_status(codec, kernels->quantise_f32(self->codes, codec->shadow, self->shared,
                                                               codec->elems, quantise_limit(codec->spec.id),
                                                               &noise, device_stream(codec))));
    if (codec->spec.id == WEFT_CODEC_INT4) {
        WEFT_TRY(device_launch_status(
            codec, kernels->pack_i4(self->packed, self->codes, codec->elems, device_stream(codec))));
        from = self->packed;
    }
    return device_copy(codec, self->sent, from, quantise_contribution_bytes(codec->spec.id, codec->elems, 1));
}

/* The round as an entry of a batch. False: queue it alone. */
static bool batch_round(struct device_quantise *self, uint32_t round, const float *grad, float grad_scale)
{
    struct weft_codec *codec = &self->base;
    const size_t bytes = quantise_contribution_bytes(codec->spec.id, codec->elems, round);
    struct device_batch_entry entry = {.segment = {.count = (uint32_t)codec->elems, .x = codec->shadow}};
    self->shared_is_there = true;
    if (codec->elems > WEFT_SEGMENT_ELEMS_MAX) return false;
    if (round == 0) {
        entry.segment.kind = WEFT_SEGMENT_BLOCKS;
        entry.segment.a = grad;
        entry.segment.factor = grad_scale;
        entry.segment.b = codec->residual;
        entry.segment.limit = quantise_limit(codec->spec.id);
        entry.to = self->own_seen;
        entry.scales_bytes = bytes;
    } else {
        entry.segment.kind = codec->spec.id == WEFT_CODEC_INT4 ? WEFT_SEGMENT_INT4 : WEFT_SEGMENT_INT8;
        entry.segment.noise = weft_noise_of(codec->spec.seed, codec->tensor, codec->worker, self->steps);
        entry.up = self->shared_seen;
        entry.up_bytes = quantise_blocks(codec->elems);
        entry.to = self->sent;
        entry.codes_bytes = bytes;
    }
    const bool is_in_batch = device_batch_add(codec, &entry);
    self->shared_is_there = !is_in_batch;
    return is_in_batch;
}

static enum weft_status encode(struct weft_codec *codec, uint32_t round, const float *grad, float grad_scale,
                               void *out, size_t *bytes_out)
{
    struct device_quantise *self = (struct device_quantise *)codec;
    if (codec->device->part == 0) {
        if (batch_round(self, round, grad, grad_scale)) return WEFT_IN_PROGRESS;
        WEFT_TRY(round == 0 ? queue_exponents(self, grad, grad_scale) : queue_codes(self));
        return device_record_event(codec);
    }
    if (round == 0 && *codec->device->max_seen >= CODEC_MAGNITUDE_LIMIT_BITS) return WEFT_ERR_INVALID;
    return codec_send(codec, round, round == 0 ? self->own_seen : self->sent,
                      quantise_contribution_bytes(codec->spec.id, codec->elems, round), out, bytes_out);
}

static enum weft_status take(struct weft_codec *codec, uint32_t round, const void *aggregate, size_t bytes,
                             uint32_t ranks)
{
    struct device_quantise *self = (struct device_quantise *)codec;
    codec->malformed_elem = 0;
    if (round == 1 && ranks > codec->device->at.ranks) return WEFT_ERR_MALFORMED; /* created for fewer */
    if (bytes != quantise_aggregate_bytes(codec->spec.id, codec->elems, round, ranks))
        return WEFT_ERR_MALFORMED;
    const uint8_t *from = aggregate;
    for (size_t at = 0; at < codec->elems; at += codec->piece) {
        const size_t part = codec->elems - at < codec->piece ? codec->elems - at : codec->piece;
        const size_t length = quantise_aggregate_bytes(codec->spec.id, part, round, ranks);
        const enum weft_status status =
            round == 0 ? quantise_check_exponents(from, length, part, self->own_seen + at / WEFT_CODEC_PIECE)
                       : quantise_check_sums(codec->spec.id, from, length, part, ranks);
        if (status < 0) {
            codec->malformed_elem = at;
            return status;
        }
        from += length;
    }
    memcpy(round == 0 ? self->shared_seen : self->sums_seen, aggregate, bytes);
    if (round == 1) self->sums_bytes = bytes;
    return WEFT_OK;
}

static enum weft_status finish(struct weft_codec *codec, float scale, float *out)
{
    struct device_quantise *self = (struct device_quantise *)codec;
    const struct weft_device_kernels *kernels = device_kernels(codec);
    weft_device_stream stream = device_stream(codec);
    const size_t elems = codec->elems;
    if (!self->shared_is_there)
        WEFT_TRY(device_copy(codec, self->shared, self->shared_seen, quantise_blocks(elems)));
    if (self->sums_bytes == elems) {
        WEFT_TRY(device_copy(codec, self->codes, self->sums_seen, elems));
        WEFT_TRY(device_zero(codec, self->sums, elems * sizeof(int16_t)));
        WEFT_TRY(device_launch_status(codec, kernels->add_i8_i16(self->sums, self->codes, elems, stream)));
    } else {
        WEFT_TRY(device_copy(codec, self->sums, self->sums_seen, self->sums_bytes));
    }
    if (self->sums_bytes == elems * sizeof(int32_t))
        return device_launch_status(
            codec, kernels->dequantise_i32_f32(out, self->sums, self->shared, scale, elems, stream));
    return device_launch_status(
        codec, kernels->dequantise_i16_f32(out, self->sums, self->shared, scale, elems, stream));
}

static void commit(struct weft_codec *codec) { ((struct device_quantise *)codec)->steps++; }

static void state(struct weft_codec *codec, struct codec_state *state)
{
    state->steps = &((struct device_quantise *)codec)->steps;
}

static void quantise_free(struct weft_codec *codec) { weft_free_bytes(codec->env, codec); }

static const struct codec_ops ops = {
    .encode = encode,
    .take = take,
    .finish = finish,
    .commit = commit,
    .state = state,
    .free = quantise_free,
};

enum weft_status device_quantise_create(struct weft_env *env, const struct weft_codec_spec *spec,
                                        const struct weft_shape *shape, const struct weft_codec_device *at,
                                        struct weft_codec **codec_out)
{
    const size_t elems = weft_shape_elems(shape), blocks = quantise_blocks(elems);
    const size_t code_bytes = quantise_contribution_bytes(spec->id, elems, 1),
                 sum_bytes = quantise_aggregate_bytes(spec->id, elems, 1, at->ranks);
    struct device_quantise *self = weft_alloc_zero(env, sizeof *self);
    if (!self) return WEFT_ERR_NO_MEMORY;
    self->base = (struct weft_codec){.ops = &ops, .env = env};
    *codec_out = &self->base;
    const struct device_array arrays[] = {
        {&self->base.residual, elems * sizeof(float)}, {&self->base.shadow, elems * sizeof(float)},
        {&self->own, blocks}, {&self->shared, blocks}, {&self->codes, elems},
        {&self->sums, sum_bytes > elems * sizeof(int16_t) ? sum_bytes : elems * sizeof(int16_t)},
        {&self->packed, code_bytes}, /* int4 */
    };
    WEFT_TRY(device_open(&self->base, at, arrays, spec->id == WEFT_CODEC_INT4 ? 7 : 6,
                         2 * device_window_bytes(blocks) + device_window_bytes(code_bytes) +
                             device_window_bytes(sum_bytes)));
    self->own_seen = device_window(&self->base, blocks);
    self->shared_seen = device_window(&self->base, blocks);
    self->sent = device_window(&self->base, code_bytes);
    self->sums_seen = device_window(&self->base, sum_bytes);
    if (elems <= WEFT_SEGMENT_ELEMS_MAX) device_batch_reserve(&self->base);
    return WEFT_OK;
}
