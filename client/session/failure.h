/* failure.h - how a session fails, and the sentences of failed calls and requests. */
#ifndef WEFT_CLIENT_SESSION_FAILURE_H
#define WEFT_CLIENT_SESSION_FAILURE_H

#include "client/session/session.h"

/* Any thread. The first failure is kept. `report`: this rank found it, so the coordinator must end the job
 * for all. */
void client_fail(struct weft_session *session, enum weft_status status, bool report, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Stores a sentence; returns its serial number for client_text_get. Any thread. */
uint32_t client_text_put(struct weft_session *session, const char *text);
/* Copies the sentence, or the status's own text if newer sentences have overwritten it. */
void client_text_get(struct weft_session *session, uint32_t serial, enum weft_status status, char *out,
                     size_t out_bytes);
/* Replaces the error of the session; returns the status. Caller's thread. */
enum weft_status client_error(struct weft_session *session, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Refuse a call that has no session. The sentence is stored for weft_error_text(NULL) of this thread.
 * WEFT_ERR_INVALID. */
enum weft_status client_null_argument(const char *call, const char *what);
enum weft_status client_invalid_request(const char *call);
/* The error of weft_init and weft_finalize on this thread; the session may be freed when the caller reads
 * it. */
struct weft_error *client_thread_error(void);
enum weft_status client_unusable(struct weft_session *session); /* client_usable if a check fails */
/* First check of every public call: fork, failure, rest. Sets the error text. */
static inline enum weft_status client_usable(struct weft_session *session)
{
    bool well = session->live.pid == weft_process_id() && client_failed(session) == WEFT_OK &&
                !session->epoch_change.is_resting;
    return well ? WEFT_OK : client_unusable(session);
}

#endif
