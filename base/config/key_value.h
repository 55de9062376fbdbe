/* key_value.h - the parser of "name=value,name=value": settings of transports and wrappers, options of codecs
 * and optimizers.
 *
 *     text -> weft_key_value_next -> item -> weft_key_value_set(table) -> field of a struct
 *
 * A table lists the names, types, ranges and fields of a struct. Numbers do not depend on the locale. A
 * value is either stored or refused; nothing is clamped. The caller writes the error sentence, since it
 * knows the subject. */
#ifndef WEFT_BASE_CONFIG_KEY_VALUE_H
#define WEFT_BASE_CONFIG_KEY_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One item of a text; points into it. */
struct weft_key_value {
    const char *item, *name, *value; /* not terminated; value: NULL without '=' */
    size_t item_bytes, name_bytes, value_bytes;
};

/* Reads the item at *text and advances *text past its comma. `ends`: characters besides NUL that end the
 * text; *text stays there. An empty item (",,") is an item. false: no item is left. */
bool weft_key_value_next(const char **text, const char *ends, struct weft_key_value *item_out);

enum weft_key_type {
    WEFT_KEY_WHOLE,   /* digits */
    WEFT_KEY_SCALED,  /* digits, then optionally k, m or g: powers of 1,024 */
    WEFT_KEY_DECIMAL, /* weft_decimal_parse */
    WEFT_KEY_REAL,    /* strtod of the C locale; finite, without hexadecimal digits */
    WEFT_KEY_CHOICE,  /* one of `choices`; stores its index */
    WEFT_KEY_TEXT,    /* 1 to bytes - 1 bytes; stores it with a NUL */
};

/* BOOL: WHOLE and REAL values must be 0 or 1. U32 also for int and enum fields. */
enum weft_key_field {
    WEFT_FIELD_BOOL,
    WEFT_FIELD_U8,
    WEFT_FIELD_U32,
    WEFT_FIELD_U64,
    WEFT_FIELD_F32,
    WEFT_FIELD_F64,
    WEFT_FIELD_TEXT,
};

struct weft_key {
    const char *name;
    enum weft_key_type type;
    enum weft_key_field field;
    size_t offset, bytes;       /* of the field in the struct */
    uint32_t groups;            /* bits of which the caller's mask must have one; 0: every caller */
    uint64_t min, max;          /* WHOLE, SCALED: inclusive */
    double low, high;           /* DECIMAL, REAL: inclusive unless */
    bool above_low, below_high; /* exclusive */
    double factor;              /* numbers are multiplied by it; 0: 1 */
    uint32_t multiple;          /* WHOLE, SCALED: rounded down to a multiple; 0: 1 */
    bool power_of_two;          /* WHOLE, SCALED: other numbers are refused */
    const char *choices;        /* CHOICE: "off|on|auto" */
};

/* Field of a key: type of the field, struct, member. */
#define WEFT_KEY_AT(field_, type_, member_) \
    .field = (field_), .offset = offsetof(type_, member_), .bytes = sizeof(((type_ *)0)->member_)

enum weft_key_result {
    WEFT_KEY_STORED = 0,
    WEFT_KEY_UNKNOWN, /* no such name in these groups */
    WEFT_KEY_REFUSED, /* no value, or a value that is not allowed; nothing was stored */
};

/* The key of a name; NULL: unknown. `keys` ends with a NULL name. */
const struct weft_key *weft_key_find(const struct weft_key *keys, uint32_t groups, const char *name,
                                     size_t name_bytes);
/* Stores the item's value in the struct `out` of its key's table. */
enum weft_key_result weft_key_value_set(const struct weft_key *keys, uint32_t groups,
                                        const struct weft_key_value *item, void *out);

/* [digits][.digits][e[+-]digits] with at most 15 significant digits and a power of ten from -22 to 22.
 * Both are exact in a double, so one rounding gives the nearest double on every machine. */
bool weft_decimal_parse(const char *text, size_t bytes, double *value_out);
/* Digits only; false also on overflow. */
bool weft_whole_parse(const char *text, size_t bytes, uint64_t *value_out);

#endif
