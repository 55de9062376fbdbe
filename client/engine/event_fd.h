/* event_fd.h - the descriptor of weft_event_fd, which a program polls. */
#ifndef WEFT_CLIENT_ENGINE_EVENT_FD_H
#define WEFT_CLIENT_ENGINE_EVENT_FD_H

#include "client/engine/engine.h"
#include "client/session/session.h"

static inline bool client_event_is_enabled(const struct weft_session *session)
{
    return atomic_load_explicit(&session->engine->event_fd, memory_order_relaxed) >= 0;
}
/* A request has completed. The thread that owns the engine's loop. */
void client_event_signal(struct weft_session *session);
/* Caller's thread: posts the command that starts a call. It wakes the engine at once only if the program
 * polls the descriptor. */
void client_event_post(struct weft_session *session, struct weft_command *command);
void client_event_close(struct weft_session *session);

#endif
