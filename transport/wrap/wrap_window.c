/* wrap_window.c - one-sided access through a wrapper: each window and remote wraps one of the inner
 * transport.
 *
 * A put or get is lost, delayed or broken as a message is; a get is delayed on its outgoing way only. */
#include <string.h>

#include "transport/wrap/wrap.h"

struct wrap_window {
    struct weft_window *inner, *outer;
    struct weft_completion closed;
};

static void inner_closed(struct weft_completion *completion, enum weft_status status)
{
    struct wrap_window *window = weft_container_of(completion, struct wrap_window, closed);
    core_finish(window->outer->transport, &window->outer->done, status);
}

enum weft_status wrap_window_open(struct weft_transport *transport, struct weft_window *window,
                                  struct weft_error *error)
{
    struct wrap_window *wrapped = weft_alloc_zero(transport->env, sizeof *wrapped);
    if (!wrapped) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    enum weft_status status =
        weft_window_open(wrap_of(transport)->inner, &window->options, &wrapped->inner, error);
    if (status < 0) {
        weft_free_bytes(transport->env, wrapped);
        return status;
    }
    const void *key;
    weft_window_key(wrapped->inner, &key, &window->key_bytes);
    memcpy(window->key, key, window->key_bytes);
    wrapped->outer = window;
    window->backend = wrapped;
    return WEFT_OK;
}

void wrap_window_close(struct weft_transport *transport, struct weft_window *window)
{
    struct wrap_window *wrapped = window->backend;
    weft_completion_init(&wrapped->closed, 1, inner_closed);
    weft_window_close(wrapped->inner, &wrapped->closed);
}

/* The inner window ends with its completion, or with its transport. */
void wrap_window_free(struct weft_transport *transport, struct weft_window *window)
{
    weft_free_bytes(transport->env, window->backend);
}

enum weft_status wrap_memory_register(struct weft_transport *transport, void *address, size_t bytes,
                                      void **registered_out, struct weft_error *error)
{
    struct weft_registration *inner;
    WEFT_TRY(weft_transport_register(wrap_of(transport)->inner, address, bytes, &inner, error));
    *registered_out = inner;
    return WEFT_OK;
}

void wrap_memory_unregister(struct weft_transport *transport, void *kept) { weft_transport_unregister(kept); }

enum weft_status wrap_import(struct weft_transport *transport, struct weft_remote *remote, const void *key,
                             size_t bytes)
{
    const struct wrap_peer *peer = remote->peer->backend;
    struct weft_remote *inner;
    WEFT_TRY(weft_transport_import(peer->inner, key, bytes, &inner));
    remote->bytes = inner->bytes;
    remote->rights = inner->rights;
    remote->backend = inner;
    return WEFT_OK;
}

void wrap_release(struct weft_transport *transport, struct weft_remote *remote)
{
    enum weft_status status = weft_remote_release(remote->backend);
    WEFT_ASSERT(status == WEFT_OK ||
                /* nothing is in flight on the outer remote, so nothing on the inner one */
                transport->closed);
}

void *wrap_map(struct weft_transport *transport, struct weft_remote *remote)
{
    return wrap_can_alter(wrap_of(transport)) ? NULL : weft_remote_map(remote->backend);
}

enum weft_status wrap_map_peer(struct weft_transport *transport, struct weft_peer *peer,
                               struct weft_mapping *mapping_out)
{
    /* MAPS is offered only if the wrapper changes nothing */
    return weft_peer_map(((struct wrap_peer *)peer->backend)->inner, mapping_out);
}

void wrap_wake(struct weft_transport *transport, struct weft_peer *peer)
{
    weft_peer_wake(((struct wrap_peer *)peer->backend)->inner);
}

enum weft_status wrap_copy_peer(struct weft_transport *transport, struct weft_peer *peer, bool outward,
                                uint64_t address, void *local, size_t bytes)
{
    if (wrap_can_alter(wrap_of(transport))) return WEFT_ERR_UNSUPPORTED;
    return weft_peer_copy(((struct wrap_peer *)peer->backend)->inner, outward, address, local, bytes);
}

bool wrap_is_detached(struct weft_transport *transport, const struct weft_peer *peer)
{
    return weft_peer_is_detached(((struct wrap_peer *)peer->backend)->inner);
}

enum weft_status wrap_put(struct weft_transport *transport, struct weft_remote *remote,
                          const struct weft_put *put, struct weft_completion *completion)
{
    struct wrap *wrap = wrap_of(transport);
    if (wrap->op_count >= WRAP_HELD_MAX) return WEFT_ERR_AGAIN;
    struct wrap_op *op = wrap_op_new(transport, WRAP_PUT, remote->peer, completion);
    if (!op) return WEFT_ERR_NO_MEMORY;
    op->done.remote = remote;
    op->remote = remote->backend;
    op->tag = put->notify ? put->tag : 0;
    op->bytes = put->bytes;
    op->put = *put;
    bool held;
    enum weft_status status = wrap_op_start(wrap, op, &held);
    if (status == WEFT_IN_PROGRESS && held &&
        put->notify) { /* the caller's header is valid during the call only */
        op->put.header = op->header;
        if (put->header_bytes > 0) memcpy(op->header, put->header, put->header_bytes);
    }
    return status;
}

enum weft_status wrap_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                          void *destination, size_t bytes, struct weft_completion *completion)
{
    struct wrap *wrap = wrap_of(transport);
    if (wrap->op_count >= WRAP_HELD_MAX) return WEFT_ERR_AGAIN;
    struct wrap_op *op = wrap_op_new(transport, WRAP_GET, remote->peer, completion);
    if (!op) return WEFT_ERR_NO_MEMORY;
    op->done.remote = remote;
    op->remote = remote->backend;
    op->bytes = bytes;
    op->get.offset = offset;
    op->get.destination = destination;
    bool held;
    return wrap_op_start(wrap, op, &held);
}
