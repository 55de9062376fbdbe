/* device.h - the few idioms the CUDA files share: launches, elements in packs, sums and maxima over a warp.
 * Private to kernels/cuda. */
#ifndef WEFT_CUDA_DEVICE_H
#define WEFT_CUDA_DEVICE_H

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/float_bits.h"

namespace
{

constexpr unsigned WARP = 32, THREADS = 256;
/* Blocks that are short beside the atomic at their end are this many at most, and they stride: about eight
 * for each multiprocessor of a large device. Never asked from the device, so that nothing can depend on
 * it. */
constexpr size_t BLOCKS_MAX = 1056;
constexpr unsigned ALL = 0xffffffffu;

inline enum weft_status status_of(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return WEFT_OK;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: return WEFT_ERR_UNSUPPORTED;
    default: return WEFT_ERR_STATE;
    }
}

/* A grid of `blocks` for each of `many` (blockIdx.y), which is small. */
template <typename... Parameters, typename... Arguments>
inline enum weft_status launch_many(weft_cuda_stream stream, size_t blocks, size_t many, unsigned threads,
                                    void (*kernel)(Parameters...), Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    if (blocks == 0 || many == 0) return WEFT_OK;
    if (blocks > 0x7fffffff) return WEFT_ERR_INVALID;
    config.gridDim = dim3((unsigned)blocks, (unsigned)many);
    config.blockDim = dim3(threads);
    config.stream = stream;
    return status_of(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

template <typename... Parameters, typename... Arguments>
inline enum weft_status launch(weft_cuda_stream stream, size_t blocks, unsigned threads,
                               void (*kernel)(Parameters...), Arguments... arguments)
{
    return launch_many(stream, blocks, 1, threads, kernel, arguments...);
}

inline size_t pieces(size_t count, size_t piece)
{
    return count / piece + (count % piece != 0);
}
inline size_t at_most(size_t value, size_t most)
{
    return value < most ? value : most;
}

__device__ inline size_t thread_number()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ inline size_t thread_total()
{
    return (size_t)gridDim.x * blockDim.x;
}
__device__ inline unsigned lane_number()
{
    return threadIdx.x % WARP;
}

/* ---- N elements in one or two instructions, where they lie at 16 bytes (or at as much as they are) ---- */
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
    T v[N];
};

template <int N, typename T> __device__ inline pack<T, N> load(const T *from)
{
    return *reinterpret_cast<const pack<T, N> *>(from);
}

template <int N, typename T> __device__ inline void store(T *to, const pack<T, N> &values)
{
    *reinterpret_cast<pack<T, N> *>(to) = values;
}

template <typename... T> inline bool aligned(const T *...pointers)
{
    uintptr_t all = 0;
    ((all |= (uintptr_t)pointers), ...);
    return all % 16 == 0;
}

/* op.run<N>(at) for every pack of `wide` elements, op.run<1> for what is left: one pack a thread. */
template <int N, typename Op>
__global__ void __launch_bounds__(THREADS) each_kernel(Op op, size_t packs, size_t count)
{
    const size_t number = thread_number();
    if (number < packs) op.template run<N>(number * N);
    else if (number - packs < count - packs * N) op.template run<1>(packs * N + (number - packs));
}

template <int N, typename Op>
inline enum weft_status each(weft_cuda_stream stream, const Op &op, size_t count, bool wide)
{
    const size_t packs = wide ? count / N : 0;
    return launch(stream, pieces(packs + (count - packs * N), THREADS), THREADS, each_kernel<N, Op>, op,
                  packs, count);
}

/* ---- over a warp, over a block ---- */
__device__ inline uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

__device__ inline uint32_t warp_max(uint32_t mine)
{
    for (unsigned step = WARP / 2; step > 0; step /= 2) mine = larger(mine, __shfl_xor_sync(ALL, mine, step));
    return mine;
}

/* By all threads of the block, at its end. A thread whose value is not above the stored one does not
 * write: it only rises. */
__device__ inline void raise(uint32_t *max_bits, uint32_t mine)
{
    __shared__ uint32_t of_warps[1024 / WARP];
    mine = warp_max(mine);
    if (lane_number() == 0) of_warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (unsigned w = 1; w < blockDim.x / WARP; w++) mine = larger(mine, of_warps[w]);
    if (mine > *(volatile uint32_t *)max_bits) atomicMax(max_bits, mine);
}

__device__ inline uint32_t magnitude(float value)
{
    return float_bits(value) & FLOAT_ABS;
}

} // namespace

#endif
