/* shm_ops.h - the shared memory backend's table. */
#ifndef WEFT_TRANSPORT_SHM_OPS_H
#define WEFT_TRANSPORT_SHM_OPS_H

#include "transport/core/core.h"

extern const struct weft_transport_ops shm_transport_ops;

#endif
