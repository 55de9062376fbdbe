/* watch.c - the TCP connection of the exchange, kept until the first message has arrived.
 *
 *   sender    connect ──HELD──► ... first send complete ──RELEASED──► close
 *   receiver  accept, then reads while it waits for the first message
 *
 * Until then the transport may have no connection, whose end would show the death of the sender. An end
 * after HELD without RELEASED is a dead sender, and so is a reset: the answer was not read. Senders of
 * earlier versions send nothing and close at once, so an end without HELD has no meaning. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "nccl/net/net.h"

enum { WATCH_HELD = 1, WATCH_RELEASED = 2 };

static void report(const struct net_comm *comm, uint8_t byte)
{
    /* errors are ignored: the receiver may have closed its end */
    if (comm->is_send) (void)!send(comm->watch.fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void net_watch_begin(struct net_comm *comm, struct exchange *exchange)
{
    comm->watch = (struct net_watch){.fd = exchange->fd, .is_open = true};
    exchange->fd = -1;
    fork_close_add(comm->watch.fd);
    report(comm, WATCH_HELD);
}

void net_watch_end(struct net_comm *comm)
{
    if (!comm->watch.is_open) return;
    report(comm, WATCH_RELEASED);
    fork_close_remove(comm->watch.fd);
    close(comm->watch.fd);
    comm->watch.is_open = false;
}

bool net_watch_shows_death(struct net_comm *comm)
{
    struct net_watch *watch = &comm->watch;
    uint8_t bytes[2];
    if (comm->is_send || !watch->is_open) return false;
    const ssize_t count = recv(watch->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0) return errno == ECONNRESET;
    if (count == 0 && watch->is_held) return true;
    watch->is_held = count > 0;
    if (count == 0 || bytes[count - 1] != WATCH_HELD) net_watch_end(comm);
    return false;
}
