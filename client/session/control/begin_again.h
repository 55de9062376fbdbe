/* begin_again.h - weft_init joins again: the coordinator was lost before the job began. */
#ifndef WEFT_CLIENT_SESSION_CONTROL_BEGIN_AGAIN_H
#define WEFT_CLIENT_SESSION_CONTROL_BEGIN_AGAIN_H

#include "client/session/session.h"

/* Zero at the first try. */
struct client_again {
    struct weft_takeover_next next; /* next.address "": the coordinator of the settings */
    uint64_t until_ns;              /* the deadline of weft_init; 0: the first try sets it */
};

/* Call after the settings are resolved. Sets the coordinator to join, and the remaining time. */
enum weft_status client_again_apply(struct weft_session *session, struct client_again *again);
/* Returns whether the store names another coordinator than the one to which the session connects. */
bool client_again_is_elsewhere(struct weft_session *session);
/* Call after the threads of the session have ended. Waits for the next coordinator. Returns false if there
 * is none; weft_init then fails with `status`. */
bool client_again_is_possible(struct weft_session *session, enum weft_status status,
                              struct client_again *again);

#endif
