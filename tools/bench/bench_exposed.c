/* bench_exposed.c - `weft bench exposed`: time for which a step waits, by cause.
 *
 *   alone    every rank computes for --piece-us; no communication
 *   equal    the same with an all_reduce of -b bytes after the computation
 *   slow     the same, and rank --root computes --late-us longer
 *
 * Rows in turn, --iters steps each, a barrier before each row. Figures: the time of a step, and the time that
 * its ranks waited for other ranks and for the network (weft_stats). Row `slow` has one line for the slow
 * rank and one for the mean of the others. */
#include "tools/bench/bench_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tools/bench/bench_rank.h"
#include "weft/weft.h"

enum { STEP_US, PEERS_US, NETWORK_US, FIGURES };

struct exposed {
    struct bench_rank rank;
    uint64_t iterations; /* iterations of the loop that is the computation */
    uint64_t count;
    float *values; /* (count,) */
    uint64_t step;
    double alone_us;
};

struct row {
    const char *name;
    bool communicates, slow;
};

static void sleep_us(uint64_t us)
{
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

static bool one_step(struct exposed *exposed, const struct row *row)
{
    struct bench_rank *rank = &exposed->rank;
    struct weft_request request = {{0}};
    const struct weft_step step = {.step = ++exposed->step, .lr = 1, .weight = 1};
    enum weft_status status = weft_step_begin(rank->session, &step);
    if (status < 0) return bench_print_failure(rank, "step_begin", status);
    bench_compute(exposed->iterations);
    if (row->slow && rank->rank == rank->options->root) sleep_us(rank->options->straggler_us);
    if (row->communicates) {
        status = weft_all_reduce(rank->session, exposed->values, exposed->values, exposed->count, WEFT_F32,
                                 WEFT_AVG, &request);
        if (!bench_wait(rank, "all_reduce", status, &request)) return false;
    }
    status = weft_step_end(rank->session);
    return status >= 0 || bench_print_failure(rank, "step_end", status);
}

static bool stats_of(struct exposed *exposed, struct weft_stats *stats)
{
    *stats = (struct weft_stats){.size = sizeof *stats};
    enum weft_status status = weft_stats_get(exposed->rank.session, stats);
    return status >= 0 || bench_print_failure(&exposed->rank, "stats_get", status);
}

/* The mean of a step on this rank. */
static bool measure(struct exposed *exposed, const struct row *row, double *figures)
{
    const uint32_t iters = exposed->rank.options->iters;
    struct weft_stats before, after;
    if (!bench_barrier(&exposed->rank) || !stats_of(exposed, &before)) return false;
    for (uint32_t i = 0; i < iters; i++)
        if (!one_step(exposed, row)) return false;
    if (!stats_of(exposed, &after)) return false;
    figures[STEP_US] = (double)(after.step_ns - before.step_ns) / 1e3 / iters;
    figures[PEERS_US] = (double)(after.exposed_peers_ns - before.exposed_peers_ns) / 1e3 / iters;
    figures[NETWORK_US] = (double)(after.exposed_network_ns - before.exposed_network_ns) / 1e3 / iters;
    return true;
}

/* The mean over the ranks that contribute `figures`. */
static bool mean_of(struct exposed *exposed, bool mine, const double *figures, double *mean)
{
    int64_t sums[FIGURES + 1] = {0};
    for (int i = 0; mine && i < FIGURES; i++) sums[i] = (int64_t)(figures[i] * 1000);
    sums[FIGURES] = mine;
    if (!bench_reduce_over_ranks(&exposed->rank, sums, FIGURES + 1, WEFT_SUM)) return false;
    for (int i = 0; i < FIGURES; i++)
        mean[i] = sums[FIGURES] > 0 ? 1e-3 * (double)sums[i] / (double)sums[FIGURES] : 0;
    return true;
}

static void print_row(const struct exposed *exposed, const struct row *row, const char *ranks,
                      const double *mean)
{
    const struct bench_options *options = exposed->rank.options;
    if (exposed->rank.rank != 0) return;
    if (options->report.json)
        printf("{\"measure\": \"exposed\", \"row\": \"%s\", \"of\": \"%s\", \"ranks\": %" PRIu32
               ", \"bytes\": %" PRIu64 ", \"compute_us\": %" PRIu32 ", \"late_us\": %" PRIu32
               ", \"step_us\": %.1f, \"exposed_peers_us\": %.1f, \"exposed_network_us\": %.1f, "
               "\"alone_step_us\": %.1f}\n",
               row->name, ranks, exposed->rank.ranks, row->communicates ? exposed->count * 4 : 0,
               options->compute_us, row->slow ? options->straggler_us : 0, mean[STEP_US], mean[PEERS_US],
               mean[NETWORK_US], exposed->alone_us);
    else
        printf("%-8s %-8s %14.1f %14.1f %14.1f %14.1f\n", row->name, ranks, mean[STEP_US], mean[PEERS_US],
               mean[NETWORK_US], exposed->alone_us);
    fflush(stdout);
}

static bool run_row(struct exposed *exposed, const struct row *row)
{
    struct bench_rank *rank = &exposed->rank;
    const bool is_slow = row->slow && rank->rank == rank->options->root;
    double figures[FIGURES], mean[FIGURES];
    if (!measure(exposed, row, figures) || !mean_of(exposed, !is_slow, figures, mean)) return false;
    if (!row->communicates) exposed->alone_us = mean[STEP_US];
    print_row(exposed, row, row->slow ? "others" : "all", mean);
    if (!row->slow) return true;
    if (!mean_of(exposed, is_slow, figures, mean)) return false;
    print_row(exposed, row, "slow", mean);
    return true;
}

static bool agree_on_iterations(struct exposed *exposed)
{
    int64_t iterations = (int64_t)bench_calibrate_compute(exposed->rank.options->compute_us);
    if (!bench_reduce_over_ranks(&exposed->rank, &iterations, 1, WEFT_SUM)) return false;
    exposed->iterations = (uint64_t)iterations / exposed->rank.ranks;
    return true;
}

static bool run_rows(struct exposed *exposed)
{
    static const struct row warm = {"warm-up", true, false},
                            rows[] = {{"alone", false, false}, {"equal", true, false}, {"slow", true, true}};
    const struct bench_options *options = exposed->rank.options;
    if (!agree_on_iterations(exposed)) return false;
    if (exposed->rank.rank == 0 && !options->report.json) {
        printf("# weft bench exposed: %" PRIu32 " ranks, %" PRIu32
               " us of computation, all_reduce of %" PRIu64 " bytes, rank %" PRIu32 " late by %" PRIu32
               " us in `slow`; us of a step\n",
               exposed->rank.ranks, options->compute_us, exposed->count * 4, options->root,
               options->straggler_us);
        printf("%-8s %-8s %14s %14s %14s %14s\n", "row", "of", "step", "exposed-peers", "exposed-net",
               "step-alone");
    }
    double unused[FIGURES];
    if (!measure(exposed, &warm, unused)) return false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!run_row(exposed, &rows[i])) return false;
    return true;
}

int bench_exposed_run(const struct bench_options *options)
{
    struct exposed exposed = {.rank = {.options = options}, .count = (options->sweep.first + 3) / 4};
    if (!bench_join(&exposed.rank, "weft bench exposed")) return 1;
    bool well = options->root < exposed.rank.ranks;
    if (!well)
        fprintf(stderr, "weft bench exposed: there is no rank %" PRIu32 " (-r) among %" PRIu32 "\n",
                options->root, exposed.rank.ranks);
    exposed.values = well ? weft_alloc(exposed.rank.session, exposed.count * sizeof *exposed.values) : NULL;
    if (well && !exposed.values)
        fprintf(stderr, "weft bench exposed: %s\n", weft_error_text(exposed.rank.session));
    well = exposed.values && run_rows(&exposed);
    weft_finalize(exposed.rank.session);
    return well ? 0 : 1;
}
