/* memory_kind.h - device memory: one table of operations per kind of device.
 *
 *     caller --(kind)--> weft_memory_ops --> struct weft_memory_ops --> device runtime, loaded at first use
 *
 * Callers move bytes with these calls only, and name no kind: tests/tidy checks it. No device software is
 * linked. CUDA: the file in WEFT_CUDA_RUNTIME if set, otherwise the runtime loaded in the process, otherwise
 * the first that the system has. WEFT_MEMORY_DEVICE: the table of the library in WEFT_DEVICE_RUNTIME
 * (memory_library.h). Streams and events are the device's own handles; NULL is the default stream. No call
 * waits for a device unless its comment states it. Any thread. Calls with a stream or an event need its
 * device to be current: use enter and leave. */
#ifndef WEFT_BASE_MEMORY_MEMORY_KIND_H
#define WEFT_BASE_MEMORY_MEMORY_KIND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "weft/status.h"
#include "weft/types.h"

/* Errors of all calls: WEFT_ERR_STATE (the device has failed, possibly earlier; the text has the runtime's
 * name of the error), WEFT_ERR_NO_MEMORY, WEFT_ERR_UNSUPPORTED. `error` may be NULL. */
struct weft_memory_ops {
    const char *name; /* of the kind in sentences: "CUDA" */
    bool has_kernels; /* kernels/device_table.h runs on this memory and these streams */

    /* The kind of memory at `address` and its device (-1: none). Memory unknown to the runtime is
     * WEFT_MEMORY_HOST. */
    enum weft_status (*find)(const void *address, enum weft_memory_kind *kind_out, int *device_out,
                             struct weft_error *error);
    /* enter makes `device` current on this thread and writes the previous one, for leave. */
    enum weft_status (*enter)(int device, int *before_out, struct weft_error *error);
    void (*leave)(int before);

    /* Memory of the current device. free may wait for the device. */
    enum weft_status (*alloc)(size_t bytes, void **memory_out, struct weft_error *error);
    void (*free)(void *memory); /* NULL has no effect */
    /* Pins host memory. Copies from and to memory that is not pinned are correct, but block the caller. */
    enum weft_status (*pin)(void *memory, size_t bytes, struct weft_error *error);
    void (*unpin)(void *memory);

    /* A stream without implicit synchronization with the default stream. */
    enum weft_status (*stream_create)(void **stream_out, struct weft_error *error);
    void (*stream_free)(void *stream); /* NULL has no effect; queued work still runs */
    enum weft_status (*event_create)(void **event_out, struct weft_error *error);
    void (*event_free)(void *event); /* NULL has no effect */
    /* Records the event after all work queued on the stream so far. WEFT_ERR_INVALID: a handle for a
     * different stream on each thread. WEFT_ERR_UNSUPPORTED: the stream is being captured. */
    enum weft_status (*record)(void *event, void *stream, struct weft_error *error);
    /* Work queued on the stream from here on waits for the last record of the event, of any device. */
    enum weft_status (*wait)(void *stream, void *event, struct weft_error *error);
    /* WEFT_OK: complete, or never recorded. WEFT_IN_PROGRESS. An error: earlier work has failed. */
    enum weft_status (*passed)(void *event, struct weft_error *error);
    /* Queues a copy between host and device, in either direction, or within one. */
    enum weft_status (*copy)(void *to, const void *from, size_t bytes, void *stream,
                             struct weft_error *error);
    enum weft_status (*zero)(void *memory, size_t bytes, void *stream, struct weft_error *error);

    /* A word of pinned host memory, 0 at first, for the two calls below, of streams of any device.
     * WEFT_ERR_UNSUPPORTED: streams cannot wait for memory; wait_word may find that out first. free may wait
     * for the device; NULL has no effect. */
    enum weft_status (*word_create)(_Atomic uint32_t **word_out, struct weft_error *error);
    void (*word_free)(_Atomic uint32_t *word);
    /* Work queued on the stream from here on waits until the word, which only grows, is `value` or above; the
     * difference is cyclic. Host and streams may store the word. */
    enum weft_status (*wait_word)(void *stream, _Atomic uint32_t *word, uint32_t value,
                                  struct weft_error *error);
    /* Stores `value` after all work queued on the stream so far; its writes are visible before the word. */
    enum weft_status (*write_word)(void *stream, _Atomic uint32_t *word, uint32_t value,
                                   struct weft_error *error);
};

/* Events are polled. Returns the time to the next poll after quiet_ns without progress: an eighth of it, so
 * that a poll is late by at most an eighth; 20 us to 1 ms. */
static inline uint64_t weft_memory_look_ns(uint64_t quiet_ns)
{
    const uint64_t least_ns = WEFT_MS(1) / 50, pause_ns = quiet_ns / 8;
    return pause_ns < least_ns ? least_ns : pause_ns > WEFT_MS(1) ? WEFT_MS(1) : pause_ns;
}

/* The operations of a kind. WEFT_ERR_UNSUPPORTED: no runtime or no device; the text has what was searched and
 * where. WEFT_ERR_INVALID: host memory or not a kind. The first call may load the runtime; its result is
 * kept. */
enum weft_status weft_memory_ops(enum weft_memory_kind kind, const struct weft_memory_ops **ops_out,
                                 struct weft_error *error);

/* Is the driver or runtime of this kind loaded in the process? Loads nothing. */
bool weft_memory_in_use(enum weft_memory_kind kind);
/* Is one of any kind of device? */
bool weft_memory_device_in_use(void);

/* Is the value a weft_memory_kind? */
bool weft_memory_is_kind(int kind);

/* Memory that the processor cannot access: it has a table of operations. */
static inline bool weft_memory_is_device(enum weft_memory_kind kind)
{
    return kind > WEFT_MEMORY_PINNED;
}

/* Exports a dma-buf that covers (bytes,) of device memory, and the offset of the range in it. The caller
 * closes the descriptor; after registration it is not needed. WEFT_ERR_UNSUPPORTED (a kind, driver or memory
 * without dma-bufs), WEFT_ERR_INVALID (not such memory). Requires a current context. Does not block. */
enum weft_status weft_memory_dmabuf(enum weft_memory_kind kind, const void *address, size_t bytes,
                                    int *descriptor_out, uint64_t *offset_out, struct weft_error *error);

/* Makes what other devices have written into memory of the current device visible to all its later work. An
 * event that reports such a write does not do that on every device. WEFT_ERR_UNSUPPORTED: the kind or driver
 * cannot. Waits for writes that have reached the device's bus, microseconds. */
enum weft_status weft_memory_flush(enum weft_memory_kind kind, struct weft_error *error);

#endif
