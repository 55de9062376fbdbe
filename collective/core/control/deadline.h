/* deadline.h - deadlines of operations, and the status request before an error. */
#ifndef WEFT_COLLECTIVE_CORE_CONTROL_DEADLINE_H
#define WEFT_COLLECTIVE_CORE_CONTROL_DEADLINE_H

#include "collective/collective.h"
#include "collective/core/header.h"

struct weft_group;

uint64_t deadline_check(struct weft_group *group, uint64_t now_ns); /* returns the time of the next check */
void deadline_request_received(struct weft_group *group, uint64_t sequence);
void deadline_reply_received(struct weft_group *group, uint32_t rank, const struct coll_header *header);
/* Writes this rank's progress in the operation in question into a status reply. */
void deadline_fill_reply(const struct weft_group *group, uint64_t sequence, struct coll_header *header);

#endif
