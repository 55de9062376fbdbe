/* bench_compare.c - `weft bench compare`: the ratio of B to A with the noise of the measurement.
 *
 * Two files of rows: every measurement that both have (lib/rows.h). Two commands: run in turn
 * (lib/interleave.h). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"
#include "tools/bench/lib/interleave.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/samples.h"
#include "tools/bench/lib/table.h"

enum { PAIRS_MAX = 1000, EXIT_SLOWER = 3 };

struct compare {
    const char *key; /* NULL: the default */
    uint32_t pairs;
    double noise; /* a fraction, not percent */
    bool json, pairs_given, noise_given;
};

/* ---- two files ---- */

static void print_row_json(const struct bench_difference *at)
{
    static const char *const direction_names[] = {"slower", "same", "faster"};
    json_t *object = json_pack("{s:s, s:s, s:s, s:f, s:f, s:I, s:I}", "what", at->row->name, "metric",
                               at->row->metric, "unit", at->row->unit, "a_median", at->a, "b_median", at->b,
                               "a_runs", (json_int_t)at->a_runs, "b_runs", (json_int_t)at->b_runs);
    json_object_set_new(object, "ratio", json_real(at->ratio));
    json_object_set_new(object, "ratio_low", json_real(at->low));
    json_object_set_new(object, "ratio_high", json_real(at->high));
    json_object_set_new(object, "bounds", json_string(at->bounds_assumed ? "assumed" : "measured"));
    json_object_set_new(object, "b_is", json_string(direction_names[at->direction + 1]));
    bench_row_print(stdout, object, 8);
}

static void print_rows(const struct bench_difference *differences, size_t count)
{
    static const char *const direction_names[] = {"SLOWER", "within noise", "faster"};
    static const struct bench_column columns[] = {
        {"what", "", true},     {"A", "median", false}, {"B", "median", false}, {"unit", "", true},
        {"runs", "A/B", false}, {"B/A", "", false},     {"bounds", "", true},   {"B is", "", true},
    };
    struct bench_table table;
    bench_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        const struct bench_difference *at = &differences[i];
        bench_table_row(&table);
        bench_table_cell(&table, 0, "%s", at->row->name);
        bench_table_cell(&table, 1, "%.4g", at->a);
        bench_table_cell(&table, 2, "%.4g", at->b);
        bench_table_cell(&table, 3, "%s", *at->row->unit ? at->row->unit : at->row->metric);
        bench_table_cell(&table, 4, "%zu/%zu", at->a_runs, at->b_runs);
        bench_table_cell(&table, 5, "%.3f", at->ratio);
        bench_table_cell(&table, 6, "%.3f to %.3f%s", at->low, at->high,
                         at->bounds_assumed ? " (assumed)" : "");
        bench_table_cell(&table, 7, "%s", direction_names[at->direction + 1]);
    }
    bench_table_print(&table, stdout, "#");
    bench_table_free(&table);
}

static void print_end(const struct bench_difference *differences, size_t count, const struct compare *compare,
                      size_t only_a, size_t only_b)
{
    size_t faster = 0, slower = 0, guessed = 0;
    for (size_t i = 0; i < count; i++) {
        faster += differences[i].direction > 0;
        slower += differences[i].direction < 0;
        guessed += differences[i].bounds_assumed;
    }
    printf(
        "# %zu faster, %zu slower, %zu within the noise (%.3g %% at least); only in A: %zu, only in B: %zu\n",
        faster, slower, count - faster - slower, 100 * compare->noise, only_a, only_b);
    if (guessed)
        printf("# %zu of %zu have fewer than %d runs on a side: append more runs to measure the noise\n",
               guessed, count, BENCH_RUNS_ENOUGH);
}

static bool all_are_right(const struct bench_rows *rows, const char *path)
{
    size_t wrong = 0;
    for (size_t i = 0; i < rows->count; i++) wrong += rows->rows[i].wrong > 0;
    if (wrong)
        fprintf(stderr, "weft bench compare: %zu rows of %s have wrong contents: their times mean nothing\n",
                wrong, path);
    if (rows->skipped)
        fprintf(stderr, "weft bench compare: %zu lines of %s are no such rows and are left out\n",
                rows->skipped, path);
    return wrong == 0;
}

static int compare_files(const struct compare *compare, const char *path_a, const char *path_b)
{
    struct bench_rows a = {0}, b = {0};
    struct bench_difference *differences = NULL;
    char error[512] = "out of memory";
    size_t only_a = 0, only_b = 0, count = 0, slower = 0;
    bool fine = bench_rows_read(path_a, compare->key, &a, error, sizeof error) &&
                bench_rows_read(path_b, compare->key, &b, error, sizeof error) &&
                (differences = calloc(a.count, sizeof *differences)) != NULL;
    if (fine) count = bench_rows_compare(&a, &b, compare->noise, differences, a.count, &only_a, &only_b);
    if (fine && count == 0)
        snprintf(error, sizeof error, "%s and %s have no measurement in common", path_a, path_b);
    if (count == 0) {
        fprintf(stderr, "weft bench compare: %s\n", error);
        fine = false;
    } else {
        bool right_a = all_are_right(&a, path_a), right_b = all_are_right(&b, path_b);
        for (size_t i = 0; i < count; i++) slower += differences[i].direction < 0;
        for (size_t i = 0; compare->json && i < count; i++) print_row_json(&differences[i]);
        if (!compare->json) print_rows(differences, count);
        if (!compare->json) print_end(differences, count, compare, only_a, only_b);
        fine = bench_flush_output("compare") && right_a && right_b;
    }
    free(differences);
    bench_rows_free(&a);
    bench_rows_free(&b);
    return !fine ? 1 : slower > 0 ? EXIT_SLOWER : 0;
}

/* ---- two commands ---- */

static void print_ratio(const struct compare *compare, const char *key, const struct bench_ratio *ratio,
                        double *a, double *b)
{
    struct bench_summary sa = bench_summarise(a, compare->pairs), sb = bench_summarise(b, compare->pairs);
    if (compare->json) {
        json_t *object = json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f}", "key", key, "pairs",
                                   (json_int_t)ratio->pairs, "a_median", sa.p50, "b_median", sb.p50, "ratio",
                                   ratio->median, "ratio_low", ratio->low, "ratio_high", ratio->high);
        bench_row_print(stdout, object, 8);
        return;
    }
    bool inside = ratio->low <= 1 && ratio->high >= 1;
    printf("%s: A %g, B %g (medians of %zu)\nB / A = %.3f, middle half %.3f to %.3f%s\n", key, sa.p50, sb.p50,
           ratio->pairs, ratio->median, ratio->low, ratio->high,
           inside ? ": no difference beyond the noise" : "");
}

/* For a number of a command it is unknown whether more is better: no EXIT_SLOWER here. */
static int compare_commands(const struct compare *compare, const char *command_a, const char *command_b)
{
    size_t pairs = compare->pairs;
    double *values = calloc(3 * pairs, sizeof(*values));
    char error[512] = "out of memory";
    bool fine = values && bench_interleave(command_a, command_b, compare->key, pairs, values, values + pairs,
                                           error, sizeof(error));
    if (fine) {
        struct bench_ratio ratio = bench_compare(values, values + pairs, pairs, values + 2 * pairs);
        print_ratio(compare, compare->key ? compare->key : "seconds", &ratio, values, values + pairs);
        fine = bench_flush_output("compare");
    } else {
        fprintf(stderr, "weft bench compare: %s\n", error);
    }
    free(values);
    return fine ? 0 : 1;
}

/* ---- the command line ---- */

/* Whether the text names a file of rows (present or not) instead of a command: a mistyped file name must not
 * be executed. */
static bool means_file(const char *text)
{
    struct stat about;
    size_t bytes = strlen(text);
    if (bytes >= 5 && strcmp(text + bytes - 5, ".json") == 0 && !strchr(text, ' ')) return true;
    if (stat(text, &about) != 0) return false;
    return !S_ISREG(about.st_mode) || access(text, X_OK) != 0;
}

/* -1: continue; otherwise the exit status. The two files or commands begin at argv[*first_out]. */
static int parse(struct compare *compare, const struct cli_command *command, int argc, char **argv,
                 int *first_out)
{
    double percent = -1; /* not given */
    uint32_t pairs = 0;  /* not given */
    const struct cli_option table[] = {
        {"noise", 0, "PERCENT", "of files: smallest difference that counts", "5", CLI_REAL(&percent, 0, 99)},
        {"key", 0, "NAME",
         "number to compare; of files: one that the rows have, such as cpu_s_per_GB; of commands: one of the "
         "last JSON line",
         "of files: the number of the row; of commands: seconds until the end", CLI_TEXT(&compare->key)},
        {"pairs", 0, "N", "of commands: runs of each", "7", CLI_U32(&pairs, 1, PAIRS_MAX)},
        {"json", 0, NULL, "one JSON object per measurement instead of the table", CLI_FLAG(&compare->json)},
    };
    struct cli_command with_options = *command;
    with_options.options = table;
    with_options.option_count = sizeof table / sizeof table[0];
    int status = cli_parse(&with_options, argc, argv, first_out);
    if (status >= 0) return status;
    compare->noise_given = percent >= 0;
    compare->pairs_given = pairs > 0;
    if (compare->noise_given) compare->noise = percent / 100;
    if (compare->pairs_given) compare->pairs = pairs;
    return -1;
}

int weft_bench_compare_main(int argc, char **argv)
{
    static const struct cli_command command = {
        "weft bench compare",
        "weft bench compare [options] A.json B.json\n"
        "       weft bench compare [options] COMMAND_A COMMAND_B",
        "Two files of rows, as `weft bench ... --json` prints them: each measurement that both have, the\n"
        "ratio B / A of the medians with its bounds, and whether B is faster, slower or within the noise.\n"
        "Append several runs to each:\n"
        "\n"
        "  for i in 1 2 3 4 5; do old/weft bench p2p --json >> A.json; new/weft bench p2p --json >> B.json; "
        "done\n"
        "\n"
        "With three runs or more on both sides the bounds are those of the spread of the runs (from five\n"
        "runs on, each median lies inside its own with 90 %); with fewer they are --noise to both sides.\n"
        "\n"
        "Two commands, run in turn (A B A B ...): the median of the ratios B / A with the range of their\n"
        "middle half.\n",
        .notes = "Exit status: 0; 1 a measurement, file or comparison failed, or contents were wrong; 2\n"
                 "wrong usage; 3 a measurement of B is slower beyond the noise.\n",
        .takes_arguments = true};
    struct compare compare = {.pairs = 7, .noise = 0.05};
    int first, status = parse(&compare, &command, argc, argv, &first);
    if (status >= 0) return status;
    if (argc - first != 2) return tool_usage_error(command.name, "needs two files of rows, or two commands");
    const char *a = argv[first], *b = argv[first + 1];
    bool file_a = means_file(a), file_b = means_file(b);
    if (file_a != file_b)
        return tool_usage_error(command.name,
                                "%s is no file of rows, but the other is: give two files or two commands",
                                file_a ? b : a);
    if (file_a && compare.pairs_given)
        return tool_usage_error(command.name, "--pairs is for commands: files have the runs that they have");
    if (!file_a && compare.noise_given)
        return tool_usage_error(command.name,
                                "--noise is for files: the runs of commands show their own noise");
    return file_a ? compare_files(&compare, a, b) : compare_commands(&compare, a, b);
}
