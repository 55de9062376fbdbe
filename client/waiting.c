/* waiting.c - the one place where a caller sleeps: until a fact holds or a deadline passes. Everything blocking in
 * weft.h ends up here, so this is also where exposed communication is counted. (A waiting caller may one day hold
 * the engine's baton and drive it from here: facts are polled, never signalled by name, to keep that possible.) */
#include "client/session.h"

uint64_t client_deadline(struct weft_session *session, uint64_t duration_ns)
{
    uint64_t now_ns = weft_now_ns(session->env);
    return duration_ns > WEFT_NEVER - now_ns ? WEFT_NEVER : now_ns + duration_ns;
}

enum weft_status client_wait_for(struct weft_session *session, client_fact_fn fact, void *context, uint64_t until_ns)
{
    if (fact(context)) return WEFT_OK;
    uint64_t began_ns = weft_now_ns(session->env), now_ns = began_ns;
    enum weft_status status = WEFT_OK;
    for (;;) {
        uint32_t seen = client_wake_read(&session->wake);
        if (fact(context)) break;
        now_ns = weft_now_ns(session->env);
        if (now_ns >= until_ns) {
            status = WEFT_ERR_DEADLINE;
            break;
        }
        client_wake_sleep(&session->wake, seen, until_ns - now_ns);
    }
    if (session->step.open) session->step.exposed_ns += weft_now_ns(session->env) - began_ns;
    return status;
}
