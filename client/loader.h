/* loader.h - inside libweft.so: opens libweft_core.so, which has the client and links its libraries.
 *
 *      program ──► libweft.so: weft_push ── table ──► libweft_core.so ──► libevent, protobuf-c, ...
 *                  (loader_calls.c, generated)        (opened by the first call)
 *
 * libweft.so links only the C library, so the program's symbols do not clash with those of the libraries
 * under libweft_core.so. */
#ifndef WEFT_CLIENT_LOADER_H
#define WEFT_CLIENT_LOADER_H

#include <stdatomic.h>

#include "client/loader_table.h"

extern _Atomic(const struct weft_core *) loader_opened; /* NULL until the first loader_open has returned */
extern const struct weft_core loader_missing; /* its functions return WEFT_ERR_UNSUPPORTED, 0 or "" */

/* Opens libweft_core.so with the first call in a process, and blocks for that. Returns the table, or
 * loader_missing if the file is missing, does not load, or belongs to another build. Any thread. */
const struct weft_core *loader_open(void);
const char *loader_failure(void); /* the sentence for loader_missing; static */
const char *loader_version(void); /* of libweft.so; static */

static inline const struct weft_core *loader_core(void)
{
    const struct weft_core *core = atomic_load_explicit(&loader_opened, memory_order_acquire);
    return __builtin_expect(core != NULL, 1) ? core : loader_open();
}

#endif
