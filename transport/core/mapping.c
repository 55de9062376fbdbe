/* mapping.c - public functions for shared memory of peers: map, copy, wake, peek. */
#include "transport/core/core.h"
#include "transport/memory/memory.h"

bool weft_memory_locate(const void *address, size_t bytes, uint64_t *offset_out)
{
    uint64_t offset = memory_offset(address, bytes);
    if (offset == MEMORY_NO_OFFSET) return false;
    *offset_out = offset;
    return true;
}

unsigned weft_peer_abilities(const struct weft_peer *peer) { return peer->transport->abilities; }

enum weft_status weft_peer_map(struct weft_peer *peer, struct weft_mapping *mapping_out)
{
    struct weft_transport *transport = peer->transport;
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (peer->status < 0) return peer->status;
    if (!(transport->abilities & WEFT_TRANSPORT_MAPS) || !transport->ops->map_peer)
        return WEFT_ERR_UNSUPPORTED;
    return transport->ops->map_peer(transport, peer, mapping_out);
}

void weft_mapping_release(struct weft_mapping *mapping)
{
    memory_view_unref(mapping->view);
    *mapping = (struct weft_mapping){0};
}

enum weft_status weft_peer_copy(struct weft_peer *peer, bool outward, uint64_t address, void *local,
                                size_t bytes)
{
    struct weft_transport *transport = peer->transport;
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (peer->status < 0) return peer->status;
    if (!transport->ops->copy_peer) return WEFT_ERR_UNSUPPORTED;
    return transport->ops->copy_peer(transport, peer, outward, address, local, bytes);
}

void weft_peer_wake(struct weft_peer *peer)
{
    struct weft_transport *transport = peer->transport;
    if (!transport->closed && peer->status == WEFT_OK && transport->ops->wake)
        transport->ops->wake(transport, peer);
}

bool weft_peer_is_detached(struct weft_peer *peer)
{
    struct weft_transport *transport = peer->transport;
    return transport->ops->is_detached && transport->ops->is_detached(transport, peer);
}

const void *weft_transport_peek(struct weft_arrival *handle)
{
    if (handle->ops) return handle->ops->peek(handle);
    const struct core_arrival *arrival = weft_container_of(handle, struct core_arrival, handle);
    struct weft_transport *transport = arrival->peer->transport;
    WEFT_ASSERT(arrival->state == CORE_ARRIVAL_HELD);
    if (transport->closed || handle->lost || !transport->ops->peek) return NULL;
    return transport->ops->peek(transport, handle);
}

bool weft_transport_peek_is_valid(const struct weft_arrival *handle)
{
    if (handle->ops) return handle->ops->peek_is_valid(handle);
    const struct core_arrival *arrival = weft_container_of(handle, struct core_arrival, handle);
    struct weft_transport *transport = arrival->peer->transport;
    return !transport->closed && !handle->lost && transport->ops->peek_is_valid &&
           transport->ops->peek_is_valid(transport, handle);
}
