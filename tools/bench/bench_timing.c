/* bench_timing.c - see bench_rank.h.
 *
 * Every operation is timed on every rank, from its start to the end of wait, and the printed figure combines
 * all ranks. Percentiles are, as in the OSU benchmarks, those of the mean over the ranks of each iteration.
 * Timed operations run on zeros: in place, repeated sums of other values would overflow. */
#include "tools/bench/bench_rank.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool bench_print_failure(const struct bench_rank *rank, const char *what, enum weft_status status)
{
    const char *text = weft_error_text(rank->session);
    fprintf(stderr, "weft bench: rank %" PRIu32 ", %s: %s\n", rank->rank, what,
            text && *text ? text : weft_status_text(status));
    return false;
}

bool bench_wait(const struct bench_rank *rank, const char *what, enum weft_status started,
                struct weft_request *request)
{
    enum weft_status status = started < 0 ? started : weft_wait(request, 0);
    return status < 0 ? bench_print_failure(rank, what, status) : true;
}

bool bench_join(struct bench_rank *rank, const char *name)
{
    if (weft_init(NULL, &rank->session) < 0) {
        fprintf(stderr, "%s: %s\n", name, weft_error_text(NULL));
        return false;
    }
    rank->rank = weft_rank(rank->session);
    rank->ranks = weft_ranks(rank->session);
    return true;
}

bool bench_barrier(struct bench_rank *rank)
{
    struct weft_request request = {{0}};
    return bench_wait(rank, "barrier", weft_barrier(rank->session, &request), &request);
}

bool bench_reduce_over_ranks(struct bench_rank *rank, int64_t *values, uint64_t count, enum weft_op op)
{
    struct weft_request request = {{0}};
    return bench_wait(rank, "agreement",
                      weft_all_reduce(rank->session, values, values, count, WEFT_I64, op, &request),
                      &request);
}

/* ---- one operation; *us_out: from start to the end of wait ---- */

static bool operation_once(struct bench_rank *rank, uint32_t together, double *us_out)
{
    const char *name = rank->args.operation->name;
    enum weft_status status = WEFT_OK;
    double started = bench_now_us();
    for (uint32_t i = 0; i < together; i++) {
        if ((status = bench_args_start(&rank->args, rank->session, &rank->calls[i])) < 0)
            return bench_print_failure(rank, name, status);
    }
    for (uint32_t i = 0; i < together; i++) {
        if ((status = bench_call_wait(&rank->calls[i])) < 0) return bench_print_failure(rank, name, status);
    }
    *us_out = (bench_now_us() - started) / together;
    return true;
}

static bool push_pull_once(struct bench_rank *rank, double *us_out)
{
    struct weft_request request = {{0}};
    struct weft_step step = {.step = ++rank->step, .lr = 1, .weight = 1};
    double began = bench_now_us();
    enum weft_status status = weft_step_begin(rank->session, &step);
    if (status < 0) return bench_print_failure(rank, "step_begin", status);
    double started = bench_now_us();
    if (!bench_wait(rank, "push_pull", weft_push_pull(rank->tensor, rank->in, rank->out, &request), &request))
        return false;
    double ended = bench_now_us();
    status = weft_step_end(rank->session);
    if (status < 0) return bench_print_failure(rank, "step_end", status);
    *us_out = ended - started;
    rank->step_us += bench_now_us() - began;
    return true;
}

static bool run_once(struct bench_rank *rank, uint32_t together, double *us_out)
{
    return rank->options->kind == BENCH_PUSH_PULL ? push_pull_once(rank, us_out)
                                                  : operation_once(rank, together, us_out);
}

/* ---- iterations ---- */

bool bench_average_over_ranks(struct bench_rank *rank, double us, double *us_out)
{
    static const enum weft_op ops[] = {[BENCH_AVERAGE_RANK_0] = WEFT_SUM,
                                       [BENCH_AVERAGE_MEAN] = WEFT_SUM,
                                       [BENCH_AVERAGE_MIN] = WEFT_MIN,
                                       [BENCH_AVERAGE_MAX] = WEFT_MAX};
    enum bench_average how = rank->options->average;
    int64_t nanoseconds = how == BENCH_AVERAGE_RANK_0 && rank->rank != 0 ? 0 : (int64_t)(1e3 * us);
    if (!bench_reduce_over_ranks(rank, &nanoseconds, 1, ops[how])) return false;
    *us_out = 1e-3 * (double)nanoseconds / (how == BENCH_AVERAGE_MEAN ? rank->ranks : 1);
    return true;
}

static bool summarise(struct bench_rank *rank, struct bench_summary *summary)
{
    uint32_t iters = rank->options->iters;
    for (uint32_t i = 0; i < iters; i++) rank->reduced[i] = (int64_t)(1e3 * rank->times[i]);
    if (!bench_reduce_over_ranks(rank, rank->reduced, iters, WEFT_SUM)) return false;
    for (uint32_t i = 0; i < iters; i++) rank->times[i] = 1e-3 * (double)rank->reduced[i] / rank->ranks;
    *summary = bench_summarise(rank->times, iters);
    return true;
}

bool bench_time(struct bench_rank *rank, struct bench_timing *timing)
{
    const struct bench_options *options = rank->options;
    double ignored, total = 0;
    size_t bytes = rank->args.total_elems * weft_dtype_bytes(rank->args.dtype);
    memset(rank->in, 0, bytes);
    memset(rank->out, 0, bytes);
    for (uint32_t i = 0; i < options->warmup; i++) {
        if (!run_once(rank, options->inflight, &ignored)) return false;
    }
    if (!bench_barrier(rank)) return false;
    rank->step_us = 0;
    double cpu = bench_cpu_us();
    for (uint32_t i = 0; i < options->iters; i++) {
        if (!run_once(rank, options->inflight, &rank->times[i])) return false;
        total += rank->times[i];
        if (options->blocking && i + 1 < options->iters && !bench_barrier(rank)) return false;
    }
    const struct bench_operation *operation = rank->args.operation;
    /* read before the reductions over the ranks below */
    rank->last_plan = operation->plans_of ? weft_plan_taken(rank->session) : NULL;
    int64_t cpu_ns = (int64_t)(1e3 * (bench_cpu_us() - cpu) / options->iters / options->inflight);
    if (!bench_average_over_ranks(rank, total / options->iters, &timing->time_us) ||
        !bench_reduce_over_ranks(rank, &cpu_ns, 1, WEFT_SUM))
        return false;
    timing->has_value = true;
    timing->cpu_us = 1e-3 * (double)cpu_ns;
    return summarise(rank, &timing->summary);
}

bool bench_check(struct bench_rank *rank, struct bench_timing *timing)
{
    double ignored;
    for (uint32_t i = 0; i < rank->options->checks; i++) {
        uint32_t salt = ++rank->salt;
        bench_args_fill_input(&rank->args, salt);
        if (!run_once(rank, 1, &ignored)) return false;
        int64_t wrong = (int64_t)bench_args_count_wrong(&rank->args, salt);
        if (!bench_reduce_over_ranks(rank, &wrong, 1, WEFT_SUM)) return false;
        timing->wrong += (uint64_t)wrong;
        timing->checked = true;
    }
    return true;
}

/* Computes as long as an operation takes, first alone, then after an operation has been started. */
bool bench_overlap(struct bench_rank *rank, double time_us, struct bench_overlap *overlap)
{
    uint64_t iterations = bench_calibrate_compute(time_us);
    double compute = 0, start = 0, wait = 0, overall = 0;
    uint32_t iters = rank->options->iters;
    if (!bench_barrier(rank)) return false;
    for (uint32_t i = 0; i < iters; i++) {
        double began = bench_now_us();
        bench_compute(iterations);
        compute += bench_now_us() - began;
    }
    if (!bench_barrier(rank)) return false;
    for (uint32_t i = 0; i < iters; i++) {
        double began = bench_now_us();
        enum weft_status status = bench_args_start(&rank->args, rank->session, rank->calls);
        double started = bench_now_us();
        if (status < 0) return bench_print_failure(rank, rank->args.operation->name, status);
        bench_compute(iterations);
        double computed = bench_now_us();
        if ((status = bench_call_wait(rank->calls)) < 0)
            return bench_print_failure(rank, rank->args.operation->name, status);
        double ended = bench_now_us();
        start += started - began;
        wait += ended - computed;
        overall += ended - began;
    }
    overlap->has_value = true;
    if (!bench_average_over_ranks(rank, compute / iters, &overlap->compute_us) ||
        !bench_average_over_ranks(rank, overall / iters, &overlap->overall_us) ||
        !bench_average_over_ranks(rank, start / iters, &overlap->start_us) ||
        !bench_average_over_ranks(rank, wait / iters, &overlap->wait_us))
        return false;
    double shown = time_us > 0 ? 100 * (1 - (overlap->overall_us - overlap->compute_us) / time_us) : 0;
    overlap->percent = shown < 0 ? 0 : shown > 100 ? 100 : shown;
    return true;
}
