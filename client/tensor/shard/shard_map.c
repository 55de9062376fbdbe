/* shard_map.c - applies the coordinator's Maps: leaders and terms of the shards' slots.
 *
 *     net thread: Map -> control.maps -> engine: slots -> chunks of all tensors -> requests sent again
 *                                             \ the lost shard's endpoints fail, which frees their buffers
 *
 * ShardAdded arrives the same way, so the engine is connected to a further shard before a Map names it.
 *
 * Terms only rise. A tensor that is attached later gets the slots' present leaders. */
#include "client/tensor/shard/shard_map.h"

#include "client/engine/engine.h"
#include "client/session/control.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"
#include "client/tensor/server_mode.h"
#include "client/tensor/tensor.h"
#include "client/tensor/tensors.h"

void client_shard_map_follow(struct weft_tensor *tensor)
{
    const struct client_map_slot *slots = tensor->session->tensors->shard_map.slots;
    for (uint32_t i = 0; slots && i < tensor->chunk_table.count; i++) {
        struct client_chunk *chunk = &tensor->chunk_table.chunks[i];
        const struct client_map_slot *slot = &slots[chunk->slot];
        if (slot->term > chunk->term) client_server_mode_follow(chunk, slot->leader, slot->term);
    }
}

static void fail_lost(struct weft_session *session, uint32_t number, const char *text)
{
    const struct client_member *member = client_member_of_number(session, number);
    for (uint32_t e = 0; member && e < member->endpoint_count; e++)
        weft_transport_fail_peer(session->engine->transport, member->endpoint_first + e, WEFT_ERR_PEER_LOST,
                                 text);
}

/* The operations that are open when a shard is lost; the last of them to end ends the fail-over. */
static void failover_begin(struct client_shard_map *shard_map, struct weft_tensor *tensor)
{
    const struct client_tensor_op *op = &tensor->op;
    const bool is_open = op->request && op->results_left > 0 && op->status >= 0 &&
                         op->epoch == tensor->session->epoch && !tensor->session->engine->failed;
    const uint64_t started_ns = is_open ? op->request->started_ns : 0;
    if (started_ns == 0 || tensor->times.spans_loss) return;
    tensor->times.spans_loss = true;
    if (shard_map->spanning++ == 0 || started_ns < shard_map->began_ns) shard_map->began_ns = started_ns;
}

void client_shard_map_op_done(struct weft_tensor *tensor)
{
    struct weft_session *session = tensor->session;
    struct client_shard_map *shard_map = &session->tensors->shard_map;
    if (!tensor->times.spans_loss) return;
    tensor->times.spans_loss = false;
    if (--shard_map->spanning > 0) return;
    weft_histogram_add(&session->totals.failover,
                       weft_elapsed_ns(shard_map->began_ns, weft_now_ns(session->env)));
}

static void apply(struct weft_session *session, const Weft__Control__Map *map)
{
    struct client_tensors *tensors = session->tensors;
    for (size_t i = 0; i < map->n_slots; i++) {
        struct client_map_slot *slot = &tensors->shard_map.slots[map->slots[i]->slot];
        if (map->slots[i]->term > slot->term)
            *slot = (struct client_map_slot){map->slots[i]->term, map->slots[i]->leader};
    }
    for (size_t i = 0; i < CLIENT_TENSOR_BUCKETS; i++)
        for (struct weft_tensor *tensor = tensors->by_id[i]; tensor;
             tensor = tensor->registration.engine_next) {
            if (map->lost > 0) failover_begin(&tensors->shard_map, tensor);
            client_shard_map_follow(tensor);
        }
    if (map->lost == 0) return;
    weft_log(session->env, WEFT_LOG_WARN, "client", "%s; copies lead its slots", map->text);
    fail_lost(session, map->lost - 1, map->text);
}

/* A further shard: connects to it, and reports that, or why not: then the coordinator does not admit it. */
static void add_shard(struct weft_session *session, const Weft__Control__Member *shard)
{
    struct weft_error error = {0};
    Weft__Control__ShardKnown known = WEFT__CONTROL__SHARD_KNOWN__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    enum weft_status status = client_members_add_shard(session, shard, &error);
    if (status == WEFT_OK) status = session->ops.connect(session, shard, &error);
    known.member = shard->member;
    known.text = (char *)(status < 0 ? error.text : "");
    message.body_case = WEFT__CONTROL__CONTROL__BODY_SHARD_KNOWN;
    message.shard_known = &known;
    if (client_control_send(session, &message) < 0)
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory for a further shard",
                    session->rank);
}

static void apply_all(struct weft_command *command)
{
    struct client_shard_map *shard_map = weft_container_of(command, struct client_shard_map, command);
    struct client_tensors *tensors = weft_container_of(shard_map, struct client_tensors, shard_map);
    struct weft_session *session = tensors->session;
    atomic_store(&shard_map->is_queued, false); /* first: a later Map queues the command again */
    pthread_mutex_lock(&session->control.lock);
    struct client_map_message *messages = session->control.maps;
    session->control.maps = NULL;
    pthread_mutex_unlock(&session->control.lock);
    if (!shard_map->slots)
        shard_map->slots = weft_alloc_zero(session->env, WEFT_LIMIT_SLOTS * sizeof *shard_map->slots);
    if (!shard_map->slots)
        client_fail(session, WEFT_ERR_NO_MEMORY, true, "rank %u: no memory for the map of the shards",
                    session->rank);
    for (const struct client_map_message *at = messages; shard_map->slots && at; at = at->next)
        if (at->message->body_case == WEFT__CONTROL__CONTROL__BODY_MAP) apply(session, at->message->map);
        else add_shard(session, at->message->shard_added->shard);
    client_map_messages_free(session, messages);
}

/* Net thread. */
static void map_arrived(struct weft_session *session)
{
    struct client_shard_map *shard_map = &session->tensors->shard_map;
    if (!atomic_exchange(&shard_map->is_queued, true)) weft_loop_post(session->loop, &shard_map->command);
}

void client_shard_map_init(struct weft_session *session)
{
    session->ops.map_arrived = map_arrived;
    session->tensors->shard_map.command.fn = apply_all;
}

void client_shard_map_free(struct weft_session *session)
{
    weft_free_bytes(session->env, session->tensors->shard_map.slots);
    session->tensors->shard_map.slots = NULL;
}
