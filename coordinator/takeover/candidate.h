/* candidate.h - how a coordinator begins in a job with a store. Internal; public: coordinator.h. */
#ifndef WEFT_COORDINATOR_TAKEOVER_CANDIDATE_H
#define WEFT_COORDINATOR_TAKEOVER_CANDIDATE_H

#include "coordinator/coordinator_net.h"

/* The first coordinator of a job: acquires the reign, and deletes an earlier job's records. Blocks until an
 * earlier reign has ended, at most for the time of a lease. With options.begins_again it keeps the record of
 * the job and does not block: WEFT_ERR_STALE if another process coordinates. */
enum weft_status coordinator_candidate_first(struct weft_coordinator_server *server, const char *path,
                                             const char *host, uint16_t port, struct weft_error *error);

#endif
