/* cuda_kernels.h - the kernels of kernels.h on device memory.
 *
 * Each pointer is device memory unless marked host. Calls queue work on `stream` and return: no
 * synchronisation, no allocation; the caller provides scratch and keeps it until the stream has completed (a
 * call may share it with later calls on the same stream). Parameters are copied before the call returns. Any
 * host thread; the current device is the stream's.
 *
 * The bits are those of kernels.h, on every device and in every run: same per-element text (the *_element.h
 * headers), one rounding per operation, the same order of every sum, nothing that depends on which thread
 * comes first. Lengths and starts are free to one element; starts at 16 bytes are faster. in/out ranges are
 * equal or disjoint as in kernels.h.
 *
 * Every call answers WEFT_OK (queued), WEFT_ERR_INVALID (an argument out of its documented range; nothing was
 * queued), WEFT_ERR_UNSUPPORTED (this device or driver cannot run this build) or WEFT_ERR_STATE (the CUDA
 * context has failed, perhaps long before; cudaGetLastError has the reason, and where a call queues several
 * launches some may be queued).
 *
 * `max_bits` raises a value in device memory to max_abs_bits of what was computed (kernels.h): the caller
 * sets it to 0 before (cudaMemsetAsync) and reads it later; >= 0x7f800000: an element was
 * not finite. */
#ifndef WEFT_CUDA_KERNELS_H
#define WEFT_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device_matrix.h"
#include "kernels/device_segment.h"
#include "kernels/parameters.h"
#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *weft_cuda_stream; /* cudaStream_t */

/* ---- sums, scale, casts ---- */
enum weft_status weft_cuda_sum_f32(float *out, const float *a, const float *b, size_t count,
                                   weft_cuda_stream stream);
enum weft_status weft_cuda_sum_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count,
                                   weft_cuda_stream stream);
/* outs and sources are host arrays of device pointers, 1 to 8 each. */
enum weft_status weft_cuda_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                                        size_t source_count, float factor, size_t count,
                                        weft_cuda_stream stream);
enum weft_status weft_cuda_scale_f32(float *out, const float *in, float factor, size_t count,
                                     weft_cuda_stream stream);
/* out = a*factor + b; max_bits may be NULL. */
enum weft_status weft_cuda_scale_add_f32(float *out, const float *a, float factor, const float *b,
                                         size_t count, uint32_t *max_bits, weft_cuda_stream stream);
enum weft_status weft_cuda_max_abs_bits_f32(uint32_t *max_bits, const float *in, size_t count,
                                            weft_cuda_stream stream);

enum weft_status weft_cuda_cast_f32_f16(uint16_t *out, const float *in, size_t count,
                                        weft_cuda_stream stream);
enum weft_status weft_cuda_cast_f16_f32(float *out, const uint16_t *in, size_t count,
                                        weft_cuda_stream stream);
enum weft_status weft_cuda_cast_f32_bf16(uint16_t *out, const float *in, size_t count,
                                         weft_cuda_stream stream);
enum weft_status weft_cuda_cast_bf16_f32(float *out, const uint16_t *in, size_t count,
                                         weft_cuda_stream stream);
/* As weft_cast_f32_fp8 and weft_cast_fp8_f32: without a scale, too large becomes Inf (e5m2) or NaN (e4m3). */
enum weft_status weft_cuda_cast_f32_fp8(uint8_t *out, const float *in, size_t count, enum weft_fp8 format,
                                        weft_cuda_stream stream);
enum weft_status weft_cuda_cast_fp8_f32(float *out, const uint8_t *in, size_t count, enum weft_fp8 format,
                                        weft_cuda_stream stream);

/* ---- block quantisation, 8-bit floats, signs: x becomes the residual. noise is host memory; NULL: to
 * nearest ---- */
enum weft_status weft_cuda_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                                size_t count, unsigned limit, uint8_t *exponents_out,
                                                uint32_t *max_bits, weft_cuda_stream stream);
enum weft_status weft_cuda_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                                        unsigned limit, const struct weft_noise *noise,
                                        weft_cuda_stream stream);
enum weft_status weft_cuda_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count,
                                      weft_cuda_stream stream);
enum weft_status weft_cuda_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count,
                                      weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents,
                                              float factor, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents,
                                              float factor, size_t count, weft_cuda_stream stream);
/* Two 4-bit codes in a byte, the first in its low half; an odd last one alone. And back, with the sign. */
enum weft_status weft_cuda_pack_i4(uint8_t *out, const int8_t *codes, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_unpack_i4(int8_t *codes_out, const uint8_t *in, size_t count,
                                     weft_cuda_stream stream);
enum weft_status weft_cuda_quantise_fp8_f32(uint8_t *codes_out, float *x, const uint8_t *exponents,
                                            size_t count, enum weft_fp8 format, weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_fp8_f32(float *out, const uint8_t *codes, const uint8_t *exponents,
                                              size_t count, enum weft_fp8 format, weft_cuda_stream stream);
enum weft_status weft_cuda_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *x, size_t count,
                                             weft_cuda_stream stream);
enum weft_status weft_cuda_dequantise_sign_f32(float *out, const uint8_t *bits, const float *scales,
                                               size_t count, weft_cuda_stream stream);

/* One pass from gradient to codes where the scales are this worker's own: out = a*factor + b, each block's
 * exponent (or mean magnitude) from it, codes under that, and out becomes the residual: 13 bytes an element
 * (sign: 12.14). The bits are those of scale_add_f32, then weft_block_exponent or weft_fp8_exponent of every
 * block, then quantise. Where a block is not finite out keeps the sum, the exponent is 255 and the codes are
 * 0 (a sign's scale and bits are undefined): see max_bits. */
enum weft_status weft_cuda_scale_add_quantise_f32(int8_t *codes_out, uint8_t *exponents_out, float *out,
                                                  const float *a, float factor, const float *b, size_t count,
                                                  unsigned limit, const struct weft_noise *noise,
                                                  uint32_t *max_bits, weft_cuda_stream stream);
enum weft_status weft_cuda_scale_add_quantise_fp8_f32(uint8_t *codes_out, uint8_t *exponents_out, float *out,
                                                      const float *a, float factor, const float *b,
                                                      size_t count, enum weft_fp8 format, uint32_t *max_bits,
                                                      weft_cuda_stream stream);
enum weft_status weft_cuda_scale_add_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *out,
                                                       const float *a, float factor, const float *b,
                                                       size_t count, uint32_t *max_bits,
                                                       weft_cuda_stream stream);

/* Encodes `count` (0 to WEFT_SEGMENTS_MAX) small tensors in one launch; the bits are those of the calls that
 * device_segment.h names. segments is host memory and is copied before the call returns. */
enum weft_status weft_cuda_encode_segments(const struct weft_segment *segments, size_t count,
                                           weft_cuda_stream stream);

/* ---- top-k, random-k, sparse to dense. workspace: weft_cuda_select_workspace(count) bytes, from 16 bytes
 * ---- */
size_t weft_cuda_select_workspace(size_t count); /* about 2 bytes an element */
/* As weft_select_top: the k largest |x| by bit pattern (NaN above Inf), ties to the smaller index, indices
 * rising. */
enum weft_status weft_cuda_select_top(uint32_t *indices_out, const float *x, size_t count, size_t k,
                                      void *workspace, weft_cuda_stream stream);
/* out = a*factor + b, and its k largest moved out: their values to values_out, 0 in their places. 16 bytes
 * an element. */
enum weft_status weft_cuda_scale_add_select_top_f32(uint32_t *indices_out, float *values_out, float *out,
                                                    const float *a, float factor, const float *b,
                                                    size_t count, size_t k, uint32_t *max_bits,
                                                    void *workspace, weft_cuda_stream stream);
/* As weft_sample_strata; noise is host memory. */
enum weft_status weft_cuda_sample_strata(uint32_t *indices_out, uint64_t count, uint64_t k,
                                       const struct weft_noise *noise, weft_cuda_stream stream);
/* values_out[j] = x[indices[j]], which becomes 0; indices differ. */
enum weft_status weft_cuda_take_f32(float *values_out, float *x, const uint32_t *indices, size_t k,
                                    weft_cuda_stream stream);
/* out is 0 but for out[indices[j]] = values[j] * factor; indices below count, all different. */
enum weft_status weft_cuda_scatter_f32(float *out, size_t count, const uint32_t *indices, const float *values,
                                       float factor, size_t k, weft_cuda_stream stream);

/* ---- PowerSGD: M (rows, cols), P (rank, rows), Q (rank, cols), rank 1 to 64, as kernels.h ---- */
enum weft_status weft_cuda_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows,
                                      size_t cols, size_t rank, weft_cuda_stream stream);
/* m = a*factor + b (m may equal b), then P = M Q: 12 bytes an element for rank <= 8. */
enum weft_status weft_cuda_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b,
                                                float *p, size_t p_stride, const float *q, size_t rows,
                                                size_t cols, size_t rank, uint32_t *max_bits,
                                                weft_cuda_stream stream);
size_t weft_cuda_matmul_t_workspace(size_t rows, size_t cols,
                                    size_t rank); /* bytes; the scratch begins at 16 bytes */
enum weft_status weft_cuda_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols,
                                        size_t rank, void *workspace, weft_cuda_stream stream);
enum weft_status weft_cuda_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols,
                                     size_t rank, weft_cuda_stream stream);
enum weft_status weft_cuda_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols,
                                         size_t rank, weft_cuda_stream stream);
/* As weft_orthogonalise. dropped (rank,) and kept_out may be NULL. */
size_t weft_cuda_orthogonalise_workspace(void); /* bytes; the scratch begins at 16 bytes */
enum weft_status weft_cuda_orthogonalise(float *p, size_t rows, size_t rank, uint8_t *dropped,
                                         uint32_t *kept_out, void *workspace, weft_cuda_stream stream);

/* The same on `count` (0 to WEFT_MATRICES_MAX) matrices of one shape, one launch of each kernel. `matrices`
 * is host memory and is copied before the call returns.
 *   matmul_many         p = m q; adds: m = a*factor + b first, with max_bits
 *   matmul_t_many       q = m^T p; scratch: weft_cuda_matmul_t_workspace
 *   outer_many          m = p^T q; subtracts: m = m - p^T q
 *   orthogonalise_many  p; scratch: weft_cuda_orthogonalise_workspace */
enum weft_status weft_cuda_matmul_many_f32(const struct weft_matrix *matrices, size_t count, bool adds,
                                           size_t rows, size_t cols, size_t rank, weft_cuda_stream stream);
enum weft_status weft_cuda_matmul_t_many_f32(const struct weft_matrix *matrices, size_t count, size_t rows,
                                             size_t cols, size_t rank, weft_cuda_stream stream);
enum weft_status weft_cuda_outer_many_f32(const struct weft_matrix *matrices, size_t count, bool subtracts,
                                          size_t rows, size_t cols, size_t rank, weft_cuda_stream stream);
enum weft_status weft_cuda_orthogonalise_many(const struct weft_matrix *matrices, size_t count, size_t rows,
                                              size_t rank, weft_cuda_stream stream);

/* ---- update rules, as kernels.h; the parameters are host memory ---- */
enum weft_status weft_cuda_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                                   const struct weft_sgd *sgd, size_t count, weft_cuda_stream stream);
enum weft_status weft_cuda_adam_f32(float *weights, float *first, float *second, const float *grad,
                                    float grad_scale, const struct weft_adam *adam, size_t count,
                                    weft_cuda_stream stream);
enum weft_status weft_cuda_adagrad_f32(float *weights, float *sums, const float *grad, float grad_scale,
                                       float lr, float eps, float weight_decay, size_t count,
                                       weft_cuda_stream stream);
enum weft_status weft_cuda_ftrl_f32(float *weights, float *z, float *n, const float *grad, float grad_scale,
                                    const struct weft_ftrl *ftrl, size_t count, weft_cuda_stream stream);
/* A whole step, as weft_lamb_step. */
size_t weft_cuda_lamb_workspace(size_t count); /* bytes; the scratch begins at 16 bytes */
enum weft_status weft_cuda_lamb_f32(float *weights, float *first, float *second, const float *grad,
                                    float grad_scale, const struct weft_lamb *lamb, float lr, size_t count,
                                    void *workspace, weft_cuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif
