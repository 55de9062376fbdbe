/* interval.c - the interval of snapshots: a number of steps, or a time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/snapshot.h"

enum weft_status weft_snapshot_interval_parse(const char *text, struct weft_snapshot_interval *out,
                                              struct weft_error *error)
{
    static const struct {
        const char *name;
        uint64_t ns; /* 0: steps */
    } units[] = {{"steps", 0},
                 {"step", 0},
                 {"ms", WEFT_MS(1)},
                 {"s", WEFT_SECONDS(1)},
                 {"min", WEFT_SECONDS(60)},
                 {"h", WEFT_SECONDS(3600)}};
    char *end = NULL;
    errno = 0;
    const unsigned long long number = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    *out = (struct weft_snapshot_interval){0};
    while (end && *end == ' ') end++;
    for (size_t i = 0; end && errno == 0 && number > 0 && i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].name) != 0) continue;
        if (units[i].ns == 0) out->steps = number;
        else if (__builtin_mul_overflow((uint64_t)number, units[i].ns, &out->ns)) break;
        return WEFT_OK;
    }
    *out = (struct weft_snapshot_interval){0};
    return weft_error_set(
        error, WEFT_ERR_INVALID,
        "'%.60s' is no interval of snapshots: give a number above 0 and steps, ms, s, min or h "
        "(\"100 steps\", \"60s\")",
        text);
}
