/* compute.h - a thread beside a loop for long computations. Internal to base; public functions:
 * weft_loop_compute* in loop.h.
 *
 *     owner                                    compute thread
 *     weft_loop_compute: queue  ----------->   run(task), one at a time
 *     command: done(task)       <-----------   finished, post the command if it is not posted
 *
 * Short tasks, tasks with virtual time, and all tasks without a thread run inside weft_loop_compute. Their
 * done is called by the same command, never inside the call that started the task. */
#ifndef WEFT_BASE_LOOP_COMPUTE_H
#define WEFT_BASE_LOOP_COMPUTE_H

#include <pthread.h>

#include "base/loop/loop.h"

struct compute {
    struct weft_loop *loop;
    bool inline_only;
    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t changed;
    pthread_t thread;
    bool started, end, posted;
    struct weft_task *running;
    struct weft_list queue, finished; /* struct weft_task.link */
    struct weft_command command;
};

void compute_init(struct compute *compute, struct weft_loop *loop, bool inline_only);
/* Ends the thread after its current task. Queued and finished tasks are dropped. */
void compute_fini(struct compute *compute);
void compute_start(struct compute *compute, struct weft_task *task, uint64_t elements);
void compute_cancel(struct compute *compute, struct weft_task *task);
void compute_cancel_all(struct compute *compute);

#endif
