/* test_powersgd.c - low-rank compression against f64 oracles: exact on low-rank matrices, a projection on
 * others, no NaN on deficient ones, a residual that stays bounded, and nothing lost over many steps. */
#include "tests/compress/compress_fixture.h"
#include "tests/compress/powersgd_reference.h"

enum { ROWS = 60, COLS = 45, COUNT = ROWS * COLS };
static float grads[FLEET_MAX][COUNT], out[COUNT];
static const float *grad_list[FLEET_MAX];

static void list_grads(void)
{
    for (uint32_t r = 0; r < FLEET_MAX; r++)
        grad_list[r] = grads[r];
}

static void fill(struct sample *sample, uint32_t ranks)
{
    list_grads();
    for (uint32_t r = 0; r < ranks; r++)
        sample_fill(sample, SAMPLE_NORMAL, grads[r], COUNT);
}

static void low_rank(struct sample *sample, size_t rank, float *into)
{
    float left[ROWS * 8], right[COLS * 8];
    sample_fill(sample, SAMPLE_NORMAL, left, ROWS * rank);
    sample_fill(sample, SAMPLE_NORMAL, right, COLS * rank);
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < COLS; j++) {
            double sum = 0;
            for (size_t r = 0; r < rank; r++)
                sum += (double)left[i * rank + r] * (double)right[j * rank + r];
            into[i * COLS + j] = (float)sum;
        }
}

static double norm(const float *a, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)a[i];
    return sqrt(sum);
}

static double distance(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* A matrix of rank 3, split over workers as parts that are not: the first step already reproduces the sum,
 * with the rank just enough or larger. */
static void test_exact_low_rank(void **state)
{
    static const char *const texts[] = {"powersgd:rank=3,min_ratio=1", "powersgd:rank=8,min_ratio=1"};
    static float sum[COUNT];
    struct sample sample = {sample_seed(51)};
    for (int t = 0; t < 2; t++)
        for (uint32_t ranks = 1; ranks <= 5; ranks += 2) {
            struct fleet fleet;
            low_rank(&sample, 3, sum);
            fill(&sample, ranks);
            for (size_t i = 0; i < COUNT; i++) { /* the last one is the rest */
                double rest = sum[i];
                for (uint32_t r = 0; r + 1 < ranks; r++)
                    rest -= (double)grads[r][i];
                grads[ranks - 1][i] = (float)rest;
            }
            fleet_open(&fleet, texts[t], shape_of(ROWS, COLS), ranks);
            fleet_step(&fleet, grad_list, 1.0f, out);
            assert_true(distance(out, sum, COUNT) < 3e-6 * norm(sum, COUNT));
            fleet_commit(&fleet);
            fleet_step(&fleet, grad_list, 1.0f, out); /* from a Q of which columns were drawn anew */
            for (size_t i = 0; i < COUNT; i++)
                assert_true(isfinite(out[i]));
            fleet_close(&fleet);
        }
}

/* Shapes of several bands of rows, and rows longer than a band: a matrix of rank 2 is returned unchanged. */
static void test_bands(void **state)
{
    static const uint64_t shapes[][2] = {{300, 70}, {257, 64}, {40, 9001}, {9001, 40}};
    struct sample sample = {sample_seed(68)};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s][0], cols = shapes[s][1], count = rows * cols;
        float *left = malloc(2 * rows * sizeof *left), *right = malloc(2 * cols * sizeof *right);
        float *grad = malloc(count * sizeof *grad), *result = malloc(count * sizeof *result);
        const float *list[1] = {grad};
        struct fleet fleet;
        sample_fill(&sample, SAMPLE_NORMAL, left, 2 * rows);
        sample_fill(&sample, SAMPLE_NORMAL, right, 2 * cols);
        for (size_t i = 0; i < count; i++)
            grad[i] = (float)((double)left[i / cols] * (double)right[i % cols]
                              + (double)left[rows + i / cols] * (double)right[cols + i % cols]);
        fleet_open(&fleet, "powersgd:rank=4", shape_of(rows, cols), 1);
        assert_int_equal(fleet.spec.id, WEFT_CODEC_POWERSGD);
        for (int step = 0; step < 2; step++) {
            fleet_step(&fleet, list, 1.0f, result);
            fleet_commit(&fleet);
            assert_true(distance(result, grad, count) < 3e-6 * norm(grad, count));
        }
        fleet_close(&fleet);
        free(left);
        free(right);
        free(grad);
        free(result);
    }
}

/* out is the projection of the sum on the span of P^ and the combined residual is orthogonal to it; its
 * length lies between the best possible (here: zero is not reached) and the whole. */
static void test_projection(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(52)};
    static float sum[COUNT], basis[ROWS * 4];
    fill(&sample, 3);
    fleet_open(&fleet, "powersgd:rank=4,min_ratio=1", shape_of(ROWS, COLS), 3);
    fleet_encode(&fleet, 0, grad_list);
    fleet_combine(&fleet, 0);
    memcpy(basis, fleet.aggregate, sizeof basis);
    fleet_take(&fleet, 0);
    fleet_encode(&fleet, 1, NULL);
    fleet_combine(&fleet, 1);
    fleet_take(&fleet, 1);
    assert_int_equal(weft_codec_finish(fleet.codecs[0], 1.0f, out), WEFT_OK);
    for (size_t i = 0; i < COUNT; i++)
        sum[i] = (float)((double)grads[0][i] + (double)grads[1][i] + (double)grads[2][i]);
    for (size_t j = 0; j < COLS; j++)
        for (size_t r = 0; r < 4; r++) {
            double along_out = 0, along_sum = 0;
            for (size_t i = 0; i < ROWS; i++) {
                along_out += (double)basis[r * ROWS + i] * (double)out[i * COLS + j];
                along_sum += (double)basis[r * ROWS + i] * (double)sum[i * COLS + j];
            }
            assert_true(fabs(along_out - along_sum) < 3e-5);
        }
    const double error = distance(out, sum, COUNT);
    assert_true(error < norm(sum, COUNT));
    assert_true(
        fabs(error * error + norm(out, COUNT) * norm(out, COUNT) - norm(sum, COUNT) * norm(sum, COUNT)) <
        1e-4 * norm(sum, COUNT) * norm(sum, COUNT)); /* Pythagoras: orthogonal */
    fleet_close(&fleet);
}

/* One step from known state against an f64 model: residual e = M - P^ Q_i^T of each worker, by its norm. */
static void test_local_residual(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(53)};
    static float basis[ROWS * 4], q[FLEET_MAX][COLS * 4];
    fill(&sample, 3);
    fleet_open(&fleet, "powersgd:rank=4,min_ratio=1", shape_of(ROWS, COLS), 3);
    fleet_encode(&fleet, 0, grad_list);
    fleet_combine(&fleet, 0);
    memcpy(basis, fleet.aggregate, sizeof basis);
    fleet_take(&fleet, 0);
    fleet_encode(&fleet, 1, NULL);
    for (int r = 0; r < 3; r++)
        memcpy(q[r], fleet.contributions[r], sizeof q[r]);
    fleet_combine(&fleet, 1);
    fleet_take(&fleet, 1);
    fleet_commit(&fleet);
    for (int w = 0; w < 3; w++) {
        double square = 0;
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < COLS; j++) {
                double e = grads[w][i * COLS + j];
                for (size_t r = 0; r < 4; r++)
                    e -= (double)basis[r * ROWS + i] * (double)q[w][r * COLS + j];
                square += e * e;
            }
        assert_true(fabs(weft_codec_residual_norm(fleet.codecs[w]) - sqrt(square)) < 1e-5 * sqrt(square));
    }
    fleet_close(&fleet);
}

/* Twenty steps against an f64 model that follows step by step with what was really sent (trajectories of
 * error feedback are chaotic, single steps are not): P_i = M Q with the warm-started Q, Q_i = M^T P^, and
 * the mean of local residuals equals the residual of the mean. */
static void test_steps_follow_the_model(void **state)
{
    enum { RANKS = 3, RANK = 4 };
    static double e[RANKS][COUNT], m[RANKS][COUNT], q[RANK][COLS];
    static float basis[RANK * ROWS], sent_q[RANKS][RANK * COLS];
    struct fleet fleet;
    struct sample sample = {sample_seed(66)};
    memset(e, 0, sizeof e);
    fleet_open(&fleet, "powersgd:rank=4,min_ratio=1", shape_of(ROWS, COLS), RANKS);
    for (int step = 0; step < 20; step++) {
        fill(&sample, RANKS);
        fleet_encode(&fleet, 0, grad_list);
        for (int w = 0; w < RANKS; w++) {
            const float *p = (const float *)(const void *)fleet.contributions[w];
            for (size_t i = 0; i < COUNT; i++)
                m[w][i] = (double)grads[w][i] + e[w][i];
            for (size_t r = 0; step > 0 && r < RANK; r++) /* the first Q is the generator's */
                for (size_t i = 0; i < ROWS; i++) {
                    double sum = 0, size = 0;
                    for (size_t j = 0; j < COLS; j++) {
                        sum += m[w][i * COLS + j] * q[r][j];
                        size += fabs(m[w][i * COLS + j] * q[r][j]);
                    }
                    assert_true(fabs((double)p[r * ROWS + i] - sum) < 1e-5 * size);
                }
        }
        fleet_combine(&fleet, 0);
        memcpy(basis, fleet.aggregate, sizeof basis);
        fleet_take(&fleet, 0);
        fleet_encode(&fleet, 1, NULL);
        for (int w = 0; w < RANKS; w++) {
            memcpy(sent_q[w], fleet.contributions[w], sizeof sent_q[w]);
            for (size_t r = 0; r < RANK; r++)
                for (size_t j = 0; j < COLS; j++) {
                    double sum = 0, size = 0;
                    for (size_t i = 0; i < ROWS; i++) {
                        sum += m[w][i * COLS + j] * (double)basis[r * ROWS + i];
                        size += fabs(m[w][i * COLS + j] * (double)basis[r * ROWS + i]);
                    }
                    assert_true(fabs((double)sent_q[w][r * COLS + j] - sum) < 1e-5 * size);
                }
            for (size_t i = 0; i < COUNT; i++) {
                e[w][i] = m[w][i];
                for (size_t r = 0; r < RANK; r++)
                    e[w][i] -= (double)basis[r * ROWS + i / COLS] * (double)sent_q[w][r * COLS + i % COLS];
            }
        }
        fleet_combine(&fleet, 1);
        fleet_take(&fleet, 1);
        assert_int_equal(weft_codec_finish(fleet.codecs[0], 1.0f, out), WEFT_OK);
        for (size_t i = 0; i < COUNT; i++) {
            double rest = -(double)out[i];
            for (int w = 0; w < RANKS; w++)
                rest += m[w][i] - e[w][i];
            assert_true(fabs(rest) < 1e-4); /* what went out is what the residuals lost */
        }
        for (size_t r = 0; r < RANK; r++) {
            const float *sum = (const float *)(const void *)fleet.aggregate + r * COLS;
            double largest = 0;
            for (size_t j = 0; j < COLS; j++)
                largest = fmax(largest, fabs((double)sum[j]));
            for (size_t j = 0; j < COLS; j++)
                q[r][j] = ldexp((double)sum[j], -ilogb(largest));
        }
        fleet_commit(&fleet);
    }
    fleet_close(&fleet);
}

/* More iterations in one step approach the best approximation, from the same first Q; as many single
 * steps on the same matrix, of which the warm start makes the same iteration, end at the same basis. */
static void test_iterations(void **state)
{
    static const char *const texts[] = {"powersgd:rank=2", "powersgd:rank=2,iterations=2",
                                        "powersgd:rank=2,iterations=5"};
    static float target[COUNT], noise[COUNT], stepwise[COUNT];
    struct sample sample = {sample_seed(69)};
    double last = INFINITY;
    list_grads();
    low_rank(&sample, 2, target);
    sample_fill(&sample, SAMPLE_NORMAL, noise, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        target[i] += 0.5f * noise[i];
    for (int t = 0; t < 3; t++) {
        struct fleet fleet;
        for (uint32_t r = 0; r < 2; r++) /* two parts of which neither looks like the sum */
            for (size_t i = 0; i < COUNT; i++)
                grads[r][i] = r == 0 ? target[i] - noise[i] : noise[i];
        fleet_open(&fleet, texts[t], shape_of(ROWS, COLS), 2);
        fleet_step(&fleet, grad_list, 1.0f, out);
        const double error = distance(out, target, COUNT);
        assert_true(error < last);
        last = error;
        if (t == 0) {
            for (int step = 0; step < 4; step++) {
                fleet_commit(&fleet);
                for (uint32_t r = 0; r < 2; r++) { /* the gradient that makes M the same again */
                    float residual[COUNT];
                    fleet_residual(&fleet, r, residual);
                    for (size_t i = 0; i < COUNT; i++)
                        grads[r][i] = (r == 0 ? target[i] - noise[i] : noise[i]) - residual[i];
                }
                fleet_step(&fleet, grad_list, 1.0f, stepwise);
            }
        } else if (t == 2) {
            assert_true(distance(out, stepwise, COUNT) < 1e-4 * norm(target, COUNT));
        }
        fleet_close(&fleet);
    }
}

/* A matrix of known singular values 2^0, 2^-1, ...: the error of a rank-r approximation is at least that
 * of the omitted values, and repeated steps approach it. */
static void test_never_below_the_best(void **state)
{
    enum { TERMS = 10, RANK = 3 };
    static float left[TERMS * ROWS], right[TERMS * COLS], target[COUNT];
    struct fleet fleet;
    struct sample sample = {sample_seed(67)};
    double best = 0, error = 0;
    list_grads();
    sample_fill(&sample, SAMPLE_NORMAL, left, TERMS * ROWS);
    sample_fill(&sample, SAMPLE_NORMAL, right, TERMS * COLS);
    weft_orthogonalise(left, ROWS, TERMS, NULL);
    weft_orthogonalise(right, COLS, TERMS, NULL);
    for (int t = RANK; t < TERMS; t++)
        best += ldexp(1.0, -2 * t);
    best = sqrt(best);
    for (size_t i = 0; i < COUNT; i++) {
        double sum = 0;
        for (int t = 0; t < TERMS; t++)
            sum += ldexp((double)left[t * ROWS + i / COLS] * (double)right[t * COLS + i % COLS], -t);
        target[i] = (float)sum;
    }
    fleet_open(&fleet, "powersgd:rank=3,min_ratio=1", shape_of(ROWS, COLS), 1);
    memcpy(grads[0], target, sizeof target);
    for (int step = 0; step < 12; step++) {
        fleet_step(&fleet, grad_list, 1.0f, out);
        fleet_commit(&fleet);
        error = distance(out, target, COUNT);
        assert_true(error > best * (1 - 1e-5) && error < norm(target, COUNT));
        memcpy(grads[0], out, sizeof out); /* + residual: the target again */
    }
    assert_true(error < 1.01 * best);
    fleet_close(&fleet);
}

static void test_zero_and_back(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(54)};
    list_grads();
    memset(grads, 0, sizeof grads);
    fleet_open(&fleet, "powersgd:rank=4,min_ratio=1", shape_of(ROWS, COLS), 2);
    for (int step = 0; step < 3; step++) {
        fleet_step(&fleet, grad_list, 1.0f, out);
        fleet_commit(&fleet);
        assert_true(norm(out, COUNT) == 0.0);
        assert_true(weft_codec_residual_norm(fleet.codecs[0]) == 0.0);
    }
    low_rank(&sample, 4, grads[0]); /* Q was drawn again, so a later gradient is in its span at once */
    fleet_step(&fleet, grad_list, 1.0f, out);
    assert_true(distance(out, grads[0], COUNT) < 3e-6 * norm(grads[0], COUNT));
    fleet_close(&fleet);
}

/* Columns drawn anew are the same on all ranks, and others in every step. */
static void test_drawn_anew(void **state)
{
    static float first[ROWS * 4], p[ROWS * 4];
    struct fleet fleet;
    struct sample sample = {sample_seed(64)};
    static float probe[COUNT];
    sample_fill(&sample, SAMPLE_NORMAL, probe, COUNT);
    list_grads();
    fleet_open(&fleet, "powersgd:rank=4,min_ratio=1", shape_of(ROWS, COLS), 2);
    for (int step = 0; step < 4; step++) {
        memcpy(grads[0], probe, sizeof probe);
        memcpy(grads[1], probe, sizeof probe);
        fleet_encode(&fleet, 0, grad_list);
        assert_memory_equal(fleet.contributions[0], fleet.contributions[1], fleet.contribution_bytes[0]);
        memcpy(p, fleet.contributions[0], sizeof p);
        for (size_t r = 0; r < 4; r++) /* no column is another's twin */
            assert_memory_not_equal(p + r * ROWS, p + (r + 1) % 4 * ROWS, ROWS * sizeof *p);
        if (step > 0) assert_memory_not_equal(p, first, sizeof p);
        memcpy(first, p, sizeof p);
        weft_codec_abandon(fleet.codecs[0]);
        weft_codec_abandon(fleet.codecs[1]);
        memset(grads, 0, sizeof grads);
        fleet_step(&fleet, grad_list, 1.0f, out); /* zero: every column vanishes */
        fleet_commit(&fleet);
    }
    fleet_close(&fleet);
}

/* A power of two on all gradients is a power of two on the result, bit for bit, from 2^-60 to 2^60. */
static void test_scale_equivariance(void **state)
{
    static float base[COUNT], saved[2][COUNT];
    struct sample sample = {sample_seed(55)};
    fill(&sample, 2);
    memcpy(saved, grads, sizeof saved);
    for (int power = -60; power <= 60; power += 30) {
        struct fleet fleet;
        for (int r = 0; r < 2; r++)
            for (size_t i = 0; i < COUNT; i++)
                grads[r][i] = ldexpf(saved[r][i], power);
        fleet_open(&fleet, "powersgd:rank=2", shape_of(ROWS, COLS), 2);
        for (int step = 0; step < 3; step++) {
            fleet_step(&fleet, grad_list, 1.0f, out);
            fleet_commit(&fleet);
        }
        for (size_t i = 0; i < COUNT; i++)
            out[i] = ldexpf(out[i], -power);
        if (power == -60) memcpy(base, out, sizeof base);
        assert_memory_equal(out, base, sizeof out);
        fleet_close(&fleet);
    }
}

/* Fixed gradients, error feedback: the sum of the outputs approaches the sum of the inputs, like 1/T. */
static void test_nothing_is_lost(void **state)
{
    static const uint32_t fleets[] = {1, 2, 3, 8};
    static double given[COUNT], received[COUNT];
    for (size_t f = 0; f < 4; f++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(56 + f)};
        const uint32_t ranks = fleets[f];
        memset(given, 0, sizeof given);
        memset(received, 0, sizeof received);
        fleet_open(&fleet, "powersgd:rank=4,min_ratio=1", shape_of(ROWS, COLS), ranks);
        for (int step = 0; step < 30; step++) {
            fill(&sample, ranks);
            fleet_step(&fleet, grad_list, 1.0f, out);
            fleet_commit(&fleet);
            for (size_t i = 0; i < COUNT; i++) {
                received[i] += (double)out[i];
                for (uint32_t r = 0; r < ranks; r++)
                    given[i] += (double)grads[r][i];
            }
        }
        /* The residual |given - received| is the norm of the summed residuals: no more than the norms
         * together. */
        double missing = 0, left = 0, total = 0;
        for (size_t i = 0; i < COUNT; i++) {
            missing += (given[i] - received[i]) * (given[i] - received[i]);
            total += given[i] * given[i];
        }
        for (uint32_t r = 0; r < ranks; r++)
            left += weft_codec_residual_norm(fleet.codecs[r]);
        assert_true(sqrt(missing) <= left * (1 + 1e-5));
        /* alone: exactly the residual */
        if (ranks == 1) assert_true(fabs(sqrt(missing) - left) < 1e-4 * sqrt(total));
        fleet_close(&fleet);
    }
}

/* Reading the residual forms it early; no bit of a later step depends on it. */
static void test_lazy_residual_is_the_eager_one(void **state)
{
    static const char *const texts[] = {"powersgd:rank=3,min_ratio=1",
                                        "powersgd:rank=5,iterations=2,min_ratio=1"};
    static float other[COUNT], residual[COUNT], wanted[COUNT];
    for (int t = 0; t < 2; t++) {
        struct fleet lazy, eager;
        struct sample sample = {sample_seed(59)};
        fleet_open(&lazy, texts[t], shape_of(ROWS, COLS), 2);
        fleet_open(&eager, texts[t], shape_of(ROWS, COLS), 2);
        for (int step = 0; step < 12; step++) {
            fill(&sample, 2);
            if (step == 5) memset(grads[1], 0, sizeof grads[1]);
            fleet_step(&lazy, grad_list, 0.5f, out);
            fleet_step(&eager, grad_list, 0.5f, other);
            assert_memory_equal(out, other, sizeof out);
            fleet_commit(&lazy);
            fleet_commit(&eager);
            for (uint32_t r = 0; r < 2; r++)
                assert_true(weft_codec_residual_norm(eager.codecs[r]) > 0);
            if (step % 3 == 1) { /* a step that is given up in between */
                fill(&sample, 2);
                fleet_encode(&lazy, 0, grad_list);
                for (uint32_t r = 0; r < 2; r++)
                    weft_codec_abandon(lazy.codecs[r]);
            }
        }
        for (uint32_t r = 0; r < 2; r++) {
            fleet_residual(&eager, r, wanted);
            fleet_residual(&lazy, r, residual);
            assert_memory_equal(residual, wanted, sizeof wanted);
        }
        fleet_close(&lazy);
        fleet_close(&eager);
    }
}

/* Noise only, 4 workers: the rms residual is flat. With the mean Q in the residual it would grow like
 * sqrt(T). */
static void test_residual_is_flat(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(61)};
    enum { SMALL_ROWS = 12, SMALL_COLS = 10 };
    double early = 0, late = 0;
    list_grads();
    fleet_open(&fleet, "powersgd:rank=1,min_ratio=2", shape_of(SMALL_ROWS, SMALL_COLS), 4);
    for (int step = 0; step < 1000; step++) {
        for (uint32_t r = 0; r < 4; r++)
            sample_fill(&sample, SAMPLE_NORMAL, grads[r], SMALL_ROWS * SMALL_COLS);
        fleet_step(&fleet, grad_list, 0.25f, out);
        fleet_commit(&fleet);
        for (uint32_t r = 0; r < 4; r++) {
            const double rms = weft_codec_residual_norm(fleet.codecs[r]) / sqrt(SMALL_ROWS * SMALL_COLS) / 4;
            if (step >= 50 && step < 150) early += rms / 100;
            if (step >= 900) late += rms / 100;
        }
    }
    assert_true(late < 1.3 * early);
    assert_true(late < 4.5);
    fleet_close(&fleet);
}

/* Repeated steps on one matrix, without feedback (a fresh residual is not possible, so the gradient pays
 * it back): the warm start turns Q to the dominant directions. */
static void test_warm_start(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(62)};
    static float target[COUNT], noise[COUNT];
    double first = 0, last = 0;
    list_grads();
    low_rank(&sample, 2, target);
    sample_fill(&sample, SAMPLE_NORMAL, noise, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        target[i] += 0.3f * noise[i];
    fleet_open(&fleet, "powersgd:rank=2", shape_of(ROWS, COLS), 1);
    memcpy(grads[0], target, sizeof target);
    for (int step = 0; step < 8; step++) {
        fleet_step(&fleet, grad_list, 1.0f, out);
        fleet_commit(&fleet);
        last = distance(out, target, COUNT);
        if (step == 0) first = last;
        /* M of the next step is grad + residual: choose grad so that M is the target again. */
        memcpy(grads[0], out, sizeof out);
    }
    assert_true(last < first);
    assert_true(last < 1.02 * 0.3 * norm(noise, COUNT)); /* rank 2 can do no better than leave the noise */
    fleet_close(&fleet);
}

/* The same M in every step: the subspace turns towards the best one by (second singular value / first)^2 a
 * step, so the error above the best rank-1 approximation falls by the fourth power. M = sum of s_i u_i
 * v_i^T with unit vectors of the axes. */
static void test_warm_start_rate(void **state)
{
    const double ratio = 0.5, rate = pow(ratio, 4);
    struct fleet fleet;
    static float target[COUNT];
    double excess[6];
    list_grads();
    memset(target, 0, sizeof target);
    for (size_t i = 0; i < 8; i++)
        target[i * COLS + i] = (float)ldexp(1.0, -(int)i);
    double best = 0;
    for (int i = 1; i < 8; i++)
        best += ldexp(1.0, -2 * i);
    fleet_open(&fleet, "powersgd:rank=1", shape_of(ROWS, COLS), 1);
    memcpy(grads[0], target, sizeof target);
    for (int step = 0; step < 6; step++) {
        fleet_step(&fleet, grad_list, 1.0f, out);
        fleet_commit(&fleet);
        const double error = distance(out, target, COUNT);
        excess[step] = error * error - best;
        memcpy(grads[0], out, sizeof out); /* M of the next step is the target again */
    }
    for (int step = 2; step < 5; step++) /* the slowest direction is what is left after the first steps */
        if (excess[step] > 1e-6)
            assert_true(excess[step] < 1.3 * rate * excess[step - 1] && excess[step] > 0);
    assert_true(excess[5] < 1e-5);
    fleet_close(&fleet);
}

/* A stack of matrices gives each the bits it has alone: the lone ones begin with the stack's Q, which is
 * in its state. */
static void test_stack(void **state)
{
    enum {
        STACK = 5,
        HIGH = 20,
        WIDE = 27,
        ONE = HIGH * WIDE,
        RANK = 2,
        RANKS = 3,
        HEAD = CODEC_STATE_HEAD_BYTES
    };
    static const char *const texts[] = {"powersgd:rank=2,stacked=1",
                                        "powersgd:rank=2,stacked=1,iterations=2"};
    static const char *const lone_texts[] = {"powersgd:rank=2", "powersgd:rank=2,iterations=2"};
    static float expected[ONE];
    for (int t = 0; t < 2; t++) {
        struct fleet stack, lone[STACK];
        struct sample sample = {sample_seed(65)};
        const struct weft_shape shape = {.dim_count = 3, .dims = {STACK, HIGH, WIDE}};
        fleet_open(&stack, texts[t], shape, RANKS);
        assert_int_equal(stack.spec.id, WEFT_CODEC_POWERSGD);
        const size_t bytes = weft_codec_state_bytes(stack.codecs[0]), q_bytes = RANK * WIDE * 4;
        assert_int_equal(bytes, HEAD + STACK * (ONE * 4 + q_bytes));
        uint8_t *whole = malloc(bytes), *part = malloc(HEAD + ONE * 4 + q_bytes);
        for (size_t b = 0; b < STACK; b++) {
            fleet_open(&lone[b], lone_texts[t], shape_of(HIGH, WIDE), RANKS);
            for (uint32_t r = 0; r < RANKS; r++) {
                assert_int_equal(weft_codec_save(stack.codecs[r], whole), WEFT_OK);
                assert_int_equal(weft_codec_save(lone[b].codecs[r], part), WEFT_OK);
                memcpy(part + HEAD + ONE * 4, whole + HEAD + STACK * ONE * 4 + b * q_bytes, q_bytes);
                assert_int_equal(weft_codec_load(lone[b].codecs[r], part, HEAD + ONE * 4 + q_bytes), WEFT_OK);
            }
        }
        for (int step = 0; step < 4; step++) {
            fill(&sample, RANKS); /* COUNT is STACK * ONE */
            fleet_step(&stack, grad_list, 0.5f, out);
            fleet_commit(&stack);
            for (size_t b = 0; b < STACK; b++) {
                const float *parts[RANKS];
                for (uint32_t r = 0; r < RANKS; r++) parts[r] = grads[r] + b * ONE;
                fleet_step(&lone[b], parts, 0.5f, expected);
                fleet_commit(&lone[b]);
                assert_memory_equal(out + b * ONE, expected, sizeof expected);
            }
        }
        for (size_t b = 0; b < STACK; b++)
            fleet_close(&lone[b]);
        free(whole);
        free(part);
        fleet_close(&stack);
    }
    assert_true(STACK * ONE == COUNT);
}

/* As powersgd_reference.py: a number of [-1, 1) with 24 bits. */
static float pseudo(uint32_t i, uint32_t step, uint32_t rank)
{
    uint32_t x = i * 2654435761u + step * 40503u + rank * 69069u + 12345u;
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    return (float)((x ^ x >> 16) >> 8) / 8388608.0f - 1.0f;
}

/* Step by step what PyTorch's hook makes of the same gradients, begun with the same Q. */
static void test_reference(void **state)
{
    const float *value = reference_values;
    for (size_t c = 0; c < sizeof reference_cases / sizeof reference_cases[0]; c++) {
        const uint64_t rows = reference_cases[c].rows, cols = reference_cases[c].cols,
                       rank = reference_cases[c].rank, count = rows * cols;
        struct fleet fleet;
        char text[64];
        list_grads();
        snprintf(text, sizeof text, "powersgd:rank=%u,min_ratio=1", reference_cases[c].rank);
        fleet_open(&fleet, text, shape_of(rows, cols), REFERENCE_RANKS);
        assert_int_equal(fleet.spec.id, WEFT_CODEC_POWERSGD);
        const size_t bytes = weft_codec_state_bytes(fleet.codecs[0]),
                     q_at = CODEC_STATE_HEAD_BYTES + count * sizeof(float);
        assert_int_equal(bytes, q_at + rank * cols * sizeof(float));
        for (uint32_t w = 0; w < REFERENCE_RANKS; w++) {
            uint8_t *saved = malloc(bytes);
            assert_int_equal(weft_codec_save(fleet.codecs[w], saved), WEFT_OK);
            for (uint32_t r = 0; r < rank; r++)
                for (uint32_t j = 0; j < cols; j++) {
                    const float q = pseudo(j * (uint32_t)rank + r, 99, 99);
                    memcpy(saved + q_at + (r * cols + j) * sizeof q, &q, sizeof q);
                }
            assert_int_equal(weft_codec_load(fleet.codecs[w], saved, bytes), WEFT_OK);
            free(saved);
        }
        for (uint32_t step = 0; step < REFERENCE_STEPS; step++) {
            const double size = (double)reference_norms[c * REFERENCE_STEPS + step];
            for (uint32_t w = 0; w < REFERENCE_RANKS; w++)
                for (uint32_t i = 0; i < count; i++)
                    grads[w][i] = pseudo(i, step, w);
            fleet_step(&fleet, grad_list, 1.0f / REFERENCE_RANKS, out);
            fleet_commit(&fleet);
            assert_true(fabs(norm(out, count) - size) < 2e-5 * size);
            for (uint64_t i = REFERENCE_FIRST; i < count; i += REFERENCE_EVERY)
                assert_true(fabs((double)out[i] - (double)*value++) < 2e-5 * size);
        }
        fleet_close(&fleet);
    }
    assert_ptr_equal(value, reference_values + sizeof reference_values / sizeof reference_values[0]);
}

/* Rows turned by an orthogonal matrix U: P is turned, Q stays, so the result of U M is U times that of M,
 * step after step. */
static void test_turned(void **state)
{
    static float turned[COUNT], plain[COUNT], axis[ROWS];
    struct fleet straight, other;
    struct sample sample = {sample_seed(58)};
    sample_fill(&sample, SAMPLE_NORMAL, axis, ROWS);
    const double square = norm(axis, ROWS) * norm(axis, ROWS);
    fleet_open(&straight, "powersgd:rank=3", shape_of(ROWS, COLS), 1);
    fleet_open(&other, "powersgd:rank=3", shape_of(ROWS, COLS), 1);
    for (int step = 0; step < 6; step++) {
        fill(&sample, 1);
        fleet_step(&straight, grad_list, 1.0f, plain);
        for (int what = 0; what < 2; what++) {
            /* the gradient, then what is expected of it: x - 2 a (a^T x) / |a|^2 */
            const float *from = what ? plain : grads[0];
            for (size_t j = 0; j < COLS; j++) {
                double along = 0;
                for (size_t i = 0; i < ROWS; i++)
                    along += (double)axis[i] * (double)from[i * COLS + j];
                for (size_t i = 0; i < ROWS; i++)
                    turned[i * COLS + j] =
                        (float)((double)from[i * COLS + j] - 2 * along / square * (double)axis[i]);
            }
            if (what) continue;
            memcpy(grads[0], turned, sizeof turned);
            fleet_step(&other, grad_list, 1.0f, out);
        }
        assert_true(distance(out, turned, COUNT) < 1e-4 * norm(turned, COUNT));
        fleet_commit(&straight);
        fleet_commit(&other);
    }
    fleet_close(&straight);
    fleet_close(&other);
}

static void test_bad_aggregates(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(63)};
    uint8_t saved[ROWS * 4 * sizeof(float)];
    fill(&sample, 2);
    fleet_open(&fleet, "powersgd:rank=4,min_ratio=1", shape_of(ROWS, COLS), 2);
    fleet_encode(&fleet, 0, grad_list);
    fleet_combine(&fleet, 0);
    assert_int_equal(fleet.aggregate_bytes, sizeof saved);
    const uint32_t nonsense[] = {0x7fc00000, 0x7f800000, 0x40000000, 0xbf820000};
    for (size_t n = 0; n < sizeof nonsense / sizeof nonsense[0]; n++) { /* no element of a unit vector */
        memcpy(saved, fleet.aggregate, sizeof saved);
        memcpy(fleet.aggregate + 40, &nonsense[n], 4);
        assert_int_equal(weft_codec_take(fleet.codecs[0], 0, fleet.aggregate, fleet.aggregate_bytes, 2),
                         WEFT_ERR_MALFORMED);
        memcpy(fleet.aggregate, saved, sizeof saved);
    }
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, fleet.aggregate, fleet.aggregate_bytes - 4, 2),
                     WEFT_ERR_MALFORMED);
    fleet_take(&fleet, 0);
    fleet_encode(&fleet, 1, NULL);
    fleet_combine(&fleet, 1);
    assert_int_equal(weft_codec_take(fleet.codecs[0], 1, fleet.aggregate, fleet.aggregate_bytes + 4, 2),
                     WEFT_ERR_MALFORMED);
    assert_int_equal(weft_combiner_add(fleet.combiner, fleet.contributions[0], 8), WEFT_ERR_STATE);
    fleet_take(&fleet, 1);
    fleet_commit(&fleet);
    fleet_close(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_low_rank),
        cmocka_unit_test(test_projection),
        cmocka_unit_test(test_bands),
        cmocka_unit_test(test_iterations),
        cmocka_unit_test(test_steps_follow_the_model),
        cmocka_unit_test(test_never_below_the_best),
        cmocka_unit_test(test_local_residual),
        cmocka_unit_test(test_zero_and_back),
        cmocka_unit_test(test_drawn_anew),
        cmocka_unit_test(test_scale_equivariance),
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_lazy_residual_is_the_eager_one),
        cmocka_unit_test(test_residual_is_flat),
        cmocka_unit_test(test_warm_start),
        cmocka_unit_test(test_warm_start_rate),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_turned),
        cmocka_unit_test(test_bad_aggregates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
