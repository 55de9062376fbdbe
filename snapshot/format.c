/* format.c - see format.h. */
#include "snapshot/format.h"

#include <stdlib.h>
#include <string.h>

/* Is `found` the same name with a larger number? */
static bool is_newer(const char *found, const char *own)
{
    const size_t name_bytes = (size_t)(strrchr(own, '-') - own) + 1;
    const char *number = found + name_bytes;
    if (strncmp(found, own, name_bytes) != 0) return false;
    const size_t digits = strspn(number, "0123456789");
    if (digits == 0 || digits > 9 || number[digits] != 0 || number[0] == '0') return false;
    return strtoul(number, NULL, 10) > strtoul(own + name_bytes, NULL, 10);
}

enum weft_status snapshot_format_check(const char *found, const char *own, const char *what,
                                       struct weft_error *error)
{
    if (found && strcmp(found, own) == 0) return WEFT_OK;
    if (found && is_newer(found, own))
        return weft_error_set(error, WEFT_ERR_VERSION,
                              "%s has the format %s of a newer release, and this one reads %s: use a newer "
                              "release of weft",
                              what, found, own);
    return weft_error_set(error, WEFT_ERR_VERSION, "%s is not of the format %s", what, own);
}
