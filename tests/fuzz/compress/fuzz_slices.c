/* fuzz_slices.c - a hostile rank in an all-reduce by slices: a piece for our slice, or its sum. Refused
 * without effect (the real bytes then give the usual result), or accepted, and then the codec checks the
 * aggregate. */
#include "tests/fuzz/compress/fuzz_compress.h"

enum { ROOM = 4096 };

struct setting {
    struct fuzz_case coded;
    struct weft_slices slices;
    uint8_t pieces[FUZZ_RANKS][ROOM];
    uint64_t lengths[FUZZ_RANKS][FUZZ_RANKS];
    uint8_t sums[ROOM], whole[ROOM];
    uint64_t sum_lengths[FUZZ_RANKS];
    size_t whole_bytes;
};

/* Two blocks and a part of one, so that each rank has elements. */
static struct fuzz_case case_of(uint8_t choice)
{
    static const struct {
        const char *text;
        uint32_t round;
    } cases[] = {{"bf16", 0},
                 {"int8:min_count=0", 0},
                 {"int4:min_count=0", 0},
                 {"e4m3:min_count=0", 0},
                 {"e5m2:min_count=0", 0},
                 {"sign:min_count=0", 0},
                 {"int8:min_count=0", 1},
                 {"int4:min_count=0", 1}};
    struct fuzz_case chosen = {.shape = {.dim_count = 1, .dims = {FUZZ_RANKS * FUZZ_ELEMS}}};
    chosen.round = cases[choice % 8].round;
    fuzz_expect(weft_codec_parse(cases[choice % 8].text, &chosen.spec, NULL) == WEFT_OK);
    return chosen;
}

static struct weft_combiner *combiner_of(const struct setting *s, uint32_t rank)
{
    const struct weft_codec_spec spec = weft_codec_of_piece(&s->coded.spec);
    const struct weft_shape shape = {.dim_count = 1, .dims = {weft_slices_elems(&s->slices, rank)}};
    struct weft_combiner *combiner;
    fuzz_expect(weft_combiner_create(weft_env_system(), &spec, &shape, FUZZ_RANKS, &combiner) == WEFT_OK);
    weft_combiner_begin(combiner, s->coded.round);
    return combiner;
}

static const uint8_t *piece_of(const struct setting *s, uint32_t from, uint32_t to)
{
    return s->pieces[from] + to * s->slices.piece_bytes;
}

static size_t close_into(const struct setting *s, struct weft_combiner *combiner, uint32_t rank, uint8_t *out)
{
    const void *sum;
    size_t bytes;
    fuzz_expect(weft_combiner_close(combiner, &sum, &bytes) == WEFT_OK && bytes <= ROOM);
    if (weft_slices_need_packing(&s->slices)) bytes = weft_slices_pack(&s->slices, rank, sum, out);
    else memcpy(out, sum, bytes);
    fuzz_expect(bytes <= s->slices.sum_bytes);
    weft_combiner_free(combiner);
    return bytes;
}

static enum weft_status join(struct setting *s, const void **aggregate_out, size_t *bytes_out)
{
    uint32_t rank;
    return weft_slices_join(&s->slices, s->sums, s->sum_lengths, s->whole, aggregate_out, bytes_out, &rank);
}

static void contribute(struct setting *s, uint32_t rank)
{
    static float grad[FUZZ_RANKS * FUZZ_ELEMS];
    uint8_t contribution[ROOM];
    struct weft_codec *codec;
    size_t bytes;
    for (uint32_t part = 0; part < FUZZ_RANKS; part++) fuzz_gradient(rank + part, grad + part * FUZZ_ELEMS);
    fuzz_expect(weft_codec_create(weft_env_system(), &s->coded.spec, &s->coded.shape, &codec) == WEFT_OK);
    fuzz_expect(weft_codec_encode(codec, 0, grad, 1.0f, contribution, &bytes) == WEFT_OK && bytes <= ROOM);
    if (s->coded.round == 1) {
        memset(contribution, 128, bytes); /* exponents above those of all gradients */
        fuzz_expect(weft_codec_take(codec, 0, contribution, bytes, FUZZ_RANKS) == WEFT_OK);
        fuzz_expect(weft_codec_encode(codec, 1, NULL, 1.0f, contribution, &bytes) == WEFT_OK &&
                    bytes <= ROOM);
    }
    if (weft_slices_are_contribution(&s->slices)) memcpy(s->pieces[rank], contribution, bytes);
    weft_slices_split(&s->slices, contribution, s->pieces[rank], s->lengths[rank]);
    weft_codec_free(codec);
}

static void setting_open(struct setting *s, uint8_t choice)
{
    const void *aggregate;
    memset(s, 0, sizeof *s);
    s->coded = case_of(choice);
    fuzz_expect(weft_slices_of(&s->coded.spec, &s->coded.shape, FUZZ_RANKS, s->coded.round, &s->slices));
    fuzz_expect(FUZZ_RANKS * s->slices.piece_bytes <= ROOM && FUZZ_RANKS * s->slices.sum_bytes <= ROOM);
    for (uint32_t rank = 0; rank < FUZZ_RANKS; rank++) contribute(s, rank);
    for (uint32_t rank = 0; rank < FUZZ_RANKS; rank++) {
        struct weft_combiner *combiner = combiner_of(s, rank);
        for (uint32_t from = 0; from < FUZZ_RANKS; from++)
            fuzz_expect(weft_combiner_add(combiner, piece_of(s, from, rank), s->lengths[from][rank]) ==
                        WEFT_OK);
        s->sum_lengths[rank] = close_into(s, combiner, rank, s->sums + rank * s->slices.sum_bytes);
    }
    fuzz_expect(join(s, &aggregate, &s->whole_bytes) == WEFT_OK);
}

static void hostile_piece(struct setting *s, const uint8_t *data, size_t bytes)
{
    uint8_t sum[ROOM];
    struct weft_combiner *combiner = combiner_of(s, 0);
    const enum weft_status status = weft_combiner_add(combiner, data, bytes);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    for (uint32_t from = status == WEFT_OK ? 1 : 0; from < FUZZ_RANKS; from++)
        fuzz_expect(weft_combiner_add(combiner, piece_of(s, from, 0), s->lengths[from][0]) == WEFT_OK);
    const size_t length = close_into(s, combiner, 0, sum);
    if (status != WEFT_OK) fuzz_expect(length == s->sum_lengths[0] && memcmp(sum, s->sums, length) == 0);
}

static void hostile_sum(struct setting *s, const uint8_t *data, size_t bytes)
{
    const void *aggregate;
    size_t whole;
    if (bytes > s->slices.sum_bytes) return;
    memcpy(s->sums + s->slices.sum_bytes, data, bytes);
    s->sum_lengths[1] = bytes;
    const enum weft_status status = join(s, &aggregate, &whole);
    fuzz_expect(status == WEFT_OK || status == WEFT_ERR_MALFORMED);
    if (status == WEFT_OK) fuzz_expect(whole == s->whole_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct setting setting;
    if (bytes < 1) return 0;
    setting_open(&setting, data[0] / 2);
    if (data[0] % 2) hostile_sum(&setting, data + 1, bytes - 1);
    else hostile_piece(&setting, data + 1, bytes - 1);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static struct setting setting;
    setting_open(&setting, (uint8_t)number / 2);
    const bool sum = number % 2 != 0;
    const size_t bytes = sum ? setting.sum_lengths[1] : setting.lengths[0][0];
    fuzz_expect(bytes < capacity);
    out[0] = (uint8_t)number;
    memcpy(out + 1, sum ? setting.sums + setting.slices.sum_bytes : setting.pieces[0], bytes);
    return bytes + 1;
}
