/* verbs_ops.h - verbs as a backend: its only symbols outside transport/verbs. */
#ifndef WEFT_TRANSPORT_VERBS_OPS_H
#define WEFT_TRANSPORT_VERBS_OPS_H

#include "transport/transport.h"

extern const struct weft_transport_ops verbs_transport_ops;

/* For tests: puts the queue pair of this lane into the error state, as a device would. WEFT_ERR_NOT_FOUND:
 * no such peer, or the lane has no queue pair now. */
enum weft_status verbs_force_error(struct weft_transport *transport, uint32_t peer_id, uint32_t lane);
/* Number of queue pairs of the peer rebuilt so far, and of lanes that are up. */
void verbs_lanes(struct weft_transport *transport, uint32_t peer_id, uint32_t *up_out, uint32_t *rebuilt_out);

#endif
