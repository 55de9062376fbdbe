/* members.h - the life of a member of the job, between the files of this folder and coordinator.c.
 *
 *     connections.c   opened, closed
 *     admission.c     Hello -> Welcome | Abort
 *     begin.c         Endpoints -> Roster -> Ready -> Go
 *     message.c       messages, to the function of their kind
 *     leave.c         Leave -> Left, Finished
 *     coordinator.c   sends; losses and the end of the job; time */
#ifndef WEFT_COORDINATOR_MEMBERS_MEMBERS_H
#define WEFT_COORDINATOR_MEMBERS_MEMBERS_H

#include "coordinator/coordinator_state.h"

/* coordinator.c */
/* Sends after a commit of the records that the message depends on. */
void coordinator_send_to(struct weft_coordinator *coordinator, uint64_t connection,
                         const Weft__Control__Control *message);
void coordinator_send_abort(struct weft_coordinator *coordinator, uint64_t connection,
                            enum weft_status status, const char *text);
void coordinator_close_connection(struct weft_coordinator *coordinator,
                                  struct coordinator_connection *connection, const char *why);
/* Sends Abort and closes the connection. The job continues. */
void coordinator_refuse(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                        enum weft_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void coordinator_enter(struct weft_coordinator *coordinator, enum coordinator_state state);
void coordinator_end(struct weft_coordinator *coordinator, enum weft_status status, const char *text);

/* connections.c */
struct coordinator_connection *coordinator_connection_find(const struct weft_coordinator *coordinator,
                                                           uint64_t id); /* NULL: none */
/* NULL: no memory. The id is new. */
struct coordinator_connection *coordinator_connection_add(struct weft_coordinator *coordinator, uint64_t id);
size_t coordinator_connections_count(const struct weft_coordinator *coordinator,
                                     enum coordinator_connection_state state);

/* admission.c */
void coordinator_hello(struct weft_coordinator *coordinator, struct coordinator_connection *connection,
                       const Weft__Control__Hello *hello);
/* A member that is silent for longer is lost. member NULL: an observer. */
uint64_t coordinator_silence_limit_ns(const struct weft_coordinator *coordinator,
                                      const struct coordinator_member *member);

/* begin.c */
void coordinator_endpoints(struct weft_coordinator *coordinator, struct coordinator_member *member,
                           const Weft__Control__Endpoints *endpoints);
void coordinator_ready(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       const Weft__Control__Ready *ready);
/* The member is lost before Roster. true: the job begins without it. */
bool coordinator_begins_without(struct weft_coordinator *coordinator, const struct coordinator_member *lost,
                                const char *why);
void coordinator_begin_if_ready(struct weft_coordinator *coordinator);
/* only: NULL: all members. is_first: the members begin with the job. */
void coordinator_send_go(struct weft_coordinator *coordinator, const struct coordinator_member *only,
                         bool is_first);
void coordinator_addresses_free(struct weft_coordinator *coordinator, struct coordinator_member *member);
void coordinator_cost_fini(struct weft_coordinator *coordinator);

/* leave.c */
void coordinator_leave(struct weft_coordinator *coordinator, struct coordinator_member *member,
                       const Weft__Control__Leave *leave);
/* Notifies the shards, or one, that no further contribution of this worker will arrive. */
void coordinator_send_left(struct weft_coordinator *coordinator, const struct coordinator_member *worker,
                           const struct coordinator_member *only);
void coordinator_send_finished(struct weft_coordinator *coordinator, const struct coordinator_member *only);

#endif
