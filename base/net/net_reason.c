/* net_reason.c - formats why a connection failed and what the user can do. */
#include "base/net/net_reason.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

static bool loopback_is_down(void)
{
    struct ifaddrs *all = NULL;
    bool up = false;
    if (getifaddrs(&all) != 0) return false;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next)
        up |= (one->ifa_flags & IFF_LOOPBACK) && (one->ifa_flags & IFF_UP);
    freeifaddrs(all);
    return !up;
}

void net_connect_reason(const char *host, int reason, char *text, size_t bytes)
{
    const char *system = strerror(reason);
    switch (reason) {
    case ECONNREFUSED:
        snprintf(text, bytes,
                 "%s: no process listens on that port; start weftd or weft run there, or correct the port",
                 system);
        break;
    case ENETUNREACH:
    case EADDRNOTAVAIL:
    case ENETDOWN:
        if (is_loopback(host) && loopback_is_down()) {
            snprintf(text, bytes, "%s: the loopback interface is down; run \"ip link set lo up\"", system);
            break;
        }
        snprintf(text, bytes,
                 "%s: no interface of this host leads to that address; see \"ip route\" and \"ip link\"",
                 system);
        break;
    case EHOSTUNREACH:
        snprintf(text, bytes, "%s: that host is off, or a firewall refuses; try \"ping\" from here", system);
        break;
    case EAFNOSUPPORT:
        snprintf(text, bytes,
                 "%s: this host does not have addresses of that family; name the coordinator by one of %s",
                 system, strchr(host, ':') ? "IPv4" : "IPv6");
        break;
    default: snprintf(text, bytes, "%s", system);
    }
}

void net_name_reason(const char *host, const char *resolver, char *text, size_t bytes)
{
    snprintf(text, bytes, "the name %.200s cannot be resolved (%s); correct it, or give the address", host,
             resolver);
}
