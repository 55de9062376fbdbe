/* cuda_runtime.h - as much of CUDA as kernels/cuda uses, on the host: so that the kernels' logic is tested
 * where there is no GPU. Stands in for the toolkit's header when a .cu file is compiled by g++ (-x c++).
 *
 * A block's threads are fibers, run one at a time in an order drawn anew for every block and round, so that
 * what forgets a barrier gets another answer sooner or later. __shared__ is static memory: blocks run one
 * after another. Device memory is host memory; a stream is passed when the call returns. What this cannot
 * show: races that only parallel hardware has, misaligned vector accesses and speed.
 *
 * Test code: not installed, not part of any library. */
#ifndef WEFT_ON_HOST_RUNTIME_H
#define WEFT_ON_HOST_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __restrict__

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation,
    cudaErrorInvalidValue,
    cudaErrorNoDevice,
    cudaErrorInsufficientDriver,
    cudaErrorNoKernelImageForDevice,
    cudaErrorUnsupportedPtxVersion
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* on_host.cc: runs `body` once for every thread of every block. */
void on_host_launch(dim3 grid, dim3 block, void (*body)(void *), void *context);
/* Waits for all threads of the block, or of the warp, that have not returned. */
void on_host_block_barrier();
/* Gives `mine` to the lanes of the warp; returns the 32 values they gave (0 of lanes that have returned). */
const uint64_t *on_host_exchange(uint64_t mine);

template <typename... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Parameters... arguments)
{
    auto body = [&] { kernel(arguments...); };
    on_host_launch(
        config->gridDim, config->blockDim, [](void *context) { (*static_cast<decltype(body) *>(context))(); },
        &body);
    return cudaSuccess;
}

inline void __syncthreads()
{
    on_host_block_barrier();
}
inline void __threadfence() {}
inline long long clock64()
{
    static long long clock;
    return clock += 1 << 20;
}
inline void __syncwarp(unsigned = 0xffffffffu)
{
    on_host_exchange(0);
}

template <typename T> uint64_t on_host_bits(T value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <typename T> T on_host_value(uint64_t bits)
{
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T> T __shfl_sync(unsigned, T mine, int lane, int width = 32)
{
    const int base = (int)(threadIdx.x % 32) / width * width;
    return on_host_value<T>(on_host_exchange(on_host_bits(mine))[base + lane % width]);
}
template <typename T> T __shfl_xor_sync(unsigned, T mine, int step, int width = 32)
{
    (void)width;
    return on_host_value<T>(on_host_exchange(on_host_bits(mine))[(threadIdx.x % 32) ^ (unsigned)step]);
}
template <typename T> T __shfl_down_sync(unsigned, T mine, unsigned step, int width = 32)
{
    const unsigned lane = threadIdx.x % 32,
                   from = lane % (unsigned)width + step < (unsigned)width ? lane + step : lane;
    return on_host_value<T>(on_host_exchange(on_host_bits(mine))[from]);
}
template <typename T> T __shfl_up_sync(unsigned, T mine, unsigned step, int width = 32)
{
    const unsigned lane = threadIdx.x % 32, from = lane % (unsigned)width >= step ? lane - step : lane;
    return on_host_value<T>(on_host_exchange(on_host_bits(mine))[from]);
}
inline unsigned __ballot_sync(unsigned, int vote)
{
    const uint64_t *votes = on_host_exchange(vote != 0);
    unsigned mask = 0;
    for (unsigned lane = 0; lane < 32; lane++) mask |= (unsigned)votes[lane] << lane;
    return mask;
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline double __longlong_as_double(long long x)
{
    return on_host_value<double>((uint64_t)x);
}

template <typename T> T atomicAdd(T *at, T value)
{
    const T before = *at;
    *at += value;
    return before;
}
template <typename T> T atomicMax(T *at, T value)
{
    const T before = *at;
    if (value > before) *at = value;
    return before;
}

inline cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all) /* none of its own */
{
    *left = *all = 0;
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t = nullptr)
{
    memmove(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind);
}
inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t = nullptr)
{
    memset(to, value, bytes);
    return cudaSuccess;
}
struct cudaDeviceProp {
    char name[64];
    int major, minor, multiProcessorCount;
};
inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *device, int)
{
    *device = {"fibers on the host", 0, 0, 1};
    return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 0;
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = (cudaEvent_t)malloc(sizeof(double));
    return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)(void *)event = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = (float)(*(double *)(void *)end - *(double *)(void *)begin);
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}
inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
inline const char *cudaGetErrorString(cudaError_t)
{
    return "no error";
}

#endif
