/* verbs_ops.h - verbs as a backend: its only symbols outside transport/verbs. */
#ifndef WEFT_TRANSPORT_VERBS_OPS_H
#define WEFT_TRANSPORT_VERBS_OPS_H

#include "transport/transport.h"

extern const struct weft_transport_ops verbs_transport_ops;

/* For tests: put the queue pair of this lane to the peer into the error state, as a device would.
 * WEFT_ERR_NOT_FOUND: no such peer, or the lane has no queue pair now. */
enum weft_status verbs_force_error(struct weft_transport *transport, uint32_t peer_id, uint32_t lane);
/* Queue pairs to the peer that have been rebuilt so far, and lanes that are up now. */
void verbs_lanes(struct weft_transport *transport, uint32_t peer_id, uint32_t *up_out, uint32_t *rebuilt_out);

#endif
