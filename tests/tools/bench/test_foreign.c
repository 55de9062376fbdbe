/* test_foreign.c - names and options of nccl-tests, OSU and perftest as words of weft bench. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/check.h"
#include "tools/bench/foreign/foreign.h"

static struct bench_foreign foreign;

/* The words of weft for a command line, separated by spaces; "": refused. */
static const char *translated(const char *line)
{
    static char text[512];
    char copy[512], *words[80];
    int count = 0, at = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *rest = copy, *word; (word = strsep(&rest, " "));) words[count++] = word;
    words[count] = NULL;
    text[0] = 0;
    if (bench_foreign_translate(&foreign, count, words) >= 0) return "";
    for (int i = 0; i < foreign.argc; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%s", i ? " " : "", foreign.argv[i]);
    assert_null(foreign.argv[foreign.argc]);
    return text;
}

static void command_lines_of_other_suites(void **state)
{
    static const struct {
        const char *foreign, *weft;
    } cases[] = {
        {"all_reduce_perf -b 8 -e 1G -f 2 -g 4", "all_reduce -b 32M -e 32M -b 8 -e 1G -f 2 -n 4"},
        {"all_reduce_perf -t 2 -g 4 -n 100", "all_reduce -b 32M -e 32M --iters 100 -n 8"},
        {"alltoall_perf --minbytes=8 --iters 5 -w3", "all_to_all -b 32M -e 32M -b 8 --iters 5 -w 3"},
        {"reduce_perf -C 1 -z 1 -m 4 -a 3", "reduce -b 32M -e 32M -C -z 1 -m 4 -a 3"},
        {"reduce_perf -C 0 --json", "reduce -b 32M -e 32M --json"},
        {"sendrecv_perf --transport tcp -g 2", "sendrecv -b 32M -e 32M --transport tcp -n 2"},
        {"osu_allreduce -m 16:1024 -i 10 -x 2 -f",
         "all_reduce -b 4 -e 1M -f 2 -b 16 -e 1024 --iters 10 -w 2 --percentiles"},
        {"osu_ibcast -m 64", "broadcast --overlap -b 4 -e 1M -f 2 -e 64"},
        {"osu_bw -m 8: -W 32", "p2p --measure bw -b 1 -e 4M -f 2 -b 8 --window 32"},
        {"ib_write_bw -s 4096 -n 10 -d mlx5_0 -D 2 -b",
         "p2p --transport verbs --op put --measure bw -b 64K -e 64K -b 4096 -e 4096 --iters 10 --devices "
         "mlx5_0 --row-ms 2000 --measure duplex"},
        {"ib_read_lat -a --transport tcp",
         "p2p --transport verbs --op get --measure lat -b 2 -e 2 -b 2 -e 8M -f 2 --transport tcp"},
        {"all_gather_perf -h", "all_gather -b 32M -e 32M --help"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(translated(cases[i].foreign), cases[i].weft);
}

static void options_without_a_counterpart_are_listed(void **state)
{
    assert_string_equal(translated("all_reduce_perf -G 1 -R 1 -b 8"), "all_reduce -b 32M -e 32M -b 8");
    assert_string_equal(foreign.ignored, "-G -R");
    assert_string_equal(foreign.suite, "nccl-tests");
    translated("osu_bw -c -x 5");
    assert_string_equal(foreign.ignored, "-c -x");
}

static void wrong_command_lines_are_refused(void **state)
{
    static const char *const lines[] = {
        "all_reduce_perf -Q 1",     "all_reduce_perf -b",     "all_reduce_perf -C 2", "all_reduce_perf -g 0",
        "all_reduce_perf -g 99999", "ib_write_bw -s 8 nodeb", "ib_write_bw -D 0",     "osu_allreduce -ff",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) assert_string_equal(translated(lines[i]), "");
}

static void long_command_lines_are_refused(void **state)
{
    char *words[BENCH_FOREIGN_WORDS_MAX + 2] = {(char *)"all_reduce_perf"}, value[BENCH_FOREIGN_BYTES_MAX];
    for (int i = 1; i < BENCH_FOREIGN_WORDS_MAX; i++) words[i] = (char *)"--json";
    assert_int_equal(bench_foreign_translate(&foreign, BENCH_FOREIGN_WORDS_MAX, words), 2);
    memset(value, '8', sizeof value - 1);
    value[sizeof value - 1] = 0;
    words[1] = (char *)"-b";
    words[2] = value;
    assert_int_equal(bench_foreign_translate(&foreign, 3, words), 2);
}

static void names(void **state)
{
    assert_true(bench_foreign_has("all_reduce_perf") && bench_foreign_has("osu_allreduce"));
    assert_false(bench_foreign_has("all_reduce") || bench_foreign_has("osu_") || bench_foreign_has(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(command_lines_of_other_suites),
        cmocka_unit_test(options_without_a_counterpart_are_listed),
        cmocka_unit_test(wrong_command_lines_are_refused),
        cmocka_unit_test(long_command_lines_are_refused),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests_name("foreign", tests, NULL, NULL);
}
