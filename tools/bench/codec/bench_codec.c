/* bench_codec.c - `weft bench codec`: ratio, error, time and break-even link speed of each codec. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"
#include "tools/bench/codec/codecbench.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/sweep.h"
#include "tools/bench/lib/table.h"
#include "tools/size.h"

enum { CODECS_MAX = 32, SIZES_MAX = 32 };

static const struct bench_column columns[] = {
    {"codec", "", true},
    {"size", "(B)", false},
    {"ratio", "", false},
    {"error", "", false},
    {"10 steps", "", false},
    {"encode", "(ms)", false},
    {"combine", "(ms)", false},
    {"decode", "(ms)", false},
    {"dense", "(GB/s)", false},
    {"copy", "(GB/s)", false},
    {"pays below", "(Gbit/s)", false},
};

struct settings {
    struct weft_codec_spec specs[CODECS_MAX];
    uint32_t spec_count, size_count, ranks, rounds;
    uint64_t sizes[SIZES_MAX];
    bool json;
};

static int add_codec(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct settings *settings = option->value;
    struct weft_error error = {0};
    if (settings->spec_count == CODECS_MAX)
        return cli_value_error(command, "--codec", text, "one of the first 32");
    if (weft_codec_parse(text, &settings->specs[settings->spec_count], &error) < 0)
        return tool_usage_error(command->name, "%s", error.text);
    settings->spec_count++;
    return -1;
}

static int set_sizes(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct settings *settings = option->value;
    const char *at = text;
    settings->size_count = 0;
    for (;;) {
        char one[32];
        const size_t length = strcspn(at, ",");
        uint64_t bytes = 0;
        snprintf(one, sizeof one, "%.*s", (int)(length < sizeof one ? length : sizeof one - 1), at);
        if (settings->size_count == SIZES_MAX || !tool_size_parse(one, &bytes) || bytes < 64 ||
            bytes > (uint64_t)4 << 30)
            return cli_value_error(command, "--size", text, "a list of at most 32 sizes from 64 to 4G");
        settings->sizes[settings->size_count++] = bytes;
        if (at[length] == '\0') return -1;
        at += length + 1;
    }
}

/* -1: continue; otherwise the exit status. */
static int parse(struct settings *settings, int argc, char **argv)
{
    static const char *const defaults[] = {"f16",
                                           "bf16",
                                           "int8",
                                           "int4",
                                           "e4m3",
                                           "sign",
                                           "powersgd:rank=4",
                                           "topk:ratio=0.01",
                                           "randomk:ratio=0.01"};
    *settings =
        (struct settings){.ranks = 2, .rounds = 9, .size_count = 3, .sizes = {64 << 10, 1 << 20, 16 << 20}};
    const struct cli_option table[] = {
        {"codec", 'c', "SPEC", "codec, as in the options of a tensor (\"powersgd:rank=4\"); may be repeated",
         "f16, bf16, int8, int4, e4m3, sign, powersgd:rank=4, topk:ratio=0.01 and randomk:ratio=0.01",
         CLI_CALL(add_codec, settings)},
        {"size", 's', "LIST", "gradient sizes in bytes of f32, separated by commas", "64K,1M,16M",
         CLI_CALL(set_sizes, settings)},
        {"ranks", 'n', "N", "ranks that contribute", CLI_U32(&settings->ranks, 1, 64)},
        {"rounds", 'r', "N", "timed rounds", CLI_U32(&settings->rounds, 1, 1000)},
        BENCH_JSON_OPTION(&settings->json),
    };
    const struct cli_command command = {
        "weft bench codec", "weft bench codec [options]",
        "Ratio, error and time of each codec on a gradient, on one thread and without a network, and the\n"
        "link speed below which the codec pays.\n",
        CLI_TABLE(table),
        .notes = "Columns: ratio is the bytes of dense over the bytes of one rank. error is the relative\n"
                 "L2 distance of the result from the mean of the gradients in double precision, after one\n"
                 "step and of the sums over 10 steps (a residual returns what a step left out). The\n"
                 "gradient is a matrix of rank 2 that all ranks and steps share, plus as much noise of\n"
                 "each. encode and decode are those of one rank, combine is that of all contributions.\n"
                 "GB/s are dense bytes over the three together. copy is the faster of memcpy and a\n"
                 "non-temporal copy of the gradient, bytes read plus written, measured in the same\n"
                 "rounds. 'pays below' is the speed of a link, per rank and direction, under which an\n"
                 "all-reduce of these ranks ends sooner with the codec, without overlap with computation\n"
                 "and with dense counted as free of work. 'never': the codec moves no fewer bytes.\n"};
    int status = cli_parse(&command, argc, argv, NULL);
    if (status >= 0) return status;
    const struct cli_option all = {.value = settings};
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0] && settings->spec_count == i; i++)
        if ((status = add_codec(&command, &all, defaults[i])) >= 0) return status;
    return -1;
}

static void json_row(const struct settings *settings, const char *codec, const struct codecbench_row *row)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "codec",
        codec, "variant", weft_kernels()->name, "bytes", (json_int_t)row->bytes, "rows",
        (json_int_t)row->rows, "cols", (json_int_t)row->cols, "ranks", (int)settings->ranks,
        "contribution_bytes", (json_int_t)row->contribution_bytes, "ratio", row->ratio, "error", row->error,
        "error_10_steps", row->error_steps, "time_ms", 1e3 * (row->encode_s + row->combine_s + row->decode_s),
        "encode_ms", 1e3 * row->encode_s, "combine_ms", 1e3 * row->combine_s, "decode_ms",
        1e3 * row->decode_s, "dense_GBps", row->gbps, "copy_GBps", row->copy_gbps, "moved_bytes", row->moved,
        "pays_below_Gbps", 8e-9 * row->pays_below);
    bench_row_print(stdout, object, 6);
}

static void table_row(struct bench_table *table, const char *codec, const struct codecbench_row *row)
{
    char size[24];
    tool_size_format(row->bytes, size, sizeof size);
    bench_table_row(table);
    bench_table_cell(table, 0, "%s", codec);
    bench_table_cell(table, 1, "%s", size);
    bench_table_cell(table, 2, "%.1f", row->ratio);
    bench_table_cell(table, 3, "%.1e", row->error);
    bench_table_cell(table, 4, "%.1e", row->error_steps);
    bench_table_cell(table, 5, "%.3f", 1e3 * row->encode_s);
    bench_table_cell(table, 6, "%.3f", 1e3 * row->combine_s);
    bench_table_cell(table, 7, "%.3f", 1e3 * row->decode_s);
    bench_table_cell(table, 8, "%.2f", row->gbps);
    bench_table_cell(table, 9, "%.1f", row->copy_gbps);
    if (row->pays_below > 0) bench_table_cell(table, 10, "%.2f", 8e-9 * row->pays_below);
    else bench_table_cell(table, 10, "never");
}

static void progress(uint32_t done, uint32_t total, const char *codec)
{
    if (!isatty(STDERR_FILENO)) return;
    if (done < total) fprintf(stderr, "\r[%u of %u] %-60.60s", done + 1, total, codec);
    else fprintf(stderr, "\r%-76s\r", "");
    fflush(stderr);
}

int weft_bench_codec_main(int argc, char **argv)
{
    struct settings settings;
    struct bench_table table;
    int answer = parse(&settings, argc, argv);
    if (answer >= 0) return answer;
    answer = 0;
    bench_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    if (!settings.json)
        printf("codecs of %u ranks, one thread, kernels %s, %u rounds\n", settings.ranks,
               weft_kernels()->name, settings.rounds);
    const uint32_t total = settings.spec_count * settings.size_count;
    for (uint32_t i = 0; i < total && answer == 0; i++) {
        const struct codecbench_case wanted = {.spec = &settings.specs[i / settings.size_count],
                                               .bytes = settings.sizes[i % settings.size_count],
                                               .ranks = settings.ranks,
                                               .rounds = settings.rounds};
        struct codecbench_row row;
        const char *sentence;
        char codec[WEFT_CODEC_TEXT_BYTES];
        weft_codec_format(wanted.spec, codec, sizeof codec);
        progress(i, total, codec);
        if (!codecbench_run(&wanted, &row, &sentence)) {
            progress(total, total, "");
            fprintf(stderr, "weft bench codec: %s on %llu bytes of %u ranks: %s\n", codec,
                    (unsigned long long)wanted.bytes, settings.ranks, sentence);
            answer = 1;
            continue;
        }
        weft_codec_format(&row.spec, codec, sizeof codec); /* the spec after resolution for this size */
        if (settings.json) json_row(&settings, codec, &row);
        else table_row(&table, codec, &row);
    }
    progress(total, total, "");
    if (!settings.json) bench_table_print(&table, stdout, "");
    bench_table_free(&table);
    return bench_flush_output("codec") && answer == 0 ? 0 : 1;
}
