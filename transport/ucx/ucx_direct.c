/* ucx_direct.c - put and get by UCX remote access, towards peers with hardware lanes for it.
 *
 *   importer   KEY_REQUEST (window, secret) ──►  owner   a holder of the window's secret gets UCX's key
 *              unpack                ◄──────  KEY
 *              ucp_put_nbx, flush, then NOTIFY ──►       the flush ensures that the bytes are in the
 *              ucp_get_nbx                               owner's memory, on every path
 *              KEY_RELEASED          ◄──────  REVOKE     a window closes when every holder has
 *                                    ──────►             released the key or is disconnected
 *
 * Before the key arrives, and if there is none, puts and gets use messages (ucx_window.c). So do those
 * after REVOKE, which the owner refuses. A key of UCX 1.13 permits reads and writes of whole pages: the
 * importing side checks rights and length. Only peers with the job's secret get a key.
 *
 * UCX trusts a key that it unpacks. The key arrives in an authenticated control entry of bounded length
 * and is copied into zeroed memory larger than UCX reads for any key. */
#include <string.h>

#include "transport/ucx/ucx.h"

/* A UCX key: a map of memory domains, a memory type, then for each of 64 domains a length byte and so many
 * bytes. */
enum { KEY_BYTES_MAX = 8 + 1 + 64 * (1 + 255) };

/* ---- the owner ---- */

void ucx_direct_map(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window)
{
    const struct weft_window_options *options = &ucx_window->window->options;
    const bool on_device = weft_memory_is_device(options->kind);
    if (!endpoint->settings.direct || (!endpoint->settings.verbs && !on_device)) return;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = options->address,
        .length = options->bytes,
        .memory_type = ucx_memory_type(options->kind),
    };
    ucs_status_t ucs = ucp_mem_map(endpoint->context, &params, &ucx_window->memory);
    if (ucs == UCS_OK) return;
    ucx_window->memory = NULL;
    weft_log(
        endpoint->transport->env, WEFT_LOG_WARN, "transport",
        "endpoint %u cannot register a window of %zu bytes (%s; see ulimit -l): it is reached by messages",
        endpoint->transport->id, options->bytes, ucs_status_string(ucs));
}

void ucx_direct_unmap(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window)
{
    if (ucx_window->memory) ucp_mem_unmap(endpoint->context, ucx_window->memory);
    ucx_window->memory = NULL;
}

static struct ucx_holder *holder_of(struct ucx_window *ucx_window, const struct ucx_peer *ucx_peer)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_window->holders) {
        struct ucx_holder *holder = weft_container_of(node, struct ucx_holder, link);
        if (holder->peer == ucx_peer) return holder;
    }
    return NULL;
}

static struct ucx_holder *holder_add(struct ucx_window *ucx_window, struct ucx_peer *ucx_peer)
{
    struct ucx_holder *holder = holder_of(ucx_window, ucx_peer);
    if (!holder) {
        holder = weft_alloc_zero(ucx_peer->endpoint->transport->env, sizeof *holder);
        if (!holder) return NULL;
        holder->peer = ucx_peer;
        weft_list_append(&ucx_window->holders, &holder->link);
    }
    holder->count++;
    return holder;
}

static void holder_drop(struct ucx_endpoint *endpoint, struct ucx_holder *holder)
{
    weft_list_remove(&holder->link);
    weft_free_bytes(endpoint->transport->env, holder);
}

void ucx_on_key_request(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    struct ucx_window *ucx_window =
        endpoint->transport->closed
            ? NULL
            : ucx_window_find(ucx_peer, entry->id, entry->a, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE);
    /* the peer continues by messages */
    if (!ucx_window || !ucx_window->memory || !ucx_peer->ep || ucx_peer->closing.end != UCX_END_NONE) return;
    void *packed;
    size_t bytes;
    if (ucp_rkey_pack(endpoint->context, ucx_window->memory, &packed, &bytes) != UCS_OK) return;
    if (bytes <= WEFT_TRANSPORT_HEADER_BYTES_MAX && holder_add(ucx_window, ucx_peer)) {
        ucx_send_control(ucx_peer, &(struct ucx_wire_entry){.control = UCX_CONTROL_KEY,
                                                 .id = entry->id,
                                                 .header = packed,
                                                 .header_bytes = (uint32_t)bytes});
    }
    ucp_rkey_buffer_release(packed);
}

void ucx_direct_revoke_keys(struct ucx_window *ucx_window)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_window->holders) {
        struct ucx_holder *holder = weft_container_of(node, struct ucx_holder, link);
        ucx_send_control(holder->peer,
                         &(struct ucx_wire_entry){.control = UCX_CONTROL_KEY_REVOKE, .id = ucx_window->id});
    }
}

void ucx_on_key_released(struct ucx_peer *ucx_peer, uint64_t window)
{
    struct ucx_window *ucx_window = ucx_table_get(&ucx_peer->endpoint->windows, window);
    struct ucx_holder *holder = ucx_window ? holder_of(ucx_window, ucx_peer) : NULL;
    if (!holder || --holder->count > 0) return;
    holder_drop(ucx_peer->endpoint, holder);
    ucx_window_check(ucx_window);
}

void ucx_direct_free(struct ucx_endpoint *endpoint, struct ucx_window *ucx_window)
{
    while (!weft_list_empty(&ucx_window->holders))
        holder_drop(endpoint, weft_list_first(&ucx_window->holders, struct ucx_holder, link));
    ucx_direct_unmap(endpoint, ucx_window);
}

/* ---- the importer ---- */

void ucx_direct_request_key(struct ucx_remote *ucx_remote, struct ucx_peer *ucx_peer)
{
    if (!ucx_peer->remote_access || ucx_remote->address == 0) return;
    ucx_remote->asked = true;
    ucx_send_control(ucx_peer, &(struct ucx_wire_entry){.control = UCX_CONTROL_KEY_REQUEST,
                                                        .id = ucx_remote->window,
                                                        .a = ucx_remote->secret});
}

static void key_released(struct ucx_remote *ucx_remote)
{
    ucp_rkey_destroy(ucx_remote->rkey);
    ucx_remote->rkey = NULL;
    ucx_send_control(ucx_remote->remote->peer->backend,
             &(struct ucx_wire_entry){.control = UCX_CONTROL_KEY_RELEASED, .id = ucx_remote->window});
}

void ucx_direct_release(struct ucx_remote *ucx_remote)
{
    if (ucx_remote->rkey) key_released(ucx_remote); /* a requested key that arrives later is ignored */
}

static struct ucx_remote *holders_notify(struct ucx_peer *ucx_peer, uint64_t window)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_peer->remotes) {
        struct ucx_remote *ucx_remote = weft_container_of(node, struct ucx_remote, link);
        if (ucx_remote->window == window && ucx_remote->asked && !ucx_remote->is_revoked) return ucx_remote;
    }
    return NULL;
}

static ucp_rkey_h unpack(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    uint8_t key_bytes[KEY_BYTES_MAX] = {0};
    ucp_rkey_h rkey = NULL;
    memcpy(key_bytes, entry->header, entry->header_bytes);
    return ucp_ep_rkey_unpack(ucx_peer->ep, key_bytes, &rkey) == UCS_OK ? rkey : NULL;
}

void ucx_on_key(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    struct ucx_remote *ucx_remote = holders_notify(ucx_peer, entry->id);
    if (ucx_remote) ucx_remote->asked = false;
    if (ucx_remote && ucx_peer->ep) ucx_remote->rkey = unpack(ucx_peer, entry);
    if (!ucx_remote || !ucx_remote->rkey)
        ucx_send_control(ucx_peer,
                         &(struct ucx_wire_entry){.control = UCX_CONTROL_KEY_RELEASED, .id = entry->id});
}

void ucx_on_key_revoke(struct ucx_peer *ucx_peer, uint64_t window)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_peer->remotes) {
        struct ucx_remote *ucx_remote = weft_container_of(node, struct ucx_remote, link);
        if (ucx_remote->window != window) continue;
        ucx_remote->is_revoked = true;
        if (ucx_remote->rkey && ucx_remote->direct == 0) key_released(ucx_remote);
    }
}

void ucx_direct_peer_lost(struct ucx_peer *ucx_peer)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    struct weft_list *node, *spare;
    for (uint32_t i = 0; i < endpoint->windows.capacity; i++) {
        struct ucx_window *ucx_window = endpoint->windows.slots[i].item;
        struct ucx_holder *holder = ucx_window ? holder_of(ucx_window, ucx_peer) : NULL;
        if (!holder) continue;
        holder_drop(endpoint, holder);
        ucx_window_check(ucx_window);
    }
    weft_list_foreach(node, spare, &ucx_peer->remotes)
        weft_container_of(node, struct ucx_remote, link)->is_revoked = true;
}

/* ---- put and get ---- */

static void access_ended(struct ucx_op *op, struct ucx_remote **far_at, enum weft_status status)
{
    struct ucx_remote *ucx_remote = *far_at;
    *far_at = NULL;
    if (ucx_remote && --ucx_remote->direct == 0 && ucx_remote->is_revoked && ucx_remote->rkey)
        key_released(ucx_remote);
    if (op->finished) ucx_op_release(op); /* already reported to the caller: the connection is closed */
    else if (!op->parked) ucx_op_finish(op, status);
}

/* Completion of one of the two requests of a put. */
static void put_step(struct ucx_send *send, ucs_status_t ucs)
{
    struct ucx_op *op = &send->op;
    if (ucs != UCS_OK && send->answer == WEFT_OK) send->answer = ucx_status(op->peer, ucs);
    ucx_op_park(op, ucs);
    if (--op->holds > 0) return;
    if (send->answer == WEFT_OK && send->put.notify) {
        ucx_send_control(op->peer, &(struct ucx_wire_entry){.control = UCX_CONTROL_NOTIFY,
                                                    .a = send->put.tag,
                                                    .header = send->header,
                                                    .header_bytes = send->header_bytes});
    }
    access_ended(op, &send->ucx_remote, send->answer);
}

static void on_put_step(void *request, ucs_status_t ucs, void *user_data)
{
    ucp_request_free(request);
    put_step(user_data, ucs);
}

void ucx_direct_put(struct ucx_send *send, struct ucx_remote *ucx_remote, const struct weft_put *put)
{
    ucp_ep_h ep = send->op.peer->ep;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_put_step,
        .user_data = send,
    };
    send->ucx_remote = ucx_remote;
    ucx_remote->direct++;
    send->answer = WEFT_OK;
    send->put = (struct ucx_wire_put){.notify = put->notify, .tag = put->tag};
    send->header_bytes = put->notify ? put->header_bytes : 0;
    if (send->header_bytes > 0) memcpy(send->header, put->header, send->header_bytes);
    send->op.holds = 2;
    send->op.rendezvous = true;
    void *request =
        ucp_put_nbx(ep, put->source, put->bytes, ucx_remote->address + put->offset, ucx_remote->rkey, &param);
    bool refused = UCS_PTR_IS_ERR(request);
    if (!UCS_PTR_IS_PTR(request)) put_step(send, UCS_PTR_STATUS(request));
    request = refused ? NULL : ucp_ep_flush_nbx(ep, &param);
    if (!UCS_PTR_IS_PTR(request)) put_step(send, UCS_PTR_STATUS(request));
}

static void get_ended(struct ucx_landing *landing, ucs_status_t ucs)
{
    landing->op.holds--;
    ucx_op_park(&landing->op, ucs);
    access_ended(&landing->op, &landing->ucx_remote, ucx_status(landing->op.peer, ucs));
}

static void on_got(void *request, ucs_status_t ucs, void *user_data)
{
    ucp_request_free(request);
    get_ended(user_data, ucs);
}

void ucx_direct_get(struct ucx_landing *landing, struct ucx_remote *ucx_remote, uint64_t offset)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_got,
        .user_data = landing,
    };
    landing->ucx_remote = ucx_remote;
    ucx_remote->direct++;
    landing->op.holds = 1;
    landing->op.rendezvous = true;
    void *request = ucp_get_nbx(landing->op.peer->ep, landing->buffer, landing->bytes,
                                ucx_remote->address + offset, ucx_remote->rkey, &param);
    if (!UCS_PTR_IS_PTR(request)) get_ended(landing, UCS_PTR_STATUS(request));
}
