/* test_piece.c - a tensor combined in pieces has the bits of one combiner for all, over steps, with its
 * residual; and what is refused. */
#include "tests/compress/compress_fixture.h"

static const char *const cut[] = {"bf16", "int8:min_count=0", "int8", "int4:min_count=0", "e4m3:min_count=0",
                                  "e5m2"};
static const char *const whole[] = {"dense",          "f16", "sign", "topk:ratio=0.05", "randomk:ratio=0.05",
                                    "powersgd:rank=2"};
enum {
    CUT = sizeof cut / sizeof cut[0],
    WHOLE = sizeof whole / sizeof whole[0],
    ROWS = 53,
    COLS = 59,
    COUNT = ROWS * COLS,
    STEPS = 5
};

static float grads[FLEET_MAX][COUNT], wanted[COUNT], got[COUNT];
static const float *grad_list[FLEET_MAX];

static void fill(struct sample *sample, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        grad_list[r] = grads[r];
        sample_fill(sample, SAMPLE_NORMAL, grads[r], COUNT);
    }
}

/* Each piece to a combiner made for it alone; their aggregates one behind the other. */
static void combine_in_pieces(struct fleet *fleet, uint32_t round, size_t piece)
{
    const struct weft_codec_spec spec = weft_codec_of_piece(&fleet->spec);
    size_t at[FLEET_MAX] = {0};
    fleet->aggregate_bytes = 0;
    for (size_t from = 0; from < fleet->elems; from += piece) {
        const struct weft_shape shape =
            shape_of(fleet->elems - from < piece ? fleet->elems - from : piece, 0);
        const size_t one = weft_codec_contribution_bytes_max(&spec, &shape, round);
        struct weft_combiner *combiner;
        const void *data;
        size_t bytes;
        assert_int_equal(weft_combiner_create(weft_env_system(), &spec, &shape, fleet->ranks, &combiner),
                         WEFT_OK);
        for (uint32_t before = 0; before < round; before++) weft_combiner_begin(combiner, before);
        weft_combiner_begin(combiner, round);
        for (uint32_t r = 0; r < fleet->ranks; r++) {
            assert_int_equal(weft_combiner_add(combiner, fleet->contributions[r] + at[r], one), WEFT_OK);
            at[r] += one;
        }
        assert_int_equal(weft_combiner_close(combiner, &data, &bytes), WEFT_OK);
        assert_int_equal(bytes, weft_codec_aggregate_bytes_max(&spec, &shape, round, fleet->ranks));
        memcpy(fleet->aggregate + fleet->aggregate_bytes, data, bytes);
        fleet->aggregate_bytes += bytes;
        weft_combiner_free(combiner);
    }
    for (uint32_t r = 0; r < fleet->ranks; r++) assert_int_equal(at[r], fleet->contribution_bytes[r]);
}

static void step_in_pieces(struct fleet *fleet, size_t piece, float scale, float *out)
{
    for (uint32_t round = 0; round < weft_codec_rounds(&fleet->spec); round++) {
        fleet_encode(fleet, round, round == 0 ? grad_list : NULL);
        combine_in_pieces(fleet, round, piece);
        fleet_take(fleet, round);
    }
    for (uint32_t r = 0; r < fleet->ranks; r++)
        assert_int_equal(weft_codec_finish(fleet->codecs[r], scale, out), WEFT_OK);
}

static void check_states(const struct fleet *a, const struct fleet *b)
{
    const size_t bytes = weft_codec_state_bytes(a->codecs[0]);
    uint8_t *saved[2] = {malloc(bytes), malloc(bytes)};
    for (uint32_t r = 0; r < a->ranks; r++) {
        assert_int_equal(weft_codec_state_bytes(b->codecs[r]), bytes);
        assert_int_equal(weft_codec_save(a->codecs[r], saved[0]), WEFT_OK);
        assert_int_equal(weft_codec_save(b->codecs[r], saved[1]), WEFT_OK);
        assert_memory_equal(saved[0], saved[1], bytes);
        /* a state does not depend on the pieces */
        assert_int_equal(weft_codec_load(b->codecs[r], saved[0], bytes), WEFT_OK);
    }
    free(saved[0]);
    free(saved[1]);
}

static void test_the_bits_of_one(void **state)
{
    /* the last but one leaves 55 elements, the last is all */
    static const size_t pieces[] = {256, 512, 1280, 3072, 1 << 20};
    for (int c = 0; c < CUT; c++)
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++)
            for (uint32_t ranks = 1; ranks <= 5; ranks += 2) {
                struct fleet one, many;
                struct sample sample = {sample_seed(31)};
                fleet_open(&one, cut[c], shape_of(ROWS, COLS), ranks);
                fleet_open(&many, cut[c], shape_of(ROWS, COLS), ranks);
                assert_true(weft_codec_can_split(&one.spec));
                for (uint32_t r = 0; r < ranks; r++) {
                    assert_int_equal(weft_codec_set_stream(one.codecs[r], 7, r), WEFT_OK);
                    assert_int_equal(weft_codec_set_stream(many.codecs[r], 7, r), WEFT_OK);
                    assert_int_equal(weft_codec_set_pieces(many.codecs[r], pieces[p]), WEFT_OK);
                }
                for (int step = 0; step < STEPS; step++) {
                    fill(&sample, ranks);
                    fleet_step(&one, grad_list, 0.5f, wanted);
                    step_in_pieces(&many, pieces[p] < COUNT ? pieces[p] : COUNT, 0.5f, got);
                    assert_memory_equal(got, wanted, sizeof wanted);
                    fleet_commit(&one);
                    fleet_commit(&many);
                    check_states(&one, &many);
                }
                fleet_close(&one);
                fleet_close(&many);
            }
}

/* A retry sends the bytes that were sent. */
static void test_again(void **state)
{
    for (int c = 0; c < CUT; c++) {
        struct fleet fleet;
        struct sample sample = {sample_seed(32)};
        fleet_open(&fleet, cut[c], shape_of(ROWS, COLS), 1);
        assert_int_equal(weft_codec_set_pieces(fleet.codecs[0], 512), WEFT_OK);
        fill(&sample, 1);
        fleet_encode(&fleet, 0, grad_list);
        uint8_t *first = malloc(fleet.contribution_bytes[0]);
        memcpy(first, fleet.contributions[0], fleet.contribution_bytes[0]);
        memset(fleet.contributions[0], 0xee, fleet.contribution_bytes[0]);
        fleet_encode(&fleet, 0, grad_list);
        assert_memory_equal(first, fleet.contributions[0], fleet.contribution_bytes[0]);
        /* half of a step is out */
        assert_int_equal(weft_codec_set_pieces(fleet.codecs[0], 256), WEFT_ERR_STATE);
        weft_codec_abandon(fleet.codecs[0]);
        grads[0][COUNT - 1] = INFINITY; /* in the last piece alone */
        size_t bytes;
        assert_int_equal(weft_codec_encode(fleet.codecs[0], 0, grads[0], 1, fleet.contributions[0], &bytes),
                         WEFT_ERR_INVALID);
        free(first);
        fleet_close(&fleet);
    }
}

/* Which piece it was. */
static void test_damaged(void **state)
{
    static const char *const integers[] = {"int8:min_count=0", "int4:min_count=0"};
    for (int c = 0; c < 2; c++)
        for (uint32_t bad_round = 0; bad_round < 2; bad_round++)
            for (size_t at = 0; at < COUNT; at += 500) {
                struct fleet fleet;
                struct sample sample = {sample_seed(33)};
                fleet_open(&fleet, integers[c], shape_of(ROWS, COLS), 3);
                for (uint32_t r = 0; r < 3; r++)
                    assert_int_equal(weft_codec_set_pieces(fleet.codecs[r], 512), WEFT_OK);
                fill(&sample, 3);
                for (uint32_t round = 0; round <= bad_round; round++) {
                    fleet_encode(&fleet, round, round == 0 ? grad_list : NULL);
                    combine_in_pieces(&fleet, round, 512);
                    if (round < bad_round) fleet_take(&fleet, round);
                }
                const size_t width = fleet.aggregate_bytes / COUNT; /* of a sum: i16, or i8 */
                uint8_t *byte =
                            &fleet.aggregate[bad_round == 0 ? at / WEFT_CODEC_PIECE : at * width + width - 1],
                        good = *byte;
                *byte = 0x7f + (bad_round == 0) * 0x80;
                assert_int_equal(
                    weft_codec_take(fleet.codecs[1], bad_round, fleet.aggregate, fleet.aggregate_bytes, 3),
                    WEFT_ERR_MALFORMED);
                assert_int_equal(weft_codec_malformed_elem(fleet.codecs[1]), at / 512 * 512);
                *byte = good;
                fleet_take(&fleet, bad_round); /* it has changed nothing */
                fleet_close(&fleet);
            }
}

static void test_refusals(void **state)
{
    struct fleet fleet;
    fleet_open(&fleet, "bf16", shape_of(ROWS, COLS), 1);
    assert_int_equal(weft_codec_set_pieces(fleet.codecs[0], 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_codec_set_pieces(fleet.codecs[0], 255), WEFT_ERR_INVALID);
    assert_int_equal(weft_codec_set_pieces(fleet.codecs[0], 257), WEFT_ERR_INVALID);
    fleet_close(&fleet);
    for (int c = 0; c < WHOLE; c++) {
        fleet_open(&fleet, whole[c], shape_of(ROWS, COLS), 1);
        assert_false(weft_codec_can_split(&fleet.spec));
        assert_int_equal(weft_codec_set_pieces(fleet.codecs[0], 512), WEFT_ERR_UNSUPPORTED);
        fleet_close(&fleet);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_bits_of_one), cmocka_unit_test(test_again),
                                       cmocka_unit_test(test_damaged), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
