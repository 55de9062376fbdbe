/* module.c - finds and opens the shared object of a backend.
 *
 * If WEFT_MODULE_DIR is set, only that folder is searched. Otherwise these folders, relative to the file
 * that contains this code: weft/ (beside libweft.so), the folder itself, the module folder of installed
 * programs, and the build's folder. */
#include "transport/core/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODULES_MAX = 4 };

static const char *const places[] = {"weft", ".", CORE_MODULES_BESIDE_PROGRAMS, "../transport"};
#define CORE_SERVICE_VALUE(name) .name = name,
static const struct core_services services = {CORE_SERVICES(CORE_SERVICE_VALUE)};

/* Requested backends, each with its table or the reason for its absence. */
static struct module {
    char name[16];
    const struct weft_transport_ops *ops;
    struct weft_error error;
} modules[MODULES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while a module is opened */

/* The first such file in the search path; false: none. */
static bool find_file(const char *name, char *path, size_t bytes)
{
    char own[PATH_MAX];
    const char *named = secure_getenv("WEFT_MODULE_DIR");
    if (named && named[0]) {
        const int length = snprintf(path, bytes, "%s/libweft_%s.so", named, name);
        return length > 0 && (size_t)length < bytes && access(path, F_OK) == 0;
    }
    if (!weft_library_folder(&services, own, sizeof own)) return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const int length = snprintf(path, bytes, "%s/%s/libweft_%s.so", own, places[i], name);
        if (length > 0 && (size_t)length < bytes && access(path, F_OK) == 0) return true;
    }
    return false;
}

static bool is_of_this_build(const struct core_module *module, const char *name)
{
    return module->version == CORE_MODULE_VERSION && module->service_bytes == sizeof services &&
           module->transport_bytes == sizeof(struct weft_transport) &&
           strcmp(module->build, CORE_MODULE_BUILD) == 0 && strcmp(module->name, name) == 0;
}

static const struct weft_transport_ops *open_module(const char *name, struct weft_error *error)
{
    char path[2 * PATH_MAX];
    if (!find_file(name, path, sizeof path)) {
        const char *named = secure_getenv("WEFT_MODULE_DIR");
        weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                       "the transport %s is not installed: there is no libweft_%s.so in %.100s; install it, "
                       "or name its folder in "
                       "WEFT_MODULE_DIR",
                       name, name, named && named[0] ? named : "the folder weft/ beside libweft.so");
        return NULL;
    }
    void *library = weft_library_open(path);
    const struct core_module *module = library ? dlsym(library, CORE_MODULE_SYMBOL) : NULL;
    if (!module) {
        const char *reason = dlerror();
        weft_error_set(error, WEFT_ERR_UNSUPPORTED, "the transport %s cannot be loaded (%.300s)", name,
                       reason ? reason : path);
        return NULL;
    }
    if (!is_of_this_build(module, name)) {
        weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                       "%.300s is of another build of weft; install both from one build", path);
        return NULL;
    }
    return module->ops(&services);
}

enum weft_status core_module_ops(const char *name, const struct weft_transport_ops **ops_out,
                                 struct weft_error *error)
{
    struct module *module = modules;
    pthread_mutex_lock(&lock);
    while (module < modules + MODULES_MAX && module->name[0] && strcmp(module->name, name) != 0) module++;
    WEFT_ASSERT(module < modules + MODULES_MAX && strlen(name) < sizeof module->name);
    if (!module->name[0]) {
        snprintf(module->name, sizeof module->name, "%s", name);
        module->ops = open_module(name, &module->error);
    }
    pthread_mutex_unlock(&lock);
    if (!module->ops)
        return (enum weft_status)weft_error_set(error, module->error.status, "%s", module->error.text);
    *ops_out = module->ops;
    return WEFT_OK;
}
