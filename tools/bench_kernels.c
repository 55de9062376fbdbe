/* bench_kernels.c - `weft bench kernels`: a table of kernels against copy bandwidth. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/benchlib/sweep.h"
#include "tools/benchlib/table.h"
#include "tools/benchlib/usage.h"
#include "tools/kernelbench/kernelbench.h"

static const char help[] =
    "usage: weft bench kernels [options]\n\n"
    "Times each kernel on one thread, in turn with a copy that moves as many bytes, and prints the ratio.\n\n"
    "  -c, --count N      elements (default 25M; suffixes K, M, G are powers of 1024, M = 1,048,576)\n"
    "  -r, --rounds N     measured rounds (default 9)\n"
    "  -k, --kernels NAME scalar, avx2 or avx512 (default: what this processor does best)\n"
    "  -o, --only TEXT    only kernels whose name has this text in it\n"
    "      --json         one JSON object per line instead of the table\n"
    "      --help         this text\n\n"
    "Columns: bytes per element are read plus written; copy is the faster of memcpy and a streaming copy of the same\n"
    "traffic, measured in the same round; ratio is the median over rounds, with the quartiles beside it.\n";

static const struct bench_column columns[] = {
    {"kernel", "", true}, {"elements", "", false}, {"bytes", "/element", false}, {"time", "ms", false},
    {"speed", "GB/s", false}, {"copy", "GB/s", false}, {"ratio", "of copy", false}, {"25 %", "", false}, {"75 %", "", false},
};

struct output {
    struct bench_table table;
    const char *variant;
    bool json;
};

static void on_row(void *context, const struct kernelbench_row *row)
{
    struct output *out = context;
    if (out->json) {
        json_t *object = json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "kernel", row->name, "variant",
                                   out->variant, "elements", (json_int_t)row->count, "bytes_per_element",
                                   row->bytes_per_element, "time_ms", row->time_s * 1e3, "GBps", row->gbps, "copy_GBps",
                                   row->copy_gbps, "ratio", row->ratio, "ratio_low", row->ratio_low, "ratio_high",
                                   row->ratio_high);
        json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        fputc('\n', stdout);
        fflush(stdout);
        json_decref(object);
        return;
    }
    bench_table_row(&out->table);
    bench_table_cell(&out->table, 0, "%s", row->name);
    bench_table_cell(&out->table, 1, "%zu", row->count);
    bench_table_cell(&out->table, 2, "%.0f", row->bytes_per_element);
    bench_table_cell(&out->table, 3, "%.3f", row->time_s * 1e3);
    bench_table_cell(&out->table, 4, "%.1f", row->gbps);
    bench_table_cell(&out->table, 5, "%.1f", row->copy_gbps);
    bench_table_cell(&out->table, 6, "%.2f", row->ratio);
    bench_table_cell(&out->table, 7, "%.2f", row->ratio_low);
    bench_table_cell(&out->table, 8, "%.2f", row->ratio_high);
}

static int wrong_value(const char *option, const char *value, const char *allowed)
{
    fprintf(stderr, "weft bench kernels: %s '%s' is not %s\n", option, value, allowed);
    return 2;
}

int weft_bench_kernels_main(int argc, char **argv)
{
    static const struct option known[] = {
        {"count", required_argument, NULL, 'c'}, {"rounds", required_argument, NULL, 'r'},
        {"kernels", required_argument, NULL, 'k'}, {"only", required_argument, NULL, 'o'},
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
    };
    struct kernelbench_options options = {.count = 25 << 20, .rounds = 9};
    struct output out = {0};
    uint64_t number;
    char *end;
    int c;
    optind = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":c:r:k:o:h", known, NULL)) != -1) {
        switch (c) {
        case 'c':
            if (!bench_size_parse(optarg, &number) || number < 1024 || number >= (uint64_t)1 << 32)
                return wrong_value("--count", optarg, "a number from 1K to below 4G");
            options.count = number;
            break;
        case 'r':
            number = strtoull(optarg, &end, 10);
            if (*end || number < 1 || number > 1000) return wrong_value("--rounds", optarg, "a number from 1 to 1000");
            options.rounds = (uint32_t)number;
            break;
        case 'k':
            options.kernels = weft_kernels_by_name(optarg);
            if (!options.kernels) return wrong_value("--kernels", optarg, "a variant that this processor and build have");
            setenv("WEFT_KERNELS", optarg, 1); /* the codecs choose for themselves */
            break;
        case 'o': options.only = optarg; break;
        case 'j': out.json = true; break;
        case 'h': fputs(help, stdout); return 0;
        default: return bench_option_error("kernels", argv, c);
        }
    }
    if (!options.kernels) options.kernels = weft_kernels();
    if (optind < argc) return wrong_value("argument", argv[optind], "an option");
    out.variant = options.kernels->name;
    bench_table_init(&out.table, columns, sizeof columns / sizeof columns[0]);
    if (!out.json) printf("kernels: %s, one thread, %u rounds\n", out.variant, options.rounds);
    const bool fine = kernelbench_run(&options, on_row, &out);
    if (!out.json) bench_table_print(&out.table, stdout, "");
    bench_table_free(&out.table);
    if (!fine) fprintf(stderr, "weft bench kernels: no memory for the buffers of %zu elements: say a smaller --count\n", options.count);
    return bench_printed("kernels") && fine ? 0 : 1;
}
