/* comm.h - a group of some of the workers, made by weft_split or a mesh and identified by its id, which is
 * equal on all its ranks.
 *
 * The caller's thread makes and frees it. The collective group in it and its queue of operations belong to
 * the engine. */
#ifndef WEFT_CLIENT_COMM_COMM_H
#define WEFT_CLIENT_COMM_COMM_H

#include <stdatomic.h>
#include <stdint.h>

#include "client/engine/group.h"
#include "weft/weft.h"

/* Makes a group with this id of `members` (ranks,), sorted by the new rank, this rank among them. Takes
 * ownership of members, also on an error. Blocks until the engine has made it; the other ranks may do so
 * later. Caller's thread. */
enum weft_status client_comm_create(struct weft_session *session, uint32_t *members, uint32_t ranks,
                                    uint32_t id, const char *name, struct weft_comm **comm_out);
/* Exchanges words (words,) between the ranks of comm; NULL: all ranks. *all_out (ranks * words,), in rank
 * order, is valid until the next exchange. Collective, blocks, caller's thread. */
#define CLIENT_COMM_EXCHANGE_WORDS_MAX 28u
enum weft_status client_comm_exchange(struct weft_session *session, struct weft_comm *comm,
                                      enum weft_coll_label label, const int64_t *mine, uint32_t words,
                                      const int64_t **all_out);
/* Ends the making of groups: WEFT_OK if all ranks of comm have succeeded, else the status of the first that
 * has not. Collective, blocks, caller's thread. */
enum weft_status client_comm_check_all(struct weft_session *session, struct weft_comm *comm,
                                       enum weft_coll_label label, enum weft_status mine);
/* WEFT_ERR_STATE if the session cannot make groups now. */
enum weft_status client_comm_check_create(struct weft_session *session, const char *call);
/* Leaves all groups in order. Engine thread, or after the engine has ended. */
void client_comms_leave(struct weft_session *session);
/* Sends LEAVE; the groups stay until all their ranks have received it (weft_group_leave). Engine thread. */
void client_comms_send_leave(struct weft_session *session);
bool client_comms_have_left(const struct weft_session *session);
void client_comms_record(struct weft_session *session); /* before a dump; engine thread */
void client_comms_free(struct weft_session *session);   /* frees memory only; the engine has ended */

#endif
