/* memory_cuda.h - CUDA runtime for memory_kind.h, and the constants of its interface. A test compares them
 * with cuda_runtime_api.h where that is installed. Private to base. */
#ifndef WEFT_BASE_MEMORY_MEMORY_CUDA_H
#define WEFT_BASE_MEMORY_MEMORY_CUDA_H

#include "base/memory/memory_kind.h"

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_NO_MEMORY = 2,
    CUDA_DRIVER_TOO_OLD = 35,
    CUDA_NO_DEVICE = 100,
    CUDA_NOT_READY = 600,
    CUDA_MEMORY_HOST = 1,    /* pinned */
    CUDA_MEMORY_DEVICE = 2,
    CUDA_MEMORY_MANAGED = 3, /* migrates, but counts as device memory */
    CUDA_COPY_BY_ADDRESS = 4,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_NO_TIMING = 2,
    CUDA_NOT_SUPPORTED = 801, /* also of the driver */
    CUDA_PIN_PORTABLE = 1,    /* pinned for all devices */
    CUDA_PIN_MAPPED = 2,      /* devices access it at the same address */
    CUDA_WAIT_GEQ = 0,        /* cyclic difference of at least 0 */
    CUDA_STREAM_PER_THREAD = 2, /* handle for a different stream on each thread */
};

struct memory_cuda_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    long reserved[16]; /* 8 since CUDA 13, none before */
};

enum weft_status memory_cuda_ops(const struct weft_memory_ops **ops_out, struct weft_error *error);
bool memory_cuda_in_use(void);
enum weft_status memory_cuda_dmabuf(const void *address, size_t bytes, int *descriptor_out,
                                    uint64_t *offset_out, struct weft_error *error);
enum weft_status memory_cuda_flush(struct weft_error *error);

#endif
