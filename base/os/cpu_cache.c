/* cpu_cache.c - see cpu_cache.h. */
#include "base/os/cpu_cache.h"

#include <stdio.h>
#include <unistd.h>

size_t weft_last_level_cache_bytes(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    unsigned kib = 0;
    if (file && fscanf(file, "%9uK", &kib) != 1) kib = 0;
    if (file) fclose(file);
    const long all = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0 or -1: unknown */
    return kib ? (size_t)kib << 10 : all > 0 ? (size_t)all : 0;
}
