/* net.h - sockets of the control connections: framed messages over libevent (HTTP: http.h). Not for data.
 *
 * A weft_net is one libevent base with its own thread. Tests step it instead. All callbacks run on the net
 * thread, never inside the call that caused them. Before weft_net_start the creating thread is the net
 * thread. A frame is a 4-byte little-endian length and that many bytes. A length above frame_bytes_max closes
 * the connection with WEFT_ERR_MALFORMED. Frames that wait to be sent are bounded by send_bytes_max: a slow
 * peer is closed and blocks no other. Admission, and the time limit for silent connections, belong to the
 * protocol above. */
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
    /* A connection was accepted, or an outgoing one is established. */
    void (*opened)(void *context, struct weft_net_connection *connection);
    /* One complete frame; `data` is valid during the call. */
    void (*frame)(void *context, struct weft_net_connection *connection, const uint8_t *data, size_t bytes);
    /* The connection has ended: closed by the peer, refused, too slow, malformed, or closed here. Its memory
     * is valid until the return. Called exactly once per connection. */
    void (*closed)(void *context, struct weft_net_connection *connection, enum weft_status reason,
                   const char *text);
    size_t frame_bytes_max;   /* longest frame, both directions; 0: 4 MiB */
    size_t send_bytes_max;    /* frames waiting to be sent on one connection; 0: 16 MiB */
    uint32_t connections_max; /* open connections of one listener; 0: 4096. Further ones are closed at once */
    bool refusal_ends;        /* outgoing: no process listens at the address: do not try again */
};
/* Reasons of `closed`: WEFT_ERR_IO (the program closed or replaced descriptors of this net),
 * WEFT_ERR_PEER_LOST (closed by the peer), WEFT_ERR_UNREACHABLE (no connection until the deadline),
 * WEFT_ERR_MALFORMED (frame too long), WEFT_ERR_LIMIT (slow reader), WEFT_ERR_CLOSED (weft_net_close or
 * weft_net_free), WEFT_ERR_NO_MEMORY. The text names the peer. */

/* The loopback address: "127.0.0.1", or "::1" if only that can be bound (a host without IPv4). Static text.
 * Any thread. */
const char *weft_loopback_host(void);

enum weft_status weft_net_create(struct weft_env *env, struct weft_net **net_out);
/* Starts the thread. */
enum weft_status weft_net_start(struct weft_net *net);
/* Stops and joins the thread. Then, on the calling thread: runs the commands left in the mailbox, closes all
 * connections (at most 300 ms; closed callbacks run, opened and HTTP callbacks may), frees. NULL has no
 * effect. Not from the net thread. */
void weft_net_free(struct weft_net *net);
/* Tests without a thread: runs callbacks for at most timeout_ms. */
void weft_net_step(struct weft_net *net, int timeout_ms);

/* Any thread: pause stops the net thread between two events until resume; for a process that exits. Waits for
 * at most timeout_ns; a net thread that is busy until then pauses afterwards. No effect on the net thread
 * itself. resume has no effect if the net is not paused. */
void weft_net_pause(struct weft_net *net, uint64_t timeout_ns);
void weft_net_resume(struct weft_net *net);
/* Any thread: runs command->fn once on the net thread. Commands of one thread run in the order of their
 * posts. */
void weft_net_post(struct weft_net *net, struct weft_command *command);

/* Periodic timer on the net thread; first call after period_ns. Net thread, or before start.
 * WEFT_ERR_NO_MEMORY. */
enum weft_status weft_net_timer_periodic(struct weft_net *net, uint64_t period_ns, void (*fn)(void *),
                                         void *context);
/* The same, called once. Not called if the net is freed before. */
enum weft_status weft_net_timer_once(struct weft_net *net, uint64_t delay_ns, void (*fn)(void *),
                                     void *context);

/* Listens on host:port. port 0: any free one; the port in use is written to *port_out. Net thread. The
 * handler is copied. WEFT_ERR_EXISTS: the port is in use (the text has it). WEFT_ERR_NOT_FOUND: not an
 * address of this host. */
enum weft_status weft_net_listen(struct weft_net *net, const char *host, uint16_t port,
                                 const struct weft_net_handler *handler, void *context, uint16_t *port_out,
                                 struct weft_net_listener **listener_out, struct weft_error *error);
/* Refuses connections from now on; those that are open stay. Net thread. */
void weft_net_unlisten(struct weft_net_listener *listener);
/* Does not block: `opened` or `closed` follows. Retries until deadline_ns. Net thread. The handler is copied.
 */
enum weft_status weft_net_connect(struct weft_net *net, const char *host, uint16_t port,
                                  const struct weft_net_handler *handler, void *context, uint64_t deadline_ns,
                                  struct weft_net_connection **connection_out);
/* Net thread. Copies the bytes. WEFT_ERR_STATE: not opened yet. WEFT_ERR_CLOSED. WEFT_ERR_INVALID: longer
 * than frame_bytes_max. WEFT_ERR_LIMIT: slow peer, which is being closed. WEFT_ERR_NO_MEMORY. */
enum weft_status weft_net_send(struct weft_net_connection *connection, const void *data, size_t bytes);
/* Net thread. Writes the frames sent so far, waits for the peer to close (at most 5 s), then closes. No frame
 * is delivered any more; `closed` follows. */
void weft_net_close(struct weft_net_connection *connection);
void weft_net_set_context(struct weft_net_connection *connection, void *context);
void *weft_net_context(struct weft_net_connection *connection);
const char *weft_net_peer_name(struct weft_net_connection *connection); /* "127.0.0.1:4711" */

/* Does a process listen? Connects to the host's addresses in turn until one accepts, and closes the
 * connection. host: a name, or an address without brackets; port: a number as text. Blocks for the name
 * server, and at most `ms` for each address. Any thread. Returns 0: one accepts; ECONNREFUSED: all refuse;
 * otherwise another reason as an errno, EHOSTUNREACH if the host has no address. (net_probe.c) */
int weft_net_probe(const char *host, const char *port, uint32_t ms);

#endif
