/* test_rows.c - files of benchmark rows: valid and invalid rows, and differences within and beyond the
 * noise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/temp_dir.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/samples.h"

static char *directory;

static const char *path_of(const char *name)
{
    static char path[2][400];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", directory, name);
    return path[turn];
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(path_of(name), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static struct bench_rows read_rows(const char *text, const char *metric)
{
    struct bench_rows rows;
    char error[300] = "";
    write_file("rows.json", text, strlen(text));
    if (!bench_rows_read(path_of("rows.json"), metric, &rows, error, sizeof error)) fail_msg("%s", error);
    return rows;
}

static void refuse(const char *name, const char *metric, const char *sentence)
{
    struct bench_rows rows;
    char error[300] = "";
    assert_false(bench_rows_read(path_of(name), metric, &rows, error, sizeof error));
    if (!strstr(error, sentence)) fail_msg("'%s' is not in '%s'", sentence, error);
    assert_null(rows.rows);
}

/* Exact probabilities: 5 values enclose the median between the ends with 15/16, 8 values between the second
 * and the last but one with 238/256. */
static void bounds_of_a_median(void **state)
{
    static const double sorted[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
    static const struct {
        size_t count;
        double chance, low, high;
    } cases[] = {
        {1, 0.9, 1, 1},  {2, 0.9, 1, 2},   {3, 0.9, 1, 3}, {5, 0.9, 1, 5}, {7, 0.9, 1, 7}, {8, 0.9, 2, 7},
        {8, 0.95, 1, 8}, {17, 0.9, 5, 13}, {3, 0.7, 1, 3}, {4, 0.3, 2, 3}, {2, 0.1, 1, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double low = 0, high = 0;
        bench_median_bounds(sorted, cases[i].count, cases[i].chance, &low, &high);
        if (low != cases[i].low || high != cases[i].high) fail_msg("case %zu: %g to %g", i, low, high);
    }
    double many[1024], low, high;
    for (int i = 0; i < 1024; i++) many[i] = i;
    bench_median_bounds(many, 1024, 0.9, &low, &high); /* about 1.645 * sqrt(1024) / 2 on either side */
    assert_in_range((int)low, 480, 490);
    assert_in_range((int)high, 533, 543);
}

static void rows_of_every_benchmark(void **state)
{
    static const struct {
        const char *text, *name, *variant, *metric;
        bool lower;
        double value;
    } cases[] = {
        {"{\"bench\":\"p2p\",\"op\":\"send\",\"measure\":\"lat\",\"transport\":\"shm\",\"wait\":\"poll\","
         "\"pattern\":\"pairs\",\"memory\":\"mapped\","
         "\"ranks\":2,\"bytes\":8,\"iters\":100,\"window\":2,\"wrong\":0,\"t_min_us\":0.3,\"t_typical_us\":0."
         "4}",
         "send lat pairs wait poll mapped ranks 2 window 2 8B", "shm", "t_typical_us", true, 0.4},
        {"{\"op\":\"put\",\"measure\":\"bw\",\"transport\":\"ucx:tcp\",\"bytes\":65536,\"peak_GBps\":3,\"avg_"
         "GBps\":2,\"rate_Mps\":1}",
         "put bw 64KB", "ucx:tcp", "avg_GBps", false, 2},
        {"{\"op\":\"send\",\"measure\":\"rate\",\"bytes\":8,\"avg_GBps\":2,\"rate_Mps\":1.5}", "send rate 8B",
         "", "rate_Mps", false, 1.5},
        {"{\"bench\":\"p2p-beside\",\"section\":\"shm-latency\",\"unit\":\"us\",\"bytes\":8,\"weft\":0.25}",
         "shm-latency 8B", "", "weft", true, 0.25},
        {"{\"bench\":\"p2p-beside\",\"section\":\"cma\",\"unit\":\"GB/s\",\"bytes\":8,\"weft\":5}", "cma 8B",
         "", "weft", false, 5},
        {"{\"op\":\"all_reduce\",\"plan\":\"ring\",\"transport\":\"ucx\",\"ranks\":3,\"shards\":0,\"dtype\":"
         "\"f32\",\"bytes\":12,\"time_us\":40}",
         "all_reduce f32 ranks 3 12B", "ucx ring", "time_us", true, 40},
        {"{\"kernel\":\"reduce_f32\",\"variant\":\"avx2\",\"elements\":1000,\"time_ms\":2.5}",
         "reduce_f32 elements 1000", "avx2", "time_ms", true, 2.5},
        {"{\"measure\":\"busy\",\"ranks\":2,\"throughput_ratio\":0.97}", "busy ranks 2", "",
         "throughput_ratio", false, 0.97},
        {"{\"op\":\"\\u0007\xc3\xb6\",\"time_us\":1}", "????", "", "time_us", true, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bench_rows rows = read_rows(cases[i].text, NULL);
        const struct bench_measurement *row = rows.rows;
        assert_int_equal(rows.count, 1);
        if (i + 1 < sizeof cases / sizeof cases[0]) assert_string_equal(row->name, cases[i].name);
        else assert_true(row->name[0] == '?'); /* control characters of a file are not printed */
        assert_string_equal(row->variant, cases[i].variant);
        assert_string_equal(row->metric, cases[i].metric);
        assert_int_equal(row->lower_is_better, cases[i].lower);
        assert_true(row->value == cases[i].value);
        bench_rows_free(&rows);
    }
    struct bench_rows rows = read_rows(cases[1].text, "peak_GBps");
    assert_true(rows.rows[0].value == 3 && !rows.rows[0].lower_is_better);
    bench_rows_free(&rows);
    rows = read_rows("{\"op\":\"send\",\"avg_GBps\":1,\"cpu_s_per_GB\":0.5}\n", "cpu_s_per_GB");
    assert_true(rows.rows[0].value == 0.5 && rows.rows[0].lower_is_better);
    bench_rows_free(&rows);
}

static void wrong_files(void **state)
{
    static char line[BENCH_LINE_MAX + 2];
    refuse("nowhere.json", NULL, "nowhere.json: No such file or directory");
    refuse(".", NULL, "Is a directory");
    write_file("empty.json", "", 0);
    refuse("empty.json", NULL, "has no row of a benchmark; make it with `weft bench ... --json >");
    write_file("binary.json", "\0\377{\0}\n\0", 7);
    refuse("binary.json", NULL, "has no row of a benchmark");
    static const char table[] =
        "# bytes t_typical\n 8 0.31\n[1, 2]\n3\nnull\n{}\n{\"time_us\": 1e999}\n{\"time_us\": -1, \"op\": "
        "\"x\"}\n{\"op\": \"x\", \"time_us\": \"4\"}\n";
    write_file("table.json", table, strlen(table));
    refuse("table.json", NULL, "has no row of a benchmark");
    memset(line, '[', sizeof line);
    write_file("long.json", line, sizeof line);
    refuse("long.json", NULL, "has a line of more than 1048576 bytes");
    write_file("deep.json", line, 100000);
    refuse("deep.json", NULL, "has no row of a benchmark");
    static const char one[] = "{\"op\": \"x\", \"time_us\": 4}\n";
    write_file("one.json", one, strlen(one));
    refuse("one.json", "avg_GBps", "has a number 'avg_GBps' above 0");
    FILE *file = fopen(path_of("many.json"), "w");
    for (int i = 0; i <= BENCH_ROWS_MAX; i++) fputs(one, file);
    fclose(file);
    refuse("many.json", NULL, "has more than 20000 rows");
    struct bench_rows rows =
        read_rows("noise\n\n{\"op\": \"x\", \"time_us\": 4}\n{\"op\": \"y\", \"time_us\": 4", NULL);
    assert_int_equal(rows.count, 1); /* the last line is incomplete */
    assert_int_equal(rows.skipped, 2);
    bench_rows_free(&rows);
}

/* The direction of B, for times or speeds of one measurement. */
static int direction_of(const char *field, const double *a, size_t a_runs, const double *b, size_t b_runs,
                        double noise, bool *guessed_out)
{
    char text[2][2000] = {"", ""};
    size_t at = 0;
    for (size_t i = 0; i < a_runs; i++)
        at += (size_t)snprintf(text[0] + at, 2000 - at, "{\"op\":\"x\",\"%s\":%g}\n", field, a[i]);
    at = 0;
    for (size_t i = 0; i < b_runs; i++)
        at += (size_t)snprintf(text[1] + at, 2000 - at, "{\"op\":\"x\",\"%s\":%g}\n", field, b[i]);
    struct bench_rows rows_a = read_rows(text[0], NULL), rows_b = read_rows(text[1], NULL);
    struct bench_difference difference;
    size_t only_a, only_b;
    assert_int_equal(bench_rows_compare(&rows_a, &rows_b, noise, &difference, 1, &only_a, &only_b), 1);
    assert_true(difference.low <= difference.ratio && difference.ratio <= difference.high);
    assert_true(only_a == 0 && only_b == 0 && difference.a_runs == a_runs && difference.b_runs == b_runs);
    if (guessed_out) *guessed_out = difference.bounds_assumed;
    bench_rows_free(&rows_a);
    bench_rows_free(&rows_b);
    return difference.direction;
}

static void noise_is_no_difference(void **state)
{
    static const double quiet[] = {10, 10.1, 9.9, 10, 10.05}, doubled[] = {20, 20.2, 19.8, 20, 20.1},
                        loud[] = {10, 30, 9, 18, 12};
    static const double near[] = {10.3, 10.3, 10.4, 10.3, 10.35};
    bool guessed = true;
    assert_int_equal(direction_of("time_us", quiet, 5, doubled, 5, 0.05, &guessed), -1);
    assert_false(guessed);
    assert_int_equal(direction_of("time_us", doubled, 5, quiet, 5, 0.05, NULL), 1);
    assert_int_equal(direction_of("avg_GBps", quiet, 5, doubled, 5, 0.05, NULL), 1); /* more is better here */
    assert_int_equal(direction_of("avg_GBps", doubled, 5, quiet, 5, 0.05, NULL), -1);
    assert_int_equal(direction_of("time_us", quiet, 5, loud, 5, 0.05, NULL),
                     0); /* the spread of B contains A */
    /* 3 % outside the spread, but below 5 */
    assert_int_equal(direction_of("time_us", quiet, 5, near, 5, 0.05, NULL), 0);
    assert_int_equal(direction_of("time_us", quiet, 5, near, 5, 0.01, NULL), -1);
    assert_int_equal(direction_of("time_us", quiet, 5, quiet, 5, 0, NULL), 0);
    static const double ten[] = {10}, eleven[] = {11}, ten_and_a_bit[] = {10.4};
    assert_int_equal(direction_of("time_us", ten, 1, eleven, 1, 0.05, &guessed), -1);
    assert_true(guessed);
    assert_int_equal(direction_of("time_us", ten, 1, ten_and_a_bit, 1, 0.05, NULL), 0);
    assert_int_equal(direction_of("time_us", quiet, 5, eleven, 1, 0.2, &guessed), 0);
    assert_true(guessed);
}

static void rows_find_their_partners(void **state)
{
    struct bench_difference differences[4];
    size_t only_a, only_b;
    struct bench_rows a =
        read_rows("{\"op\":\"x\",\"time_us\":1,\"bytes\":8}\n{\"op\":\"x\",\"time_us\":2,\"bytes\":16}\n"
                  "{\"op\":\"y\",\"time_us\":3,\"transport\":\"shm\"}\n",
                  NULL);
    struct bench_rows b = read_rows(
        "{\"op\":\"y\",\"time_us\":3,\"transport\":\"tcp\"}\n{\"op\":\"x\",\"time_us\":2,\"bytes\":16}\n"
        "{\"op\":\"x\",\"time_us\":5,\"bytes\":32}\n{\"op\":\"x\",\"time_us\":6,\"bytes\":32}\n",
        NULL);
    /* A has several variants, so shm is not compared with tcp */
    assert_int_equal(bench_rows_compare(&a, &b, 0.05, differences, 4, &only_a, &only_b), 1);
    assert_string_equal(differences[0].row->name, "x 16B");
    assert_int_equal(only_a, 2);
    assert_int_equal(only_b, 2);
    bench_rows_free(&a);
    bench_rows_free(&b);
    a = read_rows("{\"op\":\"y\",\"time_us\":3,\"transport\":\"shm\"}\n", NULL);
    b = read_rows("{\"op\":\"y\",\"time_us\":6,\"transport\":\"tcp\"}\n", NULL);
    /* one variant each: the comparison is between them */
    assert_int_equal(bench_rows_compare(&a, &b, 0.05, differences, 4, &only_a, &only_b), 1);
    assert_true(differences[0].ratio == 2);
    bench_rows_free(&a);
    bench_rows_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_of_a_median),
        cmocka_unit_test(rows_of_every_benchmark),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(noise_is_no_difference),
        cmocka_unit_test(rows_find_their_partners),
    };
    directory = temp_dir_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_dir_remove(directory);
    return failed;
}
