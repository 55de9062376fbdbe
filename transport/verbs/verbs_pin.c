/* verbs_memory_pin.c - registers the user's memory before the first operation on it: holds a region of the
 * cache. */
#include "transport/verbs/verbs_endpoint.h"

/* The access with which arrivals are received; it covers that of sends. */
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
    /* No operation would find it: unmaps cannot be seen here, or the cache is smaller. */
    verbs_memory_put(endpoint->memory, region);
    return WEFT_OK;
}

void verbs_memory_unpin(struct weft_transport *transport, void *kept)
{
    struct verbs_endpoint *endpoint = transport->backend;
    verbs_memory_put(endpoint->memory, kept);
}
