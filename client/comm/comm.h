/* comm.h - a group of some of the workers: made by weft_split or a mesh, told apart by its id, which all its
 * ranks agree on.
 *
 * The caller's thread makes and frees it; the group inside and its queue of operations are the engine's. */
#ifndef WEFT_CLIENT_COMM_COMM_H
#define WEFT_CLIENT_COMM_COMM_H

#include <stdatomic.h>
#include <stdint.h>

#include "client/engine/group.h"
#include "weft/weft.h"

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
