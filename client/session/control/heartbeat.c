/* heartbeat.c - what this worker sends with heartbeats: a sign of life, the progress of its operations, its
 * figures. The coordinator answers two questions by a heartbeat: are all members alive, and which members
 * block the job? A coordinator that is silent for too long ends the session.
 *
 * The coordinator sets the period in Welcome (option server.heartbeat). */
#include "client/session/control/heartbeat.h"

#include <stdio.h>

#include "client/session/control.h"
#include "client/session/failure.h"
#include "client/session/session.h"
#include "client/session/wait.h"

#define WAIT_REASON_NS WEFT_MS(500) /* for the coordinator's answer */

static Weft__Control__Control heartbeat_of(struct weft_session *session, Weft__Control__Heartbeat *body)
{
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    body->time_ns = weft_now_ns(session->env);
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = body;
    return message;
}

/* Adds the progress of this worker's operations, once data may move. Returns whether one is stalled. */
static bool add_progress(struct weft_session *session, Weft__Control__Progress *progress,
                         Weft__Control__Heartbeat *heartbeat)
{
    if (client_control_phase(&session->control) != CLIENT_GO) return false;
    session->ops.progress(session, progress);
    heartbeat->progress = progress;
    return progress->is_stalled;
}

/* answer: the number of the coordinator's liveness check; 0: a periodic heartbeat. */
void client_heartbeat_send(struct weft_session *session, uint32_t answer)
{
    if (!session->control.link.connection || client_control_phase(&session->control) < CLIENT_WELCOME) return;
    Weft__Control__Heartbeat body = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Progress progress;
    body.answer = answer;
    session->control.stall_is_reported = add_progress(session, &progress, &body);
    Weft__Control__Control message = heartbeat_of(session, &body);
    client_control_send_now(session, &message);
}

/* Begin and end of a stall are reported at once; otherwise nothing is sent. */
void client_heartbeat_check_progress(void *context)
{
    struct weft_session *session = context;
    Weft__Control__Heartbeat body = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Progress progress;
    const bool is_stalled = add_progress(session, &progress, &body);
    if (is_stalled != session->control.stall_is_reported) client_heartbeat_send(session, 0);
}

static void check_silence(struct weft_session *session)
{
    struct client_control *control = &session->control;
    const uint64_t silent_ns = weft_silence_check(&control->silence, weft_now_ns(session->env));
    if (silent_ns == 0 || !control->link.connection || weft_control_link_replace(&control->link)) return;
    client_fail(session, WEFT_ERR_PEER_LOST, false, "lost %s at %s:%u: %s for %.0f s",
                client_control_coordinator_name(session), control->link.host, control->link.port,
                WEFT_CUT_OFF_TEXT, (double)silent_ns / 1e9);
    weft_control_link_close(&session->control.link);
}

void client_heartbeat_periodic(void *context)
{
    check_silence(context);
    client_heartbeat_send(context, 0);
}

void client_heartbeat_request_report(void *context)
{
    struct weft_session *session = context;
    if (session->control.link.connection && client_control_phase(&session->control) == CLIENT_GO)
        session->ops.report(session);
}

void client_control_send_report(struct weft_session *session, Weft__Control__Report *report)
{
    if (!session->control.link.connection || client_control_phase(&session->control) != CLIENT_GO) return;
    Weft__Control__Heartbeat body = WEFT__CONTROL__HEARTBEAT__INIT;
    body.report = report;
    Weft__Control__Control message = heartbeat_of(session, &body);
    client_control_send_now(session, &message);
}

void client_control_check_liveness(struct weft_session *session)
{
    Weft__Control__Heartbeat body = WEFT__CONTROL__HEARTBEAT__INIT;
    body.ask = 1;
    Weft__Control__Control message = heartbeat_of(session, &body);
    /* if it is not sent, the coordinator declares a silent member lost later */
    (void)client_control_send(session, &message);
}

static bool has_wait_reason_or_failed(void *context)
{
    struct weft_session *session = context;
    pthread_mutex_lock(&session->control.lock);
    bool has_reason = session->control.has_wait_reason;
    pthread_mutex_unlock(&session->control.lock);
    return has_reason || client_failed(session) < 0;
}

void client_heartbeat_wait_reason(struct weft_session *session, const char *text)
{
    struct client_control *control = &session->control;
    pthread_mutex_lock(&control->lock);
    snprintf(control->wait_reason, sizeof control->wait_reason, "%s", text);
    control->has_wait_reason = true;
    pthread_mutex_unlock(&control->lock);
    weft_loop_notify(session->loop);
}

void client_control_wait_reason(struct weft_session *session, char *out, size_t out_bytes)
{
    struct client_control *control = &session->control;
    Weft__Control__Heartbeat body = WEFT__CONTROL__HEARTBEAT__INIT;
    body.wait_reason = true;
    Weft__Control__Control message = heartbeat_of(session, &body);
    pthread_mutex_lock(&control->lock);
    control->has_wait_reason = false;
    control->wait_reason[0] = 0;
    pthread_mutex_unlock(&control->lock);
    if (client_control_phase(control) >= CLIENT_WELCOME && client_control_send(session, &message) == WEFT_OK)
        (void)client_wait_for(session, has_wait_reason_or_failed, session,
                              client_deadline(session, WAIT_REASON_NS));
    pthread_mutex_lock(&control->lock);
    if (!control->has_wait_reason)
        snprintf(out, out_bytes, "the coordinator at %.100s:%u does not report which members it waits for",
                 session->settings.host, session->settings.port);
    else
        snprintf(out, out_bytes, "%s",
                 control->wait_reason[0] ? control->wait_reason : "no member is missing now");
    pthread_mutex_unlock(&control->lock);
}
