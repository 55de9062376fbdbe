/* optimizer_spec.c - "adamw:beta2=0.95,weight_decay=0.1" into numbers, alike on workers and shards.
 *
 *     spec   = "" | "none" | name [ ":" option { "," option } ]
 *     option = name "=" number
 *
 * Numbers are read in the C locale whatever the trainer has set, each option at most once, so equal text
 * gives equal bits everywhere. The learning rate is not here: it comes with every step. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizer.h"

enum range { BELOW_1, SWITCH, UP_TO_1E6, ABOVE_0 };
static const char *const range_texts[] = {
    [BELOW_1] = "a number from 0 to below 1",
    [SWITCH] = "0 or 1",
    [UP_TO_1E6] = "a number from 0 to 1e6",
    [ABOVE_0] = "a number above 0 up to 1e6",
};

static const struct option {
    unsigned kinds; /* bits */
    const char *name;
    enum range range;
    size_t offset; /* of a float; nesterov is apart */
} options[] = {
#define OF(kind) (1u << WEFT_OPTIMIZER_##kind)
    {OF(SGD), "momentum", BELOW_1, offsetof(struct weft_optimizer, momentum)},
    {OF(SGD), "nesterov", SWITCH, 0},
    {OF(SGD) | OF(ADAM) | OF(ADAMW) | OF(ADAGRAD) | OF(LAMB), "weight_decay", UP_TO_1E6,
     offsetof(struct weft_optimizer, weight_decay)},
    {OF(ADAM) | OF(ADAMW) | OF(LAMB), "beta1", BELOW_1, offsetof(struct weft_optimizer, beta1)},
    {OF(ADAM) | OF(ADAMW) | OF(LAMB), "beta2", BELOW_1, offsetof(struct weft_optimizer, beta2)},
    {OF(ADAM) | OF(ADAMW) | OF(ADAGRAD) | OF(LAMB), "eps", ABOVE_0, offsetof(struct weft_optimizer, eps)},
    {OF(FTRL), "beta", ABOVE_0, offsetof(struct weft_optimizer, beta)},
    {OF(FTRL), "l1", UP_TO_1E6, offsetof(struct weft_optimizer, l1)},
    {OF(FTRL), "l2", UP_TO_1E6, offsetof(struct weft_optimizer, l2)},
#undef OF
};
enum { OPTIONS = sizeof options / sizeof options[0] };

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

static bool parse_number(const char *text, size_t bytes, double *value_out)
{
    char copy[32], *end;
    if (bytes == 0 || bytes >= sizeof copy) return false;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    if (strspn(copy, "0123456789+-.eE") != bytes) return false; /* no "inf", "nan", hex or blanks */
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) return false;
    *value_out = strtod_l(copy, &end, c_locale);
    freelocale(c_locale);
    return *end == 0 && isfinite(*value_out);
}

static bool in_range(double value, enum range range)
{
    switch (range) {
    case BELOW_1: return value >= 0 && (float)value < 1;
    case SWITCH: return value == 0 || value == 1;
    case ABOVE_0: return (float)value > 0 && value <= 1e6;
    default: return value >= 0 && value <= 1e6;
    }
}

static enum weft_status parse_option(const char *text, size_t bytes, const char *allowed, unsigned *seen,
                                     struct weft_optimizer *into, struct weft_error *error)
{
    const char *equals = memchr(text, '=', bytes);
    const size_t name_bytes = equals ? (size_t)(equals - text) : bytes;
    int o = 0;
    double value;
    while (o < OPTIONS && !((options[o].kinds & 1u << into->kind) && strlen(options[o].name) == name_bytes
                            && memcmp(options[o].name, text, name_bytes) == 0))
        o++;
    if (o == OPTIONS || !equals)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "optimizer option '%.*s' is not known: give options as in %s", (int)bytes, text,
                              allowed);
    if (*seen & 1u << o)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer option '%s' is given twice",
                              options[o].name);
    *seen |= 1u << o;
    if (!parse_number(equals + 1, bytes - name_bytes - 1, &value) || !in_range(value, options[o].range))
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer option '%.*s' is out of range: %s is %s",
                              (int)bytes, text, options[o].name, range_texts[options[o].range]);
    const float narrow = (float)value;
    if (options[o].range == SWITCH) into->nesterov = value == 1;
    else memcpy((char *)into + options[o].offset, &narrow, sizeof narrow);
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
    while (k < KINDS && (strlen(kinds[k].name) != name_bytes || memcmp(kinds[k].name, text, name_bytes) != 0))
        k++;
    if (k == KINDS)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "optimizer '%.100s' is not known: give 'none', 'sgd', 'adam', 'adamw', "
                              "'adagrad', 'ftrl' or 'lamb', for example %s",
                              text, kinds[0].allowed);
    struct weft_optimizer made = kinds[k].defaults;
    const char *at = text + name_bytes;
    while (*at) { /* at ':' or ',' */
        at++;
        size_t bytes = strcspn(at, ",");
        WEFT_TRY(parse_option(at, bytes < 100 ? bytes : 100, kinds[k].allowed, &seen, &made, error));
        at += bytes;
    }
    if (made.nesterov && made.momentum == 0)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "optimizer '%.100s': nesterov needs a momentum above 0", text);
    *optimizer_out = made;
    return WEFT_OK;
}
