/* net_internal.h - structs and functions shared by net*.c. Internal to base. */
#ifndef WEFT_BASE_NET_NET_INTERNAL_H
#define WEFT_BASE_NET_NET_INTERNAL_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <event2/event.h>

#include "base/os/descriptor.h"
#include "base/list.h"
#include "base/loop/mailbox.h"
#include "base/net/net.h"
#include "base/weft_assert.h"

#define NET_NAME_BYTES 300 /* host name of 253 bytes, colon, port */

struct net_timer { /* one weft_net_timer_periodic or weft_net_timer_once */
    struct weft_list link;
    struct weft_net *net;
    struct event *event;
    bool is_once; /* freed when it fires */
    void (*fn)(void *context);
    void *context;
};

struct weft_net {
    struct weft_env *env;
    struct event_base *base;
    struct evdns_base *dns; /* created by the first connect to a name */
    struct weft_http *http;   /* owned; NULL: no HTTP server */

    struct weft_list connections, listeners, timers;

    pthread_t thread;
    _Atomic pthread_t owner; /* the same; the thread writes it before its first callback */
    bool started;

    struct mailbox mailbox;
    struct weft_command pause_command;
    atomic_uint pause_state;        /* enum: state of weft_net_pause; a futex */
    atomic_bool is_eventfd_written; /* the eventfd is readable, or about to be */
    bool stopping;                  /* set by a command, on the net thread */
    atomic_bool is_broken;          /* the program closed or replaced a descriptor: the base is not used
                                     * any more; set by the net thread */
    atomic_uint posted;             /* number of posts; a futex if is_broken */
    struct descriptor_id event_id;
    bool freeing;      /* weft_net_connect fails */
    int event_fd;
    struct event *command_event, *step_event;
};

static inline void net_assert_thread(struct weft_net *net)
{
    WEFT_ASSERT(!net->started || pthread_equal(pthread_self(), atomic_load(&net->owner)));
}

static inline struct timeval net_timeval(uint64_t ns)
{
    return (struct timeval){(time_t)(ns / 1000000000u), (suseconds_t)(ns % 1000000000u / 1000)};
}

/* net_connection.c: ends and frees; `closed` runs. For weft_net_free. */
void net_connection_kill(struct weft_net_connection *connection);
/* Outgoing connections: is its descriptor still a socket? True while there is none. */
bool net_connection_is_intact(const struct weft_net_connection *connection);
/* Its descriptors were closed from outside: ends with WEFT_ERR_IO and frees; `closed` runs. */
void net_connection_break(struct weft_net_connection *connection);
/* net_listener.c: for weft_net_free; and for a connection that ends. */
void net_listener_free(struct weft_net_listener *listener);
void net_listener_connection_closed(struct weft_net_listener *listener);
/* Creates a connection for an accepted socket. Owns the socket from here on, also on failure. */
enum weft_status net_connection_accept(struct weft_net *net, struct weft_net_listener *listener, int fd,
                                       const struct sockaddr *address, const struct weft_net_handler *handler,
                                       void *context);
/* After an accept error: stops accepting for PAUSE_MS. The listener must live as long as the net. */
struct evconnlistener;
void net_listener_pause(struct evconnlistener *listener);
/* net_http.c */
void net_http_free(struct weft_net *net);

/* net_socket.c */
struct net_address {
    struct sockaddr_storage storage;
    socklen_t bytes;
};
/* May block in the system's resolver. */
enum weft_status net_address_resolve(const char *host, uint16_t port, struct net_address *address_out,
                                struct weft_error *error);
/* Opens a listening socket; writes its port to *port_out. */
enum weft_status net_bind(const char *host, uint16_t port, int *fd_out, uint16_t *port_out,
                          struct weft_error *error);
void net_address_name(const struct sockaddr *address, char *text, size_t bytes);

#endif
