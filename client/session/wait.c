/* wait.c - all waits of the caller's thread: for a condition, or until a deadline.
 *
 * Every blocking call of weft.h waits here, so exposed communication is counted here. While the caller
 * waits, it owns the engine's loop and steps it, if no other thread does (base/loop/loop.h). Conditions
 * are polled. */
#include "client/session/wait.h"

#include "client/session/session.h"

#define SUSPENDED_NS WEFT_SECONDS(1) /* a deadline is read this late only after the process was stopped */
#define RECHECK_NS WEFT_MS(500)

uint64_t client_deadline(struct weft_session *session, uint64_t duration_ns)
{
    return weft_deadline_ns(weft_now_ns(session->env), duration_ns);
}

/* A process that was stopped reads the clock before the messages that arrived meanwhile. They may report
 * that this rank was declared lost. */
static bool was_suspended(const struct weft_session *session, uint64_t until_ns)
{
    return weft_now_ns(session->env) > weft_deadline_ns(until_ns, SUSPENDED_NS);
}

/* Adds the time of this wait, and the part of it in which an operation waited for a rank that had not
 * begun it. */
static void count_exposed(struct weft_session *session, uint64_t began_ns, uint64_t straggler_ns)
{
    const uint64_t now_ns = weft_now_ns(session->env), waited_ns = weft_elapsed_ns(began_ns, now_ns);
    uint64_t peers_ns =
        weft_elapsed_ns(straggler_ns, weft_straggler_time_ns(&session->totals.straggler_time, now_ns));
    if (peers_ns > waited_ns) peers_ns = waited_ns; /* the operation waited for the rank before this wait,
                                                     * too */
    atomic_fetch_add(&session->step.exposed_ns, waited_ns);
    atomic_fetch_add(&session->step.exposed_peers_ns, peers_ns);
    atomic_fetch_add_explicit(&session->totals.wait_ns, waited_ns, memory_order_relaxed);
}

static void count_outside(struct weft_session *session, uint64_t began_ns)
{
    const uint64_t waited_ns = weft_elapsed_ns(began_ns, weft_now_ns(session->env));
    atomic_fetch_add_explicit(&session->totals.wait_ns, waited_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&session->totals.waited_outside_ns, waited_ns, memory_order_relaxed);
}

enum weft_status client_wait_for(struct weft_session *session, client_condition_fn condition, void *context,
                                 uint64_t until_ns)
{
    if (condition(context)) return WEFT_OK;
    uint64_t began_ns = weft_now_ns(session->env);
    const bool counts = client_step_is_unfinished(&session->step);
    const uint64_t straggler_ns =
        counts ? weft_straggler_time_ns(&session->totals.straggler_time, began_ns) : 0;
    enum weft_status status = weft_loop_wait_for(session->loop, condition, context, until_ns);
    if (status == WEFT_ERR_DEADLINE && was_suspended(session, until_ns))
        status = weft_loop_wait_for(session->loop, condition, context, client_deadline(session, RECHECK_NS));
    if (client_step_is_unfinished(&session->step)) count_exposed(session, began_ns, straggler_ns);
    else count_outside(session, began_ns);
    return status;
}

enum weft_status client_wait_within(struct weft_session *session, client_condition_fn condition,
                                    void *context, uint64_t timeout_ns)
{
    if (condition(context)) return WEFT_OK;
    if (!client_step_is_unfinished(&session->step)) {
        const uint64_t began_ns = weft_now_ns(session->env);
        const enum weft_status status = weft_loop_wait_within(session->loop, condition, context, timeout_ns);
        count_outside(session, began_ns);
        return status;
    }
    return client_wait_for(session, condition, context, client_deadline(session, timeout_ns));
}
