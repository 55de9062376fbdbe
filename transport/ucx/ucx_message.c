/* ucx_message.c - messages out and in.
 *
 *   out   ucx_message_send ─► ucp_am_send_nbx(our header, payload; eager or rendezvous) ─► on_sent
 *   in    ucx_on_message (inside UCX: check, keep, queue) ─► ucx_arrivals_progress (order, core_arrived)
 *         ─► accept: copy, or ucp_am_recv_data_nbx into the buffer ─► on_received; discard: release
 *
 * UCX gives no order between lanes or protocols, so messages of one pair carry a sequence number and
 * one that runs ahead waits. Eager data stays where UCX received it if UCX lets us keep that memory
 * (shared memory does), else it is copied once. */
#include <string.h>

#include "transport/ucx/ucx.h"

/* ---- operations ---- */

static void op_release(struct ucx_op *op)
{
    if ((!op->delivered && !op->control) || op->ucx_live) return;
    struct ucx_endpoint *endpoint = op->peer->endpoint;
    weft_list_remove(&op->link);
    if (op->is_send) {
        if (!op->control) endpoint->send_count--;
        ucx_pool_give(&endpoint->sends, op);
    } else {
        ucx_arrival_release(endpoint, weft_container_of(op, struct ucx_arrival, op));
    }
}

static void op_recycle(struct weft_transport *transport, struct core_done *done)
{
    struct ucx_op *op = weft_container_of(done, struct ucx_op, done);
    op->delivered = true;
    op_release(op);
}

void ucx_op_finish(struct ucx_op *op, enum weft_status status)
{
    if (op->finished) return;
    op->finished = true;
    core_finish(op->peer->endpoint->transport, &op->done, status);
}

static void op_init(struct ucx_op *op, struct weft_peer *peer, struct weft_completion *completion, bool is_send, bool rendezvous)
{
    *op = (struct ucx_op){
        .done = {.peer = peer, .completion = completion, .recycle = op_recycle},
        .peer = peer->backend,
        .is_send = is_send,
        .rendezvous = rendezvous,
    };
    weft_list_append(&op->peer->operations, &op->link);
}

/* What UCX answered to the start of an operation. */
static void op_started(struct ucx_op *op, void *request)
{
    if (UCS_PTR_IS_PTR(request)) {
        op->request = request;
        op->ucx_live = true;
        return;
    }
    ucx_op_finish(op, ucx_status(op->peer, UCS_PTR_STATUS(request)));
}

static void op_ended(struct ucx_op *op, void *request, ucs_status_t status)
{
    op->ucx_live = false;
    op->request = NULL;
    ucp_request_free(request);
    if (op->control) {
        if (op->rendezvous) op->peer->hello_went = true;
    } else if (status == UCS_OK && op->rendezvous && op->peer->end_status < 0) {
        ucx_op_finish(op, op->peer->end_status); /* a rendezvous nobody took ends like one that was: do not call it done */
    } else {
        ucx_op_finish(op, ucx_status(op->peer, status));
    }
    op_release(op);
}

static void on_sent(void *request, ucs_status_t status, void *user_data) { op_ended(user_data, request, status); }

static void on_received(void *request, ucs_status_t status, size_t length, void *user_data) { op_ended(user_data, request, status); }

/* ---- out ---- */

static void *start_send(struct ucx_send *send, enum ucx_wire_kind kind, const struct weft_message *message)
{
    struct ucx_peer *known = send->op.peer;
    struct weft_transport *transport = known->endpoint->transport;
    struct ucx_wire_header header = {
        .kind = kind,
        .header_bytes = message->header_bytes,
        .sender = transport->id,
        .receiver = known->peer->id,
        .nonce = transport->nonce,
        .tag = message->tag,
        .sequence = known->send_sequence,
        .payload_bytes = message->payload_bytes,
        .header = message->header,
    };
    ucx_wire_encode(&header, send->header);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = send->op.rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_sent,
        .user_data = send,
    };
    return ucp_am_send_nbx(known->ep, UCX_AM_ID, send->header, UCX_WIRE_FIXED_BYTES + message->header_bytes, message->payload,
                           message->payload_bytes, &param);
}

enum weft_status ucx_message_send(struct weft_transport *transport, struct weft_peer *peer, const struct weft_message *message,
                                  struct weft_completion *completion)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_peer *known = peer->backend;
    if (!known->ep) return WEFT_ERR_PEER_LOST;
    if (endpoint->send_count >= UCX_SENDS_MAX) return WEFT_ERR_AGAIN;
    struct ucx_send *send = ucx_pool_take(endpoint, &endpoint->sends);
    if (!send) return WEFT_ERR_NO_MEMORY;
    op_init(&send->op, peer, completion, true, message->payload_bytes > transport->eager_bytes_max);
    void *request = start_send(send, UCX_WIRE_MESSAGE, message);
    if (UCS_PTR_IS_ERR(request)) {
        weft_list_remove(&send->op.link);
        ucx_pool_give(&endpoint->sends, send);
        ucs_status_t status = UCS_PTR_STATUS(request);
        if (status == UCS_ERR_NO_RESOURCE) return WEFT_ERR_AGAIN;
        if (status != UCS_ERR_NO_MEMORY) ucx_peer_failed(known, status);
        return ucx_status(known, status);
    }
    known->send_sequence++;
    endpoint->send_count++;
    op_started(&send->op, request);
    return WEFT_IN_PROGRESS;
}

/* A message of our own. If it cannot be sent, the other side waits its second and goes on. */
void ucx_message_control(struct ucx_peer *known, enum ucx_wire_kind kind)
{
    static const uint8_t nothing[1];
    struct ucx_send *send = ucx_pool_take(known->endpoint, &known->endpoint->sends);
    if (!send) return;
    bool hello = kind == UCX_WIRE_HELLO;
    op_init(&send->op, known->peer, NULL, true, hello);
    send->op.control = true;
    void *request = start_send(send, kind, &(struct weft_message){.payload = nothing, .payload_bytes = hello});
    if (UCS_PTR_IS_PTR(request)) {
        send->op.request = request;
        send->op.ucx_live = true;
        return;
    }
    if (UCS_PTR_IS_ERR(request)) ucx_peer_failed(known, UCS_PTR_STATUS(request));
    else if (hello) known->hello_went = true;
    op_release(&send->op);
}

/* ---- in ---- */

void ucx_arrival_release(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival)
{
    if (arrival->descriptor) ucp_am_data_release(endpoint->worker, arrival->descriptor);
    if (arrival->big) ucx_pool_give(&endpoint->eager_buffers, arrival->big);
    endpoint->eager_held -= arrival->held_bytes;
    ucx_pool_give(&endpoint->arrivals, arrival);
}

/* Keep what must outlive the callback. UCS_INPROGRESS: UCX's memory is ours until released. */
static ucs_status_t keep_data(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival, void *data, size_t data_bytes, uint64_t attributes)
{
    if (!(attributes & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        uint32_t held_bytes = (uint32_t)(data_bytes + sizeof *arrival);
        if (endpoint->eager_held + held_bytes > UCX_EAGER_HELD_MAX) return UCS_ERR_NO_MEMORY;
        arrival->held_bytes = held_bytes;
        endpoint->eager_held += held_bytes;
    }
    if (attributes & (UCP_AM_RECV_ATTR_FLAG_RNDV | UCP_AM_RECV_ATTR_FLAG_DATA)) {
        arrival->rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
        arrival->descriptor = data;
        return UCS_INPROGRESS;
    }
    if (data_bytes <= UCX_SMALL_BYTES) {
        if (data_bytes > 0) memcpy(arrival->small, data, data_bytes);
        return UCS_OK;
    }
    arrival->big = ucx_pool_take(endpoint, &endpoint->eager_buffers);
    if (!arrival->big) return UCS_ERR_NO_MEMORY;
    memcpy(arrival->big, data, data_bytes);
    return UCS_OK;
}

/* From a stranger, of another job, or for somebody else? Lengths that disagree are no better. */
static bool acceptable(const struct ucx_endpoint *endpoint, const struct ucx_wire_header *header, size_t data_bytes, uint64_t attributes)
{
    const struct weft_transport *transport = endpoint->transport;
    if (header->nonce != transport->nonce || header->receiver != transport->id) return false;
    if (header->payload_bytes != data_bytes) return false;
    if (header->kind != UCX_WIRE_MESSAGE && data_bytes != (header->kind == UCX_WIRE_HELLO)) return false;
    return (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) || data_bytes <= endpoint->eager_buffers.item_bytes;
}

ucs_status_t ucx_on_message(void *context, const void *header_data, size_t header_bytes, void *data, size_t data_bytes,
                            const ucp_am_recv_param_t *param)
{
    struct ucx_endpoint *endpoint = context;
    struct weft_transport *transport = endpoint->transport;
    struct ucx_wire_header header;
    uint64_t attributes = param->recv_attr;
    if (ucx_wire_decode(header_data, header_bytes, &header) < 0 || !acceptable(endpoint, &header, data_bytes, attributes)) {
        core_refused(transport);
        return UCS_OK; /* dropped; a rendezvous is answered so that its sender does not wait */
    }
    struct weft_peer *peer = core_peer_meet(transport, header.sender);
    struct ucx_peer *known = peer ? ucx_peer_of(endpoint, peer) : NULL;
    if (!known) {
        core_refused(transport);
        return UCS_OK;
    }
    if (header.kind == UCX_WIRE_HELLO) {
        known->hello_came = true;
        return UCS_OK; /* UCX tells the sender that it was taken */
    }
    if (header.kind == UCX_WIRE_BYE_TOO) {
        known->answered = true;
        return UCS_OK;
    }
    if (transport->closed || peer->status < 0) {
        if (header.kind == UCX_WIRE_BYE) ucx_peer_left(known);
        return UCS_OK;
    }
    struct ucx_arrival *arrival = ucx_pool_take(endpoint, &endpoint->arrivals);
    if (!arrival) goto no_memory;
    arrival->rendezvous = false;
    arrival->bye = header.kind == UCX_WIRE_BYE;
    arrival->descriptor = arrival->big = NULL;
    arrival->held_bytes = 0;
    ucs_status_t answer = keep_data(endpoint, arrival, data, data_bytes, attributes);
    if (answer == UCS_ERR_NO_MEMORY) {
        ucx_arrival_release(endpoint, arrival);
        goto no_memory;
    }
    struct weft_arrival *face = &arrival->core.face;
    arrival->core.whole = !arrival->rendezvous;
    face->peer_id = header.sender;
    face->tag = header.tag;
    face->payload_bytes = header.payload_bytes;
    face->header_bytes = header.header_bytes;
    memcpy(face->header, header.header, header.header_bytes);
    arrival->sequence = header.sequence;
    weft_list_append(&endpoint->arrived, &arrival->link);
    return answer;

no_memory: /* a message is lost: the order with this peer cannot be kept */
    weft_log(transport->env, WEFT_LOG_ERROR, "transport", "endpoint %u peer %u: no room to keep a message of %zu bytes: memory, or %d MiB of messages that nobody takes", transport->id,
             header.sender, data_bytes, UCX_EAGER_HELD_MAX >> 20);
    core_refused(transport);
    ucx_peer_failed(known, UCS_ERR_NO_MEMORY);
    return UCS_OK;
}

/* Insert by sequence into the few that ran ahead. */
static void keep_ahead(struct ucx_peer *known, struct ucx_arrival *arrival)
{
    struct weft_list *at = known->ahead.prev;
    while (at != &known->ahead && weft_container_of(at, struct ucx_arrival, link)->sequence > arrival->sequence) at = at->prev;
    weft_list_insert_before(at->next, &arrival->link);
}

/* The next in sequence. */
static int hand_on(struct ucx_endpoint *endpoint, struct ucx_peer *known, struct ucx_arrival *arrival)
{
    known->receive_sequence++;
    if (!arrival->bye) {
        core_arrived(endpoint->transport, &arrival->core);
        return 1;
    }
    ucx_arrival_release(endpoint, arrival);
    ucx_peer_left(known);
    return 1;
}

/* Hand on what has arrived, each pair's messages in the order sent. */
int ucx_arrivals_progress(struct ucx_endpoint *endpoint)
{
    int count = 0;
    while (!weft_list_empty(&endpoint->arrived)) {
        struct ucx_arrival *arrival = weft_list_first(&endpoint->arrived, struct ucx_arrival, link);
        weft_list_remove(&arrival->link);
        struct ucx_peer *known = core_peer_find(endpoint->transport, arrival->core.face.peer_id)->backend;
        uint64_t ahead = arrival->sequence - known->receive_sequence; /* the past wraps around to far ahead */
        if (ahead > UCX_REORDER_MAX) {
            core_refused(endpoint->transport);
            ucx_arrival_release(endpoint, arrival);
            continue;
        }
        if (ahead > 0) {
            keep_ahead(known, arrival);
            continue;
        }
        count += hand_on(endpoint, known, arrival);
        while (!weft_list_empty(&known->ahead)) {
            arrival = weft_list_first(&known->ahead, struct ucx_arrival, link);
            if (arrival->sequence != known->receive_sequence) break;
            weft_list_remove(&arrival->link);
            count += hand_on(endpoint, known, arrival);
        }
    }
    return count;
}

enum weft_status ucx_message_accept(struct weft_transport *transport, struct weft_arrival *face, void *buffer,
                                    struct weft_completion *completion)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_arrival *arrival = weft_container_of(face, struct ucx_arrival, core.face);
    op_init(&arrival->op, arrival->core.peer, completion, false, arrival->rendezvous);
    if (!arrival->rendezvous) {
        const void *data = arrival->descriptor ? arrival->descriptor : arrival->big ? arrival->big : arrival->small;
        if (face->payload_bytes > 0) memcpy(buffer, data, face->payload_bytes);
        ucx_op_finish(&arrival->op, WEFT_OK);
        return WEFT_IN_PROGRESS;
    }
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = &arrival->op,
    };
    void *descriptor = arrival->descriptor;
    arrival->descriptor = NULL; /* UCX owns it again, whatever it answers */
    op_started(&arrival->op, ucp_am_recv_data_nbx(endpoint->worker, descriptor, buffer, face->payload_bytes, &param));
    return WEFT_IN_PROGRESS;
}

void ucx_message_discard(struct weft_transport *transport, struct weft_arrival *face)
{
    ucx_arrival_release(transport->backend, weft_container_of(face, struct ucx_arrival, core.face));
}
