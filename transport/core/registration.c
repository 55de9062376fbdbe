/* registration.c - user memory that stays registered with the devices of a backend.
 *
 * A backend without memory_register needs no registration; the record exists nevertheless, so that callers
 * need no distinction. */
#include "transport/core/core.h"

struct weft_registration {
    struct weft_transport *transport;
    struct weft_list link; /* in transport->registrations */
    void *kept;            /* the backend's registration; NULL: none needed */
};

void core_registrations_init(struct weft_transport *transport)
{
    weft_list_init(&transport->memory.registrations);
}

enum weft_status weft_transport_register(struct weft_transport *transport, void *address, size_t bytes,
                                         struct weft_registration **registration_out,
                                         struct weft_error *error)
{
    if (transport->closed) return weft_error_set(error, WEFT_ERR_CLOSED, "the endpoint is closed");
    if (!address || bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)address)
        return weft_error_set(error, WEFT_ERR_INVALID, "%zu bytes at %p are not a range of memory", bytes,
                              address);
    struct weft_registration *registration = weft_alloc_zero(transport->env, sizeof *registration);
    if (!registration) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a registration");
    registration->transport = transport;
    enum weft_status status = WEFT_OK;
    if (transport->ops->memory_register)
        status = transport->ops->memory_register(transport, address, bytes, &registration->kept, error);
    if (status < 0) {
        weft_free_bytes(transport->env, registration);
        return status;
    }
    weft_list_append(&transport->memory.registrations, &registration->link);
    *registration_out = registration;
    return WEFT_OK;
}

void weft_transport_unregister(struct weft_registration *registration)
{
    if (!registration) return;
    struct weft_transport *transport = registration->transport;
    if (registration->kept) transport->ops->memory_unregister(transport, registration->kept);
    weft_list_remove(&registration->link);
    weft_free_bytes(transport->env, registration);
}

void core_registrations_free(struct weft_transport *transport)
{
    while (!weft_list_empty(&transport->memory.registrations))
        weft_transport_unregister(
            weft_list_first(&transport->memory.registrations, struct weft_registration, link));
}
