/* consistency.c - reads the consistency of a tensor, as Declare carries it. */
#include "proto/proto.h"

#include <string.h>

/* Digits alone, no sign, at most WEFT_STALENESS_MAX. false: another text. */
static bool parse_staleness(const char *text, uint32_t *out)
{
    uint32_t value = 0;
    if (!text[0]) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        value = value * 10 + (uint32_t)(*text - '0');
        if (value > WEFT_STALENESS_MAX) return false;
    }
    *out = value;
    return true;
}

enum weft_status weft_consistency_parse(const char *text, struct weft_consistency *out,
                                        struct weft_error *error)
{
    *out = (struct weft_consistency){WEFT_CONSISTENCY_BSP, 0};
    if (!text[0] || strcmp(text, "bsp") == 0) return WEFT_OK;
    out->kind = strcmp(text, "asp") == 0 ? WEFT_CONSISTENCY_ASP : WEFT_CONSISTENCY_SSP;
    if (out->kind == WEFT_CONSISTENCY_ASP) return WEFT_OK;
    if (strncmp(text, "ssp:", 4) == 0 && parse_staleness(text + 4, &out->staleness)) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_INVALID,
                          "consistency '%.60s' is none of bsp, ssp:S (S steps, 0 to %u) and asp", text,
                          WEFT_STALENESS_MAX);
}
