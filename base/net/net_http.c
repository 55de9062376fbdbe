/* net_http.c - HTTP server for metrics, health and status, on libevent's evhttp. Header size, body size and
 * idle time are bounded. */
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/http.h>
#include <event2/listener.h>

#include "base/net/net_internal.h"

#define HEADER_BYTES_MAX 8192
#define BODY_BYTES_MAX 1024
#define IDLE_SECONDS 10

struct net_http_route {
    struct weft_net *net;
    void (*fn)(void *context, const char *path, struct weft_net_http_reply *reply);
    void *context;
};

static const char *code_text(int code)
{
    switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 503: return "Service Unavailable";
    default: return code < 400 ? "OK" : "Error";
    }
}

static void send_reply(struct evhttp_request *request, const struct weft_net_http_reply *reply)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    struct evbuffer *body = evhttp_request_get_output_buffer(request);
    evhttp_add_header(headers, "Content-Type",
                      reply->content_type ? reply->content_type : "text/plain; charset=utf-8");
    if (reply->body_bytes > 0 && evbuffer_add(body, reply->body, reply->body_bytes) != 0) {
        evhttp_send_error(request, 500, "out of memory");
        return;
    }
    evhttp_send_reply(request, reply->code, code_text(reply->code), NULL);
}

static void on_request(struct evhttp_request *request, void *argument)
{
    struct net_http_route *route = argument;
    struct weft_net_http_reply reply = {0};
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    route->fn(route->context, path && path[0] ? path : "/", &reply);
    if (reply.code == 0) reply.code = 404;
    send_reply(request, &reply);
    weft_free_bytes(route->net->env, reply.body);
}

/* `argument` is evhttp's. Not logged: other listeners report that descriptors ran out. */
static void on_accept_error(struct evconnlistener *listener, void *argument)
{
    net_listener_pause(listener);
}

enum weft_status weft_net_http(struct weft_net *net, const char *host, uint16_t port,
                               void (*fn)(void *context, const char *path, struct weft_net_http_reply *reply),
                               void *context, uint16_t *port_out, struct weft_error *error)
{
    int fd;
    uint16_t real_port;
    net_assert_thread(net);
    if (net->http) return weft_error_set(error, WEFT_ERR_EXISTS, "this net serves HTTP already");
    WEFT_TRY(net_bind(host, port, &fd, &real_port, error));
    struct net_http_route *route = weft_alloc_zero(net->env, sizeof *route);
    struct evhttp *http = route ? evhttp_new(net->base) : NULL;
    struct evhttp_bound_socket *bound = http ? evhttp_accept_socket_with_handle(http, fd) : NULL;
    if (!bound) {
        close(fd);
        if (http) evhttp_free(http);
        weft_free_bytes(net->env, route);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for the HTTP server");
    }
    *route = (struct net_http_route){net, fn, context};
    net->http = http;
    net->http_route = route;
    evhttp_set_allowed_methods(http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(http, HEADER_BYTES_MAX);
    evhttp_set_max_body_size(http, BODY_BYTES_MAX);
    evhttp_set_timeout(http, IDLE_SECONDS);
    evhttp_set_gencb(http, on_request, route);
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(bound), on_accept_error);
    if (port_out) *port_out = real_port;
    return WEFT_OK;
}

void net_http_free(struct weft_net *net)
{
    if (net->http) evhttp_free(net->http); /* closes its socket and connections */
    weft_free_bytes(net->env, net->http_route);
    net->http = NULL;
    net->http_route = NULL;
}
