/* test_slice.c - slices of a contribution, combined by one rank each, give the aggregate of one combiner
 * byte by byte; packed sums are the sums again; and bytes of a peer are refused or stay within their
 * slice. */
#include "tests/compress/compress_fixture.h"

#include "compress/split/slice_pack.h"

enum { RANKS_MAX = 16 };

static const char *const texts[] = {"bf16",
                                    "f16",
                                    "int8:min_count=0",
                                    "int4:min_count=0",
                                    "e4m3:min_count=0",
                                    "e5m2:min_count=0",
                                    "sign:min_count=0"};
#define TEXTS (sizeof texts / sizeof texts[0])

/* The exchanges of a sliced round in memory. */
struct exchange {
    struct weft_slices slices;
    uint8_t *pieces[RANKS_MAX], *sums, *scratch;
    uint64_t lengths[RANKS_MAX][RANKS_MAX], sum_lengths[RANKS_MAX];
};

static void exchange_open(struct exchange *x, const struct fleet *fleet, uint32_t round)
{
    assert_true(weft_slices_of(&fleet->spec, &fleet->shape, fleet->ranks, round, &x->slices));
    x->sums = calloc(fleet->ranks, x->slices.sum_bytes);
    x->scratch = malloc(weft_codec_aggregate_bytes_max(&fleet->spec, &fleet->shape, round, fleet->ranks));
    for (uint32_t r = 0; r < fleet->ranks; r++) x->pieces[r] = calloc(fleet->ranks, x->slices.piece_bytes);
}

static void exchange_close(struct exchange *x)
{
    for (uint32_t r = 0; r < x->slices.ranks; r++) free(x->pieces[r]);
    free(x->sums);
    free(x->scratch);
}

static void cut_all(struct exchange *x, const struct fleet *fleet)
{
    for (uint32_t r = 0; r < fleet->ranks; r++) {
        if (weft_slices_are_contribution(&x->slices))
            memcpy(x->pieces[r], fleet->contributions[r], fleet->contribution_bytes[r]);
        weft_slices_split(&x->slices, fleet->contributions[r], x->pieces[r], x->lengths[r]);
    }
}

static struct weft_combiner *combiner_of(const struct exchange *x, struct fleet *fleet, uint32_t round,
                                         uint32_t rank)
{
    const struct weft_codec_spec spec = weft_codec_of_piece(&fleet->spec);
    const struct weft_shape shape = shape_of(weft_slices_elems(&x->slices, rank), 0);
    struct weft_combiner *combiner;
    assert_int_equal(weft_combiner_create(&fleet->memory.env, &spec, &shape, fleet->ranks, &combiner),
                     WEFT_OK);
    weft_combiner_begin(combiner, round);
    for (uint32_t from = 0; from < fleet->ranks; from++)
        assert_int_equal(weft_combiner_add(combiner, x->pieces[from] + rank * x->slices.piece_bytes,
                                           x->lengths[from][rank]),
                         WEFT_OK);
    return combiner;
}

/* Of f16 the peak of all slices is found first. */
static void sum_all(struct exchange *x, struct fleet *fleet, uint32_t round)
{
    struct weft_combiner *combiners[RANKS_MAX] = {0};
    uint32_t peak = 0;
    for (uint32_t r = 0; r < fleet->ranks; r++) {
        uint8_t *out = x->sums + r * x->slices.sum_bytes;
        const void *sum;
        size_t bytes;
        x->sum_lengths[r] = 1;
        if (weft_slices_elems(&x->slices, r) == 0) continue;
        combiners[r] = combiner_of(x, fleet, round, r);
        assert_int_equal(weft_combiner_close(combiners[r], &sum, &bytes), WEFT_OK);
        if (x->slices.has_peak && weft_combiner_peak(combiners[r]) > peak)
            peak = weft_combiner_peak(combiners[r]);
        x->sum_lengths[r] =
            weft_slices_need_packing(&x->slices) ? weft_slices_pack(&x->slices, r, sum, out) : bytes;
        if (!weft_slices_need_packing(&x->slices)) memcpy(out, sum, bytes);
        assert_true(x->sum_lengths[r] <= x->slices.sum_bytes);
    }
    for (uint32_t r = 0; r < fleet->ranks; r++) {
        const void *sum;
        size_t bytes;
        if (x->slices.has_peak && combiners[r]) {
            weft_combiner_repack(combiners[r], peak, &sum, &bytes);
            memcpy(x->sums + r * x->slices.sum_bytes, sum, bytes);
        }
        weft_combiner_free(combiners[r]);
    }
}

static enum weft_status join(struct exchange *x, const void **aggregate_out, size_t *bytes_out)
{
    uint32_t culprit;
    return weft_slices_join(&x->slices, x->sums, x->sum_lengths, x->scratch, aggregate_out, bytes_out,
                            &culprit);
}

static float **gradients(struct sample *sample, uint32_t ranks, size_t elems, int spread)
{
    float **grads = malloc(ranks * sizeof *grads);
    for (uint32_t r = 0; r < ranks; r++) {
        grads[r] = malloc(elems * sizeof(float));
        for (size_t i = 0; i < elems; i++)
            grads[r][i] = ldexpf(sample_normal(sample),
                                 spread > 0 ? (int)sample_below(sample, 2 * spread) - spread : 0);
    }
    return grads;
}

static void gradients_free(float **grads, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) free(grads[r]);
    free(grads);
}

static void one_fleet(struct sample *sample, const char *text, size_t elems, uint32_t ranks, int spread)
{
    struct fleet fleet;
    fleet_open(&fleet, text, shape_of(elems, 0), ranks);
    float **grads = gradients(sample, ranks, elems, spread);
    for (uint32_t round = 0; round < weft_codec_rounds(&fleet.spec); round++) {
        struct exchange x;
        const void *aggregate;
        size_t bytes;
        exchange_open(&x, &fleet, round);
        fleet_encode(&fleet, round, round == 0 ? (const float *const *)grads : NULL);
        cut_all(&x, &fleet);
        sum_all(&x, &fleet, round);
        assert_int_equal(join(&x, &aggregate, &bytes), WEFT_OK);
        fleet_combine(&fleet, round);
        assert_int_equal(bytes, fleet.aggregate_bytes);
        assert_memory_equal(aggregate, fleet.aggregate, bytes);
        fleet_take(&fleet, round);
        exchange_close(&x);
    }
    gradients_free(grads, ranks);
    fleet_close(&fleet);
}

/* Counts around blocks, fewer blocks than ranks, every small number of ranks; with `spread` 100 exponents
 * of one block are too far apart for a window, and f16's slices have different exponents. */
static void bits_of_one_combiner(void **state)
{
    static const size_t sizes[] = {1, 31, 33, 255, 257, 511, 1024, 2049, 5003};
    struct sample sample = {sample_seed(17)};
    for (size_t t = 0; t < TEXTS; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks += ranks < 9 ? 1 : 7) {
                one_fleet(&sample, texts[t], sizes[s], ranks, 0);
                one_fleet(&sample, texts[t], sizes[s], ranks, 100);
            }
}

static size_t pack_and_back(const struct weft_slice_packing *packing, const uint16_t *words, size_t elems)
{
    uint8_t packed[4096];
    uint16_t back[1024] = {0};
    assert_true(slice_packed_bytes_max(packing, elems) <= sizeof packed);
    const size_t bytes = slice_pack(packing, packed, (const uint8_t *)words, elems);
    assert_true(bytes <= slice_packed_bytes_max(packing, elems));
    assert_int_equal(slice_unpack(packing, (uint8_t *)back, packed, bytes, elems), WEFT_OK);
    assert_memory_equal(back, words, elems * sizeof *words);
    assert_int_equal(slice_unpack(packing, (uint8_t *)back, packed, bytes - 1, elems), WEFT_ERR_MALFORMED);
    assert_int_equal(slice_unpack(packing, (uint8_t *)back, packed, bytes + 1, elems), WEFT_ERR_MALFORMED);
    return bytes;
}

/* All bf16 values, in one window or not. */
static void windows(void **state)
{
    const struct weft_slice_packing packing = {.kind = WEFT_SLICE_WINDOWS};
    uint16_t words[1024];
    for (uint32_t first = 0; first < 65536; first += 1000) {
        for (uint32_t i = 0; i < 1000; i++) words[i] = (uint16_t)(first + i); /* 8 exponents */
        const size_t packed = slice_packed_bytes(&packing, 1000);
        const size_t bytes = pack_and_back(&packing, words, 1000);
        if (first > 1000 && first < 32000) assert_int_equal(bytes, packed);
        for (uint32_t i = 0; i < 1000; i += 128) words[i] ^= 0x4000; /* an exponent 128 away */
        assert_true(pack_and_back(&packing, words, 1000) > packed);
    }
    const uint8_t far[513] = {200};
    uint16_t back[256];
    assert_int_equal(slice_unpack(&packing, (uint8_t *)back, far, 481, 256), WEFT_ERR_MALFORMED);
    assert_int_equal(slice_unpack(&packing, (uint8_t *)back, far, 0, 256), WEFT_ERR_MALFORMED);
}

static void integers(void **state)
{
    for (uint32_t high = 1; high <= 7; high++) {
        const struct weft_slice_packing packing = {.kind = WEFT_SLICE_INTEGERS, .high_bits = high};
        const int32_t most = (1 << (7 + high)) - 1;
        uint16_t words[1024];
        for (uint32_t i = 0; i < 1000; i++)
            words[i] = (uint16_t)(int16_t)(most - (int32_t)(i * 2 * most / 999));
        assert_int_equal((int16_t)words[0], most);
        assert_int_equal((int16_t)words[999], -most);
        assert_int_equal(pack_and_back(&packing, words, 1000), 1000 + 4 * 32 * high);
    }
}

/* A sum with one byte changed, or cut: refused, or the codec decides about an aggregate of the right
 * length. */
static void hostile_sums(void **state)
{
    struct sample sample = {sample_seed(18)};
    for (size_t t = 0; t < TEXTS; t++) {
        struct fleet fleet;
        struct exchange x;
        const void *aggregate;
        size_t bytes, whole;
        fleet_open(&fleet, texts[t], shape_of(1500, 0), 3);
        float **grads = gradients(&sample, 3, 1500, 0);
        exchange_open(&x, &fleet, 0);
        fleet_encode(&fleet, 0, (const float *const *)grads);
        cut_all(&x, &fleet);
        sum_all(&x, &fleet, 0);
        assert_int_equal(join(&x, &aggregate, &whole), WEFT_OK);
        for (uint32_t round = 0; round < 300; round++) {
            uint8_t *at = x.sums + x.slices.sum_bytes + sample_below(&sample, x.sum_lengths[1]);
            const uint8_t kept = *at;
            *at = (uint8_t)sample_u64(&sample);
            if (join(&x, &aggregate, &bytes) == WEFT_OK) assert_int_equal(bytes, whole);
            *at = kept;
        }
        for (uint32_t r = 0; r < 3; r++) {
            const uint64_t kept = x.sum_lengths[r];
            for (uint64_t length = 0; length < kept; length += 7) {
                x.sum_lengths[r] = length;
                assert_int_equal(join(&x, &aggregate, &bytes), WEFT_ERR_MALFORMED);
            }
            x.sum_lengths[r] = kept;
        }
        assert_int_equal(join(&x, &aggregate, &bytes), WEFT_OK);
        gradients_free(grads, 3);
        exchange_close(&x);
        fleet_close(&fleet);
    }
}

static void test_possible(void **state)
{
    static const char *const not_sliced[] = {"dense", "topk:min_count=0", "randomk:min_count=0",
                                             "powersgd:min_ratio=1"};
    const struct weft_shape shape = shape_of(64, 64);
    struct weft_slices slices;
    for (size_t t = 0; t < sizeof not_sliced / sizeof not_sliced[0]; t++) {
        const struct weft_codec_spec spec = spec_of(not_sliced[t]);
        assert_false(weft_slices_of(&spec, &shape, 4, 0, &slices));
    }
    const struct weft_codec_spec spec = spec_of("bf16");
    assert_false(weft_slices_of(&spec, &shape, 1, 0, &slices));
    assert_true(weft_slices_of(&spec, &shape, 2, 0, &slices));
    assert_int_equal(slices.slice_elems, 2048);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_of_one_combiner), cmocka_unit_test(windows),
                                       cmocka_unit_test(integers), cmocka_unit_test(hostile_sums),
                                       cmocka_unit_test(test_possible)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
