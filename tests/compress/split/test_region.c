/* test_region.c - a sparse sum shared out by regions gives the bits of one combiner for all; what a rank
 * sends and receives does not grow with their number; and no byte of a peer gets further than a check. */
#include "tests/compress/compress_fixture.h"

enum { RANKS_MAX = 16 };

struct shared {
    struct weft_regions *regions[RANKS_MAX];
    uint8_t *pieces[RANKS_MAX], *sums;
    uint64_t lengths[RANKS_MAX][RANKS_MAX], sum_lengths[RANKS_MAX];
    size_t piece_stride, sum_stride;
    uint32_t ranks;
};

static size_t round_up(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static void shared_open(struct shared *shared, struct fleet *fleet)
{
    const uint32_t ranks = shared->ranks = fleet->ranks;
    assert_true(weft_regions_possible(&fleet->spec, &fleet->shape, ranks));
    shared->piece_stride = round_up(weft_regions_piece_bytes_max(&fleet->spec, &fleet->shape, ranks));
    shared->sum_stride = round_up(weft_regions_sum_bytes_max(&fleet->spec, &fleet->shape, ranks));
    shared->sums = malloc(ranks * shared->sum_stride);
    for (uint32_t r = 0; r < ranks; r++) {
        shared->pieces[r] = malloc(ranks * shared->piece_stride);
        assert_int_equal(weft_regions_create(&fleet->memory.env, &fleet->spec, &fleet->shape, ranks, r,
                                             &shared->regions[r]),
                         WEFT_OK);
    }
}

static void shared_close(struct shared *shared)
{
    for (uint32_t r = 0; r < shared->ranks; r++) {
        weft_regions_free(shared->regions[r]);
        free(shared->pieces[r]);
    }
    free(shared->sums);
}

/* The exchange in the middle of an all-reduce, of what the fleet has encoded. */
static void shared_sum(struct shared *shared, const struct fleet *fleet)
{
    for (uint32_t r = 0; r < shared->ranks; r++) {
        assert_int_equal(weft_regions_split(shared->regions[r], fleet->contributions[r],
                                            fleet->contribution_bytes[r], shared->pieces[r],
                                            shared->piece_stride, shared->lengths[r]),
                         WEFT_OK);
        for (uint32_t to = 0; to < shared->ranks; to++)
            assert_true(shared->lengths[r][to] > 0 && shared->lengths[r][to] <= shared->piece_stride);
    }
    for (uint32_t r = 0; r < shared->ranks; r++) {
        struct weft_combiner *combiner = weft_regions_combiner(shared->regions[r]);
        const void *data;
        size_t bytes;
        weft_combiner_begin(combiner, 0);
        for (uint32_t from = 0; from < shared->ranks; from++)
            assert_int_equal(weft_combiner_add(combiner, shared->pieces[from] + r * shared->piece_stride,
                                               shared->lengths[from][r]),
                             WEFT_OK);
        assert_int_equal(weft_combiner_close(combiner, &data, &bytes), WEFT_OK);
        assert_true(bytes <= shared->sum_stride);
        memcpy(shared->sums + r * shared->sum_stride, data, bytes);
        shared->sum_lengths[r] = bytes;
    }
}

/* Sizes around the deal's blocks, densities from sparse to everything, every small number of ranks. */
static void test_bits_of_one_combiner(void **state)
{
    static const size_t sizes[] = {1024, 1025, 1087, 4096, 5003};
    static const char *const texts[] = {"topk:ratio=0.001,min_count=0", "topk:ratio=0.05,min_count=0",
                                        "topk:ratio=0.4,min_count=0", "topk:ratio=1,min_count=0",
                                        "topk:ratio=0.01,min_count=0,warmup_steps=2"};
    struct sample sample = {sample_seed(91)};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++)
            for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks += ranks < 5 ? 1 : 11) {
                const size_t elems = sizes[s];
                struct fleet fleet;
                struct shared shared;
                float *grads[RANKS_MAX], *expected = malloc(elems * sizeof *expected),
                                         *out = malloc(elems * sizeof *out);
                for (uint32_t r = 0; r < ranks; r++)
                    grads[r] = malloc(elems * sizeof **grads);
                fleet_open(&fleet, texts[t], shape_of(elems, 0), ranks);
                shared.ranks = ranks;
                shared_open(&shared, &fleet);
                for (int step = 0; step < 3; step++) {
                    for (uint32_t r = 0; r < ranks; r++)
                        sample_fill(&sample, SAMPLE_NORMAL, grads[r], elems);
                    fleet_step(&fleet, (const float *const *)grads, 0.5f, expected);
                    const long calls = fleet.memory.calls;
                    shared_sum(&shared, &fleet);
                    for (uint32_t r = 0; r < ranks; r++) {
                        const void *data;
                        size_t bytes;
                        assert_int_equal(weft_regions_join(shared.regions[r], shared.sums, shared.sum_stride,
                                                           shared.sum_lengths, &data, &bytes),
                                         WEFT_OK);
                        assert_true(bytes <=
                                    weft_codec_aggregate_bytes_max(&fleet.spec, &fleet.shape, 0, ranks));
                        weft_codec_abandon(fleet.codecs[r]);
                        assert_int_equal(weft_codec_encode(fleet.codecs[r], 0, grads[r], 1.0f,
                                                           fleet.contributions[r],
                                                           &fleet.contribution_bytes[r]),
                                         WEFT_OK);
                        assert_int_equal(weft_codec_take(fleet.codecs[r], 0, data, bytes, ranks), WEFT_OK);
                        assert_int_equal(weft_codec_finish(fleet.codecs[r], 0.5f, out), WEFT_OK);
                        assert_memory_equal(out, expected, elems * sizeof *out);
                    }
                    assert_int_equal(fleet.memory.calls, calls); /* nothing is allocated on the way */
                    fleet_commit(&fleet);
                }
                shared_close(&shared);
                fleet_close(&fleet);
                for (uint32_t r = 0; r < ranks; r++)
                    free(grads[r]);
                free(expected);
                free(out);
            }
}

/* The busiest rank's bytes out and in. With the same elements large everywhere (and in one contiguous part
 * of the tensor: a hot layer) they do not grow with the ranks; with different ones they never pass one
 * contribution and the vector. */
static void test_traffic(void **state)
{
    enum { ELEMS = 65536, HOT = 4096 };
    static float grads[RANKS_MAX][ELEMS], out[ELEMS];
    const float *list[RANKS_MAX];
    struct sample sample = {sample_seed(92)};
    for (int same = 0; same < 2; same++) {
        double two_ranks = 0;
        for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks *= 2) {
            struct fleet fleet;
            struct shared shared;
            size_t busiest = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                list[r] = grads[r];
                sample_fill(&sample, SAMPLE_NORMAL, grads[r], ELEMS);
                for (size_t i = 0; same && i < HOT; i += 7)
                    grads[r][i] += 100.0f;
            }
            fleet_open(&fleet, same ? "topk:ratio=0.008" : "topk:ratio=0.1", shape_of(ELEMS, 0), ranks);
            shared_open(&shared, &fleet);
            fleet_step(&fleet, list, 1.0f, out);
            shared_sum(&shared, &fleet);
            for (uint32_t r = 0; r < ranks; r++) {
                size_t sent = (ranks - 1) * shared.sum_lengths[r], received = 0;
                for (uint32_t other = 0; other < ranks; other++) {
                    if (other == r) continue;
                    sent += shared.lengths[r][other];
                    received += shared.lengths[other][r] + shared.sum_lengths[other];
                }
                busiest = sent > busiest ? sent : busiest;
                busiest = received > busiest ? received : busiest;
            }
            if (ranks == 2) two_ranks = (double)busiest;
            /* (ranks - 1) / ranks grows from 1/2 to 1, and heads */
            if (same) assert_true((double)busiest < 2.2 * two_ranks);
            assert_true(busiest < fleet.contribution_bytes[0] + ELEMS * sizeof(float) + 64 * ranks);
            shared_close(&shared);
            fleet_close(&fleet);
        }
    }
}

/* Every cut of a piece and of a sum, foreign lengths, and numbers beyond the region. */
static void test_bad_bytes(void **state)
{
    enum { ELEMS = 2000, RANKS = 3 };
    static float grads[RANKS][ELEMS], out[ELEMS];
    const float *const list[RANKS] = {grads[0], grads[1], grads[2]};
    struct sample sample = {sample_seed(93)};
    struct fleet fleet;
    struct shared shared;
    const void *data;
    size_t bytes;
    for (uint32_t r = 0; r < RANKS; r++)
        sample_fill(&sample, SAMPLE_NORMAL, grads[r], ELEMS);
    fleet_open(&fleet, "topk:ratio=0.02,min_count=0", shape_of(ELEMS, 0), RANKS);
    shared_open(&shared, &fleet);
    fleet_step(&fleet, list, 1.0f, out);
    shared_sum(&shared, &fleet);
    struct weft_combiner *combiner = weft_regions_combiner(shared.regions[0]);
    weft_combiner_begin(combiner, 0);
    for (uint32_t from = 0; from < RANKS; from++) {
        for (size_t cut = 0; cut < shared.lengths[from][0]; cut++)
            assert_int_equal(weft_combiner_add(combiner, shared.pieces[from], cut), WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, shared.pieces[from], shared.lengths[from][0] + 4),
                         WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, fleet.contributions[0], fleet.contribution_bytes[0]),
                         WEFT_ERR_MALFORMED);
        assert_int_equal(weft_combiner_add(combiner, shared.pieces[from], shared.lengths[from][0]), WEFT_OK);
    }
    assert_int_equal(weft_combiner_close(combiner, &data, &bytes), WEFT_OK);
    assert_int_equal(bytes, shared.sum_lengths[0]);
    assert_memory_equal(data, shared.sums, bytes);

    uint64_t lengths[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        memcpy(lengths, shared.sum_lengths, sizeof lengths);
        for (lengths[r] = 0; lengths[r] < shared.sum_lengths[r]; lengths[r]++)
            assert_int_equal(
                weft_regions_join(shared.regions[1], shared.sums, shared.sum_stride, lengths, &data, &bytes),
                WEFT_ERR_MALFORMED);
        lengths[r] = shared.sum_lengths[r] + 1;
        assert_int_equal(
            weft_regions_join(shared.regions[1], shared.sums, shared.sum_stride, lengths, &data, &bytes),
            WEFT_ERR_MALFORMED);
    }
    memset(shared.sums, 0xff, 4); /* "a vector", of the wrong length */
    assert_int_equal(weft_regions_join(shared.regions[1], shared.sums, shared.sum_stride, shared.sum_lengths,
                                       &data, &bytes),
                     WEFT_ERR_MALFORMED);
    assert_int_equal(weft_regions_split(shared.regions[0], fleet.contributions[0],
                                        fleet.contribution_bytes[0] - 1, shared.pieces[0],
                                        shared.piece_stride, shared.lengths[0]),
                     WEFT_ERR_MALFORMED);
    shared_close(&shared);
    fleet_close(&fleet);
}

static void test_creation(void **state)
{
    struct counting_env memory;
    struct weft_env *env = counting_env_init(&memory);
    struct weft_regions *regions = NULL;
    const struct weft_codec_spec sparse = spec_of("topk:ratio=0.1,min_count=0"), dense = spec_of("dense");
    const struct weft_shape shape = shape_of(1000, 0), tiny = shape_of(100, 0);
    assert_false(weft_regions_possible(&dense, &shape, 4));
    assert_false(weft_regions_possible(&sparse, &shape, 1));
    assert_false(weft_regions_possible(&sparse, &tiny, 3)); /* two blocks of 64 */
    assert_int_equal(weft_regions_create(env, &dense, &shape, 4, 0, &regions), WEFT_ERR_INVALID);
    assert_int_equal(weft_regions_create(env, &sparse, &shape, 4, 4, &regions), WEFT_ERR_INVALID);
    assert_int_equal(weft_regions_create(env, &sparse, &tiny, 3, 0, &regions), WEFT_ERR_INVALID);
    enum weft_status status = WEFT_ERR_NO_MEMORY;
    for (long n = 1; status != WEFT_OK; n++) {
        memory.calls = 0;
        memory.fail_at = n;
        status = weft_regions_create(env, &sparse, &shape, 5, 2, &regions);
        assert_true(status == WEFT_OK || status == WEFT_ERR_NO_MEMORY);
        if (status == WEFT_OK) weft_regions_free(regions);
        assert_int_equal(memory.live, 0);
        assert_true(n < 100);
    }
    weft_regions_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_one_combiner),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_bad_bytes),
        cmocka_unit_test(test_creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
