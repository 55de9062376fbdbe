/* cpu_quota.h - how much processor time a container may use: a process may run on all processors of its
 * host and yet have the time of two. */
#ifndef WEFT_BASE_OS_CPU_QUOTA_H
#define WEFT_BASE_OS_CPU_QUOTA_H

#include <stdint.h>

struct weft_cpu_quota {
    uint64_t group;      /* the control group that sets it, the same number in all of its processes on this
                          * host */
    uint32_t processors; /* whose time it has, rounded down, at least 1; 0: no limit */
};

/* Of this process, by Linux' control groups, version 2 or 1: the tightest of its group and those above it.
 * `root` is the folder in which proc and sys lie: "" but in tests. What cannot be read sets no limit. Any
 * thread; reads a few files. */
struct weft_cpu_quota weft_cpu_quota_read(const char *root);

#endif
