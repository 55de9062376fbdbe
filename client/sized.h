/* sized.h - public structs that begin with `size`: programs built against an older or a newer header than this library's.
 *
 *   size smaller   an older header: the fields beyond it have their defaults, or are not written
 *   size larger    a newer header: accepted where the fields that this library does not know are zero
 *
 * Fields are only ever appended, never put into the padding between or behind older ones. */
#ifndef WEFT_CLIENT_SIZED_H
#define WEFT_CLIENT_SIZED_H

#include <stddef.h>

#include "base/base.h"

/* Larger than this by so much is no size: it was not set. */
#define CLIENT_SIZED_GROWTH 1024u

/* Bytes up to the end of a field. */
#define client_sized_end(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

/* Struct of a caller: `theirs` begins with its size. What it has goes into `own` (own_bytes,), which holds the defaults.
 * `least`: so much of it is required. `own` then has own_bytes as its size. WEFT_ERR_INVALID with a sentence that begins with `what`. */
enum weft_status client_sized_take(void *own, size_t own_bytes, const void *theirs, size_t least, const char *what, struct weft_error *error);

/* Struct of a caller that will be filled: checked first, before anything changes. */
enum weft_status client_sized_check(const void *theirs, size_t own_bytes, const char *what, struct weft_error *error);
/* Then filled from `own`, up to the smaller of the two sizes, which becomes its size. */
void client_sized_give(const void *own, size_t own_bytes, void *theirs);

/* An init function of a caller's struct of `size` bytes: the defaults, and 0 in what this library does not know. NULL is fine. */
void client_sized_fill(const void *defaults, size_t own_bytes, void *theirs, size_t size);

#endif
