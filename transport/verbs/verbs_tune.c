/* verbs_tune.c - settings of the message part, "name=value,name=value"; unknown names belong to the device
 * part. */
#include <stdio.h>

#include "transport/verbs/verbs_endpoint.h"

#define NUMBER(name_, field_, member_, min_, max_) \
    .name = name_, .type = WEFT_KEY_SCALED, WEFT_KEY_AT(field_, struct verbs_tuning, member_), .min = min_, \
    .max = max_

static const struct weft_key keys[] = {
    {NUMBER("lanes", WEFT_FIELD_U32, lanes, 1, STREAM_LANES_MAX)},
    {NUMBER("chunk", WEFT_FIELD_U32, chunk, 4096, 64 << 20)},
    {NUMBER("ring", WEFT_FIELD_U32, ring, 4096, 4 << 20), .multiple = STREAM_ALIGN},
    {NUMBER("budget", WEFT_FIELD_U32, budget, STREAM_EAGER_BUDGET_LEAST, 1 << 30), .multiple = STREAM_ALIGN},
    {NUMBER("peers", WEFT_FIELD_U32, peers, 1, 65536)},
    {NUMBER("direct", WEFT_FIELD_U32, direct, 0, 1)},
    {NUMBER("lost_ms", WEFT_FIELD_U64, lost_ns, 1, 3600 * 1000), .factor = 1e6},
    {.name = "host", .type = WEFT_KEY_TEXT, WEFT_KEY_AT(WEFT_FIELD_TEXT, struct verbs_tuning, host)},
    {0},
};

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
