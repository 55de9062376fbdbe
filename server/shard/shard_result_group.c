/* shard_result_group.c - groups of results: what several small rounds send to one worker at once.
 *
 * The values are copied into the group's block, so the chunk is free for its next round at once. A group with
 * one result is sent as a plain RESULT. If the transport has no space, the group stays in `unsent` and the
 * next pump tries again. */
#include "server/shard/shard_engine.h"

struct shard_result_group {
    struct weft_shard_engine *engine;
    struct weft_list link; /* groups.unsent */
    struct weft_completion sent;
    uint32_t peer_id, count;
    size_t used;        /* bytes of entries */
    size_t first_bytes; /* payload of the first entry */
    uint64_t first_tag;
    uint8_t entries[WEFT_LIMIT_GROUP_BYTES];
};

void shard_group_cork(struct weft_shard_engine *engine)
{
    engine->groups.corks++;
}

void shard_group_uncork(struct weft_shard_engine *engine)
{
    WEFT_ASSERT(engine->groups.corks > 0);
    if (--engine->groups.corks == 0) shard_engine_resume(engine);
}

static void group_free(struct shard_result_group *group)
{
    shard_group_release(group->engine, group, sizeof *group);
}

static void group_sent(struct weft_completion *completion, enum weft_status status)
{
    struct shard_result_group *group = weft_container_of(completion, struct shard_result_group, sent);
    struct weft_shard_engine *engine = group->engine;
    group_free(group);
    if (!engine->end.closed) shard_engine_resume(engine);
}

/* false: the transport has no space. true: sent, or the peer is lost. */
static bool send_group(struct shard_result_group *group)
{
    struct weft_shard_engine *engine = group->engine;
    struct weft_peer *peer = weft_transport_peer(engine->transport, group->peer_id);
    if (!peer || weft_peer_status(peer) < 0) {
        group_free(group);
        return true;
    }
    uint8_t header[WEFT_WIRE_GROUP_HEADER_BYTES];
    struct weft_message message = {.tag = group->first_tag,
                                   .header = group->entries,
                                   .header_bytes = WEFT_WIRE_HEADER_BYTES,
                                   .payload =
                                       group->first_bytes ? group->entries + WEFT_WIRE_HEADER_BYTES : NULL,
                                   .payload_bytes = group->first_bytes};
    if (group->count > 1) {
        const uint32_t number = ++engine->groups.number;
        weft_wire_group_encode(&(struct weft_wire_group){.kind = WEFT_WIRE_GROUP_RESULTS,
                                                         .job = engine->settings.job,
                                                         .number = number,
                                                         .count = group->count,
                                                         .payload_bytes = (uint32_t)group->used},
                               header);
        message = (struct weft_message){.tag = WEFT_TAG(WEFT_CHANNEL_RESULT_GROUP, number),
                                        .header = header,
                                        .header_bytes = sizeof header,
                                        .payload = group->entries,
                                        .payload_bytes = group->used};
    }
    weft_completion_init(&group->sent, 1, group_sent);
    const enum weft_status status = weft_transport_send(peer, &message, &group->sent);
    if (status == WEFT_ERR_AGAIN) {
        shard_engine_schedule_retry(engine);
        return false;
    }
    if (status < 0) group_free(group); /* lost between the two calls */
    else engine->stats.sent_bytes += message.header_bytes + message.payload_bytes;
    return true;
}

/* Sends the worker's open group, or queues it. */
static void close_open(struct weft_shard_engine *engine, struct shard_group_worker *worker)
{
    struct shard_result_group *group = worker->open;
    worker->open = NULL;
    engine->groups.open_count--;
    if (!weft_list_empty(&engine->groups.unsent) || !send_group(group))
        weft_list_append(&engine->groups.unsent, &group->link);
}

static struct shard_result_group *group_open(struct weft_shard_engine *engine,
                                             struct shard_group_worker *worker)
{
    struct shard_result_group *group = shard_arena_reserve(&engine->groups.memory, sizeof *group);
    if (!group) return NULL;
    group->engine = engine;
    weft_list_init(&group->link);
    group->peer_id = worker->endpoint;
    group->count = 0;
    group->used = 0;
    worker->open = group;
    engine->groups.open_count++;
    return group;
}

/* A further result to the worker may follow before the pump ends. */
static bool gathers(const struct weft_shard_engine *engine)
{
    const struct weft_list *queue = &engine->queues.reply_queue;
    return engine->groups.corks > 0 || (engine->reply_pool.pumping && queue->next != queue->prev);
}

bool shard_result_group_add(struct weft_shard_engine *engine, const struct weft_wire_header *header,
                            const void *payload)
{
    if (header->status < 0 || header->payload_bytes > SHARD_GROUP_ENTRY_BYTES_MAX) return false;
    struct shard_group_worker *worker = &engine->groups.worker[header->worker];
    if (worker->endpoint != engine->members.worker[header->worker].endpoint) return false;
    const size_t bytes = weft_wire_group_entry_bytes((size_t)header->payload_bytes);
    struct shard_result_group *group = worker->open;
    if (group && (group->used + bytes > sizeof group->entries || group->count == WEFT_LIMIT_GROUP_ENTRIES ||
                  group->peer_id != worker->endpoint)) {
        close_open(engine, worker);
        group = NULL;
    }
    if (!group && !(gathers(engine) && (group = group_open(engine, worker)))) return false;
    uint8_t encoded[WEFT_WIRE_HEADER_BYTES];
    weft_wire_encode(header, encoded);
    weft_wire_group_put(group->entries + group->used, encoded, payload, (size_t)header->payload_bytes);
    if (group->count++ == 0) {
        group->first_bytes = (size_t)header->payload_bytes;
        group->first_tag = WEFT_TAG(WEFT_CHANNEL_RESULT, (uint64_t)header->chunk << 32 | header->tensor);
    }
    group->used += bytes;
    return true;
}

void shard_result_groups_flush(struct weft_shard_engine *engine)
{
    while (!weft_list_empty(&engine->groups.unsent)) {
        struct shard_result_group *group =
            weft_list_first(&engine->groups.unsent, struct shard_result_group, link);
        weft_list_remove(&group->link);
        if (send_group(group)) continue;
        weft_list_prepend(&engine->groups.unsent, &group->link);
        break;
    }
    for (uint32_t i = 0; engine->groups.open_count > 0 && i < engine->members.workers_max; i++)
        if (engine->groups.worker[i].open) close_open(engine, &engine->groups.worker[i]);
}
