/* fleet_probe.c - connects to the coordinator's port and closes the connection.
 *
 * weft_init waits for a coordinator that starts later, and cannot be cancelled. A thread that waited in it
 * after its communicator has ended could take a rank of a later job. */
#include "nccl/collnet/fleet_probe.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_MS = 500 };

static bool connects(const struct addrinfo *to)
{
    int reason = 0;
    socklen_t bytes = sizeof reason;
    const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    if (connect(fd, to->ai_addr, to->ai_addrlen) != 0) reason = errno;
    if (reason == EINPROGRESS && poll(&writable, 1, CONNECT_MS) == 1)
        (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &bytes);
    close(fd);
    return reason == 0;
}

bool fleet_is_listening(const char *coordinator)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    const char *colon = strrchr(coordinator, ':'), *host = coordinator;
    char text[256];
    bool is_listening = false;
    if (!colon || (size_t)(colon - host) >= sizeof text) return true; /* weft_init reports it */
    size_t bytes = (size_t)(colon - host);
    if (bytes >= 2 && host[0] == '[' && host[bytes - 1] == ']') host++, bytes -= 2;
    snprintf(text, sizeof text, "%.*s", (int)bytes, host);
    if (getaddrinfo(text, colon + 1, &hints, &found) != 0) return false;
    for (const struct addrinfo *at = found; at && !is_listening; at = at->ai_next)
        is_listening = connects(at);
    freeaddrinfo(found);
    return is_listening;
}
