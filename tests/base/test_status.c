/* test_status.c - names and texts of statuses and types, read from the header, so that a value without a name
 * fails. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/lib/check.h"

static void every_status_has_its_name_and_text(void **state)
{
    /* WEFT_SOURCE_ROOT comes from meson. */
    FILE *header = fopen(WEFT_SOURCE_ROOT "/base/include/weft/status.h", "r");
    assert_non_null(header);
    char line[300], name[64];
    int value, found = 0;
    while (fgets(line, sizeof line, header)) {
        if (sscanf(line, " %63[A-Z0-9_] = %d,", name, &value) != 2) continue;
        found++;
        assert_string_equal(weft_status_name((enum weft_status)value), name);
        const char *text = weft_status_text((enum weft_status)value);
        assert_true(strlen(text) >= 4 && islower((unsigned char)text[0]));
        assert_null(strstr(text, "does not know"));
    }
    fclose(header);
    assert_true(found >= 26);
    assert_string_equal(weft_status_name((enum weft_status)-99), "WEFT_ERR_?");
    assert_non_null(strstr(weft_status_text((enum weft_status)77), "does not know"));
}

static void types_have_sizes_and_names(void **state)
{
    static const struct { enum weft_dtype dtype; size_t bytes; const char *name; } known[] = {
        {WEFT_F32, 4, "f32"}, {WEFT_F16, 2, "f16"}, {WEFT_BF16, 2, "bf16"}, {WEFT_I64, 8, "i64"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_int_equal(weft_dtype_bytes(known[i].dtype), known[i].bytes);
        assert_string_equal(weft_dtype_name(known[i].dtype), known[i].name);
        assert_int_equal(weft_dtype_parse(known[i].name), known[i].dtype);
    }
    assert_int_equal(weft_dtype_bytes((enum weft_dtype)0), 0);
    assert_int_equal(weft_dtype_bytes((enum weft_dtype)99), 0);
    assert_string_equal(weft_dtype_name((enum weft_dtype)99), "?");
    assert_int_equal(weft_dtype_parse("float"), 0);
    assert_string_equal(weft_op_name(WEFT_SUM), "sum");
    assert_string_equal(weft_op_name(WEFT_AVG), "avg");
    assert_string_equal(weft_op_name((enum weft_op)0), "?");
}

static int completions;
static enum weft_status completed_with;
static void on_complete(struct weft_completion *completion, enum weft_status status)
{
    completions++;
    completed_with = status;
}

static void a_completion_keeps_the_first_error(void **state)
{
    struct weft_completion completion;
    weft_completion_init(&completion, 3, on_complete);
    weft_completion_finish(&completion, WEFT_OK);
    weft_completion_finish(&completion, WEFT_ERR_PEER_LOST);
    assert_int_equal(completions, 0);
    weft_completion_finish(&completion, WEFT_ERR_CLOSED);
    assert_int_equal(completions, 1);
    assert_int_equal(completed_with, WEFT_ERR_PEER_LOST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_name_and_text),
        cmocka_unit_test(types_have_sizes_and_names),
        cmocka_unit_test(a_completion_keeps_the_first_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
