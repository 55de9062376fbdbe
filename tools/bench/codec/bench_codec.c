/* bench_codec.c - `weft bench codec`: ratio, error, time and worth of each codec, over tools/bench/codec. */
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tools/bench/bench.h"
#include "tools/bench/lib/sweep.h"
#include "tools/bench/lib/table.h"
#include "tools/bench/lib/usage.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/codec/codecbench.h"

static const char help[] = "usage: weft bench codec [options]\n\n"
                           "What each codec does to a gradient, on one thread and without a network, and "
                           "below which link speed it pays.\n\n"
                           "  -c, --codec SPEC   one codec, as a tensor's options name it "
                           "(\"powersgd:rank=4\"); repeat for several (default:\n"
                           "                     f16, bf16, int8, int4, e4m3, sign, powersgd:rank=4, "
                           "topk:ratio=0.01, randomk:ratio=0.01)\n"
                           "  -s, --size LIST    gradient sizes in bytes of f32, with commas (default "
                           "64K,1M,16M; K, M, G are powers of 1024)\n"
                           "  -n, --ranks N      ranks that contribute (default 2, at most 64)\n"
                           "  -r, --rounds N     timed rounds (default 9)\n"
                           "      --json         one JSON object per line instead of the table\n"
                           "      --help         this text\n\n"
                           "Columns: ratio is dense bytes over one rank's bytes. error is the relative L2 "
                           "distance of the result from the mean of\n"
                           "the gradients in double precision, after one step and of the sums over 10 steps "
                           "(a residual pays back what a step\n"
                           "left out). The gradient is a matrix of rank 2 that all ranks and steps share, "
                           "plus as much noise of each. encode and\n"
                           "decode are one rank's, combine is that of all contributions; GB/s are dense "
                           "bytes over the three together; copy is\n"
                           "the faster of memcpy and a streaming copy of the gradient, bytes read plus "
                           "written, measured in the same rounds.\n"
                           "'pays below' is the speed of a link, per rank and direction, under which an "
                           "all-reduce of these ranks ends\n"
                           "sooner with the codec, nothing hidden behind computation and dense counted as "
                           "free of any work; 'never': it\n"
                           "moves no fewer bytes.\n";

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

static int add_codec(struct settings *settings, const char *text)
{
    struct weft_error error = {0};
    if (settings->spec_count == CODECS_MAX)
        return bench_value_error("codec", "--codec", text, "one of the first 32");
    if (weft_codec_parse(text, &settings->specs[settings->spec_count], &error) < 0) {
        fprintf(stderr, "weft bench codec: %s\n", error.text);
        return 2;
    }
    settings->spec_count++;
    return 0;
}

static int add_sizes(struct settings *settings, const char *text)
{
    const char *at = text;
    settings->size_count = 0;
    for (;;) {
        char one[32];
        const size_t length = strcspn(at, ",");
        uint64_t bytes = 0;
        snprintf(one, sizeof one, "%.*s", (int)(length < sizeof one ? length : sizeof one - 1), at);
        if (settings->size_count == SIZES_MAX || !bench_size_parse(one, &bytes) || bytes < 64 ||
            bytes > (uint64_t)4 << 30)
            return bench_value_error("codec", "--size", text, "a list of at most 32 sizes from 64 to 4G");
        settings->sizes[settings->size_count++] = bytes;
        if (at[length] == '\0') return 0;
        at += length + 1;
    }
}

static int parse_count(const char *option, uint32_t max, uint32_t *out)
{
    char *end, allowed[48];
    const unsigned long number = strtoul(optarg, &end, 10);
    snprintf(allowed, sizeof allowed, "a number from 1 to %u", max);
    if (*end || end == optarg || *optarg == '-' || number < 1 || number > max)
        return bench_value_error("codec", option, optarg, allowed);
    *out = (uint32_t)number;
    return 0;
}

/* -1: go on; else the exit status. */
static int parse(struct settings *settings, int argc, char **argv)
{
    static const struct option known[] = {
        {"codec", required_argument, NULL, 'c'},
        {"size", required_argument, NULL, 's'},
        {"ranks", required_argument, NULL, 'n'},
        {"rounds", required_argument, NULL, 'r'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    static const char *const defaults[] = {"f16",
                                           "bf16",
                                           "int8",
                                           "int4",
                                           "e4m3",
                                           "sign",
                                           "powersgd:rank=4",
                                           "topk:ratio=0.01",
                                           "randomk:ratio=0.01"};
    int c, answer = 0;
    *settings =
        (struct settings){.ranks = 2, .rounds = 9, .size_count = 3, .sizes = {64 << 10, 1 << 20, 16 << 20}};
    optind = 0;
    opterr = 0;
    while (answer == 0 && (c = getopt_long(argc, argv, ":c:s:n:r:h", known, NULL)) != -1) {
        switch (c) {
        case 'c': answer = add_codec(settings, optarg); break;
        case 's': answer = add_sizes(settings, optarg); break;
        case 'n': answer = parse_count("--ranks", 64, &settings->ranks); break;
        case 'r': answer = parse_count("--rounds", 1000, &settings->rounds); break;
        case 'j': settings->json = true; break;
        case 'h': fputs(help, stdout); return 0;
        default: return bench_option_error("codec", argv, c);
        }
    }
    if (answer != 0) return answer;
    if (optind < argc) return bench_value_error("codec", "argument", argv[optind], "an option");
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0] && settings->spec_count == i; i++)
        if ((answer = add_codec(settings, defaults[i])) != 0) return answer;
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
    bench_size_format(row->bytes, size, sizeof size);
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
        weft_codec_format(&row.spec, codec, sizeof codec); /* what it has become */
        if (settings.json) json_row(&settings, codec, &row);
        else table_row(&table, codec, &row);
    }
    progress(total, total, "");
    if (!settings.json) bench_table_print(&table, stdout, "");
    bench_table_free(&table);
    return bench_flush_output("codec") && answer == 0 ? 0 : 1;
}
