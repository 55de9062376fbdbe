/* memory_library.c - loads the table of another accelerator, once. See memory_library.h. */
#include "base/memory/memory_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static pthread_once_t found_once = PTHREAD_ONCE_INIT;
static const struct weft_memory_ops *found;
static struct weft_error not_found;

bool memory_library_in_use(void)
{
    const char *named = getenv("WEFT_DEVICE_RUNTIME");
    return named && named[0];
}

/* All entries between the first and the last operation are pointers to functions. */
static bool is_complete(const struct weft_memory_ops *ops)
{
    const char *entry = (const char *)&ops->find, *end = (const char *)(ops + 1);
    if (!ops->name) return false;
    for (; entry < end; entry += sizeof ops->find)
        if (!*(void *const *)entry) return false;
    return true;
}

static void refuse(void *library, const char *named, const char *reason)
{
    weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED, "device memory: WEFT_DEVICE_RUNTIME (%.160s) %.200s",
                   named, reason);
    if (library) dlclose(library);
}

static void find(void)
{
    const char *named = getenv("WEFT_DEVICE_RUNTIME");
    if (!named || !named[0]) {
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "device memory needs the memory table of its accelerator: name the library in "
                       "WEFT_DEVICE_RUNTIME");
        return;
    }
    char reason[200] = "reports no device";
    void *library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        refuse(NULL, named, why ? why : "cannot be loaded");
        return;
    }
    const struct weft_memory_library *table = dlsym(library, WEFT_MEMORY_LIBRARY_SYMBOL);
    if (!table) refuse(library, named, "has no symbol " WEFT_MEMORY_LIBRARY_SYMBOL);
    else if (table->version != WEFT_MEMORY_LIBRARY_VERSION || table->bytes != sizeof *table->ops)
        refuse(library, named, "is built for another version of weft; build it against this one");
    else if (!table->open || !table->ops || !is_complete(table->ops))
        refuse(library, named, "has a table with a missing operation");
    else if (table->open(reason, sizeof reason) < 0) refuse(library, named, reason);
    else found = table->ops;
}

enum weft_status memory_library_ops(const struct weft_memory_ops **ops_out, struct weft_error *error)
{
    pthread_once(&found_once, find);
    if (!found) return (enum weft_status)weft_error_set(error, not_found.status, "%s", not_found.text);
    *ops_out = found;
    return WEFT_OK;
}
