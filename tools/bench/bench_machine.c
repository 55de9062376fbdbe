/* bench_machine.c - see bench_rank.h: clocks, memory and work of this process. */
#include "tools/bench/bench_rank.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static double clock_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

double bench_now_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}
double bench_thread_us(void)
{
    return clock_us(CLOCK_THREAD_CPUTIME_ID);
}
double bench_cpu_us(void)
{
    return clock_us(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t bench_pss(void)
{
    char line[256];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "Pss: %llu kB", &kilobytes) == 1) break;
    }
    fclose(file);
    return kilobytes << 10;
}

__attribute__((noinline)) void bench_compute(
    uint64_t iterations) /* not inlined: the same code in every timing */
{
    static volatile uint64_t sink;
    uint64_t x = sink | 1;
    for (uint64_t i = 0; i < iterations; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    sink = x;
}

/* The shortest of several tries, because other processes also compute. */
uint64_t bench_calibrate_compute(double us)
{
    double best = 1e300;
    for (int i = 0; i < 20; i++) {
        double began = bench_thread_us();
        bench_compute(1000000);
        double took = bench_thread_us() - began;
        if (took < best) best = took;
    }
    return (uint64_t)(1e6 * us / best) + 1;
}

double bench_copy_bandwidth(void *to, const void *from, uint64_t bytes)
{
    enum { ROUNDS = 5 };
    double best = 0;
    uint64_t repeats = bytes < (1 << 20) ? (1 << 20) / bytes + 1 : 1;
    for (int round = 0; round < ROUNDS; round++) {
        double started = bench_now_us();
        for (uint64_t i = 0; i < repeats; i++) {
            memcpy(to, from, bytes);
            __asm__ volatile("" ::: "memory"); /* the compiler keeps every copy */
        }
        double gbps = 2e-3 * (double)(bytes * repeats) / (bench_now_us() - started);
        if (gbps > best) best = gbps;
    }
    return best;
}
