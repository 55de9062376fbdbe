/* test_lowbit.c - 8-bit floats and signs against their formats: every code's value, every value's
 * nearest code, scales that just fit, and nothing lost between code and residual. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

/* From the words of the OCP specification, in double. */
static double value_of(unsigned code, enum weft_fp8 format)
{
    const int mantissa_bits = format == WEFT_E4M3 ? 3 : 2, bias = format == WEFT_E4M3 ? 7 : 15;
    const int exponent = (int)(code & 0x7f) >> mantissa_bits,
              mantissa = (int)code & ((1 << mantissa_bits) - 1);
    const double steps = (double)(1 << mantissa_bits);
    const double magnitude =
        exponent == 0 ? ldexp(mantissa / steps, 1 - bias) : ldexp(1 + mantissa / steps, exponent - bias);
    return code & 0x80 ? -magnitude : magnitude;
}

static unsigned top_of(enum weft_fp8 format) { return format == WEFT_E4M3 ? 0x7e : 0x7b; }

static void test_values(void **state)
{
    const uint8_t one = 127; /* scale 1 */
    assert_true(value_of(0x7e, WEFT_E4M3) == 448 && value_of(0x7b, WEFT_E5M2) == 57344);
    for (int f = WEFT_E4M3; f <= WEFT_E5M2; f++)
        for (unsigned code = 0; code < 256; code++) {
            const enum weft_fp8 format = (enum weft_fp8)f;
            const uint8_t byte = (uint8_t)code;
            uint8_t back;
            float value;
            if ((code & 0x7f) > top_of(format)) continue;
            weft_kernels()->dequantise_fp8_f32(&value, &byte, &one, 1, format);
            assert_true((double)value == value_of(code, format) && (signbit(value) != 0) == (code >> 7 != 0));
            weft_kernels()->quantise_fp8_f32(&back, &value, &one, 1, format);
            assert_int_equal(back, code);
            assert_true(value == 0.0f);
        }
}

/* Between two neighbours: the nearer, at the middle the even one. */
static void test_nearest(void **state)
{
    const uint8_t one = 127;
    for (int f = WEFT_E4M3; f <= WEFT_E5M2; f++)
        for (unsigned code = 0; code < top_of((enum weft_fp8)f); code++) {
            const enum weft_fp8 format = (enum weft_fp8)f;
            const float low = (float)value_of(code, format), high = (float)value_of(code + 1, format),
                        middle = (low + high) / 2;
            const float tries[] = {nextafterf(middle, 0.0f), middle, nextafterf(middle, INFINITY)};
            const unsigned expected[] = {code, code + code % 2, code + 1};
            for (int t = 0; t < 3; t++)
                for (int negative = 0; negative < 2; negative++) {
                    float x = negative ? -tries[t] : tries[t];
                    uint8_t got;
                    weft_kernels()->quantise_fp8_f32(&got, &x, &one, 1, format);
                    assert_int_equal(got, expected[t] | (negative ? 0x80u : 0));
                }
        }
}

static void test_exponents(void **state)
{
    struct sample sample = {sample_seed(41)};
    for (int f = WEFT_E4M3; f <= WEFT_E5M2; f++) {
        const double most = value_of(top_of((enum weft_fp8)f), (enum weft_fp8)f);
        assert_int_equal(weft_fp8_exponent(0, (enum weft_fp8)f), 0);
        for (int i = 0; i < 200000; i++) {
            const uint32_t bits = 1 + (uint32_t)(sample_u64(&sample) % 0x7f7fffffu);
            const double x = fabs((double)sample_from_bits(bits));
            const uint8_t e = weft_fp8_exponent(bits, (enum weft_fp8)f);
            assert_true(e >= 1 && e <= 254 && x <= most * ldexp(1.0, e - 127));
            if (e > 1) assert_true(x > most * ldexp(1.0, e - 128));
        }
    }
}

enum { COUNT = 3 * WEFT_BLOCK + 77 };

/* code * scale + residual is the value; the residual is at most half a step. */
static void test_nothing_is_lost(void **state)
{
    struct sample sample = {sample_seed(42)};
    static float before[COUNT], x[COUNT], decoded[COUNT];
    uint8_t codes[COUNT], exponents[COUNT / WEFT_BLOCK + 1];
    for (int f = WEFT_E4M3; f <= WEFT_E5M2; f++) {
        sample_fill(&sample, SAMPLE_NORMAL, before, COUNT);
        for (size_t i = 0; i < WEFT_BLOCK; i++)
            before[i] = 0.0f, before[WEFT_BLOCK + i] *= 1e-36f;
        for (size_t at = 0; at < COUNT; at += WEFT_BLOCK)
            exponents[at / WEFT_BLOCK] =
                weft_fp8_exponent(weft_kernels()->max_abs_bits_f32(
                                      before + at, COUNT - at < WEFT_BLOCK ? COUNT - at : WEFT_BLOCK),
                                  (enum weft_fp8)f);
        memcpy(x, before, sizeof x);
        weft_kernels()->quantise_fp8_f32(codes, x, exponents, COUNT, (enum weft_fp8)f);
        weft_kernels()->dequantise_fp8_f32(decoded, codes, exponents, COUNT, (enum weft_fp8)f);
        for (size_t i = 0; i < COUNT; i++) {
            const double lowest = ldexp(f == WEFT_E4M3 ? 0x1p-10 : 0x1p-17, exponents[i / WEFT_BLOCK] - 127);
            assert_true((double)decoded[i] + (double)x[i] == (double)before[i]);
            assert_true(fabs((double)x[i]) <=
                        fmax(fabs((double)before[i]) * (f == WEFT_E4M3 ? 0x1p-4 : 0x1p-3), lowest));
        }
    }
}

/* Mean magnitude against f64; equal magnitudes are met exactly; -0 counts as positive; bits in the stated
 * order. */
static void test_signs(void **state)
{
    struct sample sample = {sample_seed(43)};
    static float before[COUNT], x[COUNT], decoded[COUNT];
    static uint8_t bits[COUNT / 8 + 1];
    float scales[COUNT / WEFT_BLOCK + 1];
    sample_fill(&sample, SAMPLE_NORMAL, before, COUNT);
    memcpy(x, before, sizeof x);
    weft_kernels()->quantise_sign_f32(bits, scales, x, COUNT);
    weft_kernels()->dequantise_sign_f32(decoded, bits, scales, COUNT);
    for (size_t block = 0; block * WEFT_BLOCK < COUNT; block++) {
        const size_t first = block * WEFT_BLOCK,
                     end = first + WEFT_BLOCK < COUNT ? first + WEFT_BLOCK : COUNT;
        double sum = 0;
        for (size_t i = first; i < end; i++)
            sum += fabs((double)before[i]);
        assert_true(fabs((double)scales[block] - sum / (double)(end - first)) <=
                    0x1p-23 * (double)scales[block]);
        for (size_t i = first; i < end; i++) {
            assert_int_equal(bits[i / 8] >> i % 8 & 1, before[i] < 0);
            assert_true(decoded[i] == (before[i] < 0 ? -scales[block] : scales[block]));
            assert_true(x[i] == before[i] - decoded[i]);
        }
    }
    assert_int_equal(bits[COUNT / 8] >> COUNT % 8, 0);
    const float equal[10] = {2, -2, -2, 2, 2, 2, -2, 2, -2, 2};
    memcpy(x, equal, sizeof equal);
    weft_kernels()->quantise_sign_f32(bits, scales, x, 10);
    assert_int_equal(bits[0], 0x46);
    assert_int_equal(bits[1], 0x01);
    for (size_t i = 0; i < 10; i++)
        assert_true(x[i] == 0.0f);
    x[0] = -0.0f;
    weft_kernels()->quantise_sign_f32(bits, scales, x, 1);
    assert_int_equal(bits[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),  cmocka_unit_test(test_nearest), cmocka_unit_test(test_exponents),
        cmocka_unit_test(test_nothing_is_lost), cmocka_unit_test(test_signs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
