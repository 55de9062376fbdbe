/* wrap_message.c - messages through a wrapper; see wrap.h. */
#include <string.h>

#include "transport/wrap/wrap.h"

enum { RETRY_NS = 10000 };

/* ---- records: reused, because a wrapper may see every message ---- */

static void *reuse(struct wrap *wrap, struct weft_list *unused)
{
    if (weft_list_empty(unused)) return NULL;
    struct weft_list *node = unused->next;
    weft_list_remove(node);
    wrap->unused_count--;
    return node;
}

static bool should_keep(struct wrap *wrap, struct weft_list *unused, struct weft_list *node)
{
    if (wrap->unused_count == WRAP_UNUSED_MAX) return false;
    wrap->unused_count++;
    weft_list_append(unused, node);
    return true;
}

void wrap_op_free(struct wrap_op *op)
{
    struct wrap *wrap = wrap_of(op->outer);
    weft_list_init(&op->link);
    if (!should_keep(wrap, &wrap->unused_ops, &op->link)) weft_free_bytes(wrap->outer->env, op);
}

static void arrival_free(struct wrap *wrap, struct wrap_arrival *arrival)
{
    weft_list_init(&arrival->link);
    if (!should_keep(wrap, &wrap->unused_arrivals, &arrival->link))
        weft_free_bytes(wrap->outer->env, arrival);
}

/* ---- the end of operations ---- */

static void record_span(struct wrap *wrap, const struct wrap_op *op)
{
    static const char *const names[] = {"", "send", "accept", "recv", "put", "get"};
    if (!wrap->trace) return;
    uint64_t now_ns = weft_now_ns(wrap->outer->env),
             done_ns = op->done_ns != WEFT_NEVER ? op->done_ns : now_ns;
    weft_trace_span(wrap->trace,
                    &(struct weft_trace_span){
                        .name = names[op->kind],
                        .begin_ns = op->begin_ns,
                        .end_ns = now_ns,
                        .peer_id = op->done.peer->id,
                        .tag = op->tag,
                        .bytes = op->bytes,
                        .status = op->done.status,
                        .queue_ns = (op->taken_ns != WEFT_NEVER ? op->taken_ns : now_ns) - op->begin_ns,
                        .completion_ns = weft_elapsed_ns(done_ns, now_ns),
                    });
}

static void recycle_op(struct weft_transport *transport, struct core_done *done)
{
    struct wrap_op *op = weft_container_of(done, struct wrap_op, done);
    record_span(wrap_of(transport), op);
    wrap_of(transport)->op_count--;
    wrap_op_free(op);
}

static void recycle_accept(struct weft_transport *transport, struct core_done *done)
{
    struct wrap_arrival *arrival = weft_container_of(done, struct wrap_arrival, op.done);
    record_span(wrap_of(transport), &arrival->op);
    arrival_free(wrap_of(transport), arrival);
}

static void inner_done(struct weft_completion *completion, enum weft_status status)
{
    struct wrap_op *op = weft_container_of(completion, struct wrap_op, inner);
    struct wrap *wrap = wrap_of(op->outer);
    struct wrap_peer *peer = op->done.peer->backend;
    bool silent = (wrap->killed || peer->cut) && !wrap->outer->closed && op->done.peer->status == WEFT_OK;
    op->done_ns = wrap_trace_now(wrap);
    if (silent) weft_list_append(&peer->vanished, &op->link);
    else core_finish(op->outer, &op->done, status);
}

static void op_init(struct wrap_op *op, struct weft_transport *outer, enum wrap_kind kind,
                    struct weft_peer *peer, struct weft_completion *completion)
{
    op->done = (struct core_done){.peer = peer, .completion = completion, .recycle = recycle_op};
    op->outer = outer;
    op->kind = kind;
    op->tag = op->bytes = 0;
    op->begin_ns = wrap_trace_now(wrap_of(outer));
    op->taken_ns = op->done_ns = WEFT_NEVER;
    op->remote = NULL;
    weft_completion_init(&op->inner, 1, inner_done);
    weft_list_init(&op->link);
}

struct wrap_op *wrap_op_new(struct weft_transport *outer, enum wrap_kind kind, struct weft_peer *peer,
                            struct weft_completion *completion)
{
    struct wrap *wrap = wrap_of(outer);
    struct weft_list *link = reuse(wrap, &wrap->unused_ops);
    struct wrap_op *op =
        link ? weft_container_of(link, struct wrap_op, link) : weft_alloc_bytes(outer->env, sizeof *op);
    if (op) op_init(op, outer, kind, peer, completion);
    return op;
}

void wrap_end_ops(struct weft_transport *transport, struct weft_list *ops, const struct weft_peer *peer,
                  enum weft_status status)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, ops) {
        struct wrap_op *op = weft_container_of(node, struct wrap_op, link);
        if (peer && op->done.peer != peer) continue;
        weft_list_remove(node);
        core_finish(transport, &op->done, status);
    }
}

/* ---- out ---- */

static enum weft_status op_hand_over(struct wrap_op *op)
{
    struct wrap_peer *peer = op->done.peer->backend;
    enum weft_status status;
    if (op->kind == WRAP_PUT) status = weft_transport_put(op->remote, &op->put, &op->inner);
    else if (op->kind == WRAP_GET)
        status = weft_transport_get(op->remote, op->get.offset, op->get.destination, op->bytes, &op->inner);
    else status = weft_transport_send(peer->inner, &op->message, &op->inner);
    if (status == WEFT_IN_PROGRESS) op->taken_ns = wrap_trace_now(wrap_of(op->outer));
    return status;
}

enum weft_status wrap_op_start(struct wrap *wrap, struct wrap_op *op, bool *held_out)
{
    struct wrap_peer *peer = op->done.peer->backend;
    *held_out = false;
    if (!wrap_lets_pass(wrap, peer)) {
        weft_list_append(&peer->vanished, &op->link);
    } else if (!wrap_has_delay(&wrap->options) && weft_list_empty(&wrap->leaving)) {
        enum weft_status status = op_hand_over(op);
        if (status == WEFT_OK) { /* a put or get that is complete */
            op->taken_ns = op->begin_ns;
            op->done.status = WEFT_OK;
            record_span(wrap, op);
        } else if (status < 0) { /* a refused operation leaves no record */
            wrap->message_count--;
            if (wrap->trace && status == WEFT_ERR_AGAIN)
                weft_trace_mark(wrap->trace, "again", op->done.peer->id, NULL);
        }
        if (status != WEFT_IN_PROGRESS) {
            wrap_op_free(op);
            return status;
        }
    } else {
        *held_out = true;
        op->due_ns = wrap_due_out(wrap, op->bytes);
        weft_list_append(&wrap->leaving, &op->link);
        core_wake_at(wrap->outer, weft_list_first(&wrap->leaving, struct wrap_op, link)->due_ns);
    }
    wrap->op_count++;
    return WEFT_IN_PROGRESS;
}

enum weft_status wrap_send(struct weft_transport *transport, struct weft_peer *peer,
                           const struct weft_message *message, struct weft_completion *completion)
{
    struct wrap *wrap = wrap_of(transport);
    if (wrap->op_count >= WRAP_HELD_MAX) return WEFT_ERR_AGAIN;
    struct wrap_op *op = wrap_op_new(transport, WRAP_SEND, peer, completion);
    if (!op) return WEFT_ERR_NO_MEMORY;
    op->tag = message->tag;
    op->bytes = message->header_bytes + message->payload_bytes;
    op->message = *message;
    bool held;
    enum weft_status status = wrap_op_start(wrap, op, &held);
    if (status == WEFT_IN_PROGRESS && held) { /* the caller's header is valid during the call only */
        op->message.header = op->header;
        if (message->header_bytes > 0) memcpy(op->header, message->header, message->header_bytes);
    }
    return status;
}

int wrap_send_due(struct wrap *wrap, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&wrap->leaving)) {
        struct wrap_op *op = weft_list_first(&wrap->leaving, struct wrap_op, link);
        struct wrap_peer *peer = op->done.peer->backend;
        if (op->due_ns > weft_now_ns(wrap->outer->env)) break;
        if (wrap->killed || peer->cut) {
            weft_list_remove(&op->link);
            weft_list_append(&peer->vanished, &op->link);
            continue;
        }
        enum weft_status status = op_hand_over(op);
        if (status == WEFT_ERR_AGAIN) {
            op->due_ns = weft_now_ns(wrap->outer->env) + RETRY_NS;
            break;
        }
        weft_list_remove(&op->link);
        if (status != WEFT_IN_PROGRESS) core_finish(wrap->outer, &op->done, status);
        count++;
    }
    return count;
}

/* ---- in ---- */

void wrap_arrived(void *context, struct weft_arrival *inner)
{
    struct wrap *wrap = context;
    struct weft_peer *peer = core_peer_find(wrap->outer, inner->peer_id);
    WEFT_ASSERT(peer && peer->backend); /* the inner transport holds messages until connect */
    struct wrap_arrival *arrival = NULL;
    if (wrap_lets_pass(wrap, peer->backend)) {
        struct weft_list *link = reuse(wrap, &wrap->unused_arrivals);
        arrival = link ? weft_container_of(link, struct wrap_arrival, link)
                       : weft_alloc_bytes(wrap->outer->env, sizeof *arrival);
    }
    if (!arrival) { /* a cut peer, or no memory: the message is lost and a deadline detects it */
        ((struct wrap_peer *)peer->backend)->cut = true;
        weft_list_append(&wrap->sunk, &inner->link);
        return;
    }
    struct weft_arrival *handle = &arrival->core.handle;
    handle->peer_id = inner->peer_id;
    handle->tag = inner->tag;
    handle->payload_bytes = inner->payload_bytes;
    handle->header_bytes = inner->header_bytes;
    memcpy(handle->header, inner->header, inner->header_bytes);
    arrival->core.is_complete = weft_container_of(inner, struct core_arrival, handle)->is_complete;
    arrival->inner = inner;
    arrival->arrived_ns = wrap_trace_now(wrap);
    arrival->due_ns = wrap_due_in(wrap, inner->payload_bytes + inner->header_bytes);
    weft_list_append(&wrap->arriving, &arrival->link);
}

int wrap_deliver_due(struct wrap *wrap, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&wrap->arriving)) {
        struct wrap_arrival *arrival = weft_list_first(&wrap->arriving, struct wrap_arrival, link);
        if (arrival->due_ns > weft_now_ns(wrap->outer->env)) break;
        weft_list_remove(&arrival->link);
        count++;
        core_arrived(wrap->outer, &arrival->core);
    }
    return count;
}

/* Delivers the messages of a peer before the report of its end. */
void wrap_flush_arriving(struct wrap *wrap, const struct weft_peer *peer)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &wrap->arriving) {
        struct wrap_arrival *arrival = weft_container_of(node, struct wrap_arrival, link);
        if (arrival->core.handle.peer_id != peer->id) continue;
        weft_list_remove(node);
        core_arrived(wrap->outer, &arrival->core);
    }
}

enum weft_status wrap_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                             struct weft_completion *completion)
{
    struct wrap *wrap = wrap_of(transport);
    struct wrap_arrival *arrival = weft_container_of(handle, struct wrap_arrival, core.handle);
    struct wrap_op *op = &arrival->op;
    bool posted = wrap->matched_posted_ns != WEFT_NEVER;
    op_init(op, transport, posted ? WRAP_RECV : WRAP_ACCEPT, arrival->core.peer, completion);
    op->done.recycle = recycle_accept;
    op->tag = handle->tag;
    op->bytes = handle->header_bytes + handle->payload_bytes;
    op->taken_ns = op->begin_ns;
    op->begin_ns =
        /* earliest time at which the payload could move */
        posted ? wrap->matched_posted_ns : arrival->arrived_ns;
    wrap->matched_posted_ns = WEFT_NEVER;
    enum weft_status status =
        weft_transport_accept(wrap->inner, arrival->inner, buffer, handle->payload_bytes, &op->inner);
    if (status != WEFT_IN_PROGRESS) { /* the inner transport lost the peer and has not reported it yet */
        weft_transport_discard(wrap->inner, arrival->inner);
        core_finish(transport, &op->done, status);
    }
    return WEFT_IN_PROGRESS;
}

void wrap_discard(struct weft_transport *transport, struct weft_arrival *handle)
{
    struct wrap_arrival *arrival = weft_container_of(handle, struct wrap_arrival, core.handle);
    weft_transport_discard(wrap_of(transport)->inner, arrival->inner);
    arrival_free(wrap_of(transport), arrival);
}

/* The core reports posted receives, which no backend sees. */
void wrap_observe(struct weft_transport *transport, enum core_moment moment, struct weft_receive *receive)
{
    struct wrap *wrap = wrap_of(transport);
    if (!wrap->trace) return;
    uint64_t now_ns = weft_now_ns(transport->env);
    if (moment == CORE_RECEIVE_POSTED) receive->posted_ns = now_ns;
    if (moment == CORE_RECEIVE_MATCHED)
        wrap->matched_posted_ns = receive->posted_ns; /* ops->accept follows at once */
    if (moment != CORE_RECEIVE_ENDED) return;
    wrap->matched_posted_ns = WEFT_NEVER;
    weft_trace_span(wrap->trace, &(struct weft_trace_span){
                                     .name = "recv",
                                     .begin_ns = receive->posted_ns,
                                     .end_ns = now_ns,
                                     .peer_id = receive->peer_id,
                                     .tag = receive->tag,
                                     .bytes = receive->payload_bytes,
                                     .status = (enum weft_status)receive->state,
                                     .queue_ns = weft_elapsed_ns(receive->posted_ns, now_ns),
                                 });
}
