/* device_matrix.c - the kernels of one stage of PowerSGD for matrices of one shape (device_batch.h). */
#include "compress/device/device_batch.h"

enum weft_status device_matrix_launch(const struct weft_device_kernels *kernels,
                                      const struct device_matrix_key *key, const struct weft_matrix *before,
                                      size_t before_count, const struct weft_matrix *matrices, size_t count,
                                      void *stream)
{
    const size_t rows = key->rows, cols = key->cols, rank = key->rank;
    weft_device_stream on = (weft_device_stream)stream;
    switch (key->stage) {
    case DEVICE_MATRIX_FIRST:
        if (before_count > 0)
            WEFT_TRY(kernels->outer_many_f32(before, before_count, true, rows, cols, rank, on));
        return kernels->matmul_many_f32(matrices, count, true, rows, cols, rank, on);
    case DEVICE_MATRIX_P: return kernels->matmul_many_f32(matrices, count, false, rows, cols, rank, on);
    case DEVICE_MATRIX_Q:
        if (before_count > 0) WEFT_TRY(kernels->orthogonalise_many(before, before_count, rows, rank, on));
        return kernels->matmul_t_many_f32(matrices, count, rows, cols, rank, on);
    case DEVICE_MATRIX_RESULT: return kernels->outer_many_f32(matrices, count, false, rows, cols, rank, on);
    default: return WEFT_ERR_INVALID;
    }
}
