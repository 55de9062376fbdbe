/* tcp_progress.c - order of reads, sleep, and silent hosts.
 *
 * With up to TCP_DIRECT_PEERS peers progress reads their sockets without asking epoll: one system call.
 * With more it asks the endpoint's epoll. While few peers are polled, their sockets are in epoll without
 * events, because the kernel walks all epolls above a socket for every segment. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/tcp/tcp.h"

enum { EVENTS = 64, SILENT_PROBES = 2 };

void tcp_set_events(struct tcp_peer *tcp_peer, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = tcp_peer};
    if (tcp_peer->interest == events) return;
    tcp_peer->interest = events;
    tcp_peer->endpoint->traffic.system_calls++;
    epoll_ctl(tcp_peer->endpoint->epoll, EPOLL_CTL_MOD, tcp_peer->fd, &event);
}

static void listen_to_all(struct tcp_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->open) {
        struct tcp_peer *tcp_peer = weft_container_of(node, struct tcp_peer, open);
        tcp_set_events(tcp_peer, weft_list_empty(&tcp_peer->out) || tcp_peer->writing.write_failed
                                     ? EPOLLIN
                                     : EPOLLIN | EPOLLOUT);
    }
    endpoint->epoll_has_events = true;
}

static void listen_to_none(struct tcp_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->open)
        tcp_set_events(weft_container_of(node, struct tcp_peer, open), 0);
    endpoint->epoll_has_events = false;
}

void tcp_sockets_changed(struct tcp_endpoint *endpoint)
{
    /* unchanged; poll_bootstrap removes them after some polling */
    if (tcp_polls_directly(endpoint)) endpoint->epoll_has_events = true;
    else listen_to_all(endpoint);
}

/* ---- silent hosts ---- */

static uint64_t tick_ns(const struct tcp_endpoint *endpoint) { return endpoint->tuning.lost_ns / 8; }

/* Whether an acknowledgement of the peer's host is due. *silent_out: ns since its last one. */
static bool awaits_ack(const struct tcp_peer *tcp_peer, uint64_t *silent_ns_out)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(tcp_peer->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
    uint32_t ack_ms = info.tcpi_last_ack_recv, data_ms = info.tcpi_last_data_recv;
    *silent_ns_out = WEFT_MS((uint64_t)(ack_ms < data_ms ? ack_ms : data_ms));
    /* probes: of a closed window */
    return info.tcpi_unacked > 0 || info.tcpi_probes >= SILENT_PROBES;
}

static void check_silence(struct tcp_endpoint *endpoint, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    if (now_ns < endpoint->alive_ns) return;
    endpoint->alive_ns = now_ns + tick_ns(endpoint);
    weft_list_foreach(node, spare, &endpoint->open) {
        struct tcp_peer *tcp_peer = weft_container_of(node, struct tcp_peer, open);
        uint64_t silent_ns;
        if (!tcp_peer->writing.has_unacked_bytes) continue;
        if (!awaits_ack(tcp_peer, &silent_ns)) {
            tcp_peer->silent_ns = 0;
            tcp_peer->writing.has_unacked_bytes = !weft_list_empty(&tcp_peer->out);
        } else if (tcp_peer->silent_ns == 0 || silent_ns < weft_elapsed_ns(tcp_peer->silent_ns, now_ns)) {
            tcp_peer->silent_ns = now_ns;
        } else if (weft_elapsed_ns(tcp_peer->silent_ns, now_ns) >= endpoint->tuning.lost_ns) {
            tcp_peer_on_socket_end(tcp_peer, ETIMEDOUT);
        }
    }
}

/* ---- progress ---- */

static int poll_socket(struct tcp_peer *tcp_peer)
{
    if (!weft_list_empty(&tcp_peer->out)) tcp_flush(tcp_peer);
    return tcp_read(tcp_peer);
}

static int read_all(struct tcp_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    int count = 0;
    weft_list_foreach(node, spare, &endpoint->open) {
        count += poll_socket(weft_container_of(node, struct tcp_peer, open));
        /* reading has ended the next peer: it is in no list */
        if (weft_list_empty(spare) && spare != &endpoint->open) break;
    }
    return count;
}

static int read_ready(struct tcp_endpoint *endpoint, int budget)
{
    struct epoll_event events[EVENTS];
    endpoint->traffic.system_calls++;
    int count = 0, got = epoll_wait(endpoint->epoll, events, budget < EVENTS ? budget : EVENTS, 0);
    for (int i = 0; i < got; i++) {
        struct tcp_peer *tcp_peer = events[i].data.ptr;
        if (!tcp_peer) count += bootstrap_progress(endpoint->bootstrap, 64);
        else if (tcp_peer->fd >= 0) count += poll_socket(tcp_peer);
    }
    return count;
}

static void end_expired(struct tcp_endpoint *endpoint, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    if (endpoint->leaving_count == 0) return;
    weft_list_foreach(node, spare, &endpoint->open) {
        struct tcp_peer *tcp_peer = weft_container_of(node, struct tcp_peer, open);
        if (tcp_peer->phase == TCP_PEER_CLOSING && now_ns >= tcp_peer->end_limit_ns)
            tcp_peer_end(tcp_peer, WEFT_ERR_CLOSED);
    }
}

/* Work that need not run in every progress. */
static int poll_bootstrap(struct tcp_endpoint *endpoint, uint64_t now_ns)
{
    bool slept = endpoint->slept;
    endpoint->slept = false;
    if (slept) endpoint->listened_ns = now_ns;
    else if (endpoint->epoll_has_events && tcp_polls_directly(endpoint) &&
             now_ns >= endpoint->listened_ns + TCP_BOOTSTRAP_POLL_NS)
        listen_to_none(endpoint);
    check_silence(endpoint, now_ns);
    end_expired(endpoint, now_ns);
    if (!slept && now_ns < endpoint->bootstrap_poll_ns) return 0;
    endpoint->bootstrap_poll_ns =
        now_ns + (endpoint->connecting_count + endpoint->leaving_count > 0 ? TCP_BOOTSTRAP_POLL_NS
                                                                           : TCP_BOOTSTRAP_IDLE_POLL_NS);
    endpoint->traffic.system_calls++;
    return bootstrap_progress(endpoint->bootstrap, 64);
}

int tcp_progress(struct weft_transport *transport, int budget)
{
    struct tcp_endpoint *endpoint = transport->backend;
    int count = weft_list_empty(&endpoint->self_arrivals) ? 0 : tcp_self_progress(endpoint, budget);
    if (tcp_polls_directly(endpoint)) count += read_all(endpoint);
    else count += read_ready(endpoint, budget);
    if (++endpoint->polls % TCP_CLOCK_EVERY == 0 || endpoint->slept || transport->closed)
        count += poll_bootstrap(endpoint, weft_now_ns(transport->env));
    return count;
}

/* ---- sleeping ---- */

enum weft_status tcp_arm(struct weft_transport *transport)
{
    struct tcp_endpoint *endpoint = transport->backend;
    if (!weft_list_empty(&endpoint->self_arrivals)) return WEFT_ERR_AGAIN;
    struct weft_list *node, *spare;
    if (tcp_polls_directly(endpoint)) {
        weft_list_foreach (node, spare, &endpoint->open)
            tcp_flush(weft_container_of(node, struct tcp_peer, open));
        if (!weft_list_empty(&transport->done)) return WEFT_ERR_AGAIN;
        listen_to_all(endpoint);
    }
    endpoint->slept = true;
    weft_list_foreach(node, spare, &endpoint->open) {
        if (!weft_container_of(node, struct tcp_peer, open)->writing.has_unacked_bytes) continue;
        core_wake_at(transport, weft_now_ns(transport->env) + tick_ns(endpoint));
        break;
    }
    return WEFT_OK;
}
