/* fake_device.c - the memory table of an accelerator other than CUDA, as its vendor would write it: the
 * second row of base/memory/memory_kind.c (docs/gpu.md).
 *
 * Its device is that of tests/lib/fake_cuda: streams run late, and the host cannot access its memory. The
 * table is its own, so a caller that assumes CUDA fails. FAULT_VERSION, FAULT_MISSING and FAULT_NO_DEVICE
 * build libraries with a fault. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory/memory_library.h"
#include "base/weft_assert.h"
#include "tests/lib/fake_cuda/fake_cuda.h"

int cudaHostRegister(void *memory, size_t bytes, unsigned flags);
int cudaHostUnregister(void *memory);
int cudaStreamIsCapturing(void *stream, int *status_out);
int cudaEventCreateWithFlags(void **event_out, unsigned flags);
int cudaEventDestroy(void *event);
int cudaEventRecord(void *event, void *stream);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int cudaEventQuery(void *event);
int cudaHostAlloc(void **memory_out, size_t bytes, unsigned flags);
int cudaFreeHost(void *memory);
int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags);
int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags);
int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream);
int cudaPointerGetAttributes(void *attributes_out, const void *address);

enum { OK = 0, NO_MEMORY = 2, NOT_READY = 600, OF_DEVICE = 2, PINNED = 1 };

static enum weft_status answered(int code, const char *call, struct weft_error *error)
{
    if (code == OK) return WEFT_OK;
    cudaGetLastError();
    if (error) {
        error->status = code == NO_MEMORY ? WEFT_ERR_NO_MEMORY : WEFT_ERR_STATE;
        snprintf(error->text, sizeof error->text, "fake: %s answered %d", call, code);
    }
    return code == NO_MEMORY ? WEFT_ERR_NO_MEMORY : WEFT_ERR_STATE;
}

static enum weft_status find(const void *address, enum weft_memory_kind *kind_out, int *device_out,
                             struct weft_error *error)
{
    struct {
        int type, device;
        void *pointers[2];
        long reserved[16];
    } found;
    const int code = cudaPointerGetAttributes(&found, address);
    *kind_out = found.type == OF_DEVICE ? WEFT_MEMORY_DEVICE
                : found.type == PINNED  ? WEFT_MEMORY_PINNED
                                        : WEFT_MEMORY_HOST;
    *device_out = found.type == OF_DEVICE ? found.device : -1;
    return answered(code, "find", error);
}

static enum weft_status enter(int device, int *before_out, struct weft_error *error)
{
    cudaGetDevice(before_out);
    return *before_out == device ? WEFT_OK : answered(cudaSetDevice(device), "enter", error);
}

static void leave(int before)
{
    int now;
    if (cudaGetDevice(&now) == OK && now != before) cudaSetDevice(before);
}

static enum weft_status memory_alloc(size_t bytes, void **memory_out, struct weft_error *error)
{
    return answered(cudaMalloc(memory_out, bytes), "alloc", error);
}

static void memory_free(void *memory)
{
    cudaFree(memory);
}

static enum weft_status pin(void *memory, size_t bytes, struct weft_error *error)
{
    return answered(cudaHostRegister(memory, bytes, 0), "pin", error);
}

static void unpin(void *memory)
{
    cudaHostUnregister(memory);
}

static enum weft_status stream_create(void **stream_out, struct weft_error *error)
{
    return answered(cudaStreamCreateWithFlags(stream_out, 0), "stream_create", error);
}

static void stream_free(void *stream)
{
    if (stream) cudaStreamDestroy(stream);
}

static enum weft_status event_create(void **event_out, struct weft_error *error)
{
    return answered(cudaEventCreateWithFlags(event_out, 0), "event_create", error);
}

static void event_free(void *event)
{
    if (event) cudaEventDestroy(event);
}

static enum weft_status event_record(void *event, void *stream, struct weft_error *error)
{
    int capturing = 0;
    cudaStreamIsCapturing(stream, &capturing);
    if (capturing) {
        answered(1, "record: the stream is being captured", error);
        return WEFT_ERR_UNSUPPORTED;
    }
    return answered(cudaEventRecord(event, stream), "record", error);
}

static enum weft_status stream_wait(void *stream, void *event, struct weft_error *error)
{
    return answered(cudaStreamWaitEvent(stream, event, 0), "wait", error);
}

static enum weft_status passed(void *event, struct weft_error *error)
{
    const int code = cudaEventQuery(event);
    if (code != NOT_READY) return answered(code, "passed", error);
    cudaGetLastError();
    return WEFT_IN_PROGRESS;
}

static enum weft_status copy(void *to, const void *from, size_t bytes, void *stream, struct weft_error *error)
{
    return answered(cudaMemcpyAsync(to, from, bytes, 4, stream), "copy", error);
}

static enum weft_status zero(void *memory, size_t bytes, void *stream, struct weft_error *error)
{
    return answered(cudaMemsetAsync(memory, 0, bytes, stream), "zero", error);
}

static enum weft_status word_create(_Atomic uint32_t **word_out, struct weft_error *error)
{
    void *memory;
    WEFT_TRY(answered(cudaHostAlloc(&memory, sizeof **word_out, 0), "word_create", error));
    *word_out = memory;
    atomic_store(*word_out, 0);
    return WEFT_OK;
}

static void word_free(_Atomic uint32_t *word)
{
    if (word) cudaFreeHost((void *)word);
}

static enum weft_status wait_word(void *stream, _Atomic uint32_t *word, uint32_t value,
                                  struct weft_error *error)
{
    return answered(cuStreamWaitValue32_v2(stream, (uintptr_t)word, value, 0), "wait_word", error);
}

static enum weft_status write_word(void *stream, _Atomic uint32_t *word, uint32_t value,
                                   struct weft_error *error)
{
    return answered(cuStreamWriteValue32_v2(stream, (uintptr_t)word, value, 0), "write_word", error);
}

static enum weft_status open_device(char *reason_out, size_t bytes)
{
#ifdef FAULT_NO_DEVICE
    snprintf(reason_out, bytes, "finds no accelerator; plug one in");
    return WEFT_ERR_UNSUPPORTED;
#else
    (void)reason_out, (void)bytes;
    return WEFT_OK;
#endif
}

static const struct weft_memory_ops ops = {
    .name = "fake",
    .find = find,
    .enter = enter,
    .leave = leave,
    .alloc = memory_alloc,
    .free = memory_free,
    .pin = pin,
    .unpin = unpin,
    .stream_create = stream_create,
    .stream_free = stream_free,
    .event_create = event_create,
    .event_free = event_free,
    .record = event_record,
    .wait = stream_wait,
    .passed = passed,
    .copy = copy,
    .word_create = word_create,
    .word_free = word_free,
    .wait_word = wait_word,
    .write_word = write_word,
#ifndef FAULT_MISSING
    .zero = zero,
#endif
};

const struct weft_memory_library weft_memory_library = {
#ifdef FAULT_VERSION
    .version = WEFT_MEMORY_LIBRARY_VERSION + 1,
#else
    .version = WEFT_MEMORY_LIBRARY_VERSION,
#endif
    .bytes = sizeof ops,
    .ops = &ops,
    .open = open_device,
};
