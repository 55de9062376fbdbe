/* net_reason.h - reasons of failed connections as text. Internal to base. */
#ifndef WEFT_BASE_NET_NET_REASON_H
#define WEFT_BASE_NET_NET_REASON_H

#include <stdbool.h>
#include <stddef.h>

enum { NET_REASON_BYTES = 360 };

/* The reason of a failed connect() by its errno; of a failed name look-up. Cut to `bytes`. */
void net_connect_reason(const char *host, int reason, char *text, size_t bytes);
void net_name_reason(const char *host, const char *resolver, char *text, size_t bytes);

#endif
