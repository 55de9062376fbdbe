/* kernel_check.c - the tests and the benchmark of the kernels as one program that needs a compiler and, for
 * the GPU, CUDA's runtime: for machines with a GPU and nothing else. kernels/cuda/standalone/build.sh makes
 * it. */
#include <getopt.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/cuda/bench_device.h"
#include "tests/kernels/cuda/device_check.h"
#include "tools/bench/kernels/kernelbench.h"

static const char help[] =
    "usage: kernel_check [--test] [--bench] [options]\n\n"
    "Tests and measures weft's kernels: the CPU's on any machine, the GPU's where there is one.\n\n"
    "      --test         run the tests: every CPU variant and every GPU kernel against the scalar kernels, "
    "bit for bit\n"
    "      --bench        time each kernel in turn with a copy that moves as many bytes\n"
    "                     (neither: both)\n"
    "      --only TEXT    measure only kernels whose name has this text in it\n"
    "      --count N      elements to measure with (default 26214400)\n"
    "      --rounds N     measured rounds (default 9)\n"
    "      --cpu          leave the GPU alone\n"
    "      --gpu          leave the CPU's kernels alone\n"
    "      --json         results as one JSON object per line\n"
    "      --help         this text\n\n"
    "Columns: bytes per element are read plus written; copy is a copy of the same traffic measured in the "
    "same round\n"
    "(CPU: the faster of memcpy and a streaming copy, one thread; GPU: device to device); ratio is the "
    "median over rounds.\n"
    "Ends with 0 when all tests that could run passed.\n";

jmp_buf plain_failed;
unsigned check_one_in = 1;
static bool json;

int cpu_test_cast(void), cpu_test_tree_reduce(void), cpu_test_lowbit(void), cpu_test_optimizer(void),
    cpu_test_orthogonalise(void);
int cpu_test_quantise(void), cpu_test_select(void), cpu_test_variants(void);

int plain_run(const struct CMUnitTest *tests, size_t count)
{
    static volatile int failed;
    failed = 0;
    for (volatile size_t i = 0; i < count; i++) {
        void *state = NULL;
        const bool passed = setjmp(plain_failed) == 0;
        if (passed) tests[i].run(&state);
        if (json) printf("{\"test\":\"%s\",\"passed\":%s}\n", tests[i].name, passed ? "true" : "false");
        else printf("    %-34s %s\n", tests[i].name, passed ? "passed" : "FAILED");
        fflush(stdout);
        failed += !passed;
    }
    return failed;
}

struct group {
    const char *name;
    int (*run)(void);
};

static int run_groups(const struct group *groups, size_t count)
{
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        if (!json) printf("  %s\n", groups[i].name);
        failed += groups[i].run();
    }
    return failed;
}

static int run_tests(bool host, bool device)
{
    static const struct group cpu[] = {
        {"cpu: variants against scalar", cpu_test_variants},
        {"cpu: casts", cpu_test_cast},
        {"cpu: quantisers", cpu_test_quantise},
        {"cpu: narrow floats and signs", cpu_test_lowbit},
        {"cpu: select", cpu_test_select},
        {"cpu: orthogonalise", cpu_test_orthogonalise},
        {"cpu: tree reduce", cpu_test_tree_reduce},
        {"cpu: update rules", cpu_test_optimizer},
    };
    static const struct group gpu[] = {
        {"gpu: memory by kind, streams, events", check_memory_kinds},
        {"gpu: sums, casts, quantisers", check_elementwise},
        {"gpu: tables of small tensors", check_segments},
        {"gpu: top-k, random-k", check_select},
        {"gpu: products, orthogonalise", check_products},
        {"gpu: update rules", check_optimizer},
        {"gpu: more than 2^31 bytes", check_large},
    };
    int failed = host ? run_groups(cpu, sizeof cpu / sizeof cpu[0]) : 0;
    if (device) failed += run_groups(gpu, sizeof gpu / sizeof gpu[0]);
    if (!json) printf(failed ? "%d tests FAILED\n" : "all tests passed\n", failed);
    return failed;
}

static void on_row(void *context, const struct kernelbench_row *row)
{
    const char *where = context;
    if (json)
        printf("{\"on\":\"%s\",\"kernel\":\"%s\",\"elements\":%zu,\"bytes_per_element\":%g,\"time_ms\":%.6g,"
               "\"GBps\":%.6g,"
               "\"copy_GBps\":%.6g,\"ratio\":%.4g,\"ratio_low\":%.4g,\"ratio_high\":%.4g}\n",
               where, row->name, row->count, row->bytes_per_element, row->time_s * 1e3, row->gbps,
               row->copy_gbps, row->ratio, row->ratio_low, row->ratio_high);
    else
        printf("%-4s %-32s %10zu %7.2f %10.4f %9.1f %9.1f %7.2f %6.2f %6.2f\n", where, row->name, row->count,
               row->bytes_per_element, row->time_s * 1e3, row->gbps, row->copy_gbps, row->ratio,
               row->ratio_low, row->ratio_high);
    fflush(stdout);
}

static bool run_bench(struct kernelbench_options *options, bool host, bool device)
{
    char cpu[] = "cpu", gpu[] = "gpu";
    options->kernels = weft_kernels();
    if (!json)
        printf("\ncpu kernels: %s, one thread; %u rounds\n%-4s %-32s %10s %7s %10s %9s %9s %7s %6s %6s\n",
               options->kernels->name, options->rounds, "on", "kernel", "elements", "B/elem", "ms", "GB/s",
               "copy", "ratio", "25 %", "75 %");
    const bool fine =
        (!host || kernelbench_run(options, on_row, cpu)) && (!device || bench_device(options, on_row, gpu));
    if (!fine)
        fprintf(stderr, "kernel_check: no memory for %zu elements; use a smaller --count\n", options->count);
    return fine;
}

static bool number(const char *text, uint64_t low, uint64_t high, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && *end == 0 && *out >= low && *out <= high) return true;
    fprintf(stderr, "kernel_check: '%s' is not a number from %llu to %llu\n", text, (unsigned long long)low,
            (unsigned long long)high);
    return false;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        {"test", no_argument, NULL, 't'},
        {"bench", no_argument, NULL, 'b'},
        {"only", required_argument, NULL, 'o'},
        {"count", required_argument, NULL, 'c'},
        {"rounds", required_argument, NULL, 'r'},
        {"cpu", no_argument, NULL, 'p'},
        {"gpu", no_argument, NULL, 'g'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct kernelbench_options options = {.count = 25 << 20, .rounds = 9};
    bool test = false, bench = false, cpu_only = false, gpu_only = false;
    uint64_t value;
    char device_text[200] = "left alone";
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (c) {
        case 't': test = true; break;
        case 'b': bench = true; break;
        case 'o': options.only = optarg; break;
        case 'c':
            if (!number(optarg, 1024, UINT32_MAX, &value)) return 2;
            options.count = value;
            break;
        case 'r':
            if (!number(optarg, 1, 1000, &value)) return 2;
            options.rounds = (uint32_t)value;
            break;
        case 'p': cpu_only = true; break;
        case 'g': gpu_only = true; break;
        case 'j': json = true; break;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("kernel_check: see --help\n", stderr); return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "kernel_check: '%s' is no option; see --help\n", argv[optind]);
        return 2;
    }
    if (!test && !bench) test = bench = true;
    const bool device = !cpu_only && check_device_open(device_text, sizeof device_text);
    if (json) printf("{\"device\":%s,\"text\":\"%s\"}\n", device ? "true" : "false", device_text);
    else if (device) printf("gpu: %s\n", device_text);
    else printf("no GPU is used (%s): the CPU's part alone\n", device_text);
    if (gpu_only && !device) {
        fprintf(stderr, "kernel_check: --gpu, but there is no GPU to use\n");
        return 2;
    }
    const int failed = test ? run_tests(!gpu_only, device) : 0;
    const bool fine = !bench || run_bench(&options, !gpu_only, device);
    return failed > 0 || !fine ? 1 : 0;
}
