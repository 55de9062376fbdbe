/* tcp_tune.c - the settings of this backend, "name=value,name=value". */
#include "transport/tcp/tcp.h"

/* Parses an integer from least to most; k and m stand for powers of 1,024. */
static bool number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = *end == 'k' || *end == 'K' ? 10 : *end == 'm' || *end == 'M' ? 20 : 0;
    if (shift) end++;
    if (*end || value > most >> shift) return false;
    *out = (uint64_t)value << shift;
    return *out >= least;
}

static bool take(struct tcp_tuning *tuning, const char *name, const char *value)
{
    uint64_t n;
    if (strcmp(name, "budget") == 0 && number(value, TCP_BUDGET_MIN, TCP_BUDGET_MAX, &n)) {
        tuning->budget = (uint32_t)n;
    } else if (strcmp(name, "lost_ms") == 0 && number(value, 2000, 3600 * 1000, &n)) {
        tuning->lost_ns = WEFT_MS(n);
    } else if (strcmp(name, "host") == 0 && value[0] && strlen(value) < sizeof tuning->host) {
        snprintf(tuning->host, sizeof tuning->host, "%s", value);
    } else {
        return false;
    }
    return true;
}

enum weft_status tcp_tune(const char *text, struct tcp_tuning *tuning, struct weft_error *error)
{
    *tuning = (struct tcp_tuning){.budget = 4 << 20, .lost_ns = WEFT_SECONDS(10)};
    struct weft_key_value item;
    while (text && weft_key_value_next(&text, "", &item)) {
        if (weft_key_value_set(keys, 0, &item, tuning) == WEFT_KEY_STORED) continue;
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID,
            "the tcp backend's setting \"%.*s\" is none: budget=64k..1024m, lost_ms=2000..3600000, "
            "host=ADDRESS",
            (int)item.item_bytes, item.item);
    }
    return WEFT_OK;
}
