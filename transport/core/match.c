/* match.c - matches posted receives and arrivals.
 *
 * Two hash tables over (peer, tag): posted receives, and unexpected messages. For each key at most one of
 * them has entries. A bucket is in posting or arrival order and the first entry of the key matches; this
 * gives the order per (peer, tag).
 *
 * An arrival without a receive goes to the handler of its channel, else it stays unexpected. If a handler
 * is set or an early peer connects, progress dispatches waiting arrivals again. */
#include <string.h>

#include "transport/core/core.h"

/* weft_receive.state. A value <= 0: ended with that status; the completion is pending. */
enum receive_state { RECEIVE_POSTED = 1, RECEIVE_MATCHED = 2 };

static uint32_t bucket_of(uint32_t peer_id, uint64_t tag)
{
    uint64_t mixed = (tag ^ (uint64_t)peer_id * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
    return (uint32_t)(mixed >> 40) & (CORE_MATCH_BUCKETS - 1);
}

void core_match_init(struct weft_transport *transport)
{
    for (uint32_t i = 0; i < CORE_MATCH_BUCKETS; i++) {
        weft_list_init(&transport->matching.posted[i]);
        weft_list_init(&transport->matching.unexpected[i]);
    }
    weft_list_init(&transport->done);
    weft_list_init(&transport->ended);
}

static void receive_end(struct weft_transport *transport, struct weft_receive *receive,
                        enum weft_status status)
{
    WEFT_ASSERT(status < 0);
    receive->state = status;
    if (transport->observe) transport->observe(transport, CORE_RECEIVE_ENDED, receive);
    weft_list_append(&transport->ended, &receive->link);
}

void core_match_post(struct weft_transport *transport, struct weft_receive *receive)
{
    receive->state = RECEIVE_POSTED;
    weft_list_append(&transport->matching.posted[bucket_of(receive->peer_id, receive->tag)], &receive->link);
}

void core_match_keep(struct weft_transport *transport, struct core_arrival *arrival)
{
    arrival->state = CORE_ARRIVAL_UNEXPECTED;
    transport->stats.unexpected_count++;
    weft_list_append(&transport->matching.unexpected[bucket_of(arrival->handle.peer_id, arrival->handle.tag)],
                     &arrival->handle.link);
}

/* Fills the receive from the message and starts the transfer. */
void core_receive_match(struct weft_transport *transport, struct weft_receive *receive,
                        struct core_arrival *arrival)
{
    struct weft_arrival *handle = &arrival->handle;
    receive->payload_bytes = handle->payload_bytes;
    receive->header_bytes = handle->header_bytes;
    memcpy(receive->header, handle->header, handle->header_bytes);
    if (handle->payload_bytes > receive->buffer_bytes) {
        core_discard(transport, arrival);
        receive_end(transport, receive, WEFT_ERR_TRUNCATED);
        return;
    }
    receive->state = RECEIVE_MATCHED;
    if (transport->observe) transport->observe(transport, CORE_RECEIVE_MATCHED, receive);
    enum weft_status status =
        weft_transport_accept(transport, handle, receive->buffer, receive->buffer_bytes, receive->completion);
    WEFT_ASSERT(status == WEFT_IN_PROGRESS);
}

/* The first receive posted for (peer, tag), or NULL. */
static struct weft_receive *posted_for(const struct weft_transport *transport, uint32_t peer_id, uint64_t tag)
{
    const struct weft_list *head = &transport->matching.posted[bucket_of(peer_id, tag)];
    for (struct weft_list *node = head->next; node != head; node = node->next) {
        struct weft_receive *receive = weft_container_of(node, struct weft_receive, link);
        if (receive->tag == tag && receive->peer_id == peer_id) return receive;
    }
    return NULL;
}

/* Matches the arrival with the first receive posted for it. */
bool core_match_posted(struct weft_transport *transport, struct core_arrival *arrival)
{
    struct weft_receive *receive = posted_for(transport, arrival->handle.peer_id, arrival->handle.tag);
    if (!receive) return false;
    weft_list_remove(&receive->link);
    core_receive_match(transport, receive, arrival);
    return true;
}

struct core_arrival *core_match_unexpected(struct weft_transport *transport, uint32_t peer_id, uint64_t tag)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->matching.unexpected[bucket_of(peer_id, tag)]) {
        struct core_arrival *arrival = weft_container_of(node, struct core_arrival, handle.link);
        if (arrival->handle.tag != tag || arrival->handle.peer_id != peer_id) continue;
        weft_list_remove(node);
        return arrival;
    }
    return NULL;
}

void core_match_end_posted(struct weft_transport *transport, const struct weft_peer *peer,
                           enum weft_status status)
{
    for (uint32_t i = 0; i < CORE_MATCH_BUCKETS; i++) {
        struct weft_list *node, *spare;
        weft_list_foreach(node, spare, &transport->matching.posted[i]) {
            struct weft_receive *receive = weft_container_of(node, struct weft_receive, link);
            if (peer && receive->peer_id != peer->id) continue;
            weft_list_remove(node);
            receive_end(transport, receive, status);
        }
    }
}

bool weft_receive_is_matched(const struct weft_receive *receive) { return receive->state != RECEIVE_POSTED; }

void weft_transport_cancel(struct weft_transport *transport, struct weft_receive *receive)
{
    if (receive->state != RECEIVE_POSTED) return;
    /* the child where it was posted */
    if (transport->composite.children)
        transport = weft_transport_peer(transport, receive->peer_id)->transport;
    weft_list_remove(&receive->link);
    receive_end(transport, receive, WEFT_ERR_CANCELLED);
}

/* Runs completions of receives that ended without a backend. */
int core_match_deliver(struct weft_transport *transport, int budget)
{
    int count = 0;
    while (count < budget && !weft_list_empty(&transport->ended)) {
        struct weft_receive *receive = weft_list_first(&transport->ended, struct weft_receive, link);
        weft_list_remove(&receive->link);
        count++;
        weft_completion_finish(receive->completion, (enum weft_status)receive->state);
    }
    return count;
}

/* ---- arrivals ---- */

/* Removes the arrival from all lists of the core; the backend owns it. */
static void arrival_end(struct core_arrival *arrival)
{
    WEFT_ASSERT(arrival->state != CORE_ARRIVAL_ENDED);
    if (arrival->state == CORE_ARRIVAL_EARLY) arrival->peer->transport->peer_table.early_arrival_count--;
    arrival->state = CORE_ARRIVAL_ENDED;
    weft_list_remove(&arrival->of_peer);
}

void core_discard(struct weft_transport *transport, struct core_arrival *arrival)
{
    arrival_end(arrival);
    transport->ops->discard(transport, &arrival->handle);
}

void weft_transport_discard(struct weft_transport *transport, struct weft_arrival *handle)
{
    if (handle->ops) {
        handle->ops->discard(handle);
        return;
    }
    struct core_arrival *arrival = weft_container_of(handle, struct core_arrival, handle);
    WEFT_ASSERT(arrival->state == CORE_ARRIVAL_HELD);
    core_discard(arrival->peer->transport, arrival);
}

enum weft_status weft_transport_accept(struct weft_transport *transport, struct weft_arrival *handle,
                                       void *buffer, size_t buffer_bytes, struct weft_completion *completion)
{
    if (handle->ops) return handle->ops->accept(handle, buffer, buffer_bytes, completion);
    struct core_arrival *arrival = weft_container_of(handle, struct core_arrival, handle);
    WEFT_ASSERT(arrival->state == CORE_ARRIVAL_HELD || arrival->state == CORE_ARRIVAL_UNEXPECTED);
    WEFT_ASSERT(completion);
    transport = arrival->peer->transport;
    if (transport->closed) return WEFT_ERR_CLOSED;
    if (handle->lost) return WEFT_ERR_PEER_LOST;
    if (buffer_bytes < handle->payload_bytes) return WEFT_ERR_TRUNCATED;
    if (!buffer && handle->payload_bytes > 0) return WEFT_ERR_INVALID;
    struct weft_peer *peer = arrival->peer;
    size_t payload_bytes = handle->payload_bytes;
    arrival_end(arrival);
    enum weft_status status = transport->ops->accept(transport, handle, buffer, completion);
    WEFT_ASSERT(status == WEFT_IN_PROGRESS);
    peer->operations++;
    transport->stats.received_bytes += payload_bytes;
    transport->stats.received_payload_bytes += payload_bytes;
    return WEFT_IN_PROGRESS;
}

/* Passes the arrival to a posted receive, to the handler of its channel, or into the unexpected list. */
static void arrival_dispatch(struct weft_transport *transport, struct core_arrival *arrival)
{
    arrival->state = CORE_ARRIVAL_UNEXPECTED;
    if (core_match_posted(transport, arrival)) return;
    if (core_is_discarded(transport, arrival->handle.tag)) {
        core_discard(transport, arrival);
        return;
    }
    uint8_t channel = (uint8_t)(arrival->handle.tag >> 56);
    if (transport->matching.handlers[channel].fn) {
        arrival->state = CORE_ARRIVAL_HELD;
        transport->matching.handlers[channel].fn(transport->matching.handlers[channel].context,
                                                 &arrival->handle);
        return;
    }
    core_match_keep(transport, arrival);
}

static void arrival_init(struct core_arrival *arrival)
{
    WEFT_ASSERT(arrival->handle.header_bytes <= WEFT_TRANSPORT_HEADER_BYTES_MAX);
    weft_list_init(&arrival->handle.link);
    weft_list_init(&arrival->of_peer);
    arrival->handle.ops = NULL;
    arrival->handle.lost = arrival->handle.is_streamed = false;
}

bool core_arrived_posted(struct weft_transport *transport, struct core_arrival *arrival)
{
    struct weft_peer *peer = core_peer_find(transport, arrival->handle.peer_id);
    if (!peer || !peer->connected || peer->early || peer->status < 0 || transport->closed) return false;
    if (!posted_for(transport, arrival->handle.peer_id, arrival->handle.tag)) return false;
    arrival_init(arrival);
    arrival->peer = peer;
    arrival->state = CORE_ARRIVAL_UNEXPECTED;
    weft_list_append(&peer->arrivals, &arrival->of_peer);
    transport->stats.received_count++;
    transport->stats.received_bytes += arrival->handle.header_bytes;
    return core_match_posted(transport, arrival);
}

bool core_arrived_complete(struct weft_transport *transport, struct weft_peer *peer, uint64_t tag,
                           const void *header, uint32_t header_bytes, const void *payload,
                           size_t payload_bytes)
{
    if (!peer->connected || peer->early || peer->status < 0 || transport->closed || transport->observe)
        return false;
    struct weft_receive *receive = posted_for(transport, peer->id, tag);
    if (!receive || payload_bytes > receive->buffer_bytes) return false;
    weft_list_remove(&receive->link);
    receive->payload_bytes = payload_bytes;
    receive->header_bytes = header_bytes;
    if (header_bytes > 0) memcpy(receive->header, header, header_bytes);
    if (payload_bytes == sizeof(uint64_t)) memcpy(receive->buffer, payload, sizeof(uint64_t)); /* inline */
    else if (payload_bytes > 0) memcpy(receive->buffer, payload, payload_bytes);
    receive->state = WEFT_OK;
    weft_list_append(&transport->ended, &receive->link);
    transport->stats.received_count++;
    transport->stats.received_bytes += header_bytes + payload_bytes;
    transport->stats.received_payload_bytes += payload_bytes;
    return true;
}

void core_arrived(struct weft_transport *transport, struct core_arrival *arrival)
{
    struct weft_arrival *handle = &arrival->handle;
    arrival_init(arrival);
    struct weft_peer *peer = core_peer_find(transport, handle->peer_id);
    bool early = !peer || !peer->connected || peer->early;
    if (early && transport->peer_table.early_arrival_count >= CORE_EARLY_ARRIVALS_MAX) peer = NULL;
    else if (!peer) peer = core_peer_find_or_add(transport, handle->peer_id);
    if (!peer || peer->status < 0 || transport->closed) {
        if (!peer) core_count_refused(transport);
        arrival->state = CORE_ARRIVAL_ENDED;
        transport->ops->discard(transport, handle);
        return;
    }
    arrival->peer = peer;
    weft_list_append(&peer->arrivals, &arrival->of_peer);
    transport->stats.received_count++;
    transport->stats.received_bytes += handle->header_bytes;
    if (early) {
        arrival->state = CORE_ARRIVAL_EARLY;
        transport->peer_table.early_arrival_count++;
        return;
    }
    arrival_dispatch(transport, arrival);
}

void core_arrivals_drop(struct weft_transport *transport, struct weft_peer *peer, bool keep_whole)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &peer->arrivals) {
        struct core_arrival *arrival = weft_container_of(node, struct core_arrival, of_peer);
        if (keep_whole && arrival->is_complete && arrival->state != CORE_ARRIVAL_EARLY) continue;
        if (arrival->state == CORE_ARRIVAL_HELD) {
            arrival->handle.lost = true;
            continue;
        }
        if (arrival->state == CORE_ARRIVAL_UNEXPECTED) weft_list_remove(&arrival->handle.link);
        core_discard(transport, arrival);
    }
}

/* First arrival of the peer that has a receiver. One at a time, because a dispatch may change every list. */
static struct core_arrival *arrival_with_receiver(struct weft_transport *transport, struct weft_peer *peer)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &peer->arrivals) {
        struct core_arrival *arrival = weft_container_of(node, struct core_arrival, of_peer);
        if (arrival->state == CORE_ARRIVAL_EARLY) return arrival;
        if (arrival->state == CORE_ARRIVAL_UNEXPECTED &&
            transport->matching.handlers[arrival->handle.tag >> 56].fn)
            return arrival;
    }
    return NULL;
}

void core_arrivals_rescan(struct weft_transport *transport)
{
    transport->rescan = false;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        if (!peer->connected || peer->status < 0) continue;
        struct core_arrival *arrival;
        while ((arrival = arrival_with_receiver(transport, peer))) {
            if (arrival->state == CORE_ARRIVAL_EARLY) transport->peer_table.early_arrival_count--;
            else weft_list_remove(&arrival->handle.link);
            arrival_dispatch(transport, arrival);
        }
        peer->early = false;
    }
}

/* ---- discarded tags ---- */

bool core_is_discarded(const struct weft_transport *transport, uint64_t tag)
{
    const uint8_t channel = (uint8_t)(tag >> 56);
    if (transport->discards.discard_filters[channel].fn &&
        transport->discards.discard_filters[channel].fn(transport->discards.discard_filters[channel].context,
                                                        tag))
        return true;
    for (uint32_t i = 0; i < transport->discards.discard_rule_count; i++) {
        if ((tag & transport->discards.discard_rules[i].mask) == transport->discards.discard_rules[i].tag)
            return true;
    }
    return false;
}

static void discard_rule_drop(struct weft_transport *transport, uint32_t at)
{
    transport->discards.discard_rule_count--;
    memmove(&transport->discards.discard_rules[at], &transport->discards.discard_rules[at + 1],
            (transport->discards.discard_rule_count - at) * sizeof transport->discards.discard_rules[0]);
}

/* Oldest first; beyond WEFT_DISCARD_RULES_MAX the oldest rule is dropped. */
static enum weft_status discard_rule_add(struct weft_transport *transport, uint64_t tag, uint64_t mask)
{
    if (transport->discards.discard_rule_count == WEFT_DISCARD_RULES_MAX) discard_rule_drop(transport, 0);
    if (transport->discards.discard_rule_count == transport->discards.discard_rule_capacity) {
        uint32_t capacity =
            transport->discards.discard_rule_capacity ? transport->discards.discard_rule_capacity * 2 : 8;
        struct core_discard_rule *discard_rules =
            weft_alloc_array(transport->env, capacity, sizeof *discard_rules);
        if (!discard_rules) return WEFT_ERR_NO_MEMORY;
        if (transport->discards.discard_rule_count > 0)
            memcpy(discard_rules, transport->discards.discard_rules,
                   transport->discards.discard_rule_count * sizeof *discard_rules);
        weft_free_bytes(transport->env, transport->discards.discard_rules);
        transport->discards.discard_rules = discard_rules;
        transport->discards.discard_rule_capacity = capacity;
    }
    transport->discards.discard_rules[transport->discards.discard_rule_count++] =
        (struct core_discard_rule){tag, mask};
    return WEFT_OK;
}

/* Discards waiting arrivals. */
static void discard_waiting(struct weft_transport *transport, uint64_t tag, uint64_t mask)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &transport->peers) {
        struct weft_peer *peer = weft_container_of(node, struct weft_peer, link);
        struct weft_list *each, *after;
        weft_list_foreach(each, after, &peer->arrivals) {
            struct core_arrival *arrival = weft_container_of(each, struct core_arrival, of_peer);
            if (arrival->state != CORE_ARRIVAL_UNEXPECTED || (arrival->handle.tag & mask) != tag) continue;
            weft_list_remove(&arrival->handle.link);
            core_discard(transport, arrival);
        }
    }
}

enum weft_status weft_transport_discard_tags(struct weft_transport *transport, uint64_t tag, uint64_t mask,
                                             bool on)
{
    WEFT_ASSERT((tag & mask) == tag);
    for (uint32_t i = 0; i < transport->composite.child_count; i++) {
        enum weft_status status =
            weft_transport_discard_tags(transport->composite.children[i], tag, mask, on);
        if (status == WEFT_OK) continue;
        while (i-- > 0) weft_transport_discard_tags(transport->composite.children[i], tag, mask, false);
        return status;
    }
    if (transport->composite.children) return WEFT_OK;
    uint32_t at = 0;
    while (at < transport->discards.discard_rule_count &&
           (transport->discards.discard_rules[at].tag != tag ||
            transport->discards.discard_rules[at].mask != mask))
        at++;
    bool known = at < transport->discards.discard_rule_count;
    if (!on) {
        if (known) discard_rule_drop(transport, at);
        return WEFT_OK;
    }
    if (!known) WEFT_TRY(discard_rule_add(transport, tag, mask));
    if (!transport->closed) discard_waiting(transport, tag, mask);
    return WEFT_OK;
}
