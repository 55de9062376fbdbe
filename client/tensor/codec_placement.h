/* codec_placement.h - whether a tensor's codec runs on the device of its gradients or on the host.
 *
 * The codec moves with the tensor's buffers, as its saved state, which is the same on both sides. A codec
 * without a device version stays on the host, and the tensor's buffers are staged (device_staging.h). */
#ifndef WEFT_CLIENT_TENSOR_CODEC_PLACEMENT_H
#define WEFT_CLIENT_TENSOR_CODEC_PLACEMENT_H

#include "compress/compress.h"

struct weft_tensor;

/* Call before push_pull of buffers on device `where`, which is current. *coded_out: the codec runs there.
 * Waits for the device if the codec moves. On an error do not start the push_pull. Caller's thread. */
enum weft_status client_codec_place_on_device(struct weft_tensor *tensor,
                                              const struct weft_codec_device *where, bool *coded_out,
                                              struct weft_error *error);
/* Queues what the tensor's codec has not queued on the device yet. */
void client_codec_settle(struct weft_tensor *tensor);
/* Call before push_pull of buffers in host memory. Caller's thread. */
enum weft_status client_codec_place_on_host(struct weft_tensor *tensor, struct weft_error *error);

#endif
