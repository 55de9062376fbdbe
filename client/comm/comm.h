/* comm.h - a group of some of the workers: made by weft_split or a mesh, told apart by its id, which all its
 * ranks agree on.
 *
 * The caller's thread makes and frees it; the group inside and its queue of operations are the engine's. */
#ifndef WEFT_CLIENT_COMM_COMM_H
#define WEFT_CLIENT_COMM_COMM_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/collective.h"
#include "weft/weft.h"

struct weft_comm {
    struct weft_session *session;
    struct weft_list session_link; /* session->comms; the caller's */
    uint32_t rank, ranks, id, epoch; /* epoch: of the membership it was made in; it ends with that */
    uint32_t *members;             /* (ranks,) their ranks in the job; owned */
    char name[64];                 /* for sentences: "colour 3 of split 2", "axis dp" */
    _Atomic uint32_t open;         /* requests on it that have not ended */
    _Atomic uint32_t calls_without_shm;  /* call/fastpath.c: so many calls go to the engine at once, as its
                                          * ranks share no memory */
    /* the engine's */
    struct weft_list engine_link;  /* engine->comms */
    struct weft_list queue;        /* struct client_group_op.link: called, not posted */
    struct weft_group *group;      /* owned; NULL: not made, or left */
    struct client_hosts *hosts;    /* for the group; of all groups with the same members together. NULL:
                                    * not known yet */
    /* one letter at a time to the engine: make the group, or leave it */
    struct weft_command command;
    _Atomic int state;             /* 0 none, 1 sent, 2 answered */
};

/* Caller's thread. Takes `members` (sorted by the new rank, ours among them), also when it fails: a group
 * of those ranks with this id at the engine. Blocks until the engine has made it; the other ranks need not
 * have. */
enum weft_status client_comm_create(struct weft_session *session, uint32_t *members, uint32_t ranks,
                                    uint32_t id, const char *name, struct weft_comm **comm_out);
/* What ranks tell each other when they make groups: (words,) of each of comm's ranks, in the order of its
 * ranks. Collective, caller's thread, blocks. The answer, (ranks * words,), lies in the session until the
 * next meeting. */
#define CLIENT_COMM_EXCHANGE_WORDS_MAX 28u
enum weft_status client_comm_exchange(struct weft_session *session, struct weft_comm *comm,
                                      enum weft_coll_label label, const int64_t *mine, uint32_t words,
                                      const int64_t **all_out);
/* The second half of making groups: did all ranks of `comm` get so far? Else the status of the first that
 * did not. */
enum weft_status client_comm_check_all(struct weft_session *session, struct weft_comm *comm,
                                       enum weft_coll_label label, enum weft_status mine);
/* A group of a membership that has shrunk since is of no use: WEFT_ERR_STATE. NULL is valid. */
enum weft_status client_comm_valid(struct weft_session *session, const struct weft_comm *comm);
/* May this session make groups now? */
enum weft_status client_comm_check_create(struct weft_session *session, const char *call);
/* Engine, or nobody steps any more: leave all groups in order. */
void client_comms_leave(struct weft_session *session);
/* Engine: the same, but the groups stay until all their ranks have been told (weft_group_leave). */
void client_comms_send_leave(struct weft_session *session);
bool client_comms_have_left(const struct weft_session *session);
void client_comms_record(struct weft_session *session); /* engine: before a dump */
void client_comms_free(struct weft_session *session);   /* memory only; the engine has ended */

#endif
