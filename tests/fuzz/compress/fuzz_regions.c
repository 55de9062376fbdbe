/* fuzz_regions.c - a hostile rank in a sparse all-reduce by regions: a piece for our region, or its sum.
 * Refused without effect (the real bytes then give the usual result), or accepted, and then every rank
 * accepts the aggregate. */
#include "tests/fuzz/compress/fuzz_compress.h"

enum { STRIDE = 2048 };

struct setting {
    struct weft_codec_spec spec;
    struct weft_shape shape;
    struct weft_codec *codec;
    struct weft_regions *regions[FUZZ_RANKS];
    uint8_t pieces[FUZZ_RANKS][FUZZ_RANKS * STRIDE];
    _Alignas(64) uint8_t sums[FUZZ_RANKS * STRIDE];
    uint64_t lengths[FUZZ_RANKS][FUZZ_RANKS], sum_lengths[FUZZ_RANKS];
};

static void sum_region(struct setting *s, uint32_t region, void *out, uint64_t *bytes_out)
{
    struct weft_combiner *combiner = weft_regions_combiner(s->regions[region]);
    const void *data;
    size_t bytes;
    fuzz_expect(weft_combiner_close(combiner, &data, &bytes) == WEFT_OK && bytes <= STRIDE);
    memcpy(out, data, bytes);
    *bytes_out = bytes;
}

static void setting_open(struct setting *s, uint8_t choice)
{
    static const char *const texts[] = {"topk:ratio=0.05,min_count=0", "topk:ratio=0.9,min_count=0",
                                        "topk:ratio=0.3,min_count=0"};
    uint8_t contribution[FUZZ_BYTES];
    float grad[FUZZ_ELEMS];
    size_t bytes;
    memset(s, 0, sizeof *s);
    s->shape = (struct weft_shape){.dim_count = 1, .dims = {FUZZ_ELEMS}};
    fuzz_expect(weft_codec_parse(texts[choice % 3], &s->spec, NULL) == WEFT_OK);
    fuzz_expect(weft_regions_piece_bytes_max(&s->spec, &s->shape, FUZZ_RANKS) <= STRIDE);
    fuzz_expect(weft_regions_sum_bytes_max(&s->spec, &s->shape, FUZZ_RANKS) <= STRIDE);
    for (uint32_t r = 0; r < FUZZ_RANKS; r++) {
        weft_codec_free(s->codec);
        fuzz_expect(weft_codec_create(weft_env_system(), &s->spec, &s->shape, &s->codec) == WEFT_OK);
        fuzz_gradient(r, grad);
        fuzz_expect(weft_codec_encode(s->codec, 0, grad, 1.0f, contribution, &bytes) == WEFT_OK);
        fuzz_expect(weft_regions_create(weft_env_system(), &s->spec, &s->shape, FUZZ_RANKS, r,
                                        &s->regions[r]) == WEFT_OK);
        fuzz_expect(weft_regions_split(s->regions[r], contribution, bytes, s->pieces[r], STRIDE,
                                       s->lengths[r]) == WEFT_OK);
    }
    for (uint32_t region = 0; region < FUZZ_RANKS; region++) {
        weft_combiner_begin(weft_regions_combiner(s->regions[region]), 0);
        for (uint32_t r = 0; r < FUZZ_RANKS; r++)
            fuzz_expect(weft_combiner_add(weft_regions_combiner(s->regions[region]),
                                          s->pieces[r] + region * STRIDE, s->lengths[r][region]) == WEFT_OK);
        sum_region(s, region, s->sums + region * STRIDE, &s->sum_lengths[region]);
    }
}

static void setting_close(struct setting *s)
{
    weft_codec_free(s->codec);
    for (uint32_t r = 0; r < FUZZ_RANKS; r++)
        weft_regions_free(s->regions[r]);
}

static void hostile_piece(struct setting *s, const uint8_t *data, size_t bytes)
{
    uint8_t sum[STRIDE];
    uint64_t length;
    struct weft_combiner *combiner = weft_regions_combiner(s->regions[0]);
    weft_combiner_begin(combiner, 0);
    const enum weft_status status = weft_combiner_add(combiner, data, bytes);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    for (uint32_t r = status == WEFT_OK ? 1 : 0; r < FUZZ_RANKS; r++)
        fuzz_expect(weft_combiner_add(combiner, s->pieces[r], s->lengths[r][0]) == WEFT_OK);
    sum_region(s, 0, sum, &length);
    if (status != WEFT_OK) fuzz_expect(length == s->sum_lengths[0] && memcmp(sum, s->sums, length) == 0);
}

static void hostile_sum(struct setting *s, const uint8_t *data, size_t bytes)
{
    uint8_t kept[STRIDE];
    const void *aggregate;
    float out[FUZZ_ELEMS];
    size_t aggregate_bytes;
    uint64_t lengths[FUZZ_RANKS];
    if (bytes > STRIDE) return;
    memcpy(lengths, s->sum_lengths, sizeof lengths);
    memcpy(kept, s->sums + STRIDE, STRIDE);
    memcpy(s->sums + STRIDE, data, bytes);
    lengths[1] = bytes;
    const enum weft_status status =
        weft_regions_join(s->regions[0], s->sums, STRIDE, lengths, &aggregate, &aggregate_bytes);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    if (status != WEFT_OK) {
        memcpy(s->sums + STRIDE, kept, STRIDE);
        fuzz_expect(weft_regions_join(s->regions[0], s->sums, STRIDE, s->sum_lengths, &aggregate,
                                      &aggregate_bytes) == WEFT_OK);
    }
    fuzz_expect(weft_codec_take(s->codec, 0, aggregate, aggregate_bytes, FUZZ_RANKS) == WEFT_OK);
    fuzz_expect(weft_codec_finish(s->codec, 1.0f, out) == WEFT_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct setting setting;
    if (bytes < 1) return 0;
    setting_open(&setting, data[0] / 2);
    if (data[0] % 2) hostile_sum(&setting, data + 1, bytes - 1);
    else hostile_piece(&setting, data + 1, bytes - 1);
    setting_close(&setting);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static struct setting setting;
    size_t bytes;
    setting_open(&setting, (uint8_t)number / 2);
    out[0] = (uint8_t)number;
    if (number % 2) {
        bytes = setting.sum_lengths[1];
        memcpy(out + 1, setting.sums + STRIDE, bytes);
    } else {
        bytes = setting.lengths[0][0];
        memcpy(out + 1, setting.pieces[0], bytes);
    }
    setting_close(&setting);
    return 1 + bytes;
}
