/* live.c - the sessions of this process: which of them exist, what a fork does to them, and how they rest
 * while the process exits.
 *
 * exit() runs the destructors of OpenSSL, UCX and of the program while the threads of a session that was
 * not finalised still run. A thread that then uses one of those libraries crashes, and a process that
 * meant to end with 0 ends by a signal. So a handler of atexit() holds the threads first. It is registered
 * after OpenSSL's own handler and so runs before it. A destructor of the program may still call
 * weft_finalize. */
#include "client/session/live.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "client/session/session.h"
#include "client/session/wait.h"

#define HOLD_NS WEFT_MS(300) /* for one thread to end what it is at */

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static struct weft_list sessions = {&sessions, &sessions};
static pthread_once_t handlers_once = PTHREAD_ONCE_INIT;

/* ---- fork: another thread may hold the lock, and no thread would release it in the child; so the forking thread holds it ---- */

static void lock_live(void) { pthread_mutex_lock(&live_lock); }
static void unlock_live(void) { pthread_mutex_unlock(&live_lock); }

/* ---- exit ---- */

static void hold(struct weft_session *session)
{
    struct weft_loop *loop = session->loop;
    if (session->control.net) weft_net_pause(session->control.net, HOLD_NS);
    /* a callback or a signal handler that exits holds it already */
    if (session->ops.is_running(session) && !weft_loop_is_owner(loop))
        session->live.loop_held_at_exit =
            weft_loop_acquire(loop, client_deadline(session, HOLD_NS)) == WEFT_OK;
}

/* False: a signal handler exits, and what it interrupted holds the lock. */
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
        if (session->pid == weft_process_id()) hold(session);
    }
    pthread_mutex_unlock(&live_lock);
}

/* weft_finalize by a destructor of the program. OpenSSL may be gone, so the engine does not step again:
 * the session leaves the job in order and keeps the engine's memory. */
static void release(struct weft_session *session)
{
    if (session->control.net) weft_net_resume(session->control.net);
    if (!session->live.loop_held_at_exit || !weft_loop_is_owner(session->loop)) return;
    session->ops.halt_at_exit(session);
}

/* ---- the list ---- */

static void install_handlers(void)
{
    weft_hmac_prepare();
    pthread_atfork(lock_live, unlock_live, unlock_live);
    atexit(hold_all);
}

static void add(struct weft_session *session)
{
    pthread_mutex_lock(&live_lock);
    weft_list_append(&sessions, &session->live.link);
    pthread_mutex_unlock(&live_lock);
}

/* A simulated session has no threads, and its process may vanish while it joins. */
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
    if (session->pid == weft_process_id()) release(session);
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
