/* bench_kernels.c - `weft bench kernels`: kernels against copy bandwidth, or codecs against PyTorch. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"
#include "tools/bench/kernels/compare_torch.h"
#include "tools/bench/kernels/kernelbench.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/sweep.h"
#include "tools/bench/lib/table.h"
#include "tools/size.h"

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

/* ---- comparison with PyTorch ---- */

static const struct bench_column comparison_columns[] = {
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
    bench_table_init(&out->table, comparison_columns,
                     sizeof comparison_columns / sizeof comparison_columns[0]);
    const bool fine =
        compare_torch(options->count, options->rounds, on_torch, on_torch_row, out, reason, sizeof reason);
    if (!out->json && fine) bench_table_print(&out->table, stdout, "");
    bench_table_free(&out->table);
    if (!fine) fprintf(stderr, "weft bench kernels: no comparison with PyTorch: %s\n", reason);
    return bench_flush_output("kernels") && fine ? 0 : 1;
}

static int set_kernels(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    struct kernelbench_options *options = option->value;
    options->kernels = weft_kernels_by_name(text);
    if (!options->kernels)
        return cli_value_error(command, "--kernels", text, "a variant that this processor and build have");
    setenv("WEFT_KERNELS", text, 1); /* the codecs of the cases select their kernels by it */
    return -1;
}

/* -1: continue; otherwise the exit status. */
static int parse(struct kernelbench_options *options, bool *json, bool *compares_torch, int argc, char **argv)
{
    static const char *const peers[] = {"torch", NULL};
    uint64_t count = options->count;
    uint32_t peer = UINT32_MAX; /* not given */
    const struct cli_option table[] = {
        {"count", 'c', "N", "elements; suffixes K, M, G are powers of 1024",
         CLI_SIZE(&count, 1024, ((uint64_t)1 << 32) - 1)},
        {"rounds", 'r', "N", "measured rounds", "9; with --compare 3", CLI_U32(&options->rounds, 1, 1000)},
        {"kernels", 'k', "NAME", "scalar, avx2, avx512 or avx512bf16", "the fastest of this processor",
         CLI_CALL(set_kernels, options)},
        {"only", 'o', "TEXT", "text that the names of the measured kernels contain", "",
         CLI_TEXT(&options->only)},
        {"compare", 'b', "PEER",
         "torch: top-k and PowerSGD in turn with torch.topk and the PowerSGD hook of PyTorch on the same "
         "data, one "
         "thread each (requires python3-torch of Debian)",
         "", CLI_CHOICE(&peer, peers)},
        {"beside", 0, "PEER", CLI_CHOICE(&peer, peers), .new_name = "compare"},
        BENCH_JSON_OPTION(json),
    };
    const struct cli_command command = {
        "weft bench kernels", "weft bench kernels [options]",
        "Times each kernel on one thread, in turn with a copy of as many bytes, and prints the ratio.\n",
        CLI_TABLE(table),
        .notes = "Columns: bytes per element are read plus written (PowerSGD's residual is kept in its\n"
                 "factors: 12 in the first product, 4 in the second, 4 in the result). copy is the faster\n"
                 "of memcpy and a non-temporal copy of the same traffic, measured in the same round.\n"
                 "ratio is the median over the rounds, then the quartiles.\n"};
    int status = cli_parse(&command, argc, argv, NULL);
    if (status >= 0) return status;
    options->count = count;
    *compares_torch = peer != UINT32_MAX;
    if (*compares_torch && options->only)
        return tool_usage_error(command.name, "--only '%s' is not for --compare", options->only);
    return -1;
}

int weft_bench_kernels_main(int argc, char **argv)
{
    struct kernelbench_options options = {.count = 25 << 20};
    struct output out = {0};
    bool compares_torch = false;
    int status = parse(&options, &out.json, &compares_torch, argc, argv);
    if (status >= 0) return status;
    if (!options.kernels) options.kernels = weft_kernels();
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
                "weft bench kernels: no memory for the buffers of %zu elements: use a smaller --count\n",
                options.count);
    return bench_flush_output("kernels") && fine ? 0 : 1;
}
