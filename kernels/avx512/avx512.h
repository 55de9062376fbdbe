/* avx512.h - the AVX-512 (F, BW, VL, DQ) table, and the vector idioms its files share. Private to the module;
 * only files compiled for AVX-512 may use the inline functions, all files may name the table.
 *
 * Tails go under a mask instead of to the scalar kernel: a masked load never touches memory behind the
 * end. Results that leave the caches anyway are written past them (stream_from), which saves the read of
 * the line to be written. */
#ifndef WEFT_KERNELS_AVX512_H
#define WEFT_KERNELS_AVX512_H

#include "kernels/kernels.h"

extern const struct weft_kernels weft_kernels_avx512, weft_kernels_avx512bf16;

void weft_avx512_sum_f32(float *out, const float *a, const float *b, size_t count);
void weft_avx512_combine(enum weft_dtype dtype, enum weft_op op, void *out, const void *a, const void *b,
                         size_t count);
void weft_avx512_sum_tree_stream_f32(float *const *outs, size_t out_count, const float *const *sources,
                                     size_t source_count, float factor, size_t count);
void weft_avx512_sum_tree_f32(float *const *outs, size_t out_count, const float *const *sources,
                              size_t source_count, float factor, size_t count);
uint32_t weft_avx512_sum_tree_max_f32(float *const *outs, size_t out_count, const float *const *sources,
                                      size_t source_count, float factor, size_t count, bool stream);
void weft_avx512_scale_f32(float *out, const float *in, float factor, size_t count);
uint32_t weft_avx512_scale_add_f32(float *out, const float *a, float factor, const float *b, size_t count);
size_t weft_avx512_scale_add_above_f32(float *out, const float *a, float factor, const float *b, size_t count,
                                       uint32_t floor_bits, uint32_t first, uint32_t *indices_out,
                                       float *values_out, uint32_t *max_bits);
uint32_t weft_avx512_max_abs_bits_f32(const float *in, size_t count);
size_t weft_avx512_indices_above_f32(uint32_t *indices_out, const float *in, size_t count,
                                     uint32_t floor_bits);
bool weft_avx512_finite_f32(const float *in, size_t count);
void weft_avx512_sgd_f32(float *weights, float *velocity, const float *grad, float grad_scale,
                         const struct weft_sgd *sgd, size_t count);

void weft_avx512_cast_f32_f16(uint16_t *out, const float *in, size_t count);
void weft_avx512_cast_f16_f32(float *out, const uint16_t *in, size_t count);
void weft_avx512_cast_f32_bf16(uint16_t *out, const float *in, size_t count);
void weft_avx512bf16_cast_f32_bf16(uint16_t *out, const float *in, size_t count); /* with AVX512_BF16 */
void weft_avx512_cast_bf16_f32(float *out, const uint16_t *in, size_t count);

uint32_t weft_avx512_scale_add_blocks_f32(float *out, const float *a, float factor, const float *b,
                                          size_t count, unsigned limit, uint8_t *exponents_out);
void weft_avx512_quantise_f32(int8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                              unsigned limit, const struct weft_noise *noise);
void weft_avx512_add_i8_i16(int16_t *sums, const int8_t *codes, size_t count);
void weft_avx512_add_i8_i32(int32_t *sums, const int8_t *codes, size_t count);
void weft_avx512_dequantise_i16_f32(float *out, const int16_t *sums, const uint8_t *exponents, float factor,
                                    size_t count);
void weft_avx512_dequantise_i32_f32(float *out, const int32_t *sums, const uint8_t *exponents, float factor,
                                    size_t count);

void weft_avx512_quantise_fp8_f32(uint8_t *codes_out, float *x, const uint8_t *exponents, size_t count,
                                  enum weft_fp8 format);
void weft_avx512_dequantise_fp8_f32(float *out, const uint8_t *codes, const uint8_t *exponents, size_t count,
                                    enum weft_fp8 format);
void weft_avx512_quantise_sign_f32(uint8_t *bits_out, float *scales_out, float *x, size_t count);
void weft_avx512_dequantise_sign_f32(float *out, const uint8_t *bits, const float *scales, size_t count);

void weft_avx512_adam_f32(float *weights, float *first, float *second, const float *grad, float grad_scale,
                         const struct weft_adam *adam, size_t count);
void weft_avx512_adagrad_f32(float *weights, float *sums, const float *grad, float grad_scale, float lr,
                             float eps, float weight_decay, size_t count);
void weft_avx512_ftrl_f32(float *weights, float *z, float *n, const float *grad, float grad_scale,
                          const struct weft_ftrl *ftrl, size_t count);

void weft_avx512_lamb_moments_f32(float *first, float *second, const float *weights, const float *grad,
                                  float grad_scale, const struct weft_lamb *lamb, size_t count,
                                  double squares_out[2]);
void weft_avx512_lamb_apply_f32(float *weights, const float *first, const float *second,
                                const struct weft_lamb *lamb, float rate, size_t count);

double weft_avx512_dot_f32(const float *a, const float *b, size_t count);
void weft_avx512_matmul_f32(float *p, size_t p_stride, const float *m, const float *q, size_t rows,
                            size_t cols, size_t rank);
uint32_t weft_avx512_scale_add_matmul_f32(float *m, const float *a, float factor, const float *b, float *p,
                                          size_t p_stride, const float *q, size_t rows, size_t cols,
                                          size_t rank);
uint32_t weft_avx512_lazy_residual_add_matmul_f32(float *m, const struct weft_lazy_residual *lazy,
                                                  const float *a, float factor, float *p, const float *q,
                                                  size_t rows, size_t cols, size_t rank);
void weft_avx512_matmul_t_f32(float *q, const float *m, const float *p, size_t rows, size_t cols,
                              size_t rank);
void weft_avx512_outer_f32(float *out, const float *p, const float *q, size_t rows, size_t cols, size_t rank);
void weft_avx512_outer_sub_f32(float *m, const float *p, const float *q, size_t rows, size_t cols,
                               size_t rank);

#ifdef __AVX512F__
#include <immintrin.h>

#include "kernels/float_bits.h"

/* Bytes written from which a streaming store is the faster one: about where both sides no longer fit the
 * second-level cache. A reader on another core finds streamed data in memory, cached data in our cache; at
 * this size either misses. */
enum { AVX512_STREAM_BYTES = 2 << 20, AVX512_LINE = 64 };

/* Prefetch distance in bytes. The hardware prefetcher stops at each page. At the first line of a page the
 * kernel would wait for a walk of the page tables, which is longer in a virtual machine. */
enum { AVX512_AHEAD = 2048 };

#define ALL16 ((__mmask16)0xffff) /* a constant: the compiler then drops the mask */

/* Ones in the first `count` of 16 lanes. */
static inline __mmask16 first16(size_t count)
{
    return count >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1u);
}

/* canonical() of float_bits.h, sixteen at a time. */
static inline __m512 canonical16(__m512 x)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)FLOAT_NAN));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

static inline __m512i magnitude16(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)FLOAT_ABS));
}

/* Fetches the line `bytes` behind `at`, which may lie behind the end of its array: nothing is read from
 * there. (Always inlined: GCC takes a call of it for one without effect.) */
static inline __attribute__((always_inline)) void prefetch(const void *at, size_t bytes)
{
    _mm_prefetch((const char *)((uintptr_t)at + bytes), _MM_HINT_T0);
}

static inline __attribute__((always_inline)) void prefetch_ahead(const void *at)
{
    prefetch(at, AVX512_AHEAD);
}

/* How many elements to write one by one before streaming may begin: until `out` is at a cache line.
 * `count` when the result is too small for it, or `out` can never be at one. */
static inline size_t stream_from(const void *out, size_t element_bytes, size_t count)
{
    const size_t past = (uintptr_t)out % AVX512_LINE;
    if (count * element_bytes < AVX512_STREAM_BYTES || past % element_bytes != 0) return count;
    return past == 0 ? 0 : (AVX512_LINE - past) / element_bytes;
}
#endif

#endif
