/* device_table.h - the kernels of kernels/cuda as a table, from a library that is loaded when they are first
 * needed: libweft links nothing of CUDA, and is built where no nvcc is.
 *
 *     libweft_cuda.so --(one symbol)--> struct weft_device_kernels --> compress/device_*.c, client/nccl
 *
 * Each entry is the call of that name in kernels/cuda/cuda_kernels.h, which documents it; all
 * pointers are device memory except where marked host. No call waits or allocates. */
#ifndef WEFT_KERNELS_DEVICE_TABLE_H
#define WEFT_KERNELS_DEVICE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device_matrix.h"
#include "kernels/device_segment.h"
#include "kernels/parameters.h"
#include "weft/status.h"

struct weft_error;
typedef struct CUstream_st *weft_cuda_stream; /* cudaStream_t */
typedef weft_cuda_stream weft_device_stream;  /* for callers of the table */

#define WEFT_DEVICE_KERNELS_VERSION 3u
#define WEFT_DEVICE_KERNELS_SYMBOL "weft_cuda_kernels_table"

#define WEFT_DEVICE_CALLS(CALL)                                                                              \
    CALL(sum_f32, (float *out, const float *a, const float *b, size_t count, weft_cuda_stream stream))       \
    CALL(sum_tree_f32, (float *const *outs, size_t out_count, const float *const *sources,                   \
                        size_t source_count, float factor, size_t count, weft_cuda_stream stream))           \
    CALL(scale_f32, (float *out, const float *in, float factor, size_t count, weft_cuda_stream stream))      \
    CALL(scale_add_f32, (float *out, const float *a, float factor, const float *b, size_t count,             \
                         uint32_t *max_bits, weft_cuda_stream stream))                                       \
    CALL(max_abs_bits_f32, (uint32_t * max_bits, const float *in, size_t count, weft_cuda_stream stream))    \
    CALL(cast_f32_f16, (uint16_t * out, const float *in, size_t count, weft_cuda_stream stream))             \
    CALL(cast_f16_f32, (float *out, const uint16_t *in, size_t count, weft_cuda_stream stream))              \
    CALL(cast_f32_bf16, (uint16_t * out, const float *in, size_t count, weft_cuda_stream stream))            \
    CALL(cast_bf16_f32, (float *out, const uint16_t *in, size_t count, weft_cuda_stream stream))             \
    CALL(scale_add_blocks_f32,                                                                               \
         (float *out, const float *a, float factor, const float *b, size_t count, unsigned limit,            \
          uint8_t *exponents_out, uint32_t *max_bits, weft_cuda_stream stream))                              \
    CALL(quantise_f32, (int8_t * codes_out, float *x, const uint8_t *exponents, size_t count,                \
                        unsigned limit, const struct weft_noise *noise, weft_cuda_stream stream))            \
    CALL(add_i8_i16, (int16_t * sums, const int8_t *codes, size_t count, weft_cuda_stream stream))           \
    CALL(dequantise_i16_f32, (float *out, const int16_t *sums, const uint8_t *exponents, float factor,       \
                              size_t count, weft_cuda_stream stream))                                        \
    CALL(dequantise_i32_f32, (float *out, const int32_t *sums, const uint8_t *exponents, float factor,       \
                              size_t count, weft_cuda_stream stream))                                        \
    CALL(pack_i4, (uint8_t * out, const int8_t *codes, size_t count, weft_cuda_stream stream))               \
    CALL(scale_add_quantise_fp8_f32,                                                                         \
         (uint8_t * codes_out, uint8_t * exponents_out, float *out, const float *a, float factor,            \
          const float *b, size_t count, enum weft_fp8 format, uint32_t *max_bits, weft_cuda_stream stream))  \
    CALL(scale_add_quantise_sign_f32,                                                                        \
         (uint8_t * bits_out, float *scales_out, float *out, const float *a, float factor, const float *b,   \
          size_t count, uint32_t *max_bits, weft_cuda_stream stream))                                        \
    CALL(encode_segments, (const struct weft_segment *segments, size_t count, weft_cuda_stream stream))      \
    CALL(scale_add_select_top_f32, (uint32_t * indices_out, float *values_out, float *out, const float *a,   \
                                    float factor, const float *b, size_t count, size_t k,                    \
                                    uint32_t *max_bits, void *workspace, weft_cuda_stream stream))           \
    CALL(sample_strata, (uint32_t * indices_out, uint64_t count, uint64_t k, const struct weft_noise *noise, \
                         weft_cuda_stream stream))                                                           \
    CALL(take_f32,                                                                                           \
         (float *values_out, float *x, const uint32_t *indices, size_t k, weft_cuda_stream stream))          \
    CALL(scatter_f32, (float *out, size_t count, const uint32_t *indices, const float *values, float factor, \
                       size_t k, weft_cuda_stream stream))                                                   \
    CALL(matmul_many_f32, (const struct weft_matrix *matrices, size_t count, bool adds, size_t rows,         \
                           size_t cols, size_t rank, weft_cuda_stream stream))                               \
    CALL(matmul_t_many_f32, (const struct weft_matrix *matrices, size_t count, size_t rows, size_t cols,     \
                             size_t rank, weft_cuda_stream stream))                                          \
    CALL(outer_many_f32, (const struct weft_matrix *matrices, size_t count, bool subtracts, size_t rows,     \
                          size_t cols, size_t rank, weft_cuda_stream stream))                                \
    CALL(orthogonalise_many, (const struct weft_matrix *matrices, size_t count, size_t rows, size_t rank,    \
                              weft_cuda_stream stream))                                                      \
    CALL(sgd_f32, (float *weights, float *velocity, const float *grad, float grad_scale,                     \
                   const struct weft_sgd *sgd, size_t count, weft_cuda_stream stream))                       \
    CALL(adam_f32, (float *weights, float *first, float *second, const float *grad, float grad_scale,        \
                    const struct weft_adam *adam, size_t count, weft_cuda_stream stream))                    \
    CALL(adagrad_f32, (float *weights, float *sums, const float *grad, float grad_scale, float lr,           \
                       float eps, float weight_decay, size_t count, weft_cuda_stream stream))                \
    CALL(ftrl_f32, (float *weights, float *z, float *n, const float *grad, float grad_scale,                 \
                    const struct weft_ftrl *ftrl, size_t count, weft_cuda_stream stream))                    \
    CALL(lamb_f32,                                                                                           \
         (float *weights, float *first, float *second, const float *grad, float grad_scale,                  \
          const struct weft_lamb *lamb, float lr, size_t count, void *workspace, weft_cuda_stream stream))

struct weft_device_kernels {
    uint32_t version, bytes; /* WEFT_DEVICE_KERNELS_VERSION; of this struct */
#define WEFT_DEVICE_POINTER(name, arguments) enum weft_status(*name) arguments;
    WEFT_DEVICE_CALLS(WEFT_DEVICE_POINTER)
#undef WEFT_DEVICE_POINTER
    size_t (*select_workspace)(size_t count);
    size_t (*matmul_t_workspace)(size_t rows, size_t cols, size_t rank);
    size_t (*orthogonalise_workspace)(void);
    size_t (*lamb_workspace)(size_t count);
};

/* The table. The library is the file in WEFT_CUDA_KERNELS, else libweft_cuda.so.0 beside libweft, else
 * where the system looks. WEFT_ERR_UNSUPPORTED, with a sentence: there is none, or one of another version.
 * The first call may load it, and so reads files; its answer is kept for life. Any thread. */
enum weft_status weft_device_kernels(const struct weft_device_kernels **kernels_out,
                                     struct weft_error *error);

#endif
