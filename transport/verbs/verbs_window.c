/* verbs_window.c - windows, each with its own registration, so that closing it invalidates its key at
 * once; and access to windows of peers. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/verbs/verbs_endpoint.h"

struct window {
    struct verbs_region region;
    bool registered;
};

struct remote {
    struct verbs_window_key key;
};

static enum weft_status register_window(struct verbs_endpoint *endpoint,
                                        const struct weft_window_options *options, unsigned access,
                                        struct verbs_region *region, struct weft_error *error)
{
    int descriptor;
    uint64_t offset;
    if (!weft_memory_is_device(options->kind))
        return verbs_memory_register(endpoint->memory, options->address, options->bytes, access, region,
                                     error);
    WEFT_TRY(
        weft_memory_dmabuf(options->kind, options->address, options->bytes, &descriptor, &offset, error));
    enum weft_status status = verbs_memory_register_dmabuf(
        endpoint->memory, descriptor, offset, options->address, options->bytes, access, region, error);
    close(descriptor);
    return status;
}

enum weft_status verbs_window_open(struct weft_transport *transport, struct weft_window *window,
                                   struct weft_error *error)
{
    struct verbs_endpoint *endpoint = transport->backend;
    const struct weft_window_options *options = &window->options;
    struct window *own = weft_alloc_zero(transport->env, sizeof *own);
    if (!own) return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    unsigned access = VERBS_RELAXED;
    if (options->rights & WEFT_WINDOW_READ) access |= VERBS_REMOTE_READ;
    if (options->rights & WEFT_WINDOW_WRITE) access |= VERBS_REMOTE_WRITE;
    enum weft_status status = register_window(endpoint, options, access, &own->region, error);
    if (status < 0) {
        weft_free_bytes(transport->env, own);
        return status;
    }
    own->registered = true;
    struct verbs_window_key key = {
        .owner = transport->id,
        .rights = options->rights,
        .rail_count = endpoint->rail_count,
        .address = (uintptr_t)options->address,
        .bytes = options->bytes,
    };
    memcpy(key.keys, own->region.rkey, sizeof key.keys);
    window->key_bytes = verbs_window_key_encode(&key, window->key);
    window->backend = own;
    return WEFT_OK;
}

static void take_back(struct verbs_endpoint *endpoint, struct window *own)
{
    if (own->registered) verbs_memory_unregister(endpoint->memory, &own->region);
    own->registered = false;
}

/* After the deregistration the device refuses the key: no peer can access the memory. */
void verbs_window_close(struct weft_transport *transport, struct weft_window *window)
{
    take_back(transport->backend, window->backend);
    core_finish(transport, &window->done, WEFT_OK);
}

void verbs_window_free(struct weft_transport *transport, struct weft_window *window)
{
    take_back(transport->backend, window->backend);
    weft_free_bytes(transport->env, window->backend);
    window->backend = NULL;
}

enum weft_status verbs_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                              size_t bytes)
{
    struct verbs_window_key decoded;
    WEFT_TRY(verbs_window_key_decode(key, bytes, remote->peer->id, &decoded));
    struct remote *own = weft_alloc_zero(transport->env, sizeof *own);
    if (!own) return WEFT_ERR_NO_MEMORY;
    own->key = decoded;
    remote->bytes = decoded.bytes;
    remote->rights = decoded.rights;
    remote->backend = own;
    return WEFT_OK;
}

void verbs_release(struct weft_transport *transport, struct weft_remote *remote)
{
    weft_free_bytes(transport->env, remote->backend);
    remote->backend = NULL;
}

/* Both directions: registers local memory and uses the peer's key. */
static enum weft_status access_start(struct weft_transport *transport, struct weft_remote *remote,
                                     uint64_t offset, const void *local, size_t bytes,
                                     const struct weft_put *put, struct weft_completion *completion)
{
    struct verbs_endpoint *endpoint = transport->backend;
    struct verbs_peer *verbs_peer = remote->peer->backend;
    const struct remote *own = remote->backend;
    uint8_t *there = (uint8_t *)(uintptr_t)(own->key.address + offset);
    if (endpoint->send_count >= VERBS_SENDS_MAX) return WEFT_ERR_AGAIN;
    if (!verbs_peer->stream) {
        if (verbs_is_direct(endpoint, local, bytes)) return WEFT_ERR_UNSUPPORTED;
        return put ? verbs_self_access(verbs_peer, there, local, bytes, put, remote, completion)
                   : verbs_self_access(verbs_peer, (void *)(uintptr_t)local, there, bytes, NULL, remote,
                                       completion);
    }
    if (verbs_peer->stream->phase != STREAM_RUNNING) return WEFT_ERR_PEER_LOST;
    struct verbs_send *send = verbs_send_new(verbs_peer, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    struct weft_error error = {0};
    enum weft_status status = WEFT_OK;
    if (bytes > 0) send->region = verbs_direct_get(endpoint, local, bytes);
    send->stream.transfer.is_direct = send->region != NULL;
    if (bytes > 0 && !send->region)
        status = verbs_memory_get(endpoint->memory, local, bytes,
                                  put ? VERBS_LOCAL : VERBS_TARGET | VERBS_RELAXED, &send->region, &error);
    if (status < 0) {
        send->region = NULL;
        weft_log(transport->env, WEFT_LOG_WARN, "transport", "endpoint %u peer %u: %s", transport->id,
                 remote->peer->id, error.text);
        verbs_send_drop(send);
        return status;
    }
    struct stream_transfer *transfer = &send->stream.transfer;
    send->done.remote = remote;
    transfer->read = !put;
    transfer->local = (uint8_t *)(uintptr_t)local;
    transfer->bytes = bytes;
    transfer->remote = (uintptr_t)there;
    if (send->region) verbs_keys(endpoint, send->region->lkey, &transfer->local_keys);
    for (uint32_t i = 0; i < STREAM_LANES_MAX; i++)
        transfer->remote_keys.key[i] = own->key.keys[i % own->key.rail_count];
    if (put && put->notify) {
        send->stream.notify = true;
        send->stream.tag = put->tag;
        send->stream.header_bytes = put->header_bytes;
        if (put->header_bytes > 0) memcpy(send->stream.header, put->header, put->header_bytes);
    }
    stream_send_access(verbs_peer->stream, &send->stream);
    verbs_push(verbs_peer);
    return WEFT_IN_PROGRESS;
}

enum weft_status verbs_put(struct weft_transport *transport, struct weft_remote *remote,
                           const struct weft_put *put, struct weft_completion *completion)
{
    return access_start(transport, remote, put->offset, put->source, put->bytes, put, completion);
}

enum weft_status verbs_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                           void *destination, size_t bytes, struct weft_completion *completion)
{
    return access_start(transport, remote, offset, destination, bytes, NULL, completion);
}
