/* backends.c - from a name to a table of functions. The only place that knows which backends there are. */
#include <string.h>

#include "transport/core/core.h"
#include "transport/sim/sim_ops.h"
#include "transport/wrap/wrap_ops.h"
#ifdef WEFT_HAVE_UCX
#include "transport/ucx/ucx_ops.h"
#endif

const char *core_backend_names(void)
{
#ifdef WEFT_HAVE_UCX
    return "ucx and sim";
#else
    return "sim (UCX was not found when it was built)";
#endif
}

const struct weft_transport_ops *core_backend_find(const char *name)
{
    if (strcmp(name, "sim") == 0) return &sim_transport_ops;
#ifdef WEFT_HAVE_UCX
    if (strcmp(name, "ucx") == 0) return &ucx_transport_ops;
#endif
    if (strncmp(name, "fault:", 6) == 0) return &fault_transport_ops;
    if (strncmp(name, "delay:", 6) == 0) return &delay_transport_ops;
    return NULL;
}
