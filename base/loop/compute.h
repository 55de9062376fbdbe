/* compute.h - a thread beside a loop for computations that would hold it for long. Internal to base; the face
 * is weft_loop_compute and its companions in loop.h.
 *
 *     engine                                   compute thread
 *     weft_loop_compute: queue  ----------->   run(task), one after the other
 *     letter: done(task)        <-----------   finished, post the letter if it is not on its way
 *
 * Short tasks, tasks of a virtual-time loop, and all tasks when no thread is to be had run at once, on the
 * caller; their done comes by the same letter. Either way done never runs inside the call that started the
 * task. */
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
/* Ends the thread after the task it is at; what is queued or finished is forgotten. */
void compute_fini(struct compute *compute);
void compute_start(struct compute *compute, struct weft_task *task, uint64_t elements);
void compute_cancel(struct compute *compute, struct weft_task *task);
void compute_cancel_all(struct compute *compute);

#endif
