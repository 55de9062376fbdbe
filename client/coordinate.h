/* coordinate.h - the coordinator of a job without shards, in the library of rank 0. */
#ifndef WEFT_CLIENT_COORDINATE_H
#define WEFT_CLIENT_COORDINATE_H

#include "base/base.h"

struct weft_session;

/* Sets session->settings.port to that of the job's coordinator. Rank 0 starts the coordinator, unless one of
 * this job waits for ranks at a port of the list. The other ranks search for it. No effect if another process
 * coordinates. Blocks at most until until_ns. WEFT_ERR_EXISTS: all ports are in use. WEFT_ERR_UNREACHABLE:
 * not found. Caller's thread, in weft_init. */
enum weft_status client_coordinate_begin(struct weft_session *session, uint64_t until_ns);
/* Waits until every rank has left the job, at most wait_ns, then ends the coordinator. Does not wait if
 * another session of this process is in the job: that one ends the coordinator. No effect on other ranks.
 * Caller's thread; this rank has left. */
void client_coordinate_end(struct weft_session *session, uint64_t wait_ns);

#endif
