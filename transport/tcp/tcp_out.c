/* tcp_out.c - frames and payloads into a socket.
 *
 * Frames leave in queue order, as many as one system call takes, without copying headers or payloads. What
 * the socket does not take waits, and its payload stays borrowed. The first short frame since the last
 * progress leaves at once; later ones leave with the next progress or before sleeping. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

void tcp_frame_put(struct tcp_peer *tcp_peer, struct tcp_out *out, const struct tcp_frame *frame)
{
    struct tcp_frame reported = *frame;
    reported.taken = (uint32_t)tcp_peer->unreported_taken; /* at most the budget */
    tcp_peer->unreported_taken = 0;
    tcp_frame_encode(&reported, out->frame);
    out->frame_bytes = TCP_FRAME_BYTES + frame->header_bytes;
    out->sent = 0;
}

/* The last byte of a frame is in the socket. */
static void written(struct tcp_peer *tcp_peer, struct tcp_out *out)
{
    struct weft_transport *transport = tcp_peer->endpoint->transport;
    weft_list_remove(&out->link);
    bool leaving = tcp_peer->phase == TCP_PEER_CLOSING;
    switch (out->kind) {
    case TCP_OUT_MESSAGE:
        core_finish(transport, &weft_container_of(out, struct tcp_send, out)->done, WEFT_OK);
        break;
    case TCP_OUT_ANNOUNCE:
        if (leaving)
            core_finish(transport, &weft_container_of(out, struct tcp_send, out)->done, WEFT_ERR_CLOSED);
        else weft_list_append(&tcp_peer->announced, &out->link);
        break;
    case TCP_OUT_DATA: {
        struct tcp_send *send = weft_container_of(out, struct tcp_send, out);
        if (leaving) {
            core_finish(transport, &send->done, WEFT_ERR_CLOSED);
            break;
        }
        if (send->moved == send->payload_bytes) {
            core_finish(transport, &send->done, WEFT_OK);
            break;
        }
        tcp_data_next(send);
        weft_list_append(&tcp_peer->out, &out->link); /* behind what was queued meanwhile */
        break;
    }
    case TCP_OUT_GRANT: break; /* the payload is received next */
    case TCP_OUT_REFUSE: tcp_arrival_release(weft_container_of(out, struct tcp_arrival, out)); break;
    case TCP_OUT_CONTROL:
        /* LEAVE is the last frame */
        if (leaving && out == &tcp_peer->controls[1]) shutdown(tcp_peer->fd, SHUT_WR);
        break;
    }
}

static ssize_t write_some(struct tcp_peer *tcp_peer, size_t *wanted_out)
{
    struct iovec parts[2 * TCP_GATHER];
    struct msghdr message = {.msg_iov = parts};
    struct weft_list *node, *spare;
    *wanted_out = 0;
    weft_list_foreach(node, spare, &tcp_peer->out) {
        struct tcp_out *out = weft_container_of(node, struct tcp_out, link);
        size_t frame_sent = out->sent < out->frame_bytes ? out->sent : out->frame_bytes,
               payload_sent = out->sent - frame_sent;
        if (message.msg_iovlen > 2 * (TCP_GATHER - 1) || *wanted_out >= TCP_GATHER_BYTES) break;
        if (frame_sent < out->frame_bytes)
            parts[message.msg_iovlen++] =
                (struct iovec){out->frame + frame_sent, out->frame_bytes - frame_sent};
        if (payload_sent < out->payload_bytes)
            parts[message.msg_iovlen++] = (struct iovec){(void *)(uintptr_t)(out->payload + payload_sent),
                                                         out->payload_bytes - payload_sent};
        *wanted_out += out->frame_bytes + out->payload_bytes - out->sent;
    }
    tcp_peer->endpoint->traffic.system_calls++;
    return sendmsg(tcp_peer->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void account(struct tcp_peer *tcp_peer, size_t sent)
{
    tcp_peer->writing.has_unacked_bytes = true;
    while (sent > 0) {
        struct tcp_out *out = weft_list_first(&tcp_peer->out, struct tcp_out, link);
        size_t left = out->frame_bytes + out->payload_bytes - out->sent, step = sent < left ? sent : left;
        out->sent += step;
        sent -= step;
        if (step == left) written(tcp_peer, out);
    }
}

void tcp_flush(struct tcp_peer *tcp_peer)
{
    for (int writes = 0; writes < TCP_WRITES && tcp_peer->fd >= 0 && !tcp_peer->writing.write_failed &&
                         !weft_list_empty(&tcp_peer->out);
         writes++) {
        size_t wanted;
        ssize_t sent = write_some(tcp_peer, &wanted);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) break;
        if (sent < 0) { /* data that the peer sent before still counts; reading finds the end */
            tcp_peer->writing.write_failed = true;
            tcp_peer->writing.write_errno = errno;
            shutdown(tcp_peer->fd, SHUT_RDWR);
            return;
        }
        account(tcp_peer, (size_t)sent);
        if ((size_t)sent < wanted) break;
    }
    if (!tcp_polls_directly(tcp_peer->endpoint) && tcp_peer->fd >= 0)
        tcp_set_events(tcp_peer, weft_list_empty(&tcp_peer->out) || tcp_peer->writing.write_failed
                                     ? EPOLLIN
                                     : EPOLLIN | EPOLLOUT);
}

void tcp_out_push(struct tcp_peer *tcp_peer, struct tcp_out *out)
{
    bool first = weft_list_empty(&tcp_peer->out);
    weft_list_append(&tcp_peer->out, &out->link);
    bool long_one = out->payload_bytes >= TCP_LONG_BYTES;
    if (!first && !long_one) return;
    if (tcp_peer->wrote_at == tcp_peer->endpoint->polls && !long_one &&
        tcp_polls_directly(tcp_peer->endpoint))
        return;
    tcp_peer->wrote_at = tcp_peer->endpoint->polls;
    tcp_flush(tcp_peer);
}

void tcp_send_control(struct tcp_peer *tcp_peer, enum tcp_kind kind)
{
    struct tcp_out *control = &tcp_peer->controls[kind == TCP_LEAVE];
    if (!weft_list_empty(&control->link)) return; /* queued already */
    control->kind = TCP_OUT_CONTROL;
    tcp_frame_put(tcp_peer, control, &(struct tcp_frame){.kind = kind});
    tcp_out_push(tcp_peer, control);
}

static void drop(struct tcp_peer *tcp_peer, struct tcp_out *out, enum weft_status status)
{
    weft_list_remove(&out->link);
    switch (out->kind) {
    case TCP_OUT_MESSAGE:
    case TCP_OUT_ANNOUNCE:
    case TCP_OUT_DATA:
        core_finish(tcp_peer->endpoint->transport, &weft_container_of(out, struct tcp_send, out)->done,
                    status);
        break;
    case TCP_OUT_GRANT: break; /* of an accepted arrival, which ends separately */
    case TCP_OUT_REFUSE: tcp_arrival_release(weft_container_of(out, struct tcp_arrival, out)); break;
    case TCP_OUT_CONTROL: break;
    }
}

/* A grant that is partly sent: its record ends with the receive, possibly before the rest of the frame is
 * written. */
static void copy_payload_aside(struct tcp_peer *tcp_peer, struct tcp_out *grant)
{
    struct tcp_out *control = &tcp_peer->controls[0]; /* free to carry the rest: no control frame follows */
    *control = (struct tcp_out){.kind = TCP_OUT_CONTROL,
                             .frame = tcp_peer->control_frames[0],
                             .frame_bytes = grant->frame_bytes,
                             .sent = grant->sent};
    memcpy(control->frame, grant->frame, TCP_FRAME_BYTES);
    weft_list_insert_before(&grant->link, &control->link);
    weft_list_remove(&grant->link);
}

void tcp_out_drop(struct tcp_peer *tcp_peer, enum weft_status status, bool but_begun)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &tcp_peer->out) {
        struct tcp_out *out = weft_container_of(node, struct tcp_out, link);
        if (but_begun && out->sent > 0) continue;
        drop(tcp_peer, out, status);
    }
    if (!weft_list_empty(&tcp_peer->out)) {
        struct tcp_out *begun = weft_list_first(&tcp_peer->out, struct tcp_out, link);
        if (begun->kind == TCP_OUT_GRANT) copy_payload_aside(tcp_peer, begun);
    }
    while (!weft_list_empty(&tcp_peer->announced))
        drop(tcp_peer, weft_list_first(&tcp_peer->announced, struct tcp_out, link), status);
}
