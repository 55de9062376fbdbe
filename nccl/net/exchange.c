/* exchange.c - see exchange.h. */
#include "nccl/net/exchange.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void exchange_init(struct exchange *exchange, int fd)
{
    exchange->fd = fd;
    exchange->out_bytes = exchange->sent = exchange->in_bytes = 0;
}

void exchange_close(struct exchange *exchange)
{
    if (exchange->fd >= 0) close(exchange->fd);
    exchange->fd = -1;
}

static enum weft_status status_of(int reason)
{
    if (reason == EMFILE || reason == ENFILE) return WEFT_ERR_LIMIT;
    if (reason == ECONNREFUSED || reason == EHOSTUNREACH || reason == ENETUNREACH || reason == ETIMEDOUT)
        return WEFT_ERR_UNREACHABLE;
    return reason == ECONNRESET || reason == EPIPE || reason == ENOTCONN ? WEFT_ERR_PEER_LOST : WEFT_ERR_IO;
}

static bool is_later(int reason)
{
    return reason == EAGAIN || reason == EINTR || reason == EINPROGRESS;
}

enum weft_status exchange_dial(struct exchange *exchange, const struct wire_handle *handle)
{
    int fd = socket(handle->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return status_of(errno);
    exchange_init(exchange, fd);
    if (connect(fd, (const struct sockaddr *)&handle->address, handle->address_bytes) == 0) return WEFT_OK;
    if (is_later(errno)) return WEFT_OK;
    enum weft_status status = status_of(errno);
    exchange_close(exchange);
    return status;
}

/* The reason for which a connection attempt has ended; 0: none. */
static int pending_reason(int fd)
{
    int reason = 0;
    socklen_t bytes = sizeof reason;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &bytes) == 0 ? reason : errno;
}

/* A connection attempt in progress: writable, or failed. */
static bool is_connecting(int fd)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_state == TCP_SYN_SENT;
}

enum weft_status exchange_write(struct exchange *exchange)
{
    if (exchange->sent == exchange->out_bytes) return WEFT_OK;
    if (exchange->sent == 0) {
        if (is_connecting(exchange->fd)) return WEFT_IN_PROGRESS;
        int reason = pending_reason(exchange->fd);
        if (reason != 0) return status_of(reason);
    }
    ssize_t step = send(exchange->fd, exchange->out + exchange->sent, exchange->out_bytes - exchange->sent,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (step < 0) return is_later(errno) ? WEFT_IN_PROGRESS : status_of(errno);
    exchange->sent += (size_t)step;
    return exchange->sent == exchange->out_bytes ? WEFT_OK : WEFT_IN_PROGRESS;
}

enum weft_status exchange_read(struct exchange *exchange)
{
    size_t wanted = WIRE_HEAD_BYTES;
    for (;;) {
        if (exchange->in_bytes >= WIRE_HEAD_BYTES) wanted = wire_message_bytes(exchange->in);
        if (wanted == 0) return WEFT_ERR_MALFORMED;
        if (exchange->in_bytes == wanted) return WEFT_OK;
        ssize_t step =
            recv(exchange->fd, exchange->in + exchange->in_bytes, wanted - exchange->in_bytes, MSG_DONTWAIT);
        if (step == 0) return WEFT_ERR_PEER_LOST;
        if (step < 0) return is_later(errno) ? WEFT_IN_PROGRESS : status_of(errno);
        exchange->in_bytes += (size_t)step;
    }
}

bool exchange_has_ended(const struct exchange *exchange)
{
    uint8_t byte;
    return recv(exchange->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* ---- listening ---- */

static void port_set(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET) ((struct sockaddr_in *)address)->sin_port = htons(port);
    else ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
}

static bool ports_parse(const char *text, uint32_t *first_out, uint32_t *last_out)
{
    char *end;
    *first_out = *last_out = 0;
    if (!text[0]) return true;
    unsigned long first = strtoul(text, &end, 10), last = first;
    if (*end == '-') last = strtoul(end + 1, &end, 10);
    *first_out = (uint32_t)first;
    *last_out = (uint32_t)last;
    return *end == 0 && first > 0 && first <= last && last <= UINT16_MAX;
}

/* Binds to one port; returns 0 or the reason. */
static int listen_at(struct sockaddr_storage *address, socklen_t bytes, uint16_t port, int *fd_out)
{
    int on = 1, fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    port_set(address, port);
    socklen_t own_bytes = bytes;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, (const struct sockaddr *)address, bytes) == 0 && listen(fd, 64) == 0 &&
        getsockname(fd, (struct sockaddr *)address, &own_bytes) == 0) {
        *fd_out = fd;
        return 0;
    }
    int reason = errno;
    close(fd);
    return reason;
}

enum weft_status exchange_listen(struct sockaddr_storage *address, socklen_t bytes, const char *ports,
                                 int *fd_out, struct weft_error *error)
{
    uint32_t first, last;
    int reason = EADDRINUSE;
    if (!ports_parse(ports, &first, &last))
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "transport.ports is \"%s\": write it as first-last, 1-65535", ports);
    for (uint32_t port = first; port <= last && reason == EADDRINUSE; port++)
        reason = listen_at(address, bytes, (uint16_t)port, fd_out);
    if (reason == 0) return WEFT_OK;
    if (reason == EADDRINUSE)
        return weft_error_set(error, WEFT_ERR_EXISTS, "no port of transport.ports (%s) is free", ports);
    return weft_error_set(error, status_of(reason) == WEFT_ERR_LIMIT ? WEFT_ERR_LIMIT : WEFT_ERR_IO,
                          "cannot listen for connections: %s", strerror(reason));
}

void exchange_describe(const struct sockaddr_storage *address, socklen_t bytes, char *out, size_t out_bytes)
{
    char host[INET6_ADDRSTRLEN + 16], port[8];
    if (getnameinfo((const struct sockaddr *)address, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(out, out_bytes, "an unknown address");
    else snprintf(out, out_bytes, "%s:%s", host, port);
}
