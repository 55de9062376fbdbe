/* test_contract.c - the contract of compress.h for each codec: transactions, retries, refusal of
 * non-finite gradients, equal bits on every path from contributions to gradient, and clean failure without
 * memory. */
#include <float.h>

#include "tests/compress/compress_fixture.h"

static const char *const codecs[] = {"dense",
                                     "f16",
                                     "bf16",
                                     "powersgd:rank=3,min_ratio=1",
                                     "powersgd:rank=2,iterations=3,min_ratio=1",
                                     "topk:ratio=0.03,min_count=0",
                                     "topk:ratio=0.03,min_count=0,momentum=0.9,clip=20,warmup_steps=4",
                                     "topk:ratio=0.02,min_count=0,momentum=0.5,nesterov=1,masking=0",
                                     "int8:min_count=0",
                                     "int4:min_count=0",
                                     "sign:min_count=0",
                                     "e4m3:min_count=0",
                                     "e5m2:min_count=0",
                                     "randomk:ratio=0.03,min_count=0"};
enum { CODECS = sizeof codecs / sizeof codecs[0], ROWS = 37, COLS = 53, COUNT = ROWS * COLS };

static float grads[FLEET_MAX][COUNT], out[COUNT], other[COUNT];
static const float *grad_list[FLEET_MAX];

static void fill(struct sample *sample, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        grad_list[r] = grads[r];
        sample_fill(sample, SAMPLE_NORMAL, grads[r], COUNT);
    }
}

/* An all-reduce without a combiner in the middle: sum by the fold, then weft_codec_sum_to_aggregate on every
 * rank; or gather, then each rank's own combiner. */
static void all_reduce(struct fleet *fleet, uint32_t round, struct weft_combiner *own)
{
    if (weft_codec_combine_kind(&fleet->spec, round) == WEFT_COMBINE_GATHER) {
        const void *data;
        weft_combiner_begin(own, round);
        for (uint32_t r = 0; r < fleet->ranks; r++)
            assert_int_equal(weft_combiner_add(own, fleet->contributions[r], fleet->contribution_bytes[r]),
                             WEFT_OK);
        assert_int_equal(weft_combiner_close(own, &data, &fleet->aggregate_bytes), WEFT_OK);
        memcpy(fleet->aggregate, data, fleet->aggregate_bytes);
        return;
    }
    struct weft_tree_reduce reduce;
    const size_t bytes = fleet->contribution_bytes[0];
    float *buffers[FLEET_MAX], *freed[32];
    uint32_t freed_count;
    weft_tree_reduce_init(&reduce, bytes / sizeof(float));
    for (uint32_t r = 0; r < fleet->ranks; r++) {
        assert_int_equal(fleet->contribution_bytes[r], bytes);
        buffers[r] = malloc(bytes);
        memcpy(buffers[r], fleet->contributions[r], bytes);
        weft_tree_reduce_add(&reduce, buffers[r], freed);
    }
    float *sum = weft_tree_reduce_finish(&reduce, freed, &freed_count);
    weft_codec_sum_to_aggregate(&fleet->spec, &fleet->shape, round, sum);
    memcpy(fleet->aggregate, sum, bytes);
    fleet->aggregate_bytes = bytes;
    for (uint32_t r = 0; r < fleet->ranks; r++)
        free(buffers[r]);
}

/* Two fleets, the same gradients: one through a combiner, one through the all-reduce path. Equal bits,
 * every step, any worker count. */
static void test_paths_agree(void **state)
{
    for (int c = 0; c < CODECS; c++)
        for (uint32_t ranks = 1; ranks <= 9; ranks++) {
            struct fleet shard, peers;
            struct sample sample = {sample_seed(71)};
            fleet_open(&shard, codecs[c], shape_of(ROWS, COLS), ranks);
            fleet_open(&peers, codecs[c], shape_of(ROWS, COLS), ranks);
            for (int step = 0; step < 4; step++) {
                fill(&sample, ranks);
                fleet_step(&shard, grad_list, 1.0f / (float)ranks, out);
                for (uint32_t round = 0; round < weft_codec_rounds(&peers.spec); round++) {
                    fleet_encode(&peers, round, round == 0 ? grad_list : NULL);
                    all_reduce(&peers, round, peers.combiner);
                    fleet_take(&peers, round);
                }
                for (uint32_t r = 0; r < ranks; r++) {
                    assert_int_equal(weft_codec_finish(peers.codecs[r], 1.0f / (float)ranks, other), WEFT_OK);
                    assert_memory_equal(other, out, sizeof out);
                }
                fleet_commit(&shard);
                fleet_commit(&peers);
            }
            fleet_close(&shard);
            fleet_close(&peers);
        }
}

/* encode twice in a step: the same bytes, from every point of the step, and the step ends as if it was
 * once. */
static void test_encode_again(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(72)};
        fleet_open(&fleet, codecs[c], shape_of(ROWS, COLS), 2);
        const uint32_t rounds = weft_codec_rounds(&fleet.spec);
        uint8_t *first[WEFT_CODEC_ROUNDS_MAX];
        size_t first_bytes[WEFT_CODEC_ROUNDS_MAX], bytes_max = 0;
        for (uint32_t round = 0; round < rounds; round++) {
            const size_t bytes = weft_codec_contribution_bytes_max(&fleet.spec, &fleet.shape, round);
            first[round] = malloc(bytes);
            bytes_max = bytes > bytes_max ? bytes : bytes_max;
        }
        uint8_t *again = malloc(bytes_max);
        for (int step = 0; step < 3; step++) {
            fill(&sample, 2);
            for (uint32_t round = 0; round < rounds; round++) {
                fleet_encode(&fleet, round, round == 0 ? grad_list : NULL);
                first_bytes[round] = fleet.contribution_bytes[0];
                memcpy(first[round], fleet.contributions[0], first_bytes[round]);
                fleet_combine(&fleet, round);
                for (int moment = 0; moment < 2; moment++) {
                    for (uint32_t r = 0; r <= round; r++) {
                        size_t bytes;
                        assert_int_equal(weft_codec_encode(fleet.codecs[0], r, grads[0], 1.0f, again, &bytes),
                                         WEFT_OK);
                        assert_int_equal(bytes, first_bytes[r]);
                        assert_memory_equal(again, first[r], bytes);
                    }
                    if (moment == 0) fleet_take(&fleet, round);
                }
            }
            fleet_commit(&fleet);
        }
        free(again);
        for (uint32_t round = 0; round < rounds; round++)
            free(first[round]);
        fleet_close(&fleet);
    }
}

/* Steps abandoned at every point, and steps refused for a NaN or Inf, leave no trace: a fleet that suffers
 * them goes on bit-equal to one that does not. */
static void test_abandon_and_refuse(void **state)
{
    static float spoiled[COUNT];
    const float poison[] = {NAN, INFINITY, -INFINITY};
    for (int c = 0; c < CODECS; c++) {
        struct fleet calm, tried;
        struct sample sample = {sample_seed(73)}, trouble = {sample_seed(74)};
        fleet_open(&calm, codecs[c], shape_of(ROWS, COLS), 2);
        const uint32_t rounds = weft_codec_rounds(&calm.spec);
        fleet_open(&tried, codecs[c], shape_of(ROWS, COLS), 2);
        for (uint32_t step = 0; step < 12; step++) {
            fill(&trouble, 2); /* a step that gets as far as `stage`, then is given up */
            const uint32_t stage = step % (2 * rounds + 1);
            for (uint32_t round = 0; round < rounds; round++) {
                if (stage > 2 * round) fleet_encode(&tried, round, round == 0 ? grad_list : NULL);
                if (stage > 2 * round + 1) {
                    fleet_combine(&tried, round);
                    fleet_take(&tried, round);
                }
            }
            for (uint32_t r = 0; r < 2; r++)
                weft_codec_abandon(tried.codecs[r]);

            size_t bytes = 4711;
            memcpy(spoiled, grads[0], sizeof spoiled);
            spoiled[sample_below(&trouble, COUNT)] = poison[step % 3];
            assert_int_equal(
                weft_codec_encode(tried.codecs[0], 0, spoiled, 1.0f, tried.contributions[0], &bytes),
                WEFT_ERR_INVALID);
            assert_int_equal(bytes, 4711);

            fill(&sample, 2);
            fleet_step(&calm, grad_list, 0.5f, out);
            fleet_step(&tried, grad_list, 0.5f, other);
            assert_memory_equal(other, out, sizeof out);
            fleet_commit(&calm);
            fleet_commit(&tried);
            for (uint32_t r = 0; r < 2; r++)
                assert_true(weft_codec_residual_norm(calm.codecs[r]) ==
                            weft_codec_residual_norm(tried.codecs[r]));
        }
        fleet_close(&calm);
        fleet_close(&tried);
    }
}

/* Saved after some steps and loaded into a new fleet: the next ten steps are the same bits. Zero gradients
 * on the way make PowerSGD draw columns anew, which needs its step counter. Damaged bytes change nothing. */
static void test_save_and_load(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        struct fleet old, fresh;
        struct sample sample = {sample_seed(77)};
        fleet_open(&old, codecs[c], shape_of(ROWS, COLS), 2);
        fleet_open(&fresh, codecs[c], shape_of(ROWS, COLS), 2);
        const size_t bytes = weft_codec_state_bytes(old.codecs[0]);
        uint8_t *saved = malloc(bytes + 4), *again = malloc(bytes);
        for (int step = 0; step < 15; step++) {
            if (step == 5) {
                for (uint32_t r = 0; r < 2; r++) {
                    const uint32_t nan = 0x7fc00000;
                    assert_int_equal(weft_codec_save(old.codecs[r], saved), WEFT_OK);
                    assert_int_equal(weft_codec_save(fresh.codecs[r], again), WEFT_OK);
                    assert_int_equal(weft_codec_load(fresh.codecs[r], saved, bytes - 1), WEFT_ERR_MALFORMED);
                    assert_int_equal(weft_codec_load(fresh.codecs[r], saved, bytes + 4), WEFT_ERR_MALFORMED);
                    for (size_t byte = 0; byte < 16; byte++) { /* version, codec, elements */
                        saved[byte] ^= 1;
                        assert_int_equal(weft_codec_load(fresh.codecs[r], saved, bytes), WEFT_ERR_MALFORMED);
                        saved[byte] ^= 1;
                    }
                    if (bytes > CODEC_STATE_HEAD_BYTES) {
                        uint8_t kept[4];
                        memcpy(kept, saved + bytes - 4, 4);
                        memcpy(saved + bytes - 4, &nan, 4);
                        assert_int_equal(weft_codec_load(fresh.codecs[r], saved, bytes), WEFT_ERR_MALFORMED);
                        memcpy(saved + bytes - 4, kept, 4);
                    }
                    uint8_t *unchanged = malloc(bytes);
                    assert_int_equal(weft_codec_save(fresh.codecs[r], unchanged), WEFT_OK);
                    assert_memory_equal(unchanged, again, bytes);
                    free(unchanged);
                    assert_int_equal(weft_codec_load(fresh.codecs[r], saved, bytes), WEFT_OK);
                }
            }
            fill(&sample, 2);
            if (step == 8) memset(grads, 0, sizeof grads);
            fleet_step(&old, grad_list, 0.5f, out);
            if (step >= 5) {
                fleet_step(&fresh, grad_list, 0.5f, other);
                assert_memory_equal(other, out, sizeof out);
                assert_int_equal(weft_codec_save(fresh.codecs[0], saved), WEFT_ERR_STATE);
                assert_int_equal(weft_codec_load(fresh.codecs[0], saved, bytes), WEFT_ERR_STATE);
                fleet_commit(&fresh);
            }
            fleet_commit(&old);
        }
        free(saved);
        free(again);
        fleet_close(&old);
        fleet_close(&fresh);
    }
}

/* The largest magnitude that a codec with a residual accepts, on eight workers: no value overflows, and
 * the result is within the stated error. From 2^120 on the step is refused. Blocks of the smallest
 * denormal, beside it and in the tail, have the same error. */
static void test_largest_and_smallest(void **state)
{
    enum { RANKS = 8 };
    const float refused[] = {0x1p120f, FLT_MAX};
    for (int c = 3; c < CODECS; c++) {
        if (strstr(codecs[c], "clip")) continue; /* what is too long is shortened */
        /* its factors have to stay below 2^120, too */
        const float most = strstr(codecs[c], "powersgd")   ? 0x1p112f
                           : strstr(codecs[c], "nesterov") ? 0x1p119f /* p is 1.5 times the gradient */
                                                           : nextafterf(0x1p120f, 0);
        struct fleet fleet;
        struct sample sample = {sample_seed(82)};
        fleet_open(&fleet, codecs[c], shape_of(ROWS, COLS), RANKS);
        fill(&sample, RANKS);
        for (uint32_t r = 0; r < RANKS; r++)
            for (size_t i = 0; i < COUNT; i++)
                grads[r][i] = i / 256 % 2 ? (i % 2 ? most : -most) : 0x1p-149f;
        for (size_t b = 0; b < 2; b++) {
            size_t bytes;
            grads[0][300] = refused[b];
            assert_int_equal(
                weft_codec_encode(fleet.codecs[0], 0, grads[0], 1.0f, fleet.contributions[0], &bytes),
                WEFT_ERR_INVALID);
            grads[0][300] = -most;
        }
        fleet_step(&fleet, grad_list, 1.0f / RANKS, out);
        fleet_commit(&fleet);
        for (size_t i = 0; i < COUNT; i++)
            if (!isfinite(out[i]) || fabsf(out[i]) > 4 * most)
                fail_msg("%s: element %zu is %g", codecs[c], i, (double)out[i]);
        assert_true(isfinite(weft_codec_residual_norm(fleet.codecs[0])));
        fleet_close(&fleet);
    }
}

/* Bytes of a contribution by the formulas of README.md, and never more than what was asked for beforehand. */
static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        double least[2], most[2]; /* of rounds 0 and 1 */
    } cases[] = {
        {"dense", {4.0 * COUNT}, {4.0 * COUNT}},
        {"f16", {2.0 * COUNT}, {2.0 * COUNT + 8}},
        {"bf16", {2.0 * COUNT}, {2.0 * COUNT}},
        {"powersgd:rank=3,min_ratio=1", {12.0 * ROWS, 12.0 * COLS}, {12.0 * ROWS, 12.0 * COLS}},
        /* log2(1961 / 40) = 5.62 */
        {"topk:ratio=0.02,min_count=0", {40 * 4.0}, {40 * (4 + 5.644 / 8 + 0.2) + 16}},
        {"int8:min_count=0", {8, COUNT}, {8, COUNT}},
        {"int4:min_count=0", {8, COUNT / 2}, {8, COUNT / 2 + 1}},
        {"sign:min_count=0", {COUNT / 8.0 + COUNT / 64.0}, {COUNT / 8.0 + COUNT / 64.0 + 5}},
        {"e4m3:min_count=0", {COUNT + COUNT / 256.0}, {COUNT + COUNT / 256.0 + 1}},
        {"randomk:ratio=0.02,min_count=0", {8, 160}, {8, 160}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(81)};
        fleet_open(&fleet, cases[c].text, shape_of(ROWS, COLS), 2);
        for (int step = 0; step < 3; step++) {
            fill(&sample, 2);
            for (uint32_t round = 0; round < weft_codec_rounds(&fleet.spec); round++) {
                fleet_encode(&fleet, round, round == 0 ? grad_list : NULL);
                for (uint32_t r = 0; r < 2; r++) {
                    const double bytes = (double)fleet.contribution_bytes[r];
                    if (bytes < cases[c].least[round] || bytes > cases[c].most[round])
                        fail_msg("%s: %g bytes in round %u", cases[c].text, bytes, round);
                    assert_true(fleet.contribution_bytes[r] <=
                                weft_codec_contribution_bytes_max(&fleet.spec, &fleet.shape, round));
                }
                fleet_combine(&fleet, round);
                fleet_take(&fleet, round);
            }
            fleet_commit(&fleet);
        }
        fleet_close(&fleet);
    }
}

/* A combiner that starts over forgets: finish waits until every round was closed again. */
static void test_combiner_restarts(void **state)
{
    for (int c = 0; c < CODECS; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(76)};
        fill(&sample, 3);
        fleet_open(&fleet, codecs[c], shape_of(ROWS, COLS), 3);
        assert_int_equal(weft_combiner_finish(fleet.combiner, 1.0f, out), WEFT_ERR_STATE);
        fleet_step(&fleet, grad_list, 1.0f, out);
        for (uint32_t r = 0; r < 3; r++)
            weft_codec_abandon(fleet.codecs[r]);
        fleet_encode(&fleet, 0, grad_list);
        weft_combiner_begin(fleet.combiner, 0);
        assert_int_equal(weft_combiner_finish(fleet.combiner, 1.0f, other), WEFT_ERR_STATE);
        assert_int_equal(
            weft_combiner_add(fleet.combiner, fleet.contributions[1], fleet.contribution_bytes[1]), WEFT_OK);
        fleet_combine(&fleet, 0); /* begins again: the contribution above is dropped */
        for (uint32_t round = 1; round < weft_codec_rounds(&fleet.spec); round++) {
            assert_int_equal(weft_combiner_finish(fleet.combiner, 1.0f, other), WEFT_ERR_STATE);
            fleet_take(&fleet, round - 1);
            fleet_encode(&fleet, round, NULL);
            fleet_combine(&fleet, round);
        }
        assert_int_equal(weft_combiner_finish(fleet.combiner, 1.0f, other), WEFT_OK);
        assert_memory_equal(other, out, sizeof out);
        fleet_close(&fleet);
    }
}

/* One that only loads what closed each step is as the first: aggregate, decoded gradient, residual, and so
 * the next step. Other bytes are refused or are loaded as whole. */
static void check_second(const char *codec, uint32_t ranks)
{
    struct fleet fleet;
    struct weft_combiner *second;
    struct sample sample = {sample_seed(77)};
    const void *aggregate;
    size_t bytes;
    fleet_open(&fleet, codec, shape_of(ROWS, COLS), ranks);
    assert_int_equal(weft_combiner_create(&fleet.memory.env, &fleet.spec, &fleet.shape, ranks, &second),
                     WEFT_OK);
    const size_t most = weft_combiner_step_bytes_max(fleet.combiner, ranks);
    uint8_t *saved = malloc(most);
    for (int step = 0; step < 4; step++) {
        fill(&sample, ranks);
        fleet_step(&fleet, grad_list, 0.25f, out);
        const size_t length = weft_combiner_step_save(fleet.combiner, saved);
        assert_true(length <= most);
        assert_int_equal(weft_combiner_step_check(second, saved, length - 1), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_step_check(second, saved, 0), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_step_check(second, saved, length), WEFT_OK);
        weft_combiner_step_load(second, saved, length, &aggregate, &bytes);
        assert_int_equal(bytes, fleet.aggregate_bytes);
        assert_memory_equal(aggregate, fleet.aggregate, bytes);
        assert_int_equal(weft_combiner_finish(second, 0.25f, other), WEFT_OK);
        assert_memory_equal(other, out, sizeof out);
        fleet_commit(&fleet);
        if (weft_combiner_residual(second))
            assert_memory_equal(weft_combiner_residual(second), weft_combiner_residual(fleet.combiner),
                                sizeof out);
        if (step != 1) continue; /* the second one combines the next step */
        struct weft_combiner *const first = fleet.combiner;
        fleet.combiner = second;
        second = first;
    }
    free(saved);
    weft_combiner_free(second);
    fleet_close(&fleet);
}

static void test_second_combiner(void **state)
{
    static const uint32_t ranks[] = {1, 2, 3, 8};
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
        for (int c = 0; c < CODECS; c++) check_second(codecs[c], ranks[r]);
        check_second("topk:ratio=0.03,min_count=0,global=1", ranks[r]);
        check_second("topk:ratio=0.6,min_count=0", ranks[r]); /* the vector is shorter */
    }
}

/* grad_scale is a multiplication before anything else; a power of two shows it without rounding. */
static void test_grad_scale(void **state)
{
    static float doubled[COUNT];
    for (int c = 0; c < CODECS; c++) {
        struct fleet a, b;
        struct sample sample = {sample_seed(75)};
        size_t bytes_a, bytes_b;
        fill(&sample, 1);
        for (size_t i = 0; i < COUNT; i++)
            doubled[i] = grads[0][i] * 4.0f;
        fleet_open(&a, codecs[c], shape_of(ROWS, COLS), 1);
        fleet_open(&b, codecs[c], shape_of(ROWS, COLS), 1);
        assert_int_equal(weft_codec_encode(a.codecs[0], 0, grads[0], 4.0f, a.contributions[0], &bytes_a),
                         WEFT_OK);
        assert_int_equal(weft_codec_encode(b.codecs[0], 0, doubled, 1.0f, b.contributions[0], &bytes_b),
                         WEFT_OK);
        assert_int_equal(bytes_a, bytes_b);
        assert_memory_equal(a.contributions[0], b.contributions[0], bytes_a);
        fleet_close(&a);
        fleet_close(&b);
    }
}

/* A loss scale that is divided out by grad_scale changes no bit, and may change from step to step (powers
 * of two). */
static void test_loss_scale_is_neutral(void **state)
{
    static float scaled[FLEET_MAX][COUNT];
    const float *scaled_list[FLEET_MAX];
    for (int c = 0; c < CODECS; c++) {
        struct fleet plain, mixed;
        struct sample sample = {sample_seed(78)};
        fleet_open(&plain, codecs[c], shape_of(ROWS, COLS), 2);
        fleet_open(&mixed, codecs[c], shape_of(ROWS, COLS), 2);
        for (int step = 0; step < 6; step++) {
            const float loss_scale = step < 3 ? 1024.0f : 2048.0f;
            fill(&sample, 2);
            for (uint32_t r = 0; r < 2; r++) {
                scaled_list[r] = scaled[r];
                for (size_t i = 0; i < COUNT; i++)
                    scaled[r][i] = grads[r][i] * loss_scale;
            }
            fleet_step(&plain, grad_list, 0.5f, out);
            for (uint32_t round = 0; round < weft_codec_rounds(&mixed.spec); round++) {
                for (uint32_t r = 0; r < 2; r++)
                    assert_int_equal(weft_codec_encode(mixed.codecs[r], round,
                                                       round == 0 ? scaled_list[r] : NULL, 1.0f / loss_scale,
                                                       mixed.contributions[r], &mixed.contribution_bytes[r]),
                                     WEFT_OK);
                fleet_combine(&mixed, round);
                fleet_take(&mixed, round);
            }
            assert_int_equal(weft_codec_finish(mixed.codecs[0], 0.5f, other), WEFT_OK);
            assert_memory_equal(other, out, sizeof out);
            fleet_commit(&plain);
            fleet_commit(&mixed);
        }
        fleet_close(&plain);
        fleet_close(&mixed);
    }
}

/* Learning rates: workers that encode lr * gradient and rescale when lr changes have the results of workers
 * that encode the gradient and apply lr to the result (powers of two: equal bits, momentum included). */
static void test_rescale_follows_the_rate(void **state)
{
    static float scaled[COUNT];
    const float *scaled_list[1] = {scaled};
    for (int c = 3; c < CODECS; c++) {
        if (strstr(codecs[c], "clip")) continue; /* a norm in absolute terms */
        struct fleet plain, fed;
        struct sample sample = {sample_seed(79)};
        fleet_open(&plain, codecs[c], shape_of(ROWS, COLS), 1);
        fleet_open(&fed, codecs[c], shape_of(ROWS, COLS), 1);
        for (int step = 0; step < 8; step++) {
            const float lr = step < 4 ? 0.25f : 0.0625f;
            fill(&sample, 1);
            for (size_t i = 0; i < COUNT; i++)
                scaled[i] = grads[0][i] * lr;
            if (step == 4) assert_int_equal(weft_codec_rescale(fed.codecs[0], 0.25f), WEFT_OK);
            fleet_step(&plain, grad_list, lr, out);
            fleet_step(&fed, scaled_list, 1.0f, other);
            assert_memory_equal(other, out, sizeof out);
            assert_int_equal(weft_codec_rescale(fed.codecs[0], 2.0f), WEFT_ERR_STATE);
            fleet_commit(&plain);
            fleet_commit(&fed);
        }
        const double norm = weft_codec_residual_norm(fed.codecs[0]);
        /* the last for a residual of ordinary size */
        const float bad[] = {0.0f, -1.0f, NAN, INFINITY, 0x1p127f};
        for (size_t b = 0; b < (norm > 1 ? 5u : 4u); b++)
            assert_int_equal(weft_codec_rescale(fed.codecs[0], bad[b]), WEFT_ERR_INVALID);
        assert_true(weft_codec_residual_norm(fed.codecs[0]) == norm);
        fleet_close(&plain);
        fleet_close(&fed);
    }
}

/* Workers leave and join: the mean residual of the remaining workers, over the new number, is their share
 * of the old mean; a saved state brings its number along. */
static void test_ranks_change(void **state)
{
    static float before[COUNT], after[COUNT];
    for (int c = 3; c < CODECS; c++) {
        struct fleet fleet;
        struct weft_codec *restored;
        struct sample sample = {sample_seed(80)};
        fleet_open(&fleet, codecs[c], shape_of(ROWS, COLS), 4);
        for (uint32_t r = 0; r < 4; r++)
            assert_int_equal(weft_codec_set_ranks(fleet.codecs[r], 4), WEFT_OK);
        for (int step = 0; step < 3; step++) {
            fill(&sample, 4);
            fleet_step(&fleet, grad_list, 0.25f, out);
            assert_int_equal(weft_codec_set_ranks(fleet.codecs[0], 3), WEFT_ERR_STATE);
            fleet_commit(&fleet);
        }
        assert_int_equal(weft_codec_set_ranks(fleet.codecs[0], 0), WEFT_ERR_INVALID);
        fleet_residual(&fleet, 0, before);
        const size_t bytes = weft_codec_state_bytes(fleet.codecs[0]);
        uint8_t *saved = malloc(bytes);
        assert_int_equal(weft_codec_save(fleet.codecs[0], saved), WEFT_OK);
        assert_int_equal(weft_codec_create(&fleet.memory.env, &fleet.spec, &fleet.shape, &restored), WEFT_OK);
        /* of a job that had nothing to restore yet */
        assert_int_equal(weft_codec_set_ranks(restored, 9), WEFT_OK);
        assert_int_equal(weft_codec_load(restored, saved, bytes), WEFT_OK);
        assert_int_equal(weft_codec_set_ranks(restored, 2), WEFT_OK);
        codec_residual(restored, COUNT, after);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(after[i] / 2 == before[i] / 4);
        assert_int_equal(weft_codec_set_ranks(fleet.codecs[0], 5), WEFT_OK);
        fleet_residual(&fleet, 0, after);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(fabs((double)after[i] / 5 - (double)before[i] / 4) <= 1e-6 * fabs((double)before[i]));
        weft_codec_free(restored);
        free(saved);
        fleet_close(&fleet);
    }
}

static void test_no_memory(void **state)
{
    for (int c = 0; c <= CODECS; c++) {
        struct counting_env memory;
        struct weft_env *env = counting_env_init(&memory);
        const struct weft_codec_spec spec =
            spec_of(c < CODECS ? codecs[c] : "topk:ratio=0.03,min_count=0,global=1");
        const struct weft_shape shape = shape_of(ROWS, COLS);
        for (int side = 0; side < 2; side++) {
            enum weft_status status = WEFT_ERR_NO_MEMORY;
            for (long n = 1; status != WEFT_OK; n++) {
                struct weft_codec *codec = NULL;
                struct weft_combiner *combiner = NULL;
                memory.calls = 0;
                memory.fail_at = n;
                status = side == 0 ? weft_codec_create(env, &spec, &shape, &codec)
                                   : weft_combiner_create(env, &spec, &shape, 7, &combiner);
                assert_true(status == WEFT_OK || status == WEFT_ERR_NO_MEMORY);
                assert_true(n < 100);
                weft_codec_free(codec);
                weft_combiner_free(combiner);
                assert_int_equal(memory.live, 0);
            }
        }
    }
}

/* A spec that was not resolved for the shape, and shapes that are none. */
static void test_refused_creation(void **state)
{
    struct weft_codec *codec = NULL;
    struct weft_combiner *combiner = NULL;
    struct weft_env *env = weft_env_system();
    const struct weft_codec_spec low_rank = spec_of("powersgd"), sparse = spec_of("topk");
    const struct weft_shape vector = shape_of(100, 0), none = {.dim_count = 0};
    assert_int_equal(weft_codec_create(env, &low_rank, &vector, &codec), WEFT_ERR_INVALID);
    assert_int_equal(weft_codec_create(env, &sparse, &vector, &codec), WEFT_ERR_INVALID);
    assert_int_equal(weft_codec_create(env, &sparse, &none, &codec), WEFT_ERR_INVALID);
    assert_int_equal(weft_combiner_create(env, &low_rank, &vector, 2, &combiner), WEFT_ERR_INVALID);
    const struct weft_codec_spec dense = spec_of("dense");
    assert_int_equal(weft_combiner_create(env, &dense, &vector, 0, &combiner), WEFT_ERR_INVALID);
    assert_null(codec);
    assert_null(combiner);
    weft_codec_free(NULL);
    weft_combiner_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_agree),
        cmocka_unit_test(test_encode_again),
        cmocka_unit_test(test_abandon_and_refuse),
        cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_loss_scale_is_neutral),
        cmocka_unit_test(test_rescale_follows_the_rate),
        cmocka_unit_test(test_ranks_change),
        cmocka_unit_test(test_largest_and_smallest),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_combiner_restarts),
        cmocka_unit_test(test_second_combiner),
        cmocka_unit_test(test_grad_scale),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_refused_creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
