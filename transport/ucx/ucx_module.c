/* ucx_module.c - the one symbol of libweft_ucx.so. */
#include "transport/core/module.h"
#include "transport/ucx/ucx_ops.h"

static const struct weft_transport_ops *ucx_ops(const struct core_services *services)
{
    core_imported = services;
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
