/* bench_kernels.c - `weft bench kernels`: a table of kernels against copy bandwidth. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/lib/sweep.h"
#include "tools/bench/lib/table.h"
#include "tools/bench/lib/usage.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/kernels/kernelbench.h"
#include "tools/bench/kernels/compare_torch.h"

static const char help[] =
    "usage: weft bench kernels [options]\n\n"
    "Times each kernel on one thread, in turn with a copy that moves as many bytes, and prints the ratio.\n\n"
    "  -c, --count N      elements (default 25M; suffixes K, M, G are powers of 1024, M = 1,048,576)\n"
    "  -r, --rounds N     measured rounds (default 9)\n"
    "  -k, --kernels NAME scalar, avx2, avx512 or avx512bf16 (default: what this processor does best)\n"
    "  -o, --only TEXT    only kernels whose name has this text in it\n"
    "  -b, --beside torch instead: top-k and PowerSGD in turn with torch.topk and the PowerSGD hook of "
    "PyTorch on the same\n"
    "                     data, one thread each (needs Debian's python3-torch); 3 rounds unless --rounds "
    "says otherwise\n"
    "      --json         one JSON object per line instead of the table\n"
    "      --help         this text\n\n"
    "Columns: bytes per element are read plus written (PowerSGD's residual stays in its factors: 12 in the "
    "first product, 4 in\n"
    "the second, 4 in the result); copy is the faster of memcpy and a streaming copy of the same\n"
    "traffic, measured in the same round; ratio is the median over rounds, with the quartiles beside it.\n";

static const struct bench_column columns[] = {
    {"kernel", "", true},        {"elements", "", false},  {"bytes", "/element", false},
    {"time", "ms", false},       {"speed", "GB/s", false}, {"copy", "GB/s", false},
    {"ratio", "of copy", false}, {"25 %", "", false},      {"75 %", "", false},
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
        json_t *object = json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "kernel", row->name,
                                   "variant", out->variant, "elements", (json_int_t)row->count,
                                   "bytes_per_element", row->bytes_per_element, "time_ms", row->time_s * 1e3,
                                   "GBps", row->gbps, "copy_GBps", row->copy_gbps, "ratio", row->ratio,
                                   "ratio_low", row->ratio_low, "ratio_high", row->ratio_high);
        bench_row_print(stdout, object, 6);
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

/* ---- beside PyTorch ---- */

static const struct bench_column beside_columns[] = {
    {"kernel", "", true},  {"beside", "", true},     {"elements", "", false},
    {"weft", "ms", false}, {"PyTorch", "ms", false}, {"faster", "times", false},
    {"25 %", "", false},   {"75 %", "", false},      {"goal", "times", false},
};

static void on_torch(void *context, const char *text)
{
    const struct output *out = context;
    if (!out->json) printf("weft's kernels: %s, one thread; %s\n", out->variant, text);
}

static void on_torch_row(void *context, const struct torch_row *row)
{
    struct output *out = context;
    if (out->json) {
        json_t *object =
            json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "kernel", row->name, "beside",
                      row->peer, "variant", out->variant, "elements", (json_int_t)row->count, "time_ms",
                      row->ours_s * 1e3, "torch_ms", row->theirs_s * 1e3, "ratio", row->ratio, "ratio_low",
                      row->ratio_low, "ratio_high", row->ratio_high, "goal", row->goal);
        bench_row_print(stdout, object, 6);
        return;
    }
    bench_table_row(&out->table);
    bench_table_cell(&out->table, 0, "%s", row->name);
    bench_table_cell(&out->table, 1, "%s", row->peer);
    bench_table_cell(&out->table, 2, "%zu", row->count);
    bench_table_cell(&out->table, 3, "%.3f", row->ours_s * 1e3);
    bench_table_cell(&out->table, 4, "%.3f", row->theirs_s * 1e3);
    bench_table_cell(&out->table, 5, "%.2f", row->ratio);
    bench_table_cell(&out->table, 6, "%.2f", row->ratio_low);
    bench_table_cell(&out->table, 7, "%.2f", row->ratio_high);
    bench_table_cell(&out->table, 8, "%.1f", row->goal);
}

static int run_torch_comparison(const struct kernelbench_options *options, struct output *out)
{
    char reason[300];
    bench_table_init(&out->table, beside_columns, sizeof beside_columns / sizeof beside_columns[0]);
    const bool fine =
        compare_torch(options->count, options->rounds, on_torch, on_torch_row, out, reason, sizeof reason);
    if (!out->json && fine) bench_table_print(&out->table, stdout, "");
    bench_table_free(&out->table);
    if (!fine) fprintf(stderr, "weft bench kernels: nothing beside PyTorch: %s\n", reason);
    return bench_flush_output("kernels") && fine ? 0 : 1;
}

int weft_bench_kernels_main(int argc, char **argv)
{
    static const struct option known[] = {
        {"count", required_argument, NULL, 'c'}, {"rounds", required_argument, NULL, 'r'},
        {"kernels", required_argument, NULL, 'k'}, {"only", required_argument, NULL, 'o'},
        {"beside", required_argument, NULL, 'b'},
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
    };
    struct kernelbench_options options = {.count = 25 << 20};
    struct output out = {0};
    bool compares_torch = false;
    uint64_t number;
    char *end;
    int c;
    optind = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":c:r:k:o:b:h", known, NULL)) != -1) {
        switch (c) {
        case 'c':
            if (!bench_size_parse(optarg, &number) || number < 1024 || number >= (uint64_t)1 << 32)
                return bench_value_error("kernels", "--count", optarg, "a number from 1K to below 4G");
            options.count = number;
            break;
        case 'r':
            number = strtoull(optarg, &end, 10);
            if (*end || number < 1 || number > 1000)
                return bench_value_error("kernels", "--rounds", optarg, "a number from 1 to 1000");
            options.rounds = (uint32_t)number;
            break;
        case 'k':
            options.kernels = weft_kernels_by_name(optarg);
            if (!options.kernels)
                return bench_value_error("kernels", "--kernels", optarg,
                                         "a variant that this processor and build have");
            setenv("WEFT_KERNELS", optarg, 1); /* the codecs choose for themselves */
            break;
        case 'o': options.only = optarg; break;
        case 'b':
            if (strcmp(optarg, "torch") != 0)
                return bench_value_error("kernels", "--beside", optarg, "'torch'");
            compares_torch = true;
            break;
        case 'j': out.json = true; break;
        case 'h': fputs(help, stdout); return 0;
        default: return bench_option_error("kernels", argv, c);
        }
    }
    if (!options.kernels) options.kernels = weft_kernels();
    if (optind < argc) return bench_value_error("kernels", "argument", argv[optind], "an option");
    if (compares_torch && options.only)
        return bench_value_error("kernels", "--only", options.only, "for --beside");
    if (options.rounds == 0) options.rounds = compares_torch ? 3 : 9;
    out.variant = options.kernels->name;
    if (compares_torch) return run_torch_comparison(&options, &out);
    bench_table_init(&out.table, columns, sizeof columns / sizeof columns[0]);
    if (!out.json) printf("kernels: %s, one thread, %u rounds\n", out.variant, options.rounds);
    const bool fine = kernelbench_run(&options, on_row, &out);
    if (!out.json) bench_table_print(&out.table, stdout, "");
    bench_table_free(&out.table);
    if (!fine)
        fprintf(stderr,
                "weft bench kernels: no memory for the buffers of %zu elements: say a smaller --count\n",
                options.count);
    return bench_flush_output("kernels") && fine ? 0 : 1;
}
