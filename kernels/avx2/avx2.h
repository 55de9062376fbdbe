/* avx2.h - the AVX2 + F16C table, and the few vector idioms its files share. Private to the module;
 * only files compiled with -mavx2 -mf16c may use the inline functions, anyone may name the table. */
#ifndef WEFT_KERNELS_AVX2_H
#define WEFT_KERNELS_AVX2_H

#include "kernels/kernels.h"

extern const struct weft_kernels weft_kernels_avx2;

void weft_avx2_sum_f32(float *out, const float *a, const float *b, size_t count);
void weft_avx2_combine(enum weft_dtype dtype, enum weft_op op, void *out, const void *a, const void *b,
                       size_t count);
void weft_avx2_sum_tree_stream_f32(float *const *outs, size_t out_count, const float *const *sources,
                                   size_t source_count, float factor, size_t count);
void weft_avx2_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                            size_t source_count, float factor, size_t count);
uint32_t weft_avx2_sum_tree_max_f32(float *const *outs, size_t out_count, const float *const *sources,
                                    size_t source_count, float factor, size_t count, bool stream);
void weft_avx2_scale_f32(float *out, const float *in, float factor, size_t count);
uint32_t weft_avx2_scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count);
size_t weft_avx2_scale_add_above_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                     uint32_t floor_bits, uint32_t first, uint32_t *indices_out,
                                     float *values_out, uint32_t *max_bits);
uint32_t weft_avx2_max_abs_bits_f32(const float *in, size_t count);
size_t weft_avx2_indices_above_f32(uint32_t *indices_out, const float *in, size_t count, uint32_t floor_bits);
bool weft_avx2_finite_f32(const float *in, size_t count);
void weft_avx2_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                       const struct weft_sgd *sgd, size_t count);

void weft_avx2_cast_f32_f16(uint16_t *out, const float *in, size_t count);
void weft_avx2_cast_f16_f32(float *out, const uint16_t *in, size_t count);
void weft_avx2_cast_f32_bf16(uint16_t *out, const float *in, size_t count);
void weft_avx2_cast_bf16_f32(float *out, const uint16_t *in, size_t count);

uint32_t weft_avx2_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                        size_t count, unsigned limit, uint8_t *exponents_out);
void weft_avx2_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                            unsigned limit, const struct weft_noise *noise);
void weft_avx2_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count);
void weft_avx2_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count);
void weft_avx2_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor,
                                  size_t count);
void weft_avx2_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor,
                                  size_t count);

void weft_avx2_quantise_fp8_f32(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                                enum weft_fp8 format);
void weft_avx2_dequantise_fp8_f32(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count,
                                  enum weft_fp8 format);
void weft_avx2_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *x, size_t count);
void weft_avx2_dequantise_sign_f32(float *out, const uint8_t *bits, const float *scales, size_t count);

void weft_avx2_adam_f32(float *weights, float *first, float *second, const float *grad, float grad_scale,
                         const struct weft_adam *adam, size_t count);
void weft_avx2_adagrad_f32(float *weights, float *sums, const float *grad, float grad_scale, float lr,
                           float eps, float weight_decay, size_t count);
void weft_avx2_ftrl_f32(float *weights, float *z, float *n, const float *grad, float grad_scale,
                        const struct weft_ftrl *ftrl, size_t count);

void weft_avx2_lamb_moments_f32(float *first, float *second, const float *weights, const float *grad,
                                float grad_scale, const struct weft_lamb *lamb, size_t count,
                                double squares_out[2]);
void weft_avx2_lamb_apply_f32(float *weights, const float *first, const float *second,
                              const struct weft_lamb *lamb, float rate, size_t count);

double weft_avx2_dot_f32(const float *a, const float *b, size_t count);
void weft_avx2_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows, size_t cols,
                          size_t rank);
uint32_t weft_avx2_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b, float *p,
                                        size_t p_stride, const float *q, size_t rows, size_t cols,
                                        size_t rank);
uint32_t weft_avx2_lazy_residual_add_matmul_f32(float *m, const struct weft_lazy_residual *lazy,
                                                const float *a, float factor, float *p, const float *q,
                                                size_t rows, size_t cols, size_t rank);
void weft_avx2_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols, size_t rank);
void weft_avx2_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank);
void weft_avx2_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols, size_t rank);

#ifdef __AVX2__
#include <immintrin.h>

#include "kernels/float_bits.h"

/* canonical() of float_bits.h, eight at a time. */
static inline __m256 canonical8(__m256 x)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)FLOAT_NAN));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline __m256i magnitude8(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32((int)FLOAT_ABS));
}

static inline uint32_t max_of8(__m256i x)
{
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}
#endif

#endif
