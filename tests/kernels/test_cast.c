/* test_cast.c - the 16-bit floats against an oracle that knows no bit tricks: all 65,536 patterns widened,
 * every rounding boundary narrowed, in every variant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

static const char *const names[] = {"scalar", "avx2", "avx512", "avx512bf16"};

/* A finite 16-bit pattern as a number: (1.m or 0.m) * 2^e, written out. */
static double value_of(uint16_t bits, int exponent_bits)
{
    const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double magnitude = exponent == 0
        ? ldexp(mantissa, 1 - bias - mantissa_bits)
        : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* Every pattern, widened: the exact number, NaN quiet with sign and payload on top. */
static void check_widening(const struct weft_kernels *kernels, int exponent_bits)
{
    static uint16_t in[65536];
    static float out[65536];
    const uint16_t infinity = (uint16_t)(0x7fff & ~((1 << (15 - exponent_bits)) - 1));
    for (uint32_t bits = 0; bits < 65536; bits++)
        in[bits] = (uint16_t)bits;
    (exponent_bits == 5 ? kernels->cast_f16_f32 : kernels->cast_bf16_f32)(out, in, 65536);
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const uint32_t magnitude = bits & 0x7fff, sign = (bits & 0x8000) << 16, got = sample_bits(out[bits]);
        if (magnitude > infinity)
            assert_int_equal(got,
                             sign | 0x7fc00000 | (magnitude - infinity) << (exponent_bits == 5 ? 13 : 16));
        else if (magnitude == infinity)
            assert_int_equal(got, sign | 0x7f800000);
        else
            assert_int_equal(got, sample_bits((float)value_of((uint16_t)bits, exponent_bits)));
    }
}

/* Between two neighbours low < high: nearest, ties to the even pattern. */
static uint16_t nearest(float x, uint16_t low, uint16_t high, double low_value, double high_value)
{
    const double to_low = (double)x - low_value, to_high = high_value - (double)x;
    if (to_low != to_high) return to_low < to_high ? low : high;
    return low & 1 ? high : low;
}

static void check_narrowing(const struct weft_kernels *kernels, int exponent_bits)
{
    void (*narrow)(uint16_t *, const float *, size_t) =
        exponent_bits == 5 ? kernels->cast_f32_f16 : kernels->cast_f32_bf16;
    const uint16_t infinity = (uint16_t)(0x7fff & ~((1 << (15 - exponent_bits)) - 1));
    for (uint16_t low = 0; low < infinity; low++) {
        const uint16_t high = (uint16_t)(low + 1);
        const double low_value = value_of(low, exponent_bits);
        /* What Inf stands for when rounding: the next power of two. */
        const double high_value =
            high == infinity ? ldexp(1.0, 1 << (exponent_bits - 1)) : value_of(high, exponent_bits);
        const float middle = (float)((low_value + high_value) / 2);
        const float points[] = {(float)low_value, middle, nextafterf(middle, 0.0f),
                                nextafterf(middle, INFINITY)};
        float in[8];
        uint16_t out[8];
        for (int i = 0; i < 4; i++) {
            in[2 * i] = points[i];
            in[2 * i + 1] = -points[i];
        }
        narrow(out, in, 8);
        for (int i = 0; i < 4; i++) {
            uint16_t expected = nearest(points[i], low, high, low_value, high_value);
            assert_int_equal(out[2 * i], expected);
            assert_int_equal(out[2 * i + 1], expected | 0x8000);
        }
    }
    const uint32_t special[] = {0x7f800000, 0xff800000, 0x7f7fffff, 0x7f800001,
                                0xffbfffff, 0x7fd55555, 0x00000001, 0x80000001};
    const uint16_t half[] = {0x7c00, 0xfc00, 0x7c00, 0x7e00, 0xffff, 0x7eaa, 0x0000, 0x8000};
    const uint16_t bf[] = {0x7f80, 0xff80, 0x7f80, 0x7fc0, 0xffff, 0x7fd5, 0x0000, 0x8000};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        const float in = sample_from_bits(special[i]);
        uint16_t out;
        narrow(&out, &in, 1);
        assert_int_equal(out, exponent_bits == 5 ? half[i] : bf[i]);
    }
}

static void test_f16(void **state)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct weft_kernels *kernels = weft_kernels_by_name(names[i]);
        if (!kernels) continue;
        check_widening(kernels, 5);
        check_narrowing(kernels, 5);
    }
}

static void test_bf16(void **state)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct weft_kernels *kernels = weft_kernels_by_name(names[i]);
        if (!kernels) continue;
        check_widening(kernels, 8);
        check_narrowing(kernels, 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f16), cmocka_unit_test(test_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
