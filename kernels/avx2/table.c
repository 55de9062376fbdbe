/* table.c - the AVX2 + F16C variant. sum_i64 stays with scalar: the compiler's vectors already run at memory speed. So does
 * block quantisation, for want of a variant of its own. */
#include "kernels/avx2/avx2.h"
#include "kernels/scalar/scalar.h"

const struct weft_kernels weft_kernels_avx2 = {
    .name = "avx2",
    .sum_f32 = weft_avx2_sum_f32,
    .sum_tree_f32 = weft_avx2_sum_tree_f32,
    .sum_i64 = weft_scalar_sum_i64,
    .scale_f32 = weft_avx2_scale_f32,
    .cast_f32_f16 = weft_avx2_cast_f32_f16,
    .cast_f16_f32 = weft_avx2_cast_f16_f32,
    .cast_f32_bf16 = weft_avx2_cast_f32_bf16,
    .cast_bf16_f32 = weft_avx2_cast_bf16_f32,
    .sgd_f32 = weft_avx2_sgd_f32,
    .dot_f32 = weft_avx2_dot_f32,
    .finite_f32 = weft_avx2_finite_f32,
    .max_abs_bits_f32 = weft_avx2_max_abs_bits_f32,
    .indices_above_f32 = weft_avx2_indices_above_f32,
    .scale_add_f32 = weft_avx2_scale_add_f32,
    .scale_add_above_f32 = weft_avx2_scale_add_above_f32,
    .scale_add_blocks_f32 = weft_scalar_scale_add_blocks_f32,
    .quantise_f32 = weft_scalar_quantise_f32,
    .add_i8_i16 = weft_scalar_add_i8_i16,
    .add_i8_i32 = weft_scalar_add_i8_i32,
    .dequantise_i16_f32 = weft_scalar_dequantise_i16_f32,
    .dequantise_i32_f32 = weft_scalar_dequantise_i32_f32,
    .quantise_fp8_f32 = weft_avx2_quantise_fp8_f32,
    .dequantise_fp8_f32 = weft_avx2_dequantise_fp8_f32,
    .quantise_sign_f32 = weft_avx2_quantise_sign_f32,
    .dequantise_sign_f32 = weft_avx2_dequantise_sign_f32,
    .matmul_f32 = weft_avx2_matmul_f32,
    .scale_add_matmul_f32 = weft_avx2_scale_add_matmul_f32,
    .matmul_t_f32 = weft_avx2_matmul_t_f32,
    .outer_f32 = weft_avx2_outer_f32,
    .outer_sub_f32 = weft_avx2_outer_sub_f32,
};
