/* test_key_value.c - items, names and values of "name=value,..." texts; each kind of value at and beyond
 * its bounds. */
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "base/config/key_value.h"
#include "tests/lib/check.h"

struct sample {
    bool on;
    uint32_t level, small;
    uint64_t bytes, ns;
    float rate;
    double ratio;
    char text[6];
};

enum { FIRST = 1, SECOND = 2 };

static const struct weft_key keys[] = {
    {.name = "on",
     .type = WEFT_KEY_CHOICE,
     WEFT_KEY_AT(WEFT_FIELD_BOOL, struct sample, on),
     .choices = "off|on"},
    {.name = "level",
     .type = WEFT_KEY_CHOICE,
     WEFT_KEY_AT(WEFT_FIELD_U32, struct sample, level),
     .choices = "low|mid|high"},
    {.name = "small",
     .type = WEFT_KEY_WHOLE,
     WEFT_KEY_AT(WEFT_FIELD_U32, struct sample, small),
     .min = 2,
     .max = 64,
     .power_of_two = true},
    {.name = "bytes",
     .type = WEFT_KEY_SCALED,
     WEFT_KEY_AT(WEFT_FIELD_U64, struct sample, bytes),
     .min = 100,
     .max = 4 << 20,
     .multiple = 64},
    {.name = "ms",
     .type = WEFT_KEY_WHOLE,
     WEFT_KEY_AT(WEFT_FIELD_U64, struct sample, ns),
     .max = 1000,
     .factor = 1e6,
     .groups = FIRST},
    {.name = "us",
     .type = WEFT_KEY_REAL,
     WEFT_KEY_AT(WEFT_FIELD_U64, struct sample, ns),
     .high = 1e6,
     .factor = 1e3,
     .groups = SECOND},
    {.name = "rate",
     .type = WEFT_KEY_REAL,
     WEFT_KEY_AT(WEFT_FIELD_F32, struct sample, rate),
     .high = 1,
     .below_high = true},
    {.name = "ratio",
     .type = WEFT_KEY_DECIMAL,
     WEFT_KEY_AT(WEFT_FIELD_F64, struct sample, ratio),
     .high = 1,
     .above_low = true},
    {.name = "text", .type = WEFT_KEY_TEXT, WEFT_KEY_AT(WEFT_FIELD_TEXT, struct sample, text)},
    {0},
};

static enum weft_key_result set(const char *text, struct sample *out)
{
    struct weft_key_value item;
    const char *at = text;
    assert_true(weft_key_value_next(&at, "", &item));
    assert_int_equal(*at, 0);
    return weft_key_value_set(keys, FIRST, &item, out);
}

static void check_next(const char *text, const char *ends, const char *expected, const char *rest)
{
    char found[200] = "";
    struct weft_key_value item;
    while (weft_key_value_next(&text, ends, &item)) {
        const size_t used = strlen(found);
        snprintf(found + used, sizeof found - used, "[%.*s|%.*s|%s%.*s]", (int)item.item_bytes, item.item,
                 (int)item.name_bytes, item.name, item.value ? ":" : "-", (int)item.value_bytes,
                 item.value ? item.value : "");
    }
    assert_string_equal(found, expected);
    assert_string_equal(text, rest);
}

static void items_are_split_at_commas(void **state)
{
    (void)state;
    check_next("", "", "", "");
    check_next("a=1", "", "[a=1|a|:1]", "");
    check_next("a=1,", "", "[a=1|a|:1]", "");
    check_next("a=1,,b", "", "[a=1|a|:1][||-][b|b|-]", "");
    check_next("a==,=b", "", "[a==|a|:=][=b||:b]", "");
    check_next("a=1,b=2;c=3", ";", "[a=1|a|:1][b=2|b|:2]", ";c=3");
    check_next(";c=3", ";", "", ";c=3");
}

static void values_are_stored(void **state)
{
    (void)state;
    struct sample s = {0};
    assert_int_equal(set("on=on", &s), WEFT_KEY_STORED);
    assert_true(s.on);
    assert_int_equal(set("on=off", &s), WEFT_KEY_STORED);
    assert_false(s.on);
    assert_int_equal(set("level=high", &s), WEFT_KEY_STORED);
    assert_int_equal(s.level, 2);
    assert_int_equal(set("small=64", &s), WEFT_KEY_STORED);
    assert_int_equal(s.small, 64);
    assert_int_equal(set("bytes=4M", &s), WEFT_KEY_STORED);
    assert_int_equal(s.bytes, 4 << 20);
    assert_int_equal(set("bytes=130", &s), WEFT_KEY_STORED);
    assert_int_equal(s.bytes, 128);
    assert_int_equal(set("ms=7", &s), WEFT_KEY_STORED);
    assert_int_equal(s.ns, 7000000);
    assert_int_equal(set("rate=.5", &s), WEFT_KEY_STORED);
    assert_true(s.rate == 0.5f);
    assert_int_equal(set("ratio=1e-3", &s), WEFT_KEY_STORED);
    assert_true(s.ratio == 1e-3);
    assert_int_equal(set("text=abcde", &s), WEFT_KEY_STORED);
    assert_string_equal(s.text, "abcde");
}

static void other_values_are_refused_and_change_nothing(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "on",
        "on=",
        "on=yes",
        "on=onx",
        "level=hig",
        "level=low|mid",
        "small=1",
        "small=65",
        "small=48",
        "small=",
        "small=+4",
        "small= 4",
        "small=4k",
        "small=0x4",
        "bytes=99",
        "bytes=4097k",
        "bytes=5m",
        "bytes=1t",
        "bytes=k",
        "bytes=-1",
        "bytes=18446744073709551616",
        "bytes=18446744073709551615g",
        "ms=1001",
        "ms=1.5",
        "rate=1",
        "rate=0.99999999999",
        "rate=-1e-9",
        "rate=nan",
        "rate=inf",
        "rate=0x1p-2",
        "rate=",
        "rate=1e",
        "rate=0.00000000000000000000000000000001",
        "ratio=0",
        "ratio=1.0000001",
        "ratio=.",
        "ratio=1e-",
        "ratio=1e-41",
        "ratio=0.1234567890123456",
        "ratio=1e-23",
        "text=",
        "text=abcdef",
        "text",
    };
    struct sample s, before;
    memset(&s, 0x55, sizeof s);
    before = s;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct weft_key_value item;
        const char *at = refused[i];
        assert_true(weft_key_value_next(&at, "", &item));
        if (weft_key_value_set(keys, FIRST, &item, &s) != WEFT_KEY_REFUSED)
            fail_msg("%s was stored", refused[i]);
        assert_memory_equal(&s, &before, sizeof s);
    }
}

static void names_are_exact_and_belong_to_groups(void **state)
{
    (void)state;
    struct sample s = {0};
    struct weft_key_value item;
    const char *at = "us=2.5";
    assert_int_equal(set("o=on", &s), WEFT_KEY_UNKNOWN);
    assert_int_equal(set("onn=on", &s), WEFT_KEY_UNKNOWN);
    assert_int_equal(set("ON=on", &s), WEFT_KEY_UNKNOWN);
    assert_int_equal(set("=on", &s), WEFT_KEY_UNKNOWN);
    assert_int_equal(set("us=2.5", &s), WEFT_KEY_UNKNOWN);
    assert_true(weft_key_value_next(&at, "", &item));
    assert_int_equal(weft_key_value_set(keys, SECOND, &item, &s), WEFT_KEY_STORED);
    assert_int_equal(s.ns, 2500);
    assert_ptr_equal(weft_key_find(keys, SECOND, "us", 2), &keys[5]);
    assert_null(weft_key_find(keys, SECOND, "ms", 2));
}

static void decimals_are_the_nearest_doubles(void **state)
{
    (void)state;
    static const struct { const char *text; double value;
    } samples[] = {
        {"0", 0},
        {"0.1", 0.1},
        {"1e22", 1e22},
        {"1e-22", 1e-22},
        {"123456789012345", 123456789012345.0},
        {"000.30", 0.3},
        {"5.", 5},
        {"2E+3", 2000},
        {"1e+30", 1e30},
    };
    double value;
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        assert_true(weft_decimal_parse(samples[i].text, strlen(samples[i].text), &value));
        assert_true(value == samples[i].value);
    }
    assert_false(weft_decimal_parse("1.2.3", 5, &value));
    assert_false(weft_decimal_parse("1e 3", 4, &value));
    assert_false(weft_decimal_parse("e3", 2, &value));
    assert_false(weft_decimal_parse("-1", 2, &value));
}

static void the_locale_has_no_effect(void **state)
{
    (void)state;
    struct sample s = {0};
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) return; /* not installed: the C locale was tested above */
    assert_int_equal(set("rate=0.25", &s), WEFT_KEY_STORED);
    assert_int_equal(set("ratio=0.25", &s), WEFT_KEY_STORED);
    setlocale(LC_NUMERIC, "C");
    assert_true(s.rate == 0.25f && s.ratio == 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_are_split_at_commas),
        cmocka_unit_test(values_are_stored),
        cmocka_unit_test(other_values_are_refused_and_change_nothing),
        cmocka_unit_test(names_are_exact_and_belong_to_groups),
        cmocka_unit_test(decimals_are_the_nearest_doubles),
        cmocka_unit_test(the_locale_has_no_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
