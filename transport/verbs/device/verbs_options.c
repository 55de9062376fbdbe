/* verbs_options.c - the verbs backend's settings as text: "gid=3,mtu=1024,relaxed=off". */
#include "transport/verbs/device/verbs_device.h"

void verbs_options_init(struct verbs_options *options)
{
    *options = (struct verbs_options){
        .rails = 1,
        .gid_index = -1,
        .relaxed_ordering = VERBS_AUTO,
        .connect = VERBS_CONNECT_EXCHANGE,
        .timeout = 16,
        .retries = VERBS_RETRY_MAX,
        .send_depth = 128,
        .receive_depth = 4096,
        .inline_bytes = 220,
        .cache_bytes = (uint64_t)1 << 30,
    };
}

#define NUMBER(name_, type_, field_, member_, min_, max_) \
    .name = name_, .type = type_, WEFT_KEY_AT(field_, struct verbs_options, member_), .min = min_, .max = max_

static const struct weft_key keys[] = {
    {NUMBER("rails", WEFT_KEY_WHOLE, WEFT_FIELD_U32, rails, 1, VERBS_RAILS_MAX)},
    {NUMBER("gid", WEFT_KEY_WHOLE, WEFT_FIELD_U32, gid_index, 0, 255)},
    {NUMBER("tc", WEFT_KEY_WHOLE, WEFT_FIELD_U8, traffic_class, 0, 255)},
    {NUMBER("sl", WEFT_KEY_WHOLE, WEFT_FIELD_U8, service_level, 0, 15)},
    {NUMBER("timeout", WEFT_KEY_WHOLE, WEFT_FIELD_U8, timeout, 1, 31)},
    {NUMBER("retries", WEFT_KEY_WHOLE, WEFT_FIELD_U8, retries, 0, VERBS_RETRY_MAX)},
    {NUMBER("depth", WEFT_KEY_WHOLE, WEFT_FIELD_U32, send_depth, 8, 32768)},
    {NUMBER("receives", WEFT_KEY_WHOLE, WEFT_FIELD_U32, receive_depth, 16, 1 << 20)},
    {NUMBER("inline", WEFT_KEY_WHOLE, WEFT_FIELD_U32, inline_bytes, 0, 4096)},
    {NUMBER("cache", WEFT_KEY_SCALED, WEFT_FIELD_U64, cache_bytes, 0, (uint64_t)1 << 50)},
    {NUMBER("mtu", WEFT_KEY_WHOLE, WEFT_FIELD_U32, mtu, 256, 4096), .power_of_two = true},
    {.name = "relaxed", .type = WEFT_KEY_CHOICE, .choices = "off|on|auto",
     WEFT_KEY_AT(WEFT_FIELD_U32, struct verbs_options, relaxed_ordering)},
    {.name = "connect", .type = WEFT_KEY_CHOICE, .choices = "exchange|cm",
     WEFT_KEY_AT(WEFT_FIELD_U32, struct verbs_options, connect)},
    {0},
};

enum weft_status verbs_options_parse(const char *text, bool others, struct verbs_options *options,
                                     struct weft_error *error)
{
    struct verbs_options result = *options;
    struct weft_key_value item;
    while (text && weft_key_value_next(&text, "", &item)) {
        const enum weft_key_result stored = weft_key_value_set(keys, 0, &item, &result);
        const int name_bytes = (int)(item.name_bytes < 60 ? item.name_bytes : 60);
        if (stored == WEFT_KEY_REFUSED)
            return (enum weft_status)weft_error_set(
                error, WEFT_ERR_INVALID, "the verbs setting %.*s cannot be '%.*s'", name_bytes, item.name,
                (int)(item.value_bytes < 100 ? item.value_bytes : 100), item.value ? item.value : "");
        if (stored == WEFT_KEY_UNKNOWN && item.item_bytes > 0 && !others)
            return (enum weft_status)weft_error_set(
                error, WEFT_ERR_NOT_FOUND,
                "there is no verbs setting '%.*s' (rails, gid, mtu, tc, sl, relaxed, connect, timeout, "
                "retries, depth, receives, inline, cache)",
                name_bytes, item.name);
    }
    *options = result;
    return WEFT_OK;
}
