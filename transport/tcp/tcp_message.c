/* tcp_message.c - send, accept and discard.
 *
 *   send     small: the payload follows its frame, complete when sent. Large: announced, sent after the grant
 *   receive  small: into the posted receive, or stored. Large: into the buffer named with the grant */
#include <string.h>

#include "transport/tcp/tcp.h"

/* ---- records ---- */

static void *record_take(struct tcp_endpoint *endpoint, void **list, size_t bytes)
{
    void *record = *list;
    if (record) {
        *list = *(void **)record;
        return record;
    }
    record = weft_alloc_bytes(endpoint->transport->env, bytes);
    if (record) endpoint->record_bytes += bytes;
    return record;
}

static void record_give(void **list, void *record)
{
    *(void **)record = *list;
    *list = record;
}

static void list_free(struct tcp_endpoint *endpoint, void **list)
{
    while (*list) {
        void *record = *list;
        *list = *(void **)record;
        weft_free_bytes(endpoint->transport->env, record);
    }
}

void tcp_records_free(struct tcp_endpoint *endpoint)
{
    list_free(endpoint, &endpoint->free_sends);
    list_free(endpoint, &endpoint->free_arrivals);
    list_free(endpoint, &endpoint->free_bounces);
}

static void send_give(struct tcp_send *send)
{
    send->tcp_peer->endpoint->send_count--;
    record_give(&send->tcp_peer->endpoint->free_sends, send);
}

static void send_recycle(struct weft_transport *transport, struct core_done *done)
{
    send_give(weft_container_of(done, struct tcp_send, done));
}

static struct tcp_send *send_new(struct tcp_peer *tcp_peer, struct weft_completion *completion)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    struct tcp_send *send = record_take(endpoint, &endpoint->free_sends, sizeof *send);
    if (!send) return NULL;
    endpoint->send_count++;
    send->done =
        (struct core_done){.peer = tcp_peer->peer, .completion = completion, .recycle = send_recycle};
    send->tcp_peer = tcp_peer;
    send->out.frame = send->frame;
    weft_list_init(&send->out.link);
    return send;
}

struct tcp_arrival *tcp_arrival_new(struct tcp_peer *tcp_peer, uint64_t tag, const void *header,
                                    uint32_t header_bytes, uint64_t payload_bytes)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    struct tcp_arrival *arrival = record_take(endpoint, &endpoint->free_arrivals, sizeof *arrival);
    if (!arrival) return NULL;
    arrival->tcp_peer = tcp_peer;
    arrival->announced = arrival->accepted = arrival->discarded = false;
    arrival->number = arrival->got = arrival->kept_bytes = 0;
    arrival->buffer = arrival->kept = NULL;
    arrival->sender = NULL;
    arrival->out.frame = arrival->frame;
    weft_list_init(&arrival->link);
    weft_list_init(&arrival->out.link);
    struct weft_arrival *handle = &arrival->core.handle;
    arrival->core.is_complete = false;
    handle->peer_id = tcp_peer->peer->id;
    handle->tag = tag;
    handle->payload_bytes = payload_bytes;
    handle->header_bytes = header_bytes;
    if (header_bytes > 0) memcpy(handle->header, header, header_bytes);
    return arrival;
}

/* Allocates storage for the payload. Large buffers have one size and are reused: a fresh one faults on
 * every page. */
bool tcp_arrival_alloc(struct tcp_arrival *arrival)
{
    struct tcp_endpoint *endpoint = arrival->tcp_peer->endpoint;
    size_t bytes = arrival->core.handle.payload_bytes, large = endpoint->transport->eager_bytes_max;
    if (bytes <= TCP_SMALL_BYTES) {
        arrival->kept = arrival->small;
        return true;
    }
    bool pooled = bytes > large / 4 && bytes <= large;
    arrival->kept_bytes = pooled ? large : bytes;
    if (pooled && endpoint->free_bounces) {
        arrival->kept = endpoint->free_bounces;
        endpoint->free_bounces = *(void **)endpoint->free_bounces;
        endpoint->bounce_bytes -= large;
    } else {
        arrival->kept = weft_alloc_bytes(endpoint->transport->env, arrival->kept_bytes);
    }
    return arrival->kept != NULL;
}

static void room_give(struct tcp_arrival *arrival)
{
    struct tcp_endpoint *endpoint = arrival->tcp_peer->endpoint;
    size_t large = endpoint->transport->eager_bytes_max;
    if (arrival->kept && arrival->kept != arrival->small) {
        if (arrival->kept_bytes == large && endpoint->bounce_bytes + large <= TCP_KEPT_BYTES_MAX) {
            record_give(&endpoint->free_bounces, arrival->kept);
            endpoint->bounce_bytes += large;
        } else {
            weft_free_bytes(endpoint->transport->env, arrival->kept);
        }
    }
    arrival->kept = NULL;
}

void tcp_arrival_release(struct tcp_arrival *arrival)
{
    WEFT_ASSERT(weft_list_empty(&arrival->out.link));
    room_give(arrival);
    record_give(&arrival->tcp_peer->endpoint->free_arrivals, arrival);
}

static void arrival_recycle(struct weft_transport *transport, struct core_done *done)
{
    tcp_arrival_release(weft_container_of(done, struct tcp_arrival, done));
}

/* ---- send ---- */

static bool takes_eager(const struct tcp_peer *tcp_peer, size_t payload_bytes)
{
    return payload_bytes <= tcp_peer->endpoint->transport->eager_bytes_max &&
           tcp_cost(payload_bytes) <= tcp_peer->credit;
}

static enum weft_status self_send(struct tcp_peer *tcp_peer, const struct weft_message *message,
                                  struct weft_completion *completion);

enum weft_status tcp_send_message(struct weft_transport *transport, struct weft_peer *peer,
                                  const struct weft_message *message, struct weft_completion *completion)
{
    struct tcp_endpoint *endpoint = transport->backend;
    struct tcp_peer *tcp_peer = peer->backend;
    if (endpoint->send_count >= TCP_SENDS_MAX) return WEFT_ERR_AGAIN;
    if (message->payload_bytes > TCP_PAYLOAD_BYTES_MAX) return WEFT_ERR_INVALID;
    if (tcp_is_self(tcp_peer)) return self_send(tcp_peer, message, completion);
    if (tcp_peer->phase > TCP_PEER_OPEN) return WEFT_ERR_PEER_LOST;
    struct tcp_send *send = send_new(tcp_peer, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    struct tcp_out *out = &send->out;
    struct tcp_frame frame = {.kind = TCP_MESSAGE,
                              .header_bytes = message->header_bytes,
                              .number = message->tag,
                              .bytes = message->payload_bytes};
    out->payload = message->payload;
    out->payload_bytes = message->payload_bytes;
    out->kind = TCP_OUT_MESSAGE;
    if (takes_eager(tcp_peer, message->payload_bytes)) {
        tcp_peer->credit -= tcp_cost(message->payload_bytes);
    } else {
        frame.kind = TCP_ANNOUNCE;
        out->kind = TCP_OUT_ANNOUNCE;
        out->payload_bytes = 0;
        send->number = tcp_peer->announce_count++;
        send->payload = message->payload;
        send->payload_bytes = message->payload_bytes;
        send->moved = 0;
    }
    tcp_frame_put(tcp_peer, out, &frame);
    if (message->header_bytes > 0)
        memcpy(out->frame + TCP_FRAME_BYTES, message->header, message->header_bytes);
    tcp_out_push(tcp_peer, out);
    return WEFT_IN_PROGRESS;
}

void tcp_data_next(struct tcp_send *send)
{
    size_t left = send->payload_bytes - send->moved, step = left < TCP_PIECE_BYTES ? left : TCP_PIECE_BYTES;
    struct tcp_out *out = &send->out;
    out->kind = TCP_OUT_DATA;
    out->payload = step > 0 ? send->payload + send->moved : NULL;
    out->payload_bytes = step;
    send->moved += step;
    tcp_frame_put(send->tcp_peer, out,
                  &(struct tcp_frame){.kind = TCP_DATA, .number = send->number, .bytes = step});
}

void tcp_on_grant(struct tcp_peer *tcp_peer, uint64_t number, bool refused)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &tcp_peer->announced) {
        struct tcp_send *send =
            weft_container_of(weft_container_of(node, struct tcp_out, link), struct tcp_send, out);
        if (send->number != number) continue;
        weft_list_remove(node);
        if (refused) {
            core_finish(tcp_peer->endpoint->transport, &send->done, WEFT_OK);
            return;
        }
        tcp_data_next(send);
        tcp_out_push(tcp_peer, &send->out);
        return;
    }
    tcp_peer_fail_malformed(tcp_peer, "granted what was not announced");
}

/* ---- receive ---- */

static struct tcp_arrival *arrival_of(struct weft_arrival *handle)
{
    return weft_container_of(handle, struct tcp_arrival, core.handle);
}

static void answer(struct tcp_arrival *arrival, enum tcp_kind kind)
{
    struct tcp_peer *tcp_peer = arrival->tcp_peer;
    tcp_peer->waiting_count--;
    arrival->out.kind = kind == TCP_GRANT ? TCP_OUT_GRANT : TCP_OUT_REFUSE;
    arrival->out.payload_bytes = 0;
    tcp_frame_put(tcp_peer, &arrival->out, &(struct tcp_frame){.kind = kind, .number = arrival->number});
    tcp_out_push(tcp_peer, &arrival->out);
}

static void deliver_kept(struct tcp_arrival *arrival)
{
    if (arrival->got > 0 && arrival->kept) {
        memcpy(arrival->buffer, arrival->kept, arrival->got);
        arrival->tcp_peer->endpoint->traffic.copied_bytes += arrival->got;
    }
    room_give(arrival);
}

static void self_accept(struct tcp_arrival *arrival, void *buffer);

enum weft_status tcp_accept(struct weft_transport *transport, struct weft_arrival *handle, void *buffer,
                            struct weft_completion *completion)
{
    struct tcp_arrival *arrival = arrival_of(handle);
    struct tcp_peer *tcp_peer = arrival->tcp_peer;
    arrival->done =
        (struct core_done){.peer = arrival->core.peer, .completion = completion, .recycle = arrival_recycle};
    arrival->accepted = true;
    arrival->buffer = buffer;
    if (!arrival->announced) {
        deliver_kept(arrival);
        /* the rest is read into the buffer directly */
        if (arrival->got < handle->payload_bytes) return WEFT_IN_PROGRESS;
        tcp_budget_return(tcp_peer, tcp_cost(handle->payload_bytes));
        core_finish(transport, &arrival->done, WEFT_OK);
    } else if (tcp_is_self(tcp_peer)) {
        self_accept(arrival, buffer);
    } else if (tcp_peer->phase != TCP_PEER_OPEN) {
        core_finish(transport, &arrival->done, WEFT_ERR_PEER_LOST);
    } else {
        weft_list_append(&tcp_peer->accepted, &arrival->link);
        answer(arrival, TCP_GRANT);
    }
    return WEFT_IN_PROGRESS;
}

void tcp_arrival_complete(struct tcp_arrival *arrival)
{
    struct tcp_peer *tcp_peer = arrival->tcp_peer;
    weft_list_remove(&arrival->link);
    arrival->core.is_complete = true;
    if (!arrival->accepted && !arrival->discarded) return; /* still held by the core */
    if (!arrival->announced) tcp_budget_return(tcp_peer, tcp_cost(arrival->core.handle.payload_bytes));
    if (arrival->discarded) tcp_arrival_release(arrival);
    else core_finish(tcp_peer->endpoint->transport, &arrival->done, WEFT_OK);
}

void tcp_discard(struct weft_transport *transport, struct weft_arrival *handle)
{
    struct tcp_arrival *arrival = arrival_of(handle);
    struct tcp_peer *tcp_peer = arrival->tcp_peer;
    arrival->discarded = true;
    if (arrival->announced && arrival->sender) { /* a message to itself */
        core_finish(transport, &arrival->sender->done, WEFT_OK);
        tcp_arrival_release(arrival);
    } else if (arrival->announced && tcp_peer->phase == TCP_PEER_OPEN) {
        answer(arrival, TCP_REFUSE);
    } else if (tcp_peer->in.arrival == arrival) { /* still being received: dropped */
        room_give(arrival);
    } else {
        if (!arrival->announced) tcp_budget_return(tcp_peer, tcp_cost(handle->payload_bytes));
        tcp_arrival_release(arrival);
    }
}

/* ---- messages to itself ---- */

static enum weft_status self_send(struct tcp_peer *tcp_peer, const struct weft_message *message,
                                  struct weft_completion *completion)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    struct tcp_send *send = send_new(tcp_peer, completion);
    if (!send) return WEFT_ERR_NO_MEMORY;
    struct tcp_arrival *arrival = tcp_arrival_new(tcp_peer, message->tag, message->header,
                                                  message->header_bytes, message->payload_bytes);
    if (arrival) arrival->announced = message->payload_bytes > endpoint->transport->eager_bytes_max;
    if (!arrival || (!arrival->announced && !tcp_arrival_alloc(arrival))) {
        if (arrival) tcp_arrival_release(arrival);
        send_give(send);
        return WEFT_ERR_NO_MEMORY;
    }
    send->payload = message->payload;
    if (arrival->announced) {
        arrival->sender = send;
    } else {
        if (message->payload_bytes > 0) memcpy(arrival->kept, message->payload, message->payload_bytes);
        endpoint->traffic.copied_bytes += message->payload_bytes;
        arrival->got = message->payload_bytes;
        arrival->core.is_complete = true;
        core_finish(endpoint->transport, &send->done, WEFT_OK);
    }
    weft_list_append(&endpoint->self_arrivals, &arrival->link);
    return WEFT_IN_PROGRESS;
}

int tcp_self_progress(struct tcp_endpoint *endpoint, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&endpoint->self_arrivals)) {
        struct tcp_arrival *arrival = weft_list_first(&endpoint->self_arrivals, struct tcp_arrival, link);
        weft_list_remove(&arrival->link);
        core_arrived(endpoint->transport, &arrival->core);
        count++;
    }
    return count;
}

static void self_accept(struct tcp_arrival *arrival, void *buffer)
{
    struct tcp_endpoint *endpoint = arrival->tcp_peer->endpoint;
    memcpy(buffer, arrival->sender->payload, arrival->core.handle.payload_bytes);
    endpoint->traffic.copied_bytes += arrival->core.handle.payload_bytes;
    core_finish(endpoint->transport, &arrival->sender->done, WEFT_OK);
    core_finish(endpoint->transport, &arrival->done, WEFT_OK);
}
