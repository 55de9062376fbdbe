/* membership.h - the members of the job: ranks, shards, their names and endpoints. */
#ifndef WEFT_CLIENT_SESSION_MEMBERSHIP_H
#define WEFT_CLIENT_SESSION_MEMBERSHIP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/base.h"
#include "proto/proto.h"

struct weft_session;

struct client_member {
    uint32_t member;         /* the coordinator's number */
    bool is_shard;
    bool has_message_groups; /* a shard that reads message groups */
    bool has_state_messages; /* a shard that handles STATE_PULL and STATE_INIT; older releases do not */
    uint32_t index;          /* rank or shard index */
    uint32_t endpoint_first, endpoint_count;
    _Atomic bool is_lost;    /* the coordinator reported the loss; written by the net thread */
    char name[128];          /* "rank 3 (hostb, pid 41)", "shard 1 (hostb, pid 77)" */
};
/* A Shrunk message that names newcomers. It is kept to the end: a later epoch may need their addresses. */
struct client_newcomer_message {
    struct client_newcomer_message *next;
    Weft__Control__Control *message; /* owned */
};
struct client_old_member_table {
    struct client_old_member_table *next;
    struct client_member *members;
};

enum weft_status client_members_set(struct weft_session *session, const Weft__Control__Roster *roster,
                                    struct weft_error *error);
/* Installs the members of a new epoch. numbers: (count,) the coordinator's numbers, by rank. Engine
 * thread; no operation runs. */
enum weft_status client_members_renumber(struct weft_session *session, const uint32_t *numbers,
                                         uint32_t count, uint32_t epoch, struct weft_error *error);
/* Appends a further shard to the table. WEFT_ERR_LIMIT: it is full. Engine thread. */
enum weft_status client_members_add_shard(struct weft_session *session, const Weft__Control__Member *shard,
                                          struct weft_error *error);
/* Addresses of a member that the table does not have; NULL: unknown. Engine thread. */
const Weft__Control__Member *client_member_find_newcomer(struct weft_session *session, uint32_t number);
/* Frees a Shrunk message, unless it names newcomers: the session keeps those. NULL is valid. */
void client_shrunk_release(struct weft_session *session, Weft__Control__Control *message);
void client_members_free(struct weft_session *session);
/* WEFT_ERR_VERSION, a sentence that names the process with the lowest version: the job's wire version is
 * below `needed`. what: "push of tensor 'w': clip_norm". After the Roster. */
enum weft_status client_wire_check(struct weft_session *session, uint32_t needed, const char *what);
const struct client_member *client_member_of_endpoint(const struct weft_session *session, uint32_t endpoint);
struct client_member *client_member_of_number(const struct weft_session *session, uint32_t number);
const char *client_endpoint_name(const struct weft_session *session, uint32_t endpoint); /* never NULL */
/* UINT32_MAX: no such rank */
uint32_t client_rank_endpoint(const struct weft_session *session, uint32_t rank);
void client_rank_name(const struct weft_session *session, uint32_t rank, char *out, size_t out_bytes);

#endif
