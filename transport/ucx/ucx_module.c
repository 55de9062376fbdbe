/* ucx_module.c - the one symbol of libweft_ucx.so.
 *
 * UCX opens further libraries (libuct_ib.so.0 and others in ucx/ beside libuct) without RTLD_DEEPBIND. If
 * the program defines functions of UCX, libnl or libibverbs, their references would bind to the program.
 * So they are opened here first, isolated from the program; UCX then finds them loaded. */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uct/api/uct.h>

#include "transport/core/module.h"
#include "transport/ucx/ucx_ops.h"

static bool is_library_of_ucx(const char *name)
{
    const size_t length = strlen(name);
    return strncmp(name, "libuc", 5) == 0 && length > 5 && strcmp(name + length - 5, ".so.0") == 0;
}

/* A library that fails to load here fails for UCX, too, which continues without it. */
static void open_libraries_of_ucx(void)
{
    char ucx_window[PATH_MAX], path[PATH_MAX + NAME_MAX + 2];
    const char *named = getenv("UCX_MODULE_DIR");
    if (getenv("UCX_MODULES")) return; /* the user chooses the modules */
    if (!named &&
        !weft_library_folder((void *)(uintptr_t)&uct_query_components, ucx_window, sizeof ucx_window))
        return;
    if (named) snprintf(path, sizeof path, "%.*s", PATH_MAX, named);
    else snprintf(path, sizeof path, "%s/ucx", ucx_window);
    snprintf(ucx_window, sizeof ucx_window, "%.*s", PATH_MAX - 1, path);
    DIR *folder = opendir(ucx_window);
    for (const struct dirent *entry = NULL; folder && (entry = readdir(folder));) {
        if (!is_library_of_ucx(entry->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s", ucx_window, entry->d_name);
        weft_library_open(path);
    }
    if (folder) closedir(folder);
}

static const struct weft_transport_ops *ucx_ops(const struct core_services *services)
{
    core_imported = services;
    open_libraries_of_ucx();
    return &ucx_transport_ops;
}

extern WEFT_API const struct core_module weft_transport_module;
const struct core_module weft_transport_module = {
    .version = CORE_MODULE_VERSION,
    .service_bytes = sizeof(struct core_services),
    .transport_bytes = sizeof(struct weft_transport),
    .name = "ucx",
    .build = CORE_MODULE_BUILD,
    .ops = ucx_ops,
};
