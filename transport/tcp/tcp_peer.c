/* tcp_peer.c - one peer: how the two meet, and how it ends.
 *
 *   weft_transport_close ─ LEAVE, no more writing ─► (the other end closes, or a second has passed) ─► ended
 *   LEAVE came ─ core_peer_left ─► disconnect ─► ended          the socket ended without one ─ core_peer_lost ─► the same
 *
 * Who leaves reads on until the other end has closed: closing a socket with unread bytes throws away what the other has not read yet. */
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

/* ---- meeting ---- */

/* An idle connection is probed by the system; a busy one is watched in tcp_progress.c. TCP_USER_TIMEOUT would not do: it also ends the
 * connection to a process that lives and does not read. */
static void set_liveness(const struct tcp_peer *known)
{
    int seconds = (int)(known->endpoint->tuning.lost_ns / WEFT_SECONDS(1));
    int interval = seconds / (KEEP_PROBES_MAX + 1) > 0 ? seconds / (KEEP_PROBES_MAX + 1) : 1, probes = seconds / interval - 1;
    unsigned none = 0;
    setsockopt(known->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &none, sizeof none);
    setsockopt(known->fd, IPPROTO_TCP, TCP_KEEPIDLE, &interval, sizeof interval);
    setsockopt(known->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(known->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static bool adopt(struct tcp_peer *known, int fd)
{
    struct tcp_endpoint *endpoint = known->endpoint;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = known};
    if (epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return false;
    }
    known->fd = fd;
    known->interest = EPOLLIN;
    known->phase = TCP_RUNS;
    endpoint->meeting_count--;
    endpoint->open_count++;
    weft_list_append(&endpoint->open, &known->open);
    set_liveness(known);
    tcp_listen_anew(endpoint);
    return true;
}

static void met(void *owner, struct meet_peer *link, const void *parameters, size_t bytes, int *descriptors, uint32_t count)
{
    struct tcp_peer *known = owner;
    struct weft_transport *transport = known->endpoint->transport;
    const void *rest;
    size_t rest_bytes;
    uint32_t budget;
    enum weft_status status = tcp_parameters_decode(parameters, bytes, &budget);
    if (status < 0) {
        core_peer_lost(transport, known->peer, status, "its parameters are not those of this backend");
        return;
    }
    int fd = meet_take(link, &rest, &rest_bytes);
    if (fd < 0 || !adopt(known, fd)) {
        core_peer_lost(transport, known->peer, WEFT_ERR_NO_MEMORY, "there is no room for its connection");
        return;
    }
    known->credit += budget - known->credit_max;
    known->credit_max = budget;
    tcp_flush(known);
    tcp_take(known, rest, rest_bytes);
}

static void gone(void *owner, struct meet_peer *link, enum weft_status status, const char *text)
{
    struct tcp_peer *known = owner;
    struct weft_transport *transport = known->endpoint->transport;
    if (transport->closed) tcp_peer_end(known, WEFT_ERR_CLOSED);
    else core_peer_lost(transport, known->peer, status < 0 ? status : WEFT_ERR_PEER_LOST, text);
}

const struct meet_callbacks tcp_callbacks = {.met = met, .gone = gone};

enum weft_status tcp_connect(struct weft_transport *transport, struct weft_peer *peer, const void *blob, size_t bytes)
{
    struct tcp_endpoint *endpoint = transport->backend;
    const void *address;
    size_t address_bytes;
    uint8_t parameters[TCP_PARAMETER_BYTES];
    WEFT_TRY(meet_blob_decode(tcp_blob_kind, blob, bytes, core_nonce_hash(transport->nonce), peer->id, &address, &address_bytes));
    struct tcp_peer *known = weft_alloc_zero(transport->env, sizeof *known);
    if (!known) return WEFT_ERR_NO_MEMORY;
    known->endpoint = endpoint;
    known->peer = peer;
    known->fd = -1;
    known->phase = TCP_MEETING;
    known->credit = known->credit_max = TCP_BUDGET_MIN;
    known->words[0].frame = known->word_frames[0];
    known->words[1].frame = known->word_frames[1];
    for (int i = 0; i < 2; i++) weft_list_init(&known->words[i].link);
    weft_list_init(&known->open);
    weft_list_init(&known->out);
    weft_list_init(&known->announced);
    weft_list_init(&known->accepted);
    weft_list_append(&endpoint->peers, &known->of_endpoint);
    if (peer->id == transport->id) {
        known->phase = TCP_ENDED; /* to itself: no socket */
        peer->backend = known;
        return WEFT_OK;
    }
    tcp_parameters_encode(endpoint->tuning.budget, parameters);
    enum weft_status status = meet_connect(endpoint->meet, peer->id, address, address_bytes, parameters, sizeof parameters, NULL, 0, known, &known->link);
    if (status < 0) {
        known->phase = TCP_ENDED;
        tcp_peer_free(known);
        return status;
    }
    endpoint->meeting_count++;
    peer->backend = known;
    return WEFT_OK;
}

void tcp_describe(struct weft_transport *transport, struct weft_peer *peer, char *out, size_t bytes)
{
    const struct tcp_peer *known = peer->backend;
    const char *state = !known || tcp_is_self(known) ? "self" : known->phase == TCP_MEETING ? "socket, not connected yet" : "socket";
    snprintf(out, bytes, "tcp %s", state);
}

/* ---- the end ---- */

void tcp_peer_gone(struct tcp_peer *known, int reason)
{
    struct weft_transport *transport = known->endpoint->transport;
    if (reason == 0) reason = known->trouble;
    if (transport->closed) tcp_peer_end(known, WEFT_ERR_CLOSED);
    else core_peer_lost(transport, known->peer, WEFT_ERR_PEER_LOST, reason ? strerror(reason) : "closed the connection or ended");
}

void tcp_peer_malformed(struct tcp_peer *known, const char *text)
{
    struct weft_transport *transport = known->endpoint->transport;
    core_refused(transport);
    core_peer_lost(transport, known->peer, WEFT_ERR_MALFORMED, text);
}

static void close_socket(struct tcp_peer *known)
{
    struct tcp_endpoint *endpoint = known->endpoint;
    if (known->fd < 0) return;
    epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL, known->fd, NULL); /* a copy of the descriptor in a child would keep it in epoll */
    close(known->fd);
    known->fd = -1;
    weft_list_remove(&known->open);
    endpoint->open_count--;
    tcp_listen_anew(endpoint);
}

void tcp_peer_end(struct tcp_peer *known, enum weft_status status)
{
    if (known->phase == TCP_ENDED) return;
    if (known->phase == TCP_MEETING) known->endpoint->meeting_count--;
    if (known->phase == TCP_LEAVING) known->endpoint->leaving_count--;
    known->phase = TCP_ENDED;
    if (known->link) meet_forget(known->link);
    known->link = NULL;
    close_socket(known);
    tcp_out_drop(known, status, false);
    tcp_in_drop(known, status);
}

void tcp_disconnect(struct weft_transport *transport, struct weft_peer *peer, enum weft_status status)
{
    struct tcp_peer *known = peer->backend;
    if (known) tcp_peer_end(known, status);
}

void tcp_peer_leave(struct tcp_peer *known)
{
    if (known->phase == TCP_MEETING) tcp_peer_end(known, WEFT_ERR_CLOSED);
    if (known->phase != TCP_RUNS) return;
    known->phase = TCP_LEAVING;
    known->endpoint->leaving_count++;
    known->end_limit_ns = weft_now_ns(known->endpoint->transport->env) + END_PATIENCE_NS;
    tcp_out_drop(known, WEFT_ERR_CLOSED, true);
    tcp_in_drop(known, WEFT_ERR_CLOSED);
    tcp_word(known, TCP_LEAVE);
}

void tcp_peer_free(struct tcp_peer *known)
{
    WEFT_ASSERT(known->phase == TCP_ENDED && known->fd < 0);
    weft_list_remove(&known->of_endpoint);
    weft_free_bytes(known->endpoint->transport->env, known);
}
