/* ucx_window.c - one-sided access by messages.
 *
 * Towards most peers (others: ucx_direct.c) a put or get consists of active messages served in the owner's
 * progress. UCX's own put over tcp is far slower, and memory that only its owner writes can be closed at
 * once.
 *   put   PUT fragments ─► copied into the window ─► PUT_DONE (and the notification arrives there)
 *   get   GET ─► DATA fragments into the buffer; ABORT if it cannot be served
 *
 * A window is found by id and secret, which are invalid once it is closed: a late fragment finds nothing
 * and its sender gets WEFT_ERR_CANCELLED. Data being sent out of a window keeps it busy until UCX has
 * released it. */
#include <string.h>

#include "transport/ucx/ucx.h"

/* ---- windows ---- */

enum weft_status ucx_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error)
{
    struct ucx_endpoint *endpoint = transport->backend;
    if (weft_memory_is_device(window->options.kind) && !ucx_reaches_device(endpoint, window->options.kind)) {
        return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                              "transport %s opens windows on host memory only, its UCX does not reach memory "
                              "kind %d: copy to the host first",
                              transport->name, (int)window->options.kind);
    }
    struct ucx_window *ucx_window = weft_alloc_zero(transport->env, sizeof *ucx_window);
    uint64_t id = ucx_window ? ucx_table_put(transport->env, &endpoint->windows, ucx_window) : 0;
    if (id == 0) {
        weft_free_bytes(transport->env, ucx_window);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    }
    ucx_window->window = window;
    ucx_window->id = id;
    ucx_window->secret = weft_random_u64(transport->env);
    window->backend = ucx_window;
    weft_list_init(&ucx_window->holders);
    ucx_direct_map(endpoint, ucx_window);
    struct ucx_wire_key key = {
        .owner = transport->id,
        .rights = window->options.rights,
        .window = id,
        .secret = ucx_window->secret,
        .bytes = window->options.bytes,
        .address = ucx_window->memory ? (uintptr_t)window->options.address : 0,
    };
    ucx_wire_key_encode(&key, window->key);
    window->key_bytes = UCX_WIRE_KEY_BYTES;
    return WEFT_OK;
}

static void put_done(struct ucx_peer *ucx_peer, uint64_t put_id, enum weft_status status)
{
    ucx_send_control(
        ucx_peer, &(struct ucx_wire_entry){.control = UCX_CONTROL_PUT_DONE, .id = put_id, .status = status});
}

static void incoming_free(struct ucx_peer *ucx_peer, struct ucx_incoming *incoming)
{
    weft_list_remove(&incoming->link);
    ucx_peer->incoming_count--;
    if (incoming->notification) ucx_arrival_release(ucx_peer->endpoint, incoming->notification);
    ucx_pool_release(&ucx_peer->endpoint->pools.incomings, incoming);
}

/* No operation of this peer accesses the window through this backend any more. */
static void window_revoke(struct ucx_peer *ucx_peer, struct ucx_window *ucx_window)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_peer->incoming) {
        struct ucx_incoming *incoming = weft_container_of(node, struct ucx_incoming, link);
        if (incoming->window != ucx_window) continue;
        put_done(ucx_peer, incoming->put_id, WEFT_ERR_CANCELLED);
        incoming_free(ucx_peer, incoming);
    }
    weft_list_foreach(node, spare, &ucx_peer->operations) {
        struct ucx_op *op = weft_container_of(node, struct ucx_op, link);
        struct ucx_send *send = weft_container_of(op, struct ucx_send, op);
        if (op->kind != UCX_OP_SERVE || op->finished || send->served != ucx_window) continue;
        ucx_send_control(ucx_peer, &(struct ucx_wire_entry){
                            .control = UCX_CONTROL_ABORT, .id = send->landing, .status = WEFT_ERR_CANCELLED});
        ucx_op_fail(op, WEFT_ERR_CANCELLED);
    }
}

void ucx_window_check(struct ucx_window *ucx_window)
{
    struct weft_window *window = ucx_window->window;
    if (!window->closing || !ucx_window->is_revoked || ucx_window->serving > 0 ||
        !weft_list_empty(&ucx_window->holders))
        return;
    ucx_direct_unmap(window->transport->backend, ucx_window);
    core_finish(window->transport, &window->done, WEFT_OK);
}

static void window_end(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window)
{
    ucx_window->is_revoked = true;
    ucx_window->serving++; /* held until all fragments are queued */
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        window_revoke(weft_container_of(node, struct ucx_peer, link), ucx_window);
    }
    ucx_window->serving--;
    ucx_direct_revoke_keys(ucx_window);
}

void ucx_window_close(struct weft_transport *transport, struct weft_window *window)
{
    struct ucx_window *ucx_window = window->backend;
    window_end(transport->backend, ucx_window);
    ucx_window_check(ucx_window);
}

void ucx_window_free(struct weft_transport *transport, struct weft_window *window)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_window *ucx_window = window->backend;
    if (!ucx_window->is_revoked) window_end(endpoint, ucx_window);
    ucx_table_remove(&endpoint->windows, ucx_window->id);
    ucx_direct_free(endpoint, ucx_window);
    struct weft_list *node, *spare, *each, *after;
    weft_list_foreach(node, spare, &endpoint->peers) {
        struct ucx_peer *ucx_peer = weft_container_of(node, struct ucx_peer, link);
        weft_list_foreach(each, after, &ucx_peer->operations) { /* only when the endpoint is given up */
            struct ucx_op *op = weft_container_of(each, struct ucx_op, link);
            struct ucx_send *send = weft_container_of(op, struct ucx_send, op);
            if (op->kind == UCX_OP_SERVE && send->served == ucx_window) send->served = NULL;
        }
    }
    weft_free_bytes(transport->env, ucx_window);
}

void ucx_serve_ended(struct ucx_send *send)
{
    struct ucx_window *ucx_window = send->served;
    send->served = NULL;
    if (!ucx_window) return;
    ucx_window->serving--;
    ucx_window_check(ucx_window);
}

struct ucx_window *ucx_window_find(struct ucx_peer *ucx_peer, uint64_t id, uint64_t secret, unsigned rights)
{
    struct ucx_window *ucx_window = ucx_table_get(&ucx_peer->endpoint->windows, id);
    if (!ucx_window || ucx_window->is_revoked || ucx_window->secret != secret ||
        !(ucx_window->window->options.rights & rights))
        return NULL;
    uint32_t only = ucx_window->window->options.peer_id;
    return only == WEFT_ANY_PEER || only == ucx_peer->peer->id ? ucx_window : NULL;
}

/* Memory that the processor cannot access: UCX copies it. */
static bool is_of_device(const struct ucx_window *ucx_window)
{
    return weft_memory_is_device(ucx_window->window->options.kind);
}

static bool is_inside_window(const struct ucx_window *ucx_window, uint64_t offset, uint64_t bytes)
{
    return offset <= ucx_window->window->options.bytes && bytes <= ucx_window->window->options.bytes - offset;
}

/* ---- requests of peers ---- */

static struct ucx_incoming *incoming_of(struct ucx_peer *ucx_peer, struct ucx_window *ucx_window,
                                        const struct ucx_wire_put *put)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_peer->incoming) {
        struct ucx_incoming *incoming = weft_container_of(node, struct ucx_incoming, link);
        if (incoming->put_id == put->id) return incoming;
    }
    if (ucx_peer->incoming_count >= UCX_INCOMING_MAX) return NULL;
    struct ucx_incoming *incoming = ucx_pool_alloc(ucx_peer->endpoint, &ucx_peer->endpoint->pools.incomings);
    if (!incoming) return NULL;
    *incoming = (struct ucx_incoming){.window = ucx_window, .put_id = put->id, .bytes = put->bytes};
    weft_list_append(&ucx_peer->incoming, &incoming->link);
    ucx_peer->incoming_count++;
    return incoming;
}

static void notify(struct ucx_arrival *notification)
{
    notification->unordered = true;
    ucx_arrival_queue(notification);
}

/* One more fragment of a put with several. */
static void put_advance(struct ucx_peer *ucx_peer, struct ucx_window *ucx_window,
                        const struct ucx_wire_put *put, size_t data_bytes, struct ucx_arrival *notification)
{
    struct ucx_incoming *incoming = incoming_of(ucx_peer, ucx_window, put);
    if (!incoming || data_bytes > incoming->bytes - incoming->received) {
        if (notification) ucx_arrival_release(ucx_peer->endpoint, notification);
        core_count_refused(ucx_peer->endpoint->transport);
        ucx_peer_failed(ucx_peer, UCS_ERR_EXCEEDS_LIMIT);
        return;
    }
    incoming->received += data_bytes;
    if (notification) incoming->notification = notification;
    if (incoming->received < incoming->bytes) return;
    put_done(ucx_peer, incoming->put_id, WEFT_OK);
    if (incoming->notification) notify(incoming->notification);
    incoming->notification = NULL;
    incoming_free(ucx_peer, incoming);
}

void ucx_on_put(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *data,
                size_t data_bytes)
{
    struct weft_transport *transport = ucx_peer->endpoint->transport;
    struct ucx_wire_put put;
    if (ucx_wire_put_decode(header->header, header->header_bytes, &put) < 0) {
        core_count_refused(transport);
        return;
    }
    struct ucx_window *ucx_window =
        transport->closed ? NULL : ucx_window_find(ucx_peer, put.window, put.secret, WEFT_WINDOW_WRITE);
    if (!ucx_window || !is_inside_window(ucx_window, header->sequence, data_bytes) ||
        ucx_peer->peer->status < 0 || is_of_device(ucx_window)) {
        if (!ucx_window) core_count_refused(transport);
        put_done(ucx_peer, put.id,
                 !ucx_window                ? WEFT_ERR_CANCELLED
                 : is_of_device(ucx_window) ? WEFT_ERR_UNSUPPORTED
                                            : WEFT_ERR_INVALID);
        return;
    }
    struct ucx_arrival *notification = NULL;
    if (put.notify) {
        notification = ucx_arrival_make(ucx_peer, put.tag, 0, 0, header->header + UCX_WIRE_PUT_BYTES,
                                        header->header_bytes - UCX_WIRE_PUT_BYTES);
        if (!notification) return;
    }
    if (data_bytes > 0)
        memcpy((char *)ucx_window->window->options.address + header->sequence, data, data_bytes);
    transport->stats.copied_bytes += data_bytes;
    if (put.bytes != data_bytes) {
        put_advance(ucx_peer, ucx_window, &put, data_bytes, notification);
        return;
    }
    put_done(ucx_peer, put.id, WEFT_OK);
    if (notification) notify(notification);
}

static void refuse_get(struct ucx_peer *ucx_peer, uint64_t landing, enum weft_status status)
{
    ucx_send_control(ucx_peer,
                     &(struct ucx_wire_entry){.control = UCX_CONTROL_ABORT, .id = landing, .status = status});
}

void ucx_on_get(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    uint64_t secret = entry->header_bytes == 8 ? ucx_wire_u64(entry->header) : 0;
    struct ucx_window *ucx_window =
        endpoint->transport->closed ? NULL : ucx_window_find(ucx_peer, entry->a, secret, WEFT_WINDOW_READ);
    if (!ucx_window || !is_inside_window(ucx_window, entry->b, entry->c) || entry->c == 0 ||
        is_of_device(ucx_window)) {
        if (!ucx_window) core_count_refused(endpoint->transport);
        refuse_get(ucx_peer, entry->id,
                   !ucx_window                ? WEFT_ERR_CANCELLED
                   : is_of_device(ucx_window) ? WEFT_ERR_UNSUPPORTED
                                              : WEFT_ERR_INVALID);
        return;
    }
    struct ucx_send *send = ucx_send_alloc(ucx_peer, UCX_OP_SERVE, NULL);
    if (!send) {
        refuse_get(ucx_peer, entry->id, WEFT_ERR_NO_MEMORY);
        return;
    }
    send->source = (const char *)ucx_window->window->options.address + entry->b;
    send->bytes = entry->c;
    send->landing = entry->id;
    send->served = ucx_window;
    ucx_window->serving++;
    ucx_stream_begin(send);
}

void ucx_windows_peer_lost(struct ucx_peer *ucx_peer)
{
    ucx_direct_peer_lost(ucx_peer);
    while (!weft_list_empty(&ucx_peer->incoming))
        incoming_free(ucx_peer, weft_list_first(&ucx_peer->incoming, struct ucx_incoming, link));
}

void ucx_on_notify(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    if (ucx_peer->endpoint->transport->closed || ucx_peer->peer->status < 0) return;
    struct ucx_arrival *notification =
        ucx_arrival_make(ucx_peer, entry->a, 0, 0, entry->header, entry->header_bytes);
    if (notification) notify(notification);
}

/* ---- requests to peers ---- */

enum weft_status ucx_import(struct weft_transport *transport, struct weft_remote *remote,
                            const void *key_data, size_t bytes)
{
    struct ucx_wire_key key;
    WEFT_TRY(ucx_wire_key_decode(key_data, bytes, &key));
    if (key.owner != remote->peer->id) return WEFT_ERR_MALFORMED;
    struct ucx_peer *ucx_peer = remote->peer->backend;
    struct ucx_remote *ucx_remote = weft_alloc_zero(transport->env, sizeof *ucx_remote);
    if (!ucx_remote) return WEFT_ERR_NO_MEMORY;
    ucx_remote->remote = remote;
    ucx_remote->window = key.window;
    ucx_remote->secret = key.secret;
    ucx_remote->address = key.address;
    weft_list_append(&ucx_peer->remotes, &ucx_remote->link);
    if (ucx_peer->ep) ucx_direct_request_key(ucx_remote, ucx_peer);
    remote->backend = ucx_remote;
    remote->bytes = key.bytes;
    remote->rights = key.rights;
    return WEFT_OK;
}

static void remote_remove(struct ucx_remote **at, const struct ucx_remote *ucx_remote)
{
    if (*at == ucx_remote) *at = NULL;
}

void ucx_release(struct weft_transport *transport, struct weft_remote *remote)
{
    struct ucx_remote *ucx_remote = remote->backend;
    struct ucx_peer *ucx_peer = remote->peer->backend;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_peer->operations) { /* finished ones that UCX still holds */
        struct ucx_op *op = weft_container_of(node, struct ucx_op, link);
        if (op->kind == UCX_OP_PUT)
            remote_remove(&weft_container_of(op, struct ucx_send, op)->ucx_remote, ucx_remote);
        if (op->kind == UCX_OP_GET)
            remote_remove(&weft_container_of(op, struct ucx_landing, op)->ucx_remote, ucx_remote);
    }
    ucx_direct_release(ucx_remote);
    weft_list_remove(&ucx_remote->link);
    weft_free_bytes(transport->env, ucx_remote);
}

static enum weft_status put_by_messages(struct ucx_send *send, const struct ucx_remote *ucx_remote,
                                        const struct weft_put *put)
{
    if (!ucx_op_number(&send->op)) {
        ucx_op_drop(&send->op);
        return WEFT_ERR_NO_MEMORY;
    }
    send->source = put->source;
    send->bytes = put->bytes;
    send->put_offset = put->offset;
    send->put = (struct ucx_wire_put){
        .window = ucx_remote->window,
        .secret = ucx_remote->secret,
        .id = send->op.id,
        .bytes = put->bytes,
        .notify = put->notify,
        .tag = put->tag,
    };
    send->header_bytes = put->notify ? put->header_bytes : 0;
    if (send->header_bytes > 0) memcpy(send->header, put->header, send->header_bytes);
    ucx_stream_begin(send);
    return WEFT_IN_PROGRESS;
}

enum weft_status ucx_put(struct weft_transport *transport, struct weft_remote *remote,
                         const struct weft_put *put, struct weft_completion *completion)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_peer *ucx_peer = remote->peer->backend;
    if (!ucx_peer->ep) return WEFT_ERR_PEER_LOST;
    if (endpoint->send_count >= UCX_SENDS_MAX) return WEFT_ERR_AGAIN;
    struct ucx_send *send = ucx_send_alloc(ucx_peer, UCX_OP_PUT, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    send->op.done.remote = remote;
    struct ucx_remote *ucx_remote = remote->backend;
    if (!ucx_remote->rkey || ucx_remote->is_revoked || put->bytes == 0)
        return put_by_messages(send, ucx_remote, put);
    ucx_direct_put(send, ucx_remote, put);
    return WEFT_IN_PROGRESS;
}

enum weft_status ucx_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                         void *destination, size_t bytes, struct weft_completion *completion)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_peer *ucx_peer = remote->peer->backend;
    struct ucx_remote *ucx_remote = remote->backend;
    if (!ucx_peer->ep) return WEFT_ERR_PEER_LOST;
    if (endpoint->send_count >= UCX_SENDS_MAX) return WEFT_ERR_AGAIN;
    struct ucx_landing *landing = ucx_pool_alloc(endpoint, &endpoint->pools.landings);
    if (!landing) return WEFT_ERR_NO_MEMORY;
    ucx_op_init(&landing->op, UCX_OP_GET, ucx_peer, completion);
    landing->op.done.remote = remote;
    landing->buffer = destination;
    landing->bytes = bytes;
    landing->received = 0;
    landing->ucx_remote = NULL;
    if (ucx_remote->rkey && !ucx_remote->is_revoked && bytes > 0) {
        ucx_direct_get(landing, ucx_remote, offset);
        return WEFT_IN_PROGRESS;
    }
    if (!ucx_op_number(&landing->op)) {
        ucx_op_drop(&landing->op);
        return WEFT_ERR_NO_MEMORY;
    }
    uint8_t secret[8];
    ucx_wire_put_u64(secret, ucx_remote->secret);
    ucx_send_control(ucx_peer, &(struct ucx_wire_entry){
                        .control = UCX_CONTROL_GET,
                        .id = landing->op.id,
                        .a = ucx_remote->window,
                        .b = offset,
                        .c = bytes,
                        .header = secret,
                        .header_bytes = sizeof secret,
                    });
    return WEFT_IN_PROGRESS;
}
