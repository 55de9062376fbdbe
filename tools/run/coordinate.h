/* coordinate.h - the coordinator of a job without shards, inside the process of a command. */
#ifndef WEFT_TOOLS_RUN_COORDINATE_H
#define WEFT_TOOLS_RUN_COORDINATE_H

#include <stdint.h>

struct weft_coordinator_thread;

/* Starts a coordinator on a thread of its own that listens on host:port; port 0 means any free one. `secret`
 * may be NULL on loopback. The port goes to *port_out. NULL: "command: sentence" is on stderr. */
struct weft_coordinator_thread *tool_coordinator_start(const char *command, const char *host, uint16_t port,
                                                       const char *job, const char *secret, uint32_t workers,
                                                       uint32_t workers_min, uint32_t workers_max,
                                                       uint16_t *port_out);
/* Waits at most `wait_ms` until the job has ended and its processes have disconnected, then closes and frees.
 * NULL is allowed. */
void tool_coordinator_stop(struct weft_coordinator_thread *coordinator, uint64_t wait_ms);

#endif
