/* bootstrap_dial.c - the dialling side (the smaller id): repeated attempts, each with a deadline, until
 * connect_timeout_ns.
 *
 * "Connection refused" is final at once for a Unix socket and after REFUSED_DIALS_MAX attempts over TCP.
 * An endpoint listens before its address exists, so a refused dial means that the endpoint has ended. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/bootstrap/bootstrap_internal.h"

#define BACKOFF_FIRST_NS WEFT_MS(10)
#define BACKOFF_LAST_NS WEFT_MS(500)
enum { REFUSED_DIALS_MAX = 5 };

static void cannot_dial(struct bootstrap_peer *peer, int reason)
{
    char socket_address[80];
    socket_address_name(&peer->socket_address, socket_address, sizeof socket_address);
    snprintf(peer->text, sizeof peer->text, "cannot connect to endpoint %u on %s: %s", peer->id,
             socket_address, strerror(reason));
    if (reason == ECONNREFUSED && (peer->socket_address.storage.ss_family == AF_UNIX ||
                                   ++peer->refused_dial_count >= REFUSED_DIALS_MAX)) {
        snprintf(peer->text, sizeof peer->text,
                 "no process listens for endpoint %u on %s: it has ended%s", peer->id, socket_address,
                 peer->socket_address.storage.ss_family == AF_UNIX ? "" : ", or a firewall refuses");
        peer_fail(peer, WEFT_ERR_UNREACHABLE, peer->text);
    } else {
        peer_back_off(peer);
    }
}

void peer_back_off(struct bootstrap_peer *peer)
{
    struct bootstrap *bootstrap = peer->bootstrap;
    peer->state = PEER_BACKING_OFF;
    peer->backoff_ns = peer->backoff_ns == 0                 ? BACKOFF_FIRST_NS
                    : peer->backoff_ns * 2 < BACKOFF_LAST_NS ? peer->backoff_ns * 2
                                                       : BACKOFF_LAST_NS;
    /* Random spread: endpoints that were refused together must not dial again together. */
    peer->retry_ns = weft_now_ns(bootstrap->env) + peer->backoff_ns / 2 +
                     weft_random_u64(bootstrap->env) % (peer->backoff_ns / 2);
    weft_list_append(&bootstrap->backing_off, &peer->backing_off);
    bootstrap_set_timer(bootstrap, peer->retry_ns);
}

void peer_dial(struct bootstrap_peer *peer)
{
    struct bootstrap *bootstrap = peer->bootstrap;
    peer->state = PEER_DIALLING;
    peer->attempts++;
    int fd = socket(peer->socket_address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        cannot_dial(peer, errno);
        return;
    }
    struct connection *connection = connection_create(bootstrap, fd, HANDSHAKE_DIALER, peer->id);
    if (!connection) {
        peer_fail(peer, WEFT_ERR_NO_MEMORY, "no memory for a connection");
        return;
    }
    socket_address_name(&peer->socket_address, connection->name, sizeof connection->name);
    connection->peer = peer;
    peer->connection = connection;
    connection->since_ns = weft_now_ns(bootstrap->env);
    connection->deadline_ns = connection->since_ns + bootstrap->options.half_open_ns;
    weft_list_append(&bootstrap->dialling, &connection->link);
    bootstrap_set_timer(bootstrap, connection->deadline_ns);

    int reason =
        connect(fd, (const struct sockaddr *)&peer->socket_address.storage, peer->socket_address.bytes) == 0
            ? 0
            : errno;
    connection->connecting = reason == EINPROGRESS;
    connection->interest = connection->connecting ? EPOLLOUT : EPOLLIN;
    if (reason == 0 || reason == EINPROGRESS) {
        if (bootstrap_watch_fd(bootstrap, fd, &connection->socket, connection->interest) < 0)
            reason = ENOBUFS;
        else if (reason == 0) connection_dialled(connection);
    }
    if (reason == 0 || reason == EINPROGRESS) return;
    connection_close(connection);
    cannot_dial(peer, reason);
}

void connection_dialled(struct connection *connection)
{
    int reason = 0;
    socklen_t bytes = sizeof reason;
    connection->connecting = false;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &reason, &bytes) != 0) reason = errno;
    if (reason != 0) {
        struct bootstrap_peer *peer = connection->peer;
        connection_close(connection);
        cannot_dial(peer, reason);
        return;
    }
    connection->peer->refused_dial_count = 0;
    connection_set_events(connection, EPOLLIN);
    enum bootstrap_refusal refusal = connection_identify_peer(connection);
    if (refusal) connection_refuse(connection, refusal);
    else if (!connection_flush_handshake(connection))
        connection_lost(connection, WEFT_ERR_PEER_LOST, "closed the connection or ended");
}

int dial_timers(struct bootstrap *bootstrap, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    int count = 0;
    while (!weft_list_empty(&bootstrap->dialling)) {
        struct connection *oldest = weft_list_first(&bootstrap->dialling, struct connection, link);
        if (oldest->deadline_ns > now_ns) break;
        connection_refuse(oldest, BOOTSTRAP_TIMED_OUT);
        count++;
    }
    weft_list_foreach (node, spare, &bootstrap->backing_off) {
        struct bootstrap_peer *peer = weft_container_of(node, struct bootstrap_peer, backing_off);
        if (peer->retry_ns > now_ns) continue;
        weft_list_remove(&peer->backing_off);
        peer_dial(peer);
        count++;
    }
    return count;
}

uint64_t dial_next_ns(const struct bootstrap *bootstrap)
{
    uint64_t next_ns = WEFT_NEVER;
    if (!weft_list_empty(&bootstrap->dialling))
        next_ns = weft_list_first(&bootstrap->dialling, struct connection, link)->deadline_ns;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &bootstrap->backing_off) {
        const struct bootstrap_peer *peer = weft_container_of(node, struct bootstrap_peer, backing_off);
        if (peer->retry_ns < next_ns) next_ns = peer->retry_ns;
    }
    return next_ns;
}
