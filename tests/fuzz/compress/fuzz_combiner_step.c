/* fuzz_combiner_step.c - what closed a step at a hostile leader, for every codec: refused, or loaded, and
 * then the combiner decodes it and combines the next step. */
#include "tests/fuzz/compress/fuzz_compress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct fuzz_fleet fleet;
    static float out[FUZZ_ELEMS];
    if (bytes < 1) return 0;
    const struct fuzz_case chosen = fuzz_case_of(data[0]);
    struct weft_combiner *copy;
    const void *aggregate;
    size_t length;
    fuzz_expect(weft_combiner_create(weft_env_system(), &chosen.spec, &chosen.shape, FUZZ_RANKS, &copy) ==
                WEFT_OK);
    const enum weft_status status = weft_combiner_step_check(copy, data + 1, bytes - 1);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    if (status == WEFT_OK) {
        weft_combiner_step_load(copy, data + 1, bytes - 1, &aggregate, &length);
        fuzz_expect(length <= weft_codec_aggregate_bytes_max(&chosen.spec, &chosen.shape,
                                                             weft_codec_rounds(&chosen.spec) - 1,
                                                             FUZZ_RANKS));
        fuzz_expect(weft_combiner_finish(copy, 0.5f, out) == WEFT_OK);
    }
    if (chosen.round == 0) {
        fuzz_fleet_open(&fleet, &chosen);
        weft_combiner_begin(copy, 0);
        for (uint32_t r = 0; r < FUZZ_RANKS; r++)
            fuzz_expect(weft_combiner_add(copy, fleet.contributions[r], fleet.bytes[r]) == WEFT_OK);
        fuzz_expect(weft_combiner_close(copy, &aggregate, &length) == WEFT_OK);
        fuzz_fleet_close(&fleet);
    }
    weft_combiner_free(copy);
    return 0;
}

/* A step of one round, or bytes of that length. */
size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static struct fuzz_fleet fleet;
    const struct fuzz_case chosen = fuzz_case_of((uint8_t)number);
    const void *aggregate;
    fuzz_fleet_open(&fleet, &chosen);
    size_t bytes = weft_combiner_step_bytes_max(fleet.combiner, FUZZ_RANKS);
    fuzz_expect(1 + bytes <= capacity);
    memset(out, 0, 1 + bytes);
    out[0] = (uint8_t)number;
    if (weft_codec_rounds(&chosen.spec) == 1) {
        for (uint32_t r = 0; r < FUZZ_RANKS; r++)
            fuzz_expect(weft_combiner_add(fleet.combiner, fleet.contributions[r], fleet.bytes[r]) == WEFT_OK);
        fuzz_expect(weft_combiner_close(fleet.combiner, &aggregate, &bytes) == WEFT_OK);
        bytes = weft_combiner_step_save(fleet.combiner, out + 1);
    }
    fuzz_fleet_close(&fleet);
    return 1 + bytes;
}
