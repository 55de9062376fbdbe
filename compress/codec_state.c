/* codec_state.c - a codec's memory as bytes, for checkpoints: the debt to the gradient must survive a restart.
 *
 *     u32 version (1), u32 codec id, u64 elements, u64 steps committed, then the codec's arrays as f32:
 *     powersgd  residual (elements), Q (rank * cols);   dense, f16, bf16  nothing;   all others  residual (elements)
 *
 * Only between steps is there one state to save. A file may be damaged: sizes are compared and every value must be
 * finite and below 2^120 (what an encode would refuse) before the first one is copied. */
#include <string.h>

#include "compress/codec.h"
#include "kernels/kernels.h"

enum { STATE_VERSION = 1 };

struct state_head {
    uint32_t version, codec_id;
    uint64_t elems, steps;
};
_Static_assert(sizeof(struct state_head) == 24, "a file format");

static struct codec_state state_of(const struct weft_codec *codec)
{
    struct codec_state state = {.values = {codec->residual}, .counts = {codec->residual ? codec->elems : 0}};
    if (codec->ops->state) codec->ops->state((struct weft_codec *)(uintptr_t)codec, &state);
    return state;
}

size_t weft_codec_state_bytes(const struct weft_codec *codec)
{
    const struct codec_state state = state_of(codec);
    return sizeof(struct state_head) + (state.counts[0] + state.counts[1]) * sizeof(float);
}

enum weft_status weft_codec_save(const struct weft_codec *codec, void *out)
{
    const struct codec_state state = state_of(codec);
    const struct state_head head = {STATE_VERSION, codec->spec.id, codec->elems, state.steps ? *state.steps : 0};
    uint8_t *at = out;
    if (codec->done != 0) return WEFT_ERR_STATE;
    memcpy(at, &head, sizeof head);
    at += sizeof head;
    for (int part = 0; part < 2; part++) {
        if (state.counts[part] == 0) continue;
        memcpy(at, state.values[part], state.counts[part] * sizeof(float));
        at += state.counts[part] * sizeof(float);
    }
    return WEFT_OK;
}

/* The bytes may start anywhere, so they are looked at through a small aligned block. */
static bool values_in_range(const uint8_t *data, size_t count)
{
    float block[512];
    for (size_t at = 0; at < count; at += 512) {
        const size_t part = count - at < 512 ? count - at : 512;
        memcpy(block, data + at * sizeof(float), part * sizeof(float));
        if (weft_kernels()->max_abs_bits_f32(block, part) >= CODEC_TOO_LARGE_BITS) return false;
    }
    return true;
}

enum weft_status weft_codec_load(struct weft_codec *codec, const void *data, size_t bytes)
{
    const struct codec_state state = state_of(codec);
    const uint8_t *at = (const uint8_t *)data + sizeof(struct state_head);
    struct state_head head;
    if (codec->done != 0) return WEFT_ERR_STATE;
    if (bytes != weft_codec_state_bytes(codec)) return WEFT_ERR_MALFORMED;
    memcpy(&head, data, sizeof head);
    if (head.version != STATE_VERSION || head.codec_id != (uint32_t)codec->spec.id || head.elems != codec->elems)
        return WEFT_ERR_MALFORMED;
    if (!values_in_range(at, state.counts[0] + state.counts[1])) return WEFT_ERR_MALFORMED;
    if (state.steps) *state.steps = head.steps;
    for (int part = 0; part < 2; part++) {
        if (state.counts[part] == 0) continue;
        memcpy(state.values[part], at, state.counts[part] * sizeof(float));
        at += state.counts[part] * sizeof(float);
    }
    return WEFT_OK;
}
