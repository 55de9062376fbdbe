/* bench_job.c - see bench_job.h.
 *
 * Each size: warm up, then time every operation by itself (start to end of wait) on every rank, then
 * one more operation on fresh contents whose result is checked element by element. All ranks time alike; the mean goes
 * through an all-reduce, so a fast rank 0 cannot flatter the table. Timed operations run on zeros: in
 * place, sums of anything else would grow to infinity. */
#include "tools/bench_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench_pattern.h"
#include "tools/bench_report.h"
#include "tools/benchlib/usage.h"
#include "weft/weft.h"

struct job {
    const struct bench_options *options;
    struct weft_session *session;
    uint32_t rank, ranks;
    void *in, *out;              /* owned by weft_alloc; sweep.last bytes each */
    double *times;               /* (iters,) microseconds */
    struct weft_tensor *tensor;  /* push_pull: of the size at hand */
    uint64_t step;
    double step_us;              /* push_pull: sum of whole steps while timing */
    struct bench_report report;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static bool fail(const struct job *job, const char *what, enum weft_status status)
{
    const char *text = weft_error_text(job->session);
    fprintf(stderr, "weft bench: rank %" PRIu32 ", %s: %s\n", job->rank, what, text && *text ? text : weft_status_text(status));
    return false;
}

static bool wait_done(const struct job *job, const char *what, enum weft_status started, struct weft_request *request)
{
    enum weft_status status = started < 0 ? started : weft_wait(request, 0);
    return status < 0 ? fail(job, what, status) : true;
}

static bool agree_sum(struct job *job, int64_t *values, uint64_t count)
{
    struct weft_request request = {{0}};
    return wait_done(job, "agreement", weft_all_reduce(job->session, values, values, count, WEFT_I64, WEFT_SUM, &request), &request);
}

static bool barrier(struct job *job)
{
    struct weft_request request = {{0}};
    return wait_done(job, "barrier", weft_barrier(job->session, &request), &request);
}

/* ---- the two operations; *us_out: start to end of wait ---- */

static bool all_reduce_once(struct job *job, uint64_t count, bool in_place, double *us_out)
{
    struct weft_request request = {{0}};
    double started = now_us();
    enum weft_status status = weft_all_reduce(job->session, in_place ? job->out : job->in, job->out, count, job->options->dtype,
                                              job->options->op, &request);
    if (!wait_done(job, "all_reduce", status, &request)) return false;
    *us_out = now_us() - started;
    return true;
}

static bool push_pull_once(struct job *job, double *us_out)
{
    struct weft_request request = {{0}};
    struct weft_step step = {.step = ++job->step, .lr = 1, .weight = 1};
    double began = now_us();
    enum weft_status status = weft_step_begin(job->session, &step);
    if (status < 0) return fail(job, "step_begin", status);
    double started = now_us();
    if (!wait_done(job, "push_pull", weft_push_pull(job->tensor, job->in, job->out, &request), &request)) return false;
    double ended = now_us();
    status = weft_step_end(job->session);
    if (status < 0) return fail(job, "step_end", status);
    *us_out = ended - started;
    job->step_us += now_us() - began;
    return true;
}

static bool run_once(struct job *job, uint64_t count, bool in_place, double *us_out)
{
    return job->options->kind == BENCH_ALL_REDUCE ? all_reduce_once(job, count, in_place, us_out) : push_pull_once(job, us_out);
}

static bool declare_size(struct job *job, uint64_t count)
{
    char name[48];
    snprintf(name, sizeof(name), "bench.%" PRIu64, count);
    struct weft_tensor_options declared;
    weft_tensor_options_init(&declared);
    declared.name = name;
    declared.dim_count = 1;
    declared.dims[0] = count;
    declared.mode = WEFT_MODE_SERVER;
    enum weft_status status = weft_declare(job->session, &declared, &job->tensor);
    return status < 0 ? fail(job, "declare", status) : true;
}

/* ---- one row ---- */

static bool time_size(struct job *job, uint64_t count, bool in_place, struct bench_timing *timing)
{
    const struct bench_options *options = job->options;
    uint64_t bytes = count * weft_dtype_bytes(options->dtype);
    double ignored, total = 0;
    memset(job->in, 0, bytes);
    memset(job->out, 0, bytes);
    for (uint32_t i = 0; i < options->warmup; i++) {
        if (!run_once(job, count, in_place, &ignored)) return false;
    }
    if (!barrier(job)) return false;
    job->step_us = 0;
    for (uint32_t i = 0; i < options->iters; i++) {
        if (!run_once(job, count, in_place, &job->times[i])) return false;
        total += job->times[i];
    }
    int64_t nanoseconds = (int64_t)(1000 * total / options->iters);
    if (!agree_sum(job, &nanoseconds, 1)) return false;
    timing->time_us = 1e-3 * (double)nanoseconds / job->ranks;
    timing->summary = bench_summarise(job->times, options->iters);
    timing->algbw = (double)bytes / timing->time_us * 1e-3;
    double factor = 2.0 * (job->ranks - 1) / job->ranks;
    if (options->kind == BENCH_PUSH_PULL) {
        uint32_t shards = weft_shards(job->session);
        factor = job->ranks > shards ? (double)job->ranks / shards : 1;
    }
    timing->busbw = timing->algbw * factor;
    return true;
}

static bool check_size(struct job *job, uint64_t count, bool in_place, uint32_t salt, uint64_t *wrong_out)
{
    const struct bench_options *options = job->options;
    double ignored;
    void *from = in_place ? job->out : job->in;
    memset(job->out, 0xa5, count * weft_dtype_bytes(options->dtype));
    bench_pattern_fill(from, count, options->dtype, job->rank, job->ranks, salt);
    if (!run_once(job, count, in_place, &ignored)) return false;
    enum weft_op op = options->kind == BENCH_PUSH_PULL ? WEFT_AVG : options->op;
    int64_t wrong = (int64_t)bench_pattern_check(job->out, count, options->dtype, op, job->ranks, salt);
    if (!agree_sum(job, &wrong, 1)) return false;
    *wrong_out = (uint64_t)wrong;
    return true;
}

static bool run_size(struct job *job, uint64_t bytes, uint32_t salt)
{
    uint64_t count = bytes / weft_dtype_bytes(job->options->dtype);
    struct bench_row row = {.bytes = bytes, .count = count};
    if (job->options->kind == BENCH_PUSH_PULL && !declare_size(job, count)) return false;
    if (job->options->explain && job->rank == 0 && !job->options->json) {
        char text[640];
        if (weft_explain(job->session, bench_kind_name(job->options->kind), count, job->options->dtype, text, sizeof text) == WEFT_OK)
            fprintf(job->report.out, "# %s\n", text);
    }
    if (!time_size(job, count, false, &row.out_of_place)) return false;
    row.step_us = job->step_us / job->options->iters;
    if (job->options->kind == BENCH_ALL_REDUCE) row.plan_taken = weft_plan_taken(job->session);
    if (!check_size(job, count, false, salt, &row.out_of_place.wrong)) return false;
    if (job->options->kind == BENCH_ALL_REDUCE) {
        if (!time_size(job, count, true, &row.in_place)) return false;
        if (!check_size(job, count, true, salt + 1, &row.in_place.wrong)) return false;
    }
    if (job->rank == 0) bench_report_row(&job->report, &row);
    else job->report.wrong += row.out_of_place.wrong + row.in_place.wrong;
    return true;
}

/* What this host's memory can do at the largest footprint, measured while the other ranks wait. */
static double copy_bandwidth(struct job *job)
{
    enum { ROUNDS = 5 };
    double best = 0;
    uint64_t bytes = job->options->sweep.last;
    uint64_t repeats = bytes < (1 << 20) ? (1 << 20) / bytes + 1 : 1;
    for (int round = 0; round < ROUNDS; round++) {
        double started = now_us();
        for (uint64_t i = 0; i < repeats; i++) {
            memcpy(job->out, job->in, bytes);
            __asm__ volatile("" ::: "memory"); /* each copy is made */
        }
        double gbps = 2e-3 * (double)(bytes * repeats) / (now_us() - started);
        if (gbps > best) best = gbps;
    }
    return best;
}

/* What the links are, each way once: "shm mapped, other memory by CMA", "ucx tcp/eth0". Reasons against other ways are left out. */
static void name_transport(struct job *job)
{
    enum { TRIES = 200, TRY_NS = 10000000 }; /* 2 s: a neighbour that the barrier did not wait for may meet us a little later */
    static char text[64 << 10];
    char *rest = text, *line, *into = job->report.transport;
    size_t room = sizeof job->report.transport;
    snprintf(into, room, "none");
    for (int i = 0; i < TRIES; i++) {
        if (weft_describe_links(job->session, text, sizeof text) < 0) return;
        if (!strstr(text, "not met yet")) break;
        nanosleep(&(struct timespec){.tv_nsec = TRY_NS}, NULL);
    }
    for (size_t at = 0; (line = strtok_r(rest, "\n", &rest));) {
        char *way = strstr(line, "): "), *reasons;
        way = way ? way + 3 : line;
        if ((reasons = strstr(way, " (not "))) *reasons = 0;
        if (at > 0 && strstr(into, way)) continue;
        at += (size_t)snprintf(into + at, room - at, "%s%s", at > 0 ? "; " : "", way);
        if (at >= room) return;
    }
}

static bool run_sweep(struct job *job)
{
    const struct bench_options *options = job->options;
    enum weft_status status = weft_set_plan(job->session, options->plan);
    if (status < 0) return fail(job, "plan", status);
    if (!barrier(job)) return false;
    if (job->rank == 0) {
        job->report.copy_gbps = copy_bandwidth(job);
        name_transport(job);
        bench_report_begin(&job->report);
    }
    if (!barrier(job)) return false;
    uint32_t salt = 1;
    for (uint64_t bytes = 0; (bytes = bench_sweep_next(&options->sweep, bytes)) != 0; salt += 2) {
        if (!run_size(job, bytes, salt)) return false;
    }
    return job->rank != 0 || (bench_report_end(&job->report) || bench_printed(bench_kind_name(options->kind)));
}

static bool prepare(struct job *job)
{
    const struct bench_options *options = job->options;
    if (options->kind == BENCH_PUSH_PULL && weft_shards(job->session) == 0) {
        fprintf(stderr, "weft bench: push_pull needs shards; start the job with `weft run -s 1 ...` or use -n and -s\n");
        return false;
    }
    if (job->ranks > bench_pattern_ranks_max(options->dtype)) {
        fprintf(stderr, "weft bench: sums over %" PRIu32 " ranks are not exact in %s, so they cannot be checked; use f32\n", job->ranks,
                weft_dtype_name(options->dtype));
        return false;
    }
    size_t room = options->sweep.last > 8 ? options->sweep.last : 8;
    job->in = weft_alloc(job->session, room);
    job->out = weft_alloc(job->session, room);
    job->times = calloc(options->iters, sizeof(*job->times));
    if (job->in && job->out && job->times) return true;
    fprintf(stderr, "weft bench: out of memory for two buffers of %zu bytes; make -e smaller\n", room);
    return false;
}

int bench_job_run(const struct bench_options *options)
{
    struct job job = {.options = options};
    struct weft_options joining;
    weft_options_init(&joining);
    enum weft_status status = weft_init(&joining, &job.session);
    if (status < 0) {
        fprintf(stderr, "weft bench: %s\n", weft_error_text(NULL));
        return 1;
    }
    job.rank = weft_rank(job.session);
    job.ranks = weft_ranks(job.session);
    job.report = (struct bench_report){.out = stdout, .options = options, .ranks = job.ranks, .shards = weft_shards(job.session)};
    bool fine = prepare(&job) && run_sweep(&job);
    weft_free(job.session, job.in);
    weft_free(job.session, job.out);
    free(job.times);
    weft_finalize(job.session);
    return fine && job.report.wrong == 0 ? 0 : 1;
}
