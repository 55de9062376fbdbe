/* test_topk.c - exact top-k with error feedback: values move bit for bit, the residual keeps the rest,
 * nothing is lost over many steps, and the sparse union sums in T's order. */
#include "tests/compress/compress_fixture.h"

enum { COUNT = 5003, STEPS = 12 };
static float grads[FLEET_MAX][COUNT], out[COUNT], expected[COUNT];
static const float *grad_list[FLEET_MAX];

static void fill(struct sample *sample, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        grad_list[r] = grads[r];
        sample_fill(sample, SAMPLE_NORMAL, grads[r], COUNT);
    }
}

/* What one worker sends of x: the k largest, ties to the smaller index. */
static void keep_top(const float *x, size_t k, float *kept, bool *sent)
{
    static uint32_t top[COUNT], scratch[COUNT];
    weft_select_top(top, x, COUNT, k, scratch); /* itself tested against a sort */
    for (size_t i = 0; i < COUNT; i++) {
        kept[i] = 0.0f;
        sent[i] = false;
    }
    for (size_t i = 0; i < k; i++) {
        kept[top[i]] = x[top[i]];
        sent[top[i]] = true;
    }
}

static size_t k_of(double ratio)
{
    return (size_t)ceil(COUNT * ratio);
}

/* One worker, several steps: sent + residual is p, bit for bit; the contraction of top-k holds. */
static void test_values_move(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(41)};
    static float p[COUNT], residual[COUNT];
    static bool sent[COUNT];
    memset(residual, 0, sizeof residual);
    fleet_open(&fleet, "topk:ratio=0.01", shape_of(COUNT, 0), 1);
    for (int step = 0; step < STEPS; step++) {
        double before = 0, after = 0;
        fill(&sample, 1);
        if (step == 3) sample_fill(&sample, SAMPLE_ZERO, grads[0], COUNT);
        if (step == 4) sample_fill(&sample, SAMPLE_DENORMAL, grads[0], COUNT);
        for (size_t i = 0; i < COUNT; i++)
            p[i] = grads[0][i] + residual[i];
        keep_top(p, k_of(0.01), expected, sent);
        fleet_step(&fleet, grad_list, 1.0f, out);
        assert_memory_equal(out, expected, sizeof out);
        fleet_commit(&fleet);
        for (size_t i = 0; i < COUNT; i++) {
            before += (double)p[i] * (double)p[i];
            residual[i] = sent[i] ? 0.0f : p[i];
            after += (double)residual[i] * (double)residual[i];
        }
        assert_true(after <= (1.0 - (double)k_of(0.01) / COUNT) * before * (1 + 1e-12));
        assert_true(fabs(weft_codec_residual_norm(fleet.codecs[0]) - sqrt(after)) <= 1e-9 * sqrt(after));
    }
    fleet_close(&fleet);
}

/* The guessed threshold decides about time only: gradients that grow, shrink, become equal or vanish from
 * one step to the next give exactly the k largest of every step, whether the list of candidates overflows
 * or stays too short. */
static void test_any_guess(void **state)
{
    enum { LARGE = 120011, GUESS_STEPS = 14 };
    static const float factors[GUESS_STEPS] = {1, 1, 1e4f, 1e-4f, 1, 0, 1e-30f, 1e20f, 1, 3, 1, 1, 1, 1};
    const struct weft_codec_spec spec = spec_of("topk:ratio=0.001");
    const struct weft_shape shape = shape_of(LARGE, 0);
    const size_t k = (size_t)ceil(LARGE * 0.001);
    struct sample sample = {sample_seed(47)};
    struct weft_codec *codec;
    float *grad = test_malloc(4 * LARGE * sizeof *grad), *p = grad + LARGE, *result = p + LARGE,
          *wanted = result + LARGE;
    uint32_t *top = test_malloc(2 * LARGE * sizeof *top), *scratch = top + LARGE;
    void *wire = test_malloc(weft_codec_contribution_bytes_max(&spec, &shape, 0));
    memset(p, 0, LARGE * sizeof *p);
    assert_int_equal(weft_codec_create(weft_env_system(), &spec, &shape, &codec), WEFT_OK);
    for (int step = 0; step < GUESS_STEPS; step++) {
        size_t bytes;
        sample_fill(&sample, SAMPLE_NORMAL, grad, LARGE);
        for (size_t i = 0; i < LARGE; i++) {
            if (step == 9) grad[i] = 1e25f; /* all pass, and all are equal */
            grad[i] *= factors[step];
            p[i] = grad[i] + p[i];
            wanted[i] = 0;
        }
        weft_select_top(top, p, LARGE, k, scratch);
        for (size_t i = 0; i < k; i++) {
            wanted[top[i]] = p[top[i]];
            p[top[i]] = 0;
        }
        assert_int_equal(weft_codec_encode(codec, 0, grad, 1, wire, &bytes), WEFT_OK);
        assert_int_equal(weft_codec_take(codec, 0, wire, bytes, 1), WEFT_OK);
        assert_int_equal(weft_codec_finish(codec, 1, result), WEFT_OK);
        if (memcmp(result, wanted, LARGE * sizeof *result) != 0)
            fail_msg("step %d: not the %zu largest", step, k);
        weft_codec_commit(codec);
    }
    weft_codec_free(codec);
    test_free(wire);
    test_free(top);
    test_free(grad);
}

/* Deep gradient compression against its recurrences, written down once more: fifty steps, both forms of
 * the momentum, with and without masking, clipped or not, and the warm-up's list of ratios. */
static void test_deep_gradient_compression(void **state)
{
    static const struct {
        const char *text;
        double momentum, clip;
        bool nesterov, masking;
        uint32_t warmup;
    } cases[] = {{"topk:ratio=0.004,momentum=0.9", 0.9, 0, false, true, 0},
                 {"topk:ratio=0.004,momentum=0.9,masking=0", 0.9, 0, false, false, 0},
                 {"topk:ratio=0.004,momentum=0.7,nesterov=1,warmup_steps=24", 0.7, 0, true, true, 24},
                 {"topk:ratio=0.004,clip=8,warmup_steps=3", 0, 8, false, true, 3},
                 {"topk:ratio=0.004,momentum=0.5,nesterov=1,masking=0,clip=30", 0.5, 30, true, false, 0}};
    static const double ratios[] = {0.25, 0.0625, 0.015625}; /* the next quarter is below 0.004 */
    static float u[COUNT], v[COUNT], next[COUNT];
    static bool sent[COUNT];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(48)};
        memset(u, 0, sizeof u);
        memset(v, 0, sizeof v);
        fleet_open(&fleet, cases[c].text, shape_of(COUNT, 0), 1);
        assert_int_equal(weft_codec_set_ranks(fleet.codecs[0], 4), WEFT_OK);
        for (uint32_t step = 0; step < 50; step++) {
            const float m = (float)cases[c].momentum;
            double square = 0, ratio = 0.004;
            float scale = 1.0f;
            fill(&sample, 1);
            if (step % 7 == 3) /* a burst */
                for (size_t i = 0; i < COUNT; i++)
                    grads[0][i] *= 40.0f;
            for (size_t i = 0; i < COUNT; i++)
                square += (double)grads[0][i] * (double)grads[0][i];
            if (cases[c].clip > 0 && sqrt(square) > cases[c].clip / 2) /* / sqrt(4 ranks) */
                scale = (float)(cases[c].clip / 2 / sqrt(square));
            for (size_t i = 0; i < COUNT; i++) {
                const float g = grads[0][i] * scale;
                u[i] = cases[c].nesterov ? m * (u[i] + g) : m * u[i] + g;
                next[i] = v[i] + (cases[c].nesterov ? u[i] + g : u[i]);
            }
            if (step < cases[c].warmup) ratio = ratios[step * 3 / cases[c].warmup];
            keep_top(next, k_of(ratio), expected, sent);
            fleet_step(&fleet, grad_list, 1.0f, out);
            for (size_t i = 0; i < COUNT; i++) {
                /* the norm's last bit */
                if (cases[c].clip > 0) assert_true(fabs((double)out[i] - (double)expected[i]) < 1e-4);
                else assert_true(out[i] == expected[i]);
                v[i] = sent[i] ? 0.0f : next[i];
                if (sent[i] && cases[c].masking) u[i] = 0.0f;
            }
            fleet_commit(&fleet);
        }
        fleet_close(&fleet);
    }
}

/* A worker that joins begins its warm-up while the others are past it: contributions differ in length,
 * sums do not care. */
static void test_two_stages_agree(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(46)};
    struct weft_codec *fresh;
    static bool sent[2][COUNT];
    static float kept[2][COUNT], residual[COUNT];
    fleet_open(&fleet, "topk:ratio=0.01,warmup_steps=4", shape_of(COUNT, 0), 2);
    for (int step = 0; step < 6; step++) {
        fill(&sample, 2);
        fleet_step(&fleet, grad_list, 1.0f, out);
        fleet_commit(&fleet);
    }
    weft_codec_free(fleet.codecs[1]);
    assert_int_equal(weft_codec_create(&fleet.memory.env, &fleet.spec, &fleet.shape, &fresh), WEFT_OK);
    fleet.codecs[1] = fresh;
    fleet_residual(&fleet, 0, residual);
    fill(&sample, 2);
    fleet_step(&fleet, grad_list, 1.0f, out);
    for (size_t i = 0; i < COUNT; i++)
        residual[i] = grads[0][i] + residual[i];
    keep_top(residual, k_of(0.01), kept[0], sent[0]);
    keep_top(grads[1], k_of(0.25), kept[1], sent[1]);
    for (size_t i = 0; i < COUNT; i++)
        assert_true(out[i] == (sent[0][i] && sent[1][i] ? kept[0][i] + kept[1][i]
                               : sent[0][i]             ? kept[0][i]
                                                        : kept[1][i]));
    fleet_close(&fleet);
}

/* The longest of list and vector never travels: at a union of everything the vector, one byte earlier the
 * list. */
static void test_dense_where_shorter(void **state)
{
    struct sample sample = {sample_seed(45)};
    static const struct {
        const char *text;
        bool dense;
    } cases[] = {{"topk:ratio=0.5", false}, {"topk:ratio=0.9", true}, {"topk:ratio=1", true}};
    for (size_t c = 0; c < 3; c++) {
        struct fleet fleet;
        fill(&sample, 4);
        fleet_open(&fleet, cases[c].text, shape_of(COUNT, 0), 4);
        fleet_step(&fleet, grad_list, 1.0f, out); /* all agree, and on the bound */
        const size_t vector = sizeof(uint32_t) + COUNT * sizeof(float);
        assert_true(cases[c].dense ? fleet.aggregate_bytes == vector : fleet.aggregate_bytes < vector);
        if (cases[c].dense) {
            weft_codec_abandon(fleet.codecs[0]);
            fleet_encode(&fleet, 0, grad_list);
            assert_int_equal(weft_codec_take(fleet.codecs[0], 0, fleet.aggregate, vector - 4, 4),
                             WEFT_ERR_MALFORMED);
            assert_int_equal(weft_codec_take(fleet.codecs[0], 0, fleet.aggregate, vector, 4), WEFT_OK);
            /* A worker's own list is never a vector. */
            weft_combiner_begin(fleet.combiner, 0);
            assert_int_equal(weft_combiner_add(fleet.combiner, fleet.aggregate, vector), WEFT_ERR_MALFORMED);
        }
        fleet_close(&fleet);
    }
}

/* ratio 1 sends everything: the result is the dense sum, and no residual stays. */
static void test_everything(void **state)
{
    struct fleet fleet, dense;
    struct sample sample = {sample_seed(42)};
    fill(&sample, 5);
    fleet_open(&fleet, "topk:ratio=1", shape_of(COUNT, 0), 5);
    fleet_open(&dense, "dense", shape_of(COUNT, 0), 5);
    fleet_step(&fleet, grad_list, 0.2f, out);
    fleet_step(&dense, grad_list, 0.2f, expected);
    assert_memory_equal(out, expected, sizeof out);
    fleet_commit(&fleet);
    assert_true(weft_codec_residual_norm(fleet.codecs[0]) == 0.0);
    fleet_close(&fleet);
    fleet_close(&dense);
}

/* Per index: T over the ranks that sent it; an absent rank is the identity. */
static float sparse_tree(uint32_t a, uint32_t b, size_t i, float kept[][COUNT], bool sent[][COUNT], bool *any)
{
    if (b - a == 1) {
        *any = sent[a][i];
        return kept[a][i];
    }
    uint32_t h = 1;
    while (h * 2 < b - a)
        h *= 2;
    bool left_any, right_any;
    const float left = sparse_tree(a, a + h, i, kept, sent, &left_any);
    const float right = sparse_tree(a + h, b, i, kept, sent, &right_any);
    *any = left_any || right_any;
    return left_any && right_any ? left + right : left_any ? left : right;
}

static void test_union_is_the_tree(void **state)
{
    static float kept[FLEET_MAX][COUNT];
    static bool sent[FLEET_MAX][COUNT];
    struct sample sample = {sample_seed(43)};
    for (uint32_t ranks = 1; ranks <= 11; ranks++) {
        struct fleet fleet;
        fill(&sample, ranks);
        fleet_open(&fleet, "topk:ratio=0.2", shape_of(COUNT, 0), ranks);
        fleet_step(&fleet, grad_list, 0.25f, out);
        for (uint32_t r = 0; r < ranks; r++)
            keep_top(grads[r], k_of(0.2), kept[r], sent[r]);
        for (size_t i = 0; i < COUNT; i++) {
            bool any;
            const float sum = sparse_tree(0, ranks, i, kept, sent, &any);
            assert_int_equal(sample_bits(out[i]), any ? sample_bits(sum * 0.25f) : 0);
        }
        fleet_close(&fleet);
    }
}

/* Two-sided feedback: the result is the k largest of sum + residual, and nothing is lost between workers,
 * combiner and result: all input is in the outputs, the workers' residuals and the combiner's residual. */
static void test_global(void **state)
{
    static const uint32_t fleets[] = {1, 2, 3, 8};
    static double given[COUNT], received[COUNT];
    static float combiner_residual[COUNT], q[COUNT], residual[COUNT], kept[FLEET_MAX][COUNT];
    static bool sent[FLEET_MAX][COUNT], chosen[COUNT];
    for (size_t f = 0; f < 4; f++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(42 + f)};
        const uint32_t ranks = fleets[f];
        const size_t k = k_of(0.02);
        memset(given, 0, sizeof given);
        memset(received, 0, sizeof received);
        memset(combiner_residual, 0, sizeof combiner_residual);
        fleet_open(&fleet, "topk:ratio=0.02,global=1", shape_of(COUNT, 0), ranks);
        const size_t state_bytes = weft_combiner_state_bytes(fleet.combiner);
        uint8_t *saved = malloc(state_bytes);
        assert_int_equal(state_bytes, CODEC_STATE_HEAD_BYTES + sizeof combiner_residual);
        for (int step = 0; step < STEPS; step++) {
            fill(&sample, ranks);
            for (uint32_t r = 0; r < ranks; r++) {
                fleet_residual(&fleet, r, residual);
                for (size_t i = 0; i < COUNT; i++)
                    residual[i] = grads[r][i] + residual[i];
                keep_top(residual, k, kept[r], sent[r]);
            }
            for (size_t i = 0; i < COUNT; i++) {
                bool any;
                const float sum = sparse_tree(0, ranks, i, kept, sent, &any);
                q[i] = any ? sum + combiner_residual[i] : combiner_residual[i];
            }
            keep_top(q, k, expected, chosen);
            fleet_step(&fleet, grad_list, 1.0f, out);
            assert_memory_equal(out, expected, sizeof out);
            assert_true(fleet.aggregate_bytes <=
                        weft_codec_contribution_bytes_max(&fleet.spec, &fleet.shape, 0));
            fleet_commit(&fleet);
            for (size_t i = 0; i < COUNT; i++) {
                combiner_residual[i] = chosen[i] ? 0.0f : q[i];
                received[i] += (double)out[i];
                for (uint32_t r = 0; r < ranks; r++)
                    given[i] += (double)grads[r][i];
            }
            assert_int_equal(weft_combiner_save(fleet.combiner, saved), WEFT_OK);
            assert_memory_equal(saved + CODEC_STATE_HEAD_BYTES, combiner_residual, sizeof combiner_residual);
        }
        for (size_t i = 0; i < COUNT; i++)
            received[i] += (double)combiner_residual[i];
        for (uint32_t r = 0; r < ranks; r++) {
            fleet_residual(&fleet, r, residual);
            for (size_t i = 0; i < COUNT; i++)
                received[i] += (double)residual[i];
        }
        for (size_t i = 0; i < COUNT; i++)
            assert_true(fabs(received[i] - given[i]) < 1e-4);
        free(saved);
        fleet_close(&fleet);
    }
}

/* The combiner's residual survives a restart, keeps its mean over another number of ranks, and takes no
 * damage from files or from peers that send what is no number. */
static void test_global_state(void **state)
{
    static uint8_t saved[CODEC_STATE_HEAD_BYTES + COUNT * sizeof(float)], again[sizeof saved],
        bad[sizeof saved];
    static float before[COUNT], after[COUNT];
    struct fleet old, fresh;
    struct weft_combiner *more;
    struct sample sample = {sample_seed(40)};
    fleet_open(&old, "topk:ratio=0.01,global=1", shape_of(COUNT, 0), 3);
    fleet_open(&fresh, "topk:ratio=0.01,global=1", shape_of(COUNT, 0), 3);
    for (int step = 0; step < 10; step++) {
        if (step == 4) {
            for (uint32_t r = 0; r < 3; r++) {
                uint8_t *of_worker = malloc(weft_codec_state_bytes(old.codecs[r]));
                assert_int_equal(weft_codec_save(old.codecs[r], of_worker), WEFT_OK);
                assert_int_equal(
                    weft_codec_load(fresh.codecs[r], of_worker, weft_codec_state_bytes(old.codecs[r])),
                    WEFT_OK);
                free(of_worker);
            }
            assert_int_equal(weft_combiner_save(old.combiner, saved), WEFT_OK);
            for (size_t byte = 0; byte < CODEC_STATE_HEAD_BYTES; byte++) {
                if (byte >= 24 && byte < 28) continue; /* the ranks: any number but 0 */
                memcpy(bad, saved, sizeof bad);
                bad[byte] ^= 1;
                assert_int_equal(weft_combiner_load(fresh.combiner, bad, sizeof bad), WEFT_ERR_MALFORMED);
            }
            memcpy(bad, saved, sizeof bad);
            memset(bad + sizeof bad - 4, 0xff, 4); /* NaN */
            assert_int_equal(weft_combiner_load(fresh.combiner, bad, sizeof bad), WEFT_ERR_MALFORMED);
            memcpy(bad, saved, sizeof bad);
            memset(bad + 24, 0, 4);
            assert_int_equal(weft_combiner_load(fresh.combiner, bad, sizeof bad), WEFT_ERR_MALFORMED);
            assert_int_equal(weft_combiner_load(fresh.combiner, saved, sizeof saved - 1), WEFT_ERR_MALFORMED);
            assert_int_equal(weft_combiner_load(fresh.combiner, saved, sizeof saved), WEFT_OK);
        }
        fill(&sample, 3);
        fleet_step(&old, grad_list, 1.0f, out);
        fleet_commit(&old);
        if (step < 4) continue;
        fleet_step(&fresh, grad_list, 1.0f, expected);
        fleet_commit(&fresh);
        assert_memory_equal(out, expected, sizeof out);
    }
    assert_int_equal(weft_combiner_save(old.combiner, saved), WEFT_OK);
    memcpy(before, saved + CODEC_STATE_HEAD_BYTES, sizeof before);
    assert_int_equal(weft_combiner_create(&old.memory.env, &old.spec, &old.shape, 6, &more), WEFT_OK);
    assert_int_equal(weft_combiner_load(more, saved, sizeof saved), WEFT_OK);
    assert_int_equal(weft_combiner_save(more, again), WEFT_OK);
    memcpy(after, again + CODEC_STATE_HEAD_BYTES, sizeof after);
    for (size_t i = 0; i < COUNT; i++)
        assert_true(after[i] / 6 == before[i] / 3);
    weft_combiner_free(more);

    /* Every value of one worker is NaN: as many as fit are in the result, none stays in the residual. */
    fill(&sample, 3);
    fleet_encode(&old, 0, grad_list);
    const size_t values = old.contribution_bytes[1] - k_of(0.01) * sizeof(float);
    memset(old.contributions[1] + values, 0xff, old.contribution_bytes[1] - values);
    fleet_combine(&old, 0);
    weft_combiner_begin(old.combiner, 0);
    assert_int_equal(weft_combiner_save(old.combiner, saved), WEFT_ERR_STATE);
    assert_int_equal(weft_combiner_load(old.combiner, saved, sizeof saved), WEFT_ERR_STATE);
    fleet_combine(&old, 0);
    assert_int_equal(weft_combiner_save(old.combiner, saved), WEFT_OK);
    memcpy(after, saved + CODEC_STATE_HEAD_BYTES, sizeof after);
    for (size_t i = 0; i < COUNT; i++)
        assert_true(isfinite(after[i]));
    fleet_take(&old, 0);
    for (uint32_t r = 0; r < 3; r++)
        weft_codec_abandon(old.codecs[r]);

    struct weft_combiner *plain;
    const struct weft_codec_spec spec = spec_of("topk");
    assert_int_equal(weft_combiner_create(&old.memory.env, &spec, &old.shape, 2, &plain), WEFT_OK);
    assert_int_equal(weft_combiner_state_bytes(plain), 0);
    assert_int_equal(weft_combiner_save(plain, NULL), WEFT_OK);
    assert_int_equal(weft_combiner_load(plain, saved, sizeof saved), WEFT_ERR_MALFORMED);
    weft_combiner_free(plain);
    fleet_close(&old);
    fleet_close(&fresh);
}

/* sum over steps of the mean output, plus the mean residual, is the sum of the mean gradients. */
static void test_nothing_is_lost(void **state)
{
    static const uint32_t fleets[] = {1, 2, 3, 8};
    static double given[COUNT], received[COUNT];
    for (size_t f = 0; f < 4; f++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(44 + f)};
        const uint32_t ranks = fleets[f];
        memset(given, 0, sizeof given);
        memset(received, 0, sizeof received);
        fleet_open(&fleet, "topk:ratio=0.02", shape_of(COUNT, 0), ranks);
        for (int step = 0; step < STEPS; step++) {
            fill(&sample, ranks);
            fleet_step(&fleet, grad_list, 1.0f, out);
            fleet_commit(&fleet);
            for (size_t i = 0; i < COUNT; i++) {
                received[i] += (double)out[i];
                for (uint32_t r = 0; r < ranks; r++)
                    given[i] += (double)grads[r][i];
            }
        }
        /* Read the residuals by sending them: a zero gradient with everything kept is not possible here,
         * so one more step per worker drains the rest of the norm. */
        double left = 0, difference = 0, together = 0;
        for (uint32_t r = 0; r < ranks; r++)
            left += weft_codec_residual_norm(fleet.codecs[r]);
        for (size_t i = 0; i < COUNT; i++) {
            difference += (given[i] - received[i]) * (given[i] - received[i]);
            grads[0][i] = 0.0f;
        }
        assert_true(sqrt(difference) <= left * (1 + 1e-6)); /* the debt is what the residuals hold, at most */
        for (uint32_t r = 0; r < ranks; r++)
            grad_list[r] = grads[0];
        for (int drain = 0; drain < 60; drain++) {
            fleet_step(&fleet, grad_list, 1.0f, out);
            fleet_commit(&fleet);
            for (size_t i = 0; i < COUNT; i++)
                received[i] += (double)out[i];
        }
        for (size_t i = 0; i < COUNT; i++)
            together = fmax(together, fabs(given[i] - received[i]));
        assert_true(together < 1e-4); /* drained: every element that was given has arrived */
        fleet_close(&fleet);
    }
}

static void test_bad_contributions(void **state)
{
    struct fleet fleet;
    struct sample sample = {sample_seed(49)};
    const void *data;
    size_t bytes;
    fill(&sample, 3);
    fleet_open(&fleet, "topk:ratio=0.01", shape_of(COUNT, 0), 3);
    fleet_encode(&fleet, 0, grad_list);
    fleet_combine(&fleet, 0);
    uint8_t *good = malloc(fleet.aggregate_bytes);
    const size_t good_bytes = fleet.aggregate_bytes;
    memcpy(good, fleet.aggregate, good_bytes);

    /* The same round with rubbish between the good ones gives the same bytes. */
    weft_combiner_begin(fleet.combiner, 0);
    for (uint32_t r = 0; r < 3; r++) {
        uint8_t *bad = fleet.contributions[r];
        const size_t size = fleet.contribution_bytes[r];
        for (size_t cut = 0; cut < size; cut++)
            assert_int_equal(weft_combiner_add(fleet.combiner, bad, cut), WEFT_ERR_MALFORMED);
        bad[0] ^= 1; /* another count than k */
        assert_int_equal(weft_combiner_add(fleet.combiner, bad, size), WEFT_ERR_MALFORMED);
        bad[0] ^= 1;
        assert_int_equal(weft_combiner_add(fleet.combiner, bad, size), WEFT_OK);
    }
    assert_int_equal(weft_combiner_close(fleet.combiner, &data, &bytes), WEFT_OK);
    assert_int_equal(bytes, good_bytes);
    assert_memory_equal(data, good, bytes);
    static const uint32_t few[] = {3, 17};
    static const float few_values[] = {1, 2};
    uint8_t fewer[64]; /* well-formed, but not k indices */
    size_t fewer_bytes = weft_index_encode(few, 2, COUNT, fewer);
    memcpy(fewer + fewer_bytes, few_values, sizeof few_values);
    weft_combiner_begin(fleet.combiner, 0);
    assert_int_equal(weft_combiner_add(fleet.combiner, fewer, fewer_bytes + sizeof few_values),
                     WEFT_ERR_MALFORMED);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(
            weft_combiner_add(fleet.combiner, fleet.contributions[r], fleet.contribution_bytes[r]), WEFT_OK);
    assert_int_equal(weft_combiner_close(fleet.combiner, &data, &bytes), WEFT_OK);
    assert_memory_equal(data, good, bytes);

    /* Aggregates: every cut, one byte more, too many indices for the ranks. */
    for (size_t cut = 0; cut < good_bytes; cut++)
        assert_int_equal(weft_codec_take(fleet.codecs[0], 0, good, cut, 3), WEFT_ERR_MALFORMED);
    uint8_t *longer = calloc(1, good_bytes + 4);
    memcpy(longer, good, good_bytes);
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, longer, good_bytes + 4, 3), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, longer, (size_t)1 << 40, 3), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, good, good_bytes, 1), WEFT_ERR_MALFORMED);
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, good, good_bytes, 3), WEFT_OK);
    free(longer);
    free(good);
    fleet_close(&fleet);
}

/* A stream that is well formed but longer than any writer's: 16 bits for every gap of 0. Refused, not
 * stored beyond the array. */
static void test_wasteful_aggregate(void **state)
{
    enum { SMALL = 2000 };
    struct fleet fleet;
    static uint8_t wasteful[7 + 2 * SMALL + 4 * SMALL];
    static float grad[SMALL];
    const float *list[1] = {grad};
    const uint32_t count = SMALL;
    const uint16_t stored = SMALL - 1;
    memcpy(wasteful, &count, 4);
    wasteful[4] = 15;
    memcpy(wasteful + 5, &stored, 2);
    for (size_t i = 0; i < SMALL; i++)
        wasteful[7 + 2 * i] = 1;
    fleet_open(&fleet, "topk:ratio=1", shape_of(SMALL, 0), 1);
    assert_true(sizeof wasteful > weft_codec_aggregate_bytes_max(&fleet.spec, &fleet.shape, 0, 1));
    fleet_encode(&fleet, 0, list);
    assert_int_equal(weft_codec_take(fleet.codecs[0], 0, wasteful, sizeof wasteful, 1), WEFT_ERR_MALFORMED);
    fleet_close(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_move),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_union_is_the_tree),
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_bad_contributions),
        cmocka_unit_test(test_wasteful_aggregate),
        cmocka_unit_test(test_any_guess),
        cmocka_unit_test(test_deep_gradient_compression),
        cmocka_unit_test(test_two_stages_agree),
        cmocka_unit_test(test_dense_where_shorter),
        cmocka_unit_test(test_global),
        cmocka_unit_test(test_global_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
