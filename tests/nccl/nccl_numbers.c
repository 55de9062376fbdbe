/* nccl_numbers.c - the compiler compares the result codes of nccl/abi/types.h with an installed nccl.h. */
#include <nccl.h>

#include "nccl/nccl.h"

_Static_assert((int)NCCL_RESULT_SUCCESS == (int)ncclSuccess, "success");
_Static_assert((int)NCCL_RESULT_CUDA == (int)ncclUnhandledCudaError, "CUDA error");
_Static_assert((int)NCCL_RESULT_SYSTEM == (int)ncclSystemError, "system error");
_Static_assert((int)NCCL_RESULT_INTERNAL == (int)ncclInternalError, "internal error");
_Static_assert((int)NCCL_RESULT_ARGUMENT == (int)ncclInvalidArgument, "invalid argument");
_Static_assert((int)NCCL_RESULT_USAGE == (int)ncclInvalidUsage, "invalid usage");
_Static_assert((int)NCCL_RESULT_REMOTE == (int)ncclRemoteError, "remote error");
_Static_assert((int)NCCL_RESULT_IN_PROGRESS == (int)ncclInProgress, "in progress");
