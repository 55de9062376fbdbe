/* bench_reduction_order.c - `weft bench reduction-order`: price of a fixed order of sums. all_reduces of one
 * size in turn, round after round: the default, reproducible (one tree of ranks for every plan,
 * docs/collectives.md), and for a 16-bit type with partial sums of 16 bits (ring: rounds at every hop, half
 * the bytes) and of f32 (halving). A ratio above 1 is the price. */
#include "tools/bench/bench.h"
#include "tools/bench/bench_cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench_options.h"
#include "tools/bench/bench_rank.h"
#include "tools/bench/lib/output.h"
#include "tools/bench/lib/rows.h"
#include "tools/bench/lib/sweep.h"
#include "tools/size.h"

enum { ROUNDS_MAX = 99, CALLS = 5 };

static const struct variant {
    const char *name, *plan;
    enum weft_dtype dtype;
    bool reproducible;
    int base; /* the variant it is compared with */
} variants[] = {
    {"f32, as chosen", "auto", WEFT_F32, false, 0},
    {"f32, reproducible", "auto", WEFT_F32, true, 0},
    {"bf16, as chosen", "auto", WEFT_BF16, false, 2},
    {"bf16, reproducible", "auto", WEFT_BF16, true, 2},
    {"bf16, partials of 16 bits (ring)", "ring", WEFT_BF16, false, 4},
    {"bf16, partials of f32 (halving)", "halving", WEFT_BF16, false, 4},
    {"f32, ring", "ring", WEFT_F32, false, 6},
    {"f32, halving", "halving", WEFT_F32, false, 6},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

struct settings {
    uint32_t processes, rounds;
    struct bench_sweep sweep;
    bool json;
};

/* -1: continue; otherwise the exit status. */
static int parse(struct settings *settings, int argc, char **argv)
{
    *settings = (struct settings){.rounds = 9,
                                  .sweep = {.first = 64 << 10, .last = 16 << 20, .factor = 16, .unit = 4}};
    const struct cli_option table[] = {
        BENCH_PROCESSES_OPTION(&settings->processes, 4096),
        {"begin", 'b', "SIZE", "first size of the vector",
         CLI_SIZE(&settings->sweep.first, 4, TOOL_SIZE_MAX)},
        {"end", 'e', "SIZE", "last size", CLI_SIZE(&settings->sweep.last, 4, TOOL_SIZE_MAX)},
        {"factor", 'f', "F", "ratio of a size to the one before",
         CLI_REAL(&settings->sweep.factor, 1.1, 1e6)},
        {"rounds", 0, "N", "rounds of five calls of each kind", CLI_U32(&settings->rounds, 1, ROUNDS_MAX)},
        BENCH_TRANSPORT_OPTION,
        BENCH_JSON_OPTION(&settings->json),
    };
    const struct cli_command command = {
        "weft bench reduction-order", "weft bench reduction-order [options]",
        "Price of reproducible sums, and of f32 partial sums of a 16-bit type: all_reduces in turn,\n"
        "medians of the slowest rank.\n",
        CLI_TABLE(table),
        .notes = "If the ranks share memory, one plan does every sum and reproducible sums are free.\n"};
    int status = cli_parse(&command, argc, argv, NULL);
    if (status >= 0 || settings->sweep.first <= settings->sweep.last) return status;
    return tool_usage_error(command.name, "the first size (--begin) is larger than the last (--end)");
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool time_calls(struct bench_rank *rank, const struct variant *variant, uint64_t bytes, double *us_out)
{
    char plan[32];
    snprintf(plan, sizeof plan, "all_reduce=%s", variant->plan);
    enum weft_status status = weft_set_plan(rank->session, plan);
    if (status < 0) return bench_print_failure(rank, plan, status);
    if (!bench_barrier(rank)) return false;
    double began_us = bench_now_us();
    for (int i = 0; i < CALLS; i++) {
        struct weft_request request = {{0}};
        status = weft_call_start(rank->session,
                                 WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = rank->in, .out = rank->in,
                                           .dtype = variant->dtype,
                                           .count = bytes / weft_dtype_bytes(variant->dtype), .op = WEFT_SUM,
                                           .reproducible = variant->reproducible),
                                 &request);
        if (!bench_wait(rank, variant->name, status, &request)) return false;
    }
    *us_out = (bench_now_us() - began_us) / CALLS;
    return true;
}

static void print_row(const struct settings *settings, const struct bench_rank *rank, uint64_t bytes, int v,
                      const int64_t *ns, const char *taken)
{
    const struct variant *variant = &variants[v];
    double ratio = (double)ns[v] / (double)ns[variant->base];
    if (settings->json)
        bench_row_print(stdout,
                        json_pack("{ss ss sI sI sf ss sf ss}", "op", "orders", "kind", variant->name, "ranks",
                                  (json_int_t)rank->ranks, "bytes", (json_int_t)bytes, "time_us",
                                  (double)ns[v] / 1e3, "plan_taken", taken, "ratio", ratio, "to",
                                  variants[variant->base].name),
                        6);
    else if (variant->base == v)
        printf("%10" PRIu64 "  %-34s %-12s %12.1f\n", bytes, variant->name, taken, (double)ns[v] / 1e3);
    else
        printf("%10" PRIu64 "  %-34s %-12s %12.1f %8.2f of %s\n", bytes, variant->name, taken,
               (double)ns[v] / 1e3, ratio, variants[variant->base].name);
}

static bool measure(struct bench_rank *rank, const struct settings *settings, uint64_t bytes)
{
    static double us[VARIANTS][ROUNDS_MAX];
    const char *taken[VARIANTS];
    double ignored;
    int64_t ns[VARIANTS];
    for (uint32_t round = 0; round <= settings->rounds; round++)
        for (int v = 0; v < VARIANTS; v++) {
            if (!time_calls(rank, &variants[v], bytes, round ? &us[v][round - 1] : &ignored)) return false;
            taken[v] = weft_plan_taken(rank->session);
        }
    for (int v = 0; v < VARIANTS; v++) {
        qsort(us[v], settings->rounds, sizeof us[v][0], by_size);
        ns[v] = (int64_t)(1e3 * us[v][settings->rounds / 2]) + 1;
    }
    if (!bench_reduce_over_ranks(rank, ns, VARIANTS, WEFT_MAX)) return false;
    for (int v = 0; v < VARIANTS && rank->rank == 0; v++)
        print_row(settings, rank, bytes, v, ns, taken[v] ? taken[v] : "-");
    return true;
}

static int take_part(const struct settings *settings)
{
    struct bench_rank rank = {0};
    if (!bench_join(&rank, "weft bench")) return 1;
    rank.in = weft_alloc(rank.session, settings->sweep.last + 64);
    bool fine = rank.in != NULL;
    if (!fine)
        fprintf(stderr, "weft bench reduction-order: no memory for %" PRIu64 " bytes; make -e smaller\n",
                settings->sweep.last);
    if (fine && rank.rank == 0 && !settings->json)
        printf("all_reduce, %" PRIu32 " ranks, sum of zeros in place, medians of %" PRIu32
               " rounds of %d calls\n%10s  %-34s %-12s %12s %8s\n",
               rank.ranks, settings->rounds, CALLS, "bytes", "what", "plan taken", "us", "ratio");
    if (fine) memset(rank.in, 0, settings->sweep.last + 64);
    for (uint64_t size = 0; fine && (size = bench_sweep_next(&settings->sweep, size)) > 0;)
        fine = measure(&rank, settings, size);
    if (rank.in) weft_free(rank.session, rank.in);
    weft_finalize(rank.session);
    return fine && bench_flush_output("reduction-order") ? 0 : 1;
}

int weft_bench_reduction_order_main(int argc, char **argv)
{
    struct settings settings;
    int answer = parse(&settings, argc, argv);
    if (answer >= 0) return answer;
    if (settings.processes > 0)
        return bench_launch(&(struct bench_launch){.processes = settings.processes,
                                                   .bind = "auto",
                                                   .what = "reduction-order",
                                                   .argc = argc,
                                                   .argv = argv});
    if (getenv("WEFT_COORDINATOR")) return take_part(&settings);
    fprintf(
        stderr,
        "weft bench reduction-order: there is no job to take part in; use -n 4 to start one on this host\n");
    return 2;
}
