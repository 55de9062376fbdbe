/* tcp_peer.c - one peer: connect and end.
 *
 *   weft_transport_close ─ LEAVE, then no more writes ─► (the peer closes, or a second has passed) ─► ended
 *   LEAVE received ─ core_peer_left ─► disconnect ─► ended
 *   socket ended without LEAVE ─ core_peer_lost ─► disconnect ─► ended
 *
 * The closing side reads until the peer has closed. If it closed a socket with unread input, the kernel
 * would discard what the peer has not read yet. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp/tcp.h"

#define END_PATIENCE_NS WEFT_SECONDS(1)
enum { KEEP_PROBES_MAX = 4 };

/* ---- connect ---- */

/* The kernel probes an idle connection; tcp_progress.c watches a busy one. TCP_USER_TIMEOUT is unsuitable:
 * it also ends the connection to a living process that does not read. */
static void set_liveness(const struct tcp_peer *tcp_peer)
{
    int seconds = (int)(tcp_peer->endpoint->tuning.lost_ns / WEFT_SECONDS(1));
    int interval = seconds / (KEEP_PROBES_MAX + 1) > 0 ? seconds / (KEEP_PROBES_MAX + 1) : 1,
        probes = seconds / interval - 1;
    unsigned none = 0;
    setsockopt(tcp_peer->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &none, sizeof none);
    setsockopt(tcp_peer->fd, IPPROTO_TCP, TCP_KEEPIDLE, &interval, sizeof interval);
    setsockopt(tcp_peer->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(tcp_peer->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static bool adopt(struct tcp_peer *tcp_peer, int fd)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tcp_peer};
    if (epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return false;
    }
    tcp_peer->fd = fd;
    tcp_peer->interest = EPOLLIN;
    tcp_peer->phase = TCP_PEER_OPEN;
    endpoint->connecting_count--;
    endpoint->open_count++;
    weft_list_append(&endpoint->open, &tcp_peer->open);
    set_liveness(tcp_peer);
    tcp_sockets_changed(endpoint);
    return true;
}

static void connected(void *owner, struct bootstrap_peer *link, const void *parameters, size_t bytes,
                      int *descriptors, uint32_t count)
{
    struct tcp_peer *tcp_peer = owner;
    struct weft_transport *transport = tcp_peer->endpoint->transport;
    const void *rest;
    size_t rest_bytes;
    uint32_t budget;
    enum weft_status status = tcp_parameters_decode(parameters, bytes, &budget);
    if (status < 0) {
        core_peer_lost(transport, tcp_peer->peer, status, "its parameters are not those of this backend");
        return;
    }
    int fd = bootstrap_detach_socket(link, &rest, &rest_bytes);
    if (fd < 0 || !adopt(tcp_peer, fd)) {
        core_peer_lost(transport, tcp_peer->peer, WEFT_ERR_NO_MEMORY, "no memory for its connection");
        return;
    }
    tcp_peer->credit += budget - tcp_peer->credit_max;
    tcp_peer->credit_max = budget;
    tcp_flush(tcp_peer);
    tcp_consume(tcp_peer, rest, rest_bytes);
}

static void disconnected(void *owner, struct bootstrap_peer *link, enum weft_status status, const char *text)
{
    struct tcp_peer *tcp_peer = owner;
    struct weft_transport *transport = tcp_peer->endpoint->transport;
    if (transport->closed) tcp_peer_end(tcp_peer, WEFT_ERR_CLOSED);
    else core_peer_lost(transport, tcp_peer->peer, status < 0 ? status : WEFT_ERR_PEER_LOST, text);
}

const struct bootstrap_callbacks tcp_callbacks = {.connected = connected, .disconnected = disconnected};

enum weft_status tcp_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob,
                             size_t bytes)
{
    struct tcp_endpoint *endpoint = transport->backend;
    const void *address;
    size_t address_bytes;
    uint8_t parameters[TCP_PARAMETER_BYTES];
    WEFT_TRY(address_blob_decode(tcp_address_blob_kind, blob, bytes, core_nonce_hash(transport->nonce),
                                 peer->id, &address, &address_bytes));
    struct tcp_peer *tcp_peer = weft_alloc_zero(transport->env, sizeof *tcp_peer);
    if (!tcp_peer) return WEFT_ERR_NO_MEMORY;
    tcp_peer->endpoint = endpoint;
    tcp_peer->peer = peer;
    tcp_peer->fd = -1;
    tcp_peer->phase = TCP_PEER_CONNECTING;
    tcp_peer->credit = tcp_peer->credit_max = TCP_BUDGET_MIN;
    tcp_peer->controls[0].frame = tcp_peer->control_frames[0];
    tcp_peer->controls[1].frame = tcp_peer->control_frames[1];
    for (int i = 0; i < 2; i++) weft_list_init(&tcp_peer->controls[i].link);
    weft_list_init(&tcp_peer->open);
    weft_list_init(&tcp_peer->out);
    weft_list_init(&tcp_peer->announced);
    weft_list_init(&tcp_peer->accepted);
    weft_list_append(&endpoint->peers, &tcp_peer->of_endpoint);
    if (peer->id == transport->id) {
        tcp_peer->phase = TCP_PEER_ENDED; /* to itself: no socket */
        peer->backend = tcp_peer;
        return WEFT_OK;
    }
    tcp_parameters_encode(endpoint->tuning.budget, parameters);
    enum weft_status status =
        bootstrap_connect(endpoint->bootstrap, peer->id, address, address_bytes, parameters,
                          sizeof parameters, NULL, 0, tcp_peer, &tcp_peer->link);
    if (status < 0) {
        tcp_peer->phase = TCP_PEER_ENDED;
        tcp_peer_free(tcp_peer);
        return status;
    }
    endpoint->connecting_count++;
    peer->backend = tcp_peer;
    return WEFT_OK;
}

void tcp_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes)
{
    const struct tcp_peer *tcp_peer = peer->backend;
    const char *state = !tcp_peer || tcp_is_self(tcp_peer)       ? "self"
                        : tcp_peer->phase == TCP_PEER_CONNECTING ? "socket, not connected yet"
                                                                 : "socket";
    snprintf(out, bytes, "tcp %s", state);
}

/* ---- the end ---- */

void tcp_peer_on_socket_end(struct tcp_peer *tcp_peer, int reason)
{
    struct weft_transport *transport = tcp_peer->endpoint->transport;
    if (reason == 0) reason = tcp_peer->writing.write_errno;
    if (transport->closed) tcp_peer_end(tcp_peer, WEFT_ERR_CLOSED);
    else
        core_peer_lost(transport, tcp_peer->peer, WEFT_ERR_PEER_LOST,
                       reason ? strerror(reason) : "closed the connection or ended");
}

void tcp_peer_fail_malformed(struct tcp_peer *tcp_peer, const char *text)
{
    struct weft_transport *transport = tcp_peer->endpoint->transport;
    core_count_refused(transport);
    core_peer_lost(transport, tcp_peer->peer, WEFT_ERR_MALFORMED, text);
}

static void close_socket(struct tcp_peer *tcp_peer)
{
    struct tcp_endpoint *endpoint = tcp_peer->endpoint;
    if (tcp_peer->fd < 0) return;
    /* a copy of the descriptor in a child process would keep it in epoll */
    epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL, tcp_peer->fd, NULL);
    close(tcp_peer->fd);
    tcp_peer->fd = -1;
    weft_list_remove(&tcp_peer->open);
    endpoint->open_count--;
    tcp_sockets_changed(endpoint);
}

void tcp_peer_end(struct tcp_peer *tcp_peer, enum weft_status status)
{
    if (tcp_peer->phase == TCP_PEER_ENDED) return;
    if (tcp_peer->phase == TCP_PEER_CONNECTING) tcp_peer->endpoint->connecting_count--;
    if (tcp_peer->phase == TCP_PEER_CLOSING) tcp_peer->endpoint->leaving_count--;
    tcp_peer->phase = TCP_PEER_ENDED;
    if (tcp_peer->link) bootstrap_forget(tcp_peer->link);
    tcp_peer->link = NULL;
    close_socket(tcp_peer);
    tcp_out_drop(tcp_peer, status, false);
    tcp_in_drop(tcp_peer, status);
}

void tcp_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct tcp_peer *tcp_peer = peer->backend;
    if (tcp_peer) tcp_peer_end(tcp_peer, status);
}

void tcp_peer_leave(struct tcp_peer *tcp_peer)
{
    if (tcp_peer->phase == TCP_PEER_CONNECTING) tcp_peer_end(tcp_peer, WEFT_ERR_CLOSED);
    if (tcp_peer->phase != TCP_PEER_OPEN) return;
    tcp_peer->phase = TCP_PEER_CLOSING;
    tcp_peer->endpoint->leaving_count++;
    tcp_peer->end_limit_ns = weft_now_ns(tcp_peer->endpoint->transport->env) + END_PATIENCE_NS;
    tcp_out_drop(tcp_peer, WEFT_ERR_CLOSED, true);
    tcp_in_drop(tcp_peer, WEFT_ERR_CLOSED);
    tcp_send_control(tcp_peer, TCP_LEAVE);
}

void tcp_peer_free(struct tcp_peer *tcp_peer)
{
    WEFT_ASSERT(tcp_peer->phase == TCP_PEER_ENDED && tcp_peer->fd < 0);
    weft_list_remove(&tcp_peer->of_endpoint);
    weft_free_bytes(tcp_peer->endpoint->transport->env, tcp_peer);
}
