/* sim_memory.h - memory of this process (its proportional set size) and its peak. */
#ifndef WEFT_TESTS_SIM_MEMORY_H
#define WEFT_TESTS_SIM_MEMORY_H

#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>

/* In bytes; 0 if the kernel has no figure. */
static inline uint64_t sim_memory_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[200];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "Pss: %llu kB", &kib) == 1) break;
    }
    if (file) fclose(file);
    return (uint64_t)kib * 1024;
}

/* Bytes. */
static inline uint64_t sim_memory_peak_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

/* User and system time of this process. */
static inline double sim_cpu_seconds(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

#endif
