/* device.c - see device.h. */
#include "compress/device/device.h"
#include "compress/device/device_batch.h"

#include <sched.h>
#include <string.h>

#include "kernels/kernels.h"

enum { LINE = 64, PAGE = 4096 };
#define WAIT_NS WEFT_SECONDS(30)
#define CLOSE_NS WEFT_SECONDS(1)

static size_t round_up_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* The device is not part of a const codec's state. */
static struct codec_device *device_of(const struct weft_codec *codec) { return codec->device; }

enum weft_status device_enter(const struct weft_codec *codec, int *before_out)
{
    struct codec_device *device = device_of(codec);
    return device->at.memory->enter(device->at.number, before_out, &device->error);
}

void device_leave(const struct weft_codec *codec, int before)
{
    const struct codec_device *device = codec->device;
    if (device->at.leave) device->at.leave(device->at.context, before);
    else device->at.memory->leave(before);
}

/* ---- life ---- */

size_t device_window_bytes(size_t bytes) { return round_up_to(bytes, LINE); }

void *device_window(struct weft_codec *codec, size_t bytes)
{
    struct codec_device *device = codec->device;
    uint8_t *at = device->window + device->window_used;
    device->window_used += device_window_bytes(bytes);
    WEFT_ASSERT(device->window_used <= device->window_bytes);
    return at;
}

/* Whole pages of its own: a page is pinned once. */
static enum weft_status open_window(struct weft_codec *codec, size_t bytes)
{
    struct codec_device *device = codec->device;
    device->window_bytes = round_up_to(bytes, PAGE);
    device->block = weft_alloc_bytes(codec->env, device->window_bytes + PAGE);
    if (!device->block) return WEFT_ERR_NO_MEMORY;
    device->window = device->block + (round_up_to((uintptr_t)device->block, PAGE) - (uintptr_t)device->block);
    /* else copies are slower */
    device->pinned = device->at.memory->pin(device->window, device->window_bytes, NULL) == WEFT_OK;
    if (!device->pinned)
        weft_log(codec->env, WEFT_LOG_WARN, "compress",
                 "%zu bytes of host memory cannot be pinned: copies will be slower", device->window_bytes);
    return WEFT_OK;
}

static enum weft_status open_array(struct weft_codec *codec, void *place, size_t bytes)
{
    struct codec_device *device = codec->device;
    void *memory;
    WEFT_ASSERT(device->array_count < DEVICE_ARRAYS_MAX);
    WEFT_TRY(device->at.memory->alloc(bytes, &memory, &device->error));
    device->arrays[device->array_count++] = memory;
    memcpy(place, &memory, sizeof memory);
    return WEFT_OK;
}

/* The first launch fails if the device cannot run the kernels. */
static enum weft_status probe_kernels(struct weft_codec *codec)
{
    WEFT_TRY(device_clear_max(codec));
    return device_launch_status(
        codec, device_kernels(codec)->max_abs_bits_f32(
                   codec->device->max_bits, (const float *)codec->device->max_bits, 1, device_stream(codec)));
}

enum weft_status device_open(struct weft_codec *codec, const struct weft_codec_device *at,
                             const struct device_array *arrays, size_t array_count, size_t window_bytes)
{
    struct codec_device *device = weft_alloc_zero(codec->env, sizeof *device);
    if (!device) return WEFT_ERR_NO_MEMORY;
    codec->device = device;
    device->at = *at;
    WEFT_TRY(at->memory->event_create(&device->event, &device->error));
    WEFT_TRY(open_window(codec, window_bytes + LINE));
    device->max_seen = device_window(codec, sizeof *device->max_seen);
    WEFT_TRY(open_array(codec, &device->max_bits, sizeof *device->max_bits));
    WEFT_TRY(probe_kernels(codec));
    for (size_t i = 0; i < array_count; i++) WEFT_TRY(open_array(codec, arrays[i].place, arrays[i].bytes));
    return WEFT_OK;
}

/* Waits until all queued work has run. */
static enum weft_status drain_within(struct weft_codec *codec, uint64_t wait_ns)
{
    struct codec_device *device = codec->device;
    const uint64_t began_ns = weft_now_ns(codec->env);
    enum weft_status status;
    WEFT_TRY(device->at.memory->record(device->event, device->at.stream, &device->error));
    while ((status = device->at.memory->passed(device->event, &device->error)) == WEFT_IN_PROGRESS) {
        if (weft_now_ns(codec->env) - began_ns > wait_ns)
            return (enum weft_status)weft_error_set(
                &device->error, WEFT_ERR_DEADLINE,
                "device %d has not completed the work queued on it for %u s",
                device->at.number, (unsigned)(wait_ns / WEFT_SECONDS(1)));
        sched_yield();
    }
    return status;
}

static enum weft_status drain(struct weft_codec *codec) { return drain_within(codec, WAIT_NS); }

/* False: the device hangs and may still write to its memory. At a session's end one codec waits for such a
 * device, the others only query. */
static bool drain_or_hang(struct weft_codec *codec)
{
    const struct weft_codec_device *at = &codec->device->at;
    /* one that has failed runs nothing more */
    const bool hangs = drain_within(codec, at->hangs && *at->hangs ? 0 : CLOSE_NS) == WEFT_ERR_DEADLINE;
    if (at->hangs) *at->hangs = hangs;
    return !hangs;
}

/* A forked child does not touch the device. */
void device_close(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    int before;
    if (!device) return;
    device_batch_leave(codec);
    const bool entered = !device->at.is_forked_child && device_enter(codec, &before) == WEFT_OK;
    const bool over = entered && (!device->event || drain_or_hang(codec));
    if (over) {
        for (uint32_t i = 0; i < device->array_count; i++) device->at.memory->free(device->arrays[i]);
        if (device->pinned) device->at.memory->unpin(device->window);
        device->at.memory->event_free(device->event);
        weft_free_bytes(codec->env, device->block);
    }
    if (entered) device_leave(codec, before);
    weft_free_bytes(codec->env, device);
    codec->device = NULL;
}

/* ---- queueing ---- */

enum weft_status device_copy(struct weft_codec *codec, void *to, const void *from, size_t bytes)
{
    struct codec_device *device = codec->device;
    return bytes == 0 ? WEFT_OK : device->at.memory->copy(to, from, bytes, device->at.stream, &device->error);
}

enum weft_status device_zero(struct weft_codec *codec, void *memory, size_t bytes)
{
    struct codec_device *device = codec->device;
    return device->at.memory->zero(memory, bytes, device->at.stream, &device->error);
}

enum weft_status device_launch_status(struct weft_codec *codec, enum weft_status status)
{
    if (status == WEFT_OK) return WEFT_OK;
    /* INVALID means a gradient that is not finite */
    if (status == WEFT_ERR_INVALID) status = WEFT_ERR_STATE;
    return (enum weft_status)weft_error_set(
        &codec->device->error, status, "%s: a codec's kernel could not be queued on device %d: %s",
        codec->device->at.memory->name, codec->device->at.number, weft_status_text(status));
}

enum weft_status device_clear_max(struct weft_codec *codec)
{
    return device_zero(codec, codec->device->max_bits, sizeof *codec->device->max_bits);
}

enum weft_status device_fetch_max(struct weft_codec *codec)
{
    return device_copy(codec, codec->device->max_seen, codec->device->max_bits,
                       sizeof *codec->device->max_bits);
}

enum weft_status device_record_event(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    WEFT_TRY(device->at.memory->record(device->event, device->at.stream, &device->error));
    device->part++;
    return WEFT_IN_PROGRESS;
}

enum weft_status device_query(struct weft_codec *codec)
{
    struct codec_device *device = codec->device;
    if (device->batch) return device_batch_query(codec);
    return device->part == 0 ? WEFT_OK : device->at.memory->passed(device->event, &device->error);
}

void device_encode_end(struct weft_codec *codec)
{
    device_batch_leave(codec);
    codec->device->part = 0;
}

/* ---- waiting ---- */

/* Between steps the window is free for pinned copies. Within a step it holds the bytes of a retry. */
static bool window_is_free(const struct weft_codec *codec)
{
    return codec->progress == 0 && !device_is_encoding(codec);
}

static enum weft_status read_part(struct weft_codec *codec, uint8_t *out, const uint8_t *from, size_t bytes)
{
    uint8_t *staging = window_is_free(codec) ? codec->device->window : out;
    WEFT_TRY(device_copy(codec, staging, from, bytes));
    WEFT_TRY(drain(codec));
    if (staging != out) memcpy(out, staging, bytes);
    return WEFT_OK;
}

static enum weft_status write_part(struct weft_codec *codec, uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (window_is_free(codec)) from = memcpy(codec->device->window, from, bytes);
    WEFT_TRY(device_copy(codec, to, from, bytes));
    return drain(codec);
}

typedef enum weft_status move_part(struct weft_codec *, uint8_t *, const uint8_t *, size_t);

static enum weft_status move(const struct weft_codec *codec, move_part *part, void *to, const void *from,
                             size_t bytes)
{
    struct weft_codec *self = (struct weft_codec *)(uintptr_t)codec;
    const size_t step = codec->device->window_bytes;
    enum weft_status status;
    int before;
    if (bytes == 0) return WEFT_OK;
    WEFT_TRY(device_enter(codec, &before));
    status = drain(self); /* copies through the window */
    for (size_t at = 0; at < bytes && status == WEFT_OK; at += step)
        status =
            part(self, (uint8_t *)to + at, (const uint8_t *)from + at, bytes - at < step ? bytes - at : step);
    device_leave(codec, before);
    return status;
}

enum weft_status device_read(const struct weft_codec *codec, void *out, const void *from, size_t bytes)
{
    return move(codec, read_part, out, from, bytes);
}
enum weft_status device_write(const struct weft_codec *codec, void *to, const void *from, size_t bytes)
{
    return move(codec, write_part, to, from, bytes);
}

enum weft_status device_max_abs(struct weft_codec *codec, const float *values, size_t count,
                                uint32_t *max_bits_out)
{
    int before;
    *max_bits_out = 0;
    if (count == 0) return WEFT_OK;
    WEFT_TRY(device_enter(codec, &before));
    enum weft_status status = device_clear_max(codec);
    if (status == WEFT_OK)
        status =
            device_launch_status(codec, device_kernels(codec)->max_abs_bits_f32(
                                            codec->device->max_bits, values, count, device_stream(codec)));
    if (status == WEFT_OK) status = device_fetch_max(codec);
    if (status == WEFT_OK) status = drain(codec);
    device_leave(codec, before);
    *max_bits_out = *codec->device->max_seen;
    return status;
}

enum weft_status device_scale(struct weft_codec *codec, float *values, float factor, size_t count)
{
    int before;
    if (count == 0) return WEFT_OK;
    WEFT_TRY(device_enter(codec, &before));
    const enum weft_status status = device_launch_status(
        codec, device_kernels(codec)->scale_f32(values, values, factor, count, device_stream(codec)));
    device_leave(codec, before);
    return status;
}

/* ---- entry points ---- */

static device_create_fn *create_function(enum weft_codec_id id)
{
    switch (id) {
    case WEFT_CODEC_F16:
    case WEFT_CODEC_BF16: return device_cast_create;
    case WEFT_CODEC_TOPK: return device_topk_create;
    case WEFT_CODEC_RANDOMK: return device_randomk_create;
    case WEFT_CODEC_INT8:
    case WEFT_CODEC_INT4: return device_quantise_create;
    case WEFT_CODEC_SIGN:
    case WEFT_CODEC_E4M3:
    case WEFT_CODEC_E5M2: return device_lowbit_create;
    case WEFT_CODEC_POWERSGD: return device_powersgd_create;
    default: return NULL;
    }
}

static void set_create_error(enum weft_status status, const struct weft_codec *codec,
                             struct weft_error *error)
{
    if (codec && codec->device && codec->device->error.text[0])
        weft_error_set(error, status, "%s", codec->device->error.text);
    else if (status == WEFT_ERR_UNSUPPORTED)
        weft_error_set(error, status, "this codec, with these options, has no form on a device");
    else weft_error_set(error, status, "%s", weft_status_text(status));
}

enum weft_status weft_codec_create_on(struct weft_env *env, const struct weft_codec_spec *resolved,
                                      const struct weft_shape *shape, const struct weft_codec_device *device,
                                      struct weft_codec **codec_out, struct weft_error *error)
{
    const uint64_t elems = weft_shape_elems(shape);
    device_create_fn *create = create_function(resolved->id);
    struct weft_codec *codec = NULL;
    int before;
    if (elems == 0 || elems > SIZE_MAX / 16 || weft_codec_resolve(resolved, shape).id != resolved->id ||
        device->ranks == 0)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID, "the codec does not fit the shape");
    if (!create) {
        set_create_error(WEFT_ERR_UNSUPPORTED, NULL, error);
        return WEFT_ERR_UNSUPPORTED;
    }
    WEFT_TRY(device->memory->enter(device->number, &before, error));
    enum weft_status status = create(env, resolved, shape, device, &codec);
    if (codec) {
        codec->spec = *resolved;
        codec->shape = *shape;
        codec->elems = codec->piece = (size_t)elems;
        codec->rounds = weft_codec_rounds(resolved);
        if (status == WEFT_OK && codec->residual)
            status = device_zero(codec, codec->residual, codec->elems * sizeof *codec->residual);
    }
    if (device->leave) device->leave(device->context, before);
    else device->memory->leave(before);
    if (status < 0) {
        set_create_error(status, codec, error);
        weft_codec_free(codec);
        return status;
    }
    *codec_out = codec;
    return WEFT_OK;
}

const struct weft_codec_device *weft_codec_device_of(const struct weft_codec *codec)
{
    return codec->device ? &codec->device->at : NULL;
}

enum weft_status weft_codec_pending(struct weft_codec *codec)
{
    int before;
    if (!codec->device || codec->device->part == 0) return WEFT_OK;
    WEFT_TRY(device_enter(codec, &before));
    const enum weft_status status = device_query(codec);
    device_leave(codec, before);
    return status;
}

const char *weft_codec_device_error(const struct weft_codec *codec)
{
    return codec->device ? codec->device->error.text : "";
}

void weft_codec_after_fork(struct weft_codec *codec)
{
    if (codec && codec->device) codec->device->at.is_forked_child = true;
}
