/* device.h - common part of codecs on a device: memory, one window of pinned host memory, encode in parts.
 * Private to the module.
 *
 *     encode   part 0: queue kernels and the copy to the host; WEFT_IN_PROGRESS
 *              part 1, after the event: the bytes
 *     take     checks the aggregate and copies it into the window; queues nothing
 *     finish   queues the copy to the device and the decoding; `out` is valid for later work on the stream
 *
 * All work of a codec is ordered on one stream, and an encode completes before its bytes are used. So when
 * take writes into the window, copies of an earlier step out of it have completed. Counts, bytes and short
 * arrays stay on the host. */
#ifndef WEFT_COMPRESS_DEVICE_DEVICE_H
#define WEFT_COMPRESS_DEVICE_DEVICE_H

#include "base/memory/memory_kind.h"
#include "compress/codec.h"
#include "kernels/kernels.h"

enum { DEVICE_ARRAYS_MAX = 16 };

struct codec_device {
    struct weft_codec_device at;
    void *event;             /* owned: what was queued last of an encode */
    struct device_batch *batch; /* that has this codec's entry, and which (device_batch.h); NULL: none */
    uint32_t place;
    uint32_t part;           /* parts of the encode under way that are queued; 0: none is under way */
    void *arrays[DEVICE_ARRAYS_MAX]; /* owned, device memory */
    uint32_t array_count;
    uint8_t *block;          /* owned host memory */
    uint8_t *window;         /* in `block`, pinned where the system lets us */
    size_t window_bytes, window_used;
    bool pinned;
    uint32_t *max_bits;      /* device; and where it is read, in the window */
    uint32_t *max_seen;
    struct weft_error error; /* the last one, in the device's own words */
};

/* One array of device memory: where its address goes, and how long. */
struct device_array {
    void *place; /* pointer to a pointer */
    size_t bytes;
};

/* Takes the event, the arrays and a window. The device is current. An error: weft_codec_free gives back
 * what there is. */
enum weft_status device_open(struct weft_codec *codec, const struct weft_codec_device *at,
                             const struct device_array *arrays, size_t array_count, size_t window_bytes);
void device_close(struct weft_codec *codec);
/* (bytes,) of the window, at 64 bytes. */
void *device_window(struct weft_codec *codec, size_t bytes);
size_t device_window_bytes(size_t bytes); /* what that takes */

/* ---- queueing, with the device current ---- */
enum weft_status device_copy(struct weft_codec *codec, void *to, const void *from, size_t bytes);
enum weft_status device_zero(struct weft_codec *codec, void *memory, size_t bytes);
/* Of a kernel's answer: its words, if it is an error. */
enum weft_status device_launch_status(struct weft_codec *codec, enum weft_status status);
enum weft_status device_clear_max(struct weft_codec *codec);
enum weft_status device_fetch_max(struct weft_codec *codec);
/* The part is queued: WEFT_IN_PROGRESS. */
enum weft_status device_record_event(struct weft_codec *codec);
enum weft_status device_query(struct weft_codec *codec);
/* No part of an encode is under way. */
void device_encode_end(struct weft_codec *codec);

/* ---- waiting for the device: between steps ---- */
enum weft_status device_read(const struct weft_codec *codec, void *out, const void *from, size_t bytes);
enum weft_status device_write(const struct weft_codec *codec, void *to, const void *from, size_t bytes);
enum weft_status device_max_abs(struct weft_codec *codec, const float *values, size_t count,
                                uint32_t *max_bits_out);
/* queued; does not wait */
enum weft_status device_scale(struct weft_codec *codec, float *values, float factor, size_t count);

/* ---- around all of it ---- */
enum weft_status device_enter(const struct weft_codec *codec, int *before_out);
void device_leave(const struct weft_codec *codec, int before);

/* Between the first and the last call of an encode: the window holds the encoded part. */
static inline bool device_is_encoding(const struct weft_codec *codec)
{
    return codec->device && codec->device->part > 0;
}

static inline const struct weft_device_kernels *device_kernels(const struct weft_codec *codec)
{
    return codec->device->at.kernels;
}
static inline weft_device_stream device_stream(const struct weft_codec *codec)
{
    return (weft_device_stream)codec->device->at.stream;
}

/* Each takes memory and fills in all but the common members. WEFT_ERR_UNSUPPORTED: not with these options.
 * *codec_out is set also where it fails half-way. */
typedef enum weft_status device_create_fn(struct weft_env *env, const struct weft_codec_spec *spec,
                                          const struct weft_shape *shape, const struct weft_codec_device *at,
                                          struct weft_codec **codec_out);
device_create_fn device_cast_create, device_topk_create, device_quantise_create, device_lowbit_create,
    device_powersgd_create, device_randomk_create;

#endif
