/* net_listener.c - accepts framed connections.
 *
 * Without free descriptors accept fails again and again for the same connection. The listener then pauses
 * instead of spinning. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/listener.h>

#include "base/net/log_limit.h"
#include "base/net/net_internal.h"
#include "base/net/open_connections.h"
#include "base/os/fork_close.h"
#include "base/os/system_limit.h"

#define PAUSE_MS 100
#define CONNECTIONS_MAX 4096

struct weft_net_listener {
    struct weft_list link; /* in net->listeners; first, since weft_net_free casts */
    struct weft_net *net;
    struct evconnlistener *listener; /* owned, and owns the socket */
    struct weft_net_handler handler;
    void *context;
    uint32_t connections;
    struct weft_log_limit refusals;
};

static void connections_add(struct weft_net_listener *listener, int change)
{
    listener->connections += (uint32_t)change;
    weft_open_connections_add(false, change);
}

static void on_pause_end(evutil_socket_t fd, short what, void *argument)
{
    evconnlistener_enable(argument);
}

void net_listener_pause(struct evconnlistener *listener)
{
    struct timeval pause = net_timeval(WEFT_MS(PAUSE_MS));
    /* The event has no owner: listeners and base are freed together. */
    if (event_base_once(evconnlistener_get_base(listener), -1, EV_TIMEOUT, on_pause_end, listener, &pause) ==
        0)
        evconnlistener_disable(listener);
}

static void on_accept_error(struct evconnlistener *evlistener, void *argument)
{
    struct weft_net_listener *listener = argument;
    char event[280];
    const int reason = errno;
    snprintf(event, sizeof event, "cannot accept a connection: %s",
             reason == EMFILE || reason == ENFILE
                 ? weft_reason_text(weft_limit_status("a control connection", reason))
                 : strerror(reason));
    weft_log_limited(listener->net->env, &listener->refusals, "control port", event);
    net_listener_pause(evlistener);
}

static void on_accept(struct evconnlistener *evlistener, evutil_socket_t fd, struct sockaddr *address,
                      int bytes, void *argument)
{
    struct weft_net_listener *listener = argument;
    if (listener->net->freeing) { /* a peer that is being closed must not connect again */
        close(fd);
        return;
    }
    if (listener->connections >= listener->handler.connections_max) {
        char peer[NET_NAME_BYTES], event[80];
        net_address_name(address, peer, sizeof peer);
        snprintf(event, sizeof event, "refused, since %u connections are open", listener->connections);
        weft_log_limited(listener->net->env, &listener->refusals, peer, event);
        close(fd);
        return;
    }
    connections_add(listener, 1);
    if (net_connection_accept(listener->net, listener, fd, address, &listener->handler, listener->context) <
        0) {
        connections_add(listener, -1);
        weft_log_limited(listener->net->env, &listener->refusals, "control port",
                         "no memory for a connection; it was closed");
    }
}

static void on_flush(void *context)
{
    struct weft_net_listener *listener = context;
    weft_log_limit_flush(listener->net->env, &listener->refusals);
}

void net_listener_connection_closed(struct weft_net_listener *listener)
{
    WEFT_ASSERT(listener->connections > 0);
    connections_add(listener, -1);
}

void net_listener_free(struct weft_net_listener *listener)
{
    weft_list_remove(&listener->link);
    if (listener->listener) {
        fork_close_remove(evconnlistener_get_fd(listener->listener));
        evconnlistener_free(listener->listener);
    }
    weft_free_bytes(listener->net->env, listener);
}

/* The descriptor stays until the net is freed, since a pause may refer to the listener. */
void weft_net_unlisten(struct weft_net_listener *listener)
{
    net_assert_thread(listener->net);
    evconnlistener_disable(listener->listener);
    (void)shutdown(evconnlistener_get_fd(listener->listener), SHUT_RDWR);
}

enum weft_status weft_net_listen(struct weft_net *net, const char *host, uint16_t port,
                                 const struct weft_net_handler *handler, void *context, uint16_t *port_out,
                                 struct weft_net_listener **listener_out, struct weft_error *error)
{
    int fd;
    uint16_t real_port;
    net_assert_thread(net);
    WEFT_TRY(net_bind(host, port, &fd, &real_port, error));
    struct weft_net_listener *listener = weft_alloc_zero(net->env, sizeof *listener);
    if (!listener) {
        close(fd);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to listen on %.200s", host);
    }
    listener->net = net;
    listener->handler = *handler;
    if (listener->handler.connections_max == 0) listener->handler.connections_max = CONNECTIONS_MAX;
    listener->context = context;
    listener->refusals.component = "base";
    weft_list_append(&net->listeners, &listener->link);
    listener->listener = evconnlistener_new(net->base, on_accept, listener,
                                            LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!listener->listener) {
        close(fd);
        net_listener_free(listener);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to listen on %.200s", host);
    }
    evconnlistener_set_error_cb(listener->listener, on_accept_error);
    if (weft_net_timer_periodic(net, WEFT_SECONDS(10), on_flush, listener) != WEFT_OK) {
        net_listener_free(listener);
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to listen on %.200s", host);
    }
    fork_close_add(fd); /* a child that outlives this process must not hold the port */
    if (port_out) *port_out = real_port;
    if (listener_out) *listener_out = listener;
    return WEFT_OK;
}
