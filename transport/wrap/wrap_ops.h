/* wrap_ops.h - the wrappers as backends. */
#ifndef WEFT_TRANSPORT_WRAP_OPS_H
#define WEFT_TRANSPORT_WRAP_OPS_H

#include "transport/transport.h"

extern const struct weft_transport_ops fault_transport_ops, delay_transport_ops, trace_transport_ops;

#endif
