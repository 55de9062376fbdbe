/* waiting.c - the one place where a caller waits: until a fact holds or a deadline passes. Everything blocking in
 * weft.h ends up here, so this is also where exposed communication is counted. Once the engine runs, a waiting caller
 * holds its baton and drives it from here (base/loop.h); facts are polled, never signalled by name. */
#include "client/session.h"

uint64_t client_deadline(struct weft_session *session, uint64_t duration_ns)
{
    return weft_later_ns(weft_now_ns(session->env), duration_ns);
}

enum weft_status client_wait_for(struct weft_session *session, client_fact_fn fact, void *context, uint64_t until_ns)
{
    if (fact(context)) return WEFT_OK;
    uint64_t began_ns = weft_now_ns(session->env);
    enum weft_status status = weft_loop_wait_for(session->engine.loop, fact, context, until_ns);
    if (session->step.open) atomic_fetch_add(&session->step.exposed_ns, weft_now_ns(session->env) - began_ns);
    return status;
}

enum weft_status client_wait_within(struct weft_session *session, client_fact_fn fact, void *context, uint64_t timeout_ns)
{
    if (fact(context)) return WEFT_OK;
    if (!session->step.open) return weft_loop_wait_within(session->engine.loop, fact, context, timeout_ns);
    return client_wait_for(session, fact, context, client_deadline(session, timeout_ns));
}
