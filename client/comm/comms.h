/* comms.h - the groups and meshes of a session: struct client_comms. The caller's thread. */
#ifndef WEFT_CLIENT_COMM_COMMS_H
#define WEFT_CLIENT_COMM_COMMS_H

#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "weft/weft.h"

struct weft_session;

struct client_comms {
    struct weft_list list;                  /* struct weft_comm.session_link */
    struct weft_list meshes;                /* struct weft_mesh.link */
    struct weft_error create_error;         /* of the last group that the engine made; written by the
                                             * engine */
    uint32_t next_group_id;                 /* ids below are used by groups that this rank knows */
    uint32_t split_count;                   /* calls of weft_split, for names */
    struct weft_list creations;             /* struct client_creation.link: calls of weft_comm_create that
                                             * the engine has not released */
    struct client_creation *creation;       /* the running one; NULL: none. The engine thread */
    struct weft_list announcements;         /* struct client_announcement.link: for later calls of this
                                             * rank; the engine thread */
    struct client_comm_exchange_state {     /* words that ranks exchange when they make a group */
        struct weft_request request;
        int64_t mine[28], *all;             /* all: (capacity,) owned */
        size_t capacity;
    } exchange;
    struct client_leave_check *leave_check; /* owned; made by weft_finalize (leave_check.c) */
};

/* Registers the folder with the engine. */
void client_comms_init(struct weft_session *session, struct client_comms *comms);
void client_comms_close(struct weft_session *session); /* memory; the engine has ended */

void client_meshes_free(struct weft_session *session); /* mesh.c; memory only */
/* leave_check.c: sends LEAVE to the other ranks and compares what all ranks called. Caller's thread, no
 * request open. Blocks for at most 2 s. A mismatch fails the session. */
void client_leave_check_run(struct weft_session *session);

#endif
