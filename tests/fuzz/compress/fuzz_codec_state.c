/* fuzz_codec_state.c - a damaged checkpoint of a codec: refused without effect, or loaded, saved as the same
 * bytes, with a finite residual. */
#include <math.h>

#include "compress/codec.h"
#include "tests/fuzz/compress/fuzz_compress.h"

enum { STATE_BYTES_MAX = 8192 };

static struct weft_codec *open_codec(const struct fuzz_case *chosen)
{
    struct weft_codec *codec;
    fuzz_expect(weft_codec_create(weft_env_system(), &chosen->spec, &chosen->shape, &codec) == WEFT_OK);
    fuzz_expect(weft_codec_state_bytes(codec) <= STATE_BYTES_MAX);
    return codec;
}

/* The same bytes as a combiner's checkpoint: refused without effect, or loaded with a finite residual. */
static void try_combiner(const struct fuzz_case *chosen, const uint8_t *data, size_t bytes)
{
    uint8_t before[STATE_BYTES_MAX], after[STATE_BYTES_MAX];
    struct weft_combiner *combiner;
    float value;
    fuzz_expect(weft_combiner_create(weft_env_system(), &chosen->spec, &chosen->shape, FUZZ_RANKS,
                                     &combiner) == WEFT_OK);
    const size_t state_bytes = weft_combiner_state_bytes(combiner);
    fuzz_expect(state_bytes <= STATE_BYTES_MAX);
    fuzz_expect(weft_combiner_save(combiner, before) == WEFT_OK);
    const enum weft_status status = weft_combiner_load(combiner, data, bytes);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    fuzz_expect(weft_combiner_save(combiner, after) == WEFT_OK);
    if (status != WEFT_OK) fuzz_expect(memcmp(before, after, state_bytes) == 0);
    for (size_t at = CODEC_STATE_HEAD_BYTES; at < state_bytes; at += sizeof value) {
        memcpy(&value, after + at, sizeof value);
        fuzz_expect(isfinite(value));
    }
    weft_combiner_free(combiner);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t before[STATE_BYTES_MAX], after[STATE_BYTES_MAX], contribution[FUZZ_BYTES];
    float grad[FUZZ_ELEMS];
    size_t sent_bytes;
    if (bytes < 1) return 0;
    const struct fuzz_case chosen = fuzz_case_of(data[0]);
    try_combiner(&chosen, data + 1, bytes - 1);
    struct weft_codec *codec = open_codec(&chosen);
    const size_t state_bytes = weft_codec_state_bytes(codec);
    fuzz_expect(weft_codec_save(codec, before) == WEFT_OK);
    const enum weft_status status = weft_codec_load(codec, data + 1, bytes - 1);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    fuzz_expect(weft_codec_save(codec, after) == WEFT_OK);
    /* the others save no counter */
    const bool keeps_steps = weft_codec_rounds(&chosen.spec) >= 2 || chosen.spec.id == WEFT_CODEC_TOPK;
    if (status == WEFT_OK) {
        fuzz_expect(bytes - 1 == state_bytes && memcmp(after, data + 1, 16) == 0);
        fuzz_expect(memcmp(after + 24, data + 1 + 24, state_bytes - 24) == 0);
        if (keeps_steps) fuzz_expect(memcmp(after + 16, data + 1 + 16, 8) == 0);
    } else {
        fuzz_expect(memcmp(after, before, state_bytes) == 0);
    }
    fuzz_expect(isfinite(weft_codec_residual_norm(codec)));
    fuzz_gradient(1, grad);
    const enum weft_status encoded = weft_codec_encode(codec, 0, grad, 1.0f, contribution, &sent_bytes);
    fuzz_expect(encoded == WEFT_OK || (status == WEFT_OK && encoded == WEFT_ERR_INVALID));
    weft_codec_free(codec);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    const struct fuzz_case chosen = fuzz_case_of((uint8_t)number);
    struct weft_codec *codec = open_codec(&chosen);
    const size_t bytes = weft_codec_state_bytes(codec);
    float value;
    out[0] = (uint8_t)number;
    fuzz_expect(weft_codec_save(codec, out + 1) == WEFT_OK);
    for (size_t at = 33; at < 1 + bytes; at += sizeof value) { /* as after some steps */
        value = (float)((at * 13 + number) % 31) / 8.0f - 2.0f;
        memcpy(out + at, &value, sizeof value);
    }
    weft_codec_free(codec);
    return 1 + bytes;
}
