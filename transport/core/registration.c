/* registration.c - user memory that stays registered with the devices of a backend.
 *
 * A backend without memory.pin needs no registration; the record exists nevertheless, so that callers
 * need no distinction. */
#include "transport/core/core.h"

struct weft_registration {
    struct weft_transport *transport;
    struct weft_list link; /* in transport->registrations */
    void *kept;            /* the backend's registration; NULL: none needed */
    bool is_direct;
};

void core_registrations_init(struct weft_transport *transport)
{
    weft_list_init(&transport->memory.registrations);
}

static enum weft_status record_create(struct weft_transport *transport, const void *address, size_t bytes,
                                      struct weft_registration **out, struct weft_error *error)
{
    if (transport->closed) return weft_error_set(error, WEFT_ERR_CLOSED, "the endpoint is closed");
    if (!address || bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)address)
        return weft_error_set(error, WEFT_ERR_INVALID, "%zu bytes at %p are not a range of memory", bytes,
                              address);
    *out = weft_alloc_zero(transport->env, sizeof **out);
    if (!*out) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a registration");
    (*out)->transport = transport;
    return WEFT_OK;
}

/* Keeps the record, or frees it after an error of the backend. */
static enum weft_status record_end(struct weft_registration *registration, enum weft_status status,
                                   struct weft_registration **registration_out)
{
    struct weft_transport *transport = registration->transport;
    if (status < 0) {
        weft_free_bytes(transport->env, registration);
        return status;
    }
    weft_list_append(&transport->memory.registrations, &registration->link);
    *registration_out = registration;
    return WEFT_OK;
}

enum weft_status weft_transport_register(struct weft_transport *transport, void *address, size_t bytes,
                                         struct weft_registration **registration_out,
                                         struct weft_error *error)
{
    struct weft_registration *own;
    enum weft_status status = WEFT_OK;
    WEFT_TRY(record_create(transport, address, bytes, &own, error));
    if (transport->ops->memory.pin)
        status = transport->ops->memory.pin(transport, address, bytes, &own->kept, error);
    return record_end(own, status, registration_out);
}

unsigned weft_transport_direct_kinds(struct weft_transport *transport)
{
    return transport->ops->memory.direct_kinds ? transport->ops->memory.direct_kinds(transport) : 0;
}

enum weft_status weft_transport_register_direct(struct weft_transport *transport,
                                                const struct weft_direct_memory *memory,
                                                struct weft_registration **registration_out,
                                                struct weft_error *error)
{
    struct weft_registration *own;
    if (!transport->ops->memory.direct_pin)
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "%s cannot access device memory: copy it to the host first", transport->name);
    WEFT_TRY(record_create(transport, memory->address, memory->bytes, &own, error));
    own->is_direct = true;
    return record_end(own, transport->ops->memory.direct_pin(transport, memory, &own->kept, error),
                      registration_out);
}

void weft_peer_announce_all(struct weft_peer *peer)
{
    peer->announces_all = true;
}

void weft_transport_unregister(struct weft_registration *registration)
{
    if (!registration) return;
    struct weft_transport *transport = registration->transport;
    if (registration->is_direct) transport->ops->memory.direct_unpin(transport, registration->kept);
    else if (registration->kept) transport->ops->memory.unpin(transport, registration->kept);
    weft_list_remove(&registration->link);
    weft_free_bytes(transport->env, registration);
}

void core_registrations_free(struct weft_transport *transport)
{
    while (!weft_list_empty(&transport->memory.registrations))
        weft_transport_unregister(
            weft_list_first(&transport->memory.registrations, struct weft_registration, link));
}
