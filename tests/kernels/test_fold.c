/* test_fold.c - the incremental fold is the recursive tree T, bit for bit, within its promised buffers. */
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
        uint32_t pooled = weft_fold_slots(ranks), freed_count;
        assert_true(pooled <= 16);
        for (uint32_t i = 0; i < pooled; i++)
            pool[i] = pool_memory[i];
        for (uint32_t r = 0; r < ranks; r++)
            sample_fill(&sample, SAMPLE_NORMAL, contributions[r], COUNT);

        struct weft_fold fold;
        weft_fold_init(&fold, COUNT);
        for (uint32_t r = 0; r < ranks; r++) {
            assert_true(pooled > 0); /* weft_fold_slots promised enough */
            float *buffer = pool[--pooled];
            memcpy(buffer, contributions[r], sizeof contributions[r]);
            freed_count = weft_fold_add(&fold, buffer, freed);
            for (uint32_t i = 0; i < freed_count; i++)
                pool[pooled++] = freed[i];
        }
        assert_int_equal(fold.added, ranks);
        const float *sum = weft_fold_finish(&fold, freed, &freed_count);
        assert_int_equal(pooled + freed_count + 1, weft_fold_slots(ranks)); /* every buffer came back */
        for (size_t e = 0; e < COUNT; e++)
            assert_int_equal(sample_bits(sum[e]), sample_bits(tree(0, ranks, e)));
    }
}

static void test_empty(void **state)
{
    struct weft_fold fold;
    float *freed[32];
    uint32_t freed_count = 9;
    weft_fold_init(&fold, COUNT);
    assert_null(weft_fold_finish(&fold, freed, &freed_count));
    assert_int_equal(freed_count, 0);
}

static void test_slots(void **state)
{
    assert_int_equal(weft_fold_slots(1), 1);
    assert_int_equal(weft_fold_slots(2), 2);
    assert_int_equal(weft_fold_slots(3), 2);
    assert_int_equal(weft_fold_slots(4), 3);
    assert_int_equal(weft_fold_slots(UINT32_MAX), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_tree),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
