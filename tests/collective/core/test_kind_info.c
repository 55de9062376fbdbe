/* test_kind_info.c - the table of kinds against the definition of each operation, written out here. */
#include "collective/collective.h"

#include <string.h>

#include "tests/lib/check.h"

enum { RANKS = 3, COUNT = 7, BYTES_MAX = 40 };
static const uint64_t counts[RANKS] = {5, 0, 9}, counts_out[RANKS] = {2, 11, 1}; /* sums: 14, 14 */

struct expected {
    enum weft_coll_kind kind;
    const char *name;
    bool is_reduction, has_root;
    uint64_t in, out, root_in, root_out; /* rank 1 calls; the root is rank 2, or rank 1 */
    uint64_t piece_in, piece_out, root_piece_in, root_piece_out; /* with counts; rank 1 has 0 elements */
};
static const struct expected expected[] = {
    {WEFT_COLL_ALL_REDUCE, "all_reduce", true, false, 7, 7, 7, 7, 7, 7, 7, 7},
    {WEFT_COLL_REDUCE_SCATTER, "reduce_scatter", true, false, 21, 7, 21, 7, 14, 0, 14, 0},
    {WEFT_COLL_ALL_GATHER, "all_gather", false, false, 7, 21, 7, 21, 0, 14, 0, 14},
    {WEFT_COLL_BROADCAST, "broadcast", false, true, 0, 7, 0, 7, 0, 7, 0, 7},
    {WEFT_COLL_BARRIER, "barrier", false, false, 0, 0, 0, 0, 0, 0, 0, 0},
    {WEFT_COLL_ALL_GATHER_BYTES, "all_gather_bytes", false, false, 7, 40, 7, 40, 7, 40, 7, 40},
    {WEFT_COLL_REDUCE, "reduce", true, true, 7, 0, 7, 7, 7, 0, 7, 7},
    {WEFT_COLL_GATHER, "gather", false, true, 7, 0, 7, 21, 7, 0, 0, 14},
    {WEFT_COLL_SCATTER, "scatter", false, true, 0, 7, 21, 7, 0, 7, 14, 0},
    {WEFT_COLL_ALL_TO_ALL, "all_to_all", false, false, 21, 21, 21, 21, 14, 14, 14, 14},
    {WEFT_COLL_SEND, "send", false, false, 7, 0, 7, 0, 7, 0, 7, 0},
    {WEFT_COLL_RECV, "recv", false, false, 0, 7, 0, 7, 0, 7, 0, 7},
    {WEFT_COLL_EXCHANGE_BYTES, "exchange_bytes", false, false, 40, 40, 40, 40, 40, 40, 40, 40},
};
_Static_assert(sizeof expected / sizeof expected[0] == WEFT_COLL_KIND_COUNT - 1, "one line for each kind");

static struct coll_elem_counts elems(enum weft_coll_kind kind, uint32_t root, bool with_counts)
{
    const struct weft_coll_caller caller = {.rank = 1, .ranks = RANKS};
    const struct weft_coll_args args = {.kind = kind,
                                        .count = COUNT,
                                        .root = root,
                                        .counts = with_counts ? counts : NULL,
                                        .counts_out = with_counts ? counts_out : NULL,
                                        .piece_bytes_max = BYTES_MAX};
    return coll_elem_counts_of(&caller, &args);
}

static void elements_of_each_kind(void **state)
{
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const struct expected *e = &expected[i];
        const struct coll_elem_counts other = elems(e->kind, 2, false), root = elems(e->kind, 1, false);
        const struct coll_elem_counts piece = elems(e->kind, 2, true), root_piece = elems(e->kind, 1, true);
        bool equal = other.in == e->in && other.out == e->out && root.in == e->root_in &&
                     root.out == e->root_out && piece.in == e->piece_in && piece.out == e->piece_out &&
                     root_piece.in == e->root_piece_in && root_piece.out == e->root_piece_out;
        if (!equal) fail_msg("%s has other elements than its definition", e->name);
    }
}

static void names_and_properties(void **state)
{
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const struct expected *e = &expected[i];
        const struct coll_kind_info *info = coll_kind_info_of(e->kind);
        assert_string_equal(weft_coll_kind_name(e->kind), e->name);
        assert_int_equal(weft_coll_kind_parse(e->name, strlen(e->name)), e->kind);
        assert_int_equal(weft_coll_kind_parse(e->name, strlen(e->name) - 1), 0);
        assert_int_equal(info->is_reduction, e->is_reduction);
        assert_int_equal(info->has_root, e->has_root);
        assert_false(info->has_byte_pieces && info->has_dtype);
        assert_false(info->has_counts_out && !info->has_pieces);
        assert_false(info->has_root_counts && !(info->has_root && info->has_pieces));
        assert_true(info->has_root ||
                    (info->root_in == COLL_EXTENT_NONE && info->root_out == COLL_EXTENT_NONE));
    }
}

/* bit k: kind k */
static void kinds_of_trainers_and_kinds_that_can_be_cut(void **state)
{
    const uint32_t cut = 1u << WEFT_COLL_ALL_REDUCE | 1u << WEFT_COLL_REDUCE | 1u << WEFT_COLL_BROADCAST |
                         1u << WEFT_COLL_SEND | 1u << WEFT_COLL_RECV;
    const uint32_t internal = 1u << WEFT_COLL_ALL_GATHER_BYTES | 1u << WEFT_COLL_EXCHANGE_BYTES;
    for (uint32_t kind = 1; kind < WEFT_COLL_KIND_COUNT; kind++) {
        assert_int_equal(coll_can_be_cut(kind), cut >> kind & 1);
        assert_int_equal(coll_is_public(kind), !(internal >> kind & 1));
    }
}

/* A header from the wire may carry any number. */
static void numbers_without_a_kind(void **state)
{
    static const uint32_t none[] = {0, WEFT_COLL_KIND_COUNT, 255, UINT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_string_equal(weft_coll_kind_name((enum weft_coll_kind)none[i]), "?");
        assert_false(coll_is_reduction(none[i]) || coll_has_root(none[i]) || coll_is_sendrecv(none[i]) ||
                     coll_has_byte_pieces(none[i]) || coll_is_public(none[i]) || coll_can_be_cut(none[i]));
    }
    assert_int_equal(weft_coll_kind_parse("?", 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_of_each_kind),
        cmocka_unit_test(names_and_properties),
        cmocka_unit_test(kinds_of_trainers_and_kinds_that_can_be_cut),
        cmocka_unit_test(numbers_without_a_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
