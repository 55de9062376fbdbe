/* table.c - what libweft_cuda.so shows of itself: the kernels as one table (kernels/device_table.h). */
#include "kernels/device_table.h"

#include "kernels/cuda/cuda_kernels.h"

extern const struct weft_device_kernels weft_cuda_kernels_table;

__attribute__((visibility("default"))) const struct weft_device_kernels weft_cuda_kernels_table = {
    .version = WEFT_DEVICE_KERNELS_VERSION,
    .bytes = sizeof(struct weft_device_kernels),
#define ENTRY(name, arguments) .name = weft_cuda_##name,
    WEFT_DEVICE_CALLS(ENTRY)
#undef ENTRY
    .select_workspace = weft_cuda_select_workspace,
    .matmul_t_workspace = weft_cuda_matmul_t_workspace,
    .orthogonalise_workspace = weft_cuda_orthogonalise_workspace,
    .lamb_workspace = weft_cuda_lamb_workspace,
};
