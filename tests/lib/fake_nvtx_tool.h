/* fake_nvtx_tool.h - a tool for NVTX without a GPU: the library of NVTX_INJECTION64_PATH records the ranges
 * of domain "weft" in memory. A test opens the same file by dlopen and calls fake_nvtx_ranges. */
#ifndef TEST_FAKE_NVTX_TOOL_H
#define TEST_FAKE_NVTX_TOOL_H

#include <stdbool.h>
#include <stdint.h>

struct fake_nvtx_range {
    char name[64], category[32];
    bool is_registered; /* the name is a registered string */
    uint64_t payload;
    uint32_t begins, ends; /* ends: calls of RangeEnd with its id */
    uint64_t begin_thread, end_thread;
};

/* Number of ranges so far; *ranges_out stays valid. Any thread, while no range begins. */
typedef uint32_t fake_nvtx_ranges_fn(const struct fake_nvtx_range **ranges_out);
/* Registered strings and domains so far. */
typedef void fake_nvtx_counts_fn(uint32_t *strings_out, uint32_t *domains_out);

#endif
