/* key_value.c - see key_value.h. */
#include "base/config/key_value.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/weft_assert.h"

#define DECIMAL_DIGITS_MAX 15
#define REAL_BYTES_MAX 32u

bool weft_key_value_next(const char **text, const char *ends, struct weft_key_value *item_out)
{
    const char *at = *text, *end = at;
    if (!*at || strchr(ends, *at)) return false;
    while (*end && *end != ',' && !strchr(ends, *end)) end++;
    const char *equals = memchr(at, '=', (size_t)(end - at));
    *item_out = (struct weft_key_value){.item = at, .item_bytes = (size_t)(end - at), .name = at};
    item_out->name_bytes = equals ? (size_t)(equals - at) : item_out->item_bytes;
    if (equals) item_out->value = equals + 1, item_out->value_bytes = (size_t)(end - equals - 1);
    *text = end + (*end == ',');
    return true;
}

const struct weft_key *weft_key_find(const struct weft_key *keys, uint32_t groups, const char *name,
                                     size_t name_bytes)
{
    for (; keys->name; keys++) {
        const bool in_group = !keys->groups || keys->groups & groups;
        if (in_group && strlen(keys->name) == name_bytes && memcmp(keys->name, name, name_bytes) == 0)
            return keys;
    }
    return NULL;
}

bool weft_whole_parse(const char *text, size_t bytes, uint64_t *value_out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        const unsigned digit = (unsigned char)text[i] - '0';
        if (digit > 9 || value > (UINT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *value_out = value;
    return bytes > 0;
}

/* ---- decimal numbers ---- */

/* Digits with at most one point. Returns the bytes read; 0: no digit, or too many. */
static size_t read_mantissa(const char *text, size_t bytes, uint64_t *mantissa, int *exponent)
{
    int digits = 0;
    bool point = false, any = false;
    size_t i = 0;
    for (; i < bytes; i++) {
        const unsigned digit = (unsigned char)text[i] - '0';
        if (text[i] == '.' && !point) {
            point = true;
            continue;
        }
        if (digit > 9) break;
        any = true;
        digits += *mantissa > 0 || digit > 0;
        if (digits > DECIMAL_DIGITS_MAX) return 0;
        *mantissa = *mantissa * 10 + digit;
        *exponent -= point;
    }
    return any ? i : 0;
}

static bool read_exponent(const char *text, size_t bytes, int *exponent)
{
    uint64_t written;
    if (bytes == 0) return true;
    if (*text != 'e' && *text != 'E') return false;
    const bool negative = bytes > 1 && text[1] == '-';
    const size_t sign = bytes > 1 && (negative || text[1] == '+');
    if (!weft_whole_parse(text + 1 + sign, bytes - 1 - sign, &written) || written > 40) return false;
    *exponent += negative ? -(int)written : (int)written;
    return true;
}

bool weft_decimal_parse(const char *text, size_t bytes, double *value_out)
{
    uint64_t mantissa = 0;
    int exponent = 0;
    const size_t used = read_mantissa(text, bytes, &mantissa, &exponent);
    if (used == 0 || !read_exponent(text + used, bytes - used, &exponent)) return false;
    /* "1e+30": zeros of the mantissa may be written in the exponent */
    for (; exponent > 22 && mantissa < UINT64_C(100000000000000); exponent--) mantissa *= 10;
    if (exponent < -22 || exponent > 22) return false;
    double power = 1.0;
    for (int p = 0; p < abs(exponent); p++) power *= 10.0;
    *value_out = exponent < 0 ? (double)mantissa / power : (double)mantissa * power;
    return true;
}

/* No "inf", "nan", hexadecimal digits or blanks. */
static bool real_parse(const char *text, size_t bytes, double *value_out)
{
    char copy[REAL_BYTES_MAX], *end;
    if (bytes == 0 || bytes >= sizeof copy) return false;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    if (strspn(copy, "0123456789+-.eE") != bytes) return false;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) return false;
    *value_out = strtod_l(copy, &end, c_locale);
    freelocale(c_locale);
    return *end == 0 && isfinite(*value_out);
}

/* ---- values ---- */

static bool parse_whole(const struct weft_key *key, const struct weft_key_value *item, uint64_t *value_out)
{
    size_t bytes = item->value_bytes;
    int shift = 0;
    if (key->type == WEFT_KEY_SCALED && bytes > 1) {
        const char last = item->value[bytes - 1] | 0x20;
        shift = last == 'k' ? 10 : last == 'm' ? 20 : last == 'g' ? 30 : 0;
        bytes -= shift > 0;
    }
    if (!weft_whole_parse(item->value, bytes, value_out) || *value_out > key->max >> shift) return false;
    *value_out <<= shift;
    if (*value_out < key->min || (key->power_of_two && *value_out & (*value_out - 1))) return false;
    if (key->multiple) *value_out -= *value_out % key->multiple;
    return true;
}

static bool parse_real(const struct weft_key *key, const struct weft_key_value *item, double *value_out)
{
    double value;
    const bool is_number = key->type == WEFT_KEY_DECIMAL
                               ? weft_decimal_parse(item->value, item->value_bytes, &value)
                               : real_parse(item->value, item->value_bytes, &value);
    if (!is_number || !(value >= key->low && value <= key->high)) return false;
    if (key->field == WEFT_FIELD_BOOL && value != 0 && value != 1) return false;
    /* An exclusive bound holds for the stored value, which may be rounded to it. */
    const double stored = key->field == WEFT_FIELD_F32 ? (double)(float)value : value;
    *value_out = value;
    return !(key->above_low && !(stored > key->low)) && !(key->below_high && !(stored < key->high));
}

static bool parse_choice(const char *choices, const struct weft_key_value *item, uint64_t *index_out)
{
    for (uint64_t index = 0;; index++) {
        const size_t bytes = strcspn(choices, "|");
        if (bytes == item->value_bytes && memcmp(choices, item->value, bytes) == 0)
            return *index_out = index, true;
        if (!choices[bytes]) return false;
        choices += bytes + 1;
    }
}

static void store_whole(const struct weft_key *key, uint64_t value, void *at)
{
    if (key->factor > 0) value *= (uint64_t)key->factor;
    const bool on = value != 0;
    const uint8_t u8 = (uint8_t)value;
    const uint32_t u32 = (uint32_t)value;
    switch (key->field) {
    case WEFT_FIELD_BOOL: memcpy(at, &on, sizeof on); break;
    case WEFT_FIELD_U8: memcpy(at, &u8, sizeof u8); break;
    case WEFT_FIELD_U32: memcpy(at, &u32, sizeof u32); break;
    default: WEFT_ASSERT(key->field == WEFT_FIELD_U64); memcpy(at, &value, sizeof value); break;
    }
}

static void store_real(const struct weft_key *key, double value, void *at)
{
    if (key->factor > 0) value *= key->factor;
    const bool on = value != 0;
    const float f32 = (float)value;
    const uint64_t u64 = key->field == WEFT_FIELD_U64 ? (uint64_t)value : 0;
    switch (key->field) {
    case WEFT_FIELD_BOOL: memcpy(at, &on, sizeof on); break;
    case WEFT_FIELD_U64: memcpy(at, &u64, sizeof u64); break;
    case WEFT_FIELD_F32: memcpy(at, &f32, sizeof f32); break;
    default: WEFT_ASSERT(key->field == WEFT_FIELD_F64); memcpy(at, &value, sizeof value); break;
    }
}

static bool set(const struct weft_key *key, const struct weft_key_value *item, void *at)
{
    uint64_t whole;
    double real;
    switch (key->type) {
    case WEFT_KEY_WHOLE:
    case WEFT_KEY_SCALED:
        if (!parse_whole(key, item, &whole)) return false;
        store_whole(key, whole, at);
        return true;
    case WEFT_KEY_DECIMAL:
    case WEFT_KEY_REAL:
        if (!parse_real(key, item, &real)) return false;
        store_real(key, real, at);
        return true;
    case WEFT_KEY_CHOICE:
        if (!parse_choice(key->choices, item, &whole)) return false;
        store_whole(key, whole, at);
        return true;
    case WEFT_KEY_TEXT: break;
    }
    if (item->value_bytes == 0 || item->value_bytes >= key->bytes) return false;
    memcpy(at, item->value, item->value_bytes);
    ((char *)at)[item->value_bytes] = 0;
    return true;
}

enum weft_key_result weft_key_value_set(const struct weft_key *keys, uint32_t groups,
                                        const struct weft_key_value *item, void *out)
{
    const struct weft_key *key = weft_key_find(keys, groups, item->name, item->name_bytes);
    if (!key) return WEFT_KEY_UNKNOWN;
    return item->value && set(key, item, (char *)out + key->offset) ? WEFT_KEY_STORED : WEFT_KEY_REFUSED;
}
