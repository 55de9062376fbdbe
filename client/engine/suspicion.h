/* suspicion.h - a suspected loss: this rank waits for the coordinator's report before it fails the session by
 * its own view.
 *
 *     connection broke ──► suspect, ask for a liveness check
 *                             ├──► MemberLost: that report ends the session ├──► all alive: the link is
 *                             broken; the suspicion ends the session after SUSPICION_NS └──► no report
 *                             within silence_ns: the suspicion ends the session */
#ifndef WEFT_CLIENT_ENGINE_SUSPICION_H
#define WEFT_CLIENT_ENGINE_SUSPICION_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/base.h"

struct weft_session;

struct client_suspicion {
    struct weft_error error;            /* what this rank suspects; status WEFT_OK: nothing */
    struct weft_timer timer;            /* at its end the suspicion fails the session */
    struct weft_command alive_command;  /* the net thread's, while not posted */
    _Atomic bool alive_is_posted;
    bool all_alive;                     /* the coordinator has reported all ranks alive since the suspicion */
    bool awaits_coordinator;            /* a report may follow; false: a rank has left in order, which
                                         * needs no report */
};

#define SUSPICION_NS WEFT_MS(500) /* for a report of the coordinator that is on its way */

void client_suspicion_expired(struct weft_timer *timer);
/* Ends the suspicion within SUSPICION_NS: the report may have arrived and not been read yet. */
void client_engine_shorten_suspicion(struct weft_session *session);
/* A connection broke. The coordinator may know which process is lost, or which one aborted; its report
 * goes first. */
void client_engine_suspect(struct weft_session *session, enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A loss that is certain: a rank has left in order, or a shard reported a loss. No link is checked. The
 * coordinator has SUSPICION_NS to report it first. */
void client_engine_remote_lost(struct weft_session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Net thread: every rank has answered the coordinator since client_control_check_liveness. */
void client_engine_all_alive(struct weft_session *session);

#endif
