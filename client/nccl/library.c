/* library.c - finds NCCL, once. */
#include "client/nccl/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define LIBRARY "libnccl.so.2"

static struct nccl_api api;
static pthread_once_t found_once = PTHREAD_ONCE_INIT;
static struct weft_error not_found; /* status 0: `api` is valid */

/* Prefers the copy of the trainer: two copies would each use buffers and threads of their own. */
static void *open_library(const char *named)
{
    if (named && named[0]) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    return library ? library : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

/* Returns the name of a missing function, or NULL. */
static const char *bind_calls(void *library)
{
#define BIND(name, symbol, arguments) \
    if (!(*(void **)&api.name = dlsym(library, symbol))) return symbol;
    NCCL_API_CALLS(BIND)
#undef BIND
    *(void **)&api.error_string = dlsym(library, "ncclGetErrorString");
    *(void **)&api.last_error = dlsym(library, "ncclGetLastError");
    return api.error_string && api.last_error ? NULL : "ncclGetLastError";
}

static void find(void)
{
    const char *named = getenv("WEFT_NCCL");
    void *library = open_library(named);
    if (!library) {
        const char *reason = dlerror();
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "NCCL cannot be loaded (%.200s); install " LIBRARY ", or name its file in WEFT_NCCL",
                       reason ? reason : LIBRARY);
        return;
    }
    const char *missing = bind_calls(library);
    if (!missing && api.get_version(&api.version) == NCCL_API_OK && api.version >= NCCL_API_VERSION_MIN)
        return;
    if (missing)
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "the NCCL that was found has no %s; weft needs NCCL 2.17 or later", missing);
    else
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "the NCCL that was found has version code %d; weft needs %d (2.17) or later",
                       api.version, NCCL_API_VERSION_MIN);
    dlclose(library);
}

enum weft_status nccl_api_load(const struct nccl_api **api_out, struct weft_error *error)
{
    pthread_once(&found_once, find);
    if (not_found.status < 0)
        return (enum weft_status)weft_error_set(error, not_found.status, "%s", not_found.text);
    *api_out = &api;
    return WEFT_OK;
}
