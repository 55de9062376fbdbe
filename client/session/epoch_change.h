/* epoch_change.h - state of a change of membership in an elastic job: ranks are lost, or new ranks join.
 *
 * The net thread announces the change, the engine ends the running operations, and the caller's thread agrees
 * with the other ranks and installs the new membership (elastic/shrink.c, elastic/join.c). */
#ifndef WEFT_CLIENT_SESSION_EPOCH_CHANGE_H
#define WEFT_CLIENT_SESSION_EPOCH_CHANGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "proto/proto.h"

struct client_epoch_change {
    _Atomic uint32_t epoch;                 /* newest epoch that the coordinator announced; above
                                             * session->epoch: nothing starts */
    pthread_mutex_t lock;                   /* guards text; no other lock is taken under it */
    char text[480];                         /* names the lost rank */
    struct weft_command command;            /* to the engine: end the running operations */
    _Atomic bool is_command_queued;         /* `command` is queued */
    Weft__Control__Control *shrunk_message; /* owned; Shrunk, which names the members of the next epoch */
    struct weft_command enter_command;      /* to the engine: make the new group */
    _Atomic int enter_state;                /* 1: queued, 2: completed; written by both threads in turn */
    struct weft_error enter_error;          /* written by the engine before enter_state becomes 2 */
    _Atomic uint32_t grow_epoch;            /* newcomers wait to enter as this epoch at the end of a step;
                                             * written by the net thread */
    bool growth_unreported;                 /* ranks are new, and no call has reported it; the caller's
                                             * thread */
    bool shrink_unreported;                 /* ranks are lost, and no call has reported it: the last step
                                             * was good */
    uint64_t codec_steps;                   /* codecs count on from this number at least, after ranks have
                                             * joined */
    _Atomic bool others_rest;               /* another rank has called weft_join, and not all have since;
                                             * written by the net thread */
    bool is_resting;                        /* weft_join was called: the rank rests until all ranks have
                                             * joined */
};

#endif
