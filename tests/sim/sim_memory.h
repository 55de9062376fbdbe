/* sim_memory.h - how much memory this process holds: its proportional set size. */
#ifndef WEFT_TESTS_SIM_MEMORY_H
#define WEFT_TESTS_SIM_MEMORY_H

#include <stdint.h>
#include <stdio.h>

/* Bytes; 0 when the kernel does not say. */
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

#endif
