/* device_memory.cu - see device_memory.h. */
#include "tests/kernels/cuda/device_memory.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static void must(cudaError_t error)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "kernel_check: CUDA error: %s\n", cudaGetErrorString(error));
    exit(1);
}

bool check_device_open(char *text_out, size_t bytes)
{
    int count = 0, driver = 0;
    cudaDeviceProp device;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        snprintf(text_out, bytes, "%s", error == cudaSuccess ? "no device" : cudaGetErrorString(error));
        return false;
    }
    must(cudaGetDeviceProperties(&device, 0));
    must(cudaDriverGetVersion(&driver));
    snprintf(text_out, bytes, "%s, compute capability %d.%d, %d multiprocessors, driver for CUDA %d.%d",
             device.name, device.major, device.minor, device.multiProcessorCount, driver / 1000,
             driver % 1000 / 10);
    return true;
}

size_t device_memory_free(void)
{
    size_t left = 0, all = 0;
    must(cudaMemGetInfo(&left, &all));
    return left;
}

void *device_alloc(size_t bytes)
{
    void *memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError(); /* forgotten: the caller answers for it */
    return nullptr;
}

void device_free(void *memory) { must(cudaFree(memory)); }
void device_put(void *device, const void *host, size_t bytes)
{
    must(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}
void device_get(void *host, const void *device, size_t bytes)
{
    must(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}
void device_set(void *device, int byte, size_t bytes) { must(cudaMemsetAsync(device, byte, bytes, nullptr)); }

void device_copy_queue(void *to, const void *from, size_t bytes)
{
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr));
}

/* Some 100 microseconds of the device's, in which the host queues what is to be measured: on a stream that
 * runs empty its own time for each launch would count as the kernels'. */
static __global__ void wait_kernel(long long ticks)
{
    const long long begin = clock64();
    while (clock64() - begin < ticks) {
    }
}

static void queue_wait()
{
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    must(cudaLaunchKernelEx(&config, wait_kernel, 200000LL));
}

double device_seconds(void (*queue)(void *context), void *context)
{
    static cudaEvent_t begin, end;
    float ms = 0;
    if (!begin) {
        must(cudaEventCreate(&begin));
        must(cudaEventCreate(&end));
    }
    queue_wait();
    must(cudaEventRecord(begin, nullptr));
    queue(context);
    must(cudaEventRecord(end, nullptr));
    must(cudaEventSynchronize(end));
    must(cudaGetLastError());
    must(cudaEventElapsedTime(&ms, begin, end));
    return (double)ms * 1e-3;
}
