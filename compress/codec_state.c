/* codec_state.c - the state of a codec as bytes, for checkpoints.
 *
 *     u32 version (2), u32 codec id, u64 elements, u64 committed steps, u32 ranks (0: unknown), u32 0, then
 *     arrays of f32:
 *     powersgd  residual (elements), Q (rank * cols);   topk with momentum  residual, momentum (elements
 *                                                       each);
 *     dense, f16, bf16  none;   all others  residual (elements)
 *
 * A combiner's (topk with global=1): the same head, steps 0, its ranks, and the residual (elements).
 *
 * A state exists only between steps. Loaded bytes are UNTRUSTED: sizes are compared, and each value must
 * be finite and below 2^120 before the first one is copied. A residual is a share of the mean over `ranks`
 * workers; weft_codec_set_ranks scales it when their number changes. */
#include <math.h>
#include <string.h>

#include "compress/codec.h"
#include "compress/device/device.h"
#include "kernels/kernels.h"

enum { STATE_VERSION = 2 };

struct state_head {
    uint32_t version, codec_id;
    uint64_t elems, steps;
    uint32_t ranks, zero;
};
_Static_assert(sizeof(struct state_head) == CODEC_STATE_HEAD_BYTES, "a file format");

/* Between steps, without an encode in progress. */
static bool is_between_steps(const struct weft_codec *codec)
{
    return codec->progress == 0 && !device_is_encoding(codec);
}

/* The arrays of the state; call codec_residual_materialise before values are read or written. */
static struct codec_state state_of(const struct weft_codec *codec)
{
    struct codec_state state = {.residual_count = 1,
                                .values = {codec->residual},
                                .counts = {codec->residual ? codec->elems : 0},
                                .on_device = {codec->device != NULL}};
    if (codec->ops->state) codec->ops->state((struct weft_codec *)(uintptr_t)codec, &state);
    return state;
}

/* An array of the state, out to host memory and back in; `from` and `to` may begin anywhere. */
static enum weft_status part_save(const struct weft_codec *codec, const struct codec_state *state, int part,
                                  void *to)
{
    const size_t bytes = state->counts[part] * sizeof(float);
    if (state->on_device[part]) return device_read(codec, to, state->values[part], bytes);
    if (bytes) memcpy(to, state->values[part], bytes);
    return WEFT_OK;
}

static enum weft_status part_load(const struct weft_codec *codec, const struct codec_state *state, int part,
                                  const void *from)
{
    const size_t bytes = state->counts[part] * sizeof(float);
    if (state->on_device[part]) return device_write(codec, state->values[part], from, bytes);
    if (bytes) memcpy(state->values[part], from, bytes);
    return WEFT_OK;
}

size_t weft_codec_state_bytes(const struct weft_codec *codec)
{
    const struct codec_state state = state_of(codec);
    return sizeof(struct state_head) + (state.counts[0] + state.counts[1]) * sizeof(float);
}

enum weft_status weft_codec_save(const struct weft_codec *codec, void *out)
{
    const struct codec_state state = state_of(codec);
    const struct state_head head = {
        STATE_VERSION, codec->spec.id, codec->elems, state.steps ? *state.steps : 0, codec->ranks, 0};
    uint8_t *at = out;
    if (!is_between_steps(codec)) return WEFT_ERR_STATE;
    codec_residual_materialise(codec);
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    for (int part = 0; part < 2; part++) {
        WEFT_TRY(part_save(codec, &state, part, at));
        at += state.counts[part] * sizeof(float);
    }
    return WEFT_OK;
}

/* The bytes may be unaligned: checked in aligned blocks. */
static bool values_in_range(const uint8_t *data, size_t count)
{
    float block[512];
    for (size_t at = 0; at < count; at += 512) {
        const size_t part = count - at < 512 ? count - at : 512;
        memcpy(block, data + at * sizeof(float), part * sizeof(float));
        if (weft_kernels()->max_abs_bits_f32(block, part) >= CODEC_MAGNITUDE_LIMIT_BITS) return false;
    }
    return true;
}

enum weft_status weft_codec_load(struct weft_codec *codec, const void *data, size_t bytes)
{
    const struct codec_state state = state_of(codec);
    const uint8_t *at = (const uint8_t *)data + sizeof(struct state_head);
    struct state_head head;
    if (!is_between_steps(codec)) return WEFT_ERR_STATE;
    if (bytes != weft_codec_state_bytes(codec)) return WEFT_ERR_MALFORMED;
    memcpy(&head, data, sizeof head);
    if (head.version != STATE_VERSION || head.codec_id != (uint32_t)codec->spec.id ||
        head.elems != codec->elems || head.zero != 0)
        return WEFT_ERR_MALFORMED;
    if (!values_in_range(at, state.counts[0] + state.counts[1])) return WEFT_ERR_MALFORMED;
    codec_residual_materialise(codec);
    for (int part = 0; part < 2; part++) {
        WEFT_TRY(part_load(codec, &state, part, at));
        at += state.counts[part] * sizeof(float);
    }
    codec->ranks = head.ranks;
    if (state.steps) *state.steps = head.steps;
    return WEFT_OK;
}

enum weft_status weft_codec_rescale(struct weft_codec *codec, float factor)
{
    const struct weft_kernels *kernels = weft_kernels();
    const struct codec_state state = state_of(codec);
    const size_t residual_count = state.residual_count < 2 ? state.residual_count : 2;
    if (!is_between_steps(codec)) return WEFT_ERR_STATE;
    if (!isfinite(factor) || factor <= 0.0f) return WEFT_ERR_INVALID;
    codec_residual_materialise(codec);
    for (size_t part = 0; part < residual_count; part++) {
        uint32_t max_bits;
        float max;
        if (state.on_device[part])
            WEFT_TRY(device_max_abs(codec, state.values[part], state.counts[part], &max_bits));
        else max_bits = kernels->max_abs_bits_f32(state.values[part], state.counts[part]);
        memcpy(&max, &max_bits, sizeof max);
        if (!((double)max * (double)factor < CODEC_MAGNITUDE_LIMIT)) return WEFT_ERR_INVALID;
    }
    for (size_t part = 0; part < residual_count; part++) {
        if (state.on_device[part])
            WEFT_TRY(device_scale(codec, state.values[part], factor, state.counts[part]));
        else if (state.counts[part])
            kernels->scale_f32(state.values[part], state.values[part], factor, state.counts[part]);
    }
    return WEFT_OK;
}

enum weft_status weft_codec_set_ranks(struct weft_codec *codec, uint32_t ranks)
{
    if (!is_between_steps(codec)) return WEFT_ERR_STATE;
    if (ranks == 0) return WEFT_ERR_INVALID;
    if (codec->ranks != 0 && codec->ranks != ranks)
        WEFT_TRY(weft_codec_rescale(codec, (float)((double)ranks / codec->ranks)));
    codec->ranks = ranks;
    return WEFT_OK;
}

enum weft_status weft_codec_set_stream(struct weft_codec *codec, uint64_t tensor, uint32_t worker)
{
    if (!is_between_steps(codec)) return WEFT_ERR_STATE;
    codec->tensor = tensor;
    codec->worker = worker;
    return WEFT_OK;
}

uint64_t weft_codec_steps(const struct weft_codec *codec)
{
    const struct codec_state state = state_of(codec);
    return state.steps ? *state.steps : 0;
}

enum weft_status weft_codec_set_steps(struct weft_codec *codec, uint64_t steps)
{
    const struct codec_state state = state_of(codec);
    if (!is_between_steps(codec)) return WEFT_ERR_STATE;
    if (state.steps && *state.steps < steps) *state.steps = steps;
    return WEFT_OK;
}

/* ---- the combiner's ---- */

float *weft_combiner_residual(const struct weft_combiner *combiner)
{
    return combiner->ops->residual ? combiner->ops->residual(combiner) : NULL;
}

size_t weft_combiner_state_bytes(const struct weft_combiner *combiner)
{
    return weft_combiner_residual(combiner) ? sizeof(struct state_head) + combiner->elems * sizeof(float) : 0;
}

enum weft_status weft_combiner_save(const struct weft_combiner *combiner, void *out)
{
    const float *residual = weft_combiner_residual(combiner);
    const struct state_head head = {STATE_VERSION, combiner->spec.id, combiner->elems, 0, combiner->ranks, 0};
    if (combiner->open) return WEFT_ERR_STATE;
    if (!residual) return WEFT_OK;
    memcpy(out, &head, sizeof head);
    memcpy((uint8_t *)out + sizeof head, residual, combiner->elems * sizeof *residual);
    return WEFT_OK;
}

enum weft_status weft_combiner_load(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    float *residual = weft_combiner_residual(combiner);
    struct state_head head;
    if (combiner->open) return WEFT_ERR_STATE;
    if (bytes != weft_combiner_state_bytes(combiner)) return WEFT_ERR_MALFORMED;
    if (!residual) return WEFT_OK;
    memcpy(&head, data, sizeof head);
    const uint8_t *values = (const uint8_t *)data + sizeof head;
    if (head.version != STATE_VERSION || head.codec_id != (uint32_t)combiner->spec.id ||
        head.elems != combiner->elems || head.steps != 0 || head.ranks == 0 || head.zero != 0 ||
        !values_in_range(values, combiner->elems))
        return WEFT_ERR_MALFORMED;
    memcpy(residual, values, combiner->elems * sizeof *residual);
    if (head.ranks != combiner->ranks)
        weft_kernels()->scale_f32(residual, residual, (float)((double)combiner->ranks / head.ranks),
                                  combiner->elems);
    return WEFT_OK;
}
