/* session.c - life of struct weft_session, and the queries that need no other thread. */
#include "client/session/session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/settings.h"

const char *weft_version(void)
{
    return weft_proto_release();
}

void client_epoch_change_text(struct weft_session *session, char *out, size_t out_bytes)
{
    pthread_mutex_lock(&session->epoch_change.lock);
    snprintf(out, out_bytes, "%s", session->epoch_change.text);
    pthread_mutex_unlock(&session->epoch_change.lock);
}

void client_session_init(struct weft_session *session, struct weft_env *env)
{
    session->env = env;
    session->live.pid = weft_process_id();
    pthread_mutex_init(&session->failure.lock, NULL);
    pthread_mutex_init(&session->failure.texts.lock, NULL);
    pthread_mutex_init(&session->failure.error_lock, NULL);
    pthread_mutex_init(&session->epoch_change.lock, NULL);
    pthread_mutex_init(&session->control.lock, NULL);
    pthread_mutex_init(&session->alloc.lock, NULL);
    weft_list_init(&session->control.outgoing);
    weft_list_init(&session->alloc.blocks);
    weft_list_init(&session->live.link);
}

void client_session_free(struct weft_session *session)
{
    client_memory_free_all(session);
    client_members_free(session);
    weft_free_bytes(session->env, session->step.records.all);
    weft_free_bytes(session->env, session->link.ring);
    client_settings_free(session->env, &session->settings);
    pthread_mutex_destroy(&session->failure.lock);
    pthread_mutex_destroy(&session->failure.texts.lock);
    pthread_mutex_destroy(&session->failure.error_lock);
    pthread_mutex_destroy(&session->epoch_change.lock);
    pthread_mutex_destroy(&session->control.lock);
    pthread_mutex_destroy(&session->alloc.lock);
}

enum weft_status weft_abort(struct weft_session *session, const char *text)
{
    if (!session) return client_null_argument("abort", "session");
    if (session->live.pid != weft_process_id()) return WEFT_ERR_FORKED;
    enum weft_status status = client_failed(session);
    if (status < 0) return status;
    client_fail(session, WEFT_ERR_ABORTED, true, "rank %u aborted the job: %.400s", session->rank,
                text && text[0] ? text : "no reason given");
    return WEFT_OK;
}

/* ---- queries ---- */

uint32_t weft_rank(const struct weft_session *session) { return session ? session->rank : 0; }
uint32_t weft_ranks(const struct weft_session *session) { return session ? session->ranks : 0; }
uint32_t weft_shards(const struct weft_session *session) { return session ? session->membership.shards : 0; }

const char *weft_error_text(const struct weft_session *session)
{
    /* a copy: the session's own may change while the program reads it */
    static _Thread_local char text[sizeof session->failure.error.text];
    if (!session) return client_thread_error()->text;
    struct weft_session *locked = (struct weft_session *)session;
    bool ours = session->live.pid == weft_process_id();
    if (ours) pthread_mutex_lock(&locked->failure.error_lock);
    memcpy(text, session->failure.error.text, sizeof text);
    if (ours) pthread_mutex_unlock(&locked->failure.error_lock);
    return text;
}
