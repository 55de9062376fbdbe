/* device_batch.h - small tensors that become ready together are encoded by one launch.
 *
 *     encode, part 0   device_batch_add: an entry of the batch that collects; nothing is queued
 *     first query      queues the batch: one copy up, one launch (encode_segments), one copy down, one event
 *     encode, part 1   after the event: device_batch_collect copies this codec's bytes out of the batch
 *
 * A caller polls an encode some 20 us after it began (weft_memory_look_ns), so encodes of that time share a
 * launch. A batch is also queued when it is full. If no batch is idle, device_batch_add returns false and the
 * codec launches its own kernels: the bits are equal. Any thread: a mutex guards the batches. Private to the
 * module. */
#ifndef WEFT_COMPRESS_DEVICE_DEVICE_BATCH_H
#define WEFT_COMPRESS_DEVICE_DEVICE_BATCH_H

#include "compress/device/device.h"
#include "kernels/device_segment.h"

/* What one codec adds. The batch sets max_bits of the segment, and pointers of the parts that have bytes. */
struct device_batch_entry {
    struct weft_segment segment;
    const uint8_t *up; /* host (up_bytes,): becomes `exponents`; copied here */
    size_t up_bytes;
    uint8_t *to; /* host: the scales, then the codes, at the collection */
    size_t scales_bytes, codes_bytes;
};

/* Allocates the memory of the batches, once, for codecs that add tensors of `elems` elements. Without memory
 * each codec launches its own kernels. The device is current. */
void device_batch_reserve(struct weft_codec *codec, size_t elems);
/* True: the entry is in a batch and the part of the encode is begun. The device is current. */
bool device_batch_add(struct weft_codec *codec, const struct device_batch_entry *entry);
/* State of the codec's entry; queues its batch if it is not queued. The device is current. */
enum weft_status device_batch_query(struct weft_codec *codec);
/* After device_batch_query returned WEFT_OK: copies the bytes to `to` and the maximum to max_seen. */
void device_batch_collect(struct weft_codec *codec);
/* The codec no longer wants its entry. No effect if it has none. */
void device_batch_leave(struct weft_codec *codec);

#endif
