/* test_variants.c - every fast kernel gives the bits of the scalar one: random, NaN, Inf, denormal and zero
 * inputs, lengths around every vector width, starts misaligned by one element. The outputs carry guard
 * elements on both sides: a kernel that writes one too many is found here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/vectors.h"

struct arena {
    float a[ARRAY_ELEMS], b[ARRAY_ELEMS], fast[ARRAY_ELEMS], slow[ARRAY_ELEMS];
    float fast_second[ARRAY_ELEMS], slow_second[ARRAY_ELEMS];
    uint16_t halves[ARRAY_ELEMS], fast_half[ARRAY_ELEMS], slow_half[ARRAY_ELEMS];
    int64_t whole[ARRAY_ELEMS], fast_whole[ARRAY_ELEMS], slow_whole[ARRAY_ELEMS];
};
static struct arena arena;

static const struct weft_kernels *scalar;

static void report(const char *variant, const char *kernel, size_t count, size_t shift, int kind,
                   uint64_t seed)
{
    fprintf(stderr,
            "%s %s differs from scalar: count %zu, start %zu, input kind %d; replay: WEFT_TEST_SEED=%llu\n",
            variant, kernel, count, shift, kind, (unsigned long long)seed);
}

#define SAME(kernel, fast_array, slow_array)                                             \
    do {                                                                                 \
        if (memcmp(fast_array, slow_array, sizeof fast_array) != 0) {                    \
            report(fast->name, kernel, count, shift, kind, seed);                        \
            fail();                                                                      \
        }                                                                                \
    } while (0)

static void fill(struct sample *sample, int kind)
{
    sample_fill(sample, (enum sample_kind)kind, arena.a, ARRAY_ELEMS);
    sample_fill(sample, (enum sample_kind)kind, arena.b, ARRAY_ELEMS);
    sample_fill(sample, (enum sample_kind)kind, arena.fast, ARRAY_ELEMS);
    sample_fill(sample, (enum sample_kind)kind, arena.fast_second, ARRAY_ELEMS);
    for (size_t i = 0; i < ARRAY_ELEMS; i++) {
        arena.halves[i] = (uint16_t)sample_u64(sample);
        arena.whole[i] = (int64_t)sample_u64(sample);
        arena.fast_whole[i] = (int64_t)sample_u64(sample);
        arena.fast_half[i] = 0x5555;
    }
    memcpy(arena.slow, arena.fast, sizeof arena.slow);
    memcpy(arena.slow_second, arena.fast_second, sizeof arena.slow_second);
    memcpy(arena.slow_whole, arena.fast_whole, sizeof arena.slow_whole);
    memcpy(arena.slow_half, arena.fast_half, sizeof arena.slow_half);
}

static void check_elementwise(const struct weft_kernels *fast, struct sample *sample, size_t count,
                              size_t shift, int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    const float *a = arena.a + at, *b = arena.b + at;
    float *f = arena.fast + at, *s = arena.slow + at;
    const float factor = kind == SAMPLE_WILD ? sample_wild(sample) : sample_normal(sample);

    fast->sum_f32(f, a, b, count);
    scalar->sum_f32(s, a, b, count);
    SAME("sum_f32", arena.fast, arena.slow);
    fast->sum_f32(f, f, b, count);
    scalar->sum_f32(s, s, b, count);
    SAME("sum_f32 in place", arena.fast, arena.slow);
    fast->sum_i64(arena.fast_whole + at, arena.fast_whole + at, arena.whole + at, count);
    scalar->sum_i64(arena.slow_whole + at, arena.slow_whole + at, arena.whole + at, count);
    SAME("sum_i64", arena.fast_whole, arena.slow_whole);
    fast->scale_f32(f, a, factor, count);
    scalar->scale_f32(s, a, factor, count);
    SAME("scale_f32", arena.fast, arena.slow);
    assert_int_equal(fast->scale_add_f32(f, a, factor, b, count),
                     scalar->scale_add_f32(s, a, factor, b, count));
    SAME("scale_add_f32", arena.fast, arena.slow);
    assert_int_equal(fast->max_abs_bits_f32(a, count), scalar->max_abs_bits_f32(a, count));
    assert_int_equal(fast->finite_f32(a, count), scalar->finite_f32(a, count));
    static uint32_t fast_above[COUNT_MAX], slow_above[COUNT_MAX];
    static const uint32_t floors[] = {0, 1, 0x3f000000, 0x3f800000, 0x7f800000, 0x7fffffff};
    for (size_t t = 0; t < sizeof floors / sizeof floors[0]; t++) {
        const size_t found = scalar->indices_above_f32(slow_above, a, count, floors[t]);
        assert_int_equal(fast->indices_above_f32(fast_above, a, count, floors[t]), found);
        assert_memory_equal(fast_above, slow_above, found * sizeof *slow_above);
    }
    static float fast_values[COUNT_MAX], slow_values[COUNT_MAX];
    for (size_t t = 0; t < sizeof floors / sizeof floors[0]; t++) {
        uint32_t fast_max = 5, slow_max = 5;
        const size_t found = scalar->scale_add_above_f32(s, a, factor, b, count, floors[t], 7, slow_above,
                                                         slow_values, &slow_max);
        assert_int_equal(fast->scale_add_above_f32(f, a, factor, b, count, floors[t], 7, fast_above,
                                                   fast_values, &fast_max),
                         found);
        SAME("scale_add_above_f32", arena.fast, arena.slow);
        assert_int_equal(fast_max, slow_max);
        assert_memory_equal(fast_above, slow_above, found * sizeof *slow_above);
        assert_memory_equal(fast_values, slow_values, found * sizeof *slow_values);
    }
    const double fast_dot = fast->dot_f32(a, b, count), slow_dot = scalar->dot_f32(a, b, count);
    assert_memory_equal(&fast_dot, &slow_dot, sizeof fast_dot);
}

static void check_casts(const struct weft_kernels *fast, size_t count, size_t shift, int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    fast->cast_f32_f16(arena.fast_half + at, arena.a + at, count);
    scalar->cast_f32_f16(arena.slow_half + at, arena.a + at, count);
    SAME("cast_f32_f16", arena.fast_half, arena.slow_half);
    fast->cast_f32_bf16(arena.fast_half + at, arena.a + at, count);
    scalar->cast_f32_bf16(arena.slow_half + at, arena.a + at, count);
    SAME("cast_f32_bf16", arena.fast_half, arena.slow_half);
    fast->cast_f16_f32(arena.fast + at, arena.halves + at, count);
    scalar->cast_f16_f32(arena.slow + at, arena.halves + at, count);
    SAME("cast_f16_f32", arena.fast, arena.slow);
    fast->cast_bf16_f32(arena.fast + at, arena.halves + at, count);
    scalar->cast_bf16_f32(arena.slow + at, arena.halves + at, count);
    SAME("cast_bf16_f32", arena.fast, arena.slow);
}

/* Sign and 8-bit floats. What no caller sends (not finite, too large for its scale) is kept out. */
static void check_narrow(const struct weft_kernels *fast, size_t count, size_t shift, int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    static uint8_t fast_codes[ARRAY_ELEMS], slow_codes[ARRAY_ELEMS];
    uint8_t exponents[ARRAY_ELEMS / WEFT_BLOCK + 2];
    float fast_scales[ARRAY_ELEMS / WEFT_BLOCK + 2], slow_scales[ARRAY_ELEMS / WEFT_BLOCK + 2];
    if (scalar->max_abs_bits_f32(arena.a + at, count) >= 0x7b800000u) return;
    for (int format = 0; format <= WEFT_E5M2; format++) {
        for (size_t block = 0; block * WEFT_BLOCK < count; block++) {
            const size_t first = block * WEFT_BLOCK,
                         length = count - first < WEFT_BLOCK ? count - first : WEFT_BLOCK;
            exponents[block] = weft_fp8_exponent(scalar->max_abs_bits_f32(arena.a + at + first, length),
                                                 (enum weft_fp8)format);
        }
        memset(fast_codes, 0x33, sizeof fast_codes);
        memset(slow_codes, 0x33, sizeof slow_codes);
        memset(fast_scales, 0x33, sizeof fast_scales);
        memset(slow_scales, 0x33, sizeof slow_scales);
        memcpy(arena.fast + at, arena.a + at, count * sizeof(float));
        memcpy(arena.slow + at, arena.a + at, count * sizeof(float));
        if (format == 0) {
            fast->quantise_sign_f32(fast_codes + at, fast_scales, arena.fast + at, count);
            scalar->quantise_sign_f32(slow_codes + at, slow_scales, arena.slow + at, count);
        } else {
            fast->quantise_fp8_f32(fast_codes + at, arena.fast + at, exponents, count, (enum weft_fp8)format);
            scalar->quantise_fp8_f32(slow_codes + at, arena.slow + at, exponents, count,
                                     (enum weft_fp8)format);
        }
        SAME("narrow residual", arena.fast, arena.slow);
        SAME("narrow codes", fast_codes, slow_codes);
        assert_memory_equal(fast_scales, slow_scales, sizeof fast_scales);
        if (format == 0) {
            fast->dequantise_sign_f32(arena.fast + at, fast_codes + at, fast_scales, count);
            scalar->dequantise_sign_f32(arena.slow + at, slow_codes + at, slow_scales, count);
        } else {
            fast->dequantise_fp8_f32(arena.fast + at, fast_codes + at, exponents, count,
                                     (enum weft_fp8)format);
            scalar->dequantise_fp8_f32(arena.slow + at, slow_codes + at, exponents, count,
                                       (enum weft_fp8)format);
        }
        SAME("narrow values", arena.fast, arena.slow);
    }
}

static void check_sgd(const struct weft_kernels *fast, size_t count, size_t shift, int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    for (size_t i = 0; i < VECTOR_SGDS; i++) {
        const bool velocity = vector_sgds[i].momentum != 0.0f;
        fast->sgd_f32(arena.fast + at, velocity ? arena.fast_second + at : NULL, arena.a + at, 0.25f,
                      &vector_sgds[i], count);
        scalar->sgd_f32(arena.slow + at, velocity ? arena.slow_second + at : NULL, arena.a + at, 0.25f,
                        &vector_sgds[i], count);
        SAME("sgd_f32 weights", arena.fast, arena.slow);
        SAME("sgd_f32 velocity", arena.fast_second, arena.slow_second);
    }
}

static void check_rules(const struct weft_kernels *fast, size_t count, size_t shift, int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    static float fast_third[ARRAY_ELEMS], slow_third[ARRAY_ELEMS];
    memcpy(fast_third, arena.b, sizeof fast_third);
    memcpy(slow_third, arena.b, sizeof slow_third);
    for (int rule = 0; rule < 4; rule++) {
        if (rule < 2) {
            fast->adam_f32(arena.fast + at, arena.fast_second + at, fast_third + at, arena.a + at, 0.25f,
                           &vector_adams[rule], count);
            scalar->adam_f32(arena.slow + at, arena.slow_second + at, slow_third + at, arena.a + at, 0.25f,
                             &vector_adams[rule], count);
        } else if (rule == 2) {
            fast->adagrad_f32(arena.fast + at, fast_third + at, arena.a + at, 0.25f, 0.1f, 1e-10f, 0.01f,
                              count);
            scalar->adagrad_f32(arena.slow + at, slow_third + at, arena.a + at, 0.25f, 0.1f, 1e-10f, 0.01f,
                                count);
        } else {
            fast->ftrl_f32(arena.fast + at, arena.fast_second + at, fast_third + at, arena.a + at, 0.25f,
                           &vector_ftrl, count);
            scalar->ftrl_f32(arena.slow + at, arena.slow_second + at, slow_third + at, arena.a + at, 0.25f,
                             &vector_ftrl, count);
        }
        SAME("rule's weights", arena.fast, arena.slow);
        SAME("rule's first state", arena.fast_second, arena.slow_second);
        SAME("rule's second state", fast_third, slow_third);
    }
}

static void check_lamb(const struct weft_kernels *fast, size_t count, size_t shift, int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    static float fast_third[ARRAY_ELEMS], slow_third[ARRAY_ELEMS];
    memcpy(fast_third, arena.b, sizeof fast_third);
    memcpy(slow_third, arena.b, sizeof slow_third);
    for (size_t i = 0; i < VECTOR_LAMBS; i++) {
        double fast_squares[2], slow_squares[2];
        fast->lamb_moments_f32(arena.fast_second + at, fast_third + at, arena.fast + at, arena.a + at, 0.25f,
                               &vector_lambs[i], count, fast_squares);
        scalar->lamb_moments_f32(arena.slow_second + at, slow_third + at, arena.slow + at, arena.a + at,
                                 0.25f, &vector_lambs[i], count, slow_squares);
        SAME("lamb's first moment", arena.fast_second, arena.slow_second);
        SAME("lamb's second moment", fast_third, slow_third);
        assert_memory_equal(fast_squares, slow_squares, sizeof fast_squares);
        fast->lamb_apply_f32(arena.fast + at, arena.fast_second + at, fast_third + at, &vector_lambs[i], 0.1f,
                             count);
        scalar->lamb_apply_f32(arena.slow + at, arena.slow_second + at, slow_third + at, &vector_lambs[i],
                               0.1f, count);
        SAME("lamb's weights", arena.fast, arena.slow);
    }
}

/* One pass over n sources against the definition, an out that is a source included, and against the fold
 * of tree_reduce.c. */
static void check_tree(const struct weft_kernels *fast, size_t count, size_t shift, int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    const float *const sources[8] = {arena.a + at,           arena.b + at,          arena.fast_second + at,
                                     arena.slow_second + at, arena.b + at,          arena.a + at,
                                     arena.slow_second + at, arena.fast_second + at};
    static float other[ARRAY_ELEMS], partials[8][COUNT_MAX];
    for (size_t n = 1; n <= 8; n++) {
        struct weft_tree_reduce reduce;
        float *freed[32], *const fast_outs[2] = {arena.fast + at, other + at},
                                 *const slow_outs[1] = {arena.slow + at};
        uint32_t freed_count;
        for (int f = 0; f < 3; f++) { /* the sum itself last: the fold is compared with it */
            static const float factors[] = {1.0f / 3, -0.0f, 1};
            fast->sum_tree_f32(fast_outs, 2, sources, n, factors[f], count);
            scalar->sum_tree_f32(slow_outs, 1, sources, n, factors[f], count);
            SAME("sum_tree_f32", arena.fast, arena.slow);
            assert_memory_equal(other + at, arena.slow + at, count * sizeof *other);
            memset(other, 0, sizeof other);
            fast->sum_tree_stream_f32(fast_outs, 2, sources, n, factors[f], count);
            SAME("sum_tree_stream_f32", arena.fast, arena.slow);
            assert_memory_equal(other + at, arena.slow + at, count * sizeof *other);
            assert_true(other[at - 1] == 0 && other[at + count] == 0);
            for (int stream = 0; stream < 2; stream++) {
                memset(other, 0, sizeof other);
                assert_int_equal(fast->sum_tree_max_f32(fast_outs, 2, sources, n, factors[f], count, stream),
                                 scalar->max_abs_bits_f32(slow_outs[0], count));
                SAME("sum_tree_max_f32", arena.fast, arena.slow);
                assert_memory_equal(other + at, arena.slow + at, count * sizeof *other);
                assert_true(other[at - 1] == 0 && other[at + count] == 0);
            }
            if (f > 0) continue;
            /* a factor is what scale does afterwards */
            scalar->sum_tree_f32(slow_outs, 1, sources, n, 1, count);
            scalar->scale_f32(arena.slow + at, arena.slow + at, factors[f], count);
            SAME("sum_tree_f32 with a factor", arena.fast, arena.slow);
        }
        weft_tree_reduce_init(&reduce, count);
        for (size_t r = 0; r < n; r++) {
            memcpy(partials[r], sources[r], count * sizeof **partials);
            weft_tree_reduce_add(&reduce, partials[r], freed);
        }
        const float *reduced = weft_tree_reduce_finish(&reduce, freed, &freed_count);
        if (n > 1) assert_memory_equal(reduced, arena.slow + at, count * sizeof *reduced);
    }
    /* every source is an out too, as in the one-host plan */
    float *const in_place[2] = {arena.fast_second + at, arena.slow_second + at}, *const expected[1] = {
                                                                                     arena.slow + at};
    scalar->sum_tree_f32(expected, 1, sources, 4, 0.5f, count);
    fast->sum_tree_f32(in_place, 2, sources, 4, 0.5f, count);
    assert_memory_equal(in_place[0], expected[0], count * sizeof **in_place);
    assert_memory_equal(in_place[1], expected[0], count * sizeof **in_place);
    memcpy(arena.fast_second, arena.slow_second, sizeof arena.fast_second);
    memcpy(arena.slow, arena.fast, sizeof arena.slow); /* what follows updates both in place */
}

/* Block quantisation: exponents, codes, residuals, sums and back, rounded both ways. */
static void check_quantise(const struct weft_kernels *fast, struct sample *sample, size_t count, size_t shift,
                           int kind, uint64_t seed)
{
    const size_t at = GUARD + shift;
    static int8_t fast_codes[ARRAY_ELEMS], slow_codes[ARRAY_ELEMS];
    static int16_t fast_i16[ARRAY_ELEMS], slow_i16[ARRAY_ELEMS];
    static int32_t fast_i32[ARRAY_ELEMS], slow_i32[ARRAY_ELEMS];
    uint8_t fast_exponents[ARRAY_ELEMS / WEFT_BLOCK + 2], slow_exponents[ARRAY_ELEMS / WEFT_BLOCK + 2];
    const struct weft_noise noise = {
        {(uint32_t)sample_u64(sample), 7}, sample_u64(sample), sample_u64(sample) % 1000};
    for (unsigned limit = 7; limit <= 127; limit += 120) {
        memset(fast_exponents, 0x5a, sizeof fast_exponents);
        memset(slow_exponents, 0x5a, sizeof slow_exponents);
        memset(fast_codes, 0x33, sizeof fast_codes);
        memset(slow_codes, 0x33, sizeof slow_codes);
        const uint32_t max_bits = scalar->scale_add_blocks_f32(arena.slow + at, arena.a + at, 0.5f,
                                                               arena.b + at, count, limit, slow_exponents);
        assert_int_equal(fast->scale_add_blocks_f32(arena.fast + at, arena.a + at, 0.5f, arena.b + at, count,
                                                    limit, fast_exponents),
                         max_bits);
        SAME("scale_add_blocks_f32", arena.fast, arena.slow);
        assert_memory_equal(fast_exponents, slow_exponents, sizeof fast_exponents);
        if (max_bits >= 0x7f000000) continue; /* quantise is for what scale_add_blocks let through */
        const struct weft_noise *const used = shift % 2 ? &noise : NULL;
        fast->quantise_f32(fast_codes + at, arena.fast + at, fast_exponents, count, limit, used);
        scalar->quantise_f32(slow_codes + at, arena.slow + at, slow_exponents, count, limit, used);
        SAME("quantise_f32 residual", arena.fast, arena.slow);
        SAME("quantise_f32 codes", fast_codes, slow_codes);
        memset(fast_i16, 0x11, sizeof fast_i16);
        memset(slow_i16, 0x11, sizeof slow_i16);
        memset(fast_i32, 0x11, sizeof fast_i32);
        memset(slow_i32, 0x11, sizeof slow_i32);
        fast->add_i8_i16(fast_i16 + at, fast_codes + at, count);
        scalar->add_i8_i16(slow_i16 + at, slow_codes + at, count);
        SAME("add_i8_i16", fast_i16, slow_i16);
        fast->add_i8_i32(fast_i32 + at, fast_codes + at, count);
        scalar->add_i8_i32(slow_i32 + at, slow_codes + at, count);
        SAME("add_i8_i32", fast_i32, slow_i32);
        fast->dequantise_i16_f32(arena.fast + at, fast_i16 + at, fast_exponents, 0.3f, count);
        scalar->dequantise_i16_f32(arena.slow + at, slow_i16 + at, slow_exponents, 0.3f, count);
        SAME("dequantise_i16_f32", arena.fast, arena.slow);
        fast->dequantise_i32_f32(arena.fast + at, fast_i32 + at, fast_exponents, 0.3f, count);
        scalar->dequantise_i32_f32(arena.slow + at, slow_i32 + at, slow_exponents, 0.3f, count);
        SAME("dequantise_i32_f32", arena.fast, arena.slow);
    }
}

/* Results too large for the caches take another way out. */
/* At cache lines and beside them; a and the outs hold `count` floats. */
static void large_lowbit(const struct weft_kernels *fast, const float *a, float *f, float *s, size_t count)
{
    static uint8_t exponents[(3 << 20) / 2 / WEFT_BLOCK + 2];
    const size_t fewer = count - 32;
    f += (64 - (uintptr_t)f % 64) % 64 / sizeof *f;
    s += (64 - (uintptr_t)s % 64) % 64 / sizeof *s;
    for (size_t i = 0; i < sizeof exponents; i++)
        exponents[i] = (uint8_t)(i * 7 % 255);
    for (size_t shift = 0; shift < 2; shift++) {
        for (int format = WEFT_E4M3; format <= WEFT_E5M2; format++) {
            fast->dequantise_fp8_f32(f + shift, (const uint8_t *)a, exponents, fewer, (enum weft_fp8)format);
            scalar->dequantise_fp8_f32(s + shift, (const uint8_t *)a, exponents, fewer,
                                       (enum weft_fp8)format);
            assert_memory_equal(f + shift, s + shift, fewer * sizeof *f);
        }
        fast->dequantise_sign_f32(f + shift, (const uint8_t *)a, a + fewer / 2, fewer);
        scalar->dequantise_sign_f32(s + shift, (const uint8_t *)a, a + fewer / 2, fewer);
        assert_memory_equal(f + shift, s + shift, fewer * sizeof *f);
    }
}

static void large_of(const struct weft_kernels *fast)
{
    enum { LARGE = (3 << 20) / 2 + 5 };
    const uint64_t seed = sample_seed(4);
    struct sample sample = {seed};
    float *a = test_malloc(4 * (LARGE + GUARD) * sizeof *a), *b = a + LARGE + GUARD, *f = b + LARGE + GUARD,
          *s = f + LARGE + GUARD;
    sample_fill(&sample, SAMPLE_WILD, a, 2 * (LARGE + GUARD));
    for (size_t shift = 0; shift < 3; shift++) {
        memset(f, 0x55, (LARGE + GUARD) * sizeof *f);
        memset(s, 0x55, (LARGE + GUARD) * sizeof *s);
#define LARGE_SAME(kernel)                              \
    if (memcmp(f, s, (LARGE + GUARD) * sizeof *f) != 0) \
    fail_msg("%s %s differs from scalar on a large result", fast->name, kernel)
        fast->sum_f32(f + shift, a, b, LARGE);
        scalar->sum_f32(s + shift, a, b, LARGE);
        LARGE_SAME("sum_f32");
        fast->scale_f32(f + shift, a, 3.0f, LARGE);
        scalar->scale_f32(s + shift, a, 3.0f, LARGE);
        LARGE_SAME("scale_f32");
        fast->cast_f32_f16((uint16_t *)f + shift, a, LARGE);
        scalar->cast_f32_f16((uint16_t *)s + shift, a, LARGE);
        LARGE_SAME("cast_f32_f16");
        fast->cast_f32_bf16((uint16_t *)f + shift, a, LARGE);
        scalar->cast_f32_bf16((uint16_t *)s + shift, a, LARGE);
        LARGE_SAME("cast_f32_bf16");
        fast->cast_f16_f32(f + shift, (const uint16_t *)a, LARGE);
        scalar->cast_f16_f32(s + shift, (const uint16_t *)a, LARGE);
        LARGE_SAME("cast_f16_f32");
        fast->cast_bf16_f32(f + shift, (const uint16_t *)a, LARGE);
        scalar->cast_bf16_f32(s + shift, (const uint16_t *)a, LARGE);
        LARGE_SAME("cast_bf16_f32");
    }
    large_lowbit(fast, a, f, s, LARGE);
    test_free(a);
}

static void each_variant(void (*check)(const struct weft_kernels *fast))
{
    static const char *const names[] = {"scalar", "avx2", "avx512", "avx512bf16"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (weft_kernels_by_name(names[i])) check(weft_kernels_by_name(names[i]));
}

static void vectors_of(const struct weft_kernels *fast)
{
    const uint64_t seed = sample_seed(1);
    struct sample sample = {seed};
    for (size_t c = 0; c < VECTOR_COUNTS; c++)
        for (size_t shift = 0; shift <= SHIFT_MAX; shift++)
            for (int kind = 0; kind < SAMPLE_KINDS; kind++) {
                fill(&sample, kind);
                check_elementwise(fast, &sample, vector_counts[c], shift, kind, seed);
                check_casts(fast, vector_counts[c], shift, kind, seed);
                check_tree(fast, vector_counts[c], shift, kind, seed);
                check_quantise(fast, &sample, vector_counts[c], shift, kind, seed);
                check_narrow(fast, vector_counts[c], shift, kind, seed);
                check_sgd(fast, vector_counts[c], shift, kind, seed);
                check_rules(fast, vector_counts[c], shift, kind, seed);
                check_lamb(fast, vector_counts[c], shift, kind, seed);
            }
}

static void test_vectors(void **state)
{
    each_variant(vectors_of);
}

static float matrix[MATRIX_MAX + 4], p_in[FACTOR_MAX + 4], q_in[FACTOR_MAX + 4];
static float fast_m[MATRIX_MAX + 4], slow_m[MATRIX_MAX + 4];
static float fast_out[MATRIX_MAX + 4], slow_out[MATRIX_MAX + 4];

static void compare_product(const struct weft_kernels *fast, const char *kernel, size_t rows, size_t cols,
                            size_t rank, uint64_t seed)
{
    if (memcmp(fast_out, slow_out, sizeof fast_out) == 0) return;
    fprintf(stderr, "%s %s differs from scalar: %zu x %zu rank %zu; replay: WEFT_TEST_SEED=%llu\n",
            fast->name, kernel, rows, cols, rank, (unsigned long long)seed);
    fail();
}

static void products_of(const struct weft_kernels *fast)
{
    const uint64_t seed = sample_seed(2);
    struct sample sample = {seed};

    for (size_t a = 0; a < VECTOR_SIZES; a++)
        for (size_t b = 0; b < VECTOR_SIZES; b++)
            for (size_t c = 0; c < VECTOR_RANKS; c++) {
                const size_t rows = vector_sizes[a], cols = vector_sizes[b], rank = vector_ranks[c],
                             shift = (a + b + c) % 2;
                const enum sample_kind kind = (enum sample_kind)((a + b) % SAMPLE_KINDS);
                const float *m = matrix + shift, *p = p_in + shift, *q = q_in + shift;
                float *f = fast_out + shift, *s = slow_out + shift;
                sample_fill(&sample, kind, matrix, MATRIX_MAX + 4);
                sample_fill(&sample, kind, p_in, FACTOR_MAX + 4);
                sample_fill(&sample, kind, q_in, FACTOR_MAX + 4);
                memcpy(fast_out, matrix, sizeof fast_out);
                memcpy(slow_out, matrix, sizeof slow_out);

                fast->outer_sub_f32(f, p, q, rows, cols, rank);
                scalar->outer_sub_f32(s, p, q, rows, cols, rank);
                compare_product(fast, "outer_sub_f32", rows, cols, rank, seed);
                fast->outer_f32(f, p, q, rows, cols, rank);
                scalar->outer_f32(s, p, q, rows, cols, rank);
                compare_product(fast, "outer_f32", rows, cols, rank, seed);
                fast->matmul_f32(f, rows + 1, m, q, rows, cols, rank);
                scalar->matmul_f32(s, rows + 1, m, q, rows, cols, rank);
                compare_product(fast, "matmul_f32", rows, cols, rank, seed);
                const float factor = sample_normal(&sample);
                assert_int_equal(fast->scale_add_matmul_f32(fast_m + shift, m, factor, m, f, rows + 1, q,
                                                            rows, cols, rank),
                                 scalar->scale_add_matmul_f32(slow_m + shift, m, factor, m, s, rows + 1, q,
                                                              rows, cols, rank));
                compare_product(fast, "scale_add_matmul_f32", rows, cols, rank, seed);
                assert_memory_equal(fast_m + shift, slow_m + shift, rows * cols * sizeof *fast_m);
                const struct weft_lazy_residual lazy = {m, p, q};
                assert_int_equal(fast->lazy_residual_add_matmul_f32(fast_m + shift, &lazy, m, factor, f, q,
                                                                    rows, cols, rank),
                                 scalar->lazy_residual_add_matmul_f32(slow_m + shift, &lazy, m, factor, s, q,
                                                                      rows, cols, rank));
                compare_product(fast, "owed_add_matmul_f32", rows, cols, rank, seed);
                assert_memory_equal(fast_m + shift, slow_m + shift, rows * cols * sizeof *fast_m);
                fast->matmul_t_f32(f, m, p, rows, cols, rank);
                scalar->matmul_t_f32(s, m, p, rows, cols, rank);
                compare_product(fast, "matmul_t_f32", rows, cols, rank, seed);
            }
}

static void test_large(void **state)
{
    each_variant(large_of);
}

/* Matrices beyond the caches: rows and columns around the blocks that variants cut them into. */
static void large_products_of(const struct weft_kernels *fast)
{
    static const size_t shapes[][3] = {
        {259, 2064, 4}, {261, 2064, 1}, {130, 4112, 8}, {67, 8208, 2}, {130, 4099, 9}};
    const uint64_t seed = sample_seed(5);
    struct sample sample = {seed};
    for (size_t t = 0; t < sizeof shapes / sizeof shapes[0]; t++) {
        const size_t rows = shapes[t][0], cols = shapes[t][1], rank = shapes[t][2], elems = rows * cols;
        const size_t bytes = elems * sizeof(float), factors = rank * (rows > cols ? rows : cols);
        float *block = NULL;
        assert_int_equal(
            posix_memalign((void **)&block, 64, 6 * (bytes + 64) + 4 * (factors * sizeof(float) + 64)), 0);
        const size_t stride = (elems + 15) / 16 * 16, factor_stride = (factors + 15) / 16 * 16;
        float *a = block, *b = a + stride, *f = b + stride, *s = f + stride;
        float *p = s + stride, *q = p + factor_stride;
        float *f_small = q + factor_stride, *s_small = f_small + factor_stride;
        sample_fill(&sample, t % 2 ? SAMPLE_WILD : SAMPLE_NORMAL, a, elems);
        sample_fill(&sample, SAMPLE_NORMAL, b, elems);
        sample_fill(&sample, SAMPLE_NORMAL, p, factors);
        sample_fill(&sample, SAMPLE_NORMAL, q, factors);
        memset(f_small, 0, factors * sizeof *f_small);
        memset(s_small, 0, factors * sizeof *s_small);
        assert_int_equal(fast->scale_add_matmul_f32(f, a, 0.5f, b, f_small, rows, q, rows, cols, rank),
                         scalar->scale_add_matmul_f32(s, a, 0.5f, b, s_small, rows, q, rows, cols, rank));
        assert_memory_equal(f, s, bytes);
        assert_memory_equal(f_small, s_small, factors * sizeof *f_small);
        const struct weft_lazy_residual lazy = {b, p, q};
        assert_int_equal(
            fast->lazy_residual_add_matmul_f32(f, &lazy, a, 0.5f, f_small, q, rows, cols, rank),
            scalar->lazy_residual_add_matmul_f32(s, &lazy, a, 0.5f, s_small, q, rows, cols, rank));
        assert_memory_equal(f, s, bytes);
        assert_memory_equal(f_small, s_small, factors * sizeof *f_small);
        fast->matmul_t_f32(f_small, f, p, rows, cols, rank);
        scalar->matmul_t_f32(s_small, s, p, rows, cols, rank);
        assert_memory_equal(f_small, s_small, factors * sizeof *f_small);
        fast->outer_sub_f32(f, p, q, rows, cols, rank);
        scalar->outer_sub_f32(s, p, q, rows, cols, rank);
        assert_memory_equal(f, s, bytes);
        fast->outer_f32(f, p, q, rows, cols, rank);
        scalar->outer_f32(s, p, q, rows, cols, rank);
        assert_memory_equal(f, s, bytes);
        free(block);
    }
}

static void test_large_products(void **state)
{
    each_variant(large_products_of);
}

static void test_products(void **state)
{
    each_variant(products_of);
}

/* The scalar table itself against the written definition: 16 lanes, then 8+8, 4+4, 2+2, 1+1; NaN
 * canonical. */
static void test_definitions(void **state)
{
    struct sample sample = {sample_seed(3)};
    float a[75], b[75], lanes[16] = {0}, p[1];
    sample_fill(&sample, SAMPLE_NORMAL, a, 75);
    sample_fill(&sample, SAMPLE_NORMAL, b, 75);
    for (int i = 0; i < 75; i++)
        lanes[i % 16] = lanes[i % 16] + a[i] * b[i];
    const float eight[8] = {lanes[0] + lanes[8],  lanes[1] + lanes[9],  lanes[2] + lanes[10],
                            lanes[3] + lanes[11], lanes[4] + lanes[12], lanes[5] + lanes[13],
                            lanes[6] + lanes[14], lanes[7] + lanes[15]};
    const float four[4] = {eight[0] + eight[4], eight[1] + eight[5], eight[2] + eight[6],
                           eight[3] + eight[7]};
    const float expected = (four[0] + four[2]) + (four[1] + four[3]);
    scalar->matmul_f32(p, 1, a, b, 1, 75, 1);
    assert_int_equal(sample_bits(p[0]), sample_bits(expected));

    const float payload = sample_from_bits(0xffc12345), infinite = INFINITY;
    scalar->sum_f32(p, &payload, &a[0], 1);
    assert_int_equal(sample_bits(p[0]), 0x7fc00000);
    scalar->scale_f32(p, &infinite, 0.0f, 1);
    assert_int_equal(sample_bits(p[0]), 0x7fc00000);

    /* lr 0.5, momentum 0.5, decay 2: g = 1*2 + 2*3 = 8; v = 0.5*4 + 8 = 10; nesterov g = 8 + 5; w = 3 -
     * 6.5 */
    float weight = 3.0f, velocity = 4.0f;
    const float grad = 1.0f;
    const struct weft_sgd sgd = {.lr = 0.5f, .momentum = 0.5f, .weight_decay = 2.0f, .nesterov = true};
    scalar->sgd_f32(&weight, &velocity, &grad, 2.0f, &sgd, 1);
    assert_true(velocity == 10.0f && weight == -3.5f);
}

static void test_choice(void **state)
{
    assert_ptr_equal(weft_kernels(), weft_kernels());
    assert_string_equal(weft_kernels_by_name("scalar")->name, "scalar");
    assert_null(weft_kernels_by_name("abacus"));
}

int main(void)
{
    scalar = weft_kernels_by_name("scalar");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_large_products),
        cmocka_unit_test(test_definitions),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
