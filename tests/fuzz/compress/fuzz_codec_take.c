/* fuzz_codec_take.c - an aggregate from a hostile shard, for every codec and round: refused without effect
 * (the real one is then accepted), or accepted, and then the step ends and the next gradient encodes. */
#include <math.h>

#include "tests/fuzz/compress/fuzz_compress.h"

static void combine(struct fuzz_fleet *fleet, const void **data_out, size_t *bytes_out)
{
    for (uint32_t r = 0; r < FUZZ_RANKS; r++)
        fuzz_expect(weft_combiner_add(fleet->combiner, fleet->contributions[r], fleet->bytes[r]) == WEFT_OK);
    fuzz_expect(weft_combiner_close(fleet->combiner, data_out, bytes_out) == WEFT_OK);
}

static void finish_step(struct weft_codec *codec, const struct fuzz_case *chosen)
{
    static uint8_t factor[FUZZ_BYTES];
    float out[FUZZ_ELEMS];
    size_t bytes;
    for (uint32_t round = chosen->round + 1; round < weft_codec_rounds(&chosen->spec); round++) {
        /* Our own next contribution alone: the aggregate of one rank. */
        struct weft_combiner *alone;
        const void *aggregate;
        fuzz_expect(weft_combiner_create(weft_env_system(), &chosen->spec, &chosen->shape, 1, &alone) ==
                    WEFT_OK);
        const enum weft_status encoded = weft_codec_encode(codec, round, NULL, 1.0f, factor, &bytes);
        if (encoded == WEFT_ERR_INVALID && round > 1) {
            /* a sum of random values may bring the next iteration out of range */
            weft_combiner_free(alone);
            weft_codec_abandon(codec);
            return;
        }
        fuzz_expect(encoded == WEFT_OK);
        weft_combiner_begin(alone, round);
        fuzz_expect(weft_combiner_add(alone, factor, bytes) == WEFT_OK);
        fuzz_expect(weft_combiner_close(alone, &aggregate, &bytes) == WEFT_OK);
        fuzz_expect(weft_codec_take(codec, round, aggregate, bytes, 1) == WEFT_OK);
        weft_combiner_free(alone);
    }
    fuzz_expect(weft_codec_finish(codec, 0.5f, out) == WEFT_OK);
    weft_codec_commit(codec);
    fuzz_expect(isfinite(weft_codec_residual_norm(codec))); /* the residual is finite */
    fuzz_gradient(9, out);
    fuzz_expect(weft_codec_encode(codec, 0, out, 1.0f, factor, &bytes) == WEFT_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct fuzz_fleet fleet;
    const void *good;
    size_t good_bytes;
    float first[FUZZ_ELEMS], second[FUZZ_ELEMS];
    if (bytes < 1) return 0;
    const struct fuzz_case chosen = fuzz_case_of(data[0]);
    fuzz_fleet_open(&fleet, &chosen);
    combine(&fleet, &good, &good_bytes);
    struct weft_codec *tried = fleet.codecs[0];
    const enum weft_status status = weft_codec_take(tried, chosen.round, data + 1, bytes - 1, FUZZ_RANKS);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    if (status != WEFT_OK) {
        fuzz_expect(weft_codec_take(tried, chosen.round, good, good_bytes, FUZZ_RANKS) == WEFT_OK);
        fuzz_expect(weft_codec_take(fleet.codecs[1], chosen.round, good, good_bytes, FUZZ_RANKS) == WEFT_OK);
        if (chosen.round + 1 == weft_codec_rounds(&chosen.spec)) {
            fuzz_expect(weft_codec_finish(tried, 1.0f, first) == WEFT_OK);
            fuzz_expect(weft_codec_finish(fleet.codecs[1], 1.0f, second) == WEFT_OK);
            fuzz_expect(memcmp(first, second, sizeof first) == 0);
        }
    }
    finish_step(tried, &chosen);
    fuzz_fleet_close(&fleet);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static struct fuzz_fleet fleet;
    const struct fuzz_case chosen = fuzz_case_of((uint8_t)number);
    const void *good;
    size_t bytes;
    fuzz_fleet_open(&fleet, &chosen);
    combine(&fleet, &good, &bytes);
    out[0] = (uint8_t)number;
    memcpy(out + 1, good, bytes);
    fuzz_fleet_close(&fleet);
    return 1 + bytes;
}
