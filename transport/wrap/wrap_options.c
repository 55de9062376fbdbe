/* wrap_options.c - see wrap_options.h. */
#include "transport/wrap/wrap_options.h"

#include <stdio.h>
#include <string.h>

#include "transport/transport.h"

static const char *const known[] = {
    [WRAP_FAULT] =
        "delay_us, jitter_us, rate_bytes, seed, kill_after, drop and break (at most 1) take a number >= 0",
    [WRAP_DELAY] =
        "delay_us, jitter_us, rate_bytes, seed take a number >= 0 (drop, break, kill_after: with fault:)",
    [WRAP_TRACE] = "it takes file=NAME (without comma and semicolon) and limit=BYTES",
};

static const char *const names[] = {[WRAP_FAULT] = "fault", [WRAP_DELAY] = "delay", [WRAP_TRACE] = "trace"};

#define FAULTS (1u << WRAP_FAULT)
#define SHAPES (1u << WRAP_FAULT | 1u << WRAP_DELAY)
#define TRACES (1u << WRAP_TRACE)
#define REAL(name_, field_, member_, groups_, high_, factor_) \
    {.name = name_, .type = WEFT_KEY_REAL, WEFT_KEY_AT(field_, struct wrap_options, member_), \
     .groups = groups_, .high = high_, .factor = factor_}

static const struct weft_key keys[] = {
    REAL("drop", WEFT_FIELD_F64, drop, FAULTS, 1, 1),
    REAL("break", WEFT_FIELD_F64, breaks, FAULTS, 1, 1),
    REAL("kill_after", WEFT_FIELD_U64, kill_after, FAULTS, 1e15, 1),
    REAL("delay_us", WEFT_FIELD_U64, delay_ns, SHAPES, 1e15, 1000),
    REAL("jitter_us", WEFT_FIELD_U64, jitter_ns, SHAPES, 1e15, 1000),
    REAL("rate_bytes", WEFT_FIELD_U64, rate_bytes, SHAPES, 1e15, 1),
    REAL("seed", WEFT_FIELD_U64, seed, SHAPES, 1e15, 1),
    {.name = "limit", .type = WEFT_KEY_REAL, WEFT_KEY_AT(WEFT_FIELD_U64, struct wrap_options, limit_bytes),
     .groups = TRACES, .low = 65536, .high = 1e15},
    {.name = "file", .type = WEFT_KEY_TEXT, WEFT_KEY_AT(WEFT_FIELD_TEXT, struct wrap_options, file),
     .groups = TRACES},
    {0},
};

/* Parameters of a nested wrapper may begin with its name. */
static const char *skip_name(const char *text, const char *name)
{
    size_t bytes = strlen(name);
    if (strncmp(text, name, bytes) != 0 || !strchr(":;", text[bytes])) return text;
    return text + bytes + (text[bytes] == ':');
}

enum weft_status wrap_options_parse(const char *text, enum wrap_role role, struct wrap_options *options_out,
                                    struct weft_error *error)
{
    struct wrap_options options = {.seed = 1, .limit_bytes = 1 << 30};
    const char *at = skip_name(text ? text : "", names[role]);
    struct weft_key_value item;
    while (weft_key_value_next(&at, ";", &item)) {
        if (weft_key_value_set(keys, 1u << role, &item, &options) == WEFT_KEY_STORED) continue;
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID, "transport wrapper parameter \"%.*s\" is not valid: %s",
            (int)(item.item_bytes < 120 ? item.item_bytes : 120), item.item, known[role]);
    }
    if (role == WRAP_TRACE && !options.file[0]) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID, "the trace wrapper needs the name of a file: trace:file=trace-%%e.json");
    }
    *options_out = options;
    return WEFT_OK;
}
