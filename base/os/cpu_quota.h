/* cpu_quota.h - CPU time limit of a container. A process may be allowed to run on all CPUs of its host and
 * yet have the time of two. */
#ifndef WEFT_BASE_OS_CPU_QUOTA_H
#define WEFT_BASE_OS_CPU_QUOTA_H

#include <stdint.h>

struct weft_cpu_quota {
    uint64_t group;      /* id of the control group with the limit, equal in all its processes on this host */
    uint32_t processors; /* limit in CPUs, rounded down, at least 1; 0: no limit */
};

/* The smallest limit of this process's control group and those above it, version 2 or 1. `root` is the folder
 * that contains proc and sys, "" except in tests. A file that cannot be read sets no limit. Any thread; reads
 * some files. */
struct weft_cpu_quota weft_cpu_quota_read(const char *root);

#endif
