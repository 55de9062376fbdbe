/* window.c - windows and remotes: the part that is equal for all backends.
 *
 * The core checks the range, the right and the state of the peer before anything moves, and counts the
 * operations in flight on a remote. A backend moves the bytes. */
#include <stdio.h>
#include <string.h>

#include "transport/core/core.h"
#include "transport/auto/auto_ops.h"

void core_windows_init(struct weft_transport *transport)
{
    weft_list_init(&transport->memory.windows);
    weft_list_init(&transport->memory.remotes);
}

static void window_free(struct weft_transport *transport, struct weft_window *window)
{
    weft_list_remove(&window->link);
    weft_list_remove(&window->done.link); /* closed, but progress was not called again */
    transport->ops->window_free(transport, window);
    weft_free_bytes(transport->env, window);
}

static void remote_free(struct weft_transport *transport, struct weft_remote *remote)
{
    weft_list_remove(&remote->link);
    transport->ops->release(transport, remote);
    weft_free_bytes(transport->env, remote);
}

void core_windows_free(struct weft_transport *transport)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->memory.windows) {
        window_free(transport, weft_container_of(node, struct weft_window, link));
    }
    weft_list_foreach(node, spare, &transport->memory.remotes) {
        remote_free(transport, weft_container_of(node, struct weft_remote, link));
    }
}

unsigned weft_transport_abilities(const struct weft_transport *transport) { return transport->abilities; }

enum weft_status weft_window_open(struct weft_transport *transport, const struct weft_window_options *options,
                                  struct weft_window **window_out, struct weft_error *error)
{
    WEFT_ASSERT(options->size == sizeof *options && window_out);
    if (transport->closed) return weft_error_set(error, WEFT_ERR_CLOSED, "the endpoint is closed");
    const unsigned all_rights = WEFT_WINDOW_READ | WEFT_WINDOW_WRITE;
    if (!options->address || options->bytes == 0 || (options->rights & ~all_rights) ||
        !(options->rights & all_rights)) {
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "a window needs an address, a size and a right to read or write");
    }
    if (!(transport->abilities & WEFT_TRANSPORT_WINDOWS)) {
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "transport %s has no windows: use messages",
                              transport->name);
    }
    struct weft_window *window = weft_alloc_zero(transport->env, sizeof *window);
    if (!window) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    window->transport = transport;
    window->options = *options;
    weft_list_init(&window->done.link);
    enum weft_status status = transport->ops->window_open(transport, window, error);
    if (status < 0) {
        weft_free_bytes(transport->env, window);
        return status;
    }
    WEFT_ASSERT(window->key_bytes > 0 && window->key_bytes <= sizeof window->key);
    weft_list_append(&transport->memory.windows, &window->link);
    *window_out = window;
    return WEFT_OK;
}

void weft_window_key(const struct weft_window *window, const void **key_out, size_t *bytes_out)
{
    *key_out = window->key;
    *bytes_out = window->key_bytes;
}

static void window_closed(struct weft_transport *transport, struct core_done *done)
{
    window_free(transport, weft_container_of(done, struct weft_window, done));
}

void weft_window_close(struct weft_window *window, struct weft_completion *completion)
{
    WEFT_ASSERT(!window->closing && completion && completion->count > 0);
    window->closing = true;
    window->done.completion = completion;
    window->done.recycle = window_closed;
    window->transport->ops->window_close(window->transport, window);
}

enum weft_status weft_transport_import(struct weft_peer *peer, const void *key, size_t bytes,
                                       struct weft_remote **remote_out)
{
    struct weft_transport *transport = peer->transport;
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (peer->status < 0) return peer->status;
    if (!(transport->abilities & WEFT_TRANSPORT_WINDOWS)) return WEFT_ERR_UNSUPPORTED;
    if (!key || bytes == 0 || bytes > WEFT_WINDOW_KEY_BYTES_MAX) return WEFT_ERR_MALFORMED;
    if (transport->composite.parent) WEFT_TRY(auto_key_part(peer, &key, &bytes));
    struct weft_remote *remote = weft_alloc_zero(transport->env, sizeof *remote);
    if (!remote) return WEFT_ERR_NO_MEMORY;
    remote->peer = peer;
    enum weft_status status = transport->ops->import(transport, remote, key, bytes);
    if (status < 0) {
        weft_free_bytes(transport->env, remote);
        return status;
    }
    weft_list_append(&transport->memory.remotes, &remote->link);
    *remote_out = remote;
    return WEFT_OK;
}

size_t weft_remote_bytes(const struct weft_remote *remote) { return remote->bytes; }

void *weft_remote_map(struct weft_remote *remote)
{
    struct weft_transport *transport = remote->peer->transport;
    return transport->ops->map ? transport->ops->map(transport, remote) : NULL;
}

enum weft_status weft_remote_release(struct weft_remote *remote)
{
    if (remote->operations > 0) return WEFT_ERR_BUSY;
    remote_free(remote->peer->transport, remote);
    return WEFT_OK;
}

/* Checks that `bytes` at `offset` may be accessed with this right. */
static enum weft_status check_access(const struct weft_remote *remote, uint64_t offset, size_t bytes,
                                     unsigned right)
{
    if (remote->peer->transport->closed) return WEFT_ERR_CLOSED;
    if (remote->peer->status < 0) return remote->peer->status;
    if (!(remote->rights & right)) return WEFT_ERR_INVALID;
    if (offset > remote->bytes || bytes > remote->bytes - offset) return WEFT_ERR_INVALID;
    return WEFT_OK;
}

/* Accounts the result of the backend. WEFT_OK: complete, nothing is in flight. */
static enum weft_status started(struct weft_remote *remote, enum weft_status status)
{
    WEFT_ASSERT(status <= WEFT_IN_PROGRESS);
    if (status != WEFT_IN_PROGRESS) return status;
    remote->operations++;
    remote->peer->operations++;
    return status;
}

enum weft_status weft_transport_put(struct weft_remote *remote, const struct weft_put *put,
                                    struct weft_completion *completion)
{
    struct weft_transport *transport = remote->peer->transport;
    WEFT_ASSERT(completion && completion->count > 0);
    WEFT_TRY(check_access(remote, put->offset, put->bytes, WEFT_WINDOW_WRITE));
    if (put->bytes > 0 && !put->source) return WEFT_ERR_INVALID;
    if (put->bytes == 0 && !put->notify) return WEFT_ERR_INVALID;
    if (put->notify &&
        (put->header_bytes > WEFT_TRANSPORT_HEADER_BYTES_MAX || (put->header_bytes > 0 && !put->header)))
        return WEFT_ERR_INVALID;
    enum weft_status status = started(remote, transport->ops->put(transport, remote, put, completion));
    if (status >= 0) {
        transport->stats.put_count++;
        transport->stats.put_bytes += put->bytes;
        remote->peer->sent_bytes += put->bytes;
    }
    return status;
}

enum weft_status weft_transport_get(struct weft_remote *remote, uint64_t offset, void *destination,
                                    size_t bytes, struct weft_completion *completion)
{
    struct weft_transport *transport = remote->peer->transport;
    WEFT_ASSERT(completion && completion->count > 0);
    WEFT_TRY(check_access(remote, offset, bytes, WEFT_WINDOW_READ));
    if (bytes == 0 || !destination) return WEFT_ERR_INVALID;
    enum weft_status status =
        started(remote, transport->ops->get(transport, remote, offset, destination, bytes, completion));
    if (status >= 0) {
        transport->stats.get_count++;
        transport->stats.get_bytes += bytes;
    }
    return status;
}

uint64_t weft_peer_sent_bytes(const struct weft_peer *peer) { return peer->sent_bytes; }

void weft_peer_describe(struct weft_peer *peer, char *out, size_t bytes)
{
    struct weft_transport *transport = peer->transport;
    if (transport->composite.parent) auto_describe(peer, out, bytes);
    else if (transport->ops->describe) transport->ops->describe(transport, peer, out, bytes);
    else snprintf(out, bytes, "%s", transport->name);
}
