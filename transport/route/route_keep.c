/* route_keep.c - registers the user's memory with every part of the composite endpoint. */
#include "transport/route/route.h"

struct route_kept {
    struct weft_registration *inner[ROUTE_KINDS]; /* by place of the part */
};

void route_keep_end(struct weft_transport *transport, void *kept)
{
    struct route_kept *own = kept;
    for (uint32_t i = 0; i < transport->part_count; i++) weft_transport_unregister(own->inner[i]);
    weft_free_bytes(transport->env, own);
}

enum weft_status route_keep(struct weft_transport *transport, void *address, size_t bytes, void **kept_out,
                            struct weft_error *error)
{
    bool needed = false;
    for (uint32_t i = 0; i < transport->part_count; i++)
        needed |= transport->parts[i]->ops->memory_keep != NULL;
    if (!needed) return WEFT_OK;
    struct route_kept *own = weft_alloc_zero(transport->env, sizeof *own);
    if (!own) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a registration");
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < transport->part_count && status == WEFT_OK; i++)
        status = weft_transport_register(transport->parts[i], address, bytes, &own->inner[i], error);
    if (status == WEFT_OK) *kept_out = own;
    else route_keep_end(transport, own);
    return status;
}
