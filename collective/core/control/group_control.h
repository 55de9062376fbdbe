/* group_control.h - control messages between the ranks of a group. They belong to no operation. */
#ifndef WEFT_COLLECTIVE_CORE_CONTROL_GROUP_CONTROL_H
#define WEFT_COLLECTIVE_CORE_CONTROL_GROUP_CONTROL_H

#include "collective/collective.h"
#include "collective/core/header.h"

struct weft_group;

#define GROUP_TEXT_BYTES 480
/* status replies of this rank in flight, in all groups of one op pool */
#define GROUP_REPLIES_MAX 16

/* A status reply in flight. */
struct status_reply {
    struct weft_group *group;
    struct weft_completion completion;
    bool busy;
};

/* One message to all other ranks. The payload lies in the group. */
struct broadcast {
    struct weft_group *group;
    const struct coll_header *header; /* borrowed; NULL: built from the fields below */
    uint64_t sequence;
    struct weft_completion completion;
    int32_t status;
    uint32_t next_rank; /* first rank that the transport has not accepted yet */
    uint8_t type;       /* enum coll_message_type */
    bool busy;
};

/* Text of a FAIL while it is received. */
struct remote_failure {
    struct weft_group *group;
    struct weft_completion completion;
    enum weft_status status;
    /* the group ended at the sender because an operation needs a rank that left */
    bool by_leave;
    char text[GROUP_TEXT_BYTES];
};

enum weft_status group_control_start(struct weft_group *group, bool defers_peer_loss,
                                     struct weft_error *error);
void group_control_receive(struct weft_group *group, struct weft_arrival *arrival); /* consumes the arrival */
void group_control_peer_lost(struct weft_group *group, uint32_t peer_id, enum weft_status status);
void group_control_broadcast(struct broadcast *broadcast, struct weft_group *group,
                             enum coll_message_type type, uint64_t sequence, enum weft_status status);
/* Sends a header without payload. The header must stay valid while the broadcast is busy. The broadcast
 * must not be busy. */
void group_control_broadcast_header(struct broadcast *broadcast, struct weft_group *group,
                                    const struct coll_header *header);
void group_control_retry(struct weft_group *group);
/* drops what the transport has not accepted */
void group_control_drop_unsent(struct weft_group *group);
void group_control_end_lost(struct weft_group *group);
/* Ends the group if operation `sequence` needs a rank that has left. Returns false if the group has ended. */
bool group_control_require_all(struct weft_group *group, uint64_t sequence);
/* the same for a send or recv, which needs that rank only */
bool group_control_require_peer(struct weft_group *group, uint32_t rank, enum weft_coll_kind kind);

#endif
