/* suspicion.c - see suspicion.h. */
#include "client/engine/suspicion.h"

#include <stdio.h>

#include "client/engine/engine.h"
#include "client/session/control.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

void client_suspicion_expired(struct weft_timer *timer)
{
    struct client_engine *engine = weft_container_of(timer, struct client_engine, suspicion.timer);
    struct weft_session *session = engine->session;
    char explanation[120] = "";
    if (engine->suspicion.all_alive)
        snprintf(explanation, sizeof explanation,
                 "; all ranks answer the coordinator: the link between two of them is broken");
    else if (engine->suspicion.awaits_coordinator)
        snprintf(explanation, sizeof explanation, "; and no word about it from the coordinator at %.60s:%u",
                 session->settings.host, session->settings.port);
    client_fail(session, (enum weft_status)engine->suspicion.error.status, true, "%.350s%s",
                engine->suspicion.error.text, explanation);
}

/* awaits_report: the coordinator may report the loss, or an abort; false: it will not. */
static void suspect(struct weft_session *session, enum weft_status status, bool awaits_report,
                    uint64_t patience_ns, const char *format, va_list arguments)
{
    struct client_engine *engine = session->engine;
    if (engine->failed || engine->suspicion.error.status < 0) return;
    vsnprintf(engine->suspicion.error.text, sizeof engine->suspicion.error.text, format, arguments);
    engine->suspicion.error.status = status;
    engine->suspicion.all_alive = false;
    engine->suspicion.awaits_coordinator = awaits_report;
    if (weft_timer_start(engine->loop, &engine->suspicion.timer, client_deadline(session, patience_ns)) < 0)
        client_suspicion_expired(&engine->suspicion.timer);
}

void client_engine_suspect(struct weft_session *session, enum weft_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const bool first = session->engine->suspicion.error.status == WEFT_OK;
    suspect(session, status, true, session->membership.silence_ns, format, arguments);
    va_end(arguments);
    if (first && session->engine->suspicion.error.status < 0) client_control_check_liveness(session);
}

/* The link between two ranks is broken. A process that died after its answer is reported lost within
 * SUSPICION_NS. */
static void all_alive_on_engine(struct weft_command *command)
{
    struct client_engine *engine = weft_container_of(command, struct client_engine, suspicion.alive_command);
    struct weft_session *session = engine->session;
    atomic_store(&engine->suspicion.alive_is_posted, false);
    if (engine->failed || engine->suspicion.error.status == WEFT_OK) return;
    engine->suspicion.all_alive = true;
    if (weft_timer_start(engine->loop, &engine->suspicion.timer, client_deadline(session, SUSPICION_NS)) < 0)
        client_suspicion_expired(&engine->suspicion.timer);
}

void client_engine_all_alive(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    /* the command is queued: the engine owns it until it has run */
    if (atomic_exchange(&engine->suspicion.alive_is_posted, true)) return;
    engine->suspicion.alive_command.fn = all_alive_on_engine;
    weft_loop_post(engine->loop, &engine->suspicion.alive_command);
}

void client_engine_remote_lost(struct weft_session *session, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    suspect(session, WEFT_ERR_PEER_LOST, false, SUSPICION_NS, format, arguments);
    va_end(arguments);
}

void client_engine_shorten_suspicion(struct weft_session *session)
{
    struct client_engine *engine = session->engine;
    const uint64_t until_ns = client_deadline(session, SUSPICION_NS);
    if (weft_timer_is_running(&engine->suspicion.timer) && engine->suspicion.timer.deadline_ns <= until_ns)
        return;
    if (weft_timer_start(engine->loop, &engine->suspicion.timer, until_ns) < 0)
        client_suspicion_expired(&engine->suspicion.timer);
}
