/* begin_again.h - weft_init joins again: the coordinator was lost before the job began. */
#ifndef WEFT_CLIENT_SESSION_CONTROL_BEGIN_AGAIN_H
#define WEFT_CLIENT_SESSION_CONTROL_BEGIN_AGAIN_H

#include "client/session/session.h"

/* Zero at the first try. */
struct client_again {
    struct weft_takeover_next next; /* next.address "": as the settings give it */
    uint64_t until_ns;              /* the deadline of weft_init; 0: the first try sets it */
};

/* After the settings: the coordinator and the time that is left. */
enum weft_status client_again_apply(struct weft_session *session, struct client_again *again);
/* By the store another process coordinates than the one that is being connected. */
bool client_again_is_elsewhere(struct weft_session *session);
/* After the threads of the session have ended. Waits for the next coordinator. false: the failure stays. */
bool client_again_is_possible(struct weft_session *session, enum weft_status status,
                              struct client_again *again);

#endif
