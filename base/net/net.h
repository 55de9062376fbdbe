/* net.h - control-plane sockets: framed messages and HTTP over libevent. Never the data path.
 *
 * A `weft_net` is one libevent base with its own thread (or stepped by the caller in tests). All callbacks
 * run on that thread, never from inside the call that caused them; "net thread" below means that thread,
 * or the one that made the net while it is not started. A frame is a 4-byte little-endian length and that
 * many bytes, length bounded by frame_bytes_max; a longer one closes the connection with
 * WEFT_ERR_MALFORMED. Frames that wait to be sent are bounded too (send_bytes_max): a slow peer is closed,
 * it blocks nobody. Who may connect, and how long a silent connection may stay, is for the protocol above
 * (weft_net_timer_periodic). */
#ifndef WEFT_BASE_NET_NET_H
#define WEFT_BASE_NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/loop/loop.h"
#include "weft/status.h"

struct weft_net;
struct weft_net_listener;
struct weft_net_connection;

struct weft_net_handler {
    /* A new connection was accepted, or an outgoing one is established. */
    void (*opened)(void *context, struct weft_net_connection *connection);
    /* One whole frame; `bytes` are valid during the call. */
    void (*frame)(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes);
    /* The connection is gone (peer closed or died, refused, too slow, malformed, or closed here); its
     * memory is valid until this returns. Called exactly once per connection. */
    void (*closed)(void *context, struct weft_net_connection *connection, enum weft_status reason,
                   const char *text);
    size_t frame_bytes_max;   /* of a received or sent frame; 0: 4 MiB */
    size_t send_bytes_max;    /* of frames waiting to be sent on one connection; 0: 16 MiB */
    uint32_t connections_max; /* accepted and open at once on one listener; 0: 4096. More are closed
                               * unheard */
};
/* Reasons of `closed`: WEFT_ERR_IO (the program closed or replaced descriptors of this net),
 * WEFT_ERR_PEER_LOST (peer closed or died), _UNREACHABLE (no connection until the deadline), _MALFORMED
 * (frame too long), _LIMIT (too slow a reader), _CLOSED (weft_net_close or _free), _NO_MEMORY. The text
 * names the peer. */

/* The address by which processes of this host reach each other: "127.0.0.1", or "::1" where only that can
 * be bound (a host with IPv6 alone). Static text. Any thread. */
const char *weft_loopback_host(void);

struct weft_net_http_reply {
    int code;                 /* 200, 404, ... */
    const char *content_type;
    char *body;               /* allocated with the env; net frees it */
    size_t body_bytes;
};

enum weft_status weft_net_create(struct weft_env *env, struct weft_net **net_out);
/* Starts the thread. */
enum weft_status weft_net_start(struct weft_net *net);
/* Stops and joins the thread; then, on the caller's thread, runs the letters still in the box, closes
 * everything as weft_net_close does but for at most 300 ms (closed callbacks run; opened and HTTP
 * callbacks may), and frees. NULL is fine. Not from the net thread. */
void weft_net_free(struct weft_net *net);
/* Tests without a thread: run callbacks for at most timeout_ms. */
void weft_net_step(struct weft_net *net, int timeout_ms);

/* Any thread: stop the net's thread where it is between two events, until weft_net_resume; for a process
 * that exits. Waits for at most timeout_ns; a thread that comes later to it is held then. No effect on the
 * net's own thread. release: fine when it is not held. */
void weft_net_pause(struct weft_net *net, uint64_t timeout_ns);
void weft_net_resume(struct weft_net *net);
/* Any thread: run mail->fn on the net's thread, once, in the order posted by one thread. */
void weft_net_post(struct weft_net *net, struct weft_command *command);

/* A periodic timer on the net's thread; first call after period. Net thread, or before start. */
enum weft_status weft_net_timer_periodic(struct weft_net *net, uint64_t period_ns, void (*fn)(void *),
                                         void *context);
/* The same, called once; not at all if the net is freed before. WEFT_ERR_NO_MEMORY. */
enum weft_status weft_net_timer_once(struct weft_net *net, uint64_t delay_ns, void (*fn)(void *),
                                     void *context);

/* host:port, port 0 picks a free one; the real one is written to *port_out. Net thread. The handler is
 * copied. WEFT_ERR_EXISTS: the port is in use (text says which); WEFT_ERR_NOT_FOUND: no such address. */
enum weft_status weft_net_listen(struct weft_net *net, const char *host, uint16_t port,
                                 const struct weft_net_handler *handler, void *context, uint16_t *port_out,
                                 struct weft_net_listener **listener_out, struct weft_error *error);
/* Never blocks: opened or closed follows. Retries until deadline_ns. Net thread; the handler is copied. */
enum weft_status weft_net_connect(struct weft_net *net, const char *host, uint16_t port,
                                  const struct weft_net_handler *handler, void *context, uint64_t deadline_ns,
                                  struct weft_net_connection **connection_out);
/* Net thread. Copies the bytes. WEFT_ERR_STATE (not opened yet), WEFT_ERR_CLOSED, WEFT_ERR_INVALID (longer
 * than frame_bytes_max), WEFT_ERR_LIMIT (peer too slow; it is being closed), WEFT_ERR_NO_MEMORY. */
enum weft_status weft_net_send(struct weft_net_connection *connection, const void *data, size_t bytes);
/* Net thread: write what was sent and wait for the peer's end (for at most 5 s), then close; no frame
 * comes any more, `closed` follows. */
void weft_net_close(struct weft_net_connection *connection);
void weft_net_set_context(struct weft_net_connection *connection, void *context);
void *weft_net_context(struct weft_net_connection *connection);
const char *weft_net_peer_name(struct weft_net_connection *connection); /* "127.0.0.1:4711" */

/* HTTP server of GET and HEAD: fn answers each path (as sent, without query) on the net thread; a reply
 * left zero is a 404. Call on the net thread. Statuses as weft_net_listen. */
enum weft_status weft_net_http(struct weft_net *net, const char *host, uint16_t port,
                               void (*fn)(void *context, const char *path, struct weft_net_http_reply *reply),
                               void *context, uint16_t *port_out, struct weft_error *error);

#endif
