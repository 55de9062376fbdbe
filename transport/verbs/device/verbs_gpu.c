/* verbs_gpu.c - the dma-buf of a range of GPU memory, from the CUDA driver that the process has loaded.
 * The driver is looked up by name, so the build needs nothing of CUDA and no driver is loaded. */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "transport/verbs/device/verbs_gpu.h"

enum { RANGE_IS_DMABUF = 1 }; /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

typedef int (*handle_for_range)(void *handle_out, unsigned long long address, size_t bytes, int type,
                                unsigned long long flags);

enum weft_status verbs_gpu_dmabuf(const void *address, size_t bytes, int *descriptor_out,
                                  uint64_t *offset_out, struct weft_error *error)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)address / page * page;
    uintptr_t end = ((uintptr_t)address + bytes + page - 1) / page * page;
    handle_for_range get;
    int descriptor = -1;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "%p is declared as CUDA memory, but this process has no CUDA driver loaded", address);
    }
    *(void **)&get = dlsym(driver, "cuMemGetHandleForAddressRange");
    int failed = get ? get(&descriptor, start, end - start, RANGE_IS_DMABUF, 0) : 0;
    dlclose(driver); /* drops one of several references */
    if (!get) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "the CUDA driver is too old to give out dma-bufs: 11.7 (R515) is the first that can");
    }
    if (failed) {
        return (enum weft_status)weft_error_set(error, failed == 1 ? WEFT_ERR_INVALID : WEFT_ERR_UNSUPPORTED,
                                                "the CUDA driver gives no dma-buf for %zu bytes at %p "
                                                "(CUresult %d): it takes device memory of this process, the "
                                                "open kernel modules, and a current context",
                                                bytes, address, failed);
    }
    *descriptor_out = descriptor;
    *offset_out = (uintptr_t)address - start;
    return WEFT_OK;
}
