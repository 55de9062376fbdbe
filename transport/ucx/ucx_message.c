/* ucx_message.c - send and receive of messages; see ucx.h for the protocols.
 *
 *   send     ucx_message_send ─► eager or by UCX: ucp_am_send_nbx(header, payload) ─► on_sent
 *                             ─► announced: a control entry, and a stream after the grant
 *   receive  ucx_on_message (inside UCX: check, store, queue) ─► ucx_arrivals_progress (order, core_arrived)
 *            ─► accept: copy, GRANT, or ucp_am_recv_data_nbx into the buffer; discard: release
 *
 * UCX guarantees no order between lanes or protocols, so messages of a pair carry a sequence number and
 * early ones wait. An eager payload with a posted receive is copied from UCX's buffer to its place. Others
 * stay in UCX's buffer if UCX permits it (shared memory does), else they are copied once more.
 *
 * Flow control: a peer may leave settings.eager_window bytes unconsumed here (sent in HELLO); CREDIT
 * entries return consumed bytes. Beyond that the peer announces its messages, whatever their size. */
#include <string.h>

#include "transport/ucx/ucx.h"

/* ---- send ---- */

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    ucx_op_ended(user_data, request, status);
}

static void *start_send(struct ucx_send *send, enum ucx_wire_kind kind, const struct weft_message *message)
{
    struct ucx_peer *ucx_peer = send->op.peer;
    struct ucx_wire_header header = {
        .kind = kind,
        .header_bytes = message->header_bytes,
        .sender = ucx_peer->endpoint->transport->id,
        .receiver = ucx_peer->peer->id,
        .token = ucx_peer->token_out,
        .tag = message->tag,
        .sequence = ucx_peer->send_sequence,
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
    send->op.holds = 1;
    ucx_batch_flush(ucx_peer); /* earlier entries leave first */
    return ucp_am_send_nbx(ucx_peer->ep, UCX_AM_ID, send->header,
                           UCX_WIRE_FIXED_BYTES + message->header_bytes, message->payload,
                           message->payload_bytes, &param);
}

struct ucx_send *ucx_send_alloc(struct ucx_peer *ucx_peer, enum ucx_op_kind kind,
                                struct weft_completion *completion)
{
    struct ucx_send *send = ucx_pool_alloc(ucx_peer->endpoint, &ucx_peer->endpoint->pools.sends);
    if (!send) return NULL;
    ucx_op_init(&send->op, kind, ucx_peer, completion);
    weft_list_init(&send->sending);
    send->landing = 0;
    send->served = NULL;
    send->ucx_remote = NULL;
    send->answer = WEFT_OK;
    send->answered = false;
    return send;
}

static enum weft_status announce(struct ucx_send *send, const struct weft_message *message)
{
    struct ucx_peer *ucx_peer = send->op.peer;
    if (!ucx_op_number(&send->op)) {
        ucx_op_drop(&send->op);
        return WEFT_ERR_NO_MEMORY;
    }
    send->source = message->payload;
    send->bytes = message->payload_bytes;
    ucx_send_control(ucx_peer, &(struct ucx_wire_entry){
                        .control = UCX_CONTROL_ANNOUNCE,
                        .id = send->op.id,
                        .a = message->tag,
                        .b = ucx_peer->send_sequence++,
                        .c = message->payload_bytes,
                        .header = message->header,
                        .header_bytes = message->header_bytes,
                    });
    return WEFT_IN_PROGRESS;
}

enum weft_status ucx_message_send(struct weft_transport *transport, struct weft_peer *peer,
                                  const struct weft_message *message, struct weft_completion *completion)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_peer *ucx_peer = peer->backend;
    if (!ucx_peer->ep) return WEFT_ERR_PEER_LOST;
    if (endpoint->send_count >= UCX_SENDS_MAX) return WEFT_ERR_AGAIN;
    bool small = message->payload_bytes <= transport->eager_bytes_max;
    uint64_t cost = message->payload_bytes + UCX_EAGER_EXTRA;
    bool eager = small && cost <= ucx_peer->flow.credit;
    struct ucx_send *send = ucx_send_alloc(ucx_peer, UCX_OP_MESSAGE, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    if (!eager && (small || !ucx_peer->direct)) return announce(send, message);
    if (eager && ucx_gather_accepts(ucx_peer, message) && ucx_gather_add(ucx_peer, message)) {
        ucx_peer->send_sequence++;
        ucx_peer->flow.credit -= cost;
        ucx_op_finish(&send->op, WEFT_OK);
        return WEFT_IN_PROGRESS;
    }
    send->op.rendezvous = !eager;
    void *request = start_send(send, UCX_WIRE_MESSAGE, message);
    if (UCS_PTR_IS_ERR(request)) {
        ucx_op_drop(&send->op);
        ucs_status_t status = UCS_PTR_STATUS(request);
        if (status == UCS_ERR_NO_RESOURCE) return WEFT_ERR_AGAIN;
        if (status != UCS_ERR_NO_MEMORY) ucx_peer_failed(ucx_peer, status);
        return ucx_status(ucx_peer, status);
    }
    ucx_peer->send_sequence++;
    if (eager) ucx_peer->flow.credit -= cost;
    ucx_op_started(&send->op, request);
    return WEFT_IN_PROGRESS;
}

/* A message of the backend. If it cannot be sent, the peer waits for its timeout and continues. */
void ucx_message_control(struct ucx_peer *ucx_peer, enum ucx_wire_kind kind)
{
    static const uint8_t nothing[1];
    struct ucx_send *send = ucx_send_alloc(ucx_peer, UCX_OP_CONTROL, NULL);
    if (!send) return;
    bool hello = kind == UCX_WIRE_HELLO;
    send->op.rendezvous = hello;
    struct weft_message message = {.tag = hello ? ucx_peer->endpoint->settings.eager_window : 0,
                                   .payload = nothing,
                                   .payload_bytes = hello};
    void *request = start_send(send, kind, &message);
    if (UCS_PTR_IS_ERR(request)) ucx_peer_failed(ucx_peer, UCS_PTR_STATUS(request));
    ucx_op_started(&send->op, request);
}

/* ---- receive ---- */

static void give_credit(struct ucx_peer *ucx_peer, uint64_t bytes)
{
    ucx_peer->flow.credit_due += bytes;
    if (ucx_peer->flow.credit_due < ucx_peer->endpoint->settings.eager_window / 2 || !ucx_peer->ep) return;
    ucx_send_control(ucx_peer,
                     &(struct ucx_wire_entry){.control = UCX_CONTROL_CREDIT, .a = ucx_peer->flow.credit_due});
    ucx_peer->flow.credit_due = 0;
}

/* Pool for an eager payload of that size: small ones do not use the largest buffers. */
static struct ucx_pool *eager_pool(struct ucx_endpoint *endpoint, uint64_t bytes)
{
    return bytes <= endpoint->pools.eager_buffers.item_bytes ? &endpoint->pools.eager_buffers
                                                             : &endpoint->pools.large_buffers;
}

void ucx_arrival_release(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival)
{
    if (arrival->descriptor) ucp_am_data_release(endpoint->worker, arrival->descriptor);
    if (arrival->big)
        ucx_pool_release(eager_pool(endpoint, arrival->core.handle.payload_bytes), arrival->big);
    if (arrival->held_bytes > 0) {
        arrival->from->flow.held_bytes -= arrival->held_bytes;
        give_credit(arrival->from, arrival->held_bytes);
    }
    ucx_pool_release(&endpoint->pools.arrivals, arrival);
}

struct ucx_arrival *ucx_arrival_make(struct ucx_peer *ucx_peer, uint64_t tag, uint64_t sequence,
                                     uint64_t payload_bytes, const uint8_t *header, uint32_t header_bytes)
{
    struct ucx_arrival *arrival = ucx_pool_alloc(ucx_peer->endpoint, &ucx_peer->endpoint->pools.arrivals);
    if (!arrival) {
        ucx_peer_failed(ucx_peer, UCS_ERR_NO_MEMORY); /* a message is lost: the order is broken */
        return NULL;
    }
    arrival->from = ucx_peer;
    arrival->sequence = sequence;
    arrival->send_id = 0;
    arrival->rendezvous = arrival->bye = arrival->unordered = false;
    arrival->held_bytes = 0;
    arrival->borrowed = arrival->descriptor = arrival->big = NULL;
    arrival->core.is_complete = true;
    struct weft_arrival *handle = &arrival->core.handle;
    handle->peer_id = ucx_peer->peer->id;
    handle->tag = tag;
    handle->payload_bytes = payload_bytes;
    handle->header_bytes = header_bytes;
    memcpy(handle->header, header, header_bytes);
    return arrival;
}

void ucx_arrival_queue(struct ucx_arrival *arrival)
{
    arrival->from->queued++;
    weft_list_append(&arrival->from->endpoint->arrived, &arrival->link);
}

/* Eager data must outlive the callback. UCS_INPROGRESS: UCX's buffer is held until released. */
static ucs_status_t keep_eager(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival, void *data,
                               size_t data_bytes, bool lent)
{
    if (lent) {
        arrival->descriptor = data;
        return UCS_INPROGRESS;
    }
    endpoint->transport->stats.copied_bytes += data_bytes;
    if (data_bytes <= UCX_SMALL_BYTES) {
        if (data_bytes > 0) memcpy(arrival->small, data, data_bytes);
        return UCS_OK;
    }
    arrival->big = ucx_pool_alloc(endpoint, eager_pool(endpoint, data_bytes));
    if (!arrival->big) return UCS_ERR_NO_MEMORY;
    memcpy(arrival->big, data, data_bytes);
    return UCS_OK;
}

/* The next message in sequence with a posted receive: copies from UCX's buffer to its place. */
static bool deliver_at_once(struct ucx_peer *ucx_peer, struct ucx_arrival *arrival, const void *data,
                            uint32_t cost)
{
    if (ucx_peer->queued > 0 || !weft_list_empty(&ucx_peer->reordered) ||
        arrival->sequence != ucx_peer->receive_sequence)
        return false;
    arrival->borrowed = data;
    if (core_arrived_posted(ucx_peer->endpoint->transport, &arrival->core)) {
        ucx_peer->receive_sequence++;
        give_credit(ucx_peer, cost);
        return true;
    }
    arrival->borrowed = NULL;
    return false;
}

static ucs_status_t on_payload(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, void *data,
                               size_t data_bytes, uint64_t attributes)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    struct ucx_arrival *arrival = ucx_arrival_make(
        ucx_peer, header->tag, header->sequence, header->payload_bytes, header->header, header->header_bytes);
    if (!arrival) return UCS_OK;
    ucs_status_t answer = UCS_OK;
    arrival->bye = header->kind == UCX_WIRE_BYE;
    arrival->rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (arrival->rendezvous) {
        arrival->core.is_complete = false;
        arrival->descriptor = data;
        answer = UCS_INPROGRESS;
    } else if (!arrival->bye) {
        uint32_t cost = (uint32_t)data_bytes + UCX_EAGER_EXTRA;
        if (deliver_at_once(ucx_peer, arrival, data, cost)) return UCS_OK;
        ucx_peer->flow.held_bytes += cost;
        arrival->held_bytes = cost;
        uint64_t window = endpoint->settings.eager_window;
        bool breach = ucx_peer->flow.held_bytes > (window > UCX_EAGER_FIRST ? window : UCX_EAGER_FIRST);
        if (!breach)
            answer = keep_eager(endpoint, arrival, data, data_bytes,
                                (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0);
        if (breach || answer == UCS_ERR_NO_MEMORY) {
            ucx_arrival_release(endpoint, arrival);
            ucx_peer_failed(ucx_peer, breach ? UCS_ERR_EXCEEDS_LIMIT : UCS_ERR_NO_MEMORY);
            return UCS_OK;
        }
    }
    ucx_arrival_queue(arrival);
    return answer;
}

void ucx_on_eager(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *payload)
{
    on_payload(ucx_peer, header, (void *)(uintptr_t)payload, header->payload_bytes, 0);
}

/* Whether the message is for this endpoint and its lengths agree. */
static bool acceptable(const struct ucx_endpoint *endpoint, const struct ucx_wire_header *header,
                       size_t data_bytes, uint64_t attributes)
{
    if (header->receiver != endpoint->transport->id || header->payload_bytes != data_bytes) return false;
    bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    switch (header->kind) {
    case UCX_WIRE_MESSAGE: return rendezvous || data_bytes <= endpoint->transport->eager_bytes_max;
    case UCX_WIRE_HELLO: return data_bytes == 1;
    case UCX_WIRE_BYE:
    case UCX_WIRE_BYE_REPLY: return data_bytes == 0;
    case UCX_WIRE_DATA:
    case UCX_WIRE_PUT:
    case UCX_WIRE_BATCH:
    case UCX_WIRE_GATHER: return !rendezvous;
    }
    return false;
}

static void on_hello(struct ucx_peer *ucx_peer, uint64_t window)
{
    if (ucx_peer->handshake.hello_received) return;
    ucx_peer->handshake.hello_received = true;
    if (window > UCX_EAGER_FIRST) ucx_peer->flow.credit += window - UCX_EAGER_FIRST;
}

ucs_status_t ucx_on_message(void *context, const void *header_data, size_t header_bytes, void *data,
                            size_t data_bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_endpoint *endpoint = context;
    struct weft_transport *transport = endpoint->transport;
    struct ucx_wire_header header;
    uint64_t attributes = param->recv_attr;
    if (ucx_wire_decode(header_data, header_bytes, &header) < 0 ||
        !acceptable(endpoint, &header, data_bytes, attributes)) {
        core_count_refused(transport);
        return UCS_OK; /* dropped; a rendezvous is completed, so that its sender does not wait */
    }
    struct ucx_peer *ucx_peer = ucx_peer_proven(endpoint, header.sender, header.token);
    if (!ucx_peer) {
        core_count_refused(transport);
        return UCS_OK;
    }
    switch (header.kind) {
    /* UCX reports the completion to the sender */
    case UCX_WIRE_HELLO: on_hello(ucx_peer, header.tag); return UCS_OK;
    case UCX_WIRE_BYE_REPLY: ucx_peer->handshake.answered = true; return UCS_OK;
    case UCX_WIRE_DATA: ucx_on_data(ucx_peer, &header, data, data_bytes); return UCS_OK;
    case UCX_WIRE_PUT: ucx_on_put(ucx_peer, &header, data, data_bytes); return UCS_OK;
    case UCX_WIRE_BATCH: ucx_on_batch(ucx_peer, data, data_bytes); return UCS_OK;
    case UCX_WIRE_GATHER: ucx_on_gather(ucx_peer, data, data_bytes); return UCS_OK;
    case UCX_WIRE_MESSAGE:
    case UCX_WIRE_BYE: break;
    }
    if (!transport->closed && ucx_peer->peer->status >= 0)
        return on_payload(ucx_peer, &header, data, data_bytes, attributes);
    if (header.kind == UCX_WIRE_BYE) ucx_peer_left(ucx_peer);
    return UCS_OK;
}

/* Inserts by sequence into the early messages. */
static void keep_reordered(struct ucx_peer *ucx_peer, struct ucx_arrival *arrival)
{
    struct weft_list *at = ucx_peer->reordered.prev;
    while (at != &ucx_peer->reordered &&
           weft_container_of(at, struct ucx_arrival, link)->sequence > arrival->sequence)
        at = at->prev;
    weft_list_insert_before(at->next, &arrival->link);
}

/* Passes the next message in sequence to the core. */
static int arrival_hand_over(struct ucx_endpoint *endpoint, struct ucx_peer *ucx_peer,
                             struct ucx_arrival *arrival)
{
    ucx_peer->receive_sequence++;
    if (!arrival->bye) {
        core_arrived(endpoint->transport, &arrival->core);
        return 1;
    }
    ucx_arrival_release(endpoint, arrival);
    ucx_peer_left(ucx_peer);
    return 1;
}

/* Passes arrivals to the core, each pair's messages in the order sent. */
int ucx_arrivals_progress(struct ucx_endpoint *endpoint)
{
    int count = 0;
    while (!weft_list_empty(&endpoint->arrived)) {
        struct ucx_arrival *arrival = weft_list_first(&endpoint->arrived, struct ucx_arrival, link);
        weft_list_remove(&arrival->link);
        struct ucx_peer *ucx_peer = arrival->from;
        ucx_peer->queued--;
        if (arrival->unordered) {
            core_arrived(endpoint->transport, &arrival->core);
            count++;
            continue;
        }
        /* past sequence numbers wrap to large values */
        uint64_t reordered = arrival->sequence - ucx_peer->receive_sequence;
        if (reordered > UCX_REORDER_MAX) {
            core_count_refused(endpoint->transport);
            ucx_arrival_release(endpoint, arrival);
            continue;
        }
        if (reordered > 0) {
            keep_reordered(ucx_peer, arrival);
            continue;
        }
        count += arrival_hand_over(endpoint, ucx_peer, arrival);
        while (!weft_list_empty(&ucx_peer->reordered)) {
            arrival = weft_list_first(&ucx_peer->reordered, struct ucx_arrival, link);
            if (arrival->sequence != ucx_peer->receive_sequence) break;
            weft_list_remove(&arrival->link);
            count += arrival_hand_over(endpoint, ucx_peer, arrival);
        }
    }
    return count;
}

/* ---- accept and discard ---- */

static void send_taken(const struct ucx_arrival *arrival)
{
    ucx_send_control(arrival->from,
                     &(struct ucx_wire_entry){.control = UCX_CONTROL_TAKEN, .id = arrival->send_id});
}

static void accept_eager(struct ucx_endpoint *endpoint, struct ucx_arrival *arrival, void *buffer)
{
    size_t bytes = arrival->core.handle.payload_bytes;
    const void *data = arrival->borrowed     ? arrival->borrowed
                       : arrival->descriptor ? arrival->descriptor
                       : arrival->big        ? arrival->big
                                             : arrival->small;
    if (bytes > 0) memcpy(buffer, data, bytes);
    endpoint->transport->stats.copied_bytes += bytes;
    ucx_op_finish(&arrival->landing.op, WEFT_OK);
}

static void accept_announced(struct ucx_arrival *arrival, void *buffer)
{
    struct ucx_landing *landing = &arrival->landing;
    landing->buffer = buffer;
    landing->bytes = arrival->core.handle.payload_bytes;
    landing->received = 0;
    bool numbered = landing->bytes > 0 && ucx_op_number(&landing->op);
    if (!numbered) {
        send_taken(arrival);
        ucx_op_finish(&landing->op, landing->bytes > 0 ? WEFT_ERR_NO_MEMORY : WEFT_OK);
        return;
    }
    ucx_send_control(
        arrival->from,
        &(struct ucx_wire_entry){.control = UCX_CONTROL_GRANT, .id = arrival->send_id, .a = landing->op.id});
}

static void on_received(void *request, ucs_status_t status, size_t length, void *user_data)
{
    ucx_op_ended(user_data, request, status);
}

enum weft_status ucx_message_accept(struct weft_transport *transport, struct weft_arrival *handle,
                                    void *buffer, struct weft_completion *completion)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_arrival *arrival = weft_container_of(handle, struct ucx_arrival, core.handle);
    struct ucx_op *op = &arrival->landing.op;
    ucx_op_init(op, UCX_OP_RECEIVE, arrival->from, completion);
    if (arrival->send_id) {
        accept_announced(arrival, buffer);
        return WEFT_IN_PROGRESS;
    }
    if (!arrival->rendezvous) {
        accept_eager(endpoint, arrival, buffer);
        return WEFT_IN_PROGRESS;
    }
    op->rendezvous = true;
    op->holds = 1;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = op,
    };
    void *descriptor = arrival->descriptor;
    arrival->descriptor = NULL; /* UCX owns it again, whatever it returns */
    ucx_op_started(op,
                   ucp_am_recv_data_nbx(endpoint->worker, descriptor, buffer, handle->payload_bytes, &param));
    return WEFT_IN_PROGRESS;
}

void ucx_message_discard(struct weft_transport *transport, struct weft_arrival *handle)
{
    struct ucx_arrival *arrival = weft_container_of(handle, struct ucx_arrival, core.handle);
    if (arrival->send_id) send_taken(arrival);
    ucx_arrival_release(transport->backend, arrival);
}
