/* sized.c - see sized.h; and weft_struct_bytes, the sizes of this release. */
#include "client/session/sized.h"

#include <string.h>

#include "weft/weft.h"

static size_t size_of(const void *sized)
{
    size_t size;
    memcpy(&size, sized, sizeof size);
    return size;
}

enum weft_status client_sized_copy_in(void *own, size_t own_bytes, const void *theirs, size_t least,
                                   const char *what, struct weft_error *error)
{
    if (!theirs)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s is NULL; pass a struct with its size set", what);
    size_t size = size_of(theirs);
    if (size < least || size > own_bytes + CLIENT_SIZED_GROWTH)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%s.size is %zu; it must be the size of the struct (%zu in this release)", what,
                              size, own_bytes);
    const unsigned char *bytes = theirs;
    for (size_t i = own_bytes; i < size; i++)
        if (bytes[i] != 0)
            return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                                  "%s.size is %zu and a field behind byte %zu is set, which libweft %s does "
                                  "not know; load a newer libweft, or leave the field 0",
                                  what, size, own_bytes, weft_version());
    memcpy(own, theirs, size < own_bytes ? size : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return WEFT_OK;
}

enum weft_status client_sized_check(const void *theirs, size_t own_bytes, const char *what,
                                    struct weft_error *error)
{
    if (!theirs)
        return weft_error_set(error, WEFT_ERR_INVALID, "%s is NULL; pass a struct with its size set", what);
    size_t size = size_of(theirs);
    if (size < sizeof size || size > own_bytes + CLIENT_SIZED_GROWTH)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "%s.size is %zu; set it to the size of the struct (%zu in this release) before the call", what,
            size, own_bytes);
    return WEFT_OK;
}

void client_sized_copy_out(const void *own, size_t own_bytes, void *theirs)
{
    size_t size = size_of(theirs), filled = size < own_bytes ? size : own_bytes;
    memcpy(theirs, own, filled);
    memcpy(theirs, &filled, sizeof filled);
}

void client_sized_init(const void *defaults, size_t own_bytes, void *theirs, size_t size)
{
    if (!theirs || size < sizeof size) return;
    memset(theirs, 0, size);
    memcpy(theirs, defaults, size < own_bytes ? size : own_bytes);
    memcpy(theirs, &size, sizeof size);
}

size_t weft_struct_bytes(const char *name)
{
#define STRUCT(name) {#name, sizeof(struct name)}
    static const struct {
        const char *name;
        size_t bytes;
    } structs[] = {
        STRUCT(weft_options),       STRUCT(weft_tensor_options), STRUCT(weft_step),
        STRUCT(weft_step_options),  STRUCT(weft_request),        STRUCT(weft_choice),
        STRUCT(weft_call),          STRUCT(weft_axis),           STRUCT(weft_stats),
        STRUCT(weft_outer_options), STRUCT(weft_tensor_stats),
    };
#undef STRUCT
    for (size_t i = 0; name && i < sizeof structs / sizeof structs[0]; i++)
        if (strcmp(structs[i].name, name) == 0) return structs[i].bytes;
    return 0;
}
