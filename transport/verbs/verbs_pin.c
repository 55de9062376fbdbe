/* verbs_pin.c - registers user memory before its first use, by holding a region of the registration cache. */
#include "transport/verbs/verbs_endpoint.h"

/* Access rights of a receive buffer; they cover those of a send. */
enum { KEEP_ACCESS = VERBS_LOCAL | VERBS_REMOTE_WRITE | VERBS_RELAXED };

enum weft_status verbs_memory_pin(struct weft_transport *transport, void *address, size_t bytes,
                                  void **registered_out, struct weft_error *error)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct verbs_region *region;
    WEFT_TRY(verbs_memory_get(endpoint->memory, address, bytes, KEEP_ACCESS, &region, error));
    if (region->cached) {
        *registered_out = region;
        return WEFT_OK;
    }
    /* Operations would not find it: unmaps cannot be seen here, or the cache is smaller. */
    verbs_memory_put(endpoint->memory, region);
    return WEFT_OK;
}

void verbs_memory_unpin(struct weft_transport *transport, void *kept)
{
    struct verbs_endpoint *endpoint = transport->backend;
    verbs_memory_put(endpoint->memory, kept);
}
