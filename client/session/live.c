/* live.c - the sessions of this process: a list, its use across fork, and how threads are stopped while the
 * process exits.
 *
 * exit() runs the destructors of UCX and of the program while the threads of an unfinalised session still
 * run. A thread that then uses one of those libraries crashes the process. So an atexit() handler stops the
 * threads first. A destructor of the program may still call weft_finalize. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "client/session/session.h"
#include "client/session/wait.h"

#define HOLD_NS WEFT_MS(300) /* for one thread to complete its current callback */

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static struct weft_list sessions = {&sessions, &sessions};
static pthread_once_t handlers_once = PTHREAD_ONCE_INIT;

/* ---- fork: the forking thread takes the lock, so that the child has no lock held by a thread that it
 * lacks ---- */

static void lock_live(void) { pthread_mutex_lock(&live_lock); }
static void unlock_live(void) { pthread_mutex_unlock(&live_lock); }

/* ---- exit ---- */

static void hold(struct weft_session *session)
{
    struct weft_loop *loop = session->loop;
    if (session->control.net) weft_net_pause(session->control.net, HOLD_NS);
    if (session->coordinator) weft_coordinator_thread_pause(session->coordinator, HOLD_NS);
    /* a callback or a signal handler that exits owns the loop already */
    if (session->ops.is_running(session) && !weft_loop_is_owner(loop))
        session->live.loop_held_at_exit =
            weft_loop_acquire(loop, client_deadline(session, HOLD_NS)) == WEFT_OK;
}

/* False: a signal handler exits while the interrupted code holds the lock. */
static bool lock_for_exit(void)
{
    struct weft_env *env = weft_env_system();
    const uint64_t until_ns = weft_deadline_ns(weft_now_ns(env), HOLD_NS);
    while (pthread_mutex_trylock(&live_lock) != 0) {
        if (weft_now_ns(env) >= until_ns) return false;
        sched_yield();
    }
    return true;
}

static void hold_all(void)
{
    struct weft_list *node, *spare;
    if (!lock_for_exit()) return;
    weft_list_foreach(node, spare, &sessions) {
        struct weft_session *session = weft_container_of(node, struct weft_session, live.link);
        if (session->live.pid == weft_process_id()) hold(session);
    }
    pthread_mutex_unlock(&live_lock);
}

/* weft_finalize was called by a destructor of the program. UCX may have ended, so the engine does not
 * step again: the session leaves the job in order and never frees the engine's memory. */
static void release(struct weft_session *session)
{
    if (session->control.net) weft_net_resume(session->control.net);
    if (session->coordinator) weft_coordinator_thread_resume(session->coordinator);
    if (!session->live.loop_held_at_exit || !weft_loop_is_owner(session->loop)) return;
    session->ops.halt_at_exit(session);
}

/* ---- the list ---- */

static void install_handlers(void)
{
    pthread_atfork(lock_live, unlock_live, unlock_live);
    atexit(hold_all);
}

static void add(struct weft_session *session)
{
    pthread_mutex_lock(&live_lock);
    weft_list_append(&sessions, &session->live.link);
    pthread_mutex_unlock(&live_lock);
}

/* A simulated session has no threads, and its process may end while it joins. */
void client_live_add(struct weft_session *session)
{
    weft_list_init(&session->live.link);
    pthread_once(&handlers_once, install_handlers);
    if (!session->env->virtual_time) add(session);
}

void client_live_init_returned(struct weft_session *session)
{
    if (session->env->virtual_time) add(session);
    pthread_mutex_lock(&live_lock);
    session->live.init_has_returned = true;
    pthread_mutex_unlock(&live_lock);
}

void client_live_remove(struct weft_session *session)
{
    pthread_mutex_lock(&live_lock);
    weft_list_remove(&session->live.link);
    if (session->live.pid == weft_process_id()) release(session);
    pthread_mutex_unlock(&live_lock);
}

void client_live_hand_over_coordinator(struct weft_session *session)
{
    struct weft_list *node, *spare;
    pthread_mutex_lock(&live_lock);
    weft_list_foreach(node, spare, &sessions) {
        struct weft_session *other = weft_container_of(node, struct weft_session, live.link);
        if (!session->coordinator || !other->live.init_has_returned ||
            other->membership.job_id != session->membership.job_id)
            continue;
        other->coordinator = session->coordinator;
        session->coordinator = NULL;
    }
    pthread_mutex_unlock(&live_lock);
}

bool client_session_is_live(struct weft_session *session)
{
    struct weft_list *node, *spare;
    bool lives = false;
    pthread_mutex_lock(&live_lock);
    weft_list_foreach(node, spare, &sessions) lives |= node == &session->live.link;
    lives = lives && session->live.init_has_returned;
    pthread_mutex_unlock(&live_lock);
    return lives;
}
