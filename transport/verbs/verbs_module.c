/* verbs_module.c - the one symbol of libweft_verbs.so. */
#include "transport/core/module.h"
#include "transport/verbs/verbs_ops.h"

static const struct weft_transport_ops *verbs_ops(const struct core_services *services)
{
    core_imported = services;
    return &verbs_transport_ops;
}

extern WEFT_API const struct core_module weft_transport_module;
const struct core_module weft_transport_module = {
    .version = CORE_MODULE_VERSION,
    .service_bytes = sizeof(struct core_services),
    .transport_bytes = sizeof(struct weft_transport),
    .name = "verbs",
    .build = CORE_MODULE_BUILD,
    .ops = verbs_ops,
};
