/* sized.h - public structs that begin with `size`, for programs built against an older or newer header.
 *
 *   size smaller   older header: fields beyond it take their defaults, or are not written
 *   size larger    newer header: accepted if all fields that this library does not know are zero
 *
 * New fields are appended, never placed into padding. */
#ifndef WEFT_CLIENT_SESSION_SIZED_H
#define WEFT_CLIENT_SESSION_SIZED_H

#include <stddef.h>

#include "base/base.h"

/* A size that exceeds the library's by more was not set by the caller. */
#define CLIENT_SIZED_GROWTH 1024u

/* Bytes up to the end of a field. */
#define client_sized_end(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

/* Copies the caller's struct `theirs`, which begins with its size, over the defaults in `own`
 * (own_bytes,). `least`: required bytes. own->size becomes own_bytes. WEFT_ERR_INVALID with a sentence
 * that begins with `what`. */
enum weft_status client_sized_copy_in(void *own, size_t own_bytes, const void *theirs, size_t least,
                                   const char *what, struct weft_error *error);

/* Validates a struct of the caller that will be filled. Changes nothing. */
enum weft_status client_sized_check(const void *theirs, size_t own_bytes, const char *what,
                                    struct weft_error *error);
/* Fills it from `own`, up to the smaller of the two sizes, which becomes its size. */
void client_sized_copy_out(const void *own, size_t own_bytes, void *theirs);

/* Initialises the caller's struct of `size` bytes with the defaults, and unknown fields with 0. NULL does
 * nothing. */
void client_sized_init(const void *defaults, size_t own_bytes, void *theirs, size_t size);

#endif
