/* failure.c - how a session fails, and the sentences of failed calls and requests.
 *
 * Any thread may find a failure first: the net thread (a lost member, an abort, a closed connection), the
 * engine (a broken connection, an error result, a deadline), the caller (weft_abort). The first failure is
 * kept, and every later call returns its sentence. Later failures are consequences and are dropped.
 *
 * session->failure.error has the sentence of the last failed call. The sentence of a request that failed on
 * the engine is stored in a ring of CLIENT_TEXTS until the caller reads the request. */
#include "client/session/failure.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/session/control.h"
#include "client/session/session.h"

void client_fail(struct weft_session *session, enum weft_status status, bool report, const char *format, ...)
{
    struct client_failure *failure = &session->failure;
    pthread_mutex_lock(&failure->lock);
    bool first = atomic_load_explicit(&failure->status, memory_order_relaxed) == WEFT_OK;
    if (first) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(failure->text, sizeof failure->text, format, arguments);
        va_end(arguments);
        weft_text_one_line(failure->text, sizeof failure->text);
        atomic_store_explicit(&failure->status, status, memory_order_release);
    }
    pthread_mutex_unlock(&failure->lock);
    if (!first) return;

    weft_log(session->env, WEFT_LOG_INFO, "client", "the session ends: %s", failure->text);
    session->ops.fail_engine(session);
    if (report) client_control_send_abort(session, status, failure->text);
    weft_loop_notify(session->loop);
}

uint32_t client_text_put(struct weft_session *session, const char *text)
{
    struct client_texts *texts = &session->failure.texts;
    pthread_mutex_lock(&texts->lock);
    uint32_t serial = ++texts->serial;
    if (serial == 0) serial = texts->serial = 1;
    snprintf(texts->text[serial % CLIENT_TEXTS], sizeof texts->text[0], "%s", text);
    pthread_mutex_unlock(&texts->lock);
    return serial;
}

void client_text_get(struct weft_session *session, uint32_t serial, enum weft_status status, char *out,
                     size_t out_bytes)
{
    struct client_texts *texts = &session->failure.texts;
    pthread_mutex_lock(&texts->lock);
    bool kept = serial != 0 && texts->serial - serial < CLIENT_TEXTS;
    snprintf(out, out_bytes, "%s", kept ? texts->text[serial % CLIENT_TEXTS] : weft_reason_text(status));
    pthread_mutex_unlock(&texts->lock);
}

enum weft_status client_error(struct weft_session *session, enum weft_status status, const char *format, ...)
{
    bool ours = session->live.pid == weft_process_id(); /* a forked child may have inherited a locked lock */
    va_list arguments;
    va_start(arguments, format);
    if (ours) pthread_mutex_lock(&session->failure.error_lock);
    session->failure.error.status = status;
    vsnprintf(session->failure.error.text, sizeof session->failure.error.text, format, arguments);
    weft_text_one_line(session->failure.error.text, sizeof session->failure.error.text);
    if (ours) pthread_mutex_unlock(&session->failure.error_lock);
    va_end(arguments);
    return status;
}

enum weft_status client_unusable(struct weft_session *session)
{
    if (session->live.pid != weft_process_id())
        return client_error(
            session, WEFT_ERR_FORKED,
            "this session belongs to process %ld, of which this one is a fork; call weft_init here for a "
            "session of your own",
            (long)session->live.pid);
    enum weft_status status = client_failed(session);
    if (status < 0) session->ops.wait_requests(session);
    if (status < 0) return client_error(session, status, "%s", session->failure.text);
    if (session->epoch_change.is_resting)
        return client_error(
            session, WEFT_ERR_STATE,
            "rank %u has joined and rests until all ranks have joined: wait for that in weft_join",
            session->rank);
    return WEFT_OK;
}

/* ---- errors of a thread without a session ---- */

static _Thread_local struct weft_error thread_error;

struct weft_error *client_thread_error(void) { return &thread_error; }

enum weft_status client_null_argument(const char *call, const char *what)
{
    thread_error = (struct weft_error){0};
    return weft_error_set(&thread_error, WEFT_ERR_INVALID, "%s: %s is NULL", call, what);
}

enum weft_status client_invalid_request(const char *call)
{
    thread_error = (struct weft_error){0};
    return weft_error_set(
        &thread_error, WEFT_ERR_INVALID,
        "%s: the request was neither zeroed before its first use nor made by weft_call_init", call);
}
