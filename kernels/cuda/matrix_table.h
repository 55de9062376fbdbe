/* matrix_table.h - matrices of one shape as an argument of a kernel: blockIdx.y is the matrix. No copy of the
 * table is queued, and the caller's may change after the call. Private to kernels/cuda. */
#ifndef WEFT_CUDA_MATRIX_TABLE_H
#define WEFT_CUDA_MATRIX_TABLE_H

#include "kernels/cuda/device.h"
#include "kernels/device_matrix.h"

namespace
{

struct matrix_table {
    struct weft_matrix of[WEFT_MATRICES_MAX];
    size_t count;
};
static_assert(sizeof(matrix_table) <= 3072, "the argument of a kernel, with others");

inline matrix_table one_matrix(const struct weft_matrix &matrix)
{
    matrix_table table = {};
    table.of[0] = matrix;
    table.count = 1;
    return table;
}

inline bool fill_table(matrix_table *table, const struct weft_matrix *matrices, size_t count)
{
    if (count > WEFT_MATRICES_MAX) return false;
    *table = {};
    for (size_t i = 0; i < count; i++) table->of[i] = matrices[i];
    table->count = count;
    return true;
}

} // namespace

#endif
