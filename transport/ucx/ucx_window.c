/* ucx_window.c - one-sided access.
 *
 * Towards most peers (all others: ucx_direct.c) a put or get is made of active messages and served by the
 * window's owner, inside his progress: UCX's own put over tcp moves a twentieth of what the messages do, and
 * memory that only its owner's hand writes can be closed at once.
 *   put   PUT fragments ─► copied into the window ─► PUT_DONE (and the notification arrives there)
 *   get   GET ─► DATA fragments into the buffer; ABORT when it cannot be served
 * A window is found by number and secret; both are dead once it is closed, so a late fragment finds nothing
 * and its sender is told WEFT_ERR_CANCELLED. What is being sent out of a window keeps it busy until UCX has
 * let go of it. */
#include <string.h>

#include "transport/ucx/ucx.h"

/* ---- windows ---- */

enum weft_status ucx_window_open(struct weft_transport *transport, struct weft_window *window,
                                 struct weft_error *error)
{
    struct ucx_endpoint *endpoint = transport->backend;
    if (window->options.kind == WEFT_MEMORY_CUDA && !endpoint->reaches_cuda) {
        return weft_error_set(
            error, WEFT_ERR_UNSUPPORTED,
            "transport %s opens windows on host memory only, its UCX has no CUDA: copy to the host first",
            transport->name);
    }
    struct ucx_window *own = weft_alloc_zero(transport->env, sizeof *own);
    uint64_t id = own ? ucx_table_put(transport->env, &endpoint->windows, own) : 0;
    if (id == 0) {
        weft_free_bytes(transport->env, own);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a window");
    }
    own->window = window;
    own->id = id;
    own->secret = weft_random_u64(transport->env);
    window->backend = own;
    weft_list_init(&own->holders);
    ucx_direct_map(endpoint, own);
    struct ucx_wire_key key = {
        .owner = transport->id,
        .rights = window->options.rights,
        .window = id,
        .secret = own->secret,
        .bytes = window->options.bytes,
        .address = own->memory ? (uintptr_t)window->options.address : 0,
    };
    ucx_wire_key_encode(&key, window->key);
    window->key_bytes = UCX_WIRE_KEY_BYTES;
    return WEFT_OK;
}

static void put_done(struct ucx_peer *known, uint64_t put_id, enum weft_status status)
{
    ucx_word(known, &(struct ucx_wire_entry){.word = UCX_WORD_PUT_DONE, .id = put_id, .status = status});
}

static void incoming_free(struct ucx_peer *known, struct ucx_incoming *incoming)
{
    weft_list_remove(&incoming->link);
    known->incoming_count--;
    if (incoming->notification) ucx_arrival_release(known->endpoint, incoming->notification);
    ucx_pool_give(&known->endpoint->incomings, incoming);
}

/* Nothing of this peer reads or writes the window through us any more. */
static void window_shut(struct ucx_peer *known, struct ucx_window *own)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &known->incoming) {
        struct ucx_incoming *incoming = weft_container_of(node, struct ucx_incoming, link);
        if (incoming->window != own) continue;
        put_done(known, incoming->put_id, WEFT_ERR_CANCELLED);
        incoming_free(known, incoming);
    }
    weft_list_foreach(node, spare, &known->operations) {
        struct ucx_op *op = weft_container_of(node, struct ucx_op, link);
        struct ucx_send *send = weft_container_of(op, struct ucx_send, op);
        if (op->kind != UCX_OP_SERVE || op->finished || send->served != own) continue;
        ucx_word(known, &(struct ucx_wire_entry){
                            .word = UCX_WORD_ABORT, .id = send->landing, .status = WEFT_ERR_CANCELLED});
        ucx_op_fail(op, WEFT_ERR_CANCELLED);
    }
}

void ucx_window_check(struct ucx_window *own)
{
    struct weft_window *window = own->window;
    if (!window->closing || !own->shut || own->serving > 0 || !weft_list_empty(&own->holders)) return;
    ucx_direct_unmap(window->transport->backend, own);
    core_finish(window->transport, &window->done, WEFT_OK);
}

static void window_end(struct ucx_endpoint *endpoint, struct ucx_window *own)
{
    own->shut = true;
    own->serving++; /* not before all is said */
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        window_shut(weft_container_of(node, struct ucx_peer, link), own);
    }
    own->serving--;
    ucx_direct_shut(own);
}

void ucx_window_close(struct weft_transport *transport, struct weft_window *window)
{
    struct ucx_window *own = window->backend;
    window_end(transport->backend, own);
    ucx_window_check(own);
}

void ucx_window_free(struct weft_transport *transport, struct weft_window *window)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_window *own = window->backend;
    if (!own->shut) window_end(endpoint, own);
    ucx_table_remove(&endpoint->windows, own->id);
    ucx_direct_free(endpoint, own);
    struct weft_list *node, *spare, *each, *after;
    weft_list_foreach(node, spare, &endpoint->peers) {
        struct ucx_peer *known = weft_container_of(node, struct ucx_peer, link);
        weft_list_foreach(each, after, &known->operations) { /* only when everything is given up */
            struct ucx_op *op = weft_container_of(each, struct ucx_op, link);
            struct ucx_send *send = weft_container_of(op, struct ucx_send, op);
            if (op->kind == UCX_OP_SERVE && send->served == own) send->served = NULL;
        }
    }
    weft_free_bytes(transport->env, own);
}

void ucx_serve_ended(struct ucx_send *send)
{
    struct ucx_window *own = send->served;
    send->served = NULL;
    if (!own) return;
    own->serving--;
    ucx_window_check(own);
}

struct ucx_window *ucx_window_find(struct ucx_peer *known, uint64_t id, uint64_t secret, unsigned rights)
{
    struct ucx_window *own = ucx_table_get(&known->endpoint->windows, id);
    if (!own || own->shut || own->secret != secret || !(own->window->options.rights & rights)) return NULL;
    uint32_t only = own->window->options.peer_id;
    return only == WEFT_ANY_PEER || only == known->peer->id ? own : NULL;
}

/* Memory that the processor cannot touch: reached by UCX alone. */
static bool of_device(const struct ucx_window *own) { return own->window->options.kind == WEFT_MEMORY_CUDA; }

static bool inside(const struct ucx_window *own, uint64_t offset, uint64_t bytes)
{
    return offset <= own->window->options.bytes && bytes <= own->window->options.bytes - offset;
}

/* ---- what peers do here ---- */

static struct ucx_incoming *incoming_of(struct ucx_peer *known, struct ucx_window *own,
                                        const struct ucx_wire_put *put)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &known->incoming) {
        struct ucx_incoming *incoming = weft_container_of(node, struct ucx_incoming, link);
        if (incoming->put_id == put->id) return incoming;
    }
    if (known->incoming_count >= UCX_INCOMING_MAX) return NULL;
    struct ucx_incoming *incoming = ucx_pool_take(known->endpoint, &known->endpoint->incomings);
    if (!incoming) return NULL;
    *incoming = (struct ucx_incoming){.window = own, .put_id = put->id, .bytes = put->bytes};
    weft_list_append(&known->incoming, &incoming->link);
    known->incoming_count++;
    return incoming;
}

static void notify(struct ucx_arrival *notification)
{
    notification->unordered = true;
    ucx_arrival_queue(notification);
}

/* One fragment more of a put that has several. */
static void put_advance(struct ucx_peer *known, struct ucx_window *own, const struct ucx_wire_put *put,
                        size_t data_bytes, struct ucx_arrival *notification)
{
    struct ucx_incoming *incoming = incoming_of(known, own, put);
    if (!incoming || data_bytes > incoming->bytes - incoming->received) {
        if (notification) ucx_arrival_release(known->endpoint, notification);
        core_refused(known->endpoint->transport);
        ucx_peer_failed(known, UCS_ERR_EXCEEDS_LIMIT);
        return;
    }
    incoming->received += data_bytes;
    if (notification) incoming->notification = notification;
    if (incoming->received < incoming->bytes) return;
    put_done(known, incoming->put_id, WEFT_OK);
    if (incoming->notification) notify(incoming->notification);
    incoming->notification = NULL;
    incoming_free(known, incoming);
}

void ucx_on_put(struct ucx_peer *known, const struct ucx_wire_header *header, const void *data,
                size_t data_bytes)
{
    struct weft_transport *transport = known->endpoint->transport;
    struct ucx_wire_put put;
    if (ucx_wire_put_decode(header->header, header->header_bytes, &put) < 0) {
        core_refused(transport);
        return;
    }
    struct ucx_window *own =
        transport->closed ? NULL : ucx_window_find(known, put.window, put.secret, WEFT_WINDOW_WRITE);
    if (!own || !inside(own, header->sequence, data_bytes) || known->peer->status < 0 || of_device(own)) {
        if (!own) core_refused(transport);
        put_done(known, put.id,
                 !own             ? WEFT_ERR_CANCELLED
                 : of_device(own) ? WEFT_ERR_UNSUPPORTED
                                  : WEFT_ERR_INVALID);
        return;
    }
    struct ucx_arrival *notification = NULL;
    if (put.notify) {
        notification = ucx_arrival_make(known, put.tag, 0, 0, header->header + UCX_WIRE_PUT_BYTES,
                                        header->header_bytes - UCX_WIRE_PUT_BYTES);
        if (!notification) return;
    }
    if (data_bytes > 0) memcpy((char *)own->window->options.address + header->sequence, data, data_bytes);
    transport->stats.copied_bytes += data_bytes;
    if (put.bytes != data_bytes) {
        put_advance(known, own, &put, data_bytes, notification);
        return;
    }
    put_done(known, put.id, WEFT_OK);
    if (notification) notify(notification);
}

static void refuse_get(struct ucx_peer *known, uint64_t landing, enum weft_status status)
{
    ucx_word(known, &(struct ucx_wire_entry){.word = UCX_WORD_ABORT, .id = landing, .status = status});
}

void ucx_on_get(struct ucx_peer *known, const struct ucx_wire_entry *entry)
{
    struct ucx_endpoint *endpoint = known->endpoint;
    uint64_t secret = entry->header_bytes == 8 ? ucx_wire_u64(entry->header) : 0;
    struct ucx_window *own =
        endpoint->transport->closed ? NULL : ucx_window_find(known, entry->a, secret, WEFT_WINDOW_READ);
    if (!own || !inside(own, entry->b, entry->c) || entry->c == 0 || of_device(own)) {
        if (!own) core_refused(endpoint->transport);
        refuse_get(known, entry->id,
                   !own             ? WEFT_ERR_CANCELLED
                   : of_device(own) ? WEFT_ERR_UNSUPPORTED
                                    : WEFT_ERR_INVALID);
        return;
    }
    struct ucx_send *send = ucx_send_take(known, UCX_OP_SERVE, NULL);
    if (!send) {
        refuse_get(known, entry->id, WEFT_ERR_NO_MEMORY);
        return;
    }
    send->source = (const char *)own->window->options.address + entry->b;
    send->bytes = entry->c;
    send->landing = entry->id;
    send->served = own;
    own->serving++;
    ucx_stream_begin(send);
}

void ucx_windows_peer_gone(struct ucx_peer *known)
{
    ucx_direct_peer_gone(known);
    while (!weft_list_empty(&known->incoming))
        incoming_free(known, weft_list_first(&known->incoming, struct ucx_incoming, link));
}

void ucx_on_notify(struct ucx_peer *known, const struct ucx_wire_entry *entry)
{
    if (known->endpoint->transport->closed || known->peer->status < 0) return;
    struct ucx_arrival *notification =
        ucx_arrival_make(known, entry->a, 0, 0, entry->header, entry->header_bytes);
    if (notification) notify(notification);
}

/* ---- what we do at peers ---- */

enum weft_status ucx_import(struct weft_transport *transport, struct weft_remote *remote,
                            const void *key_data, size_t bytes)
{
    struct ucx_wire_key key;
    WEFT_TRY(ucx_wire_key_decode(key_data, bytes, &key));
    if (key.owner != remote->peer->id) return WEFT_ERR_MALFORMED;
    struct ucx_peer *known = remote->peer->backend;
    struct ucx_remote *far = weft_alloc_zero(transport->env, sizeof *far);
    if (!far) return WEFT_ERR_NO_MEMORY;
    far->remote = remote;
    far->window = key.window;
    far->secret = key.secret;
    far->address = key.address;
    weft_list_append(&known->remotes, &far->link);
    if (known->ep) ucx_direct_ask(far, known);
    remote->backend = far;
    remote->bytes = key.bytes;
    remote->rights = key.rights;
    return WEFT_OK;
}

static void forget(struct ucx_remote **at, const struct ucx_remote *far)
{
    if (*at == far) *at = NULL;
}

void ucx_release(struct weft_transport *transport, struct weft_remote *remote)
{
    struct ucx_remote *far = remote->backend;
    struct ucx_peer *known = remote->peer->backend;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &known->operations) { /* finished ones that UCX has not let go of */
        struct ucx_op *op = weft_container_of(node, struct ucx_op, link);
        if (op->kind == UCX_OP_PUT) forget(&weft_container_of(op, struct ucx_send, op)->far, far);
        if (op->kind == UCX_OP_GET) forget(&weft_container_of(op, struct ucx_landing, op)->far, far);
    }
    ucx_direct_release(far);
    weft_list_remove(&far->link);
    weft_free_bytes(transport->env, far);
}

static enum weft_status put_by_messages(struct ucx_send *send, const struct ucx_remote *far,
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
        .window = far->window,
        .secret = far->secret,
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
    struct ucx_peer *known = remote->peer->backend;
    if (!known->ep) return WEFT_ERR_PEER_LOST;
    if (endpoint->send_count >= UCX_SENDS_MAX) return WEFT_ERR_AGAIN;
    struct ucx_send *send = ucx_send_take(known, UCX_OP_PUT, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    send->op.done.remote = remote;
    struct ucx_remote *far = remote->backend;
    if (!far->rkey || far->shut || put->bytes == 0) return put_by_messages(send, far, put);
    ucx_direct_put(send, far, put);
    return WEFT_IN_PROGRESS;
}

enum weft_status ucx_get(struct weft_transport *transport, struct weft_remote *remote, uint64_t offset,
                         void *destination, size_t bytes, struct weft_completion *completion)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_peer *known = remote->peer->backend;
    struct ucx_remote *far = remote->backend;
    if (!known->ep) return WEFT_ERR_PEER_LOST;
    if (endpoint->send_count >= UCX_SENDS_MAX) return WEFT_ERR_AGAIN;
    struct ucx_landing *landing = ucx_pool_take(endpoint, &endpoint->landings);
    if (!landing) return WEFT_ERR_NO_MEMORY;
    ucx_op_init(&landing->op, UCX_OP_GET, known, completion);
    landing->op.done.remote = remote;
    landing->buffer = destination;
    landing->bytes = bytes;
    landing->received = 0;
    landing->far = NULL;
    if (far->rkey && !far->shut && bytes > 0) {
        ucx_direct_get(landing, far, offset);
        return WEFT_IN_PROGRESS;
    }
    if (!ucx_op_number(&landing->op)) {
        ucx_op_drop(&landing->op);
        return WEFT_ERR_NO_MEMORY;
    }
    uint8_t secret[8];
    ucx_wire_put_u64(secret, far->secret);
    ucx_word(known, &(struct ucx_wire_entry){
                        .word = UCX_WORD_GET,
                        .id = landing->op.id,
                        .a = far->window,
                        .b = offset,
                        .c = bytes,
                        .header = secret,
                        .header_bytes = sizeof secret,
                    });
    return WEFT_IN_PROGRESS;
}
