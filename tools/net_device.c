/* net_device.c - see net_device.h. */
#include "tools/net_device.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!a || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    return a->sa_family == AF_INET6 && memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                                              &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

void tool_net_device(int fd, char *out, size_t capacity)
{
    struct sockaddr_storage own = {0};
    socklen_t bytes = sizeof own;
    struct ifaddrs *all = NULL;
    snprintf(out, capacity, "lo");
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0 || getifaddrs(&all) != 0) return;
    for (struct ifaddrs *at = all; at; at = at->ifa_next) {
        if (same_address(at->ifa_addr, (struct sockaddr *)&own)) snprintf(out, capacity, "%s", at->ifa_name);
    }
    freeifaddrs(all);
}

/* Connecting a datagram socket only selects a route. */
void tool_net_device_to(const char *host, char *out, size_t capacity)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    snprintf(out, capacity, "lo");
    if (getaddrinfo(host, "9", &hints, &found) != 0) return;
    bool is_found = false;
    for (struct addrinfo *at = found; at && !is_found; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        is_found = fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0;
        if (is_found) tool_net_device(fd, out, capacity);
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
}
