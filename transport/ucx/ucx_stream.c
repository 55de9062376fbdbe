/* ucx_stream.c - payloads in fragments: each is one active message that UCX sends without a copy. The
 * receiver copies it once, while it is in cache, from UCX's buffer to its place. Few fragments are in
 * flight per peer and few are started in a row, so one long payload blocks neither other peers nor the
 * loop. */
#include <string.h>

#include "transport/ucx/ucx.h"

/* Equal fragment sizes: the last one is not tiny. */
static uint64_t piece_of(const struct ucx_endpoint *endpoint, uint64_t bytes)
{
    uint64_t fragment = endpoint->settings.fragment_bytes;
    uint64_t count = (bytes + fragment - 1) / fragment;
    uint64_t piece = count > 1 ? (bytes + count - 1) / count : bytes;
    piece = (piece + 63) / 64 * 64;
    return piece > fragment ? fragment : piece;
}

void ucx_stream_begin(struct ucx_send *send)
{
    struct ucx_peer *ucx_peer = send->op.peer;
    send->started = 0;
    send->piece = piece_of(ucx_peer->endpoint, send->bytes);
    if (weft_list_empty(&ucx_peer->output.sending))
        weft_list_append(&ucx_peer->endpoint->busy, &ucx_peer->output.busy);
    weft_list_append(&ucx_peer->output.sending, &send->sending);
}

void ucx_stream_stop(struct ucx_send *send)
{
    struct ucx_peer *ucx_peer = send->op.peer;
    if (weft_list_empty(&send->sending)) return;
    weft_list_remove(&send->sending);
    if (weft_list_empty(&ucx_peer->output.sending)) weft_list_remove(&ucx_peer->output.busy);
}

void ucx_stream_check(struct ucx_send *send)
{
    struct ucx_op *op = &send->op;
    if (op->holds > 0 || op->finished) return;
    if (op->failed < 0) {
        ucx_op_fail(op, op->failed);
        return;
    }
    bool all = send->started == send->bytes;
    if (op->kind == UCX_OP_PUT) {
        if (send->answered && (all || send->answer < 0)) ucx_op_finish(op, send->answer);
        return;
    }
    if (!all) return;
    if (op->kind == UCX_OP_SERVE) ucx_serve_ended(send);
    ucx_op_finish(op, WEFT_OK);
}

static void fragment_ended(struct ucx_fragment *fragment, ucs_status_t status)
{
    struct ucx_send *send = fragment->send;
    struct ucx_peer *ucx_peer = send->op.peer;
    ucx_pool_release(&ucx_peer->endpoint->pools.fragments, fragment);
    ucx_peer->fragments--;
    send->op.holds--;
    if (status != UCS_OK && send->op.failed == WEFT_OK) send->op.failed = ucx_status(ucx_peer, status);
    if (status != UCS_OK) ucx_stream_stop(send);
    ucx_stream_check(send);
}

static void on_fragment_sent(void *request, ucs_status_t status, void *user_data)
{
    ucp_request_free(request);
    fragment_ended(user_data, status);
}

/* Writes the header; the last fragment of a put carries the notification. */
static size_t encode_fragment(const struct ucx_send *send, uint64_t offset, uint64_t bytes, uint8_t *out)
{
    const struct ucx_peer *ucx_peer = send->op.peer;
    uint8_t inner[UCX_WIRE_INNER_BYTES_MAX];
    struct ucx_wire_header header = {
        .kind = UCX_WIRE_DATA,
        .sender = ucx_peer->endpoint->transport->id,
        .receiver = ucx_peer->peer->id,
        .token = ucx_peer->token_out,
        .tag = send->landing,
        .sequence = offset,
        .payload_bytes = bytes,
        .header = inner,
    };
    if (send->op.kind == UCX_OP_PUT) {
        struct ucx_wire_put put = send->put;
        put.notify = put.notify && offset + bytes == send->bytes;
        ucx_wire_put_encode(&put, inner);
        header.kind = UCX_WIRE_PUT;
        header.tag = put.window;
        header.sequence = send->put_offset + offset;
        header.header_bytes = UCX_WIRE_PUT_BYTES;
        if (put.notify) {
            memcpy(inner + UCX_WIRE_PUT_BYTES, send->header, send->header_bytes);
            header.header_bytes += send->header_bytes;
        }
    }
    ucx_wire_encode(&header, out);
    return UCX_WIRE_FIXED_BYTES + header.header_bytes;
}

/* Starts the next fragment; `send` may be freed. False: no memory now. */
static bool push_one(struct ucx_peer *ucx_peer, struct ucx_send *send)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    struct ucx_fragment *fragment = ucx_pool_alloc(endpoint, &endpoint->pools.fragments);
    if (!fragment) return false;
    fragment->send = send;
    uint64_t offset = send->started, left = send->bytes - offset;
    uint64_t bytes = left < send->piece ? left : send->piece;
    size_t header_bytes = encode_fragment(send, offset, bytes, fragment->header);
    send->started += bytes;
    send->op.holds++;
    ucx_peer->fragments++;
    if (send->started == send->bytes) ucx_stream_stop(send);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_fragment_sent,
        .user_data = fragment,
    };
    void *request = ucp_am_send_nbx(ucx_peer->ep, UCX_AM_ID, fragment->header, header_bytes,
                                    send->source + offset, bytes, &param);
    if (UCS_PTR_IS_PTR(request)) return true;
    ucs_status_t status = UCS_PTR_STATUS(request);
    if (status != UCS_OK) ucx_peer_failed(ucx_peer, status);
    fragment_ended(fragment, status);
    return true;
}

static bool can_push(const struct ucx_peer *ucx_peer)
{
    return ucx_peer->ep && !weft_list_empty(&ucx_peer->output.sending) &&
           ucx_peer->fragments < UCX_FRAGMENTS_MAX;
}

int ucx_streams_push(struct ucx_endpoint *endpoint)
{
    int count = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->busy) {
        struct ucx_peer *ucx_peer = weft_container_of(node, struct ucx_peer, output.busy);
        for (int i = 0; i < UCX_PUSH_MAX && can_push(ucx_peer); i++, count++) {
            if (!push_one(ucx_peer, weft_list_first(&ucx_peer->output.sending, struct ucx_send, sending)))
                return count;
        }
    }
    return count;
}

bool ucx_streams_waiting(const struct ucx_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->busy) {
        if (can_push(weft_container_of(node, struct ucx_peer, output.busy))) return true;
    }
    return false;
}

void ucx_on_data(struct ucx_peer *ucx_peer, const struct ucx_wire_header *header, const void *data,
                 size_t data_bytes)
{
    struct ucx_op *op = ucx_table_get(&ucx_peer->endpoint->operations, header->tag);
    /* it has ended here */
    if (!op || op->peer != ucx_peer || (op->kind != UCX_OP_RECEIVE && op->kind != UCX_OP_GET)) return;
    struct ucx_landing *landing = weft_container_of(op, struct ucx_landing, op);
    uint64_t offset = header->sequence;
    if (offset > landing->bytes || data_bytes > landing->bytes - offset ||
        data_bytes > landing->bytes - landing->received) {
        core_count_refused(ucx_peer->endpoint->transport);
        ucx_peer_failed(ucx_peer, UCS_ERR_MESSAGE_TRUNCATED);
        return;
    }
    memcpy(landing->buffer + offset, data, data_bytes);
    ucx_peer->endpoint->transport->stats.copied_bytes += data_bytes;
    landing->received += data_bytes;
    if (landing->received == landing->bytes) ucx_op_finish(op, WEFT_OK);
}
