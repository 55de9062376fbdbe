/* fuzz_key_value.c - "name=value,..." texts: items cover the text, stored values are in range, refused
 * ones store nothing, and writes stay inside their field. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/key_value.h"
#include "tests/fuzz/fuzz.h"

struct sample {
    uint8_t guard[8];
    bool on;
    uint32_t depth;
    uint64_t bytes;
    float rate;
    double ratio;
    char text[9];
    uint8_t end_guard[8];
};

static const struct weft_key keys[] = {
    {.name = "on",
     .type = WEFT_KEY_CHOICE,
     WEFT_KEY_AT(WEFT_FIELD_BOOL, struct sample, on),
     .choices = "off|on"},
    {.name = "depth",
     .type = WEFT_KEY_WHOLE,
     WEFT_KEY_AT(WEFT_FIELD_U32, struct sample, depth),
     .min = 8,
     .max = 1024,
     .power_of_two = true},
    {.name = "bytes",
     .type = WEFT_KEY_SCALED,
     WEFT_KEY_AT(WEFT_FIELD_U64, struct sample, bytes),
     .min = 4096,
     .max = UINT64_MAX,
     .multiple = 64},
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

static void must(bool holds)
{
    if (!holds) abort();
}

static bool in_range(const struct sample *s, const char *name)
{
    switch (name[0]) {
    case 'o': return s->on == 0 || s->on == 1;
    case 'd': return s->depth >= 8 && s->depth <= 1024 && (s->depth & (s->depth - 1)) == 0;
    case 'b': return s->bytes >= 4096 && s->bytes % 64 == 0;
    case 'r':
        return name[2] == 't' && name[3] == 'e' ? s->rate >= 0 && s->rate < 1 : s->ratio > 0 && s->ratio <= 1;
    default: return strnlen(s->text, sizeof s->text) > 0 && strnlen(s->text, sizeof s->text) < sizeof s->text;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);
    if (!text) return 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    struct weft_key_value item;
    struct sample s, before;
    const char *at = text, *expected = text;
    while (weft_key_value_next(&at, ";", &item)) {
        must(item.item == expected && item.name == item.item && !memchr(item.item, ',', item.item_bytes));
        must(item.name_bytes + (item.value ? 1 + item.value_bytes : 0) == item.item_bytes);
        expected = at;
        memset(&s, 0x5a, sizeof s);
        before = s;
        const enum weft_key_result result = weft_key_value_set(keys, 0, &item, &s);
        const struct weft_key *key = weft_key_find(keys, 0, item.name, item.name_bytes);
        must((result == WEFT_KEY_UNKNOWN) == !key);
        if (result == WEFT_KEY_STORED) {
            must(in_range(&s, key->name));
            memset((uint8_t *)&before + key->offset, 0, key->bytes);
            memset((uint8_t *)&s + key->offset, 0, key->bytes);
        }
        must(memcmp(&s, &before, sizeof s) == 0);
    }
    must(*at == 0 || *at == ';');
    free(text);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const parts[] = {"on=on",      "depth=64",  "bytes=16k",          "rate=.25",
                                        "ratio=1e-3", "text=eth0", "bytes=17179869183g", "other=1",
                                        "on",         "="};
    size_t at = 0;
    for (uint64_t rest = number + 1; rest > 0 && at + 30 < capacity; rest /= 10)
        at += (size_t)snprintf((char *)out + at, capacity - at, "%s%s", at ? "," : "", parts[rest % 10]);
    return at;
}
