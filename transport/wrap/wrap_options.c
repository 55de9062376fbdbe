/* wrap_options.c - see wrap_options.h. */
#include "transport/wrap/wrap_options.h"

#include <stdlib.h>
#include <string.h>

enum weft_status wrap_options_parse(const char *text, bool fault, struct wrap_options *options_out, struct weft_error *error)
{
    struct wrap_options options = {.seed = 1};
    for (const char *at = text ? text : ""; *at;) {
        size_t item_bytes = strcspn(at, ",");
        char item[64];
        if (item_bytes >= sizeof item) item_bytes = sizeof item - 1;
        memcpy(item, at, item_bytes);
        item[item_bytes] = 0;
        at += strcspn(at, ",");
        if (*at == ',') at++;
        char *value = strchr(item, '=');
        if (value) *value++ = 0;
        char *end = NULL;
        double number = value ? strtod(value, &end) : -1;
        bool whole = value && end != value && *end == 0 && number >= 0 && number <= 1e15;
        bool known = true;
        if (strcmp(item, "drop") == 0 && fault && number <= 1) options.drop = number;
        else if (strcmp(item, "kill_after") == 0 && fault) options.kill_after = whole ? (uint64_t)number : 0;
        else if (strcmp(item, "delay_us") == 0) options.delay_ns = whole ? (uint64_t)(number * 1000) : 0;
        else if (strcmp(item, "jitter_us") == 0) options.jitter_ns = whole ? (uint64_t)(number * 1000) : 0;
        else if (strcmp(item, "rate_bytes") == 0) options.rate_bytes = whole ? (uint64_t)number : 0;
        else if (strcmp(item, "seed") == 0) options.seed = whole ? (uint64_t)number : 0;
        else known = false;
        if (!known || !whole) {
            return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID,
                "transport wrapper parameter \"%s%s%s\" is not valid: delay_us, jitter_us, rate_bytes, seed%s take a number >= 0", item,
                value ? "=" : "", value ? value : "", fault ? ", kill_after and drop (at most 1)" : " (drop and kill_after: with fault:)");
        }
    }
    *options_out = options;
    return WEFT_OK;
}
