/* compute.c - see compute.h. The thread starts with the first long task and sleeps on a condition variable
 * between tasks. Signals and floating-point environment are those of the engine thread. */
#include "base/loop/compute.h"


#include "base/os/thread.h"
#include "base/weft_assert.h"

static _Thread_local bool in_compute;

bool weft_loop_is_compute_thread(void) { return in_compute; }

/* Owner: calls done of the finished tasks. A done may start or cancel tasks, or free its own. */
static void complete_finished(struct weft_command *command)
{
    struct compute *compute = weft_container_of(command, struct compute, command);
    pthread_mutex_lock(&compute->mutex);
    compute->posted = false;
    while (!weft_list_empty(&compute->finished) && !compute->posted) {
        struct weft_task *task = weft_list_first(&compute->finished, struct weft_task, link);
        weft_list_remove(&task->link);
        pthread_mutex_unlock(&compute->mutex);
        task->done(task);
        pthread_mutex_lock(&compute->mutex);
    }
    pthread_mutex_unlock(&compute->mutex);
}

/* With the mutex held. */
static void finish(struct compute *compute, struct weft_task *task)
{
    weft_list_append(&compute->finished, &task->link);
    if (compute->posted) return;
    compute->posted = true;
    weft_loop_post(compute->loop, &compute->command);
}

static void *compute_main(void *argument)
{
    struct compute *compute = argument;
    in_compute = true;
    pthread_mutex_lock(&compute->mutex);
    while (!compute->end) {
        if (weft_list_empty(&compute->queue)) {
            pthread_cond_wait(&compute->changed, &compute->mutex);
            continue;
        }
        struct weft_task *task = weft_list_first(&compute->queue, struct weft_task, link);
        weft_list_remove(&task->link);
        compute->running = task;
        pthread_mutex_unlock(&compute->mutex);
        task->run(task);
        pthread_mutex_lock(&compute->mutex);
        compute->running = NULL;
        finish(compute, task);
        pthread_cond_broadcast(&compute->changed); /* a cancel may wait for it */
    }
    pthread_mutex_unlock(&compute->mutex);
    return NULL;
}

/* With the mutex held: true when there is a thread. */
static bool thread_runs(struct compute *compute)
{
    if (compute->started || compute->inline_only) return compute->started;
    compute->started = weft_thread_start(&compute->thread, "weft compute", compute_main, compute) == 0;
    /* run tasks inside the call, which delays the engine, instead of failing */
    if (!compute->started) compute->inline_only = true;
    return compute->started;
}

void compute_init(struct compute *compute, struct weft_loop *loop, bool inline_only)
{
    compute->loop = loop;
    compute->inline_only = inline_only;
    compute->command.fn = complete_finished;
    weft_list_init(&compute->queue);
    weft_list_init(&compute->finished);
    pthread_mutex_init(&compute->mutex, NULL);
    pthread_cond_init(&compute->changed, NULL);
}

void compute_fini(struct compute *compute)
{
    compute_cancel_all(compute);
    pthread_mutex_lock(&compute->mutex);
    compute->end = true;
    pthread_cond_broadcast(&compute->changed);
    pthread_mutex_unlock(&compute->mutex);
    if (compute->started) pthread_join(compute->thread, NULL);
    pthread_cond_destroy(&compute->changed);
    pthread_mutex_destroy(&compute->mutex);
}

void compute_start(struct compute *compute, struct weft_task *task, uint64_t elements)
{
    pthread_mutex_lock(&compute->mutex);
    if (elements > WEFT_LOOP_SLICE && thread_runs(compute)) {
        weft_list_append(&compute->queue, &task->link);
        pthread_cond_broadcast(&compute->changed);
        pthread_mutex_unlock(&compute->mutex);
        return;
    }
    pthread_mutex_unlock(&compute->mutex);
    task->run(task);
    pthread_mutex_lock(&compute->mutex);
    finish(compute, task);
    pthread_mutex_unlock(&compute->mutex);
}

void compute_cancel(struct compute *compute, struct weft_task *task)
{
    pthread_mutex_lock(&compute->mutex);
    while (compute->running == task) pthread_cond_wait(&compute->changed, &compute->mutex);
    weft_list_remove(&task->link); /* queued, finished, or not started */
    pthread_mutex_unlock(&compute->mutex);
}

void compute_cancel_all(struct compute *compute)
{
    pthread_mutex_lock(&compute->mutex);
    while (!weft_list_empty(&compute->queue)) weft_list_remove(compute->queue.next);
    while (compute->running) pthread_cond_wait(&compute->changed, &compute->mutex);
    while (!weft_list_empty(&compute->finished)) weft_list_remove(compute->finished.next);
    pthread_mutex_unlock(&compute->mutex);
}
