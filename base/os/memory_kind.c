/* memory_kind.c - selects the table of operations of a memory kind. */
#include "base/os/memory_kind.h"

#include "base/os/memory_cuda.h"

enum weft_status weft_memory_ops(enum weft_memory_kind kind, const struct weft_memory_ops **ops_out,
                                 struct weft_error *error)
{
    if (kind == WEFT_MEMORY_CUDA) return memory_cuda_ops(ops_out, error);
    return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID,
                                            "memory kind %d is none that lies on a device (WEFT_MEMORY_CUDA)",
                                            (int)kind);
}

bool weft_memory_in_use(enum weft_memory_kind kind)
{
    return kind == WEFT_MEMORY_CUDA && memory_cuda_in_use();
}
