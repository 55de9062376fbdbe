/* shard_push_group.c - groups of requests: each entry becomes an arrival, which the rest of the engine
 * handles as a message of its own.
 *
 *     arrived --> mapped? --> entries           the message is held until all entries have ended
 *                  \ no --> receive --> entries the payload lies in the group's block
 *                   \ no memory --> REFUSED: the worker sends the entries alone
 *
 * An entry can be summed where it lies (shard_in_place.c). If not, its accept copies it into a slot, and the
 * completion runs on a timer. */
#include <string.h>

#include "server/shard/shard_engine.h"

/* Share of the receive memory, and its limit. */
enum { POOL_SHARE = 16 };
#define POOL_BYTES_MAX ((size_t)8 << 20)

struct shard_entry {
    struct weft_arrival arrival;
    struct shard_group *group;
    const uint8_t *payload;             /* in the sender's memory, mapped here, or in the group's block */
    struct weft_completion *completion; /* of an accept; due while `link` is in a list */
    struct weft_list link;              /* groups.accepted */
};

struct shard_group {
    struct weft_shard_engine *engine;
    struct weft_arrival *message; /* held: its payload is mapped; NULL: received */
    struct weft_completion received;
    size_t block_bytes, payload_bytes;
    const uint8_t *payload;
    uint32_t peer_id, count;
    uint32_t open; /* entries that have not ended, and 1 while entries are made */
    struct shard_entry entries[];
};

void shard_group_release(struct weft_shard_engine *engine, void *block, size_t bytes)
{
    shard_arena_release(&engine->groups.memory, block, bytes);
    if (!engine->end.closed && !weft_list_empty(&engine->groups.waiting)) shard_engine_schedule_retry(engine);
}

static void group_entry_ended(struct shard_group *group)
{
    WEFT_ASSERT(group->open > 0);
    if (--group->open > 0) return;
    struct weft_shard_engine *engine = group->engine;
    if (group->message) weft_transport_discard(engine->transport, group->message);
    shard_group_release(engine, group, group->block_bytes);
}

/* ---- an entry as an arrival ---- */

static struct shard_entry *entry_of(struct weft_arrival *arrival)
{
    return weft_container_of(arrival, struct shard_entry, arrival);
}

static bool entry_is_valid(const struct weft_arrival *arrival)
{
    const struct shard_group *group = weft_container_of(arrival, struct shard_entry, arrival)->group;
    return !group->message || weft_transport_peek_is_valid(group->message);
}

static const void *entry_peek(struct weft_arrival *arrival)
{
    return arrival->payload_bytes > 0 && entry_is_valid(arrival) ? entry_of(arrival)->payload : NULL;
}

static void entry_discard(struct weft_arrival *arrival)
{
    group_entry_ended(entry_of(arrival)->group);
}

static enum weft_status entry_accept(struct weft_arrival *arrival, void *buffer, size_t buffer_bytes,
                                     struct weft_completion *completion)
{
    struct shard_entry *entry = entry_of(arrival);
    struct weft_shard_engine *engine = entry->group->engine;
    if (engine->end.closed) return WEFT_ERR_CLOSED;
    if (buffer_bytes < arrival->payload_bytes) return WEFT_ERR_TRUNCATED;
    if (weft_timer_start_now(engine->loop, &engine->groups.accepted_timer) < 0) return WEFT_ERR_AGAIN;
    memcpy(buffer, entry->payload, arrival->payload_bytes);
    if (!entry_is_valid(arrival)) return WEFT_ERR_PEER_LOST; /* its memory may have changed under the copy */
    entry->completion = completion;
    weft_list_append(&engine->groups.accepted, &entry->link);
    return WEFT_IN_PROGRESS;
}

void shard_groups_on_timer(struct weft_timer *timer)
{
    struct shard_groups *groups = weft_container_of(timer, struct shard_groups, accepted_timer);
    struct weft_shard_engine *engine = weft_container_of(groups, struct weft_shard_engine, groups);
    shard_group_cork(engine);
    while (!weft_list_empty(&groups->accepted)) {
        struct shard_entry *entry = weft_list_first(&groups->accepted, struct shard_entry, link);
        struct weft_completion *completion = entry->completion;
        weft_list_remove(&entry->link);
        group_entry_ended(entry->group);
        weft_completion_finish(completion, WEFT_OK);
    }
    shard_group_uncork(engine);
}

static const struct weft_arrival_ops entry_ops = {
    .accept = entry_accept, .discard = entry_discard, .peek = entry_peek, .peek_is_valid = entry_is_valid};

/* ---- entries ---- */

/* The sender reads groups, so it may get them. */
static void note_worker(struct weft_shard_engine *engine, const struct weft_wire_header *header,
                        uint32_t peer_id)
{
    if (header->worker < engine->workers && engine->members.worker[header->worker].endpoint == peer_id)
        engine->groups.worker[header->worker].endpoint = peer_id;
}

static void entry_init(struct shard_group *group, struct shard_entry *entry,
                       const struct weft_wire_entry *source)
{
    entry->group = group;
    entry->payload = source->payload;
    entry->completion = NULL;
    weft_list_init(&entry->link);
    struct weft_arrival *arrival = &entry->arrival;
    arrival->ops = &entry_ops;
    arrival->peer_id = group->peer_id;
    arrival->tag = 0;
    arrival->payload_bytes = source->payload_bytes;
    arrival->header_bytes = sizeof source->header;
    memcpy(arrival->header, source->header, sizeof source->header);
    weft_list_init(&arrival->link);
    arrival->lost = arrival->is_streamed = false;
}

/* A malformed entry ends the group: the entries behind it cannot be found. */
static void handle_entries(struct shard_group *group)
{
    struct weft_shard_engine *engine = group->engine;
    struct weft_wire_entry source;
    size_t at = 0;
    group->open = 1;
    shard_group_cork(engine);
    for (uint32_t i = 0; i < group->count; i++) {
        if (weft_wire_group_next(group->payload, group->payload_bytes, &at, &source) < 0) {
            engine->stats.refused++;
            weft_log(engine->env, WEFT_LOG_DEBUG, "server", "group of endpoint %u: entry %u is malformed",
                     group->peer_id, i);
            break;
        }
        note_worker(engine, &source.decoded, group->peer_id);
        entry_init(group, &group->entries[i], &source);
        group->open++;
        shard_request_arrived(engine, &group->entries[i].arrival);
    }
    shard_group_uncork(engine);
    group_entry_ended(group);
}

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct shard_group *group = weft_container_of(completion, struct shard_group, received);
    struct weft_shard_engine *engine = group->engine;
    if (engine->end.closed) return;
    if (status < 0) {
        weft_log(engine->env, WEFT_LOG_WARN, "server", "a group of endpoint %u did not arrive: %s",
                 group->peer_id, weft_reason_text(status));
        shard_group_release(engine, group, group->block_bytes);
        return;
    }
    handle_entries(group);
}

/* ---- groups ---- */

/* false: not possible now. */
static bool refuse(struct weft_shard_engine *engine, struct weft_arrival *message, uint32_t number)
{
    struct weft_peer *peer = weft_transport_peer(engine->transport, message->peer_id);
    struct shard_reply *reply = engine->reply_pool.free_replies;
    if (peer && weft_peer_status(peer) == WEFT_OK) {
        uint8_t header[WEFT_WIRE_GROUP_HEADER_BYTES];
        if (!reply) return false;
        weft_wire_group_encode(&(struct weft_wire_group){.kind = WEFT_WIRE_GROUP_REFUSED,
                                                         .job = engine->settings.job,
                                                         .number = number},
                               header);
        const struct weft_message answer = {.tag = WEFT_TAG(WEFT_CHANNEL_RESULT_GROUP, number),
                                            .header = header,
                                            .header_bytes = sizeof header};
        weft_completion_init(&reply->completion, 1, shard_reply_sent);
        const enum weft_status status = weft_transport_send(peer, &answer, &reply->completion);
        if (status == WEFT_ERR_AGAIN) {
            shard_engine_schedule_retry(engine);
            return false;
        }
        if (status >= 0) {
            engine->reply_pool.free_replies = reply->next_free;
            engine->reply_pool.replies_in_flight++;
        }
    }
    weft_transport_discard(engine->transport, message);
    return true;
}

/* false: no memory. */
static bool read_group(struct weft_shard_engine *engine, struct weft_arrival *message, uint32_t count)
{
    const void *mapped = weft_transport_peek(message);
    const size_t entries_bytes = sizeof(struct shard_group) + count * sizeof(struct shard_entry),
                 bytes = entries_bytes + (mapped ? 0 : message->payload_bytes);
    struct shard_group *group = shard_arena_reserve(&engine->groups.memory, bytes);
    if (!group) return false;
    group->engine = engine;
    group->message = mapped ? message : NULL;
    group->block_bytes = bytes;
    group->payload_bytes = message->payload_bytes;
    group->payload = mapped ? mapped : (uint8_t *)group + entries_bytes;
    group->peer_id = message->peer_id;
    group->count = count;
    if (mapped) {
        handle_entries(group);
        return true;
    }
    weft_completion_init(&group->received, 1, received);
    const enum weft_status status = weft_transport_accept(
        engine->transport, message, (uint8_t *)group + entries_bytes, group->payload_bytes, &group->received);
    if (status >= 0) return true;
    shard_arena_release(&engine->groups.memory, group, bytes);
    if (status == WEFT_ERR_AGAIN) return false;
    weft_transport_discard(engine->transport, message);
    return true;
}

static void handle(struct weft_shard_engine *engine, struct weft_arrival *message)
{
    struct weft_wire_group group;
    if (weft_wire_group_decode(message->header, message->header_bytes, &group) < 0 ||
        group.kind != WEFT_WIRE_GROUP_REQUESTS || group.job != engine->settings.job ||
        group.payload_bytes != message->payload_bytes) {
        engine->stats.refused++;
        weft_log(engine->env, WEFT_LOG_DEBUG, "server",
                 "group of endpoint %u dropped: not a group of requests", message->peer_id);
        weft_transport_discard(engine->transport, message);
        return;
    }
    if (!read_group(engine, message, group.count) && !refuse(engine, message, group.number))
        weft_list_append(&engine->groups.waiting, &message->link);
}

static void group_arrived(void *context, struct weft_arrival *message)
{
    weft_list_init(&message->link);
    handle(context, message);
}

void shard_groups_resume(struct weft_shard_engine *engine)
{
    struct weft_list now;
    weft_list_take(&now, &engine->groups.waiting);
    while (!weft_list_empty(&now)) {
        struct weft_arrival *message = weft_list_first(&now, struct weft_arrival, link);
        weft_list_remove(&message->link);
        handle(engine, message);
    }
}

enum weft_status shard_groups_init(struct weft_shard_engine *engine, size_t receive_bytes)
{
    struct shard_groups *groups = &engine->groups;
    const size_t share = receive_bytes / POOL_SHARE;
    weft_list_init(&groups->waiting);
    weft_list_init(&groups->accepted);
    weft_list_init(&groups->unsent);
    groups->worker = weft_alloc_zero(engine->env, engine->members.workers_max * sizeof *groups->worker);
    if (!groups->worker) return WEFT_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < engine->members.workers_max; i++) groups->worker[i].endpoint = UINT32_MAX;
    WEFT_TRY(shard_arena_init(&groups->memory, engine->env, share < POOL_BYTES_MAX ? share : POOL_BYTES_MAX,
                              engine->settings.maps));
    weft_transport_handler(engine->transport, WEFT_CHANNEL_PUSH_GROUP, group_arrived, engine);
    return WEFT_OK;
}

void shard_groups_close(struct weft_shard_engine *engine)
{
    weft_transport_handler(engine->transport, WEFT_CHANNEL_PUSH_GROUP, NULL, NULL);
    weft_timer_stop(engine->loop, &engine->groups.accepted_timer);
    shard_engine_discard_all(engine, &engine->groups.waiting);
    while (!weft_list_empty(&engine->groups.accepted)) {
        struct shard_entry *entry = weft_list_first(&engine->groups.accepted, struct shard_entry, link);
        weft_list_remove(&entry->link);
        group_entry_ended(entry->group);
    }
}

void shard_groups_free(struct weft_shard_engine *engine)
{
    weft_timer_stop(engine->loop, &engine->groups.accepted_timer);
    shard_arena_fini(&engine->groups.memory, engine->env);
    weft_free_bytes(engine->env, engine->groups.worker);
}
