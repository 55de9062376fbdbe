/* device_wait.h - waits of the host for a device, with a deadline. */
#ifndef WEFT_CLIENT_TENSOR_DEVICE_DEVICE_WAIT_H
#define WEFT_CLIENT_TENSOR_DEVICE_DEVICE_WAIT_H

#include "compress/compress.h"

/* Blocks until `event` of device `at` has passed. WEFT_ERR_DEADLINE: it has not within limit_ns, and the work
 * before it may still use its memory. The device is current. */
enum weft_status client_device_wait(const struct weft_codec_device *at, void *event, struct weft_env *env,
                                    uint64_t limit_ns, struct weft_error *error);

#endif
