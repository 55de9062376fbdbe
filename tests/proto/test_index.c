/* test_index.c - index streams of top-k against docs/wire.md, section 4. */
#include <stdlib.h>
#include <string.h>

#include "compress/compress.h"
#include "tests/proto/slow_decoder.h"
#include "tests/lib/check.h"

#define ELEMS_MAX 200000u

static unsigned seed = 1;
static uint32_t indices[ELEMS_MAX], fast[ELEMS_MAX], slow[ELEMS_MAX];
static uint8_t stream[4 * ELEMS_MAX];

/* Increasing indices, about `share` per million of the elements, sometimes in runs. */
static uint64_t choose(uint64_t elems, unsigned share)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < elems; i++)
        if ((unsigned)rand_r(&seed) % 1000000 < share || (share && i % 977 < 3))
            indices[count++] = (uint32_t)i;
    return count;
}

static void same_reading(void **state)
{
    static const unsigned shares[] = {0, 10, 1000, 10000, 300000, 1000000};
    static const uint64_t sizes[] = {1, 10, 65535, 65536, 65537, 131072, ELEMS_MAX};
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++)
        for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
            uint64_t elems = sizes[n], count = choose(elems, shares[s]), fast_count = 0;
            size_t bytes = weft_index_encode(indices, count, elems, stream), fast_used = 0, slow_used = 0;
            assert_true(bytes <= weft_index_bytes_max(elems, count) && bytes <= sizeof stream);
            assert_int_equal(slow_index_decode(stream, bytes, elems, slow, ELEMS_MAX, &slow_used), count);
            assert_int_equal(slow_used, bytes);
            assert_memory_equal(slow, indices, count * sizeof slow[0]);
            assert_int_equal(
                weft_index_decode(stream, bytes, elems, fast, ELEMS_MAX, &fast_count, &fast_used), WEFT_OK);
            assert_true(fast_count == count && fast_used == bytes);
        }
}

/* Modified or truncated streams: both decoders refuse, or both read the same. */
static void same_refusals(void **state)
{
    int refused = 0;
    for (int i = 0; i < 4000; i++) {
        uint64_t elems = 1 + (uint64_t)rand_r(&seed) % 3000, count = choose(elems, 20000), fast_count = 0;
        size_t bytes = weft_index_encode(indices, count, elems, stream), fast_used = 0, slow_used = 0;
        for (int flips = rand_r(&seed) % 3; flips >= 0; flips--)
            stream[(size_t)rand_r(&seed) % bytes] ^= (uint8_t)(1u << rand_r(&seed) % 8);
        if (i % 4 == 0) bytes = (size_t)rand_r(&seed) % (bytes + 1);
        uint8_t *exact = malloc(bytes + 1);
        memcpy(exact, stream, bytes);
        long slow_count = slow_index_decode(exact, bytes, elems, slow, ELEMS_MAX, &slow_used);
        enum weft_status status =
            weft_index_decode(exact, bytes, elems, fast, ELEMS_MAX, &fast_count, &fast_used);
        free(exact);
        if ((slow_count < 0) != (status < 0))
            fail_msg("case %d: slow %ld, fast %d", i, slow_count, (int)status);
        refused += slow_count < 0;
        if (slow_count < 0) continue;
        assert_true((uint64_t)slow_count == fast_count && slow_used == fast_used);
        assert_memory_equal(slow, fast, fast_count * sizeof slow[0]);
    }
    assert_true(refused > 400 && refused < 4000);
}

static void the_example(void **state)
{
    static const uint8_t example[] = {3, 0, 0, 0, 0, 2, 0, 0x86};
    static const uint32_t chosen[] = {1, 2, 7};
    size_t used;
    assert_int_equal(slow_index_decode(example, sizeof example, 10, slow, 3, &used), 3);
    assert_memory_equal(slow, chosen, sizeof chosen);
    assert_int_equal(weft_index_encode(chosen, 3, 10, stream), sizeof example);
    assert_memory_equal(stream, example, sizeof example);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_reading), cmocka_unit_test(same_refusals),
                                       cmocka_unit_test(the_example)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
