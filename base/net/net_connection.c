/* net_connection.c - one framed connection, accepted or outgoing.
 *
 *     CONNECTING --established--> OPEN --weft_net_close--> FLUSHING --peer closed or 5 s--> ENDED
 *         | ^ refused: wait, try again      |                                                 ^
 *         +-+                               +----- peer closed, malformed, too slow ----------+
 *         +------------------------- deadline ------------------------------------------------+
 *
 * Every end calls end(), which stores the first reason and schedules finish(). So `closed` runs exactly once,
 * never inside a call of the user. Memory is freed after it. A close writes what was sent, shuts down the
 * sending half, and discards input until the peer closes: close() with unread input would reset the
 * connection, and the peer would lose the last frames. A frame is delivered when it is complete. Its length
 * is checked before, so the input buffer holds at most one frame and one read. */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>

#include "base/os/fork_close.h"
#include "base/net/net_internal.h"
#include "base/net/net_reason.h"

#define HEADER_BYTES 4
#define FRAME_BYTES_MAX ((size_t)4 << 20)
#define SEND_BYTES_MAX ((size_t)16 << 20)
#define RETRY_FIRST_NS WEFT_MS(10)
#define RETRY_LAST_NS WEFT_MS(500)
#define REPORT_NS WEFT_MS(1500) /* plus RETRY_LAST_NS: logged within 2 s */
#define FLUSH_NS WEFT_SECONDS(5)

enum connection_state {
    CONNECTING, /* outgoing: a try is in progress, or the retry timer runs */
    OPEN,
    FLUSHING, /* closed here; frames are still being written */
    ENDED,    /* the base will call finish */
};

struct weft_net_connection {
    struct weft_list link; /* in net->connections; first, since weft_net_free casts */
    struct weft_net *net;
    struct weft_net_listener *listener; /* the listener that accepted it; NULL: outgoing */
    struct weft_net_handler handler;
    void *context;
    enum connection_state state;

    struct bufferevent *socket; /* owned; NULL between tries */
    struct event *timer;        /* CONNECTING: retry or deadline; FLUSHING: time limit; ENDED: finish */

    uint64_t deadline_ns, retry_ns; /* outgoing only */
    uint16_t port;
    char name[NET_NAME_BYTES]; /* "host:port" */
    char host[NET_NAME_BYTES];

    enum weft_status reason;
    char text[NET_NAME_BYTES + NET_REASON_BYTES + 60];

    /* outgoing, until established */
    uint64_t report_ns;                /* when the reason is logged; 0: logged */
    char last_failure[NET_REASON_BYTES];
};

/* --- end --- */

static void drop_socket(struct weft_net_connection *connection)
{
    if (connection->socket) {
        const int fd = bufferevent_getfd(connection->socket);
        fork_close_remove(fd);
        /* the number belongs to the program now */
        if (fd >= 0 && !descriptor_is_socket(fd)) bufferevent_setfd(connection->socket, -1);
        bufferevent_free(connection->socket);
    }
    connection->socket = NULL;
}

static void __attribute__((format(printf, 3, 4)))
end(struct weft_net_connection *connection, enum weft_status reason, const char *format, ...)
{
    if (connection->state == ENDED) return;
    connection->state = ENDED;
    connection->reason = reason;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(connection->text, sizeof connection->text, format, arguments);
    va_end(arguments);
    if (connection->socket) bufferevent_disable(connection->socket, EV_READ | EV_WRITE);
    event_del(connection->timer);
    event_active(connection->timer, EV_TIMEOUT, 0);
}

/* Removes the connection from all lists, calls `closed`, frees it. */
static void finish(struct weft_net_connection *connection)
{
    struct weft_net *net = connection->net;
    weft_list_remove(&connection->link);
    if (connection->listener) net_listener_connection_closed(connection->listener);
    drop_socket(connection);
    if (connection->handler.closed)
        connection->handler.closed(connection->context, connection, connection->reason, connection->text);
    event_free(connection->timer);
    weft_free_bytes(net->env, connection);
}

void net_connection_kill(struct weft_net_connection *connection)
{
    end(connection, WEFT_ERR_CLOSED, "the connection with %s was closed on this side", connection->name);
    finish(connection);
}

bool net_connection_is_intact(const struct weft_net_connection *connection)
{
    const int fd = connection->socket && !connection->listener ? bufferevent_getfd(connection->socket) : -1;
    return fd < 0 || descriptor_is_socket(fd);
}

void net_connection_break(struct weft_net_connection *connection)
{
    end(connection, WEFT_ERR_IO, "the control connection with %s ended: %s", connection->name,
        WEFT_DESCRIPTORS_LOST);
    finish(connection);
}

static void shut_when_written(struct weft_net_connection *connection)
{
    if (evbuffer_get_length(bufferevent_get_output(connection->socket)) > 0) return;
    /* fails if the peer has closed: on_event will report it */
    shutdown(bufferevent_getfd(connection->socket), SHUT_WR);
}

void weft_net_close(struct weft_net_connection *connection)
{
    net_assert_thread(connection->net);
    if (connection->state == ENDED || connection->state == FLUSHING) return;
    if (connection->state == CONNECTING) {
        end(connection, WEFT_ERR_CLOSED, "the connection with %s was closed on this side", connection->name);
        return;
    }
    connection->state = FLUSHING;
    struct timeval limit = net_timeval(FLUSH_NS);
    event_add(connection->timer, &limit);
    shut_when_written(connection);
}

/* --- frames --- */

static void on_readable(struct bufferevent *socket, void *argument)
{
    struct weft_net_connection *connection = argument;
    struct evbuffer *input = bufferevent_get_input(socket);
    while (connection->state == OPEN && evbuffer_get_length(input) >= HEADER_BYTES) {
        uint8_t header[HEADER_BYTES];
        evbuffer_copyout(input, header, sizeof header);
        size_t bytes =
            (size_t)header[0] | (size_t)header[1] << 8 | (size_t)header[2] << 16 | (size_t)header[3] << 24;
        if (bytes > connection->handler.frame_bytes_max) {
            end(connection, WEFT_ERR_MALFORMED, "%s announced a frame of %zu bytes; at most %zu are allowed",
                connection->name, bytes, connection->handler.frame_bytes_max);
            break;
        }
        if (evbuffer_get_length(input) < HEADER_BYTES + bytes) break;
        const uint8_t *frame = evbuffer_pullup(input, (ev_ssize_t)(HEADER_BYTES + bytes));
        if (!frame) {
            end(connection, WEFT_ERR_NO_MEMORY, "no memory for a frame of %zu bytes from %s", bytes,
                connection->name);
            break;
        }
        if (connection->handler.frame)
            connection->handler.frame(connection->context, connection, frame + HEADER_BYTES, bytes);
        evbuffer_drain(input, HEADER_BYTES + bytes);
    }
    if (connection->state != OPEN) evbuffer_drain(input, evbuffer_get_length(input));
}

enum weft_status weft_net_send(struct weft_net_connection *connection, const void *data, size_t bytes)
{
    net_assert_thread(connection->net);
    if (connection->state == CONNECTING) return WEFT_ERR_STATE;
    if (connection->state != OPEN) return WEFT_ERR_CLOSED;
    if (bytes > connection->handler.frame_bytes_max || bytes > UINT32_MAX) return WEFT_ERR_INVALID;
    struct evbuffer *output = bufferevent_get_output(connection->socket);
    if (evbuffer_get_length(output) + HEADER_BYTES + bytes > connection->handler.send_bytes_max) {
        end(connection, WEFT_ERR_LIMIT, "%s reads too slowly: %zu bytes wait for it", connection->name,
            evbuffer_get_length(output));
        return WEFT_ERR_LIMIT;
    }
    uint8_t header[HEADER_BYTES] = {(uint8_t)bytes, (uint8_t)(bytes >> 8), (uint8_t)(bytes >> 16),
                                    (uint8_t)(bytes >> 24)};
    /* Reserve before the first byte: part of a frame must not be sent. */
    if (evbuffer_expand(output, HEADER_BYTES + bytes) != 0 ||
        evbuffer_add(output, header, sizeof header) != 0 || evbuffer_add(output, data, bytes) != 0) {
        end(connection, WEFT_ERR_NO_MEMORY, "no memory for a frame of %zu bytes to %s", bytes,
            connection->name);
        return WEFT_ERR_NO_MEMORY;
    }
    return WEFT_OK;
}

static void on_written(struct bufferevent *socket, void *argument)
{
    struct weft_net_connection *connection = argument;
    if (connection->state == FLUSHING) shut_when_written(connection);
}

/* --- opening --- */

static void connection_opened(struct weft_net_connection *connection)
{
    int on = 1, fd = bufferevent_getfd(connection->socket);
    evutil_make_socket_closeonexec(fd); /* libevent does not set it on connecting sockets */
    fork_close_add(fd);
    /* Control messages are small and latency-sensitive. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection->state = OPEN;
    event_del(connection->timer);
    bufferevent_enable(connection->socket, EV_READ | EV_WRITE);
    if (connection->handler.opened) connection->handler.opened(connection->context, connection);
}

static const char *last_failure(const struct weft_net_connection *connection)
{
    return connection->last_failure[0] ? connection->last_failure
                                       : "no answer: that host is off, or a firewall drops what is sent";
}

static void connect_timed_out(struct weft_net_connection *connection)
{
    end(connection, WEFT_ERR_UNREACHABLE, "no connection to %s until the deadline: %s", connection->name,
        last_failure(connection));
}

/* Logs the reason of a failing connect once, after REPORT_NS. */
static void report_wait(struct weft_net_connection *connection, uint64_t now_ns)
{
    if (connection->report_ns == 0 || now_ns < connection->report_ns) return;
    connection->report_ns = 0;
    weft_log(connection->net->env, WEFT_LOG_WARN, "base",
             "no connection to %s yet, trying for %.0f s more: %s", connection->name,
             (double)weft_elapsed_ns(now_ns, connection->deadline_ns) / 1e9, last_failure(connection));
}

/* The peer may be starting: try again until the deadline. */
static void try_later(struct weft_net_connection *connection)
{
    uint64_t now_ns = weft_now_ns(connection->net->env);
    drop_socket(connection);
    if (now_ns >= connection->deadline_ns) {
        connect_timed_out(connection);
        return;
    }
    report_wait(connection, now_ns);
    uint64_t wait_ns = connection->retry_ns, left_ns = connection->deadline_ns - now_ns;
    if (wait_ns > left_ns) wait_ns = left_ns;
    connection->retry_ns =
        connection->retry_ns * 2 < RETRY_LAST_NS ? connection->retry_ns * 2 : RETRY_LAST_NS;
    struct timeval wait = net_timeval(wait_ns + 1000);
    event_add(connection->timer, &wait);
}

static void on_event(struct bufferevent *socket, short what, void *argument)
{
    struct weft_net_connection *connection = argument;
    int socket_error = EVUTIL_SOCKET_ERROR();
    if (connection->state == ENDED) return;
    if (connection->state == CONNECTING) {
        if (what & BEV_EVENT_CONNECTED) {
            connection_opened(connection);
            return;
        }
        int dns_error = bufferevent_socket_get_dns_error(socket);
        if (dns_error)
            net_name_reason(connection->host, evutil_gai_strerror(dns_error), connection->last_failure,
                            NET_REASON_BYTES);
        else net_connect_reason(connection->host, socket_error, connection->last_failure, NET_REASON_BYTES);
        if (!dns_error && socket_error == ECONNREFUSED && connection->handler.refusal_ends)
            connection->deadline_ns = 0;
        try_later(connection);
    } else if (connection->state == FLUSHING) {
        end(connection, WEFT_ERR_CLOSED, "the connection with %s was closed on this side", connection->name);
    } else if (what & BEV_EVENT_EOF) {
        end(connection, WEFT_ERR_PEER_LOST, "%s closed the connection", connection->name);
    } else {
        end(connection, WEFT_ERR_PEER_LOST, "the connection with %s broke: %s", connection->name,
            strerror(socket_error));
    }
}

static enum weft_status new_socket(struct weft_net_connection *connection, int fd)
{
    connection->socket =
        bufferevent_socket_new(connection->net->base, fd, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!connection->socket) return WEFT_ERR_NO_MEMORY;
    bufferevent_setcb(connection->socket, on_readable, on_written, on_event, connection);
    return WEFT_OK;
}

/* True for a host name, false for a numeric address. */
static bool is_host_name(const char *host)
{
    struct sockaddr_storage address;
    int bytes = sizeof address;
    char text[NET_NAME_BYTES + 2];
    snprintf(text, sizeof text, strchr(host, ':') ? "[%s]" : "%s", host);
    return evutil_parse_sockaddr_port(text, (struct sockaddr *)&address, &bytes) != 0;
}

/* On a host without IPv4, localhost is ::1, whatever /etc/hosts lists. */
static const char *destination(const char *host)
{
    const char *loopback = weft_loopback_host();
    return strcmp(host, "localhost") == 0 && strchr(loopback, ':') ? loopback : host;
}

static void try_connect(struct weft_net_connection *connection)
{
    struct weft_net *net = connection->net;
    const uint64_t now_ns = weft_now_ns(net->env);
    const char *host = destination(connection->host);
    uint64_t left_ns = weft_elapsed_ns(now_ns, connection->deadline_ns);
    if (left_ns == 0) {
        drop_socket(connection);
        connect_timed_out(connection);
        return;
    }
    report_wait(connection, now_ns);
    /* ends a try without answer in time for the report */
    const uint64_t report_ns = weft_elapsed_ns(now_ns, connection->report_ns);
    if (connection->report_ns && report_ns < left_ns) left_ns = report_ns;
    if (!net->dns && is_host_name(host))
        net->dns =
            evdns_base_new(net->base, EVDNS_BASE_INITIALIZE_NAMESERVERS | EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    /* The timer is the deadline of this try. A refusal restarts it for the next one. */
    struct timeval left = net_timeval(left_ns + 1000);
    event_add(connection->timer, &left);
    if (new_socket(connection, -1) < 0) {
        snprintf(connection->last_failure, NET_REASON_BYTES, "out of memory");
        try_later(connection);
    } else if (bufferevent_socket_connect_hostname(connection->socket, net->dns, AF_UNSPEC, host,
                                                 connection->port) != 0) {
        net_connect_reason(connection->host, errno, connection->last_failure, NET_REASON_BYTES);
        try_later(connection);
    } else if (bufferevent_getfd(connection->socket) >= 0) { /* no socket yet during a name look-up */
        evutil_make_socket_closeonexec(bufferevent_getfd(connection->socket));
    }
}

static void on_timer(evutil_socket_t fd, short what, void *argument)
{
    struct weft_net_connection *connection = argument;
    switch (connection->state) {
    case CONNECTING:
        drop_socket(connection); /* of a try without answer */
        try_connect(connection);
        break;
    case OPEN: break;
    case FLUSHING:
        end(connection, WEFT_ERR_CLOSED,
            "the connection with %s was closed on this side, the peer did not answer", connection->name);
        break;
    case ENDED: finish(connection); break;
    }
}

static struct weft_net_connection *new_connection(struct weft_net *net,
                                                  const struct weft_net_handler *handler, void *context)
{
    struct weft_net_connection *connection = weft_alloc_zero(net->env, sizeof *connection);
    if (!connection) return NULL;
    connection->net = net;
    connection->handler = *handler;
    connection->context = context;
    if (handler->frame_bytes_max == 0) connection->handler.frame_bytes_max = FRAME_BYTES_MAX;
    if (handler->send_bytes_max == 0) connection->handler.send_bytes_max = SEND_BYTES_MAX;
    connection->timer = event_new(net->base, -1, 0, on_timer, connection);
    if (!connection->timer) {
        weft_free_bytes(net->env, connection);
        return NULL;
    }
    weft_list_append(&net->connections, &connection->link);
    return connection;
}

enum weft_status net_connection_accept(struct weft_net *net, struct weft_net_listener *listener, int fd,
                                       const struct sockaddr *address, const struct weft_net_handler *handler,
                                       void *context)
{
    struct weft_net_connection *connection = new_connection(net, handler, context);
    if (!connection) {
        close(fd);
        return WEFT_ERR_NO_MEMORY;
    }
    net_address_name(address, connection->name, sizeof connection->name);
    if (new_socket(connection, fd) < 0) {
        close(fd);
        weft_list_remove(&connection->link);
        event_free(connection->timer);
        weft_free_bytes(net->env, connection);
        return WEFT_ERR_NO_MEMORY;
    }
    connection->listener = listener;
    connection_opened(connection);
    return WEFT_OK;
}

enum weft_status weft_net_connect(struct weft_net *net, const char *host, uint16_t port,
                                  const struct weft_net_handler *handler, void *context, uint64_t deadline_ns,
                                  struct weft_net_connection **connection_out)
{
    net_assert_thread(net);
    if (net->freeing) return WEFT_ERR_CLOSED;
    if (port == 0 || host[0] == '\0' || strlen(host) > 253) return WEFT_ERR_INVALID;
    struct weft_net_connection *connection = new_connection(net, handler, context);
    if (!connection) return WEFT_ERR_NO_MEMORY;
    snprintf(connection->host, sizeof connection->host, "%s", host);
    snprintf(connection->name, sizeof connection->name, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    connection->port = port;
    connection->deadline_ns = deadline_ns;
    connection->retry_ns = RETRY_FIRST_NS;
    connection->report_ns = weft_now_ns(net->env) + REPORT_NS;
    event_active(connection->timer, EV_TIMEOUT, 0); /* the first try runs outside this call */
    if (connection_out) *connection_out = connection;
    return WEFT_OK;
}

void weft_net_set_context(struct weft_net_connection *connection, void *context)
{
    connection->context = context;
}

void *weft_net_context(struct weft_net_connection *connection)
{
    return connection->context;
}

const char *weft_net_peer_name(struct weft_net_connection *connection)
{
    return connection->name;
}
