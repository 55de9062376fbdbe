/* progress.h - progress of this worker's operations, for the coordinator. Net thread. */
#ifndef WEFT_CLIENT_ENGINE_PROGRESS_H
#define WEFT_CLIENT_ENGINE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/proto.h"

struct weft_session;

/* Net thread only. */
struct client_progress {
    uint64_t requests_done, records; /* at the last sample */
    uint64_t moved_ns;               /* last sample at which a count had changed, or nothing was open */
    uint64_t usual_ns;               /* longest of the last operations; falls slowly */
    char call[64];                   /* text of the last sample */
};

/* Fills in the message; its text is valid until the next call. Call it at least once per second, so that the
 * usual time is known. */
void client_progress_sample(struct weft_session *session, Weft__Control__Progress *progress_out);

#endif
