/* fleet_probe.c - connects to the coordinator's port and closes the connection.
 *
 * weft_init waits for a coordinator that starts later, and cannot be cancelled. A thread that waited in it
 * after its communicator has ended could take a rank of a later job. */
#include "nccl/collnet/fleet_probe.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

enum { CONNECT_MS = 500 };

bool fleet_is_listening(const char *coordinator)
{
    const char *colon = strrchr(coordinator, ':'), *host = coordinator;
    char text[256];
    if (!colon || (size_t)(colon - host) >= sizeof text) return true; /* weft_init reports it */
    size_t bytes = (size_t)(colon - host);
    if (bytes >= 2 && host[0] == '[' && host[bytes - 1] == ']') host++, bytes -= 2;
    snprintf(text, sizeof text, "%.*s", (int)bytes, host);
    return weft_net_probe(text, colon + 1, CONNECT_MS) == 0;
}
