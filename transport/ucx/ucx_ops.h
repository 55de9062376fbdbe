/* ucx_ops.h - UCX as a backend: its only symbol outside transport/ucx. */
#ifndef WEFT_TRANSPORT_UCX_OPS_H
#define WEFT_TRANSPORT_UCX_OPS_H

#include "transport/transport.h"

extern const struct weft_transport_ops ucx_transport_ops;

#endif
