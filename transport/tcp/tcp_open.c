/* tcp_open.c - life of an endpoint: open on an address of its device, statistics, close, free. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/tcp/tcp.h"

/* ---- address to listen on ---- */

/* An address of the interface that peers can use: IPv4, else IPv6 that is not link-local. */
static bool address_of(const struct ifaddrs *all, const char *name, size_t name_bytes, char *out,
                       size_t bytes)
{
    for (int family = 0; family < 2; family++) {
        for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
            if (!one->ifa_addr || one->ifa_addr->sa_family != (family == 0 ? AF_INET : AF_INET6)) continue;
            if (strlen(one->ifa_name) != name_bytes || memcmp(one->ifa_name, name, name_bytes) != 0) continue;
            const struct sockaddr_in6 *six = (const void *)one->ifa_addr;
            if (family == 1 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
            socklen_t size = family == 0 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            if (getnameinfo(one->ifa_addr, size, out, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST) == 0)
                return true;
        }
    }
    return false;
}

/* Address of the first listed device that has one. */
static enum weft_status find_host(const char *devices, char *out, size_t bytes, struct weft_error *error)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return weft_error_set(error, WEFT_ERR_IO, "the network devices of this host cannot be listed");
    for (const char *at = devices; *at && !found; at += strcspn(at, ",")) {
        at += *at == ',';
        found = address_of(all, at, strcspn(at, ","), out, bytes);
    }
    freeifaddrs(all);
    return found ? WEFT_OK
                 : (enum weft_status)weft_error_set(
                       error, WEFT_ERR_NOT_FOUND,
                       "none of the devices \"%s\" is a network interface with an address", devices);
}

/* ---- open ---- */

static enum weft_status open_bootstrap(struct tcp_endpoint *endpoint,
                                       const struct weft_transport_options *options, struct weft_error *error)
{
    struct weft_transport *transport = endpoint->transport;
    struct bootstrap_options bootstrap;
    if (!endpoint->tuning.host[0])
        WEFT_TRY(find_host(options->devices && options->devices[0] ? options->devices : "lo",
                           endpoint->tuning.host, sizeof endpoint->tuning.host, error));
    bootstrap_options_init(&bootstrap);
    bootstrap.family = BOOTSTRAP_TCP;
    bootstrap.id = transport->id;
    bootstrap.nonce = transport->nonce;
    bootstrap.secret = options->secret;
    bootstrap.secret_bytes = options->secret_bytes;
    bootstrap.bind_host = endpoint->tuning.host;
    bootstrap.callbacks = tcp_callbacks;
    WEFT_TRY(bootstrap_options_ports(&bootstrap, options->ports, error));
    WEFT_TRY(bootstrap_open(transport->env, &bootstrap, &endpoint->bootstrap, error));
    size_t bytes;
    const void *address = bootstrap_address(endpoint->bootstrap, &bytes);
    WEFT_ASSERT(bytes <= BOOTSTRAP_ADDRESS_BYTES_MAX);
    endpoint->own_address.blob_bytes =
        address_blob_encode(tcp_address_blob_kind, core_nonce_hash(transport->nonce), transport->id, address,
                            (uint32_t)bytes, endpoint->own_address.blob);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    endpoint->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (endpoint->epoll >= 0 &&
        epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, bootstrap_fd(endpoint->bootstrap), &event) == 0)
        return WEFT_OK;
    return (enum weft_status)weft_error_set(
        error, WEFT_ERR_LIMIT,
        "no descriptor to sleep on is left: raise the limit of open files (ulimit -n)");
}

static void close_all(struct tcp_endpoint *endpoint)
{
    bootstrap_close(endpoint->bootstrap);
    if (endpoint->epoll >= 0) close(endpoint->epoll);
    tcp_records_free(endpoint);
    weft_free_bytes(endpoint->transport->env, endpoint);
}

static enum weft_status tcp_open(struct weft_transport *transport,
                                 const struct weft_transport_options *options, struct weft_error *error)
{
    struct tcp_endpoint *endpoint = weft_alloc_zero(transport->env, sizeof *endpoint);
    if (!endpoint)
        return (enum weft_status)weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a tcp endpoint");
    endpoint->transport = transport;
    endpoint->epoll = -1;
    weft_list_init(&endpoint->peers);
    weft_list_init(&endpoint->open);
    weft_list_init(&endpoint->self_arrivals);
    if (options->eager_bytes_max == 0) transport->eager_bytes_max = TCP_EAGER_BYTES;
    transport->message_bytes = TCP_EAGER_BYTES;
    enum weft_status status = tcp_tune(options->tune, &endpoint->tuning, error);
    endpoint->tuning.budget = (uint32_t)core_unread_bytes(options, endpoint->tuning.budget);
    if (status == WEFT_OK) status = open_bootstrap(endpoint, options, error);
    if (status < 0) {
        close_all(endpoint);
        return status;
    }
    snprintf(transport->name, sizeof transport->name, "tcp %.58s", endpoint->tuning.host);
    transport->backend = endpoint;
    return WEFT_OK;
}

static enum weft_status tcp_address(struct weft_transport *transport, const void **blob_out,
                                    size_t *bytes_out)
{
    struct tcp_endpoint *endpoint = transport->backend;
    *blob_out = endpoint->own_address.blob;
    *bytes_out = endpoint->own_address.blob_bytes;
    return WEFT_OK;
}

static int tcp_fd(struct weft_transport *transport)
{
    return ((struct tcp_endpoint *)transport->backend)->epoll;
}

static void tcp_count(struct weft_transport *transport)
{
    struct tcp_endpoint *endpoint = transport->backend;
    struct weft_transport_stats *stats = &transport->stats;
    struct bootstrap_stats bootstrap;
    struct weft_list *node, *spare;
    bootstrap_stats(endpoint->bootstrap, &bootstrap);
    stats->refused_count += bootstrap.refused_count - endpoint->traffic.refused_reported;
    endpoint->traffic.refused_reported = bootstrap.refused_count;
    stats->copied_bytes = endpoint->traffic.copied_bytes;
    stats->system_call_count = endpoint->traffic.system_calls;
    stats->memory_peer_bytes = sizeof(struct tcp_peer);
    stats->memory_bytes = sizeof *endpoint + endpoint->record_bytes + endpoint->bounce_bytes;
    weft_list_foreach(node, spare, &endpoint->peers) stats->memory_bytes += sizeof(struct tcp_peer);
}

/* ---- end ---- */

static void tcp_close(struct weft_transport *transport)
{
    struct tcp_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->peers)
        tcp_peer_leave(weft_container_of(node, struct tcp_peer, of_endpoint));
}

static bool tcp_drained(struct weft_transport *transport)
{
    struct tcp_endpoint *endpoint = transport->backend;
    return endpoint->open_count == 0 && weft_list_empty(&endpoint->self_arrivals);
}

static void tcp_free(struct weft_transport *transport)
{
    struct tcp_endpoint *endpoint = transport->backend;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &endpoint->peers)
        tcp_peer_end(weft_container_of(node, struct tcp_peer, of_endpoint), WEFT_ERR_CLOSED);
    weft_list_foreach(node, spare, &endpoint->self_arrivals) {
        weft_list_remove(node);
        tcp_discard(transport, &weft_container_of(node, struct tcp_arrival, link)->core.handle);
    }
    while (!weft_list_empty(&transport->done)) { /* these completions never run */
        struct core_done *done = weft_list_first(&transport->done, struct core_done, link);
        weft_list_remove(&done->link);
        if (done->recycle) done->recycle(transport, done);
    }
    weft_list_foreach (node, spare, &endpoint->peers)
        tcp_peer_free(weft_container_of(node, struct tcp_peer, of_endpoint));
    transport->backend = NULL;
    close_all(endpoint);
}

const struct weft_transport_ops tcp_transport_ops = {
    .name = "tcp",
    .open = tcp_open,
    .close = tcp_close,
    .drained = tcp_drained,
    .free = tcp_free,
    .address = tcp_address,
    .connect = tcp_connect,
    .disconnect = tcp_disconnect,
    .send = tcp_send_message,
    .accept = tcp_accept,
    .discard = tcp_discard,
    .describe = tcp_describe,
    .count = tcp_count,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .fd = tcp_fd,
};
