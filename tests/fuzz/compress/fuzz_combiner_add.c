/* fuzz_combiner_add.c - a contribution from a hostile worker, for every codec and round: refused without
 * effect, or added, and then the round closes with an aggregate that every worker accepts. */
#include "tests/fuzz/compress/fuzz_compress.h"

static void close_round(struct fuzz_fleet *fleet, uint8_t *out, size_t *bytes_out)
{
    const void *data;
    fuzz_expect(weft_combiner_close(fleet->combiner, &data, bytes_out) == WEFT_OK);
    memcpy(out, data, *bytes_out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct fuzz_fleet fleet;
    static uint8_t aggregate[2 * FUZZ_BYTES], clean[2 * FUZZ_BYTES];
    size_t aggregate_bytes, clean_bytes;
    if (bytes < 1) return 0;
    const struct fuzz_case chosen = fuzz_case_of(data[0]);
    fuzz_expect(weft_codec_aggregate_bytes_max(&chosen.spec, &chosen.shape, chosen.round, FUZZ_RANKS) <=
                sizeof aggregate);
    fuzz_fleet_open(&fleet, &chosen);

    for (uint32_t r = 0; r < FUZZ_RANKS; r++)
        fuzz_expect(weft_combiner_add(fleet.combiner, fleet.contributions[r], fleet.bytes[r]) == WEFT_OK);
    close_round(&fleet, clean, &clean_bytes);

    weft_combiner_begin(fleet.combiner, chosen.round);
    const enum weft_status status = weft_combiner_add(fleet.combiner, data + 1, bytes - 1);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    for (uint32_t r = status == WEFT_OK ? 1 : 0; r < FUZZ_RANKS; r++)
        fuzz_expect(weft_combiner_add(fleet.combiner, fleet.contributions[r], fleet.bytes[r]) == WEFT_OK);
    close_round(&fleet, aggregate, &aggregate_bytes);
    fuzz_expect(aggregate_bytes <=
                weft_codec_aggregate_bytes_max(&chosen.spec, &chosen.shape, chosen.round, FUZZ_RANKS));
    if (status != WEFT_OK && !chosen.spec.global)
        fuzz_expect(aggregate_bytes == clean_bytes && memcmp(aggregate, clean, clean_bytes) == 0);
    for (uint32_t r = 0; r < FUZZ_RANKS; r++)
        fuzz_expect(weft_codec_take(fleet.codecs[r], chosen.round, aggregate, aggregate_bytes, FUZZ_RANKS) ==
                    WEFT_OK);
    fuzz_fleet_close(&fleet);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static struct fuzz_fleet fleet;
    const struct fuzz_case chosen = fuzz_case_of((uint8_t)number);
    const uint32_t rank = (uint32_t)(number / 8 % FUZZ_RANKS);
    fuzz_fleet_open(&fleet, &chosen);
    const size_t bytes = fleet.bytes[rank];
    out[0] = (uint8_t)number;
    memcpy(out + 1, fleet.contributions[rank], bytes);
    fuzz_fleet_close(&fleet);
    return 1 + bytes;
}
