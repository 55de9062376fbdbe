/* bench_waiting.c - `weft bench waiting`: cost of waiting.
 *
 *   idle     after the last message: CPU of the process in the first 5 ms and in the following second
 *   late     one rank sleeps, the others wait for it inside weft_wait: their CPU meanwhile
 *   busy     all ranks compute pieces of the same length, alone and with an 8-byte all_reduce after each
 * piece. With more ranks than cores, a waiting rank that keeps a core delays a computing rank. */
#include "tools/bench/bench_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tools/bench/bench_rank.h"
#include "weft/weft.h"

enum { PAIRS = 7, LATE_MS = 500, IDLE_FIRST_MS = 5, IDLE_THEN_MS = 1000 };

struct waiting {
    const struct bench_options *options;
    struct weft_session *session;
    uint32_t rank, ranks;
    uint64_t iterations; /* iterations of the loop that makes one piece */
    bool failed;
};

static void sleep_ms(unsigned ms)
{
    nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

static void finish(struct waiting *waiting, const char *what, enum weft_status status,
                   struct weft_request *request)
{
    if (status >= 0) status = weft_wait(request, 0);
    if (status >= 0 || waiting->failed) return;
    fprintf(stderr, "weft bench: rank %" PRIu32 ", %s: %s\n", waiting->rank, what,
            weft_error_text(waiting->session));
    waiting->failed = true;
}

static void barrier(struct waiting *waiting)
{
    struct weft_request request = {{0}};
    finish(waiting, "barrier", weft_barrier(waiting->session, &request), &request);
}

static void sum_i64(struct waiting *waiting, int64_t *values, uint64_t count)
{
    struct weft_request request = {{0}};
    finish(waiting, "all_reduce",
           weft_all_reduce(waiting->session, values, values, count, WEFT_I64, WEFT_SUM, &request), &request);
}

static double mean_of_ranks(struct waiting *waiting, double value)
{
    int64_t sum = (int64_t)(value * 1000);
    sum_i64(waiting, &sum, 1);
    return 1e-3 * (double)sum / waiting->ranks;
}

/* ---- idle ---- */

static void measure_idle(struct waiting *waiting)
{
    for (int i = 0; i < 100; i++) barrier(waiting);
    double at = bench_cpu_us();
    sleep_ms(IDLE_FIRST_MS);
    double first = bench_cpu_us() - at;
    at = bench_cpu_us();
    sleep_ms(IDLE_THEN_MS);
    double then = bench_cpu_us() - at;
    first = mean_of_ranks(waiting, first);
    then = mean_of_ranks(waiting, then);
    if (waiting->rank != 0) return;
    if (waiting->options->report.json)
        printf("{\"measure\": \"idle\", \"ranks\": %" PRIu32
               ", \"first_5ms_cpu_us\": %.1f, \"then_1s_cpu_us\": %.1f}\n",
               waiting->ranks, first, then);
    else
        printf("idle   first %d ms after the last message: %.0f us of CPU per rank; the second after them: "
               "%.0f us (%.3f %% of a core)\n",
               IDLE_FIRST_MS, first, then, then / (IDLE_THEN_MS * 10.0));
}

/* ---- one rank is late ---- */

static void measure_late(struct waiting *waiting)
{
    barrier(waiting);
    double cpu = bench_cpu_us(), wall = bench_now_us();
    if (waiting->rank == 0) sleep_ms(LATE_MS);
    barrier(waiting);
    cpu = bench_cpu_us() - cpu;
    wall = bench_now_us() - wall;
    cpu = mean_of_ranks(waiting, cpu);
    if (waiting->rank != 0) return;
    if (waiting->options->report.json)
        printf("{\"measure\": \"late\", \"ranks\": %" PRIu32 ", \"cpu_us\": %.1f, \"wall_us\": %.1f}\n",
               waiting->ranks, cpu, wall);
    else
        printf("late   all ranks wait %.0f ms for one: %.0f us of CPU per rank (%.3f %% of a core)\n",
               wall * 1e-3, cpu, 100 * cpu / wall);
}

/* ---- busy ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, PAIRS, sizeof *values, compare_doubles);
    return values[PAIRS / 2];
}

/* From a common start until the last rank has ended. */
static void time_pieces(struct waiting *waiting, bool communicates, double *wall_out, double *cpu_out)
{
    barrier(waiting);
    double wall = bench_now_us(), cpu = bench_cpu_us();
    for (uint32_t i = 0; i < waiting->options->iters && !waiting->failed; i++) {
        int64_t value = 1;
        bench_compute(waiting->iterations);
        if (communicates) sum_i64(waiting, &value, 1);
    }
    *cpu_out = bench_cpu_us() - cpu; /* before the last wait, which is not part of computing alone */
    barrier(waiting);
    *wall_out = bench_now_us() - wall;
    *cpu_out = mean_of_ranks(waiting, *cpu_out);
}

static void measure_busy(struct waiting *waiting)
{
    double wall_ratio[PAIRS], cpu_ratio[PAIRS];
    for (int pair = 0; pair < PAIRS && !waiting->failed; pair++) {
        double alone_wall, alone_cpu, wall, cpu;
        if (pair % 2) time_pieces(waiting, true, &wall, &cpu);
        time_pieces(waiting, false, &alone_wall, &alone_cpu);
        if (pair % 2 == 0) time_pieces(waiting, true, &wall, &cpu);
        wall_ratio[pair] = alone_wall / wall;
        cpu_ratio[pair] = cpu / alone_cpu;
    }
    if (waiting->rank != 0 || waiting->failed) return;
    double throughput = median(wall_ratio), low = wall_ratio[PAIRS / 4],
           high = wall_ratio[PAIRS - 1 - PAIRS / 4];
    double cpu = median(cpu_ratio);
    if (waiting->options->report.json)
        printf("{\"measure\": \"busy\", \"ranks\": %" PRIu32 ", \"piece_us\": %" PRIu32
               ", \"throughput_ratio\": %.4f, \"throughput_low\": %.4f, "
               "\"throughput_high\": %.4f, \"cpu_ratio\": %.4f}\n",
               waiting->ranks, waiting->options->compute_us, throughput, low, high, cpu);
    else
        printf("busy   pieces of %" PRIu32 " us with an all_reduce after each: %.1f %% of the throughput of "
               "computing alone (middle half %.1f to %.1f), "
               "%.3f times its CPU\n",
               waiting->options->compute_us, 100 * throughput, 100 * low, 100 * high, cpu);
}

int bench_waiting_run(const struct bench_options *options)
{
    struct waiting waiting = {.options = options};
    struct weft_options joining;
    weft_options_init(&joining);
    if (weft_init(&joining, &waiting.session) < 0) {
        fprintf(stderr, "weft bench: %s\n", weft_error_text(NULL));
        return 1;
    }
    waiting.rank = weft_rank(waiting.session);
    waiting.ranks = weft_ranks(waiting.session);
    waiting.iterations = bench_calibrate_compute(options->compute_us);
    int64_t iterations = (int64_t)waiting.iterations;
    sum_i64(&waiting, &iterations, 1); /* all ranks use the same number */
    waiting.iterations = (uint64_t)iterations / waiting.ranks;
    if (waiting.rank == 0 && !options->report.json)
        printf("# weft bench waiting: %" PRIu32 " ranks\n", waiting.ranks);
    if (!waiting.failed) measure_idle(&waiting);
    if (!waiting.failed) measure_late(&waiting);
    if (!waiting.failed) measure_busy(&waiting);
    weft_finalize(waiting.session);
    return waiting.failed ? 1 : 0;
}
