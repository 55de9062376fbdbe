/* test_index.c - index streams: round trips at all densities, sizes near the entropy, golden bytes, and
 * every way to be malformed. */
#include "tests/compress/compress_fixture.h"

enum { ELEMS_MAX = 200000 };
static uint32_t indices[ELEMS_MAX], decoded[ELEMS_MAX + 1];
static uint8_t bytes[ELEMS_MAX * 4];

static size_t draw(struct sample *sample, size_t elems, double density)
{
    const uint64_t below = (uint64_t)(density * 0x1p32);
    size_t count = 0;
    for (size_t i = 0; i < elems; i++)
        if ((sample_u64(sample) >> 32) < below) indices[count++] = (uint32_t)i;
    return count;
}

static size_t round_trip(size_t elems, size_t count)
{
    uint64_t got_count = 0;
    size_t consumed = 0;
    memset(bytes, 0xee, sizeof bytes);
    const size_t written = weft_index_encode(indices, count, elems, bytes);
    assert_true(written <= weft_index_bytes_max(elems, count));
    assert_int_equal(bytes[written], 0xee);
    assert_int_equal(weft_index_decode(bytes, written, elems, decoded, count, &got_count, &consumed),
                     WEFT_OK);
    assert_int_equal(got_count, count);
    assert_int_equal(consumed, written);
    assert_memory_equal(decoded, indices, count * sizeof *indices);
    return written;
}

/* The entropy of independent choices, in bits per element; the code may cost one bit per index more. */
static void test_densities(void **state)
{
    static const double densities[] = {0,    0.00002, 0.0001, 0.001, 0.01,  0.05, 0.1,
                                       0.25, 0.5,     0.75,   0.9,   0.999, 1};
    static const size_t sizes[] = {1, 2, 100, 65535, 65536, 65537, 131072, ELEMS_MAX};
    struct sample sample = {sample_seed(31)};
    for (size_t d = 0; d < sizeof densities / sizeof densities[0]; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            const size_t count = draw(&sample, sizes[s], densities[d]);
            const double p = (double)count / (double)sizes[s];
            const double entropy = p == 0 || p == 1 ? 0 : -p * log2(p) - (1 - p) * log2(1 - p);
            const double headers = 4.0 + 4.0 * (double)(sizes[s] / 65536 + 1);
            const double bound = (entropy * (double)sizes[s] + (double)count) / 8 + headers;
            assert_true((double)round_trip(sizes[s], count) <= bound);
        }
    /* At one percent: 8.08 bits of entropy per index, and the code within a tenth of it. */
    const size_t count = draw(&sample, ELEMS_MAX, 0.01);
    assert_true((double)round_trip(ELEMS_MAX, count) * 8 / (double)count < 8.3);
}

/* Clusters, ends of blocks, runs: what random placement does not bring. */
static void test_placements(void **state)
{
    struct sample sample = {sample_seed(32)};
    indices[0] = 0;
    round_trip(1, 1);
    indices[0] = 65535;
    indices[1] = 65536;
    indices[2] = 199999;
    round_trip(ELEMS_MAX, 3);
    for (size_t i = 0; i < 1000; i++)
        indices[i] = (uint32_t)(64900 + i);
    round_trip(ELEMS_MAX, 1000);
    for (int trial = 0; trial < 200; trial++) {
        size_t count = 0;
        for (uint64_t at = sample_below(&sample, 5000); at < ELEMS_MAX;
             at += 1 + sample_below(&sample, trial % 2 ? 3 : 30000))
            indices[count++] = (uint32_t)at;
        round_trip(ELEMS_MAX, count);
    }
}

static void test_beyond_31_bits(void **state)
{
    const uint64_t elems = ((uint64_t)1 << 32) - 1;
    uint64_t count;
    size_t consumed;
    indices[0] = 0x01000003;
    indices[1] = 0x80000001;
    indices[2] = 0xfffffffe;
    const size_t written = weft_index_encode(indices, 3, elems, bytes);
    assert_true(written <= weft_index_bytes_max(elems, 3));
    assert_int_equal(weft_index_decode(bytes, written, elems, decoded, 3, &count, &consumed), WEFT_OK);
    assert_int_equal(count, 3);
    assert_memory_equal(decoded, indices, 12);
}

/* 10 elements, indices 1, 2, 7: gaps 1, 0, 4. With b = 0, first bit first: 01 1 00001; b = 1 would take
 * as many bits: 1|1 1|0 001|0. */
static void test_golden(void **state)
{
    static const uint32_t some[] = {1, 2, 7};
    static const uint8_t golden[] = {3, 0, 0, 0, 0, 2, 0, 0x86};
    assert_int_equal(weft_index_encode(some, 3, 10, bytes), sizeof golden);
    assert_memory_equal(bytes, golden, sizeof golden);
    static const uint8_t other[] = {3, 0, 0, 0, 1, 2, 0, 0x47}; /* a reader takes any parameter */
    uint64_t count;
    size_t consumed;
    assert_int_equal(weft_index_decode(other, sizeof other, 10, decoded, 3, &count, &consumed), WEFT_OK);
    assert_memory_equal(decoded, some, sizeof some);
    static const uint8_t empty[] = {0, 0, 0, 0, 0xff, 0xff};
    assert_int_equal(weft_index_encode(some, 0, 65537, bytes), sizeof empty);
    assert_memory_equal(bytes, empty, sizeof empty);
}

static enum weft_status decode(const uint8_t *data, size_t size, uint64_t elems, uint64_t max)
{
    uint64_t count = 4711;
    size_t consumed = 4711;
    const enum weft_status status = weft_index_decode(data, size, elems, decoded, max, &count, &consumed);
    if (status != WEFT_OK) assert_true(count == 4711 && consumed == 4711);
    if (status == WEFT_OK) assert_true(count <= max && consumed <= size);
    return status;
}

static void test_malformed(void **state)
{
    static const struct { uint8_t data[12]; size_t size; uint64_t elems; const char *what; } bad[] = {
        {{1, 0, 0, 0, 0, 0, 0, 0x82}, 8, 10, "padding is not zero"},
        {{3, 0, 0, 0, 1, 2, 0}, 7, 10, "no bits"},
        {{3, 0, 0, 0, 1, 2}, 6, 10, "no count"},
        {{3, 0, 0, 0}, 4, 10, "no block"},
        {{3, 0, 0}, 3, 10, "no head"},
        {{3, 0, 0, 0, 1, 2, 0, 0x47}, 8, 7, "index beyond the elements"},
        {{3, 0, 0, 0, 1, 2, 0, 0x47}, 8, 65537, "second block missing"},
        {{4, 0, 0, 0, 1, 2, 0, 0x47}, 8, 10, "fewer than promised"},
        {{2, 0, 0, 0, 1, 2, 0, 0x47}, 8, 10, "more than promised"},
        {{3, 0, 0, 0, 0xff}, 5, 10, "promised, but empty"},
        {{3, 0, 0, 0, 16, 2, 0, 0x47}, 8, 10, "parameter 16"},
        {{3, 0, 0, 0, 0xfe, 2, 0, 0x47}, 8, 10, "unknown form"},
        {{0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff}, 8, 10, "more indices than elements"},
        {{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 12, 10, "zeros without end"},
        {{1, 0, 0, 0, 15, 0, 0, 0x01, 0x80}, 9, 10, "low bits cut off"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (decode(bad[i].data, bad[i].size, bad[i].elems, 10) != WEFT_ERR_MALFORMED)
            fail_msg("accepted: %s", bad[i].what);
    assert_int_equal(decode(bad[0].data, 8, 10, 2), WEFT_ERR_MALFORMED); /* above the caller's maximum */
}

/* Every cut is refused; every flipped bit is refused or gives another well-formed stream. */
static void test_damage(void **state)
{
    struct sample sample = {sample_seed(33)};
    const size_t elems = 70000, count = draw(&sample, elems, 0.005);
    const size_t written = weft_index_encode(indices, count, elems, bytes);
    for (size_t cut = 0; cut < written; cut++) {
        uint8_t *exact = malloc(cut + (cut == 0)); /* so that a sanitizer sees a read beyond */
        memcpy(exact, bytes, cut);
        assert_int_equal(decode(exact, cut, elems, count), WEFT_ERR_MALFORMED);
        free(exact);
    }
    for (size_t bit = 0; bit < written * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (decode(bytes, written, elems, count) == WEFT_OK)
            for (size_t i = 1; i < count; i++)
                assert_true(decoded[i] > decoded[i - 1] && decoded[i] < elems);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_densities),      cmocka_unit_test(test_placements),
        cmocka_unit_test(test_beyond_31_bits), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_malformed),      cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
