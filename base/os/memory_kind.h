/* memory_kind.h - memory that is not plain host memory: one table of operations per kind of device.
 *
 *     caller --(kind)--> weft_memory_ops --> struct weft_memory_ops --> the device's own runtime, found when first asked for
 *
 * Callers move bytes between host and device with these calls alone and never see whose device it is; another
 * kind is one more table. Nothing of a device's software is linked: the CUDA runtime is the one that the
 * process has loaded already, else the first that the system has, else the file in WEFT_CUDA_RUNTIME, which
 * goes before all.
 *
 * Streams and events are the device's own handles (cudaStream_t, cudaEvent_t), so that a caller's stream
 * can be passed in; NULL is the device's default stream. Nothing here waits for a device but where it is
 * said. Any thread. Calls that take a stream or an event work on the current device of the calling thread,
 * which must be theirs: enter and leave around them. */
#ifndef WEFT_BASE_OS_MEMORY_KIND_H
#define WEFT_BASE_OS_MEMORY_KIND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "weft/status.h"
#include "weft/types.h"

/* Errors of all: WEFT_ERR_STATE (the device has failed, perhaps long before: the text has the runtime's
 * own word), WEFT_ERR_NO_MEMORY, WEFT_ERR_UNSUPPORTED. `error` may be NULL. */
struct weft_memory_ops {
    const char *name; /* "cuda" */

    /* What lies at `address`, and on which device (-1: none). Memory that the runtime does not know is
     * WEFT_MEMORY_HOST. */
    enum weft_status (*find)(const void *address, enum weft_memory_kind *kind_out, int *device_out,
                             struct weft_error *error);
    /* The current device of this thread. enter makes another one current and tells the one before, for
     * leave. */
    enum weft_status (*enter)(int device, int *before_out, struct weft_error *error);
    void (*leave)(int before);

    /* Memory of the current device. free may wait for it. */
    enum weft_status (*alloc)(size_t bytes, void **memory_out, struct weft_error *error);
    void (*free)(void *memory); /* NULL is fine */
    /* Lock host memory so that copies run beside the host; without it they are right, but the host waits
     * in them. */
    enum weft_status (*pin)(void *memory, size_t bytes, struct weft_error *error);
    void (*unpin)(void *memory);

    /* A stream that neither waits for the default stream nor is waited for by it. */
    enum weft_status (*stream_create)(void **stream_out, struct weft_error *error);
    void (*stream_free)(void *stream); /* NULL is fine; what is queued still runs */
    enum weft_status (*event_create)(void **event_out, struct weft_error *error);
    void (*event_free)(void *event); /* NULL is fine */
    /* Everything queued on the stream so far comes before the event. WEFT_ERR_INVALID: a handle that means
     * another stream on each thread; WEFT_ERR_UNSUPPORTED: a stream that is being captured. */
    enum weft_status (*record)(void *event, void *stream, struct weft_error *error);
    /* What is queued on the stream from now on comes after the event as it was last recorded; of any
     * device. */
    enum weft_status (*wait)(void *stream, void *event, struct weft_error *error);
    /* WEFT_OK: it has come, or was never recorded; WEFT_IN_PROGRESS; an error: what led to it has failed. */
    enum weft_status (*passed)(void *event, struct weft_error *error);
    /* Queue a copy between host and device, in either direction, or within one. */
    enum weft_status (*copy)(void *to, const void *from, size_t bytes, void *stream,
                             struct weft_error *error);
    enum weft_status (*zero)(void *memory, size_t bytes, void *stream, struct weft_error *error);
};

/* Events are polled: how long until the next look at devices on which nothing has come for so long. An
 * eighth of that, so that a look is late by an eighth at most; 20 us to 1 ms. */
static inline uint64_t weft_memory_look_ns(uint64_t quiet_ns)
{
    const uint64_t least_ns = WEFT_MS(1) / 50, pause_ns = quiet_ns / 8;
    return pause_ns < least_ns ? least_ns : pause_ns > WEFT_MS(1) ? WEFT_MS(1) : pause_ns;
}

/* The operations of a kind. WEFT_ERR_UNSUPPORTED: the device's runtime or a device is missing; the text
 * says what and where it was looked for. WEFT_ERR_INVALID: `kind` is host memory, which needs none, or no
 * kind at all. The first call may load the runtime, and so read files; its answer is kept for life. */
enum weft_status weft_memory_ops(enum weft_memory_kind kind, const struct weft_memory_ops **ops_out,
                                 struct weft_error *error);

/* Is a kind of device in use in this process, or likely to be: is its driver or runtime loaded? Loads
 * nothing. */
bool weft_memory_in_use(enum weft_memory_kind kind);

#endif
