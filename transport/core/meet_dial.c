/* meet_dial.c - the smaller id's part: one attempt after another, each with its own deadline, until meet_ns.
 *
 * That nobody listens is final at once for a Unix socket and after a few attempts over TCP: an endpoint listens before its
 * address exists, so one that does not listen has ended. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/core/meet_internal.h"

#define REST_FIRST_NS WEFT_MS(10)
#define REST_LAST_NS WEFT_MS(500)
enum { NOBODY_MAX = 5 };

static void cannot_dial(struct meet_peer *peer, int reason)
{
    char where[80];
    meet_where_name(&peer->where, where, sizeof where);
    snprintf(peer->text, sizeof peer->text, "cannot connect to endpoint %u on %s: %s", peer->id, where,
             strerror(reason));
    if (reason == ECONNREFUSED &&
        (peer->where.storage.ss_family == AF_UNIX || ++peer->nobody_count >= NOBODY_MAX)) {
        snprintf(peer->text, sizeof peer->text,
                 "nobody listens for endpoint %u on %s: its process has ended%s", peer->id, where,
                 peer->where.storage.ss_family == AF_UNIX ? "" : ", or a firewall refuses");
        peer_fail(peer, WEFT_ERR_UNREACHABLE, peer->text);
    } else {
        peer_rest(peer);
    }
}

void peer_rest(struct meet_peer *peer)
{
    struct meet *meet = peer->meet;
    peer->state = PEER_RESTING;
    peer->rest_ns = peer->rest_ns == 0                 ? REST_FIRST_NS
                    : peer->rest_ns * 2 < REST_LAST_NS ? peer->rest_ns * 2
                                                       : REST_LAST_NS;
    /* Spread, so that a thousand that were turned away together do not come back together. */
    peer->retry_ns =
        weft_now_ns(meet->env) + peer->rest_ns / 2 + weft_random_u64(meet->env) % (peer->rest_ns / 2);
    weft_list_append(&meet->resting, &peer->resting);
    meet_set_timer(meet, peer->retry_ns);
}

void peer_dial(struct meet_peer *peer)
{
    struct meet *meet = peer->meet;
    peer->state = PEER_DIALLING;
    peer->attempts++;
    int fd = socket(peer->where.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        cannot_dial(peer, errno);
        return;
    }
    struct connection *connection = connection_make(meet, fd, HANDSHAKE_DIALER, peer->id);
    if (!connection) {
        peer_fail(peer, WEFT_ERR_NO_MEMORY, "no memory for a connection");
        return;
    }
    meet_where_name(&peer->where, connection->name, sizeof connection->name);
    connection->peer = peer;
    peer->connection = connection;
    connection->since_ns = weft_now_ns(meet->env);
    connection->deadline_ns = connection->since_ns + meet->options.half_open_ns;
    weft_list_append(&meet->dialling, &connection->link);
    meet_set_timer(meet, connection->deadline_ns);

    int reason =
        connect(fd, (const struct sockaddr *)&peer->where.storage, peer->where.bytes) == 0 ? 0 : errno;
    connection->connecting = reason == EINPROGRESS;
    connection->interest = connection->connecting ? EPOLLOUT : EPOLLIN;
    if (reason == 0 || reason == EINPROGRESS) {
        if (meet_watch(meet, fd, &connection->socket, connection->interest) < 0) reason = ENOBUFS;
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
        struct meet_peer *peer = connection->peer;
        connection_close(connection);
        cannot_dial(peer, reason);
        return;
    }
    connection->peer->nobody_count = 0;
    connection_want(connection, EPOLLIN);
    enum meet_reason refusal = connection_know_peer(connection);
    if (refusal) connection_refuse(connection, refusal);
    else if (!connection_say(connection))
        connection_lost(connection, WEFT_ERR_PEER_LOST, "closed the connection or ended");
}

int dial_timers(struct meet *meet, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    int count = 0;
    while (!weft_list_empty(&meet->dialling)) {
        struct connection *oldest = weft_list_first(&meet->dialling, struct connection, link);
        if (oldest->deadline_ns > now_ns) break;
        connection_refuse(oldest, MEET_SLOW);
        count++;
    }
    weft_list_foreach (node, spare, &meet->resting) {
        struct meet_peer *peer = weft_container_of(node, struct meet_peer, resting);
        if (peer->retry_ns > now_ns) continue;
        weft_list_remove(&peer->resting);
        peer_dial(peer);
        count++;
    }
    return count;
}

uint64_t dial_next_ns(const struct meet *meet)
{
    uint64_t next_ns = WEFT_NEVER;
    if (!weft_list_empty(&meet->dialling))
        next_ns = weft_list_first(&meet->dialling, struct connection, link)->deadline_ns;
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &meet->resting) {
        const struct meet_peer *peer = weft_container_of(node, struct meet_peer, resting);
        if (peer->retry_ns < next_ns) next_ns = peer->retry_ns;
    }
    return next_ns;
}
