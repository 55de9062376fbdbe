/* net_device.h - the network device that a socket uses. */
#ifndef WEFT_TOOLS_NET_DEVICE_H
#define WEFT_TOOLS_NET_DEVICE_H

#include <stddef.h>

/* The network device that has the local address of the connected socket; "lo" if none has. */
void tool_net_device(int fd, char *out, size_t capacity);
/* The network device that leads to a host; of a host of this machine, the device with that address. "lo": the
 * host is loopback, or its name is unknown. No packet is sent. */
void tool_net_device_to(const char *host, char *out, size_t capacity);

#endif
