/* wrap_options.c - see wrap_options.h. */
#include "transport/wrap/wrap_options.h"

#include <stdio.h>
#include <stdlib.h>
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

/* One name=value; false: not valid here. */
static bool take(const char *name, const char *value, enum wrap_role role, struct wrap_options *options)
{
    bool fault = role == WRAP_FAULT, shapes = role != WRAP_TRACE;
    if (role == WRAP_TRACE && strcmp(name, "file") == 0) {
        if (!value[0] || strlen(value) >= sizeof options->file) return false;
        snprintf(options->file, sizeof options->file, "%s", value);
        return true;
    }
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !(number >= 0 && number <= 1e15)) return false;
    if (strcmp(name, "drop") == 0 && fault && number <= 1) options->drop = number;
    else if (strcmp(name, "break") == 0 && fault && number <= 1) options->breaks = number;
    else if (strcmp(name, "kill_after") == 0 && fault) options->kill_after = (uint64_t)number;
    else if (strcmp(name, "delay_us") == 0 && shapes) options->delay_ns = (uint64_t)(number * 1000);
    else if (strcmp(name, "jitter_us") == 0 && shapes) options->jitter_ns = (uint64_t)(number * 1000);
    else if (strcmp(name, "rate_bytes") == 0 && shapes) options->rate_bytes = (uint64_t)number;
    else if (strcmp(name, "seed") == 0 && shapes) options->seed = (uint64_t)number;
    else if (strcmp(name, "limit") == 0 && role == WRAP_TRACE && number >= 65536)
        options->limit_bytes = (uint64_t)number;
    else return false;
    return true;
}

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
    for (const char *at = skip_name(text ? text : "", names[role]); *at && *at != ';';) {
        size_t item_bytes = strcspn(at, ",;");
        char item[300];
        size_t kept = item_bytes < sizeof item ? item_bytes : sizeof item - 1;
        memcpy(item, at, kept);
        item[kept] = 0;
        at += item_bytes;
        if (*at == ',') at++;
        char *value = strchr(item, '=');
        if (value) *value++ = 0;
        if (kept == item_bytes && value && take(item, value, role, &options)) continue;
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID, "transport wrapper parameter \"%.60s%s%.60s\" is not valid: %s", item,
            value ? "=" : "", value ? value : "", known[role]);
    }
    if (role == WRAP_TRACE && !options.file[0]) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID, "the trace wrapper needs the name of a file: trace:file=trace-%%e.json");
    }
    *options_out = options;
    return WEFT_OK;
}
