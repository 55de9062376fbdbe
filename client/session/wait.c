/* wait.c - the one place where a caller waits: until a fact holds or a deadline passes. Everything
 * blocking in weft.h ends up here, so this is also where exposed communication is counted. Once the engine
 * runs, a waiting caller holds its baton and drives it from here (base/loop/loop.h); facts are polled,
 * never signalled by name. */
#include "client/session/wait.h"

#include "client/session/session.h"

#define SUSPENDED_NS WEFT_SECONDS(1) /* so late nobody sees his time over who was not stopped */
#define RECHECK_NS WEFT_MS(500)

uint64_t client_deadline(struct weft_session *session, uint64_t duration_ns)
{
    return weft_deadline_ns(weft_now_ns(session->env), duration_ns);
}

/* A process that was stopped finds its time over before it has read what has come meanwhile: perhaps that
 * it was given up. */
static bool was_suspended(const struct weft_session *session, uint64_t until_ns)
{
    return weft_now_ns(session->env) > weft_deadline_ns(until_ns, SUSPENDED_NS);
}

/* The time up to now that this thread has waited; of that, the time in which an operation lacked a rank
 * that had not begun it. */
static void count_exposed(struct weft_session *session, uint64_t began_ns, uint64_t lacked_ns)
{
    const uint64_t now_ns = weft_now_ns(session->env), waited_ns = weft_elapsed_ns(began_ns, now_ns);
    uint64_t peers_ns = weft_elapsed_ns(lacked_ns, weft_straggler_time_ns(&session->straggler_time, now_ns));
    if (peers_ns > waited_ns) peers_ns = waited_ns; /* the operation was late before this wait, too */
    atomic_fetch_add(&session->step.exposed_ns, waited_ns);
    atomic_fetch_add(&session->step.exposed_peers_ns, peers_ns);
}

enum weft_status client_wait_for(struct weft_session *session, client_condition_fn fact, void *context,
                                 uint64_t until_ns)
{
    if (fact(context)) return WEFT_OK;
    uint64_t began_ns = weft_now_ns(session->env);
    const uint64_t lacked_ns =
        session->step.open ? weft_straggler_time_ns(&session->straggler_time, began_ns) : 0;
    enum weft_status status = weft_loop_wait_for(session->loop, fact, context, until_ns);
    if (status == WEFT_ERR_DEADLINE && was_suspended(session, until_ns))
        status = weft_loop_wait_for(session->loop, fact, context, client_deadline(session, RECHECK_NS));
    if (session->step.open) count_exposed(session, began_ns, lacked_ns);
    return status;
}

enum weft_status client_wait_within(struct weft_session *session, client_condition_fn fact, void *context,
                                    uint64_t timeout_ns)
{
    if (fact(context)) return WEFT_OK;
    if (!session->step.open) return weft_loop_wait_within(session->loop, fact, context, timeout_ns);
    return client_wait_for(session, fact, context, client_deadline(session, timeout_ns));
}
