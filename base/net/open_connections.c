/* open_connections.c - see open_connections.h. */
#include "base/net/open_connections.h"

#include <stdatomic.h>

static _Atomic int64_t http_count, control_count;

void weft_open_connections_add(bool is_http, int change)
{
    atomic_fetch_add_explicit(is_http ? &http_count : &control_count, change, memory_order_relaxed);
}

uint64_t weft_open_connections(bool is_http)
{
    return (uint64_t)atomic_load_explicit(is_http ? &http_count : &control_count, memory_order_relaxed);
}
