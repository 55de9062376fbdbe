/* optimizer_spec.c - "adamw:beta2=0.95,weight_decay=0.1" parsed, equal on workers and shards.
 *
 *     spec   = "" | "none" | "sum" | name [ ":" option { "," option } ]
 *     option = name "=" number
 *
 * Numbers are read in the C locale whatever the trainer has set, each option at most once, so equal text
 * gives equal bits everywhere. The learning rate is a parameter of each step. */
#include <string.h>

#include "kernels/optimizer.h"

#define OF(kind) (1u << WEFT_OPTIMIZER_##kind)
#define REAL(groups_, name_, member_) \
    .name = name_, .type = WEFT_KEY_REAL, .groups = groups_, \
    WEFT_KEY_AT(WEFT_FIELD_F32, struct weft_optimizer, member_)
#define BELOW_1(...) {REAL(__VA_ARGS__), .high = 1, .below_high = true}
#define UP_TO_1E6(...) {REAL(__VA_ARGS__), .high = 1e6}
#define ABOVE_0(...) {REAL(__VA_ARGS__), .high = 1e6, .above_low = true}

static const struct weft_key keys[] = {
    BELOW_1(OF(SGD), "momentum", momentum),
    {.name = "nesterov", .type = WEFT_KEY_REAL, .groups = OF(SGD), .high = 1,
     WEFT_KEY_AT(WEFT_FIELD_BOOL, struct weft_optimizer, nesterov)},
    UP_TO_1E6(OF(SGD) | OF(ADAM) | OF(ADAMW) | OF(ADAGRAD) | OF(LAMB), "weight_decay", weight_decay),
    BELOW_1(OF(ADAM) | OF(ADAMW) | OF(LAMB), "beta1", beta1),
    BELOW_1(OF(ADAM) | OF(ADAMW) | OF(LAMB), "beta2", beta2),
    ABOVE_0(OF(ADAM) | OF(ADAMW) | OF(ADAGRAD) | OF(LAMB), "eps", eps),
    ABOVE_0(OF(FTRL), "beta", beta),
    UP_TO_1E6(OF(FTRL), "l1", l1),
    UP_TO_1E6(OF(FTRL), "l2", l2),
    {0},
};

static const char *range_text(const struct weft_key *key)
{
    if (key->field == WEFT_FIELD_BOOL) return "0 or 1";
    if (key->below_high) return "a number from 0 to below 1";
    return key->above_low ? "a number above 0 up to 1e6" : "a number from 0 to 1e6";
}

static const struct {
    const char *name, *allowed;
    struct weft_optimizer defaults;
} kinds[] = {
    {"sgd", "'sgd:momentum=0.9,weight_decay=1e-4,nesterov=1'", {.kind = WEFT_OPTIMIZER_SGD}},
    {"adam", "'adam:beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0'",
     {.kind = WEFT_OPTIMIZER_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}},
    {"adamw", "'adamw:beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01'",
     {.kind = WEFT_OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.01f}},
    {"adagrad", "'adagrad:eps=1e-10,weight_decay=0'", {.kind = WEFT_OPTIMIZER_ADAGRAD, .eps = 1e-10f}},
    {"ftrl", "'ftrl:beta=1,l1=0,l2=0'", {.kind = WEFT_OPTIMIZER_FTRL, .beta = 1.0f}},
    {"lamb", "'lamb:beta1=0.9,beta2=0.999,eps=1e-6,weight_decay=0.01'",
     {.kind = WEFT_OPTIMIZER_LAMB, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-6f, .weight_decay = 0.01f}},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

const char *weft_optimizer_name(enum weft_optimizer_kind kind)
{
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].defaults.kind == kind) return kinds[i].name;
    return "none";
}

static enum weft_status parse_option(const struct weft_key_value *item, const char *allowed, unsigned *seen,
                                     struct weft_optimizer *into, struct weft_error *error)
{
    const int shown = (int)(item->item_bytes < 100 ? item->item_bytes : 100);
    const struct weft_key *key = weft_key_find(keys, 1u << into->kind, item->name, item->name_bytes);
    if (!key || !item->value)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "optimizer option '%.*s' is not known: give options as in %s", shown,
                              item->item, allowed);
    const unsigned bit = 1u << (key - keys);
    if (*seen & bit)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer option '%s' is given twice", key->name);
    *seen |= bit;
    if (weft_key_value_set(keys, 1u << into->kind, item, into) != WEFT_KEY_STORED)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer option '%.*s' is out of range: %s is %s",
                              shown, item->item, key->name, range_text(key));
    return WEFT_OK;
}

enum weft_status weft_optimizer_parse(const char *text, struct weft_optimizer *optimizer_out,
                                      struct weft_error *error)
{
    const size_t name_bytes = strcspn(text, ":");
    unsigned seen = 0;
    int k = 0;
    if (text[0] == 0 || strcmp(text, "none") == 0) {
        *optimizer_out = (struct weft_optimizer){0};
        return WEFT_OK;
    }
    if (strcmp(text, "sum") == 0) {
        *optimizer_out = (struct weft_optimizer){.is_sum = true};
        return WEFT_OK;
    }
    while (k < KINDS && (strlen(kinds[k].name) != name_bytes || memcmp(kinds[k].name, text, name_bytes) != 0))
        k++;
    if (k == KINDS)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "optimizer '%.100s' is not known: give 'none', 'sum', 'sgd', 'adam', "
                              "'adamw', 'adagrad', 'ftrl' or 'lamb', for example %s",
                              text, kinds[0].allowed);
    struct weft_optimizer made = kinds[k].defaults;
    const char *at = text + name_bytes + (text[name_bytes] == ':');
    struct weft_key_value item;
    while (weft_key_value_next(&at, "", &item))
        WEFT_TRY(parse_option(&item, kinds[k].allowed, &seen, &made, error));
    item = (struct weft_key_value){.item = "", .name = ""};
    if (strchr(":,", at[-1])) WEFT_TRY(parse_option(&item, kinds[k].allowed, &seen, &made, error));
    if (made.nesterov && made.momentum == 0)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "optimizer '%.100s': nesterov needs a momentum above 0", text);
    *optimizer_out = made;
    return WEFT_OK;
}
