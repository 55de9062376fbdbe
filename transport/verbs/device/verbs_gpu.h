/* verbs_gpu.h - GPU memory as the device half can register it. */
#ifndef WEFT_TRANSPORT_VERBS_DEVICE_VERBS_GPU_H
#define WEFT_TRANSPORT_VERBS_DEVICE_VERBS_GPU_H

#include "base/base.h"

/* A dma-buf that covers (bytes,) of CUDA device memory, and where in it that begins. The caller closes the
 * descriptor; once registered it is not needed any more. WEFT_ERR_UNSUPPORTED (no or an old CUDA driver,
 * memory that cannot be exported), WEFT_ERR_INVALID (not such memory). With CUDA's context current. Does
 * not block. */
enum weft_status verbs_gpu_dmabuf(const void *address, size_t bytes, int *descriptor_out,
                                  uint64_t *offset_out, struct weft_error *error);

#endif
