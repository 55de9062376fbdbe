/* tcp_in.c - what comes out of a socket: frames, and payloads straight into their place.
 *
 * One read asks for the rest of the payload that is coming, into the receiver's buffer, and behind it for what follows, into the
 * scratch buffer. A message that lies whole in the scratch buffer is copied out of it at once. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

void tcp_taken(struct tcp_peer *known, uint64_t cost)
{
    if (known->phase != TCP_RUNS) return;
    known->used -= cost;
    known->owed += cost;
    if (known->owed > known->endpoint->tuning.budget / 4) tcp_word(known, TCP_TAKEN);
}

/* ---- payloads ---- */

/* Where the next bytes of the payload go; NULL: nowhere, nobody wants them. */
static uint8_t *place_of(const struct tcp_arrival *arrival)
{
    uint8_t *start = arrival->buffer ? arrival->buffer : arrival->kept;
    return start ? start + arrival->got : NULL;
}

/* So many bytes of the payload are in their place. */
static void placed(struct tcp_peer *known, size_t bytes)
{
    struct tcp_arrival *arrival = known->in.arrival;
    arrival->got += bytes;
    known->in.left -= bytes;
    if (known->in.left > 0) return;
    known->in.arrival = NULL;
    if (arrival->got == arrival->core.face.payload_bytes) tcp_arrival_whole(arrival);
}

/* ---- frames ---- */

static void begin_message(struct tcp_peer *known, const struct tcp_frame *frame, const uint8_t *header, const uint8_t *payload, size_t there)
{
    struct tcp_endpoint *endpoint = known->endpoint;
    struct tcp_arrival *arrival = tcp_arrival_new(known, frame->number, header, frame->header_bytes, frame->bytes);
    if (!arrival) {
        core_peer_lost(endpoint->transport, known->peer, WEFT_ERR_NO_MEMORY, "there is no memory to keep its messages");
        return;
    }
    if (there >= frame->bytes) { /* all of it is here, and nobody has posted a receive */
        if (!tcp_arrival_room(arrival)) {
            tcp_arrival_release(arrival);
            core_peer_lost(endpoint->transport, known->peer, WEFT_ERR_NO_MEMORY, "there is no memory to keep its messages");
            return;
        }
        if (frame->bytes > 0) memcpy(arrival->kept, payload, frame->bytes);
        endpoint->copied_bytes += frame->bytes;
        arrival->got = frame->bytes;
        arrival->core.whole = true;
        core_arrived(endpoint->transport, &arrival->core);
        return;
    }
    known->in.arrival = arrival;
    known->in.left = frame->bytes;
    core_arrived(endpoint->transport, &arrival->core);
    if (known->in.arrival != arrival || arrival->buffer || arrival->discarded) return;
    if (!tcp_arrival_room(arrival))
        core_peer_lost(endpoint->transport, known->peer, WEFT_ERR_NO_MEMORY, "there is no memory to keep its messages");
}

/* Returns the bytes of the payload that are done with. */
static size_t message_came(struct tcp_peer *known, const struct tcp_frame *frame, const uint8_t *header, const uint8_t *payload, size_t there)
{
    struct tcp_endpoint *endpoint = known->endpoint;
    uint64_t cost = tcp_cost(frame->bytes);
    if (known->used + known->owed + cost > endpoint->tuning.budget) {
        tcp_peer_malformed(known, "sent more than it may without being received");
        return 0;
    }
    known->used += cost;
    if (there >= frame->bytes && core_arrived_whole(endpoint->transport, known->peer, frame->number, header, frame->header_bytes, payload, frame->bytes)) {
        endpoint->copied_bytes += frame->bytes;
        tcp_taken(known, cost);
        return frame->bytes;
    }
    begin_message(known, frame, header, payload, there);
    return there >= frame->bytes ? frame->bytes : 0;
}

static void announcement_came(struct tcp_peer *known, const struct tcp_frame *frame, const uint8_t *header)
{
    struct weft_transport *transport = known->endpoint->transport;
    uint64_t number = known->arrival_count++;
    if (known->waiting_count >= TCP_SENDS_MAX) {
        tcp_peer_malformed(known, "announced more than it may");
        return;
    }
    struct tcp_arrival *arrival = tcp_arrival_new(known, frame->number, header, frame->header_bytes, frame->bytes);
    if (!arrival) {
        core_peer_lost(transport, known->peer, WEFT_ERR_NO_MEMORY, "there is no memory to keep its messages");
        return;
    }
    arrival->announced = true;
    arrival->number = number;
    known->waiting_count++;
    core_arrived(transport, &arrival->core);
}

static void data_came(struct tcp_peer *known, const struct tcp_frame *frame)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &known->accepted) {
        struct tcp_arrival *arrival = weft_container_of(node, struct tcp_arrival, link);
        if (arrival->number != frame->number) continue;
        if (!weft_list_empty(&arrival->out.link)) break; /* its grant has not left yet */
        if (frame->bytes > arrival->core.face.payload_bytes - arrival->got) break;
        known->in.arrival = arrival;
        known->in.left = frame->bytes;
        if (frame->bytes == 0) placed(known, 0);
        return;
    }
    tcp_peer_malformed(known, "sent what nobody has asked for");
}

static size_t frame_came(struct tcp_peer *known, const struct tcp_frame *frame, const uint8_t *header, const uint8_t *rest, size_t there)
{
    known->credit += frame->taken;
    if (known->credit > known->credit_max) {
        tcp_peer_malformed(known, "took more than was sent");
        return 0;
    }
    switch (frame->kind) {
    case TCP_MESSAGE: return message_came(known, frame, header, rest, there);
    case TCP_ANNOUNCE: announcement_came(known, frame, header); break;
    case TCP_GRANT: tcp_granted(known, frame->number, false); break;
    case TCP_REFUSE: tcp_granted(known, frame->number, true); break;
    case TCP_DATA: data_came(known, frame); break;
    case TCP_LEAVE: core_peer_left(known->endpoint->transport, known->peer, "it has closed its endpoint"); break;
    case TCP_TAKEN:
    case TCP_KINDS: break;
    }
    return 0;
}

/* ---- bytes ---- */

/* More of a payload that was begun. */
static size_t take_payload(struct tcp_peer *known, const uint8_t *data, size_t bytes)
{
    size_t step = bytes < known->in.left ? bytes : (size_t)known->in.left;
    uint8_t *place = place_of(known->in.arrival);
    if (place) {
        memcpy(place, data, step);
        known->endpoint->copied_bytes += step;
    }
    placed(known, step);
    return step;
}

/* The frame at the front, with its header, from `data` or from what was kept of it. false: not whole yet, and kept; or no frame.
 * *used_out: bytes of `data` that are done with. */
static bool take_head(struct tcp_peer *known, const uint8_t *data, size_t bytes, struct tcp_frame *frame_out, const uint8_t **header_out, size_t *used_out)
{
    struct tcp_in *in = &known->in;
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
    tcp_peer_malformed(known, "sent what is no frame");
    return false;
}

void tcp_take(struct tcp_peer *known, const uint8_t *data, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && known->phase == TCP_RUNS) {
        struct tcp_frame frame;
        const uint8_t *header;
        size_t used;
        if (known->in.left > 0) {
            at += take_payload(known, data + at, bytes - at);
            continue;
        }
        bool whole = take_head(known, data + at, bytes - at, &frame, &header, &used);
        at += used;
        if (!whole) return;
        at += frame_came(known, &frame, header, data + at, bytes - at);
    }
}

/* One read; the bytes that it got, and in *wanted_out how many it asked for. */
static ssize_t read_some(struct tcp_peer *known, size_t *wanted_out)
{
    struct tcp_endpoint *endpoint = known->endpoint;
    struct tcp_in *in = &known->in;
    uint8_t *place = in->left > 0 ? place_of(in->arrival) : NULL;
    endpoint->system_calls++;
    if (!place || known->phase != TCP_RUNS) {
        *wanted_out = TCP_SCRATCH_BYTES;
        return recv(known->fd, endpoint->scratch, TCP_SCRATCH_BYTES, MSG_DONTWAIT);
    }
    struct iovec parts[2] = {{place, (size_t)in->left}, {endpoint->scratch, TCP_SCRATCH_BYTES}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    *wanted_out = (size_t)in->left + TCP_SCRATCH_BYTES;
    ssize_t got = recvmsg(known->fd, &message, MSG_DONTWAIT);
    if (got <= 0) return got;
    size_t first = (size_t)got < in->left ? (size_t)got : (size_t)in->left;
    placed(known, first);
    *wanted_out -= first;
    return got - (ssize_t)first;
}

int tcp_read(struct tcp_peer *known)
{
    int reads = 0;
    while (known->fd >= 0 && reads < TCP_READS) {
        size_t wanted;
        uint64_t left = known->in.left;
        ssize_t got = read_some(known, &wanted);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got < 0 || (got == 0 && left == known->in.left)) {
            tcp_peer_gone(known, got < 0 ? errno : 0);
            return reads + 1;
        }
        reads++;
        if (got > 0) tcp_take(known, known->endpoint->scratch, (size_t)got);
        if ((size_t)got < wanted) break; /* it is empty now */
    }
    return reads;
}

void tcp_in_drop(struct tcp_peer *known, enum weft_status status)
{
    struct weft_transport *transport = known->endpoint->transport;
    struct tcp_arrival *coming = known->in.arrival;
    known->in = (struct tcp_in){0};
    if (coming && !coming->announced) {
        if (coming->discarded) tcp_arrival_release(coming);
        else if (coming->accepted) core_finish(transport, &coming->done, status);
    }
    while (!weft_list_empty(&known->accepted)) {
        struct tcp_arrival *arrival = weft_list_first(&known->accepted, struct tcp_arrival, link);
        weft_list_remove(&arrival->link);
        core_finish(transport, &arrival->done, status);
    }
}
