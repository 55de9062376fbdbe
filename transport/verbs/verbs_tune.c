/* verbs_tune.c - settings of the message part, "name=value,name=value"; unknown names belong to the device
 * part. */
#include <stdio.h>

#include "transport/verbs/verbs_endpoint.h"

/* Parses an integer from least to most; k and m stand for powers of 1,024. */
static bool number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    if (!text || text[0] < '0' || text[0] > '9') return false;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = *end == 'k' || *end == 'K' ? 10 : *end == 'm' || *end == 'M' ? 20 : 0;
    if (shift) end++;
    if (*end || value > most >> shift) return false;
    *out = (uint64_t)value << shift;
    return *out >= least;
}

static uint32_t multiple(uint64_t value) { return (uint32_t)(value / STREAM_ALIGN * STREAM_ALIGN); }

/* 1: accepted, 0: invalid value, -1: unknown name. */
static int take(struct verbs_tuning *tuning, const char *name, const char *value)
{
    uint64_t n = 0;
    if (strcmp(name, "lanes") == 0) {
        if (!number(value, 1, STREAM_LANES_MAX, &n)) return 0;
        tuning->lanes = (uint32_t)n;
    } else if (strcmp(name, "chunk") == 0) {
        if (!number(value, 4096, 64 << 20, &n)) return 0;
        tuning->chunk = (uint32_t)n;
    } else if (strcmp(name, "ring") == 0) {
        if (!number(value, 4096, 4 << 20, &n)) return 0;
        tuning->ring = multiple(n);
    } else if (strcmp(name, "budget") == 0) {
        if (!number(value, STREAM_EAGER_BUDGET_LEAST, 1 << 30, &n)) return 0;
        tuning->budget = multiple(n);
    } else if (strcmp(name, "peers") == 0) {
        if (!number(value, 1, 65536, &n)) return 0;
        tuning->peers = (uint32_t)n;
    } else if (strcmp(name, "lost_ms") == 0) {
        if (!number(value, 1, 3600 * 1000, &n)) return 0;
        tuning->lost_ns = WEFT_MS(n);
    } else if (strcmp(name, "host") == 0) {
        if (!value || !value[0] || strlen(value) >= sizeof tuning->host) return 0;
        snprintf(tuning->host, sizeof tuning->host, "%s", value);
    } else {
        return -1;
    }
    return 1;
}

enum weft_status verbs_tune(const char *text, struct verbs_tuning *tuning, char *rest_out, size_t rest_bytes,
                            struct weft_error *error)
{
    size_t rest = 0;
    struct weft_key_value item;
    rest_out[0] = 0;
    while (text && weft_key_value_next(&text, "", &item)) {
        const enum weft_key_result result = weft_key_value_set(keys, 0, &item, tuning);
        if (result == WEFT_KEY_REFUSED)
            return (enum weft_status)weft_error_set(
                error, WEFT_ERR_INVALID, "the verbs setting %.*s cannot be '%.*s'",
                (int)(item.name_bytes < 60 ? item.name_bytes : 60), item.name,
                (int)(item.value_bytes < 100 ? item.value_bytes : 100), item.value ? item.value : "");
        if (result == WEFT_KEY_STORED || item.item_bytes == 0) continue;
        if (rest + item.item_bytes + 2 > rest_bytes)
            return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID,
                                                    "the verbs setting '%.40s...' is too long", item.item);
        rest += (size_t)snprintf(rest_out + rest, rest_bytes - rest, "%s%.*s", rest ? "," : "",
                                 (int)item.item_bytes, item.item);
    }
    return WEFT_OK;
}
