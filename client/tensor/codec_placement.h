/* codec_placement.h - on which side of PCIe a tensor's codec lives: with the gradients on their device, or in
 * host memory.
 *
 * A codec moves between the two as its saved state, which is the same for both, when the tensor's buffers
 * do. What has no form on a device stays on the host, and the tensor's calls are staged whole
 * (device_staging.h). */
#ifndef WEFT_CLIENT_TENSOR_CODEC_PLACEMENT_H
#define WEFT_CLIENT_TENSOR_CODEC_PLACEMENT_H

#include "compress/compress.h"

struct weft_tensor;

/* Caller, before a push_pull of buffers on `where` starts, with that device current. *coded_out: the codec
 * works there now. An error: the call is not made. Waits for the device where the codec has to move. */
enum weft_status client_codec_place_on_device(struct weft_tensor *tensor,
                                              const struct weft_codec_device *where, bool *coded_out,
                                              struct weft_error *error);
/* Caller, before one of buffers in host memory. */
enum weft_status client_codec_place_on_host(struct weft_tensor *tensor, struct weft_error *error);

#endif
