/* test_layout_hash.c - if two layouts differ in the count of one piece, the hashes determine the piece and
 * the other count. */
#include "tests/lib/check.h"

#include <string.h>

#include "collective/core/layout_hash.h"

enum { RANKS = 300 };

static uint64_t counts[RANKS], cuts[RANKS + 1];

static uint64_t fill(uint32_t ranks, uint64_t seed)
{
    for (uint32_t r = 0; r < ranks; r++) {
        counts[r] = (seed + 7919ull * r) % 1000 << r % 20;
        cuts[r + 1] = cuts[r] + counts[r];
    }
    return coll_layout_hash(counts, ranks);
}

static void one_count_differs(void **state)
{
    static const uint64_t others[] = {0, 1, 999, 123456789, (1ull << 36) - 1};
    for (uint32_t ranks = 1; ranks <= RANKS; ranks = ranks * 2 + 1) {
        for (uint32_t piece = 0; piece < ranks; piece += 1 + ranks / 9) {
            for (size_t o = 0; o < sizeof others / sizeof others[0]; o++) {
                const uint64_t own = fill(ranks, piece);
                struct coll_layout_difference found = {.piece = ranks};
                const bool differs = counts[piece] != others[o];
                counts[piece] = others[o];
                const uint64_t theirs = coll_layout_hash(counts, ranks);
                assert_true((own != theirs) == differs);
                assert_true(coll_layout_find(cuts, ranks, own, theirs, &found) == differs);
                if (!differs) continue;
                assert_int_equal(found.piece, piece);
                assert_int_equal(found.count, others[o]);
            }
        }
    }
}

/* If the counts of several pieces differ, or a count exceeds the range of the hash, the function finds no
 * piece. */
static void others_show_nothing(void **state)
{
    struct coll_layout_difference found;
    for (uint32_t piece = 1; piece < 50; piece++) {
        const uint64_t own = fill(50, 3);
        counts[piece] += 5;
        counts[piece - 1] += 5;
        assert_false(coll_layout_find(cuts, 50, own, coll_layout_hash(counts, 50), &found));
        (void)fill(50, 3);
        counts[piece] = 1ull << 36;
        assert_false(coll_layout_find(cuts, 50, own, coll_layout_hash(counts, 50), &found));
    }
    (void)fill(2, 3);
    const uint64_t one = coll_layout_hash((uint64_t[]){3, 4}, 2),
                   other = coll_layout_hash((uint64_t[]){4, 3}, 2);
    assert_int_not_equal(one, other);
}

static void counts_as_text(void **state)
{
    char text[64];
    (void)fill(3, 1);
    memcpy(cuts, (uint64_t[]){0, 3, 3, 10}, 4 * sizeof *cuts);
    coll_layout_format(cuts, 3, text, sizeof text);
    assert_string_equal(text, "3, 0, 7");
    for (uint32_t r = 0; r <= 9; r++) cuts[r] = r;
    coll_layout_format(cuts, 9, text, sizeof text);
    assert_string_equal(text, "1, 1, 1, 1, 1, 1, 1, 1, ...");
    coll_layout_format(cuts, 9, text, 5);
    assert_string_equal(text, "1, 1");
    cuts[0] = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_count_differs),
        cmocka_unit_test(others_show_nothing),
        cmocka_unit_test(counts_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
