/* control_router.h - delivers control messages to the groups of an endpoint. */
#ifndef WEFT_COLLECTIVE_CORE_CONTROL_CONTROL_ROUTER_H
#define WEFT_COLLECTIVE_CORE_CONTROL_CONTROL_ROUTER_H

#include "collective/collective.h"

struct weft_group;

/* control_router.c. add: before the group sends. deliver_early: messages that arrived before the group was
 * made. remove: the group receives no more messages. */
enum weft_status control_router_add(struct weft_group *group);
void control_router_deliver_early(struct weft_group *group);
void control_router_remove(struct weft_group *group);
/* groups of the same endpoint */
void control_router_each_group(const struct weft_group *group,
                               void (*fn)(void *context, const struct weft_group *group), void *context);
/* Endpoint that the caller waits for outside of operations (weft_groups_set_wait); WEFT_ANY_PEER: none. */
uint32_t control_router_awaited_peer(const struct weft_group *group);

#endif
