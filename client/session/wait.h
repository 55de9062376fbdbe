/* wait.h - waits of the caller's thread: for a condition (wait.c), and for the coordinator in weft_init
 * (init_wait.c). */
#ifndef WEFT_CLIENT_SESSION_WAIT_H
#define WEFT_CLIENT_SESSION_WAIT_H

#include "client/session/session.h"

typedef bool (*client_condition_fn)(void *context);
/* Blocks until condition(context) holds or until_ns passes: WEFT_OK or WEFT_ERR_DEADLINE. Counts exposed
 * time inside a step. */
enum weft_status client_wait_for(struct weft_session *session, client_condition_fn condition, void *context,
                                 uint64_t until_ns);
/* The same with a timeout; for calls that wait for requests. Outside a step its time counts as waited
 * outside. */
enum weft_status client_wait_within(struct weft_session *session, client_condition_fn condition,
                                    void *context, uint64_t timeout_ns);
/* now + duration_ns, saturated */
uint64_t client_deadline(struct weft_session *session, uint64_t duration_ns);

/* Before the first client_init_wait: starts its clock. */
void client_init_wait_begin(struct weft_session *session);
/* Blocks until the join reaches `phase`, and logs what the session waits for. missing: "but ...", for the
 * error at until_ns. Returns the session's status. */
enum weft_status client_init_wait(struct weft_session *session, enum client_phase phase, uint64_t until_ns,
                                  const char *missing);

#endif
