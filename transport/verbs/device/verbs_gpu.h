/* verbs_gpu.h - dma-buf export of GPU memory for registration. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_GPU_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_GPU_H

#include "base/base.h"

/* Exports a dma-buf that covers (bytes,) of CUDA device memory, and the offset of the range in it. The
 * caller closes the descriptor; after registration it is not needed. WEFT_ERR_UNSUPPORTED (no or an old
 * CUDA driver, memory that cannot be exported), WEFT_ERR_INVALID (not such memory). Requires a current
 * CUDA context. Does not block. */
enum weft_status verbs_gpu_dmabuf(const void *address, size_t bytes, int *descriptor_out,
                                  uint64_t *offset_out, struct weft_error *error);

#endif
