/* tcp_in.c - frames and payloads out of a socket.
 *
 * One read takes the rest of the current payload into the receiver's buffer, and what follows into the
 * scratch buffer. A message that lies completely in the scratch buffer is copied from there at once. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

void tcp_budget_return(struct tcp_peer *tcp_peer, uint64_t cost)
{
    if (tcp_peer->phase != TCP_PEER_OPEN) return;
    tcp_peer->used -= cost;
    tcp_peer->unreported_taken += cost;
    if (tcp_peer->unreported_taken > tcp_peer->endpoint->tuning.budget / 4)
        tcp_send_control(tcp_peer, TCP_TAKEN);
}

/* ---- payloads ---- */

/* Destination of the next payload bytes; NULL: discarded. */
static uint8_t *place_of(const struct tcp_arrival *arrival)
{
    uint8_t *start = arrival->buffer ? arrival->buffer : arrival->kept;
    return start ? start + arrival->got : NULL;
}

/* Accounts payload bytes that are in place. */
static void payload_placed(struct tcp_peer *tcp_peer, size_t bytes)
{
    struct tcp_arrival *arrival = tcp_peer->in.arrival;
    arrival->got += bytes;
    tcp_peer->in.left -= bytes;
    if (tcp_peer->in.left > 0) return;
    tcp_peer->in.arrival = NULL;
    if (arrival->got == arrival->core.handle.payload_bytes) tcp_arrival_complete(arrival);
}

/* ---- frames ---- */

static void begin_message(struct tcp_peer *tcp_peer, const struct tcp_frame *frame, const uint8_t *header,
                          const uint8_t *payload, size_t there)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    struct tcp_arrival *arrival =
        tcp_arrival_new(tcp_peer, frame->number, header, frame->header_bytes, frame->bytes);
    if (!arrival) {
        core_peer_lost(endpoint->transport, tcp_peer->peer, WEFT_ERR_NO_MEMORY,
                       "there is no memory to keep its messages");
        return;
    }
    if (there >= frame->bytes) { /* complete in the buffer, and no receive is posted */
        if (!tcp_arrival_alloc(arrival)) {
            tcp_arrival_release(arrival);
            core_peer_lost(endpoint->transport, tcp_peer->peer, WEFT_ERR_NO_MEMORY,
                           "there is no memory to keep its messages");
            return;
        }
        if (frame->bytes > 0) memcpy(arrival->kept, payload, frame->bytes);
        endpoint->traffic.copied_bytes += frame->bytes;
        arrival->got = frame->bytes;
        arrival->core.is_complete = true;
        core_arrived(endpoint->transport, &arrival->core);
        return;
    }
    tcp_peer->in.arrival = arrival;
    tcp_peer->in.left = frame->bytes;
    core_arrived(endpoint->transport, &arrival->core);
    if (tcp_peer->in.arrival != arrival || arrival->buffer || arrival->discarded) return;
    if (!tcp_arrival_alloc(arrival))
        core_peer_lost(endpoint->transport, tcp_peer->peer, WEFT_ERR_NO_MEMORY,
                       "there is no memory to keep its messages");
}

/* Returns the payload bytes consumed. */
static size_t on_message_frame(struct tcp_peer *tcp_peer, const struct tcp_frame *frame,
                               const uint8_t *header, const uint8_t *payload, size_t there)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    uint64_t cost = tcp_cost(frame->bytes);
    if (tcp_peer->used + tcp_peer->unreported_taken + cost > endpoint->tuning.budget) {
        tcp_peer_fail_malformed(tcp_peer, "sent more than it may without being received");
        return 0;
    }
    tcp_peer->used += cost;
    if (there >= frame->bytes && core_arrived_complete(endpoint->transport, tcp_peer->peer, frame->number,
                                                       header, frame->header_bytes, payload, frame->bytes)) {
        endpoint->traffic.copied_bytes += frame->bytes;
        tcp_budget_return(tcp_peer, cost);
        return frame->bytes;
    }
    begin_message(tcp_peer, frame, header, payload, there);
    return there >= frame->bytes ? frame->bytes : 0;
}

static void on_announcement(struct tcp_peer *tcp_peer, const struct tcp_frame *frame, const uint8_t *header)
{
    struct weft_transport *transport = tcp_peer->endpoint->transport;
    uint64_t number = tcp_peer->arrival_count++;
    if (tcp_peer->waiting_count >= TCP_SENDS_MAX) {
        tcp_peer_fail_malformed(tcp_peer, "announced more than it may");
        return;
    }
    struct tcp_arrival *arrival =
        tcp_arrival_new(tcp_peer, frame->number, header, frame->header_bytes, frame->bytes);
    if (!arrival) {
        core_peer_lost(transport, tcp_peer->peer, WEFT_ERR_NO_MEMORY,
                       "there is no memory to keep its messages");
        return;
    }
    arrival->announced = true;
    arrival->number = number;
    tcp_peer->waiting_count++;
    core_arrived(transport, &arrival->core);
}

static void on_data(struct tcp_peer *tcp_peer, const struct tcp_frame *frame)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &tcp_peer->accepted) {
        struct tcp_arrival *arrival = weft_container_of(node, struct tcp_arrival, link);
        if (arrival->number != frame->number) continue;
        if (!weft_list_empty(&arrival->out.link)) break; /* the grant was not sent yet */
        if (frame->bytes > arrival->core.handle.payload_bytes - arrival->got) break;
        tcp_peer->in.arrival = arrival;
        tcp_peer->in.left = frame->bytes;
        if (frame->bytes == 0) payload_placed(tcp_peer, 0);
        return;
    }
    tcp_peer_fail_malformed(tcp_peer, "sent data that was not requested");
}

static size_t on_frame(struct tcp_peer *tcp_peer, const struct tcp_frame *frame, const uint8_t *header,
                       const uint8_t *rest, size_t there)
{
    tcp_peer->credit += frame->taken;
    if (tcp_peer->credit > tcp_peer->credit_max) {
        tcp_peer_fail_malformed(tcp_peer, "took more than was sent");
        return 0;
    }
    switch (frame->kind) {
    case TCP_MESSAGE: return on_message_frame(tcp_peer, frame, header, rest, there);
    case TCP_ANNOUNCE: on_announcement(tcp_peer, frame, header); break;
    case TCP_GRANT: tcp_on_grant(tcp_peer, frame->number, false); break;
    case TCP_REFUSE: tcp_on_grant(tcp_peer, frame->number, true); break;
    case TCP_DATA: on_data(tcp_peer, frame); break;
    case TCP_LEAVE:
        core_peer_left(tcp_peer->endpoint->transport, tcp_peer->peer, "it has closed its endpoint");
        break;
    case TCP_TAKEN:
    case TCP_KINDS: break;
    }
    return 0;
}

/* ---- bytes ---- */

/* Continues the current payload. */
static size_t take_payload(struct tcp_peer *tcp_peer, const uint8_t *data, size_t bytes)
{
    size_t step = bytes < tcp_peer->in.left ? bytes : (size_t)tcp_peer->in.left;
    uint8_t *place = place_of(tcp_peer->in.arrival);
    if (place) {
        memcpy(place, data, step);
        tcp_peer->endpoint->traffic.copied_bytes += step;
    }
    payload_placed(tcp_peer, step);
    return step;
}

/* Parses the frame with its header from `data` or from the stored start of it. False: incomplete and
 * stored, or malformed. *used_out: bytes of `data` consumed. */
static bool take_head(struct tcp_peer *tcp_peer, const uint8_t *data, size_t bytes,
                      struct tcp_frame *frame_out, const uint8_t **header_out, size_t *used_out)
{
    struct tcp_in *in = &tcp_peer->in;
    *used_out = 0;
    if (in->head_bytes == 0 && bytes >= TCP_FRAME_BYTES) {
        if (!tcp_frame_decode(data, frame_out)) goto malformed;
        *header_out = data + TCP_FRAME_BYTES;
        *used_out = TCP_FRAME_BYTES + frame_out->header_bytes;
        if (bytes >= *used_out) return true;
        *used_out = 0;
    }
    for (size_t need = TCP_FRAME_BYTES;; need = TCP_FRAME_BYTES + frame_out->header_bytes) {
        if (in->head_bytes < need) {
            size_t lack = need - in->head_bytes, step = bytes - *used_out < lack ? bytes - *used_out : lack;
            memcpy(in->head + in->head_bytes, data + *used_out, step);
            in->head_bytes += (uint32_t)step;
            *used_out += step;
            if (step < lack) return false;
        }
        if (need == TCP_FRAME_BYTES) {
            if (!tcp_frame_decode(in->head, frame_out)) goto malformed;
            if (frame_out->header_bytes > 0) continue;
        }
        *header_out = in->head + TCP_FRAME_BYTES;
        in->head_bytes = 0;
        return true;
    }
malformed:
    tcp_peer_fail_malformed(tcp_peer, "sent what is no frame");
    return false;
}

void tcp_consume(struct tcp_peer *tcp_peer, const uint8_t *data, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && tcp_peer->phase == TCP_PEER_OPEN) {
        struct tcp_frame frame;
        const uint8_t *header;
        size_t used;
        if (tcp_peer->in.left > 0) {
            at += take_payload(tcp_peer, data + at, bytes - at);
            continue;
        }
        bool whole = take_head(tcp_peer, data + at, bytes - at, &frame, &header, &used);
        at += used;
        if (!whole) return;
        at += on_frame(tcp_peer, &frame, header, data + at, bytes - at);
    }
}

/* One read; returns the bytes read. *wanted_out: bytes requested. */
static ssize_t read_some(struct tcp_peer *tcp_peer, size_t *wanted_out)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    struct tcp_in *in = &tcp_peer->in;
    uint8_t *place = in->left > 0 ? place_of(in->arrival) : NULL;
    endpoint->traffic.system_calls++;
    if (!place || tcp_peer->phase != TCP_PEER_OPEN) {
        *wanted_out = TCP_SCRATCH_BYTES;
        return recv(tcp_peer->fd, endpoint->scratch, TCP_SCRATCH_BYTES, MSG_DONTWAIT);
    }
    struct iovec parts[2] = {{place, (size_t)in->left}, {endpoint->scratch, TCP_SCRATCH_BYTES}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    *wanted_out = (size_t)in->left + TCP_SCRATCH_BYTES;
    ssize_t got = recvmsg(tcp_peer->fd, &message, MSG_DONTWAIT);
    if (got <= 0) return got;
    size_t first = (size_t)got < in->left ? (size_t)got : (size_t)in->left;
    payload_placed(tcp_peer, first);
    *wanted_out -= first;
    return got - (ssize_t)first;
}

int tcp_read(struct tcp_peer *tcp_peer)
{
    int reads = 0;
    while (tcp_peer->fd >= 0 && reads < TCP_READS) {
        size_t wanted;
        uint64_t left = tcp_peer->in.left;
        ssize_t got = read_some(tcp_peer, &wanted);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got < 0 || (got == 0 && left == tcp_peer->in.left)) {
            tcp_peer_on_socket_end(tcp_peer, got < 0 ? errno : 0);
            return reads + 1;
        }
        reads++;
        if (got > 0) tcp_consume(tcp_peer, tcp_peer->endpoint->scratch, (size_t)got);
        if ((size_t)got < wanted) break; /* the socket is empty */
        /* no receive is posted for the payload: what follows may wait in the socket until one is */
        if (tcp_peer->in.arrival && tcp_peer->in.arrival->kept && tcp_peer->in.left > TCP_LONG_BYTES) break;
    }
    return reads;
}

void tcp_in_drop(struct tcp_peer *tcp_peer, enum weft_status status)
{
    struct weft_transport *transport = tcp_peer->endpoint->transport;
    struct tcp_arrival *coming = tcp_peer->in.arrival;
    tcp_peer->in = (struct tcp_in){0};
    if (coming && !coming->announced) {
        if (coming->discarded) tcp_arrival_release(coming);
        else if (coming->accepted) core_finish(transport, &coming->done, status);
    }
    while (!weft_list_empty(&tcp_peer->accepted)) {
        struct tcp_arrival *arrival = weft_list_first(&tcp_peer->accepted, struct tcp_arrival, link);
        weft_list_remove(&arrival->link);
        core_finish(transport, &arrival->done, status);
    }
}
