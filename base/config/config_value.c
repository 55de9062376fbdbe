/* config_value.c - see config_value.h. A value is either valid or refused; nothing is clamped. */
#include "base/config/config_value.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#define TEXT_BYTES_MAX 1000

struct suffix {
    const char *name;
    uint64_t factor;
};

/* Ascending: config_value_describe takes the largest that divides the number. */
static const struct suffix byte_suffixes[] = {
    {"", 1},
    {"B", 1},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"KiB", (uint64_t)1 << 10},
    {"MiB", (uint64_t)1 << 20},
    {"GiB", (uint64_t)1 << 30},
    {"TiB", (uint64_t)1 << 40},
    {NULL, 0},
};
static const struct suffix duration_suffixes[] = {
    {"ns", 1},
    {"us", 1000},
    {"ms", 1000000},
    {"s", 1000000000},
    {"min", (uint64_t)60 * 1000000000},
    {"h", (uint64_t)3600 * 1000000000},
    {NULL, 0},
};
static const struct suffix no_suffix[] = {{"", 1}, {NULL, 0}};

static const struct suffix *suffixes_of(const struct weft_option *option)
{
    switch (option->type) {
    case WEFT_OPTION_BYTES: return byte_suffixes;
    case WEFT_OPTION_DURATION: return duration_suffixes;
    default: return no_suffix;
    }
}

/* Digits, then a suffix. A duration without suffix is in the option's unit. */
static bool parse_number(const struct weft_option *option, const char *text, uint64_t *number_out)
{
    uint64_t number = 0;
    const char *at = text;
    if (*at < '0' || *at > '9') return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(number, (uint64_t)10, &number)) return false;
        if (__builtin_add_overflow(number, (uint64_t)(*at - '0'), &number)) return false;
    }
    if (*at == ' ') at++;
    if (*at == '\0' && option->type == WEFT_OPTION_DURATION) at = option->unit;
    for (const struct suffix *suffix = suffixes_of(option); suffix->name; suffix++)
        if (strcasecmp(at, suffix->name) == 0)
            return !__builtin_mul_overflow(number, suffix->factor, number_out);
    return false;
}

static bool parse_bool(const char *text, uint64_t *number_out)
{
    static const char *const words[][2] = {{"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (uint64_t value = 0; value < 2; value++) {
            if (strcasecmp(text, words[i][value]) != 0) continue;
            *number_out = value;
            return true;
        }
    }
    return false;
}

static bool parse_text(const struct weft_option *option, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes > TEXT_BYTES_MAX) return false;
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f) return false;
    if (!option->choices) return true;
    for (const char *choice = option->choices;;) {
        size_t length = strcspn(choice, "|");
        if (length == bytes && memcmp(choice, text, bytes) == 0) return true;
        if (choice[length] == '\0') return false;
        choice += length + 1;
    }
}

static void describe_number(const struct weft_option *option, uint64_t number, char *text, size_t bytes)
{
    const struct suffix *best = suffixes_of(option);
    if (number > 0)
        for (const struct suffix *suffix = best; suffix->name; suffix++)
            if (number % suffix->factor == 0 && suffix->factor > best->factor) best = suffix;
    snprintf(text, bytes, "%" PRIu64 "%s", number / best->factor, best->name);
}

void config_value_describe(const struct weft_option *option, char *text, size_t bytes)
{
    char min[40], max[40];
    describe_number(option, option->min, min, sizeof min);
    describe_number(option, option->max, max, sizeof max);
    switch (option->type) {
    case WEFT_OPTION_TEXT:
        if (option->choices) snprintf(text, bytes, "one of %s", option->choices);
        else snprintf(text, bytes, "a text of at most %d printable bytes", TEXT_BYTES_MAX);
        break;
    case WEFT_OPTION_BOOL: snprintf(text, bytes, "true or false"); break;
    case WEFT_OPTION_U64: snprintf(text, bytes, "a whole number from %s to %s", min, max); break;
    case WEFT_OPTION_BYTES: snprintf(text, bytes, "a size from %s to %s", min, max); break;
    case WEFT_OPTION_DURATION:
        snprintf(text, bytes, "a time from %s to %s (a bare number is in %s)", min, max, option->unit);
        break;
    }
}

enum weft_status config_value_parse(const struct weft_option *option, const char *text, uint64_t *number_out,
                                    struct weft_error *error)
{
    uint64_t number = 0;
    bool good;
    if (option->type == WEFT_OPTION_TEXT) good = parse_text(option, text);
    else if (option->type == WEFT_OPTION_BOOL) good = parse_bool(text, &number);
    else good = parse_number(option, text, &number) && number >= option->min && number <= option->max;
    if (good) {
        *number_out = number;
        return WEFT_OK;
    }
    char allowed[200];
    config_value_describe(option, allowed, sizeof allowed);
    return weft_error_set(error, WEFT_ERR_INVALID, "option %s cannot be \"%.80s\"; it takes %s", option->name,
                          text, allowed);
}
