/* loader.c - opens libweft_core.so once, from weft/ beside libweft.so or, in a build tree, from the same
 * folder.
 *
 * The folder is recorded when libweft.so is loaded: its path may be relative, and the program may change
 * directory before its first call. The first call opens the file, so a program that makes no call loads
 * nothing. */
#include "client/loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os/library.h"

_Atomic(const struct weft_core *) loader_opened;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char folder[PATH_MAX]; /* of libweft.so; "": unknown */
static char failure[512];     /* sentence of the failure to open libweft_core.so */

__attribute__((constructor)) static void note_folder(void)
{
    if (!weft_library_folder(&once, folder, sizeof folder)) folder[0] = 0;
}

static const struct weft_core *open_core(void)
{
    char path[PATH_MAX + 32];
    if (!folder[0]) note_folder(); /* a constructor of another library may call before note_folder has run */
    snprintf(path, sizeof path, "%s/weft/libweft_core.so", folder);
    if (access(path, F_OK) != 0) snprintf(path, sizeof path, "%s/libweft_core.so", folder);
    void *library = weft_library_open(path);
    const struct weft_core *core = library ? dlsym(library, "weft_core") : NULL;
    if (!core) {
        const char *reason = dlerror();
        snprintf(failure, sizeof failure,
                 "weft cannot be loaded (%.300s); install weft/libweft_core.so beside libweft.so",
                 reason ? reason : path);
        return NULL;
    }
    if (core->size == sizeof *core && strcmp(core->version, loader_version()) == 0) return core;
    snprintf(failure, sizeof failure,
             "%.300s is of another build than libweft.so; install both from one build", path);
    return NULL;
}

static void open_once(void)
{
    const struct weft_core *core = open_core();
    atomic_store_explicit(&loader_opened, core ? core : &loader_missing, memory_order_release);
}

const struct weft_core *loader_open(void)
{
    pthread_once(&once, open_once);
    return atomic_load_explicit(&loader_opened, memory_order_acquire);
}

const char *loader_failure(void)
{
    return failure;
}

const char *loader_version(void)
{
    return CORE_MODULE_BUILD;
}
