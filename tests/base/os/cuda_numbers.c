/* cuda_numbers.c - compiled if the CUDA toolkit is installed: checks the constants of
 * base/memory/memory_cuda.h. */
#include <cuda_runtime_api.h>

#include "base/memory/memory_cuda.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #theirs)
SAME(CUDA_OK, cudaSuccess);
SAME(CUDA_INVALID_VALUE, cudaErrorInvalidValue);
SAME(CUDA_NO_MEMORY, cudaErrorMemoryAllocation);
SAME(CUDA_DRIVER_TOO_OLD, cudaErrorInsufficientDriver);
SAME(CUDA_NO_DEVICE, cudaErrorNoDevice);
SAME(CUDA_NOT_READY, cudaErrorNotReady);
SAME(CUDA_MEMORY_HOST, cudaMemoryTypeHost);
SAME(CUDA_MEMORY_DEVICE, cudaMemoryTypeDevice);
SAME(CUDA_MEMORY_MANAGED, cudaMemoryTypeManaged);
SAME(CUDA_COPY_BY_ADDRESS, cudaMemcpyDefault);
SAME(CUDA_STREAM_NON_BLOCKING, cudaStreamNonBlocking);
SAME(CUDA_EVENT_NO_TIMING, cudaEventDisableTiming);
SAME(CUDA_PIN_PORTABLE, cudaHostRegisterPortable);
_Static_assert(cudaStreamCaptureStatusNone == 0, "what is not captured");
SAME(offsetof(struct memory_cuda_attributes, type), offsetof(struct cudaPointerAttributes, type));
SAME(offsetof(struct memory_cuda_attributes, device), offsetof(struct cudaPointerAttributes, device));
SAME(offsetof(struct memory_cuda_attributes, host_pointer),
     offsetof(struct cudaPointerAttributes, hostPointer));
_Static_assert(sizeof(struct memory_cuda_attributes) >= sizeof(struct cudaPointerAttributes),
               "capacity for the numbers that the CUDA runtime writes");
