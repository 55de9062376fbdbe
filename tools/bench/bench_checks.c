/* bench_checks.c - `weft bench checks`: cost of the checks of a step.
 *
 *   warning     a dense tensor whose gradient that is not finite is a warning, against one without any check
 *   nonfinite   a dense tensor with skip_nonfinite, against one without any check
 *   copies      a tensor with adam while another tensor may skip the step, against the same alone
 *   weights     a step that compares the weights of all ranks (client.hash_every), against one that does not
 *   pushed      weft_step_end with nothing to wait for: the comparison of the tensors that the ranks pushed
 *
 * Both sides of a row are measured in turn, ROUNDS times --iters steps. A time is the mean over the ranks of
 * the median of a rank; the ratio is the median over the rounds. */
#include "tools/bench/bench_job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench_rank.h"
#include "weft/weft.h"

enum { ROUNDS = 5, HASH_EVERY = 10, DUE_STEPS = 5 };

struct checks {
    struct bench_rank rank;
    uint64_t bytes, count; /* of the current size */
    float *grad, *out;     /* (count,) */
    struct weft_request request;
    uint64_t step;
    double *times, *ends; /* (iters,) microseconds: of steps, and of their step_end */
    double end_us;        /* of the last measured step_end */
    uint32_t names;       /* declared tensors; part of their names */
};

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static bool declare(struct checks *checks, const char *name, const char *optimizer, bool skips,
                    uint64_t count, struct weft_tensor **tensor_out)
{
    struct bench_rank *rank = &checks->rank;
    struct weft_tensor_options options;
    char full[48];
    weft_tensor_options_init(&options);
    snprintf(full, sizeof full, "%s%" PRIu32, name, ++checks->names);
    options.name = full;
    options.dim_count = 1;
    options.dims[0] = count;
    options.optimizer = optimizer;
    options.skip_nonfinite = skips;
    const enum weft_status status = weft_declare(rank->session, &options, tensor_out);
    if (status < 0) return bench_print_failure(rank, "declare", status);
    const bool trains = strcmp(optimizer, "none") != 0;
    const enum weft_status set = trains ? weft_tensor_init(*tensor_out, checks->out) : WEFT_OK;
    return set >= 0 || bench_print_failure(rank, "tensor_init", set);
}

/* Whether the next step compares weights. */
static bool next_step_compares(const struct checks *checks)
{
    return (checks->step + 1) % HASH_EVERY == 0;
}

static bool one_step(struct checks *checks, struct weft_tensor *tensor, double *us_out)
{
    struct bench_rank *rank = &checks->rank;
    const struct weft_step step = {.step = ++checks->step, .lr = 0.001f, .weight = 1};
    const double began_us = bench_now_us();
    enum weft_status status = weft_step_begin(rank->session, &step);
    if (status < 0) return bench_print_failure(rank, "step_begin", status);
    status = weft_push_pull(tensor, checks->grad, checks->out, &checks->request);
    if (!bench_wait(rank, "push_pull", status, &checks->request)) return false;
    const double waited_us = bench_now_us();
    status = weft_step_end(rank->session);
    *us_out = bench_now_us() - began_us;
    checks->end_us = bench_now_us() - waited_us;
    return status >= 0 || bench_print_failure(rank, "step_end", status);
}

static bool mean_over_ranks(struct checks *checks, double *us)
{
    int64_t sum = (int64_t)(*us * 1000);
    if (!bench_reduce_over_ranks(&checks->rank, &sum, 1, WEFT_SUM)) return false;
    *us = 1e-3 * (double)sum / checks->rank.ranks;
    return true;
}

/* Steps that compare no weights. */
static bool measure(struct checks *checks, struct weft_tensor *tensor, double *us_out)
{
    const uint32_t iters = checks->rank.options->iters;
    double unused;
    if (!bench_barrier(&checks->rank)) return false;
    for (uint32_t i = 0; i < iters; i++) {
        if (next_step_compares(checks) && !one_step(checks, tensor, &unused)) return false;
        if (!one_step(checks, tensor, &checks->times[i])) return false;
        checks->ends[i] = checks->end_us;
    }
    checks->end_us = median(checks->ends, iters);
    *us_out = median(checks->times, iters);
    return mean_over_ranks(checks, us_out);
}

static bool measure_compared(struct checks *checks, struct weft_tensor *tensor, double *us_out)
{
    double due[DUE_STEPS], unused;
    for (uint32_t i = 0; i < DUE_STEPS; i++) {
        while (!next_step_compares(checks))
            if (!one_step(checks, tensor, &unused)) return false;
        if (!one_step(checks, tensor, &due[i])) return false;
    }
    *us_out = median(due, DUE_STEPS);
    return mean_over_ranks(checks, us_out);
}

static void print_row(const struct checks *checks, const char *check, double without_us, double with_us,
                      double ratio)
{
    const struct bench_options *options = checks->rank.options;
    if (checks->rank.rank != 0) return;
    if (options->report.json)
        printf("{\"measure\": \"checks\", \"check\": \"%s\", \"ranks\": %" PRIu32 ", \"shards\": %" PRIu32
               ", \"bytes\": %" PRIu64 ", \"without_us\": %.1f, \"with_us\": %.1f, \"ratio\": %.3f}\n",
               check, checks->rank.ranks, weft_shards(checks->rank.session), checks->bytes, without_us,
               with_us, ratio);
    else
        printf("%12" PRIu64 "  %-10s %12.1f %12.1f %10.3f\n", checks->bytes, check, without_us, with_us,
               ratio);
    fflush(stdout);
}

/* One warning a tensor: after it, no check runs. */
static bool use_up_warning(struct checks *checks, struct weft_tensor *tensor)
{
    const float before = checks->grad[0];
    double unused;
    checks->grad[0] = NAN;
    const bool well = one_step(checks, tensor, &unused);
    checks->grad[0] = before;
    return well;
}

struct pair {
    double without_us[ROUNDS], with_us[ROUNDS], ratio[ROUNDS];
};

struct pairs {
    struct pair warning, nonfinite, copies, weights;
};

struct arms {
    struct weft_tensor *unchecked, *plain, *trained; /* of one size */
};

static void print_pair(const struct checks *checks, const char *check, struct pair *pair)
{
    for (int i = 0; i < ROUNDS; i++)
        pair->ratio[i] = pair->without_us[i] > 0 ? pair->with_us[i] / pair->without_us[i] : 0;
    print_row(checks, check, median(pair->without_us, ROUNDS), median(pair->with_us, ROUNDS),
              median(pair->ratio, ROUNDS));
}

/* The tensor that may skip exists for one half of the round only, because it makes the job keep copies of the
 * other tensors. */
static bool run_round(struct checks *checks, const struct arms *arms, int round, struct pairs *pairs)
{
    struct weft_tensor *skips;
    struct pair *warning = &pairs->warning, *nonfinite = &pairs->nonfinite, *copies = &pairs->copies,
                *weights = &pairs->weights;
    struct weft_tensor *trained = arms->trained;
    if (!measure(checks, arms->unchecked, &nonfinite->without_us[round]) ||
        !measure(checks, arms->plain, &warning->with_us[round]) ||
        !measure(checks, trained, &copies->without_us[round]))
        return false;
    warning->without_us[round] = nonfinite->without_us[round];
    weights->without_us[round] = copies->without_us[round];
    if (!measure_compared(checks, trained, &weights->with_us[round])) return false;
    if (!declare(checks, "skips", "none", true, checks->count, &skips)) return false;
    if (!measure(checks, skips, &nonfinite->with_us[round]) ||
        !measure(checks, trained, &copies->with_us[round]))
        return false;
    const enum weft_status status = weft_tensor_free(skips);
    return status >= 0 || bench_print_failure(&checks->rank, "tensor_free", status);
}

static bool declare_arms(struct checks *checks, struct arms *arms)
{
    double unused;
    return declare(checks, "unchecked", "none", false, checks->count, &arms->unchecked) &&
           declare(checks, "plain", "none", false, checks->count, &arms->plain) &&
           declare(checks, "adam", "adam", false, checks->count, &arms->trained) &&
           use_up_warning(checks, arms->unchecked) && measure(checks, arms->plain, &unused) &&
           measure(checks, arms->trained, &unused); /* warm-up */
}

static bool run_size(struct checks *checks)
{
    struct pairs pairs;
    struct arms arms;
    double step_us;
    if (!declare_arms(checks, &arms)) return false;
    for (int round = 0; round < ROUNDS; round++)
        if (!run_round(checks, &arms, round, &pairs)) return false;
    print_pair(checks, "warning", &pairs.warning);
    print_pair(checks, "nonfinite", &pairs.nonfinite);
    print_pair(checks, "copies", &pairs.copies);
    print_pair(checks, "weights", &pairs.weights);
    if (!measure(checks, arms.plain, &step_us) || !mean_over_ranks(checks, &checks->end_us)) return false;
    const double others_us = step_us - checks->end_us;
    print_row(checks, "pushed", others_us, step_us, others_us > 0 ? step_us / others_us : 0);
    return true;
}

static bool take_memory(struct checks *checks, uint64_t bytes)
{
    weft_free(checks->rank.session, checks->grad);
    weft_free(checks->rank.session, checks->out);
    checks->count = (bytes + 3) / 4;
    checks->bytes = checks->count * 4;
    checks->grad = weft_alloc(checks->rank.session, checks->bytes);
    checks->out = weft_alloc(checks->rank.session, checks->bytes);
    if (!checks->grad || !checks->out)
        fprintf(stderr, "weft bench checks: %s\n", weft_error_text(checks->rank.session));
    if (!checks->grad || !checks->out) return false;
    for (uint64_t i = 0; i < checks->count; i++) {
        checks->grad[i] = (float)(i % 1000) / 1000 - 0.5f;
        checks->out[i] = (float)(i % 77) / 77;
    }
    return true;
}

static bool run_rows(struct checks *checks)
{
    const struct bench_options *options = checks->rank.options;
    if (checks->rank.rank == 0 && !options->report.json) {
        printf("# weft bench checks: %" PRIu32 " ranks, %" PRIu32 " shards; us of a step, medians of %" PRIu32
               " steps and %d rounds\n",
               checks->rank.ranks, weft_shards(checks->rank.session), options->iters, ROUNDS);
        printf("%12s  %-10s %12s %12s %10s\n", "size (B)", "check", "without (us)", "with (us)", "ratio");
    }
    for (uint64_t bytes = options->sweep.first; bytes <= options->sweep.last && bytes > 0;
         bytes = bench_sweep_next(&options->sweep, bytes))
        if (!take_memory(checks, bytes) || !run_size(checks)) return false;
    return true;
}

int bench_checks_run(const struct bench_options *options)
{
    struct checks checks = {.rank = {.options = options}};
    char every[16];
    snprintf(every, sizeof every, "%d", HASH_EVERY);
    setenv("WEFT_CLIENT_HASH_EVERY", every, 1);
    setenv("WEFT_LOG_LEVEL", "error", 0); /* the warnings of this measurement */
    if (!bench_join(&checks.rank, "weft bench checks")) return 1;
    checks.times = calloc(2 * (size_t)options->iters, sizeof *checks.times);
    checks.ends = checks.times ? checks.times + options->iters : NULL;
    if (!checks.times) fprintf(stderr, "weft bench checks: no memory\n");
    const bool well = checks.times && run_rows(&checks);
    weft_finalize(checks.rank.session);
    free(checks.times);
    return well ? 0 : 1;
}
