/* fake_cuda.h - a CUDA runtime without a device, for tests: host memory, and a thread for each stream.
 *
 * The library loads libfake_cudart.so as it would the real runtime (WEFT_CUDA_RUNTIME); tests link it and
 * call what is below. It is built to make mistakes show:
 *   - "device" addresses may not be touched by the host: whoever does, dies there. The bytes lie in a shadow.
 *   - what is queued on a stream runs later, after a delay drawn from a seed, and reads and writes only then:
 *     a missing event or a buffer that is used again too early gives wrong bytes in some seeds.
 *   - a copy that fails leaves the context failed, as CUDA does: every later call and event answers so.
 *   - a thread's current device is 0 until it says otherwise, and calls that make a context where none is are
 *     noted (as CUDA 12 does it, cudaSetDevice among them).
 *   - an event recorded on a stream of another device than the one it was made on is refused; so is a copy
 *     beyond the end. */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

/* Before anything is queued. delay_us_max: of each thing queued; 0: none. */
void fake_cuda_setup(uint64_t seed, unsigned delay_us_max, int devices);
/* The bytes behind a device address, or the address itself if it is the host's. */
void *fake_cuda_shadow(const void *address);
/* A kernel: fn(context) runs when the stream comes to it. Returns a cudaError_t. */
int fake_cuda_launch(void *stream, void (*fn)(void *context), void *context);
/* which frees `context` unless it is refused */
int fake_cuda_launch_owned(void *stream, void (*fn)(void *context), void *context);
/* The n-th copy that runs from now on fails (1: the next); 0: none. */
void fake_cuda_fail_copy(int n);
/* The n-th cudaMalloc from now on finds no memory, and all after it; 0: none. */
void fake_cuda_fail_alloc(int n);
/* The n-th kernel that is queued from now on is refused, and the context has failed; 0: none. And how many
 * have been queued. */
void fake_cuda_fail_launch(int n);
int fake_cuda_launches(void);
/* The context is well again; nothing may be queued. */
void fake_cuda_reset(void);
/* What is alive: allocations, pinned ranges, streams, events. */
int fake_cuda_live_count(void);
/* Copies so far between a device and host memory that was not pinned. */
int fake_cuda_unpinned_copies(void);
/* Bytes so far that copies moved between host and device, both ways. */
uint64_t fake_cuda_copied_bytes(void);
/* Devices on which a context was made since the setup: bit d for device d. */
unsigned fake_cuda_contexts(void);
/* This stream is being captured into a graph; NULL: none. */
void fake_cuda_capture(void *stream);
/* Wait until nothing is queued anywhere. */
void fake_cuda_synchronize(void);

/* What tests use of the runtime itself. */
int cudaMalloc(void **memory_out, size_t bytes);
int cudaFree(void *memory);
int cudaSetDevice(int device);
int cudaGetDevice(int *device_out);
int cudaGetLastError(void);
int cudaStreamCreateWithFlags(void **stream_out, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);

#endif
