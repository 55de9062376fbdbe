/* dispatch.c - one table of kernels per instruction set, and the choice among them.
 *
 * The choice is made once, from what the CPU and the operating system can do, and never changes: callers
 * may keep the pointer. All tables give the same bits, so the environment variable WEFT_KERNELS is for
 * measuring and for bisecting a suspicion, not for correctness. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/scalar/scalar.h"

#ifdef WEFT_KERNELS_AVX2
#include <cpuid.h>

#include "kernels/avx2/avx2.h"
#endif
#ifdef WEFT_KERNELS_AVX512
#include "kernels/avx512/avx512.h"
#endif

const struct weft_kernels weft_kernels_scalar = {
    .name = "scalar",
    .sum_f32 = weft_scalar_sum_f32,
    .sum_tree_f32 = weft_scalar_sum_tree_f32,
    .sum_tree_stream_f32 = weft_scalar_sum_tree_f32,
    .sum_tree_max_f32 = weft_scalar_sum_tree_max_f32,
    .sum_i64 = weft_scalar_sum_i64,
    .combine = weft_scalar_combine,
    .scale_f32 = weft_scalar_scale_f32,
    .cast_f32_f16 = weft_scalar_cast_f32_f16,
    .cast_f16_f32 = weft_scalar_cast_f16_f32,
    .cast_f32_bf16 = weft_scalar_cast_f32_bf16,
    .cast_bf16_f32 = weft_scalar_cast_bf16_f32,
    .sgd_f32 = weft_scalar_sgd_f32,
    .adam_f32 = weft_scalar_adam_f32,
    .adagrad_f32 = weft_scalar_adagrad_f32,
    .ftrl_f32 = weft_scalar_ftrl_f32,
    .lamb_moments_f32 = weft_scalar_lamb_moments_f32,
    .lamb_apply_f32 = weft_scalar_lamb_apply_f32,
    .dot_f32 = weft_scalar_dot_f32,
    .finite_f32 = weft_scalar_finite_f32,
    .max_abs_bits_f32 = weft_scalar_max_abs_bits_f32,
    .indices_above_f32 = weft_scalar_indices_above_f32,
    .scale_add_f32 = weft_scalar_scale_add_f32,
    .scale_add_above_f32 = weft_scalar_scale_add_above_f32,
    .scale_add_blocks_f32 = weft_scalar_scale_add_blocks_f32,
    .quantise_f32 = weft_scalar_quantise_f32,
    .add_i8_i16 = weft_scalar_add_i8_i16,
    .add_i8_i32 = weft_scalar_add_i8_i32,
    .dequantise_i16_f32 = weft_scalar_dequantise_i16_f32,
    .dequantise_i32_f32 = weft_scalar_dequantise_i32_f32,
    .quantise_fp8_f32 = weft_scalar_quantise_fp8_f32,
    .dequantise_fp8_f32 = weft_scalar_dequantise_fp8_f32,
    .quantise_sign_f32 = weft_scalar_quantise_sign_f32,
    .dequantise_sign_f32 = weft_scalar_dequantise_sign_f32,
    .matmul_f32 = weft_scalar_matmul_f32,
    .scale_add_matmul_f32 = weft_scalar_scale_add_matmul_f32,
    .lazy_residual_add_matmul_f32 = weft_scalar_lazy_residual_add_matmul_f32,
    .matmul_t_f32 = weft_scalar_matmul_t_f32,
    .outer_f32 = weft_scalar_outer_f32,
    .outer_sub_f32 = weft_scalar_outer_sub_f32,
};

#ifdef WEFT_KERNELS_AVX2
static bool cpu_has_avx2_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    if (!__builtin_cpu_supports("avx2")) return false; /* asks the operating system too */
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
#endif

#ifdef WEFT_KERNELS_AVX512
static bool cpu_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const struct weft_kernels *weft_kernels_by_name(const char *name)
{
    if (strcmp(name, "scalar") == 0) return &weft_kernels_scalar;
#ifdef WEFT_KERNELS_AVX512
    if (strcmp(name, "avx512") == 0) return cpu_has_avx512() ? &weft_kernels_avx512 : NULL;
    if (strcmp(name, "avx512bf16") == 0)
        return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16") ? &weft_kernels_avx512bf16 : NULL;
#endif
#ifdef WEFT_KERNELS_AVX2
    if (strcmp(name, "avx2") == 0) return cpu_has_avx2_f16c() ? &weft_kernels_avx2 : NULL;
#endif
    return NULL;
}

static const struct weft_kernels *choose(void)
{
    static const char *const best_first[] = {"avx512bf16", "avx512", "avx2", "scalar"};
    const char *wanted = getenv("WEFT_KERNELS");
    const struct weft_kernels *table = wanted ? weft_kernels_by_name(wanted) : NULL;
    for (size_t i = 0; !table; i++)
        table = weft_kernels_by_name(best_first[i]);
    return table;
}

const struct weft_kernels *weft_kernels(void)
{
    static _Atomic(const struct weft_kernels *) chosen;
    const struct weft_kernels *table = atomic_load_explicit(&chosen, memory_order_acquire);
    if (!table) {
        const struct weft_kernels *none = NULL;
        table = choose();
        /* Two first callers may both choose; the first to store wins, so the pointer is one for life. */
        if (!atomic_compare_exchange_strong(&chosen, &none, table)) table = none;
    }
    return table;
}
