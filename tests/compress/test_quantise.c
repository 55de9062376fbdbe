/* test_quantise.c - int8 and int4 through workers and combiner: sums of codes are exact in any order and
 * any number of ranks, nothing is lost over many steps, and no byte of a peer gets further than a check. */
#include "tests/compress/compress_fixture.h"

enum { COUNT = 1000, STEPS = 30 };
static float grads[FLEET_MAX][COUNT], out[COUNT];
static const float *grad_list[FLEET_MAX];
static const char *const codecs[] = {"int8:min_count=0", "int4:min_count=0"};

static void fill(struct sample *sample, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        grad_list[r] = grads[r];
        sample_fill(sample, SAMPLE_NORMAL, grads[r], COUNT);
    }
}

/* The sum of the outputs over steps plus the residual equals the sum of the inputs. */
static void test_nothing_is_lost(void **state)
{
    for (int c = 0; c < 2; c++)
        for (uint32_t ranks = 1; ranks <= 16; ranks += 5) {
            struct fleet fleet;
            struct sample sample = {sample_seed(51)};
            static double in_sum[COUNT], out_sum[COUNT];
            float residual[COUNT];
            memset(in_sum, 0, sizeof in_sum);
            memset(out_sum, 0, sizeof out_sum);
            fleet_open(&fleet, codecs[c], shape_of(COUNT, 0), ranks);
            for (int step = 0; step < STEPS; step++) {
                fill(&sample, ranks);
                fleet_step(&fleet, grad_list, 1.0f, out);
                fleet_commit(&fleet);
                for (size_t i = 0; i < COUNT; i++) {
                    out_sum[i] += (double)out[i];
                    for (uint32_t r = 0; r < ranks; r++)
                        in_sum[i] += (double)grads[r][i];
                }
            }
            for (uint32_t r = 0; r < ranks; r++) {
                fleet_residual(&fleet, r, residual);
                for (size_t i = 0; i < COUNT; i++)
                    out_sum[i] += (double)residual[i];
            }
            for (size_t i = 0; i < COUNT; i++)
                assert_true(fabs(out_sum[i] - in_sum[i]) < 1e-4 * ranks);
            fleet_close(&fleet);
        }
}

/* The error of one step is at most one unit per worker, and a unit is the shared exponent's. */
static void test_error_is_bounded(void **state)
{
    for (int c = 0; c < 2; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(52)};
        const uint32_t ranks = 4;
        fill(&sample, ranks);
        fleet_open(&fleet, codecs[c], shape_of(COUNT, 0), ranks);
        fleet_step(&fleet, grad_list, 1.0f, out);
        for (size_t block = 0; block < COUNT; block += WEFT_BLOCK) {
            const size_t end = block + WEFT_BLOCK < COUNT ? block + WEFT_BLOCK : COUNT;
            double max = 0;
            for (uint32_t r = 0; r < ranks; r++)
                for (size_t i = block; i < end; i++)
                    max = fmax(max, fabs((double)grads[r][i]));
            /* the power of two is at most twice the exact scale */
            const double unit = 2 * max / (c == 0 ? 127 : 7);
            for (size_t i = block; i < end; i++) {
                double exact = 0;
                for (uint32_t r = 0; r < ranks; r++)
                    exact += (double)grads[r][i];
                assert_true(fabs((double)out[i] - exact) <= unit * ranks * 1.01);
            }
        }
        fleet_close(&fleet);
    }
}

/* Equal gradients on all workers. Each draws for itself, so the errors of the sum are as of independent
 * draws, sqrt(RANKS) times one worker's; equal draws add up, RANKS times. Another tensor draws
 * differently, too, and a retry does not. */
static void test_streams(void **state)
{
    enum { RANKS = 8 };
    for (int c = 0; c < 2; c++) {
        double error[2] = {0};
        static float last[2][COUNT];
        for (int own = 0; own < 2; own++) {
            struct fleet fleet;
            struct sample sample = {sample_seed(53)};
            fill(&sample, 1);
            fleet_open(&fleet, codecs[c], shape_of(COUNT, 0), RANKS);
            for (uint32_t r = 0; r < RANKS; r++) {
                grad_list[r] = grads[0];
                assert_int_equal(weft_codec_set_stream(fleet.codecs[r], 77, own ? r : 0), WEFT_OK);
            }
            fleet_step(&fleet, grad_list, 1.0f / RANKS, out);
            assert_int_equal(weft_codec_set_stream(fleet.codecs[0], 77, 1), WEFT_ERR_STATE);
            for (size_t i = 0; i < COUNT; i++)
                error[own] += ((double)out[i] - (double)grads[0][i]) * ((double)out[i] - (double)grads[0][i]);
            for (uint64_t tensor = 77; own && tensor <= 78; tensor++) { /* again, and of another tensor */
                for (uint32_t r = 0; r < RANKS; r++) {
                    weft_codec_abandon(fleet.codecs[r]);
                    assert_int_equal(weft_codec_set_stream(fleet.codecs[r], tensor, r), WEFT_OK);
                }
                fleet_step(&fleet, grad_list, 1.0f / RANKS, last[tensor - 77]);
            }
            if (own) assert_memory_equal(last[0], out, sizeof out);
            if (own) assert_memory_not_equal(last[1], out, sizeof out);
            fleet_close(&fleet);
        }
        assert_true(error[1] < 1.5 / RANKS * error[0] && error[1] > 0.6 / RANKS * error[0]);
    }
}

/* Rank counts on both sides of each width of a sum, with codes at the limit: the aggregate is exact and is
 * taken. */
static void test_widths(void **state)
{
    static const struct {
        const char *codec;
        uint32_t ranks;
        size_t width;
    } cases[] = {{"int8:min_count=0", 1, 1},    {"int8:min_count=0", 2, 2},   {"int8:min_count=0", 258, 2},
                 {"int8:min_count=0", 259, 4},  {"int4:min_count=0", 18, 1},  {"int4:min_count=0", 19, 2},
                 {"int4:min_count=0", 4681, 2}, {"int4:min_count=0", 4682, 4}};
    for (size_t t = 0; t < sizeof cases / sizeof cases[0]; t++) {
        enum { ELEMS = 5 };
        const struct weft_codec_spec spec = spec_of(cases[t].codec);
        const struct weft_shape shape = shape_of(ELEMS, 0);
        const float grad[ELEMS] = {1, -1, 0, 1, -1};
        const float limit = spec.id == WEFT_CODEC_INT8 ? 127 : 7;
        struct weft_codec *codec;
        struct weft_combiner *combiner;
        uint8_t contribution[ELEMS];
        size_t bytes;
        const void *aggregate;
        float result[ELEMS], scaled[ELEMS];
        assert_int_equal(weft_codec_create(weft_env_system(), &spec, &shape, &codec), WEFT_OK);
        assert_int_equal(weft_combiner_create(weft_env_system(), &spec, &shape, cases[t].ranks, &combiner),
                         WEFT_OK);
        for (size_t i = 0; i < ELEMS; i++)
            scaled[i] = grad[i] * limit; /* unit 1, every code at the limit */
        for (uint32_t round = 0; round < 2; round++) {
            assert_int_equal(weft_codec_encode(codec, round, scaled, 1, contribution, &bytes), WEFT_OK);
            weft_combiner_begin(combiner, round);
            for (uint32_t r = 0; r < cases[t].ranks; r++)
                assert_int_equal(weft_combiner_add(combiner, contribution, bytes), WEFT_OK);
            assert_int_equal(weft_combiner_close(combiner, &aggregate, &bytes), WEFT_OK);
            assert_int_equal(weft_codec_take(codec, round, aggregate, bytes, cases[t].ranks), WEFT_OK);
        }
        assert_int_equal(bytes, ELEMS * cases[t].width);
        assert_int_equal(weft_codec_finish(codec, 1, result), WEFT_OK);
        for (size_t i = 0; i < ELEMS; i++)
            assert_true(result[i] == scaled[i] * (float)cases[t].ranks);
        weft_codec_free(codec);
        weft_combiner_free(combiner);
    }
}

static void test_bad_bytes(void **state)
{
    enum { ELEMS = 301, BLOCKS = 2 };
    for (int c = 0; c < 2; c++) {
        struct lone lone;
        lone_open(&lone, codecs[c], ELEMS, 2, 53);
        struct weft_codec *const codec = lone.codec;
        struct weft_combiner *const combiner = lone.combiner;
        uint8_t *const good = lone.good, bytes[2 * ELEMS];
        size_t length = lone.bytes;
        const void *aggregate;
        assert_int_equal(length, BLOCKS);
        memcpy(bytes, good, length);
        bytes[1] = 248;
        assert_int_equal(weft_combiner_add(combiner, bytes, length), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_codec_take(codec, 0, bytes, length, 2), WEFT_ERR_MALFORMED);
        bytes[1] = (uint8_t)(good[1] - 1); /* would clip what we send */
        assert_int_equal(weft_codec_take(codec, 0, bytes, length, 2), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, good, length - 1), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_codec_take(codec, 0, good, length + 1, 2), WEFT_ERR_MALFORMED);
        for (int r = 0; r < 2; r++)
            assert_int_equal(weft_combiner_add(combiner, good, length), WEFT_OK);
        assert_int_equal(weft_combiner_close(combiner, &aggregate, &length), WEFT_OK);
        assert_int_equal(weft_codec_take(codec, 0, aggregate, length, 2), WEFT_OK);

        assert_int_equal(weft_codec_encode(codec, 1, NULL, 1, good, &length), WEFT_OK);
        weft_combiner_begin(combiner, 1);
        memcpy(bytes, good, length);
        bytes[3] = c == 0 ? 0x80 : 0x08; /* -128, -8 */
        assert_int_equal(weft_combiner_add(combiner, bytes, length), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, good, length - 1), WEFT_ERR_MALFORMED);
        if (c == 1) {
            memcpy(bytes, good, length);
            bytes[length - 1] |= 0x10; /* the half that no element owns */
            assert_int_equal(weft_combiner_add(combiner, bytes, length), WEFT_ERR_MALFORMED);
        }
        for (int r = 0; r < 2; r++)
            assert_int_equal(weft_combiner_add(combiner, good, length), WEFT_OK);
        assert_int_equal(weft_combiner_close(combiner, &aggregate, &length), WEFT_OK);
        memcpy(bytes, aggregate, length);
        if (c == 0) bytes[0] = 0xff, bytes[1] = 0x7f; /* 32767 from two workers of at most 127 */
        else bytes[0] = 15;
        assert_int_equal(weft_codec_take(codec, 1, bytes, length, 2), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_codec_take(codec, 1, aggregate, length - 1, 2), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_codec_take(codec, 1, aggregate, length, 2), WEFT_OK);
        lone_close(&lone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams), cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_error_is_bounded),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_bad_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
