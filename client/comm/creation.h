/* creation.h - a running weft_comm_create: which members of the new group have called it.
 *
 *     caller (create.c)   client_creation_new ─► client_creation_start ─► wait ─► has all calls: free
 *     engine              own announcement to all members, theirs arrive ─┘   └─► abandoned: freed later
 *
 * Every member sends one announcement to every other member, and waits for one of each. All members thereby
 * know the largest next id, which is the id of the group. No other rank takes part.
 *
 * An announcement may arrive before this rank's own call: a sender has at most one such call, as it waits for
 * this rank. If this rank waits in another call that includes the sender, neither call can end: a mismatch.
 * An announcement of a rank outside of the running call is kept for a later call. */
#ifndef WEFT_CLIENT_COMM_CREATION_H
#define WEFT_CLIENT_COMM_CREATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "client/comm/announcement.h"

struct weft_session;

enum client_creation_state {
    CREATION_RUNS,
    CREATION_COMPLETE, /* all members have called; the engine has released it */
    CREATION_RELEASED, /* abandoned; the engine has released it */
};

struct client_creation {
    struct weft_list link;           /* session->comms->creations; the caller's thread */
    struct weft_session *session;
    struct client_announcement mine;
    uint32_t *members, *endpoints;   /* (mine.ranks,) owned; ranks in the job, their endpoints */
    uint32_t *place;                 /* (job_ranks,) owned; index in members by rank; UINT32_MAX: none */
    uint32_t job_ranks;
    _Atomic uint8_t *has_called;     /* (mine.ranks,) owned; 1: the announcement has arrived; engine writes */
    _Atomic int state;               /* enum client_creation_state; the engine writes */
    /* the engine thread */
    struct weft_command command;
    struct weft_timer timer;         /* sends again, and finds lost members */
    struct weft_completion sent;     /* of all announcements and of the loop that sends them */
    uint32_t next_to_send, missing;  /* place; members whose announcement has not arrived */
    uint64_t wait_counts_ns;         /* from here on the wait explains a late operation of this rank */
    uint32_t id;                     /* largest next id of the announcements so far */
    bool is_sent, is_abandoned;
};

/* Copies members (ranks,), this rank among them. Frees earlier creations that the engine has released. NULL:
 * no memory. Caller's thread. */
struct client_creation *client_creation_new(struct weft_session *session, const uint32_t *members,
                                            uint32_t ranks, uint64_t tag);
/* Begins to call the members. An error that it finds fails the session. Caller's thread; does not block. */
void client_creation_start(struct client_creation *creation);
/* Formats which members have not called: "rank 3 (hostb, pid 41), rank 5 (hostb, pid 42)". Any thread. */
void client_creation_describe_missing(const struct client_creation *creation, char *out, size_t out_bytes);
/* The engine does not use it: complete, released, or the engine has ended. Caller's thread. */
void client_creation_free(struct client_creation *creation);
void client_creations_free(struct weft_session *session); /* all; the engine has ended */

/* The transport is open: receives announcements from here on. */
void client_creations_listen(struct weft_session *session);

#endif
