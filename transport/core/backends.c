/* backends.c - the table of backends by name. */
#include <string.h>

#include "transport/core/core.h"
#include "transport/core/module.h"
#include "transport/auto/auto_ops.h"
#include "transport/shm/shm_ops.h"
#include "transport/sim/sim_ops.h"
#include "transport/tcp/tcp_ops.h"
#include "transport/wrap/wrap_ops.h"

/* Backends with a library of their own, linked in or in a module: a program loads such a library only when
 * it uses the backend. */
static const char *const apart[] = {
#ifdef WEFT_HAVE_UCX
    "ucx",
#endif
#ifdef WEFT_HAVE_VERBS
    "verbs",
#endif
    NULL,
};

const char *core_backend_names(void)
{
    return "auto, shm, "
#ifdef WEFT_HAVE_UCX
           "ucx, "
#endif
#ifdef WEFT_HAVE_VERBS
           "verbs, "
#endif
           "tcp, sim";
}

static const struct weft_transport_ops *find_own(const char *name)
{
    if (strcmp(name, "auto") == 0) return &auto_transport_ops;
    if (strcmp(name, "shm") == 0) return &shm_transport_ops;
    if (strcmp(name, "sim") == 0) return &sim_transport_ops;
    if (strcmp(name, "tcp") == 0) return &tcp_transport_ops;
    if (strncmp(name, "fault:", 6) == 0) return &fault_transport_ops;
    if (strncmp(name, "delay:", 6) == 0) return &delay_transport_ops;
    if (strncmp(name, "trace:", 6) == 0) return &trace_transport_ops;
    return NULL;
}

static bool is_apart(const char *name)
{
    const char *const *known = apart;
    while (*known && strcmp(*known, name) != 0) known++;
    return *known != NULL;
}

bool core_backend_is_known(const char *name)
{
    return find_own(name) || is_apart(name);
}

enum weft_status core_backend_find(const char *name, const struct weft_transport_ops **ops_out,
                                   struct weft_error *error)
{
    if ((*ops_out = find_own(name))) return WEFT_OK;
    if (!is_apart(name)) {
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "transport backend \"%s\" is unknown: this build has %s, each also behind "
                              "fault:, delay: or trace:",
                              name, core_backend_names());
    }
    for (const struct core_linked_backend *linked = core_linked_backends; linked->name; linked++) {
        if (strcmp(linked->name, name) != 0) continue;
        *ops_out = linked->ops;
        return WEFT_OK;
    }
    return core_module_ops(name, ops_out, error);
}
