/* device_optimizer.h - one step of an update rule on device memory, with the bits of weft_optimizer_step. */
#ifndef WEFT_KERNELS_DEVICE_OPTIMIZER_H
#define WEFT_KERNELS_DEVICE_OPTIMIZER_H

#include "kernels/device_table.h"
#include "kernels/optimizer.h"

/* Bytes of device memory that a step of `count` elements needs as workspace, at 16 bytes; 0: none. */
size_t weft_optimizer_device_workspace(const struct weft_device_kernels *kernels,
                                       const struct weft_optimizer *optimizer, size_t count);
/* weft_optimizer_step, queued on `stream`. Arrays and workspace are device memory; the other arguments are
 * copied. Statuses of the kernels (cuda_kernels.h). */
enum weft_status weft_optimizer_step_on_device(const struct weft_device_kernels *kernels,
                                               const struct weft_optimizer *optimizer, float lr,
                                               uint64_t step, float *weights,
                                               float *const states[WEFT_OPTIMIZER_STATES_MAX],
                                               const float *grad, float grad_scale, size_t count,
                                               void *workspace, weft_device_stream stream);

#endif
