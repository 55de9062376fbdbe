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

/* Parses an integer from least to most; k, m, g stand for powers of 1,024 if `scaled`. */
static bool number(const char *text, bool scaled, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    unsigned long long value = strtoull(text, &end, 10);
    static const char suffixes[] = "kmg";
    const char *suffix = scaled && *end ? strchr(suffixes, *end | 0x20) : NULL;
    int shift = suffix && *suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
    if (shift) end++;
    if (*end || value > most >> shift) return false;
    *out = (uint64_t)value << shift;
    return *out >= least && *out <= most;
}

static bool choice(const char *text, const char *const *names, int *out)
{
    for (int i = 0; names[i]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

static const char *const switches[] = {"off", "on", "auto", NULL};
static const char *const connects[] = {"exchange", "cm", NULL};

/* 1: accepted, 0: invalid value, -1: unknown name. */
static int take(struct verbs_options *options, const char *name, const char *value)
{
    uint64_t n = 0;
    int kind = 0;
#define NUMBER(name_, scaled_, least_, most_, field_)                              \
    if (strcmp(name, name_) == 0) {                                                \
        if (!number(value, scaled_, least_, most_, &n)) return 0;                  \
        options->field_ = (__typeof__(options->field_))n;                          \
        return 1;                                                                  \
    }
    NUMBER("rails", false, 1, VERBS_RAILS_MAX, rails)
    NUMBER("gid", false, 0, 255, gid_index)
    NUMBER("tc", false, 0, 255, traffic_class)
    NUMBER("sl", false, 0, 15, service_level)
    NUMBER("timeout", false, 1, 31, timeout)
    NUMBER("retries", false, 0, VERBS_RETRY_MAX, retries)
    NUMBER("depth", false, 8, 32768, send_depth)
    NUMBER("receives", false, 16, 1 << 20, receive_depth)
    NUMBER("inline", false, 0, 4096, inline_bytes)
    NUMBER("cache", true, 0, (uint64_t)1 << 50, cache_bytes)
#undef NUMBER
    if (strcmp(name, "mtu") == 0) {
        if (!number(value, false, 256, 4096, &n) || (n & (n - 1)) != 0) return 0;
        options->mtu = (uint32_t)n;
        return 1;
    }
    if (strcmp(name, "relaxed") == 0) {
        if (!choice(value, switches, &kind)) return 0;
        options->relaxed_ordering = (enum verbs_switch)kind;
        return 1;
    }
    if (strcmp(name, "connect") == 0) {
        if (!choice(value, connects, &kind)) return 0;
        options->connect = (enum verbs_connect)kind;
        return 1;
    }
    return -1;
}

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
