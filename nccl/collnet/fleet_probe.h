/* fleet_probe.h - does a process listen at the address of a coordinator? */
#ifndef WEFT_NCCL_COLLNET_FLEET_PROBE_H
#define WEFT_NCCL_COLLNET_FLEET_PROBE_H

#include <stdbool.h>

/* "host:port". Blocks for the name server, and at most half a second for the connection. */
bool fleet_is_listening(const char *coordinator);

#endif
