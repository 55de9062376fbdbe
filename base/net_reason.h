/* net_reason.h - why a connection could not be made. Internal to base. */
#ifndef WEFT_BASE_NET_REASON_H
#define WEFT_BASE_NET_REASON_H

#include <stdbool.h>
#include <stddef.h>

enum { NET_REASON_BYTES = 360 };

/* Of an error number of connect(), and of a failed look-up. The text is cut to `bytes`. */
void net_connect_reason(const char *host, int reason, char *text, size_t bytes);
void net_name_reason(const char *host, const char *resolver, char *text, size_t bytes);

#endif
