/* open_connections.h - numbers of open connections that this process has accepted, for the metrics: by
 * HTTP, and by all other listeners. Any thread. */
#ifndef WEFT_BASE_NET_OPEN_CONNECTIONS_H
#define WEFT_BASE_NET_OPEN_CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>

void weft_open_connections_add(bool is_http, int change);
uint64_t weft_open_connections(bool is_http);

#endif
