/* test_calibration.c - the calibration blob: round trip, every truncation, wrong sizes,
 * versions, counts and numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/transport.h"

enum { FULL_BYTES = 4 * (3 + 8 + WEFT_LINK_RUNS_NUMBERS), MEMORY_BYTES = 4 * (3 + 8) };

static const struct weft_link_memory memory = {370, 480, 260, 12, 51, 2048, 491520, 40};

static struct weft_link_runs sample_runs(void)
{
    struct weft_link_runs runs = {.ranks = 3, .processors = 2, .trip_ns = 6100, .inject_ns = 5900};
    for (uint32_t p = 0; p < WEFT_LINK_PATTERNS; p++)
        for (uint32_t i = 0; i < WEFT_LINK_LENGTHS; i++) runs.byte_ps[p][i] = 25 + 100 * p + i;
    return runs;
}

/* The status of the bytes, copied to a block of exactly that size so that a sanitizer sees a read beyond it.
 * A refused blob must leave all figures at zero. */
static enum weft_status decode(const uint8_t *data, size_t bytes)
{
    static const struct weft_link_memory no_memory;
    static const struct weft_link_runs no_runs;
    struct weft_link_memory memory_out;
    struct weft_link_runs runs_out;
    memset(&memory_out, 0xee, sizeof memory_out);
    memset(&runs_out, 0xee, sizeof runs_out);
    uint8_t *copy = malloc(bytes ? bytes : 1);
    if (bytes > 0) memcpy(copy, data, bytes);
    const enum weft_status status = weft_calibration_decode(copy, bytes, &memory_out, &runs_out);
    free(copy);
    if (status < 0) {
        assert_memory_equal(&memory_out, &no_memory, sizeof no_memory);
        assert_memory_equal(&runs_out, &no_runs, sizeof no_runs);
    }
    return status;
}

static void decodes_to_the_same(void **state)
{
    const struct weft_link_runs runs = sample_runs(), no_runs = {0};
    const struct weft_link_memory no_memory = {0};
    struct weft_link_memory memory_out;
    struct weft_link_runs runs_out;
    uint8_t blob[WEFT_CALIBRATION_BYTES_MAX];
    assert_int_equal(weft_calibration_encode(&memory, &runs, blob), FULL_BYTES);
    assert_int_equal(weft_calibration_decode(blob, FULL_BYTES, &memory_out, &runs_out), WEFT_OK);
    assert_memory_equal(&memory_out, &memory, sizeof memory);
    assert_memory_equal(&runs_out, &runs, sizeof runs);
    assert_int_equal(weft_calibration_encode(&memory, &no_runs, blob), MEMORY_BYTES);
    assert_int_equal(weft_calibration_decode(blob, MEMORY_BYTES, &memory_out, &runs_out), WEFT_OK);
    assert_memory_equal(&memory_out, &memory, sizeof memory);
    assert_memory_equal(&runs_out, &no_runs, sizeof no_runs);
    assert_int_equal(weft_calibration_encode(&no_memory, &runs, blob), FULL_BYTES);
    assert_int_equal(weft_calibration_decode(blob, FULL_BYTES, &memory_out, &runs_out), WEFT_OK);
    assert_memory_equal(&memory_out, &no_memory, sizeof no_memory);
    assert_memory_equal(&runs_out, &runs, sizeof runs);
    assert_int_equal(weft_calibration_encode(&no_memory, &no_runs, blob), 0);
    assert_int_equal(decode(blob, 0), WEFT_OK);
}

static void is_refused_if_cut_or_too_long(void **state)
{
    const struct weft_link_runs runs = sample_runs();
    uint8_t blob[WEFT_CALIBRATION_BYTES_MAX + 1] = {0};
    assert_int_equal(weft_calibration_encode(&memory, &runs, blob), FULL_BYTES);
    for (size_t bytes = 1; bytes < FULL_BYTES; bytes++)
        assert_int_equal(decode(blob, bytes), WEFT_ERR_MALFORMED);
    assert_int_equal(decode(blob, FULL_BYTES), WEFT_OK);
    for (size_t bytes = FULL_BYTES + 1; bytes <= sizeof blob; bytes++)
        assert_int_equal(decode(blob, bytes), WEFT_ERR_MALFORMED);
}

static void is_refused_if_malformed(void **state)
{
    const struct weft_link_runs runs = sample_runs();
    static const struct { /* one number of the blob is replaced */
        uint32_t index, value;
        enum weft_status status;
    } cases[] = {
        {0, 0, WEFT_ERR_VERSION},
        {0, 2, WEFT_ERR_VERSION},
        {0, UINT32_MAX, WEFT_ERR_VERSION},
        {1, 0, WEFT_ERR_MALFORMED},
        {1, 7, WEFT_ERR_MALFORMED},
        {1, 9, WEFT_ERR_MALFORMED},
        {1, UINT32_MAX, WEFT_ERR_MALFORMED},
        {2, 999999999, WEFT_OK},
        {2, 1000000000, WEFT_ERR_MALFORMED},
        {9, UINT32_MAX, WEFT_ERR_MALFORMED},
        {10, 0, WEFT_ERR_MALFORMED},
        {10, 63, WEFT_ERR_MALFORMED},
        {10, 0x40000000, WEFT_ERR_MALFORMED},
        {10, UINT32_MAX, WEFT_ERR_MALFORMED},
        {11, 0, WEFT_ERR_MALFORMED},
        {12, 0, WEFT_ERR_MALFORMED},
        {11 + 63, 0, WEFT_ERR_MALFORMED},
        {11 + 63, 1000000000, WEFT_ERR_MALFORMED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t blob[WEFT_CALIBRATION_BYTES_MAX];
        assert_int_equal(weft_calibration_encode(&memory, &runs, blob), FULL_BYTES);
        put_le32(blob + 4 * cases[i].index, cases[i].value);
        const enum weft_status status = decode(blob, FULL_BYTES);
        if (status != cases[i].status) fail_msg("number %u = %u: %d", cases[i].index, cases[i].value, status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_to_the_same),
        cmocka_unit_test(is_refused_if_cut_or_too_long),
        cmocka_unit_test(is_refused_if_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
