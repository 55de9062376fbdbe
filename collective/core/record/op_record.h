/* op_record.h - entries of an operation in the flight recorder and the event ring. */
#ifndef WEFT_COLLECTIVE_CORE_RECORD_OP_RECORD_H
#define WEFT_COLLECTIVE_CORE_RECORD_OP_RECORD_H

#include "collective/core/group.h"

/* Returns the fields that every record of the group has. The caller adds the call. */
static inline struct weft_record coll_record_of(const struct weft_group *group, uint64_t sequence,
                                                uint64_t posted_ns, bool starts)
{
    return (struct weft_record){.sequence = sequence,
                                .posted_ns = posted_ns,
                                .started_ns = starts ? posted_ns : 0,
                                .phase = starts ? "started" : "posted",
                                .group = group->group_id,
                                .members_hash = group->members_hash,
                                .epoch = group->epoch,
                                .rank = group->rank,
                                .ranks = group->ranks,
                                .peer = WEFT_RECORD_NO_PEER,
                                .status = WEFT_IN_PROGRESS};
}
/* starts: the operation starts in this call, so one record covers post and start */
void coll_record_post(struct weft_coll *coll, bool starts);
static inline uint64_t coll_event_id(const struct weft_group *group, uint64_t sequence)
{
    return (uint64_t)group->group_id << 40 | (sequence & ((1ull << 40) - 1));
}
void coll_event(const struct weft_group *group, enum weft_coll_kind kind, enum weft_event_phase phase,
                uint64_t sequence, uint64_t bytes, enum weft_status status, uint64_t now_ns);
void coll_record_start(struct weft_coll *coll, uint64_t now_ns);
/* updates the step count and the rank that the operation waits for */
void coll_record_phase(struct weft_coll *coll);
void coll_record_end(struct weft_coll *coll, uint64_t now_ns);

#endif
