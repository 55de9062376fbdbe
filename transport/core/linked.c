/* linked.c - the backends of this build, linked into the program: for libweft.a and for white-box tests. */
#include <stddef.h>

#include "transport/core/module.h"
#ifdef WEFT_HAVE_UCX
#include "transport/ucx/ucx_ops.h"
#endif
#ifdef WEFT_HAVE_VERBS
#include "transport/verbs/verbs_ops.h"
#endif

const struct core_linked_backend core_linked_backends[] = {
#ifdef WEFT_HAVE_UCX
    {"ucx", &ucx_transport_ops},
#endif
#ifdef WEFT_HAVE_VERBS
    {"verbs", &verbs_transport_ops},
#endif
    {NULL, NULL},
};
