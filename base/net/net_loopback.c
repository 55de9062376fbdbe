/* net_loopback.c - finds the loopback address of this host: IPv4 if it can be bound, otherwise IPv6. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/net/net.h"

static bool can_bind(const struct sockaddr *address, socklen_t bytes)
{
    int fd = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool can = fd >= 0 && bind(fd, address, bytes) == 0;
    if (fd >= 0) close(fd);
    return can;
}

const char *weft_loopback_host(void)
{
    const struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (can_bind((const struct sockaddr *)(const void *)&v4, sizeof v4)) return "127.0.0.1";
    /* neither: errors then name the usual one */
    return can_bind((const struct sockaddr *)(const void *)&v6, sizeof v6) ? "::1" : "127.0.0.1";
}
