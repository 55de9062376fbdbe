/* device_hash.h - the hash of weights on a device, for the comparison of replicas (step_compare.c). */
#ifndef WEFT_CLIENT_TENSOR_DEVICE_DEVICE_HASH_H
#define WEFT_CLIENT_TENSOR_DEVICE_DEVICE_HASH_H

#include <stdint.h>

#include "weft/status.h"

struct weft_error;
struct weft_tensor;

/* The hash of tensor->weights: that of equal bytes in host memory (weft_weight_hash). The tensor has no open
 * request. Copies the weights through a window of host memory and blocks for that, 30 s for each window at
 * most. Caller's thread. */
enum weft_status client_device_hash_weights(const struct weft_tensor *tensor, uint64_t *hash_out,
                                            struct weft_error *error);

#endif
