/* tcp_progress.c - which sockets are read when; sleeping; hosts that have fallen silent.
 *
 * With one or two peers progress reads their sockets without asking which has something: that is one system call. With more it
 * asks the endpoint's epoll. Where few peers are polled and nobody sleeps, their sockets are in the epoll without events: the kernel
 * goes through all epolls above a socket for each segment that arrives. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/tcp/tcp.h"

enum { EVENTS = 64, SILENT_PROBES = 2 };

void tcp_want(struct tcp_peer *known, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = known};
    if (known->interest == events) return;
    known->interest = events;
    known->endpoint->system_calls++;
    epoll_ctl(known->endpoint->epoll, EPOLL_CTL_MOD, known->fd, &event);
}

static void listen_to_all(struct tcp_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->open) {
        struct tcp_peer *known = weft_container_of(node, struct tcp_peer, open);
        tcp_want(known, weft_list_empty(&known->out) || known->mute ? EPOLLIN : EPOLLIN | EPOLLOUT);
    }
    endpoint->listens = true;
}

static void listen_to_none(struct tcp_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &endpoint->open) tcp_want(weft_container_of(node, struct tcp_peer, open), 0);
    endpoint->listens = false;
}

void tcp_listen_anew(struct tcp_endpoint *endpoint)
{
    if (tcp_direct(endpoint)) endpoint->listens = true; /* as they are; those polled long enough are taken out */
    else listen_to_all(endpoint);
}

/* ---- silent hosts ---- */

static uint64_t tick_ns(const struct tcp_endpoint *endpoint) { return endpoint->tuning.lost_ns / 8; }

/* Does its host owe us an answer? *silent_out: for so long it has said nothing. */
static bool owes(const struct tcp_peer *known, uint64_t *silent_ns_out)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(known->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
    uint32_t ack_ms = info.tcpi_last_ack_recv, data_ms = info.tcpi_last_data_recv;
    *silent_ns_out = WEFT_MS((uint64_t)(ack_ms < data_ms ? ack_ms : data_ms));
    return info.tcpi_unacked > 0 || info.tcpi_probes >= SILENT_PROBES; /* probes: of a window that is closed */
}

static void look_for_silence(struct tcp_endpoint *endpoint, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    if (now_ns < endpoint->alive_ns) return;
    endpoint->alive_ns = now_ns + tick_ns(endpoint);
    weft_list_foreach(node, spare, &endpoint->open) {
        struct tcp_peer *known = weft_container_of(node, struct tcp_peer, open);
        uint64_t silent_ns;
        if (!known->sent_lately) continue;
        if (!owes(known, &silent_ns)) {
            known->silent_ns = 0;
            known->sent_lately = !weft_list_empty(&known->out);
        } else if (known->silent_ns == 0 || silent_ns < weft_since_ns(known->silent_ns, now_ns)) {
            known->silent_ns = now_ns;
        } else if (weft_since_ns(known->silent_ns, now_ns) >= endpoint->tuning.lost_ns) {
            tcp_peer_gone(known, ETIMEDOUT);
        }
    }
}

/* ---- progress ---- */

static int look_at(struct tcp_peer *known)
{
    if (!weft_list_empty(&known->out)) tcp_flush(known);
    return tcp_read(known);
}

static int read_all(struct tcp_endpoint *endpoint)
{
    struct weft_list *node, *spare;
    int count = 0;
    weft_list_foreach(node, spare, &endpoint->open) {
        count += look_at(weft_container_of(node, struct tcp_peer, open));
        if (weft_list_empty(spare) && spare != &endpoint->open) break; /* reading has ended the next one: it is in no list any more */
    }
    return count;
}

static int read_ready(struct tcp_endpoint *endpoint, int budget)
{
    struct epoll_event events[EVENTS];
    endpoint->system_calls++;
    int count = 0, got = epoll_wait(endpoint->epoll, events, budget < EVENTS ? budget : EVENTS, 0);
    for (int i = 0; i < got; i++) {
        struct tcp_peer *known = events[i].data.ptr;
        if (!known) count += meet_progress(endpoint->meet, 64);
        else if (known->fd >= 0) count += look_at(known);
    }
    return count;
}

static void end_the_impatient(struct tcp_endpoint *endpoint, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    if (endpoint->leaving_count == 0) return;
    weft_list_foreach(node, spare, &endpoint->open) {
        struct tcp_peer *known = weft_container_of(node, struct tcp_peer, open);
        if (known->phase == TCP_LEAVING && now_ns >= known->end_limit_ns) tcp_peer_end(known, WEFT_ERR_CLOSED);
    }
}

/* What need not be looked at each time. */
static int look_aside(struct tcp_endpoint *endpoint, uint64_t now_ns)
{
    bool slept = endpoint->slept;
    endpoint->slept = false;
    if (slept) endpoint->listened_ns = now_ns;
    else if (endpoint->listens && tcp_direct(endpoint) && now_ns >= endpoint->listened_ns + TCP_ASIDE_NS) listen_to_none(endpoint);
    look_for_silence(endpoint, now_ns);
    end_the_impatient(endpoint, now_ns);
    if (!slept && now_ns < endpoint->aside_ns) return 0;
    endpoint->aside_ns = now_ns + (endpoint->meeting_count + endpoint->leaving_count > 0 ? TCP_ASIDE_NS : TCP_CALM_NS);
    endpoint->system_calls++;
    return meet_progress(endpoint->meet, 64);
}

int tcp_progress(struct weft_transport *transport, int budget)
{
    struct tcp_endpoint *endpoint = transport->backend;
    int count = weft_list_empty(&endpoint->self_arrivals) ? 0 : tcp_self_progress(endpoint, budget);
    if (tcp_direct(endpoint)) count += read_all(endpoint);
    else count += read_ready(endpoint, budget);
    if (++endpoint->polls % TCP_CLOCK_EVERY == 0 || endpoint->slept || transport->closed)
        count += look_aside(endpoint, weft_now_ns(transport->env));
    return count;
}

/* ---- sleeping ---- */

enum weft_status tcp_arm(struct weft_transport *transport)
{
    struct tcp_endpoint *endpoint = transport->backend;
    if (!weft_list_empty(&endpoint->self_arrivals)) return WEFT_ERR_AGAIN;
    struct weft_list *node, *spare;
    if (tcp_direct(endpoint)) {
        weft_list_foreach(node, spare, &endpoint->open) tcp_flush(weft_container_of(node, struct tcp_peer, open));
        if (!weft_list_empty(&transport->done)) return WEFT_ERR_AGAIN;
        listen_to_all(endpoint);
    }
    endpoint->slept = true;
    weft_list_foreach(node, spare, &endpoint->open) {
        if (!weft_container_of(node, struct tcp_peer, open)->sent_lately) continue;
        core_wake_at(transport, weft_now_ns(transport->env) + tick_ns(endpoint));
        break;
    }
    return WEFT_OK;
}
