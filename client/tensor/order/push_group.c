/* push_group.c - see push_group.h. */
#include "client/tensor/order/push_group.h"

#include "client/engine/engine.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/server_mode.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

#define ENTRY_BYTES_MAX ((size_t)16 << 10) /* for longer payloads the copy costs as much as a message */
enum { BLOCK_GROUPS = 16 };                /* buffers allocated together */

/* An endpoint of a shard. */
struct push_target {
    struct weft_list link;
    uint32_t endpoint;
    bool reads_groups;
    struct weft_list pending; /* struct client_chunk.send_link */
    size_t pending_bytes;     /* of their entries; too large if a chunk has left the list */
};

struct push_group {
    struct weft_list link, all;
    struct weft_session *session;
    struct weft_completion sent;
    uint32_t endpoint, number, count;
    size_t used;
    uint8_t *entries; /* (WEFT_LIMIT_GROUP_BYTES,) in a block */
};

static struct client_push_groups *groups_of(const struct weft_session *session)
{
    return &session->tensors->push_groups;
}

/* ---- buffers ---- */

/* Allocates a further block of buffers. */
static bool add_block(struct weft_session *session)
{
    struct client_push_groups *groups = groups_of(session);
    uint32_t at = 0;
    while (at < CLIENT_PUSH_GROUP_BLOCKS && groups->blocks[at]) at++;
    if (at == CLIENT_PUSH_GROUP_BLOCKS ||
        weft_memory_alloc(session->env, BLOCK_GROUPS * WEFT_LIMIT_GROUP_BYTES, &groups->blocks[at], NULL) < 0)
        return false;
    for (uint32_t i = 0; i < BLOCK_GROUPS; i++) {
        struct push_group *group = weft_alloc_zero(session->env, sizeof *group);
        if (!group) break;
        weft_list_init(&group->link);
        weft_list_init(&group->all);
        group->session = session;
        group->entries = (uint8_t *)groups->blocks[at] + i * WEFT_LIMIT_GROUP_BYTES;
        weft_list_append(&groups->groups, &group->all);
        weft_list_append(&groups->idle, &group->link);
    }
    return true;
}

/* NULL: all are with the transport. */
static struct push_group *group_take(struct weft_session *session)
{
    struct client_push_groups *groups = groups_of(session);
    if (weft_list_empty(&groups->idle)) (void)add_block(session);
    if (weft_list_empty(&groups->idle)) return NULL;
    struct push_group *group = weft_list_first(&groups->idle, struct push_group, link);
    weft_list_remove(&group->link);
    group->count = 0;
    group->used = 0;
    if (++groups->number == 0) groups->number = 1; /* 0: no group */
    group->number = groups->number;
    return group;
}

static void group_return(struct push_group *group)
{
    weft_list_prepend(&groups_of(group->session)->idle, &group->link); /* its memory is in the cache */
}

/* ---- sending ---- */

static bool is_in_group(const struct client_chunk *chunk, uint32_t endpoint, uint32_t number)
{
    return chunk->group == number && chunk->endpoint == endpoint && chunk->awaits_result &&
           chunk->tensor->op.kind != CLIENT_OP_NONE && chunk->tensor->op.status == WEFT_OK;
}

/* Calls fn for the chunks that wait for a result of the group; fn ends the group's claim on the chunk. */
static void each_chunk(struct weft_session *session, uint32_t endpoint, uint32_t number,
                       void (*fn)(struct client_chunk *chunk, enum weft_status status),
                       enum weft_status status)
{
    for (size_t b = 0; b < CLIENT_TENSOR_BUCKETS; b++)
        for (struct weft_tensor *tensor = session->tensors->by_id[b]; tensor;
             tensor = tensor->registration.engine_next)
            for (uint32_t i = 0; i < tensor->chunk_table.count; i++)
                if (is_in_group(&tensor->chunk_table.chunks[i], endpoint, number))
                    fn(&tensor->chunk_table.chunks[i], status);
}

static void chunk_failed(struct client_chunk *chunk, enum weft_status status)
{
    client_tensor_fail(chunk->tensor, status, "was not taken by %s: %s",
                       client_endpoint_name(chunk->tensor->session, chunk->endpoint),
                       weft_reason_text(status));
}

static void send_alone(struct client_chunk *chunk, enum weft_status status)
{
    (void)status;
    chunk->group = 0;
    client_server_mode_send_alone(chunk);
}

static void group_sent(struct weft_completion *completion, enum weft_status status)
{
    struct push_group *group = weft_container_of(completion, struct push_group, sent);
    struct weft_session *session = group->session;
    if (status < 0) each_chunk(session, group->endpoint, group->number, chunk_failed, status);
    group_return(group);
    client_server_mode_resend(session);
}

/* WEFT_ERR_AGAIN: nothing was queued. */
static enum weft_status group_send(struct push_group *group)
{
    struct weft_session *session = group->session;
    const struct weft_wire_group header = {.kind = WEFT_WIRE_GROUP_REQUESTS,
                                           .job = session->membership.job_id,
                                           .number = group->number,
                                           .count = group->count,
                                           .payload_bytes = (uint32_t)group->used};
    uint8_t bytes[WEFT_WIRE_GROUP_HEADER_BYTES];
    weft_wire_group_encode(&header, bytes);
    const struct weft_message message = {.tag = WEFT_TAG(WEFT_CHANNEL_PUSH_GROUP, group->number),
                                         .header = bytes,
                                         .header_bytes = sizeof bytes,
                                         .payload = group->entries,
                                         .payload_bytes = group->used};
    struct weft_peer *peer = weft_transport_peer(session->engine->transport, group->endpoint);
    weft_completion_init(&group->sent, 1, group_sent);
    const enum weft_status status =
        peer ? weft_transport_send(peer, &message, &group->sent) : WEFT_ERR_UNREACHABLE;
    if (status >= 0 || status == WEFT_ERR_AGAIN) return status;
    each_chunk(session, group->endpoint, group->number, chunk_failed, status);
    group_return(group);
    return status;
}

static void group_post(struct push_group *group)
{
    struct weft_session *session = group->session;
    struct client_push_groups *groups = groups_of(session);
    if (weft_list_empty(&groups->unsent) && group_send(group) != WEFT_ERR_AGAIN) return;
    weft_list_append(&groups->unsent, &group->link);
    client_engine_retry_soon(session);
}

void client_push_groups_resend(struct weft_session *session)
{
    struct client_push_groups *groups = groups_of(session);
    while (!weft_list_empty(&groups->unsent)) {
        struct push_group *group = weft_list_first(&groups->unsent, struct push_group, link);
        weft_list_remove(&group->link);
        if (session->engine->failed) {
            group_return(group);
        } else if (group_send(group) == WEFT_ERR_AGAIN) {
            weft_list_prepend(&groups->unsent, &group->link);
            client_engine_retry_soon(session);
            return;
        }
    }
}

/* Moves pending chunks into the group while they fit. */
static void group_fill(struct push_group *group, struct push_target *target)
{
    while (!weft_list_empty(&target->pending) && group->count < WEFT_LIMIT_GROUP_ENTRIES) {
        struct client_chunk *chunk = weft_list_first(&target->pending, struct client_chunk, send_link);
        struct client_chunk_request request;
        client_server_mode_request(chunk, &request);
        const size_t bytes = weft_wire_group_entry_bytes(request.payload_bytes);
        if (group->used + bytes > WEFT_LIMIT_GROUP_BYTES) return;
        weft_list_remove(&chunk->send_link);
        weft_wire_group_put(group->entries + group->used, request.header, request.payload,
                            request.payload_bytes);
        group->used += bytes;
        group->count++;
        chunk->group = group->number;
        client_server_mode_sent(chunk, request.payload_bytes);
    }
}

static void flush_target(struct weft_session *session, struct push_target *target)
{
    while (!weft_list_empty(&target->pending)) {
        struct client_chunk *chunk = weft_list_first(&target->pending, struct client_chunk, send_link);
        const bool is_last = target->pending.next == target->pending.prev;
        struct push_group *group = is_last ? NULL : group_take(session);
        if (!group) {
            weft_list_remove(&chunk->send_link);
            client_server_mode_send_alone(chunk);
            continue;
        }
        group->endpoint = target->endpoint;
        group_fill(group, target);
        group_post(group);
    }
    target->pending_bytes = 0;
}

static void flush(struct weft_timer *timer)
{
    struct client_push_groups *groups = weft_container_of(timer, struct client_push_groups, flush);
    struct client_tensors *tensors = weft_container_of(groups, struct client_tensors, push_groups);
    struct weft_list *node, *spare;
    weft_list_foreach (node, spare, &groups->targets)
        flush_target(tensors->session, weft_container_of(node, struct push_target, link));
}

/* NULL: no memory. */
static struct push_target *target_of(struct weft_session *session, uint32_t endpoint)
{
    struct weft_list *targets = &groups_of(session)->targets, *node, *spare;
    weft_list_foreach (node, spare, targets) {
        struct push_target *target = weft_container_of(node, struct push_target, link);
        if (target->endpoint == endpoint) return target;
    }
    struct push_target *target = weft_alloc_zero(session->env, sizeof *target);
    if (!target) return NULL;
    const struct client_member *member = client_member_of_endpoint(session, endpoint);
    target->endpoint = endpoint;
    target->reads_groups = member && member->has_message_groups;
    weft_list_init(&target->link);
    weft_list_init(&target->pending);
    weft_list_append(targets, &target->link);
    return target;
}

bool client_push_group_add(struct client_chunk *chunk, size_t payload_bytes)
{
    struct weft_session *session = chunk->tensor->session;
    struct client_push_groups *groups = groups_of(session);
    if (payload_bytes > ENTRY_BYTES_MAX || chunk->tensor->options.alone) return false;
    if (chunk->term > 0) return false; /* its slot may get another leader: the request may be sent again */
    /* the only open request, of one chunk: no other will join, and the step may end after a thread switch */
    if (chunk->tensor->op.chunk_count == 1 && atomic_load(&session->open_requests) == 1) return false;
    struct push_target *target = target_of(session, chunk->endpoint);
    if (!target || !target->reads_groups) return false;
    if (!weft_timer_is_running(&groups->flush) &&
        weft_timer_start_now(session->engine->loop, &groups->flush) < 0)
        return false;
    weft_list_append(&target->pending, &chunk->send_link);
    target->pending_bytes += weft_wire_group_entry_bytes(payload_bytes);
    if (target->pending_bytes >= WEFT_LIMIT_GROUP_BYTES) flush_target(session, target);
    return true;
}

/* ---- results ---- */

static void malformed(struct weft_session *session, uint32_t peer_id, enum weft_status status)
{
    client_fail(session, status, true, "rank %u: a message from %s is no valid group of results: %s",
                session->rank, client_endpoint_name(session, peer_id), weft_reason_text(status));
}

/* The payload may lie in memory that the shard can write: weft_wire_group_next copies what it checks. */
static void read_results(struct weft_session *session, uint32_t peer_id, const uint8_t *payload, size_t bytes)
{
    struct weft_wire_entry entry;
    size_t at = 0;
    while (at < bytes && !session->engine->failed) {
        enum weft_status status = weft_wire_group_next(payload, bytes, &at, &entry);
        if (status >= 0 && (entry.decoded.kind != WEFT_WIRE_RESULT || entry.decoded.status != WEFT_OK))
            status = WEFT_ERR_MALFORMED;
        if (status < 0) {
            malformed(session, peer_id, status);
            return;
        }
        client_server_mode_result(session, peer_id, &entry.decoded, entry.payload);
    }
}

static void receive_next(struct weft_session *session);

static void received(struct weft_completion *completion, enum weft_status status)
{
    struct client_push_groups *groups =
        weft_container_of(completion, struct client_push_groups, results.done);
    struct weft_session *session = weft_container_of(groups, struct client_tensors, push_groups)->session;
    groups->results.is_receiving = false;
    if (status < 0 && !session->engine->failed) {
        client_fail(session, status, true, "rank %u: got no whole group of results from %s: %s",
                    session->rank, client_endpoint_name(session, groups->results.peer_id),
                    weft_reason_text(status));
    } else if (status >= 0) {
        read_results(session, groups->results.peer_id, groups->results.buffer, groups->results.bytes);
    }
    receive_next(session);
}

/* Receives the first group that waits, one at a time. */
static void receive_next(struct weft_session *session)
{
    struct client_push_groups *groups = groups_of(session);
    struct weft_transport *transport = session->engine->transport;
    while (!groups->results.is_receiving && !weft_list_empty(&groups->results.waiting)) {
        struct weft_arrival *arrival = weft_list_first(&groups->results.waiting, struct weft_arrival, link);
        weft_list_remove(&arrival->link);
        groups->results.peer_id = arrival->peer_id;
        groups->results.bytes = arrival->payload_bytes;
        weft_completion_init(&groups->results.done, 1, received);
        const enum weft_status status =
            session->engine->failed ? WEFT_ERR_CLOSED
                                    : weft_transport_accept(transport, arrival, groups->results.buffer,
                                                            arrival->payload_bytes, &groups->results.done);
        groups->results.is_receiving = status >= 0;
        if (status >= 0) continue;
        if (!session->engine->failed)
            client_fail(session, status, true, "rank %u: cannot receive a group of results from %s: %s",
                        session->rank, client_endpoint_name(session, arrival->peer_id),
                        weft_reason_text(status));
        weft_transport_discard(transport, arrival);
    }
}

static bool reserve_buffer(struct weft_session *session)
{
    uint8_t **buffer = &groups_of(session)->results.buffer;
    if (!*buffer) *buffer = weft_alloc_bytes(session->env, WEFT_LIMIT_GROUP_BYTES);
    return *buffer != NULL;
}

static void on_group(void *context, struct weft_arrival *arrival)
{
    struct weft_session *session = context;
    struct weft_transport *transport = session->engine->transport;
    struct client_push_groups *groups = groups_of(session);
    struct weft_wire_group header;
    enum weft_status status = weft_wire_group_decode(arrival->header, arrival->header_bytes, &header);
    if (status >= 0 && (header.kind == WEFT_WIRE_GROUP_REQUESTS || header.job != session->membership.job_id ||
                        header.payload_bytes != arrival->payload_bytes))
        status = WEFT_ERR_MALFORMED;
    const uint32_t peer_id = arrival->peer_id;
    const void *mapped = status >= 0 && header.payload_bytes > 0 ? weft_transport_peek(arrival) : NULL;
    if (status < 0) {
        malformed(session, peer_id, status);
    } else if (header.kind == WEFT_WIRE_GROUP_REFUSED) {
        if (!session->engine->failed) each_chunk(session, peer_id, header.number, send_alone, WEFT_OK);
    } else if (mapped) {
        read_results(session, peer_id, mapped, header.payload_bytes);
    } else if (!reserve_buffer(session)) {
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory for %u bytes of results",
                    session->rank, WEFT_LIMIT_GROUP_BYTES);
    } else {
        weft_list_append(&groups->results.waiting, &arrival->link);
        receive_next(session);
        return;
    }
    weft_transport_discard(transport, arrival);
}

/* ---- life ---- */

void client_push_groups_init(struct weft_session *session)
{
    struct client_push_groups *groups = groups_of(session);
    weft_list_init(&groups->targets);
    weft_list_init(&groups->idle);
    weft_list_init(&groups->unsent);
    weft_list_init(&groups->groups);
    weft_list_init(&groups->results.waiting);
    weft_timer_init(&groups->flush, flush);
}

void client_push_groups_listen(struct weft_session *session)
{
    weft_transport_handler(session->engine->transport, WEFT_CHANNEL_RESULT_GROUP, on_group, session);
}

void client_push_groups_free(struct weft_session *session)
{
    struct client_push_groups *groups = groups_of(session);
    while (!weft_list_empty(&groups->targets)) {
        struct push_target *target = weft_list_first(&groups->targets, struct push_target, link);
        weft_list_remove(&target->link);
        weft_free_bytes(session->env, target);
    }
    while (!weft_list_empty(&groups->groups)) {
        struct push_group *group = weft_list_first(&groups->groups, struct push_group, all);
        weft_list_remove(&group->all);
        weft_free_bytes(session->env, group);
    }
    for (uint32_t i = 0; i < CLIENT_PUSH_GROUP_BLOCKS; i++) weft_memory_free(session->env, groups->blocks[i]);
    weft_free_bytes(session->env, groups->results.buffer);
}
