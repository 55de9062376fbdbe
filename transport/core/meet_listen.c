/* meet_listen.c - the door: accepting never waits, and strangers are few, brief and the oldest goes first.
 *
 * When half_open_max strangers are inside, the next one takes the place of the oldest, but not of one younger than
 * STRANGER_GRACE_NS: an honest endpoint on the same machine needs less than that to prove itself. Until then the listener
 * leaves epoll and newcomers wait in the system's queue. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/core/meet_internal.h"

#define STRANGER_GRACE_NS WEFT_MS(20)
#define LISTENER_REST_NS WEFT_MS(100) /* after accept failed for want of descriptors or memory */
enum { LISTEN_QUEUE = 1024, ACCEPTS_PER_ROUND = 16, NAME_ATTEMPTS = 4 };

static enum weft_status cannot_listen(const struct meet_where *where, int reason, struct weft_error *error)
{
    char name[80];
    meet_where_name(where, name, sizeof name);
    if (reason == EMFILE || reason == ENFILE)
        return weft_error_set(error, weft_limit_of("a listening socket", reason), "cannot listen for peers on %s: %s", name, weft_reason_text(WEFT_ERR_LIMIT));
    enum weft_status status = reason == ENOMEM || reason == ENOBUFS ? WEFT_ERR_NO_MEMORY
                              : reason == EADDRNOTAVAIL               ? WEFT_ERR_NOT_FOUND
                              : reason == EADDRINUSE                  ? WEFT_ERR_EXISTS
                                                                      : WEFT_ERR_IO;
    return weft_error_set(error, status, "cannot listen for peers on %s: %s", name, strerror(reason));
}

/* A listening socket at `where`; its real address is written back. errno on -1. */
static int listen_at(struct meet_where *where)
{
    struct sockaddr *name = (struct sockaddr *)&where->storage;
    int on = 1, fd = socket(where->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (where->storage.ss_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, name, where->bytes) == 0 && listen(fd, LISTEN_QUEUE) == 0 &&
        getsockname(fd, name, &where->bytes) == 0)
        return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

enum weft_status meet_listen(struct meet *meet, struct weft_error *error)
{
    const struct meet_options *options = &meet->options;
    uint32_t first = options->port_first, last = first > 0 ? options->port_last : 0;
    if (options->family == MEET_UNIX) first = 0, last = NAME_ATTEMPTS - 1;
    for (uint32_t port = first; port <= last; port++) {
        struct meet_where where;
        WEFT_TRY(meet_where_local(meet, (uint16_t)port, &where, error));
        meet->listen_fd = listen_at(&where);
        if (meet->listen_fd >= 0) {
            meet_address_encode(meet, &where);
            return meet_watch(meet, meet->listen_fd, &meet->listener, EPOLLIN);
        }
        if (errno != EADDRINUSE || port == last) {
            if (errno == EADDRINUSE && last > first && options->family == MEET_TCP)
                return weft_error_set(error, WEFT_ERR_EXISTS,
                                      "every port from %u to %u of %.100s is in use; widen the range", first,
                                      last, options->bind_host);
            return cannot_listen(&where, errno, error);
        }
    }
    return WEFT_ERR_INTERNAL;
}

void meet_listen_rest(struct meet *meet, bool rest, uint64_t again_ns)
{
    struct epoll_event interest = {.events = rest ? 0 : EPOLLIN, .data.ptr = &meet->listener};
    meet->listen_again_ns = rest ? again_ns : WEFT_NEVER;
    if (meet->listener_rests == rest) return;
    meet->listener_rests = rest;
    epoll_ctl(meet->epoll_fd, EPOLL_CTL_MOD, meet->listen_fd, &interest);
}

/* Room for one more stranger? The oldest goes, if he had his chance. */
static bool make_room(struct meet *meet, uint64_t now_ns)
{
    if (meet->stats.half_open < meet->options.half_open_max) return true;
    struct connection *oldest = weft_list_first(&meet->strangers, struct connection, link);
    if (weft_since_ns(oldest->since_ns, now_ns) < STRANGER_GRACE_NS) {
        meet_listen_rest(meet, true, oldest->since_ns + STRANGER_GRACE_NS);
        return false;
    }
    connection_refuse(oldest, MEET_CROWDED);
    return true;
}

static void welcome(struct meet *meet, int fd, uint64_t now_ns)
{
    struct connection *connection = connection_make(meet, fd, HANDSHAKE_ACCEPTER, 0);
    if (!connection) {
        meet_count_refusal(meet, MEET_NO_RESOURCE, "a stranger");
        return;
    }
    connection->since_ns = now_ns;
    connection->deadline_ns = now_ns + meet->options.half_open_ns;
    weft_list_append(&meet->strangers, &connection->link);
    meet->stats.half_open++;
    enum meet_reason reason = connection_know_peer(connection);
    if (!reason && meet_watch(meet, fd, &connection->socket, EPOLLIN) < 0) reason = MEET_NO_RESOURCE;
    if (reason) connection_refuse(connection, reason);
    else connection->interest = EPOLLIN;
}

int meet_accept(struct meet *meet)
{
    uint64_t now_ns = weft_now_ns(meet->env);
    int count = 0;
    while (count < ACCEPTS_PER_ROUND && make_room(meet, now_ns)) {
        int fd = accept4(meet->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            welcome(meet, fd, now_ns);
            count++;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            meet_count_refusal(meet, MEET_NO_RESOURCE, "a stranger");
            meet_listen_rest(meet, true, now_ns + LISTENER_REST_NS);
            break;
        } else if (errno == EAGAIN) {
            break;
        } else {
            count++; /* this one broke before we came to it */
        }
    }
    return count;
}

int meet_listen_timers(struct meet *meet, uint64_t now_ns)
{
    int count = 0;
    while (!weft_list_empty(&meet->strangers)) {
        struct connection *oldest = weft_list_first(&meet->strangers, struct connection, link);
        if (oldest->deadline_ns > now_ns) break;
        connection_refuse(oldest, MEET_SLOW);
        count++;
    }
    if (meet->listener_rests && meet->listen_again_ns <= now_ns) {
        meet_listen_rest(meet, false, 0);
        count++;
    }
    return count;
}

uint64_t meet_listen_next_ns(const struct meet *meet)
{
    uint64_t next_ns = meet->listen_again_ns;
    if (!weft_list_empty(&meet->strangers)) {
        const struct connection *oldest = weft_list_first(&meet->strangers, struct connection, link);
        if (oldest->deadline_ns < next_ns) next_ns = oldest->deadline_ns;
    }
    return next_ns;
}
