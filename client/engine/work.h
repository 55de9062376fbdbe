/* work.h - computations of the engine thread, cut into slices so that messages and timers run between
 * them. */
#ifndef WEFT_CLIENT_ENGINE_WORK_H
#define WEFT_CLIENT_ENGINE_WORK_H

#include <stdbool.h>

#include "base/base.h"

struct weft_session;

/* run() computes at most one slice and returns whether the work is complete. */
struct client_work {
    struct weft_list link;        /* points at itself while not queued */
    bool (*run)(struct client_work *work);
};
/* Elements of a slice of element-wise work: about 100 us of memory traffic. */
#define CLIENT_SLICE_ELEMS 65536u

void client_engine_queue_work(struct weft_session *session, struct client_work *work);
void client_engine_run_work(struct weft_command *command); /* the command of the queue: one slice */
void client_engine_cancel_work(struct client_work *work);

#endif
