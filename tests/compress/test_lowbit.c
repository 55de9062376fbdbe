/* test_lowbit.c - sign, e4m3, e5m2 and randomk through workers and combiner: nothing is lost over many
 * steps, feedback makes up for crude codes, draws cover the tensor, and no byte of a peer gets further
 * than a check. */
#include "compress/lowbit.h"
#include "compress/randomk.h"
#include "tests/compress/compress_fixture.h"

enum { COUNT = 1000, STEPS = 60 };
static float grads[FLEET_MAX][COUNT], out[COUNT];
static const float *grad_list[FLEET_MAX];
static const char *const codecs[] = {"sign:min_count=0", "e4m3:min_count=0", "e5m2:min_count=0",
                                     "randomk:ratio=0.1,min_count=0"};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

static void fill(struct sample *sample, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        grad_list[r] = grads[r];
        sample_fill(sample, SAMPLE_NORMAL, grads[r], COUNT);
    }
}

/* The sum of the outputs over steps plus the residual equals the sum of the inputs, up to the bf16
 * rounding of each step's aggregate, which is not fed back. */
static void test_nothing_is_lost(void **state)
{
    for (int c = 0; c < CODECS; c++)
        for (uint32_t ranks = 1; ranks <= 11; ranks += 5) {
            struct fleet fleet;
            struct sample sample = {sample_seed(61)};
            static double in_sum[COUNT], out_sum[COUNT], rounding[COUNT];
            float residual[COUNT];
            memset(in_sum, 0, sizeof in_sum);
            memset(out_sum, 0, sizeof out_sum);
            memset(rounding, 0, sizeof rounding);
            fleet_open(&fleet, codecs[c], shape_of(COUNT, 0), ranks);
            for (int step = 0; step < STEPS; step++) {
                fill(&sample, ranks);
                fleet_step(&fleet, grad_list, 1.0f, out);
                fleet_commit(&fleet);
                for (size_t i = 0; i < COUNT; i++) {
                    out_sum[i] += (double)out[i];
                    if (c < 3) rounding[i] += fabs((double)out[i]) * 0x1p-8;
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
                assert_true(fabs(out_sum[i] - in_sum[i]) < 1e-3 * ranks + rounding[i]);
            fleet_close(&fleet);
        }
}

/* The residual is bounded: after ten times as many steps it is at most twice as large. */
static void test_residual_is_bounded(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(62)};
        double early = 0, late = 0;
        fleet_open(&fleet, codecs[c], shape_of(COUNT, 0), 2);
        for (int step = 0; step < 1200; step++) {
            fill(&sample, 2);
            fleet_step(&fleet, grad_list, 0.5f, out);
            fleet_commit(&fleet);
            if (step >= 100 && step < 120) early += weft_codec_residual_norm(fleet.codecs[0]);
            if (step >= 1180) late += weft_codec_residual_norm(fleet.codecs[0]);
        }
        assert_true(early > 0 && late < 2 * early);
        fleet_close(&fleet);
    }
}

/* One of each stratum, rising, the same for the same step, others for another; over many steps every
 * element is drawn. */
static void test_draws(void **state)
{
    enum { N = 103, K = 10 };
    uint32_t indices[K], again[K], hits[N] = {0};
    for (uint64_t step = 0; step < 4000; step++) {
        randomk_indices(indices, N, K, 7, step);
        randomk_indices(again, N, K, 7, step);
        assert_memory_equal(indices, again, sizeof indices);
        for (uint64_t j = 0; j < K; j++) {
            assert_in_range(indices[j], j * N / K, (j + 1) * N / K - 1);
            hits[indices[j]]++;
        }
    }
    for (size_t i = 0; i < N; i++)
        assert_in_range(hits[i], 250, 550); /* about 4000 / 10 */
    randomk_indices(indices, N, K, 7, 1);
    randomk_indices(again, N, K, 8, 1);
    assert_memory_not_equal(indices, again, sizeof indices);
    randomk_indices(indices, K, K, 7, 1); /* k = n: all of them */
    for (uint32_t j = 0; j < K; j++)
        assert_int_equal(indices[j], j);
    randomk_indices(indices, UINT32_MAX, 2, 7, 1);
    assert_true(indices[0] < UINT32_MAX / 2 && indices[1] >= UINT32_MAX / 2);
}

/* Against five lines of arithmetic: what was not drawn fades by `feedback` a step, what was drawn is sent
 * and forgotten. */
static void test_feedback_fades(void **state)
{
    static float residual[COUNT];
    uint32_t indices[COUNT / 5 + 1];
    struct fleet fleet;
    struct sample sample = {sample_seed(64)};
    memset(residual, 0, sizeof residual);
    fleet_open(&fleet, "randomk:ratio=0.2,feedback=0.75,min_count=0,seed=3", shape_of(COUNT, 0), 1);
    const size_t k = (COUNT + 4) / 5;
    for (uint64_t step = 0; step < 40; step++) {
        static float expected[COUNT];
        memset(expected, 0, sizeof expected);
        fill(&sample, 1);
        fleet_step(&fleet, grad_list, 1.0f, out);
        fleet_commit(&fleet);
        randomk_indices(indices, COUNT, k, 3, step);
        for (size_t i = 0; i < COUNT; i++) {
            const float faded = residual[i] * 0.75f;
            residual[i] = grad_list[0][i] + faded;
        }
        for (size_t j = 0; j < k; j++) {
            expected[indices[j]] = residual[indices[j]];
            residual[indices[j]] = 0.0f;
        }
        assert_memory_equal(out, expected, sizeof expected);
    }
    fleet_close(&fleet);
}

/* One of two workers is new and begins at step 0, the other is at 7: both draw by 7, and from then on
 * count equally. */
static void test_a_late_worker_draws_the_same_signs(void **state)
{
    struct fleet fleet;
    struct weft_codec *fresh;
    struct sample sample = {sample_seed(63)};
    uint64_t steps[2];
    fleet_open(&fleet, codecs[3], shape_of(COUNT, 0), 2);
    for (int step = 0; step < 7; step++) {
        fill(&sample, 2);
        fleet_step(&fleet, grad_list, 1.0f, out);
        fleet_commit(&fleet);
    }
    assert_int_equal(weft_codec_create(&fleet.memory.env, &fleet.spec, &fleet.shape, &fresh), WEFT_OK);
    weft_codec_free(fleet.codecs[1]);
    fleet.codecs[1] = fresh;
    fill(&sample, 2);
    fleet_step(&fleet, grad_list, 1.0f, out); /* also compares all ranks' results */
    fleet_commit(&fleet);
    fill(&sample, 2);
    fleet_encode(&fleet, 0, grad_list);
    for (uint32_t r = 0; r < 2; r++)
        memcpy(&steps[r], fleet.contributions[r], sizeof steps[r]);
    assert_true(steps[0] == 8 && steps[1] == 8);
    steps[0] = 7; /* smaller than ours: no honest maximum */
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, steps, 8, 2), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, &steps[1], 7, 2), WEFT_ERR_MALFORMED);
    for (uint32_t r = 0; r < 2; r++)
        weft_codec_abandon(fleet.codecs[r]);
    fleet_close(&fleet);
}

/* Every field of a contribution out of its range, one at a time. */
static void test_bad_bytes(void **state)
{
    enum { ELEMS = 301, BLOCKS = 2 };
    for (int c = 0; c < 3; c++) {
        struct lone lone;
        lone_open(&lone, codecs[c], ELEMS, 1, 64);
        struct weft_codec *const codec = lone.codec;
        struct weft_combiner *const combiner = lone.combiner;
        const uint8_t *const good = lone.good;
        uint8_t bytes[2 * ELEMS];
        size_t length = lone.bytes;
        const void *aggregate;
        assert_int_equal(length, lowbit_bytes(lone.spec.id, ELEMS));
        assert_int_equal(weft_combiner_add(combiner, good, length - 1), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, good, length + 1), WEFT_ERR_MALFORMED);
        static const uint32_t bad_means[] = {0x80000000u, 0xbf800000u, 0x7fc00000u, 0x7f800000u, 0x7b800000u};
        static const uint8_t bad_codes[][4] = {{0}, {0x7f, 0xff, 0x7f, 0xff}, {0x7c, 0x7d, 0xfe, 0xff}};
        for (size_t b = 0; b < (c == 0 ? 5u : 4u); b++) {
            memcpy(bytes, good, length);
            if (c == 0) memcpy(bytes + 4, &bad_means[b], 4);
            else bytes[BLOCKS + 17 * b] = bad_codes[c][b];
            assert_int_equal(weft_combiner_add(combiner, bytes, length), WEFT_ERR_MALFORMED);
        }
        memcpy(bytes, good, length);
        if (c == 0) bytes[length - 1] |= 0x80; /* padding: 301 % 8 = 5 */
        else bytes[1] = 248;
        assert_int_equal(weft_combiner_add(combiner, bytes, length), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, good, length), WEFT_OK);
        assert_int_equal(weft_combiner_close(combiner, &aggregate, &length), WEFT_OK);
        assert_int_equal(length, 2 * ELEMS);
        assert_int_equal(weft_codec_take(codec, 0, aggregate, length - 2, 1), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_codec_take(codec, 0, aggregate, length, 1), WEFT_OK);
        lone_close(&lone);
    }
}

/* Karimireddy et al. 2019, counterexample 3: signs of stochastic gradients ascend on average (one large
 * gradient of one sign, three small ones of the other); with error feedback they descend. Here: mean
 * gradient +1 from {+7, -1, -1, -1}; the outputs add up to the sum of the gradients; if the residual is
 * discarded after each step, to that of its signs. */
static void test_feedback_mends_signs(void **state)
{
    for (int forgets = 0; forgets < 2; forgets++) {
        struct fleet fleet;
        double moved = 0;
        fleet_open(&fleet, codecs[0], shape_of(COUNT, 0), 1);
        grad_list[0] = grads[0];
        for (int step = 0; step < 400; step++) {
            for (size_t i = 0; i < COUNT; i++)
                grads[0][i] = (step + i) % 4 == 0 ? 7.0f : -1.0f;
            fleet_step(&fleet, grad_list, 1.0f, out);
            if (forgets) weft_codec_abandon(fleet.codecs[0]);
            else fleet_commit(&fleet);
            moved += (double)out[0];
        }
        assert_true(forgets ? moved < -400 : moved > 0.9 * 400 && moved < 1.1 * 400);
        fleet_close(&fleet);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_residual_is_bounded),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_feedback_fades),
        cmocka_unit_test(test_a_late_worker_draws_the_same_signs),
        cmocka_unit_test(test_bad_bytes),
        cmocka_unit_test(test_feedback_mends_signs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
