/* optimizer_spec.c - "sgd:momentum=0.9,weight_decay=1e-4,nesterov=1" into numbers, alike on workers and shards.
 *
 *     spec   = "" | "none" | "sgd" [ ":" option { "," option } ]
 *     option = ("momentum" | "weight_decay" | "nesterov") "=" number
 *
 * Numbers are read in the C locale whatever the trainer has set, each option at most once, so equal text
 * gives equal bits everywhere. The learning rate is not here: it comes with every step. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

enum { OPTION_MOMENTUM, OPTION_WEIGHT_DECAY, OPTION_NESTEROV, OPTION_COUNT };
static const char *const option_names[OPTION_COUNT] = {"momentum", "weight_decay", "nesterov"};
#define ALLOWED "'none', 'sgd' or 'sgd:momentum=0.9,weight_decay=1e-4,nesterov=1'"

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

static enum weft_status parse_option(const char *text, size_t bytes, unsigned *seen, struct weft_optimizer_spec *spec,
                                     struct weft_error *error)
{
    const char *equals = memchr(text, '=', bytes);
    size_t name_bytes = equals ? (size_t)(equals - text) : bytes;
    int option = 0;
    while (option < OPTION_COUNT &&
           !(strlen(option_names[option]) == name_bytes && memcmp(option_names[option], text, name_bytes) == 0))
        option++;
    if (option == OPTION_COUNT || !equals)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer option '%.*s' is not known: give " ALLOWED, (int)bytes, text);
    if (*seen & 1u << option)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer option '%s' is given twice", option_names[option]);
    *seen |= 1u << option;

    double value, max = option == OPTION_WEIGHT_DECAY ? 1e6 : 1;
    bool ok = parse_number(equals + 1, bytes - name_bytes - 1, &value) && value >= 0 && value <= max;
    if (option == OPTION_MOMENTUM) ok = ok && (float)value < 1;
    if (option == OPTION_NESTEROV) ok = ok && (value == 0 || value == 1);
    if (!ok)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer option '%.*s' is out of range: %s", (int)bytes, text,
                              option == OPTION_MOMENTUM   ? "momentum is a number from 0 to below 1"
                              : option == OPTION_NESTEROV ? "nesterov is 0 or 1"
                                                          : "weight_decay is a number from 0 to 1e6");
    if (option == OPTION_MOMENTUM) spec->momentum = (float)value;
    if (option == OPTION_WEIGHT_DECAY) spec->weight_decay = (float)value;
    if (option == OPTION_NESTEROV) spec->nesterov = value == 1;
    return WEFT_OK;
}

enum weft_status weft_optimizer_parse(const char *text, struct weft_optimizer_spec *spec_out, struct weft_error *error)
{
    struct weft_optimizer_spec spec = {0};
    if (text[0] == 0 || strcmp(text, "none") == 0) {
        *spec_out = spec;
        return WEFT_OK;
    }
    size_t kind_bytes = strcspn(text, ":");
    if (kind_bytes != 3 || memcmp(text, "sgd", 3) != 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer '%.100s' is not known: give " ALLOWED, text);
    spec.enabled = true;
    unsigned seen = 0;
    const char *at = text + kind_bytes;
    while (*at) { /* at ':' or ',' */
        at++;
        size_t bytes = strcspn(at, ",");
        WEFT_TRY(parse_option(at, bytes < 100 ? bytes : 100, &seen, &spec, error));
        at += bytes;
    }
    if (spec.nesterov && spec.momentum == 0)
        return weft_error_set(error, WEFT_ERR_INVALID, "optimizer '%.100s': nesterov needs a momentum above 0", text);
    *spec_out = spec;
    return WEFT_OK;
}

const char *weft_proto_release(void) { return WEFT_RELEASE; }
