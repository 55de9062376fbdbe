/* tcp_ops.h - the tcp backend's table. */
#ifndef WEFT_TRANSPORT_TCP_OPS_H
#define WEFT_TRANSPORT_TCP_OPS_H

#include "transport/core/core.h"

extern const struct weft_transport_ops tcp_transport_ops;

#endif
