/* test_quantise.c - block quantisation: the exponent is the smallest that fits, codes and residual give
 * back the value, stochastic rounding is unbiased and is a function of its key alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "kernels/philox.h"
#include "tests/kernels/sample.h"

/* The vectors that the authors publish with their Random123 library (kat_vectors, philox4x32 10). */
static void test_philox(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static double scale_of(uint8_t exponent)
{
    return ldexp(1.0, exponent - 127);
}

static void test_exponents(void **state)
{
    struct sample sample = {sample_seed(31)};
    assert_int_equal(weft_block_exponent(0, 127), 0);
    for (int i = 0; i < 200000; i++) {
        const uint32_t bits = (uint32_t)(sample_u64(&sample) % 0x7f800000u);
        const double x = fabs((double)sample_from_bits(bits));
        for (unsigned limit = 7; limit <= 127; limit += 120) {
            const uint8_t e = weft_block_exponent(bits, limit);
            if (bits == 0) continue;
            assert_true(e >= 1 && e <= 254);
            assert_true(x <= limit * scale_of(e));
            if (e > 1) assert_true(x > limit * scale_of((uint8_t)(e - 1)));
        }
    }
}

enum { COUNT = 5 * WEFT_BLOCK + 77 };

/* code * scale + residual is the value, up to the rounding of the residual; nearest is at most half a unit
 * away. */
static void test_nothing_is_lost(void **state)
{
    struct sample sample = {sample_seed(32)};
    static float x[COUNT], before[COUNT], zero[COUNT];
    int8_t codes[COUNT];
    uint8_t exponents[COUNT / WEFT_BLOCK + 1];
    for (int way = 0; way < 4; way++) {
        const struct weft_noise noise = {{1, 2}, 3, 0};
        const unsigned limit = way < 2 ? 127 : 7;
        sample_fill(&sample, SAMPLE_NORMAL, before, COUNT);
        for (size_t i = 0; i < WEFT_BLOCK; i++)
            before[i] = 0.0f, before[WEFT_BLOCK + i] *= 1e-30f;
        weft_kernels()->scale_add_blocks_f32(x, before, 1.0f, zero, COUNT, limit, exponents);
        weft_kernels()->quantise_f32(codes, x, exponents, COUNT, limit, way % 2 ? &noise : NULL);
        for (size_t i = 0; i < COUNT; i++) {
            const double unit = scale_of(exponents[i / WEFT_BLOCK]);
            assert_true(abs(codes[i]) <= (int)limit);
            assert_true(fabs(codes[i] * unit + (double)x[i] - (double)before[i]) <=
                        fabs((double)before[i]) * 0x1p-23 + unit * 0x1p-24);
            assert_true(fabs((double)x[i]) <= unit * (way % 2 ? 1.0 + 0x1p-9 : 0.5));
            if (i < WEFT_BLOCK) assert_true(codes[i] == 0 && x[i] == 0.0f);
        }
    }
}

/* Mean over many steps: within what 8 random bits can give, and five standard errors. */
static void test_unbiased(void **state)
{
    enum { STEPS = 4000 };
    static float x[WEFT_BLOCK];
    static double sum[WEFT_BLOCK], squares[WEFT_BLOCK];
    int8_t codes[WEFT_BLOCK];
    const uint8_t exponent = 127; /* unit 1 */
    for (uint64_t step = 0; step < STEPS; step++) {
        const struct weft_noise noise = {{11, 22}, step, 5};
        for (size_t i = 0; i < WEFT_BLOCK; i++)
            x[i] = (float)i / 64.0f - 2.0f;
        weft_kernels()->quantise_f32(codes, x, &exponent, WEFT_BLOCK, 127, &noise);
        for (size_t i = 0; i < WEFT_BLOCK; i++)
            sum[i] += codes[i], squares[i] += (double)codes[i] * codes[i];
    }
    for (size_t i = 0; i < WEFT_BLOCK; i++)
        assert_true(fabs(sum[i] / STEPS - ((double)i / 64.0 - 2.0)) < 0x1p-9 + 5 * 0.5 / sqrt(STEPS));
    for (size_t i = 0; i < WEFT_BLOCK; i++) {
        /* one of two neighbours with probability f: variance f (1 - f) */
        const double f = (double)(i % 64) / 64.0, mean = sum[i] / STEPS;
        assert_true(fabs(squares[i] / STEPS - mean * mean - f * (1 - f)) < 0x1p-8 + 5 * 0.25 / sqrt(STEPS));
    }
}

/* A hundred thousand seeds, at what is hardest for eight random bits: on a code, just above one, half-way,
 * just below the next. */
static void test_unbiased_over_seeds(void **state)
{
    enum { SEEDS = 100000, EACH = 8, COLUMN = 4 * EACH };
    static const double parts[4] = {0, 1.0 / 256, 0.5, 255.0 / 256};
    double sum[COLUMN] = {0};
    const uint8_t exponent = 127; /* unit 1 */
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const struct weft_noise noise = weft_noise_of(seed, 3, 1, 9);
        float x[COLUMN];
        int8_t codes[COLUMN];
        for (size_t i = 0; i < COLUMN; i++)
            x[i] = (float)((double)(i / 4) - 4 + parts[i % 4]);
        weft_kernels()->quantise_f32(codes, x, &exponent, COLUMN, 127, &noise);
        for (size_t i = 0; i < COLUMN; i++) {
            assert_true(fabs((double)x[i]) < 1); /* what is left */
            if (i % 4 == 0) assert_true(x[i] == 0);
            sum[i] += codes[i] - ((double)(i / 4) - 4);
        }
    }
    for (size_t i = 0; i < COLUMN; i++) {
        const double f = parts[i % 4];
        assert_true(fabs(sum[i] / SEEDS - f) <= 4 * sqrt(f * (1 - f) / SEEDS));
    }
}

/* No two of seed, tensor, worker and step share a key. */
static void test_keys(void **state)
{
    const struct weft_noise base = weft_noise_of(5, 6, 7, 8);
    const struct weft_noise others[] = {
        weft_noise_of(4, 6, 7, 8), weft_noise_of(5, 7, 7, 8),          weft_noise_of(5, 6, 6, 8),
        weft_noise_of(5, 7, 6, 8), weft_noise_of(5ull << 32, 6, 7, 8), weft_noise_of(5, 6ull << 32, 7, 8)};
    const uint32_t counter[4] = {6, 0, 7, 0}, key[2] = {5, 0};
    uint32_t words[4];
    philox(counter, key, words);
    assert_true(base.key[0] == words[0] && base.key[1] == words[1] && base.step == 8 &&
                base.first_block == 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_memory_not_equal(others[i].key, base.key, sizeof base.key);
}

/* A block draws the same wherever it lies in a call, another step or key draws others. */
static void test_a_function_of_its_key(void **state)
{
    static float x[COUNT], part[COUNT];
    static int8_t whole[COUNT], piece[COUNT];
    struct sample sample = {sample_seed(33)};
    uint8_t exponents[COUNT / WEFT_BLOCK + 1];
    memset(exponents, 125, sizeof exponents);
    sample_fill(&sample, SAMPLE_NORMAL, x, COUNT);
    memcpy(part, x, sizeof x);
    struct weft_noise noise = {{5, 6}, 7, 40};
    weft_kernels()->quantise_f32(whole, x, exponents, COUNT, 127, &noise);
    noise.first_block += 2;
    weft_kernels()->quantise_f32(piece, part + 2 * WEFT_BLOCK, exponents + 2, COUNT - 2 * WEFT_BLOCK, 127,
                                 &noise);
    assert_memory_equal(piece, whole + 2 * WEFT_BLOCK, COUNT - 2 * WEFT_BLOCK);
    for (int change = 0; change < 3; change++) {
        struct weft_noise other = {{5 + (change == 0), 6 + (change == 1)}, 7 + (change == 2), 42};
        sample = (struct sample){sample_seed(33)};
        sample_fill(&sample, SAMPLE_NORMAL, part, COUNT);
        weft_kernels()->quantise_f32(piece, part + 2 * WEFT_BLOCK, exponents + 2, COUNT - 2 * WEFT_BLOCK, 127,
                                     &other);
        assert_memory_not_equal(piece, whole + 2 * WEFT_BLOCK, COUNT - 2 * WEFT_BLOCK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_exponents),
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_unbiased_over_seeds),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_unbiased),
        cmocka_unit_test(test_a_function_of_its_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
