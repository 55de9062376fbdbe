/* backends.c - from a name to a table of functions. The only place that knows which backends there are. */
#include <string.h>

#include "transport/core/core.h"
#include "transport/route/route_ops.h"
#include "transport/shm/shm_ops.h"
#include "transport/sim/sim_ops.h"
#include "transport/tcp/tcp_ops.h"
#include "transport/wrap/wrap_ops.h"
#ifdef WEFT_HAVE_UCX
#include "transport/ucx/ucx_ops.h"
#endif
#ifdef WEFT_HAVE_VERBS
#include "transport/verbs/verbs_ops.h"
#endif

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

const struct weft_transport_ops *core_backend_find(const char *name)
{
    if (strcmp(name, "auto") == 0) return &route_transport_ops;
    if (strcmp(name, "shm") == 0) return &shm_transport_ops;
    if (strcmp(name, "sim") == 0) return &sim_transport_ops;
    if (strcmp(name, "tcp") == 0) return &tcp_transport_ops;
#ifdef WEFT_HAVE_UCX
    if (strcmp(name, "ucx") == 0) return &ucx_transport_ops;
#endif
#ifdef WEFT_HAVE_VERBS
    if (strcmp(name, "verbs") == 0) return &verbs_transport_ops;
#endif
    if (strncmp(name, "fault:", 6) == 0) return &fault_transport_ops;
    if (strncmp(name, "delay:", 6) == 0) return &delay_transport_ops;
    if (strncmp(name, "trace:", 6) == 0) return &trace_transport_ops;
    return NULL;
}
