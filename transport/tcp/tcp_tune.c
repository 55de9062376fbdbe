/* tcp_tune.c - the settings of this backend, "name=value,name=value". */
#include "transport/tcp/tcp.h"

static const struct weft_key keys[] = {
    {.name = "budget", .type = WEFT_KEY_SCALED, WEFT_KEY_AT(WEFT_FIELD_U32, struct tcp_tuning, budget),
     .min = TCP_BUDGET_MIN, .max = TCP_BUDGET_MAX},
    {.name = "lost_ms", .type = WEFT_KEY_SCALED, WEFT_KEY_AT(WEFT_FIELD_U64, struct tcp_tuning, lost_ns),
     .min = 2000, .max = 3600 * 1000, .factor = 1e6},
    {.name = "host", .type = WEFT_KEY_TEXT, WEFT_KEY_AT(WEFT_FIELD_TEXT, struct tcp_tuning, host)},
    {0},
};

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
