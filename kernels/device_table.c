/* device_table.c - finding the library with the kernels of a device, once. */
#include "kernels/device_table.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define LIBRARY "libweft_cuda.so.0"

static pthread_once_t found_once = PTHREAD_ONCE_INIT;
static const struct weft_device_kernels *table;
static struct weft_error not_found;

/* Beside the file that this code was loaded from, or in the folder above (libweft_core.so is in weft/): a
 * library installed anywhere finds its companion. */
static void *open_beside_libweft(void)
{
    Dl_info own;
    char path[4096];
    if (!dladdr((void *)(uintptr_t)&table, &own) || !own.dli_fname) return NULL;
    const char *slash = strrchr(own.dli_fname, '/');
    if (!slash) return NULL;
    for (int above = 0; above < 2; above++) {
        const int length = snprintf(path, sizeof path, "%.*s/%s" LIBRARY, (int)(slash - own.dli_fname),
                                    own.dli_fname, above ? "../" : "");
        if (length < 0 || (size_t)length >= sizeof path) return NULL;
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

static void find(void)
{
    const char *named = getenv("WEFT_CUDA_KERNELS");
    void *library = NULL;
    if (named && named[0]) library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    else if (!(library = open_beside_libweft())) library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                       "the device kernels cannot be loaded (%.200s); install " LIBRARY
                       " beside libweft, or name its file in WEFT_CUDA_KERNELS",
                       reason ? reason : LIBRARY);
        return;
    }
    const struct weft_device_kernels *loaded = dlsym(library, WEFT_DEVICE_KERNELS_SYMBOL);
    if (loaded && loaded->version == WEFT_DEVICE_KERNELS_VERSION && loaded->bytes == sizeof *loaded) {
        table = loaded;
        return;
    }
    weft_error_set(&not_found, WEFT_ERR_UNSUPPORTED,
                   "the device kernels that were found (%.120s) are of another version of weft; install both "
                   "from one build",
                   named && named[0] ? named : LIBRARY);
    dlclose(library);
}

enum weft_status weft_device_kernels(const struct weft_device_kernels **kernels_out, struct weft_error *error)
{
    pthread_once(&found_once, find);
    if (!table) return (enum weft_status)weft_error_set(error, not_found.status, "%s", not_found.text);
    *kernels_out = table;
    return WEFT_OK;
}
