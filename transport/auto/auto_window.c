/* auto_window.c - a window of the composite endpoint: one per child, and a key that carries all their
 * keys.
 *
 *   key    magic u32 | parts u8 | parts
 *   part   kind u8 | bytes u8 | key of that child
 *
 * A window for one connected peer is opened in that peer's child only. */
#include <string.h>

#include "transport/auto/auto.h"
#include "transport/auto/auto_ops.h"

enum { MAGIC_BYTES = 4, FIXED_BYTES = 5, PIECE_BYTES = 2 };
static const uint8_t magic[MAGIC_BYTES] = {'W', 'R', 'T', 'W'};

struct auto_window {
    struct weft_transport *parent;
    struct weft_window *outer; /* NULL: the open failed half way; no close is pending */
    struct weft_window *inner[AUTO_BACKENDS];
    uint32_t count;
    struct weft_completion closed;
};

static void all_closed(struct weft_completion *completion, enum weft_status status)
{
    struct auto_window *own = weft_container_of(completion, struct auto_window, closed);
    own->count = 0;
    if (own->outer) core_finish(own->parent, &own->outer->done, status);
    else weft_free_bytes(own->parent->env, own);
}

static void close_all(struct auto_window *own)
{
    uint32_t count = own->count;
    weft_completion_init(&own->closed, count, all_closed);
    for (uint32_t i = 0; i < count; i++) weft_window_close(own->inner[i], &own->closed);
}

static enum weft_status add_piece(struct weft_window *window, int kind, const struct weft_window *inner)
{
    const void *key;
    size_t bytes;
    weft_window_key(inner, &key, &bytes);
    if (window->key_bytes + PIECE_BYTES + bytes > sizeof window->key)
        return weft_limit_note("the keys of a window are longer than %zu bytes together; name fewer "
                               "transports (transport.tune use=...)",
                               sizeof window->key);
    window->key[window->key_bytes] = (uint8_t)kind;
    window->key[window->key_bytes + 1] = (uint8_t)bytes;
    memcpy(window->key + window->key_bytes + PIECE_BYTES, key, bytes);
    window->key_bytes += PIECE_BYTES + bytes;
    window->key[MAGIC_BYTES]++;
    return WEFT_OK;
}

static enum weft_status open_inner(struct auto_window *own, struct weft_window *window, uint32_t i,
                                   struct weft_error *error)
{
    struct weft_transport *child = own->parent->composite.children[i];
    enum weft_status status = weft_window_open(child, &window->options, &own->inner[own->count], error);
    /* this kind of memory: peers of that child get the error at import */
    if (status == WEFT_ERR_UNSUPPORTED) return WEFT_OK;
    if (status < 0) return status;
    return add_piece(window, auto_backend_of(auto_of(own->parent), child), own->inner[own->count++]);
}

enum weft_status auto_window_open(struct weft_transport *transport, struct weft_window *window,
                                  struct weft_error *error)
{
    struct auto_window *own = weft_alloc_zero(transport->env, sizeof *own);
    if (!own) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    own->parent = transport;
    memcpy(window->key, magic, sizeof magic);
    window->key[MAGIC_BYTES] = 0;
    window->key_bytes = FIXED_BYTES;
    struct weft_peer *peer = window->options.peer_id == WEFT_ANY_PEER
                                 ? NULL
                                 : weft_transport_peer(transport, window->options.peer_id);
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < transport->composite.child_count && status == WEFT_OK; i++)
        if (!peer || peer->transport == transport->composite.children[i])
            status = open_inner(own, window, i, error);
    if (status == WEFT_OK && own->count == 0) status = WEFT_ERR_UNSUPPORTED;
    if (status == WEFT_OK) {
        own->outer = window;
        window->backend = own;
        return WEFT_OK;
    }
    if (own->count > 0) close_all(own);
    else weft_free_bytes(transport->env, own);
    return weft_error_set(error, status, "a window could not be opened in every transport of %s",
                          transport->name);
}

void auto_window_close(struct weft_transport *transport, struct weft_window *window)
{
    close_all(window->backend);
}

void auto_window_free(struct weft_transport *transport, struct weft_window *window)
{
    weft_free_bytes(transport->env, window->backend);
}

enum weft_status auto_key_part(const struct weft_peer *peer, const void **key, size_t *bytes)
{
    const uint8_t *at = *key, *end = at + *bytes;
    int kind = auto_backend_of(auto_of(peer->transport->composite.parent), peer->transport);
    const void *found = NULL;
    if (*bytes < FIXED_BYTES || memcmp(at, magic, sizeof magic) != 0) return WEFT_ERR_MALFORMED;
    uint32_t count = at[MAGIC_BYTES];
    at += FIXED_BYTES;
    for (uint32_t i = 0; i < count; i++, at += PIECE_BYTES + at[1]) {
        if (end - at < PIECE_BYTES || end - at - PIECE_BYTES < at[1]) return WEFT_ERR_MALFORMED;
        if (at[0] != kind) continue;
        if (found) return WEFT_ERR_MALFORMED;
        found = at + PIECE_BYTES;
        *bytes = at[1];
    }
    if (at != end) return WEFT_ERR_MALFORMED;
    if (!found) return WEFT_ERR_UNSUPPORTED;
    *key = found;
    return WEFT_OK;
}
