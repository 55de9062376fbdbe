/* live.h - the sessions of this process. Any thread. */
#ifndef WEFT_CLIENT_SESSION_LIVE_H
#define WEFT_CLIENT_SESSION_LIVE_H

#include <stdbool.h>

struct weft_session;

void client_live_add(struct weft_session *session);           /* before the session has threads */
void client_live_init_returned(struct weft_session *session); /* weft_init returns the session */
void client_live_remove(struct weft_session *session);        /* before its threads end */
/* weft_init has returned it, and weft_finalize was not called */
bool client_session_is_live(struct weft_session *session);

#endif
