/* test_tree_reduce.c - the incremental fold is the recursive tree T, bit for bit, within its promised
 * buffers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/kernels/sample.h"

enum { RANKS_MAX = 130, COUNT = 19 };
static float contributions[RANKS_MAX][COUNT];

/* The definition, word for word: h is the largest power of two below b - a. */
static float tree(uint32_t a, uint32_t b, size_t element)
{
    if (b - a == 1) return contributions[a][element];
    uint32_t h = 1;
    while (h * 2 < b - a)
        h *= 2;
    return tree(a, a + h, element) + tree(a + h, b, element);
}

static void test_equals_tree(void **state)
{
    struct sample sample = {sample_seed(7)};
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
        float pool_memory[16][COUNT], *pool[16], *freed[32];
        uint32_t pooled = weft_tree_reduce_buffer_count(ranks), freed_count;
        assert_true(pooled <= 16);
        for (uint32_t i = 0; i < pooled; i++)
            pool[i] = pool_memory[i];
        for (uint32_t r = 0; r < ranks; r++)
            sample_fill(&sample, SAMPLE_NORMAL, contributions[r], COUNT);

        struct weft_tree_reduce reduce;
        weft_tree_reduce_init(&reduce, COUNT);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_true(pooled > 0); /* weft_tree_reduce_buffer_count promised enough */
            float *buffer = pool[--pooled];
            memcpy(buffer, contributions[r], sizeof contributions[r]);
            freed_count = weft_tree_reduce_add(&reduce, buffer, freed);
            for (uint32_t i = 0; i < freed_count; i++)
                pool[pooled++] = freed[i];
        }
        assert_int_equal(reduce.added, ranks);
        const float *sum = weft_tree_reduce_finish(&reduce, freed, &freed_count);
        /* every buffer was freed */
        assert_int_equal(pooled + freed_count + 1, weft_tree_reduce_buffer_count(ranks));
        for (size_t e = 0; e < COUNT; e++)
            assert_int_equal(sample_bits(sum[e]), sample_bits(tree(0, ranks, e)));
    }
}

/* Sources that are all there: the same bits, with a factor those of the scaled sum. */
static void test_sources(void **state)
{
    static float wide[WEFT_SUM_SOURCES_MAX][1037], out[1037], folded[WEFT_SUM_SOURCES_MAX][1037];
    struct sample sample = {sample_seed(11)};
    for (uint32_t ranks = 1; ranks <= WEFT_SUM_SOURCES_MAX; ranks++) {
        const float *sources[WEFT_SUM_SOURCES_MAX];
        float *freed[32];
        uint32_t freed_count;
        struct weft_tree_reduce reduce;
        weft_tree_reduce_init(&reduce, 1037);
        reduce.finds_max = true;
        for (uint32_t r = 0; r < ranks; r++) {
            sample_fill(&sample, SAMPLE_NORMAL, wide[r], 1037);
            memcpy(folded[r], wide[r], sizeof wide[r]);
            sources[r] = wide[r];
            (void)weft_tree_reduce_add(&reduce, folded[r], freed);
        }
        float *sum = weft_tree_reduce_finish(&reduce, freed, &freed_count);
        const uint32_t most = weft_kernels()->max_abs_bits_f32(sum, 1037);
        assert_int_equal(weft_sum_sources_f32(out, sources, ranks, 1.0f, 1037), most);
        assert_memory_equal(out, sum, sizeof out);
        if (ranks > 1) assert_true(reduce.max_bits >= most); /* also of partial sums */
        if (ranks == 2) assert_int_equal(reduce.max_bits, most);
        const uint32_t scaled = weft_sum_sources_f32(out, sources, ranks, 0.37f, 1037);
        weft_kernels()->scale_f32(sum, sum, 0.37f, 1037);
        assert_memory_equal(out, sum, sizeof out);
        assert_int_equal(scaled, weft_kernels()->max_abs_bits_f32(sum, 1037));
    }
}

/* max_bits is at least infinity if one contribution of any rank is not finite, and below it if all are
 * finite. */
static void test_max(void **state)
{
    static float memory[RANKS_MAX][COUNT];
    for (uint32_t ranks = 2; ranks <= 20; ranks++) {
        for (uint32_t bad = 0; bad <= ranks; bad++) {
            struct weft_tree_reduce reduce;
            float *freed[32];
            uint32_t freed_count;
            weft_tree_reduce_init(&reduce, COUNT);
            reduce.finds_max = true;
            for (uint32_t r = 0; r < ranks; r++) {
                for (uint32_t i = 0; i < COUNT; i++) memory[r][i] = (float)i - 2;
                if (r == bad) memory[r][bad % COUNT] = bad % 2 ? NAN : -INFINITY;
                (void)weft_tree_reduce_add(&reduce, memory[r], freed);
            }
            (void)weft_tree_reduce_finish(&reduce, freed, &freed_count);
            assert_int_equal(reduce.max_bits >= WEFT_F32_INFINITY_BITS, bad < ranks);
        }
    }
}

/* In pieces, the last one first: the same bits, and the same buffers are returned. */
static void test_pieces(void **state)
{
    struct sample sample = {sample_seed(8)};
    for (uint32_t ranks = 1; ranks <= 40; ranks++) {
        float whole_memory[RANKS_MAX][COUNT], pieces_memory[RANKS_MAX][COUNT], *freed[2][32];
        struct weft_tree_reduce whole, pieces;
        uint32_t freed_count[2];
        weft_tree_reduce_init(&whole, COUNT);
        weft_tree_reduce_init(&pieces, COUNT);
        for (uint32_t r = 0; r < ranks; r++) {
            sample_fill(&sample, SAMPLE_NORMAL, whole_memory[r], COUNT);
            memcpy(pieces_memory[r], whole_memory[r], sizeof whole_memory[r]);
            freed_count[0] = weft_tree_reduce_add(&whole, whole_memory[r], freed[0]);
            const bool merges = weft_tree_reduce_needs_merge(&pieces);
            for (size_t from = COUNT, count; from > 0;) {
                from -= count = from % 3 ? 1 : 3;
                weft_tree_reduce_merge(&pieces, pieces_memory[r] + from, from, count);
            }
            if (merges) memset(pieces_memory[r], 0x7f, sizeof pieces_memory[r]); /* not read */
            freed_count[1] = weft_tree_reduce_push(&pieces, pieces_memory[r], freed[1]);
            assert_int_equal(freed_count[0], freed_count[1]);
            assert_true(merges == (freed_count[1] > 0));
            for (uint32_t i = 0; i < freed_count[0]; i++)
                assert_int_equal((float(*)[COUNT])freed[0][i] - whole_memory,
                                 (float(*)[COUNT])freed[1][i] - pieces_memory);
        }
        const float *sum = weft_tree_reduce_finish(&whole, freed[0], &freed_count[0]);
        for (size_t e = 0; e < COUNT; e++)
            assert_ptr_equal(weft_tree_reduce_merge_rest(&pieces, e, 1), pieces_memory[0]);
        assert_ptr_equal(weft_tree_reduce_close(&pieces, freed[1], &freed_count[1]), pieces_memory[0]);
        assert_int_equal(freed_count[0], freed_count[1]);
        assert_int_equal(pieces.added, 0);
        assert_memory_equal(sum, pieces_memory[0], sizeof pieces_memory[0]);
    }
}

static void test_empty(void **state)
{
    struct weft_tree_reduce reduce;
    float *freed[32];
    uint32_t freed_count = 9;
    weft_tree_reduce_init(&reduce, COUNT);
    assert_null(weft_tree_reduce_finish(&reduce, freed, &freed_count));
    assert_int_equal(freed_count, 0);
}

static void test_slots(void **state)
{
    assert_int_equal(weft_tree_reduce_buffer_count(1), 1);
    assert_int_equal(weft_tree_reduce_buffer_count(2), 2);
    assert_int_equal(weft_tree_reduce_buffer_count(3), 2);
    assert_int_equal(weft_tree_reduce_buffer_count(4), 3);
    assert_int_equal(weft_tree_reduce_buffer_count(UINT32_MAX), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_tree), cmocka_unit_test(test_sources), cmocka_unit_test(test_max),
        cmocka_unit_test(test_pieces),      cmocka_unit_test(test_empty),   cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
