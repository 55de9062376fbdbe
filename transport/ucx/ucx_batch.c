/* ucx_batch.c - control entries to a peer. Entries of one progress round leave together at its end, so a
 * stream of announced messages costs a fraction of an active message per direction. */
#include "transport/ucx/ucx.h"

static struct ucx_batch *last_batch(struct ucx_peer *ucx_peer)
{
    if (weft_list_empty(&ucx_peer->output.batches)) return NULL;
    return weft_container_of(ucx_peer->output.batches.prev, struct ucx_batch, link);
}

static struct ucx_batch *add_batch(struct ucx_peer *ucx_peer)
{
    struct ucx_endpoint *endpoint = ucx_peer->endpoint;
    if (!ucx_peer->ep) { /* not connected yet: the number of waiting batches is bounded */
        int count = 0;
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, &ucx_peer->output.batches) count++;
        if (count >= UCX_BATCHES_MAX) return NULL;
    }
    struct ucx_batch *batch = ucx_pool_alloc(endpoint, &endpoint->pools.batches);
    if (!batch) {
        ucx_peer_failed(ucx_peer, UCS_ERR_NO_MEMORY);
        return NULL;
    }
    ucx_op_init(&batch->op, UCX_OP_BATCH, ucx_peer, NULL);
    batch->used = 0;
    if (weft_list_empty(&ucx_peer->output.talking))
        weft_list_append(&endpoint->talking, &ucx_peer->output.talking);
    weft_list_append(&ucx_peer->output.batches, &batch->link);
    return batch;
}

void ucx_send_control(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    if (ucx_peer->closing.end >= UCX_END_CLOSING) return;
    uint32_t bytes = UCX_WIRE_ENTRY_BYTES + entry->header_bytes;
    struct ucx_batch *batch = last_batch(ucx_peer);
    if (!batch || batch->used + bytes > UCX_BATCH_BYTES) batch = add_batch(ucx_peer);
    if (!batch) return;
    ucx_wire_entry_encode(entry, batch->entries + batch->used);
    batch->used += bytes;
}

static void on_bundle_sent(void *request, ucs_status_t status, void *user_data)
{
    ucx_op_ended(user_data, request, status);
}

void ucx_bundle_send(struct ucx_op *op, enum ucx_wire_kind kind,
                     uint8_t header_out[UCX_WIRE_HEADER_BYTES_MAX], const void *body, size_t bytes)
{
    struct ucx_peer *ucx_peer = op->peer;
    struct ucx_wire_header header = {
        .kind = kind,
        .sender = ucx_peer->endpoint->transport->id,
        .receiver = ucx_peer->peer->id,
        .token = ucx_peer->token_out,
        .payload_bytes = bytes,
    };
    ucx_wire_encode(&header, header_out);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_bundle_sent,
        .user_data = op,
    };
    op->holds = 1;
    void *request =
        ucp_am_send_nbx(ucx_peer->ep, UCX_AM_ID, header_out, UCX_WIRE_FIXED_BYTES, body, bytes, &param);
    if (UCS_PTR_IS_ERR(request)) ucx_peer_failed(ucx_peer, UCS_PTR_STATUS(request));
    ucx_op_started(op, request);
}

void ucx_batch_flush(struct ucx_peer *ucx_peer)
{
    if (!ucx_peer->ep || weft_list_empty(&ucx_peer->output.talking)) return;
    ucx_gather_send(ucx_peer);
    while (!weft_list_empty(&ucx_peer->output.batches)) {
        struct ucx_batch *batch = weft_list_first(&ucx_peer->output.batches, struct ucx_batch, link);
        weft_list_remove(&batch->link);
        ucx_bundle_send(&batch->op, UCX_WIRE_BATCH, batch->header, batch->entries, batch->used);
    }
    weft_list_remove(&ucx_peer->output.talking);
}

int ucx_batches_flush(struct ucx_endpoint *endpoint)
{
    int count = 0;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->talking) {
        struct ucx_peer *ucx_peer = weft_container_of(node, struct ucx_peer, output.talking);
        if (!ucx_peer->ep) continue;
        ucx_batch_flush(ucx_peer);
        count++;
    }
    return count;
}

void ucx_batches_drop(struct ucx_peer *ucx_peer)
{
    ucx_gather_drop(ucx_peer);
    while (!weft_list_empty(&ucx_peer->output.batches)) {
        struct ucx_batch *batch = weft_list_first(&ucx_peer->output.batches, struct ucx_batch, link);
        weft_list_remove(&batch->link);
        ucx_op_drop(&batch->op);
    }
    weft_list_remove(&ucx_peer->output.talking);
}

/* ---- receive ---- */

static void on_announce(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    if (ucx_peer->endpoint->transport->closed || ucx_peer->peer->status < 0) {
        ucx_send_control(ucx_peer, &(struct ucx_wire_entry){.control = UCX_CONTROL_TAKEN, .id = entry->id});
        return;
    }
    struct ucx_arrival *arrival =
        ucx_arrival_make(ucx_peer, entry->a, entry->b, entry->c, entry->header, entry->header_bytes);
    if (!arrival) return;
    arrival->send_id = entry->id;
    arrival->core.is_complete = false;
    ucx_arrival_queue(arrival);
}

/* Maps a status from the wire to an enum value; an unknown one becomes an error. */
static enum weft_status status_of(const struct ucx_wire_entry *entry)
{
    return entry->status < 0 && entry->status >= WEFT_ERR_INTERNAL ? (enum weft_status)entry->status
                                                                   : WEFT_ERR_PEER_LOST;
}

/* The operation of this peer with that id, or NULL: it has ended. */
static struct ucx_op *operation(struct ucx_peer *ucx_peer, uint64_t id)
{
    struct ucx_op *op = ucx_table_get(&ucx_peer->endpoint->operations, id);
    return op && op->peer == ucx_peer ? op : NULL;
}

static void on_grant(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    struct ucx_op *op = operation(ucx_peer, entry->id);
    struct ucx_send *send =
        op && op->kind == UCX_OP_MESSAGE ? weft_container_of(op, struct ucx_send, op) : NULL;
    if (!send || send->landing) { /* ended meanwhile: do not wait for its buffer */
        ucx_send_control(ucx_peer, &(struct ucx_wire_entry){
                            .control = UCX_CONTROL_ABORT, .id = entry->a, .status = WEFT_ERR_PEER_LOST});
        return;
    }
    send->landing = entry->a;
    ucx_stream_begin(send);
}

static void on_taken(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    struct ucx_op *op = operation(ucx_peer, entry->id);
    if (!op || op->kind != UCX_OP_MESSAGE || weft_container_of(op, struct ucx_send, op)->landing) return;
    ucx_op_finish(op, ucx_peer->closing.end_status < 0 ? ucx_peer->closing.end_status : WEFT_OK);
}

static void on_abort(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    struct ucx_op *op = operation(ucx_peer, entry->id);
    if (!op || (op->kind != UCX_OP_RECEIVE && op->kind != UCX_OP_GET)) return;
    ucx_op_fail(op, status_of(entry));
}

static void on_put_done(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    struct ucx_op *op = operation(ucx_peer, entry->id);
    if (!op || op->kind != UCX_OP_PUT) return;
    struct ucx_send *send = weft_container_of(op, struct ucx_send, op);
    send->answered = true;
    send->answer = entry->status == 0 ? WEFT_OK : status_of(entry);
    if (send->answer < 0) ucx_stream_stop(send);
    ucx_stream_check(send);
}

static void on_control(struct ucx_peer *ucx_peer, const struct ucx_wire_entry *entry)
{
    switch (entry->control) {
    case UCX_CONTROL_ANNOUNCE: on_announce(ucx_peer, entry); break;
    case UCX_CONTROL_GRANT: on_grant(ucx_peer, entry); break;
    case UCX_CONTROL_TAKEN: on_taken(ucx_peer, entry); break;
    case UCX_CONTROL_ABORT: on_abort(ucx_peer, entry); break;
    case UCX_CONTROL_CREDIT: ucx_peer->flow.credit += entry->a; break;
    case UCX_CONTROL_PUT_DONE: on_put_done(ucx_peer, entry); break;
    case UCX_CONTROL_GET: ucx_on_get(ucx_peer, entry); break;
    case UCX_CONTROL_KEY_REVOKE: ucx_on_key_revoke(ucx_peer, entry->id); break;
    case UCX_CONTROL_KEY_RELEASED: ucx_on_key_released(ucx_peer, entry->id); break;
    case UCX_CONTROL_KEY_REQUEST: ucx_on_key_request(ucx_peer, entry); break;
    case UCX_CONTROL_KEY: ucx_on_key(ucx_peer, entry); break;
    case UCX_CONTROL_NOTIFY: ucx_on_notify(ucx_peer, entry); break;
    }
}

void ucx_on_batch(struct ucx_peer *ucx_peer, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        struct ucx_wire_entry entry;
        size_t used = ucx_wire_entry_decode(data, bytes, &entry);
        if (used == 0) {
            core_count_refused(ucx_peer->endpoint->transport);
            return;
        }
        on_control(ucx_peer, &entry);
        data += used;
        bytes -= used;
    }
}
