/* test_bench_lib.c - sizes, percentiles, ratios, tables, charts, CSV: the library of the benchmarks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/bench_pattern.h"
#include "tools/bench/lib/chart.h"
#include "tools/bench/lib/csv.h"
#include "tools/bench/lib/interleave.h"
#include "tools/bench/lib/samples.h"
#include "tools/bench/lib/sweep.h"
#include "tools/bench/lib/table.h"
#include "tools/size.h"

static void sizes_are_read_as_people_write_them(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"8", 8},       {"64K", 65536},     {"25M", 25u << 20}, {"1G", 1u << 30},
        {"1.5K", 1536}, {"4MiB", 4u << 20}, {"2kB", 2048},      {"0", 0},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t bytes = 1;
        assert_true(tool_size_parse(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    static const char *const bad[] = {"", "K", "-1", "8Q", "1e99", "8 K", "0x10", "nan", "99999999G"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t bytes = 7;
        assert_false(tool_size_parse(bad[i], &bytes));
        assert_int_equal(bytes, 7);
    }
    char text[24];
    tool_size_format(65536, text, sizeof(text));
    assert_string_equal(text, "64K");
    tool_size_format(1000, text, sizeof(text));
    assert_string_equal(text, "1000");
}

static void sweeps_rise_and_end(void **state)
{
    static const struct bench_sweep sweeps[] = {
        {.first = 8, .last = 1 << 20, .factor = 2, .unit = 4},
        {.first = 1, .last = 100, .factor = 1.1, .unit = 8},
        {.first = 64, .last = 64, .factor = 2, .unit = 4},
        {.first = 8, .last = 1000, .step = 24, .unit = 8},
        {.first = 3, .last = 1000, .factor = 3.7, .unit = 2},
        {.first = 8, .last = 100, .step = 1, .unit = 8},
    };
    for (size_t s = 0; s < sizeof(sweeps) / sizeof(sweeps[0]); s++) {
        uint64_t before = 0, bytes = 0;
        int count = 0;
        while ((bytes = bench_sweep_next(&sweeps[s], bytes)) != 0) {
            assert_true(bytes > before);
            assert_int_equal(bytes % sweeps[s].unit, 0);
            assert_true(count == 0 || bytes <= sweeps[s].last);
            before = bytes;
            assert_true(++count < 1000);
        }
        assert_true(count > 0);
    }
    struct bench_sweep powers = {.first = 8, .last = 64, .factor = 2, .unit = 4};
    assert_int_equal(bench_sweep_next(&powers, 32), 64);
    assert_int_equal(bench_sweep_next(&powers, 64), 0);
}

static void percentiles_and_ratios(void **state)
{
    double values[] = {5, 1, 4, 2, 3};
    struct bench_summary summary = bench_summarise(values, 5);
    assert_true(summary.mean == 3 && summary.min == 1 && summary.p50 == 3 && summary.max == 5 &&
                summary.p25 == 2);
    assert_true(bench_summarise(values, 0).count == 0);
    double one[] = {7};
    assert_true(bench_summarise(one, 1).p99 == 7);

    /* one slow measurement, one invalid one */
    double a[] = {10, 20, 0, 40, 10}, b[] = {20, 40, 5, 80, 30}, scratch[5];
    struct bench_ratio ratio = bench_compare(a, b, 5, scratch);
    assert_int_equal(ratio.pairs, 4);
    assert_true(ratio.median == 2 && ratio.low == 2 && ratio.high > 2);
}

static void tables_align(void **state)
{
    static const struct bench_column columns[] = {{"way", "", true}, {"size", "(B)", false}};
    struct bench_table table;
    bench_table_init(&table, columns, 2);
    for (int i = 0; i < 20; i++) {
        bench_table_row(&table);
        bench_table_cell(&table, 0, i == 3 ? "zw\xc3\xb6lf" : "a");
        bench_table_cell(&table, 1, "%d", i * 1000);
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    bench_table_print(&table, out, "");
    fclose(out);
    assert_non_null(strstr(text, "way     size\n"));
    assert_non_null(strstr(text, "zw\xc3\xb6lf   3000\n"));
    assert_non_null(strstr(text, "a      19000\n"));
    free(text);
    bench_table_free(&table);
}

static void ticks_are_round_and_inside(void **state)
{
    double ticks[32];
    size_t count = bench_chart_ticks(0, 97, false, ticks, 32);
    assert_true(count >= 4 && ticks[0] == 0 && ticks[1] == 20);
    count = bench_chart_ticks(7, 12000, true, ticks, 32);
    assert_true(count >= 3 && ticks[0] == 10);
    count = bench_chart_ticks(1, 1e30, true, ticks, 8);
    assert_int_equal(count, 8);
}

static void ticks_of_bytes_are_powers_of_two(void **state)
{
    double ticks[32];
    size_t count = bench_chart_ticks_binary(7, 70000, ticks, 32);
    assert_int_equal(count, 7); /* 16, 64, ... 64K */
    assert_true(ticks[0] == 16 && ticks[1] == 64 && ticks[6] == 65536);
    assert_int_equal(bench_chart_ticks_binary(8, 1024, ticks, 32), 8);
    assert_true(ticks[0] == 8 && ticks[7] == 1024);
    count = bench_chart_ticks_binary(1, 1e18, ticks, 32);
    assert_true(count >= 2 && count <= 8 && ticks[0] == 1);
    assert_int_equal(bench_chart_ticks_binary(1, 1e18, ticks, 3), 3);
    assert_int_equal(bench_chart_ticks_binary(9, 15, ticks, 32), 0);
}

/* One series as a chart; the caller frees the text. */
static char *chart_text(const struct bench_series *series, struct bench_axis x, struct bench_axis y)
{
    const struct bench_chart chart = {.title = "t", .x = x, .y = y, .series = series, .series_count = 1};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_true(bench_chart_write(&chart, out));
    fclose(out);
    return text;
}

static void sizes_label_a_byte_axis(void **state)
{
    double x[] = {8, 65536, 16777216}, y[] = {0.1, 1, 10};
    struct bench_series series = {.name = "busbw", .x = x, .y = y, .count = 3};
    char *text = chart_text(&series, (struct bench_axis){"size (bytes)", true, NAN, NAN, .bytes = true},
                            (struct bench_axis){"busbw (GB/s)", true, NAN, NAN});
    assert_non_null(strstr(text, ">64K</text>"));
    assert_non_null(strstr(text, ">1M</text>"));
    assert_null(strstr(text, "k</text>"));
    free(text);
}

static void charts_leave_out_what_cannot_be_drawn(void **state)
{
    double x[] = {0, 1, 10, NAN, 100}, y[] = {1, 2, 3, 4, 5};
    struct bench_series series = {.name = "a < b & c", .x = x, .y = y, .count = 5};
    const struct bench_axis logarithmic = {"x", true, NAN, NAN}, linear = {"y", false, NAN, NAN};
    char *text = chart_text(&series, logarithmic, linear);
    assert_non_null(strstr(text, "</svg>"));
    assert_non_null(strstr(text, "a &lt; b &amp; c"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);

    series.count = 1; /* x is 0 on a logarithmic axis: no point is left */
    const struct bench_chart chart = {
        .title = "t", .x = logarithmic, .y = linear, .series = &series, .series_count = 1};
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_false(bench_chart_write(&chart, out));
    fclose(out);
    free(text);
}

static void csv_columns_by_name(void **state)
{
    char path[] = "/tmp/test_benchlib_XXXXXX", error[200];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char rows[] = "step,loss,accuracy\n1,0.5,0.1\n2,0.25,0.2\n3,,0.3\n4,0.1";
    assert_int_equal(write(fd, rows, strlen(rows)), strlen(rows));
    close(fd);
    struct bench_points points;
    assert_true(bench_csv_read(path, "step", "accuracy", &points, error, sizeof(error)));
    assert_int_equal(points.count, 3); /* the last line is incomplete */
    assert_true(points.x[1] == 2 && points.y[2] == 0.3);
    bench_points_free(&points);
    assert_false(bench_csv_read(path, "step", "speed", &points, error, sizeof(error)));
    assert_non_null(strstr(error, "no column 'speed'"));
    unlink(path);
    assert_false(bench_csv_read(path, "step", "loss", &points, error, sizeof(error)));
}

static void commands_are_measured_by_what_they_print(void **state)
{
    double a[3], b[3];
    char error[200];
    assert_true(bench_interleave("echo noise; echo '{\"t\": 2}'", "echo '{\"t\": 3.5}'", "t", 3, a, b, error,
                                 sizeof(error)));
    assert_true(a[2] == 2 && b[0] == 3.5);
    assert_false(bench_interleave("echo '{\"t\": \"x\"}'", "true", "t", 1, a, b, error, sizeof(error)));
    assert_non_null(strstr(error, "no JSON line"));
    assert_false(bench_interleave("exit 3", "true", NULL, 1, a, b, error, sizeof(error)));
    assert_non_null(strstr(error, "status 3"));
}

/* Correct sums are accepted; one changed or misplaced element is not. */
static void patterns_find_wrong_elements(void **state)
{
    static const enum weft_dtype dtypes[] = {WEFT_F32,     WEFT_F16,     WEFT_BF16, WEFT_I64,
                                             WEFT_F8_E4M3, WEFT_F8_E5M2, WEFT_I8,   WEFT_U64};
    enum { COUNT = 20000, RANKS = 5 };
    int64_t *sum = calloc(COUNT, 8), *part = calloc(COUNT, 8);
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        struct bench_pattern pattern = {.dtype = dtypes[d], .op = WEFT_SUM, .ranks = RANKS, .salt = 3};
        uint64_t element = weft_dtype_bytes(pattern.dtype);
        bool adds = pattern.dtype == WEFT_F32 || pattern.dtype == WEFT_I64 || pattern.dtype == WEFT_U64;
        if (!adds) pattern.ranks = 1; /* the contents of one rank are their own sum */
        memset(sum, 0, COUNT * 8);
        for (uint32_t r = 0; r < pattern.ranks; r++) {
            bench_pattern_fill(&pattern, part, 0, COUNT, r);
            if (!adds) memcpy(sum, part, COUNT * element);
            for (int i = 0; adds && i < COUNT; i++) {
                if (element == 4) ((float *)sum)[i] += ((float *)part)[i];
                else sum[i] += part[i];
            }
        }
        assert_int_equal(bench_pattern_count_wrong(&pattern, sum, 0, COUNT), 0);
        assert_int_equal(bench_pattern_count_wrong(&pattern, (char *)sum + 77 * element, 77, 4500), 0);
        assert_true(bench_pattern_count_wrong(&pattern, (char *)sum + 77 * element, 78, 4500) > 1000);
        pattern.salt = 4; /* contents of another operation */
        assert_true(bench_pattern_count_wrong(&pattern, sum, 0, COUNT) > COUNT / 2);
        pattern.salt = 3;
        memmove((char *)sum + 4096 * element, sum, 4096 * element); /* a chunk in the wrong place */
        assert_true(bench_pattern_count_wrong(&pattern, sum, 0, COUNT) > 1000);
        memset(sum, 0xff, element);
        assert_true(bench_pattern_count_wrong(&pattern, sum, 0, 1) == 1);
    }
    free(sum);
    free(part);
}

/* Operations that only move data are checked by rank and offset; reductions other than sums by their own
 * rule. */
static void patterns_of_pieces_and_other_reductions(void **state)
{
    enum { COUNT = 9000, RANKS = 3 };
    static const enum weft_op ops[] = {WEFT_PROD, WEFT_MIN, WEFT_MAX, WEFT_AND, WEFT_OR, WEFT_XOR};
    uint32_t *data = calloc(COUNT, 4), *total = calloc(COUNT, 4);
    struct bench_pattern moved = {.dtype = WEFT_U32, .ranks = RANKS, .salt = 7};
    bench_pattern_fill(&moved, data, 500, COUNT, 2);
    assert_int_equal(bench_pattern_count_wrong_moved(&moved, data, 500, COUNT, 2), 0);
    assert_true(bench_pattern_count_wrong_moved(&moved, data, 500, COUNT, 1) > COUNT / 2);
    assert_true(bench_pattern_count_wrong_moved(&moved, data, 501, COUNT, 2) > COUNT / 2);
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        struct bench_pattern pattern = {.dtype = WEFT_U32, .op = ops[o], .ranks = RANKS, .salt = 9};
        for (uint32_t r = 0; r < RANKS; r++) {
            bench_pattern_fill(&pattern, data, 0, COUNT, r);
            for (int i = 0; i < COUNT; i++) {
                uint32_t a = total[i], b = data[i];
                total[i] = r == 0                ? b
                           : ops[o] == WEFT_PROD ? a * b
                           : ops[o] == WEFT_MIN  ? (a < b ? a : b)
                           : ops[o] == WEFT_MAX  ? (a > b ? a : b)
                           : ops[o] == WEFT_AND  ? (a & b)
                           : ops[o] == WEFT_OR   ? (a | b)
                                                 : (a ^ b);
            }
        }
        assert_int_equal(bench_pattern_count_wrong(&pattern, total, 0, COUNT), 0);
        total[COUNT - 1] ^= 1;
        assert_int_equal(bench_pattern_count_wrong(&pattern, total, 0, COUNT), 1);
    }
    free(data);
    free(total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read_as_people_write_them),
        cmocka_unit_test(sweeps_rise_and_end),
        cmocka_unit_test(percentiles_and_ratios),
        cmocka_unit_test(tables_align),
        cmocka_unit_test(ticks_are_round_and_inside),
        cmocka_unit_test(ticks_of_bytes_are_powers_of_two),
        cmocka_unit_test(sizes_label_a_byte_axis),
        cmocka_unit_test(charts_leave_out_what_cannot_be_drawn),
        cmocka_unit_test(csv_columns_by_name),
        cmocka_unit_test(commands_are_measured_by_what_they_print),
        cmocka_unit_test(patterns_find_wrong_elements),
        cmocka_unit_test(patterns_of_pieces_and_other_reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
