/* check_elementwise.c - the CUDA kernels give the scalar kernels' bits: sums, casts, quantisers, on the
 * vectors of tests/kernels/vectors.h. Outputs carry guard elements on both sides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda/device_check.h"
#include "tests/kernels/vectors.h"

static const struct weft_kernels *scalar;
static struct sample sample;
static const char *where_input;
static size_t where_count, where_shift;

/* Host arrays as they went in, and on the device; `slow` is worked on by the scalar kernel. */
struct array {
    unsigned char *host, *slow, *fast, *device;
    size_t bytes;
};
enum { ARRAYS = 8 };
static struct array arrays[ARRAYS];

static void open_arrays(void)
{
    for (int i = 0; i < ARRAYS && !arrays[i].host; i++) {
        const size_t bytes = ARRAY_ELEMS * sizeof(int64_t);
        arrays[i] = (struct array){check_malloc(bytes), check_malloc(bytes), check_malloc(bytes),
                                   check_device_malloc(bytes), bytes};
    }
}

static void put(int i, const void *data)
{
    memcpy(arrays[i].host, data, arrays[i].bytes);
    memcpy(arrays[i].slow, data, arrays[i].bytes);
    device_put(arrays[i].device, data, arrays[i].bytes);
}

static void fill_floats(int i, enum sample_kind kind)
{
    static float values[2 * ARRAY_ELEMS];
    sample_fill(&sample, kind, values, 2 * ARRAY_ELEMS);
    put(i, values);
}

static void fill_noise(int i)
{
    static uint64_t words[ARRAY_ELEMS];
    for (size_t w = 0; w < ARRAY_ELEMS; w++) words[w] = sample_u64(&sample);
    put(i, words);
}

/* Whole arrays, guards included. */
static void same(int i, const char *kernel)
{
    device_get(arrays[i].fast, arrays[i].device, arrays[i].bytes);
    if (memcmp(arrays[i].fast, arrays[i].slow, arrays[i].bytes) == 0) return;
    size_t byte = 0;
    while (arrays[i].fast[byte] == arrays[i].slow[byte]) byte++;
    fail_msg("cuda %s differs from scalar: count %zu, start %zu, input %s, array %d from byte %zu", kernel,
             where_count, where_shift, where_input, i, byte);
}

static void must(enum weft_status status, const char *kernel)
{
    if (status != WEFT_OK) fail_msg("cuda %s answers %s", kernel, weft_status_name(status));
}

#define AT(i, type) ((type *)arrays[i].device + GUARD + where_shift)
#define SLOW(i, type) ((type *)arrays[i].slow + GUARD + where_shift)
/* One call of each: `cuda` and `cpu` are argument lists. */
#define BOTH(kernel, cuda, cpu)                 \
    do {                                        \
        must(weft_cuda_##kernel cuda, #kernel); \
        scalar->kernel cpu;                     \
    } while (0)

static uint32_t *max_device;

static uint32_t max_of_device(void)
{
    uint32_t max;
    device_get(&max, max_device, sizeof max);
    device_set(max_device, 0, sizeof max);
    return max;
}

static void check_sums(size_t n, enum sample_kind kind)
{
    const float factor = kind == SAMPLE_WILD ? sample_wild(&sample) : sample_normal(&sample);
    for (int i = 0; i < 4; i++) fill_floats(i, kind);
    BOTH(sum_f32, (AT(2, float), AT(0, float), AT(1, float), n, NULL),
         (SLOW(2, float), SLOW(0, float), SLOW(1, float), n));
    same(2, "sum_f32");
    BOTH(sum_f32, (AT(2, float), AT(2, float), AT(1, float), n, NULL),
         (SLOW(2, float), SLOW(2, float), SLOW(1, float), n));
    same(2, "sum_f32 in place");
    BOTH(scale_f32, (AT(2, float), AT(0, float), factor, n, NULL),
         (SLOW(2, float), SLOW(0, float), factor, n));
    same(2, "scale_f32");
    must(weft_cuda_scale_add_f32(AT(2, float), AT(0, float), factor, AT(1, float), n, max_device, NULL),
         "scale_add_f32");
    assert_int_equal(max_of_device(),
                     scalar->scale_add_f32(SLOW(2, float), SLOW(0, float), factor, SLOW(1, float), n));
    same(2, "scale_add_f32");
    must(weft_cuda_max_abs_bits_f32(max_device, AT(0, float), n, NULL), "max_abs_bits_f32");
    assert_int_equal(max_of_device(), scalar->max_abs_bits_f32(SLOW(0, float), n));
    for (int i = 4; i < 7; i++) fill_noise(i);
    BOTH(sum_i64, (AT(4, int64_t), AT(5, int64_t), AT(6, int64_t), n, NULL),
         (SLOW(4, int64_t), SLOW(5, int64_t), SLOW(6, int64_t), n));
    same(4, "sum_i64");
}

static void check_tree(size_t n, enum sample_kind kind)
{
    for (int i = 0; i < ARRAYS; i++) fill_floats(i, kind);
    for (size_t sources = 1; sources <= 8; sources++) {
        const float *fast[8], *slow[8];
        for (size_t s = 0; s < sources; s++) {
            const int from = s < 6 ? (int)s : (int)s - 6;
            fast[s] = AT(from, float);
            slow[s] = SLOW(from, float);
        }
        float *const fast_outs[2] = {AT(6, float), AT(7, float)}, *const slow_outs[2] = {SLOW(6, float),
                                                                                         SLOW(7, float)};
        const float factor = sources % 2 ? 1 : 0.3f;
        must(weft_cuda_sum_tree_f32(fast_outs, 2, fast, sources, factor, n, NULL), "sum_tree_f32");
        scalar->sum_tree_f32(slow_outs, 2, slow, sources, factor, n);
        same(6, "sum_tree_f32");
        same(7, "sum_tree_f32, second out");
    }
    float *const fast_outs[1] = {AT(0, float)}, *const slow_outs[1] = {SLOW(0, float)};
    const float *const fast[3] = {AT(0, float), AT(1, float), AT(2, float)}, *const slow[3] = {
                                                                                 SLOW(0, float),
                                                                                 SLOW(1, float),
                                                                                 SLOW(2, float)};
    must(weft_cuda_sum_tree_f32(fast_outs, 1, fast, 3, 1, n, NULL), "sum_tree_f32");
    scalar->sum_tree_f32(slow_outs, 1, slow, 3, 1, n);
    same(0, "sum_tree_f32 in place");
    assert_int_equal(weft_cuda_sum_tree_f32(fast_outs, 1, fast, 9, 1, n, NULL), WEFT_ERR_INVALID);
}

static void check_casts(size_t n, enum sample_kind kind)
{
    fill_floats(0, kind);
    fill_noise(1); /* any bits as the narrow formats */
    fill_noise(2);
    BOTH(cast_f32_f16, (AT(2, uint16_t), AT(0, float), n, NULL), (SLOW(2, uint16_t), SLOW(0, float), n));
    same(2, "cast_f32_f16");
    BOTH(cast_f32_bf16, (AT(2, uint16_t), AT(0, float), n, NULL), (SLOW(2, uint16_t), SLOW(0, float), n));
    same(2, "cast_f32_bf16");
    BOTH(cast_f16_f32, (AT(2, float), AT(1, uint16_t), n, NULL), (SLOW(2, float), SLOW(1, uint16_t), n));
    same(2, "cast_f16_f32");
    BOTH(cast_bf16_f32, (AT(2, float), AT(1, uint16_t), n, NULL), (SLOW(2, float), SLOW(1, uint16_t), n));
    same(2, "cast_bf16_f32");
    for (int f = WEFT_E4M3; f <= WEFT_E5M2; f++) {
        const enum weft_dtype dtype = f == WEFT_E4M3 ? WEFT_F8_E4M3 : WEFT_F8_E5M2;
        must(weft_cuda_cast_f32_fp8(AT(2, uint8_t), AT(0, float), n, (enum weft_fp8)f, NULL), "cast_f32_fp8");
        weft_cast_f32_fp8(dtype, SLOW(2, uint8_t), SLOW(0, float), n);
        same(2, "cast_f32_fp8");
        must(weft_cuda_cast_fp8_f32(AT(2, float), AT(1, uint8_t), n, (enum weft_fp8)f, NULL), "cast_fp8_f32");
        weft_cast_fp8_f32(dtype, SLOW(2, float), SLOW(1, uint8_t), n);
        same(2, "cast_fp8_f32");
    }
}

/* 0, 1: gradient and residual; 2: their sum; 3: exponents; 4: codes; 5, 6: sums; 7: back. */
static void check_quantise(size_t n, enum sample_kind kind)
{
    const struct weft_noise noise = {
        {(uint32_t)sample_u64(&sample), 7}, sample_u64(&sample), sample_u64(&sample) % 1000};
    for (unsigned limit = 7; limit <= 127; limit += 120) {
        const struct weft_noise *const used = where_shift % 2 ? &noise : NULL;
        fill_floats(0, kind);
        fill_floats(1, kind);
        for (int i = 2; i < 8; i++) fill_noise(i);
        uint8_t *const exponents = arrays[3].device, *const slow_exponents = arrays[3].slow;
        must(weft_cuda_scale_add_blocks_f32(AT(2, float), AT(0, float), 0.5f, AT(1, float), n, limit,
                                            exponents, max_device, NULL),
             "scale_add_blocks_f32");
        const uint32_t max = scalar->scale_add_blocks_f32(SLOW(2, float), SLOW(0, float), 0.5f,
                                                          SLOW(1, float), n, limit, slow_exponents);
        assert_int_equal(max_of_device(), max);
        same(2, "scale_add_blocks_f32");
        same(3, "scale_add_blocks_f32 exponents");
        if (max >= 0x7f000000) continue;
        BOTH(quantise_f32, (AT(4, int8_t), AT(2, float), exponents, n, limit, used, NULL),
             (SLOW(4, int8_t), SLOW(2, float), slow_exponents, n, limit, used));
        same(2, "quantise_f32 residual");
        same(4, "quantise_f32 codes");
        must(weft_cuda_scale_add_quantise_f32(AT(4, int8_t), exponents, AT(2, float), AT(0, float), 0.5f,
                                              AT(1, float), n, limit, used, max_device, NULL),
             "scale_add_quantise_f32");
        assert_int_equal(max_of_device(), max);
        same(2, "scale_add_quantise_f32 residual");
        same(3, "scale_add_quantise_f32 exponents");
        same(4, "scale_add_quantise_f32 codes");
        BOTH(add_i8_i16, (AT(5, int16_t), AT(4, int8_t), n, NULL), (SLOW(5, int16_t), SLOW(4, int8_t), n));
        same(5, "add_i8_i16");
        BOTH(add_i8_i32, (AT(6, int32_t), AT(4, int8_t), n, NULL), (SLOW(6, int32_t), SLOW(4, int8_t), n));
        same(6, "add_i8_i32");
        BOTH(dequantise_i16_f32, (AT(7, float), AT(5, int16_t), exponents, 0.3f, n, NULL),
             (SLOW(7, float), SLOW(5, int16_t), slow_exponents, 0.3f, n));
        same(7, "dequantise_i16_f32");
        BOTH(dequantise_i32_f32, (AT(7, float), AT(6, int32_t), exponents, 0.3f, n, NULL),
             (SLOW(7, float), SLOW(6, int32_t), slow_exponents, 0.3f, n));
        same(7, "dequantise_i32_f32");
        if (limit != 7) continue;
        must(weft_cuda_pack_i4(AT(5, uint8_t), AT(4, int8_t), n, NULL), "pack_i4");
        for (size_t i = 0; i < n; i += 2)
            SLOW(5, uint8_t)
            [i / 2] =
                (uint8_t)((SLOW(4, int8_t)[i] & 15) | (i + 1 < n ? SLOW(4, int8_t)[i + 1] & 15 : 0) << 4);
        same(5, "pack_i4");
        must(weft_cuda_unpack_i4(AT(6, int8_t), AT(5, uint8_t), n, NULL), "unpack_i4");
        memcpy(SLOW(6, int8_t), SLOW(4, int8_t), n);
        same(6, "unpack_i4");
    }
}

static void check_lowbit(size_t n, enum sample_kind kind)
{
    for (int format = 0; format <= WEFT_E5M2; format++) {
        fill_floats(0, kind);
        fill_floats(1, kind);
        for (int i = 2; i < 8; i++) fill_noise(i);
        uint8_t *const exponents = arrays[3].device, *const slow_exponents = arrays[3].slow;
        const uint32_t max = scalar->scale_add_f32(SLOW(2, float), SLOW(0, float), 0.5f, SLOW(1, float), n);
        if (max >= 0x7b800000) continue;
        for (size_t b = 0; b * WEFT_BLOCK < n && format > 0; b++) {
            const size_t length = n - b * WEFT_BLOCK < WEFT_BLOCK ? n - b * WEFT_BLOCK : WEFT_BLOCK;
            slow_exponents[b] = weft_fp8_exponent(
                scalar->max_abs_bits_f32(SLOW(2, float) + b * WEFT_BLOCK, length), (enum weft_fp8)format);
        }
        put(7, arrays[2].slow); /* the sum, for the calls that do not make it themselves */
        if (format == 0) {
            scalar->quantise_sign_f32(SLOW(4, uint8_t), (float *)(void *)arrays[3].slow, SLOW(2, float), n);
            must(weft_cuda_scale_add_quantise_sign_f32(AT(4, uint8_t), (float *)(void *)exponents,
                                                       AT(2, float), AT(0, float), 0.5f, AT(1, float), n,
                                                       max_device, NULL),
                 "sign");
        } else {
            scalar->quantise_fp8_f32(SLOW(4, uint8_t), SLOW(2, float), slow_exponents, n,
                                     (enum weft_fp8)format);
            must(weft_cuda_scale_add_quantise_fp8_f32(AT(4, uint8_t), exponents, AT(2, float), AT(0, float),
                                                      0.5f, AT(1, float), n, (enum weft_fp8)format,
                                                      max_device, NULL),
                 "fp8");
        }
        assert_int_equal(max_of_device(), max);
        same(2, "narrow, fused: residual");
        same(3, "narrow, fused: scales");
        same(4, "narrow, fused: codes");
        put(4, arrays[4].host);
        if (format == 0) {
            BOTH(quantise_sign_f32, (AT(4, uint8_t), (float *)(void *)exponents, AT(7, float), n, NULL),
                 (SLOW(4, uint8_t), (float *)(void *)arrays[3].slow, SLOW(7, float), n));
        } else {
            BOTH(quantise_fp8_f32, (AT(4, uint8_t), AT(7, float), exponents, n, (enum weft_fp8)format, NULL),
                 (SLOW(4, uint8_t), SLOW(7, float), slow_exponents, n, (enum weft_fp8)format));
        }
        same(7, "narrow residual");
        same(3, "narrow scales");
        same(4, "narrow codes");
        if (format == 0) {
            BOTH(dequantise_sign_f32,
                 (AT(5, float), AT(4, uint8_t), (const float *)(const void *)exponents, n, NULL),
                 (SLOW(5, float), SLOW(4, uint8_t), (const float *)(const void *)arrays[3].slow, n));
        } else {
            BOTH(dequantise_fp8_f32,
                 (AT(5, float), AT(4, uint8_t), exponents, n, (enum weft_fp8)format, NULL),
                 (SLOW(5, float), SLOW(4, uint8_t), slow_exponents, n, (enum weft_fp8)format));
        }
        same(5, "narrow values");
    }
}

/* Non-finite elements: visible in the maximum, codes 0, the sum kept. */
static void test_not_finite(void **state)
{
    float values[3 * WEFT_BLOCK];
    where_input = "one Inf";
    where_count = 3 * WEFT_BLOCK;
    where_shift = 0;
    for (size_t i = 0; i < 3 * WEFT_BLOCK; i++) values[i] = i == WEFT_BLOCK + 9 ? -INFINITY : 1.0f;
    fill_noise(0);
    fill_noise(3);
    fill_noise(4);
    memcpy(SLOW(0, float), values, sizeof values);
    put(0, arrays[0].slow);
    device_set(arrays[1].device, 0, arrays[1].bytes);
    must(weft_cuda_scale_add_quantise_f32(AT(4, int8_t), arrays[3].device, AT(2, float), AT(0, float), 1.0f,
                                          AT(1, float), where_count, 127, NULL, max_device, NULL),
         "scale_add_quantise_f32");
    assert_int_equal(max_of_device(), 0x7f800000);
    device_get(arrays[2].fast, arrays[2].device, arrays[2].bytes);
    device_get(arrays[3].fast, arrays[3].device, arrays[3].bytes);
    device_get(arrays[4].fast, arrays[4].device, arrays[4].bytes);
    assert_int_equal(arrays[3].fast[1], 255);
    for (size_t i = WEFT_BLOCK; i < 2 * WEFT_BLOCK; i++)
        assert_int_equal(((int8_t *)arrays[4].fast)[GUARD + i], 0);
    assert_memory_equal((float *)(void *)arrays[2].fast + GUARD + WEFT_BLOCK, values + WEFT_BLOCK,
                        WEFT_BLOCK * sizeof(float));
    assert_int_equal(
        weft_cuda_quantise_f32(AT(4, int8_t), AT(2, float), arrays[3].device, 1, 100, NULL, NULL),
        WEFT_ERR_INVALID);
}

static void each_vector(void (*check)(size_t count, enum sample_kind kind))
{
    static const char *const names[] = {"normal", "wild", "denormal", "zero"};
    sample = (struct sample){sample_seed(51)};
    for (size_t c = 0; c < VECTOR_COUNTS; c++)
        for (where_shift = 0; where_shift <= SHIFT_MAX; where_shift++)
            for (int kind = 0; kind < SAMPLE_KINDS; kind++) {
                if (!check_this()) continue;
                where_count = vector_counts[c];
                where_input = names[kind];
                check(where_count, (enum sample_kind)kind);
            }
}

static void test_sums(void **state)
{
    each_vector(check_sums);
}
static void test_tree(void **state)
{
    each_vector(check_tree);
}
static void test_casts(void **state)
{
    each_vector(check_casts);
}
static void test_quantise(void **state)
{
    each_vector(check_quantise);
}
static void test_lowbit(void **state)
{
    each_vector(check_lowbit);
}

/* Every 16-bit pattern widened; every rounding boundary narrowed: around each pattern and half-way to the
 * next. */
static void test_all_patterns(void **state)
{
    enum { PATTERNS = 65536 };
    uint16_t *in = check_malloc(PATTERNS * sizeof *in),
             *device_in = check_device_malloc(PATTERNS * sizeof *in);
    float *slow = check_malloc(PATTERNS * sizeof *slow), *fast = check_malloc(PATTERNS * sizeof *fast),
          *device_out = check_device_malloc(PATTERNS * sizeof *fast);
    for (uint32_t i = 0; i < PATTERNS; i++) in[i] = (uint16_t)i;
    device_put(device_in, in, PATTERNS * sizeof *in);
    for (int half = 0; half < 2; half++) {
        must(half ? weft_cuda_cast_f16_f32(device_out, device_in, PATTERNS, NULL)
                  : weft_cuda_cast_bf16_f32(device_out, device_in, PATTERNS, NULL),
             "cast");
        device_get(fast, device_out, PATTERNS * sizeof *fast);
        (half ? scalar->cast_f16_f32 : scalar->cast_bf16_f32)(slow, in, PATTERNS);
        assert_memory_equal(fast, slow, PATTERNS * sizeof *fast);
        for (int step = -1; step <= 1; step++) { /* half a unit of the narrow format up, and its neighbours */
            for (uint32_t i = 0; i < PATTERNS; i++)
                fast[i] =
                    sample_from_bits(sample_bits(slow[i]) + (half ? 0x1000u : 0x8000u) + (uint32_t)step);
            device_put(device_out, fast, PATTERNS * sizeof *fast);
            must(half ? weft_cuda_cast_f32_f16(device_in, device_out, PATTERNS, NULL)
                      : weft_cuda_cast_f32_bf16(device_in, device_out, PATTERNS, NULL),
                 "cast");
            (half ? scalar->cast_f32_f16 : scalar->cast_f32_bf16)(in, fast, PATTERNS);
            device_get(fast, device_in, PATTERNS * sizeof *in);
            assert_memory_equal(fast, in, PATTERNS * sizeof *in);
        }
        for (uint32_t i = 0; i < PATTERNS; i++) in[i] = (uint16_t)i;
        device_put(device_in, in, PATTERNS * sizeof *in);
    }
    device_free(device_in);
    device_free(device_out);
    free(in);
    free(slow);
    free(fast);
}

int check_elementwise(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),         cmocka_unit_test(test_tree),   cmocka_unit_test(test_casts),
        cmocka_unit_test(test_quantise),     cmocka_unit_test(test_lowbit), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_all_patterns),
    };
    scalar = weft_kernels_by_name("scalar");
    open_arrays();
    max_device = check_device_malloc(sizeof *max_device);
    device_set(max_device, 0, sizeof *max_device);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
