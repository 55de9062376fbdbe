/* device_update.h - the optimiser of all-reduce mode on the device of the weights.
 *
 *     dense   sum in the stage's window ──copy up──► sum ──kernel──► weights
 *     codec   the codec on the device decodes to ──► sum ──kernel──► weights
 *
 * Copy, decoding and kernel are on the codecs' stream, so the updates of a tensor follow each other.
 * The weights never cross the bus, and the optimiser's arrays are on the device too: they move like the state
 * of a codec (codec_placement.h), and calls that read or write them on the host move them back first. An
 * update that cannot run on the device runs on the host, which is logged once; the bits are equal. */
#ifndef WEFT_CLIENT_TENSOR_DEVICE_DEVICE_UPDATE_H
#define WEFT_CLIENT_TENSOR_DEVICE_DEVICE_UPDATE_H

#include "compress/compress.h"

struct weft_tensor;

/* Before a push_pull of buffers on device `where`, which is current. *sum_out: device memory (elems,) for the
 * sum; NULL: the update runs on the host. Waits for the device if arrays move. On an error do not start the
 * push_pull. Caller's thread. */
enum weft_status client_update_place_on_device(struct weft_tensor *tensor,
                                               const struct weft_codec_device *where, float **sum_out,
                                               struct weft_error *error);
/* Before the host uses the optimiser's arrays. Caller's thread. */
enum weft_status client_update_place_on_host(struct weft_tensor *tensor, struct weft_error *error);
/* The same, with the session's sentence. */
enum weft_status client_update_to_host(struct weft_tensor *tensor);
/* Queues the update of `weights` from the sum on `stream`. The device is current. Engine thread. */
enum weft_status client_update_queue(struct weft_tensor *tensor, float *weights, void *stream,
                                     struct weft_error *error);
/* Is the next update on the device? */
bool client_update_is_on_device(const struct weft_tensor *tensor);
/* The tensor ends. Waits up to 1 s for the device; the memory of an update that still runs is kept. */
void client_update_free(struct weft_tensor *tensor);

#endif
