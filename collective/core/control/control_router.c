/* control_router.c - dispatches control messages to their groups: one handler and one watcher per endpoint.
 *
 *     arrival on WEFT_CHANNEL_GROUP_CONTROL ──► group of its tag ──► group_control_receive
 *                                           └──► no such group yet: held here, up to EARLY_MESSAGES_MAX
 *     a peer is lost ──► every group ──► group_control_peer_lost
 *
 * Groups that have ended refuse their tags at the transport. With ids_increase the id shows whether an
 * unknown group has ended or will be made, so nothing is stored for ended groups. A tag has eight bits of the
 * epoch: they are unambiguous while this rank is within 127 epochs of its peers (weft_groups_set_epoch keeps
 * it there). A posted receive for each pair of ranks would need about a kilobyte for each of them. */
#include "collective/core/control/control_router.h"

#include "collective/core/control/group_control.h"
#include "collective/core/group.h"

enum { EARLY_MESSAGES_MAX = 1024, BUCKETS = 64 };
#define CHANNEL_MASK ((uint64_t)0xff << 56)

struct control_router {
    struct weft_env *env;
    struct weft_transport *transport;
    struct weft_list buckets[BUCKETS]; /* struct weft_group.control_router_link, by id */
    uint32_t group_count;
    bool ids_increase;              /* a group was made with ids_increase: */
    /* groups of earlier epochs, and of this epoch up to last_group_id, are not made any more */
    uint32_t epoch, last_group_id;
    uint32_t awaited_peer_id;       /* of weft_groups_set_wait; WEFT_ANY_PEER: none */
    uint64_t awaited_from_ns;
    struct weft_list early;   /* struct weft_arrival.link, oldest first */
    uint32_t early_count;
};

/* Epochs by which the tag is newer than `epoch`. */
static int8_t epochs_newer(const struct control_router *control_router, uint64_t tag)
{
    return (int8_t)(uint8_t)((tag >> 24 & 0xff) - control_router->epoch);
}

static bool has_epoch(const struct control_router *control_router, const struct weft_group *group,
                      uint64_t tag)
{
    return control_router->ids_increase
               ? group->epoch == control_router->epoch + (uint32_t)epochs_newer(control_router, tag)
               : (uint8_t)group->epoch == (uint8_t)(tag >> 24);
}

static struct weft_group *group_of(const struct control_router *control_router, uint64_t tag)
{
    const struct weft_list *bucket = &control_router->buckets[(tag >> 32 & GROUP_ID_MAX) % BUCKETS];
    for (const struct weft_list *node = bucket->next; node != bucket; node = node->next) {
        struct weft_group *group = weft_container_of(node, struct weft_group, control.control_router_link);
        if (group->group_id == (tag >> 32 & GROUP_ID_MAX) && has_epoch(control_router, group, tag))
            return group;
    }
    return NULL;
}

/* For tags of both channels: no group will receive with this tag. */
static bool has_ended(void *context, uint64_t tag)
{
    const struct control_router *control_router = context;
    const struct weft_group *group = group_of(control_router, tag);
    if (group) return group->failure.fail_status < 0;
    if (!control_router->ids_increase) return false;
    const int8_t newer = epochs_newer(control_router, tag);
    return newer < 0 || (newer == 0 && (tag >> 32 & GROUP_ID_MAX) <= control_router->last_group_id);
}

static void arrived(void *context, struct weft_arrival *arrival)
{
    struct control_router *control_router = context;
    struct weft_group *group = group_of(control_router, arrival->tag);
    if (group) {
        group_control_receive(group, arrival);
    } else if (control_router->early_count < EARLY_MESSAGES_MAX) {
        weft_list_append(&control_router->early, &arrival->link);
        control_router->early_count++;
    } else {
        weft_transport_discard(control_router->transport, arrival);
    }
}

/* A group that ends here runs the done callbacks from its own timer, so no group is freed in this loop. */
static void peer_lost(void *context, uint32_t peer_id, enum weft_status status)
{
    struct control_router *control_router = context;
    struct weft_list *node, *spare;
    for (unsigned i = 0; i < BUCKETS; i++)
        weft_list_foreach (node, spare, &control_router->buckets[i])
            group_control_peer_lost(weft_container_of(node, struct weft_group, control.control_router_link),
                                    peer_id, status);
}

void control_router_each_group(const struct weft_group *group,
                               void (*fn)(void *context, const struct weft_group *group), void *context)
{
    for (unsigned i = 0; group->control.control_router && i < BUCKETS; i++)
        for (const struct weft_list *node = group->control.control_router->buckets[i].next;
             node != &group->control.control_router->buckets[i]; node = node->next)
            fn(context, weft_container_of(node, struct weft_group, control.control_router_link));
}

static void set_handlers(struct control_router *control_router, bool on)
{
    struct weft_transport *transport = control_router->transport;
    weft_transport_handler(transport, WEFT_CHANNEL_GROUP_CONTROL, on ? arrived : NULL,
                           on ? control_router : NULL);
    weft_transport_watch(transport, on ? peer_lost : NULL, on ? control_router : NULL);
    weft_transport_set_discard_filter(transport, WEFT_CHANNEL_GROUP_CONTROL, on ? has_ended : NULL,
                                      on ? control_router : NULL);
    weft_transport_set_discard_filter(transport, WEFT_CHANNEL_COLLECTIVE, on ? has_ended : NULL,
                                      on ? control_router : NULL);
}

/* Before the first group and after the last one if ids increase. */
static void refuse_all(struct weft_transport *transport, bool on)
{
    (void)weft_transport_discard_tags(transport, WEFT_TAG(WEFT_CHANNEL_COLLECTIVE, 0), CHANNEL_MASK, on);
    (void)weft_transport_discard_tags(transport, WEFT_TAG(WEFT_CHANNEL_GROUP_CONTROL, 0), CHANNEL_MASK, on);
}

static struct control_router *router_create(struct weft_group *group)
{
    struct control_router *control_router = weft_alloc_zero(group->env, sizeof *control_router);
    if (!control_router) return NULL;
    control_router->env = group->env;
    control_router->transport = group->transport;
    control_router->awaited_peer_id = WEFT_ANY_PEER;
    for (unsigned i = 0; i < BUCKETS; i++) weft_list_init(&control_router->buckets[i]);
    weft_list_init(&control_router->early);
    refuse_all(control_router->transport, false);
    set_handlers(control_router, true);
    return control_router;
}

static void advance_epoch(struct control_router *control_router, uint32_t epoch)
{
    if (!control_router->ids_increase || epoch > control_router->epoch)
        control_router->epoch = epoch, control_router->last_group_id = 0;
    control_router->ids_increase = true;
}

void weft_groups_set_epoch(struct weft_transport *transport, uint32_t epoch)
{
    struct control_router *control_router =
        weft_transport_handler_context(transport, WEFT_CHANNEL_GROUP_CONTROL);
    if (control_router) advance_epoch(control_router, epoch);
}

void weft_groups_set_wait(struct weft_transport *transport, uint32_t peer_id, uint64_t from_ns)
{
    struct control_router *control_router =
        weft_transport_handler_context(transport, WEFT_CHANNEL_GROUP_CONTROL);
    if (!control_router) return;
    control_router->awaited_peer_id = peer_id;
    control_router->awaited_from_ns = from_ns;
}

uint32_t control_router_awaited_peer(const struct weft_group *group)
{
    const struct control_router *control_router = group->control.control_router;
    return control_router && weft_now_ns(group->env) >= control_router->awaited_from_ns
               ? control_router->awaited_peer_id
               : WEFT_ANY_PEER;
}

enum weft_status control_router_add(struct weft_group *group)
{
    struct control_router *control_router =
        weft_transport_handler_context(group->transport, WEFT_CHANNEL_GROUP_CONTROL);
    if (!control_router && !(control_router = router_create(group))) return WEFT_ERR_NO_MEMORY;
    group->control.control_router = control_router;
    control_router->group_count++;
    weft_list_append(&control_router->buckets[group->group_id % BUCKETS],
                     &group->control.control_router_link);
    if (!group->modes.ids_increase) return WEFT_OK;
    advance_epoch(control_router, group->epoch);
    if (group->epoch == control_router->epoch && group->group_id > control_router->last_group_id)
        control_router->last_group_id = group->group_id;
    return WEFT_OK;
}

/* Delivers the messages that arrived before the group was made. */
void control_router_deliver_early(struct weft_group *group)
{
    struct control_router *control_router = group->control.control_router;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &control_router->early) {
        struct weft_arrival *arrival = weft_container_of(node, struct weft_arrival, link);
        if (arrival->tag != group_control_tag(group)) continue;
        weft_list_remove(node);
        control_router->early_count--;
        group_control_receive(group, arrival);
    }
}

void control_router_remove(struct weft_group *group)
{
    struct control_router *control_router = group->control.control_router;
    if (!control_router) return;
    group->control.control_router = NULL;
    weft_list_remove(&group->control.control_router_link);
    if (--control_router->group_count > 0) return;
    set_handlers(control_router, false);
    while (!weft_list_empty(&control_router->early)) {
        struct weft_arrival *arrival = weft_list_first(&control_router->early, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        weft_transport_discard(control_router->transport, arrival);
    }
    if (control_router->ids_increase) refuse_all(control_router->transport, true);
    weft_free_bytes(control_router->env, control_router);
}
