/* ucx_direct.c - put and get by UCX's own remote access, towards peers whose lanes have it in hardware.
 *
 *   importer   ASK (window, secret) ──────►  owner    who holds the window's secret gets UCX's key of it
 *              unpack                ◄──────  GIVE (key)
 *              ucp_put_nbx, flush, then NOTIFY ──►    the flush says that the bytes are in the owner's
 *              ucp_get_nbx                            memory, whatever way each packet took; only then is
 *                                                     the owner told
 *              LET_GO                ◄──────  SHUT    a window closes when everybody it was given to has
 *                                    ──────►          let go of it, or is gone with his connection
 *
 * Until the key is here, and where none is given, puts and gets go by messages (ucx_window.c); so do those
 * after SHUT, which the owner then refuses. The key of UCX 1.13 allows reading and writing of whole pages:
 * the rights and the length of a window are kept by the user's side here, and only peers that hold the job's
 * secret ever get a key.
 *
 * UCX trusts a key that it unpacks. It comes in a word with the pair's token, of at most a word's length, and
 * is laid into zeroed memory larger than UCX ever reads of a key. */
#include <string.h>

#include "transport/ucx/ucx.h"

/* A key of UCX: a map of memory domains, a memory type, then for each of 64 domains a length of one byte and
 * so many bytes. */
enum { KEY_ROOM = 8 + 1 + 64 * (1 + 255) };

/* ---- the owner ---- */

void ucx_direct_map(struct ucx_endpoint *endpoint, struct ucx_window *own)
{
    const struct weft_window_options *options = &own->window->options;
    bool cuda = options->kind == WEFT_MEMORY_CUDA;
    if (!endpoint->settings.direct || (!endpoint->settings.verbs && !cuda)) return;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = options->address,
        .length = options->bytes,
        .memory_type = cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_t ucs = ucp_mem_map(endpoint->context, &params, &own->memory);
    if (ucs == UCS_OK) return;
    own->memory = NULL;
    weft_log(
        endpoint->transport->env, WEFT_LOG_WARN, "transport",
        "endpoint %u cannot register a window of %zu bytes (%s; see ulimit -l): it is reached by messages",
        endpoint->transport->id, options->bytes, ucs_status_string(ucs));
}

void ucx_direct_unmap(struct ucx_endpoint *endpoint, struct ucx_window *own)
{
    if (own->memory) ucp_mem_unmap(endpoint->context, own->memory);
    own->memory = NULL;
}

static struct ucx_holder *holder_of(struct ucx_window *own, const struct ucx_peer *known)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &own->holders) {
        struct ucx_holder *holder = weft_container_of(node, struct ucx_holder, link);
        if (holder->peer == known) return holder;
    }
    return NULL;
}

static struct ucx_holder *holder_add(struct ucx_window *own, struct ucx_peer *known)
{
    struct ucx_holder *holder = holder_of(own, known);
    if (!holder) {
        holder = weft_alloc_zero(known->endpoint->transport->env, sizeof *holder);
        if (!holder) return NULL;
        holder->peer = known;
        weft_list_append(&own->holders, &holder->link);
    }
    holder->count++;
    return holder;
}

static void holder_drop(struct ucx_endpoint *endpoint, struct ucx_holder *holder)
{
    weft_list_remove(&holder->link);
    weft_free_bytes(endpoint->transport->env, holder);
}

void ucx_on_ask(struct ucx_peer *known, const struct ucx_wire_entry *entry)
{
    struct ucx_endpoint *endpoint = known->endpoint;
    struct ucx_window *own =
        endpoint->transport->closed
            ? NULL
            : ucx_window_find(known, entry->id, entry->a, WEFT_WINDOW_READ | WEFT_WINDOW_WRITE);
    if (!own || !own->memory || !known->ep || known->end != UCX_END_NONE) return; /* he goes on by messages */
    void *packed;
    size_t bytes;
    if (ucp_rkey_pack(endpoint->context, own->memory, &packed, &bytes) != UCS_OK) return;
    if (bytes <= WEFT_TRANSPORT_HEADER_BYTES_MAX && holder_add(own, known)) {
        ucx_word(known, &(struct ucx_wire_entry){.word = UCX_WORD_GIVE,
                                                 .id = entry->id,
                                                 .header = packed,
                                                 .header_bytes = (uint32_t)bytes});
    }
    ucp_rkey_buffer_release(packed);
}

void ucx_direct_shut(struct ucx_window *own)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &own->holders) {
        struct ucx_holder *holder = weft_container_of(node, struct ucx_holder, link);
        ucx_word(holder->peer, &(struct ucx_wire_entry){.word = UCX_WORD_SHUT, .id = own->id});
    }
}

void ucx_on_let_go(struct ucx_peer *known, uint64_t window)
{
    struct ucx_window *own = ucx_table_get(&known->endpoint->windows, window);
    struct ucx_holder *holder = own ? holder_of(own, known) : NULL;
    if (!holder || --holder->count > 0) return;
    holder_drop(known->endpoint, holder);
    ucx_window_check(own);
}

void ucx_direct_free(struct ucx_endpoint *endpoint, struct ucx_window *own)
{
    while (!weft_list_empty(&own->holders))
        holder_drop(endpoint, weft_list_first(&own->holders, struct ucx_holder, link));
    ucx_direct_unmap(endpoint, own);
}

/* ---- the importer ---- */

void ucx_direct_ask(struct ucx_remote *far, struct ucx_peer *known)
{
    if (!known->remote_access || far->address == 0) return;
    far->asked = true;
    ucx_word(known, &(struct ucx_wire_entry){.word = UCX_WORD_ASK, .id = far->window, .a = far->secret});
}

static void let_go(struct ucx_remote *far)
{
    ucp_rkey_destroy(far->rkey);
    far->rkey = NULL;
    ucx_word(far->remote->peer->backend,
             &(struct ucx_wire_entry){.word = UCX_WORD_LET_GO, .id = far->window});
}

void ucx_direct_release(struct ucx_remote *far)
{
    if (far->rkey) let_go(far); /* one that was asked for and comes later finds nobody */
}

static struct ucx_remote *who_asked(struct ucx_peer *known, uint64_t window)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &known->remotes) {
        struct ucx_remote *far = weft_container_of(node, struct ucx_remote, link);
        if (far->window == window && far->asked && !far->shut) return far;
    }
    return NULL;
}

static ucp_rkey_h unpack(struct ucx_peer *known, const struct ucx_wire_entry *entry)
{
    uint8_t room[KEY_ROOM] = {0};
    ucp_rkey_h rkey = NULL;
    memcpy(room, entry->header, entry->header_bytes);
    return ucp_ep_rkey_unpack(known->ep, room, &rkey) == UCS_OK ? rkey : NULL;
}

void ucx_on_give(struct ucx_peer *known, const struct ucx_wire_entry *entry)
{
    struct ucx_remote *far = who_asked(known, entry->id);
    if (far) far->asked = false;
    if (far && known->ep) far->rkey = unpack(known, entry);
    if (!far || !far->rkey)
        ucx_word(known, &(struct ucx_wire_entry){.word = UCX_WORD_LET_GO, .id = entry->id});
}

void ucx_on_shut(struct ucx_peer *known, uint64_t window)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &known->remotes) {
        struct ucx_remote *far = weft_container_of(node, struct ucx_remote, link);
        if (far->window != window) continue;
        far->shut = true;
        if (far->rkey && far->direct == 0) let_go(far);
    }
}

void ucx_direct_peer_gone(struct ucx_peer *known)
{
    struct ucx_endpoint *endpoint = known->endpoint;
    struct weft_list *node, *spare;
    for (uint32_t i = 0; i < endpoint->windows.capacity; i++) {
        struct ucx_window *own = endpoint->windows.slots[i].item;
        struct ucx_holder *holder = own ? holder_of(own, known) : NULL;
        if (!holder) continue;
        holder_drop(endpoint, holder);
        ucx_window_check(own);
    }
    weft_list_foreach(node, spare, &known->remotes)
        weft_container_of(node, struct ucx_remote, link)->shut = true;
}

/* ---- put and get ---- */

static void access_ended(struct ucx_op *op, struct ucx_remote **far_at, enum weft_status status)
{
    struct ucx_remote *far = *far_at;
    *far_at = NULL;
    if (far && --far->direct == 0 && far->shut && far->rkey) let_go(far);
    if (op->finished) ucx_op_release(op); /* its user has been told: the connection is gone */
    else if (!op->parked) ucx_op_finish(op, status);
}

/* One of the two requests of a put. */
static void put_step(struct ucx_send *send, ucs_status_t ucs)
{
    struct ucx_op *op = &send->op;
    if (ucs != UCS_OK && send->answer == WEFT_OK) send->answer = ucx_status(op->peer, ucs);
    ucx_op_park(op, ucs);
    if (--op->holds > 0) return;
    if (send->answer == WEFT_OK && send->put.notify) {
        ucx_word(op->peer, &(struct ucx_wire_entry){.word = UCX_WORD_NOTIFY,
                                                    .a = send->put.tag,
                                                    .header = send->header,
                                                    .header_bytes = send->header_bytes});
    }
    access_ended(op, &send->far, send->answer);
}

static void on_put_step(void *request, ucs_status_t ucs, void *user_data)
{
    ucp_request_free(request);
    put_step(user_data, ucs);
}

void ucx_direct_put(struct ucx_send *send, struct ucx_remote *far, const struct weft_put *put)
{
    ucp_ep_h ep = send->op.peer->ep;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_put_step,
        .user_data = send,
    };
    send->far = far;
    far->direct++;
    send->answer = WEFT_OK;
    send->put = (struct ucx_wire_put){.notify = put->notify, .tag = put->tag};
    send->header_bytes = put->notify ? put->header_bytes : 0;
    if (send->header_bytes > 0) memcpy(send->header, put->header, send->header_bytes);
    send->op.holds = 2;
    send->op.rendezvous = true;
    void *request = ucp_put_nbx(ep, put->source, put->bytes, far->address + put->offset, far->rkey, &param);
    bool refused = UCS_PTR_IS_ERR(request);
    if (!UCS_PTR_IS_PTR(request)) put_step(send, UCS_PTR_STATUS(request));
    request = refused ? NULL : ucp_ep_flush_nbx(ep, &param);
    if (!UCS_PTR_IS_PTR(request)) put_step(send, UCS_PTR_STATUS(request));
}

static void get_ended(struct ucx_landing *landing, ucs_status_t ucs)
{
    landing->op.holds--;
    ucx_op_park(&landing->op, ucs);
    access_ended(&landing->op, &landing->far, ucx_status(landing->op.peer, ucs));
}

static void on_got(void *request, ucs_status_t ucs, void *user_data)
{
    ucp_request_free(request);
    get_ended(user_data, ucs);
}

void ucx_direct_get(struct ucx_landing *landing, struct ucx_remote *far, uint64_t offset)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_got,
        .user_data = landing,
    };
    landing->far = far;
    far->direct++;
    landing->op.holds = 1;
    landing->op.rendezvous = true;
    void *request = ucp_get_nbx(landing->op.peer->ep, landing->buffer, landing->bytes, far->address + offset,
                                far->rkey, &param);
    if (!UCS_PTR_IS_PTR(request)) get_ended(landing, UCS_PTR_STATUS(request));
}
