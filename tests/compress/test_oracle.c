/* test_oracle.c - every codec, one step from a known state, against its equations in double. The
 * contribution of a worker is a value that the code can represent: the nearest, or one of the two nearest.
 * The result is the sum of the contributions. Written from compress.h alone; shares no arithmetic with the
 * module. */
#include "tests/compress/compress_fixture.h"

enum { ROWS = 59, COLS = 17, COUNT = ROWS * COLS, BLOCK = 256 };
static float grads[FLEET_MAX][COUNT], before[FLEET_MAX][COUNT], after[FLEET_MAX][COUNT], out[COUNT];
static const float *grad_list[FLEET_MAX];

static const char *const codecs[] = {"powersgd:rank=2,min_ratio=1",
                                     "powersgd:rank=3,iterations=2,min_ratio=1",
                                     "topk:ratio=0.05,min_count=0",
                                     "topk:ratio=0.05,min_count=0,global=1",
                                     "int8:min_count=0",
                                     "int4:min_count=0",
                                     "e4m3:min_count=0",
                                     "e5m2:min_count=0",
                                     "sign:min_count=0",
                                     "randomk:ratio=0.1,min_count=0"};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

static size_t block_end(size_t block)
{
    return block + BLOCK < COUNT ? block + BLOCK : COUNT;
}

/* What worker r gives away of p = g + e: p - e'. */
static double p_of(uint32_t r, size_t i)
{
    return (double)(grads[r][i] + before[r][i]); /* one f32 addition is what compress.h promises */
}

static double given_of(uint32_t r, size_t i)
{
    return p_of(r, i) - (double)after[r][i];
}

static double largest_of(uint32_t r, size_t block)
{
    double largest = 0;
    for (size_t i = block; i < block_end(block); i++)
        largest = fmax(largest, fabs(p_of(r, i)));
    return largest;
}

/* The smallest power of two under which `largest` is at most `limit`, from 2^-126 up (an all-zero block:
 * any). */
static double scale_for(double largest, double limit)
{
    double scale = 0x1p-126;
    while (largest > limit * scale)
        scale *= 2;
    return scale;
}

static void check_integers(uint32_t ranks, double limit)
{
    for (size_t block = 0; block < COUNT; block += BLOCK) {
        double shared = 0;
        for (uint32_t r = 0; r < ranks; r++)
            shared = fmax(shared, scale_for(largest_of(r, block), limit));
        for (uint32_t r = 0; r < ranks; r++)
            for (size_t i = block; i < block_end(block); i++) {
                const double code = given_of(r, i) / shared, exact = p_of(r, i) / shared;
                if (fabs(exact) >= 0x1p-20) /* else the residual's rounding hides the code */
                    assert_true(fabs(code - nearbyint(code)) < 1e-5 && fabs(nearbyint(code)) <= limit);
                assert_true(fabs(code - exact) <= 1.0 + 1e-6); /* the one below or the one above */
            }
    }
}

static void check_fp8(uint32_t ranks, double largest_code, int mantissa_bits, int least_exponent)
{
    for (uint32_t r = 0; r < ranks; r++)
        for (size_t block = 0; block < COUNT; block += BLOCK) {
            const double scale = scale_for(largest_of(r, block), largest_code);
            for (size_t i = block; i < block_end(block); i++) {
                const double x = fabs(p_of(r, i)) / scale, code = fabs(given_of(r, i)) / scale;
                const int exponent = x > 0 && ilogb(x) > least_exponent ? ilogb(x) : least_exponent;
                const double step = ldexp(1.0, exponent - mantissa_bits);
                assert_true(fabs(code - x) <= step / 2 * (1 + 1e-6));               /* nearest */
                assert_true(fabs(code / step - nearbyint(code / step)) < 1e-4);     /* and expressible */
            }
        }
}

/* Also the contraction: what is left is |p|^2 - (mean |p|)^2 n, never more than |p|^2. */
static void check_signs(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        for (size_t block = 0; block < COUNT; block += BLOCK) {
            const double n = (double)(block_end(block) - block);
            double mean = 0, square = 0, left = 0;
            for (size_t i = block; i < block_end(block); i++) {
                mean += fabs(p_of(r, i)) / n;
                square += p_of(r, i) * p_of(r, i);
                left += (double)after[r][i] * (double)after[r][i];
            }
            for (size_t i = block; i < block_end(block); i++)
                assert_true(fabs(given_of(r, i) - (p_of(r, i) < 0 ? -mean : mean)) <=
                            1e-6 * fmax(mean, fabs(p_of(r, i))) + 0x1p-148);
            assert_true(left <= (square - mean * mean * n) * (1 + 1e-5) + 1e-5 * square);
        }
}

/* Values move whole or stay whole; k of them. The largest: what is left is at most (1 - k/n) |p|^2. */
static void check_moved(uint32_t ranks, size_t k, bool largest)
{
    for (uint32_t r = 0; r < ranks; r++) {
        size_t moved = 0;
        double least_moved = INFINITY, most_kept = 0, square = 0, left = 0;
        for (size_t i = 0; i < COUNT; i++) {
            const bool zero = after[r][i] == 0.0f;
            assert_true(zero || given_of(r, i) == 0.0);
            square += p_of(r, i) * p_of(r, i);
            left += (double)after[r][i] * (double)after[r][i];
            if (p_of(r, i) == 0.0) continue;
            moved += zero;
            if (zero) least_moved = fmin(least_moved, fabs(p_of(r, i)));
            else most_kept = fmax(most_kept, fabs(p_of(r, i)));
        }
        assert_true(moved <= k);
        if (largest)
            assert_true(least_moved >= most_kept && left <= (1 - (double)k / COUNT) * square * (1 + 1e-12));
    }
}

static bool rounds_sum(const struct fleet *fleet)
{
    return fleet->spec.id == WEFT_CODEC_SIGN || fleet->spec.id == WEFT_CODEC_E4M3 ||
           fleet->spec.id == WEFT_CODEC_E5M2;
}

static void check_step(const struct fleet *fleet)
{
    const size_t k = (size_t)ceil(COUNT * fleet->spec.ratio);
    switch (fleet->spec.id) {
    case WEFT_CODEC_INT8: check_integers(fleet->ranks, 127); break;
    case WEFT_CODEC_INT4: check_integers(fleet->ranks, 7); break;
    case WEFT_CODEC_E4M3: check_fp8(fleet->ranks, 448, 3, -6); break;
    case WEFT_CODEC_E5M2: check_fp8(fleet->ranks, 57344, 2, -14); break;
    case WEFT_CODEC_SIGN: check_signs(fleet->ranks); break;
    case WEFT_CODEC_TOPK: check_moved(fleet->ranks, k, true); break;
    case WEFT_CODEC_RANDOMK: check_moved(fleet->ranks, k, false); break;
    default: break; /* powersgd: test_powersgd.c follows it step by step */
    }
    if (fleet->spec.global) return; /* the combiner selects the result: test_topk.c */
    for (size_t i = 0; i < COUNT; i++) {
        double sum = 0, size = 0;
        for (uint32_t r = 0; r < fleet->ranks; r++) {
            sum += given_of(r, i);
            size += fabs(p_of(r, i)) + fabs((double)after[r][i]);
        }
        if (fleet->spec.id == WEFT_CODEC_POWERSGD) size += 50; /* sums of products over the whole matrix */
        assert_true(fabs((double)out[i] - sum) <=
                    2e-6 * size + (rounds_sum(fleet) ? 0x1p-8 * fabs(sum) : 0) + 1e-37);
    }
}

/* Gradients with what breaks block codecs among them: a block of zeros, a single value, denormals, and
 * large ones. */
static void fill(struct sample *sample, uint32_t ranks, bool hard)
{
    for (uint32_t r = 0; r < ranks; r++) {
        grad_list[r] = grads[r];
        sample_fill(sample, SAMPLE_NORMAL, grads[r], COUNT);
        for (size_t i = 0; hard && i < COUNT; i++) {
            if (i / BLOCK == 0) grads[r][i] = 0;
            else if (i / BLOCK == 1) grads[r][i] = i % BLOCK == r ? 3.0f : 0.0f;
            else if (i / BLOCK == 2) grads[r][i] *= 1e-41f;
            else grads[r][i] *= 1e18f;
        }
    }
}

static void test_every_codec(void **state)
{
    static const uint32_t fleets[] = {1, 2, 3, 8};
    for (int c = 0; c < CODECS; c++)
        for (size_t f = 0; f < 4; f++) {
            struct fleet fleet;
            struct sample sample = {sample_seed(101 + f)};
            const uint32_t ranks = fleets[f];
            fleet_open(&fleet, codecs[c], shape_of(ROWS, COLS), ranks);
            for (int step = 0; step < 10; step++) {
                const bool hard = step < 3 && fleet.spec.id != WEFT_CODEC_POWERSGD;
                fill(&sample, ranks, hard);
                for (uint32_t r = 0; r < ranks; r++)
                    fleet_residual(&fleet, r, before[r]);
                fleet_step(&fleet, grad_list, 1.0f, out);
                fleet_commit(&fleet);
                for (uint32_t r = 0; r < ranks; r++)
                    fleet_residual(&fleet, r, after[r]);
                check_step(&fleet);
            }
            fleet_close(&fleet);
        }
}

/* The same gradient again and again: the mean of the outputs approaches it. The residual grows far more
 * slowly than the number of steps (four times the steps: less than twice the residual, for most none). */
static void test_fixed_gradient(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(105)};
        static double sum[COUNT];
        double at[2] = {0};
        memset(sum, 0, sizeof sum);
        fleet_open(&fleet, codecs[c], shape_of(ROWS, COLS), 2);
        fill(&sample, 2, false);
        for (int step = 1; step <= 320; step++) {
            fleet_step(&fleet, grad_list, 1.0f, out);
            fleet_commit(&fleet);
            double error = 0;
            for (size_t i = 0; i < COUNT; i++) {
                sum[i] += (double)out[i];
                const double wanted = (double)step * ((double)grads[0][i] + (double)grads[1][i]);
                error += (sum[i] - wanted) * (sum[i] - wanted);
            }
            error = sqrt(error);
            /* the rounding to bf16 is in no residual; the workers' residuals are bounded too */
            if (rounds_sum(&fleet))
                error = weft_codec_residual_norm(fleet.codecs[0]) + weft_codec_residual_norm(fleet.codecs[1]);
            if (step == 80) at[0] = error;
            if (step == 320) at[1] = error;
        }
        if (at[1] > 2 * at[0] + 0.05)
            fail_msg("%s: residual %g after 80 steps, %g after 320", codecs[c], at[0], at[1]);
        fleet_close(&fleet);
    }
}

/* Noise alone, ten thousand steps: the residual is flat. Whatever grew like the square root of the
 * steps would be three times as much. */
static void test_noise_for_long(void **state)
{
    enum { HIGH = 16, WIDE = 13, STEPS = 10000, SPAN = 1000 };
    for (int c = 0; c < CODECS; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(110)};
        double early = 0, late = 0;
        fleet_open(&fleet, codecs[c], shape_of(HIGH, WIDE), 2);
        assert_int_not_equal(fleet.spec.id, WEFT_CODEC_DENSE);
        for (int step = 0; step < STEPS; step++) {
            for (uint32_t r = 0; r < 2; r++) {
                grad_list[r] = grads[r];
                sample_fill(&sample, SAMPLE_NORMAL, grads[r], HIGH * WIDE);
            }
            fleet_step(&fleet, grad_list, 0.5f, out);
            fleet_commit(&fleet);
            const bool begins = step >= SPAN / 2 && step < SPAN + SPAN / 2, ends = step >= STEPS - SPAN;
            if (!begins && !ends) continue;
            const double norm = weft_codec_residual_norm(fleet.codecs[0]);
            early += begins ? norm : 0;
            late += ends ? norm : 0;
        }
        if (!(early > 0 && late < 1.2 * early))
            fail_msg("%s: residual %g, later %g", codecs[c], early / SPAN, late / SPAN);
        fleet_close(&fleet);
    }
}

/* Coding what a code means gives the code again: nothing is left (codes whose rounding is to the nearest). */
static void test_idempotent(void **state)
{
    static const char *const texts[] = {"e4m3:min_count=0", "e5m2:min_count=0", "sign:min_count=0"};
    for (int t = 0; t < 3; t++) {
        struct fleet first, again;
        struct sample sample = {sample_seed(106)};
        fill(&sample, 1, false);
        memset(before[0], 0, sizeof before[0]);
        fleet_open(&first, texts[t], shape_of(ROWS, COLS), 1);
        fleet_open(&again, texts[t], shape_of(ROWS, COLS), 1);
        fleet_step(&first, grad_list, 1.0f, out);
        fleet_commit(&first);
        fleet_residual(&first, 0, after[0]);
        for (size_t i = 0; i < COUNT; i++)
            grads[0][i] = (float)given_of(0, i);
        fleet_step(&again, grad_list, 1.0f, out);
        fleet_commit(&again);
        fleet_residual(&again, 0, after[0]);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(fabs((double)after[0][i]) <= 2e-7 * fabs((double)grads[0][i]));
        fleet_close(&first);
        fleet_close(&again);
    }
}

/* Integers add up to the same bytes in any order of the workers. */
static void test_order_of_integers(void **state)
{
    static const uint32_t orders[][5] = {{4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}, {1, 2, 3, 4, 0}};
    for (int c = 4; c <= 5; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(107)};
        const void *data;
        size_t bytes;
        fill(&sample, 5, false);
        fleet_open(&fleet, codecs[c], shape_of(ROWS, COLS), 5);
        for (uint32_t round = 0; round < 2; round++) {
            fleet_encode(&fleet, round, round == 0 ? grad_list : NULL);
            fleet_combine(&fleet, round);
            for (size_t o = 0; o < 3; o++) {
                weft_combiner_begin(fleet.combiner, round);
                for (uint32_t r = 0; r < 5; r++)
                    assert_int_equal(weft_combiner_add(fleet.combiner, fleet.contributions[orders[o][r]],
                                                       fleet.contribution_bytes[orders[o][r]]), WEFT_OK);
                assert_int_equal(weft_combiner_close(fleet.combiner, &data, &bytes), WEFT_OK);
                assert_int_equal(bytes, fleet.aggregate_bytes);
                assert_memory_equal(data, fleet.aggregate, bytes);
            }
            fleet_take(&fleet, round);
        }
        fleet_close(&fleet);
    }
}

/* Without ties, top-k of a permuted gradient is the permuted top-k. */
static void test_permutation(void **state)
{
    struct fleet plain, moved;
    struct sample sample = {sample_seed(108)};
    static float other[COUNT], back[COUNT];
    fleet_open(&plain, "topk:ratio=0.07,min_count=0", shape_of(COUNT, 0), 1);
    fleet_open(&moved, "topk:ratio=0.07,min_count=0", shape_of(COUNT, 0), 1);
    for (int step = 0; step < 5; step++) {
        fill(&sample, 1, false);
        fleet_step(&plain, grad_list, 1.0f, out);
        for (size_t i = 0; i < COUNT; i++)
            back[i * 401 % COUNT] = grads[0][i]; /* 401 and 1003 have no common factor */
        memcpy(grads[0], back, sizeof back);
        fleet_step(&moved, grad_list, 1.0f, other);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(other[i * 401 % COUNT] == out[i]);
        fleet_commit(&plain);
        fleet_commit(&moved);
    }
    fleet_close(&plain);
    fleet_close(&moved);
}

/* ---- training ---- */

enum { CLASSES = ROWS, FEATURES = COLS, WORKERS = 4, EXAMPLES = 60 };
static float features[WORKERS][EXAMPLES][FEATURES];
static int labels[WORKERS][EXAMPLES];

/* Softmax regression: mean loss over all workers' examples, and each worker's gradient. */
static double losses(const double *weights)
{
    double loss = 0;
    for (uint32_t w = 0; w < WORKERS; w++) {
        static double gradient[COUNT];
        memset(gradient, 0, sizeof gradient);
        for (int x = 0; x < EXAMPLES; x++) {
            double logits[CLASSES], sum = 0;
            for (int c = 0; c < CLASSES; c++) {
                logits[c] = 0;
                for (int f = 0; f < FEATURES; f++)
                    logits[c] += weights[c * FEATURES + f] * (double)features[w][x][f];
                sum += exp(logits[c]);
            }
            loss += (log(sum) - logits[labels[w][x]]) / (WORKERS * EXAMPLES);
            for (int c = 0; c < CLASSES; c++)
                for (int f = 0; f < FEATURES; f++)
                    gradient[c * FEATURES + f] +=
                        (exp(logits[c]) / sum - (c == labels[w][x])) * (double)features[w][x][f] / EXAMPLES;
        }
        for (size_t i = 0; i < COUNT; i++)
            grads[w][i] = (float)gradient[i];
    }
    return loss;
}

static double curvature[COUNT];
static float optimum[WORKERS][COUNT];

/* A quadratic bowl whose sides are up to ten times as steep as others, with another bottom for each
 * worker. */
static double bowl(const double *weights)
{
    double loss = 0;
    for (uint32_t w = 0; w < WORKERS; w++)
        for (size_t i = 0; i < COUNT; i++) {
            const double off = weights[i] - (double)optimum[w][i];
            loss += curvature[i] * off * off / (2 * WORKERS);
            grads[w][i] = (float)(curvature[i] * off);
        }
    return loss;
}

static double train(const char *codec, int steps, double (*losses_of)(const double *weights))
{
    static double weights[COUNT];
    struct fleet fleet;
    double loss = 0;
    memset(weights, 0, sizeof weights);
    fleet_open(&fleet, codec, shape_of(ROWS, COLS), WORKERS);
    for (int step = 0; step < steps; step++) {
        loss = losses_of(weights);
        fleet_step(&fleet, grad_list, 1.0f / WORKERS, out);
        fleet_commit(&fleet);
        for (size_t i = 0; i < COUNT; i++)
            weights[i] -= 1.0 * (double)out[i];
    }
    fleet_close(&fleet);
    return loss;
}

/* A convex problem on which the workers disagree: every codec is where dense is after at most half as many
 * steps more. */
static void test_logistic_regression(void **state)
{
    enum { STEPS = 24 };
    struct sample sample = {sample_seed(109)};
    static float centres[CLASSES][FEATURES];
    for (int c = 0; c < CLASSES; c++)
        sample_fill(&sample, SAMPLE_NORMAL, centres[c], FEATURES);
    for (uint32_t w = 0; w < WORKERS; w++) {
        grad_list[w] = grads[w];
        for (int x = 0; x < EXAMPLES; x++) {
            labels[w][x] = (int)(sample_below(&sample, CLASSES / 2) + w * CLASSES / 8);
            for (int f = 0; f < FEATURES; f++)
                features[w][x][f] = 0.5f * centres[labels[w][x]][f] + 0.2f * sample_normal(&sample);
        }
    }
    const double dense = train("dense", STEPS, losses), nothing = train("dense", 1, losses);
    assert_true(dense < 0.6 * nothing);
    for (int c = 0; c < CODECS; c++) {
        const double loss = train(codecs[c], STEPS * 3 / 2, losses);
        if (!(loss < 1.01 * dense))
            fail_msg("%s: loss %g, dense %g with two thirds of the steps, %g at the start", codecs[c], loss,
                     dense, nothing);
    }
}

/* The same on the bowl. What sends a tenth of a tensor waits ten steps with an element: it gets as many
 * small steps as that. */
static void test_quadratic(void **state)
{
    enum { STEPS = 400 };
    struct sample sample = {sample_seed(111)};
    for (size_t i = 0; i < COUNT; i++) {
        curvature[i] = 0.005 + 0.045 * (double)sample_below(&sample, 1000) / 1000;
        const float middle = sample_normal(&sample);
        for (uint32_t w = 0; w < WORKERS; w++)
            optimum[w][i] = middle + 0.3f * sample_normal(&sample);
    }
    for (uint32_t w = 0; w < WORKERS; w++)
        grad_list[w] = grads[w];
    const double dense = train("dense", STEPS, bowl), nothing = train("dense", 1, bowl);
    assert_true(dense < 0.2 * nothing);
    for (int c = 0; c < CODECS; c++) {
        const double loss = train(codecs[c], STEPS * 3 / 2, bowl);
        if (!(loss < 1.01 * dense))
            fail_msg("%s: loss %g, dense %g with two thirds of the steps, %g at the start", codecs[c], loss,
                     dense, nothing);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_codec),    cmocka_unit_test(test_fixed_gradient),
        cmocka_unit_test(test_idempotent),     cmocka_unit_test(test_order_of_integers),
        cmocka_unit_test(test_permutation),    cmocka_unit_test(test_logistic_regression),
        cmocka_unit_test(test_noise_for_long), cmocka_unit_test(test_quadratic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
