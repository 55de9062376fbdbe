/* memory_cuda.c - table of operations for CUDA; loads the runtime at run time.
 *
 * The parts of the runtime's interface in use are declared here and in memory_cuda.h. weft therefore builds
 * without CUDA and runs with version 11 to 13. */
#include "base/memory/memory_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/weft_assert.h" /* for WEFT_TRY */

#define CALLS(CALL)                                                                   \
    CALL(get_device_count, "cudaGetDeviceCount", (int *))                             \
    CALL(get_device, "cudaGetDevice", (int *))                                        \
    CALL(set_device, "cudaSetDevice", (int))                                          \
    CALL(pointer_attributes, "cudaPointerGetAttributes", (struct memory_cuda_attributes *, const void *)) \
    CALL(alloc, "cudaMalloc", (void **, size_t))                                      \
    CALL(free, "cudaFree", (void *))                                                  \
    CALL(pin, "cudaHostRegister", (void *, size_t, unsigned))                         \
    CALL(unpin, "cudaHostUnregister", (void *))                                       \
    CALL(stream_create, "cudaStreamCreateWithFlags", (void **, unsigned))             \
    CALL(stream_free, "cudaStreamDestroy", (void *))                                  \
    CALL(stream_capturing, "cudaStreamIsCapturing", (void *, int *))                  \
    CALL(stream_wait, "cudaStreamWaitEvent", (void *, void *, unsigned))              \
    CALL(event_create, "cudaEventCreateWithFlags", (void **, unsigned))               \
    CALL(event_free, "cudaEventDestroy", (void *))                                    \
    CALL(event_record, "cudaEventRecord", (void *, void *))                           \
    CALL(event_query, "cudaEventQuery", (void *))                                     \
    CALL(copy, "cudaMemcpyAsync", (void *, const void *, size_t, int, void *))        \
    CALL(zero, "cudaMemsetAsync", (void *, int, size_t, void *))                      \
    CALL(host_alloc, "cudaHostAlloc", (void **, size_t, unsigned))                                        \
    CALL(host_free, "cudaFreeHost", (void *))                                                             \
    CALL(forget_error, "cudaGetLastError", (void))

static struct {
#define POINTER(name, symbol, arguments) int (*name) arguments;
    CALLS(POINTER)
#undef POINTER
    const char *(*error_name)(int);
    /* of the driver; NULL: it has none */
    int (*wait_value)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    int (*write_value)(void *stream, uint64_t address, uint32_t value, unsigned flags);
} cuda;

static pthread_once_t found_once = PTHREAD_ONCE_INIT;
static struct weft_error not_found; /* status 0: `cuda` is valid */

/* ---- loading ---- */

static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                       "libcudart.so"};
#define RUNTIME_COUNT (sizeof runtimes / sizeof runtimes[0])

/* Prefers the runtime that the program has loaded: streams and events are its handles. */
static void *open_runtime(const char *named)
{
    void *runtime = NULL;
    if (named && named[0]) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < RUNTIME_COUNT && !runtime; i++)
        runtime = dlopen(runtimes[i], RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; i < RUNTIME_COUNT && !runtime; i++)
        runtime = dlopen(runtimes[i], RTLD_NOW | RTLD_LOCAL);
    return runtime;
}

/* Returns the name of a missing function, or NULL. */
static const char *bind_calls(void *runtime)
{
#define BIND(name, symbol, arguments) \
    if (!(*(void **)&cuda.name = dlsym(runtime, symbol))) return symbol;
    CALLS(BIND)
#undef BIND
    *(void **)&cuda.error_name = dlsym(runtime, "cudaGetErrorName");
    return cuda.error_name ? NULL : "cudaGetErrorName";
}

/* The forms _v2 need no setting of the driver's module. A runtime for tests has them itself. */
static void bind_driver(void *runtime)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver || dlsym(runtime, "cuStreamWaitValue32_v2")) {
        if (driver) dlclose(driver);
        driver = runtime;
    }
    *(void **)&cuda.wait_value = dlsym(driver, "cuStreamWaitValue32_v2");
    *(void **)&cuda.write_value = dlsym(driver, "cuStreamWriteValue32_v2");
}

static void find(void)
{
    const char *named = getenv("WEFT_CUDA_RUNTIME");
    void *runtime = open_runtime(named);
    if (!runtime) {
        const char *reason = named && named[0] ? dlerror() : NULL;
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "CUDA memory needs the CUDA runtime, which is not there (%.160s); install it, or name "
                       "its file in WEFT_CUDA_RUNTIME",
                       reason ? reason
                              : "looked for libcudart.so.13, .12, .11.0 in this process and where the system "
                                "looks for libraries");
        return;
    }
    const char *missing = bind_calls(runtime);
    if (missing) {
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "the CUDA runtime that was found has no %s; weft works with CUDA 11 to 13", missing);
        dlclose(runtime);
        return;
    }
    int devices = 0, answer = cuda.get_device_count(&devices);
    if (answer != CUDA_OK || devices == 0) {
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "the CUDA runtime finds no device (%s); CUDA memory needs one, and its driver "
                       "(nvidia-smi shows both)",
                       answer != CUDA_OK ? cuda.error_name(answer) : "0 devices");
        dlclose(runtime);
        return;
    }
    bind_driver(runtime);
}

bool memory_cuda_in_use(void)
{
    const char *named = getenv("WEFT_CUDA_RUNTIME");
    if (named && named[0]) return true;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; i < RUNTIME_COUNT && !driver; i++)
        driver = dlopen(runtimes[i], RTLD_LAZY | RTLD_NOLOAD);
    if (driver) dlclose(driver); /* one reference of several */
    return driver != NULL;
}

/* ---- the operations ---- */

/* Converts the result of a call to a status. Clears the runtime's last error, which the program would
 * otherwise see. */
static enum weft_status answered(int answer, const char *call, struct weft_error *error)
{
    if (answer == CUDA_OK) return WEFT_OK;
    cuda.forget_error();
    enum weft_status status = WEFT_ERR_STATE;
    if (answer == CUDA_NO_MEMORY) status = WEFT_ERR_NO_MEMORY;
    if (answer == CUDA_NO_DEVICE || answer == CUDA_DRIVER_TOO_OLD) status = WEFT_ERR_UNSUPPORTED;
    return (enum weft_status)weft_error_set(error, status, "CUDA: %s answered %s (%d)", call,
                                            cuda.error_name(answer), answer);
}

static enum weft_status cuda_find(const void *address, enum weft_memory_kind *kind_out, int *device_out,
                                  struct weft_error *error)
{
    struct memory_cuda_attributes attributes;
    memset(&attributes, 0, sizeof attributes);
    int answer = cuda.pointer_attributes(&attributes, address);
    if (answer == CUDA_INVALID_VALUE) { /* before CUDA 11: memory unknown to the runtime */
        cuda.forget_error();
        attributes.type = 0;
        answer = CUDA_OK;
    }
    WEFT_TRY(answered(answer, "cudaPointerGetAttributes", error));
    bool on_device = attributes.type == CUDA_MEMORY_DEVICE || attributes.type == CUDA_MEMORY_MANAGED;
    *kind_out = on_device                             ? WEFT_MEMORY_CUDA
                : attributes.type == CUDA_MEMORY_HOST ? WEFT_MEMORY_PINNED
                                                      : WEFT_MEMORY_HOST;
    *device_out = on_device ? attributes.device : -1;
    return WEFT_OK;
}

static enum weft_status cuda_enter(int device, int *before_out, struct weft_error *error)
{
    WEFT_TRY(answered(cuda.get_device(before_out), "cudaGetDevice", error));
    if (*before_out == device) return WEFT_OK;
    return answered(cuda.set_device(device), "cudaSetDevice", error);
}

static void cuda_leave(int before)
{
    int now;
    if (cuda.get_device(&now) == CUDA_OK && now != before) cuda.set_device(before);
}

static enum weft_status cuda_alloc(size_t bytes, void **memory_out, struct weft_error *error)
{
    return answered(cuda.alloc(memory_out, bytes), "cudaMalloc", error);
}

static void cuda_free(void *memory)
{
    if (memory && cuda.free(memory) != CUDA_OK) cuda.forget_error();
}

static enum weft_status cuda_pin(void *memory, size_t bytes, struct weft_error *error)
{
    return answered(cuda.pin(memory, bytes, CUDA_PIN_PORTABLE), "cudaHostRegister", error);
}

static void cuda_unpin(void *memory)
{
    if (cuda.unpin(memory) != CUDA_OK) cuda.forget_error();
}

static enum weft_status cuda_stream_create(void **stream_out, struct weft_error *error)
{
    return answered(cuda.stream_create(stream_out, CUDA_STREAM_NON_BLOCKING), "cudaStreamCreateWithFlags",
                    error);
}

static void cuda_stream_free(void *stream)
{
    if (stream && cuda.stream_free(stream) != CUDA_OK) cuda.forget_error();
}

static enum weft_status cuda_event_create(void **event_out, struct weft_error *error)
{
    return answered(cuda.event_create(event_out, CUDA_EVENT_NO_TIMING), "cudaEventCreateWithFlags", error);
}

static void cuda_event_free(void *event)
{
    if (event && cuda.event_free(event) != CUDA_OK) cuda.forget_error();
}

static enum weft_status cuda_record(void *event, void *stream, struct weft_error *error)
{
    int capturing = 0;
    if ((uintptr_t)stream == CUDA_STREAM_PER_THREAD)
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID,
            "cudaStreamPerThread is another stream on each thread; give one of cudaStreamCreate, or NULL");
    WEFT_TRY(answered(cuda.stream_capturing(stream, &capturing), "cudaStreamIsCapturing", error));
    if (capturing)
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "the stream is being captured into a graph, of which a call cannot be part");
    return answered(cuda.event_record(event, stream), "cudaEventRecord", error);
}

static enum weft_status cuda_wait(void *stream, void *event, struct weft_error *error)
{
    return answered(cuda.stream_wait(stream, event, 0), "cudaStreamWaitEvent", error);
}

static enum weft_status cuda_passed(void *event, struct weft_error *error)
{
    int answer = cuda.event_query(event);
    if (answer != CUDA_NOT_READY) return answered(answer, "cudaEventQuery", error);
    /* NOT_READY counts as this thread's last error, and the thread may be the program's */
    cuda.forget_error();
    return WEFT_IN_PROGRESS;
}

static enum weft_status cuda_copy(void *to, const void *from, size_t bytes, void *stream,
                                  struct weft_error *error)
{
    return answered(cuda.copy(to, from, bytes, CUDA_COPY_BY_ADDRESS, stream), "cudaMemcpyAsync", error);
}

static enum weft_status cuda_zero(void *memory, size_t bytes, void *stream, struct weft_error *error)
{
    return answered(cuda.zero(memory, 0, bytes, stream), "cudaMemsetAsync", error);
}

static enum weft_status cuda_word_create(_Atomic uint32_t **word_out, struct weft_error *error)
{
    void *memory;
    if (!cuda.wait_value || !cuda.write_value)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                                "the CUDA driver has no cuStreamWaitValue32_v2, so no stream "
                                                "can wait for memory; it is there since "
                                                "CUDA 11.7");
    WEFT_TRY(answered(cuda.host_alloc(&memory, sizeof **word_out, CUDA_PIN_PORTABLE | CUDA_PIN_MAPPED),
                      "cudaHostAlloc", error));
    *word_out = memory;
    atomic_store(*word_out, 0);
    return WEFT_OK;
}

static void cuda_word_free(_Atomic uint32_t *word)
{
    if (word && cuda.host_free((void *)word) != CUDA_OK) cuda.forget_error();
}

static enum weft_status driver_answered(int answer, const char *call, struct weft_error *error)
{
    if (answer == CUDA_OK) return WEFT_OK;
    return (enum weft_status)weft_error_set(
        error, answer == CUDA_NOT_SUPPORTED ? WEFT_ERR_UNSUPPORTED : WEFT_ERR_STATE,
        "CUDA: %s of the driver answered %d", call, answer);
}

static enum weft_status cuda_wait_word(void *stream, _Atomic uint32_t *word, uint32_t value,
                                       struct weft_error *error)
{
    return driver_answered(cuda.wait_value(stream, (uintptr_t)word, value, CUDA_WAIT_GEQ),
                           "cuStreamWaitValue32", error);
}

static enum weft_status cuda_write_word(void *stream, _Atomic uint32_t *word, uint32_t value,
                                        struct weft_error *error)
{
    return driver_answered(cuda.write_value(stream, (uintptr_t)word, value, 0), "cuStreamWriteValue32",
                           error);
}
/* ---- dma-buf, from the driver that the process has loaded: looked up by name, no driver is loaded ---- */

enum { RANGE_IS_DMABUF = 1 }; /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

typedef int (*handle_for_range)(void *handle_out, unsigned long long address, size_t bytes, int type,
                                unsigned long long flags);

enum weft_status memory_cuda_dmabuf(const void *address, size_t bytes, int *descriptor_out,
                                    uint64_t *offset_out, struct weft_error *error)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)address / page * page;
    uintptr_t end = ((uintptr_t)address + bytes + page - 1) / page * page;
    handle_for_range get;
    int descriptor = -1;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "%p is declared as CUDA memory, but this process has no CUDA driver loaded", address);
    }
    *(void **)&get = dlsym(driver, "cuMemGetHandleForAddressRange");
    int failed = get ? get(&descriptor, start, end - start, RANGE_IS_DMABUF, 0) : 0;
    dlclose(driver); /* drops one of several references */
    if (!get) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "the CUDA driver is too old to give out dma-bufs: 11.7 (R515) is the first that can");
    }
    if (failed) {
        return (enum weft_status)weft_error_set(error, failed == 1 ? WEFT_ERR_INVALID : WEFT_ERR_UNSUPPORTED,
                                                "the CUDA driver gives no dma-buf for %zu bytes at %p "
                                                "(CUresult %d): it takes device memory of this process, the "
                                                "open kernel modules, and a current context",
                                                bytes, address, failed);
    }
    *descriptor_out = descriptor;
    *offset_out = (uintptr_t)address - start;
    return WEFT_OK;
}

/* ---- writes of other devices ---- */

enum { FLUSH_CURRENT_CONTEXT = 0, FLUSH_TO_OWNER = 100 };

/* The driver that the process has loaded, or a runtime for tests, which has its calls. */
static void *driver_loaded(void)
{
    const char *named = getenv("WEFT_CUDA_RUNTIME");
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver && named && named[0]) driver = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    return driver;
}

enum weft_status memory_cuda_flush(struct weft_error *error)
{
    int (*flush)(int target, int scope) = NULL;
    void *driver = driver_loaded();
    if (driver) *(void **)&flush = dlsym(driver, "cuFlushGPUDirectRDMAWrites");
    const int answer = flush ? flush(FLUSH_CURRENT_CONTEXT, FLUSH_TO_OWNER) : CUDA_OK;
    if (driver) dlclose(driver);
    if (!flush)
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_UNSUPPORTED, "writes of the network into CUDA memory cannot be flushed: %s",
            driver ? "the driver is older than 11.3" : "no CUDA driver is loaded in this process");
    return driver_answered(answer, "cuFlushGPUDirectRDMAWrites", error);
}

/* ---- the table ---- */

static const struct weft_memory_ops cuda_ops = {
    .name = "CUDA",
    .has_kernels = true,
    .find = cuda_find,
    .enter = cuda_enter,
    .leave = cuda_leave,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .stream_create = cuda_stream_create,
    .stream_free = cuda_stream_free,
    .event_create = cuda_event_create,
    .event_free = cuda_event_free,
    .record = cuda_record,
    .wait = cuda_wait,
    .passed = cuda_passed,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .word_create = cuda_word_create,
    .word_free = cuda_word_free,
    .wait_word = cuda_wait_word,
    .write_word = cuda_write_word,
};

enum weft_status memory_cuda_ops(const struct weft_memory_ops **ops_out, struct weft_error *error)
{
    pthread_once(&found_once, find);
    if (not_found.status < 0)
        return (enum weft_status)weft_error_set(error, not_found.status, "%s", not_found.text);
    *ops_out = &cuda_ops;
    return WEFT_OK;
}
