/* calibrate_memory.c - figures of the one-host path: times of all_reduces of several sizes over mapped
 * memory, from which its cost model is made.
 *
 * Each call is timed alone on every rank, and the mean over the ranks counts. All sizes alternate in many
 * rounds, and the median over the rounds counts: a slow spell of the machine then affects all sizes. Ranks
 * that share processors are slow until the scheduler has spread them over the cores. All rounds together
 * therefore last longer than that, and the first third of the rounds beyond the minimum is dropped. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collective/collective.h"
#include "tools/bench/calibrate/calibrate.h"

enum {
    ROUNDS = 15,
    ROUNDS_MOST = 600,
    SHORTS = 60,
    LONGS = 8,
    LONGEST = 5,
    FIRST = 4,
    LONG_FROM = 64 << 10,
    LONGEST_FROM = 4 << 20
};
#define ROUNDS_LAST_US 800e3

struct sample {
    uint64_t bytes;
    double rounds_us[ROUNDS_MOST];
};

/* The median of several calls, each the mean over the ranks. The first calls are dropped: the caches hold
 * another size. */
bool bench_calibrate_all_reduce(struct bench_rank *rank, float *in, float *out, uint64_t bytes,
                                double *us_out)
{
    int64_t times_ns[SHORTS];
    double means_us[SHORTS];
    int count = bytes < LONG_FROM ? SHORTS : bytes < LONGEST_FROM ? LONGS : LONGEST;
    if (!bench_barrier(rank)) return false;
    for (int i = -FIRST; i < count; i++) {
        struct weft_request request = {{0}};
        double began_us = bench_now_us();
        enum weft_status status =
            weft_all_reduce(rank->session, in, out, bytes / sizeof *in, WEFT_F32, WEFT_SUM, &request);
        if (!bench_wait(rank, "all_reduce", status, &request)) return false;
        if (i >= 0) times_ns[i] = (int64_t)(1e3 * (bench_now_us() - began_us));
    }
    if (!bench_reduce_over_ranks(rank, times_ns, (uint64_t)count, WEFT_SUM)) return false;
    for (int i = 0; i < count; i++) means_us[i] = 1e-3 * (double)times_ns[i] / rank->ranks;
    *us_out = bench_median(means_us, (size_t)count);
    return true;
}

/* Whether all ranks together have measured long enough, in the mean; equal on all ranks. */
static bool has_measured_enough(struct bench_rank *rank, double began_us, int rounds, bool *enough_out)
{
    int64_t elapsed_ns = (int64_t)(1e3 * (bench_now_us() - began_us));
    if (!bench_reduce_over_ranks(rank, &elapsed_ns, 1, WEFT_SUM)) return false;
    *enough_out = rounds >= ROUNDS && 1e-3 * (double)elapsed_ns / rank->ranks >= ROUNDS_LAST_US;
    return true;
}

static bool measure(struct bench_rank *rank, float *in, float *out, struct sample *samples, double *times_ns)
{
    double began_us = bench_now_us();
    bool enough = false;
    int rounds = 0;
    for (; rounds < ROUNDS_MOST && !enough; rounds++) {
        for (int s = 0; s < WEFT_ONEHOST_SAMPLES; s++)
            if (!bench_calibrate_all_reduce(rank, in, out, samples[s].bytes, &samples[s].rounds_us[rounds]))
                return false;
        if (!has_measured_enough(rank, began_us, rounds + 1, &enough)) return false;
    }
    int first = rounds > ROUNDS ? rounds / 3 : 0;
    for (int s = 0; s < WEFT_ONEHOST_SAMPLES; s++)
        times_ns[s] = 1e3 * bench_median(samples[s].rounds_us + first, (size_t)(rounds - first));
    return true;
}

static uint32_t cache_kib(int name)
{
    long bytes = sysconf(name);
    return bytes > 0 ? (uint32_t)(bytes >> 10) : 0;
}

bool bench_calibrate_memory(struct bench_rank *rank, struct weft_link_memory *memory_out)
{
    uint32_t processors = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    struct weft_link_memory memory = {.private_cache_kib = cache_kib(_SC_LEVEL2_CACHE_SIZE),
                                      .last_cache_kib = (uint32_t)(weft_last_level_cache_bytes() >> 10)};
    struct sample samples[WEFT_ONEHOST_SAMPLES];
    double times_ns[WEFT_ONEHOST_SAMPLES];
    uint64_t most = 0;
    for (int s = 0; s < WEFT_ONEHOST_SAMPLES; s++) {
        samples[s].bytes =
            weft_onehost_sample_bytes((enum weft_onehost_sample)s, rank->ranks, processors, &memory);
        most = samples[s].bytes > most ? samples[s].bytes : most;
    }
    *memory_out = (struct weft_link_memory){0};
    if (!bench_barrier(rank)) return false;
    if (strcmp(weft_plan_taken(rank->session), "one-host") != 0) return true;
    float *in = weft_alloc(rank->session, most), *out = weft_alloc(rank->session, most);
    bool fine = in && out;
    if (!fine)
        fprintf(stderr, "weft bench calibrate: no memory for two buffers of %llu bytes\n",
                (unsigned long long)most);
    if (fine) memset(in, 0, most), memset(out, 0, most);
    fine = fine && measure(rank, in, out, samples, times_ns);
    if (in) weft_free(rank->session, in);
    if (out) weft_free(rank->session, out);
    if (!fine) return false;
    weft_onehost_model_fit(rank->ranks, processors, times_ns, &memory);
    *memory_out = memory;
    return true;
}
