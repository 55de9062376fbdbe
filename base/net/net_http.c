/* net_http.c - HTTP server: one request for each connection, answered and closed.
 *
 *     accept --> READING --complete head--> ANSWERED --written--> CLOSING --peer closes--> freed
 *        |           |                          |                    |
 *        |           +---- request_ns after accept: freed -----------+
 *        +-- at the limit the oldest connection is closed; without spare descriptors the new one is
 *
 * One timer bounds the whole request, so slow sending does not extend it. A close shuts
 * down the sending half and discards input until the peer closes: close() with unread input would reset the
 * connection, and the peer would lose the reply. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>

#include "base/net/hmac.h"
#include "base/net/http.h"
#include "base/net/http_request.h"
#include "base/net/log_limit.h"
#include "base/net/net_internal.h"
#include "base/net/open_connections.h"
#include "base/os/fork_close.h"

struct weft_http {
    struct weft_net *net;
    struct weft_http_options options; /* token: owned copy */
    struct evconnlistener *listener;  /* owned, and owns the socket */
    struct weft_list connections;     /* struct http_connection.link, oldest first */
    uint32_t connection_count;
    struct weft_log_limit refusals;
    char name[NET_NAME_BYTES]; /* "127.0.0.1:9400", of the listener */
};

enum http_state { READING, ANSWERED, CLOSING };

struct http_connection {
    struct weft_list link;
    struct weft_http *http;
    enum http_state state;
    struct bufferevent *socket; /* owned */
    struct event *timer;        /* owned */
    bool peer_has_ended;        /* the peer sends nothing more */
    char peer[NET_NAME_BYTES];
};

static void connection_free(struct http_connection *connection)
{
    struct weft_http *http = connection->http;
    weft_list_remove(&connection->link);
    http->connection_count--;
    weft_open_connections_add(true, -1);
    if (connection->socket) bufferevent_free(connection->socket);
    if (connection->timer) event_free(connection->timer);
    weft_free_bytes(http->net->env, connection);
}

/* ---- replies ---- */

static const char *code_text(int code)
{
    switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 414: return "URI Too Long";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return code < 400 ? "OK" : "Error";
    }
}

static void close_when_written(struct http_connection *connection)
{
    if (evbuffer_get_length(bufferevent_get_output(connection->socket)) > 0) return;
    connection->state = CLOSING;
    shutdown(bufferevent_getfd(connection->socket), SHUT_WR);
}

static void send_reply(struct http_connection *connection, const struct weft_http_reply *reply, bool is_head)
{
    struct evbuffer *output = bufferevent_get_output(connection->socket);
    connection->state = ANSWERED;
    evbuffer_add_printf(output,
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n"
                        "Cache-Control: no-store\r\n%s%s\r\n",
                        reply->code, code_text(reply->code),
                        reply->content_type ? reply->content_type : "text/plain; charset=utf-8",
                        reply->body_bytes, reply->code == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                        reply->code == 405 ? "Allow: GET, HEAD\r\n" : "");
    if (reply->body_bytes > 0 && !is_head) evbuffer_add(output, reply->body, reply->body_bytes);
}

static void send_error(struct http_connection *connection, int code, const char *sentence, bool is_head)
{
    char body[200];
    snprintf(body, sizeof body, "%s\n", sentence);
    send_reply(connection, &(struct weft_http_reply){.code = code, .body = body, .body_bytes = strlen(body)},
               is_head);
}

static bool has_token(const struct weft_http *http, const struct http_request *request)
{
    const size_t bytes = strlen(http->options.token);
    return strlen(request->token) == bytes &&
           weft_bytes_equal_constant_time(request->token, http->options.token, bytes);
}

static void answer(struct http_connection *connection, const struct http_request *request)
{
    const struct weft_http_options *options = &connection->http->options;
    struct weft_env *env = connection->http->net->env;
    const bool is_trusted = !options->token || has_token(connection->http, request);
    if (!is_trusted && !(options->is_public && options->is_public(request->path))) {
        weft_log_limited(env, &connection->http->refusals, connection->peer,
                         request->token[0] ? "an HTTP request with a wrong token was refused"
                                           : "an HTTP request without the job's token was refused");
        send_error(
            connection, 401,
            "this page needs the token of the job: Authorization: Bearer TOKEN, where TOKEN is printed by "
            "weft status --http-token",
            request->is_head);
        return;
    }
    struct weft_http_reply reply = {0};
    options->answer(options->context, request->path, is_trusted, &reply);
    if (reply.code == 0 || (reply.code == 404 && reply.body_bytes == 0))
        send_error(connection, 404, "there is no such page", request->is_head);
    else if (reply.body_bytes == 0)
        send_error(connection, reply.code, code_text(reply.code), request->is_head);
    else send_reply(connection, &reply, request->is_head);
    weft_free_bytes(env, reply.body);
}

/* ---- events of a connection ---- */

static void on_readable(struct bufferevent *socket, void *argument)
{
    struct http_connection *connection = argument;
    struct evbuffer *input = bufferevent_get_input(socket);
    struct http_request request;
    if (connection->state == READING) {
        const size_t bytes = evbuffer_get_length(input);
        const unsigned char *head = evbuffer_pullup(input, -1);
        const int code = head ? http_request_parse((const char *)head, bytes, &request) : 503;
        if (code == HTTP_INCOMPLETE) return;
        if (code == HTTP_OK) answer(connection, &request);
        else send_error(connection, code, code_text(code), false);
    }
    evbuffer_drain(input, evbuffer_get_length(input));
}

static void on_written(struct bufferevent *socket, void *argument)
{
    struct http_connection *connection = argument;
    if (connection->state != ANSWERED) return;
    close_when_written(connection);
    if (connection->state == CLOSING && connection->peer_has_ended) connection_free(connection);
}

static void on_event(struct bufferevent *socket, short what, void *argument)
{
    struct http_connection *connection = argument;
    /* A client that has shut down its sending half still reads. */
    connection->peer_has_ended = true;
    if (!(what & BEV_EVENT_EOF) || connection->state != ANSWERED) connection_free(connection);
}

static void on_timeout(evutil_socket_t fd, short what, void *argument)
{
    connection_free(argument);
}

/* ---- accepting ---- */

/* The lowest free number is assigned, so at least `fd` descriptors are open. */
static bool has_spare_descriptors(const struct weft_http *http, int fd)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
    rlim_t reserved = http->options.descriptors_reserved;
    if (reserved > limit.rlim_cur / 4) reserved = limit.rlim_cur / 4;
    return (rlim_t)fd + reserved < limit.rlim_cur;
}

static enum weft_status connection_open(struct weft_http *http, int fd, const char *peer)
{
    struct weft_net *net = http->net;
    struct http_connection *connection = weft_alloc_zero(net->env, sizeof *connection);
    const struct timeval limit = net_timeval(http->options.request_ns);
    if (!connection) {
        close(fd);
        return WEFT_ERR_NO_MEMORY;
    }
    connection->http = http;
    snprintf(connection->peer, sizeof connection->peer, "%s", peer);
    weft_list_append(&http->connections, &connection->link);
    http->connection_count++;
    weft_open_connections_add(true, 1);
    connection->timer = event_new(net->base, -1, 0, on_timeout, connection);
    connection->socket =
        bufferevent_socket_new(net->base, fd, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!connection->socket) close(fd);
    if (!connection->socket || !connection->timer || event_add(connection->timer, &limit) != 0) {
        connection_free(connection);
        return WEFT_ERR_NO_MEMORY;
    }
    evutil_make_socket_closeonexec(fd);
    bufferevent_setcb(connection->socket, on_readable, on_written, on_event, connection);
    bufferevent_setwatermark(connection->socket, EV_READ, 0, HTTP_HEAD_BYTES_MAX);
    bufferevent_enable(connection->socket, EV_READ | EV_WRITE);
    return WEFT_OK;
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int bytes, void *argument)
{
    struct weft_http *http = argument;
    char peer[NET_NAME_BYTES], event[NET_NAME_BYTES + 100];
    net_address_name(address, peer, sizeof peer);
    if (!has_spare_descriptors(http, fd)) {
        snprintf(event, sizeof event,
                 "refused at %s: the last descriptors are reserved for the control plane (ulimit -n)",
                 http->name);
        weft_log_limited(http->net->env, &http->refusals, peer, event);
        close(fd);
        return;
    }
    if (http->connection_count >= http->options.connections_max) {
        struct http_connection *oldest = weft_list_first(&http->connections, struct http_connection, link);
        snprintf(event, sizeof event, "closed at %s for a newer connection, since %u are open", http->name,
                 http->connection_count);
        weft_log_limited(http->net->env, &http->refusals, oldest->peer, event);
        connection_free(oldest);
    }
    if (connection_open(http, fd, peer) < 0)
        weft_log_limited(http->net->env, &http->refusals, peer, "no memory for an HTTP connection");
}

static void on_accept_error(struct evconnlistener *listener, void *argument)
{
    struct weft_http *http = argument;
    weft_log_limited(http->net->env, &http->refusals, http->name, "cannot accept an HTTP connection");
    net_listener_pause(listener);
}

static void on_flush(void *context)
{
    struct weft_http *http = context;
    weft_log_limit_flush(http->net->env, &http->refusals);
}

/* ---- life ---- */

void weft_http_options_init(struct weft_http_options *options)
{
    *options = (struct weft_http_options){.host = "127.0.0.1",
                                          .connections_max = 64,
                                          .request_ns = WEFT_SECONDS(10),
                                          .descriptors_reserved = 64};
}

static enum weft_status http_create(struct weft_net *net, const struct weft_http_options *options, int fd,
                                    uint16_t port)
{
    struct weft_http *http = weft_alloc_zero(net->env, sizeof *http);
    if (!http) return WEFT_ERR_NO_MEMORY;
    net->http = http;
    http->net = net;
    http->options = *options;
    http->refusals.component = WEFT_LOG_LIMIT_HTTP;
    weft_list_init(&http->connections);
    snprintf(http->name, sizeof http->name, "%.250s:%u", options->host, port);
    http->options.token = options->token ? weft_alloc_text(net->env, options->token) : NULL;
    if (options->token && !http->options.token) return WEFT_ERR_NO_MEMORY;
    WEFT_TRY(weft_net_timer_periodic(net, WEFT_SECONDS(1), on_flush, http));
    http->listener =
        evconnlistener_new(net->base, on_accept, http, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!http->listener) return WEFT_ERR_NO_MEMORY;
    evconnlistener_set_error_cb(http->listener, on_accept_error);
    fork_close_add(fd); /* a child that outlives this process must not hold the port */
    return WEFT_OK;
}

enum weft_status weft_http_start(struct weft_net *net, const struct weft_http_options *options,
                                 uint16_t *port_out, struct weft_error *error)
{
    int fd;
    uint16_t port;
    net_assert_thread(net);
    WEFT_ASSERT(options->answer && options->connections_max > 0 && options->request_ns > 0);
    if (net->http) return weft_error_set(error, WEFT_ERR_EXISTS, "this net serves HTTP already");
    WEFT_TRY(net_bind(options->host, options->port, &fd, &port, error));
    if (http_create(net, options, fd, port) != WEFT_OK) {
        if (!net->http || !net->http->listener) close(fd);
        net_http_free(net);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the HTTP server");
    }
    if (port_out) *port_out = port;
    return WEFT_OK;
}

void net_http_free(struct weft_net *net)
{
    struct weft_http *http = net->http;
    if (!http) return;
    while (!weft_list_empty(&http->connections))
        connection_free(weft_list_first(&http->connections, struct http_connection, link));
    if (http->listener) {
        fork_close_remove(evconnlistener_get_fd(http->listener));
        evconnlistener_free(http->listener);
    }
    weft_free_bytes(net->env, (char *)http->options.token);
    weft_free_bytes(net->env, http);
    net->http = NULL;
}
