/* net_probe.c - does a process listen at a port (net.h)? */
#include "base/net/net.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* 0: it accepts; otherwise an errno. */
static int probe_one(const struct addrinfo *to, uint32_t ms)
{
    int reason = 0;
    socklen_t bytes = sizeof reason;
    const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) reason = errno;
    if (reason == EINPROGRESS && poll(&writable, 1, (int)ms) == 1)
        (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &bytes);
    close(fd);
    return reason == EINPROGRESS ? ETIMEDOUT : reason;
}

int weft_net_probe(const char *host, const char *port, uint32_t ms)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    int result = EHOSTUNREACH;
    if (getaddrinfo(host, port, &hints, &found) != 0) return result;
    for (const struct addrinfo *at = found; at && result != 0; at = at->ai_next) {
        const int reason = probe_one(at, ms);
        if (reason == 0 || at == found || reason != ECONNREFUSED) result = reason;
    }
    freeaddrinfo(found);
    return result;
}
