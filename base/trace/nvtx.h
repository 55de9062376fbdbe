/* nvtx.h - ranges of calls for NVIDIA's tools (Nsight Systems, and any library in NVTX_INJECTION64_PATH).
 *
 *     weft_nvtx_begin -> id -> weft_nvtx_end      one domain "weft"; a range may end on another thread
 *
 * NVTX is a header without a library: it loads the tool that the environment names, else nothing. Without
 * its header at build time, or without a tool, no range begins. Any thread. */
#ifndef WEFT_BASE_TRACE_NVTX_H
#define WEFT_BASE_TRACE_NVTX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct weft_nvtx_range {
    const char *name;          /* "all_reduce", or the name of a tensor */
    bool is_static;            /* the text of `name` stays: it is registered with the tool once */
    uint64_t bytes;            /* payload of the range */
    uint32_t category;         /* 0: none; a number for each category_name, below 32 */
    const char *category_name; /* "powersgd" */
};

extern _Atomic bool weft_nvtx_on_flag; /* written by weft_nvtx_init */

/* Loads the tool, if the environment names one. The first call decides; later ones have no effect. */
void weft_nvtx_init(void);
static inline bool weft_nvtx_is_on(void)
{
    return atomic_load_explicit(&weft_nvtx_on_flag, memory_order_relaxed);
}
/* Returns the id for weft_nvtx_end; 0: no tool. */
uint64_t weft_nvtx_begin(const struct weft_nvtx_range *range);
void weft_nvtx_end(uint64_t id); /* 0 has no effect */

#endif
