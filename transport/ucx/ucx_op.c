/* ucx_op.c - life of one operation; see ucx.h. */
#include "transport/ucx/ucx.h"

static bool has_user(const struct ucx_op *op) { return op->kind <= UCX_OP_GET; }

void ucx_op_release(struct ucx_op *op)
{
    if (!op->delivered || op->holds > 0) return;
    struct ucx_endpoint *endpoint = op->peer->endpoint;
    weft_list_remove(&op->link);
    if (op->kind == UCX_OP_MESSAGE || op->kind == UCX_OP_PUT || op->kind == UCX_OP_GET)
        endpoint->send_count--;
    switch (op->kind) {
    case UCX_OP_RECEIVE:
        ucx_arrival_release(endpoint, weft_container_of(op, struct ucx_arrival, landing.op));
        break;
    case UCX_OP_GET: ucx_pool_release(&endpoint->pools.landings, op); break;
    case UCX_OP_BATCH: ucx_pool_release(&endpoint->pools.batches, op); break;
    case UCX_OP_GATHER: ucx_pool_release(&endpoint->pools.gathers, op); break;
    default: ucx_pool_release(&endpoint->pools.sends, op); break;
    }
}

static void op_recycle(struct weft_transport *transport, struct core_done *done)
{
    struct ucx_op *op = weft_container_of(done, struct ucx_op, done);
    op->delivered = true;
    ucx_op_release(op);
}

void ucx_op_init(struct ucx_op *op, enum ucx_op_kind kind, struct ucx_peer *ucx_peer,
                 struct weft_completion *completion)
{
    *op = (struct ucx_op){
        .done = {.peer = ucx_peer->peer, .completion = completion, .recycle = op_recycle},
        .peer = ucx_peer,
        .kind = kind,
    };
    weft_list_append(&ucx_peer->operations, &op->link);
    if (kind == UCX_OP_MESSAGE || kind == UCX_OP_PUT || kind == UCX_OP_GET) ucx_peer->endpoint->send_count++;
}

bool ucx_op_number(struct ucx_op *op)
{
    op->id = ucx_table_put(op->peer->endpoint->transport->env, &op->peer->endpoint->operations, op);
    return op->id != 0;
}

static void op_forget_number(struct ucx_op *op)
{
    if (op->id) ucx_table_remove(&op->peer->endpoint->operations, op->id);
    op->id = 0;
}

bool ucx_op_park(struct ucx_op *op, ucs_status_t status)
{
    if (op->finished || !op->rendezvous || !has_user(op) || !op->peer->remote_access) return false;
    if (status == UCS_OK || status == UCS_ERR_NO_MEMORY || status == UCS_ERR_MESSAGE_TRUNCATED) return false;
    if (!op->parked) op->peer->closing.parked++;
    op->parked = true;
    ucx_peer_failed(op->peer, status); /* the end of the connection ends it */
    return true;
}

void ucx_op_finish(struct ucx_op *op, enum weft_status status)
{
    if (op->finished) return;
    op->finished = true;
    if (op->parked) op->peer->closing.parked--;
    op->parked = false;
    op_forget_number(op);
    if (has_user(op)) {
        core_finish(op->peer->endpoint->transport, &op->done, status);
    } else {
        op->delivered = true;
        ucx_op_release(op);
    }
}

void ucx_op_fail(struct ucx_op *op, enum weft_status status)
{
    if (op->finished) return;
    op->failed = status;
    op_forget_number(op);
    if (op->kind == UCX_OP_MESSAGE || op->kind == UCX_OP_PUT || op->kind == UCX_OP_SERVE) {
        ucx_stream_stop(weft_container_of(op, struct ucx_send, op));
    }
    if (op->holds > 0 || op->parked) return;
    if (op->kind == UCX_OP_SERVE) ucx_serve_ended(weft_container_of(op, struct ucx_send, op));
    ucx_op_finish(op, status);
}

void ucx_op_drop(struct ucx_op *op)
{
    op_forget_number(op);
    op->delivered = op->finished = true;
    op->holds = 0;
    ucx_op_release(op);
}

void ucx_op_started(struct ucx_op *op, void *request)
{
    if (UCS_PTR_IS_PTR(request)) return;
    ucx_op_ended(op, NULL, UCS_PTR_STATUS(request));
}

/* For operations that are one UCX request; fragments and direct access count their own. */
void ucx_op_ended(struct ucx_op *op, void *request, ucs_status_t status)
{
    if (request) ucp_request_free(request);
    op->holds--;
    if (op->kind == UCX_OP_CONTROL && op->rendezvous && status == UCS_OK)
        op->peer->handshake.hello_sent = true;
    enum weft_status end_status = op->peer->closing.end_status;
    if (ucx_op_park(op, status)) return;
    if (op->finished) { /* already reported to the caller: the connection is closed */
        ucx_op_release(op);
        return;
    }
    if (op->kind == UCX_OP_MESSAGE && op->rendezvous && status == UCS_OK && end_status < 0) {
        /* an unanswered rendezvous ends like a completed one: report the failure */
        ucx_op_finish(op, end_status);
    } else {
        ucx_op_finish(op, op->failed < 0 && status != UCS_OK ? op->failed : ucx_status(op->peer, status));
    }
}
