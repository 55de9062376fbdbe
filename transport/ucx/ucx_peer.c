/* ucx_peer.c - UCX endpoints of peers, and the end of each.
 *
 *   weft_transport_close ──BYE──►  GRACEFUL ──(reply arrived, no operation left)──► CLOSING (flushed) ─► DONE
 *   BYE arrived ──core_peer_lost, reply──► GRACEFUL
 *   UCX reports an error ──core_peer_lost──► FORCE ──► CLOSING (by force) ─► DONE
 *   weft_transport_fail_peer ─────────────► FORCE
 *
 * GRACEFUL: both sides live. BYE is the last message in sequence. Its receiver drops the sender's
 * announcements (UCX reports this, so the sends end) and replies that it sends no more. Receives in
 * progress continue to their end, so all requests end without cancellation. A peer that does not reply
 * within a second is treated as dead.
 *
 * FORCE: UCX closes by force and ends every request. Requests that UCX leaves over are ended here after
 * the close.
 *
 * UCX 1.13 aborts the *other* process if one side closes by force while their connection requests cross.
 * So each side starts with a HELLO by rendezvous, which completes UCX's own exchange. A forced close of a
 * peer that is not known to be broken waits for both HELLOs, at most a second. */
#include "transport/ucx/ucx.h"

#include <stdio.h>

#define END_PATIENCE_NS WEFT_SECONDS(1)

enum weft_status ucx_status(const struct ucx_peer *ucx_peer, ucs_status_t status)
{
    if (status == UCS_OK) return WEFT_OK;
    if (ucx_peer->closing.end_status < 0) return ucx_peer->closing.end_status;
    if (ucx_peer->peer && ucx_peer->peer->status < 0) return ucx_peer->peer->status;
    if (status == UCS_ERR_NO_MEMORY) return WEFT_ERR_NO_MEMORY;
    if (status == UCS_ERR_MESSAGE_TRUNCATED) return WEFT_ERR_TRUNCATED;
    return WEFT_ERR_PEER_LOST;
}

struct ucx_peer *ucx_peer_get_or_add(struct ucx_endpoint *endpoint, struct weft_peer *peer)
{
    if (peer->backend) return peer->backend;
    struct ucx_peer *ucx_peer = weft_alloc_zero(endpoint->transport->env, sizeof *ucx_peer);
    if (!ucx_peer) return NULL;
    ucx_peer->endpoint = endpoint;
    ucx_peer->peer = peer;
    ucx_peer->flow.credit = UCX_EAGER_FIRST;
    if (ucx_seal_token(&endpoint->seal, endpoint->seal.challenge, peer->id, endpoint->transport->id,
                       &ucx_peer->token_in) < 0) {
        weft_free_bytes(endpoint->transport->env, ucx_peer);
        return NULL;
    }
    struct weft_list *const lists[] = {
        &ucx_peer->operations,     &ucx_peer->reordered,   &ucx_peer->link_failed,
        &ucx_peer->output.sending, &ucx_peer->output.busy, &ucx_peer->output.batches,
        &ucx_peer->output.talking, &ucx_peer->incoming,    &ucx_peer->remotes};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) weft_list_init(lists[i]);
    weft_list_append(&endpoint->peers, &ucx_peer->link);
    peer->backend = ucx_peer;
    return ucx_peer;
}

struct ucx_peer *ucx_peer_proven(struct ucx_endpoint *endpoint, uint32_t peer_id, uint64_t token)
{
    struct weft_transport *transport = endpoint->transport;
    struct weft_peer *peer = core_peer_find(transport, peer_id);
    struct ucx_peer *ucx_peer = peer ? peer->backend : NULL;
    uint64_t expected = ucx_peer ? ucx_peer->token_in : 0;
    if (!ucx_peer &&
        ucx_seal_token(&endpoint->seal, endpoint->seal.challenge, peer_id, transport->id, &expected) < 0)
        return NULL;
    if (!weft_bytes_equal_constant_time(&token, &expected, sizeof token)) return NULL;
    if (ucx_peer) return ucx_peer;
    peer = core_peer_find_or_add(transport, peer_id);
    return peer ? ucx_peer_get_or_add(endpoint, peer) : NULL;
}

/* Records the failure; reported after ucp_worker_progress. UCS_OK: the peer closed in order; an error may
 * follow. */
void ucx_peer_failed(struct ucx_peer *ucx_peer, ucs_status_t status)
{
    if (ucx_peer->closing.end == UCX_END_DONE ||
        (ucx_peer->handshake.failed && ucx_peer->failed_status != UCS_OK))
        return;
    bool reported = ucx_peer->handshake.failed;
    ucx_peer->handshake.failed = true;
    ucx_peer->failed_status = status;
    if (!reported) weft_list_append(&ucx_peer->endpoint->failed, &ucx_peer->link_failed);
}

/* The address in a blob whose proof is valid for this peer. */
static enum weft_status read_address(const struct ucx_endpoint *endpoint, uint32_t peer_id, const void *blob,
                                     size_t bytes, struct ucx_wire_address *address_out)
{
    uint8_t proof[UCX_SEAL_PROOF_BYTES];
    WEFT_TRY(ucx_wire_address_decode(blob, bytes, address_out));
    if (address_out->mark != endpoint->seal.mark) return WEFT_ERR_AUTH;
    WEFT_TRY(ucx_seal_prove(&endpoint->seal, blob, bytes - sizeof proof, proof));
    if (!weft_bytes_equal_constant_time(proof, address_out->proof, sizeof proof)) return WEFT_ERR_AUTH;
    return address_out->id == peer_id ? WEFT_OK : WEFT_ERR_MALFORMED;
}

static void on_error(void *context, ucp_ep_h ep, ucs_status_t status) { ucx_peer_failed(context, status); }

enum weft_status ucx_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes)
{
    struct ucx_endpoint *endpoint = transport->backend;
    struct ucx_wire_address address;
    uint64_t token;
    WEFT_TRY(read_address(endpoint, peer->id, blob, bytes, &address));
    WEFT_TRY(ucx_seal_token(&endpoint->seal, address.challenge, transport->id, peer->id, &token));
    bool fresh = !peer->backend;
    struct ucx_peer *ucx_peer = ucx_peer_get_or_add(endpoint, peer);
    if (!ucx_peer) return WEFT_ERR_NO_MEMORY;
    ucx_peer->token_out = token;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address.packed,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = ucx_peer},
    };
    ucs_status_t ucs = ucp_ep_create(endpoint->worker, &params, &ucx_peer->ep);
    if (ucs == UCS_OK) {
        ucx_lane_learn(ucx_peer);
        ucx_process_watch(ucx_peer, &address.process);
        ucx_message_control(ucx_peer, UCX_WIRE_HELLO);
        /* it connected, sent and closed before the local connect */
        if (ucx_peer->handshake.answered) ucx_peer_left(ucx_peer);
        return WEFT_OK;
    }
    ucx_peer->ep = NULL;
    weft_log(transport->env, WEFT_LOG_WARN, "transport", "endpoint %u peer %u: UCX cannot connect: %s",
             transport->id, peer->id, ucs_status_string(ucs));
    if (fresh) {
        weft_list_remove(&ucx_peer->link);
        weft_free_bytes(transport->env, ucx_peer);
        peer->backend = NULL;
    }
    return ucs == UCS_ERR_NO_MEMORY ? WEFT_ERR_NO_MEMORY : WEFT_ERR_UNREACHABLE;
}

static bool has_unfinished(const struct ucx_peer *ucx_peer)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_peer->operations) {
        const struct ucx_op *op = weft_container_of(node, struct ucx_op, link);
        if (!op->finished) return true;
    }
    return false;
}

/* Ends operations that need not wait for the end of the connection. Not under force: the peer lives, and
 * receives in progress continue. */
static void end_operations(struct ucx_peer *ucx_peer, enum weft_status status, bool force)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &ucx_peer->operations) {
        struct ucx_op *op = weft_container_of(node, struct ucx_op, link);
        if (op->finished) continue;
        switch (op->kind) {
        case UCX_OP_MESSAGE:
            if (op->id && (force || !weft_container_of(op, struct ucx_send, op)->landing))
                ucx_op_fail(op, status);
            break;
        case UCX_OP_RECEIVE:
            if (op->id && force) ucx_op_fail(op, status);
            break;
        case UCX_OP_PUT:
        case UCX_OP_GET:
        case UCX_OP_SERVE: ucx_op_fail(op, status); break;
        case UCX_OP_CONTROL:
        case UCX_OP_BATCH:
        case UCX_OP_GATHER: break;
        }
    }
    if (force) ucx_batches_drop(ucx_peer);
}

static void end_begin(struct ucx_peer *ucx_peer, enum ucx_end end, enum weft_status status)
{
    if (ucx_peer->closing.end == UCX_END_NONE) ucx_peer->endpoint->ending_count++;
    ucx_peer->closing.end = end;
    ucx_peer->closing.end_status = status;
    ucx_peer->closing.end_deadline_ns = weft_now_ns(ucx_peer->endpoint->transport->env) + END_PATIENCE_NS;
    end_operations(ucx_peer, status, end == UCX_END_FORCE);
}

/* The local endpoint closes: sends BYE. */
void ucx_peer_leave(struct ucx_peer *ucx_peer, enum weft_status status)
{
    end_begin(ucx_peer, ucx_peer->handshake.failed ? UCX_END_FORCE : UCX_END_GRACEFUL, status);
    ucx_message_control(ucx_peer, UCX_WIRE_BYE);
}

/* The peer closes: BYE has arrived, in sequence. */
void ucx_peer_left(struct ucx_peer *ucx_peer)
{
    ucx_peer->handshake.answered = true;
    if (!ucx_peer->peer->connected || !ucx_peer->ep || ucx_peer->endpoint->transport->closed) return;
    ucx_peer_failed(ucx_peer, UCS_OK);
}

void ucx_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct ucx_peer *ucx_peer = peer->backend;
    if (!ucx_peer->ep || ucx_peer->closing.end >= UCX_END_CLOSING) return;
    bool said_bye = ucx_peer->handshake.answered && ucx_peer->closing.end == UCX_END_NONE &&
                    (!ucx_peer->handshake.failed || ucx_peer->failed_status == UCS_OK);
    end_begin(ucx_peer, said_bye ? UCX_END_GRACEFUL : UCX_END_FORCE, status);
    if (said_bye) ucx_message_control(ucx_peer, UCX_WIRE_BYE_REPLY);
}

static void end_done(struct ucx_peer *ucx_peer)
{
    struct weft_list *node, *spare;
    ucx_batches_drop(ucx_peer);
    weft_list_foreach(node, spare, &ucx_peer->operations) {
        struct ucx_op *op = weft_container_of(node, struct ucx_op, link);
        ucx_op_finish(op, ucx_peer->closing.end_status);
    }
    ucx_windows_peer_lost(ucx_peer);
    ucx_process_forget(ucx_peer);
    ucx_peer->closing.end = UCX_END_DONE;
    ucx_peer->endpoint->ending_count--;
}

static void end_close(struct ucx_peer *ucx_peer, unsigned flags)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags};
    ucp_ep_h ep = ucx_peer->ep;
    ucx_peer->ep = NULL;
    ucx_peer->closing.end = UCX_END_CLOSING;
    if (flags & UCP_EP_CLOSE_FLAG_FORCE) ucx_peer->endpoint->closing.forced = true;
    void *request = ucp_ep_close_nbx(ep, &param);
    ucx_peer->closing.close_request = UCS_PTR_IS_PTR(request) ? request : NULL;
    ucx_peer->closing.end_deadline_ns = weft_now_ns(ucx_peer->endpoint->transport->env) + END_PATIENCE_NS;
}

/* UCX has ended all requests, but destroys its queue pairs in the background; a flush of the worker waits
 * for that. Data queued to a dead process would block the flush for ever. True: complete. */
static bool parked_are_safe(struct ucx_peer *ucx_peer, uint64_t now_ns)
{
    if (ucx_peer->closing.parked == 0 || ucx_peer->closing.flushed ||
        now_ns >= ucx_peer->closing.end_deadline_ns)
        return true;
    ucx_peer->closing.flushed = true;
    ucp_request_param_t param = {.op_attr_mask = 0};
    void *request = ucp_worker_flush_nbx(ucx_peer->endpoint->worker, &param);
    ucx_peer->closing.close_request = UCS_PTR_IS_PTR(request) ? request : NULL;
    return ucx_peer->closing.close_request == NULL;
}

/* One transition of the state machine above; true if it moved. `quiet`: UCX had no more work. */
static bool end_step(struct ucx_peer *ucx_peer, bool quiet, uint64_t now_ns)
{
    bool broken = ucx_peer->handshake.failed && ucx_peer->failed_status != UCS_OK;
    switch (ucx_peer->closing.end) {
    case UCX_END_GRACEFUL:
        if (broken || now_ns >= ucx_peer->closing.end_deadline_ns) {
            end_begin(ucx_peer, UCX_END_FORCE, ucx_peer->closing.end_status);
            return true;
        }
        if (!ucx_peer->handshake.answered || has_unfinished(ucx_peer)) return false;
        end_close(ucx_peer, 0);
        return true;
    case UCX_END_FORCE:
        if (!(ucx_peer->handshake.hello_received && ucx_peer->handshake.hello_sent) && !broken &&
            now_ns < ucx_peer->closing.end_deadline_ns)
            return false;
        end_close(ucx_peer, UCP_EP_CLOSE_FLAG_FORCE);
        return true;
    case UCX_END_CLOSING:
        if (ucx_peer->closing.close_request) {
            bool patient = !ucx_peer->closing.flushed || now_ns < ucx_peer->closing.end_deadline_ns;
            if (patient && ucp_request_check_status(ucx_peer->closing.close_request) == UCS_INPROGRESS)
                return false;
            ucp_request_free(ucx_peer->closing.close_request);
            ucx_peer->closing.close_request = NULL;
        }
        if (!quiet && !ucx_peer->closing.flushed)
            return false; /* a flush keeps UCX busy until it completes */
        if (!parked_are_safe(ucx_peer, now_ns)) return false;
        end_done(ucx_peer);
        return true;
    case UCX_END_NONE:
    case UCX_END_DONE: return false;
    }
    return false;
}

int ucx_peers_progress(struct ucx_endpoint *endpoint, bool quiet)
{
    struct weft_transport *transport = endpoint->transport;
    int count = 0;
    while (!weft_list_empty(&endpoint->failed)) {
        struct ucx_peer *ucx_peer = weft_list_first(&endpoint->failed, struct ucx_peer, link_failed);
        weft_list_remove(&ucx_peer->link_failed);
        char text[120];
        snprintf(text, sizeof text, "its connection broke (%s)", ucs_status_string(ucx_peer->failed_status));
        if (ucx_peer->process && ucx_peer->process->fd < 0) {
            snprintf(text, sizeof text, "its process %llu has died",
                     (unsigned long long)ucx_peer->process->identity.pid);
        }
        if (ucx_peer->failed_status == UCS_OK)
            core_peer_left(transport, ucx_peer->peer, "it has closed its endpoint");
        else core_peer_lost(transport, ucx_peer->peer, WEFT_ERR_PEER_LOST, text);
        count++;
    }
    if (endpoint->ending_count == 0) return count;
    uint64_t now_ns = weft_now_ns(transport->env);
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        count += end_step(weft_container_of(node, struct ucx_peer, link), quiet, now_ns);
    }
    return count;
}

bool ucx_peers_can_sleep(struct ucx_endpoint *endpoint)
{
    if (endpoint->ending_count == 0) return true;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->peers) {
        struct ucx_peer *ucx_peer = weft_container_of(node, struct ucx_peer, link);
        if (ucx_peer->closing.end == UCX_END_CLOSING && !ucx_peer->closing.close_request) return false;
        if (ucx_peer->closing.end != UCX_END_NONE && ucx_peer->closing.end != UCX_END_DONE)
            core_wake_at(endpoint->transport, ucx_peer->closing.end_deadline_ns);
    }
    return true;
}
