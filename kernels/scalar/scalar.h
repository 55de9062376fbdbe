/* scalar.h - the scalar kernels by name, for the dispatch table and for variants that reuse one of them
 * where a fast version would gain nothing. Private to the module. */
#ifndef WEFT_KERNELS_SCALAR_H
#define WEFT_KERNELS_SCALAR_H

#include "kernels/kernels.h"

extern const struct weft_kernels weft_kernels_scalar;

void weft_scalar_sum_f32(float *out, const float *a, const float *b, size_t count);
void weft_scalar_sum_i64(int64_t *out, const int64_t *a, const int64_t *b, size_t count);
void weft_scalar_combine(enum weft_dtype dtype, enum weft_op op, void *out, const void *a, const void *b,
                         size_t count);
void weft_scalar_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                              size_t source_count, float factor, size_t count);
uint32_t weft_scalar_sum_tree_max_f32(float *const *outs, size_t out_count, const float *const *sources,
                                      size_t source_count, float factor, size_t count, bool stream);
void weft_scalar_scale_f32(float *out, const float *in, float factor, size_t count);
uint32_t weft_scalar_scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count);
size_t weft_scalar_scale_add_above_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                       uint32_t floor_bits, uint32_t first, uint32_t *indices_out,
                                       float *values_out, uint32_t *max_bits);
uint32_t weft_scalar_max_abs_bits_f32(const float *in, size_t count);
size_t weft_scalar_indices_above_f32(uint32_t *indices_out, const float *in, size_t count,
                                     uint32_t floor_bits);
bool weft_scalar_finite_f32(const float *in, size_t count);

void weft_scalar_cast_f32_f16(uint16_t *out, const float *in, size_t count);
void weft_scalar_cast_f16_f32(float *out, const uint16_t *in, size_t count);
void weft_scalar_cast_f32_bf16(uint16_t *out, const float *in, size_t count);
void weft_scalar_cast_bf16_f32(float *out, const uint16_t *in, size_t count);

void weft_scalar_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                         const struct weft_sgd *sgd, size_t count);

uint32_t weft_scalar_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                          size_t count, unsigned limit, uint8_t *exponents_out);
void weft_scalar_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                              unsigned limit, const struct weft_noise *noise);
void weft_scalar_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count);
void weft_scalar_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count);
void weft_scalar_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor,
                                    size_t count);
void weft_scalar_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor,
                                    size_t count);

void weft_scalar_quantise_fp8_f32(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                                  enum weft_fp8 format);
void weft_scalar_dequantise_fp8_f32(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count,
                                    enum weft_fp8 format);
void weft_scalar_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *x, size_t count);
void weft_scalar_dequantise_sign_f32(float *out, const uint8_t *bits, const float *scales, size_t count);

void weft_scalar_adam_f32(float *weights, float *first, float *second, const float *grad, float grad_scale,
                         const struct weft_adam *adam, size_t count);
void weft_scalar_adagrad_f32(float *weights, float *sums, const float *grad, float grad_scale, float lr,
                             float eps, float weight_decay, size_t count);
void weft_scalar_ftrl_f32(float *weights, float *z, float *n, const float *grad, float grad_scale,
                          const struct weft_ftrl *ftrl, size_t count);

void weft_scalar_lamb_moments_f32(float *first, float *second, const float *weights, const float *grad,
                                  float grad_scale, const struct weft_lamb *lamb, size_t count,
                                  double squares_out[2]);
void weft_scalar_lamb_apply_f32(float *weights, const float *first, const float *second,
                                const struct weft_lamb *lamb, float rate, size_t count);

double weft_scalar_dot_f32(const float *a, const float *b, size_t count);
void weft_scalar_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows,
                            size_t cols, size_t rank);
uint32_t weft_scalar_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b, float *p,
                                          size_t p_stride, const float *q, size_t rows, size_t cols,
                                          size_t rank);
uint32_t weft_scalar_lazy_residual_add_matmul_f32(float *m, const struct weft_lazy_residual *lazy,
                                                  const float *a, float factor, float *p, const float *q,
                                                  size_t rows, size_t cols, size_t rank);
void weft_scalar_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols,
                              size_t rank);
void weft_scalar_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank);
void weft_scalar_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols,
                               size_t rank);

#endif
