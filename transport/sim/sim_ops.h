/* sim_ops.h - the simulator as a backend: its only symbol outside transport/sim. */
#ifndef WEFT_TRANSPORT_SIM_OPS_H
#define WEFT_TRANSPORT_SIM_OPS_H

#include "transport/transport.h"

extern const struct weft_transport_ops sim_transport_ops;

#endif
