/* fake_cuda.h - a CUDA runtime without a device, for tests: host memory, and a thread for each stream.
 *
 * The library loads libfake_cudart.so in place of the real runtime (WEFT_CUDA_RUNTIME); tests link it and
 * call the functions below. It makes mistakes visible:
 *   - An access of the host to a "device" address crashes. The bytes are in a shadow.
 *   - Work queued on a stream runs later, after a random delay from a seed, and reads and writes only then. A
 *     missing event or a buffer reused too early gives wrong bytes for some seeds.
 *   - A failed copy leaves the context failed, as in CUDA: every later call and event returns an error.
 *   - The current device of a thread is 0 until it is set. Calls that create a context are recorded (as in
 *     CUDA 12, cudaSetDevice is one).
 *   - An event recorded on a stream of another device is refused, and so is a copy beyond the end of an
 * allocation. */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Call it before anything is queued. delay_us_max: largest delay of each queued item; 0: none. */
void fake_cuda_setup(uint64_t seed, unsigned delay_us_max, int devices);
/* The bytes behind a device address; a host address is returned unchanged. */
void *fake_cuda_shadow(const void *address);
/* Queues a kernel: fn(context) runs when the stream reaches it. Returns a cudaError_t. */
int fake_cuda_launch(void *stream, void (*fn)(void *context), void *context);
/* frees `context`, unless it is refused */
int fake_cuda_launch_owned(void *stream, void (*fn)(void *context), void *context);
/* The n-th copy from now on fails (1: the next); 0: none. */
void fake_cuda_fail_copy(int n);
/* The n-th cudaMalloc from now on and all later ones find no memory; 0: none. */
void fake_cuda_fail_alloc(int n);
/* The n-th kernel queued from now on is refused, and the context has failed; 0: none. fake_cuda_launches
 * returns the number of queued kernels. */
void fake_cuda_fail_launch(int n);
int fake_cuda_launches(void);
/* While true, kernels and the work behind them do not end, as on a device that hangs. Calls that wait for
 * the device (cudaFree) would block; they return at once, without effect, and are counted. */
void fake_cuda_hang(bool hangs);
int fake_cuda_hung_calls(void);
/* Resets a failed context; nothing may be queued. */
void fake_cuda_reset(void);
/* Number of live allocations, pinned ranges, streams and events. */
int fake_cuda_live_count(void);
/* Number of copies so far between a device and host memory that was not pinned. */
int fake_cuda_unpinned_copies(void);
/* Bytes copied so far between host and device, both directions. */
uint64_t fake_cuda_copied_bytes(void);
/* Devices with a context created since the setup: bit d for device d. */
unsigned fake_cuda_contexts(void);
/* Drops waits from now on. A test with a dropped wait must fail. */
enum fake_cuda_order {
    FAKE_CUDA_NONE,
    FAKE_CUDA_WAIT_FOR_STREAM, /* of any stream for an event of `stream` */
    FAKE_CUDA_STREAM_WAITS,    /* of `stream` for an event */
    FAKE_CUDA_WAIT_WORD,       /* of any stream for a word */
};
void fake_cuda_drop(enum fake_cuda_order order, void *stream);
/* Each copy takes this time; 0: the default. */
void fake_cuda_slow_copies(unsigned us);
/* Calls of cuFlushGPUDirectRDMAWrites so far. */
int fake_cuda_flushes(void);
/* Waits and stores of words by streams (cuStreamWaitValue32), and flushes, are refused as not supported. */
void fake_cuda_refuse_words(bool refuse);
/* Marks this stream as captured into a graph; NULL: none. */
void fake_cuda_capture(void *stream);
/* Waits until nothing is queued on any stream. */
void fake_cuda_synchronize(void);

/* Functions of the runtime that tests call. */
int cudaMalloc(void **memory_out, size_t bytes);
int cudaFree(void *memory);
int cudaSetDevice(int device);
int cudaGetDevice(int *device_out);
int cudaGetLastError(void);
int cudaStreamCreateWithFlags(void **stream_out, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaEventCreateWithFlags(void **event_out, unsigned flags);
int cudaEventDestroy(void *event);
int cudaEventRecord(void *event, void *stream);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);

#endif
