/* table.c - the AVX-512 variants. sum_i64 stays with scalar: the compiler's vectors already run at memory
 * speed. */
#include "kernels/avx512/avx512.h"
#include "kernels/scalar/scalar.h"

#define AVX512_TABLE(called, to_bf16)                                                                       \
    {                                                                                                       \
        .name = called, .sum_f32 = weft_avx512_sum_f32, .sum_tree_f32 = weft_avx512_sum_tree_f32,           \
        .sum_tree_stream_f32 = weft_avx512_sum_tree_stream_f32,                                             \
        .sum_tree_max_f32 = weft_avx512_sum_tree_max_f32, .sum_i64 = weft_scalar_sum_i64,                   \
        .combine = weft_avx512_combine, .scale_f32 = weft_avx512_scale_f32,                                 \
        .cast_f32_f16 = weft_avx512_cast_f32_f16, .cast_f16_f32 = weft_avx512_cast_f16_f32,                 \
        .cast_f32_bf16 = to_bf16, .cast_bf16_f32 = weft_avx512_cast_bf16_f32,                               \
        .sgd_f32 = weft_avx512_sgd_f32, .adam_f32 = weft_avx512_adam_f32,                                   \
        .adagrad_f32 = weft_avx512_adagrad_f32, .ftrl_f32 = weft_avx512_ftrl_f32,                           \
        .lamb_moments_f32 = weft_avx512_lamb_moments_f32, .lamb_apply_f32 = weft_avx512_lamb_apply_f32,     \
        .dot_f32 = weft_avx512_dot_f32, .finite_f32 = weft_avx512_finite_f32,                               \
        .max_abs_bits_f32 = weft_avx512_max_abs_bits_f32,                                                   \
        .indices_above_f32 = weft_avx512_indices_above_f32, .scale_add_f32 = weft_avx512_scale_add_f32,     \
        .scale_add_above_f32 = weft_avx512_scale_add_above_f32,                                             \
        .scale_add_blocks_f32 = weft_avx512_scale_add_blocks_f32, .quantise_f32 = weft_avx512_quantise_f32, \
        .add_i8_i16 = weft_avx512_add_i8_i16, .add_i8_i32 = weft_avx512_add_i8_i32,                         \
        .dequantise_i16_f32 = weft_avx512_dequantise_i16_f32,                                               \
        .dequantise_i32_f32 = weft_avx512_dequantise_i32_f32,                                               \
        .quantise_fp8_f32 = weft_avx512_quantise_fp8_f32,                                                   \
        .dequantise_fp8_f32 = weft_avx512_dequantise_fp8_f32,                                               \
        .quantise_sign_f32 = weft_avx512_quantise_sign_f32,                                                 \
        .dequantise_sign_f32 = weft_avx512_dequantise_sign_f32, .matmul_f32 = weft_avx512_matmul_f32,       \
        .scale_add_matmul_f32 = weft_avx512_scale_add_matmul_f32,                                           \
        .lazy_residual_add_matmul_f32 = weft_avx512_lazy_residual_add_matmul_f32,                           \
        .matmul_t_f32 = weft_avx512_matmul_t_f32, .outer_f32 = weft_avx512_outer_f32,                       \
        .outer_sub_f32 = weft_avx512_outer_sub_f32,                                                         \
    }

const struct weft_kernels weft_kernels_avx512 = AVX512_TABLE("avx512", weft_avx512_cast_f32_bf16);
/* AVX512_BF16 as well */
const struct weft_kernels weft_kernels_avx512bf16 = AVX512_TABLE("avx512bf16", weft_avx512bf16_cast_f32_bf16);
