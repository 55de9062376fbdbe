/* bootstrap_listen.c - accepts connections without blocking and bounds the unproven ones.
 *
 * If half_open_max unproven connections exist, a new one replaces the oldest, unless the oldest is younger
 * than UNPROVEN_GRACE_NS. An honest endpoint on the same machine proves itself within that time. Until
 * then the listener is out of epoll and new connections wait in the listen queue of the system. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/bootstrap/bootstrap_internal.h"

#define UNPROVEN_GRACE_NS WEFT_MS(20)
#define LISTENER_PAUSE_NS WEFT_MS(100) /* after accept failed for lack of descriptors or memory */
enum { LISTEN_QUEUE = 1024, ACCEPTS_PER_ROUND = 16, NAME_ATTEMPTS = 4 };

static enum weft_status cannot_listen(const struct socket_address *socket_address, int reason,
                                      struct weft_error *error)
{
    char name[80];
    socket_address_name(socket_address, name, sizeof name);
    if (reason == EMFILE || reason == ENFILE)
        return weft_limit_error(error, "a listening socket", reason, "cannot listen for peers on %s", name);
    enum weft_status status = reason == ENOMEM || reason == ENOBUFS ? WEFT_ERR_NO_MEMORY
                              : reason == EADDRNOTAVAIL               ? WEFT_ERR_NOT_FOUND
                              : reason == EADDRINUSE                  ? WEFT_ERR_EXISTS
                                                                      : WEFT_ERR_IO;
    return weft_error_set(error, status, "cannot listen for peers on %s: %s", name, strerror(reason));
}

/* Opens a listening socket and writes the bound address back. -1: errno is the reason. */
static int listen_at(struct socket_address *socket_address)
{
    struct sockaddr *name = (struct sockaddr *)&socket_address->storage;
    int on = 1, fd = socket(socket_address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (socket_address->storage.ss_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, name, socket_address->bytes) == 0 && listen(fd, LISTEN_QUEUE) == 0 &&
        getsockname(fd, name, &socket_address->bytes) == 0)
        return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

enum weft_status bootstrap_listen(struct bootstrap *bootstrap, struct weft_error *error)
{
    const struct bootstrap_options *options = &bootstrap->options;
    uint32_t first = options->port_first, last = first > 0 ? options->port_last : 0;
    if (options->family == BOOTSTRAP_UNIX) first = 0, last = NAME_ATTEMPTS - 1;
    for (uint32_t port = first; port <= last; port++) {
        struct socket_address socket_address;
        WEFT_TRY(socket_address_local(bootstrap, (uint16_t)port, &socket_address, error));
        bootstrap->listen_fd = listen_at(&socket_address);
        if (bootstrap->listen_fd >= 0) {
            bootstrap_address_encode(bootstrap, &socket_address);
            return bootstrap_watch_fd(bootstrap, bootstrap->listen_fd, &bootstrap->listener, EPOLLIN);
        }
        if (errno != EADDRINUSE || port == last) {
            if (errno == EADDRINUSE && last > first && options->family == BOOTSTRAP_TCP)
                return weft_error_set(error, WEFT_ERR_EXISTS,
                                      "every port from %u to %u of %.100s is in use; widen the range", first,
                                      last, options->bind_host);
            return cannot_listen(&socket_address, errno, error);
        }
    }
    return WEFT_ERR_INTERNAL;
}

void bootstrap_listen_pause(struct bootstrap *bootstrap, bool pause, uint64_t again_ns)
{
    struct epoll_event interest = {.events = pause ? 0 : EPOLLIN, .data.ptr = &bootstrap->listener};
    bootstrap->listen_again_ns = pause ? again_ns : WEFT_NEVER;
    if (bootstrap->is_listener_paused == pause) return;
    bootstrap->is_listener_paused = pause;
    epoll_ctl(bootstrap->epoll_fd, EPOLL_CTL_MOD, bootstrap->listen_fd, &interest);
}

/* Makes place for one more unproven connection. False: the oldest is within its grace time. */
static bool evict_oldest(struct bootstrap *bootstrap, uint64_t now_ns)
{
    if (bootstrap->stats.half_open < bootstrap->options.half_open_max) return true;
    struct connection *oldest = weft_list_first(&bootstrap->unproven, struct connection, link);
    if (weft_elapsed_ns(oldest->since_ns, now_ns) < UNPROVEN_GRACE_NS) {
        bootstrap_listen_pause(bootstrap, true, oldest->since_ns + UNPROVEN_GRACE_NS);
        return false;
    }
    connection_refuse(oldest, BOOTSTRAP_TOO_MANY);
    return true;
}

static void accept_connection(struct bootstrap *bootstrap, int fd, uint64_t now_ns)
{
    struct connection *connection = connection_create(bootstrap, fd, HANDSHAKE_ACCEPTER, 0);
    if (!connection) {
        bootstrap_count_refusal(bootstrap, BOOTSTRAP_NO_RESOURCE, "an unknown peer");
        return;
    }
    connection->since_ns = now_ns;
    connection->deadline_ns = now_ns + bootstrap->options.half_open_ns;
    weft_list_append(&bootstrap->unproven, &connection->link);
    bootstrap->stats.half_open++;
    enum bootstrap_refusal reason = connection_identify_peer(connection);
    if (!reason && bootstrap_watch_fd(bootstrap, fd, &connection->socket, EPOLLIN) < 0)
        reason = BOOTSTRAP_NO_RESOURCE;
    if (reason) connection_refuse(connection, reason);
    else connection->interest = EPOLLIN;
}

int bootstrap_accept(struct bootstrap *bootstrap)
{
    uint64_t now_ns = weft_now_ns(bootstrap->env);
    int count = 0;
    while (count < ACCEPTS_PER_ROUND && evict_oldest(bootstrap, now_ns)) {
        int fd = accept4(bootstrap->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            accept_connection(bootstrap, fd, now_ns);
            count++;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            bootstrap_count_refusal(bootstrap, BOOTSTRAP_NO_RESOURCE, "an unknown peer");
            bootstrap_listen_pause(bootstrap, true, now_ns + LISTENER_PAUSE_NS);
            break;
        } else if (errno == EAGAIN) {
            break;
        } else {
            count++; /* this connection broke in the listen queue */
        }
    }
    return count;
}

int bootstrap_listen_timers(struct bootstrap *bootstrap, uint64_t now_ns)
{
    int count = 0;
    while (!weft_list_empty(&bootstrap->unproven)) {
        struct connection *oldest = weft_list_first(&bootstrap->unproven, struct connection, link);
        if (oldest->deadline_ns > now_ns) break;
        connection_refuse(oldest, BOOTSTRAP_TIMED_OUT);
        count++;
    }
    if (bootstrap->is_listener_paused && bootstrap->listen_again_ns <= now_ns) {
        bootstrap_listen_pause(bootstrap, false, 0);
        count++;
    }
    return count;
}

uint64_t bootstrap_listen_next_ns(const struct bootstrap *bootstrap)
{
    uint64_t next_ns = bootstrap->listen_again_ns;
    if (!weft_list_empty(&bootstrap->unproven)) {
        const struct connection *oldest = weft_list_first(&bootstrap->unproven, struct connection, link);
        if (oldest->deadline_ns < next_ns) next_ns = oldest->deadline_ns;
    }
    return next_ns;
}
