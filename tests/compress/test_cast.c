/* test_cast.c - dense, f16, bf16 through worker and combiner: the sum is T's sum, rounded once; 16-bit
 * sums do not overflow; wrong sizes and non-finite gradients are refused. */
#include "tests/compress/compress_fixture.h"

enum { COUNT = 5000 };
static float grads[FLEET_MAX][COUNT], out[COUNT];
static const float *grad_list[FLEET_MAX];

static void fill(uint64_t seed, float size)
{
    struct sample sample = {sample_seed(seed)};
    for (uint32_t r = 0; r < FLEET_MAX; r++) {
        grad_list[r] = grads[r];
        for (size_t i = 0; i < COUNT; i++)
            grads[r][i] = size * sample_normal(&sample);
    }
}

static float tree(uint32_t a, uint32_t b, size_t i)
{
    uint32_t h = 1;
    if (b - a == 1) return grads[a][i];
    while (h * 2 < b - a)
        h *= 2;
    return tree(a, a + h, i) + tree(a + h, b, i);
}

static void test_dense_is_the_tree(void **state)
{
    fill(1, 1.0f);
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        struct fleet fleet;
        fleet_open(&fleet, "dense", shape_of(COUNT, 0), ranks);
        fleet_step(&fleet, grad_list, 0.5f, out);
        for (size_t i = 0; i < COUNT; i++)
            assert_int_equal(sample_bits(out[i]), sample_bits(tree(0, ranks, i) * 0.5f));
        fleet_commit(&fleet);
        fleet_close(&fleet);
    }
}

/* Each contribution and the sum are rounded once, relative to the largest element of the tensor for f16. */
static void test_lowbit_error(void **state)
{
    static const char *const texts[] = {"f16", "bf16"};
    static const float sizes[] = {1e-30f, 1e-9f, 1.0f, 1e4f, 1e30f};
    for (int t = 0; t < 2; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct fleet fleet;
            const double step = t == 0 ? ldexp(1, -11) : ldexp(1, -8);
            fill(2, sizes[s]);
            fleet_open(&fleet, texts[t], shape_of(COUNT, 0), 8);
            fleet_step(&fleet, grad_list, 0.125f, out);
            for (size_t i = 0; i < COUNT; i++) {
                double exact = 0, magnitude = 0;
                for (int r = 0; r < 8; r++) {
                    exact += (double)grads[r][i] / 8;
                    magnitude += fabs((double)grads[r][i]) / 8;
                }
                assert_true(fabs((double)out[i] - exact) <= 2.1 * step * magnitude + 1e-7 * (double)sizes[s]);
            }
            fleet_close(&fleet);
        }
}

/* Sums beyond 65504, and the ends of the range that one exponent serves: never Inf, one rounding to 11
 * bits. */
static void test_f16_does_not_overflow(void **state)
{
    static const float values[] = {65504.0f, 65535.0f, 0x1.fffffep0f, 0x1.fffffep122f, 0x1p-126f, 0x1p-149f};
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
        struct fleet fleet;
        for (uint32_t r = 0; r < FLEET_MAX; r++) {
            grad_list[r] = grads[r];
            for (size_t i = 0; i < COUNT; i++)
                grads[r][i] = values[v];
        }
        fleet_open(&fleet, "f16", shape_of(COUNT, 0), 16);
        fleet_step(&fleet, grad_list, 1.0f / 16, out);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(fabs((double)out[i] - (double)values[v]) <= (double)values[v] * 0x1p-11);
        fleet_close(&fleet);
    }
}

static void test_refusals(void **state)
{
    static const char *const texts[] = {"dense", "f16", "bf16"};
    for (int t = 0; t < 3; t++) {
        struct fleet fleet;
        size_t bytes = 0;
        const void *data;
        fill(3, 1.0f);
        fleet_open(&fleet, texts[t], shape_of(COUNT, 0), 2);
        struct weft_codec *codec = fleet.codecs[0];
        struct weft_combiner *combiner = fleet.combiner;

        assert_int_equal(weft_codec_take(codec, 0, fleet.aggregate, 1, 2), WEFT_ERR_STATE);
        assert_int_equal(weft_codec_finish(codec, 1.0f, out), WEFT_ERR_STATE);
        assert_int_equal(weft_combiner_add(combiner, fleet.contributions[0], 1), WEFT_ERR_STATE);
        const float hard[] = {NAN, INFINITY, -INFINITY};
        for (int h = 0; h < 3; h++) {
            const float kept = grads[0][COUNT - 1];
            grads[0][COUNT - 1] = hard[h];
            assert_int_equal(weft_codec_encode(codec, 0, grads[0], 1.0f, fleet.contributions[0], &bytes),
                             WEFT_ERR_INVALID);
            grads[0][COUNT - 1] = kept;
        }
        assert_int_equal(weft_codec_encode(codec, 0, grads[0], 3e38f, fleet.contributions[0], &bytes),
                         WEFT_ERR_INVALID);
        assert_int_equal(weft_codec_encode(codec, 1, grads[0], 1.0f, fleet.contributions[0], &bytes),
                         WEFT_ERR_STATE);

        fleet_encode(&fleet, 0, grad_list);
        weft_combiner_begin(combiner, 0);
        assert_int_equal(weft_combiner_close(combiner, &data, &bytes), WEFT_ERR_STATE);
        for (size_t cut = 0; cut < 3; cut++)
            assert_int_equal(weft_combiner_add(combiner, fleet.contributions[0], cut), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, fleet.contributions[0], fleet.contribution_bytes[0] - 1),
                         WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, fleet.contributions[0], fleet.contribution_bytes[0] + 1),
                         WEFT_ERR_MALFORMED);
        fleet_combine(&fleet, 0);
        assert_int_equal(weft_combiner_add(combiner, fleet.contributions[0], fleet.contribution_bytes[0]),
                         WEFT_ERR_STATE);
        assert_int_equal(weft_codec_take(codec, 0, fleet.aggregate, fleet.aggregate_bytes - 1, 2),
                         WEFT_ERR_MALFORMED);
        if (t == 1) { /* an exponent no writer gives */
            const int32_t wrong = 114;
            int32_t right;
            memcpy(&right, fleet.aggregate, sizeof right);
            memcpy(fleet.aggregate, &wrong, sizeof wrong);
            assert_int_equal(weft_codec_take(codec, 0, fleet.aggregate, fleet.aggregate_bytes, 2),
                             WEFT_ERR_MALFORMED);
            memcpy(fleet.aggregate, &right, sizeof right);
        }
        fleet_take(&fleet, 0);
        assert_int_equal(weft_codec_take(codec, 0, fleet.aggregate, fleet.aggregate_bytes, 2),
                         WEFT_ERR_STATE);
        fleet_commit(&fleet);
        fleet_close(&fleet);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_is_the_tree),
        cmocka_unit_test(test_lowbit_error),
        cmocka_unit_test(test_f16_does_not_overflow),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
