/* auto_register.c - registers user memory with every child of the composite endpoint. */
#include "transport/auto/auto.h"

struct auto_kept {
    struct weft_registration *inner[AUTO_BACKENDS]; /* by index of the child */
};

void auto_memory_unregister(struct weft_transport *transport, void *kept)
{
    struct auto_kept *own = kept;
    for (uint32_t i = 0; i < transport->composite.child_count; i++) weft_transport_unregister(own->inner[i]);
    weft_free_bytes(transport->env, own);
}

enum weft_status auto_memory_register(struct weft_transport *transport, void *address, size_t bytes,
                                      void **registered_out, struct weft_error *error)
{
    bool needed = false;
    for (uint32_t i = 0; i < transport->composite.child_count; i++)
        needed |= transport->composite.children[i]->ops->memory.pin != NULL;
    if (!needed) return WEFT_OK;
    struct auto_kept *own = weft_alloc_zero(transport->env, sizeof *own);
    if (!own) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a registration");
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < transport->composite.child_count && status == WEFT_OK; i++)
        status =
            weft_transport_register(transport->composite.children[i], address, bytes, &own->inner[i], error);
    if (status == WEFT_OK) *registered_out = own;
    else auto_memory_unregister(transport, own);
    return status;
}
