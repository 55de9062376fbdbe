/* group.h - groups of ranks as the engine sees them: each has a weft_group and a queue of operations.
 *
 *     call ──► client_group_op ──► queue of its group ──in the order of the calls──► op->post ──► op->done
 *
 * An operation's number is its identity on all ranks, so every rank posts the operations of a group in the
 * order of its calls. An operation whose input is not ready holds back the later ones of its group. */
#ifndef WEFT_CLIENT_ENGINE_GROUP_H
#define WEFT_CLIENT_ENGINE_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "collective/collective.h"
#include "weft/weft.h"

struct client_group_op {
    struct weft_list link;
    bool ready;                   /* the input is there; the engine thread */
    bool stays;                   /* posted, it stays in the queue until its owner removes it, and holds back
                                   * the later ones; post() clears `ready` */
    enum weft_status (*post)(struct client_group_op *op, struct weft_error *error);
    /* once, after post succeeded or failed */
    void (*done)(struct client_group_op *op, enum weft_status status, const char *text);
    struct weft_session *session;
    struct weft_comm *comm;       /* its group; NULL: the group of all workers */
    struct weft_coll *coll;       /* while posted */
};

/* A group of some of the workers (comm/comm.h makes and frees it). The group of all workers is in struct
 * client_engine. */
struct weft_comm {
    struct weft_session *session;
    struct weft_list session_link; /* session->comms->list; the caller's thread */
    uint32_t rank, ranks, id;
    uint32_t epoch;                     /* of the membership that made it; the group ends with that */
    uint32_t *members;                  /* (ranks,) owned; their ranks in the job */
    char name[64];                      /* for sentences: "colour 3 of split 2", "axis dp" */
    _Atomic uint32_t open;              /* its requests that have not completed */
    _Atomic uint32_t calls_without_shm; /* next calls that skip the fast path, as the ranks share no memory
                                         * (call/fastpath.c) */
    /* the engine thread */
    struct weft_list engine_link;  /* engine->comms */
    struct weft_list queue;        /* struct client_group_op.link: called, not posted */
    struct weft_group *group;      /* owned; NULL: not made, or left */
    struct client_hosts *hosts;    /* shared by the groups with the same members; NULL: unknown */
    struct weft_command command;   /* to the engine: make the group, or leave it; one at a time */
    _Atomic int state;             /* of `command`. 0: none, 1: queued, 2: completed */
};

#define CLIENT_GROUP_ID 1u /* id of the group of all workers */
/* Options that all groups of a session share. The caller sets ranks, id and names. */
void client_engine_group_options(struct weft_session *session, struct weft_group_options *options);
/* of all workers */
enum weft_status client_engine_create_group(struct weft_session *session, struct weft_error *error);
/* WEFT_ERR_STATE if the group was made in an earlier epoch. NULL is valid. */
enum weft_status client_comm_valid(struct weft_session *session, const struct weft_comm *comm);

/* ---- the engine thread ---- */
void client_engine_queue_group_op(struct weft_session *session, struct client_group_op *op);
/* Queues it before `position` of its queue; the caller pumps. */
void client_engine_queue_group_op_before(struct weft_session *session, struct client_group_op *op,
                                         struct weft_list *position);
struct weft_list *client_engine_group_queue(const struct client_group_op *op); /* the queue of its group */
/* posts what is ready, of the group of all workers */
void client_engine_pump_group(struct weft_session *session);
void client_engine_pump(struct weft_list *queue);
void client_engine_pump_all(struct weft_session *session);   /* of every group */
/* The weft_coll_done_fn of every op->post; its context is the op. */
void client_engine_group_op_done(void *context, enum weft_status status, const char *text);
/* Rank of the job that wrote the sentence of a group's failure: this rank, or the sender of a FAIL
 * message. */
uint32_t client_engine_failure_source_rank(const struct weft_session *session, const struct weft_comm *comm,
                                           const struct weft_group *group);
/* The group has ended because of a lost rank. */
void client_engine_suspect_lost_rank(struct weft_session *session, const struct weft_group *group,
                                     uint32_t found_by, const char *text);
/* A posted operation has failed. The session fails, at once or as a suspicion. When the engine ends,
 * op->done runs again with the session's own status. */
void client_engine_group_op_failed(struct client_group_op *op, enum weft_status status, const char *text);

#endif
