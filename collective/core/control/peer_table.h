/* peer_table.h - the peers of a group, and the state of each. */
#ifndef WEFT_COLLECTIVE_CORE_CONTROL_PEER_TABLE_H
#define WEFT_COLLECTIVE_CORE_CONTROL_PEER_TABLE_H

#include "collective/collective.h"
#include "collective/core/control/call_digest.h"

struct weft_group;

/* Peers of all groups that have the same ranks in the same order. */
struct onehost_method_table;
struct peer_table {
    struct peer_table *next; /* op_pool->peer_tables */
    /* copy_method.c; written by rank 0. NULL: nothing is measured yet */
    struct onehost_method_table *method_table;
    uint32_t groups, ranks;
    struct weft_peer *peers[]; /* (ranks,); NULL: this rank */
};

/* State of another rank in this group. Allocated with the first event of any rank. */
struct peer_state {
    /* has_left: its LEAVE arrived. has_replied: to the last status request. reply_is_wanted: it waits for
     * a reply */
    bool has_left, has_replied, reply_is_wanted;
    uint32_t reply_queue_next; /* next rank in the queue of replies */
    uint64_t reply_for_seq;
    bool call_digest_known, pair_counts_known; /* its LEAVE carried a call digest; carried pair_counts */
    uint64_t left_after_seq;                   /* operations that it took part in before it left */
    struct call_digest_state call_digest;
    struct coll_sendrecv_counts pair_counts; /* counts at that rank, modulo 2^32; from its LEAVE */
    /* counts at this rank of sends and recvs with that rank by messages */
    struct coll_sendrecv_counts message_counts;
    uint64_t reply_posted_ops; /* from its last status reply: operations posted */
    /* sequence of the operation in question, or of an earlier one that it waits in */
    uint64_t reply_op_seq;
    uint32_t reply_waits_for; /* rank that it waits for there; GROUP_RANK_NONE: none */
    /* completed steps of that operation; REPLY_NOT_ACTIVE: it is not active in this group */
    uint32_t reply_steps;
};

enum weft_status peer_table_acquire(struct weft_group *group, const uint32_t *endpoint_ids,
                                    struct weft_error *error);
void peer_table_release(struct weft_group *group);                          /* also frees the peer states */
struct peer_state *peer_state_get(struct weft_group *group, uint32_t rank); /* for writing; NULL: no memory */

#endif
